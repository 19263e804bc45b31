//! The end of a daemon that was asked for, with clients and requests there.
#![forbid(unsafe_code)]

use std::time::Duration;

use piped_client::{Cause, Client, ConnectError, OpenOptions, Queue, Request, Status, Waited};
use rustix::process::Signal;
use system_tests::process::{Daemon, PATIENCE, Pair, Programs, eventually};

#[test]
fn a_stopped_daemon_exits_0_and_everybody_hears_of_it() {
    let Some(programs) = Programs::find() else { return };
    for signal in [Signal::TERM, Signal::INT] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut pair = Pair::start(&programs, directory.path());
        let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
        let from = client
            .open_export(Some("beta"), "data", "blocks", OpenOptions::read())
            .expect("it is there");
        let mut queue = client.queue().expect("a queue");
        // What is asked of a peer that does not answer is still under way when the signal comes.
        pair.beta.process.freeze();
        let request = Request::read(&from, 0, client.allocate(1 << 20).expect("memory"));
        let pending = queue.submit(request.deadline(2 * PATIENCE)).expect("room");
        queue.flush();
        eventually("it is under way", || (pair.alpha.number("transfers") == 1).then_some(()));
        pair.alpha.process.signal(signal);
        match pending.wait_for(&mut queue, PATIENCE) {
            Waited::Ended(Err(error)) => {
                let told = matches!(
                    error.cause,
                    Cause::Disconnected | Cause::Status(Status::Closed | Status::Cancelled)
                );
                assert!(told, "{signal:?}: {error}");
            }
            other => panic!("{signal:?}: {other:?}"),
        }
        assert_eq!(pair.alpha.process.exit().code(), Some(0), "{}", pair.alpha.log());
        assert!(!pair.alpha.client_socket().exists() && !pair.alpha.admin_socket().exists());
        assert!(!client.is_connected());
        assert!(is_disconnected(&mut queue));
        let again = Client::connect(pair.alpha.client_socket());
        assert!(matches!(again, Err(ConnectError::Socket { .. })), "{again:?}");
        let log = pair.alpha.log();
        assert!(!log.contains("at once") && !log.contains("cut off"), "a clean end: {log}");
        pair.beta.process.signal(Signal::CONT);
    }
}

fn is_disconnected(queue: &mut Queue) -> bool {
    let Err(error) = queue.nop() else { return false };
    let submit = Cause::NotSubmitted(piped_client::SubmitFault::Disconnected);
    error.cause == Cause::Disconnected || error.cause == submit
}

// That it does not wait is shown where there is something to wait for: `disks/stalls.rs`.
#[test]
fn a_second_signal_is_an_end_like_the_first() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    for signal in [Signal::TERM, Signal::INT] {
        daemon.process.signal(signal);
    }
    assert_eq!(daemon.process.exit().code(), Some(0), "{}", daemon.log());
    assert!(!daemon.client_socket().exists() && !daemon.admin_socket().exists());
    eventually("the client sees it", || (!client.is_connected()).then_some(()));
}

#[test]
fn a_daemon_that_was_killed_leaves_nothing_in_the_way_of_the_next() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut daemon = Daemon::start(&programs, directory.path(), "alpha", "");
    daemon.process.signal(Signal::KILL);
    daemon.process.exit();
    assert!(daemon.client_socket().exists(), "left behind");
    daemon.restart("");
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    queue.run(Request::nop().deadline(Duration::from_secs(20))).expect("done");
}
