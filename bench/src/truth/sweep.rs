//! `auto` against every size set by hand, for one path, load and length.
//!
//! Of noisy medians the least is the luckiest one too. So the best size by hand is chosen in other
//! rounds than those it is compared in: a few rounds find the sizes that may be the best, then the
//! odd ones of the compared rounds choose and the even ones compare.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use piped_core::limits::FRAGMENT_BYTES_MAX;
use piped_core::modes::PlannerMode;

use super::candidates::List;
use super::scene::{Caller, Load, Path};
use crate::contest::{self, Arm};
use crate::failure::Failure;
use crate::rig;
use crate::rows::KIB;
use crate::stats::{self, Bar, Better, Interval};

/// Most that `auto` may take, over the best size by hand.
pub(super) const BAR: Bar = Bar::AtMost(1.02);

/// The smallest size set by hand.
const SMALLEST: u32 = 16 * KIB as u32;

/// Sizes that are compared at most, and how much slower than the best one they may have looked.
const RIVALS: usize = 3;
const WORTH: f64 = 1.15;

/// Time that the compared rounds may take, and the least of them.
const COMPARING_SECONDS: f64 = 8.0;
const ROUNDS_MIN: u32 = 9;

/// Rounds that must be left to compare in: the interval of one or two says nothing.
const COMPARED_MIN: usize = 3;

/// Time and rounds that a cell may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// Longest time in which `auto` learns the path.
    warm: Duration,
    /// Rounds that measure every size.
    choosing: u32,
    /// Rounds that compare the sizes left.
    rounds: u32,
}

impl Effort {
    pub(super) fn new(rounds: u32, quick: bool) -> Self {
        match quick {
            false => Self { warm: Duration::from_secs(4), choosing: 5, rounds },
            true => {
                Self { warm: Duration::from_secs(1), choosing: 3, rounds: rounds.min(ROUNDS_MIN) }
            }
        }
    }

    pub(super) const fn warm(self) -> Duration {
        self.warm
    }

    pub(super) const fn rounds(self) -> u32 {
        self.rounds
    }
}

/// A size set by hand and the median of its rounds, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Hand {
    mode: PlannerMode,
    seconds: f64,
}

impl Hand {
    pub(super) const fn new(mode: PlannerMode, seconds: f64) -> Self {
        Self { mode, seconds }
    }

    pub(super) const fn mode(&self) -> PlannerMode {
        self.mode
    }

    pub(super) const fn seconds(&self) -> f64 {
        self.seconds
    }
}

/// Results of one path, load and length.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(crate) path: Path,
    pub(crate) load: Load,
    pub(crate) block: usize,
    /// Median of `auto` beside all sizes by hand, in seconds.
    pub(crate) auto: f64,
    pub(crate) hand: Vec<Hand>,
    /// Best size by hand, and `auto` over it.
    pub(crate) best: PlannerMode,
    pub(crate) ratio: Interval,
    pub(crate) rounds: usize,
    pub(crate) discarded: u32,
    pub(crate) list: List,
}

impl Cell {
    /// Name as in `--only`, such as `file-quiet-1m`.
    pub(super) fn name(&self) -> String {
        name(self.path, self.load, self.block)
    }
}

pub(super) fn name(path: Path, load: Load, block: usize) -> String {
    let kib = block / KIB;
    let length = if kib < 1024 { format!("{kib}k") } else { format!("{}m", kib / 1024) };
    format!("{}-{}-{length}", path.name(), load.name())
}

/// Powers of two from 16 KiB to the longest fragment, and the transfer in one piece.
fn by_hand(block: usize) -> Vec<PlannerMode> {
    let mut sizes = rig::by_hand(block);
    sizes.retain(|mode| !matches!(mode, PlannerMode::Fixed(bytes) if *bytes < SMALLEST));
    sizes
}

/// First fragment of a size set by hand, in bytes.
pub(super) fn fragment_bytes(mode: PlannerMode, block: usize) -> u64 {
    match mode {
        PlannerMode::Fixed(bytes) => u64::from(bytes),
        PlannerMode::Whole | PlannerMode::Auto => block.min(FRAGMENT_BYTES_MAX as usize) as u64,
    }
}

/// Measures a cell, first all sizes, then the best ones.
pub(super) fn measure(
    caller: &Caller<'_>,
    (path, load): (Path, Load),
    effort: Effort,
) -> Result<Cell, Failure> {
    caller.warm(effort.warm)?;
    let mut list = List::watch(caller)?;
    let block = caller.block();
    let sizes = by_hand(block);
    let told: RefCell<BTreeMap<u64, Vec<f64>>> = RefCell::default();
    let all = sizes.iter().copied().chain([PlannerMode::Auto]);
    let mut arms: Vec<Arm<'_>> = all
        .map(|mode| {
            let told = &told;
            Arm::variant(mode.to_string(), move || {
                let seconds = caller.median_by(mode)?;
                if mode != PlannerMode::Auto
                    && let Some(last) = caller.took()?
                {
                    told.borrow_mut().entry(fragment_bytes(mode, block)).or_default().push(last);
                }
                Ok(seconds)
            })
        })
        .collect();
    let chosen = contest::run(effort.choosing, &mut arms)?;
    drop(arms);
    for (bytes, times) in told.into_inner() {
        list.add(bytes, stats::median(&times).unwrap_or(f64::NAN));
    }
    let seconds = |arm| chosen.all_of(arm).map_or(f64::NAN, |found| found.median);
    let auto = seconds(sizes.len());
    let hand: Vec<Hand> =
        sizes.iter().enumerate().map(|(arm, mode)| Hand::new(*mode, seconds(arm))).collect();

    let rivals = leading(&hand);
    let by_mode = |mode| move || caller.median_by(mode);
    let mut arms: Vec<Arm<'_>> =
        rivals.iter().map(|it| Arm::variant(it.mode.to_string(), by_mode(it.mode))).collect();
    arms.push(Arm::subject("auto", by_mode(PlannerMode::Auto)));
    let rounds = contest::run(affordable(effort.rounds, &rivals), &mut arms)?;
    drop(arms);
    caller.plan_by(PlannerMode::Auto)?;
    if rounds.kept.iter().filter(|round| !round.is_odd()).count() < COMPARED_MIN {
        return Err(Failure::new(
            "too few rounds are left to compare: run it again, with --rounds 31",
        ));
    }
    let best = rounds.best(0..rivals.len(), Better::Smaller)?;
    Ok(Cell {
        path,
        load,
        block,
        auto,
        best: rivals[best].mode,
        hand,
        ratio: rounds.ratio(rivals.len(), best)?,
        rounds: rounds.kept.len(),
        discarded: chosen.discarded + rounds.discarded,
        list,
    })
}

/// Sizes that may be the best one, the best first.
fn leading(hand: &[Hand]) -> Vec<Hand> {
    let mut sizes = hand.to_vec();
    sizes.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let most = sizes.first().map_or(0.0, |best| best.seconds * WORTH);
    sizes.retain(|it| it.seconds <= most);
    sizes.truncate(RIVALS);
    sizes
}

/// Rounds that slow transfers leave time for, fixed before the first of them.
fn affordable(rounds: u32, rivals: &[Hand]) -> u32 {
    // Some transfers of a moment each, and `auto` in every second round.
    const TRANSFERS: f64 = 3.0;
    let slowest = rivals.iter().map(|it| it.seconds).fold(0.0, f64::max);
    let round = slowest * TRANSFERS * (rivals.len() as f64 + 0.5);
    rounds.min(ROUNDS_MIN.max((COMPARING_SECONDS / round) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::MIB;

    fn hand(seconds: &[f64]) -> Vec<Hand> {
        let sizes = (14..).map(|power| PlannerMode::Fixed(1 << power));
        sizes.zip(seconds).map(|(mode, seconds)| Hand::new(mode, *seconds)).collect()
    }

    #[test]
    fn sizes_by_hand_go_from_16_kib_to_one_piece() {
        let sizes = |block| by_hand(block).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(sizes(64 * KIB), ["fixed:16KiB", "fixed:32KiB", "whole"]);
        assert_eq!(sizes(MIB).len(), 7);
        assert_eq!(sizes(16 * MIB)[6..], ["fixed:1MiB", "whole"], "a fragment is not longer");
        assert_eq!(fragment_bytes(PlannerMode::Whole, 64 * KIB), 64 << 10);
        assert_eq!(fragment_bytes(PlannerMode::Whole, 16 * MIB), 1 << 20);
        assert_eq!(name(Path::File, Load::Quiet, MIB), "file-quiet-1m");
        assert_eq!(name(Path::Get, Load::Gigabit, 64 * KIB), "get-1gbit-64k");
    }

    #[test]
    fn only_sizes_that_may_be_the_best_are_compared() {
        let leading = |seconds: &[f64]| -> Vec<f64> {
            super::leading(&hand(seconds)).iter().map(Hand::seconds).collect()
        };
        assert_eq!(leading(&[3.0, 1.1, 1.0, 1.16]), [1.0, 1.1]);
        assert_eq!(leading(&[1.04, 1.03, 1.02, 1.01]), [1.01, 1.02, 1.03], "three of them");
    }

    #[test]
    fn slow_transfers_are_compared_in_fewer_rounds() {
        assert_eq!(affordable(31, &hand(&[1e-3, 1e-3])), 31);
        assert_eq!(affordable(31, &hand(&[0.15, 0.15])), 9, "the least");
        assert!((10..31).contains(&affordable(31, &hand(&[0.05, 0.05]))));
        assert_eq!(affordable(4, &hand(&[1.0])), 4, "never more than asked for");
    }
}
