//! Names below an export that lead elsewhere, or to what is no file, asked for by a client and by a
//! peer.
#![forbid(unsafe_code)]

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use piped_client::{Client, OpenError, OpenOptions, SessionError};
use piped_core::access::{Access, Creation};
use piped_core::status::Status;
use piped_ring::handshake::{MESSAGE_BYTES_MAX, Request};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};
use system_tests::attack::{Attacker, send_raw};
use system_tests::process::{Daemon, PATIENCE, Programs, free_address, now};

/// What lies outside.
const SECRET: &[u8] = b"nobody may read this";
/// What lies inside where something else does at times.
const INSIDE: &[u8] = b"everybody may read i";

/// `beta` offers `root`, `alpha` asks it. What lies beside `root` is nobody's.
struct Scene {
    directory: tempfile::TempDir,
    alpha: Daemon,
    beta: Daemon,
}

impl Scene {
    /// `None`: nothing is built. `landlock`: a second fence, or this one alone.
    fn start(landlock: &str) -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("below")).expect("made");
        fs::write(directory.path().join("secret"), SECRET).expect("written");
        let address = free_address();
        let sandbox = format!("[sandbox]\nlandlock = \"{landlock}\"\n");
        let path = root.display();
        let served = format!(
            "{sandbox}[listen]\naddress = \"{address}\"\n\
             [exports.data]\npath = \"{path}\"\nwrite = true\n\
             [exports.named]\npath = \"{path}\"\nwrite = true\nnames = true\n"
        );
        let beta = Daemon::start(&programs, directory.path(), "beta", &served);
        let asks = format!("{sandbox}[peers.beta]\naddress = \"{address}\"\n");
        let alpha = Daemon::start(&programs, directory.path(), "alpha", &asks);
        alpha.await_lanes();
        Some(Self { directory, alpha, beta })
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn root(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    /// A session of a client of the node that serves, and one of a node that asks it; with how each
    /// names it.
    fn askers(&self) -> [(Attacker, &'static str); 2] {
        [(Attacker::connect(&self.beta), ""), (Attacker::connect(&self.alpha), "beta")]
    }
}

fn request(peer: &str, path: &str, access: Access, create: Creation) -> Request {
    let (peer, export) = (peer.to_owned(), "data".to_owned());
    Request::OpenExport { peer, export, path: path.into(), access, create }
}

/// How an open ends, which must not be never.
fn open(asker: &(Attacker, &str), path: &str, access: Access, create: Creation) -> Status {
    let (client, peer) = asker;
    match client.open(&request(peer, path, access, create), &[]) {
        Ok(_) => Status::Ok,
        Err((status, _)) => status,
    }
}

fn furnish(scene: &Scene) {
    fs::write(scene.root("file"), INSIDE).expect("written");
    fs::write(scene.root("below/file"), INSIDE).expect("written");
    fs::create_dir(scene.outside("elsewhere")).expect("made");
    fs::write(scene.outside("elsewhere/file"), SECRET).expect("written");
    for (name, target) in [
        ("to-inside", "below/file"),
        ("to-outside", "../secret"),
        ("to-outside-at-last", "to-outside"),
        ("to-parent", ".."),
        ("to-root", "/"),
        ("to-passwd", "/etc/passwd"),
        ("to-process", "/proc/self/root/etc/passwd"),
        ("to-descriptor", "/proc/self/fd/0"),
        ("to-itself", "to-itself"),
        ("to-nothing", "nothing"),
        ("to-nothing-outside", "../made-outside"),
        ("to-elsewhere", "../elsewhere"),
    ] {
        symlink(target, scene.root(name)).expect("linked");
    }
    fs::hard_link(scene.outside("secret"), scene.root("hard")).expect("linked");
    mknodat(CWD, scene.root("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
    let mode = Mode::from_raw_mode(0o666);
    for (name, kind, device) in [
        ("zero", FileType::CharacterDevice, makedev(1, 5)),
        ("terminal", FileType::CharacterDevice, makedev(5, 0)),
        ("disk", FileType::BlockDevice, makedev(7, 0)),
    ] {
        if let Err(error) = mknodat(CWD, scene.root(name), kind, mode, device) {
            eprintln!("skipped: no device `{name}` can be made here ({error})");
            fs::create_dir(scene.root(name)).expect("made");
        }
    }
    drop(UnixListener::bind(scene.root("socket")).expect("bound"));
}

#[test]
fn names_lead_to_regular_files_below_and_nowhere_else() {
    for landlock in ["off", "auto"] {
        let Some(scene) = Scene::start(landlock) else { return };
        furnish(&scene);
        let long = "n".repeat(256);
        let deep = "below/../".repeat(40) + "file";
        let many = "./".repeat(300) + "file";
        for asker in scene.askers() {
            for (path, expected) in [
                ("file", Status::Ok),
                ("./below//file", Status::Ok),
                ("to-inside", Status::Ok),
                (&many, Status::Ok),
                // Whoever may write here and read there can do that: the file is here as much as
                // there. Where that matters, fs.protected_hardlinks or a file system of its own
                // keeps them apart.
                ("hard", Status::Ok),
                ("nothing", Status::NotFound),
                ("file/below", Status::NotDirectory),
                ("", Status::Invalid),
                (&long, Status::NameTooLong),
                ("../secret", Status::Denied),
                ("below/../../secret", Status::Denied),
                ("below/..", Status::Denied),
                (&deep, Status::Denied),
                ("/etc/passwd", Status::Denied),
                ("//etc/passwd", Status::Denied),
                ("to-outside", Status::Loop),
                ("to-outside-at-last", Status::Loop),
                ("to-parent/secret", Status::Loop),
                ("to-parent/root/file", Status::Loop),
                ("to-root/etc/passwd", Status::Loop),
                ("to-passwd", Status::Loop),
                ("to-process", Status::Loop),
                ("to-descriptor", Status::Loop),
                ("to-elsewhere/file", Status::Loop),
                ("to-itself", Status::Loop),
                (".", Status::IsDirectory),
                ("below", Status::IsDirectory),
                ("below/", Status::IsDirectory),
                ("fifo", Status::Denied),
                ("zero", Status::Denied),
                ("terminal", Status::Denied),
                ("disk", Status::Denied),
                ("socket", Status::Denied),
            ] {
                for access in [Access::READ, Access::WRITE, Access::READ_WRITE] {
                    for create in [Creation::No, Creation::OPEN] {
                        let expected = match (path, create) {
                            // Something to be made for reading alone makes no sense, wherever it
                            // is.
                            (_, Creation::OPEN) if !access.write => continue,
                            ("nothing", Creation::OPEN) => Status::Ok,
                            _ => expected,
                        };
                        let status = open(&asker, path, access, create);
                        let peer = asker.1;
                        assert_eq!(
                            status, expected,
                            "{path:?} {access:?} {create:?} {peer:?} {landlock}"
                        );
                        let _ = fs::remove_file(scene.root("nothing"));
                    }
                }
            }
        }
        assert_eq!(fs::read(scene.outside("secret")).expect("there"), SECRET);
    }
}

/// What no library would send, since nothing good is named like that: the client is told, and is
/// out.
#[test]
fn a_name_with_a_zero_byte_or_of_endless_length_is_no_message_at_all() {
    let Some(scene) = Scene::start("auto") else { return };
    furnish(&scene);
    let longest = "n".repeat(1024);
    for asker in scene.askers() {
        // As long as a name may be, and longer than any file system has it.
        assert_eq!(open(&asker, &longest, Access::READ, Creation::No), Status::NameTooLong);
        let mut message = [0; MESSAGE_BYTES_MAX];
        let wanted = request(asker.1, "file", Access::READ, Creation::No);
        let length = wanted.encode(9, &mut message).expect("it fits");
        let at = message.windows(4).position(|four| four == b"file").expect("it is in there");
        message[at + 2] = 0;
        send_raw(&asker.0.socket, &message[..length], &[]);
        asker.0.await_end();
    }
    for daemon in [&scene.alpha, &scene.beta] {
        assert_eq!(daemon.status()["evicted"]["message"], 1);
    }
}

#[test]
fn nothing_is_made_outside() {
    let Some(scene) = Scene::start("off") else { return };
    furnish(&scene);
    let listed = |path: &Path| {
        let entries = fs::read_dir(path).expect("there");
        let mut names: Vec<_> = entries.map(|it| it.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    let before = [listed(scene.directory.path()), listed(&scene.outside("elsewhere"))];
    for asker in scene.askers() {
        for path in [
            "../made",
            "below/../../made",
            "to-parent/made",
            "to-elsewhere/made",
            "to-nothing-outside",
            "to-root/made",
            "/tmp/made-by-nobody",
        ] {
            let status = open(&asker, path, Access::READ_WRITE, Creation::OPEN);
            assert!([Status::Denied, Status::Loop].contains(&status), "{path}: {status:?}");
        }
        // A link that leads to nothing here is not followed to make something: what is made is a
        // name of its own.
        assert_ne!(open(&asker, "to-nothing", Access::WRITE, Creation::OPEN), Status::Ok);
        assert!(!scene.root("nothing").exists());
        // What is made is a file with the permissions of files, not those that somebody else thinks
        // of.
        assert_eq!(open(&asker, "below/new", Access::READ_WRITE, Creation::OPEN), Status::Ok);
        assert!(scene.root("below/new").is_file());
        fs::remove_file(scene.root("below/new")).expect("made");
    }
    let after = [listed(scene.directory.path()), listed(&scene.outside("elsewhere"))];
    assert_eq!(after, before);
    assert!(!Path::new("/tmp/made-by-nobody").exists());
}

/// Exchanges two names below an export, over and over, until the end.
fn exchange(one: &Path, other: &Path, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).expect("both are there");
    }
}

/// Opens a name over and over, at least so often, and until it was both what was meant and
/// something else; what is opened is what was meant.
fn race(daemon: &Daemon, peer: Option<&str>, path: &str, rounds: usize) -> (usize, usize) {
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let (mut opened, mut refused) = (0, 0);
    let (end, mut round) = (now() + PATIENCE, 0);
    // Whoever exchanges the names may have to wait for a CPU longer than all rounds take.
    while round < rounds || ((opened == 0 || refused == 0) && now() < end) {
        round += 1;
        // A few make what is not there; for reading and writing, which would wake a FIFO's other
        // end.
        let options = match round % 4 {
            0 => OpenOptions::read_write().create(true),
            1 => OpenOptions::write(),
            _ => OpenOptions::read(),
        };
        let reads = round % 4 != 1;
        match client.open_export(peer, "data", path, options) {
            Ok(file) if reads => {
                let buffer = client.allocate(SECRET.len()).expect("memory");
                let (buffer, bytes) = queue.read(&file, 0, buffer).expect("it is there");
                let found = &buffer.as_slice()[..bytes];
                assert!(found == INSIDE || found.is_empty(), "{path}: {found:?}");
                opened += 1;
            }
            Ok(_) => opened += 1,
            Err(_) => refused += 1,
        }
    }
    (opened, refused)
}

#[test]
fn a_name_that_is_exchanged_all_the_time_never_leads_outside() {
    const ROUNDS: usize = 1500;
    for landlock in ["off", "auto"] {
        let Some(scene) = Scene::start(landlock) else { return };
        furnish(&scene);
        // By name: what it is when it is good, and what takes its place.
        fs::create_dir(scene.root("folder")).expect("made");
        fs::write(scene.root("folder/file"), INSIDE).expect("written");
        fs::write(scene.root("swapped"), INSIDE).expect("written");
        fs::write(scene.root("piped"), INSIDE).expect("written");
        fs::write(scene.root("gone"), INSIDE).expect("written");
        let pairs = [
            ("swapped", "to-outside"),
            ("folder", "to-elsewhere"),
            ("piped", "fifo"),
            ("gone", "below"),
        ];
        let over = AtomicBool::new(false);
        // However this ends, the exchanges end, too.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        std::thread::scope(|scope| {
            for (one, other) in pairs {
                let (one, other, over) = (scene.root(one), scene.root(other), &over);
                scope.spawn(move || exchange(&one, &other, over));
            }
            let _end = End(&over);
            let racers: Vec<_> = ["swapped", "folder/file", "piped", "gone"]
                .into_iter()
                .flat_map(|path| [(&scene.beta, None, path), (&scene.alpha, Some("beta"), path)])
                .map(|(daemon, peer, path)| {
                    (path, peer, scope.spawn(move || race(daemon, peer, path, ROUNDS)))
                })
                .collect();
            for (path, peer, racer) in racers {
                let (opened, refused) = racer.join().expect("nothing but what was meant");
                println!("{landlock} {path} {peer:?}: {opened} opened, {refused} refused");
                assert!(opened > 0 && refused > 0, "{path} was never what was meant, or never not");
            }
        });
        assert_eq!(fs::read(scene.outside("secret")).expect("there"), SECRET);
        assert_eq!(fs::read(scene.outside("elsewhere/file")).expect("there"), SECRET);
    }
}

/// By a client of the node, and by one of another node.
#[test]
fn new_files_are_made_as_asked_or_not_at_all() {
    let Some(scene) = Scene::start("auto") else { return };
    for (daemon, peer) in [(&scene.beta, None), (&scene.alpha, Some("beta"))] {
        let client = Client::connect(daemon.client_socket()).expect("it serves");
        let own = OpenOptions::write().create_new(true).mode(0o600);
        let open = |export, path: &str, options| client.open_export(peer, export, path, options);
        open("data", "own", own).expect("made");
        let facts = fs::metadata(scene.root("own")).expect("made");
        assert_eq!(facts.permissions().mode() & 0o7777, 0o600);
        let there = open("data", "own", own).expect_err("it is there");
        assert_eq!(there.raw_os_error(), Some(17), "{there}");
        assert_eq!(io::Error::from(there).kind(), io::ErrorKind::AlreadyExists);
        // Directories on the way are names, and those need a right.
        let deep = own.create_parents(true);
        let refused = io::Error::from(open("data", "far/away/own", deep).expect_err("no right"));
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        assert!(!scene.root("far").exists());
        open("named", "far/away/own", deep).expect("made");
        assert!(scene.root("far/away/own").is_file());
        let outside = open("named", "../far/own", deep).expect_err("outside");
        assert!(
            matches!(
                &outside,
                OpenError::Session(SessionError::Refused { status: Status::Denied, .. })
            ),
            "{outside}"
        );
        let odd = open("data", "odd", own.mode(0o4755)).expect_err("no such files are made");
        assert!(matches!(odd, OpenError::Mode(0o4755)), "{odd}");
        fs::remove_dir_all(scene.root("far")).expect("made");
        fs::remove_file(scene.root("own")).expect("made");
    }
}

/// What a client is told that opens something; asked of its own node, and of another one by way of
/// it.
#[test]
fn what_is_missing_is_told_apart() {
    let Some(scene) = Scene::start("auto") else { return };
    furnish(&scene);
    for (daemon, peer) in [(&scene.beta, None), (&scene.alpha, Some("beta"))] {
        let client = Client::connect(daemon.client_socket()).expect("it serves");
        let (read, make) = (OpenOptions::read(), OpenOptions::write().create(true));
        for (export, path, options, status, words) in [
            ("absent", "file", read, Status::NoExport, "no export `absent`"),
            ("absent", "new", make, Status::NoExport, "no export `absent`"),
            ("data", "nothing", read, Status::NotFound, "no such file"),
            (
                "data",
                "nowhere/new",
                make,
                Status::NoDirectory,
                "its directory is not there; make it first",
            ),
            ("data", "below", read, Status::IsDirectory, "is a directory"),
            ("data", "below", make, Status::IsDirectory, "is a directory"),
            ("data", "../secret", read, Status::Denied, "`..`"),
            ("data", "to-outside", read, Status::Loop, "out of"),
        ] {
            let opened = client.open_export(peer, export, path, options);
            let Err(OpenError::Session(SessionError::Refused { status: told, message })) = opened
            else {
                panic!("{export}/{path} {peer:?}: {opened:?}");
            };
            assert_eq!(told, status, "{export}/{path} {peer:?}: {message}");
            assert!(message.contains(words), "{export}/{path} {peer:?}: {message}");
        }
        assert!(client.open_export(peer, "data", "file", read).is_ok(), "nobody was thrown out");
    }
    // Files of the client's own are opened by its library.
    let client = Client::connect(scene.beta.client_socket()).expect("it serves");
    let local = |path: &str, options| client.open_file(scene.root(path), options);
    let read = OpenOptions::read();
    let refused =
        local("nowhere/new", OpenOptions::write().create(true)).expect_err("no directory");
    assert!(matches!(refused, OpenError::NoDirectory { .. }), "{refused}");
    let refused = local("nothing", read).expect_err("no file");
    assert!(matches!(refused, OpenError::File { .. }), "{refused}");
    let refused = local("below", read).expect_err("a directory").to_string();
    assert!(refused.contains("it is a directory"), "{refused}");
    assert!(!scene.root("nowhere").exists());
}
