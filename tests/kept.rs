//! What was measured outlives the daemon, and nothing that lies in its place harms it.
#![forbid(unsafe_code)]

use std::fs;
use std::ops::Range;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use piped::kept::{FILE, format};
use piped::replace::replace;
use piped_client::{Client, OpenOptions};
use piped_model::estimate::CostCurve;
use piped_model::stage::{Stage, StageCost as _};
use piped_planner::kept::KeptLine;
use rustix::process::Signal;
use serde_json::Value;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, Programs, Running, drop_cached, eventually, free_address, pattern, words,
};

/// What a daemon says that does not believe its file.
const DOUBT: &str = "what was measured before is not used";

/// A daemon with a state directory, as systemd tells it.
fn start(programs: &Programs, directory: &Path, name: &str, more: &str) -> Daemon {
    let mut command = programs.piped();
    command.env("STATE_DIRECTORY", state(directory, name));
    Daemon::start_by(command, programs, directory, name, more)
}

fn state(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.state"))
}

fn file(directory: &Path, name: &str) -> PathBuf {
    state(directory, name).join(FILE)
}

fn stop(daemon: &mut Daemon) {
    daemon.process.signal(Signal::TERM);
    let status = daemon.process.exit();
    assert!(status.success(), "{status}\n{}", daemon.log());
}

/// Reads of a peer's file, of 64 KiB, 256 KiB and 1 MiB in turn; `before` comes when it is open.
fn read(alpha: &Daemon, rounds: Range<usize>, before: impl FnOnce()) {
    let client = Client::connect(alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let blocks = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    let blocks = blocks.expect("it is there");
    before();
    for round in rounds {
        let buffer = client.allocate((64 << 10) << (2 * (round % 3))).expect("memory");
        queue.read(&blocks, 0, buffer).expect("read");
    }
}

/// What a daemon knows of its stages, and what of it was measured before its start.
struct Known {
    stages: Value,
    table: String,
}

impl Known {
    fn of(daemon: &Daemon) -> Self {
        let table = words(&daemon.pipectl(["stages"]).output().expect("it starts"));
        Self { stages: daemon.json(&["stages"])["stages"].clone(), table }
    }

    fn kept(&self) -> Vec<&str> {
        let stages = self.stages.as_array().expect("a list").iter();
        let kept = stages.filter(|stage| stage["kept"] == true);
        kept.map(|stage| stage["name"].as_str().expect("text")).collect()
    }
}

/// The size at which `stages` shows a cost.
const SHOWN_BYTES: f64 = 65_536.0;

/// A stage's L, g and G as shown.
fn cost(stage: &Value) -> [f64; 3] {
    let of = |field: &str| stage[field].as_f64().expect("a number");
    [of("latency_seconds"), of("overhead_seconds"), of("per_byte_seconds")]
}

/// The same of what is kept.
fn of_entry(entry: &format::Entry) -> [f64; 3] {
    let stage = |line: &KeptLine| Stage {
        latency: line.latency,
        overhead: line.overhead,
        per_byte: line.per_byte,
        window: None,
    };
    let lines: Vec<_> = entry.cost.lines.iter().map(|line| (line.bytes, stage(line))).collect();
    let shown = CostCurve::of_lines(&lines, None).stage_at(SHOWN_BYTES);
    [shown.latency, shown.overhead, shown.per_byte]
}

/// What its name in `stages` begins with.
fn kind(entry: &format::Entry) -> &'static str {
    match entry.stage {
        format::StageName::Disk { .. } => "disk ",
        format::StageName::Net { .. } => "net ",
        format::StageName::Copy => "copy",
        format::StageName::Check => "check",
    }
}

/// But for the last digit that text has.
fn is_same(a: &[f64; 3], b: &[f64; 3]) -> bool {
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-9 * a.max(*b))
}

/// The last read that a daemon has served, as it planned it.
fn plan(beta: &Daemon) -> Value {
    beta.await_rest();
    beta.json(&["explain", "last"])["explanation"].clone()
}

/// What must be the same of two plans of one transfer: all but what was measured.
fn promise(plan: &Value) -> Value {
    let of = |candidate: &Value| {
        ["algorithm", "fragment_bytes", "lane_bytes", "depth", "predicted_seconds"]
            .map(|field| candidate[field].clone())
    };
    let candidates: Vec<_> =
        plan["candidates"].as_array().expect("a list").iter().map(of).collect();
    serde_json::json!([plan["chosen"], plan["fragment_bytes"], plan["levels"], candidates])
}

#[test]
fn what_was_measured_is_known_after_a_restart() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (directory, address) = (directory.path(), free_address());
    let root = directory.join("root");
    fs::create_dir(&root).expect("made");
    fs::write(root.join("blocks"), pattern(BLOCKS_BYTES)).expect("written");
    // Costs of the page cache are not kept.
    drop_cached(&root.join("blocks"));
    let asks = format!("[peers.beta]\naddress = \"{address}\"\nchecksum = \"payload\"\n");
    let serves = format!(
        "[listen]\naddress = \"{address}\"\n[exports.data]\npath = \"{}\"\n",
        root.display()
    );
    // What is known before the first read and after the last, and the plan of the last.
    let run = |mode: &str, rounds: Range<usize>| {
        let serves = format!("{serves}[planner]\ncalibration = \"{mode}\"\n");
        let mut beta = start(&programs, directory, "beta", &serves);
        let mut alpha = start(&programs, directory, "alpha", &asks);
        alpha.await_lanes();
        let mut begun = None;
        read(&alpha, rounds, || begun = Some(Known::of(&beta)));
        let begun = begun.expect("called");
        let ended = Known::of(&beta);
        let plan = plan(&beta);
        // The one that asks goes first: its lanes' stages go with it, and are kept all the same.
        stop(&mut alpha);
        stop(&mut beta);
        (begun, ended, plan)
    };
    let (begun, _, _) = run("live", 0..60);
    assert_eq!(begun.kept(), [""; 0]);
    let written = fs::read(file(directory, "beta")).expect("written at the end");
    let entries = format::parse(&written).expect("its own words");
    let served = |entry: &format::Entry| {
        let net = &entry.stage;
        matches!(net, format::StageName::Net { peer, outbound: false, .. } if peer == "alpha")
    };
    assert!(entries.iter().any(served), "{entries:?}");
    let disk =
        |entry: &format::Entry| matches!(entry.stage, format::StageName::Disk { write: false, .. });
    assert!(entries.iter().any(disk), "{entries:?}");

    // Plans that do not follow begin with it, twice the same, and leave the file as it is. One
    // read: by the second an answer of the solver may have come or not.
    let one = 2..3;
    let (begun, _, first) = run("frozen", one.clone());
    let names = begun.kept();
    for stage in ["net alpha ", "check"] {
        assert!(names.iter().any(|name| name.starts_with(stage)), "{stage}: {names:?}");
    }
    assert!(begun.table.contains("kept from earlier"), "{}", begun.table);
    // Exactly what the file says: what stages begin with, and what a plan is made from.
    let is_in_file = |stage: &Value| {
        let name = stage["name"].as_str().expect("text");
        let of_kind = entries.iter().filter(|entry| name.starts_with(kind(entry)));
        of_kind.map(of_entry).any(|kept| is_same(&kept, &cost(stage)))
    };
    let begun = begun.stages.as_array().expect("a list");
    for stage in begun.iter().filter(|stage| stage["kept"] == true) {
        assert!(is_in_file(stage), "{stage}: {entries:?}");
    }
    let planned = first["stages"].as_array().expect("a list");
    for stage in planned {
        // What a peer reports of its own, it keeps itself.
        let reported = stage["name"].as_str().is_some_and(|name| name.starts_with("check "));
        assert!(reported || is_in_file(stage), "{stage}: {entries:?}");
    }
    let is_there = |start: &str| {
        planned.iter().any(|stage| stage["name"].as_str().is_some_and(|it| it.starts_with(start)))
    };
    assert!(is_there("disk ") && is_there("net alpha ") && is_there("check"), "{first}");
    let (_, _, second) = run("frozen", one);
    assert_eq!(promise(&first), promise(&second));
    assert_eq!(fs::read(file(directory, "beta")).expect("there"), written);

    // Off: neither used nor written.
    let (begun, ended, _) = run("off", 0..3);
    assert_eq!(begun.kept(), [""; 0]);
    assert_eq!(ended.kept(), [""; 0]);
    assert_eq!(fs::read(file(directory, "beta")).expect("there"), written);

    // Live: used, overruled, written.
    let (begun, ended, _) = run("live", 0..200);
    assert!(begun.kept().contains(&"check"), "{}", begun.stages);
    assert!(!ended.kept().contains(&"check"), "{}", ended.stages);
    assert_ne!(fs::read(file(directory, "beta")).expect("there"), written);
}

/// A daemon that reads once and ends; what it has logged.
fn work_once(programs: &Programs, directory: &Path) -> String {
    let mut daemon = start(programs, directory, "alpha", "");
    let path = directory.join("own");
    fs::write(&path, pattern(65_536)).expect("written");
    drop_cached(&path);
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    let own = client.open_file(&path, OpenOptions::read()).expect("opened");
    let mut queue = client.queue().expect("a queue");
    for _ in 0..8 {
        let buffer = client.allocate(65_536).expect("memory");
        queue.read(&own, 0, buffer).expect("read");
    }
    stop(&mut daemon);
    daemon.log()
}

#[test]
fn a_file_that_is_not_to_be_believed_is_said_and_replaced() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let log = work_once(&programs, directory);
    assert!(!log.contains(DOUBT), "no file is no reason for doubt: {log}");
    let path = file(directory, "alpha");
    let good = fs::read_to_string(&path).expect("written");
    assert!(format::parse(good.as_bytes()).is_ok_and(|entries| !entries.is_empty()), "{good}");
    assert!(!work_once(&programs, directory).contains(DOUBT));

    let put = |text: &str| fs::write(&path, text).expect("written");
    let cut = good[..good.len() / 2].to_owned();
    let absurd = good.replacen("\"L\": ", "\"L\": -1", 1);
    let newer = good.replacen("\"version\": 2", "\"version\": 99", 1);
    let long = " ".repeat(format::FILE_BYTES_MAX + 1);
    let elsewhere = directory.join("elsewhere");
    type Spoil<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let mut cases: Vec<Spoil<'_>> = vec![
        ("not what this program writes", Box::new(|| put("\0garbage\u{ff}"))),
        ("not what this program writes", Box::new(|| put(&cut))),
        ("not what this program writes", Box::new(|| put(""))),
        ("which cannot be", Box::new(|| put(&absurd))),
        ("version 99", Box::new(|| put(&newer))),
        ("at most are read", Box::new(|| put(&long))),
        (
            "others could have written it",
            Box::new(|| {
                put(&good);
                let mode = fs::Permissions::from_mode(0o666);
                fs::set_permissions(&path, mode).expect("changed");
            }),
        ),
        (
            "symbolic link",
            Box::new(|| {
                fs::write(&elsewhere, &good).expect("written");
                fs::remove_file(&path).expect("removed");
                symlink(&elsewhere, &path).expect("made");
            }),
        ),
        (
            "no regular file",
            Box::new(|| {
                fs::remove_file(&path).expect("removed");
                let fifo = Command::new("mkfifo").arg(&path).status().expect("mkfifo");
                assert!(fifo.success());
            }),
        ),
    ];
    if rustix::process::geteuid().is_root() {
        cases.push((
            "belongs to user 65534",
            Box::new(|| {
                put(&good);
                std::os::unix::fs::chown(&path, Some(65_534), None).expect("changed");
            }),
        ));
    }
    for (hint, spoil) in cases {
        spoil();
        let log = work_once(&programs, directory);
        let doubts: Vec<&str> = log.lines().filter(|line| line.contains(DOUBT)).collect();
        assert!(doubts.len() == 1 && doubts[0].contains(hint), "{hint}: {log}");
        let now = fs::read(&path).expect("there");
        let entries = format::parse(&now).unwrap_or_else(|fault| panic!("{hint}: {fault}"));
        assert!(!entries.is_empty() && !path.is_symlink(), "{hint}");
    }
    assert_eq!(
        fs::read_to_string(&elsewhere).expect("there"),
        good,
        "what a link led to is as it was"
    );
}

#[test]
fn a_place_that_cannot_be_written_is_said_and_no_reason_to_end() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let said = |log: &str| {
        log.lines().filter(|line| line.contains("cannot be kept for the next start")).count()
    };
    // A file where a directory should be.
    fs::write(state(directory.path(), "alpha"), "").expect("written");
    // Before there is anything to keep.
    let mut idle = start(&programs, directory.path(), "alpha", "");
    let log = idle.log();
    assert_eq!(said(&log), 1, "{log}");
    assert!(log.contains("no directory") && log.contains("node.state_dir"), "{log}");
    let status = words(&idle.pipectl(["status"]).output().expect("it starts"));
    assert!(status.contains("cannot be kept"), "{status}");
    stop(&mut idle);
    let log = work_once(&programs, directory.path());
    assert_eq!(said(&log), 1, "once is enough: {log}");
    // Nowhere at all.
    let mut command = programs.piped();
    command.env("STATE_DIRECTORY", directory.path().join("not/there"));
    let mut lost = Daemon::start_by(command, &programs, directory.path(), "gamma", "");
    assert!(lost.log().contains("make the directory above it"), "{}", lost.log());
    stop(&mut lost);
}

/// Both are long, so that one kill in some meets a write.
fn contents() -> [Vec<u8>; 2] {
    [0.001, 0.002].map(|latency| {
        let text = serde_json::json!({
            "stage": "check",
            "measured_unix": 1.0,
            "cost": {
                "lines": [{"bytes": 0.0, "L": latency, "g": 1e-6, "G": 1e-9}],
                "sizes": [{"bytes": 4096.0, "alone": 1.0, "backlogged": 1.0}],
                "identifiable": true,
                "confidence": 0.5,
            },
        });
        let entry: format::Entry = serde_json::from_value(text).expect("an entry");
        format::write(vec![entry; format::STAGES_MAX])
    })
}

const WRITER: &str = "KEPT_TEST_WRITER";

/// Not a test by itself: what the next one starts and kills.
#[test]
fn writer() {
    let Some(path) = std::env::var_os(WRITER) else { return };
    let [one, other] = contents();
    loop {
        for content in [&one, &other] {
            replace(Path::new(&path), content, 0o640).expect("written");
        }
    }
}

#[test]
fn a_kill_while_it_is_written_leaves_a_whole_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join(FILE);
    let [one, other] = contents();
    for round in 0..20 {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "writer"]).env(WRITER, &path);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("started");
        let mut writing = Running(child);
        let _ = fs::remove_file(&path);
        let mut looks = 0;
        eventually("it writes", || {
            // At another point of its work each time.
            looks += u32::from(path.exists());
            (looks > round).then_some(())
        });
        writing.signal(Signal::KILL);
        writing.exit();
        let found = fs::read(&path).expect("a file");
        assert!(found == one || found == other, "round {round}: {} bytes", found.len());
        assert!(format::parse(&found).is_ok());
    }
}
