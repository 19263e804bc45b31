//! Weighted moments of one kind of sample in one size regime.
//!
//! A cell forgets exponentially by counts, clips what is implausible, and notices when the world
//! has changed: clipping alone would call every sample after a step an outlier for ever. A CUSUM of
//! the standardised residuals tells the two apart: outliers come singly and to both sides of many
//! normal ones, a change stays on one side.

use super::Summary;

/// Samples a cell remembers, in the limit. Noise of 10 % leaves 0.7 % in the mean.
pub(super) const MEMORY: f64 = 200.0;
/// Residuals count up to this many standard deviations.
const CLIP: f64 = 3.0;
/// Samples after a start or a change during which residuals may be as large as the cost itself.
const WARM_SAMPLES: u8 = 8;
/// CUSUM: what a residual must exceed to count as drift, its cap, and the alarm, in deviations. One
/// outlier adds 3 and each normal sample takes back 1; a doubling at 10 % noise needs four samples.
const CUSUM_SLACK: f64 = 1.0;
const CUSUM_CAP: f64 = 4.0;
const CUSUM_ALARM: f64 = 10.0;
/// Clocks and schedulers: costs are never known better than this fraction.
const DEVIATION_MIN: f64 = 0.01;
/// Mean absolute deviation to standard deviation, for the normal distribution.
const TO_DEVIATION: f64 = 1.2533;
/// How strongly a cell's own slope is drawn to `g = xG` before its sizes say more; in squares of
/// the mean size, so that twenty samples varied by 5 % weigh as much.
const SLOPE_RIDGE: f64 = 0.05;

/// Moments and change detector.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cell {
    /// Effective number of samples.
    pub(super) weight: f64,
    /// Mean size in bytes.
    pub(super) mean_bytes: f64,
    /// Mean cost in seconds.
    pub(super) mean_seconds: f64,
    /// `sum w (x - mean)²`.
    pub(super) spread: f64,
    /// `sum w (x - mean)(y - mean)`.
    pub(super) product: f64,
    /// Mean absolute residual, relative to the prediction.
    pub(super) scale: f64,
    rise: f64,
    fall: f64,
    warm: u8,
    /// The estimator's sample count when this cell was last touched.
    pub(super) touched: u64,
}

/// What a sample did to a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The sample fits the cell.
    Learned,
    /// The cost has changed; the cell has started over.
    Changed,
}

impl Cell {
    /// Learn that `bytes` cost `seconds`.
    pub(super) fn observe(&mut self, bytes: f64, seconds: f64) -> Verdict {
        if self.weight <= 0.0 {
            *self = Self {
                weight: 1.0,
                mean_bytes: bytes,
                mean_seconds: seconds,
                scale: 0.2,
                warm: WARM_SAMPLES,
                touched: self.touched,
                ..Self::default()
            };
            return Verdict::Learned;
        }
        let expected = self.predict(bytes).max(1e-12);
        let residual = (seconds - expected) / expected;
        let deviation = self.deviation();
        let verdict = self.judge(residual / deviation);
        let clip = if self.warm > 0 { 1.0_f64.max(CLIP * deviation) } else { CLIP * deviation };
        if self.warm > 0 {
            self.warm -= 1;
            // Nothing runs much faster than it costs: what came before was the outlier.
            if residual < -0.5 {
                self.fade(0.25 * self.weight);
            }
        }
        let scale_weight = (1.0 / (self.weight + 1.0)).max(2.0 / MEMORY);
        let size = residual.abs().min(CLIP * deviation);
        self.scale += (size - self.scale) * scale_weight;
        self.absorb(bytes, expected * (1.0 + residual.clamp(-clip, clip)));
        verdict
    }

    /// What another estimator has learned, instead of what is here.
    pub(super) fn adopt(&mut self, summary: &Summary) {
        let Summary { weight, bytes, spread, seconds, slope, deviation, .. } = *summary;
        *self = Self {
            weight,
            mean_bytes: bytes,
            mean_seconds: seconds,
            spread: weight * spread * spread,
            product: weight * spread * spread * slope,
            scale: deviation / TO_DEVIATION,
            rise: 0.0,
            fall: 0.0,
            warm: 0,
            touched: self.touched,
        };
    }

    pub(super) fn summary(&self, backlogged: bool, weight: f64) -> Summary {
        let slope = if self.spread > 0.0 { self.product / self.spread } else { 0.0 };
        Summary {
            backlogged,
            weight,
            bytes: self.mean_bytes,
            spread: (self.spread / self.weight).max(0.0).sqrt(),
            seconds: self.mean_seconds,
            slope,
            deviation: self.deviation(),
        }
    }

    /// The standard deviation of one sample, relative to its cost.
    pub(super) fn deviation(&self) -> f64 {
        (TO_DEVIATION * self.scale).max(DEVIATION_MIN)
    }

    /// Whether it knows enough to say how much a sample differs from what was expected.
    pub(super) fn is_settled(&self) -> bool {
        self.weight > 1.0 && self.warm == 0
    }

    /// Keep at most `weight` samples' worth of memory.
    pub(super) fn fade(&mut self, weight: f64) {
        if self.weight > weight {
            let factor = weight / self.weight;
            self.weight = weight;
            self.spread *= factor;
            self.product *= factor;
        }
    }

    /// Something else says that the cost has changed: keep at most `weight` samples' worth, and
    /// believe what comes next.
    pub(super) fn doubt(&mut self, weight: f64) {
        self.fade(weight);
        (self.rise, self.fall) = (0.0, 0.0);
        self.warm = WARM_SAMPLES;
    }

    /// The weight after `later` samples elsewhere: what nobody uses goes out of date, slowly.
    pub(super) fn weight_now(&self, count: u64) -> f64 {
        let later = count.saturating_sub(self.touched) as f64;
        self.weight / (1.0 + later / (20.0 * MEMORY))
    }

    /// The cost in seconds by this cell's own line.
    pub(super) fn predict(&self, bytes: f64) -> f64 {
        let square = self.mean_bytes * self.mean_bytes;
        if square <= 0.0 {
            return self.mean_seconds;
        }
        let proportional = self.mean_seconds / self.mean_bytes;
        let ridge = SLOPE_RIDGE * square;
        let slope = (self.product + ridge * 0.5 * proportional) / (self.spread + ridge);
        let slope = slope.clamp(0.0, 4.0 * proportional);
        // Within a regime of a factor of four a line stays above this.
        (self.mean_seconds + slope * (bytes - self.mean_bytes)).max(0.1 * self.mean_seconds)
    }

    fn judge(&mut self, standardised: f64) -> Verdict {
        if self.warm > 0 {
            return Verdict::Learned;
        }
        let step = standardised.clamp(-CUSUM_CAP, CUSUM_CAP);
        self.rise = (self.rise + step - CUSUM_SLACK).max(0.0);
        self.fall = (self.fall - step - CUSUM_SLACK).max(0.0);
        if self.rise.max(self.fall) < CUSUM_ALARM {
            return Verdict::Learned;
        }
        (self.rise, self.fall) = (0.0, 0.0);
        self.warm = WARM_SAMPLES;
        self.scale = self.scale.max(0.1);
        self.fade(0.5);
        Verdict::Changed
    }

    /// Exponentially weighted moments, centred at once: sums of squares of bytes would lose the
    /// spread to rounding.
    fn absorb(&mut self, bytes: f64, seconds: f64) {
        let kept = 1.0 - 1.0 / MEMORY;
        self.weight = self.weight * kept + 1.0;
        let (dx, dy) = (bytes - self.mean_bytes, seconds - self.mean_seconds);
        self.mean_bytes += dx / self.weight;
        self.mean_seconds += dy / self.weight;
        self.spread = self.spread * kept + dx * (bytes - self.mean_bytes);
        self.product = self.product * kept + dx * (seconds - self.mean_seconds);
    }
}
