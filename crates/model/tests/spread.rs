//! How much fragments differ, learned by the estimator from samples of known distributions.

use piped_core::units::Nanos;
use piped_model::estimate::{Estimator, Meter, Sample};
use piped_model::spread::Spread;

use self::chance::Chance;

mod chance;

/// A latency of mean 1 and this coefficient of variation, but for stalls.
fn drawn(chance: &mut Chance, cv: f64, (stalled, times): (f64, f64)) -> f64 {
    let variance = (cv * cv).ln_1p();
    let usual = (variance.sqrt() * chance.normal() - variance / 2.0).exp();
    if chance.unit() < stalled { times } else { usual }
}

/// What is known after so many fragments, one at a time, of a stage of 100 us.
fn learned(seed: u64, cv: f64, stalls: (f64, f64), samples: u32) -> Estimator {
    let mut chance = Chance::new(seed);
    let mut estimator = Estimator::new(None);
    for _ in 0..samples {
        let bytes = chance.between(12_000, 20_000);
        let seconds = 90e-6 * drawn(&mut chance, cv, stalls) + 10e-6;
        estimator.observe(Sample::Alone { bytes, seconds });
    }
    estimator
}

fn spread(estimator: &Estimator) -> Spread {
    estimator.estimate().spread.expect("enough samples that differ")
}

#[test]
fn variation_and_stalls_are_recovered() {
    for seed in 1..=8 {
        for (cv, stalls) in [(0.5, (0.0, 1.0)), (1.0, (0.0, 1.0)), (0.3, (0.01, 50.0))] {
            let estimator = learned(seed, cv, stalls, 6000);
            let spread = spread(&estimator);
            let [found, stalled, times] = spread.in_words();
            let case = format!("seed {seed}: cv {cv}, {stalls:?}: {found} {stalled} {times}");
            println!("{case} changes {}", estimator.changes());
            assert!((found / (0.9 * cv) - 1.0).abs() < 0.2, "{case}");
            assert!((stalled - stalls.0).abs() < 0.005, "{case}");
            assert!(stalls.0 == 0.0 || (times / (0.9 * stalls.1) - 1.0).abs() < 0.25, "{case}");
        }
    }
}

#[test]
fn what_hardly_differs_has_no_spread() {
    for seed in 1..=8 {
        let mut chance = Chance::new(seed);
        let mut estimator = Estimator::new(None);
        for _ in 0..2000 {
            let seconds = 100e-6 * (1.0 + 0.04 * (chance.unit() - 0.5));
            estimator.observe(Sample::Alone { bytes: 16_384, seconds });
        }
        assert_eq!(estimator.estimate().spread, None, "seed {seed}");
    }
}

#[test]
fn little_is_not_believed() {
    assert_eq!(learned(1, 1.0, (0.0, 1.0), 40).estimate().spread, None);
}

#[test]
fn a_change_of_cost_is_no_spread() {
    for (seed, factor) in (1..=8).flat_map(|seed| [(seed, 5.0), (seed, 0.2)]) {
        let mut chance = Chance::new(seed);
        let mut estimator = Estimator::new(None);
        for round in 0..1000 {
            let noise = 1.0 + 0.04 * (chance.unit() - 0.5);
            let seconds = 100e-6 * noise * if round < 500 { 1.0 } else { factor };
            estimator.observe(Sample::Alone { bytes: 16_384, seconds });
        }
        let spread = estimator.estimate().spread;
        assert_eq!(spread, None, "seed {seed}, {factor}: {:?}", spread.map(|it| it.in_words()));
    }
}

/// Three fragments are in the device at once: how long the slowest take has to be seen all the
/// same.
#[test]
fn stalls_are_seen_where_fragments_are_never_alone() {
    for seed in 1..=4 {
        let mut chance = Chance::new(seed);
        let (mut meter, mut estimator) = (Meter::new(), Estimator::new(None));
        let mut now = Nanos::from_millis(1);
        for _ in 0..6000 {
            let tickets = [0; 3].map(|_| meter.arrive(now));
            let mut leaves: Vec<_> = tickets
                .into_iter()
                .zip(1..)
                .map(|(ticket, turn)| {
                    let latency = 70e-6 * drawn(&mut chance, 1.0, (0.01, 50.0));
                    (now + Nanos::from_seconds(latency + 10e-6 * f64::from(turn)), ticket)
                })
                .collect();
            leaves.sort_by_key(|&(at, _)| at);
            for (at, ticket) in leaves {
                let alone = estimator.alone_seconds(16_384);
                if let Some(sample) = meter.depart(ticket, 16_384, at, alone) {
                    estimator.observe(sample);
                }
                now = at;
            }
            now = now + Nanos::from_micros(50);
        }
        let spread = spread(&estimator);
        let [cv, stalled, times] = spread.in_words();
        // Those near another one are left out, and say less of what is rare.
        let alone = estimator.alone_seconds(16_384).expect("samples");
        let (mean, long) = (alone + mean(&spread), times * alone);
        println!("seed {seed}: {cv} {stalled} {times}, {mean} {long} {}", estimator.changes());
        assert!((0.5..1.6).contains(&cv) && (0.007..0.02).contains(&stalled), "{cv} {stalled}");
        assert!((2.5e-3..4.5e-3).contains(&long), "seed {seed}: {long}");
        // What is late makes up for what the mean leaves out.
        assert!((90e-6..170e-6).contains(&mean), "seed {seed}: {mean}");
    }
}

/// The mean lateness, by quantiles.
fn mean(spread: &Spread) -> f64 {
    let count = 10_000;
    (0..count).map(|at| spread.quantile((f64::from(at) + 0.5) / f64::from(count))).sum::<f64>()
        / f64::from(count)
}
