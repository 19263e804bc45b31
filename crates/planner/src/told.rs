//! What the two sides of a connection tell each other about a stage, as far as the planner needs
//! it.

use piped_core::units::Nanos;
use piped_model::estimate::{Estimate, Summary};
use piped_model::stage::StageCost;

/// The least weight of samples that is worth a report: one sample, even slightly aged.
pub const TOLD_WEIGHT_MIN: f64 = 0.5;

/// What the other side was last told of a stage of this node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Told {
    /// Number of samples behind the report; 0 if nothing was told.
    pub samples: u64,
    /// Version of the published cost that was told.
    pub version: u32,
    /// When the report was sent.
    pub at: Nanos,
}

/// The thread's part of a delay injection and the injection itself as one stage: the slower part
/// occupies it, and the other is latency.
pub fn behind(host: &Estimate, dial: Summary) -> Summary {
    let line = host.stage_at(dial.bytes);
    let (time, per_byte) = (line.occupancy(dial.bytes), line.per_byte);
    if !dial.backlogged {
        Summary { seconds: dial.seconds + time, slope: dial.slope + per_byte, ..dial }
    } else if time > dial.seconds {
        Summary { seconds: time, slope: per_byte, ..dial }
    } else {
        dial
    }
}

#[cfg(test)]
mod tests {
    use piped_model::estimate::Estimator;
    use piped_model::stage::Stage;

    use super::*;

    #[test]
    fn the_slower_of_thread_and_dial_occupies_the_stage() {
        let host = Stage { latency: 0.0, overhead: 20e-6, per_byte: 0.0, window: None };
        let host = Estimator::new(None).with_prior(host, 100.0).estimate();
        let dial = |backlogged, seconds| Summary {
            backlogged,
            weight: 10.0,
            bytes: 4096.0,
            spread: 0.0,
            seconds,
            slope: 0.0,
            deviation: 0.1,
        };
        let near = |found: Summary, micros: f64| {
            assert!((found.seconds * 1e6 - micros).abs() < 0.1, "{found:?}");
        };
        near(behind(&host, dial(false, 100e-6)), 120.0);
        near(behind(&host, dial(true, 5e-6)), 20.0);
        near(behind(&host, dial(true, 50e-6)), 50.0);
    }
}
