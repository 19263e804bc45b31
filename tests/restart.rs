//! The daemon is killed again and again under threads that read and write, and client-lib carries
//! them over.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use piped_client::{
    Access, Buffer, Cause, Client, ClientBuilder, Handle, OpenOptions, ReconnectError, Request,
};
use piped_sim::Random;
use rustix::process::Signal;
use system_tests::process::{BLOCKS_BYTES, Daemon, PATIENCE, Pair, Programs, eventually, pattern};

const THREADS: u64 = 4;
const DEPTH: usize = 4;
const KILLS: u64 = 8;
/// Each has this much of a file for itself.
const AREA: u64 = 1 << 20;
const BLOCK: usize = 64 << 10;
const LATE: Duration = Duration::from_secs(120);

fn builder() -> ClientBuilder {
    ClientBuilder::new().arena_bytes(8 << 20).depth(16).reconnect(LATE)
}

/// What a thread believes of its area, and the buffers it has.
struct Writer<'a> {
    client: &'a Client,
    file: &'a Handle,
    start: u64,
    content: Vec<u8>,
    buffers: Vec<Buffer>,
    random: Random,
}

impl Writer<'_> {
    /// Writes some blocks at once and reads them back.
    fn round(&mut self, queue: &mut piped_client::Queue) {
        let blocks = AREA as usize / BLOCK;
        let first = self.random.below((blocks - DEPTH) as u64) as usize;
        let places: Vec<usize> = (first..first + DEPTH).map(|block| block * BLOCK).collect();
        let mut pending = Vec::new();
        for place in &places {
            let mut buffer = self.buffers.pop().expect("all came back");
            self.random.fill(buffer.as_mut_slice());
            self.content[*place..place + BLOCK].copy_from_slice(buffer.as_slice());
            let write = Request::write(self.file, self.start + *place as u64, buffer);
            pending.push(queue.submit(write.resubmit().deadline(LATE)).expect("room"));
        }
        for pending in pending {
            let done = pending.wait(queue).expect("some daemon wrote it");
            assert_eq!(done.bytes, BLOCK as u64);
            self.buffers.push(done.payload);
        }
        // Detached this time, in whatever order they end.
        for (number, place) in places.iter().enumerate() {
            let buffer = self.buffers.pop().expect("all came back");
            let read = Request::read(self.file, self.start + *place as u64, buffer);
            let read = read.resubmit().deadline(LATE).tag(number as u64);
            queue.submit_detached(read).expect("room");
        }
        for _ in &places {
            let completed = queue.wait(Some(PATIENCE)).expect("it ends");
            let done = completed.result.expect("some daemon read it");
            let place = places[completed.tag as usize];
            let buffer = done.payload.expect("it had one");
            assert!(buffer.as_slice() == &self.content[place..place + BLOCK], "what was written");
            self.buffers.push(buffer);
        }
        assert_eq!(self.buffers.len(), DEPTH, "no buffer is lost");
        // The arena of each daemon has room for them: they were moved, not leaked.
        drop(self.client.allocate(BLOCK).expect("room for one more"));
    }
}

#[test]
fn threads_read_and_write_on_while_their_daemon_is_killed_again_and_again() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let Pair { mut alpha, beta, settings } = Pair::start(&programs, directory.path());
    let client = builder().connect(alpha.client_socket()).expect("it serves");
    let local = directory.path().join("local");
    std::fs::write(&local, vec![0; (THREADS * AREA) as usize]).expect("written");
    let local = client.open_file(&local, OpenOptions::read_write()).expect("it is there");
    let options = OpenOptions::read_write().create(true);
    let remote = client.open_export(Some("beta"), "data", "new", options).expect("made");
    let rounds: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let (stop, resubmitted) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (client, rounds, stop, resubmitted) = (&client, &rounds, &stop, &resubmitted);
        for number in 0..THREADS {
            let file = if number % 2 == 0 { &local } else { &remote };
            scope.spawn(move || {
                let mut queue = client.queue().expect("a queue");
                let buffers = (0..DEPTH).map(|_| client.allocate(BLOCK).expect("memory"));
                let mut writer = Writer {
                    client,
                    file,
                    start: number * AREA,
                    content: vec![0; AREA as usize],
                    buffers: buffers.collect(),
                    random: Random::new(number),
                };
                while !stop.load(Ordering::Relaxed) {
                    writer.round(&mut queue);
                    rounds[number as usize].fetch_add(1, Ordering::Relaxed);
                }
                resubmitted.fetch_add(queue.counters().resubmitted, Ordering::Relaxed);
            });
        }
        for kill in 1..=KILLS {
            let before: Vec<u64> = rounds.iter().map(|it| it.load(Ordering::Relaxed)).collect();
            eventually(&format!("all go on before kill {kill}"), || {
                let gone_on =
                    |(now, before): (&AtomicU64, &u64)| now.load(Ordering::Relaxed) > before + 2;
                rounds.iter().zip(&before).all(gone_on).then_some(())
            });
            alpha.process.signal(Signal::KILL);
            alpha.restart(&settings[0]);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(resubmitted.load(Ordering::Relaxed) > 0, "some were in the middle");
    assert_eq!((local.len(), client.is_connected()), (THREADS * AREA, true));
    assert_eq!(alpha.number("sessions"), 1);
    drop((local, remote, client));
    drop(beta);
}

#[test]
fn without_a_daemon_requests_end_in_time_and_with_one_all_goes_on() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut alpha = Daemon::start(&programs, directory.path(), "alpha", "");
    let blocks = directory.path().join("blocks");
    std::fs::write(&blocks, pattern(BLOCKS_BYTES)).expect("written");
    let builder = ClientBuilder::new().reconnect(Duration::from_millis(300));
    let client = builder.connect(alpha.client_socket()).expect("it serves");
    let file = client.open_file(&blocks, OpenOptions::read()).expect("it is there");
    let mut queue = client.queue().expect("a queue");
    let region = client.export_region("halo", client.allocate(64).expect("memory"), Access::READ);
    let region = region.expect("offered");
    let halo = client.open_region(None, "halo", Access::READ).expect("offered");
    alpha.process.signal(Signal::KILL);
    alpha.process.exit();
    let error = client.reconnect().expect_err("nobody is there");
    assert!(matches!(error, ReconnectError::Away { .. }), "{error}");
    while !queue.is_disconnected() {
        assert!(queue.poll().is_none(), "nothing was asked");
    }
    let read = Request::read(&file, 0, client.allocate(BLOCK).expect("of the old arena"));
    let error = queue.run(read.resubmit()).expect_err("nobody is there");
    assert_eq!(error.cause, Cause::Disconnected, "{error}");
    let buffer = error.into_buffer().expect("it never left");
    assert_eq!(client.generation(), 1, "there is no other yet");
    alpha.restart("");
    let found = client.reconnect().expect("it is there");
    assert_eq!(client.generation(), 2);
    // The file, and not the region: nobody offers that any more.
    assert_eq!((found.opened, found.lost), (1, 1));
    let (buffer, _) = queue.read(&file, 0, buffer).expect("the same queue and buffer");
    assert!(buffer.as_slice() == &pattern(BLOCKS_BYTES)[..BLOCK]);
    drop((region, halo));
    assert_eq!(alpha.number("sessions"), 1);
}
