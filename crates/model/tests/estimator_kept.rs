//! What was measured another time: a good guess where the machine is the same, and gone at once
//! where it is not.

use piped_model::estimate::{CostCurve, Estimator, KnownSize, REGIMES, Sample};
use piped_model::stage::{Stage, StageCost as _};
use proptest::prelude::*;

mod chance;
use chance::Chance;

const PRIOR: Stage = Stage { latency: 60e-6, overhead: 17e-6, per_byte: 0.5e-9, window: None };
const SIZES: [u64; 5] = [4096, 16_384, 65_536, 262_144, 1_048_576];

/// A cost with a bend: from 256 KiB on each byte takes three times as long.
fn bent(bytes: u64) -> f64 {
    let (near, far) = (bytes.min(131_072) as f64, bytes.saturating_sub(131_072) as f64);
    20e-6 + near * 1e-9 + far * 3e-9
}

fn observe(estimator: &mut Estimator, bytes: u64, times: f64) {
    let occupancy = bent(bytes) * times;
    estimator.observe(Sample::Alone { bytes, seconds: 70e-6 * times + occupancy });
    estimator.observe(Sample::Backlogged { bytes, seconds: occupancy });
}

/// After a day of work at all sizes.
fn experienced() -> Estimator {
    let mut estimator = Estimator::new(None).with_prior(PRIOR, 2.0);
    let mut chance = Chance::new(7);
    for round in 0..4000 {
        let bytes = SIZES[round % SIZES.len()] as f64 * (0.9 + 0.2 * chance.unit());
        observe(&mut estimator, bytes as u64, 0.95 + 0.1 * chance.unit());
    }
    estimator
}

/// The same after a restart.
fn restarted(before: &Estimator) -> Estimator {
    let estimate = before.estimate();
    let sizes: Vec<KnownSize> = before.known_sizes().collect();
    let fresh = Estimator::new(None).with_prior(PRIOR, 2.0);
    fresh.with_kept(&estimate.curve, &sizes, estimate.identifiable)
}

fn off(curve: &CostCurve, bytes: u64, expected: f64) -> f64 {
    (curve.backlogged(bytes as f64) / expected - 1.0).abs()
}

#[test]
fn a_machine_that_is_the_same_is_known_at_once() {
    let before = experienced();
    let now = restarted(&before);
    let (old, new) = (before.estimate(), now.estimate());
    for bytes in SIZES {
        let (old, new) = (old.curve.stage_at(bytes as f64), new.curve.stage_at(bytes as f64));
        let close = |a: f64, b: f64| (a - b).abs() <= 0.05 * b.max(1e-9);
        let bytes = bytes as f64;
        assert!(close(new.alone(bytes), old.alone(bytes)), "{bytes}: {new:?} {old:?}");
        assert!(close(new.occupancy(bytes), old.occupancy(bytes)), "{bytes}: {new:?} {old:?}");
    }
    assert!(now.is_kept() && now.samples() == [0, 0]);
    // A guess, and it says so.
    assert!(new.confidence > 0.1 && new.confidence < 0.4, "{}", new.confidence);
    assert!(new.relative_error(65_536.0) > 0.25);
}

#[test]
fn a_machine_that_is_ten_times_as_fast_or_slow_is_believed_within_three_samples() {
    for times in [0.1, 10.0] {
        let mut now = restarted(&experienced());
        for sample in 1..=3 {
            assert!(now.is_kept(), "{sample}");
            let seconds = bent(65_536) * times;
            now.observe(Sample::Backlogged { bytes: 65_536, seconds });
        }
        assert!(!now.is_kept());
        // From then on it is one that has never known anything, at all sizes.
        let mut fresh = Estimator::new(None).with_prior(PRIOR, 2.0);
        fresh.observe(Sample::Backlogged { bytes: 65_536, seconds: bent(65_536) * times });
        assert_eq!(now.estimate().curve, fresh.estimate().curve);
    }
}

#[test]
fn a_machine_that_is_a_little_slower_is_followed() {
    let mut now = restarted(&experienced());
    let mut chance = Chance::new(3);
    for _ in 0..32 {
        observe(&mut now, 65_536, 1.4 * (0.95 + 0.1 * chance.unit()));
    }
    let curve = now.estimate().curve;
    assert!(off(&curve, 65_536, bent(65_536) * 1.4) < 0.1, "{curve:?}");
}

#[test]
fn outliers_do_not_take_it_away() {
    let mut gone = 0;
    for seed in 0..100 {
        let mut now = restarted(&experienced());
        let mut chance = Chance::new(seed);
        for _ in 0..64 {
            let mut seconds = || if chance.unit() < 0.05 { 20.0 } else { 1.0 } * bent(65_536);
            now.observe(Sample::Backlogged { bytes: 65_536, seconds: seconds() });
            now.observe(Sample::Alone { bytes: 65_536, seconds: 70e-6 + seconds() });
        }
        let curve = now.estimate().curve;
        gone += usize::from(off(&curve, 4096, bent(4096)) > 0.2);
    }
    assert!(gone <= 2, "{gone} of 100");
}

#[test]
fn what_was_not_known_contradicts_nothing() {
    let curve = CostCurve::straight(PRIOR);
    let known = KnownSize { bytes: 65_536.0, alone: 50.0, backlogged: 0.0 };
    let mut now = Estimator::new(None).with_prior(PRIOR, 2.0).with_kept(&curve, &[known], false);
    for _ in 0..100 {
        now.observe(Sample::Backlogged { bytes: 65_536, seconds: 5e-3 });
        now.observe(Sample::Alone { bytes: 16, seconds: 5e-3 });
    }
    assert!(now.is_kept());
    assert!(!now.estimate_for(65_536).identifiable);
}

#[test]
fn nothing_kept_is_nothing() {
    let fresh = Estimator::new(None).with_prior(PRIOR, 2.0);
    let none = [KnownSize { bytes: 4096.0, alone: 0.0, backlogged: f64::NAN }];
    let now = fresh.clone().with_kept(&CostCurve::straight(PRIOR), &none, true);
    assert!(!now.is_kept());
    assert_eq!(now.estimate(), fresh.estimate());
}

fn absurd() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(-1.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::MAX),
        Just(f64::MIN_POSITIVE),
        0.0..1e9_f64,
        1e-9..1e-3_f64,
    ]
}

proptest! {
    #[test]
    fn absurd_memories_make_no_absurd_estimate(
        lines in prop::collection::vec((absurd(), absurd(), absurd(), absurd()), 0..2 * REGIMES),
        sizes in prop::collection::vec((absurd(), absurd(), absurd()), 0..2 * REGIMES),
        live in prop::collection::vec((1_u64..1 << 24, absurd(), any::<bool>()), 0..40),
    ) {
        let lines: Vec<(f64, Stage)> = lines
            .into_iter()
            .map(|(bytes, latency, overhead, per_byte)| {
                (bytes, Stage { latency, overhead, per_byte, window: None })
            })
            .collect();
        let sizes: Vec<KnownSize> = sizes
            .into_iter()
            .map(|(bytes, alone, backlogged)| KnownSize { bytes, alone, backlogged })
            .collect();
        let curve = CostCurve::of_lines(&lines, None);
        let mut estimator =
            Estimator::new(None).with_prior(PRIOR, 2.0).with_kept(&curve, &sizes, true);
        for (bytes, seconds, alone) in live {
            estimator.observe(match alone {
                true => Sample::Alone { bytes, seconds },
                false => Sample::Backlogged { bytes, seconds },
            });
            let estimate = estimator.estimate();
            prop_assert!(estimate.confidence.is_finite());
            for bytes in [1.0, 4096.0, 1e6] {
                prop_assert!(estimate.stage_at(bytes).checked().is_ok());
            }
        }
    }
}
