//! Tasks beside real daemons: a thousand reads under way, futures that are dropped, daemons that
//! are killed or stopped, on both flavours of tokio's runtime.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use piped_client::{
    AsyncClient, AsyncFile, AsyncQueue, BufferState, Cause, ClientBuilder, DEFAULT_SOCKET, Handle,
    OpenError, OpenOptions, Request, SessionError, StripPolicy, StripStream, Strips, TokioRuntime,
};
use piped_sim::Random;
use rustix::process::Signal;
use system_tests::process::{BLOCKS_BYTES, Daemon, Pair, Programs, itself, pattern, words};
use tokio::io::AsyncReadExt as _;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

const BLOCK: usize = 4096;
const BLOCKS: usize = BLOCKS_BYTES / BLOCK;

fn runtimes() -> [tokio::runtime::Runtime; 2] {
    let mut flavours = [Builder::new_current_thread(), Builder::new_multi_thread()];
    flavours
        .each_mut()
        .map(|builder| builder.worker_threads(2).enable_all().build().expect("a runtime"))
}

struct Scene {
    pair: Pair,
    directory: tempfile::TempDir,
}

/// `None`: the programs are not there.
fn scene() -> Option<Scene> {
    let programs = Programs::find()?;
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    Some(Scene { pair, directory })
}

async fn connect(daemon: &Daemon, builder: ClientBuilder) -> AsyncClient {
    let runtime = Arc::new(TokioRuntime::current().expect("inside"));
    AsyncClient::open(builder, Some(daemon.client_socket()), runtime).await.expect("it serves")
}

async fn blocks(client: &AsyncClient) -> Handle {
    let opened = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    opened.await.expect("it is there")
}

/// One block, and whether it is what the file has.
async fn read(queue: &AsyncQueue, file: &Handle, block: usize) -> Result<bool, Cause> {
    let buffer = queue.allocate(BLOCK).await.expect("memory");
    let offset = block * BLOCK;
    let read = queue.read(file, offset as u64, buffer).await;
    let (buffer, bytes) = read.map_err(|error| error.cause)?;
    Ok(bytes == BLOCK && buffer.as_slice() == &pattern(BLOCKS_BYTES)[offset..offset + BLOCK])
}

#[test]
fn a_thousand_reads_of_many_tasks_are_under_way_at_once() {
    let Some(scene) = scene() else { return };
    for runtime in runtimes() {
        runtime.block_on(async {
            let builder = ClientBuilder::new().depth(1000).arena_bytes(8 << 20);
            let client = connect(&scene.pair.alpha, builder).await;
            let (queue, file) = (client.queue().await.expect("a queue"), blocks(&client).await);
            scene.pair.beta.process.freeze();
            let mut tasks = JoinSet::new();
            for block in 0..1000 {
                let (queue, file) = (queue.clone(), file.clone());
                tasks.spawn(async move { read(&queue, &file, block % BLOCKS).await });
            }
            while queue.underway() < 1000 {
                tokio::task::yield_now().await;
            }
            scene.pair.beta.process.signal(Signal::CONT);
            while let Some(same) = tasks.join_next().await {
                assert_eq!(same.expect("no panics"), Ok(true));
            }
            assert_eq!(queue.underway(), 0);
        });
    }
}

#[test]
fn futures_that_are_dropped_at_any_moment_give_their_buffers_back() {
    let Some(scene) = scene() else { return };
    const PAGES: usize = 64;
    for (runtime, seed) in runtimes().into_iter().zip([11_u64, 12]) {
        runtime.block_on(async {
            let builder = ClientBuilder::new().depth(15).arena_bytes((PAGES * BLOCK) as u64);
            let client = connect(&scene.pair.alpha, builder).await;
            let (queue, file) = (client.queue().await.expect("a queue"), blocks(&client).await);
            let mut tasks = JoinSet::new();
            for task in 0..PAGES as u64 / 2 {
                let (client, queue, file) = (client.clone(), queue.clone(), file.clone());
                tasks.spawn(async move {
                    let mut random = Random::new(seed * 1000 + task);
                    for _ in 0..100 {
                        // The arena may be full of what was dropped and is under way still.
                        let Ok(buffer) = client.client().allocate(BLOCK) else {
                            tokio::task::yield_now().await;
                            continue;
                        };
                        let offset = random.below(BLOCKS as u64) * BLOCK as u64;
                        let mut reading = pin!(queue.submit(Request::read(&file, offset, buffer)));
                        let polls = random.below(4);
                        for _ in 0..polls {
                            let polled = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await;
                            if let Poll::Ready(done) = polled {
                                done.expect("served");
                                return;
                            }
                            tokio::task::yield_now().await;
                        }
                        if polls == 3 {
                            reading.await.expect("served");
                        }
                    }
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            while queue.underway() > 0 {
                tokio::task::yield_now().await;
            }
            let all: Vec<_> = (0..PAGES).map(|_| client.client().allocate(BLOCK)).collect();
            assert!(all.iter().all(Result::is_ok), "seed {seed}: all of the arena is free");
        });
    }
}

#[test]
fn a_killed_daemon_ends_every_future_and_the_next_one_serves() {
    let Some(mut scene) = scene() else { return };
    for runtime in runtimes() {
        runtime.block_on(async {
            let builder = ClientBuilder::new().reconnect(Duration::from_secs(30));
            let client = connect(&scene.pair.alpha, builder).await;
            let (queue, file) = (client.queue().await.expect("a queue"), blocks(&client).await);
            scene.pair.beta.process.freeze();
            let mut tasks = JoinSet::new();
            for block in 0..400 {
                let (client, queue, file) = (client.clone(), queue.clone(), file.clone());
                tasks.spawn(async move {
                    let buffer = client.allocate(BLOCK).await.expect("memory");
                    let read = Request::read(&file, (block * BLOCK) as u64, buffer);
                    match block % 2 {
                        0 => queue.run(read).await,
                        // These wait for the next daemon.
                        _ => queue.run(read.deadline(Duration::from_secs(300)).resubmit()).await,
                    }
                    .map(|done| {
                        done.payload.as_slice() == &pattern(BLOCKS_BYTES)[block * BLOCK..][..BLOCK]
                    })
                    .map_err(|error| {
                        let here =
                            matches!(error.buffer, BufferState::Returned(_) | BufferState::Lost);
                        (here, error.cause)
                    })
                });
            }
            while queue.underway() < queue.depth() {
                tokio::task::yield_now().await;
            }
            scene.pair.alpha.process.signal(Signal::KILL);
            // Those that are not asked again, and were under way.
            let mut ended = 0;
            while ended < 100 {
                let read = tasks.join_next().await.expect("more").expect("no panics");
                let (here, cause) = read.expect_err("nobody served it");
                assert!(
                    here && matches!(cause, Cause::Disconnected | Cause::NotSubmitted(_)),
                    "{cause}"
                );
                ended += 1;
            }
            scene.pair.beta.process.signal(Signal::CONT);
            let settings = scene.pair.settings[0].clone();
            scene.pair.alpha.restart(&settings);
            let mut served = 0;
            while let Some(read) = tasks.join_next().await {
                match read.expect("no panics") {
                    Ok(same) => {
                        assert!(same);
                        served += 1;
                    }
                    Err((_, cause)) => {
                        assert!(
                            matches!(cause, Cause::Disconnected | Cause::NotSubmitted(_)),
                            "{cause}"
                        );
                    }
                }
            }
            assert!(served >= 200, "{served}");
            // The queue goes on.
            assert_eq!(read(&queue, &file, 7).await, Ok(true));
        });
    }
}

#[test]
fn a_stopped_daemon_holds_up_no_other_task() {
    let Some(scene) = scene() else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let builder = ClientBuilder::new().arena_bytes(1 << 20).depth(7);
        let client = connect(&scene.pair.alpha, builder.clone()).await;
        let (queue, file) = (client.queue().await.expect("a queue"), blocks(&client).await);
        // More than the control socket has room for, to be closed while nobody reads it.
        let mut handles = Vec::new();
        for _ in 0..600 {
            handles.push(blocks(&client).await);
        }
        scene.pair.alpha.process.freeze();
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        // Everything that asks the daemon.
        for number in 0..8 {
            let (client, queue, file) = (client.clone(), queue.clone(), file.clone());
            let (builder, socket) = (builder.clone(), scene.pair.alpha.client_socket());
            let path = scene.directory.path().join("root/blocks");
            tasks.spawn(async move {
                match number {
                    0 => drop(client.allocate(64 << 20).await.expect("memory")),
                    1 => drop(client.queue().await.expect("a queue")),
                    2 => drop(blocks(&client).await),
                    3 => drop(client.open_file(path, OpenOptions::read()).await.expect("there")),
                    4 => {
                        let runtime = Arc::new(TokioRuntime::current().expect("inside"));
                        let client = AsyncClient::open(builder, Some(socket), runtime).await;
                        drop(client.expect("welcome"));
                    }
                    5 => {
                        let buffer = client.allocate(BLOCK).await.expect("memory");
                        let region = client.export_region("r", buffer, piped_client::Access::READ);
                        let region = region.await.expect("it is offered");
                        client.close_region(region).await.expect("nobody has it");
                    }
                    6 => drop(client.read_costs(&file).await.expect("it may say none")),
                    _ => assert_eq!(read(&queue, &file, 3).await, Ok(true)),
                }
            });
        }
        tokio::task::yield_now().await;
        drop(handles);
        // This task and a timer go on while all of them wait.
        let flag = Arc::clone(&over);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            flag.store(true, Ordering::Relaxed);
        });
        let mut turns = 0_u64;
        while !over.load(Ordering::Relaxed) {
            turns += 1;
            tokio::task::yield_now().await;
        }
        timer.await.expect("no panics");
        assert!(turns > 0 && tasks.len() == 8);
        assert!(tasks.try_join_next().is_none(), "nobody has answered");
        // A dropped wait is over, whatever the daemon does.
        let late = tokio::time::timeout(Duration::from_millis(10), blocks(&client)).await;
        assert!(late.is_err());
        scene.pair.alpha.process.signal(Signal::CONT);
        while let Some(ended) = tasks.join_next().await {
            ended.expect("each is served in the end");
        }
        // The handles that were dropped meanwhile are closed; this has the last of them sent.
        while open_handles(&scene.pair.alpha) > 1 {
            drop(client.read_costs(&file).await);
        }
    });
}

/// Files that clients of the daemon have open.
fn open_handles(daemon: &Daemon) -> u64 {
    let clients = daemon.json(&["clients"]);
    let all = clients["clients"].as_array().or_else(|| clients.as_array()).expect("a list");
    all.iter().filter_map(|client| client["handles"].as_u64()).sum()
}

#[test]
fn files_and_streams_of_tasks_read_what_is_there() {
    let Some(scene) = scene() else { return };
    for runtime in runtimes() {
        runtime.block_on(async {
            let client = connect(&scene.pair.alpha, ClientBuilder::new()).await;
            let (queue, file) = (client.queue().await.expect("a queue"), blocks(&client).await);
            let mut all = Vec::new();
            AsyncFile::new(&queue, &file).read_to_end(&mut all).await.expect("readable");
            assert!(all == pattern(BLOCKS_BYTES), "as a file");
            let strips = Strips::new().policy(StripPolicy::Fixed(100_000)).grain(1);
            let stream = StripStream::open(&queue, &file, 0..u64::MAX / 2, strips);
            let (mut stream, mut offsets) = (stream.expect("a range"), BTreeSet::new());
            let mut bytes = 0;
            while let Some(strip) = stream.next().await.expect("readable") {
                assert!(strip[..] == pattern(BLOCKS_BYTES)[bytes..bytes + strip.len()]);
                bytes += strip.len();
                offsets.insert(strip.offset());
            }
            assert_eq!((bytes, offsets.len()), (BLOCKS_BYTES, BLOCKS_BYTES.div_ceil(100_000)));
            let gone = client.open_export(Some("beta"), "data", "gone", OpenOptions::read()).await;
            let refused = matches!(gone, Err(OpenError::Session(SessionError::Refused { .. })));
            assert!(refused, "{gone:?}");
        });
    }
}

#[test]
fn the_default_socket_is_the_daemons_and_the_environment_names_another() {
    assert_eq!(DEFAULT_SOCKET, piped_config::Client::DEFAULT_SOCKET);
    let Some(scene) = scene() else { return };
    // Set for a program of its own: an environment is a process's.
    let mut itself = itself("connects_by_default");
    let output = itself.env("PIPED_CLIENT_SOCKET", scene.pair.alpha.client_socket()).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", words(&output));
    let output = itself.env("PIPED_CLIENT_SOCKET", "/nowhere/named.sock").output();
    let told = words(&output.expect("it runs"));
    assert!(told.contains("/nowhere/named.sock (as PIPED_CLIENT_SOCKET says)"), "{told}");
}

#[test]
#[ignore = "a part of `the_default_socket_is_the_daemons_and_the_environment_names_another`"]
fn connects_by_default() {
    piped_client::Client::connect_default().unwrap_or_else(|error| panic!("{error}"));
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(AsyncClient::connect_default()).expect("here as well");
}
