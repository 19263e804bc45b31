//! Lines through noisy measurements: are their intervals as wide as they say?

mod chance;

use chance::Chance;
use piped_model::estimate::clear_box::{Fault, Timing, fit, stage};
use piped_model::estimate::{Line, Noise, Options};

const OVERHEAD: f64 = 7.5e-6;
const PER_BYTE: f64 = 24.9e-6 / 1024.0;
const SETS: u64 = 1000;

/// What a data set is made of.
#[derive(Clone, Copy)]
struct Dirt {
    count: usize,
    noise: Noise,
    outliers: f64,
}

fn timings(seed: u64, dirt: Dirt) -> Vec<Timing> {
    let mut chance = Chance::new(seed);
    (0..dirt.count)
        .map(|_| {
            let bytes = chance.between(64, 8192);
            let clean = OVERHEAD + bytes as f64 * PER_BYTE;
            let deviation = match dirt.noise {
                Noise::Constant => 2e-6,
                Noise::Proportional => 0.08 * clean,
            };
            let noisy = (clean + deviation * chance.normal()).max(1e-9);
            let late = chance.unit() < dirt.outliers;
            Timing {
                bytes,
                seconds: if late { noisy * (2.0 + 10.0 * chance.unit()) } else { noisy },
            }
        })
        .collect()
}

fn contains(interval: [f64; 2], truth: f64) -> bool {
    interval[0] <= truth && truth <= interval[1]
}

/// In how many of the data sets, in percent, the 95 % intervals contain g, G and the line at 4 KiB.
fn coverage(dirt: Dirt, options: Options) -> [f64; 3] {
    let mut hits = [0_u32; 3];
    for seed in 1..=SETS {
        let line = fit(&timings(seed, dirt), options).expect("sizes vary");
        let truths = [OVERHEAD, PER_BYTE, OVERHEAD + 4096.0 * PER_BYTE];
        let figures = [line.intercept, line.slope, line.figure_at(4096.0)];
        for ((hit, truth), figure) in hits.iter_mut().zip(truths).zip(figures) {
            *hit += u32::from(contains(figure.interval(0.95), truth));
        }
    }
    hits.map(|hit| f64::from(hit) * 100.0 / SETS as f64)
}

#[test]
fn intervals_contain_the_truth_as_often_as_they_say() {
    for count in [5, 12, 60] {
        for noise in [Noise::Constant, Noise::Proportional] {
            let options = Options { robust: false, noise };
            let found = coverage(Dirt { count, noise, outliers: 0.0 }, options);
            println!("{count} samples, {noise:?}: {found:?} %");
            assert!(
                found.iter().all(|it| (93.0..=97.0).contains(it)),
                "{count} {noise:?}: {found:?}"
            );
        }
    }
}

#[test]
fn robust_intervals_contain_the_truth_as_often_as_they_say() {
    for outliers in [0.0, 0.1] {
        for noise in [Noise::Constant, Noise::Proportional] {
            let options = Options { robust: true, noise };
            let found = coverage(Dirt { count: 60, noise, outliers }, options);
            println!("{outliers} outliers, {noise:?}: {found:?} %");
            assert!(
                found.iter().all(|it| (93.0..=97.0).contains(it)),
                "{outliers} {noise:?}: {found:?}"
            );
        }
    }
}

/// Mean absolute error of `G`, relative.
fn mean_error(dirt: Dirt, options: Options) -> f64 {
    let errors = (1..=200).map(|seed| {
        let line = fit(&timings(seed, dirt), options).expect("sizes vary");
        (line.slope.value / PER_BYTE - 1.0).abs()
    });
    errors.sum::<f64>() / 200.0
}

#[test]
fn outliers_hardly_move_a_robust_line() {
    let noise = Noise::Constant;
    let [robust, plain] = [true, false].map(|robust| Options { robust, noise });
    let clean = Dirt { count: 60, noise, outliers: 0.0 };
    let least = mean_error(clean, plain);
    for outliers in [0.05, 0.1, 0.3] {
        let dirty = Dirt { outliers, ..clean };
        let (found, spoilt) = (mean_error(dirty, robust), mean_error(dirty, plain));
        println!("{outliers}: {found} robust, {spoilt} by least squares, {least} of clean data");
        assert!(
            found < 2.0 * least && spoilt > 5.0 * least,
            "{outliers}: {found} {spoilt} {least}"
        );
    }
    // Where there are none it costs little.
    assert!(mean_error(clean, robust) < 1.1 * least);
}

#[test]
fn exact_data_give_exact_lines() {
    let exact: Vec<Timing> = (0..20)
        .map(|i| Timing {
            bytes: 64 << (i % 7),
            seconds: OVERHEAD + (64 << (i % 7)) as f64 * PER_BYTE,
        })
        .collect();
    for robust in [false, true] {
        for noise in [Noise::Constant, Noise::Proportional] {
            let mut data = exact.clone();
            let line = fit(&data, Options { robust, noise }).unwrap();
            check(&line, 0);
            if robust {
                data[3].seconds *= 7.0;
                data[11].seconds *= 90.0;
                check(&fit(&data, Options { robust, noise }).unwrap(), 2);
            }
        }
    }
}

fn check(line: &Line, outliers: usize) {
    assert!((line.intercept.value / OVERHEAD - 1.0).abs() < 1e-9, "{line:?}");
    assert!((line.slope.value / PER_BYTE - 1.0).abs() < 1e-9, "{line:?}");
    assert!(line.intercept.half_width(0.95) < 1e-6 * OVERHEAD, "{line:?}");
    assert_eq!(line.outliers, outliers);
}

#[test]
fn what_the_data_do_not_allow_is_said() {
    let same = [20e-6, 22e-6, 21e-6, 90e-6].map(|seconds| Timing { bytes: 1000, seconds });
    let plain = Options { robust: false, ..Options::default() };
    let Err(Fault::OneSize { bytes: 1000, seconds }) = fit(&same, plain) else { panic!() };
    assert!((seconds.value - 38.25e-6).abs() < 1e-12 && seconds.freedom == 3);
    let robust = Options { robust: true, ..Options::default() };
    let Err(fault @ Fault::OneSize { seconds, .. }) = fit(&same, robust) else { panic!() };
    assert!((seconds.value - 21.5e-6).abs() < 1e-12);
    assert!(fault.to_string().contains("measure another size"), "{fault}");
    assert_eq!(fit(&[], robust), Err(Fault::Empty));
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let found = fit(&[Timing { bytes: 1, seconds: 1.0 }, Timing { bytes: 2, seconds }], robust);
        assert!(matches!(found, Err(Fault::Time { index: 1, .. })), "{found:?}");
    }
    // Two points are a line of which nothing is known.
    let two = [(100, 2e-6), (200, 3e-6)].map(|(bytes, seconds)| Timing { bytes, seconds });
    for robust in [false, true] {
        let line = fit(&two, Options { robust, ..Options::default() }).unwrap();
        assert!((line.intercept.value - 1e-6).abs() < 1e-15, "{line:?}");
        assert_eq!(line.slope.interval(0.95), [f64::NEG_INFINITY, f64::INFINITY]);
    }
}

#[test]
fn a_stage_is_a_cost_whatever_the_noise() {
    for seed in 1..=2000 {
        let dirt = Dirt { count: 4, noise: Noise::Constant, outliers: 0.2 };
        let line = fit(&timings(seed, dirt), Options::default()).unwrap();
        assert!(stage(&line, 4096.0).checked().is_ok(), "seed {seed}: {line:?}");
    }
}
