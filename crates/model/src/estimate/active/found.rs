//! What a procedure found, and how runs are read.

#[cfg(feature = "serde")]
use serde::Serialize;

use super::super::black_box::{BlackBox, BlackBoxFault};
use super::super::figure::Figure;
use super::super::loggp::Parameters;

/// How many times as long as its way is has to be kept busy, to be sure that a stage is the limit.
const HELD: f64 = 1.5;

/// Why a procedure ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize), serde(rename_all = "kebab-case"))]
pub enum End {
    /// Everything that was asked was measured.
    Complete,
    /// The time was over.
    Time,
    /// The bytes were used up.
    Bytes,
    /// The caller told it to stop.
    Stopped,
}

/// What a procedure found, as far as it came.
#[derive(Debug, Clone)]
pub struct Found {
    /// A request that does nothing, in seconds; it is in the latencies of [`Found::black_box`] and
    /// of [`Found::network`].
    pub ring: Option<Figure>,
    /// The pipeline's costs, if they show.
    pub black_box: Result<BlackBox, BlackBoxFault>,
    /// Whether the pipeline is known as well as was asked.
    pub precise: bool,
    /// The LogGP parameters, if there were bursts.
    pub network: Option<Parameters>,
    /// Size of their short messages.
    pub short_bytes: u64,
    /// The bytes that were sent.
    pub bytes: u64,
    /// The runs that were made.
    pub runs: u32,
    /// How long the path was used, in seconds.
    pub used_seconds: f64,
    /// How long it took in all.
    pub seconds: f64,
    /// Why the procedure ended.
    pub end: End,
    /// The most packets outstanding, and the most bytes.
    pub(super) outstanding: (u32, u64),
}

impl Found {
    /// Whether the path may be faster than [`Found::busy`] says: there were not more packets
    /// outstanding than a packet's way takes of such times, so that they, and no stage, may have
    /// been the limit.
    #[must_use]
    pub fn is_held(&self, bytes: f64) -> bool {
        let depth = depth(self.outstanding, bytes as u64);
        let alone = self.alone(bytes).map_or(0.0, |it| it.value);
        self.busy(bytes).is_some_and(|busy| busy.value * f64::from(depth) < HELD * alone)
    }

    /// What a packet takes alone, less the ring, in seconds.
    #[must_use]
    pub fn alone(&self, bytes: f64) -> Option<Figure> {
        let total = self.black_box.as_ref().ok()?.total.figure_at(bytes);
        Some(self.ring.map_or(total, |ring| total.minus(ring)))
    }

    /// How many measurements the others contradict, so that they were left out, and how many times
    /// as long as expected the longest of them was.
    #[must_use]
    pub fn outliers(&self) -> (usize, f64) {
        let of_packets =
            self.black_box.iter().flat_map(|it| [&it.alone_outliers, &it.backlogged_outliers]);
        let of_bursts =
            self.network.iter().flat_map(|it| [&it.burst_outliers, &it.round_trip_outliers]);
        let all = of_packets.chain(of_bursts).flatten();
        all.fold((0, 0.0), |(count, most), it| (count + 1, f64::max(most, it.times)))
    }

    /// The time between packets, in seconds.
    #[must_use]
    pub fn busy(&self, bytes: f64) -> Option<Figure> {
        Some(self.black_box.as_ref().ok()?.bottleneck_at(bytes).line.figure_at(bytes))
    }
}

/// Packets outstanding of those that there may be, and their bytes.
pub(super) fn depth((packets, bytes_max): (u32, u64), bytes: u64) -> u32 {
    (bytes_max / bytes.max(1)).clamp(1, packets.into()) as u32
}

/// The mean time between ends, without the first ones, that came while the pipeline was filling.
pub(super) fn interval(ends: &[f64]) -> Option<f64> {
    let first = (ends.len() / 8).max(1);
    let (from, to) = (ends.get(first)?, ends.last()?);
    let gaps = ends.len() - 1 - first;
    (gaps > 0).then(|| (to - from) / gaps as f64)
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted.get(middle).copied(),
        _ => Some((sorted.get(middle.checked_sub(1)?)? + sorted.get(middle)?) / 2.0),
    }
}
