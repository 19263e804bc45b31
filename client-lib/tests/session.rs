//! The control socket, the arena's growth, handles and regions; threads and sleeping.

mod support;

use std::time::Duration;

use piped_client::{
    Access, AllocateError, Cause, ClientBuilder, ConnectError, OpenError, OpenOptions, Request,
    SessionError, Status,
};
use piped_core::access::Creation;
use piped_ring::handshake::Request as Asked;
use support::{Daemon, Manners, eventually};

const PAGE: usize = 4096;

fn small() -> ClientBuilder {
    ClientBuilder::new().arena_bytes(2 * PAGE as u64).depth(7)
}

#[test]
fn connecting_to_nobody_says_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("nobody.sock");
    let error = small().connect(&path).expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Socket { .. }));
    assert!(error.to_string().contains("nobody.sock"), "{error}");
}

#[test]
fn the_arena_grows_as_far_as_the_daemon_lets_it() {
    let daemon = Daemon::start(Manners { growths: 2, ..Manners::default() });
    let (client, session) = daemon.pair(small());
    let first = client.allocate(2 * PAGE).expect("the first segment");
    let second = client.allocate(PAGE).expect("the second segment");
    let large = client.allocate(10 * PAGE).expect("the third, as large as it takes");
    assert_eq!(large.len(), 10 * PAGE);
    let third = client.allocate(1).expect("the rest of the second");
    let error = client.allocate(1).expect_err("the limit");
    assert!(matches!(&error, AllocateError::Session(SessionError::Refused { .. })), "{error}");
    assert!(matches!(client.allocate(0), Err(AllocateError::Length(0))));
    drop(first);
    assert!(client.allocate(PAGE).is_ok());
    drop((second, third));
    let asked = session.asked.lock().expect("no panics");
    let grown: Vec<_> = asked.iter().filter(|it| matches!(it, Asked::GrowArena { .. })).collect();
    let bytes = |pages: usize| Asked::GrowArena { bytes: (pages * PAGE) as u64 };
    assert_eq!(grown[..2], [&bytes(2), &bytes(10)]);
}

#[test]
fn buffers_are_looked_at_in_place_and_by_copy() {
    let daemon = Daemon::start(Manners::default());
    let (client, _session) = daemon.pair(small());
    let mut buffer = client.allocate(100).expect("room");
    buffer.as_mut_slice().fill(3);
    buffer.write_at(95, b"abcde").expect("inside");
    assert!(buffer.write_at(96, b"abcde").is_err());
    let mut back = [0; 6];
    buffer.read_at(94, &mut back).expect("inside");
    assert_eq!(&back, b"\x03abcde");
    assert!(buffer.read_at(usize::MAX, &mut back).is_err());
    assert_eq!((buffer.len(), buffer.capacity()), (100, PAGE));
    assert!(buffer.set_len(PAGE + 1).is_err());
    buffer.set_len(2).expect("less than the capacity");
    assert_eq!(buffer.to_vec(), [3, 3]);
    // It stays readable when the session is over.
    drop(client);
    assert_eq!(buffer.as_ref(), [3, 3]);
}

#[test]
fn a_handle_is_closed_after_its_last_request() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(small());
    let path = daemon.folder().join("file");
    std::fs::write(&path, b"content").expect("a folder");
    let handle = client.open_file(&path, OpenOptions::read()).expect("a file");
    let (number, other) = (handle.number(), handle.clone());
    assert_eq!(handle.len(), 7);
    drop(handle);
    let mut queue = client.queue().expect("a queue");
    let buffer = client.allocate(7).expect("room");
    let pending = queue.submit_read(&other, 0, buffer).expect("room");
    drop(other);
    // An answered question shows that what was said before it has arrived.
    drop(client.open_file(&path, OpenOptions::read()).expect("a file"));
    assert!(!session.closed().contains(&number), "the read still needs it");
    queue.flush();
    session.finish(0, &session.take(0).expect("flushed"), Status::Ok, 7);
    assert!(pending.wait(&mut queue).is_ok());
    eventually("the handle is closed", || session.closed().contains(&number));
}

#[test]
fn thousands_of_dropped_handles_stop_nobody() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(small());
    let path = daemon.folder().join("file");
    std::fs::write(&path, b"content").expect("a folder");
    let handles: Vec<_> =
        (0..800).map(|_| client.open_file(&path, OpenOptions::read()).expect("a file")).collect();
    drop(handles);
    eventually("all are closed", || session.closed().len() == 800);
    assert!(client.open_file(&path, OpenOptions::read()).is_ok());
}

#[test]
fn files_are_opened_with_the_clients_rights_and_passed_on() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(small());
    let missing = daemon.folder().join("missing");
    let error = client.open_file(&missing, OpenOptions::read()).expect_err("not there");
    assert!(matches!(&error, OpenError::File { path, .. } if *path == missing));
    let options = OpenOptions::read_write().create(true).direct(false);
    assert!(client.open_file(&missing, options).expect("made").is_empty());
    let file = std::fs::File::open(&missing).expect("it is there now");
    assert!(client.open_fd(&file, Access::READ).is_ok());
    let truncate = OpenOptions::write().truncate(true);
    let error = client.open_export(None, "data", "file", truncate).expect_err("local only");
    assert!(matches!(error, OpenError::Option("truncate")));
    let error = client.open_export(Some("beta"), "data", "no such", OpenOptions::read());
    let error = error.expect_err("not there");
    assert_eq!(error.to_string(), "no such file below the export");
    let long = "n".repeat(65);
    let error = client.open_region(None, &long, Access::READ).expect_err("too long to send");
    assert!(matches!(error, OpenError::Session(SessionError::Unsendable(_))), "{error}");
    let asked = session.asked.lock().expect("no panics");
    assert!(asked.contains(&Asked::OpenFile { access: Access::READ_WRITE, direct: false }));
    assert!(asked.contains(&Asked::OpenExport {
        peer: "beta".to_owned(),
        export: "data".to_owned(),
        path: "no such".into(),
        access: Access::READ,
        create: Creation::No,
    }));
}

#[test]
fn a_slow_answer_holds_up_nobody_else_and_is_taken_back_when_late() {
    let daemon = Daemon::start(Manners { slow: true, ..Manners::default() });
    let (client, session) = daemon.pair(small());
    let path = daemon.folder().join("file");
    std::fs::write(&path, b"content").expect("a folder");
    let name = path.to_str().expect("a plain path");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| client.open_export(None, "slow", name, OpenOptions::read()));
        eventually("the slow question arrived", || session.asked.lock().expect("ok").len() == 2);
        assert!(client.open_file(&path, OpenOptions::read()).is_ok(), "answered before");
        session.let_go();
        assert_eq!(slow.join().expect("no panics").expect("answered at last").len(), 7);
    });
    let (hasty, session) = daemon.pair(small().timeout(Duration::from_millis(20)));
    let error = hasty.open_export(None, "slow", name, OpenOptions::read()).expect_err("late");
    assert!(matches!(error, OpenError::Session(SessionError::TimedOut)));
    session.let_go();
    // Reading its answer finds the late one, with a handle that nobody has.
    drop(hasty.open_file(&path, OpenOptions::read()).expect("answered"));
    eventually("both are closed", || session.closed().len() == 2);
}

#[test]
fn questions_of_many_threads_get_their_own_answers() {
    let daemon = Daemon::start(Manners::default());
    let (client, _session) = daemon.pair(small());
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let (client, folder) = (&client, daemon.folder());
            scope.spawn(move || {
                let path = folder.join(thread.to_string());
                std::fs::write(&path, vec![0; thread]).expect("a folder");
                for _ in 0..100 {
                    let handle = client.open_file(&path, OpenOptions::read()).expect("a file");
                    assert_eq!(handle.len(), thread as u64);
                }
            });
        }
    });
}

#[test]
fn an_exported_region_comes_back_when_it_is_closed() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(small());
    let mut buffer = client.allocate(2 * PAGE).expect("all of it");
    buffer.write_at(0, b"before").expect("inside");
    let region = client.export_region("name", buffer, Access::READ).expect("exported");
    assert!(client.allocate(1).is_err(), "it is others' as long as it is exported");
    let mut seen = [0; 6];
    region.read_at(0, &mut seen).expect("inside");
    assert_eq!((&seen, region.len()), (b"before", 2 * PAGE));
    session.segment(0).store(3, b"others").expect("inside");
    assert!(region.write_at(2 * PAGE - 1, b"xy").is_err());
    let buffer = region.close().expect("confirmed");
    assert_eq!(&buffer.as_slice()[..9], b"befothers".as_slice().get(..9).expect("nine"));
    let region = client.export_region("name", buffer, Access::READ).expect("exported");
    drop(region);
    assert_eq!(session.closed().len(), 2);
    assert!(client.allocate(2 * PAGE).is_ok());
}

#[test]
fn a_region_that_nobody_confirms_is_not_used_again() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(small());
    let buffer = client.allocate(2 * PAGE).expect("all of it");
    let region = client.export_region("name", buffer, Access::READ).expect("exported");
    session.die();
    assert!(matches!(region.close(), Err(SessionError::Disconnected)));
    assert!(client.allocate(1).is_err());
    assert!(!client.is_connected());
}

#[test]
fn every_thread_reads_its_own_bytes() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(small().arena_bytes(64 * PAGE as u64).depth(15));
    let serving = session.serve(false);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (client, folder) = (&client, daemon.folder());
            scope.spawn(move || {
                let path = folder.join(thread.to_string());
                let content: Vec<u8> = (0..40_000).map(|at| (at % 199) as u8 ^ thread).collect();
                std::fs::write(&path, &content).expect("a folder");
                let file = client.open_file(&path, OpenOptions::read()).expect("a file");
                let mut queue = client.queue().expect("a queue");
                let mut pending = std::collections::VecDeque::new();
                for round in 0..400_usize {
                    let offset = round * 97 % 39_000;
                    let buffer = client.allocate(1000).expect("room");
                    let read = queue.submit_read(&file, offset as u64, buffer).expect("room");
                    pending.push_back((offset, read));
                    if pending.len() == 8 {
                        let (offset, read) = pending.pop_front().expect("eight");
                        let done = read.wait(&mut queue).expect("read");
                        assert_eq!(done.payload.as_slice(), &content[offset..offset + 1000]);
                    }
                }
            });
        }
    });
    drop(client);
    serving.join().expect("the daemon does not panic");
}

#[test]
fn a_sleeper_is_woken_by_the_end_of_the_daemon() {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(small());
    let mut queue = client.queue().expect("a queue");
    let pending = queue.submit_nop().expect("room");
    let mut armed = client.queue().expect("another queue");
    armed.submit_detached(Request::nop()).expect("room");
    assert!(armed.arm());
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| pending.wait(&mut queue));
        eventually("it is submitted", || session.take(0).is_some());
        session.die();
        let error = sleeper.join().expect("no panics").expect_err("dead");
        assert_eq!(error.cause, Cause::Disconnected);
    });
    assert!(queue.counters().sleeps < 1000, "told by the kernel, not found out by looking");
    let fd = rustix::event::PollFd::new(&armed, rustix::event::PollFlags::IN);
    assert_eq!(rustix::event::poll(&mut [fd], None), Ok(1), "an event loop sees it too");
    armed.drain();
    assert!(armed.poll().expect("ended").result.is_err());
}

#[test]
fn a_client_beside_its_shard_does_not_spin() {
    let cpus = rustix::thread::sched_getaffinity(None).expect("some CPUs");
    let cpu = (0..1024).find(|cpu| cpus.is_set(*cpu)).expect("this thread runs");
    let manners = Manners { shard_cpu: cpu as i32, client_spin_ns: u64::MAX, ..Manners::default() };
    let daemon = Daemon::start(manners);
    let (client, _session) = daemon.pair(small());
    let mut elsewhere = client.queue().expect("a queue");
    assert!(!elsewhere.spin_budget().is_zero(), "as the daemon recommends");
    assert_eq!(client.shard_cpu(), Some(cpu as u32));
    assert!(client.pin_current_thread_to_shard().expect("a CPU of ours"));
    assert!(client.queue().expect("a queue").spin_budget().is_zero());
    assert!(elsewhere.pin_to_shard().expect("a CPU of ours"));
    assert!(elsewhere.spin_budget().is_zero());
}
