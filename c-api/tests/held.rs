//! Buffers that the kernel may still touch after their request, with a daemon that the test plays.

// As the played daemon knows it.
extern crate client_lib as piped_client;

#[path = "../../client-lib/tests/support/mod.rs"]
mod played;
mod support;

use std::io::{BufRead as _, BufReader};

use piped_core::status::Status;
use played::{Daemon, Manners, Session, eventually};
use support::{Libraries, is_there};
use system_tests::process::Running;

/// Takes the program's next request.
fn take(session: &Session) -> piped_ring::Descriptor {
    let has_queue = || !session.queues.lock().expect("no panics").is_empty();
    eventually("the program is welcome", has_queue);
    let mut asked = None;
    eventually("the program asks", || {
        asked = session.take(0);
        asked.is_some()
    });
    asked.expect("it was there")
}

/// Holds the buffer of the program's next request.
fn hold(session: &Session) -> piped_ring::Descriptor {
    let asked = take(session);
    session.hold(0, &asked);
    asked
}

#[test]
fn a_held_buffer_is_refused_until_it_is_released_and_lost_with_its_daemon() {
    if !is_there("cc", "compiles the program") {
        return;
    }
    let libraries = Libraries::link();
    let program = libraries.compile("tests/c/held.c", &["cc", "-std=c11"]);
    let daemon = Daemon::start(Manners::default());
    let file = daemon.folder().join("file");
    std::fs::write(&file, [7; 8192]).expect("written");
    let mut command = libraries.command(&[], &program);
    command.arg(daemon.socket()).arg(&file);
    let mut program = Running(command.spawn().expect("started"));
    let mut lines = BufReader::new(program.0.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().map(|line| line.expect("text"));
    let session = daemon.session();
    let read = hold(&session);
    assert_eq!(next().as_deref(), Some("held"));
    session.release(0, &read);
    let read = hold(&session);
    assert_eq!(next().as_deref(), Some("several held"));
    session.release(0, &read);
    hold(&session);
    hold(&session);
    assert_eq!(next().as_deref(), Some("held again"));
    session.die();
    let status = program.exit();
    let output = std::io::read_to_string(program.0.stderr.take().expect("a pipe"));
    assert!(status.success(), "{status}: {output:?}");
}

#[test]
fn buffers_of_calls_that_failed_are_free_again_once_released() {
    if !is_there("cc", "compiles the program") {
        return;
    }
    let libraries = Libraries::link();
    let program = libraries.compile("tests/c/held_calls.c", &["cc", "-std=c11"]);
    let daemon = Daemon::start(Manners::default());
    let file = daemon.folder().join("file");
    std::fs::write(&file, []).expect("written");
    let mut command = libraries.command(&[], &program);
    command.arg(daemon.socket()).arg(&file);
    let mut program = Running(command.spawn().expect("started"));
    let session = daemon.session();
    // More than the arena has room for.
    for _ in 0..64 {
        let call = hold(&session);
        let nop = take(&session);
        session.release(0, &call);
        session.finish(0, &nop, Status::Ok, 0);
    }
    let status = program.exit();
    let output = std::io::read_to_string(program.0.stderr.take().expect("a pipe"));
    assert!(status.success(), "{status}: {output:?}");
}
