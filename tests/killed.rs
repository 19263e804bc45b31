//! SIGKILL: of the daemon, of a client, of the peer that serves, each with requests in flight.
//!
//! Requests of a peer that is stopped (SIGSTOP) stay in flight until it goes on, so nothing here
//! depends on who is faster.
#![forbid(unsafe_code)]

use std::time::Duration;

use piped_client::{
    Access, Buffer, BufferState, Cause, Client, ClientBuilder, Handle, OpenOptions, Pending, Queue,
    Request, RequestError, SessionError, Status, SubmitFault, Waited,
};
use rustix::process::Signal;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, PATIENCE, Pair, Programs, Running, eventually, pattern, words,
};

const DEPTH: usize = 64;
const BLOCK: usize = BLOCKS_BYTES / DEPTH;
/// Later than any of the events of a test.
const LATE: Duration = Duration::from_secs(300);

/// A client with the file `blocks` of beta.
type Session = (Client, Queue, Handle);

/// Two nodes, and a client of alpha's whose requests for every block do not end: beta is stopped.
struct Underway {
    pair: Pair,
    session: Session,
    pending: Vec<Pending<Buffer>>,
    _directory: tempfile::TempDir,
}

/// `None`: the programs are not there.
fn underway(deadline: Duration) -> Option<Underway> {
    let programs = Programs::find()?;
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let mut session = reader(&pair.alpha);
    pair.beta.process.freeze();
    let pending = ask_all(&mut session, deadline);
    await_transfers(&pair.alpha, DEPTH as u64);
    Some(Underway { pair, session, pending, _directory: directory })
}

fn reader(daemon: &Daemon) -> Session {
    let builder = ClientBuilder::new().depth(DEPTH as u32).arena_bytes(2 * BLOCKS_BYTES as u64);
    let client = builder.connect(daemon.client_socket()).expect("it serves");
    let queue = client.queue().expect("a queue");
    let file = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    (client, queue, file.expect("it is there"))
}

/// Asks for every block.
fn ask_all((client, queue, file): &mut Session, deadline: Duration) -> Vec<Pending<Buffer>> {
    let read = |block: usize| {
        let buffer = client.allocate(BLOCK).expect("memory");
        let read = Request::read(file, (block * BLOCK) as u64, buffer);
        queue.submit(read.deadline(deadline)).expect("room")
    };
    let pending = (0..DEPTH).map(read).collect();
    queue.flush();
    pending
}

/// The end of a request, which must come.
fn end<B: piped_client::Payload>(
    pending: Pending<B>,
    queue: &mut Queue,
) -> Result<piped_client::Done<B>, RequestError> {
    match pending.wait_for(queue, PATIENCE) {
        Waited::Ended(result) => result,
        Waited::Underway(_) => panic!("a request did not end in {PATIENCE:?}"),
    }
}

fn await_transfers(daemon: &Daemon, count: u64) {
    eventually("the requests are in flight", || {
        // On a machine that stood still meanwhile, short deadlines may have ended them already.
        let taken = daemon.number("transfers") + daemon.number("failed");
        (taken == count).then_some(())
    });
}

/// Every block arrives, and is what the file has.
fn check_blocks(pending: Vec<Pending<Buffer>>, queue: &mut Queue) {
    for (pending, block) in pending.into_iter().zip(pattern(BLOCKS_BYTES).chunks(BLOCK)) {
        let done = end(pending, queue).expect("served");
        assert!(done.payload.as_slice() == block, "the bytes are those of the file");
    }
}

fn check_read_all(session: &mut Session) {
    let pending = ask_all(session, LATE);
    check_blocks(pending, &mut session.1);
}

/// Nobody answers.
fn check_peer_lost(pending: Vec<Pending<Buffer>>, queue: &mut Queue) {
    for pending in pending {
        let error = end(pending, queue).expect_err("nobody answers");
        let lost = matches!(error.status(), Some(Status::PeerLost | Status::DeadlineExceeded));
        assert!(lost, "{error}");
    }
}

#[test]
fn a_killed_daemon_ends_every_request_and_the_next_one_serves() {
    let Some(Underway { mut pair, session, pending, _directory }) = underway(LATE) else { return };
    let (client, mut queue, file) = session;
    std::thread::scope(|scope| {
        // One thread is most likely asleep in the first wait when the daemon dies.
        let queue = &mut queue;
        let waiting = scope.spawn(move || {
            for pending in pending {
                let error = end(pending, queue).expect_err("nobody answered");
                assert_eq!(error.cause, Cause::Disconnected, "{error}");
                assert!(matches!(error.buffer, BufferState::Lost), "{:?}", error.buffer);
            }
        });
        pair.alpha.process.signal(Signal::KILL);
        waiting.join().expect("every request ended with its cause");
    });
    pair.alpha.process.exit();
    assert!(queue.is_disconnected() && !client.is_connected());
    let nop = queue.submit_nop().expect_err("nobody is there");
    assert_eq!(nop.fault, SubmitFault::Disconnected);
    let open = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    let told = matches!(open, Err(piped_client::OpenError::Session(SessionError::Disconnected)));
    assert!(told, "{open:?}");
    drop((file, queue, client));

    pair.beta.process.signal(Signal::CONT);
    pair.alpha.restart(&pair.settings[0]);
    pair.alpha.await_lanes();
    check_read_all(&mut reader(&pair.alpha));
}

#[test]
fn a_killed_client_leaves_nothing_at_the_daemon() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let copy = directory.path().join("copy");
    let copy = copy.to_str().expect("a plain path");
    for work in [
        &["read", "--peer", "beta", "--export", "data", "--path", "blocks"][..],
        &["write", "--peer", "beta", "--export", "data", "--path", "new"],
        &["copy", "beta:data/blocks", copy],
    ] {
        let before = pair.alpha.number("completed");
        let load = ["--size", "64KiB", "--depth", "64", "--span", "4MiB", "--seconds", "600"];
        let mut bench = pair.alpha.pipectl([&["bench"], work, &load].concat());
        let mut client = Running(bench.spawn().expect("started"));
        eventually("it works", || (pair.alpha.number("completed") > before + 200).then_some(()));
        pair.beta.process.freeze();
        // A copy counts as itself and as its parts.
        eventually("64 requests are in flight", || {
            (pair.alpha.number("transfers") >= DEPTH as u64).then_some(())
        });
        client.signal(Signal::KILL);
        client.exit();
        let nop = pair.alpha.pipectl(["bench", "nop", "--seconds", "0.1"]).output().expect("runs");
        assert!(nop.status.success(), "another client is served: {}", words(&nop));
        // A write that the kernel has half sent keeps its memory until the peer takes the rest, or
        // the lane is given up. Nothing else waits for a peer that does not answer.
        if work[0] == "write" {
            pair.beta.process.signal(Signal::CONT);
        }
        eventually("its session and all it had are gone", || {
            let gone = ["sessions", "transfers"].iter().all(|what| pair.alpha.number(what) == 0);
            (gone && (pair.alpha.staged() == 0)).then_some(())
        });
        pair.beta.process.signal(Signal::CONT);
        check_read_all(&mut reader(&pair.alpha));
        eventually("nothing is left at the peer", || {
            let gone = pair.beta.number("serves") == 0 && pair.beta.staged() == 0;
            gone.then_some(())
        });
    }
}

#[test]
fn requests_of_a_killed_peer_end_by_their_deadline_and_go_on_after_its_restart() {
    let Some(mut underway) = underway(Duration::from_secs(2)) else { return };
    let Underway { pair, session, pending, .. } = &mut underway;
    pair.beta.process.signal(Signal::KILL);
    pair.beta.process.exit();
    check_peer_lost(std::mem::take(pending), &mut session.1);
    // Asked while nobody is there.
    check_peer_lost(ask_all(session, Duration::from_millis(200)), &mut session.1);
    assert_eq!(pair.alpha.number("transfers"), 0);
    pair.beta.restart(&pair.settings[1]);
    // The same session and the same handle.
    check_read_all(session);
}

#[test]
fn requests_in_time_are_sent_again_to_a_peer_that_was_restarted() {
    let Some(mut underway) = underway(LATE) else { return };
    let Underway { pair, session, pending, .. } = &mut underway;
    pair.beta.process.signal(Signal::KILL);
    pair.beta.restart(&pair.settings[1]);
    check_blocks(std::mem::take(pending), &mut session.1);
    assert!(pair.alpha.number("retries") >= DEPTH as u64);
}

#[test]
fn regions_of_a_killed_peer_are_lost_and_can_be_offered_again() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut pair = Pair::start(&programs, directory.path());
    let offer = |beta: &Daemon| {
        let owner = Client::connect(beta.client_socket()).expect("it serves");
        let mut buffer = owner.allocate(BLOCK).expect("memory");
        buffer.as_mut_slice().copy_from_slice(&pattern(BLOCK));
        let region = owner.export_region("halo", buffer, Access::READ).expect("offered");
        (owner, region)
    };
    let owned = offer(&pair.beta);
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let halo = client.open_region(Some("beta"), "halo", Access::READ).expect("offered");
    let ask = |halo: &Handle, queue: &mut Queue| {
        let buffer = client.allocate(BLOCK).expect("memory");
        let pending = queue.submit(Request::read(halo, 0, buffer).deadline(Duration::from_secs(2)));
        queue.flush();
        pending.expect("room")
    };
    let done = end(ask(&halo, &mut queue), &mut queue).expect("served");
    assert!(done.payload.as_slice() == pattern(BLOCK));
    pair.beta.process.freeze();
    let pending: Vec<_> = (0..16).map(|_| ask(&halo, &mut queue)).collect();
    await_transfers(&pair.alpha, 16);
    pair.beta.process.signal(Signal::KILL);
    pair.beta.process.exit();
    check_peer_lost(pending, &mut queue);
    // Its owner hears of it as well.
    eventually("the owner is cut off", || (!owned.0.is_connected()).then_some(()));
    drop(owned);
    pair.beta.restart(&pair.settings[1]);
    let _owned = offer(&pair.beta);
    let halo = eventually("it can be opened again", || {
        client.open_region(Some("beta"), "halo", Access::READ).ok()
    });
    let done = end(ask(&halo, &mut queue), &mut queue).expect("served");
    assert!(done.payload.as_slice() == pattern(BLOCK));
}
