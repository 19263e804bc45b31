//! Quality of the daemon's predictions: for sizes that it has never used, and for its own choices.

use piped_core::modes::{CalibrationMode, PlannerMode};

use super::scene::{Caller, Pace, Scene};
use super::{PROFILE, Rig, sweep};
use crate::failure::Failure;
use crate::load::Way;
use crate::nodes::profile_name;
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB, MIB};
use crate::stats::{self, Bar, Interval, Random};

/// Bar of the mean error: the paper's is 5.9 %.
const ERROR_BAR: f64 = 0.06;

/// Transfers with each size that the daemon may learn from, and with the size it may not, to
/// compare with; fewer of slow ones.
const LEARNING: usize = 20;
const COMPARED: usize = 15;

const BLOCKS: [usize; 3] = [64 * KIB, 256 * KIB, MIB];

/// Paths by the name of the row, with the number of [`BLOCKS`]: a MiB takes up to a second on the
/// paper's.
static PATHS: [(&str, Way, Pace, usize); 3] = [
    ("prediction-equal-100", Way::Read, Pace::Equal100, 3),
    ("prediction-slow-disk", Way::Read, Pace::SlowDisk, 3),
    ("prediction-section-5.5", Way::Write, Pace::Paper, 2),
];

/// A size that the daemon did not know.
struct Guess {
    block: usize,
    mode: PlannerMode,
    predicted: f64,
    measured: f64,
}

impl Guess {
    fn error(&self) -> f64 {
        (self.predicted / self.measured - 1.0).abs()
    }
}

/// Leaves each size out in turn: new daemons learn from all others, stop learning, and predict the
/// one left out.
pub(super) fn unknown(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let &(_, way, pace, blocks) =
        PATHS.iter().find(|path| path.0 == name).expect("a row of the table");
    bench.with_rig(|_, rig| {
        let mut guesses = Vec::new();
        for &block in &BLOCKS[..blocks] {
            for mode in sweep::by_hand(block) {
                guesses.push(guess(rig, Scene { way, block, pace }, mode)?);
            }
        }
        let mean = guesses.iter().map(Guess::error).sum::<f64>() / guesses.len() as f64;
        let profile = profile_name(PROFILE);
        let (found, bar) = (Interval::exact(mean), Bar::AtMost(ERROR_BAR));
        Ok(Row::judged(name, &profile, Unit::Part, found, bar, in_words(&guesses)))
    })
}

fn guess(rig: &mut Rig, scene: Scene, left_out: PlannerMode) -> Result<Guess, Failure> {
    rig.renew()?;
    let caller = Caller::stranger(rig, scene)?;
    let mut known = sweep::by_hand(scene.block);
    known.retain(|mode| *mode != left_out);
    // There and back, so that no size is the last one known.
    for mode in known.iter().chain(known.iter().rev()) {
        caller.rig.plan(*mode, CalibrationMode::Live)?;
        caller.few(LEARNING / 2)?;
    }
    caller.rig.plan(left_out, CalibrationMode::Frozen)?;
    let times = caller.few(COMPARED)?;
    let predicted = caller.planner().admin.explain_last()?["predicted_seconds"].as_f64();
    let measured = stats::median(&times).unwrap_or(f64::NAN);
    let predicted = predicted.filter(|seconds| *seconds > 0.0);
    let predicted = predicted.ok_or_else(|| Failure::new("a transfer was not predicted"))?;
    Ok(Guess { block: scene.block, mode: left_out, predicted, measured })
}

/// Each size's prediction with its measurement.
fn in_words(guesses: &[Guess]) -> String {
    let worst = guesses.iter().map(Guess::error).fold(0.0, f64::max);
    let mut text = format!("{} sizes, the worst {:.1} % off", guesses.len(), worst * 100.0);
    for block in BLOCKS {
        let of_block: Vec<_> = guesses.iter().filter(|guess| guess.block == block).collect();
        if of_block.is_empty() {
            continue;
        }
        let words = of_block.iter().map(|Guess { mode, predicted, measured, .. }| {
            format!("{mode} {:.0} for {:.0}", predicted * 1e6, measured * 1e6)
        });
        let words = words.collect::<Vec<_>>().join(", ");
        text += &format!("; {} KiB, predicted for measured, us: {words}", block / KIB);
    }
    text
}

/// Scenes with transfers that are looked at one by one.
const WATCHED: [Scene; 3] = [
    Scene { way: Way::Read, block: 256 * KIB, pace: Pace::Equal100 },
    Scene { way: Way::Read, block: MIB, pace: Pace::Equal100 },
    Scene { way: Way::Read, block: MIB, pace: Pace::SlowDisk },
];
const WATCHED_TRANSFERS: usize = 120;
/// Times that each is posed and learnt, in turn, because one of them says little about the next.
const WATCHED_TURNS: usize = 3;
const COVERED_BAR: f64 = 0.9;
const MARGIN_BAR: f64 = 0.2;

/// A transfer of `auto`, with its prediction.
#[derive(Clone, Copy)]
struct Watched {
    covered: bool,
    /// Half of the interval's width, relative to the prediction.
    margin: f64,
}

pub(super) fn margin(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    bench.with_rig(|_, rig| {
        let mut turns = Vec::new();
        let mut notes = Vec::new();
        for scene in [WATCHED; WATCHED_TURNS].into_iter().flatten() {
            let caller = Caller::start(rig, scene)?;
            let watched = watch(&caller)?;
            let part = covered(&watched) * 100.0;
            let margin = median_margin(&watched) * 100.0;
            let kib = scene.block / KIB;
            notes.push(format!("{:?} {kib} KiB: {part:.0} %, ± {margin:.0} %", scene.pace));
            turns.push(watched);
        }
        let all = turns.iter().map(Vec::len).sum::<usize>();
        let note = format!("{all} transfers, by the client's clock; {}", notes.join(", "));
        let (found, bar) = match name {
            "margin-covers" => (bootstrapped(&turns, covered), Bar::AtLeast(COVERED_BAR)),
            _ => (bootstrapped(&turns, median_margin), Bar::AtMost(MARGIN_BAR)),
        };
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Part, found, bar, note))
    })
}

fn watch(caller: &Caller<'_>) -> Result<Vec<Watched>, Failure> {
    let one = |_| {
        let measured = caller.one()?;
        let explanation = caller.planner().admin.explain_last()?;
        let figure = |name: &str| explanation[name].as_f64().unwrap_or(0.0);
        let (predicted, margin) = (figure("predicted_seconds"), figure("margin_seconds"));
        Ok(Watched {
            covered: (measured - predicted).abs() <= margin,
            margin: margin / predicted.max(1e-9),
        })
    };
    (0..WATCHED_TRANSFERS).map(one).collect()
}

fn covered(watched: &[Watched]) -> f64 {
    watched.iter().filter(|one| one.covered).count() as f64 / watched.len() as f64
}

fn median_margin(watched: &[Watched]) -> f64 {
    let margins: Vec<f64> = watched.iter().map(|one| one.margin).collect();
    stats::median(&margins).unwrap_or(f64::NAN)
}

const RESAMPLES: usize = 1000;

/// Value of `of` with its 95 % interval by drawing whole turns again, because transfers of one turn
/// are alike.
fn bootstrapped(turns: &[Vec<Watched>], of: fn(&[Watched]) -> f64) -> Interval {
    let mut random = Random::new(9);
    let mut draw = || {
        let again = (0..turns.len()).map(|_| &turns[random.below(turns.len() as u64) as usize]);
        of(&again.flatten().copied().collect::<Vec<_>>())
    };
    let mut found: Vec<f64> = (0..RESAMPLES).map(|_| draw()).collect();
    found.sort_unstable_by(f64::total_cmp);
    let tail = RESAMPLES / 40;
    Interval { low: found[tail], median: of(&turns.concat()), high: found[RESAMPLES - 1 - tail] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_relative_to_what_was_measured_and_has_no_sign() {
        let guess = |predicted, measured| Guess {
            block: BLOCKS[0],
            mode: PlannerMode::Whole,
            predicted,
            measured,
        };
        assert!((guess(0.9, 1.0).error() - 0.1).abs() < 1e-12);
        assert!((guess(2.2, 2.0).error() - 0.1).abs() < 1e-12);
        let words = in_words(&[guess(2.2e-6, 2e-6), guess(1e-6, 1e-6)]);
        assert!(words.starts_with("2 sizes, the worst 10.0 % off"), "{words}");
        assert!(words.contains("64 KiB, predicted for measured, us: whole 2 for 2"), "{words}");
    }

    #[test]
    fn the_interval_of_a_part_surrounds_it() {
        let watched: Vec<Watched> =
            (0..100).map(|at| Watched { covered: at % 20 >= 2, margin: f64::from(at) }).collect();
        // Every other turn misses two of ten.
        let turns: Vec<Vec<Watched>> =
            watched.chunks(watched.len() / 10).map(<[_]>::to_vec).collect();
        let found = bootstrapped(&turns, covered);
        assert!((found.median - 0.9).abs() < 1e-12);
        assert!((0.80..0.87).contains(&found.low) && (0.93..=1.0).contains(&found.high));
        assert!((median_margin(&watched) - 49.5).abs() < 1e-12);
    }
}
