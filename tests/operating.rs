//! What an operator has when something is wrong: `pipectl doctor`, `pipectl support-dump`, and a
//! journal that others cannot fill.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use piped_client::{Client, OpenOptions};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use system_tests::process::{
    Daemon, PATIENCE, Pair, Programs, command, eventually, free_address, words,
};
use system_tests::user::Who;

/// A name of a file that nobody else is to learn.
const PRIVATE: &str = "PRIVATE-wedding-speech";
/// What nobody is to find in a dump.
const CANARY: &str = "CANARYq83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRW";

fn doctor(daemon: &Daemon, more: &[&str]) -> (Option<i32>, Value) {
    let output =
        daemon.pipectl(["doctor", "--json"].iter().chain(more)).output().expect("it starts");
    let report =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", words(&output)));
    (output.status.code(), report)
}

fn finding<'a>(report: &'a Value, subject: &str, level: &str) -> Option<&'a Value> {
    let findings = report["findings"].as_array().expect("findings");
    findings.iter().find(|it| it["subject"] == subject && it["level"] == level)
}

#[test]
fn the_doctor_says_what_ails_a_running_daemon() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    for daemon in [&pair.alpha, &pair.beta] {
        let (code, report) = doctor(daemon, &[]);
        assert_eq!(code, Some(0), "{report:#}");
        assert!(finding(&report, "tier", "ok").is_some(), "{report:#}");
        assert!(finding(&report, "client.socket", "ok").is_some(), "{report:#}");
    }
    assert!(finding(&doctor(&pair.alpha, &[]).1, "peer beta", "ok").is_some());
    assert!(finding(&doctor(&pair.beta, &[]).1, "export data", "ok").is_some());
    // The peer goes, and so does the directory.
    let Pair { alpha, mut beta, .. } = pair;
    let root = directory.path().join("root");
    fs::rename(&root, directory.path().join("moved")).expect("moved");
    let (code, report) = doctor(&beta, &[]);
    let missing = finding(&report, "export data", "error").expect("it is found");
    assert_eq!(code, Some(1), "{report:#}");
    assert!(missing["fix"].to_string().contains("install -d"), "{missing:#}");
    beta.process.signal(rustix::process::Signal::KILL);
    beta.process.exit();
    let (code, report) = doctor(&alpha, &[]);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(finding(&report, "peer beta", "error").is_some(), "{report:#}");
    // Without its daemon: the file and the machine are looked at.
    let file = directory.path().join("beta.toml").display().to_string();
    let (code, report) = doctor(&beta, &["--config", &file]);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(finding(&report, "daemon", "unknown").is_some(), "{report:#}");
    assert!(finding(&report, "export data", "error").is_some(), "{report:#}");
    // As people read it: narrow, and every line of prose fits.
    let mut narrow = alpha.pipectl(["doctor", "--all"]);
    let output = narrow.env("COLUMNS", "50").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let prose = text.lines().filter(|line| !line.trim_start().starts_with('$'));
    for line in prose.filter(|line| line.trim().contains(' ')) {
        let words = line.split_whitespace().map(str::len).max().unwrap_or(0);
        assert!(line.chars().count() <= 50 || words > 40, "{line}");
    }
    assert!(text.contains("ERROR") && text.contains("peer beta"), "{text}");
}

/// An archive's files by name.
fn unpack(file: &Path) -> BTreeMap<String, String> {
    let mut parts = BTreeMap::new();
    let mut archive = tar::Archive::new(fs::File::open(file).expect("made"));
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("a part");
        let name = entry.path().expect("a name").display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        parts.insert(name.trim_start_matches("piped-support/").to_owned(), text);
    }
    parts
}

#[test]
fn a_support_dump_has_what_helps_and_nothing_that_is_nobodys_business() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path();
    // Secrets wherever they lie about: a key beside the configuration, the environment, data, names
    // of files.
    let generated = programs
        .pipectl()
        .args(["keys", "generate", "--file"])
        .arg(place.join("node.key"))
        .output();
    let generated = generated.expect("it starts");
    assert!(generated.status.success(), "{}", words(&generated));
    let key = fs::read_to_string(place.join("node.key")).expect("made");
    let key = key.lines().find(|line| !line.starts_with('#')).expect("the key").trim().to_owned();
    assert_eq!(key.len(), 44, "32 bytes in base64");
    let export = place.join(format!("{PRIVATE} export"));
    fs::create_dir(&export).expect("made");
    fs::write(export.join(format!("{PRIVATE}.txt")), CANARY.repeat(2000)).expect("written");
    let settings = format!("[exports.data]\npath = \"{}\"\nwrite = true\n", export.display());
    let mut start = programs.piped();
    start.env("SECRET_TOKEN", CANARY).env("STATE_DIRECTORY", place);
    let mut daemon = Daemon::start_by(start, &programs, place, "alpha", &settings);
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let name = format!("{PRIVATE}.txt");
    let file = client.open_export(None, "data", &name, OpenOptions::read_write()).expect("opened");
    let buffer = client.allocate(65_536).expect("memory");
    let (buffer, _) = queue.read(&file, 0, buffer).expect("read");
    assert!(buffer.as_slice().starts_with(CANARY.as_bytes()));
    queue.write(&file, 0, buffer).expect("written");
    let missing = client.open_export(None, "data", format!("{PRIVATE} 2"), OpenOptions::read());
    assert!(missing.is_err());
    let memory = client.allocate(4096).expect("memory");
    let access = piped_client::Access::READ_WRITE;
    let _region = client.export_region(PRIVATE, memory, access).expect("offered");
    let _channel = client.offer_channel(&format!("{PRIVATE} mail")).expect("offered");

    let dump = place.join("dump.tar");
    let take = |daemon: &Daemon, more: &[&str]| {
        let path = dump.display().to_string();
        let mut pipectl = daemon.pipectl(["support-dump", &path].iter().chain(more));
        pipectl.env("SECRET_TOKEN", CANARY).output().expect("it starts")
    };
    let output = take(&daemon, &[]);
    assert!(output.status.success(), "{}", words(&output));
    let mode = fs::metadata(&dump).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its owner");
    let bytes = fs::read(&dump).expect("made");
    for secret in [&key, &key[..20], CANARY, &CANARY[..12], PRIVATE, "SECRET_TOKEN"] {
        let found = bytes.windows(secret.len()).position(|it| it == secret.as_bytes());
        let around =
            found.map(|at| String::from_utf8_lossy(&bytes[at.saturating_sub(200)..at + 60]));
        assert_eq!(around, None, "{secret} is in it");
    }
    let parts = unpack(&dump);
    for (name, part) in [
        ("README.txt", "Never in it"),
        ("versions.json", "\"kernel\""),
        ("facts.json", "memlock"),
        ("doctor.json", "\"findings\""),
        ("status.json", "\"tier\""),
        ("stages.json", "\"latency_seconds\""),
        ("explain-last.json", "\"explanation\""),
        ("limits.json", "global.staging"),
        ("peers.json", "\"peers\""),
        ("clients.json", "\"arena_bytes\""),
        ("transfers-ended.json", "\"write\""),
        ("exports.json", "<name>"),
        ("config.json", "limits.global.staging"),
        ("metrics.txt", "piped_requests_total"),
    ] {
        let text = parts.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", parts.keys()));
        assert!(text.contains(part), "no {part} in {name}:\n{text}");
    }
    // What exists is not written over, and who wants paths has them.
    let output = take(&daemon, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert_eq!(fs::read(&dump).expect("still there"), bytes);
    fs::remove_file(&dump).expect("there");
    assert!(take(&daemon, &["--show-paths"]).status.success());
    let parts = unpack(&dump);
    assert!(parts["config.json"].contains(PRIVATE) && parts["exports.json"].contains(PRIVATE));
    assert!(parts.values().all(|text| !text.contains(CANARY) && !text.contains(&key)));

    // Without a daemon: half of it.
    fs::remove_file(&dump).expect("there");
    daemon.process.signal(rustix::process::Signal::KILL);
    daemon.process.exit();
    let config = place.join("alpha.toml").display().to_string();
    let output = take(&daemon, &["--config", &config]);
    assert!(output.status.success(), "{}", words(&output));
    let parts = unpack(&dump);
    assert!(parts["config.json"].contains("limits.global.staging"), "{:#?}", parts["config.json"]);
    assert!(parts["README.txt"].contains("none answers"), "{}", parts["README.txt"]);
    assert!(parts.values().all(|text| !text.contains(PRIVATE) && !text.contains(CANARY)));
}

/// Connects as a client and hangs up, many times.
fn knock(daemon: &Daemon, times: usize) {
    let address = SocketAddrUnix::new(daemon.client_socket()).expect("a short path");
    for _ in 0..times {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
        // A full backlog is waited for.
        rustix::net::connect(socket.expect("a socket"), &address).expect("it listens");
    }
}

#[test]
fn ten_thousand_who_are_refused_fill_no_journal() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    // Who runs the daemon is always admitted, so a stranger knocks.
    let strangers = "[access]\nusers = [4000000000]\n";
    for (name, settings) in [("closed", strangers), ("open", "")] {
        let daemon = Daemon::start(&programs, directory.path(), name, settings);
        let before = daemon.log().lines().count();
        let knocks = || knock(&daemon, 10_000);
        let knocked = match name {
            "closed" => Who::user(4001).does(knocks),
            _ => {
                knocks();
                Some(())
            }
        };
        let Some(()) = knocked else { continue };
        let counted = || {
            let refused = daemon.status();
            let refused = refused["refused"].as_object().expect("reasons");
            refused.values().filter_map(Value::as_u64).sum::<u64>()
        };
        eventually("all are counted", || (counted() == 10_000).then_some(()));
        let log = daemon.log();
        let lines = log.lines().count() - before;
        // Twenty a minute; a slow machine may take some minutes.
        assert!((1..=100).contains(&lines), "{name}: {lines} lines of\n{log}");
        assert!(log.contains("left_out=0"), "{log}");
    }
}

/// Fields of a message as the journal's protocol has them: `NAME=VALUE` lines, or `NAME`, a length,
/// and bytes.
fn fields(mut message: &[u8]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    while let Some(end) = message.iter().position(|&byte| byte == b'\n') {
        let line = String::from_utf8_lossy(&message[..end]).into_owned();
        message = &message[end + 1..];
        if let Some((name, value)) = line.split_once('=') {
            fields.insert(name.to_owned(), value.to_owned());
            continue;
        }
        let length: [u8; 8] = message[..8].try_into().expect("a length");
        let length = u64::from_le_bytes(length) as usize;
        let value = String::from_utf8_lossy(&message[8..8 + length]).into_owned();
        fields.insert(line, value);
        message = &message[8 + length + 1..];
    }
    fields
}

/// A mount namespace in which `/run/systemd/journal` is a directory of ours, and stderr is said to
/// lead there.
fn under_a_journal(programs: &Programs, place: &Path) -> Option<Command> {
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind '{}' /run/systemd/journal && \
         export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) && exec \"$@\"",
        place.display()
    );
    let trial =
        command(Path::new("unshare")).args(["--mount", "sh", "-c", &script, "sh", "true"]).output();
    match trial {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            eprintln!("skipped: no mount namespace ({})", words(&output).trim());
            return None;
        }
        Err(error) => {
            eprintln!("skipped: unshare cannot be started ({error})");
            return None;
        }
    }
    let mut unshare = command(Path::new("unshare"));
    unshare.args(["--mount", "sh", "-c", &script, "sh"]).arg(&programs.piped);
    Some(unshare)
}

#[test]
fn the_journal_gets_fields_that_can_be_searched_for() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("journal");
    fs::create_dir(&place).expect("made");
    let journal = UnixDatagram::bind(place.join("socket")).expect("a socket");
    journal.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let Some(start) = under_a_journal(&programs, &place) else { return };
    let address = free_address();
    let settings = format!(
        "[listen]\naddress = \"{address}\"\n[exports.data]\npath = \"/\"\npeers = [\"beta\"]\n"
    );
    let daemon = Daemon::start_by(start, &programs, directory.path(), "alpha", &settings);
    let peer = format!("[peers.alpha]\naddress = \"{address}\"\n");
    let beta = Daemon::start(&programs, directory.path(), "beta", &peer);
    beta.await_lanes();
    drop(Client::connect(daemon.client_socket()).expect("it serves"));
    let mut seen: Vec<BTreeMap<String, String>> = Vec::new();
    let mut buffer = vec![0; 65_536];
    let found = |seen: &[BTreeMap<String, String>], what: &str| {
        seen.iter().find(|it| it.get("MESSAGE").is_some_and(|text| text == what)).cloned()
    };
    while found(&seen, "lane up").is_none() || found(&seen, "client connected").is_none() {
        let length = journal.recv(&mut buffer).unwrap_or_else(|error| panic!("{error}: {seen:#?}"));
        seen.push(fields(&buffer[..length]));
    }
    let lane = found(&seen, "lane up").expect("it was there");
    for (name, value) in [
        ("PIPED_PEER", "beta"),
        ("PIPED_SHARD", "0"),
        ("PIPED_LEFT_OUT", "0"),
        ("SYSLOG_IDENTIFIER", "piped"),
        ("PRIORITY", "5"),
    ] {
        assert_eq!(lane.get(name).map(String::as_str), Some(value), "{name} of {lane:#?}");
    }
    let client = found(&seen, "client connected").expect("it was there");
    let own = rustix::process::getuid().as_raw().to_string();
    assert_eq!(client.get("PIPED_UID"), Some(&own), "{client:#?}");
    assert!(!daemon.log().contains("lane up"), "it is said once: {}", daemon.log());
    assert!(beta.log().contains("lane up"), "without a journal it is text: {}", beta.log());
}
