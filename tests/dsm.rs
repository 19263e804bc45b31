//! Memory of other nodes by real daemons: atomics, notifications, pieces, and what becomes of them
//! when lanes are cut and nodes end.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use piped_client::{
    Access, Buffer, BuffersError, Cause, Client, ClientBuilder, Handle, OpenOptions, Piece, Queue,
    RegionExport, Request, Status, SubmitFault,
};
use system_tests::process::{Daemon, Pair, Programs, eventually, free_address};
use system_tests::proxy::Proxy;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// A region of a client of beta, and a client of alpha that has it open.
struct Dsm {
    region: RegionExport,
    owner: Client,
    client: Client,
    there: Handle,
}

impl Dsm {
    fn new(alpha: &Daemon, beta: &Daemon, length: usize) -> Self {
        let builder = ClientBuilder::new().arena_bytes(2 * length as u64 + (4 << 20));
        let owner = builder.clone().connect(beta.client_socket()).expect("beta serves");
        let memory = owner.allocate(length).expect("room");
        let region = owner.export_region("grid", memory, Access::ALL).expect("a new name");
        let client = builder.connect(alpha.client_socket()).expect("alpha serves");
        let there = client.open_region(Some("beta"), "grid", Access::ALL).expect("it is offered");
        Self { region, owner, client, there }
    }

    fn queue(&self) -> Queue {
        self.client.queue().expect("a queue")
    }

    fn word(&self, offset: usize) -> u64 {
        let mut word = [0; 8];
        self.region.read_at(offset, &mut word).expect("inside");
        u64::from_ne_bytes(word)
    }
}

fn programs() -> Option<Programs> {
    let programs = Programs::find();
    if programs.is_none() {
        eprintln!("skipped: the programs are not built; `cargo build --workspace` makes them");
    }
    programs
}

#[test]
fn everything_one_sided_between_two_nodes() {
    let Some(programs) = programs() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let pair = Pair::start(&programs, folder.path());
    let dsm = Dsm::new(&pair.alpha, &pair.beta, 2 * MIB);
    let (mut queue, mut own) = (dsm.queue(), dsm.owner.queue().expect("a queue"));

    // A put that notifies: who waited finds its bytes.
    let waiting = own.submit(Request::wait(dsm.region.handle(), 7, 1)).expect("room");
    let mut halo = dsm.client.allocate(100_000).expect("room");
    halo.as_mut_slice().fill(9);
    let first = queue.submit_write(&dsm.there, 500_000, halo).expect("room");
    let mut edge = dsm.client.allocate(PAGE).expect("room");
    edge.as_mut_slice().fill(3);
    queue.run(Request::write(&dsm.there, 0, edge).then_notify(7)).expect("it is there");
    waiting.wait(&mut own).expect("it was notified");
    let mut seen = vec![0; 100_000];
    dsm.region.read_at(500_000, &mut seen).expect("inside");
    assert!(seen.iter().all(|&byte| byte == 9), "the put before it");
    dsm.region.read_at(0, &mut seen[..PAGE]).expect("inside");
    assert_eq!(&seen[..PAGE], [3; PAGE]);
    first.wait(&mut queue).expect("it is there");
    for id in [1, 2, 1] {
        queue.run(Request::notify(&dsm.there, id)).expect("it may");
    }
    assert_eq!(own.run(Request::wait(dsm.region.handle(), 1, 1)).expect("two came").value, 1);
    let none =
        own.run(Request::wait(dsm.region.handle(), 1, 2).no_wait()).expect_err("one is left");
    assert_eq!(none.status(), Some(Status::WouldBlock));

    // Words.
    let counter = 1 << 20;
    let run = |queue: &mut Queue, request| queue.run(request).expect("it may").value;
    assert_eq!(run(&mut queue, Request::fetch_add(&dsm.there, counter, 5)), 0);
    assert_eq!(run(&mut own, Request::fetch_add(dsm.region.handle(), counter, 1)), 5);
    assert_eq!(run(&mut queue, Request::compare_swap(&dsm.there, counter, 6, 60)), 6);
    assert_eq!(run(&mut queue, Request::compare_swap(&dsm.there, counter, 6, 61)), 60);
    assert_eq!(dsm.word(counter as usize), 60);

    // Pieces, there and back.
    let rows = dsm.client.pieces(&[Piece::new(8, 0, 24).repeat(1000, 512, 24)]).expect("a table");
    let mut packed = dsm.client.allocate(24_000).expect("room");
    for (at, byte) in packed.as_mut_slice().iter_mut().enumerate() {
        *byte = (at / 24) as u8;
    }
    let packed = queue.run(Request::write_pieces(&dsm.there, &rows, packed)).expect("written");
    assert_eq!(packed.bytes, 24_000);
    let mut piece = [0; 32];
    dsm.region.read_at(999 * 512, &mut piece).expect("inside");
    assert_eq!(piece[8..], [999_u32 as u8; 24]);
    let mut back = packed.payload;
    back.as_mut_slice().fill(0);
    let back = queue.run(Request::read_pieces(&dsm.there, &rows, back)).expect("read");
    assert_eq!(back.payload.as_slice()[24 * 700..24 * 701], [700_u32 as u8; 24]);
    // Of a file of the peer as well, a transfer for each.
    let blocks = dsm.client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    let blocks = blocks.expect("it is there");
    let table =
        dsm.client.pieces(&[Piece::new(100, 0, 50).repeat(40, 70_000, 50)]).expect("a table");
    let buffer = dsm.client.allocate(2000).expect("room");
    let got = queue.run(Request::read_pieces(&blocks, &table, buffer)).expect("read");
    let whole = system_tests::process::pattern(system_tests::process::BLOCKS_BYTES);
    assert_eq!(got.payload.as_slice()[50 * 39..], whole[100 + 39 * 70_000..][..50]);

    // Several buffers, of a file of the peer and of its region: short ones, a long one, an empty
    // one. What does not fit is refused before it is asked.
    let lengths = [1, 4096, 0, 100_000, 333, 70_000];
    let buffers = || {
        let parts = lengths.map(|length| {
            let mut part = dsm.client.allocate(length.max(1)).expect("room");
            part.set_len(length).expect("it is as long");
            part
        });
        dsm.client.buffers(parts.into()).expect("a list")
    };
    let read = queue.run(Request::read_buffers(&blocks, 77, buffers())).expect("read");
    assert_eq!(read.bytes, lengths.iter().sum::<usize>() as u64);
    let mut at = 77;
    for part in read.payload.parts() {
        assert_eq!(part.as_slice(), &whole[at..at + part.len()]);
        at += part.len();
    }
    queue.run(Request::write_buffers(&dsm.there, 5000, read.payload)).expect("written");
    let mut there = vec![0; at - 77];
    dsm.region.read_at(5000, &mut there).expect("inside");
    assert_eq!(there, whole[77..at]);
    let back = queue.run(Request::read_buffers(&dsm.there, 5000, buffers())).expect("read");
    let back: Vec<u8> = back.payload.into_parts().iter().flat_map(Buffer::to_vec).collect();
    assert_eq!(back, whole[77..at]);
    let rows = dsm.client.pieces(&[Piece::new(0, 0, 1).repeat(200_000, 2, 1)]).expect("a table");
    let long = Request::read_buffers(&dsm.there, 0, buffers()).pieces(&rows);
    let refused = queue.run(long).expect_err("they have fewer bytes");
    assert_eq!(refused.cause, Cause::NotSubmitted(SubmitFault::Piece), "{refused}");
    assert!(matches!(dsm.client.buffers(Vec::new()), Err(BuffersError::Fault(_))));

    // What is wanted first is told of before the rest.
    let read = Request::read(&dsm.there, 0, dsm.client.allocate(2 * MIB).expect("room"));
    let read = queue.submit(read.wanted_first(counter)).expect("room");
    queue.flush();
    let page = counter..counter + PAGE as u64;
    let mut word = [0; 8];
    eventually("the page is there", || {
        let landed = queue.landed(&read);
        let there = queue.progress(&read) >= page.end
            || (landed.start <= page.start && page.end <= landed.end);
        let copied = queue.copy_landed(&read, counter, &mut word);
        (there && copied == 8).then_some(())
    });
    assert_eq!(u64::from_ne_bytes(word), 60);
    assert_eq!(read.wait(&mut queue).expect("read").bytes, 2 * MIB as u64);

    // A flush after puts, and a fence between a put and what reads it.
    let mut last = dsm.client.allocate(8).expect("room");
    last.as_mut_slice().copy_from_slice(&77u64.to_ne_bytes());
    let put = queue.submit_write(&dsm.there, counter, last).expect("room");
    let add = queue.submit(Request::fetch_add(&dsm.there, counter, 1).fence()).expect("room");
    queue.run(Request::flush(&dsm.there)).expect("nothing fails it");
    assert_eq!(dsm.word(counter as usize), 78);
    assert_eq!(add.wait(&mut queue).expect("done").value, 77);
    put.wait(&mut queue).expect("done");

    // What it was not opened for.
    let readable = dsm.client.open_region(Some("beta"), "grid", Access::READ_WRITE).expect("it is");
    let denied = queue.run(Request::fetch_add(&readable, counter, 1)).expect_err("not opened so");
    assert_eq!(denied.status(), Some(Status::Denied));
    let refused = dsm.client.open_region(Some("beta"), "nowhere", Access::ALL);
    assert!(refused.is_err());
}

#[test]
fn who_exported_is_gone_and_everybody_hears_of_it_at_once() {
    let Some(programs) = programs() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let pair = Pair::start(&programs, folder.path());
    let dsm = Dsm::new(&pair.alpha, &pair.beta, MIB);
    let mut queue = dsm.queue();
    queue.run(Request::fetch_add(&dsm.there, 0, 1)).expect("it is there");
    let Dsm { region, owner, client, there } = dsm;
    drop((region, owner));
    let table = client.pieces(&[Piece::new(0, 0, 8).repeat(10, 64, 8)]).expect("a table");
    let buffer = || client.allocate(80).expect("room");
    let ends = [
        queue.run(Request::fetch_add(&there, 0, 1)).map(|_| ()),
        queue.run(Request::notify(&there, 1)).map(|_| ()),
        queue.run(Request::read(&there, 0, buffer())).map(|_| ()),
        queue.run(Request::write(&there, 0, buffer()).then_notify(1)).map(|_| ()),
        queue.run(Request::read_pieces(&there, &table, buffer())).map(|_| ()),
        queue.run(Request::write_pieces(&there, &table, buffer())).map(|_| ()),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let status = end.expect_err("it is gone").status();
        assert_eq!(status, Some(Status::Gone), "request {number}");
    }
}

/// Two nodes whose only way to each other can be cut.
fn cuttable(programs: &Programs, folder: &Path) -> (Daemon, Daemon, Proxy) {
    let address = free_address();
    let proxy = Proxy::start(address);
    let beta =
        Daemon::start(programs, folder, "beta", &format!("[listen]\naddress = \"{address}\"\n"));
    let peer = format!("[peers.beta]\naddress = \"{}\"\n", proxy.address());
    let alpha = Daemon::start(programs, folder, "alpha", &peer);
    alpha.await_lanes();
    (alpha, beta, proxy)
}

/// Eight clients add to one word while the lanes are cut fifty times: each that was told it was
/// done was done once.
#[test]
fn sums_are_exact_however_often_lanes_are_cut() {
    const CLIENTS: usize = 8;
    const CUTS: usize = 50;
    let Some(programs) = programs() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (alpha, beta, proxy) = cuttable(&programs, folder.path());
    let dsm = Dsm::new(&alpha, &beta, PAGE);
    let over = AtomicBool::new(false);
    let (mut added, mut raised) = (0, 0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (over, socket) = (&over, alpha.client_socket());
                scope.spawn(move || {
                    let client = Client::connect(socket).expect("alpha serves");
                    let there = client.open_region(Some("beta"), "grid", Access::ALL);
                    let there = there.expect("it is offered");
                    let mut queue = client.queue().expect("a queue");
                    let (mut added, mut raised) = (0, 0);
                    while !over.load(Ordering::Relaxed) {
                        let pending = [1, 2, 3].map(|addend| {
                            let add = Request::fetch_add(&there, 0, addend);
                            queue.submit(add.deadline(Duration::from_secs(120))).expect("room")
                        });
                        let notify = Request::write(&there, 64, client.allocate(8).expect("room"));
                        let notify = notify.then_notify(5).deadline(Duration::from_secs(120));
                        queue.run(notify).expect("a cut lane comes back");
                        raised += 1;
                        for (addend, pending) in (1..).zip(pending) {
                            pending.wait(&mut queue).expect("a cut lane comes back");
                            added += addend;
                        }
                    }
                    (added, raised)
                })
            })
            .collect();
        let mut seen = 0;
        for _ in 0..CUTS {
            // Not before something was done since the last one, or nothing would ever be under way.
            eventually("something is added", || (dsm.word(0) > seen).then_some(()));
            seen = dsm.word(0);
            proxy.cut();
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            let (of, times) = client.join().expect("it went well");
            (added, raised) = (added + of, raised + times);
        }
    });
    assert_eq!(dsm.word(0), added, "the sum of what was done");
    let mut own = dsm.owner.queue().expect("a queue");
    let wait = Request::wait(dsm.region.handle(), 5, raised).no_wait();
    assert_eq!(own.run(wait).expect("all of them came").value, 0, "and none came twice");
    assert!(alpha.number("lanes_lost") >= CUTS as u64, "{}", alpha.number("lanes_lost"));
}
