//! Memory that the daemon shares with clients, when it is over: whose it is then, who pays for it,
//! and how much of it there can be.
#![forbid(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use piped_client::{Access, Client, ClientBuilder, Handle, OpenOptions, RegionExport};
use piped_ring::Segment;
use piped_ring::handshake::{FDS_PER_QUEUE, Hello, Reply, Request};
use rustix::process::Signal;
use serde_json::Value;
use system_tests::attack::{HELLO, ask, connect, read_to_end, send_raw};
use system_tests::process::{Daemon, Programs, eventually, pattern, words};
use system_tests::user::Who;

const MIB: u64 = 1 << 20;

/// A session, as its sockets and the memory it was passed.
#[derive(Debug)]
struct Session {
    socket: OwnedFd,
    /// The arena, and the rings of its queue.
    memory: [OwnedFd; 2],
}

impl Session {
    fn open(daemon: &Daemon, arena_bytes: u64) -> Result<Self, String> {
        let socket = connect(daemon);
        let hello = Hello { arena_bytes, ..HELLO };
        match ask(&socket, &Request::Hello(hello), &[]) {
            Some((Reply::Welcome(_), mut fds)) => {
                assert_eq!(fds.len(), 1 + FDS_PER_QUEUE);
                let rings = fds.remove(1);
                Ok(Self { socket, memory: [fds.remove(0), rings] })
            }
            other => Err(format!("{other:?}")),
        }
    }

    /// Hangs up, and keeps the memory.
    fn keep(self) -> [OwnedFd; 2] {
        self.memory
    }
}

/// What a file in memory takes, in units of 512 bytes.
fn blocks(memory: impl AsFd) -> u64 {
    let facts = rustix::fs::fstat(memory).expect("ours");
    u64::try_from(facts.st_blocks).expect("a count")
}

fn bytes_of(memory: BorrowedFd<'_>, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let read = rustix::io::pread(memory, &mut bytes, 0).expect("readable");
    assert_eq!(read, length);
    bytes
}

fn limits(daemon: &Daemon) -> Value {
    daemon.json(&["limits"])
}

/// What is used of a limit, and what it allows.
fn row(daemon: &Daemon, name: &str) -> (u64, u64) {
    let report = limits(daemon);
    let rows = report["limits"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    (row["used"].as_u64().expect("a number"), row["limit"].as_u64().expect("a number"))
}

fn set(daemon: &Daemon, settings: &[&str]) {
    let output = daemon.pipectl(["limits", "set"].iter().chain(settings)).output();
    let output = output.expect("pipectl starts");
    assert!(output.status.success(), "{settings:?}: {}", words(&output));
}

#[test]
fn what_a_closed_session_shared_is_empty_in_the_hands_of_who_kept_it() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    // One session's worth: the next one has room when the memory of the one before is given back.
    set(&daemon, &["user.arena=8MiB"]);
    let mut kept = Vec::new();
    for _ in 0..20 {
        let session = eventually("there is room", || Session::open(&daemon, 8 * MIB).ok());
        assert!(session.memory.iter().all(|memory| blocks(memory) > 0), "its pages are there");
        assert!(Session::open(&daemon, 8 * MIB).is_err(), "its user has no more");
        rustix::io::pwrite(&session.memory[0], b"mine", 0).expect("written");
        kept.push(session.keep());
    }
    eventually("all of it is given back", || (row(&daemon, "global.arena").0 == 0).then_some(()));
    eventually("the rings are, too", || {
        kept.iter().flatten().all(|memory| blocks(memory) == 0).then_some(())
    });
    assert_eq!(limits(&daemon)["users"], serde_json::json!([]));
    // It is there, and empty; what is touched again is who touches it.
    let [arena, _] = &kept[0];
    assert_eq!(bytes_of(arena.as_fd(), 4), [0; 4]);
    let segment =
        Segment::from_fd(arena.try_clone().expect("one more")).expect("as long as it was");
    assert_eq!(segment.len(), 8 * MIB);
    segment.store(0, b"again").expect("inside");
    assert!(blocks(arena) > 0);
    assert_eq!(row(&daemon, "global.arena").0, 0, "the daemon has none of it");
}

#[test]
fn memory_that_grew_or_has_a_region_goes_with_its_session() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = programs.piped();
    // On two shards: one of them uses memory of the other's.
    command.args(["--set", "shards.count=2", "--set", "limits.global.staging=8MiB"]);
    let daemon = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
    let owner = Session::open(&daemon, MIB).expect("there is room");
    let grown = match ask(&owner.socket, &Request::GrowArena { bytes: 2 * MIB }, &[]) {
        Some((Reply::Segment { segment: 1 }, mut fds)) => fds.remove(0),
        other => panic!("{other:?}"),
    };
    let queue = match ask(&owner.socket, &Request::AddQueue, &[]) {
        Some((Reply::Queue { queue: 1 }, mut fds)) => fds.remove(0),
        other => panic!("{other:?}"),
    };
    let access = Access::READ_WRITE;
    let export = Request::ExportRegion {
        name: "grid".to_owned(),
        segment: 1,
        offset: 0,
        length: MIB,
        access,
        audience: piped_ring::handshake::Audience::default(),
    };
    let exported = ask(&owner.socket, &export, &[]);
    assert!(matches!(exported, Some((Reply::Opened { .. }, _))), "{exported:?}");
    // On the other shard.
    let others: Vec<Client> =
        (0..3).map(|_| Client::connect(daemon.client_socket()).expect("there is room")).collect();
    let handles: Vec<_> =
        others.iter().map(|client| client.open_region(None, "grid", Access::READ)).collect();
    assert!(handles.iter().all(Result::is_ok), "{handles:?}");
    let before = row(&daemon, "global.arena").0;
    let [arena, rings] = owner.keep();
    let kept = [arena, rings, grown, queue];
    eventually("all of it is empty", || kept.iter().all(|it| blocks(it) == 0).then_some(()));
    eventually("it counts no more", || {
        (row(&daemon, "global.arena").0 == before - 3 * MIB).then_some(())
    });
    drop(handles);
}

/// The daemon ends a session; what its client has in its buffers is the client's all the same, and
/// counts as long as it is there.
#[test]
fn what_an_evicted_client_has_in_its_buffers_is_its_own_until_it_hangs_up() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let session = Session::open(&daemon, MIB).expect("there is room");
    rustix::io::pwrite(&session.memory[0], b"mine", 0).expect("written");
    send_raw(&session.socket, &[0xff; 64], &[]);
    read_to_end(&session.socket);
    eventually("its session is over", || (daemon.number("sessions") == 0).then_some(()));
    assert_eq!(bytes_of(session.memory[0].as_fd(), 4), b"mine");
    assert!(blocks(&session.memory[1]) > 0, "it may not have reaped all");
    assert_eq!(row(&daemon, "user.arena").0, MIB, "it is its user's as before");
    assert_eq!(row(&daemon, "user.sessions").0, 1, "and so is the place");
    let kept = session.keep();
    eventually("it is given back", || kept.iter().all(|it| blocks(it) == 0).then_some(()));
    eventually("and counts no more", || {
        (limits(&daemon)["users"] == serde_json::json!([])).then_some(())
    });
}

#[test]
fn buffers_outlive_their_client_and_keep_what_is_in_them() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    let mut buffer = client.allocate(8192).expect("memory");
    buffer.as_mut_slice().copy_from_slice(&pattern(8192));
    drop(client);
    // Whoever comes and goes meanwhile is gone before this one is.
    drop(Client::connect(daemon.client_socket()).expect("it serves"));
    eventually("the other is gone", || (daemon.number("sessions") == 1).then_some(()));
    assert_eq!(buffer.to_vec(), pattern(8192));
    drop(buffer);
    eventually("its session is over", || (daemon.number("sessions") == 0).then_some(()));
    eventually("its memory is given back", || (row(&daemon, "global.arena").0 == 0).then_some(()));
}

#[test]
fn a_daemon_that_stops_leaves_clients_what_their_buffers_have() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    fs::write(&path, b"").expect("written");
    let mut daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let builder = ClientBuilder::new().reconnect(system_tests::process::PATIENCE);
    let client = builder.connect(daemon.client_socket()).expect("it serves");
    let file = client.open_file(&path, OpenOptions::read_write()).expect("there");
    let mut queue = client.queue().expect("a queue");
    let mut buffer = client.allocate(1 << 20).expect("memory");
    buffer.as_mut_slice().copy_from_slice(&pattern(1 << 20));
    daemon.process.signal(Signal::TERM);
    daemon.restart("");
    assert_eq!(buffer.to_vec(), pattern(1 << 20));
    client.reconnect().expect("the next one is there");
    queue.write(&file, 0, buffer).expect("written");
    assert_eq!(fs::read(&path).expect("there"), pattern(1 << 20));
}

/// A group of processes with a limit of memory, below ours.
struct Group {
    directory: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

impl Group {
    /// `None`, with the reason printed, where we may not make one.
    fn make(limit_bytes: u64) -> Option<Self> {
        let name = format!("piped-test-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ];
        for (root, limit, usage) in kinds {
            let directory = Path::new(root).join(&name);
            if fs::create_dir(&directory).is_err() {
                continue;
            }
            let group = Self { directory, limit, usage };
            match fs::write(group.directory.join(limit), limit_bytes.to_string()) {
                Ok(()) => return Some(group),
                Err(error) => eprintln!("no limit of memory below {root}: {error}"),
            }
        }
        eprintln!("skipped: no group of processes with a limit of memory can be made here");
        None
    }

    /// A command that runs another one in the group.
    fn run(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        let script = r#"echo $$ >"$0" && exec "$@""#;
        inside.args(["-c", script]).arg(self.directory.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(key, value),
                None => inside.env_remove(key),
            };
        }
        inside
    }

    fn usage(&self) -> u64 {
        let text = fs::read_to_string(self.directory.join(self.usage)).expect("there");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Empty once the kernel has taken the processes out.
        eventually("the group is removed", || fs::remove_dir(&self.directory).ok());
    }
}

#[test]
fn sessions_that_are_over_do_not_fill_the_daemons_group_of_processes() {
    let Some(programs) = Programs::find() else { return };
    let Some(group) = Group::make(128 * MIB) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let command = group.run(&programs.piped());
    let mut daemon = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
    let allowed = (row(&daemon, "global.arena").1, row(&daemon, "user.arena").1);
    assert_eq!(allowed, (64 * MIB, 32 * MIB), "half of {} and half of that", group.limit);
    let before = group.usage();
    let mut kept = Vec::new();
    // 240 MiB in all.
    for _ in 0..20 {
        let session = eventually("there is room", || Session::open(&daemon, 12 * MIB).ok());
        kept.push(session.keep());
    }
    eventually("all of it is given back", || (row(&daemon, "global.arena").0 == 0).then_some(()));
    assert!(daemon.process.0.try_wait().expect("our child").is_none(), "it was not killed");
    eventually("the group has next to nothing of it", || {
        (group.usage() < before + 12 * MIB).then_some(())
    });
    // What is touched again is charged to who touches it, which is not in the group.
    let used = group.usage();
    for [arena, _] in &kept {
        rustix::fs::fallocate(arena, rustix::fs::FallocateFlags::empty(), 0, 12 * MIB)
            .expect("memory");
    }
    assert!(kept.iter().all(|[arena, _]| blocks(arena) == 12 * MIB / 512));
    assert!(group.usage() < used + 12 * MIB, "240 MiB are not the daemon's");
    drop(kept);
    drop(daemon);
}

/// A directory that others can go through, too.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), open).expect("ours");
    directory
}

/// Takes until it is refused; what was taken, and the refusal.
fn take_all<T>(mut take: impl FnMut(usize) -> Result<T, String>) -> (Vec<T>, String) {
    let mut taken = Vec::new();
    loop {
        match take(taken.len()) {
            Ok(one) => taken.push(one),
            Err(text) => return (taken, text),
        }
        assert!(taken.len() < 100_000, "there is no limit");
    }
}

/// What a session offers, for as long as this lives.
struct Offered(
    #[expect(dead_code, reason = "held")] Option<RegionExport>,
    #[expect(dead_code, reason = "held")] Option<Handle>,
);

const GREEDY: Who = Who::user(65_534);
const OTHER: Who = Who::user(4002);

#[test]
fn one_user_cannot_have_all_sessions_or_all_memory() {
    let Some(programs) = Programs::find() else { return };
    let directory = open_directory();
    let more = "[access]\nusers = [65534, 4002]\n";
    let daemon = Daemon::start(&programs, directory.path(), "alpha", more);
    let session = |bytes: u64| {
        let builder = ClientBuilder::new().arena_bytes(bytes);
        builder.connect(daemon.client_socket()).map_err(|error| error.to_string())
    };
    let taken = GREEDY.does(|| take_all(|_| session(4096)));
    let Some((sessions, refused)) = taken else { return };
    assert!(refused.contains("limits.user.sessions"), "{refused}");
    assert_eq!(sessions.len(), 32, "half of all");
    let others = OTHER.does(|| take_all(|_| session(4096)));
    let Some((others, refused)) = others else { return };
    assert!(refused.contains("limits.user.sessions"), "{refused}");
    assert_eq!(others.len(), 32, "the other half");
    drop((sessions, others));
    eventually("they are gone", || {
        (limits(&daemon)["users"] == serde_json::json!([])).then_some(())
    });
    // The machine's share is divided in the same way.
    let (all, of_user) = (row(&daemon, "global.arena").1, row(&daemon, "user.arena").1);
    assert!(of_user == all / 2 && all > 0, "{of_user} of {all}");
    set(&daemon, &["global.arena=32MiB"]);
    assert_eq!(row(&daemon, "user.arena").1, 16 * MIB, "half of it, while it runs");
    let taken = GREEDY.does(|| take_all(|_| session(4 * MIB)));
    let Some((sessions, refused)) = taken else { return };
    assert!(refused.contains("limits.user.arena = 16MiB"), "{refused}");
    assert_eq!(sessions.len(), 4);
    // Root is a third one.
    let own = session(8 * MIB).expect("root's share");
    let others = OTHER.does(|| take_all(|_| session(4 * MIB)));
    let Some((others, refused)) = others else { return };
    assert_eq!(others.len(), 2, "{refused}");
    assert!(refused.contains("limits.global.arena = 32MiB"), "{refused}");
    drop((own, others, sessions));
}

#[test]
fn one_user_cannot_have_all_regions_or_all_channels() {
    let Some(programs) = Programs::find() else { return };
    let directory = open_directory();
    let more = "[access]\nusers = [65534, 4002]\n";
    let daemon = Daemon::start(&programs, directory.path(), "alpha", more);
    let kinds = ["regions", "channels"];
    for kind in kinds {
        let half = |scope: &str| row(&daemon, &format!("{scope}.{kind}")).1;
        assert!(2 * half("user") <= half("global"), "{kind}");
        let text = [("global", 10), ("user", 6), ("client", 4)];
        let text = text.map(|(scope, most)| format!("{scope}.{kind}={most}"));
        set(&daemon, &text.each_ref().map(String::as_str));
        let connect = || Client::connect(daemon.client_socket()).expect("there is room");
        let offer = |client: &Client, name: String| {
            if kind == "regions" {
                let buffer = client.allocate(4096).expect("memory");
                let export = client.export_region(&name, buffer, Access::READ);
                export.map(|it| Offered(Some(it), None)).map_err(|error| error.to_string())
            } else {
                let handle = client.offer_channel(&name);
                handle.map(|it| Offered(None, Some(it))).map_err(|error| error.to_string())
            }
        };
        let greedy = GREEDY.does(|| {
            let (first, second) = (connect(), connect());
            let (mut taken, refused) = take_all(|at| offer(&first, format!("a{at}")));
            assert_eq!(taken.len(), 4, "{refused}");
            assert!(refused.contains(&format!("limits.client.{kind}")), "{refused}");
            let (more, refused) = take_all(|at| offer(&second, format!("b{at}")));
            assert_eq!(more.len(), 2, "{refused}");
            assert!(refused.contains(&format!("limits.user.{kind}")), "{refused}");
            taken.extend(more);
            (first, second, taken)
        });
        let Some((first, second, mut taken)) = greedy else { return };
        let others = OTHER.does(|| {
            let client = connect();
            let (taken, refused) = take_all(|at| offer(&client, format!("c{at}")));
            assert_eq!(taken.len(), 4, "what is left: {refused}");
            assert!(refused.contains(&format!("limits.client.{kind}")), "{refused}");
            (client, taken)
        });
        let Some(_others) = others else { return };
        set(&daemon, &[&format!("client.{kind}=100"), &format!("user.{kind}=100")]);
        let refused = offer(&first, "one more".to_owned()).err().unwrap_or_default();
        assert!(refused.contains(&format!("limits.global.{kind}")), "{refused}");
        assert_eq!(row(&daemon, &format!("global.{kind}")).0, 10);
        assert_eq!(row(&daemon, &format!("user.{kind}")).0, 6);
        assert_eq!(row(&daemon, &format!("client.{kind}")).0, 4);
        let users = limits(&daemon)["users"].clone();
        let of = |uid: u32| {
            let users = users.as_array().expect("rows").iter();
            users.into_iter().find(|row| row["uid"] == uid).map(|row| row[kind].clone())
        };
        assert_eq!((of(65_534), of(4002)), (Some(6.into()), Some(4.into())), "{users}");
        // What is closed makes room.
        drop(taken.pop());
        eventually("it is closed", || offer(&second, format!("new {kind}")).ok());
        let shown = words(&daemon.pipectl(["limits"]).output().expect("pipectl starts"));
        for word in ["user.regions", "client.channels", "global.arena", "REGIONS", "CHANNELS"] {
            assert!(shown.contains(word), "{word}: {shown}");
        }
    }
}
