//! What every planner promises, over many random pipelines.

use std::num::NonZeroU32;

use piped_model::evaluate::{self, same_sizes};
use piped_model::fixed::{self, Constraints};
use piped_model::plan::Plan;
use piped_model::stage::{Buffers, Stage};
use piped_model::{hierarchical, ramp, serial};
use proptest::collection::vec;
use proptest::prelude::*;

/// Overheads and costs of the same order, or nothing.
fn stage() -> impl Strategy<Value = Stage> {
    let overhead = prop_oneof![1 => Just(0.0), 6 => 0.1..300.0_f64];
    let per_byte = prop_oneof![1 => Just(0.0), 6 => 0.0001..0.1_f64];
    (overhead, per_byte).prop_map(|(overhead, per_byte)| Stage {
        latency: 0.0,
        overhead: overhead * 1e-6,
        per_byte: per_byte * 1e-6,
        window: None,
    })
}

fn path(stages: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<Stage>> {
    prop_oneof![
        6 => vec(stage(), stages.into()),
        // Equal stages.
        1 => (stage(), 1_usize..7).prop_map(|(stage, count)| vec![stage; count]),
        // Costs that differ in the last digits only.
        1 => (stage(), 1_usize..7).prop_map(|(stage, count)| {
            let near = |j: usize| Stage { per_byte: stage.per_byte * (1.0 + j as f64 * 1e-15), ..stage };
            (0..count).map(near).collect()
        }),
    ]
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(1_u64), 1 => 1_u64..10, 4 => 1_u64..100_000, 1 => 1_u64..10_000_000]
}

/// Equation 5, with latencies.
fn weak_bound(path: &[Stage], bytes: u64) -> f64 {
    let all: f64 = path.iter().map(|stage| stage.overhead + stage.latency).sum();
    let dearest = path.iter().map(|stage| stage.per_byte).fold(0.0, f64::max);
    all + bytes as f64 * dearest
}

fn check(path: &[Stage], bytes: u64, plan: &Plan) -> Result<(), TestCaseError> {
    for (stage, _) in path.iter().enumerate() {
        let sizes = plan.sizes_at(stage).expect("sizes for every stage");
        prop_assert!(sizes.iter().all(|fragment| fragment.length > 0));
        prop_assert_eq!(sizes.iter().map(|fragment| fragment.length).sum::<u64>(), bytes);
    }
    let exact = evaluate::plan(path, plan).expect("a plan for this path");
    prop_assert!((plan.predicted_seconds - exact).abs() <= 1e-12 * exact);
    prop_assert!(plan.predicted_seconds >= weak_bound(path, bytes) * (1.0 - 1e-12));
    Ok(())
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance * a.abs().max(b.abs())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_planner_keeps_its_promise(path in path(1..7), bytes in bytes()) {
        let limits = Constraints::default();
        let count = path.len();
        let mut plans: Vec<Plan> = vec![
            fixed::whole(&path, bytes, &limits).plan(count, bytes),
            fixed::best(&path, bytes, &limits).plan(count, bytes),
        ];
        if bytes < 200_000 {
            plans.push(fixed::static_size(&path, bytes, 128, &limits).plan(count, bytes));
        }
        // Sizes as small as a byte are a matter of the plan's length only.
        let limits = Constraints { fragments_max: 200, ..limits };
        plans.extend(ramp::up(&path, bytes, &limits));
        plans.extend(ramp::up_down(&path, bytes, &limits));
        plans.extend(hierarchical::fixed(&path, bytes, &limits));
        plans.extend(hierarchical::ramp(&path, bytes, &limits));
        for plan in &plans {
            check(&path, bytes, plan)?;
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn constraints_hold_in_every_plan(
        path in path(1..7), bytes in 1_u64..3_000_000, smallest in 0_u64..70_000,
        largest in 1_u64..500_000, alignment in prop_oneof![Just(0_u64), Just(512), Just(4096)],
        latency in prop_oneof![Just(0.0), 0.0..100e-6], depth_max in 0_u32..20,
        windows in vec(0_u32..6, 7),
    ) {
        let windows = windows.into_iter().map(NonZeroU32::new);
        let path: Vec<Stage> =
            path.iter().zip(windows).map(|(&s, window)| Stage { latency, window, ..s }).collect();
        let limits = Constraints { smallest, largest, alignment, depth_max, ..Constraints::default() };
        // Enough for the smallest fragments allowed here without making lists of millions.
        prop_assume!(bytes / limits.fit(1) < 5000 && bytes / limits.fit(u64::MAX) < 5000);
        let plans = [
            ramp::up(&path, bytes, &limits),
            ramp::up_down(&path, bytes, &limits),
            hierarchical::fixed(&path, bytes, &limits),
            hierarchical::ramp(&path, bytes, &limits),
        ];
        for plan in plans.into_iter().flatten() {
            check(&path, bytes, &plan)?;
            prop_assert!(plan.depth.get() <= depth_max.max(1));
            for level in plan.levels.iter() {
                let last = level.sizes.count() - 1;
                for (index, fragment) in level.sizes.iter().enumerate() {
                    prop_assert!(fragment.length <= limits.fit(u64::MAX));
                    if index as u64 != last {
                        prop_assert!(fragment.length >= limits.fit(1));
                        prop_assert_eq!(fragment.length % alignment.max(1), 0);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Where a buffer holds at least one smallest fragment there is a plan of every kind, and it
    /// fits.
    #[test]
    fn plans_fit_the_buffers(
        path in path(1..7), bytes in 1_u64..300_000, rooms in vec(prop_oneof![Just(u64::MAX), 4096_u64..100_000], 7),
    ) {
        let mut limits = Constraints { smallest: 512, alignment: 512, fragments_max: 300, ..Constraints::default() };
        for (stage, &room) in rooms.iter().enumerate().take(path.len()) {
            limits.buffers = limits.buffers.with(stage, room);
        }
        let open = Constraints { buffers: Buffers::UNLIMITED, ..limits };
        let count = path.len();
        let mut plans = vec![
            fixed::whole(&path, bytes, &limits).plan(count, bytes),
            fixed::static_size(&path, bytes, 4096, &limits).plan(count, bytes),
            fixed::best(&path, bytes, &limits).plan(count, bytes),
            serial::best(&path, bytes, 3, &limits).plan(count, bytes),
        ];
        let (ramp_up, ramp_open) = (ramp::up(&path, bytes, &limits), ramp::up(&path, bytes, &open));
        prop_assert_eq!(ramp_up.is_some(), ramp_open.is_some());
        let hierarchical = hierarchical::fixed(&path, bytes, &limits);
        prop_assert_eq!(hierarchical.is_some(), hierarchical::fixed(&path, bytes, &open).is_some());
        plans.extend(ramp_up);
        plans.extend(ramp::up_down(&path, bytes, &limits));
        plans.extend(hierarchical);
        plans.extend(hierarchical::ramp(&path, bytes, &limits));
        for plan in &plans {
            let exact = evaluate::plan_within(&path, plan, &limits.buffers).expect("it fits");
            prop_assert!(close(plan.predicted_seconds, exact, 1e-12), "{plan:?} {exact}");
        }
    }
}

#[test]
fn a_buffer_that_holds_no_fragment_leaves_no_plan() {
    let path = [Stage { latency: 0.0, overhead: 1e-6, per_byte: 1e-9, window: None }; 3];
    let limits = Constraints {
        alignment: 4096,
        buffers: Buffers::UNLIMITED.with(1, 4095),
        ..Constraints::default()
    };
    assert!(hierarchical::fixed(&path, 1 << 20, &limits).is_none());
    assert!(ramp::up(&path[..2], 1 << 20, &limits).is_none());
    assert!(fixed::best(&path, 1 << 20, &limits).predicted_seconds.is_infinite());
}

/// Two stages of the same speed pass fragments on at once; where little fits between them, the
/// fragments have to be smaller.
#[test]
fn a_small_buffer_makes_fragments_smaller() {
    let path = [Stage { latency: 0.0, overhead: 10e-6, per_byte: 1e-9, window: None }; 2];
    let open = Constraints::default();
    let size = fixed::best(&path, 1 << 20, &open).fragment_bytes;
    let tight = Constraints { buffers: Buffers::UNLIMITED.with(1, size / 4), ..open };
    let plan = fixed::best(&path, 1 << 20, &tight);
    assert!(plan.fragment_bytes <= size / 4 && plan.predicted_seconds.is_finite());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The search against all counts; sizes from equation 14 applied one by one.
    #[test]
    fn the_best_ramp_is_best_of_all_counts(path in vec(stage(), 2), bytes in 10.0..100_000.0_f64) {
        let best = ramp::up_real(&path, bytes, 400).expect("two stages");
        prop_assert!(close(best.sizes.iter().sum(), bytes, 1e-9));
        let [s0, s1] = [path[0], path[1]];
        for pair in best.sizes.windows(2) {
            let (a, b) = (s0.occupancy(pair[1]), s1.occupancy(pair[0]));
            prop_assert!((a - b).abs() <= 1e-9 * best.predicted_seconds, "a stall: {a} {b}");
        }
        for most in 1..=400 {
            let other = ramp::up_real(&path, bytes, most).expect("two stages");
            prop_assert!(best.predicted_seconds <= other.predicted_seconds * (1.0 + 1e-12));
        }
    }

    /// Equal fragments are one of the things that a ramp, and the optimum, may be.
    #[test]
    fn a_ramp_is_never_worse_than_equal_fragments(path in vec(stage(), 2), bytes in 10.0..100_000.0_f64) {
        let ramp = ramp::up_real(&path, bytes, 300).expect("two stages").predicted_seconds;
        let fixed = fixed::optimum(&path, bytes, (1, 300), None).predicted_seconds;
        prop_assert!(ramp <= fixed * (1.0 + 1e-9), "{ramp} {fixed}");
    }

    /// Theorem 2 for both levels, wherever the bottleneck is.
    #[test]
    fn hierarchical_plans_of_the_reversed_path_take_as_long(
        path in vec(stage(), 3..8), place in 0_usize..8, bytes in 10.0..100_000.0_f64,
    ) {
        let place = place % path.len();
        let back: Vec<Stage> = path.iter().rev().copied().collect();
        let mirrored = path.len() - 1 - place;
        let there = hierarchical::fixed_real(&path, place, bytes, 100).expect("three stages");
        let back = hierarchical::fixed_real(&back, mirrored, bytes, 100).expect("three stages");
        prop_assert!(close(there.model_seconds, back.model_seconds, 1e-9));
        prop_assert!(close(there.predicted_seconds, back.predicted_seconds, 1e-9), "{there:?} {back:?}");
        prop_assert!(there.predicted_seconds <= there.model_seconds * (1.0 + 1e-9));
    }

    #[test]
    fn a_ramp_reversed_is_the_ramp_of_the_reversed_pipeline(
        path in path(3), bytes in 10.0..100_000.0_f64,
    ) {
        let back: Vec<Stage> = path.iter().rev().copied().collect();
        if let (Some(there), Some(back)) =
            (ramp::up_down_real(&path, bytes, 300), ramp::up_down_real(&back, bytes, 300))
        {
            // Elsewhere the pair is chosen by a latency that does not hold.
            let slowest = |s: &Stage| s.overhead <= path[1].overhead && s.per_byte <= path[1].per_byte;
            if path.iter().all(slowest) {
                prop_assert!(close(there.predicted_seconds, back.predicted_seconds, 1e-12));
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a scan of all pairs whose sizes are not negative.
    #[test]
    fn the_best_pair_is_best_of_all_pairs(
        path in vec(stage(), 3), factor in 1.0..5.0_f64, bytes in 10.0..50_000.0_f64,
    ) {
        let (g, per_byte) = path.iter().fold((0.0_f64, 0.0_f64), |(g, p), s| {
            (g.max(s.overhead), p.max(s.per_byte))
        });
        let slow = Stage { overhead: g * factor, per_byte: per_byte * factor, ..path[1] };
        let path = [path[0], slow, path[2]];
        let most = 60;
        if let Some(best) = ramp::up_down_real(&path, bytes, most) {
            let brute = brute_pair(&path, bytes, most);
            prop_assert!(close(best.predicted_seconds, brute, 1e-9), "{best:?} {brute}");
        }
    }
}

/// The best of all pairs by the recurrence, each ramp found by bisection on its largest size.
fn brute_pair(path: &[Stage; 3], bytes: f64, most: u64) -> f64 {
    let sizes = |centre: f64, up: u64, down: u64| {
        let next =
            |size: f64, other: Stage| (other.occupancy(size) - path[1].overhead) / path[1].per_byte;
        let mut list = vec![centre];
        for _ in 1..up {
            list.insert(0, next(list[0], path[0]));
        }
        for _ in 1..down {
            list.push(next(list[list.len() - 1], path[2]));
        }
        list
    };
    let mut best = f64::INFINITY;
    for up in 1..=most {
        for down in 1..=most + 1 - up {
            let (mut low, mut high) = (0.0, bytes);
            for _ in 0..70 {
                let middle = (low + high) / 2.0;
                let sum: f64 = sizes(middle, up, down).iter().sum();
                if sum < bytes { low = middle } else { high = middle }
            }
            let list = sizes(high, up, down);
            let sum: f64 = list.iter().sum();
            if list.iter().any(|&size| size < 0.0) || !close(sum, bytes, 1e-9) {
                break;
            }
            best = best.min(same_sizes(path, &list, None));
        }
    }
    best
}

#[test]
fn lists_of_millions_are_left_to_equal_fragments() {
    let path = [Stage { latency: 0.0, overhead: 1e-6, per_byte: 1e-9, window: None }; 3];
    let limits = Constraints { largest: 1, ..Constraints::default() };
    assert!(hierarchical::fixed(&path, 1 << 40, &limits).is_none());
    assert!(hierarchical::ramp(&path, 1 << 40, &limits).is_none());
    assert!(ramp::up(&path[..2], 1 << 40, &limits).is_none());
    assert!(ramp::up_down(&path, 1 << 40, &limits).is_none());
    // But any number of bytes is planned for.
    for bytes in [0, 1, 1 << 40, 1 << 62] {
        let plan = ramp::up(&path[..2], bytes, &Constraints::default()).expect("two stages");
        assert_eq!(plan.total_bytes(), bytes);
        let plan =
            hierarchical::fixed(&path, bytes, &Constraints::default()).expect("three stages");
        assert_eq!(plan.total_bytes(), bytes);
    }
}

#[test]
fn ramps_take_a_window_of_one_for_what_it_is() {
    let disk =
        Stage { latency: 70e-6, overhead: 10e-6, per_byte: 1e-9, window: NonZeroU32::new(1) };
    let net = Stage { latency: 0.0, overhead: 3e-6, per_byte: 1e-9, window: None };
    let serial = Stage { latency: 0.0, overhead: 80e-6, window: None, ..disk };
    let limits = Constraints::default();
    let (a, b) =
        (ramp::up(&[disk, net], 1 << 20, &limits), ramp::up(&[serial, net], 1 << 20, &limits));
    let (a, b) = (a.expect("two stages"), b.expect("two stages"));
    assert!(close(a.predicted_seconds, b.predicted_seconds, 1e-12));
    let wide = Stage { window: None, ..disk };
    let wide = ramp::up(&[wide, net], 1 << 20, &limits).expect("two stages");
    assert!(wide.predicted_seconds < a.predicted_seconds);
}
