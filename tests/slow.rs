//! `pipectl cp` where bytes take their time: over links of 1 and 6 Mbit/s, and while the other side
//! stands still.
//!
//! What a copy may do with such a link is said in bytes: those on the wire, and those that came for
//! nothing.
#![forbid(unsafe_code)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use system_tests::cable::Cable;
use system_tests::process::{Daemon, Programs, Running, eventually, free_address, pattern, words};
use system_tests::proxy::Proxy;

const KIB: usize = 1 << 10;

/// What a file takes on the wire beside its bytes: frames.
const AROUND: f64 = 1.05;

/// The same where packets are counted, with their heads, and what was lost in the link's queue.
const IN_PACKETS: f64 = 1.10;

/// Frames of lanes that have nothing to say, while a test runs.
const IDLE: u64 = 32 << 10;

/// `alpha`, which asks, and `beta` with the export `data`.
struct World {
    alpha: Daemon,
    beta: Daemon,
    directory: tempfile::TempDir,
}

fn settings(directory: &Path, listen: &str, dial: &str) -> [String; 2] {
    let root = directory.join("data");
    fs::create_dir(&root).expect("made");
    [
        format!("[peers.beta]\naddress = \"{dial}\"\n"),
        format!(
            "[listen]\naddress = \"{listen}\"\n[exports.data]\npath = \"{}\"\nwrite = true\n",
            root.display()
        ),
    ]
}

impl World {
    fn over(proxy: impl FnOnce(SocketAddr) -> SocketAddr) -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a directory");
        let listen = free_address();
        let [alpha, beta] =
            settings(directory.path(), &listen.to_string(), &proxy(listen).to_string());
        let beta = Daemon::start(&programs, directory.path(), "beta", &beta);
        let alpha = Daemon::start(&programs, directory.path(), "alpha", &alpha);
        alpha.await_lanes();
        Some(Self { alpha, beta, directory })
    }

    /// A file of so many bytes on both sides: its path here, and its name there.
    fn sources(&self, length: usize) -> [String; 2] {
        for path in ["source", "data/source"] {
            fs::write(self.path(path), pattern(length)).expect("written");
        }
        [self.path("source").display().to_string(), "beta:data/source".to_owned()]
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn cp(&self, arguments: &[&str]) -> Command {
        let mut command = self.alpha.pipectl(["cp"]);
        command.args(arguments).env("XDG_STATE_HOME", self.path("state"));
        command
    }

    fn copied(&self, arguments: &[&str]) {
        let output = self.cp(arguments).output().expect("pipectl starts");
        assert!(output.status.success(), "{arguments:?}: {}\n{}", words(&output), self.alpha.log());
    }

    /// Bytes that came to a node for nobody.
    fn discarded(&self) -> u64 {
        [&self.alpha, &self.beta].map(|daemon| daemon.number("discarded_bytes")).iter().sum()
    }

    fn check(&self, sink: &str, length: usize) {
        let copy = fs::read(self.path(sink)).expect("there");
        assert!(copy == pattern(length), "{sink} is not what was copied");
    }
}

fn check_bytes(what: &str, passed: u64, file: usize, around: f64) {
    let most = (file as f64 * around) as u64 + IDLE;
    assert!(passed <= most, "{what}: {passed} bytes on the wire for {file}");
    assert!(passed >= file as u64, "{what}: the copy has come another way");
}

/// A link on which no part of the file as long as those of a fast one would end within what is
/// waited for any progress: the copy ends, and no byte was asked for twice.
#[test]
fn a_slow_link_carries_each_byte_once() {
    let mut proxy = None;
    let world = World::over(|listen| {
        let wire = proxy.insert(Proxy::slow(listen, 128 << 10));
        wire.address()
    });
    let (Some(world), Some(proxy)) = (world, proxy) else { return };
    let length = 1280 * KIB + 77;
    let [here, there] = world.sources(length);
    let before = proxy.bytes();
    world.copied(&["--timeout", "4", &there, &world.path("sink").display().to_string()]);
    let between = proxy.bytes();
    world.copied(&["--timeout", "4", &here, "beta:data/sink"]);
    let after = proxy.bytes();
    world.check("sink", length);
    world.check("data/sink", length);
    check_bytes("from the peer", between[1] - before[1], length, AROUND);
    check_bytes("to the peer", after[0] - between[0], length, AROUND);
    assert_eq!(world.discarded(), 0, "bytes came for nobody");
}

/// The same in network namespaces, with the kernel's own slow link.
#[test]
fn links_of_one_and_of_six_megabit_carry_each_byte_once() {
    let Some(programs) = Programs::find() else { return };
    let Some(cable) = Cable::up("slow") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let [alpha, beta] = settings(directory.path(), "10.77.0.2:7117", "10.77.0.2:7117");
    // A link that is no loopback takes keys, or is said to be one's own.
    let beta = beta.replacen("[listen]\n", "[listen]\nallow_plain = [\"10.77.0.0/24\"]\n", 1);
    let beta = cable.daemon(1, &programs, directory.path(), "beta", &beta);
    let alpha = format!("[listen]\nallow_plain = [\"10.77.0.0/24\"]\n{alpha}");
    let alpha = cable.daemon(0, &programs, directory.path(), "alpha", &alpha);
    alpha.await_lanes();
    let world = World { alpha, beta, directory };
    for (rate, length) in [("6mbit", 4096 * KIB + 5), ("1mbit", 768 * KIB + 5)] {
        if let Err(reason) = cable.slow(rate) {
            eprintln!("skipped: no link of {rate}: {reason}");
            return;
        }
        let [here, there] = world.sources(length);
        let before = [0, 1].map(|end| cable.sent(end));
        for old in ["sink", "data/sink"] {
            let _ = fs::remove_file(world.path(old));
        }
        let sink = world.path("sink").display().to_string();
        // Parts that share the link may end together, and all of them take 6 s.
        world.copied(&["-f", "--timeout", "15", "--verify", &there, &sink]);
        let between = [0, 1].map(|end| cable.sent(end));
        world.copied(&["-f", "--timeout", "15", &here, "beta:data/sink"]);
        let after = [0, 1].map(|end| cable.sent(end));
        world.check("sink", length);
        world.check("data/sink", length);
        // Verified is what was read here, by what the peer says of its file.
        check_bytes(rate, between[1] - before[1], length, IN_PACKETS);
        check_bytes(rate, after[0] - between[0], length, IN_PACKETS);
        assert_eq!(world.discarded(), 0, "{rate}: bytes came for nobody");
    }
}

/// A peer that stands still is named while it is waited for, and when it no longer is.
#[test]
fn a_wait_says_for_whom_how_long_and_what_then() {
    let mut proxy = None;
    let world = World::over(|listen| proxy.insert(Proxy::slow(listen, 256 << 10)).address());
    let (Some(world), Some(_proxy)) = (world, proxy) else { return };
    let [_, there] = world.sources(2048 * KIB);
    let journal = world.path("journal");
    let place = journal.display().to_string();
    let sink = world.path("sink").display().to_string();
    let arguments = ["--checkpoint", "0.01", "--timeout", "8", "--journal", &place, &there, &sink];
    let mut running = Running(world.cp(&arguments).spawn().expect("started"));
    eventually("a checkpoint", || {
        let text = fs::read_to_string(&journal).unwrap_or_default();
        (text.contains("durable_bytes") && !text.contains("durable_bytes\":0")).then_some(())
    });
    world.beta.process.freeze();
    let code = running.exit().code();
    let errors = std::io::read_to_string(running.0.stderr.take().expect("a pipe")).expect("text");
    world.beta.process.signal(Signal::CONT);
    assert!(matches!(code, Some(3 | 5)), "{code:?}: {errors}");
    let told = errors.lines().find(|line| line.contains("nothing for"));
    let told = told.unwrap_or_else(|| panic!("nobody was named: {errors}"));
    assert!(told.contains("beta") && told.contains("more (--timeout)"), "{told}");
    let last = errors.lines().last().expect("an error");
    for word in ["beta", "(--timeout)", "are copied", "pipectl cp --resume"] {
        assert!(last.contains(word), "{word} is not in {last}");
    }
    assert!(!errors.contains(" d ") && !errors.contains(", 0 s left"), "{errors}");
    world.alpha.await_lanes();
    world.copied(&["--resume", "--journal", &place, &there, &sink]);
    world.check("sink", 2048 * KIB);
}
