//! Random pipelines measured from outside where some measurements are many times too long.

mod chance;

use chance::Chance;
use piped_model::estimate::black_box::{BlackBox, fit};
use piped_model::estimate::clear_box::Timing;
use piped_model::estimate::{Noise, Options};
use piped_model::fixed::{Constraints, optimum};
use piped_model::stage::Stage;

const SIZES: [u64; 8] = [128, 256, 512, 1024, 2048, 4096, 8192, 16_384];
const BYTES: u64 = 16_384;

/// How a set of measurements is made.
#[derive(Debug, Clone, Copy)]
struct Dirt {
    noise: f64,
    outliers: f64,
    repeats: usize,
}

/// A pipeline of 2 to 6 stages, their costs over three decades.
fn pipeline(chance: &mut Chance) -> Vec<Stage> {
    let stages = chance.between(2, 7);
    let stage = |_| Stage {
        overhead: chance.log_between(0.1e-6, 100e-6),
        per_byte: chance.log_between(0.1e-6, 100e-6) / 1024.0,
        ..Stage::FREE
    };
    (0..stages).map(stage).collect()
}

/// What a clock shows: the truth with noise, and some of it 2 to 50 times too long.
fn timings(chance: &mut Chance, dirt: Dirt, truth: impl Fn(f64) -> f64) -> Vec<Timing> {
    let sizes = SIZES.into_iter().flat_map(|bytes| std::iter::repeat_n(bytes, dirt.repeats));
    sizes
        .map(|bytes| {
            let noisy = truth(bytes as f64) * (1.0 + dirt.noise * chance.normal()).max(0.1);
            let late = chance.unit() < dirt.outliers;
            let times = if late { chance.log_between(2.0, 50.0) } else { 1.0 };
            Timing { bytes, seconds: noisy * times }
        })
        .collect()
}

fn slowest(path: &[Stage], bytes: f64) -> f64 {
    path.iter().map(|it| it.occupancy(bytes)).fold(0.0, f64::max)
}

fn measured(path: &[Stage], chance: &mut Chance, dirt: Dirt, options: Options) -> BlackBox {
    let alone = timings(chance, dirt, |x| path.iter().map(|it| it.occupancy(x)).sum());
    let backlogged = timings(chance, dirt, |x| slowest(path, x));
    fit(&alone, &backlogged, options).expect("sizes vary")
}

/// How much slower than the best number of equal fragments the recommended one is.
fn loss(path: &[Stage], found: &BlackBox) -> f64 {
    let Some(plan) = found.fixed(BYTES, &Constraints::default()) else { return f64::INFINITY };
    let took = piped_model::evaluate::uniform(path, plan.fragment_bytes, BYTES, None);
    let best = optimum(path, BYTES as f64, (1, BYTES), None).predicted_seconds;
    took / best - 1.0
}

/// What no pipeline can be.
fn absurd(found: &BlackBox) -> Option<String> {
    let total = found.total;
    let slack = 1.0 + 1e-9;
    let bad = |what: &str| Some(format!("{what}: {found:?}"));
    if total.intercept.value < 0.0 || total.slope.value < 0.0 {
        return bad("sums below zero");
    }
    for it in &found.bottlenecks {
        if !(0.0..=total.intercept.value * slack).contains(&it.line.intercept.value) {
            return bad("g_b out of bounds");
        }
        if !(0.0..=total.slope.value * slack).contains(&it.line.slope.value) {
            return bad("G_b out of bounds");
        }
        if it.others_per_byte.value < 0.0 || it.others_overhead.value < 0.0 {
            return bad("others below zero");
        }
        let inside = |at: f64| (found.range[0]..=found.range[1]).contains(&at);
        if it.from_bytes.is_some_and(|from| !inside(from.value)) {
            return bad("a transition outside of what was measured");
        }
    }
    None
}

/// Losses of the plans for pipelines of the first seeds, of which none may be absurd.
fn losses(sets: u64, dirt: Dirt, options: Options) -> Vec<f64> {
    let losses = (1..=sets).map(|seed| {
        let mut chance = Chance::new(seed);
        let path = pipeline(&mut chance);
        let found = measured(&path, &mut chance, dirt, options);
        if let Some(why) = absurd(&found) {
            panic!("seed {seed}, {dirt:?}: {why}");
        }
        loss(&path, &found)
    });
    losses.collect()
}

/// What the losses come to: their mean and the part of them above 5 %, in percent.
fn summary(losses: &[f64]) -> [f64; 2] {
    let count = losses.len() as f64;
    let bad = losses.iter().filter(|it| **it > 0.05).count();
    [losses.iter().sum::<f64>() / count * 100.0, bad as f64 / count * 100.0]
}

const ROBUST: Options = Options { robust: true, noise: Noise::Proportional };
const PLAIN: Options = Options { robust: false, noise: Noise::Proportional };

#[test]
fn plans_are_good_in_spite_of_outliers() {
    for dirt in [
        Dirt { noise: 0.05, outliers: 0.1, repeats: 3 },
        Dirt { noise: 0.1, outliers: 0.2, repeats: 5 },
    ] {
        let all = losses(400, dirt, ROBUST);
        let (worst, seed) = all[..40]
            .iter()
            .zip(1..)
            .fold((0.0, 0), |most, (&loss, seed)| if loss > most.0 { (loss, seed) } else { most });
        let [mean, bad] = summary(&all);
        println!(
            "{dirt:?}: the worst of 40 loses {:.2} % (seed {seed}); of 400 {bad} % lose more than \
             5 %, the mean is {mean:.2} %; by least squares {:?}",
            worst * 100.0,
            summary(&losses(400, dirt, PLAIN))
        );
        assert!(worst <= 0.05, "{dirt:?}, seed {seed}: {worst}");
        // As many as lose it by noise alone where nothing is spoilt.
        assert!(bad <= 2.0 && mean <= 0.6, "{dirt:?}: {mean} {bad}");
    }
}

#[test]
fn without_outliers_plans_are_as_good() {
    // Before there were limits, least squares lost 4.6 and 9.4 % on the mean of these 400.
    for (noise, most, bad_most) in [(0.05, 0.3, 0.5), (0.2, 2.0, 14.0)] {
        for options in [ROBUST, PLAIN] {
            let dirt = Dirt { noise, outliers: 0.0, repeats: 3 };
            let [mean, bad] = summary(&losses(400, dirt, options));
            println!("{dirt:?} {options:?}: mean {mean:.2} %, {bad} % lose more than 5 %");
            assert!(mean <= most && bad <= bad_most, "{dirt:?} {options:?}: {mean} {bad}");
        }
    }
}

/// The GAM of the paper, us and us/KB.
fn gam() -> Vec<Stage> {
    let stage = |(g, per_kb): (f64, f64)| Stage {
        overhead: g * 1e-6,
        per_byte: per_kb * 1e-6 / 1024.0,
        ..Stage::FREE
    };
    [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)].map(stage).to_vec()
}

#[test]
fn outliers_are_named_with_their_size() {
    let (path, clean) = (gam(), Dirt { noise: 0.01, outliers: 0.0, repeats: 5 });
    for options in [ROBUST, PLAIN, Options { noise: Noise::Constant, ..ROBUST }] {
        let mut chance = Chance::new(3);
        let sum = |x: f64| path.iter().map(|it| it.occupancy(x)).sum();
        let mut alone = timings(&mut chance, clean, sum);
        let mut backlogged = timings(&mut chance, clean, |x| slowest(&path, x));
        alone[17].seconds *= 12.0;
        // Most of the largest size, and one that is too short.
        for (index, times) in [(21, 0.1), (36, 3.0), (37, 9.0), (39, 20.0)] {
            backlogged[index].seconds *= times;
        }
        let found = fit(&alone, &backlogged, options).expect("sizes vary");
        let named = |of: &[piped_model::estimate::Outlier]| -> Vec<(usize, f64)> {
            of.iter().map(|it| (it.index, it.times)).collect()
        };
        let near = |named: Vec<(usize, f64)>, truth: &[(usize, f64)]| {
            let same = |(a, b): (&(usize, f64), &(usize, f64))| {
                a.0 == b.0 && (a.1 / b.1 - 1.0).abs() < 0.05
            };
            assert!(
                named.len() == truth.len() && named.iter().zip(truth).all(same),
                "{options:?}: {named:?}"
            );
        };
        near(named(&found.alone_outliers), &[(17, 12.0)]);
        let truth = [(21, 0.1), (36, 3.0), (37, 9.0), (39, 20.0)];
        near(named(&found.backlogged_outliers), &truth);
        let ignored: usize = found.bottlenecks.iter().map(|it| it.line.outliers).sum();
        if options.robust {
            // They make no bottleneck.
            assert_eq!((found.bottlenecks.len(), ignored), (1, 4), "{found:?}");
            let bottleneck = found.bottlenecks[0].line;
            assert!((bottleneck.intercept.value * 1e6 / 7.5 - 1.0).abs() < 0.03, "{found:?}");
        } else {
            assert_eq!(ignored, 0);
        }
    }
}
