//! The end of the daemon, and the next one: what goes on, what ends, and what it costs nobody.

mod support;

use std::sync::Arc;
use std::time::Duration;

use piped_client::{
    Access, BufferState, Cause, Client, ClientBuilder, ConnectError, OpenOptions, ReconnectError,
    Reconnected, Request, Status, SubmitFault, Waited,
};
use piped_core::access::Creation;
use piped_ring::handshake::Request as Asked;
use piped_ring::{FLAG_DURABLE, Opcode};
use support::{Daemon, Manners, Session, eventually, memory};

const PAGE: usize = 4096;
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

fn builder(pages: u64) -> ClientBuilder {
    ClientBuilder::new().arena_bytes(pages * PAGE as u64).depth(7).reconnect(LONG)
}

/// The daemon ends and the client finds the next one.
fn next_session(
    daemon: &Daemon,
    client: &Client,
    session: &Session,
) -> (Arc<Session>, Reconnected) {
    session.die();
    eventually("the client sees it", || !client.is_connected());
    let found = client.reconnect().expect("the next one is there");
    (daemon.session(), found)
}

fn file(daemon: &Daemon, name: &str, content: &[u8]) -> std::path::PathBuf {
    let path = daemon.folder().join(name);
    std::fs::write(&path, content).expect("a folder");
    path
}

#[test]
fn handles_are_open_again_and_queues_go_on() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(builder(8));
    let path = file(&daemon, "file", &[1; PAGE]);
    let local = client.open_file(&path, OpenOptions::read()).expect("a file");
    let name = path.to_str().expect("a plain path");
    let options = OpenOptions::read_write().create(true);
    let named = client.open_export(Some("beta"), "data", name, options).expect("a file");
    let mut queue = client.queue().expect("a queue");
    let mut other = client.queue().expect("another");
    let kept = client.allocate(PAGE).expect("room");
    let serving = session.serve(false);
    let (kept, _) = queue.read(&local, 0, kept).expect("served");
    // The path names another file by now; the client has the one it opened.
    std::fs::rename(&path, daemon.folder().join("moved")).expect("moved");
    let path = file(&daemon, "file", &[2; 2 * PAGE]);
    let (next, found) = next_session(&daemon, &client, &session);
    serving.join().expect("the daemon does not panic");
    assert_eq!(found, Reconnected { opened: 2, lost: 0 });
    assert_eq!((local.len(), named.len()), (PAGE as u64, 2 * PAGE as u64));
    let asked = next.asked.lock().expect("no panics").clone();
    let created =
        |asked: &Asked| matches!(asked, Asked::OpenExport { create: Creation::Open(_), .. });
    assert!(!asked.iter().any(created), "what was made is not made again: {asked:?}");
    let rings = asked.iter().filter(|asked| matches!(asked, Asked::AddQueue)).count();
    assert_eq!(rings, 1, "the welcome brings one, and there are two queues");
    let serving = next.serve(false);
    assert_eq!(kept.as_slice(), [1; PAGE], "it is as it was");
    let (buffer, _) = other.read(&named, PAGE as u64, kept).expect("served");
    assert_eq!(buffer.as_slice(), [2; PAGE]);
    let (buffer, _) = queue.read(&local, 0, buffer).expect("served");
    assert_eq!(buffer.as_slice(), [1; PAGE]);
    assert!(!queue.is_disconnected() && client.is_connected());
    assert_eq!(client.reconnect().expect("it stands"), Reconnected::default());
    // Closed where they are open.
    drop((local, named));
    eventually("they are closed", || next.closed().len() == 2);
    drop((queue, other, buffer, client));
    serving.join().expect("the daemon does not panic");
    drop(path);
}

#[test]
fn what_asks_for_it_is_submitted_again_and_the_rest_ends() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(builder(16));
    let path = file(&daemon, "file", &[1; PAGE]);
    let file = client.open_file(&path, OpenOptions::read_write()).expect("a file");
    let mut queue = client.queue().expect("a queue");
    let buffer = |byte: u8| {
        let mut buffer = client.allocate(2 * PAGE).expect("room");
        buffer.as_mut_slice().fill(byte);
        buffer
    };
    let read = Request::read(&file, 0, buffer(7)).piece(100..200).resubmit().deadline(LONG);
    let read = queue.submit(read).expect("room");
    let write = Request::write(&file, 5, buffer(8)).piece(10..20).durable().resubmit();
    let write = queue.submit(write).expect("room");
    let detached = Request::write(&file, 0, buffer(9)).resubmit().tag(4);
    queue.submit_detached(detached).expect("room");
    let ends = queue.submit_read(&file, 0, buffer(0)).expect("room");
    let copies = queue.submit_copy((&file, 0), (&file, 0), 1).expect("room");
    let dropped = queue.submit(Request::read(&file, 0, buffer(0)).resubmit()).expect("room");
    queue.flush();
    // The daemon had begun with it.
    let begun = session.take(0).expect("flushed");
    session.fill(&begun, 66);
    drop(dropped);
    let (next, _) = next_session(&daemon, &client, &session);
    assert!(queue.poll().is_none(), "nothing detached has ended");
    for pending in [ends.wait(&mut queue).map(|_| ()), copies.wait(&mut queue).map(|_| ())] {
        assert_eq!(pending.expect_err("not asked to outlive it").cause, Cause::Disconnected);
    }
    let mut seen: Vec<_> = std::iter::from_fn(|| next.take(0)).collect();
    seen.sort_by_key(|descriptor| (descriptor.opcode, descriptor.length));
    assert_eq!(seen.len(), 3, "each once, and not the dropped one: {seen:?}");
    let [reads, short, long] = [&seen[0], &seen[1], &seen[2]];
    assert_eq!((reads.opcode, reads.length), (Opcode::Read as u8, 100));
    assert_eq!(reads.handle_a, file.number(), "under its new number");
    assert!(reads.deadline_ns < 60_000_000_000, "less than at first: {}", reads.deadline_ns);
    assert!(short.deadline_ns < 30_000_000_000 && short.deadline_ns > 0, "of the default");
    assert_eq!((short.flags, short.offset_a, short.length), (FLAG_DURABLE, 5, 10));
    let mut bytes = [0; 10];
    next.segment(short.segment).load(short.buffer_offset, &mut bytes).expect("inside");
    assert_eq!(bytes, [8; 10], "what is written went along");
    next.fill(reads, 3);
    next.finish(0, reads, Status::Ok, 100);
    next.finish(0, short, Status::Ok, 10);
    next.finish(0, long, Status::Ok, 2 * PAGE as u64);
    let done = read.wait(&mut queue).expect("done");
    let whole: Vec<u8> =
        (0..2 * PAGE).map(|at| if (100..200).contains(&at) { 3 } else { 7 }).collect();
    assert_eq!((done.bytes, done.payload.as_slice()), (100, &whole[..]), "and nothing beside it");
    assert_eq!(write.wait(&mut queue).expect("done").payload.as_slice(), [8; 2 * PAGE]);
    let completed = queue.poll().expect("done");
    assert_eq!((completed.tag, completed.result.expect("done").bytes), (4, 2 * PAGE as u64));
    assert_eq!((queue.underway(), queue.counters().resubmitted), (0, 3));
}

#[test]
fn a_waiter_reconnects_by_itself_also_for_what_was_never_submitted() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(builder(4));
    let path = file(&daemon, "file", &[5; PAGE]);
    let file = client.open_file(&path, OpenOptions::read()).expect("a file");
    let mut queue = client.queue().expect("a queue");
    let read = Request::read(&file, 0, client.allocate(PAGE).expect("room")).resubmit();
    let first = queue.submit(read).expect("room");
    session.die();
    while !queue.is_disconnected() {
        assert!(queue.poll().is_none(), "it waits for the next daemon");
    }
    assert_eq!(queue.submit_nop().expect_err("not asked to wait").fault, SubmitFault::Disconnected);
    let read = Request::read(&file, 0, client.allocate(PAGE).expect("room")).resubmit();
    let second = queue.submit(read).expect("it waits for a daemon");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            for pending in [first, second] {
                let done = pending.wait(&mut queue).expect("served");
                assert_eq!(done.payload.as_slice(), [5; PAGE]);
            }
            drop((queue, file, client));
        });
        let serving = daemon.session().serve(false);
        waiting.join().expect("both are served");
        serving.join().expect("the daemon does not panic");
    });
}

#[test]
fn a_daemon_that_stays_away_is_a_typed_error_in_time() {
    let daemon = Daemon::start(Manners::default());
    let socket = daemon.socket();
    let builder = ClientBuilder::new().arena_bytes(8 * PAGE as u64).depth(7);
    let (client, session) = daemon.pair(builder.clone().reconnect(SHORT));
    let (patient, other) = daemon.pair(builder.clone().reconnect(LONG));
    let plain = builder.connect(&socket).expect("welcome");
    let path = file(&daemon, "file", &[5; PAGE]);
    let mut queues = [&client, &patient].map(|client| {
        let file = client.open_file(&path, OpenOptions::read_write()).expect("a file");
        (client.queue().expect("a queue"), file, client.allocate(PAGE).expect("room"))
    });
    drop(daemon);
    for session in [session, other] {
        session.die();
    }
    let error = client.reconnect().expect_err("nobody is there");
    assert!(matches!(&error, ReconnectError::Away { last: Some(ConnectError::Socket { .. }), .. }));
    assert!(error.to_string().contains("restarted"), "{error}");
    assert!(matches!(plain.reconnect(), Err(ReconnectError::NotAsked)));
    // Its deadline, or what the builder allows: whichever is first.
    for ((queue, file, buffer), deadline) in queues.iter_mut().zip([LONG, SHORT]) {
        let buffer = std::mem::replace(buffer, unused(&patient));
        let write = Request::write(file, 0, buffer).resubmit().deadline(deadline);
        let error = queue.run(write).expect_err("nobody is there");
        assert_eq!(error.cause, Cause::Disconnected, "{error}");
        let buffer = error.into_buffer().expect("nobody reads it any more");
        let read = Request::read(file, 0, buffer).resubmit().deadline(deadline);
        let error = queue.run(read).expect_err("nobody is there");
        assert!(matches!(error.buffer, BufferState::Returned(_)), "it never left: {error:?}");
        // Waiting has its own end.
        let read = Request::read(file, 0, error.into_buffer().expect("here")).resubmit();
        let pending = queue.submit(read.deadline(deadline)).expect("it waits");
        match pending.wait_for(queue, Duration::from_millis(1)) {
            Waited::Underway(pending) => assert!(queue.cancel(&pending), "nobody is asked"),
            Waited::Ended(Err(error)) => assert_eq!(error.cause, Cause::Disconnected),
            Waited::Ended(Ok(done)) => panic!("{done:?}"),
        }
        assert!(queue.poll().is_none() && queue.underway() == 0);
    }
}

fn unused(client: &Client) -> piped_client::Buffer {
    client.allocate(1).expect("a page of the old arena")
}

#[test]
fn what_cannot_be_opened_again_is_refused_by_name() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(builder(8));
    let path = file(&daemon, "file", &[1; PAGE]);
    let name = path.to_str().expect("a plain path");
    let gone = client.open_export(None, "data", name, OpenOptions::read()).expect("a file");
    let there = client.open_file(&path, OpenOptions::read()).expect("a file");
    let mut queue = client.queue().expect("a queue");
    let buffer = || client.allocate(PAGE).expect("room");
    let parked = queue.submit(Request::read(&gone, 0, buffer()).resubmit()).expect("room");
    std::fs::remove_file(&path).expect("it was there");
    let (next, found) = next_session(&daemon, &client, &session);
    assert_eq!(found, Reconnected { opened: 1, lost: 1 });
    let error = parked.wait(&mut queue).expect_err("it is not open");
    assert_eq!(error.cause, Cause::NotSubmitted(SubmitFault::HandleLost));
    let refused = queue.submit_read(&gone, 0, buffer()).expect_err("it is not open");
    assert_eq!(refused.fault, SubmitFault::HandleLost);
    let pending = queue.submit_read(&there, 0, buffer()).expect("it is open");
    queue.flush();
    next.finish(0, &next.take(0).expect("flushed"), Status::Ok, 3);
    assert_eq!(pending.wait(&mut queue).expect("done").bytes, 3);
}

#[test]
fn who_waits_for_a_moment_loses_no_handle_of_a_peer_that_is_late() {
    let daemon = Daemon::start(Manners { slow: true, ..Manners::default() });
    let (client, session) = daemon.pair(builder(8));
    let path = file(&daemon, "file", &[6; PAGE]);
    let name = path.to_str().expect("a plain path");
    let here = client.open_file(&path, OpenOptions::read()).expect("a file");
    let there =
        client.open_export(Some("beta"), "data", name, OpenOptions::read()).expect("a file");
    let mut queue = client.queue().expect("a queue");
    let read = Request::read(&there, 0, client.allocate(PAGE).expect("room")).resubmit();
    let mut pending = queue.submit(read).expect("room");
    let away = file(&daemon, "file.away", &[]);
    session.die();
    eventually("the client sees it", || !client.is_connected());
    for _ in 0..3 {
        pending = match pending.wait_for(&mut queue, SHORT) {
            Waited::Underway(pending) => pending,
            Waited::Ended(end) => panic!("its peer comes back: {end:?}"),
        };
    }
    std::fs::remove_file(away).expect("it was there");
    let next = daemon.session();
    let serving = next.serve(false);
    let done = pending.wait(&mut queue).expect("served");
    assert_eq!(done.payload.as_slice(), [6; PAGE]);
    let (buffer, _) = queue.read(&here, 0, done.payload).expect("served");
    assert_eq!(buffer.as_slice(), [6; PAGE]);
    let asked = next.asked.lock().expect("no panics").clone();
    let passed = asked.iter().filter(|asked| matches!(asked, Asked::OpenFile { .. })).count();
    assert_eq!(passed, 1, "what is open stays open, and it is one session for all attempts");
    // Threads that wait and threads that open hurry differently.
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| client.open_export(None, "slow", name, OpenOptions::read()));
        // Longer than the last attempt had.
        let (_never, nothing) = std::sync::mpsc::channel::<()>();
        let _ = nothing.recv_timeout(Duration::from_millis(400));
        eventually("it is asked for", || {
            let asked = next.asked.lock().expect("no panics");
            asked
                .iter()
                .filter(|it| matches!(it, Asked::OpenExport { export, .. } if export == "slow"))
                .count()
                == 1
        });
        next.let_go();
        opening.join().expect("no panic").expect("it is slow, and open");
    });
    drop((queue, here, there, buffer, client));
    serving.join().expect("the daemon does not panic");
}

#[test]
fn what_outlives_the_daemon_waits_while_its_handle_is_ahead_of_its_queue() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(builder(8));
    let path = file(&daemon, "file", &[6; PAGE]);
    let name = path.to_str().expect("a plain path");
    let here = client.open_file(&path, OpenOptions::read()).expect("a file");
    let late = client.open_export(Some("beta"), "data", name, OpenOptions::read()).expect("a file");
    let mut unaware = client.queue().expect("a queue");
    let mut behind = client.queue().expect("another");
    let read = |queue: &mut piped_client::Queue| {
        queue.submit(Request::read(&here, 0, client.allocate(PAGE).expect("room")).resubmit())
    };
    let first = read(&mut behind).expect("room");
    let (second, _) = next_session(&daemon, &client, &session);
    assert!(unaware.poll().is_none() && !unaware.is_disconnected(), "it has gone on");
    let away = file(&daemon, "file.away", &[]);
    second.die();
    eventually("the client sees it", || !client.is_connected());
    let (third, then) = std::thread::scope(|scope| {
        let reconnecting = scope.spawn(|| client.reconnect());
        let third = daemon.session();
        // Handles are opened in the order in which they were: `here` is open at the third daemon,
        // and no queue can go there before `late` is.
        eventually("it is asked for", || {
            let asked = third.asked.lock().expect("no panics");
            asked.iter().any(|asked| matches!(asked, Asked::OpenExport { .. }))
        });
        let then = read(&mut unaware).expect("it waits");
        assert!(unaware.is_disconnected());
        let refused = unaware.submit_read(&here, 0, client.allocate(1).expect("room"));
        assert_eq!(refused.expect_err("it does not wait").fault, SubmitFault::Disconnected);
        assert!(behind.poll().is_none());
        assert!(behind.is_disconnected(), "the second daemon, where it has come now, is gone too");
        assert_eq!((behind.underway(), unaware.underway()), (1, 1), "both wait");
        std::fs::remove_file(away).expect("it was there");
        let found = reconnecting.join().expect("no panic").expect("a daemon");
        assert_eq!(found, Reconnected { opened: 2, lost: 0 });
        (third, then)
    });
    let serving = third.serve(false);
    for (pending, queue) in [(first, &mut behind), (then, &mut unaware)] {
        assert_eq!(pending.wait(queue).expect("served").payload.as_slice(), [6; PAGE]);
    }
    drop((unaware, behind, here, late, client));
    serving.join().expect("the daemon does not panic");
}

#[test]
fn lent_memory_that_is_ahead_of_its_queue_is_no_refusal() {
    let daemon = Daemon::start(Manners { slow: true, lends: true, ..Manners::default() });
    let (client, mut session) = daemon.pair(builder(8));
    let path = file(&daemon, "file", &[6; PAGE]);
    let late = std::thread::scope(|scope| {
        let opening = scope.spawn(|| client.open_export(None, "slow", &path, OpenOptions::read()));
        eventually("it is asked for", || session.delays() == 1);
        session.let_go();
        opening.join().expect("no panic").expect("a file")
    });
    // Behind the one that takes long also when they are opened again.
    let here = client.open_file(&path, OpenOptions::read()).expect("a file");
    let lent = client.lend_memfd(memory(PAGE as u64, true)).expect("taken");
    let read = || Request::read(&here, 0, lent.buffer(0, PAGE).expect("free"));
    let mut queue = client.queue().expect("a queue");
    let mut serving = session.serve(false);
    // The second time the queue is at a connection to which buffers are brought.
    for _ in 0..2 {
        let mut other = client.queue().expect("another");
        session.die();
        serving.join().expect("the daemon does not panic");
        eventually("the client sees it", || !client.is_connected());
        let waits = std::thread::scope(|scope| {
            let reconnecting = scope.spawn(|| client.reconnect());
            session = daemon.session();
            // The memory is lent again by then, and no queue can go on before that is open.
            eventually("it is asked for", || session.delays() == 1);
            let refused = other.submit(read()).expect_err("it does not wait");
            assert_eq!(refused.fault, SubmitFault::Disconnected);
            drop(refused);
            let waits = queue.submit(read().resubmit()).expect("it waits");
            assert!(queue.is_disconnected() && queue.poll().is_none());
            session.let_go();
            let found = reconnecting.join().expect("no panic").expect("a daemon");
            assert_eq!(found, Reconnected { opened: 2, lost: 0 });
            waits
        });
        serving = session.serve(false);
        let done = waits.wait(&mut queue).expect("served");
        let mut bytes = [0; PAGE];
        done.payload.read_at(0, &mut bytes).expect("inside");
        assert_eq!(bytes, [6; PAGE]);
    }
    drop((queue, late, here, lent, client));
    serving.join().expect("the daemon does not panic");
}

#[test]
fn old_buffers_move_or_say_that_there_is_no_room() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(builder(2));
    let path = file(&daemon, "file", &[1; PAGE]);
    let file = client.open_file(&path, OpenOptions::read_write()).expect("a file");
    let mut queue = client.queue().expect("a queue");
    let mut old = client.allocate(2 * PAGE).expect("all of it");
    old.as_mut_slice().fill(4);
    old.set_len(PAGE).expect("less");
    let (next, _) = next_session(&daemon, &client, &session);
    let new = client.allocate(PAGE).expect("of the new arena");
    let refused = queue.submit_write(&file, 0, old).expect_err("there is one page left");
    assert_eq!(refused.fault, SubmitFault::NoRoom);
    drop(new);
    let pending = queue.submit_write(&file, 0, refused.buffer).expect("there is room now");
    queue.flush();
    let seen = next.take(0).expect("flushed");
    let mut bytes = [0; PAGE];
    next.segment(seen.segment).load(seen.buffer_offset, &mut bytes).expect("inside");
    assert_eq!((seen.length, bytes), (PAGE as u64, [4; PAGE]));
    next.finish(0, &seen, Status::Ok, PAGE as u64);
    let mut buffer = pending.wait(&mut queue).expect("done").payload;
    assert_eq!((buffer.len(), buffer.capacity()), (PAGE, 2 * PAGE));
    buffer.set_len(2 * PAGE).expect("as before");
    assert_eq!(buffer.as_slice(), [4; 2 * PAGE], "also what was not visible");
    // It is of the new arena now.
    assert!(client.allocate(1).is_err());
}

#[test]
fn a_region_ends_with_its_daemon_and_is_offered_again_by_its_owner() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(builder(4));
    let region = client.export_region("halo", client.allocate(PAGE).expect("room"), Access::READ);
    let region = region.expect("offered");
    region.write_at(0, b"left edge").expect("inside");
    let there = client.open_region(None, "halo", Access::READ).expect("offered");
    let (next, found) = next_session(&daemon, &client, &session);
    assert_eq!(found, Reconnected { opened: 0, lost: 1 }, "nobody offers it");
    let mut queue = client.queue().expect("a queue");
    let read = |queue: &mut piped_client::Queue, handle: &piped_client::Handle| {
        queue.submit_read(handle, 0, client.allocate(9).expect("room"))
    };
    for handle in [region.handle(), &there] {
        let refused = read(&mut queue, handle).expect_err("it ended");
        assert_eq!(refused.fault, SubmitFault::HandleLost);
    }
    drop(there);
    let mut edge = vec![0; PAGE];
    region.read_at(0, &mut edge).expect("the memory is the owner's");
    assert!(region.close().is_err(), "nobody says that it is free");
    let mut again = client.allocate(PAGE).expect("room");
    again.as_mut_slice().copy_from_slice(&edge);
    let region = client.export_region("halo", again, Access::READ).expect("offered");
    let there = client.open_region(None, "halo", Access::READ).expect("offered");
    let serving = next.serve(false);
    let (buffer, _) = queue.read(&there, 0, client.allocate(9).expect("room")).expect("served");
    assert_eq!(buffer.as_slice(), b"left edge");
    drop((queue, there, region, buffer, client));
    serving.join().expect("the daemon does not panic");
}

#[test]
fn one_thread_reconnects_for_all() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(builder(64));
    let path = file(&daemon, "file", &[6; PAGE]);
    let file = client.open_file(&path, OpenOptions::read()).expect("a file");
    let mut serving = session.serve(false);
    let mut session = session;
    const THREADS: usize = 6;
    const ROUNDS: usize = 10;
    let (done, steps) = std::sync::mpsc::channel();
    // None is so late that the first daemon is gone when it wants a queue.
    let ready = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (client, file, done) = (client.clone(), file.clone(), done.clone());
            let ready = &ready;
            scope.spawn(move || {
                let mut queue = client.queue().expect("a queue");
                let mut buffer = client.allocate(PAGE).expect("room");
                ready.wait();
                // Each sees every daemon, or is told to stop.
                while done.send(()).is_ok() {
                    buffer.as_mut_slice().fill(0);
                    let read = Request::read(&file, 0, buffer).resubmit().deadline(LONG);
                    buffer = queue.run(read).expect("served by one of them").payload;
                    assert_eq!(buffer.as_slice(), [6; PAGE]);
                }
            });
        }
        drop(done);
        let (session, serving) = (&mut session, &mut serving);
        for _ in 0..ROUNDS {
            for _ in 0..THREADS * 20 {
                steps.recv().expect("they go on");
            }
            session.die();
            *session = daemon.session();
            let before = std::mem::replace(serving, session.serve(false));
            before.join().expect("the daemon does not panic");
        }
        drop(steps);
    });
    drop((file, client));
    serving.join().expect("the daemon does not panic");
}
