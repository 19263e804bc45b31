//! fio verifies what it wrote, while daemons are killed.

use system_tests::nbd::{are_there, run};
use system_tests::process::{command, words};

use super::Stage;

/// Reads and writes of random lengths and places, 64 deep; what was written is verified.
fn mix(uri: &str, all: &str) -> std::process::Command {
    let mut fio = command("fio".as_ref());
    fio.args(["--name=mix", "--ioengine=nbd", "--rw=randrw", "--iodepth=64", "--verify=crc32c"]);
    fio.args(["--bsrange=4k-128k", "--bs_unaligned=0", "--size=256M", "--fsync=128"]);
    fio.args([
        "--output-format=terse",
        "--randseed=7",
        "--verify_backlog=512",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ]);
    fio.arg(format!("--io_size={all}")).arg(format!("--uri={uri}"));
    fio
}

#[test]
fn fio_finds_what_it_wrote_though_both_daemons_are_killed_again_and_again() {
    let Some(mut stage) = Stage::set().filter(|_| are_there(&["fio"])) else { return };
    let served = stage.serve_new("mix", "256M");
    let (send, ended) = std::sync::mpsc::channel();
    let mut fio = mix(&served.uri(), "5G");
    let running = std::thread::spawn(move || {
        let output = run(&mut fio);
        send.send(()).expect("it is waited for");
        output
    });
    let mut kills = 0;
    while ended.recv_timeout(std::time::Duration::from_secs(2)).is_err() {
        stage.restart_all();
        kills += 1;
    }
    let output = running.join().expect("fio ran");
    let told = words(&output);
    assert!(output.status.success() && !told.contains("verify"), "{told}\n{}", served.log());
    eprintln!("both daemons were killed {kills} times");
    assert!(kills > 0, "it was too fast to be killed");
}
