//! Limits that are halved and doubled while a client reads a peer's file: the cost, whether a
//! request fails, and how soon the memory is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use piped_client::{Handle, OpenOptions};
use piped_core::modes::Profile;

use crate::clock;
use crate::contest::{Arm, ROUNDS_MAX};
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nodes::{EXPORT, Node, PEER, Pair, counter, profile_name};
use crate::report::{Row, Unit};
use crate::rows::{Bench, FILE_NAME, KIB};
use crate::stats::{Bar, Interval};

const PROFILE: Profile = Profile::Balanced;
const BLOCK: usize = 256 * KIB;
const DEPTH: usize = 16;

const CHANGES: u32 = 100;
/// Time of a halving and a doubling.
const CHANGE: Duration = Duration::from_millis(200);
/// Changes in each moment, so that the rounds together have all of them.
const CHANGES_PER_MOMENT: u32 = CHANGES.div_ceil(ROUNDS_MAX);
const MOMENT: Duration = CHANGE.saturating_mul(CHANGES_PER_MOMENT);

/// Wide limits; use stays below the smaller of both, with 4 MiB in flight.
const WIDE: [&str; 4] =
    ["global.staging=64MiB", "global.in_flight=64MiB", "client.requests=256", "peer.staging=64MiB"];
const NARROW: [&str; 4] =
    ["global.staging=32MiB", "global.in_flight=32MiB", "client.requests=128", "peer.staging=32MiB"];
/// Defaults of a daemon, for the rows that follow.
const DEFAULTS: [&str; 4] = [
    "global.staging=64MiB",
    "global.in_flight=16GiB",
    "client.requests=2048",
    "peer.staging=64MiB",
];
const NARROW_STAGING: u64 = 32 << 20;

/// A later success will not come.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client of A with B's file.
struct Reader {
    asker: Asker,
    handle: Handle,
}

impl Reader {
    fn open(pair: &Pair) -> Result<Self, Failure> {
        let mut asker = Asker::connect(&pair.a, Place::BesideShard, 16 << 20)?;
        let open = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read());
        let handle = open.doing("open")?;
        asker.reads(ask(&handle), 2 * CHANGE)?;
        Ok(Self { asker, handle })
    }
}

fn ask(handle: &Handle) -> Ask<'_> {
    Ask { handle, block: BLOCK, depth: DEPTH }
}

fn set(pair: &Pair, limits: &[&str]) -> Result<(), Failure> {
    [&pair.a, &pair.b].into_iter().try_for_each(|node| node.admin.set_limits(limits))
}

/// Sets wide limits for `body`, and the defaults again afterwards.
fn limited(
    bench: &mut Bench,
    body: impl FnOnce(&mut Bench, &Pair) -> Result<Row, Failure>,
) -> Result<Row, Failure> {
    bench.data()?;
    bench.with_both(PROFILE, |bench, _, pair| {
        set(pair, &WIDE)?;
        let row = body(bench, pair);
        set(pair, &DEFAULTS)?;
        row
    })
}

/// Reads for as long as `body` takes.
fn under_load<T: Send>(
    reader: &mut Reader,
    body: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let changing = scope.spawn(move || {
            let result = body();
            over.store(true, Ordering::Relaxed);
            result
        });
        let read =
            reader.asker.reads_while(ask(&reader.handle), |_, _| !over.load(Ordering::Relaxed));
        let result = changing.join().map_err(|_| Failure::new("the changes broke off"))?;
        read.and(result)
    })
}

pub(super) fn throughput(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    limited(bench, |bench, pair| {
        let [mut calm, mut changing] = [Reader::open(pair)?, Reader::open(pair)?];
        let mut arms = vec![
            Arm::variant("limits stay".to_owned(), || {
                Ok(calm.asker.reads(ask(&calm.handle), MOMENT)?.rate())
            }),
            Arm::variant("halved and doubled".to_owned(), || {
                thread::scope(|scope| {
                    let change = scope.spawn(|| {
                        (0..CHANGES_PER_MOMENT).try_for_each(|_| {
                            clock::pause(CHANGE / 4);
                            set(pair, &NARROW)?;
                            clock::pause(CHANGE / 4);
                            set(pair, &WIDE)
                        })
                    });
                    let rate = changing.asker.reads(ask(&changing.handle), MOMENT)?.rate();
                    change.join().map_err(|_| Failure::new("the changes broke off"))??;
                    Ok(rate)
                })
            }),
        ];
        let rounds = bench.rounds(&mut arms)?;
        let found = rounds.ratio(1, 0)?;
        let [calm, changed] = [0, 1].map(|arm| rounds.value(arm));
        let note = format!(
            "reads of 256 KiB from the peer's disk, 16 at once: {:.0} and {:.0} MiB/s",
            calm?.median, changed?.median
        );
        let bar = Bar::AtLeast(0.95);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::PerSecond))
    })
}

const FAILED: &[&str] = &["counters", "failed"];

pub(super) fn failed(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    limited(bench, |_, pair| {
        let mut reader = Reader::open(pair)?;
        let count = |what: &[&str]| {
            let of = |node: &Node| Ok::<_, Failure>(counter(&node.admin, what)?.unwrap_or(0));
            Ok::<_, Failure>(of(&pair.a)? + of(&pair.b)?)
        };
        let (failed, requests) = (count(FAILED)?, count(&["counters", "requests"])?);
        under_load(&mut reader, || {
            for _ in 0..CHANGES {
                set(pair, &NARROW)?;
                set(pair, &WIDE)?;
            }
            Ok(())
        })?;
        let found = Interval::exact((count(FAILED)? - failed) as f64);
        let requests = count(&["counters", "requests"])? - requests;
        let note =
            format!("of {requests} requests, while limits were halved and doubled {CHANGES} times");
        let bar = Bar::AtMost(0.0);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Count, found, bar, note))
    })
}

pub(super) fn memory(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    limited(bench, |_, pair| {
        let mut reader = Reader::open(pair)?;
        let slowest = under_load(&mut reader, || {
            let mut slowest = Duration::ZERO;
            for _ in 0..CHANGES {
                set(pair, &WIDE)?;
                let begun = clock::now();
                set(pair, &NARROW)?;
                for node in [&pair.a, &pair.b] {
                    let at_limit = || node.admin.staging().map(|bytes| bytes <= NARROW_STAGING);
                    clock::poll(PATIENCE, || at_limit().unwrap_or(false).then_some(()))
                        .ok_or_else(|| {
                            Failure::new("the memory is not at the limit within 10 s")
                        })?;
                }
                slowest = slowest.max(begun.elapsed());
            }
            Ok(slowest)
        })?;
        let found = Interval::exact(slowest.as_secs_f64());
        let note = "the slowest of 100 changes on two nodes, until ledger and mapped segments are \
            at the limit";
        let bar = Bar::AtMost(1.0);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Seconds, found, bar, note))
    })
}
