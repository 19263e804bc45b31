use piped_core::sizes::Sizes;
use piped_model::plan::Algorithm;

use super::super::planned::Cut;
use super::measured::STALE_USES;
use super::*;
use piped_core::noise::Noise;

/// So many seconds are a unit of what transfers take: they are not so short that plans have runs.
pub(super) const UNIT: f64 = 10e-6;

pub(super) fn plan(fragment_bytes: u64, predicted: f64) -> Choice {
    Choice {
        cut: Cut::same(Sizes::equal(fragment_bytes), 8),
        algorithm: Algorithm::Fixed,
        counts: [(1_u64 << 20).div_ceil(fragment_bytes) as u32; 3],
        ramp: None,
        length: 1 << 20,
        per_byte: 0.0,
        predicted_seconds: predicted * UNIT,
        margin_seconds: 0.0,
        late_seconds: 0.0,
        mean_seconds: predicted * UNIT,
        tail_seconds: 0.0,
        work_seconds: 0.0,
    }
}

fn number_of(plan: Choice) -> u32 {
    plan.cut.number()
}

/// The model believes in 100 KB; what fragments really take says `truth`.
fn guard() -> Guard {
    let mut guard = Guard::new();
    let others = [plan(1_000_448, 300.0), plan(65_536, 210.0), plan(262_144, 250.0)];
    drop(guard.renew(false, plan(102_400, 200.0), &[plan(81_920, 203.0)], &others));
    guard
}

/// `count` transfers, each told of; how many went to each size.
fn serve(guard: &mut Guard, count: u32, mut truth: impl FnMut(u64) -> f64) -> Vec<(u64, u32)> {
    let mut used = std::collections::BTreeMap::new();
    for _ in 0..count {
        let index = guard.choose();
        let bytes = guard.plan(index).cut.source.first();
        *used.entry(bytes).or_insert(0) += 1;
        guard.observe(number_of(guard.plan(index)), truth(bytes) * UNIT);
    }
    used.into_iter().collect()
}

fn favourite(guard: &Guard) -> u64 {
    guard.plan(guard.favourite()).cut.source.first()
}

#[test]
fn the_model_leads_where_nothing_is_measured() {
    let mut guard = guard();
    let mut others = 0;
    for _ in 0..800 {
        let index = guard.choose();
        let bytes = guard.plan(index).cut.source.first();
        assert!(bytes == 102_400 || bytes == 81_920, "nobody tells what {bytes} takes");
        others += u32::from(bytes == 81_920);
    }
    assert!((25..=100).contains(&others), "sizes vary, but rarely: {others} of 800");
}

#[test]
fn a_candidate_that_is_beaten_in_practice_is_vetoed() {
    let mut guard = guard();
    // The model is wrong: 256 KiB is the best.
    let truth = |bytes| if bytes == 262_144 { 150.0 } else { 220.0 };
    serve(&mut guard, 200, truth);
    assert_eq!(favourite(&guard), 262_144);
    let seen: Vec<Seen> = guard.seen().collect();
    let proposal = seen.iter().find(|seen| number_of(seen.plan) == number_of(plan(102_400, 0.0)));
    assert!(proposal.is_some_and(|it| it.vetoed && it.measured.is_some()), "{seen:?}");
    assert_eq!(seen[0].plan.cut.source.first(), 262_144, "its time is learnt from");
    assert!((150.0..=185.0).contains(&(seen[0].plan.predicted_seconds / UNIT)), "{:?}", seen[0]);
    let used = serve(&mut guard, 800, truth);
    let best = used.iter().find(|(bytes, _)| *bytes == 262_144).expect("the favourite").1;
    assert!(best > 680, "{used:?}");
}

#[test]
fn a_model_that_is_right_stays_in_charge() {
    let mut guard = guard();
    serve(&mut guard, 1000, |bytes| match bytes {
        102_400 => 200.0,
        81_920 => 198.0,
        _ => 260.0,
    });
    assert_eq!(favourite(&guard), 102_400, "2 % is no reason to overrule it");
}

#[test]
fn a_few_percent_are_found_in_noise() {
    let mut all = 0.0;
    for seed in 1..=20_u64 {
        let (mut guard, mut random) = (guard(), Noise(seed));
        let mut time = 0.0;
        for number in 0..2000 {
            let index = guard.choose();
            let plan = guard.plan(index);
            let truth = if plan.cut.source.first() == 65_536 { 210.0 } else { 220.0 };
            // Within 15 % of it.
            let noise = 0.85 + random.below(301) as f64 / 1000.0;
            guard.observe(number_of(plan), truth * noise * UNIT);
            time += if number >= 1000 { truth } else { 0.0 };
        }
        let lost = time / 1000.0 / 210.0 - 1.0;
        assert!(lost < 0.035, "seed {seed}: {lost}");
        all += lost;
    }
    // One transfer in sixteen tries another one: that alone is 0.003.
    assert!(all / 20.0 < 0.013, "{all}");
}

#[test]
fn what_was_good_once_is_found_out_when_it_is_not_any_more() {
    let mut guard = guard();
    serve(&mut guard, 400, |bytes| if bytes == 262_144 { 150.0 } else { 220.0 });
    serve(&mut guard, 400, |bytes| if bytes == 262_144 { 500.0 } else { 220.0 });
    assert_ne!(favourite(&guard), 262_144);
    serve(&mut guard, 2000, |bytes| if bytes == 262_144 { 150.0 } else { 220.0 });
    assert_eq!(favourite(&guard), 262_144, "and when it is again");
}

#[test]
fn a_machine_that_changes_its_speed_is_no_reason_to_change_the_size() {
    for seed in 1..=20_u64 {
        let mut guard = guard();
        let mut random = Noise(seed);
        let (mut phase, mut speed, mut right) = (0, 1.0, 0);
        for number in 0..4000 {
            if phase == 0 {
                phase = 20 + random.below(100);
                speed = [1.0, 2.0][random.below(2) as usize];
            }
            phase -= 1;
            let truth = |bytes| if bytes == 262_144 { 185.0 } else { 220.0 };
            let index = guard.choose();
            let plan = guard.plan(index);
            right += u32::from(plan.cut.source.first() == 262_144 && number >= 400);
            guard.observe(number_of(plan), truth(plan.cut.source.first()) * speed * UNIT);
        }
        // One in sixteen tries another.
        assert!(right > 3200, "seed {seed}: {right} of 3600");
    }
}

#[test]
fn a_new_proposal_keeps_what_is_known_of_its_size_and_has_to_keep_its_promise() {
    let mut guard = guard();
    serve(&mut guard, 200, |_| 220.0);
    let others = [plan(1_000_448, 300.0), plan(65_536, 210.0), plan(262_144, 250.0)];
    drop(guard.renew(false, plan(107_520, 190.0), &[plan(92_160, 191.0)], &others));
    assert_eq!(favourite(&guard), 107_520, "a little larger is the same candidate");
    drop(guard.renew(false, plan(20_480, 100.0), &[plan(16_384, 101.0)], &others));
    assert_eq!(favourite(&guard), 20_480, "it promises so much more");
    serve(&mut guard, 8, |bytes| if bytes <= 20_480 { 260.0 } else { 220.0 });
    assert!(favourite(&guard) > 20_480, "a promise that is not kept");
    drop(guard.renew(false, plan(20_480, 100.0), &[plan(40_960, 101.0)], &others));
    serve(&mut guard, 200, |bytes| if bytes == 40_960 { 120.0 } else { 220.0 });
    assert_eq!(favourite(&guard), 40_960, "kept");
}

#[test]
fn a_change_that_moves_no_prediction_leaves_what_is_known() {
    let known = |guard: &Guard| guard.seen().filter(|seen| seen.measured.is_some()).count();
    let mut guard = guard();
    serve(&mut guard, 400, |bytes| if bytes == 262_144 { 190.0 } else { 220.0 });
    let before = known(&guard);
    let others = |times: f64| {
        [(1_000_448, 300.0), (65_536, 210.0), (262_144, 250.0)]
            .map(|(bytes, predicted)| plan(bytes, predicted * times))
    };
    let renew = |guard: &mut Guard, times: f64| {
        let near = [plan(81_920, 203.0 * times)];
        drop(guard.renew(true, plan(102_400, 200.0 * times), &near, &others(times)));
    };
    renew(&mut guard, 1.05);
    assert_eq!((known(&guard), favourite(&guard)), (before, 262_144));
    let mut other = guard.clone();
    renew(&mut other, 2.0);
    assert_eq!(known(&other), 0, "they were of another path");
    // The same by small steps.
    renew(&mut guard, 1.09);
    assert_eq!(known(&guard), before);
    renew(&mut guard, 1.13);
    assert_eq!(known(&guard), 0);
    // Where outcomes come meanwhile, what they are compared with goes along.
    serve(&mut other, 100, |_| 440.0);
    let outcomes = |guard: &Guard| guard.arms[guard.favourite()].measured.outcomes();
    for step in 0..20 {
        let before = outcomes(&other);
        renew(&mut other, 2.0 * (1.0 + 0.02 * f64::from(step)));
        assert!(before > ENOUGH && outcomes(&other) >= before, "nothing is forgotten");
        serve(&mut other, 100, |_| 440.0 * (1.0 + 0.02 * f64::from(step)));
    }
}

#[test]
fn what_the_model_learns_of_the_same_path_is_no_change_of_it() {
    let mut guard = Guard::new();
    let renew = |guard: &mut Guard, changed: bool, times: f64| {
        let near = [plan(81_920, 101.0 * times)];
        drop(guard.renew(changed, plan(102_400, 100.0 * times), &near, &[]));
    };
    renew(&mut guard, false, 1.0);
    serve(&mut guard, 200, |_| 200.0);
    let before = guard.arms[0].measured;
    renew(&mut guard, false, 2.0);
    renew(&mut guard, true, 2.02);
    let after = guard.arms[0].measured;
    assert_eq!((after.outcomes(), after.seconds()), (before.outcomes(), before.seconds()));
}

#[test]
fn what_a_worse_model_promised_is_not_held_against_plans() {
    // It knew nothing of a stage, and everything took twice as long.
    let mut guard = Guard::new();
    drop(guard.renew(false, plan(102_400, 100.0), &[plan(81_920, 101.0)], &[]));
    serve(&mut guard, 200, |_| 200.0);
    // Now it does, and knows a better size, too.
    let others = [plan(102_400, 200.0), plan(81_920, 202.0)];
    drop(guard.renew(false, plan(409_600, 150.0), &[], &others));
    assert_eq!(favourite(&guard), 409_600);
    let expected = guard.arms[0].expected;
    assert!((expected / (150.0 * UNIT) - 1.0).abs() < 0.05, "{expected}");
}

#[test]
fn a_stall_does_not_count_for_more_than_a_slow_transfer() {
    let mut measured = Measured::default();
    (0..32).for_each(|use_| {
        measured.observe((100.0 * UNIT, 100.0 * UNIT), use_, (0.0, MEMORY.0), false)
    });
    measured.observe((5.0, 100.0 * UNIT), 32, (0.0, MEMORY.0), false);
    let mean = measured.known().expect("enough");
    assert!(mean < 115.0 * UNIT, "{mean}");
}

#[test]
fn a_stall_takes_no_candidate_its_place() {
    let mut guard = guard();
    serve(&mut guard, 200, |bytes| if bytes == 262_144 { 180.0 } else { 220.0 });
    let seen = |guard: &Guard| guard.seen().map(|seen| seen.vetoed).collect::<Vec<_>>();
    let before = seen(&guard);
    let best = guard.favourite();
    // However long ago the one before was.
    guard.uses += 10 * STALE_USES;
    guard.observe(guard.arms[best].number, 10.0);
    assert_eq!((guard.favourite(), seen(&guard)), (best, before));
    // All of them become so much slower: that is followed.
    serve(&mut guard, 400, |bytes| if bytes == 65_536 { 3_000.0 } else { 3_600.0 });
    assert_eq!(favourite(&guard), 65_536);
}

#[test]
fn a_candidate_gains_nothing_by_stalls_that_others_do_not_meet() {
    let mut guard = guard();
    let truth = |bytes| if bytes == 262_144 { 180.0 } else { 220.0 };
    serve(&mut guard, 200, truth);
    let means = |guard: &Guard| guard.arms.iter().map(|arm| arm.expected).collect::<Vec<_>>();
    let before = means(&guard);
    for _ in 0..64 {
        serve(&mut guard, 1, |_| 1e7);
        serve(&mut guard, 5, truth);
    }
    for (before, after) in before.into_iter().zip(means(&guard)) {
        assert!((after / before - 1.0).abs() < 0.02, "{before} {after}");
    }
}

/// The model's proposal and one that is a little faster take turns, so that neither has two
/// outcomes in a row.
#[test]
fn a_candidate_that_stalls_for_good_loses_its_turns() {
    let mut guard = guard();
    let truth = |bytes| if bytes == 65_536 { 217.0 } else { 220.0 };
    serve(&mut guard, 400, truth);
    let slow = guard.plan(guard.favourite()).cut.source.first();
    serve(&mut guard, 200, |bytes| if bytes == slow { 12.0 * 220.0 } else { truth(bytes) });
    let used = serve(&mut guard, 200, |bytes| if bytes == slow { 2640.0 } else { truth(bytes) });
    let count = used.iter().find(|(bytes, _)| *bytes == slow).map_or(0, |&(_, count)| count);
    assert!(count <= 20, "{slow}: {used:?}");
}

/// Every other transfer waits for an acknowledgement that is delayed, say.
#[test]
fn a_candidate_that_stalls_every_other_time_is_charged_for_it() {
    let mut guard = guard();
    serve(&mut guard, 400, |_| 220.0);
    let slow = guard.plan(guard.favourite()).cut.source.first();
    let mut turn = 0;
    for _ in 0..600 {
        serve(&mut guard, 1, |bytes| {
            turn += u32::from(bytes == slow);
            if bytes == slow && turn % 2 == 0 { 2200.0 } else { 220.0 }
        });
    }
    assert_ne!(favourite(&guard), slow);
}

#[test]
fn a_candidate_whose_outcomes_are_of_two_kinds_gets_known() {
    let mut measured = Measured::default();
    for use_ in 0..20 {
        measured.observe(
            (if use_ % 2 == 0 { 100.0 * UNIT } else { 400.0 * UNIT }, 100.0 * UNIT),
            use_,
            (0.0, MEMORY.0),
            false,
        );
    }
    let mean = measured.known().expect("enough");
    assert!((100.0 * UNIT..400.0 * UNIT).contains(&mean), "{mean}");
}

#[test]
fn a_stall_after_a_change_leaves_what_is_known() {
    let mut measured = Measured::default();
    (0..32).for_each(|use_| {
        measured.observe((100.0 * UNIT, 100.0 * UNIT), use_, (0.0, MEMORY.0), false)
    });
    measured.follow(200.0 * UNIT, 1.0);
    let before = measured.seconds();
    measured.observe((before * CLIP * 2.0, 200.0 * UNIT), 32, (0.0, MEMORY.0), false);
    assert!(measured.outcomes() > 0 && measured.seconds() < 2.0 * before, "{measured:?}");
}

/// A clock that went too slowly, or a machine that has become another one.
#[test]
fn means_that_are_wrong_by_a_factor_keep_no_candidate_out() {
    for factor in [6.0, 10.0, 20.0, 60.0] {
        let mut guard = guard();
        let truth = |bytes| if bytes == 262_144 { 180.0 } else { 220.0 };
        for _ in 0..40 {
            // Only the proposal was ever used.
            guard.choose();
            guard.observe(guard.arms[0].number, 220.0 * UNIT / factor);
        }
        serve(&mut guard, 800, truth);
        let used = serve(&mut guard, 100, truth);
        let best = used.iter().find(|(bytes, _)| *bytes == 262_144);
        assert!(best.is_some_and(|(_, count)| *count > 80), "{factor}: {used:?}");
    }
}

#[test]
fn a_stall_at_the_first_trial_is_not_held_against_a_candidate() {
    for stalled in 0..ENOUGH {
        let mut measured = Measured::default();
        for use_ in 0..2 * ENOUGH {
            measured.observe(
                (if use_ == stalled { 10.0 } else { 100.0 * UNIT }, 100.0 * UNIT),
                use_,
                (0.0, MEMORY.0),
                false,
            );
        }
        let mean = measured.known().expect("enough");
        assert!(mean < 150.0 * UNIT, "{stalled}: {mean}");
    }
}

/// A clock that ticks says of most transfers that they took no time, and of some a tick.
#[test]
fn a_clock_that_ticks_takes_no_candidate_its_place() {
    for known in [0, 200] {
        for no_time in [0.0, 0.1] {
            let truth = |bytes| if bytes == 262_144 { 180.0 } else { 220.0 };
            let mut guard = guard();
            serve(&mut guard, known, truth);
            for transfer in 0..40 {
                let ticked = if transfer % 8 == 7 { 10_000.0 } else { no_time };
                serve(&mut guard, 1, |_| ticked);
            }
            serve(&mut guard, 400, truth);
            let used = serve(&mut guard, 100, truth);
            let best = used.iter().find(|(bytes, _)| *bytes == 262_144);
            assert!(best.is_some_and(|(_, count)| *count > 80), "{known} {no_time}: {used:?}");
        }
    }
}

#[test]
fn outcomes_of_sizes_nobody_planned_are_ignored() {
    let mut guard = guard();
    (0..100).for_each(|_| guard.observe(number_of(plan(12_288, 1.0)), 1.0 * UNIT));
    assert!(guard.seen().all(|seen| seen.measured.is_none()));
}

#[test]
fn beside_others_fragments_are_larger_and_the_more_the_more_others_there_are() {
    let of = |kib: u64, count: u32, predicted: f64| Choice {
        counts: [count; 3],
        // A stage of 50 us a fragment.
        work_seconds: (100.0 + 50.0 * f64::from(count)) * UNIT,
        ..plan(kib << 10, predicted)
    };
    let mut guard = Guard::new();
    let others = [of(128, 8, 590.0), of(256, 4, 420.0), of(512, 2, 460.0), of(1024, 1, 640.0)];
    drop(guard.renew(false, of(200, 5, 415.0), &[], &others));
    let beside = |guard: &Guard, others| guard.plan(guard.beside(others)).counts[0];
    assert_eq!([1, 2, 3, 7, 31].map(|others| beside(&guard, others)), [2, 2, 2, 1, 1]);
    // One that looks good, has smaller fragments, and was never tried is not believed in.
    let new = Choice { work_seconds: 0.0, ..of(16, 64, 100.0) };
    drop(guard.renew(false, of(200, 5, 415.0), &[new], &others));
    (0..ENOUGH).for_each(|_| guard.observe(number_of(of(200, 5, 0.0)), 415.0 * UNIT));
    assert_eq!(beside(&guard, 1), 2);
    // Neither is one that asks for its fragments one by one, however good it was alone.
    let mut serial = of(512, 2, 300.0);
    serial.cut.depth = 1;
    drop(guard.renew(false, serial, &[], &others));
    assert_ne!(guard.plan(guard.beside(1)).cut.depth, 1);
    assert_eq!(guard.pick(false, 0), guard.favourite());
}

#[test]
fn a_tail_is_no_work_that_others_wait_for() {
    let of = |kib: u64, predicted: f64, tail: f64, work: f64| Choice {
        tail_seconds: tail * UNIT,
        work_seconds: work * UNIT,
        ..plan(kib << 10, predicted)
    };
    let mut guard = Guard::new();
    let [late, busy] = [of(128, 100.0, 200.0, 20.0), of(256, 280.0, 0.0, 60.0)];
    drop(guard.renew(false, late, &[], &[busy]));
    // 300 + 20 n / 2 and 280 + 60 n / 2; if the tail were work, 300 + 60 n / 2.
    assert_eq!([0, 1, 8, 64].map(|others| guard.beside(others)), [1, 0, 0, 0]);
    // One that takes twice as long as the model says works twice as long.
    (0..ENOUGH).for_each(|_| guard.observe(number_of(late), 200.0 * UNIT));
    (0..ENOUGH).for_each(|_| guard.observe(number_of(busy), 140.0 * UNIT));
    assert_eq!(guard.pick(true, 8), 1);
}

/// By how much more than the best size transfers take in the mean, in the latter half of 60 000:
/// gets of 64 KiB over loopback, as they were recorded. The model is wrong by up to a third. A plan
/// that is not the one before takes a fifth longer. One transfer in forty is disturbed, mostly two
/// in a row, and the machine is a quarter slower for seconds. The first forty are as slow as the code
/// is cold. With `jumps` the model believes for a while that what is cut takes three times as long.
fn lost_on_loopback(seed: u64, renew_every: u32, jumps: bool) -> f64 {
    const BEST: f64 = 24.5;
    let sizes = [4096, 8192, 16_384, 20_480, 32_768, 65_536].map(|bytes: u64| match bytes {
        4096 => (bytes, 32.0, 40.0),
        8192 => (bytes, 22.5, 31.0),
        16_384 => (bytes, 20.5, BEST),
        20_480 => (bytes, 20.8, 26.0),
        32_768 => (bytes, 21.0, 27.5),
        _ => (bytes, 21.0, 27.0),
    });
    let mut random = Noise(seed);
    let mut guard = Guard::new();
    let (mut last, mut total, mut speed, mut phase, mut disturbed) = (0, 0.0, 1.0, 0, 1.0);
    for number in 0..60_000 {
        if number % renew_every == 0 {
            let moved = 0.94 + random.below(121) as f64 / 1000.0;
            let wrong = if jumps && number < 20_000 && random.below(4) == 0 { 3.0 } else { 1.0 };
            let others = sizes.map(|(bytes, predicted, _)| {
                let wrong = if bytes < 65_536 { wrong } else { 1.0 };
                plan(bytes, predicted * moved * wrong * 1e-6 / UNIT)
            });
            drop(guard.renew(number > 0, others[5], &[others[3]], &others));
        }
        if phase == 0 {
            phase = 20_000 + random.below(40_000);
            speed = [1.0, 1.25][random.below(2) as usize];
        }
        phase -= 1;
        disturbed = match random.below(1000) {
            0..500 if disturbed > 1.0 => disturbed,
            500..512 => 1.3 + 20.0 / (1.0 + random.below(100) as f64),
            _ => 1.0,
        };
        let index = guard.choose();
        let plan = guard.plan(index);
        let bytes = plan.cut.source.first();
        let truth = sizes.iter().find(|size| size.0 == bytes).map_or(f64::NAN, |size| size.2);
        let truth = truth * if bytes == last { 1.0 } else { 1.2 };
        last = bytes;
        total += if number >= 30_000 { truth } else { 0.0 };
        let cold = if number < 40 { 4.0 } else { 1.0 };
        let noise = cold * disturbed * (0.9 + random.below(201) as f64 / 1000.0);
        guard.observe(number_of(plan), truth * noise * speed * 1e-6);
    }
    total / 30_000.0 / BEST - 1.0
}

#[test]
fn the_best_size_of_short_transfers_is_found_in_their_noise() {
    for (renew_every, jumps) in
        [(200, false), (2000, false), (100_000, false), (200, true), (1000, true)]
    {
        let lost = (1..=10).map(|seed| lost_on_loopback(seed, renew_every, jumps));
        let lost: Vec<f64> = lost.collect();
        let mean = lost.iter().sum::<f64>() / 10.0;
        let most = lost.iter().copied().fold(0.0, f64::max);
        // Trials of what is a tenth worse are 0.007.
        assert!(mean < 0.03 && most < 0.05, "made anew after {renew_every}, {jumps}: {lost:?}");
    }
}
