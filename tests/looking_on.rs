//! The commands that look: `stat`, `peers`, `clients`, `transfers`, `exports`, at real daemons at
//! work.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use piped_client::{Access, Client, OpenOptions, Request};
use rustix::process::Signal;
use serde_json::Value;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, PATIENCE, Pair, Programs, Running, eventually, words,
};

/// What a command prints, which must succeed.
fn said(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = daemon.pipectl(arguments).output().expect("pipectl starts");
    assert!(output.status.success(), "{arguments:?}: {}", words(&output));
    assert!(output.stderr.is_empty(), "{arguments:?}: {}", words(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn json(daemon: &Daemon, arguments: &[&str]) -> Value {
    let text = said(daemon, &[arguments, &["--json"]].concat());
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["schema_version"], 1, "{value}");
    value
}

/// Reads a pipe to its end on a thread, so that it never fills.
fn read_aside(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).expect("UTF-8");
        text
    })
}

/// Two nodes, and a client of alpha's with two requests that do not end: beta is stopped.
struct Scene {
    pair: Pair,
    client: Client,
    queue: piped_client::Queue,
    _directory: tempfile::TempDir,
}

fn scene(directory: tempfile::TempDir, programs: &Programs) -> Scene {
    let pair = Pair::start(programs, directory.path());
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let options = OpenOptions::read_write();
    let file = client.open_export(Some("beta"), "data", "blocks", options).expect("opened");
    let buffer = client.allocate(8192).expect("memory");
    let (buffer, _) = queue.read(&file, 0, buffer).expect("read");
    let buffer = queue.write(&file, 0, buffer).expect("written");
    drop(buffer);
    pair.beta.process.freeze();
    let read = Request::read(&file, 0, client.allocate(BLOCKS_BYTES / 4).expect("memory"));
    let read = queue.submit(read.deadline(10 * PATIENCE)).expect("room");
    let sync = queue.submit(Request::sync(&file).deadline(10 * PATIENCE)).expect("room");
    queue.detach(read);
    queue.detach(sync);
    queue.flush();
    eventually("both are under way", || (pair.alpha.number("transfers") == 2).then_some(()));
    Scene { pair, client, queue, _directory: directory }
}

#[test]
fn what_runs_and_who_asks_is_shown() {
    let Some(programs) = Programs::find() else { return };
    let scene = scene(tempfile::tempdir().expect("a directory"), &programs);
    let Scene { pair, client, queue, .. } = &scene;
    let alpha = &pair.alpha;

    let running = json(alpha, &["transfers"]);
    assert_eq!(running["total"], 2, "{running}");
    let read = &running["transfers"][0];
    assert_eq!((&read["operation"], &read["bytes_done"]), (&"read".into(), &0.into()));
    assert_eq!(read["bytes"], BLOCKS_BYTES / 4);
    assert_eq!(read["session"], client.session());
    assert!(read["left_seconds"].as_f64().is_some_and(|left| left > 0.0), "{read}");
    assert!(read["status"].is_null(), "{read}");
    let ended = json(alpha, &["transfers", "--ended"]);
    let last = &ended["transfers"][0];
    assert_eq!((&last["operation"], &last["status"]), (&"write".into(), &"ok".into()));
    let id = last["id"].as_u64().expect("a number").to_string();
    let explained = json(alpha, &["explain", &id]);
    assert_eq!(explained["explanation"]["operation"], "write");

    let clients = json(alpha, &["clients"]);
    let entry = &clients["clients"][0];
    assert_eq!((&entry["session"], &entry["requests"]), (&client.session().into(), &2.into()));
    assert_eq!((&entry["completed"], &entry["bytes"]), (&2.into(), &16384.into()));
    assert_eq!((&entry["pid"], &entry["handles"]), (&std::process::id().into(), &1.into()));
    if rustix::process::geteuid().is_root() {
        assert_eq!(entry["user"], "root");
    }
    assert_eq!(queue.underway(), 2);

    let peers = json(alpha, &["peers"]);
    let beta = &peers["peers"][0];
    assert_eq!((&beta["name"], &beta["inbound"]), (&"beta".into(), &false.into()));
    assert!(beta["address"].as_str().is_some_and(|it| it.starts_with("127.")), "{beta}");
    let requests: u64 = beta["lanes"]
        .as_array()
        .expect("two")
        .iter()
        .map(|lane| lane["requests"].as_u64().expect("a number"))
        .sum();
    assert_eq!(requests, 2);
    pair.beta.process.signal(Signal::CONT);

    let owner = Client::connect(pair.beta.client_socket()).expect("it serves");
    let memory = owner.allocate(4096).expect("memory");
    let _region = owner.export_region("halo", memory, Access::READ).expect("offered");
    let exports = json(&pair.beta, &["exports"]);
    let data = &exports["exports"][0];
    assert_eq!((&data["name"], &data["write"]), (&"data".into(), &true.into()));
    let halo = &exports["regions"][0];
    assert_eq!((&halo["name"], &halo["bytes"]), (&"halo".into(), &4096.into()));
    assert_eq!(halo["session"], owner.session());
    let served = json(&pair.beta, &["peers"]);
    assert_eq!(
        (&served["peers"][0]["name"], &served["peers"][0]["inbound"]),
        (&"alpha".into(), &true.into())
    );
}

#[test]
fn forty_columns_are_enough_and_a_pipe_is_not_folded() {
    let Some(programs) = Programs::find() else { return };
    let scene = scene(tempfile::tempdir().expect("a directory"), &programs);
    let alpha = &scene.pair.alpha;
    for (arguments, word) in [
        (&["status"][..], "sessions"),
        (&["stages"], "net beta"),
        (&["explain", "last"], "measured"),
        (&["stat"], "operations"),
        (&["peers"], "we ask"),
        (&["clients"], "latency"),
        (&["transfers"], "read"),
        (&["transfers", "--ended"], "write"),
        (&["exports"], "offered"),
    ] {
        let narrow = alpha.pipectl(arguments).env("COLUMNS", "40").output().expect("it starts");
        let text = words(&narrow);
        assert!(narrow.status.success(), "{text}");
        let found = text.to_lowercase().contains(word);
        assert!(found, "{arguments:?} has no {word}\n{text}");
        let long = text.lines().find(|line| line.chars().count() > 40);
        assert_eq!(long, None, "{arguments:?}\n{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    let wide = said(alpha, &["transfers"]);
    assert_eq!(wide.lines().count(), 3, "a heading and a line for each\n{wide}");
    assert!(wide.contains("peer -> lane -> client memory"), "{wide}");
    scene.pair.beta.process.signal(Signal::CONT);
}

/// Something that does reads until it is dropped.
fn load(daemon: &Daemon, file: &Path) -> Running {
    let file = file.to_str().expect("a plain path");
    let arguments = ["bench", "read", "--file", file, "--size", "4KiB", "--seconds", "600"];
    Running(daemon.pipectl(arguments).spawn().expect("started"))
}

#[test]
fn stat_shows_what_is_done_interval_by_interval() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let file = directory.path().join("file");
    std::fs::write(&file, vec![7; 1 << 20]).expect("written");
    let idle = json(&daemon, &["stat"]);
    assert_eq!(
        (&idle["since_start"], &idle["local"]["reads_per_second"]),
        (&true.into(), &0.0.into())
    );
    assert!(idle["latency_p50_seconds"].is_null(), "{idle}");

    let _load = load(&daemon, &file);
    eventually("it reads", || (daemon.number("completed") > 100).then_some(()));
    let text = said(&daemon, &["stat", "-y", "0.2", "3", "--json"]);
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    for line in &lines {
        assert_eq!((&line["schema_version"], &line["since_start"]), (&1.into(), &false.into()));
        let number = |of: &Value| of.as_f64().expect("a number");
        let (reads, bytes) =
            (&line["local"]["reads_per_second"], &line["local"]["read_bytes_per_second"]);
        assert!(number(reads) > 0.0, "{line}");
        // What runs counts as far as it has come: an interval may have what is under way, one read,
        // more or less.
        let beside = (number(bytes) - number(reads) * 4096.0).abs() * number(&line["seconds"]);
        assert!(beside <= 4096.5, "{line}");
        assert_eq!(number(&line["remote"]["reads_per_second"]), 0.0);
        let (p50, p99) =
            (number(&line["latency_p50_seconds"]), number(&line["latency_p99_seconds"]));
        assert!(0.0 < p50 && p50 <= p99, "{line}");
    }
    // In a pipe: one heading, however long it goes on, and the first line is since the start.
    let plain = said(&daemon, &["stat", "0.05", "4"]);
    assert_eq!(plain.lines().count(), 2 + 4, "{plain}");
    assert_eq!(plain.matches("local ops").count(), 1, "{plain}");
}

#[test]
fn stat_ends_with_130_at_ctrl_c_and_quietly_when_nobody_reads() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let mut stat = Running(daemon.pipectl(["stat", "0.05"]).spawn().expect("started"));
    let mut lines = BufReader::new(stat.0.stdout.take().expect("a pipe")).lines();
    // The heading, the line since the start, and one that was waited for.
    for _ in 0..4 {
        lines.next().expect("a line").expect("read");
    }
    stat.signal(Signal::INT);
    let mut error = String::new();
    assert_eq!(stat.exit().code(), Some(130));
    stat.0.stderr.take().expect("a pipe").read_to_string(&mut error).expect("text");
    assert_eq!(error, "pipectl: interrupted\n");

    let mut stat = Running(daemon.pipectl(["stat", "0.05"]).spawn().expect("started"));
    drop(stat.0.stdout.take());
    assert_eq!(stat.exit().code(), Some(0));

    // A daemon that goes is told of, with the code for that.
    let mut stat = Running(daemon.pipectl(["stat", "0.05"]).spawn().expect("started"));
    let mut lines = BufReader::new(stat.0.stdout.take().expect("a pipe")).lines();
    lines.next().expect("a line").expect("read");
    drop(daemon);
    assert_eq!(stat.exit().code(), Some(3));
}

#[test]
fn numbers_of_transfers_are_one_for_all_shards() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = programs.piped();
    command.args(["--set", "shards.count=2", "--set", "limits.global.staging=\"8MiB\""]);
    let daemon = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
    let path = directory.path().join("file");
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    // Each on the shard that has fewer; each asks for another length.
    let mut clients: Vec<_> = (0..2)
        .map(|_| {
            let client = Client::connect(daemon.client_socket()).expect("it serves");
            let queue = client.queue().expect("a queue");
            let file = client.open_file(&path, OpenOptions::read()).expect("opened");
            (client, queue, file)
        })
        .collect();
    let mut length = 0;
    for _ in 0..3 {
        for (client, queue, file) in &mut clients {
            length += 4096;
            let buffer = client.allocate(length).expect("memory");
            queue.read(file, 0, buffer).expect("read");
        }
    }
    let ended = json(&daemon, &["transfers", "--ended"]);
    let list = ended["transfers"].as_array().expect("a list");
    let shards: Vec<&Value> = list.iter().map(|it| &it["shard"]).collect();
    assert!(shards.contains(&&0.into()) && shards.contains(&&1.into()), "{ended}");
    let bytes: Vec<u64> = list.iter().map(|it| it["bytes"].as_u64().expect("a number")).collect();
    assert_eq!(bytes, [6, 5, 4, 3, 2, 1].map(|pages| pages * 4096), "the latest first");
    for it in list {
        let id = it["id"].as_u64().expect("a number");
        let explained = json(&daemon, &["explain", &id.to_string()]);
        let explained = &explained["explanation"];
        assert_eq!((&explained["id"], &explained["bytes"]), (&id.into(), &it["bytes"]));
    }
    let last = json(&daemon, &["explain", "last"]);
    assert_eq!(last["explanation"]["id"], list[0]["id"]);
}

#[test]
fn the_last_transfer_is_one_that_moved_bytes_and_says_what_it_waited_for() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let path = directory.path().join("own");
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    let file = client.open_file(&path, OpenOptions::read_write()).expect("opened");
    let buffer = client.allocate(65_536).expect("memory");
    queue.read(&file, 0, buffer).expect("read");
    queue.sync(&file).expect("synced");
    let last = &json(&pair.alpha, &["explain", "last"])["explanation"];
    assert_eq!(last["operation"], "read", "{last}");
    assert_eq!(last["waiting"]["alone"], true, "{last}");
    assert!(last["deviation"].is_number() && last["not_compared"] == "", "{last}");
    let all = &json(&pair.alpha, &["explain", "last", "--all"])["explanation"];
    assert_eq!(all["operation"], "sync", "{all}");
}

#[test]
fn fragments_are_recorded_at_both_ends_and_drawn() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), "checksum = \"payload\"\n");
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let options = OpenOptions::read();
    let file = client.open_export(Some("beta"), "data", "blocks", options).expect("opened");
    let mut buffer = client.allocate(BLOCKS_BYTES).expect("memory");
    let path = |name: &str| directory.path().join(name);
    let mut traced = |daemon: &Daemon, name: &str| {
        let (svg, chrome) = (path(&format!("{name}.svg")), path(&format!("{name}.json")));
        let arguments = ["trace", "--transfers", "2", "--seconds", "60", "--json"];
        let mut command = daemon.pipectl(arguments);
        command.arg("--svg").arg(&svg).arg("--chrome").arg(&chrome);
        let mut running = Running(command.spawn().expect("pipectl starts"));
        let stdout = read_aside(running.0.stdout.take().expect("a pipe"));
        let stderr = read_aside(running.0.stderr.take().expect("a pipe"));
        while running.0.try_wait().expect("our child").is_none() {
            let taken = std::mem::replace(&mut buffer, client.allocate(4096).expect("memory"));
            (buffer, _) = queue.read(&file, 0, taken).expect("read");
        }
        let (text, complaint) = (stdout.join(), stderr.join().expect("no panic"));
        assert!(running.exit().success(), "{name}: {complaint}");
        let text = text.expect("no panic");
        let drawn = std::fs::read_to_string(svg).expect("a picture");
        assert!(drawn.starts_with("<svg") && drawn.contains("measured"), "{drawn}");
        let events = std::fs::read_to_string(chrome).expect("a trace");
        let events: Value = serde_json::from_str(&events).expect("JSON");
        assert!(events["traceEvents"].as_array().is_some_and(|all| all.len() > 8), "{events}");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&json["schema_version"], &json["ended"]), (&1.into(), &2.into()), "{json}");
        json["transfers"][1].clone()
    };
    let stages = |transfer: &Value| -> Vec<String> {
        let names = transfer["stages"].as_array().expect("names").iter();
        names.map(|name| name.as_str().expect("text").to_owned()).collect()
    };
    let asked = traced(&pair.alpha, "alpha");
    assert_eq!(asked["served"], false, "{asked}");
    let names = stages(&asked);
    assert!(names[0] == "peer" && names[1].starts_with("net beta"), "{names:?}");
    let served = traced(&pair.beta, "beta");
    assert_eq!(served["served"], true, "{served}");
    let names = stages(&served);
    // The peer's checksum is taken to cost what ours does until its first report has come.
    let peers = |name: &String| name == "check (peer)" || name.starts_with("check alpha");
    assert!(names[0].starts_with("disk") && names.iter().any(peers), "{names:?}");
    for (transfer, stage) in [(&asked, 1), (&served, 0)] {
        let visits = transfer["measured"].as_array().expect("visits").iter();
        let bytes = visits.filter(|visit| visit["stage"] == stage);
        let bytes: u64 = bytes.filter_map(|visit| visit["bytes"].as_u64()).sum();
        assert_eq!(bytes, BLOCKS_BYTES as u64, "{transfer}");
    }
    assert!(!served["predicted"].as_array().expect("visits").is_empty(), "{served}");
    // What explain has of it in sums.
    let id = served["id"].as_u64().expect("a number").to_string();
    pair.beta.await_rest();
    let told = json(&pair.beta, &["explain", &id]);
    let passed = told["explanation"]["passed"].as_array().expect("stages").clone();
    assert!(passed.iter().any(|it| it["measured"]["busy_seconds"].as_f64() > Some(0.0)), "{told}");
}
