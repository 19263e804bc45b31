//! Daemons and peers that end, and what a flush says then.

use std::fs;
use std::path::Path;

use system_tests::nbd::{Served, run};
use system_tests::process::{command, pattern, words};

use super::{MIB, Stage};

/// qemu-io's commands, one after the other; whether all of them went well, and what it said.
fn qemu_io(served: &Served, commands: &[&str]) -> (bool, String) {
    let mut qemu_io = command(Path::new("qemu-io"));
    qemu_io.args(["-f", "raw"]);
    qemu_io.args(commands.iter().flat_map(|command| ["-c", command]));
    let output = run(qemu_io.arg(served.uri()));
    (output.status.success(), words(&output))
}

fn is_there() -> bool {
    system_tests::nbd::are_there(&["qemu-io", "/usr/bin/python3"])
}

/// A connection that stays while the test does other things: commands in, a word for each out.
struct Client {
    process: system_tests::process::Running,
    answers: std::io::BufReader<std::process::ChildStdout>,
}

const CLIENT: &str = r#"
import nbd, sys
h = nbd.NBD(); h.connect_uri(sys.argv[1]); print("ready", flush=True)
for line in sys.stdin:
    try: print(eval(line), flush=True)
    except nbd.Error as e: print(e.errno, flush=True)
"#;

impl Client {
    /// `None`, with the reason printed, without libnbd for Python.
    fn connect(uri: &str) -> Option<Self> {
        let mut python = command(Path::new("/usr/bin/python3"));
        python.args(["-c", CLIENT, uri]).stdin(std::process::Stdio::piped());
        let mut process = system_tests::process::Running(python.spawn().expect("started"));
        let answers = process.0.stdout.take().expect("piped");
        let mut client = Self { process, answers: std::io::BufReader::new(answers) };
        let ready = client.answer() == "ready";
        if !ready {
            eprintln!("skipped: libnbd for Python is not installed (python3-libnbd)");
        }
        ready.then_some(client)
    }

    fn answer(&mut self) -> String {
        use std::io::BufRead as _;
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        line.trim().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        use std::io::Write as _;
        writeln!(self.process.0.stdin.as_mut().expect("piped"), "{line}").expect("it listens");
        self.answer()
    }
}

/// A peer that loses its power loses what was not synced: here the file is as it was before, when
/// the daemon comes back. What the client wrote is there again when its flush ends.
#[test]
fn a_flush_brings_back_what_the_peer_has_lost() {
    let Some(mut stage) = Stage::set().filter(|_| is_there()) else { return };
    let served = stage.serve_new("lost", "4M");
    let (Some(mut one), Some(mut other)) =
        (Client::connect(&served.uri()), Client::connect(&served.uri()))
    else {
        return;
    };
    assert_eq!(one.ask("h.pwrite(b'a' * 100000, 1000)"), "None");
    assert_eq!(one.ask("h.flush()"), "None");
    let synced = fs::read(stage.file("lost")).expect("there");
    // By one connection, in a certain order, and of all kinds.
    assert_eq!(one.ask("h.pwrite(b'b' * 50000, 2000)"), "None");
    assert_eq!(one.ask("h.pwrite(b'c' * 1000, 2500)"), "None");
    assert_eq!(one.ask("h.pwrite(b'd' * 10, 2600, nbd.CMD_FLAG_FUA)"), "None");
    assert_eq!(one.ask("h.zero(5000, 10000)"), "None");
    assert_eq!(one.ask("h.trim(8192, 16384)"), "None");
    let written = fs::read(stage.file("lost")).expect("there");
    assert!(written != synced);
    let file = stage.file("lost");
    stage.restart_beta(|| fs::write(&file, &synced).expect("written"));
    // The other connection's flush vouches for what the first one wrote.
    assert_eq!(other.ask("h.flush()"), "None", "{}", served.log());
    assert!(fs::read(stage.file("lost")).expect("there") == written, "{}", served.log());
    // Both daemons, one after the other: the one of now does not know what the last one wrote.
    assert_eq!(one.ask("h.pwrite(b'e' * 5000, 70000)"), "None");
    let again = fs::read(stage.file("lost")).expect("there");
    stage.restart_alpha();
    stage.restart_beta(|| fs::write(&file, &written).expect("written"));
    assert_eq!(one.ask("h.flush()"), "None");
    assert!(fs::read(stage.file("lost")).expect("there") == again, "{}", served.log());
}

#[test]
fn without_its_journal_a_flush_says_that_it_does_not_know() {
    let Some(mut stage) = Stage::set().filter(|_| is_there()) else { return };
    let served =
        stage.plugin.serve(&stage.pair.alpha, "bare", &["beta:data/bare", "create=4M", "replay=0"]);
    let Some(mut client) = Client::connect(&served.uri()) else { return };
    assert_eq!(client.ask("h.pwrite(b'a' * 100000, 1000)"), "None");
    stage.restart_beta(|| ());
    assert_eq!(client.ask("h.flush()"), "EIO");
    assert_eq!(client.ask("h.flush()"), "None", "it is told once");
}

/// More than may be kept is flushed meanwhile.
#[test]
fn what_is_kept_has_a_limit() {
    let Some(mut stage) = Stage::set().filter(|_| is_there()) else { return };
    let parameters = ["beta:data/little", "create=4M", "replay=300k"];
    let served = stage.plugin.serve(&stage.pair.alpha, "little", &parameters);
    let Some(mut client) = Client::connect(&served.uri()) else { return };
    let write = "[h.pwrite(bytes([at]) * 100000, at * 100000) for at in range(10)].count(None)";
    assert_eq!(client.ask(write), "10");
    let written = fs::read(stage.file("little")).expect("there");
    let file = stage.file("little");
    // Eight of ten writes are on the disk by now: three make it more than 300 KiB, with the fourth.
    stage.restart_beta(|| {
        let mut lost = written.clone();
        lost[800_000..1_000_000].fill(0);
        fs::write(&file, lost).expect("written");
    });
    assert_eq!(client.ask("h.flush()"), "None");
    assert!(fs::read(stage.file("little")).expect("there") == written);
}

#[test]
fn a_peer_that_stays_away_is_an_error_and_the_next_request_finds_it_again() {
    let Some(mut stage) = Stage::set().filter(|_| is_there()) else { return };
    let parameters = ["beta:data/blocks", "timeout=2"];
    let served = stage.plugin.serve(&stage.pair.alpha, "away", &parameters);
    let Some(mut client) = Client::connect(&served.uri()) else { return };
    let first = format!("{}", pattern(1)[0]);
    assert_eq!(client.ask("h.pread(1, 0)[0]"), first);
    let mut error = String::new();
    let asked = &mut client;
    stage.restart_beta(|| error = asked.ask("h.pread(4096, 8192)[0]"));
    assert_eq!(error, "EIO", "{}", served.log());
    let answer = system_tests::process::eventually("the peer is back", || {
        let answer = client.ask("h.pread(1, 0)[0]");
        (answer != "EIO").then_some(answer)
    });
    assert_eq!(answer, first);
    // And the daemon here.
    stage.pair.alpha.process.signal(rustix::process::Signal::KILL);
    stage.pair.alpha.process.exit();
    assert_eq!(client.ask("h.pread(4096, 8192)[0]"), "EIO", "{}", served.log());
    stage.pair.alpha.restart(&stage.pair.settings[0]);
    assert_eq!(client.ask("h.pread(1, 0)[0]"), first, "{}", served.log());
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_and_not_zeros() {
    let Some(stage) = Stage::set().filter(|_| is_there()) else { return };
    let served = stage.serve_new("shorter", "2M");
    let write = qemu_io(&served, &["write -P 7 0 2M"]);
    assert!(write.0, "{}", write.1);
    let Some(mut client) = Client::connect(&served.uri()) else { return };
    let file = fs::OpenOptions::new().write(true).open(stage.file("shorter")).expect("there");
    file.set_len(MIB as u64).expect("cut");
    assert_eq!(client.ask("h.pread(4096, 1048576 + 8192)"), "EIO");
    assert_eq!(client.ask("h.pread(4096, 8192)[0]"), "7");
}
