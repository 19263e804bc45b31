//! Handles as files, against a daemon that the test plays: what they do is what a file does.

mod support;

use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use futures_io::{AsyncRead as _, AsyncSeek as _, AsyncWrite as _};
use piped_client::{
    AsyncClient, AsyncFile, Client, ClientBuilder, OpenOptions, Status, StripPolicy, StripStream,
    Strips, TokioRuntime,
};
use support::{Daemon, Manners, Session};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::runtime::Builder;

const BYTES: usize = 300_001;

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place * 7 % 251) as u8).collect()
}

fn runtime() -> tokio::runtime::Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

struct World {
    daemon: Daemon,
    client: Client,
    session: Arc<Session>,
    path: PathBuf,
    serving: Option<JoinHandle<()>>,
}

fn world(bytes: usize, builder: ClientBuilder) -> World {
    let daemon = Daemon::start(Manners::default());
    let (client, session) = daemon.pair(builder);
    let path = daemon.folder().join("file");
    std::fs::write(&path, content(bytes)).expect("a folder");
    let serving = Some(session.serve(false));
    World { daemon, client, session, path, serving }
}

impl World {
    fn open(&self) -> piped_client::Handle {
        self.client.open_file(&self.path, OpenOptions::read_write()).expect("there")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.session.die();
        if let Some(serving) = self.serving.take() {
            serving.join().expect("no panics");
        }
    }
}

/// What a file can do, of whichever library.
trait Filed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize>;
    fn write(&mut self, from: &[u8]) -> io::Result<usize>;
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64>;
    fn flush(&mut self) -> io::Result<()>;
}

struct Blocking<F>(F);

impl<F: Read + Write + Seek> Filed for Blocking<F> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to)
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.0.write(from)
    }

    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

struct OnTokio(tokio::runtime::Runtime, AsyncFile);

impl Filed for OnTokio {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.block_on(AsyncReadExt::read(&mut self.1, to))
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.0.block_on(AsyncWriteExt::write(&mut self.1, from))
    }

    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.block_on(AsyncSeekExt::seek(&mut self.1, to))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.block_on(AsyncWriteExt::flush(&mut self.1))
    }
}

/// The traits of `futures-io`; the runtime only polls.
struct OnFutures(tokio::runtime::Runtime, AsyncFile);

impl Filed for OnFutures {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let file = &mut self.1;
        self.0.block_on(std::future::poll_fn(|cx| Pin::new(&mut *file).poll_read(cx, to)))
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let file = &mut self.1;
        self.0.block_on(std::future::poll_fn(|cx| {
            futures_io::AsyncWrite::poll_write(Pin::new(&mut *file), cx, from)
        }))
    }

    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let file = &mut self.1;
        self.0.block_on(std::future::poll_fn(|cx| Pin::new(&mut *file).poll_seek(cx, to)))
    }

    fn flush(&mut self) -> io::Result<()> {
        let file = &mut self.1;
        self.0.block_on(std::future::poll_fn(|cx| Pin::new(&mut *file).poll_close(cx)))
    }
}

/// All of it, by reads of `step` bytes.
fn read_all(file: &mut impl Filed, step: usize) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), vec![0; step]);
    loop {
        match file.read(&mut part).expect("readable") {
            0 => return all,
            count => all.extend_from_slice(&part[..count]),
        }
    }
}

/// The same seeded reads, writes and seeks of a file and of one of the kernel's.
fn compare(world: &World, file: &mut impl Filed, seed: u64) {
    let twin_path = world.path.with_extension("twin");
    std::fs::copy(&world.path, &twin_path).expect("copied");
    let twin = std::fs::File::options().read(true).write(true).open(&twin_path);
    let mut twin = twin.expect("there");
    let mut random = seed;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(9);
        (random >> 33) % below
    };
    for turn in 0..400 {
        let what = format!("seed {seed}, turn {turn}");
        let length = match next(4) {
            0 => next(20),
            1 => next(5000),
            _ => next(70_000),
        } as usize;
        match next(5) {
            0 => {
                let to = match next(3) {
                    0 => SeekFrom::Start(next(BYTES as u64 + 5000)),
                    1 => SeekFrom::End(-(next(BYTES as u64) as i64)),
                    _ => SeekFrom::Current(next(9000) as i64 - 4500),
                };
                let (sought, wanted) = (file.seek(to), twin.seek(to));
                let sought = sought.map_err(|error| error.kind());
                assert_eq!(sought, wanted.map_err(|error| error.kind()), "{what}: {to:?}");
            }
            1 => {
                let bytes: Vec<u8> = (0..length).map(|it| it as u8 ^ turn as u8).collect();
                assert_eq!(file.write(&[]).expect("nothing is asked"), 0, "{what}");
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let count = file.write(rest).expect("writable");
                    assert!(count > 0, "{what}");
                    rest = &rest[count..];
                }
                twin.write_all(&bytes).expect("writable");
            }
            2 => file.flush().expect("written"),
            _ => {
                let mut wanted = vec![0; length];
                let mut filled = 0;
                while filled < length {
                    match twin.read(&mut wanted[filled..]).expect("readable") {
                        0 => break,
                        count => filled += count,
                    }
                }
                let mut got = vec![0; length];
                let mut count = 0;
                while count < length {
                    match file.read(&mut got[count..]).expect("readable") {
                        0 => break,
                        more => count += more,
                    }
                }
                assert_eq!((count, &got[..count]), (filled, &wanted[..filled]), "{what}");
            }
        }
    }
    file.flush().expect("written");
    let equal =
        std::fs::read(&world.path).expect("there") == std::fs::read(twin_path).expect("too");
    assert!(equal, "seed {seed}");
}

/// A file of tasks, on a runtime of its own.
fn async_file(world: &World) -> (tokio::runtime::Runtime, AsyncFile, JoinHandle<()>) {
    let runtime = runtime();
    let (file, serving) = runtime.block_on(async {
        let runtime = Arc::new(TokioRuntime::current().expect("inside"));
        let builder = ClientBuilder::new().arena_bytes(1 << 20);
        let client = AsyncClient::open(builder, Some(world.daemon.socket()), runtime).await;
        let client = client.expect("welcome");
        let serving = world.daemon.session().serve(false);
        let handle = client.open_file(&world.path, OpenOptions::read_write()).await;
        let queue = client.queue().await.expect("a queue");
        (AsyncFile::new(&queue, &handle.expect("there")).strips(strips()), serving)
    });
    (runtime, file, serving)
}

/// Short strips, and few of them.
fn strips() -> Strips {
    Strips::new().policy(StripPolicy::Fixed(16 << 10)).memory(128 << 10)
}

#[test]
fn a_file_is_a_file() {
    for seed in 1..=4 {
        let world = world(BYTES, ClientBuilder::new().arena_bytes(1 << 20));
        let file = piped_client::File::new(&world.client, &world.open()).expect("a queue");
        compare(&world, &mut Blocking(file.strips(strips())), seed);
    }
}

#[test]
fn a_file_of_tasks_is_a_file() {
    for seed in 1..=3 {
        let world = world(BYTES, ClientBuilder::new());
        let (runtime, file, serving) = async_file(&world);
        compare(&world, &mut OnTokio(runtime, file), seed);
        serving.join().expect("no panics");
        let (runtime, file, serving) = async_file(&world);
        compare(&world, &mut OnFutures(runtime, file), seed + 10);
        serving.join().expect("no panics");
    }
}

#[test]
fn short_reads_end_at_the_end_and_long_ones_come_in_parts() {
    let world = world(BYTES, ClientBuilder::new().arena_bytes(1 << 20));
    for step in [1 << 20, 70_000, 4096, 999] {
        let file = piped_client::File::new(&world.client, &world.open()).expect("a queue");
        let mut file = Blocking(file.strips(strips()));
        assert_eq!(read_all(&mut file, step), content(BYTES), "{step}");
        assert_eq!(file.read(&mut [0; 9]).expect("the end again"), 0);
    }
    let mut file = piped_client::File::new(&world.client, &world.open()).expect("a queue");
    assert_eq!(file.seek(SeekFrom::End(-3)).expect("inside"), BYTES as u64 - 3);
    let mut text = Vec::new();
    assert_eq!(file.read_to_end(&mut text).expect("readable"), 3);
    assert_eq!(file.read(&mut []).expect("nothing is asked"), 0);
    // Another program makes it longer.
    let longer = std::fs::File::options().append(true).open(&world.path);
    longer.expect("there").write_all(b"more").expect("written");
    assert_eq!(file.read_to_end(&mut text).expect("readable"), 4);
    assert!(text.ends_with(b"more"));
}

#[test]
fn a_file_that_is_cut_ends_where_it_ends_now() {
    fn cut(world: &World, file: &mut impl Filed) {
        let mut page = [0; 4096];
        assert_eq!(file.read(&mut page).expect("readable"), page.len());
        let ours = std::fs::File::options().write(true).open(&world.path);
        ours.expect("there").set_len(5000).expect("cut");
        // The rest is read in strips, of what the file was.
        assert_eq!(read_all(file, 512), content(BYTES)[4096..5000]);
        assert_eq!(file.read(&mut page).expect("the end again"), 0);
    }
    let world = || self::world(BYTES, ClientBuilder::new().arena_bytes(1 << 20));
    let threads = world();
    let file = piped_client::File::new(&threads.client, &threads.open()).expect("a queue");
    cut(&threads, &mut Blocking(file.strips(strips())));
    let tasks = world();
    let (runtime, file, serving) = async_file(&tasks);
    let mut file = OnTokio(runtime, file);
    cut(&tasks, &mut file);
    drop(file);
    serving.join().expect("served");
}

#[test]
fn reads_that_follow_each_other_are_read_ahead_and_others_are_not() {
    let asked = |random: bool| {
        let world = world(BYTES, ClientBuilder::new().arena_bytes(1 << 20));
        let mut file = piped_client::File::new(&world.client, &world.open())
            .expect("a queue")
            .strips(strips());
        let mut bytes = [0; 512];
        for turn in 0..20 {
            if random {
                file.seek(SeekFrom::Start(turn * 13 % 20 * 10_000)).expect("inside");
            }
            file.read_exact(&mut bytes).expect("readable");
        }
        world.session.bytes_read()
    };
    let (ahead, random) = (asked(false), asked(true));
    assert!(random <= 20 * 4096 * 2, "a page or two each: {random}");
    assert!(ahead > 16 << 10, "a strip at least: {ahead}");
}

#[test]
fn errors_have_a_kind_and_a_failed_write_is_told() {
    let world = world(BYTES, ClientBuilder::new().arena_bytes(1 << 20));
    let mut file = piped_client::File::new(&world.client, &world.open()).expect("a queue");
    file.write_all(b"these bytes").expect("gathered");
    world.session.die();
    let error = file.flush().expect_err("nobody writes them");
    assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    file.flush().expect("nothing is left to write");
    let error = file.read(&mut [0; 8]).expect_err("nobody reads");
    assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    let error = file.seek(SeekFrom::Current(-12)).expect_err("before the first byte");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_stream_of_strips_is_the_range_in_order() {
    let world = world(BYTES, ClientBuilder::new());
    let runtime = runtime();
    let serving = runtime.block_on(async {
        let runtime = Arc::new(TokioRuntime::current().expect("inside"));
        // A queue shorter than the stream's depth, and room for a strip or two beside it.
        let builder = ClientBuilder::new().arena_bytes(64 << 10).depth(3);
        let client = AsyncClient::open(builder, Some(world.daemon.socket()), runtime).await;
        let client = client.expect("welcome");
        let serving = world.daemon.session().serve(false);
        let handle = client.open_file(&world.path, OpenOptions::read()).await.expect("there");
        let queue = client.queue().await.expect("a queue");
        for policy in [StripPolicy::Auto, StripPolicy::Fixed(8 << 10)] {
            let range = 5..BYTES as u64 + 9000;
            let strips = Strips::new().policy(policy).unroll(6).memory(48 << 10);
            let mut stream = StripStream::open(&queue, &handle, range, strips).expect("a range");
            let mut all = Vec::new();
            let mut kept = Vec::new();
            while let Some(strip) = stream.next().await.expect("readable") {
                assert_eq!(strip.offset(), 5 + all.len() as u64);
                all.extend_from_slice(&strip);
                // Some are kept for a while: the stream goes on with what is left.
                kept.push(strip);
                if kept.len() == 2 {
                    kept.clear();
                }
            }
            assert_eq!(all, &content(BYTES)[5..], "{policy:?}");
            assert!(stream.next().await.expect("over").is_none());
        }
        // One that is dropped under way gives everything back.
        let stream = StripStream::open(&queue, &handle, 0..1 << 16, Strips::new());
        let mut stream = stream.expect("a range");
        let first = stream.next().await.expect("readable").expect("a strip");
        drop(stream);
        drop(first);
        while queue.underway() > 0 {
            tokio::task::yield_now().await;
        }
        drop(client.client().allocate(64 << 10).expect("all of the arena"));
        #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
        let error = StripStream::open(&queue, &handle, 9..8, Strips::new()).expect_err("empty");
        assert_eq!(error.status(), None::<Status>);
        serving
    });
    // Its tasks watch the session's descriptors.
    drop(runtime);
    serving.join().expect("no panics");
}
