//! The rig from outside: it comes, works, goes, and what a killed one leaves the next one removes.
//! Only root may make one; others skip this, and say so.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use piped_client::{Client, OpenOptions};
use rustix::process::{Pid, Signal, kill_process};
use system_tests::process::eventually;

const BENCH: &str = env!("CARGO_BIN_EXE_bench");

/// A rig that is held; killed when dropped.
struct Held {
    process: Child,
    namespaces: Vec<String>,
    /// A's.
    client: PathBuf,
    data: PathBuf,
}

impl Held {
    fn start(directory: &Path) -> Self {
        let mut command = Command::new(BENCH);
        command.args(["rig", "--hold", "--dir"]).arg(directory).stdin(Stdio::null());
        let process = command.stdout(Stdio::piped()).spawn().expect("bench");
        let mut held =
            Self { namespaces: Vec::new(), client: PathBuf::new(), data: PathBuf::new(), process };
        let output = held.process.stdout.take().expect("piped");
        for line in BufReader::new(output).lines() {
            let line = line.expect("text");
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [_, "namespace", name] => held.namespaces.push(name.to_owned()),
                ["client", path] if held.client.as_os_str().is_empty() => held.client = path.into(),
                ["B's", "export", _, "is", path, ..] => {
                    held.data = path.trim_end_matches(';').into();
                    return held;
                }
                _ => {}
            }
        }
        panic!("the rig did not come up: {:?}", held.process.wait());
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// What is there of it: namespaces, files, and the daemons' directory.
    fn remains(&self) -> Vec<PathBuf> {
        let namespaces = self.namespaces.iter().map(|name| Path::new("/run/netns").join(name));
        let daemons = self.client.ancestors().nth(2).expect("DIRECTORY/a/client.sock").to_owned();
        namespaces.chain([self.data.clone(), daemons]).filter(|path| path.exists()).collect()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Killed, it would leave its namespaces to the next one.
        if matches!(self.process.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

/// A directory on a disk, beside what cargo builds; none, with the reason printed, where there can
/// be no rig.
fn directory() -> Option<tempfile::TempDir> {
    let here = Path::new(BENCH).parent().expect("in a directory");
    let installed = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    };
    if !rustix::process::geteuid().is_root() || !installed("ip") || !installed("tc") {
        eprintln!("skipped: it needs root and iproute2");
        return None;
    }
    if !here.join("piped").is_file() {
        eprintln!("skipped: piped is not built; run `cargo test --workspace`");
        return None;
    }
    Some(tempfile::tempdir_in(here).expect("a directory"))
}

#[test]
fn two_rigs_at_once_leave_each_other_alone_and_go_without_a_trace() {
    let Some(directory) = directory() else { return };
    let first = Held::start(directory.path());
    let second = Held::start(directory.path());
    for mut rig in [first, second] {
        assert_eq!(rig.namespaces.len(), 2);
        assert_eq!(rig.remains().len(), 4, "{:?}", rig.remains());
        rig.signal(Signal::TERM);
        assert!(rig.process.wait().expect("it ends").success());
        assert_eq!(rig.remains(), Vec::<PathBuf>::new());
    }
}

#[test]
fn the_next_rig_removes_what_a_killed_one_left() {
    let Some(directory) = directory() else { return };
    let mut killed = Held::start(directory.path());
    killed.signal(Signal::KILL);
    killed.process.wait().expect("it ends");
    assert!(!killed.remains().is_empty(), "nobody took it down");
    let mut next = Held::start(directory.path());
    assert_eq!(killed.remains(), Vec::<PathBuf>::new());
    assert_eq!(next.remains().len(), 4);
    next.signal(Signal::INT);
    assert!(next.process.wait().expect("it ends").success());
    assert_eq!(next.remains(), Vec::<PathBuf>::new());
}

#[test]
fn what_is_read_through_the_rig_is_what_lies_there() {
    const LENGTH: usize = 1 << 20;
    let Some(directory) = directory() else { return };
    let rig = Held::start(directory.path());
    let data = fs::read(rig.data.join("blocks")).expect("B's file");
    let client = Client::connect(&rig.client).expect("A");
    let mut queue = client.queue().expect("a queue");
    let file = eventually("the export can be opened", || {
        client.open_export(Some("bench-b"), "data", "blocks", OpenOptions::read()).ok()
    });
    let mut buffer = client.allocate(LENGTH).expect("memory");
    for offset in [0, LENGTH, data.len() - LENGTH] {
        let (filled, bytes) = queue.read(&file, offset as u64, buffer).expect("a link");
        assert_eq!(bytes, LENGTH);
        assert!(filled.to_vec() == data[offset..offset + LENGTH], "at {offset}");
        buffer = filled;
    }
}

#[test]
fn who_is_not_root_is_told_so() {
    use std::os::unix::process::CommandExt as _;
    let mut command = Command::new(BENCH);
    command.args(["rig", "--hold"]).stdin(Stdio::null());
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
    let output = match command.output() {
        Err(error) => return eprintln!("skipped: nobody cannot start {BENCH}: {error}"),
        Ok(output) => output,
    };
    assert_eq!(output.status.code(), Some(3));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("root"), "{words}");
}
