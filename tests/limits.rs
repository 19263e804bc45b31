//! Limits of real daemons that change while requests are in flight.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use piped_client::{Client, ClientBuilder, OpenOptions, Request, Waited};
use serde_json::Value;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, PATIENCE, Pair, Programs, eventually, pattern, words,
};

/// Of the blocks that are read, written and compared.
const BLOCK: usize = 128 << 10;
const DEPTH: usize = BLOCKS_BYTES / BLOCK;
const MIB: u64 = 1 << 20;

/// What `pipectl limits --json` says.
fn limits(daemon: &Daemon) -> Value {
    let output = daemon.pipectl(["limits", "--json"]).output().expect("pipectl starts");
    assert!(output.status.success(), "{}\n{}", words(&output), daemon.log());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The limit of that name in force.
fn limit(daemon: &Daemon, name: &str) -> u64 {
    let report = limits(daemon);
    let rows = report["limits"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    row["limit"].as_u64().expect("a number")
}

/// `pipectl limits set`; its exit code and what it says.
fn set(daemon: &Daemon, settings: &[&str]) -> (i32, String) {
    let output = daemon.pipectl(["limits", "set"].iter().chain(settings)).output();
    let output = output.expect("pipectl starts");
    (output.status.code().expect("it ended by itself"), words(&output))
}

fn set_well(daemon: &Daemon, settings: &[&str]) -> String {
    let (code, text) = set(daemon, settings);
    assert_eq!(code, 0, "{settings:?}: {text}\n{}", daemon.log());
    text
}

/// Reads the peer's file over and over, and writes and reads back a file of its own there. Returns
/// how many requests there were; each ended well and with the right bytes.
fn load(daemon: &Daemon, own: &str, over: &AtomicBool, rounds: &AtomicU64) -> u64 {
    let builder = ClientBuilder::new().depth(2 * DEPTH as u32).arena_bytes(4 * BLOCKS_BYTES as u64);
    let client = builder.connect(daemon.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let open = |path, options| client.open_export(Some("beta"), "data", path, options);
    let shared = open("blocks", OpenOptions::read()).expect("it is there");
    let file = open(own, OpenOptions::read_write().create(true)).expect("it can be made");
    let expected = pattern(BLOCKS_BYTES);
    let mut requests = 0;
    while !over.load(Ordering::Relaxed) {
        let round = rounds.fetch_add(1, Ordering::Relaxed) as u8;
        let mut pending = Vec::new();
        for block in 0..DEPTH {
            let at = block * BLOCK;
            let buffer = client.allocate(BLOCK).expect("memory");
            let read = Request::read(&shared, at as u64, buffer);
            pending.push((at, true, queue.submit(read).expect("room")));
            let mut buffer = client.allocate(BLOCK).expect("memory");
            buffer.as_mut_slice().fill(round ^ block as u8);
            let write = Request::write(&file, at as u64, buffer);
            pending.push((at, false, queue.submit(write).expect("room")));
        }
        queue.flush();
        for (at, reads, pending) in pending {
            let Waited::Ended(done) = pending.wait_for(&mut queue, PATIENCE) else {
                panic!("a request hangs")
            };
            let done = done.unwrap_or_else(|error| panic!("{error}"));
            assert!(!reads || done.payload.as_slice() == &expected[at..at + BLOCK], "other bytes");
            requests += 1;
        }
        for block in 0..DEPTH {
            let buffer = client.allocate(BLOCK).expect("memory");
            let (buffer, bytes) =
                queue.read(&file, (block * BLOCK) as u64, buffer).expect("it was written");
            let right = buffer.as_slice().iter().all(|&byte| byte == round ^ block as u8);
            assert!(bytes == BLOCK && right, "what was written is not what is there");
            requests += 1;
        }
    }
    requests
}

#[test]
fn limits_change_under_load_and_no_request_fails() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    // However this ends, the load ends, too.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let requests: u64 = std::thread::scope(|scope| {
        let loads = ["one", "two"].map(|own| {
            let (pair, over, rounds) = (&pair, &over, &rounds);
            scope.spawn(move || load(&pair.alpha, own, over, rounds))
        });
        {
            let _end = End(&over);
            for change in 0..20 {
                // Below what the load would use: it waits, and nothing else.
                let (staging, rest) = match change % 2 {
                    0 => {
                        (8, ["client.in_flight=4MiB", "peer.in_flight=4MiB", "client.requests=48"])
                    }
                    _ => (
                        16,
                        ["client.in_flight=8MiB", "peer.in_flight=16MiB", "client.requests=64"],
                    ),
                };
                for daemon in [&pair.alpha, &pair.beta] {
                    // The other way first: what drains for that may be gone before it is taken
                    // back.
                    set_well(daemon, &[&format!("global.staging={}MiB", 24 - staging)]);
                    let text = format!("global.staging={staging}MiB");
                    set_well(daemon, &[&[text.as_str()][..], &rest].concat());
                }
                for daemon in [&pair.alpha, &pair.beta] {
                    eventually("ledger and mapped memory are at the limit", || {
                        let report = limits(daemon);
                        let bytes = |what: &str| report["staging"][what].as_u64().expect("bytes");
                        let both = [bytes("owned_bytes"), bytes("mapped_bytes")];
                        (both == [staging * MIB; 2] && bytes("draining_bytes") == 0).then_some(())
                    });
                }
                let before = rounds.load(Ordering::Relaxed);
                eventually("the load goes on", || {
                    (rounds.load(Ordering::Relaxed) > before).then_some(())
                });
            }
        }
        loads.into_iter().map(|load| load.join().expect("no request failed")).sum()
    });
    assert!(requests > 1000, "{requests} requests are no load");
    for daemon in [&pair.alpha, &pair.beta] {
        assert_eq!(daemon.number("failed"), 0, "{}", daemon.log());
        assert_eq!(daemon.number("lanes_lost"), 0, "{}", daemon.log());
    }
    assert!(limits(&pair.alpha)["waited"].as_u64() > Some(0), "no request met a limit");
}

#[test]
fn limits_change_as_a_whole_or_not_at_all_and_say_why_not() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    set_well(&pair.alpha, &["global.staging=16MiB"]);
    let (code, text) = set(&pair.alpha, &["client.requests=7", "peer.staging=1MiB"]);
    assert!(code == 4 && text.contains("limits.peer.staging") && text.contains("4MiB"), "{text}");
    // What lanes hold, and room for the longest runs.
    let least = limits(&pair.alpha)["staging"]["least_bytes"].as_u64().expect("bytes");
    assert!(least >= 4 * MIB);
    assert_eq!(limit(&pair.alpha, "client.requests"), 2048);
    let (code, text) = set(&pair.alpha, &["client.reqests=7"]);
    assert!(code == 2 && text.contains("did you mean `client.requests`?"), "{text}");
    let text = set_well(&pair.alpha, &["client.requests=7", "limits.peer.staging=8388608"]);
    assert!(text.contains("until the daemon ends"), "{text}");
    assert_eq!(limit(&pair.alpha, "client.requests"), 7);
    assert_eq!(limit(&pair.alpha, "peer.staging"), 8 * MIB);
    let output = pair.alpha.pipectl(["limits"]).output().expect("pipectl starts");
    let text = words(&output);
    for word in ["client.requests", "is mapped", "requests wait for a limit"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

fn connect(daemon: &Daemon) -> Result<Client, String> {
    Client::connect(daemon.client_socket()).map_err(|error| error.to_string())
}

#[test]
fn sessions_and_handles_follow_their_limits_and_those_that_exist_stay() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let path = directory.path().join("file");
    fs::write(&path, b"bytes").expect("written");
    let first = connect(&daemon).expect("there is room");
    let second = connect(&daemon).expect("there is room");
    let open = |client: &Client| client.open_file(&path, OpenOptions::read());
    let handle = open(&first).expect("it is there");
    for (limit, key) in [("user.sessions", "user.sessions"), ("global.sessions", "global.sessions")]
    {
        set_well(&daemon, &[&format!("{limit}=1")]);
        let refused = connect(&daemon).expect_err("there are two");
        assert!(refused.contains(&format!("limits.{key}")), "{refused}");
        set_well(&daemon, &[&format!("{limit}=8")]);
    }
    let third = connect(&daemon).expect("there is room again");
    set_well(&daemon, &["client.handles=1"]);
    let refused = open(&first).expect_err("it has one").to_string();
    assert!(refused.contains("limits.client.handles"), "{refused}");
    let _kept = open(&second).expect("another session's first");
    set_well(&daemon, &["global.handles=2", "client.handles=8"]);
    let refused = open(&third).expect_err("all have two").to_string();
    assert!(refused.contains("limits.global.handles"), "{refused}");
    // What was open stays open, and of use.
    let mut queue = first.queue().expect("a queue");
    let buffer = first.allocate(5).expect("memory");
    let (buffer, _) = queue.read(&handle, 0, buffer).expect("it serves");
    assert_eq!(buffer.as_slice(), b"bytes");
    drop(handle);
    eventually("a place is free again", || {
        set_well(&daemon, &["global.handles=2"]);
        open(&third).ok()
    });
}

#[test]
fn persisted_limits_hold_after_a_restart() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let conf = directory.path().join("conf.d");
    // A file where the folder should be: refused, and nothing changed.
    fs::write(&conf, b"").expect("written");
    let (code, text) = set(&daemon, &["client.handles=77", "--persist"]);
    assert!(code == 4 && text.contains("90-limits.toml cannot be written"), "{text}");
    assert_eq!(limit(&daemon, "client.handles"), 4096);
    fs::remove_file(&conf).expect("ours");
    let text = set_well(&daemon, &["client.handles=77", "--persist"]);
    assert!(text.contains("90-limits.toml") && text.contains("restart"), "{text}");
    set_well(&daemon, &["global.staging=8MiB", "--persist"]);
    set_well(&daemon, &["client.handles=78"]);
    assert_eq!(left(&conf), ["90-limits.toml"], "no temporary file is left");
    daemon.process.signal(rustix::process::Signal::TERM);
    daemon.restart("");
    assert_eq!(limit(&daemon, "client.handles"), 77, "the one that was persisted");
    assert_eq!(limit(&daemon, "global.staging"), 8 * MIB);
    assert_eq!(daemon.number("staging_bytes"), 8 * MIB);
}

#[test]
fn what_is_given_of_a_limit_is_said_where_it_is_less_than_was_asked() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    // Refused while lanes need more; one staging unit is enough without peers.
    let asked = ["global.staging=7MiB", "client.early_arrival=100KiB", "--persist"];
    let text = set_well(&daemon, &asked);
    assert!(text.contains("global.staging: 7 MiB asked; 4 MiB given: in whole 4MiB"), "{text}");
    assert!(text.contains("client.early_arrival: 100 KiB asked; 64 KiB given"), "{text}");
    assert_eq!(daemon.number("staging_bytes"), 4 * MIB, "what was said is so");
    let output = daemon.pipectl(["limits", "set", "global.staging=11MiB", "--json"]).output();
    let changed: Value = serde_json::from_slice(&output.expect("it runs").stdout).expect("JSON");
    assert_eq!(changed["limits"]["global.staging"], 11 * MIB);
    assert_eq!(changed["given"]["global.staging"]["amount"], 8 * MIB, "{changed}");
    assert_eq!(daemon.number("staging_bytes"), 8 * MIB);
    // What is given as it was asked for has no second number.
    let text = set_well(&daemon, &["global.staging=12MiB", "client.handles=5"]);
    assert!(
        text.contains("global.staging is 12 MiB") && text.contains("client.handles is 5"),
        "{text}"
    );
    let shown = daemon.pipectl(["limits"]).output().map(|it| words(&it)).expect("it runs");
    assert!(
        shown.contains("client.staging: 32 MiB asked; 6 MiB given: copies have half"),
        "{shown}"
    );
    let report = limits(&daemon);
    let rows = report["limits"].as_array().expect("rows");
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).expect("a row");
    assert_eq!(row("client.staging")["given"]["amount"], 6 * MIB, "{report}");
    assert!(row("client.handles")["given"].is_null(), "{report}");
}

fn left(directory: &Path) -> Vec<String> {
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    fs::read_dir(directory).expect("made").map(|entry| name(entry.expect("an entry"))).collect()
}

/// How many of so many threads that ask at once get it; and what the others are told.
fn race<T: Send>(
    threads: usize,
    ask: impl Fn() -> Result<T, String> + Sync,
) -> (Vec<T>, Vec<String>) {
    let start = std::sync::Barrier::new(threads);
    let outcomes: Vec<Result<T, String>> = std::thread::scope(|scope| {
        let ask = || {
            start.wait();
            ask()
        };
        let racers: Vec<_> = (0..threads).map(|_| scope.spawn(ask)).collect();
        racers.into_iter().map(|racer| racer.join().expect("it does not panic")).collect()
    });
    let (mut got, mut refused) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(it) => got.push(it),
            Err(text) => refused.push(text),
        }
    }
    (got, refused)
}

#[test]
fn what_a_user_has_is_counted_over_its_sessions_and_they_cannot_race_past_it() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    // On two shards: the user is one.
    let mut command = programs.piped();
    command.args(["--set", "shards.count=2", "--set", "limits.global.staging=8MiB"]);
    let daemon = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
    let path = directory.path().join("file");
    fs::write(&path, b"bytes").expect("written");
    let with_arena = |bytes: u64| {
        let builder = ClientBuilder::new().arena_bytes(bytes);
        builder.connect(daemon.client_socket()).map_err(|error| error.to_string())
    };
    let names = |texts: &[String], key: &str| {
        for text in texts {
            assert!(text.contains(key), "{key}: {text}");
        }
    };
    // Sessions.
    set_well(&daemon, &["user.sessions=5"]);
    let (sessions, refused) = race(20, || with_arena(4096));
    assert_eq!((sessions.len(), refused.len()), (5, 15), "{refused:?}");
    names(&refused, "limits.user.sessions");
    drop(sessions);
    eventually("they are gone", || {
        (limits(&daemon)["users"] == serde_json::json!([])).then_some(())
    });
    // Shared memory: while it is made, others ask.
    set_well(&daemon, &["user.sessions=64", "user.arena=24MiB"]);
    let (mut sessions, refused) = race(20, || with_arena(4 * MIB));
    assert_eq!((sessions.len(), refused.len()), (6, 14), "{refused:?}");
    names(&refused, "limits.user.arena = 24MiB");
    let report = limits(&daemon);
    let user = &report["users"][0];
    assert_eq!(
        (&user["sessions"], &user["arena_bytes"]),
        (&6.into(), &(24 * MIB).into()),
        "{user}"
    );
    let row = |name: &str| {
        let rows = report["limits"].as_array().expect("rows").iter();
        rows.into_iter().find(|row| row["name"] == name).cloned().expect("a row")
    };
    assert_eq!(
        (&row("user.arena")["used"], &row("user.arena")["high"]),
        (&(24 * MIB).into(), &(24 * MIB).into())
    );
    // It grows no further either, and is of use meanwhile.
    let grown = sessions[0].allocate(8 << 20);
    assert!(grown.is_err(), "its arena has 4 MiB, and its user no more");
    sessions[0].queue().expect("a queue").nop().expect("it serves");
    // Below what is there: what is there stays, and nothing comes.
    set_well(&daemon, &["user.arena=8MiB"]);
    names(&[with_arena(4096).expect_err("too much already")], "limits.user.arena = 8MiB");
    sessions[5].queue().expect("a queue").nop().expect("it serves");
    sessions.truncate(1);
    let another = eventually("memory is given back", || with_arena(4 * MIB).ok());
    names(&[with_arena(4096).expect_err("two have it all")], "limits.user.arena");
    set_well(&daemon, &["user.arena=64MiB"]);
    sessions.push(another);
    sessions.extend((0..4).map(|_| with_arena(MIB).expect("there is room again")));
    // Handles.
    set_well(&daemon, &["user.handles=7"]);
    let next = AtomicU64::new(0);
    let (handles, refused) = race(18, || {
        let session = &sessions[next.fetch_add(1, Ordering::Relaxed) as usize % sessions.len()];
        session.open_file(&path, OpenOptions::read()).map_err(|error| error.to_string())
    });
    assert_eq!((handles.len(), refused.len()), (7, 11), "{refused:?}");
    names(&refused, "limits.user.handles");
    let mut queue = sessions[0].queue().expect("a queue");
    queue.nop().expect("it serves");
    drop(handles);
    eventually("they are closed", || sessions[1].open_file(&path, OpenOptions::read()).ok());
    let shown = words(&daemon.pipectl(["limits"]).output().expect("pipectl starts"));
    for word in ["user.sessions", "user.arena", "user.handles", "Users", "SHARED MEMORY"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
}

#[test]
fn the_old_name_of_a_limit_says_its_new_one() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let (code, text) = set(&daemon, &["client.sessions=7"]);
    assert!(code == 2 && text.contains("write `user.sessions`"), "{text}");
}
