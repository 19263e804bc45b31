//! Other users of the machine at every door: those without any right, and those that have one and
//! hold connections open. Root asks and changes, and other users get sessions, all the same.
//!
//! What is counted is outcomes, never time. Root alone can be somebody else: elsewhere these are
//! skipped, and say so.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use piped_client::{Client, ClientBuilder, Request, Tag};
use piped_ring::handshake::fds;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use system_tests::http::{get, over_tcp, over_unix};
use system_tests::keys::Key;
use system_tests::process::{Daemon, PATIENCE, Programs, eventually, free_address, words};
use system_tests::user::Who;

/// Who holds connections open.
const NOBODY: Who = Who::user(65_534);
/// Who wants to be served meanwhile.
const CLIENT: Who = Who::user(4001);

/// Connections of each kind: three times the places there are.
const HELD: usize = 100;
/// Times that others are served meanwhile.
const ROUNDS: usize = 5;

/// A directory that others can go through, too.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), open).expect("ours");
    directory
}

/// A connection to the clients' door.
fn client_socket(path: &Path) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a short path");
    rustix::net::connect(&socket, &address).expect("it listens");
    socket
}

/// Asks again and again until the connection takes no more, or is ended. Reads nothing.
fn ask_and_never_read(mut stream: UnixStream) -> UnixStream {
    stream.set_nonblocking(true).expect("an option");
    let request = get("/v1/status").replace("Connection: close\r\n", "").repeat(16);
    for _ in 0..1000 {
        match stream.write(request.as_bytes()) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    stream
}

/// A value of a metric, 0 if it is not there.
fn metric(daemon: &Daemon, name: &str) -> f64 {
    let (_, text) = over_unix(&daemon.admin_socket(), &get("/metrics"));
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    line.unwrap_or(0.0)
}

/// Root looks and reloads, and the other user has a session.
fn all_others_are_served(daemon: &Daemon, client: Who) {
    for _ in 0..ROUNDS {
        for arguments in [&["status"][..], &["config", "reload"]] {
            let output = daemon.pipectl(arguments).output().expect("pipectl starts");
            assert!(output.status.success(), "{arguments:?}: {}\n{}", words(&output), daemon.log());
        }
        let session = client.does(|| Client::connect(daemon.client_socket()).map(drop));
        assert!(matches!(session, Some(Ok(()))), "{session:?}\n{}", daemon.log());
    }
}

/// 100 silent connections and 100 that never read their answer, at both unix doors and at that of
/// metrics.
fn nobody_keeps_others_out(lists: &str, has_rights: bool) {
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let metrics = free_address();
    let more = format!("[access]\n{lists}\n[metrics]\naddress = \"{metrics}\"\n");
    let alpha = Daemon::start(&programs, directory.path(), "alpha", &more);
    let held = NOBODY.does(|| {
        let operator = || UnixStream::connect(alpha.admin_socket()).expect("it listens");
        let silent: Vec<_> = (0..HELD).map(|_| operator()).collect();
        let clients: Vec<_> = (0..HELD).map(|_| client_socket(&alpha.client_socket())).collect();
        let scrapers: Vec<_> =
            (0..HELD).map(|_| TcpStream::connect(metrics).expect("it listens")).collect();
        (silent, clients, scrapers)
    });
    let Some(silent) = held else { return };
    all_others_are_served(&alpha, CLIENT);
    let held = NOBODY.does(|| {
        let operators: Vec<_> = (0..HELD)
            .map(|_| UnixStream::connect(alpha.admin_socket()).expect("it listens"))
            .map(ask_and_never_read)
            .collect();
        // What is no Hello is answered, too.
        let clients: Vec<_> = (0..HELD)
            .map(|_| client_socket(&alpha.client_socket()))
            .inspect(|socket| {
                // It may be ended already.
                let _ = rustix::net::send(socket, &[0xff; 64], SendFlags::NOSIGNAL);
            })
            .collect();
        (operators, clients)
    });
    all_others_are_served(&alpha, CLIENT);
    let (head, _) = over_tcp(metrics, &get("/metrics"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    drop((silent, held));

    let reason = if has_rights { "displaced" } else { "stranger" };
    for name in [
        format!("piped_connections_sent_away_total{{door=\"admin\",reason=\"{reason}\"}}"),
        format!("piped_handshakes_refused_total{{reason=\"{reason}\"}}"),
        "piped_connections_sent_away_total{door=\"metrics\",reason=\"displaced\"}".to_owned(),
    ] {
        let count = metric(&alpha, &name);
        assert!(count >= 1.0, "{name}: {count}");
    }
    if !has_rights {
        // Each is counted once, whatever became of it, and as what it is.
        let sent = |reason: &str| {
            let labels = format!("{{door=\"admin\",reason=\"{reason}\"}}");
            metric(&alpha, &format!("piped_connections_sent_away_total{labels}"))
        };
        assert_eq!(sent("stranger"), 2.0 * HELD as f64);
        for reason in ["busy", "displaced", "silent", "unread"] {
            assert_eq!(sent(reason), 0.0, "{reason}");
        }
    }
    let log = alpha.log();
    assert!(has_rights || !log.contains("an operator"), "{log}");
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    let (operators, clients) = match has_rights {
        true => ("silent connection of an operator makes room", "it said nothing, and another"),
        false => ("may not ask for anything", "[access] does not name"),
    };
    for what in [operators, clients, "a scraper was sent away"] {
        assert!((1..=40).contains(&lines(what)), "{what}: {} lines\n{log}", lines(what));
    }
}

#[test]
fn a_user_without_any_right_keeps_nobody_out() {
    nobody_keeps_others_out("users = [4001]", false);
}

#[test]
fn a_user_that_may_connect_keeps_nobody_out() {
    nobody_keeps_others_out("users = [4001, 65534]", true);
}

/// Passes a descriptor whose close hangs until the other end is dropped: a socket that lingers with
/// more unsent than that takes. `None`: the kernel lets nobody pass anything there.
fn pass_what_hangs(socket: impl AsFd) -> Option<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mut ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (theirs, _) = listener.accept().expect("accepted");
    ours.set_nonblocking(true).expect("an option");
    while ours.write(&[0; 65536]).is_ok() {}
    set_socket_linger(&ours, Some(Duration::from_secs(600))).expect("an option");
    let passed = fds::send(&socket, b"hello", &[ours.as_fd()]);
    if passed.is_err() {
        // Else this test would hang itself.
        set_socket_linger(&ours, None).expect("an option");
    }
    passed.ok().map(|()| theirs)
}

/// More than there are places, threads, and what there was room for in all once.
#[test]
fn descriptors_whose_close_hangs_keep_nobody_out() {
    const PASSED: usize = 350;
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let alpha = Daemon::start(&programs, directory.path(), "alpha", "[access]\nusers = [4001]\n");
    // It must not close its own before ours are closed: then these would hang, here.
    let pid = alpha.status()["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
    let pid = pid.expect("its number");
    kill_process(pid, Signal::STOP).expect("it runs");
    let held = NOBODY.does(|| {
        let of_clients = (0..PASSED).filter_map(|_| {
            // Its end may be closed at once.
            pass_what_hangs(client_socket(&alpha.client_socket()))
        });
        let of_clients: Vec<_> = of_clients.collect();
        let of_operators = (0..PASSED).filter_map(|_| {
            pass_what_hangs(UnixStream::connect(alpha.admin_socket()).expect("it listens"))
        });
        (of_clients, of_operators.collect::<Vec<_>>())
    });
    kill_process(pid, Signal::CONT).expect("it is there");
    let Some((of_clients, of_operators)) = held else { return };
    println!("passed: {} to clients, {} to operators", of_clients.len(), of_operators.len());
    all_others_are_served(&alpha, CLIENT);
    drop((of_clients, of_operators));
}

#[test]
fn somebody_without_a_right_is_told_so_among_hundreds_of_silent_ones() {
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let alpha = Daemon::start(&programs, directory.path(), "alpha", "[access]\nusers = [4001]\n");
    let told = NOBODY.does(|| {
        let _clients: Vec<_> = (0..HELD).map(|_| client_socket(&alpha.client_socket())).collect();
        let _operators: Vec<_> =
            (0..HELD).map(|_| UnixStream::connect(alpha.admin_socket()).expect("there")).collect();
        // Those that had to leave are gone at last.
        let refusal = eventually("a client is told", || {
            let refusal = Client::connect(alpha.client_socket()).map(drop).expect_err("no right");
            Some(refusal.to_string()).filter(|it| it.contains("user 65534 may not use this daemon"))
        });
        let answer = eventually("an operator is told", || {
            let mut stream = UnixStream::connect(alpha.admin_socket()).expect("it listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let mut answer = String::new();
            stream.write_all(get("/v1/status").as_bytes()).ok()?;
            stream.read_to_string(&mut answer).ok()?;
            Some(answer).filter(|it| !it.is_empty())
        });
        (refusal, answer)
    });
    let Some((refusal, answer)) = told else { return };
    assert!(refusal.contains("[access]"), "{refusal}");
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("may not look here"), "{answer}");
}

/// Every door, by a user that is named nowhere: what is refused is refused in words, and nothing is
/// learned.
#[test]
fn every_door_refuses_who_is_named_nowhere() {
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let export = directory.path().join("export");
    fs::create_dir(&export).expect("made");
    fs::write(export.join("secret"), "secret").expect("written");
    let [metrics, peers] = [free_address(), free_address()];
    // Without lists the doors themselves are closed, with them whoever stands behind them refuses.
    for (lists, knocks) in [("", false), ("users = [0, 4001]\n", true)] {
        let more = format!(
            "[access]\n{lists}[metrics]\naddress = \"{metrics}\"\n[listen]\naddress = \"{peers}\"\n\
             [exports.data]\npath = \"{}\"\nusers = [0]\n",
            export.display()
        );
        let alpha = Daemon::start(&programs, directory.path(), "alpha", &more);
        let tried = NOBODY.does(|| {
            let session = Client::connect(alpha.client_socket()).map(drop);
            let operator = UnixStream::connect(alpha.admin_socket()).map_err(|it| it.kind());
            let answers = operator.map(|_| {
                ["/v1/status", "/v1/config", "/metrics", "/v1/exports"]
                    .map(|path| over_unix(&alpha.admin_socket(), &get(path)).0)
            });
            // Metrics are for whoever reaches the address; nothing else is there.
            let page = ["/v1/status", "/v1/config", "/../etc/passwd"]
                .map(|path| over_tcp(metrics, &get(path)).0);
            (session, answers, page, garbage(peers))
        });
        let Some((session, answers, page, peer)) = tried else { return };
        let session = session.expect_err("it is named nowhere").to_string();
        match answers {
            Err(kind) => {
                assert!(!knocks && kind == ErrorKind::PermissionDenied, "{kind}");
            }
            Ok(heads) => {
                assert!(knocks && session.contains("may not use"), "{session}");
                for head in heads {
                    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
                }
            }
        }
        for head in page {
            let refused = ["HTTP/1.1 404", "HTTP/1.1 400"].iter().any(|it| head.starts_with(it));
            assert!(refused, "{head}");
        }
        assert!(!peer.windows(6).any(|it| it == b"secret"), "{peer:?}");
        assert!(alpha.status()["pid"].is_number(), "it lives");
    }
}

/// What the peers' door says to bytes that are no frame.
fn garbage(address: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    // It may hang up before all is sent, or read.
    let _ = stream.write_all(&[0xa5; 4096]);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    said
}

/// What those that may look but not use are told of an export: the same of what is there and what
/// is not.
#[test]
fn a_plan_tells_nothing_of_files_to_who_may_not_open_them() {
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let export = directory.path().join("export");
    fs::create_dir(&export).expect("made");
    fs::write(export.join("there"), "secret").expect("written");
    let mut command = programs.piped();
    for setting in ["access.users=[4001]", "admin.status_users=[4001,65534]"] {
        command.args(["--set", setting]);
    }
    let more = format!("[exports.data]\npath = \"{}\"\n", export.display());
    let alpha = Daemon::start_by(command, &programs, directory.path(), "alpha", &more);
    let plan = |path: &str| {
        let body = format!(
            r#"{{"from":{{"export":{{"export":"data","path":"{path}"}}}},"to":{{"memory":{{}}}},"bytes":4096}}"#
        );
        let request = format!(
            "POST /v1/plan HTTP/1.1\r\nHost: piped\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        over_unix(&alpha.admin_socket(), &request)
    };
    let ask = |who: Who| who.does(|| ["there", "missing"].map(plan));
    let Some([there, missing]) = ask(NOBODY) else { return };
    assert!(there.0.starts_with("HTTP/1.1 403") && there.1.contains("[access]"), "{there:?}");
    assert_eq!(there.1, missing.1);
    let [there, missing] = ask(CLIENT).expect("it was NOBODY before");
    assert!(there.0.starts_with("HTTP/1.1 200"), "{there:?}");
    assert!(missing.0.starts_with("HTTP/1.1 404"), "{missing:?}");
}

/// Ten sessions of one user wait for messages that never come: more than there are places for.
#[test]
fn what_one_user_waits_for_stops_no_other_users_requests() {
    const SESSIONS: usize = 10;
    const EACH: usize = 250;
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let lists = "[access]\nusers = [4001, 65534]\n";
    let alpha = Daemon::start(&programs, directory.path(), "alpha", lists);
    let held = NOBODY.does(|| {
        let sessions = (0..SESSIONS).map(|session| {
            let client = ClientBuilder::new().arena_bytes(1 << 20).connect(alpha.client_socket());
            let client = client.expect("it is admitted");
            let channel = client.offer_channel(&format!("never-{session}")).expect("offered");
            let mut queue = client.queue().expect("a queue");
            let pending: Vec<_> = (0..EACH)
                .map(|_| {
                    let buffer = client.allocate(64).expect("memory");
                    let request = Request::receive(&channel, Tag::Any, buffer);
                    queue.submit(request.deadline(Duration::from_secs(3600))).expect("room")
                })
                .collect();
            queue.flush();
            (client, channel, queue, pending)
        });
        sessions.collect::<Vec<_>>()
    });
    let Some(held) = held else { return };
    // What is under way of all of them, once that is as much as there will be: half of the places.
    let under_way = || {
        let report = alpha.json(&["clients"]);
        let rows = report["clients"].as_array().expect("rows");
        rows.iter().filter_map(|row| row["requests"].as_u64()).sum::<u64>()
    };
    let settled = eventually("all that may wait waits", || {
        let now = under_way();
        (now >= 1024 && now == under_way()).then_some(now)
    });
    let served = CLIENT.does(|| {
        let client = Client::connect(alpha.client_socket()).expect("it is admitted");
        let mut queue = client.queue().expect("a queue");
        // Would hang, not fail, if nobody looked at its ring.
        queue.nop().expect("it ends");
        // And it may wait as well.
        let channel = client.offer_channel("soon").expect("offered");
        let buffer = client.allocate(64).expect("memory");
        let receive = queue.submit(Request::receive(&channel, Tag::Any, buffer)).expect("room");
        let sent = client.allocate(64).expect("memory");
        let to = client.open_channel(None, "soon").expect("it is offered");
        queue.run(Request::send(&to, 1, sent)).expect("somebody receives");
        receive.wait(&mut queue).expect("it was sent").bytes
    });
    assert_eq!(served, Some(64));
    assert_eq!(settled, 1024, "half of the places for receives");
    drop(held);
}

/// One user has used up its attempts, on loopback; another's connections are looked at all the
/// same.
#[test]
fn one_users_attempts_are_not_anothers() {
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let peers = free_address();
    let key = Key::make(&programs, directory.path(), "alpha");
    let more = key.security("integrity") + &format!("[listen]\naddress = \"{peers}\"\n");
    let alpha = Daemon::start(&programs, directory.path(), "alpha", &more);
    let busy = || metric(&alpha, "piped_peer_handshakes_total{outcome=\"busy\"}");
    let dial = |count: usize| -> Vec<_> {
        (0..count).map(|_| TcpStream::connect(peers).expect("it listens")).collect()
    };
    let Some(held) = NOBODY.does(|| dial(300)) else { return };
    // Of root; each end is held until it was looked at.
    let own = dial(100);
    let mut last = TcpStream::connect(peers).expect("it listens");
    // What is no handshake ends the connection: all before it were looked at then.
    last.write_all(&[0xa5; 64]).expect("sent");
    let _ = last.read(&mut [0; 1]);
    // The first 128 of the other user were not turned away, nor was any of root's.
    let turned_away = busy();
    assert!((1.0..=300.0 - 128.0).contains(&turned_away), "{turned_away}");
    drop((held, own));
}
