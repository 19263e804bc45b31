//! `auto` against the best fixed size, and against transfers in one piece.

use piped_core::modes::PlannerMode;

use super::PROFILE;
use super::scene::{Caller, Pace, Scene};
use crate::contest::{Arm, Rounds};
use crate::failure::Failure;
use crate::load::Way;
use crate::nodes::profile_name;
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB, MIB};
use crate::stats::{self, Bar, Better};

/// The smallest and the largest fixed size; the others are between, by doubling.
const SIZES: (usize, usize) = (4 * KIB, MIB);

/// Rounds that choose which sizes to compare, and how much slower than the best one such a size may
/// look in them.
const CHOOSING: u32 = 5;
const WORTH: f64 = 1.15;

/// Rival of `auto` in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rival {
    /// The best fixed size, or whole.
    Fixed,
    Whole,
}

/// One row of the sweep.
#[derive(Debug)]
struct Sweep {
    name: &'static str,
    scene: Scene,
    rival: Rival,
    bar: f64,
}

const fn sweep(
    name: &'static str,
    pace: Pace,
    way: Way,
    block: usize,
    rival: Rival,
    bar: f64,
) -> Sweep {
    Sweep { name, scene: Scene { way, block, pace }, rival, bar }
}

static SWEEPS: [Sweep; 16] = {
    use Pace::{Equal100, EqualOwn, Paper, SlowDisk};
    use Rival::{Fixed, Whole};
    use Way::{Read, Write};
    const PAPER_BYTES: usize = 64 * KIB;
    [
        sweep("reads-equal-100-64k", Equal100, Read, 64 * KIB, Fixed, 1.05),
        sweep("reads-equal-100-256k", Equal100, Read, 256 * KIB, Fixed, 1.05),
        sweep("reads-equal-100-1m", Equal100, Read, MIB, Fixed, 1.05),
        sweep("reads-equal-100-4m", Equal100, Read, 4 * MIB, Fixed, 1.05),
        sweep("reads-equal-100-whole", Equal100, Read, MIB, Whole, 0.65),
        sweep("reads-equal-own-64k", EqualOwn, Read, 64 * KIB, Fixed, 1.05),
        sweep("reads-equal-own-256k", EqualOwn, Read, 256 * KIB, Fixed, 1.05),
        sweep("reads-equal-own-1m", EqualOwn, Read, MIB, Fixed, 1.05),
        sweep("reads-equal-own-4m", EqualOwn, Read, 4 * MIB, Fixed, 1.05),
        sweep("reads-equal-own-whole", EqualOwn, Read, MIB, Whole, 0.65),
        sweep("slow-disk-fixed", SlowDisk, Read, MIB, Fixed, 0.96),
        sweep("slow-disk-whole", SlowDisk, Read, MIB, Whole, 0.68),
        sweep("section-5.5-write-fixed", Paper, Write, PAPER_BYTES, Fixed, 0.83),
        sweep("section-5.5-write-whole", Paper, Write, PAPER_BYTES, Whole, 0.69),
        sweep("section-5.5-read-fixed", Paper, Read, PAPER_BYTES, Fixed, 0.83),
        sweep("section-5.5-read-whole", Paper, Read, PAPER_BYTES, Whole, 0.69),
    ]
};

/// Fixed sizes for transfers of `block` bytes.
pub(crate) fn by_hand(block: usize) -> Vec<PlannerMode> {
    let (smallest, largest) = SIZES;
    let sizes = std::iter::successors(Some(smallest), |size| Some(size * 2));
    let sizes = sizes.take_while(|&size| size <= largest && size < block);
    let fixed = sizes.map(|size| PlannerMode::Fixed(size as u32));
    fixed.chain([PlannerMode::Whole]).collect()
}

pub(super) fn compare(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let sweep = SWEEPS.iter().find(|sweep| sweep.name == name).expect("a row of the table");
    bench.with_rig(|bench, rig| {
        let caller = Caller::start(rig, sweep.scene)?;
        let arm = |mode: PlannerMode| {
            let caller = &caller;
            Arm::variant(mode.to_string(), move || caller.median_by(mode))
        };
        let mut arms = match sweep.rival {
            Rival::Whole => vec![arm(PlannerMode::Whole)],
            Rival::Fixed => {
                let mut all: Vec<Arm<'_>> =
                    by_hand(sweep.scene.block).into_iter().map(arm).collect();
                let chosen = bench.chosen(CHOOSING, &mut all)?;
                worth_comparing(all, &chosen)?
            }
        };
        let rivals = arms.len();
        arms.push(Arm::subject("auto", || caller.median_by(PlannerMode::Auto)));
        let rounds = bench.rounds(&mut arms);
        rig.plan_by(PlannerMode::Auto)?;
        let rounds = rounds?;
        let best = rounds.best(0..rivals, Better::Smaller)?;
        let found = rounds.ratio(rivals, best)?;
        let micros = |arm| Ok::<_, Failure>(rounds.value(arm)?.median * 1e6);
        let note = format!(
            "auto {:.0} us ({}), {} {:.0} us",
            micros(rivals)?,
            cut(&caller)?,
            rounds.names[best],
            micros(best)?
        );
        let bar = Bar::AtMost(sweep.bar);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Arms that may be the best.
fn worth_comparing<'a>(arms: Vec<Arm<'a>>, chosen: &Rounds) -> Result<Vec<Arm<'a>>, Failure> {
    let best = chosen.best_of_all(0..arms.len(), Better::Smaller)?;
    let median = |arm| chosen.all_of(arm).map_or(f64::INFINITY, |found| found.median);
    let most = median(best) * WORTH;
    let kept = arms.into_iter().enumerate().filter(|(arm, _)| median(*arm) <= most);
    Ok(kept.map(|(_, arm)| arm).collect())
}

/// Transfers that are asked how they were cut.
const EXPLANATIONS: usize = 15;

/// Describes how most transfers are cut, and the prediction for such ones.
fn cut(caller: &Caller<'_>) -> Result<String, Failure> {
    let mut seen = std::collections::BTreeMap::<String, Vec<f64>>::new();
    for _ in 0..EXPLANATIONS {
        caller.some(1)?;
        let explanation = caller.planner().admin.explain_last()?;
        let figure = |name: &str| explanation[name].as_u64().unwrap_or(0);
        let text = format!(
            "{}, {} fragments from {} KiB, depth {}",
            explanation["chosen"].as_str().unwrap_or("?"),
            figure("fragments"),
            figure("fragment_bytes") >> 10,
            figure("depth"),
        );
        let predicted = explanation["predicted_seconds"].as_f64().unwrap_or(0.0);
        seen.entry(text).or_default().push(predicted);
    }
    let most = seen.into_iter().max_by_key(|(_, predicted)| predicted.len());
    Ok(most.map_or_else(String::new, |(text, predicted)| {
        let predicted = stats::median(&predicted).unwrap_or(0.0) * 1e6;
        format!("{text}, predicted {predicted:.0} us")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_by_hand_are_shorter_than_the_transfer_and_end_with_whole() {
        let sizes = |block| by_hand(block).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(sizes(16 * KIB), ["fixed:4KiB", "fixed:8KiB", "whole"]);
        assert_eq!(sizes(4 * MIB).len(), 10);
        assert_eq!(sizes(4 * MIB)[8], "fixed:1MiB");
        assert_eq!(sizes(MIB).len(), 9, "1 MiB is whole");
    }

    #[test]
    fn sizes_that_cannot_be_the_best_are_not_compared() {
        let arm = |name: &str| Arm::variant(name.to_owned(), || Ok(0.0));
        let arms = ["a", "b", "c"].map(arm);
        let values = [1.14, 1.0, 1.16].map(Some).to_vec();
        let round = crate::stats::Round { number: 1, values };
        let chosen = Rounds { kept: vec![round], ..Rounds::default() };
        let kept = worth_comparing(arms.into(), &chosen).expect("a round is enough to choose");
        assert_eq!(kept.iter().map(|arm| arm.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
