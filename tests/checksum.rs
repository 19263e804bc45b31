//! Checksums of payloads between real daemons on loopback: none by default, and from a reload on
//! where a node wants them.
#![forbid(unsafe_code)]

use std::fs;

use piped_client::{Client, OpenOptions};
use system_tests::process::{BLOCKS_BYTES, Daemon, Pair, Programs, eventually, pattern, words};

/// By what payloads of both directions are checked, as `pipectl peers` shows it.
fn checked(daemon: &Daemon) -> Vec<String> {
    let output = daemon.pipectl(["peers"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines().filter(|line| line.contains("CHECKED") || line.contains(" up "));
    let head = lines.next().unwrap_or_else(|| panic!("no table: {text}{}", words(&output)));
    let place = head.find("CHECKED").expect("a column");
    lines.map(|line| line[place..].split(' ').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_reload_decides_whether_payloads_have_checksums() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start_with(&programs, directory.path(), "checksum = \"auto\"\n");
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let open = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    let blocks = open.expect("it is there");
    let mut read = || {
        let buffer = client.allocate(1 << 20).expect("memory");
        let (buffer, bytes) = queue.read(&blocks, 0, buffer).expect("read");
        assert!(buffer.as_slice()[..bytes] == pattern(BLOCKS_BYTES)[..bytes]);
    };
    assert_eq!(checked(&pair.alpha), ["header", "header"]);
    assert_eq!(checked(&pair.beta), ["header", "header"]);
    read();
    for (from, to, expected) in [("auto", "payload", "payload"), ("payload", "header", "header")] {
        let from = format!("checksum = \"{from}\"");
        pair.alpha.reload(&from, &format!("checksum = \"{to}\""));
        eventually("the lanes are back", || {
            let both = [checked(&pair.alpha), checked(&pair.beta)];
            both.iter().all(|them| them == &[expected, expected]).then_some(())
        });
        read();
    }
    assert_eq!(pair.alpha.number("corrupt_frames") + pair.alpha.number("peer_faults"), 0);
}

#[test]
fn a_word_that_is_no_choice_is_refused_with_those_there_are() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("piped.toml");
    fs::write(&file, "[peers.beta]\naddress = \"127.0.0.1:1\"\nchecksum = \"crc\"\n").expect("ok");
    let output = programs.pipectl().args(["config", "check"]).arg(&file).output().expect("starts");
    let text = words(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("peers.beta.checksum") && text.contains("header"), "{text}");
}
