//! Daemons and peers that end, and what a flush says then.

use std::fs;
use std::path::Path;

use system_tests::nbd::{Served, run};
use system_tests::process::{command, eventually, pattern, words};

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

    fn tell(&mut self, line: &str) {
        use std::io::Write as _;
        writeln!(self.process.0.stdin.as_mut().expect("piped"), "{line}").expect("it listens");
    }

    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
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
    let mut other = Client::connect(&served.uri()).expect("the other came");
    assert_eq!(client.ask("h.pwrite(b'a' * 100000, 1000)"), "None");
    stage.restart_beta(|| ());
    for it in [&mut other, &mut client] {
        assert_eq!(it.ask("h.flush()"), "EIO", "{}", served.log());
        assert_eq!(it.ask("h.flush()"), "None", "each is told once");
    }
    // The daemon here knows nothing any more, and neither does the peer.
    assert_eq!(client.ask("h.pwrite(b'a' * 100000, 1000)"), "None");
    stage.restart_all();
    assert_eq!(client.ask("h.flush()"), "EIO", "{}", served.log());
}

/// A write, and whether it is in the file.
const WRITE: &str = "h.pwrite(b'a' * 65536, 4096)";

fn has_it(file: &Path) -> bool {
    fs::read(file).expect("there")[4096..][..65536] == [b'a'; 65536]
}

/// A file system that is mounted after the daemon has started: the handle is lost meanwhile.
#[test]
fn a_file_that_comes_back_later_than_its_daemon_has_what_was_written() {
    let Some(mut stage) = Stage::set().filter(|_| is_there()) else { return };
    let served = stage.serve_new("later", "2M");
    let Some(mut client) = Client::connect(&served.uri()) else { return };
    assert_eq!(client.ask(WRITE), "None");
    let (file, away) = (stage.file("later"), stage.file("away"));
    stage.restart_beta(|| {
        let mut lost = fs::OpenOptions::new().write(true).open(&file).expect("there");
        std::io::Write::write_all(&mut lost, &[0; 128 * 1024]).expect("written");
        fs::rename(&file, &away).expect("renamed");
    });
    stage.pair.alpha.await_lanes();
    let asked = std::thread::scope(|scope| {
        // It waits for the file, and does not say that there is none.
        let asked = scope.spawn(|| client.ask("h.pread(1, 4096)[0]"));
        eventually("it is asked for", || served.log().contains("pread").then_some(()));
        fs::rename(&away, &file).expect("renamed");
        asked.join().expect("it answers")
    });
    assert_eq!(asked, "0", "it was lost, and is not written again before the flush");
    assert_eq!(client.ask("h.flush()"), "None", "{}", served.log());
    assert!(has_it(&file), "{}", served.log());
}

/// What a client has left is kept for the one that comes next.
#[test]
fn a_client_that_comes_again_flushes_what_it_wrote_before() {
    let Some(mut stage) = Stage::set().filter(|_| is_there()) else { return };
    let parameters = ["beta:data/left", "create=2M", "timeout=1"];
    let served = stage.plugin.serve(&stage.pair.alpha, "left", &parameters);
    let Some(mut client) = Client::connect(&served.uri()) else { return };
    assert_eq!(client.ask(WRITE), "None");
    let file = stage.file("left");
    stage.restart_beta(|| {
        // It cannot be flushed when the client goes.
        drop(client);
        eventually("its last flush ends", || {
            served.log().contains("no answer in timeout=1").then_some(())
        });
        fs::write(&file, vec![0; 2 * MIB]).expect("written");
    });
    stage.pair.alpha.await_lanes();
    let mut client = Client::connect(&served.uri()).expect("it serves");
    assert_eq!(client.ask("h.flush()"), "None", "{}", served.log());
    assert!(has_it(&file), "{}", served.log());
}

/// The peer comes back after the flush was given up: the next one writes all of it again.
#[test]
fn a_flush_that_failed_has_forgotten_nothing() {
    let Some(mut stage) = Stage::set().filter(|_| is_there()) else { return };
    let parameters = ["beta:data/kept", "create=2M", "timeout=1"];
    let served = stage.plugin.serve(&stage.pair.alpha, "kept", &parameters);
    let Some(mut client) = Client::connect(&served.uri()) else { return };
    assert_eq!(client.ask(WRITE), "None");
    let (file, mut answer) = (stage.file("kept"), String::new());
    stage.restart_beta(|| {
        answer = client.ask("h.flush()");
        fs::write(&file, vec![0; 2 * MIB]).expect("written");
    });
    assert_eq!(answer, "EIO");
    stage.pair.alpha.await_lanes();
    assert_eq!(client.ask("h.flush()"), "None", "{}", served.log());
    assert!(has_it(&file), "{}", served.log());
}

/// What was meant for the one file does not go into another that has its name now.
#[test]
fn another_file_of_the_name_is_left_alone() {
    let Some(mut stage) = Stage::set().filter(|_| is_there()) else { return };
    let served = stage.serve_new("renamed", "1M");
    let Some(mut client) = Client::connect(&served.uri()) else { return };
    assert_eq!(client.ask(WRITE), "None");
    let file = stage.file("renamed");
    stage.restart_beta(|| {
        fs::rename(&file, file.with_file_name("old")).expect("renamed");
        fs::write(&file, vec![7; MIB]).expect("written");
    });
    stage.restart_alpha();
    assert_eq!(client.ask("h.flush()"), "EIO");
    assert_eq!(client.ask("h.pwrite(b'b', 0)"), "EIO");
    assert!(served.log().contains("another file has its name now"), "{}", served.log());
    assert!(fs::read(&file).expect("there") == vec![7; MIB]);
}

#[test]
fn nbdkit_ends_while_a_request_waits_for_the_peer() {
    let Some(mut stage) = Stage::set().filter(|_| is_there()) else { return };
    let mut served = stage.plugin.serve(&stage.pair.alpha, "ends", &["beta:data/blocks"]);
    let Some(mut client) = Client::connect(&served.uri()) else { return };
    stage.restart_beta(|| {
        client.tell("h.pread(4096, 8192)[0]");
        eventually("it is asked for", || served.log().contains("pread").then_some(()));
        drop(client);
        served.process.signal(rustix::process::Signal::TERM);
        // It waits for a minute otherwise, and this for half of one.
        served.process.exit();
    });
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
    let answer = eventually("the peer is back", || {
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
