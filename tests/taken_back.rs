//! Access that is taken back from real daemons: by a reload, handle by handle, and by an operator.
//! What is no longer allowed stops at once, requests under way end once, and everybody else goes
//! on.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use piped_client::{Access, Cause, Client, Handle, OpenOptions, RequestError, Status};
use serde_json::Value;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, Programs, eventually, free_address, pattern, words,
};
use system_tests::user::Who;

const LENGTH: usize = 4096;

fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    directory
}

/// Makes a directory with a file `blocks`.
fn export(place: &Path, name: &str) -> String {
    let root = place.join(name);
    fs::create_dir(&root).expect("made");
    fs::write(root.join("blocks"), pattern(BLOCKS_BYTES)).expect("written");
    root.display().to_string()
}

fn status(error: &RequestError) -> Status {
    match error.cause {
        Cause::Status(status) => status,
        _ => panic!("no status: {error}"),
    }
}

fn is_over(client: &Client) -> bool {
    client.queue().map_or(true, |mut queue| queue.nop().is_err())
}

fn reads(client: &Client, handle: &Handle) -> Result<(), Status> {
    let buffer = client.allocate(LENGTH).expect("memory");
    let read = client.queue().expect("a queue").read(handle, 0, buffer);
    read.map(|(_, bytes)| assert_eq!(bytes, LENGTH)).map_err(|error| status(&error))
}

fn writes(client: &Client, handle: &Handle) -> Result<(), Status> {
    let buffer = client.allocate(LENGTH).expect("memory");
    let wrote = client.queue().expect("a queue").write(handle, 0, buffer);
    wrote.map(drop).map_err(|error| status(&error))
}

/// Reads by a handle without a pause until one fails; how that was. It has begun when `begun` says
/// so.
fn read_on(
    client: &Client,
    handle: &Handle,
    begun: &AtomicU64,
    stop: &AtomicBool,
) -> Option<Status> {
    let mut queue = client.queue().expect("a queue");
    let mut buffer = client.allocate(1 << 20).expect("memory");
    while !stop.load(Ordering::Relaxed) {
        match queue.read(handle, 0, buffer) {
            Ok((back, bytes)) => {
                assert_eq!(bytes, 1 << 20);
                buffer = back;
                begun.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => return Some(status(&error)),
        }
    }
    None
}

/// Says it when it is dropped: a check that fails leaves no thread behind that the test would wait
/// for.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_reload_ends_what_local_users_may_not_do_any_more_and_nothing_else() {
    let Some(programs) = Programs::find() else { return };
    let directory = open_directory();
    let place = directory.path();
    let (data, logs) = (export(place, "data"), export(place, "logs"));
    let more = format!(
        "[access]\nusers = [4001, 4002]\n[exports.data]\npath = \"{data}\"\nwrite = true\nusers = [4001, 4002, 0]\n\
         [exports.logs]\npath = \"{logs}\"\nwrite = true # logs\n[exports.old]\npath = \"{logs}\"\n"
    );
    let alpha = Daemon::start(&programs, place, "alpha", &more);
    let as_user =
        |uid| Who::user(uid).does(|| Client::connect(alpha.client_socket()).expect("listed"));
    let (Some(one), Some(two)) = (as_user(4001), as_user(4002)) else { return };
    let open = |client: &Client, export: &str, options: OpenOptions| {
        client.open_export(None, export, "blocks", options)
    };
    let both = OpenOptions::read_write;
    let [one_data, two_data] = [&one, &two].map(|it| open(it, "data", both()).expect("open"));
    let [one_logs, two_logs] = [&one, &two].map(|it| open(it, "logs", both()).expect("open"));
    let one_old = open(&one, "old", OpenOptions::read()).expect("open");
    let memory = two.allocate(1 << 16).expect("memory");
    let _grid = two.export_region("grid", memory, Access::READ_WRITE).expect("offered");
    let _mail = two.offer_channel("mail").expect("offered");
    let grid = one.open_region(None, "grid", Access::READ_WRITE).expect("open");
    let mail = one.open_channel(None, "mail").expect("open");
    let passed = one.open_file(place.join("data/blocks"), OpenOptions::read());
    let send = |one: &Client| {
        one.queue().expect("a queue").send(&mail, 1, one.allocate(64).expect("memory")).is_ok()
    };
    assert!(send(&one));

    // A user is taken out of an export, while requests are under way.
    let (begun, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (others, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ends = (AtEnd(&stop), AtEnd(&over));
        let own = scope.spawn(|| read_on(&one, &one_data, &begun, &stop));
        let other = scope.spawn(|| read_on(&two, &two_data, &others, &over));
        eventually("both read", || {
            let some = |it: &AtomicU64| it.load(Ordering::Relaxed) > 2;
            (some(&begun) && some(&others)).then_some(())
        });
        let done = alpha.reload("users = [4001, 4002, 0]", "users = [4002, 0]");
        assert_eq!((&done["ended_sessions"], &done["ended_handles"]), (&0.into(), &1.into()));
        eventually("its requests end", || own.is_finished().then_some(()));
        assert_eq!(own.join().expect("no panic"), Some(Status::Gone));
        let before = others.load(Ordering::Relaxed);
        eventually("the other's go on", || {
            (others.load(Ordering::Relaxed) > before + 2 || other.is_finished()).then_some(())
        });
        over.store(true, Ordering::Relaxed);
        assert_eq!(other.join().expect("no panic"), None);
    });
    assert_eq!(
        (reads(&one, &one_data), writes(&one, &one_data)),
        (Err(Status::Gone), Err(Status::Gone))
    );
    assert_eq!((reads(&two, &two_data), writes(&two, &two_data)), (Ok(()), Ok(())));
    open(&one, "data", both()).expect_err("nor opened again");
    let rest = |one: &Client| {
        assert_eq!(
            (reads(one, &one_old), reads(one, &grid), writes(one, &grid)),
            (Ok(()), Ok(()), Ok(()))
        );
        assert!(send(one));
        if let Ok(passed) = &passed {
            assert_eq!(reads(one, passed), Ok(()));
        }
    };
    rest(&one);

    // Writing is taken back: what was opened to be written ends, and can be opened to be read.
    let done = alpha.reload("write = true # logs", "");
    assert_eq!(done["ended_handles"], 2);
    for (client, handle) in [(&one, &one_logs), (&two, &two_logs)] {
        assert_eq!(
            (writes(client, handle), reads(client, handle)),
            (Err(Status::Gone), Err(Status::Gone))
        );
        open(client, "logs", both()).expect_err("not to be written");
        let again = open(client, "logs", OpenOptions::read()).expect("to be read");
        assert_eq!(reads(client, &again), Ok(()));
    }
    rest(&one);

    // An export goes.
    let done = alpha.reload(&format!("[exports.old]\npath = \"{logs}\"\n"), "");
    assert_eq!(done["ended_handles"], 1);
    assert_eq!(reads(&one, &one_old), Err(Status::Gone));
    assert_eq!(reads(&one, &grid), Ok(()));

    // A user goes: its session, and what it has open.
    let done = alpha.reload("users = [4001, 4002]", "users = [4002]");
    assert_eq!(done["ended_sessions"], 1);
    eventually("its session is over", || is_over(&one).then_some(()));
    let refused = Who::user(4001).does(|| Client::connect(alpha.client_socket()).map(drop));
    refused.expect("root").expect_err("nor comes in again");
    assert_eq!((reads(&two, &two_data), writes(&two, &two_data)), (Ok(()), Ok(())));
    eventually("nothing of it is open", || {
        let handles = alpha.json(&["handles"]);
        let all = handles["handles"].as_array().expect("a list").clone();
        all.iter().all(|it| it["uid"] == 4002).then_some(())
    });
    let log = alpha.log();
    assert!(
        log.contains("client ended") && log.contains("[access] does not name it any more"),
        "{log}"
    );
    assert!(!log.contains("evicted"), "{log}");
}

#[test]
fn a_reload_ends_what_a_peer_may_not_do_any_more_and_nothing_else() {
    let Some(programs) = Programs::find() else { return };
    let directory = open_directory();
    let (place, address) = (directory.path(), free_address());
    let data = export(place, "data");
    let more = format!(
        "[listen]\naddress = \"{address}\"\n[exports.data]\npath = \"{data}\"\nwrite = true # data\npeers = [\"alpha\", \"gamma\"]\n"
    );
    let beta = Daemon::start(&programs, place, "beta", &more);
    let dials = format!("[peers.beta]\naddress = \"{address}\"\n");
    let [alpha, gamma] = ["alpha", "gamma"].map(|name| {
        let daemon = Daemon::start(&programs, place, name, &dials);
        daemon.await_lanes();
        daemon
    });
    let [one, two] =
        [&alpha, &gamma].map(|it| Client::connect(it.client_socket()).expect("it serves"));
    let open = |client: &Client, options: OpenOptions| {
        client.open_export(Some("beta"), "data", "blocks", options)
    };
    let both = OpenOptions::read_write;
    let [one_data, two_data] = [&one, &two].map(|it| open(it, both()).expect("open"));
    let two_reads = open(&two, OpenOptions::read()).expect("open");
    let owner = Client::connect(beta.client_socket()).expect("it serves");
    let memory = owner.allocate(1 << 16).expect("memory");
    let _grid = owner.export_region("grid", memory, Access::READ_WRITE).expect("offered");
    let grid = one.open_region(Some("beta"), "grid", Access::READ_WRITE).expect("open");
    let file = place.join("beta.toml");

    let (begun, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ends = AtEnd(&stop);
        let own = scope.spawn(|| read_on(&one, &one_data, &begun, &stop));
        eventually("it reads", || (begun.load(Ordering::Relaxed) > 2).then_some(()));
        let done = beta.reload("\"alpha\", \"gamma\"", "\"gamma\"");
        assert_eq!(done["ended_handles"], 1);
        eventually("its requests end", || own.is_finished().then_some(()));
        assert_eq!(own.join().expect("no panic"), Some(Status::Gone));
    });
    assert_eq!(
        (reads(&one, &one_data), writes(&one, &one_data)),
        (Err(Status::Gone), Err(Status::Gone))
    );
    assert_eq!((reads(&two, &two_data), writes(&two, &two_data)), (Ok(()), Ok(())));
    assert_eq!((reads(&one, &grid), writes(&one, &grid)), (Ok(()), Ok(())), "its lanes stay");
    open(&one, both()).expect_err("nor opened again");

    // Given back, it is opened anew; what ended has ended.
    beta.reload("\"gamma\"", "\"alpha\", \"gamma\"");
    assert_eq!(reads(&one, &one_data), Err(Status::Gone));
    let again = open(&one, both()).expect("open");
    assert_eq!(reads(&one, &again), Ok(()));

    let done = beta.reload("write = true # data", "");
    assert_eq!(done["ended_handles"], 2);
    assert_eq!(
        (writes(&one, &again), writes(&two, &two_data)),
        (Err(Status::Gone), Err(Status::Gone))
    );
    assert_eq!(reads(&two, &two_reads), Ok(()), "it was opened to be read");
    let text = fs::read_to_string(&file).expect("there");
    let from = text.find("[exports.data]").expect("there");
    let done = beta.reload(&text[from..], "");
    assert_eq!(done["ended_handles"], 1);
    assert_eq!(reads(&two, &two_reads), Err(Status::Gone));
    assert_eq!(reads(&one, &grid), Ok(()));
    // What their clients close, and what goes with them, leaves the book.
    drop((one, two, one_data, two_data, two_reads, grid, again));
    eventually("nothing of peers is open", || {
        let handles = beta.json(&["handles"]);
        let all = handles["handles"].as_array().expect("a list").clone();
        all.iter().all(|it| it["peer"].is_null()).then_some(())
    });
}

#[test]
fn an_operator_ends_a_handle_a_client_or_the_lanes_of_a_node() {
    let Some(programs) = Programs::find() else { return };
    let directory = open_directory();
    let (place, address) = (directory.path(), free_address());
    let data = export(place, "data");
    let more = format!(
        "[listen]\naddress = \"{address}\"\n[exports.data]\npath = \"{data}\"\nwrite = true\n"
    );
    let beta = Daemon::start(&programs, place, "beta", &more);
    let alpha = Daemon::start(
        &programs,
        place,
        "alpha",
        &format!("[peers.beta]\naddress = \"{address}\"\n"),
    );
    alpha.await_lanes();
    let far = Client::connect(alpha.client_socket()).expect("it serves");
    let [one, two] = [(); 2].map(|()| Client::connect(beta.client_socket()).expect("it serves"));
    let open = |client: &Client, peer| {
        client.open_export(peer, "data", "blocks", OpenOptions::read_write()).expect("open")
    };
    let (mine, yours, theirs) = (open(&one, None), open(&two, None), open(&far, Some("beta")));
    let memory = one.allocate(1 << 16).expect("memory");
    let _grid = one.export_region("grid", memory, Access::READ_WRITE).expect("offered");
    let grid = two.open_region(None, "grid", Access::READ).expect("open");
    let number = |daemon: &Daemon, is_it: &dyn Fn(&Value) -> bool| {
        let handles = daemon.json(&["handles"]);
        let all = handles["handles"].as_array().expect("a list").clone();
        let found: Vec<u64> = all
            .iter()
            .filter(|it| is_it(it))
            .map(|it| it["handle"].as_u64().expect("a number"))
            .collect();
        assert_eq!(found.len(), 1, "{handles}");
        found[0].to_string()
    };
    let end = |daemon: &Daemon, arguments: &[&str]| {
        let output = daemon.pipectl(arguments).output().expect("it starts");
        (output.status.code(), words(&output))
    };
    let session = |client: &Client| client.session();
    let (first, second) = (session(&one), session(&two));

    // A handle, local and of a peer.
    let of_one = number(&beta, &|it| it["session"] == first && it["kind"] == "export");
    assert_eq!(end(&beta, &["handle", "end", &of_one]).0, Some(0));
    assert_eq!((reads(&one, &mine), reads(&two, &yours)), (Err(Status::Gone), Ok(())));
    let of_far = number(&beta, &|it| it["peer"] == "alpha");
    assert_eq!(end(&beta, &["handle", "end", &of_far]).0, Some(0));
    assert_eq!((reads(&far, &theirs), reads(&two, &yours)), (Err(Status::Gone), Ok(())));
    let theirs = open(&far, Some("beta"));
    assert_eq!(reads(&far, &theirs), Ok(()), "it may open again");
    // Where it was asked for, too.
    let here = number(&alpha, &|it| it["at"] == "beta" && it["handle"].as_u64() > Some(1));
    assert_eq!(end(&alpha, &["handle", "end", &here]).0, Some(0));
    assert_eq!(reads(&far, &theirs), Err(Status::Gone));
    // What is offered is offered no more.
    assert_eq!(reads(&two, &grid), Ok(()));
    let offered = number(&beta, &|it| it["offers"] == true);
    assert_eq!(end(&beta, &["handle", "end", &offered]).0, Some(0));
    assert_eq!(reads(&two, &grid), Err(Status::Gone));
    two.open_region(None, "grid", Access::READ).expect_err("nor opened again");

    // A client.
    assert_eq!(end(&beta, &["client", "end", &first.to_string()]).0, Some(0));
    eventually("its session is over", || is_over(&one).then_some(()));
    assert_eq!(reads(&two, &yours), Ok(()), "session {second}");

    // A node's lanes, which come back.
    let lanes = |daemon: &Daemon| {
        let peers = daemon.status()["shards"][0]["peers"].clone();
        peers[0]["lanes"]
            .as_array()
            .expect("two")
            .iter()
            .map(|it| it["epoch"].as_u64())
            .collect::<Vec<_>>()
    };
    let before = lanes(&alpha);
    assert_eq!(end(&alpha, &["peer", "end", "beta"]).0, Some(0));
    eventually("they come back", || {
        let now = lanes(&alpha);
        now.iter().zip(&before).all(|(now, before)| now > before).then_some(())
    });
    alpha.await_lanes();
    let before = lanes(&alpha);
    assert_eq!(end(&beta, &["peer", "end", "alpha"]).0, Some(0));
    eventually("they come back", || {
        let now = lanes(&alpha);
        now.iter().zip(&before).all(|(now, before)| now > before).then_some(())
    });
    alpha.await_lanes();
    let again = open(&far, Some("beta"));
    assert_eq!(reads(&far, &again), Ok(()));

    // What is not there is not found, and says where to look.
    for (arguments, hint) in [
        (["handle", "end", "999999"], "pipectl handles"),
        (["client", "end", "999999"], "pipectl clients"),
        (["peer", "end", "nobody"], "pipectl peers"),
    ] {
        let (code, text) = end(&beta, &arguments);
        assert_eq!(code, Some(6), "{text}");
        assert!(text.contains(hint), "{text}");
    }
    // The journal has who did it.
    let (log, own) = (beta.log() + &alpha.log(), rustix::process::geteuid().as_raw());
    for line in ["a handle was ended", "a client was ended", "lanes were ended"] {
        let said =
            log.lines().find(|it| it.contains(line)).unwrap_or_else(|| panic!("{line}: {log}"));
        assert!(said.contains(&format!("operator={own}")), "{said}");
    }
}

/// What an export is to be may need a restart, and what the files do not give any more ends at once
/// all the same.
#[test]
fn a_reload_takes_back_also_from_exports_that_wait_for_a_restart() {
    let Some(programs) = Programs::find() else { return };
    // Below the configuration's directory everything may be read.
    let (directory, outside) = (open_directory(), open_directory());
    let [one, other] = ["one", "other"].map(|name| export(outside.path(), name));
    let more = format!(
        "[access]\nusers = [4002, 4001]\n[exports.data]\npath = \"{one}\"\nusers = [4001, 4002]\n"
    );
    let alpha = Daemon::start(&programs, directory.path(), "alpha", &more);
    if alpha.status()["sandbox"]["landlock_abi"] == 0 {
        eprintln!("skipped: {}", alpha.status()["degraded"]);
        return;
    }
    let as_user =
        |uid| Who::user(uid).does(|| Client::connect(alpha.client_socket()).expect("listed"));
    let (Some(first), Some(second)) = (as_user(4001), as_user(4002)) else { return };
    let open = |client: &Client, options| client.open_export(None, "data", "blocks", options);
    let [mine, yours] = [&first, &second].map(|it| open(it, OpenOptions::read()).expect("offered"));
    assert_eq!((reads(&first, &mine), reads(&second, &yours)), (Ok(()), Ok(())));
    let waits = |done: &Value, key: &str| {
        let waiting = done["restart_needed"].as_array().expect("a list");
        assert!(waiting.iter().any(|it| it["key"] == key), "{key}: {done}");
    };

    // Writing has to wait, and who may not use it any more has not.
    let done = alpha.reload("users = [4001, 4002]\n", "users = [4002]\nwrite = true\n");
    waits(&done, "exports.data.write");
    assert_eq!(done["ended_handles"], 1);
    assert_eq!((reads(&first, &mine), reads(&second, &yours)), (Err(Status::Gone), Ok(())));
    open(&first, OpenOptions::read()).expect_err("it is not for this user any more");
    open(&second, OpenOptions::read_write()).expect_err("nor to be written before the restart");

    // Another directory has to wait, and the one that the files do not name any more has not.
    let done = alpha.reload(&one, &other);
    waits(&done, "exports.data.path");
    assert_eq!(done["ended_handles"], 1);
    assert_eq!(reads(&second, &yours), Err(Status::Gone));
    open(&second, OpenOptions::read()).expect_err("neither directory is offered");
    let log = alpha.log();
    assert!(
        log.contains("exports.data waits for a restart") && log.contains("not offered"),
        "{log}"
    );
    let done = alpha.reload(&other, &one);
    waits(&done, "exports.data.write");
    open(&second, OpenOptions::read()).expect_err("what ended is offered again by the restart");
}

#[test]
fn a_connection_of_an_operator_is_asked_again_at_each_request() {
    use std::io::{Read as _, Write as _};
    let Some(programs) = Programs::find() else { return };
    let directory = open_directory();
    let more = "[access]\nusers = [4001]\n";
    let alpha = Daemon::start(&programs, directory.path(), "alpha", more);
    let connect = || std::os::unix::net::UnixStream::connect(alpha.admin_socket()).expect("listed");
    let Some(mut stream) = Who::user(4001).does(connect) else { return };
    let mut ask = || {
        stream.write_all(b"GET /v1/exports HTTP/1.1\r\nHost: piped\r\n\r\n").expect("sent");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("an answer");
        let mut rest = [0; 16 * 1024];
        let _ = stream.read(&mut rest).expect("its rest");
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert_eq!(ask(), "HTTP/1.1 200");
    alpha.reload("users = [4001]", "users = [4002]");
    assert_eq!(ask(), "HTTP/1.1 403");
}

#[test]
fn clients_that_leave_while_access_is_taken_back_leave_nothing() {
    let Some(programs) = Programs::find() else { return };
    let directory = open_directory();
    let place = directory.path();
    let data = export(place, "data");
    let more = format!("[exports.data]\npath = \"{data}\"\nwrite = true # data\n");
    let alpha = Daemon::start(&programs, place, "alpha", &more);
    let (over, gone) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ends = AtEnd(&over);
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let client = Client::connect(alpha.client_socket()).expect("it serves");
                        let write = OpenOptions::read_write();
                        let Ok(handle) = client.open_export(None, "data", "blocks", write) else {
                            continue;
                        };
                        // Some leave with work under way: the queue is dropped with the client.
                        for _ in 0..8 {
                            if let Err(status) = reads(&client, &handle) {
                                assert_eq!(status, Status::Gone);
                                gone.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                        }
                    }
                })
            })
            .collect();
        // Until the two have met: how often is the scheduler's.
        for round in 0..500 {
            if round >= 20 && gone.load(Ordering::Relaxed) > 0 {
                break;
            }
            alpha.reload("write = true # data", "write = false # data");
            alpha.reload("write = false # data", "write = true # data");
        }
        over.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|it| it.join().expect("no panic"));
    });
    assert!(gone.into_inner() > 0, "access was taken back while somebody used it");
    eventually("the book is empty", || (alpha.json(&["handles"])["total"] == 0).then_some(()));
    eventually("no session is left", || {
        (alpha.status()["shards"][0]["sessions"] == 0).then_some(())
    });
}
