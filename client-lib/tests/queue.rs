//! A client and a daemon that the test plays step by step, on one thread.

mod support;

use std::sync::Arc;
use std::time::Duration;

use piped_client::{
    BufferState, Buffers, BuffersFault, Call, Cause, Class, Client, ClientBuilder, Handle,
    OpenOptions, Request, Status, SubmitFault, WaitPolicy, Waited, call,
};
use piped_ring::{CompletionEntry, CompletionKind, FLAG_DURABLE, Opcode};
use support::{Daemon, Manners, Session, memory};

const PAGE: usize = 4096;

struct World {
    _daemon: Daemon,
    client: Client,
    session: Arc<Session>,
    file: Handle,
}

/// `pages` of arena and queues `depth` deep.
fn world(pages: u64, depth: u32) -> World {
    let daemon = Daemon::start(Manners::default());
    let builder = ClientBuilder::new().arena_bytes(pages * PAGE as u64).depth(depth);
    let (client, session) = daemon.pair(builder);
    std::fs::write(daemon.folder().join("file"), [1; PAGE]).expect("a folder");
    let file = client.open_file(daemon.folder().join("file"), OpenOptions::read_write());
    World { _daemon: daemon, client, session, file: file.expect("a file") }
}

#[test]
fn a_request_carries_what_was_asked() {
    let World { client, session, file, .. } = world(4, 7);
    let mut queue = client.queue().expect("the first queue");
    let buffer = client.allocate(100).expect("room");
    let request = Request::write(&file, 12_345, buffer)
        .piece(10..30)
        .durable()
        .class(Class::Bulk)
        .deadline(Duration::from_millis(3));
    let pending = queue.submit(request).expect("room");
    assert!(session.take(0).is_none(), "not published before it is flushed");
    queue.flush();
    let seen = session.take(0).expect("flushed");
    assert_eq!(seen.opcode, Opcode::Write as u8);
    assert_eq!((seen.flags, seen.class, seen.deadline_ns), (FLAG_DURABLE, 2, 3_000_000));
    assert_eq!((seen.handle_a, seen.offset_a), (file.number(), 12_345));
    assert_eq!((seen.segment, seen.buffer_offset % 4096, seen.length), (0, 10, 20));
    session.finish(0, &seen, Status::Ok, 20);
    let done = pending.wait(&mut queue).expect("finished");
    assert_eq!((done.bytes, done.payload.len()), (20, 100));
}

#[test]
fn a_call_lies_at_the_start_of_its_buffer_and_so_does_its_answer() {
    let World { client, session, file, .. } = world(4, 7);
    let mut queue = client.queue().expect("the first queue");
    let call = Call::Truncate { length: 77 };
    let mut buffer = client.allocate(100).expect("room");
    let bytes = call.encode(buffer.as_mut_slice()).expect("it fits");
    let asked = buffer.to_vec();
    let pending = queue.submit(Request::call(&file, buffer, bytes)).expect("room");
    queue.flush();
    let seen = session.take(0).expect("flushed");
    assert_eq!((seen.opcode, seen.operand_a), (Opcode::Call as u8, bytes as u64));
    assert_eq!((seen.handle_a, seen.length), (file.number(), 100));
    let mut there = vec![0; 100];
    session.segment(0).load(seen.buffer_offset, &mut there).expect("inside");
    assert_eq!(there, asked);
    assert_eq!(Call::parse(&there[..bytes]), Ok(call));
    session.segment(0).store(seen.buffer_offset, &[9; 7]).expect("inside");
    session.finish(0, &seen, Status::Ok, 7);
    let done = pending.wait(&mut queue).expect("finished");
    assert_eq!((done.bytes, &done.payload.as_slice()[..7]), (7, &[9; 7][..]));
}

#[test]
fn a_call_without_room_is_not_asked_and_gives_its_buffer_back() {
    let World { client, session, file, .. } = world(4, 7);
    let mut queue = client.queue().expect("the first queue");
    let long = [b'x'; call::PATH_BYTES_MAX + 1];
    for (room, call) in [(10, Call::Space), (4096, Call::Stat { path: &long })] {
        let buffer = client.allocate(room).expect("room");
        let error = queue.call(&file, &call, buffer).expect_err("it does not fit");
        assert_eq!(error.cause, Cause::NotSubmitted(SubmitFault::Call));
        assert_eq!(error.into_buffer().map(|buffer| buffer.len()), Some(room));
    }
    assert!(session.take(0).is_none());
}

#[test]
fn a_buffer_under_way_is_nobody_elses() {
    let World { client, session, file, .. } = world(1, 3);
    let mut queue = client.queue().expect("the first queue");
    let buffer = client.allocate(PAGE).expect("the only page");
    let pending = queue.submit_read(&file, 0, buffer).expect("room");
    assert!(client.allocate(1).is_err(), "the only page is lent to the daemon");
    queue.flush();
    let seen = session.take(0).expect("flushed");
    session.fill(&seen, 9);
    session.finish(0, &seen, Status::Ok, 5);
    let done = pending.wait(&mut queue).expect("finished");
    assert_eq!((done.bytes, done.payload.as_slice()), (5, [9; PAGE].as_slice()));
    drop(done);
    assert!(client.allocate(PAGE).is_ok());
}

#[test]
fn a_dropped_request_is_cancelled_and_keeps_its_memory_until_the_daemon_is_done() {
    let World { client, session, file, .. } = world(1, 3);
    let mut queue = client.queue().expect("the first queue");
    let buffer = client.allocate(PAGE).expect("the only page");
    let pending = queue.submit_read(&file, 0, buffer).expect("room");
    queue.flush();
    let read = session.take(0).expect("flushed");
    drop(pending);
    assert!(queue.poll().is_none(), "nobody takes it");
    let cancel = session.take(0).expect("a cancel");
    assert_eq!((cancel.opcode, cancel.operand_a), (Opcode::Cancel as u8, read.user_data));
    session.finish(0, &cancel, Status::Ok, 0);
    assert!(queue.poll().is_none());
    assert!(client.allocate(1).is_err(), "the daemon still has the page");
    session.finish(0, &read, Status::Cancelled, 0);
    assert!(queue.poll().is_none());
    assert!(client.allocate(1).is_ok(), "the daemon is done with it");
    assert_eq!(queue.underway(), 0);
}

#[test]
fn a_finished_request_that_is_dropped_gives_its_memory_back() {
    let World { client, session, file, .. } = world(1, 3);
    let mut queue = client.queue().expect("the first queue");
    let pending = queue.submit_read(&file, 0, client.allocate(PAGE).expect("a page"));
    queue.flush();
    session.finish(0, &session.take(0).expect("flushed"), Status::Ok, 1);
    assert!(queue.poll().is_none(), "pending requests are not the poller's");
    drop(pending);
    assert!(queue.poll().is_none());
    assert!(session.take(0).is_none(), "there is nothing to cancel");
    assert!(client.allocate(1).is_ok());
}

#[test]
fn a_held_buffer_comes_back_with_its_release_once() {
    let World { client, session, file, .. } = world(1, 3);
    let mut queue = client.queue().expect("the first queue");
    let request = Request::read(&file, 0, client.allocate(PAGE).expect("a page")).tag(42);
    let pending = queue.submit(request).expect("room");
    let id = pending.id();
    queue.flush();
    let seen = session.take(0).expect("flushed");
    session.hold(0, &seen);
    let error = pending.wait(&mut queue).expect_err("the deadline passed");
    assert_eq!(error.status(), Some(Status::DeadlineExceeded));
    assert!(matches!(error.buffer, BufferState::Held));
    assert!(client.allocate(1).is_err(), "held is not free");
    assert!(queue.wait_released(Some(Duration::from_millis(1))).is_none());
    assert!(queue.is_held(id));
    session.release(0, &seen);
    let released = queue.wait_released(None).expect("released");
    assert!(!queue.is_held(id));
    assert_eq!((released.id, released.tag, released.buffer.len()), (id, 42, PAGE));
    assert!(queue.wait_released(None).is_none(), "nothing is held any more");
    drop(released);
    assert!(client.allocate(1).is_ok());
}

#[test]
fn a_release_that_is_there_first_is_told_with_the_result() {
    let World { client, session, file, .. } = world(1, 3);
    let mut queue = client.queue().expect("the first queue");
    let request = Request::read(&file, 0, client.allocate(PAGE).expect("a page"));
    queue.submit_detached(request).expect("room");
    queue.flush();
    let seen = session.take(0).expect("flushed");
    session.hold(0, &seen);
    session.release(0, &seen);
    let completed = queue.wait(None).expect("finished");
    let error = completed.result.expect_err("the deadline passed");
    assert!(matches!(error.buffer, BufferState::Returned(_)));
    assert!(queue.poll_released().is_none());
}

#[test]
fn a_held_buffer_that_nobody_wants_goes_back_to_the_arena() {
    let World { client, session, file, .. } = world(1, 3);
    let mut queue = client.queue().expect("the first queue");
    let pending = queue.submit_read(&file, 0, client.allocate(PAGE).expect("a page"));
    queue.flush();
    let seen = session.take(0).expect("flushed");
    session.hold(0, &seen);
    drop(pending);
    assert!(queue.poll().is_none());
    assert!(client.allocate(1).is_err(), "held is not free");
    session.release(0, &seen);
    assert!(queue.poll().is_none());
    assert!(queue.poll_released().is_none());
    assert!(client.allocate(1).is_ok());
}

#[test]
fn detached_requests_end_in_the_daemons_order() {
    let World { client, session, file, .. } = world(4, 7);
    let mut queue = client.queue().expect("the first queue");
    for tag in 0..3 {
        let request = Request::read(&file, 0, client.allocate(1).expect("a page")).tag(tag);
        queue.submit_detached(request).expect("room");
    }
    let kept = queue.submit_nop().expect("room");
    let tagged = queue.submit(Request::nop().tag(3)).expect("room");
    let id = queue.detach(tagged);
    queue.flush();
    let seen: Vec<_> = std::iter::from_fn(|| session.take(0)).collect();
    for place in [2, 0, 4, 1] {
        session.finish(0, &seen[place], Status::Ok, 0);
    }
    let ended: Vec<_> = std::iter::from_fn(|| queue.wait(None)).collect();
    let tags: Vec<_> = ended.iter().map(|completed| completed.tag).collect();
    assert_eq!(tags, [2, 0, 3, 1]);
    assert_eq!(ended[2].id, id);
    assert!(ended[0].result.as_ref().is_ok_and(|done| done.payload.is_some()));
    session.finish(0, &seen[3], Status::Ok, 0);
    assert!(kept.wait(&mut queue).is_ok());
}

#[test]
fn a_full_queue_gives_the_buffer_back_and_can_be_cancelled() {
    let World { client, session, file, .. } = world(4, 1);
    let mut queue = client.queue().expect("the first queue");
    assert_eq!(queue.depth(), 1);
    let first = queue.submit_nop().expect("room");
    let refused = queue.submit_read(&file, 0, client.allocate(100).expect("room"));
    let refused = refused.expect_err("one request is under way");
    assert_eq!((refused.fault, refused.buffer.len()), (SubmitFault::Full, 100));
    let error = queue.read(&file, 0, refused.buffer).expect_err("still full");
    assert_eq!(error.cause, Cause::NotSubmitted(SubmitFault::Full));
    assert!(error.into_buffer().is_some());
    queue.flush();
    let seen = session.take(0).expect("flushed");
    assert!(queue.cancel(&first));
    assert!(!queue.cancel(&first), "once is enough");
    let cancel = session.take(0).expect("one entry is for cancels");
    session.finish(0, &seen, Status::Cancelled, 0);
    session.finish(0, &cancel, Status::Ok, 0);
    let error = first.wait(&mut queue).expect_err("cancelled");
    assert_eq!(error.status(), Some(Status::Cancelled));
    assert!(queue.submit_nop().is_ok());
}

#[test]
fn many_cancels_of_a_full_queue_are_sent_as_room_comes() {
    let World { client, session, .. } = world(4, 7);
    let mut queue = client.queue().expect("the first queue");
    let pending: Vec<_> = (0..7).map(|_| queue.submit_nop().expect("room")).collect();
    queue.flush();
    let seen: Vec<_> = std::iter::from_fn(|| session.take(0)).collect();
    assert_eq!(seen.len(), 7);
    drop(pending);
    let mut targets = Vec::new();
    for _ in 0..7 {
        assert!(queue.poll().is_none());
        while let Some(cancel) = session.take(0) {
            targets.push(cancel.operand_a);
            session.finish(0, &cancel, Status::Ok, 0);
        }
    }
    targets.sort_unstable();
    let mut expected: Vec<_> = seen.iter().map(|seen| seen.user_data).collect();
    expected.sort_unstable();
    assert_eq!(targets, expected);
    seen.iter().for_each(|seen| session.finish(0, seen, Status::Cancelled, 0));
    assert!(queue.poll().is_none());
    assert_eq!(queue.underway(), 0);
}

#[test]
fn the_watermark_shows_what_landed() {
    let World { client, session, file, .. } = world(4, 3);
    let mut queue = client.queue().expect("the first queue");
    let request = Request::read(&file, 0, client.allocate(3 * PAGE).expect("room"));
    let pending = queue.submit(request.piece(PAGE..3 * PAGE)).expect("room");
    queue.flush();
    assert_eq!(queue.progress(&pending), 0);
    let seen = session.take(0).expect("flushed");
    let mut bytes = [0; 100];
    assert_eq!(queue.copy_landed(&pending, 0, &mut bytes), 0);
    session.fill(&seen, 6);
    session.set_progress(0, seen.slot, 150);
    assert_eq!(queue.progress(&pending), 150);
    assert_eq!(queue.copy_landed(&pending, 0, &mut bytes), 100);
    assert_eq!(queue.copy_landed(&pending, 120, &mut bytes), 30);
    assert_eq!(queue.copy_landed(&pending, u64::MAX, &mut bytes), 0);
    assert_eq!(bytes, [6; 100]);
    session.set_progress(0, seen.slot, u64::MAX);
    assert_eq!(queue.progress(&pending), 2 * PAGE as u64, "no more than was asked for");
    session.finish(0, &seen, Status::Io, 150);
    let id = pending.id();
    assert_eq!(pending.wait(&mut queue).expect_err("an error").bytes, 150);
    assert_eq!(queue.progress(id), 0, "it is not of this queue any more");
}

#[test]
fn bytes_of_lent_memory_that_somebody_cut_have_not_landed() {
    let daemon = Daemon::start(Manners { lends: true, ..Manners::default() });
    let (client, session) = daemon.pair(ClientBuilder::new().arena_bytes(PAGE as u64).depth(3));
    let path = daemon.folder().join("file");
    std::fs::write(&path, [1; PAGE]).expect("a folder");
    let file = client.open_file(path, OpenOptions::read()).expect("a file");
    let memory = memory(2 * PAGE as u64, false);
    let lent = client.lend_shared(&memory).expect("taken");
    let mut queue = client.queue().expect("the first queue");
    let request = Request::read(&file, 0, lent.buffer(0, 2 * PAGE).expect("free"));
    let pending = queue.submit(request).expect("room");
    queue.flush();
    let seen = session.take(0).expect("flushed");
    session.fill(&seen, 6);
    session.set_progress(0, seen.slot, 2 * PAGE as u64);
    let mut bytes = [0; 2 * PAGE];
    assert_eq!(queue.copy_landed(&pending, 0, &mut bytes), 2 * PAGE);
    assert_eq!(bytes, [6; 2 * PAGE]);
    memory.set_len(PAGE as u64).expect("no seal");
    assert_eq!(queue.copy_landed(&pending, 0, &mut bytes), 0, "the second page is gone");
    assert_eq!(queue.copy_landed(&pending, 100, &mut bytes[..100]), 100, "and the first is not");
    session.finish(0, &seen, Status::BadBuffer, 0);
    pending.wait(&mut queue).expect_err("it was cut");
}

#[test]
fn a_status_of_a_later_version_is_an_error_like_others() {
    let World { client, session, file, .. } = world(4, 3);
    let mut queue = client.queue().expect("the first queue");
    let pending = queue.submit_read(&file, 0, client.allocate(1).expect("room")).expect("room");
    queue.flush();
    let seen = session.take(0).expect("flushed");
    let entry = CompletionEntry { status: 999, ..CompletionEntry::default() };
    session.post(0, CompletionEntry { user_data: seen.user_data, ..entry });
    let error = pending.wait(&mut queue).expect_err("not ok");
    assert_eq!((error.cause, error.status()), (Cause::Unknown(999), None));
    assert!(error.into_buffer().is_some());
    assert!(!queue.is_disconnected());
}

#[test]
fn completions_that_contradict_the_requests_end_the_queue() {
    type Lie = fn(u64) -> CompletionEntry;
    let lies: [(&str, Lie); 5] = [
        ("more bytes than asked for", |it| CompletionEntry::finished(it, Status::Ok, 5000)),
        ("nobody's", |it| CompletionEntry::finished(it + 2, Status::Ok, 0)),
        ("an older request's", |it| CompletionEntry::finished(it ^ (1 << 32), Status::Ok, 0)),
        ("done but held", |it| {
            CompletionEntry::finished(it, Status::Ok, 0).with_kind(CompletionKind::FinishedHeld)
        }),
        ("of unknown kind", |it| CompletionEntry {
            kind: 77,
            ..CompletionEntry::finished(it, Status::Ok, 0)
        }),
    ];
    for (name, lie) in lies {
        let World { client, session, file, .. } = world(4, 3);
        let mut queue = client.queue().expect("the first queue");
        let read = queue.submit_read(&file, 0, client.allocate(1).expect("room")).expect("room");
        let write = queue.submit_write(&file, 0, client.allocate(1).expect("room")).expect("room");
        queue.flush();
        let seen = session.take(0).expect("flushed");
        session.take(0).expect("flushed");
        session.post(0, lie(seen.user_data));
        let error = read.wait(&mut queue).expect_err(name);
        assert_eq!(error.cause, Cause::Broken, "{name}");
        assert!(matches!(error.buffer, BufferState::Lost), "{name}: it may still be filled");
        let error = write.wait(&mut queue).expect_err(name);
        assert!(error.into_buffer().is_some(), "{name}: it is only read");
        let refused = queue.submit_nop().expect_err("the queue is of no use");
        assert_eq!(refused.fault, SubmitFault::Disconnected);
    }
}

#[test]
fn the_end_of_the_daemon_ends_every_request() {
    let World { client, session, file, .. } = world(4, 7);
    let mut queue = client.queue().expect("the first queue");
    let done = queue.submit_nop().expect("room");
    let read = queue.submit_read(&file, 0, client.allocate(1).expect("room")).expect("room");
    let write = queue.submit_write(&file, 0, client.allocate(1).expect("room")).expect("room");
    let held = queue.submit_read(&file, 0, client.allocate(1).expect("room")).expect("room");
    queue.submit_detached(Request::nop().tag(5)).expect("room");
    queue.flush();
    let first = session.take(0).expect("flushed");
    session.finish(0, &first, Status::Ok, 0);
    let seen: Vec<_> = std::iter::from_fn(|| session.take(0)).collect();
    session.hold(0, &seen[2]);
    assert!(matches!(held.wait(&mut queue).expect_err("held").buffer, BufferState::Held));
    session.die();
    assert!(matches!(read.wait(&mut queue).expect_err("dead").buffer, BufferState::Lost));
    assert!(done.wait(&mut queue).is_ok(), "what was completed before counts");
    let error = write.wait(&mut queue).expect_err("dead");
    assert_eq!(error.cause, Cause::Disconnected);
    assert!(error.into_buffer().is_some());
    let completed = queue.wait(None).expect("detached ones end too");
    assert_eq!(completed.tag, 5);
    assert!(completed.result.is_err());
    assert!(queue.wait(None).is_none());
    assert!(queue.wait_released(None).is_none(), "nobody will say when");
    assert!(queue.is_disconnected() && !client.is_connected());
    let pages: Vec<_> = std::iter::from_fn(|| client.allocate(1).ok()).collect();
    assert_eq!(pages.len(), 2, "of four pages, the two of the reads may still be filled");
    assert!(client.queue().is_err());
}

#[test]
fn one_who_only_polls_notices_the_end_of_the_daemon() {
    let World { client, session, .. } = world(4, 3);
    let mut queue = client.queue().expect("the first queue");
    queue.submit_detached(Request::nop()).expect("room");
    queue.flush();
    session.die();
    let completed = (0..1 << 20).find_map(|_| queue.poll()).expect("noticed while polling");
    assert_eq!(completed.result.expect_err("dead").cause, Cause::Disconnected);
}

#[test]
fn what_belongs_to_another_client_is_refused() {
    let ours = world(4, 3);
    let theirs = world(4, 3);
    let mut queue = ours.client.queue().expect("the first queue");
    let buffer = theirs.client.allocate(10).expect("room");
    let refused = queue.submit_read(&ours.file, 0, buffer).expect_err("their buffer");
    assert_eq!(refused.fault, SubmitFault::Foreign);
    let buffer = ours.client.allocate(10).expect("room");
    let refused = queue.submit_read(&theirs.file, 0, buffer).expect_err("their handle");
    assert_eq!(refused.fault, SubmitFault::Foreign);
    let their_file = (&theirs.file, 0);
    assert!(queue.submit_copy((&ours.file, 0), their_file, 1).is_err());
    let access = piped_client::Access::READ;
    let buffer = theirs.client.allocate(10).expect("room");
    let error = ours.client.export_region("name", buffer, access).expect_err("their buffer");
    assert!(error.buffer.is_some());
}

#[test]
fn a_piece_lies_inside_its_buffer() {
    let World { client, file, .. } = world(4, 3);
    let mut queue = client.queue().expect("the first queue");
    #[expect(clippy::reversed_empty_ranges, reason = "one of those that are refused")]
    let pieces = [0..101, 100..101, 5..5, 6..5, 0..usize::MAX];
    for piece in pieces {
        let request = Request::read(&file, 0, client.allocate(100).expect("room"));
        let refused = queue.submit(request.piece(piece.clone())).expect_err("outside");
        assert_eq!(refused.fault, SubmitFault::Piece, "{piece:?}");
    }
    assert_eq!(queue.underway(), 0);
}

#[test]
fn waiting_on_another_queue_is_an_error_and_not_a_hang() {
    let World { client, session, .. } = world(4, 3);
    let mut queue = client.queue().expect("the first queue");
    let mut other = client.queue().expect("another queue");
    let pending = queue.submit_nop().expect("room");
    let error = pending.wait(&mut other).expect_err("not its queue");
    assert_eq!(error.cause, Cause::OtherQueue);
    assert!(queue.poll().is_none());
    assert_eq!(session.take(0).map(|it| it.opcode), Some(Opcode::Nop as u8));
    assert_eq!(session.take(0).map(|it| it.opcode), Some(Opcode::Cancel as u8));
    let pending = queue.submit_nop().expect("room");
    assert!(other.wait_any(&[pending], None).is_none());
}

#[test]
fn waiting_has_an_end() {
    let World { client, session, .. } = world(4, 3);
    let mut queue = client.queue().expect("the first queue");
    assert!(queue.wait(None).is_none(), "nothing is under way");
    let pending = queue.submit_nop().expect("room");
    let Waited::Underway(pending) = pending.wait_for(&mut queue, Duration::from_millis(1)) else {
        panic!("nobody completed it");
    };
    let pending = [pending, queue.submit_nop().expect("room")];
    assert!(queue.wait_any(&pending, Some(Duration::from_millis(1))).is_none());
    session.take(0).expect("flushed by waiting");
    let second = session.take(0).expect("flushed by waiting");
    session.finish(0, &second, Status::Ok, 0);
    assert_eq!(queue.wait_any(&pending, None), Some(1));
    let [_, second] = pending;
    assert!(matches!(second.wait_for(&mut queue, Duration::ZERO), Waited::Ended(Ok(_))));
}

#[test]
fn the_next_owner_of_a_dropped_queue_finishes_its_requests() {
    let World { client, session, file, .. } = world(1, 3);
    let mut queue = client.queue().expect("the first queue");
    let pending = queue.submit_read(&file, 0, client.allocate(PAGE).expect("a page"));
    queue.flush();
    drop(queue);
    let read = session.take(0).expect("flushed");
    let cancel = session.take(0).expect("dropped queues cancel");
    assert_eq!(cancel.operand_a, read.user_data);
    let mut queue = client.queue().expect("the same queue");
    assert_eq!(queue.underway(), 1);
    // Its mark must not hit what has its place by then.
    session.finish(0, &cancel, Status::Ok, 0);
    session.finish(0, &read, Status::Cancelled, 0);
    assert!(queue.poll().is_none());
    let next = queue.submit_nop().expect("room");
    let stale = pending.expect("submitted");
    assert!(!queue.cancel(&stale));
    drop(stale);
    queue.flush();
    let seen = session.take(0).expect("flushed");
    session.finish(0, &seen, Status::Ok, 0);
    assert!(next.wait(&mut queue).is_ok());
    assert!(session.take(0).is_none(), "nothing else was cancelled");
    assert!(client.allocate(PAGE).is_ok());
    assert!(session.asked.lock().expect("no panics").len() <= 2, "no second queue was asked for");
}

#[test]
fn allocating_collects_what_dropped_queues_got_back() {
    let World { client, session, file, .. } = world(1, 3);
    let mut queue = client.queue().expect("the first queue");
    let pending = queue.submit_read(&file, 0, client.allocate(PAGE).expect("a page"));
    queue.flush();
    drop((pending, queue));
    session.finish(0, &session.take(0).expect("flushed"), Status::Cancelled, 0);
    assert!(client.allocate(PAGE).is_ok());
}

#[test]
fn the_policy_decides_about_spinning() {
    let World { client, session, .. } = world(4, 3);
    let mut queue = client.queue().expect("the first queue");
    let spin = Duration::from_micros(7);
    queue.set_wait_policy(WaitPolicy::Custom { spin });
    assert_eq!(queue.spin_budget(), spin);
    queue.set_wait_policy(WaitPolicy::Throughput);
    assert!(queue.spin_budget().is_zero());
    let pending = queue.submit_nop().expect("room");
    let Waited::Underway(pending) = pending.wait_for(&mut queue, Duration::from_millis(1)) else {
        panic!("nobody completed it");
    };
    assert!(queue.counters().sleeps > 0);
    session.finish(0, &session.take(0).expect("flushed"), Status::Ok, 0);
    assert!(pending.wait(&mut queue).is_ok());
    assert_eq!(queue.counters().completed, 1);
}

#[test]
fn a_list_takes_as_many_buffers_as_it_has_room_for_and_refuses_the_others_whole() {
    let World { client, .. } = &world(16, 7);
    let buffer = |length| client.allocate(length).expect("room");
    let mut list = Buffers::empty(buffer(Buffers::list_bytes(2).expect("few")));
    list.put_parts(vec![buffer(100), buffer(200)]).expect("as many");
    assert_eq!(list.bytes(), 300);
    let more = vec![buffer(1), buffer(2), buffer(3)];
    let (fault, back) = list.put_parts(more).expect_err("one too many");
    assert_eq!((fault, back.len()), (BuffersFault::Room(3), 3));
    let (fault, _) = list.put_parts(Vec::new()).expect_err("none");
    assert_eq!(fault, BuffersFault::Count(0));
    assert_eq!(list.bytes(), 300, "those that were there stay");
    let taken: Vec<_> = list.take_parts().iter().map(|part| part.len()).collect();
    assert_eq!((taken, list.parts().len()), (vec![100, 200], 0));
    list.put_parts(vec![buffer(7)]).expect("fewer");
    let list = Buffers::from_list(list.into_list()).expect("a list");
    assert_eq!(list.bytes(), 7);
    assert!(Buffers::from_list(buffer(1)).is_none());
    assert!(Buffers::list_bytes(1025).is_err());
}
