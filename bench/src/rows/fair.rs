//! Fair shares: short gets and reads beside bulk copies, and bulk clients beside each other.
//!
//! On the rig, with a link of one gigabit per second and the disk as it is.

use std::cell::RefCell;
use std::time::Duration;

use crate::bulk::{self, Job, Source};
use crate::clock;
use crate::contest::Arm;
use crate::failure::Failure;
use crate::load::{Ask, Asker};
use crate::nodes::{Node, profile_name};
use crate::report::{Row, Unit};
use crate::rig::{GIGABIT, PROFILE, Rig};
use crate::rows::region::Region;
use crate::rows::{Bench, FILE_NAME, KIB};
use crate::stats::{Bar, Interval};

/// Long against a scheduler's turns, and against the burst of a socket buffer.
const MOMENT: Duration = Duration::from_millis(1000);

/// Largest time of a short request beside bulk copies: this many times its time alone, plus a
/// constant.
const TIMES_ALONE: f64 = 3.0;
const BESIDE_SECONDS: f64 = 3e-3;

/// Part of its rate that bulk keeps beside short requests.
const BULK_BAR: f64 = 0.85;

/// Requests of all bulk readers together: enough that each has some that wait, whatever its share.
const READS: usize = 128;

/// Largest distance of a share from its weight.
const SHARE_BAR: f64 = 0.05;

/// Bulk copies that use up the link from B to A (two) and B's disk (one on B itself).
fn copies(rig: &Rig) -> Vec<(&Node, Job)> {
    let job =
        |from, to: &str| Job { from, to: Some(rig.directory().join(to)), weight: 1, reads: 0 };
    let disk = Source::Here(rig.directory().join(FILE_NAME));
    vec![
        (&rig.pair.a, job(Source::Peer(FILE_NAME), "copy-1")),
        (&rig.pair.a, job(Source::Peer(FILE_NAME), "copy-2")),
        (&rig.pair.b, job(disk, "copy-3")),
    ]
}

/// A client that gets or reads 4 KiB at a time from B, with the jobs of others or without.
fn with_scene<T>(
    bench: &mut Bench,
    name: &str,
    body: impl FnOnce(
        &mut Bench,
        &[(&Node, Job)],
        &dyn Fn() -> Result<f64, Failure>,
    ) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let of_file = name.contains("read");
    bench.with_rig(|bench, rig| {
        rig.set_rate(GIGABIT)?;
        let Region { asker, handle, _export } = Region::open(&rig.pair)?;
        let (asker, handle): (RefCell<Asker>, _) = match of_file {
            true => {
                let (asker, file) = rig.asker()?;
                (RefCell::new(asker), file)
            }
            false => (RefCell::new(asker), handle),
        };
        let ask = Ask { handle: &handle, block: 4 * KIB, depth: 1 };
        let p99 = || Ok(asker.borrow_mut().reads(ask, MOMENT)?.percentile(0.99));
        let copies = copies(rig);
        // The files to write have their blocks then.
        bulk::beside(&copies, p99)?;
        body(bench, &copies, &p99)
    })
}

/// The 99th percentile of a short request.
pub(super) fn latency(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    with_scene(bench, name, |bench, copies, p99| {
        let mut arms = [
            Arm::variant("alone".to_owned(), p99),
            Arm::variant("beside copies".to_owned(), || Ok(bulk::beside(copies, p99)?.0)),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all(|round| {
            let (alone, beside) = (round.values[0]?, round.values[1]?);
            Some(beside / (TIMES_ALONE * alone + BESIDE_SECONDS))
        })?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e3);
        let note = format!(
            "99th percentile {:.2} ms alone, {:.2} ms beside two copies over the link and one on \
             the disk; of 3 x alone + 3 ms",
            told(0),
            told(1)
        );
        let bar = Bar::AtMost(1.0);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Part of their rate that the copies keep meanwhile: of the link's and the disk's, the smaller
/// one.
pub(super) fn throughput(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    with_scene(bench, name, |bench, copies, p99| {
        let rates = RefCell::new([Vec::new(), Vec::new()]);
        let measure = |arm: usize, body: &dyn Fn() -> Result<f64, Failure>| {
            let (_, rate) = bulk::beside(copies, body)?;
            let link = rate[0] + rate[1];
            rates.borrow_mut()[arm].push((link, rate[2]));
            Ok(link)
        };
        let pause = || {
            clock::pause(MOMENT);
            Ok(0.0)
        };
        let mut arms = [
            Arm::variant("copies alone".to_owned(), || measure(0, &pause)),
            Arm::variant("beside requests".to_owned(), || measure(1, p99)),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let [alone, beside] = rates.into_inner();
        let of = |part: fn(&(f64, f64)) -> f64| {
            let ratios =
                alone.iter().zip(&beside).map(|(alone, beside)| part(beside) / part(alone));
            let mean = alone.iter().map(part).sum::<f64>() / alone.len() as f64;
            (Interval::of_median(&ratios.collect::<Vec<_>>()), mean / 1e6)
        };
        let [(link, link_rate), (disk, disk_rate)] = [of(|rate| rate.0), of(|rate| rate.1)];
        let (Some(link), Some(disk)) = (link, disk) else {
            return Err(Failure::new("nothing was measured"));
        };
        let found = if link.median <= disk.median { link } else { disk };
        let note = format!(
            "the link's copies keep {:.2} of {link_rate:.0} MB/s, the disk's {:.2} of \
             {disk_rate:.0} MB/s",
            link.median, disk.median
        );
        let bar = Bar::AtLeast(BULK_BAR);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::PerSecond))
    })
}

/// Bulk clients that read the same, by weight: the largest distance of one from its share.
pub(super) fn shares(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let weights: &[u32] = if name.ends_with('8') { &[1; 8] } else { &[1, 3] };
    bench.with_rig(|bench, rig| {
        rig.set_rate(GIGABIT)?;
        let file = rig.directory().join(FILE_NAME);
        let over_link = name.contains("link");
        let job = |&weight| {
            let from = match over_link {
                true => Source::Peer(FILE_NAME),
                false => Source::Here(file.clone()),
            };
            (&rig.pair.a, Job { from, to: None, weight, reads: READS / weights.len() })
        };
        let jobs: Vec<(&Node, Job)> = weights.iter().map(job).collect();
        let sums = RefCell::new(vec![0.0; weights.len()]);
        let mut arms = [Arm::variant("farthest".to_owned(), || {
            let ((), rates) = bulk::beside(&jobs, || {
                clock::pause(MOMENT);
                Ok(())
            })?;
            let (all, weight) = (rates.iter().sum::<f64>(), weights.iter().sum::<u32>());
            let off = rates.iter().zip(weights).map(|(rate, &of)| {
                let due = all * f64::from(of) / f64::from(weight);
                (rate / due - 1.0).abs()
            });
            sums.borrow_mut().iter_mut().zip(&rates).for_each(|(sum, rate)| *sum += rate);
            Ok(off.fold(0.0, f64::max))
        })];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all(|round| round.values[0])?;
        let sums = sums.into_inner();
        let parts = sums.iter().map(|sum| format!("{:.3}", sum / sums.iter().sum::<f64>()));
        let note = format!("of all rounds: {}", parts.collect::<Vec<_>>().join(", "));
        let bar = Bar::AtMost(SHARE_BAR);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Part, found, bar, note)
            .with_arms(&rounds, Unit::Part))
    })
}
