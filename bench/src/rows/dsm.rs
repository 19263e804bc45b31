//! One-sided operations on another node's memory against a get of as many bytes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use piped_client::{Access, Client, Handle, Piece, Pieces, Queue, RegionExport, Request};
use piped_core::modes::Profile;
use system_tests::proxy::Proxy;

use crate::contest::{self, Arm};
use crate::failure::{Doing as _, Failure, joined};
use crate::load::{Ask, Asker, Place};
use crate::nodes::{PEER, Pair, Sites, free_address, profile_name};
use crate::report::{Row, Unit};
use crate::rows::region::Region;
use crate::rows::{Bench, MIB, MOMENT};
use crate::stats::{Bar, Interval, median};
use crate::{clock, machine};

/// Largest ratio of ten thousand pieces to a get of as many bytes in one piece.
const VECTORED_BAR: f64 = 2.5;

/// Largest ratio of an atomic to a get of 64 bytes.
const ATOMIC_BAR: f64 = 1.3;

const PIECES: usize = 10_000;
const PIECE_BYTES: usize = 512;
const BYTES: usize = PIECES * PIECE_BYTES;

/// Distance of two pieces in the region, so that they are never adjacent.
const STRIDE: u64 = 3 * PIECE_BYTES as u64;

/// A region at B for everything, and a queue at A.
struct Words {
    queue: Queue,
    client: Client,
    /// CPU of the requests, the same as for gets.
    cpu: usize,
    handle: Handle,
    _export: RegionExport,
}

impl Words {
    fn open(pair: &Pair) -> Result<Self, Failure> {
        let length = STRIDE as usize * PIECES;
        let owner = Asker::connect(&pair.b, Place::BesideShard, length as u64)?;
        let mut buffer = owner.client.allocate(length).doing("allocate")?;
        buffer.as_mut_slice().fill(0x5a);
        let export = owner.client.export_region("words", buffer, Access::ALL).doing("export")?;
        let Asker { client, cpu, .. } =
            Asker::connect(&pair.a, Place::BesideShard, 64 * MIB as u64)?;
        let queue = client.queue().doing("queue")?;
        let handle = client.open_region(Some(PEER), "words", Access::ALL).doing("open")?;
        Ok(Self { queue, client, cpu, handle, _export: export })
    }

    /// Median time of a request, one at a time, in seconds.
    fn for_a_moment(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        machine::pin(self.cpu)?;
        let begun = clock::now();
        let mut times = Vec::new();
        while begun.elapsed() < MOMENT {
            let start = clock::now();
            one(self)?;
            times.push(start.elapsed().as_secs_f64());
        }
        median(&times).ok_or_else(|| Failure::new("nothing ended"))
    }

    /// Pieces that are apart in the region, and in another order here, so that neither side has
    /// them in sequence.
    fn scattered(&self) -> Result<Pieces, Failure> {
        let piece = |number: usize| {
            let at = (number ^ 1) * PIECE_BYTES;
            Piece::new(number as u64 * STRIDE, at, PIECE_BYTES)
        };
        let pieces: Vec<Piece> = (0..PIECES).map(piece).collect();
        self.client.pieces(&pieces).doing("pieces")
    }
}

/// 10 000 descriptors of 512 bytes in one get against one get of the same bytes.
pub(super) fn vectored(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = Profile::Balanced;
    bench.with_pair(profile, |bench, pair| {
        let words = Words::open(pair)?;
        let table = words.scattered()?;
        let buffer = words.client.allocate(BYTES).doing("allocate")?;
        let state = std::cell::RefCell::new((words, Some(buffer)));
        let measure = |pieces: bool| {
            let (words, buffer) = &mut *state.borrow_mut();
            words.for_a_moment(|words| {
                let into = buffer.take().expect("it is here between requests");
                let request = match pieces {
                    true => Request::read_pieces(&words.handle, &table, into),
                    false => Request::read(&words.handle, 0, into),
                };
                *buffer = Some(words.queue.run(request).doing("get")?.payload);
                Ok(())
            })
        };
        let mut arms = [
            Arm::variant("one get".to_owned(), || measure(false)),
            Arm::variant("pieces".to_owned(), || measure(true)),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all_ratio(1, 0)?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e3);
        let note = format!(
            "{PIECES} pieces of {PIECE_BYTES} B, apart on both sides: {:.2} ms, one get {:.2} ms",
            told(1),
            told(0)
        );
        let bar = Bar::AtMost(VECTORED_BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// A fetch_add against a get of 64 bytes.
pub(super) fn fetch_add(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = Profile::Balanced;
    bench.with_pair(profile, |bench, pair| {
        let mut words = Words::open(pair)?;
        let mut region = Region::open(pair)?;
        let mut arms = [
            Arm::variant("get".to_owned(), || {
                let ask = Ask { handle: &region.handle, block: 64, depth: 1 };
                Ok(region.asker.reads(ask, MOMENT)?.p50())
            }),
            Arm::variant("fetch_add".to_owned(), || {
                words.for_a_moment(|words| {
                    let add = Request::fetch_add(&words.handle, 64, 1);
                    words.queue.run(add).doing("fetch_add").map(|_| ())
                })
            }),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all_ratio(1, 0)?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
        let note = format!("p50: {:.1} us, a get of 64 B {:.1} us", told(1), told(0));
        let bar = Bar::AtMost(ATOMIC_BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Clients that add to one word, and the number of times that lanes are cut meanwhile.
const ADDERS: usize = 8;
const CUTS: u32 = 50;
/// Adds of each client that are under way together.
const ADDENDS: [u64; 3] = [1, 2, 3];
/// Time until a cut lane is back and all requests are done again.
const PATIENCE: Duration = Duration::from_secs(120);

/// Eight clients add to one word while the lanes are cut. The figure is the distance of the word
/// from the sum of the acknowledged adds.
pub(super) fn sum(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = Profile::Balanced;
    let listen = free_address()?;
    let wire = Proxy::start(listen);
    let sites = Sites { listen, dialled: Some(wire.address()), ..Sites::default() };
    let pair = Pair::start_at(&sites, profile, bench.cpus, &bench.data()?)?;
    let owner = Client::connect(&pair.b.client_socket).doing("connect")?;
    let mut buffer = owner.allocate(4096).doing("allocate")?;
    buffer.as_mut_slice().fill(0);
    let export = owner.export_region("sum", buffer, Access::ALL).doing("export")?;
    let word = || -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        export.read_at(0, &mut bytes).doing("the word")?;
        Ok(u64::from_ne_bytes(bytes))
    };
    let over = AtomicBool::new(false);
    let told = thread::scope(|scope| {
        let adders: Vec<_> =
            (0..ADDERS).map(|_| scope.spawn(|| added(&pair.a.client_socket, &over))).collect();
        let cut = || -> Result<(), Failure> {
            let mut seen = 0;
            for _ in 0..CUTS {
                // Cut only after something was done since the last cut, so that requests are under
                // way.
                let moved = clock::poll(PATIENCE, || word().ok().filter(|now| *now > seen));
                seen = moved.ok_or_else(|| Failure::new("nothing is added any more"))?;
                contest::check()?;
                wire.cut();
            }
            Ok(())
        };
        let cut = cut();
        over.store(true, Ordering::Relaxed);
        let mut told = 0;
        for adder in adders {
            told += joined(adder.join(), "the adder")?;
        }
        cut.map(|()| told)
    })?;
    let there = word()?;
    let found = Interval::exact(there.abs_diff(told) as f64);
    let note =
        format!("{ADDERS} clients, lanes cut {CUTS} times: the word is {there}, told was {told}");
    let bar = Bar::AtMost(0.0);
    Ok(Row::judged(name, &profile_name(profile), Unit::Count, found, bar, note))
}

/// Adds until it is over, and returns the sum of acknowledged adds.
fn added(socket: &Path, over: &AtomicBool) -> Result<u64, Failure> {
    let client = Client::connect(socket).doing("connect")?;
    let handle = client.open_region(Some(PEER), "sum", Access::ALL).doing("open")?;
    let mut queue = client.queue().doing("queue")?;
    let mut sum = 0;
    while !over.load(Ordering::Relaxed) {
        let mut pending = Vec::with_capacity(ADDENDS.len());
        for addend in ADDENDS {
            let add = Request::fetch_add(&handle, 0, addend).deadline(PATIENCE);
            pending.push(queue.submit(add).map_err(|error| error.fault).doing("submit")?);
        }
        for (addend, pending) in ADDENDS.into_iter().zip(pending) {
            pending.wait(&mut queue).doing("fetch_add")?;
            sum += addend;
        }
    }
    Ok(sum)
}
