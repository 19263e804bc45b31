//! The best plan, its candidates and its bound, on random and on contrived pipelines.

mod common;

use std::num::NonZeroU32;
use std::ops::Range;

use common::{Random, exhaustive};
use piped_model::evaluate;
use piped_model::fixed::Constraints;
use piped_model::plan::{Algorithm, Plan};
use piped_model::reference::{PACKET_BYTES, network_disk, network_disk_network};
use piped_model::servers::Servers;
use piped_model::stage::{Buffers, Path, STAGES_MAX, Stage};
use piped_theory::best::{self, Best};
use piped_theory::bound;

/// The pipelines of the bar.
fn comparable(random: &mut Random) -> (Vec<Stage>, u64) {
    let count = 3 + random.below(4);
    let stages = (0..count).map(|_| Stage {
        latency: 0.0,
        overhead: random.power(0.3, 2.5) * 1e-6,
        per_byte: random.power(0.5, 2.0) * 1e-9,
        window: None,
    });
    (stages.collect(), (4000.0 * random.power(0.0, 1.0)).round() as u64)
}

/// Anything: stages that cost nothing in some way, equal ones, latencies, windows, one byte.
fn anything(random: &mut Random) -> (Vec<Stage>, u64) {
    let count = 1 + random.below(6) as usize;
    let mut stages: Vec<Stage> = (0..count)
        .map(|_| {
            let or_nothing = |random: &mut Random, value: f64| {
                if random.below(6) == 0 { 0.0 } else { value }
            };
            let (g, per_byte) = (random.power(-7.0, -3.0), random.power(-10.0, -7.0));
            let windowed = random.below(4) == 0;
            Stage {
                overhead: or_nothing(random, g),
                per_byte: or_nothing(random, per_byte),
                latency: if windowed { random.power(-6.0, -4.0) } else { 0.0 },
                window: NonZeroU32::new(if windowed { random.below(6) as u32 } else { 0 }),
            }
        })
        .collect();
    if random.below(8) == 0 {
        stages = vec![stages[0]; count];
    }
    let bytes = match random.below(10) {
        0 => random.below(3),
        1 => random.below(40),
        _ => random.power(2.0, 6.0) as u64,
    };
    (stages, bytes)
}

fn constraints(random: &mut Random) -> Constraints {
    let mut limits = Constraints::default();
    if random.below(2) == 0 {
        return limits;
    }
    if random.below(2) == 0 {
        limits.alignment = [1, 8, 512, 4096][random.below(4) as usize];
    }
    if random.below(2) == 0 {
        limits.smallest = 1 + random.below(5000);
    }
    if random.below(2) == 0 {
        limits.largest = 4096 + random.below(100_000);
    }
    if random.below(3) == 0 {
        limits.depth_max = 1 + random.below(4) as u32;
    }
    limits
}

/// Sizes positive, sums exact, latency that of the recurrence, constraints kept.
fn check_plan(path: &[Stage], bytes: u64, limits: &Constraints, plan: &Plan, what: &str) {
    let exact = evaluate::plan(path, plan).expect("a plan covers its path");
    let off = (plan.predicted_seconds - exact).abs();
    assert!(
        off <= 1e-9 * exact,
        "{what}: {} says {}, takes {exact}",
        plan.algorithm,
        plan.predicted_seconds
    );
    for level in plan.levels.iter() {
        assert_eq!(level.sizes.total_bytes(), bytes, "{what}: {}", plan.algorithm);
        let count = level.sizes.count();
        if count > 100_000 {
            continue; // uniform: nothing else is so long
        }
        let sizes: Vec<u64> = level.sizes.iter().map(|fragment| fragment.length).collect();
        assert_eq!(sizes.iter().sum::<u64>(), bytes, "{what}: {}", plan.algorithm);
        assert!(bytes == 0 || !sizes.contains(&0), "{what}: {}", plan.algorithm);
        let (smallest, largest) = (limits.fit(1), limits.fit(u64::MAX));
        for (index, &size) in sizes.iter().enumerate() {
            let last = index + 1 == sizes.len();
            let kept = size <= largest
                && (last || (size >= smallest && size % limits.alignment.max(1) == 0));
            assert!(kept, "{what}: {} has {size} in {limits:?}", plan.algorithm);
        }
    }
    assert!(plan.depth.get() <= limits.depth_max.max(1), "{what}: depth");
}

fn check_best(path: &[Stage], bytes: u64, limits: &Constraints, found: &Best, what: &str) {
    check_plan(path, bytes, limits, &found.plan, what);
    for candidate in &found.candidates {
        let worse = candidate.predicted_seconds >= found.plan.predicted_seconds;
        assert!(worse, "{what}: {} is better than the best", candidate.algorithm);
    }
}

// Ten thousand, in two tests that run side by side.
#[test]
fn pipelines_get_plans_that_are_sound_and_not_below_the_bound() {
    sound_and_not_below_the_bound(0..5_000);
}

#[test]
fn more_pipelines_get_plans_that_are_sound_and_not_below_the_bound() {
    sound_and_not_below_the_bound(5_000..10_000);
}

fn sound_and_not_below_the_bound(seeds: Range<u64>) {
    for seed in seeds {
        let mut random = Random(seed);
        let (path, bytes) = anything(&mut random);
        let limits = constraints(&mut random);
        let what = format!("seed {seed}, {bytes} bytes on {path:?}");
        let found = best::best(&path, bytes, &limits).expect("a path has a plan");
        check_best(&path, bytes, &limits, &found, &what);
        // Every grid is a bound; the finest would take too long for all seeds.
        let [coarse, fine] = [16, 64].map(|cells| bound::on_grid(&path, bytes, cells));
        let full = if seed % 50 == 0 { bound::lower_bound(&path, bytes) } else { 0.0 };
        let bound = coarse.max(fine).max(full);
        for plan in found.candidates.iter().chain([&found.plan]) {
            let seconds = plan.predicted_seconds;
            assert!(
                seconds >= bound * (1.0 - 1e-9),
                "{what}: {} {seconds} < {bound}",
                plan.algorithm
            );
        }
        found.candidates.iter().for_each(|plan| check_plan(&path, bytes, &limits, plan, &what));
    }
}

#[test]
fn pipelines_of_comparable_stages_come_close_to_their_bound() {
    let mut random = Random(1);
    let mut gaps = Vec::new();
    for number in 0..60 {
        let (path, bytes) = comparable(&mut random);
        let found = best::certified(&path, bytes, &Constraints::default()).expect("a plan");
        let what = format!("pipeline {number}, {bytes} bytes on {path:?}");
        check_best(&path, bytes, &Constraints::default(), &found, &what);
        let bound = found.lower_bound_seconds.expect("asked for");
        assert!(bound <= found.plan.predicted_seconds * (1.0 + 1e-9), "{what}");
        let quick = best::best(&path, bytes, &Constraints::default()).expect("a plan");
        assert!(quick.plan.predicted_seconds >= bound * (1.0 - 1e-9), "{what}");
        gaps.push(found.gap().expect("asked for"));
    }
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let worst = gaps.iter().copied().fold(0.0, f64::max);
    assert!(mean <= 0.012 && worst <= 0.04, "mean {mean}, worst {worst}");
}

#[test]
fn the_paths_of_section_5_5_are_planned_and_bounded() {
    let limits = Constraints::default();
    for (path, most, certified, least, gap) in [
        (network_disk(), 23_860e-6, 23_860e-6, 23_300e-6, 0.009),
        (network_disk_network(), 29_500e-6, 29_000e-6, 28_400e-6, 0.015),
    ] {
        let quick = best::best(&path, PACKET_BYTES, &limits).expect("a plan");
        check_best(&path, PACKET_BYTES, &limits, &quick, "quick");
        assert!(quick.plan.predicted_seconds <= most, "{}", quick.plan.predicted_seconds);
        let found = best::certified(&path, PACKET_BYTES, &limits).expect("a plan");
        check_best(&path, PACKET_BYTES, &limits, &found, "certified");
        let (seconds, bound) = (found.plan.predicted_seconds, found.lower_bound_seconds.unwrap());
        assert!(seconds <= quick.plan.predicted_seconds && bound >= least, "{seconds} {bound}");
        assert!(bound <= seconds && found.gap() == Some((seconds - bound) / bound));
        assert!(seconds <= certified && found.gap() <= Some(gap), "{seconds} {bound}");
    }
}

#[test]
fn in_tiny_transfers_bound_and_best_enclose_the_optimum() {
    let (mut above, mut below) = (0.0, 0.0);
    let cases = 150;
    for seed in 0..cases {
        let mut random = Random(seed);
        let stages = 2 + random.below(2);
        let path: Vec<Stage> = (0..stages)
            .map(|_| Stage {
                latency: if random.below(4) == 0 { 3.0 } else { 0.0 },
                overhead: random.power(-1.0, 1.0),
                per_byte: random.power(-1.0, 1.0),
                window: NonZeroU32::new(if random.below(6) == 0 { 2 } else { 0 }),
            })
            .collect();
        let bytes = 2 + random.below(if stages == 2 { 6 } else { 4 });
        let optimum = exhaustive(&path, bytes, &Servers::APART);
        let found = best::certified(&path, bytes, &Constraints::default()).expect("a plan");
        let (seconds, bound) = (found.plan.predicted_seconds, found.lower_bound_seconds.unwrap());
        let what =
            format!("seed {seed}: {bound} <= {optimum} <= {seconds} for {bytes} on {path:?}");
        assert!(bound <= optimum * (1.0 + 1e-9) && seconds >= optimum * (1.0 - 1e-9), "{what}");
        above += seconds / optimum - 1.0;
        below += 1.0 - bound / optimum;
    }
    let mean = |sum: f64| sum / cases as f64;
    assert!(mean(above) < 0.005, "best is {} above the optimum on average", mean(above));
    assert!(mean(below) < 0.05, "the bound is {} below it", mean(below));
}

#[test]
fn no_random_plan_is_below_the_bound() {
    for seed in 0..150 {
        let mut random = Random(seed);
        let (path, bytes) = comparable(&mut random);
        let bound = bound::lower_bound(&path, bytes);
        let good = best::best(&path, bytes, &Constraints::default()).expect("a plan").plan;
        for _ in 0..200 {
            // Near the best plan, where plans come closest to the bound.
            let lists: Vec<Vec<u64>> = (0..path.len())
                .map(|stage| {
                    let sizes = good.sizes_at(stage).expect("each stage has sizes");
                    let mut ends: Vec<u64> = sizes.iter().map(|f| f.offset + f.length).collect();
                    for end in &mut ends {
                        let moved = *end as f64 * (1.0 + 0.1 * (random.unit() - 0.5));
                        *end = (moved as u64).clamp(1, bytes);
                    }
                    if random.below(3) == 0 {
                        ends.push(1 + random.below(bytes));
                    }
                    ends.push(bytes);
                    ends.sort_unstable();
                    ends.dedup();
                    let mut begin = 0;
                    ends.iter().map(|&end| end - std::mem::replace(&mut begin, end)).collect()
                })
                .collect();
            let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
            let seconds = evaluate::lists(&path, &lists, None).expect("lists that add up");
            assert!(seconds >= bound, "seed {seed}: {seconds} < {bound}, {lists:?}");
        }
    }
}

#[test]
fn the_bound_is_the_same_backwards_and_grows_with_the_transfer_and_latencies() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let (stages, bytes) = comparable(&mut random);
        let path = Path::new(&stages).expect("costs");
        let bound = bound::on_grid(&path, bytes, 96);
        let backwards = bound::on_grid(&path.reversed(), bytes, 96);
        assert!((backwards / bound - 1.0).abs() < 5e-4, "seed {seed}: {bound} {backwards}");
        assert!(bound::on_grid(&path, 2 * bytes, 96) > bound, "seed {seed}");
        let mut slower = stages.clone();
        slower[0].latency = 1e-3;
        slower[0].window = NonZeroU32::new(1);
        let with_latency = bound::on_grid(&slower, bytes, 96);
        assert!((with_latency - bound - 1e-3).abs() < 1e-9, "seed {seed}");
    }
}

#[test]
fn limited_buffers_are_kept_and_never_help() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let (path, bytes) = comparable(&mut random);
        let free = Constraints::default();
        let room: Vec<u64> = path.iter().map(|_| 1000 + random.below(20_000)).collect();
        let before = room.iter().enumerate();
        let buffers = before.fold(free.buffers, |all, (stage, &bytes)| all.with(stage, bytes));
        let limits = Constraints { buffers, ..free };
        let found = best::best(&path, bytes, &limits).expect("a plan");
        let what = format!("seed {seed}, {bytes} bytes, {room:?} on {path:?}");
        for plan in found.candidates.iter().chain([&found.plan]) {
            let exact = evaluate::plan_within(&path, plan, &limits.buffers).expect("it fits");
            assert!(
                (plan.predicted_seconds - exact).abs() <= 1e-9 * exact,
                "{what}: {}",
                plan.algorithm
            );
            assert!(
                plan.predicted_seconds >= found.plan.predicted_seconds,
                "{what}: {}",
                plan.algorithm
            );
        }
        let bound = bound::on_grid(&path, bytes, 32);
        assert!(found.plan.predicted_seconds >= bound * (1.0 - 1e-9), "{what}");
    }
}

#[test]
fn the_contrived_is_planned_in_bounded_time() {
    let stage = |overhead, per_byte| Stage { latency: 0.0, overhead, per_byte, window: None };
    let limits = Constraints::default();
    let free = vec![Stage::FREE; 3];
    let no_overheads = vec![stage(0.0, 1e-9), stage(0.0, 2e-9), stage(0.0, 1e-9)];
    let no_bytes = vec![stage(1e-6, 0.0), stage(5e-6, 0.0)];
    let equal = vec![stage(1e-5, 1e-9); 12];
    let far_apart = vec![stage(1e-9, 1e-12), stage(10.0, 1e-3), stage(1e-9, 1e-12)];
    for path in [free, no_overheads, no_bytes, equal, far_apart, vec![stage(1e-6, 1e-9)]] {
        for bytes in [0, 1, 2, 3, 1000, 1 << 20, 1 << 40, u64::MAX / 4] {
            let what = format!("{bytes} bytes on {path:?}");
            let found = best::best(&path, bytes, &limits).expect("a plan");
            check_best(&path, bytes, &limits, &found, &what);
            let bound = bound::on_grid(&path, bytes, 32);
            assert!(bound <= found.plan.predicted_seconds * (1.0 + 1e-9), "{what}: {bound}");
            // With little room between the stages, and so ever more fragments.
            let little = Constraints { buffers: Buffers::UNLIMITED.with(1, 4096), ..limits };
            let found = best::best(&path, bytes, &little).expect("a plan");
            assert!(found.plan.predicted_seconds >= bound * (1.0 - 1e-9), "{what}: {bound}");
            assert!(found.plan.predicted_seconds.is_finite(), "{what}");
        }
    }
    assert!(best::best(&[], 1, &limits).is_none());
    assert!(best::best(&[Stage::FREE; STAGES_MAX + 1], 1, &limits).is_none());
}

/// The latency of equal fragments at every depth that is tried.
fn by_hand(path: &[Stage], bytes: u64, servers: &Servers, most: u64) -> f64 {
    let mut best = f64::INFINITY;
    for count in 1..=most.min(bytes) {
        for depth in [1, 2, 3, 4, 6, 8, 16, 64] {
            let plan = Plan {
                depth: NonZeroU32::new(depth).expect("not 0"),
                ..Plan::uniform(path.len(), bytes.div_ceil(count), bytes, Algorithm::Fixed)
            };
            let open = Buffers::UNLIMITED;
            best = best.min(evaluate::plan_on(path, &plan, &open, servers).expect("a plan"));
        }
    }
    best
}

#[test]
fn plans_for_shared_servers_are_what_they_promise_and_nearly_the_best_of_one_size() {
    let mut behind = 0.0_f64;
    for seed in 0..60 {
        let mut random = Random(seed);
        let (path, bytes) = comparable(&mut random);
        let servers = Servers::of((0..path.len()).map(|_| random.below(3)));
        let limits = Constraints { fragments_max: 40, servers, ..Constraints::default() };
        let found = best::certified(&path, bytes, &limits).expect("a plan");
        let bound = found.lower_bound_seconds.expect("asked for");
        for plan in &found.candidates {
            let seconds = evaluate::plan_on(&path, plan, &Buffers::UNLIMITED, &servers);
            assert_eq!(seconds, Ok(plan.predicted_seconds), "seed {seed}: {}", plan.algorithm);
            assert!(
                plan.predicted_seconds >= bound * (1.0 - 1e-9),
                "seed {seed}: {bound} {plan:?}"
            );
        }
        let by_hand = by_hand(&path, bytes, &servers, 40);
        behind = behind.max(found.plan.predicted_seconds / by_hand - 1.0);
        assert!(found.plan.predicted_seconds <= by_hand * 1.02, "seed {seed}: {by_hand} {found:?}");
    }
    println!("at most {:.2} % behind", behind * 100.0);
}
