//! Measurements, and the reports of peers: whatever figures come, an estimate is a cost that one
//! can plan with, and a plan carries all bytes in fragments that keep to their bounds.
//!
//! The first byte chooses the window and whether there is a prior, which follows as three numbers
//! and their weight. Then come samples: a byte, a size, a time; or fragments that a meter watches.

use core::num::NonZeroU32;

use piped_core::units::Nanos;
use piped_model::estimate::{Estimate, Estimator, Meter, Sample};
use piped_model::fixed::{Constraints, candidates};
use piped_model::stage::Stage;

use crate::Seed;
use crate::input::Input;

const SAMPLES_MAX: usize = 300;

/// The bounds that the engine's limits set.
const CONSTRAINTS: Constraints = Constraints {
    servers: piped_model::servers::Servers::APART,
    smallest: 16 * 1024,
    largest: 1 << 20,
    alignment: 4096,
    depth_max: 32,
    fragments_max: 4096,
    buffers: piped_model::stage::Buffers::UNLIMITED,
};

/// Checks the estimate door with an input.
pub fn check(input: &[u8]) {
    let mut input = Input::new(input);
    let choice = input.byte();
    let mut estimator = Estimator::new(NonZeroU32::new(u32::from(choice >> 1)));
    if choice & 1 == 1 {
        let [latency, overhead, per_byte, weight] = [(); 4].map(|()| number(&mut input));
        let prior = Stage { latency, overhead, per_byte, window: None };
        estimator = estimator.with_prior(prior, weight);
    }
    let mut meter = Meter::new();
    let mut inside = Vec::new();
    let mut now = Nanos(1);
    for _ in 0..SAMPLES_MAX {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            kind @ 0..=3 => {
                let (bytes, seconds) = (size(&mut input), number(&mut input));
                estimator.observe(match kind {
                    0 => Sample::Alone { bytes, seconds },
                    1 => Sample::Met { bytes, seconds },
                    _ => Sample::Backlogged { bytes, seconds },
                });
            }
            4 => inside.push(meter.arrive(now)),
            5 => {
                let bytes = size(&mut input);
                if !inside.is_empty() {
                    let ticket = inside.remove(usize::from(input.byte()) % inside.len());
                    let alone = estimator.alone_seconds(bytes);
                    if let Some(sample) = meter.depart(ticket, bytes, now, alone) {
                        estimator.observe(sample);
                    }
                }
            }
            6 => {
                if let Some(ticket) = inside.pop() {
                    meter.abandon(ticket, now);
                }
            }
            _ => now = now + Nanos(1 << (input.byte() % 40)),
        }
    }
    let estimates = [0, 1, 4096, 65_536, 1 << 20, 1 << 30, u64::MAX].map(|bytes| {
        let seconds = estimator.alone_seconds(bytes);
        assert!(seconds.is_none_or(|it| it.is_finite() && it >= 0.0), "{bytes}: {seconds:?}");
        estimator.estimate_for(bytes)
    });
    for estimate in estimates.iter().chain([&estimator.estimate()]) {
        check_estimate(estimate);
    }
    for bytes in [1, 100_000, (4 << 20) + 7] {
        check_plans(&[estimates[3], estimates[1]], bytes);
    }
}

/// A power of two, and some.
fn size(input: &mut Input<'_>) -> u64 {
    let power = 1_u64 << (input.byte() % 64);
    power.wrapping_add(input.short().into())
}

/// Any number, absurd ones too, but often one that a clock could give.
fn number(input: &mut Input<'_>) -> f64 {
    match input.byte() {
        255 => f64::from_bits(u64::from_le_bytes(input.array())),
        254 => f64::INFINITY,
        253 => f64::NAN,
        252 => -1.0,
        exponent => f64::from(input.short()) * 0.5_f64.powi(i32::from(exponent) / 4),
    }
}

fn check_estimate(estimate: &Estimate) {
    assert!(estimate.stage.checked().is_ok(), "{:?}", estimate.stage);
    assert!((0.0..=1.0).contains(&estimate.confidence), "{}", estimate.confidence);
    let errors = [estimate.latency_error, estimate.overhead_error, estimate.per_byte_error];
    assert!(errors.iter().all(|error| *error >= 0.0), "{errors:?}");
    let mut last = 0.0;
    for bytes in [0.0, 1.0, 512.0, 65_536.0, 1e6, 1e9] {
        let (alone, backlogged) = (estimate.curve.alone(bytes), estimate.curve.backlogged(bytes));
        assert!(alone.is_finite() && backlogged >= 0.0 && alone >= backlogged, "{estimate:?}");
        // More bytes do not take less time.
        assert!(backlogged >= last * 0.999_999, "{backlogged} after {last} at {bytes}");
        last = backlogged;
    }
}

fn check_plans(path: &[Estimate], bytes: u64) {
    for found in candidates(path, bytes, &CONSTRAINTS, &[16 * 1024, 256 * 1024]) {
        assert!(found.predicted_seconds >= 0.0, "{found:?}");
        assert!((CONSTRAINTS.smallest..=CONSTRAINTS.largest).contains(&found.fragment_bytes));
        assert!(found.depth.get() <= CONSTRAINTS.depth_max, "{found:?}");
        let plan = found.plan(path.len(), bytes);
        for level in plan.levels.iter() {
            assert_eq!(level.sizes.total_bytes(), bytes, "{found:?}");
            assert!(level.sizes.largest() <= CONSTRAINTS.largest, "{found:?}");
            assert!(level.sizes.count() <= CONSTRAINTS.fragments_max.into(), "{found:?}");
        }
    }
}

/// Stages as they are, and as nobody has them.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let sample = |kind: u8, power: u8, exponent: u8, mantissa: u16| {
        let [low, high] = mantissa.to_le_bytes();
        vec![kind, power, 0, 0, exponent, low, high]
    };
    let disk: Vec<u8> = (0..60_u16)
        .flat_map(|n| {
            let power = 14 + (n % 7) as u8;
            let mantissa = 100 + (1 << (power - 12)) + n % 5;
            let alone = sample(0, power, 80, mantissa);
            let busy = sample(2, power, 80, mantissa - 80);
            [alone, busy].concat()
        })
        .collect();
    let still: Vec<u8> = (0..40).flat_map(|_| sample(2, 16, 72, 300)).collect();
    let jump = [&still[..], &(0..40).flat_map(|_| sample(2, 16, 60, 900)).collect::<Vec<u8>>()];
    let metered: Vec<u8> = (0..30).flat_map(|n| [4, 7, 18, 4, 7, 17, 5, 16, n, 0, 0]).collect();
    let absurd: Vec<u8> = [254, 253, 252, 0]
        .iter()
        .flat_map(|exponent| {
            [sample(0, 63, *exponent, 9), sample(2, 0, *exponent, 65_535)].concat()
        })
        .collect();
    let prior = [80, 100, 0, 90, 100, 0, 140, 9, 0, 0, 8, 0];
    let with = |choice: u8, parts: &[&[u8]]| [&[choice], &parts.concat()[..]].concat();
    [
        ("disk", with(0, &[&disk])),
        ("disk-window", with(16, &[&disk])),
        ("prior", with(1, &[&prior])),
        ("prior-and-disk", with(1, &[&prior, &disk])),
        ("one-size", with(0, &[&still])),
        ("change", with(0, &jump)),
        ("metered", with(0, &[&metered])),
        ("absurd", with(0, &[&absurd])),
        ("absurd-prior", with(1, &[&[254, 253, 252, 255, 1, 2, 3, 4, 5, 6, 7, 8], &still])),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .to_vec()
}
