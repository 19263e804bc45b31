//! The ramps against the optimum over all sizes, and the optimum against computed cases.

use std::num::NonZeroU32;

use piped_model::evaluate::same_sizes;
use piped_model::fixed::{Constraints, best, optimum};
use piped_model::ramp::{up_down_real, up_real};
use piped_model::reference;
use piped_model::stage::{Path, Stage};
use piped_model::ways::between;
use piped_theory::lp::{over_ways, same_fragments, with_count};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::Value;

/// The largest number of fragments that is solved for here.
const MOST: u64 = 40;

fn stage() -> impl Strategy<Value = Stage> {
    (1.0..60.0_f64, 1.0..60.0_f64)
        .prop_map(|(overhead, per_kb)| reference::stage(overhead, per_kb, reference::KB))
}

/// As [`stage`], also without overhead or bandwidth.
fn edge() -> impl Strategy<Value = Stage> {
    (stage(), 0..6).prop_map(|(stage, edge)| match edge {
        0 => Stage { overhead: 0.0, ..stage },
        1 => Stage { per_byte: 0.0, ..stage },
        _ => stage,
    })
}

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() <= 1e-6
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ramp_over_two_stages_is_the_optimum(path in vec(edge(), 2), bytes in 500.0..60_000.0_f64) {
        let ramp = up_real(&path, bytes, MOST).unwrap();
        let best = same_fragments(&path, bytes, MOST).unwrap();
        prop_assert!(close(ramp.predicted_seconds, best.predicted_seconds), "{ramp:?} {best:?}");
    }

    #[test]
    fn a_ramp_up_and_down_over_fast_slow_fast_is_the_optimum(
        path in vec(edge(), 3), slower in (1.0..4.0_f64, 1.0..4.0_f64), bytes in 500.0..30_000.0_f64,
    ) {
        let (g, per_byte) = path.iter().fold((0.0_f64, 0.0_f64), |(g, p), s| {
            (g.max(s.overhead), p.max(s.per_byte))
        });
        prop_assume!(per_byte > 0.0);
        let slow = Stage { overhead: g * slower.0, per_byte: per_byte * slower.1, ..path[1] };
        let path = [path[0], slow, path[2]];
        let ramp = up_down_real(&path, bytes, MOST).unwrap();
        let best = same_fragments(&path, bytes, MOST).unwrap();
        prop_assert!(close(ramp.predicted_seconds, best.predicted_seconds), "{ramp:?} {best:?}");
    }

    /// On any three stages a ramp is a candidate and no more; nor does anything beat the optimum.
    #[test]
    fn nothing_of_the_same_fragments_beats_the_optimum(
        path in vec(edge(), 1..5), bytes in 500.0..15_000.0_f64,
        latency in 0.0..200e-6_f64, window in 0_u32..4, cuts in vec(0.01..1.0_f64, 1..10),
    ) {
        let mut path = path;
        path[0] = Stage { latency, window: NonZeroU32::new(window), ..path[0] };
        let best = same_fragments(&path, bytes, 12).unwrap();
        let sum: f64 = best.sizes.iter().sum();
        prop_assert!((sum / bytes - 1.0).abs() < 1e-12);
        let fixed = optimum(&path, bytes, (1, 12), None);
        prop_assert!(best.predicted_seconds <= fixed.predicted_seconds * (1.0 + 1e-9));
        let total: f64 = cuts.iter().sum();
        let sizes: Vec<f64> = cuts.iter().map(|cut| cut * bytes / total).collect();
        let random = same_sizes(&path, &sizes, None);
        prop_assert!(best.predicted_seconds <= random * (1.0 + 1e-9));
        let same_count = with_count(&path, bytes, cuts.len() as u64).unwrap();
        prop_assert!(same_count.predicted_seconds <= random * (1.0 + 1e-9));
    }
}

/// How far a ramp up and down is from the optimum where the middle stage is not the slowest in `g`
/// and `G`: 11.8 % on average over these paths, 97 % at worst. Both depend on what is drawn.
#[test]
fn a_ramp_up_and_down_on_other_paths_is_a_candidate_and_no_more() {
    let mut runner = TestRunner::deterministic();
    let mut above = Vec::new();
    while above.len() < 1000 {
        let drawn = (vec(stage(), 3), 500.0..30_000.0_f64).new_tree(&mut runner).unwrap();
        let (path, bytes) = drawn.current();
        let slowest = |of: fn(&Stage) -> f64| path.iter().all(|it| of(it) <= of(&path[1]));
        if slowest(|it| it.overhead) && slowest(|it| it.per_byte) {
            continue;
        }
        let ramp = up_down_real(&path, bytes, MOST).unwrap();
        // Sizes that grow by a factor must not lose the sum to rounding.
        let sum: f64 = ramp.sizes.iter().sum();
        assert!((sum / bytes - 1.0).abs() <= 1e-9, "{path:?} {bytes}: {ramp:?}");
        let best = same_fragments(&path, bytes, MOST).unwrap();
        let excess = ramp.predicted_seconds / best.predicted_seconds - 1.0;
        assert!(excess >= -1e-6, "{path:?} {bytes}: {ramp:?} {best:?}");
        above.push(excess);
    }
    let mean = above.iter().sum::<f64>() / above.len() as f64;
    let worst = above.iter().copied().fold(0.0, f64::max);
    println!("a ramp averages {mean} above the optimum, at most {worst}");
    assert!((0.10..0.13).contains(&mean), "{mean}");
}

/// A window of one makes the latency part of the overhead, so the program has to come to the same
/// sizes.
#[test]
fn a_window_is_part_of_the_program() {
    let disk = Stage {
        latency: 400e-6,
        window: NonZeroU32::new(1),
        ..reference::stage(50.0, 100.0, reference::KB)
    };
    let serial = Stage { latency: 0.0, overhead: 450e-6, window: None, ..disk };
    let net = reference::stage(30.0, 120.0, reference::KB);
    let windowed = same_fragments(&[disk, net], 50_000.0, MOST).unwrap();
    let ramp = up_real(&[serial, net], 50_000.0, MOST).unwrap();
    assert!(windowed.sizes.len() > 2);
    assert!(close(windowed.predicted_seconds, ramp.predicted_seconds), "{windowed:?} {ramp:?}");
}

#[test]
fn input_that_makes_no_program_is_refused() {
    let disk = reference::disk();
    assert!(same_fragments(&[], 1.0, 5).is_err());
    for bytes in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(same_fragments(&[disk], bytes, 5).unwrap_err().to_string().contains("positive"));
        assert!(with_count(&[disk], bytes, 5).is_err());
    }
    assert_eq!(same_fragments(&[disk], 1000.0, 50).unwrap().sizes, [1000.0]);
}

/// Without overhead no bound ends the search; that nothing is gained does.
#[test]
fn more_fragments_are_not_tried_for_ever() {
    let stage = |per_kb| reference::stage(0.0, per_kb, reference::KB);
    let path = [stage(1.0), stage(3.0), stage(1.0)];
    let best = same_fragments(&path, 1000.0, u64::MAX).expect("solved");
    assert!(best.sizes.len() < 60, "{}", best.sizes.len());
    let more = with_count(&path, 1000.0, 60).expect("solved");
    assert!(close(best.predicted_seconds, more.predicted_seconds), "{best:?} {more:?}");
}

#[test]
fn the_optima_with_the_same_fragments_are_the_computed_ones() {
    let vectors = include_str!("../../model/tests/vectors.json");
    let vectors: Value = serde_json::from_str(vectors).expect("vectors.json is JSON");
    let cases = vectors["lp_same_fragments"].as_array().expect("a list");
    assert_eq!(cases.len(), 13);
    for (number, case) in cases.iter().enumerate() {
        let what = format!("lp_same_fragments {number}");
        let pairs: Vec<[f64; 2]> = serde_json::from_value(case["stages"].clone()).expect("pairs");
        let path: Vec<Stage> =
            pairs.into_iter().map(|[g, per_kb]| reference::stage(g, per_kb, 1000.0)).collect();
        let bytes = case["B"].as_f64().expect("B") * 1000.0;
        let found = same_fragments(&path, bytes, 100).expect("solved");
        let want = case["T"].as_f64().expect("T");
        let error = (found.predicted_seconds * 1e6 / want - 1.0).abs();
        assert!(error < 1e-8, "{what}: off by {error:e}");
        assert_eq!(found.sizes.len() as u64, case["k"].as_u64().expect("k"), "{what}");
    }
}

/// The division of a transfer over two ways, each cut as a planner cuts it, against the program
/// over all sizes of both: within one twentieth, and never below.
#[test]
fn a_division_over_two_ways_is_near_the_optimum() {
    const MOST: u64 = 8;
    let mut runner = TestRunner::deterministic();
    let paths = (vec(stage(), 1..4), vec(stage(), 1..4), 2_000.0..20_000.0_f64);
    let mut worst = 1.0_f64;
    for _ in 0..24 {
        let (one, other, bytes) = paths.new_tree(&mut runner).unwrap().current();
        let bytes = bytes.round();
        let of = |path: &[Stage]| {
            let path = Path::new(path).unwrap();
            move |bytes: u64| {
                let limits = Constraints { fragments_max: MOST as u32, ..Constraints::default() };
                let fixed = best(&path, bytes, &limits).predicted_seconds;
                let ramps = [up_real, up_down_real].map(|ramp| ramp(&path, bytes as f64, MOST));
                ramps.iter().flatten().map(|ramp| ramp.predicted_seconds).fold(fixed, f64::min)
            }
        };
        let (_, seconds) = between(bytes as u64, 16, of(&one), of(&other));
        let counts = (0..=MOST).flat_map(|one| (0..=MOST).map(move |other| (one, other)));
        let optimum = |(first, second)| over_ways(&[(&one, first), (&other, second)], bytes);
        let ends = counts.skip(1).map(|counts| optimum(counts).unwrap().1);
        let least = ends.fold(f64::INFINITY, f64::min);
        assert!(seconds >= least * (1.0 - 1e-6), "{seconds} {least}: {one:?} {other:?}");
        worst = worst.max(seconds / least);
    }
    assert!(worst <= 1.05, "{worst}");
}

/// One way with all the bytes is the program of one path.
#[test]
fn the_program_of_one_way_is_that_of_its_path() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..40 {
        let drawn = (vec(edge(), 1..4), 500.0..20_000.0_f64, 1_u64..8).new_tree(&mut runner);
        let (path, bytes, count) = drawn.unwrap().current();
        if path.iter().all(|stage| stage.per_byte == 0.0) {
            continue;
        }
        let alone = with_count(&path, bytes, count).unwrap();
        let (sizes, seconds) = over_ways(&[(&path, 0), (&path, count)], bytes).unwrap();
        assert!(sizes[0].is_empty() && sizes[1].len() as u64 == count);
        assert!(close(seconds, alone.predicted_seconds), "{path:?} {bytes} {count}");
        let both = over_ways(&[(&path, count), (&path, count)], 2.0 * bytes).unwrap().1;
        assert!(close(both, seconds), "twice the bytes over two such ways: {both} {seconds}");
    }
}
