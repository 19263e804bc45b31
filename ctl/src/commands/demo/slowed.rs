//! Demonstrates planning: the same read where disk and link take equal time. This machine may have
//! neither, so dials slow both down by known amounts; all times are measured as usual.
//!
//! Fairness: the fixed size is the best of a sweep and is measured anew beside the others. All of
//! them read once in each round, in rotating order. The spread of the rounds is shown.

use std::os::unix::fs::MetadataExt as _;

use piped_config::admin::dials::{DIALS, DialChange, Dials};
use piped_core::modes::PlannerMode;
use piped_report::dial::DialReport;

use super::latency::{Bench, median};
use super::report::{Contender, Slowed, Spread};
use crate::failure::Failure;
use crate::units;

/// Bytes of one read.
const SIZE: u64 = 1 << 20;
/// Reads until the planner has learnt the change.
const LEARN: usize = 60;
/// Fixed sizes that a person would try.
const BY_HAND: [u64; 6] = [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];
/// Reads of each size.
const TRIES: usize = 5;
const ROUNDS: usize = 25;

/// Dial of the disk, on top of its own time: 100 MB/s, and 100 us for each fragment.
const DISK: (u64, u64) = (100_000, 10_000);
/// Dial of the link: 1 Gbit/s, and 20 us for each fragment.
const LINK: (u64, u64) = (20_000, 8_000);
/// Description of the slowed path.
pub(super) const PATH: &str =
    "a disk of 100 MB/s with 100 us for each fragment, a link of 1 Gbit/s with 20 us for each";

/// Reads over a path that is slowed at `peer`'s disk with `file`, and on the way from it. `None` if
/// the file is too small, or lies on something that no dial reaches.
pub(super) fn run(
    bench: &mut Bench<'_>,
    peer: &str,
    file: &std::path::Path,
) -> Result<Option<Slowed>, Failure> {
    if bench.reader.file_bytes() < SIZE {
        return Ok(None);
    }
    let device =
        std::fs::metadata(file).map_err(|error| Failure::io(file.display(), &error))?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let disk: Dials<DialReport> =
        bench.holder.put_and_read(DIALS, dial(format!("disk:{major}:{minor}:read"), DISK))?;
    let link: Dials<DialReport> =
        bench.asker.put_and_read(DIALS, dial(format!("net:{peer}"), LINK))?;
    if disk.dials.iter().chain(&link.dials).any(|dial| dial.unknown) {
        return Ok(None);
    }
    bench.mode(PlannerMode::Auto)?;
    for done in 0..LEARN {
        bench.cancel.check()?;
        bench.progress.say(format_args!("slower disk and link: learning, {done} of {LEARN}"));
        bench.reader.read_somewhere(SIZE)?;
    }
    let best = sweep(bench)?;
    compare(bench, best).map(Some)
}

fn dial(stage: String, (overhead_ns, per_byte_ps): (u64, u64)) -> DialChange {
    DialChange { stage, overhead_ns, per_byte_ps, ..DialChange::default() }
}

/// Returns the size with the least median.
fn sweep(bench: &mut Bench<'_>) -> Result<u64, Failure> {
    let mut best = (f64::INFINITY, BY_HAND[0]);
    for size in BY_HAND {
        bench.cancel.check()?;
        bench.progress.say(format_args!("slower disk and link: fixed {}", units::bytes(size)));
        bench.mode(PlannerMode::Fixed(size as u32))?;
        bench.reader.read_somewhere(SIZE)?;
        let times: Result<Vec<f64>, Failure> =
            (0..TRIES).map(|_| Ok(bench.reader.read_somewhere(SIZE)?.as_secs_f64())).collect();
        let time = median(times?);
        if time < best.0 {
            best = (time, size);
        }
    }
    Ok(best.1)
}

fn compare(bench: &mut Bench<'_>, best: u64) -> Result<Slowed, Failure> {
    let modes = [PlannerMode::Auto, PlannerMode::Fixed(best as u32), PlannerMode::Whole];
    let mut times = [const { Vec::new() }; 3];
    let mut plans = [const { None }; 3];
    for round in 0..ROUNDS {
        bench.cancel.check()?;
        bench.progress.say(format_args!("slower disk and link: round {} of {ROUNDS}", round + 1));
        for turn in 0..modes.len() {
            let which = (round + turn) % modes.len();
            let time = bench.read(SIZE, modes[which])?;
            times[which].push(time.as_secs_f64());
            plans[which] = bench.plan(SIZE).or(plans[which].take());
        }
    }
    bench.mode(PlannerMode::Auto)?;
    let [auto, by_hand, whole] = &times;
    let ratios = |of: &[f64], to: &[f64]| {
        Spread::of(of.iter().zip(to).map(|(one, other)| one / other).collect())
    };
    let (auto_to_whole, auto_to_by_hand) = (ratios(auto, whole), ratios(auto, by_hand));
    let by_hand_to_whole = ratios(by_hand, whole);
    let [auto, by_hand, whole] = times.map(Spread::of);
    let [auto_plan, by_hand_plan, whole_plan] = plans;
    Ok(Slowed {
        path: PATH,
        size_bytes: SIZE,
        rounds: ROUNDS,
        tried_bytes: BY_HAND.to_vec(),
        by_hand_bytes: best,
        auto: Contender { seconds: auto, plan: auto_plan },
        by_hand: Contender { seconds: by_hand, plan: by_hand_plan },
        whole: Contender { seconds: whole, plan: whole_plan },
        auto_to_whole,
        auto_to_by_hand,
        by_hand_to_whole,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dialled_is_what_is_told() {
        let per_second = |(_, per_byte_ps): (u64, u64)| 1e12 / per_byte_ps as f64;
        assert_eq!((per_second(DISK), 8.0 * per_second(LINK)), (100e6, 1e9));
        for told in ["100 MB/s", "100 us", "1 Gbit/s", "20 us"] {
            assert!(PATH.contains(told), "{told}");
        }
        assert_eq!((DISK.0, LINK.0), (100_000, 20_000));
    }
}
