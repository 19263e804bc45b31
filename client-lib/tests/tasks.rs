//! Requests of tasks, against a daemon that the test plays.

mod support;

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use piped_client::{
    Access, AsyncClient, AsyncQueue, Buffer, BufferState, Cause, Client, ClientBuilder,
    ConnectError, Handle, OpenError, OpenOptions, Ready, Request, RequestError, Running, Runtime,
    SessionError, Status, SubmitFault, TokioRuntime, Watch,
};
use piped_ring::{Descriptor, Opcode};
use support::{Daemon, Manners, Session, eventually};
use tokio::runtime::Builder;

const PAGE: usize = 4096;
const LONG: Duration = Duration::from_secs(60);
/// More questions than a socket has room for.
const FULL: usize = 2000;

fn runtimes() -> [tokio::runtime::Runtime; 2] {
    let mut flavours = [Builder::new_current_thread(), Builder::new_multi_thread()];
    flavours
        .each_mut()
        .map(|builder| builder.worker_threads(2).enable_all().build().expect("a runtime"))
}

fn current_thread() -> tokio::runtime::Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place * 7 % 251) as u8).collect()
}

struct World {
    daemon: Daemon,
    client: AsyncClient,
    session: Arc<Session>,
    file: Handle,
    queue: AsyncQueue,
}

async fn connect(daemon: &Daemon, builder: ClientBuilder) -> (AsyncClient, Arc<Session>) {
    let runtime = Arc::new(TokioRuntime::current().expect("inside of one"));
    let client = AsyncClient::open(builder, Some(daemon.socket()), runtime).await.expect("welcome");
    (client, daemon.session())
}

/// A file of `pages`, `pages` of arena and a queue `depth` deep.
async fn world(pages: usize, depth: u32, manners: Manners) -> World {
    let daemon = Daemon::start(manners);
    let builder = ClientBuilder::new().arena_bytes((pages * PAGE) as u64).depth(depth);
    let (client, session) = connect(&daemon, builder).await;
    let path = daemon.folder().join("file");
    std::fs::write(&path, content(pages * PAGE)).expect("a folder");
    let file = client.open_file(path, OpenOptions::read_write()).await.expect("a file");
    let queue = client.queue().await.expect("the first queue");
    World { daemon, client, session, file, queue }
}

impl World {
    fn read(&self, page: usize, buffer: Buffer) -> Running<Buffer> {
        self.queue.submit(Request::read(&self.file, (page * PAGE) as u64, buffer))
    }

    async fn buffer(&self) -> Buffer {
        self.client.allocate(PAGE).await.expect("room")
    }

    fn take(&self) -> Descriptor {
        self.session.take(0).expect("it was published")
    }
}

/// Polls once.
async fn look<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

#[test]
fn a_thousand_reads_of_many_tasks_share_a_short_queue() {
    for runtime in runtimes() {
        let bytes = runtime.block_on(async {
            let world = world(128, 15, Manners::default()).await;
            let serving = world.session.serve(false);
            let tasks: Vec<_> = (0..100)
                .map(|task| {
                    let (client, queue, file) =
                        (world.client.clone(), world.queue.clone(), world.file.clone());
                    tokio::spawn(async move {
                        let mut buffer = client.client().allocate(512).expect("a page each");
                        let mut bytes = 0;
                        for read in 0..10 {
                            let offset = (task * 10 + read) * 200;
                            let (filled, count) =
                                queue.read(&file, offset as u64, buffer).await.expect("served");
                            assert_eq!(filled.as_slice(), &content(1 << 19)[offset..][..512]);
                            (buffer, bytes) = (filled, bytes + count);
                        }
                        bytes
                    })
                })
                .collect();
            let mut bytes = 0;
            for task in tasks {
                bytes += task.await.expect("no panics");
            }
            assert_eq!(world.queue.underway(), 0);
            drop((world.queue, world.file, world.client));
            world.session.die();
            serving.join().expect("no panics");
            bytes
        });
        assert_eq!(bytes, 1000 * 512);
    }
}

#[test]
fn a_dropped_future_cancels_and_its_buffer_comes_back_when_the_daemon_is_done() {
    current_thread().block_on(async {
        let world = world(1, 7, Manners::default()).await;
        let mut running = world.read(0, world.buffer().await);
        assert!(look(&mut running).await.is_pending());
        let asked = world.take();
        drop(running);
        // Nobody had to touch the queue again for the daemon to hear of it.
        let cancel = world.take();
        assert_eq!(cancel.opcode, Opcode::Cancel as u8);
        assert_eq!(cancel.operand_a, asked.user_data);
        assert!(world.client.client().allocate(PAGE).is_err(), "the daemon still has the page");
        world.session.finish(0, &asked, Status::Cancelled, 0);
        // The bell has it taken in; no future is left that could.
        while world.queue.underway() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(world.client.client().allocate(PAGE).is_ok());
    });
}

#[test]
fn futures_are_dropped_at_any_moment_and_every_buffer_comes_back() {
    const PAGES: usize = 8;
    for seed in [1, 2, 3] {
        for runtime in runtimes() {
            runtime.block_on(async {
                let world = world(PAGES, 3, Manners::default()).await;
                let serving = world.session.serve(false);
                let mut random = seed;
                let mut next = move |below: u64| {
                    random = u64::wrapping_mul(random, 6_364_136_223_846_793_005).wrapping_add(9);
                    (random >> 33) % below
                };
                let mut running: Vec<Running<Buffer>> = Vec::new();
                for _ in 0..2000 {
                    if running.len() < PAGES
                        && let Ok(Some(buffer)) = world.client.client().allocate(PAGE).map(Some)
                    {
                        running.push(world.read(next(PAGES as u64) as usize, buffer));
                    }
                    if running.is_empty() {
                        tokio::task::yield_now().await;
                        continue;
                    }
                    let place = next(running.len() as u64) as usize;
                    match next(4) {
                        0 => drop(running.swap_remove(place)),
                        1 => {
                            let done = running.swap_remove(place).await.expect("served");
                            assert_eq!(done.bytes, PAGE as u64, "seed {seed}");
                        }
                        _ => {
                            if let Poll::Ready(done) = look(&mut running[place]).await {
                                done.expect("served");
                                drop(running.swap_remove(place));
                            }
                        }
                    }
                }
                running.clear();
                while world.queue.underway() > 0 {
                    tokio::task::yield_now().await;
                }
                let all: Vec<_> =
                    (0..PAGES).map(|_| world.client.client().allocate(PAGE)).collect();
                assert!(all.iter().all(Result::is_ok), "seed {seed}: {all:?}");
                world.session.die();
                serving.join().expect("no panics");
            });
        }
    }
}

#[test]
fn a_full_queue_serves_in_order_whoever_is_polled() {
    current_thread().block_on(async {
        let world = world(4, 1, Manners::default()).await;
        let mut running = Vec::new();
        for page in 0..4 {
            let mut read = world.read(page, world.buffer().await);
            assert!(look(&mut read).await.is_pending());
            running.push(read);
        }
        assert!(running[0].id().is_some() && running[1..].iter().all(|it| it.id().is_none()));
        let first = world.take();
        assert!(world.session.take(0).is_none(), "the queue is one deep");
        // The second leaves: the third is next.
        drop(running.remove(1));
        world.session.finish(0, &first, Status::Ok, PAGE as u64);
        // The one behind them is polled, and not the one whose turn it is.
        running.remove(0).await.expect("done");
        assert!(look(&mut running[1]).await.is_pending());
        assert!(running[1].id().is_none());
        let third = world.take();
        assert_eq!(third.offset_a, 2 * PAGE as u64);
        world.session.finish(0, &third, Status::Ok, PAGE as u64);
        running.remove(0).await.expect("done");
        assert!(look(&mut running[0]).await.is_pending());
        assert_eq!(world.take().offset_a, 3 * PAGE as u64);
    });
}

#[test]
fn the_end_of_the_daemon_ends_everything() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let world = world(8, 4, Manners::default()).await;
            let mut tasks = Vec::new();
            for page in 0..8 {
                let read = world.read(page, world.buffer().await);
                tasks.push(tokio::spawn(read));
            }
            let slow = world.client.clone();
            world.session.die();
            for task in tasks {
                let error = task.await.expect("no panics").expect_err("nobody answered");
                let fault = matches!(error.cause, Cause::Disconnected | Cause::NotSubmitted(_));
                assert!(fault, "{error}");
            }
            assert!(world.queue.is_disconnected());
            let error = slow.open_export(None, "any", "path", OpenOptions::read()).await;
            let gone = matches!(error, Err(OpenError::Session(SessionError::Disconnected)));
            assert!(gone, "{error:?}");
        });
    }
}

#[test]
fn an_idle_queue_has_its_ring_fetched_when_others_took_those_that_were_ready() {
    for (runtime, rings) in runtimes().into_iter().zip([u32::MAX, 0]) {
        runtime.block_on(async {
            let daemon = Daemon::start(Manners { rings, ..Manners::default() });
            let builder = ClientBuilder::new().arena_bytes(4 * PAGE as u64).depth(3);
            let (client, session) = connect(&daemon, builder.reconnect(LONG)).await;
            let path = daemon.folder().join("file");
            std::fs::write(&path, content(PAGE)).expect("a folder");
            let file = client.open_file(path, OpenOptions::read()).await.expect("a file");
            let idle = client.queue().await.expect("the first queue");
            session.die();
            eventually("the client sees it", || !client.client().is_connected());
            client.reconnect().await.expect("the next one is there");
            let next = daemon.session();
            // The ring that was ready for the other.
            let new = client.queue().await.expect("a queue");
            let serving = next.serve(false);
            let buffer = || client.client().allocate(PAGE).expect("room");
            for _ in 0..2 {
                match idle.read(&file, 0, buffer()).await {
                    Ok((buffer, _)) => assert!(rings > 0 && buffer.as_slice() == content(PAGE)),
                    Err(error) => {
                        let cause = Cause::NotSubmitted(SubmitFault::Disconnected);
                        assert_eq!((rings, error.cause), (0, cause), "said, and not waited for");
                    }
                }
                assert_eq!(idle.is_disconnected(), rings == 0);
            }
            let (buffer, _) = new.read(&file, 0, buffer()).await.expect("served");
            assert_eq!(buffer.as_slice(), content(PAGE));
            next.die();
            serving.join().expect("no panics");
        });
    }
}

#[test]
fn a_region_is_closed_though_nobody_waits_until_that_is_asked() {
    let [_, runtime] = runtimes();
    let World { client, session, queue, .. } = runtime.block_on(world(2, 7, Manners::default()));
    let buffer = client.client().allocate(PAGE).expect("room");
    let region = runtime.block_on(client.export_region("halo", buffer, Access::READ));
    let region = region.expect("offered");
    let number = region.handle().number();
    let mut cx = Context::from_waker(Waker::noop());
    // The daemon reads no more, until the socket is full.
    let hushed = session.asked.lock().expect("no panics");
    let mut opening: Vec<_> = (0..FULL)
        .map(|_| Box::pin(client.open_export(None, "data", "nothing", OpenOptions::read())))
        .collect();
    assert!(opening.iter_mut().all(|it| it.as_mut().poll(&mut cx).is_pending()));
    let mut closing = Box::pin(client.close_region(region));
    assert!(closing.as_mut().poll(&mut cx).is_pending());
    drop((closing, opening));
    drop(hushed);
    eventually("it is closed", || session.closed().contains(&number));
    drop(queue);
}

#[test]
fn a_held_buffer_is_held_and_comes_back() {
    current_thread().block_on(async {
        let world = world(1, 7, Manners::default()).await;
        let running = world.read(0, world.buffer().await);
        let asked = world.take();
        world.session.hold(0, &asked);
        let error = running.await.expect_err("the deadline passed");
        assert!(matches!(error.buffer, BufferState::Held), "{error}");
        assert!(world.queue.poll_released().is_none());
        world.session.release(0, &asked);
        assert_eq!(world.queue.poll_released().expect("free").buffer.len(), PAGE);
    });
}

#[test]
fn an_open_that_takes_long_holds_up_neither_other_opens_nor_other_tasks() {
    current_thread().block_on(async {
        let world = world(1, 7, Manners { slow: true, ..Manners::default() }).await;
        let path = world.daemon.folder().join("file");
        let slow = world.client.open_export(Some("away"), "slow", &path, OpenOptions::read());
        let mut slow = Box::pin(slow);
        assert!(look(&mut slow).await.is_pending());
        let quick = world.client.open_export(None, "quick", &path, OpenOptions::read()).await;
        assert_eq!(quick.expect("there").len(), PAGE as u64);
        assert!(look(&mut slow).await.is_pending());
        world.session.let_go();
        assert_eq!(slow.await.expect("there").len(), PAGE as u64);
    });
}

#[test]
fn threads_and_tasks_ask_over_one_socket() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let world = world(1, 7, Manners::default()).await;
            let path = world.daemon.folder().join("file");
            let (client, name) = (world.client.client().clone(), path.clone());
            let thread = std::thread::spawn(move || {
                for _ in 0..200 {
                    let opened = client.open_export(None, "data", &name, OpenOptions::read());
                    opened.expect("there");
                }
            });
            let tasks: Vec<_> = (0..4)
                .map(|_| {
                    let (client, name) = (world.client.clone(), path.clone());
                    tokio::spawn(async move {
                        for _ in 0..200 {
                            let read = OpenOptions::read();
                            client.open_export(None, "data", &name, read).await.expect("there");
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("no panics");
            }
            thread.join().expect("no panics");
            let session = Arc::clone(&world.session);
            eventually("all are closed again", move || session.closed().len() == 5 * 200);
        });
    }
}

#[test]
fn what_was_opened_for_a_dropped_future_is_closed() {
    current_thread().block_on(async {
        let world = world(1, 7, Manners { slow: true, ..Manners::default() }).await;
        let path = world.daemon.folder().join("file");
        let open = world.client.open_export(None, "slow", &path, OpenOptions::read());
        let mut open = Box::pin(open);
        assert!(look(&mut open).await.is_pending());
        let asked = |session: &Session| session.asked.lock().expect("no panics").len();
        let session = Arc::clone(&world.session);
        eventually("it is asked", move || asked(&session) == 3);
        drop(open);
        world.session.let_go();
        // The watch of the socket reads the answer; nobody asks anything any more.
        while world.session.closed().is_empty() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn memory_that_a_dropped_task_asked_for_is_the_next_ones() {
    current_thread().block_on(async {
        let manners = Manners { growths: 1, slow: true, ..Manners::default() };
        let world = world(1, 7, manners).await;
        let first = world.buffer().await;
        let mut dropped = Box::pin(world.client.allocate(PAGE));
        assert!(look(&mut dropped).await.is_pending(), "the arena has one page");
        let mut second = Box::pin(world.client.allocate(PAGE));
        assert!(look(&mut second).await.is_pending(), "one question for both");
        drop(dropped);
        let session = Arc::clone(&world.session);
        eventually("it is asked", move || session.delays() == 1);
        // The daemon grants one segment only.
        world.session.let_go();
        let second = second.await.expect("the one that was granted");
        let mut third = Box::pin(world.client.allocate(PAGE));
        assert!(look(&mut third).await.is_pending());
        let session = Arc::clone(&world.session);
        eventually("it is asked", move || session.delays() == 1);
        world.session.let_go();
        third.await.expect_err("no more");
        drop((first, second));
    });
}

#[test]
fn many_tasks_let_the_arena_grow_once() {
    current_thread().block_on(async {
        let manners = Manners { growths: 1, ..Manners::default() };
        let world = world(8, 7, manners).await;
        let whole = world.client.allocate(8 * PAGE).await.expect("empty");
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let client = world.client.clone();
                tokio::spawn(async move { client.allocate(PAGE).await.expect("grown") })
            })
            .collect();
        let mut buffers = Vec::new();
        for task in tasks {
            buffers.push(task.await.expect("no panics"));
        }
        drop(whole);
    });
}

#[test]
fn nobody_answers_and_other_tasks_go_on() {
    // Listens, and accepts nobody: as a daemon that is stopped.
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let kind = SocketType::SEQPACKET;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let listener = listener.expect("a socket");
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).expect("short")).expect("bound");
    rustix::net::listen(&listener, 0).expect("listens");
    current_thread().block_on(async {
        let runtime = Arc::new(TokioRuntime::current().expect("inside"));
        // More than the listener keeps: some cannot even connect.
        let connecting: Vec<_> = (0..4)
            .map(|_| {
                let builder = ClientBuilder::new().timeout(Duration::from_millis(200));
                let (path, runtime) = (path.clone(), Arc::clone(&runtime));
                tokio::spawn(async move { AsyncClient::open(builder, Some(path), runtime).await })
            })
            .collect();
        let mut turns = 0;
        while connecting.iter().any(|it| !it.is_finished()) {
            tokio::task::yield_now().await;
            turns += 1;
        }
        assert!(turns > 100, "this task had its turns meanwhile: {turns}");
        for task in connecting {
            let error = task.await.expect("no panics").expect_err("nobody answers");
            let in_time = matches!(error, ConnectError::Session(SessionError::TimedOut));
            assert!(in_time, "{error}");
        }
    });
}

#[test]
fn a_queue_whose_runtime_is_gone_says_so() {
    let first = current_thread();
    let world = first.block_on(world(2, 7, Manners::default()));
    let buffer = first.block_on(world.buffer());
    let mut running = world.read(0, buffer);
    drop(first);
    current_thread().block_on(async {
        let error = (&mut running).await.expect_err("nobody would wake it");
        assert_eq!(error.cause, Cause::NoRuntime);
        let buffer = world.client.client().allocate(PAGE).expect("the second page");
        let error = world.queue.read(&world.file, 0, buffer).await.expect_err("nor this one");
        assert_eq!(error.cause, Cause::NoRuntime);
        assert!(matches!(error.buffer, BufferState::Returned(_)));
    });
}

/// A thread for each descriptor.
struct Threads;

impl Runtime for Threads {
    fn watch(&self, fd: OwnedFd, mut ready: Ready) -> io::Result<Watch> {
        use rustix::event::{PollFd, PollFlags, poll};
        let (ours, theirs) = io::pipe()?;
        std::thread::spawn(move || {
            loop {
                let mut polled =
                    [PollFd::new(&fd, PollFlags::IN), PollFd::new(&ours, PollFlags::IN)];
                let waited = poll(&mut polled, None).is_ok();
                let ends = !polled[1].revents().is_empty();
                if ends || (waited && !polled[0].revents().is_empty() && !ready.call()) {
                    return;
                }
            }
        });
        Ok(Watch::new(theirs))
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor: a task on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn an_executor_of_ones_own_needs_no_runtime() {
    let daemon = Daemon::start(Manners { growths: 1, ..Manners::default() });
    let path = daemon.folder().join("file");
    std::fs::write(&path, content(1 << 16)).expect("a folder");
    block_on(async {
        let builder = ClientBuilder::new().arena_bytes(PAGE as u64);
        let client = AsyncClient::open(builder, Some(daemon.socket()), Arc::new(Threads)).await;
        let client = client.expect("welcome");
        let session = daemon.session();
        let serving = session.serve(false);
        let file = client.open_file(&path, OpenOptions::read()).await.expect("there");
        let queue = client.queue().await.expect("a queue");
        let (one, other) = (
            client.allocate(PAGE).await.expect("room"),
            client.allocate(PAGE).await.expect("more"),
        );
        let reads = [(0, one), (7, other)]
            .map(|(offset, buffer)| queue.submit(Request::read(&file, offset, buffer)));
        for (read, offset) in reads.into_iter().zip([0, 7]) {
            let done = read.await.expect("served");
            assert_eq!(done.payload.as_slice(), &content(1 << 16)[offset..][..PAGE]);
        }
        session.die();
        serving.join().expect("no panics");
        let error: RequestError = queue.nop().await.expect_err("it is gone");
        assert!(matches!(error.cause, Cause::Disconnected | Cause::NotSubmitted(_)), "{error}");
    });
}

#[test]
fn a_thread_of_the_same_client_is_welcome() {
    current_thread().block_on(async {
        let world = world(2, 7, Manners::default()).await;
        let client: Client = world.client.client().clone();
        let mut queue = client.queue().expect("another queue");
        let serving = world.session.serve(false);
        let buffer = client.allocate(PAGE).expect("room");
        let (buffer, _) = queue.read(&world.file, 0, buffer).expect("served");
        let (buffer, _) = world.queue.read(&world.file, 0, buffer).await.expect("served");
        assert_eq!(buffer.as_slice(), &content(PAGE));
        world.session.die();
        serving.join().expect("no panics");
    });
}
