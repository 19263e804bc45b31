//! Page faults that `remote_pager` serves, against gets of the same pages and against the wire.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Duration;

use piped_core::modes::Profile;
use remote_pager::{Options, PAGE, Pager};

use super::region::Region;
use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::Ask;
use crate::nodes::profile_name;
use crate::raw::{REGION_BYTES, Timing};
use crate::report::{Row, Unit};
use crate::rig::{GIGABIT, PROFILE};
use crate::rows::{Bench, Entry, KIB, MOMENT};
use crate::stats::{Bar, Interval, Random};
use crate::{clock, machine};

/// Rows for a group.
pub(crate) const ENTRIES: [Entry; 4] = [
    ("fault-4k", fault),
    ("fault-4k-latency", fault),
    ("scan-link", scan_link),
    ("scan-loopback", scan_loopback),
];

/// Largest ratio of a fault to a plain get.
const FAULT_BAR: f64 = 2.0;
/// Part of the wire that a scan has to reach.
const SCAN_BAR: f64 = 0.6;

/// Pages in memory at once: far fewer than the region has, so that nearly every random touch
/// faults.
const RESIDENT: usize = REGION_BYTES / 16;
/// Pages in memory during a scan, which reads more than fits.
const RESIDENT_SCAN: usize = REGION_BYTES / 4;

/// Size and number of plain gets that fill the wire.
const DEEP: (usize, usize) = (256 * KIB, 4);

/// A thread beside the shard gets 4 KiB; the same thread touches a page that is missing.
fn fault(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = if name.ends_with("latency") { Profile::Latency } else { Profile::Balanced };
    bench.with_pair(profile, |bench, pair| {
        let Region { asker, handle, _export } = Region::open(pair)?;
        let options = Options::new().strip_bytes_max(0).resident_bytes(RESIDENT);
        let pager = Pager::map(&asker.client, &handle, options).doing("map")?;
        let shard = asker.client.shard_cpu().map_or(bench.cpus.first, |cpu| cpu as usize);
        let ask = Ask { handle: &handle, block: PAGE, depth: 1 };
        let asker = RefCell::new(asker);
        let mut random = Random::new(3);
        let mut arms = [
            Arm::variant("plain get".to_owned(), || {
                Ok(asker.borrow_mut().reads(ask, MOMENT)?.p50())
            }),
            Arm::variant("page fault".to_owned(), || {
                machine::pin(shard)?;
                Ok(touch(&pager, &mut random, MOMENT).p50())
            }),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all_ratio(1, 0)?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
        let note = format!("a get {:.1} us, a fault {:.1} us, p50", told(0), told(1));
        let bar = Bar::AtMost(FAULT_BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Touches pages at random for a while, and times the touches of missing ones.
fn touch(pager: &Pager, random: &mut Random, duration: Duration) -> Timing {
    let bytes = pager.bytes();
    let mut latencies = Vec::with_capacity(1 << 16);
    let start = clock::now();
    let mut ended = start;
    while ended - start < duration && latencies.len() < latencies.capacity() {
        let place = random.below((bytes.len() / PAGE) as u64) as usize * PAGE;
        let faults = pager.counts().faults;
        let begun = clock::now();
        black_box(bytes[place]);
        ended = clock::now();
        if pager.counts().faults > faults {
            latencies.push((ended - begun).as_nanos() as u64);
        }
    }
    Timing::new(latencies, ended - start)
}

/// Rate of a scan over a link of one gigabit per second, relative to the link's.
fn scan_link(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    bench.with_rig(|bench, rig| {
        rig.set_rate(GIGABIT)?;
        let region = Region::open(&rig.pair)?;
        let (rounds, _) = scans(bench, region)?;
        let found = rounds.all(|round| Some(round.values[1]? / GIGABIT as f64))?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median / 1e6);
        let note = format!(
            "a scan {:.1} MB/s of {:.0}; plain gets of 256 KiB, four at once, {:.1}",
            told(1),
            GIGABIT as f64 / 1e6,
            told(0)
        );
        let bar = Bar::AtLeast(SCAN_BAR);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::PerSecond))
    })
}

/// Rate of a scan on loopback, which is no wire: plain gets take there what two CPUs can copy, and
/// a scan also has its pages made, copied to and mapped. So it is the limit of a pager.
fn scan_loopback(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = Profile::Balanced;
    bench.with_pair(profile, |bench, pair| {
        let region = Region::open(pair)?;
        let (rounds, found) = scans(bench, region)?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median / 1e6);
        let note = format!(
            "a scan {:.0} MB/s; plain gets of 256 KiB, four at once, {:.0}",
            told(1),
            told(0)
        );
        Ok(Row::reported(name, &profile_name(profile), Unit::Ratio, found, note)
            .with_arms(&rounds, Unit::PerSecond))
    })
}

/// Bytes per second of plain gets and of a scan, and the ratio of the second to the first. A scan
/// computes, so it has a CPU that is not its shard's; plain gets run beside the shard.
fn scans(bench: &mut Bench, region: Region) -> Result<(crate::contest::Rounds, Interval), Failure> {
    let Region { asker, handle, _export } = region;
    let options = Options::new().resident_bytes(RESIDENT_SCAN);
    let mut pager = Pager::map(&asker.client, &handle, options).doing("map")?;
    let (block, depth) = DEEP;
    let ask = Ask { handle: &handle, block, depth };
    let own = bench.cpus.second;
    let asker = RefCell::new(asker);
    let mut arms = [
        Arm::variant("plain gets".to_owned(), || {
            Ok(asker.borrow_mut().reads(ask, 4 * MOMENT)?.rate() * block as f64)
        }),
        Arm::variant("scan".to_owned(), || {
            machine::pin(own)?;
            scan(&mut pager, 4 * MOMENT)
        }),
    ];
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    let found = rounds.all_ratio(1, 0)?;
    Ok((rounds, found))
}

/// Adds up one number of every cache line, from the first page to the last, again and again for a
/// while, and returns bytes per second. Each time no page is in memory, and nobody knows that it
/// will be read in order.
fn scan(pager: &mut Pager, duration: Duration) -> Result<f64, Failure> {
    let (mut took, mut scanned) = (Duration::ZERO, 0);
    while took < duration {
        pager.refresh().doing("refresh")?;
        let begun = clock::now();
        let bytes = pager.bytes();
        black_box(bytes.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>());
        took += begun.elapsed();
        scanned += bytes.len();
    }
    Ok(scanned as f64 / took.as_secs_f64())
}
