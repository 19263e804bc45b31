//! Costs of the path behind a handle.

use piped_ring::handshake;

use crate::recent::Recent;

/// Costs of moving bytes between memory of this node and a handle's file or region, at present. A
/// request of `x` bytes that is alone is there after about `latency + overhead + x · per_byte`.
/// Requests that follow each other are `overhead + x · per_byte` apart (the `L`, `g` and `G` of the
/// model).
///
/// From [`crate::Handle::read_costs`] and [`crate::Handle::write_costs`], or measured by a
/// [`crate::StripReader`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathCosts {
    /// `g`: what a request costs the path whatever its length, in seconds.
    pub overhead_seconds: f64,
    /// `L`: what it takes besides, in seconds, the way there included.
    pub latency_seconds: f64,
    /// `G`: the inverse bandwidth, in seconds per byte.
    pub per_byte_seconds: f64,
    /// How well that is known: 0 (a guess) to 1.
    pub confidence: f64,
}

/// Bytes that the daemon tells the time of.
const MEBIBYTE: f64 = 1_048_576.0;

impl PathCosts {
    /// The costs that the daemon reported; `None` where it knows nothing.
    pub(crate) fn read(costs: &handshake::PathCosts) -> Option<Self> {
        let seconds = |ns: u64| ns as f64 * 1e-9;
        let certain = f64::from(handshake::PathCosts::CERTAIN_PPM);
        (costs.confidence_ppm > 0 && costs.mebibyte_ns > 0).then(|| Self {
            overhead_seconds: seconds(costs.overhead_ns),
            latency_seconds: seconds(costs.latency_ns),
            per_byte_seconds: seconds(costs.mebibyte_ns) / MEBIBYTE,
            confidence: f64::from(costs.confidence_ppm) / certain,
        })
    }
}

/// Costs that one of a handle's users measured on its path.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) per_byte_seconds: Option<f64>,
    pub(crate) latency_seconds: Option<f64>,
}

/// Costs of a handle's path in one direction, as its users know them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Known {
    told: Option<PathCosts>,
    /// The time at which the daemon was last asked; 0 for never.
    asked_ns: u64,
    per_byte: Recent,
    latency: Recent,
}

/// Nanoseconds after which known costs may have changed.
const STALE_NS: u64 = 2_000_000_000;

impl Known {
    /// The costs that users measured, or else those that the daemon reported.
    pub(crate) fn costs(&self) -> Option<PathCosts> {
        let per_byte_seconds = self.per_byte.low().or(self.told.map(|it| it.per_byte_seconds))?;
        let latency_seconds = self.latency.low().or(self.told.map(|it| it.latency_seconds))?;
        let overhead_seconds = self.told.map_or(0.0, |it| it.overhead_seconds);
        let told = self.told.map_or(0.0, |it| it.confidence);
        let confidence = if self.per_byte.seen() > 0 { 1.0 } else { told };
        Some(PathCosts { overhead_seconds, latency_seconds, per_byte_seconds, confidence })
    }

    /// Whether the daemon is to be asked: at first, and now and then.
    pub(crate) fn is_stale(&self, now_ns: u64) -> bool {
        self.asked_ns == 0 || now_ns.saturating_sub(self.asked_ns) > STALE_NS
    }

    pub(crate) fn handle_told(&mut self, told: Option<PathCosts>, now_ns: u64) {
        self.asked_ns = now_ns.max(1);
        self.told = told.or(self.told);
    }

    pub(crate) fn handle_measured(&mut self, measured: Measured) {
        measured.per_byte_seconds.into_iter().for_each(|it| self.per_byte.add(it));
        measured.latency_seconds.into_iter().for_each(|it| self.latency.add(it));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: PathCosts = PathCosts {
        overhead_seconds: 1e-6,
        latency_seconds: 1e-4,
        per_byte_seconds: 1e-8,
        confidence: 0.5,
    };

    #[test]
    fn what_was_measured_counts_more_than_what_was_told() {
        let mut known = Known::default();
        assert_eq!(known.costs(), None);
        known.handle_told(Some(TOLD), 5);
        assert_eq!(known.costs(), Some(TOLD));
        known.handle_measured(Measured { per_byte_seconds: Some(2e-8), latency_seconds: None });
        let both = PathCosts { per_byte_seconds: 2e-8, confidence: 1.0, ..TOLD };
        assert_eq!(known.costs(), Some(both));
        // A daemon that knows nothing takes nothing back.
        known.handle_told(None, 6);
        assert_eq!(known.costs(), Some(both));
        // Of loops that something held up the shorter ones are believed.
        for late in [9e-8, 2.1e-8, 9e-8, 9e-8] {
            known.handle_measured(Measured { per_byte_seconds: Some(late), latency_seconds: None });
        }
        assert_eq!(known.costs().map(|it| it.per_byte_seconds), Some(2.1e-8));
    }

    #[test]
    fn the_daemon_is_asked_at_first_and_now_and_then() {
        let mut known = Known::default();
        assert!(known.is_stale(0));
        known.handle_told(None, 0);
        assert!(!known.is_stale(STALE_NS));
        assert!(known.is_stale(STALE_NS + 2));
    }
}
