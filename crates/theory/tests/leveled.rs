//! Plans for levels: what they promise on random and contrived pipelines, and how near they come to
//! plans that may cut anywhere.

use std::num::NonZeroU32;

use piped_model::fixed::{self, Constraints};
use piped_model::leveled::{self, Level, Task, told};
use piped_model::plan::{Plan, Sizes};
use piped_model::reference::{KB, PACKET_BYTES, network_disk, network_disk_network, stage};
use piped_model::stage::{Stage, StageCost};
use piped_model::{evaluate, hierarchical};
use piped_theory::{best, bound};
use proptest::collection::vec;
use proptest::prelude::*;

fn aligned(level: Level, alignment: u64) -> Level {
    Level { alignment, smallest: alignment, ..level }
}

fn plans(path: &[Stage], bytes: u64, levels: &[Level]) -> Vec<Plan> {
    leveled::candidates(&Task::new(path, bytes, levels, 32))
}

fn of(plans: &[Plan], name: &str) -> f64 {
    let plan = plans.iter().find(|plan| plan.algorithm.to_string() == name);
    plan.unwrap_or_else(|| panic!("a plan that is {name}")).predicted_seconds
}

/// Sums, rules, exactness, order.
fn check<C: StageCost>(task: &Task<'_, C>, plans: &[Plan]) -> Result<(), TestCaseError> {
    prop_assert!(plans.is_sorted_by(|a, b| a.predicted_seconds <= b.predicted_seconds));
    for plan in plans {
        let sizes = &plan.levels[0].sizes;
        let exact = match *sizes {
            // The same everywhere: too many to be looked at one by one.
            Sizes::Uniform { fragment_bytes, total_bytes } if sizes.count() > 5000 => {
                evaluate::uniform(task.path, fragment_bytes, total_bytes, Some(plan.depth))
            }
            _ => evaluate::plan(task.path, plan).expect("a plan for this path"),
        };
        let off = (plan.predicted_seconds - exact).abs();
        prop_assert!(off <= 1e-9 * exact, "{plan:?} takes {exact}");
        prop_assert!(plan.depth.get() <= task.depth_max.max(1), "{plan:?}");
        prop_assert!(plan.margin_seconds >= 0.0 && plan.margin_seconds.is_finite());
        prop_assert_eq!(plan.levels.len(), task.levels.len());
        for (found, level) in plan.levels.iter().zip(task.levels) {
            prop_assert_eq!(&found.stages, &level.stages);
            prop_assert_eq!(found.sizes.total_bytes(), task.bytes);
            let told = told(&found.sizes);
            prop_assert!(told.len() <= level.explicit_max, "{plan:?} {level:?}");
            let mut end = 0;
            for (index, fragment) in found.sizes.iter().enumerate().take(5000) {
                prop_assert_eq!(fragment.offset, end);
                end += fragment.length;
                let kept = fragment.length <= level.largest.max(level.alignment)
                    && (end == task.bytes
                        || fragment.length >= level.smallest
                            && fragment.length.is_multiple_of(level.alignment.max(1)));
                prop_assert!(kept, "{} in {level:?}: {plan:?}", fragment.length);
                // What is told says it all.
                let told = told[index.min(told.len() - 1)].min(task.bytes - fragment.offset);
                prop_assert_eq!(told, fragment.length);
            }
        }
    }
    Ok(())
}

fn a_stage() -> impl Strategy<Value = Stage> {
    let or_nothing = |range: std::ops::Range<f64>| prop_oneof![1 => Just(0.0), 5 => range];
    let latency = prop_oneof![3 => Just(0.0), 1 => 0.0..100.0_f64];
    (or_nothing(0.1..2000.0), or_nothing(0.0001..0.1), latency, 0_u32..12).prop_map(
        |(overhead, per_byte, latency, window)| Stage {
            latency: latency * 1e-6,
            overhead: overhead * 1e-6,
            per_byte: per_byte * 1e-6,
            window: NonZeroU32::new(if latency > 0.0 { window } else { 0 }),
        },
    )
}

/// Runs of stages, and a rule for each.
fn levels() -> impl Strategy<Value = Vec<Level>> {
    let unit = prop_oneof![Just(0_u64), Just(1), Just(512), Just(4096)];
    let least = prop_oneof![Just(0_u64), Just(512), Just(4096), Just(16384)];
    let level = (1_usize..5, unit, least, 1_usize..33, prop_oneof![Just(1 << 20), Just(u64::MAX)]);
    vec(level, 1..4).prop_map(|list| {
        let mut next = 0;
        let level = |(count, alignment, smallest, explicit_max, largest)| {
            let stages = next..next + count;
            next += count;
            Level { stages, smallest, largest, alignment, explicit_max }
        };
        list.into_iter().map(level).collect()
    })
}

/// A line that is steeper, and dearer at once, beyond a size.
#[derive(Debug, Clone, Copy)]
struct Bent {
    below: Stage,
    bend: f64,
    step: f64,
}

impl StageCost for Bent {
    fn stage_at(&self, bytes: f64) -> Stage {
        let Self { below, bend, step } = *self;
        match bytes <= bend {
            true => below,
            false => {
                Stage { overhead: below.overhead + step, per_byte: 2.0 * below.per_byte, ..below }
            }
        }
    }

    fn relative_error(&self, _: f64) -> f64 {
        0.1
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_keep_the_levels_rules_and_their_own_promise(
        levels in levels(), stages in vec(a_stage(), 12), depth_max in 0_u32..40,
        bytes in prop_oneof![1 => 0_u64..3, 2 => 1_u64..100_000, 4 => 1_u64..3_000_000, 1 => 1_u64..1 << 40],
    ) {
        let path = &stages[..levels[levels.len() - 1].stages.end];
        let task = Task::new(path, bytes, &levels, depth_max);
        let plans = leveled::candidates(&task);
        prop_assert!(of(&plans, "whole") >= plans[0].predicted_seconds);
        prop_assert!(of(&plans, "fixed") >= plans[0].predicted_seconds);
        check(&task, &plans)?;
    }

    #[test]
    fn costs_that_bend_are_charged_as_they_are(
        levels in levels(), stages in vec(a_stage(), 12), bend in 1000.0..200_000.0_f64,
        step in 0.0..1e-3_f64, bytes in 1_u64..2_000_000,
    ) {
        let bent: Vec<Bent> = stages.iter().map(|&below| Bent { below, bend, step }).collect();
        let path = &bent[..levels[levels.len() - 1].stages.end];
        let task = Task::new(path, bytes, &levels, 32);
        check(&task, &leveled::candidates(&task))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_plan_is_below_the_bound(levels in levels(), stages in vec(a_stage(), 12), bytes in 1_u64..200_000) {
        let path = &stages[..levels[levels.len() - 1].stages.end];
        if path.len() <= 6 {
            let bound = bound::lower_bound(path, bytes);
            let best = plans(path, bytes, &levels)[0].predicted_seconds;
            prop_assert!(best >= bound * (1.0 - 1e-9), "{best} {bound}");
        }
    }
}

#[test]
fn the_papers_paths_are_planned_nearly_as_well_as_if_every_stage_could_cut() {
    let (two, three) = (network_disk(), network_disk_network());
    let net = |unit| aligned(Level::free(0..4), unit);
    let disk = |unit| aligned(Level::free(4..5), unit);
    let back = |unit| aligned(Level::free(5..9), unit);
    for (path, units, near) in [
        (two, [1, 1], 1.01),
        (two, [512, 4096], 1.015),
        (three, [1, 1], 1.01),
        (three, [512, 4096], 1.02),
    ] {
        let [fine, coarse] = units;
        let mut levels = vec![net(fine), disk(coarse)];
        levels.extend((path.len() > 5).then(|| back(fine)));
        let found = plans(&path, PACKET_BYTES, &levels);
        let free = Constraints::default();
        let best = best::best(&path, PACKET_BYTES, &free).expect("a plan").plan.predicted_seconds;
        let b = hierarchical::fixed(&path, PACKET_BYTES, &free).expect("a plan").predicted_seconds;
        let ratio = found[0].predicted_seconds / best;
        assert!(ratio < near && found[0].predicted_seconds < 0.95 * b, "{units:?}: {ratio}");
    }
}

/// The best of a sweep of single fragment sizes, by powers of two from 4 KiB on.
fn swept(path: &[Stage], bytes: u64) -> f64 {
    let sizes = std::iter::successors(Some(4096_u64), |size| Some(size * 2));
    let free = Constraints::default();
    let fixed = sizes
        .take_while(|&size| size <= bytes)
        .map(|size| fixed::static_size(path, bytes, size, &free).predicted_seconds);
    fixed.fold(f64::INFINITY, f64::min)
}

#[test]
fn a_disk_and_a_network_of_three_stages_are_planned_apart() {
    let path = [
        stage(4000.0, 200.0, KB),
        stage(60.0, 100.0, KB),
        stage(40.0, 100.0, KB),
        stage(60.0, 100.0, KB),
    ];
    for unit in [512, 4096] {
        let levels = [aligned(Level::free(0..1), unit), aligned(Level::free(1..4), 512)];
        let plans = plans(&path, 65_536, &levels);
        let best = plans[0].predicted_seconds;
        assert!(best < 0.76 * swept(&path, 65_536), "{best}");
        assert!(best < 0.64 * of(&plans, "whole"), "{best}");
    }
    let mut path = path;
    path.reverse();
    let levels = [aligned(Level::free(0..3), 512), aligned(Level::free(3..4), 4096)];
    let plans = plans(&path, 65_536, &levels);
    let best = plans[0].predicted_seconds;
    assert!(best < 0.76 * swept(&path, 65_536), "{best}");
}

#[test]
fn fragments_of_a_slow_disk_shrink_towards_the_end() {
    let disk = Stage { overhead: 0.5e-3, per_byte: 8e-9, ..Stage::FREE };
    let link = Stage { overhead: 2e-6, per_byte: 8e-9, latency: 20e-6, window: None };
    let levels = [aligned(Level::free(0..1), 4096), aligned(Level::free(1..2), 512)];
    let plans = plans(&[disk, link], 1 << 20, &levels);
    let best = plans[0].predicted_seconds;
    assert!(best < 0.935 * swept(&[disk, link], 1 << 20), "{best}");
    assert!(best < 0.68 * of(&plans, "whole"), "{best}");
}

#[test]
fn levels_that_do_not_cover_the_path_have_no_plan() {
    let path = [stage(1.0, 1.0, KB); 3];
    let of = |levels: &[Level]| plans(&path, 100_000, levels).len();
    assert!(of(&[Level::free(0..3)]) > 0);
    assert_eq!(of(&[]), 0);
    assert_eq!(of(&[Level::free(0..2)]), 0);
    assert_eq!(of(&[Level::free(0..2), Level::free(1..3)]), 0);
    assert_eq!(of(&[Level::free(1..3)]), 0);
    assert_eq!(of(&[Level::free(0..3), Level::free(3..3)]), 0);
    assert_eq!(of(&[Level { explicit_max: 0, ..Level::free(0..3) }]), 0);
}
