//! Cost of measuring all the time: `calibration = live` against `frozen` where nothing changes, one
//! second each in turn.

use std::time::Duration;

use piped_core::modes::{CalibrationMode, PlannerMode};

use super::PROFILE;
use super::scene::{Caller, Pace, Scene};
use crate::contest::{self, Arm};
use crate::failure::Failure;
use crate::load::Way;
use crate::nodes::profile_name;
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB};
use crate::stats::{Bar, Better};

const BLOCK: usize = 64 * KIB;
const DEPTH: usize = 16;
const SECOND: Duration = Duration::from_secs(1);

/// Seconds of each. Some may be lost to stolen time, but not so many that fewer than the minimum
/// are left.
const PAIRS: u32 = 66;
const PAIRS_MIN: usize = 60;

/// Bar for both rows: of times, and of the inverse of rates.
const BAR: f64 = 1.03;

pub(super) fn cost(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let better = match name {
        "live-latency" => Better::Smaller,
        _ => Better::Larger,
    };
    bench.with_rig(|bench, rig| {
        let caller = Caller::start(rig, Scene { way: Way::Read, block: BLOCK, pace: Pace::Own })?;
        rig.plan_by(PlannerMode::Auto)?;
        let (rig, caller) = (&*rig, &caller);
        let arm = |mode: CalibrationMode| {
            Arm::variant(mode.name().to_owned(), move || {
                rig.calibrate(mode)?;
                match better {
                    Better::Smaller => Ok(caller.reads(1, SECOND)?.p50()),
                    Better::Larger => Ok(caller.reads(DEPTH, SECOND)?.rate()),
                }
            })
        };
        let mut arms = [CalibrationMode::Live, CalibrationMode::Frozen].map(arm);
        let rounds = contest::run_long(PAIRS, &mut arms);
        rig.plan_by(PlannerMode::Auto)?;
        let rounds = rounds?;
        bench.report.rounds_discarded += rounds.discarded;
        if rounds.kept.len() < PAIRS_MIN {
            let left = rounds.kept.len();
            return Err(Failure::new(format!(
                "{left} pairs are left, {PAIRS_MIN} are needed: other guests took the rest of the \
                 time"
            )));
        }
        let found = match better {
            Better::Smaller => rounds.all_ratio(0, 1)?,
            Better::Larger => rounds.all_ratio(1, 0)?,
        };
        let median = |arm| rounds.all_of(arm).map_or(f64::NAN, |found| found.median);
        let (live, frozen, pairs) = (median(0), median(1), rounds.kept.len());
        let note = match better {
            Better::Smaller => format!(
                "one read of 64 KiB at a time: live {:.1} us, frozen {:.1} us, {pairs} pairs",
                live * 1e6,
                frozen * 1e6
            ),
            Better::Larger => format!(
                "16 reads of 64 KiB at a time: live {live:.0}/s, frozen {frozen:.0}/s, {pairs} \
                 pairs"
            ),
        };
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, Bar::AtMost(BAR), note)
            .with_arms(&rounds, Unit::of(better)))
    })
}
