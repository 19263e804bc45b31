//! Nodes that end in the middle: pages come late, or are a signal; none is wrong and nobody hangs.
#![forbid(unsafe_code)]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use piped_client::{Access, Cause, Client, OpenOptions, Status};
use remote_pager::{Moved, Options, PAGE, Pager, SyncError};
use rustix::process::Signal;
use support::{NAME, random, scene};
use system_tests::process::{BLOCKS_BYTES, PATIENCE, eventually, pattern};

const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;

fn options() -> Options {
    Options::new().user_mode_only().resident_bytes(64 * PAGE).patience(10 * PATIENCE)
}

#[test]
fn a_peer_that_comes_back_costs_time_only() {
    let Some(mut scene) = scene(&[1]) else { return };
    let open = OpenOptions::read_write();
    let file = scene.client.open_export(Some("beta"), "data", "blocks", open).expect("opened");
    let mut pager = Pager::map(&scene.client, &file, options().writable()).expect("mapped");
    let bytes = pager.bytes_mut().expect("writable");
    let (half, mut expected) = (BLOCKS_BYTES / 2, pattern(BLOCKS_BYTES));
    bytes[..half].reverse();
    expected[..half].reverse();
    scene.pair.beta.process.signal(Signal::KILL);
    scene.pair.beta.process.exit();
    let settings = scene.pair.settings[1].clone();
    std::thread::scope(|scope| {
        let touching = scope.spawn(|| {
            bytes[half..].reverse();
            bytes
                == expected[..half]
                    .iter()
                    .chain(expected[half..].iter().rev())
                    .copied()
                    .collect::<Vec<_>>()
        });
        // It reached a page that is not here, and nobody to ask for it.
        eventually("it waits", || {
            let waits = scene.pair.alpha.number("transfers") > 0;
            (waits || touching.is_finished()).then_some(())
        });
        assert!(!touching.is_finished(), "64 pages cannot hold the rest");
        scene.pair.beta.restart(&settings);
        assert!(touching.join().expect("no panic"), "every byte is what it was");
    });
    expected[half..].reverse();
    pager.close().expect("saved");
    let there = std::fs::read(scene.directory.path().join("root/blocks")).expect("there");
    assert!(there == expected);
}

#[test]
fn the_own_daemon_may_be_restarted_too() {
    let Some(mut scene) = scene(&[1]) else { return };
    let open = OpenOptions::read_write();
    let file = scene.client.open_export(Some("beta"), "data", "blocks", open).expect("opened");
    let mut pager = Pager::map(&scene.client, &file, options().writable()).expect("mapped");
    let mut expected = pattern(BLOCKS_BYTES);
    let settings = scene.pair.settings[0].clone();
    let bytes = pager.bytes_mut().expect("writable");
    for part in [0..BLOCKS_BYTES / 2, BLOCKS_BYTES / 2..BLOCKS_BYTES] {
        bytes[part.clone()].reverse();
        expected[part].reverse();
        scene.pair.alpha.process.signal(Signal::KILL);
        scene.pair.alpha.restart(&settings);
    }
    assert!(bytes == expected);
    pager.close().expect("saved");
    let there = std::fs::read(scene.directory.path().join("root/blocks")).expect("there");
    assert!(there == expected);
}

#[test]
fn what_cannot_be_saved_stays_and_a_sync_says_why() {
    let Some(mut scene) = scene(&random(64 * PAGE)) else { return };
    let mut pager = Pager::map(&scene.client, &scene.region, options().writable()).expect("mapped");
    pager.bytes_mut().expect("writable")[7 * PAGE] = 42;
    // The exporter of the region is gone.
    drop(scene.owner.take());
    let error = pager.sync().expect_err("nobody has the region");
    let SyncError::Page(error) = error else { panic!("{error}") };
    assert_eq!((error.page, error.what), (7, Moved::Saved));
    let gone = [Status::Gone, Status::NotFound, Status::BadHandle].map(Cause::Status);
    assert!(gone.contains(&error.cause), "{error}");
    assert_eq!(pager.failure(), Some(error));
    assert_eq!(pager.bytes()[7 * PAGE], 42, "it is here still");
    pager.close().expect_err("it cannot be saved now either");
}

/// The other process of the test below: touches a page, and another one when told to.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn victim() {
    let socket = std::env::var_os("PAGER_VICTIM_SOCKET").expect("told by the other test");
    let patience = std::env::var("PAGER_VICTIM_PATIENCE").expect("told").parse().expect("ms");
    let client = Client::connect(socket).expect("it serves");
    let region = client.open_region(Some("beta"), NAME, Access::READ).expect("offered");
    let options = options().patience(Duration::from_millis(patience));
    let pager = Pager::map(&client, &region, options).expect("mapped");
    println!("\nfirst {}", pager.bytes()[0]);
    std::io::stdin().read_line(&mut String::new()).expect("told to go on");
    println!("\nsecond {}", pager.bytes()[30 * PAGE]);
}

/// How the victim ended, after `harm` was done between its two touches.
fn ends_by(patience: Duration, harm: impl FnOnce(&mut support::Scene)) -> Option<Option<i32>> {
    let mut scene = scene(&random(64 * PAGE))?;
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "victim", "--ignored", "--nocapture"])
        .env("PAGER_VICTIM_SOCKET", scene.pair.alpha.client_socket())
        .env("PAGER_VICTIM_PATIENCE", patience.as_millis().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map(system_tests::process::Running)
        .expect("started");
    let stdout = BufReader::new(child.0.stdout.take().expect("piped"));
    let mut lines = stdout.lines().map(|line| line.expect("UTF-8"));
    assert!(lines.any(|line| line.starts_with("first ")), "it has its first page");
    harm(&mut scene);
    child.0.stdin.take().expect("piped").write_all(b"\n").expect("it waits");
    assert!(!lines.any(|line| line.starts_with("second ")), "a page that nobody has");
    Some(child.exit().signal())
}

#[test]
fn a_page_of_a_region_that_is_gone_is_a_signal_at_once() {
    // Its patience is longer than this test's.
    let signal = ends_by(10 * PATIENCE, |scene| drop(scene.owner.take()));
    let Some(signal) = signal else { return };
    assert_signal(signal);
}

#[test]
fn a_page_of_a_peer_that_does_not_come_back_is_a_signal_after_patience() {
    let signal = ends_by(Duration::from_secs(3), |scene| {
        scene.pair.beta.process.signal(Signal::KILL);
        scene.pair.beta.process.exit();
    });
    let Some(signal) = signal else { return };
    assert_signal(signal);
}

#[test]
fn without_a_daemon_and_without_reconnecting_it_is_a_signal_at_once() {
    let signal = ends_by(10 * PATIENCE, |scene| {
        scene.pair.alpha.process.signal(Signal::KILL);
        scene.pair.alpha.process.exit();
    });
    let Some(signal) = signal else { return };
    assert_signal(signal);
}

fn assert_signal(found: Option<i32>) {
    let poison = remote_pager::probe(true).expect("the scene was there").poison;
    assert_eq!(found, Some(if poison { SIGBUS } else { SIGSEGV }));
}
