//! `pipectl cp` with real daemons: every pair of places, what it refuses, and whatever ends it in
//! the middle.
//!
//! Moments in the middle are told by the journal, which says how far a copy is, and by peers that
//! are stopped (SIGSTOP): nothing here depends on who is faster.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use piped_client::{Client, OpenOptions};
use rustix::process::Signal;
use serde_json::Value;
use system_tests::process::{Daemon, Programs, Running, eventually, free_address, pattern, words};

const MIB: usize = 1 << 20;
/// Long enough that a copy of it has a middle.
const LONG: usize = 64 * MIB + 4097;

/// `alpha`, which is asked, has the export `own`; `beta`, its peer, has `data`. Both can be
/// written.
struct World {
    alpha: Daemon,
    beta: Daemon,
    settings: [String; 2],
    directory: tempfile::TempDir,
}

impl World {
    fn new() -> Option<Self> {
        Self::with_data(|_| true)
    }

    /// `prepare` makes something of beta's directory before beta starts, or says that it cannot.
    fn with_data(prepare: impl FnOnce(&Path) -> bool) -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a directory");
        let root = |name: &str| {
            let root = directory.path().join(name);
            fs::create_dir(&root).expect("made");
            root
        };
        let (here, own, data) = (root("here"), root("own"), root("data"));
        assert!(here.is_dir());
        if !prepare(&data) {
            return None;
        }
        let address = free_address();
        let export = |name: &str, path: &Path| {
            format!("[exports.{name}]\npath = \"{}\"\nwrite = true\n", path.display())
        };
        let settings = [
            format!("[peers.beta]\naddress = \"{address}\"\n{}", export("own", &own)),
            format!("[listen]\naddress = \"{address}\"\n{}", export("data", &data)),
        ];
        let beta = Daemon::start(&programs, directory.path(), "beta", &settings[1]);
        let alpha = Daemon::start(&programs, directory.path(), "alpha", &settings[0]);
        alpha.await_lanes();
        Some(Self { alpha, beta, settings, directory })
    }

    /// Where the file `name` of a root lies.
    fn path(&self, root: &str, name: &str) -> PathBuf {
        self.directory.path().join(root).join(name)
    }

    /// The same for the command line.
    fn place(&self, root: &str, name: &str) -> String {
        match root {
            "own" => format!(":own/{name}"),
            "data" => format!("beta:data/{name}"),
            _ => self.path(root, name).display().to_string(),
        }
    }

    fn cp(&self, arguments: &[&str]) -> Command {
        let mut command = self.alpha.pipectl(["cp"]);
        command.args(arguments).env("XDG_STATE_HOME", self.directory.path().join("state"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.cp(arguments).output().expect("pipectl starts")
    }

    /// What it says of a copy that ends well.
    fn copied(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}\n{}", words(&output), self.alpha.log());
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn refused(&self, arguments: &[&str], code: i32, word: &str) {
        let output = self.run(arguments);
        let words = words(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {words}");
        assert!(words.contains(word), "{arguments:?}: {word} is not in {words}");
        assert!(output.stdout.is_empty(), "{words}");
    }

    /// A copy that is under way and has a journal at `journal`.
    fn start(&self, arguments: &[&str], journal: &Path) -> Running {
        let _ = fs::remove_file(journal);
        let more = ["--checkpoint", "0.01", "--quiet", "--journal"];
        let mut command = self.cp(&[arguments, &more].concat());
        Running(command.arg(journal).spawn().expect("started"))
    }
}

/// What a journal says is certain; 0 without one.
fn durable(journal: &Path) -> u64 {
    let text = fs::read(journal).unwrap_or_default();
    let record: Value = serde_json::from_slice(&text).unwrap_or_default();
    record["durable_bytes"].as_u64().unwrap_or(0)
}

/// Waits until so much is certain, or it ended before.
fn await_durable(running: &mut Running, journal: &Path, bytes: u64) {
    eventually("a checkpoint", || {
        let ended = running.0.try_wait().expect("our child").is_some();
        (ended || durable(journal) >= bytes).then_some(())
    });
}

/// The end of a copy that was started: its exit code, and what it said.
fn end(mut running: Running) -> (Option<i32>, String) {
    let code = running.exit().code();
    let text = std::io::read_to_string(running.0.stderr.take().expect("a pipe")).expect("text");
    (code, text)
}

fn check_same(one: &Path, other: &Path, what: &str) {
    let (one, other) = (fs::read(one).expect("readable"), fs::read(other).expect("readable"));
    assert_eq!(one.len(), other.len(), "{what}");
    let at = one.iter().zip(&other).position(|(one, other)| one != other);
    assert_eq!(at, None, "{what}: the first byte that differs");
}

#[test]
fn every_pair_of_places_and_every_length() {
    let Some(world) = World::new() else { return };
    for (from, to) in [
        ("here", "here"),
        ("here", "own"),
        ("here", "data"),
        ("own", "here"),
        ("own", "data"),
        ("data", "here"),
        ("data", "own"),
        ("data", "data"),
    ] {
        for length in [0, 1, 4096, 12 * MIB, 9 * MIB + 4097] {
            let what = format!("{from} to {to}, {length} bytes");
            let (source, sink) = (world.path(from, "source"), world.path(to, "sink"));
            fs::write(&source, pattern(length)).expect("written");
            let report =
                world.copied(&["--verify", &world.place(from, "source"), &world.place(to, "sink")]);
            check_same(&source, &sink, &what);
            assert_eq!(report["schema_version"], 1, "{what}");
            assert_eq!(report["bytes"], length, "{what}");
            assert_eq!(report["resumed_from"], 0, "{what}");
            assert_eq!(report["durable"], true, "{what}");
            assert_eq!(report["verified"]["blake3"].as_str().map(str::len), Some(64), "{what}");
            fs::remove_file(sink).expect("removed");
        }
    }
    let left: Vec<_> = fs::read_dir(world.directory.path().join("here")).expect("there").collect();
    assert_eq!(left.len(), 1, "no journal is left: {left:?}");
    let state = fs::read_dir(world.directory.path().join("state/piped")).expect("there");
    assert_eq!(state.count(), 0, "no journal is left");
}

#[test]
fn a_new_file_gets_the_sources_mode_and_a_directory_its_name() {
    let Some(world) = World::new() else { return };
    let source = world.path("here", "a file");
    fs::write(&source, pattern(10)).expect("written");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o640)).expect("ours");
    let folder = world.path("here", "folder");
    fs::create_dir(&folder).expect("made");
    fs::create_dir(world.path("data", "sub")).expect("made");
    world.copied(&[&source.display().to_string(), &folder.display().to_string()]);
    assert_eq!(fs::metadata(folder.join("a file")).expect("there").mode() & 0o777, 0o640);
    world.copied(&[&source.display().to_string(), "beta:data/sub/"]);
    check_same(&source, &world.path("data", "sub/a file"), "beta:data/sub/");
    world.copied(&["beta:data/sub/a file", &world.place("own", "")]);
}

/// What does not travel keeps its holes.
#[test]
fn a_copy_within_an_export_is_its_nodes_own() {
    let Some(world) = World::new() else { return };
    const LENGTH: u64 = 64 << 20;
    for root in ["own", "data"] {
        let source = fs::File::create(world.path(root, "source")).expect("made");
        source.set_len(LENGTH).expect("long");
        source.write_all_at(&pattern(1 << 20), 20 << 20).expect("written");
        let (from, to) = (world.place(root, "source"), world.place(root, "copy"));
        let report = world.copied(&["--verify", &from, &to]);
        assert_eq!(report["bytes"], LENGTH, "{report}");
        check_same(&world.path(root, "source"), &world.path(root, "copy"), root);
        let copy = fs::metadata(world.path(root, "copy")).expect("there");
        assert!(copy.len() == LENGTH && 512 * copy.blocks() < 4 << 20, "{copy:?}");
        // A link on the way: the bytes are moved as those of others are.
        std::os::unix::fs::symlink("source", world.path(root, "link")).expect("linked");
        world.copied(&[&world.place(root, "link"), &world.place(root, "moved")]);
        check_same(&world.path(root, "source"), &world.path(root, "moved"), "by a link");
    }
}

#[test]
fn nothing_is_lost_by_a_mistake() {
    let Some(world) = World::new() else { return };
    let (one, other) = (world.place("here", "one"), world.place("here", "other"));
    for (root, name, length) in
        [("here", "one", 100), ("here", "other", 300), ("data", "long", 300), ("data", "short", 7)]
    {
        fs::write(world.path(root, name), pattern(length)).expect("written");
    }
    fs::hard_link(world.path("here", "one"), world.path("here", "link")).expect("linked");
    let fifo = world.path("here", "fifo");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("made");
    world.refused(&[&one, &other], 4, "--overwrite");
    world.refused(&[&one, "beta:data/short"], 4, "--overwrite");
    world.refused(&["--resume", &one, &other], 4, "--overwrite");
    world.refused(&["--overwrite", &one, "beta:data/long"], 4, "longer than the source");
    for same in [&one, &world.place("here", "link")] {
        world.refused(&["--overwrite", &one, same], 4, "same file");
    }
    world.refused(&["-f", "beta:data/long", "beta:data/./long"], 4, "same file");
    world.refused(&[&fifo.display().to_string(), &other], 4, "pipe");
    world.refused(&["--overwrite", &one, &fifo.display().to_string()], 4, "pipe");
    world.refused(&["-f", "/dev/null", &other], 4, "device");
    world.refused(&["-f", &world.place("here", "."), &other], 4, "directory");
    world.refused(&["beta:data", &other], 2, "PEER:EXPORT/PATH");
    world.refused(&["--resume", "--overwrite", &one, &other], 2, "cannot be used with");
    world.refused(&["/nonexistent", &other], 6, "/nonexistent");
    world.refused(&["-f", "beta:data/nonexistent", &other], 6, "nonexistent");
    world.refused(&["-f", "beta:secret/file", &other], 6, "export");
    world.refused(&["--client-socket", "/nonexistent", &one, "beta:data/x"], 3, "no daemon");
    assert_eq!(fs::read(world.path("here", "other")).expect("there"), pattern(300));
    assert_eq!(fs::read(world.path("data", "long")).expect("there"), pattern(300));
    // Meant so, an older file is written over and is no longer than the new one.
    world.copied(&["--overwrite", &one, &other]);
    world.copied(&["--overwrite", &one, "beta:data/short"]);
    for (root, name) in [("here", "other"), ("data", "short")] {
        assert_eq!(fs::read(world.path(root, name)).expect("there"), pattern(100));
    }
}

/// Interrupts copies at moments spread over them, and goes on until they are whole.
fn interrupt_and_resume(signal: Signal, from: &str, to: &str) {
    let Some(world) = World::new() else { return };
    let (source, sink) = (world.path(from, "source"), world.path(to, "sink"));
    let (from, to) = (world.place(from, "source"), world.place(to, "sink"));
    fs::write(&source, pattern(LONG)).expect("written");
    let journal = world.path("here", "journal");
    let mut resumed = 0;
    for eighth in [0, 3, 1, 6] {
        let mut running = world.start(&[&from, &to], &journal);
        await_durable(&mut running, &journal, (LONG as u64 / 8 * eighth).max(1));
        if running.0.try_wait().expect("our child").is_none() {
            running.signal(signal);
        }
        let (code, text) = end(running);
        let certain = durable(&journal);
        let arguments = ["--journal", &journal.display().to_string(), &from, &to];
        if code != Some(0) {
            let expected = if signal == Signal::INT { Some(130) } else { None };
            assert_eq!(code, expected, "{text}");
            let said = signal != Signal::INT || text.contains("--resume");
            assert!(said, "{text}");
            // Nobody goes on, or begins anew, by mistake.
            world.refused(&arguments, 4, "interrupted copy");
            let report = world.copied(&[&["--resume"], &arguments[..]].concat());
            assert_eq!(report["resumed_from"], certain, "{report}");
            resumed += u32::from(certain > 0);
        }
        check_same(&source, &sink, &format!("{signal:?} at {certain}"));
        assert!(!journal.exists(), "a whole copy needs no journal");
        fs::remove_file(&sink).expect("removed");
    }
    assert!(resumed > 0, "every copy ended before it was interrupted");
}

#[test]
fn an_interrupted_copy_from_a_peer_goes_on() {
    interrupt_and_resume(Signal::INT, "data", "here");
}

#[test]
fn an_interrupted_copy_to_a_peer_goes_on() {
    interrupt_and_resume(Signal::INT, "here", "data");
}

#[test]
fn a_killed_copy_from_a_peer_goes_on() {
    interrupt_and_resume(Signal::KILL, "data", "here");
}

#[test]
fn a_killed_copy_to_a_peer_goes_on() {
    interrupt_and_resume(Signal::KILL, "here", "data");
}

/// A copy to beta that stands still in the middle, because beta does.
struct Halted {
    world: World,
    running: Running,
    journal: PathBuf,
    source: PathBuf,
    arguments: [String; 4],
}

fn halted(more: &[&str]) -> Option<Halted> {
    let world = World::new()?;
    let (source, journal) = (world.path("here", "source"), world.path("here", "journal"));
    fs::write(&source, pattern(LONG)).expect("written");
    let arguments = [
        "--journal".to_owned(),
        journal.display().to_string(),
        source.display().to_string(),
        "beta:data/sink".to_owned(),
    ];
    let places = [arguments[2].as_str(), arguments[3].as_str()];
    // A machine that stands still for long may have let it end.
    for _ in 0..10 {
        let mut running = world.start(&[&places[..], more].concat(), &journal);
        // So much that samples do not see all of it: the first pieces are short.
        await_durable(&mut running, &journal, 8 * MIB as u64);
        world.beta.process.freeze();
        let certain = durable(&journal);
        if certain > 0 && certain < LONG as u64 && running.0.try_wait().expect("ours").is_none() {
            return Some(Halted { world, running, journal, source, arguments });
        }
        world.beta.process.signal(Signal::CONT);
        drop(running);
        let _ = fs::remove_file(world.path("data", "sink"));
    }
    panic!("every copy ended before beta was stopped");
}

impl Halted {
    fn resume(&self, more: &[&str]) -> Output {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.world.run(&[&["--resume"], more, &arguments[..]].concat())
    }

    fn refused(&self, word: &str) {
        let output = self.resume(&[]);
        let words = words(&output);
        assert_eq!(output.status.code(), Some(4), "{words}");
        assert!(words.contains(word) && words.contains("--overwrite"), "{words}");
    }
}

#[test]
fn a_source_that_changes_meanwhile_is_told() {
    let Some(Halted { world, running, source, journal, .. }) = halted(&[]) else { return };
    let mut file = File::options().append(true).open(&source).expect("there");
    file.write_all(b"more").expect("written");
    world.beta.process.signal(Signal::CONT);
    let (code, text) = end(running);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("changed while it was copied"), "{text}");
    assert!(
        !text.contains("go on with") && !journal.exists(),
        "there is nothing to go on with: {text}"
    );
}

#[test]
fn a_copy_is_not_gone_on_with_if_anything_changed() {
    let Some(halted) = halted(&[]) else { return };
    halted.running.signal(Signal::KILL);
    halted.world.beta.process.signal(Signal::CONT);
    let certain = durable(&halted.journal);
    let keep = fs::read(&halted.journal).expect("there");
    let write = |path: &Path, at: u64, byte: u8| {
        let file = File::options().write(true).open(path).expect("there");
        file.write_all_at(&[byte], at).expect("written");
        file.sync_all().expect("synced");
    };
    // The last byte of what is certain, at the destination.
    let sink = halted.world.path("data", "sink");
    let right = pattern(LONG)[certain as usize - 1];
    write(&sink, certain - 1, !right);
    halted.refused("changed since");
    write(&sink, certain - 1, right);
    // The source's content, which its time tells.
    write(&halted.source, 0, 99);
    halted.refused("modified");
    write(&halted.source, 0, pattern(1)[0]);
    // Its length.
    File::options().write(true).open(&halted.source).expect("there").set_len(9).expect("cut");
    let words_of = |output: &Output| words(output);
    let output = halted.resume(&[]);
    assert_eq!(output.status.code(), Some(4), "{}", words_of(&output));
    assert_eq!(fs::read(&halted.journal).expect("there"), keep, "the journal stays as it was");
}

#[test]
fn verify_finds_a_flipped_byte_and_says_where() {
    let Some(halted) = halted(&[]) else { return };
    halted.running.signal(Signal::KILL);
    halted.world.beta.process.signal(Signal::CONT);
    let sink = halted.world.path("data", "sink");
    // Below the certain part, where nothing is copied again, and where no sample looks.
    let certain = durable(&halted.journal);
    let mut found = false;
    for at in (4097..certain).step_by(70_001) {
        let file = File::options().read(true).write(true).open(&sink).expect("there");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[!byte[0]], at).expect("written");
        file.sync_all().expect("synced");
        let output = halted.resume(&["--verify"]);
        let words = words(&output);
        match output.status.code() {
            // A sample saw it before.
            Some(4) => file.write_all_at(&byte, at).expect("written"),
            code => {
                assert_eq!(code, Some(1), "{words}");
                let place = format!("between bytes {} and", at / MIB as u64 * MIB as u64);
                assert!(words.contains(&place) && words.contains("dmesg"), "{at}: {words}");
                found = true;
                break;
            }
        }
    }
    assert!(found, "samples saw every flip in {certain} bytes");
    assert!(!halted.journal.exists(), "what is not right is not gone on with");
    halted.refused("says nothing of an interrupted copy");
    let arguments: Vec<&str> = halted.arguments.iter().map(String::as_str).collect();
    halted.world.copied(&[&["--overwrite", "--verify"], &arguments[..]].concat());
    check_same(&halted.source, &sink, "after it was copied anew");
}

#[test]
fn a_copy_outlives_its_peer() {
    let Some(Halted { mut world, running, source, journal, .. }) = halted(&[]) else { return };
    let certain = durable(&journal);
    world.beta.process.signal(Signal::KILL);
    let settings = world.settings[1].clone();
    world.beta.restart(&settings);
    let (code, text) = end(running);
    assert_eq!(code, Some(0), "after {certain}: {text}");
    check_same(&source, &world.path("data", "sink"), "beta was killed and came back");
}

#[test]
fn a_copy_outlives_its_daemon() {
    let Some(Halted { mut world, running, source, .. }) = halted(&[]) else { return };
    world.alpha.process.signal(Signal::KILL);
    world.beta.process.signal(Signal::CONT);
    let settings = world.settings[0].clone();
    world.alpha.restart(&settings);
    let (code, text) = end(running);
    assert_eq!(code, Some(0), "{text}");
    check_same(&source, &world.path("data", "sink"), "alpha was killed and came back");
}

#[test]
fn a_peer_that_stays_away_leaves_a_copy_to_go_on_with() {
    let Some(mut halted) = halted(&["--timeout", "1"]) else { return };
    halted.world.beta.process.signal(Signal::KILL);
    let status = halted.running.exit();
    assert!(matches!(status.code(), Some(3 | 5)), "{status:?}");
    let settings = halted.world.settings[1].clone();
    halted.world.beta.restart(&settings);
    halted.world.alpha.await_lanes();
    let output = halted.resume(&["--verify"]);
    assert!(output.status.success(), "{}", words(&output));
    check_same(&halted.source, &halted.world.path("data", "sink"), "gone on with");
}

/// A file system of 24 MiB at `path`, for as long as this lives.
struct Small(PathBuf);

impl Small {
    fn mount(path: &Path) -> Option<Self> {
        let image = path.with_extension("image");
        File::create(&image).and_then(|file| file.set_len(24 << 20)).expect("made");
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output();
            output.is_ok_and(|output| output.status.success())
        };
        let (image, place) = (image.display().to_string(), path.display().to_string());
        let mounted = run("mkfs.ext4", &["-q", "-F", "-m", "0", &image])
            && run("mount", &["-o", "loop", &image, &place]);
        if !mounted {
            eprintln!(
                "skipped: a small file system cannot be mounted here (root, mkfs.ext4, loop)"
            );
        }
        mounted.then(|| Self(path.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // The daemon that has it open may still be ending: it goes when that is over.
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_is_told_with_its_side_and_gone_on_from() {
    let mut small = None;
    let prepared = World::with_data(|data| {
        small = Small::mount(data);
        small.is_some()
    });
    let Some(world) = prepared else { return };
    let source = world.path("here", "source");
    fs::write(&source, pattern(LONG)).expect("written");
    let from = source.display().to_string();
    // Beta's side, in the middle: what was copied stays, and is gone on with when there is room.
    fs::write(world.path("data", "ballast"), pattern(12 * MIB)).expect("written");
    let short = world.path("here", "short");
    fs::write(&short, pattern(14 * MIB)).expect("written");
    let short_place = short.display().to_string();
    let output = world.run(&[&short_place, "beta:data/sink"]);
    let text = words(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in ["file system of beta:data/sink", "no space", "MiB are copied", "--resume"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    fs::remove_file(world.path("data", "ballast")).expect("removed");
    let report = world.copied(&["--resume", "--verify", &short_place, "beta:data/sink"]);
    assert!(report["resumed_from"].as_u64() > Some(0), "{report}");
    check_same(&short, &world.path("data", "sink"), "after there was room");
    // This side, found before anything is copied; nothing is left.
    let sink = world.path("data", "local");
    let output = world.run(&[&from, &sink.display().to_string()]);
    let text = words(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("no room for") && !text.contains("go on with"), "{text}");
    assert!(!sink.exists(), "an empty file is left");
    drop(world);
    drop(small);
}

/// What a terminal of so many columns shows of a copy.
fn shown(world: &World, columns: u16, arguments: &[&str]) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&terminal).expect("ours");
    unlockpt(&terminal).expect("ours");
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).expect("a size");
    let name = ptsname(&terminal, Vec::new()).expect("a name");
    let name = Path::new(name.to_str().expect("ASCII"));
    let inside = File::options().read(true).write(true).open(name).expect("opened");
    let mut command = world.cp(arguments);
    command.env("TERM", "xterm").stderr(inside);
    let mut running = Running(command.spawn().expect("started"));
    drop(command);
    let mut bytes = Vec::new();
    // The end of a terminal's last user is an error.
    let _ = std::io::Read::read_to_end(&mut File::from(terminal), &mut bytes);
    assert_eq!(running.exit().code(), Some(0));
    String::from_utf8(bytes).expect("UTF-8")
}

/// Lines as they stood on the terminal: without control sequences, and cut where the cursor went
/// back.
fn lines_of(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            // CSI, up to its final letter.
            characters.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(character);
        }
    }
    plain.split(['\r', '\n']).map(str::trim_end).map(str::to_owned).collect()
}

#[test]
fn a_terminal_shows_a_bar_that_fits_and_a_pipe_only_lines() {
    let Some(world) = World::new() else { return };
    fs::write(world.path("data", "source"), pattern(LONG)).expect("written");
    let sink = world.place("here", "sink");
    for columns in [30, 60, 120] {
        let text = shown(&world, columns, &["-f", "beta:data/source", &sink]);
        let lines = lines_of(&text);
        for line in &lines {
            let width = line.chars().count();
            assert!(width <= usize::from(columns), "{width} of {columns}: {line}");
        }
        assert!(lines.iter().any(|line| line.contains(" %")), "{columns}: {text:?}");
        let bars = lines.iter().filter(|line| line.contains('[')).count();
        assert_eq!(bars > 0, columns == 120, "{columns}: {text:?}");
    }
    assert!(shown(&world, 80, &["-f", "--quiet", "beta:data/source", &sink]).is_empty());
    assert!(shown(&world, 80, &["-f", "--json", "beta:data/source", &sink]).is_empty());
    let output = world.run(&["-f", "--verify", "beta:data/source", &sink]);
    let (text, errors) = (words(&output), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("BLAKE3 equal"), "{text}");
    assert!(text.contains("on stable storage") && !text.contains(['\r', '\u{1b}']), "{text:?}");
    let is_line = |line: &str| line.contains(" of ") && line.contains("left");
    assert!(errors.lines().all(is_line), "{errors}");
}

fn pipe(path: &Path) {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).expect("made");
}

/// Nobody writes into a pipe that lies where the journal would be: a copy that waited for it would
/// hang for ever.
#[test]
fn what_is_no_journal_is_refused_at_once_and_leaves_no_destination() {
    let Some(world) = World::new() else { return };
    let source = world.path("here", "source");
    fs::write(&source, pattern(100)).expect("written");
    let [fifo, link] = ["fifo", "link"].map(|name| world.path("here", name));
    pipe(&fifo);
    fs::write(world.path("here", "other"), "{}").expect("written");
    std::os::unix::fs::symlink(world.path("here", "other"), &link).expect("made");
    pipe(&world.path("here", ".sink.piped-cp"));
    let (source, sink) = (world.place("here", "source"), world.place("here", "sink"));
    let journals = [&fifo, &link].map(|path| path.display().to_string());
    let [fifo, link] = [0, 1].map(|at| ["--journal", &journals[at], &source]);
    for (arguments, word) in [
        (vec![source.as_str(), &sink], "a pipe"),
        ([&fifo[..], &[sink.as_str()]].concat(), "a pipe"),
        ([&link[..], &[sink.as_str()]].concat(), "a link"),
        ([&fifo[..], &["beta:data/sink"]].concat(), "a pipe"),
        ([&["--resume"], &fifo[..], &[":own/sink"]].concat(), "a pipe"),
    ] {
        let (code, text) = end(Running(world.cp(&arguments).spawn().expect("started")));
        assert_eq!(code, Some(4), "{arguments:?}: {text}");
        assert!(text.contains(word) && text.contains("journal"), "{arguments:?}: {text}");
        for (root, name) in [("here", "sink"), ("data", "sink"), ("own", "sink")] {
            assert!(!world.path(root, name).exists(), "{arguments:?} left {root}/{name}");
        }
    }
}

/// Starts a copy from beta until something of it is certain, and kills it. The journal.
fn cut_off(world: &World, from: &str, to: &str) -> PathBuf {
    let journal = world.path("here", "journal");
    for _ in 0..10 {
        let mut running = world.start(&["-f", from, to], &journal);
        await_durable(&mut running, &journal, 1);
        if running.0.try_wait().expect("ours").is_none() {
            running.signal(Signal::KILL);
            let (code, _) = end(running);
            if code.is_none() {
                return journal;
            }
        }
    }
    panic!("every copy ended before it was killed");
}

#[test]
fn a_reboot_is_no_other_file_and_another_file_is() {
    let Some(world) = World::new() else { return };
    fs::write(world.path("data", "source"), pattern(LONG)).expect("written");
    let (from, to) = (world.place("data", "source"), world.place("here", "sink"));
    let sink = world.path("here", "sink");
    // As a reboot may leave it: the device has another number. Then as an older pipectl wrote it,
    // on the same device.
    for older in [false, true] {
        let journal = cut_off(&world, &from, &to);
        let mut record: Value =
            serde_json::from_slice(&fs::read(&journal).expect("there")).expect("JSON");
        if older {
            record.as_object_mut().expect("fields").remove("destination_born_ns");
        } else {
            assert!(
                record["destination_born_ns"].is_number()
                    || fs::metadata(&sink).expect("there").created().is_err()
            );
            let inode = record["destination_inode"].as_array_mut().expect("of a local file");
            inode[0] = (inode[0].as_u64().expect("a number") + 1).into();
        }
        fs::write(&journal, record.to_string()).expect("written");
        let place = journal.display().to_string();
        let report = world.copied(&["--resume", "--journal", &place, &from, &to]);
        assert!(report["resumed_from"].as_u64() > Some(0), "{report}");
        check_same(&world.path("data", "source"), &sink, "gone on with");
    }
    // The same bytes in another file are another file.
    let journal = cut_off(&world, &from, &to);
    let other = world.path("here", "other");
    fs::copy(&sink, &other).and_then(|_| fs::rename(&other, &sink)).expect("replaced");
    let place = journal.display().to_string();
    world.refused(&["--resume", "--journal", &place, &from, &to], 4, "was replaced");
}

/// A name that leaves no room for more has its journal under another one.
#[test]
fn the_longest_names_are_copied_and_gone_on_with() {
    let Some(world) = World::new() else { return };
    fs::write(world.path("data", "source"), pattern(LONG)).expect("written");
    let (from, here) = (world.place("data", "source"), world.directory.path().join("here"));
    let journal = || {
        let mut names =
            fs::read_dir(&here).expect("there").map(|entry| entry.expect("read").path());
        names.find(|path| path.as_os_str().as_bytes().ends_with(b".piped-cp"))
    };
    for length in [250, 255] {
        let sink = "x".repeat(length);
        let (to, path) = (world.place("here", &sink), world.path("here", &sink));
        let cut_off = (0..10).any(|_| {
            let arguments = ["-f", "-q", "--checkpoint", "0.01", &from, &to];
            let mut running = Running(world.cp(&arguments).spawn().expect("started"));
            eventually("a checkpoint", || {
                let ended = running.0.try_wait().expect("our child").is_some();
                (ended || journal().is_some_and(|journal| durable(&journal) > 0)).then_some(())
            });
            if running.0.try_wait().expect("ours").is_none() {
                running.signal(Signal::KILL);
            }
            let (code, text) = end(running);
            assert!(matches!(code, None | Some(0)), "{text}");
            code.is_none()
        });
        assert!(cut_off, "every copy ended before it was killed");
        world.refused(&[&from, &to], 4, "interrupted copy");
        let report = world.copied(&["--resume", &from, &to]);
        assert!(report["resumed_from"].as_u64() > Some(0), "{report}");
        check_same(&world.path("data", "source"), &path, &sink);
        assert_eq!(journal(), None, "a whole copy needs no journal");
        world.copied(&[&to, &world.place("data", &sink)]);
    }
}

/// Names of files are bytes: what a directory holds can be copied, whatever it is called.
#[test]
fn names_that_are_no_text_are_names() {
    let Some(world) = World::new() else { return };
    let name = OsStr::from_bytes(b"caf\xe9 \xff\xfe");
    let length = MIB + 77;
    let path = |root: &str| world.directory.path().join(root).join(name);
    fs::write(path("here"), pattern(length)).expect("written");
    let place = |root: &str| -> OsString {
        let before = match root {
            "own" => OsString::from(":own/"),
            "data" => OsString::from("beta:data/"),
            _ => world.directory.path().join(root).join("").into_os_string(),
        };
        OsStr::from_bytes(&[before.as_bytes(), name.as_bytes()].concat()).to_owned()
    };
    for (from, to) in [("here", "data"), ("data", "own"), ("own", "data"), ("data", "here")] {
        let mut command = world.cp(&["--verify", "--json", "-f"]);
        let output = command.arg(place(from)).arg(place(to)).output().expect("pipectl starts");
        assert!(
            output.status.success(),
            "{from} to {to}: {}\n{}",
            words(&output),
            world.alpha.log()
        );
        check_same(&path(from), &path(to), &format!("{from} to {to}"));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let told = report["destination"].as_str().expect("text");
        assert!(told.ends_with("caf\\xe9 \\xff\\xfe"), "{told}");
    }
    // It goes on as well, by the command that it prints.
    let mut running = Running(
        world.cp(&["-f", "-q"]).arg(place("here")).arg("beta:data/").spawn().expect("started"),
    );
    assert_eq!(running.exit().code(), Some(0), "a directory takes the name");
    fs::remove_file(path("data")).expect("removed");
    let output = world.cp(&[]).arg(place("data")).arg(place("here")).output().expect("starts");
    assert_eq!(output.status.code(), Some(6), "{}", words(&output));
    assert!(words(&output).contains("caf\\xe9 \\xff\\xfe"), "{}", words(&output));

    // The same for programs: nobody is thrown out for a name.
    let client = Client::connect(world.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    for (peer, export) in [(None, "own"), (Some("beta"), "data")] {
        let odd = OsStr::from_bytes(b"sub\xff");
        let file = client
            .open_export(peer, export, odd, OpenOptions::read_write().create(true))
            .unwrap_or_else(|error| panic!("{export}: {error}"));
        let mut buffer = client.allocate(4096).expect("memory");
        buffer.as_mut_slice().copy_from_slice(&pattern(4096));
        let (buffer, bytes) = queue.write(&file, 0, buffer).expect("written");
        assert_eq!(bytes, 4096, "{export}");
        let (buffer, bytes) = queue.read(&file, 0, buffer).expect("read");
        assert_eq!(&buffer.as_slice()[..bytes], pattern(4096), "{export}");
        let there = world.directory.path().join(export).join(odd);
        assert_eq!(fs::read(there).expect("there"), pattern(4096), "{export}");
        // A name that is refused is refused, and costs nothing else.
        let missing = OsStr::from_bytes(b"\xfe/missing");
        let error = client.open_export(peer, export, missing, OpenOptions::read());
        assert!(error.is_err(), "{export}");
        for control in [&b"two\nlines\xff"[..], b"\x1b[2J\xff", b"\x7f"] {
            let name = OsStr::from_bytes(control);
            assert!(client.open_export(peer, export, name, OpenOptions::read()).is_err());
        }
        queue.nop().expect("the session is as it was");
    }
    let listed = world.alpha.pipectl(["transfers", "--ended"]).output().expect("pipectl starts");
    assert!(listed.status.success() && words(&listed).contains("read"), "{}", words(&listed));
}
