//! Transfers under way together, which pass each stage one after the other.
//!
//! A transfer that has others behind it keeps them waiting for as long as the busiest server works
//! for it, and its own way from there to the end is no concern of theirs. So of `m` equal transfers
//! that begin together and pass each stage in turn the mean time to the end is
//!
//! ```text
//! T + (m - 1)/2 * W
//! ```
//!
//! with `T` the latency of one alone and `W` the busiest server's work for one. More fragments make
//! `T` shorter and `W` longer. For `k` fragments of one size in stages of their own that is the
//! latency of one transfer of `(m + 1)/2` times the bytes in `(m + 1)/2 * k` such fragments. By
//! Theorem 1 the best ones are `sqrt((m + 1)/2)` times as long as those of a transfer alone.

use core::num::NonZeroU32;

use super::{EvaluateFault, departures};
use crate::servers::Servers;
use crate::stage::{STAGES_MAX, StageCost};

/// How long, in seconds, the busiest server works for a transfer of `bytes` with `count(stage)`
/// fragments of nearly equal size at each stage. Those behind it wait so much longer.
///
/// A stage whose window binds departs one fragment every `1/w` of what it takes alone. Of stages
/// behind [`STAGES_MAX`] nothing is counted.
///
/// ```
/// use piped_model::evaluate::work;
/// use piped_model::servers::Servers;
/// use piped_model::stage::Stage;
/// let stage = |overhead, per_byte| Stage { latency: 0.0, overhead, per_byte, window: None };
/// let path = [stage(10.0, 1.0), stage(1.0, 1.0), stage(5.0, 0.5)];
/// assert_eq!(work(&path, 100, |_| 4, &Servers::APART), 4.0 * 10.0 + 100.0);
/// let thread = Servers::APART.with(2, 0);
/// assert_eq!(work(&path, 100, |_| 4, &thread), 4.0 * 15.0 + 150.0);
/// ```
#[must_use]
pub fn work<C: StageCost>(
    path: &[C],
    bytes: u64,
    count: impl Fn(usize) -> u64,
    servers: &Servers,
) -> f64 {
    let mut works = [0.0_f64; STAGES_MAX];
    for (stage, cost) in path.iter().take(STAGES_MAX).enumerate() {
        let count = count(stage).max(1) as f64;
        let size = bytes as f64 / count;
        let cost = cost.stage_at(size);
        let through = cost.occupancy(size) + cost.latency;
        let pace = cost.window.map_or(0.0, |window| through / f64::from(window.get()));
        works[servers.first(stage)] += count * pace.max(cost.occupancy(size));
    }
    works.into_iter().fold(0.0, f64::max)
}

/// Mean time in seconds until each of so many transfers ends that begin together, by the
/// recurrence. They have the same sizes, in bytes, one list per stage, and pass each stage in turn.
/// `depth` bounds the fragments that all of them have outstanding at the first stage.
///
/// # Errors
/// If there is not one list per stage, a size is 0, or the sums differ.
///
/// ```
/// use piped_model::evaluate::{equal, in_turn, work};
/// use piped_model::servers::Servers;
/// use piped_model::stage::Stage;
/// let stage = |overhead, per_byte| Stage { latency: 3.0, overhead, per_byte, window: None };
/// let path = [stage(10.0, 1.0), stage(1.0, 1.0)];
/// let mean = in_turn(&path, &[&[25; 4], &[25; 4]], None, 8)?;
/// let work = work(&path, 100, |_| 4, &Servers::APART);
/// assert!((mean - (equal(&path, 100.0, 4, None) + 3.5 * work)).abs() < 1e-9);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
pub fn in_turn<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
    transfers: u32,
) -> Result<f64, EvaluateFault> {
    let transfers = transfers.max(1) as usize;
    let all: Vec<Vec<u64>> = sizes.iter().map(|list| list.repeat(transfers)).collect();
    let views: Vec<&[u64]> = all.iter().map(Vec::as_slice).collect();
    let departures = departures(path, &views, depth)?;
    let each = sizes.last().map_or(1, |list| list.len());
    let ends = departures.chunks(each).filter_map(|own| own.last());
    Ok(ends.map(|&(_, left)| left).sum::<f64>() / transfers as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{lists, same_sizes};
    use crate::fixed::{self, Constraints};
    use crate::stage::Stage;

    const MIB: u64 = 1 << 20;

    /// A disk of 0.2 ms and 125 MB/s, and a link of 1 Gbit/s.
    fn disk_and_link() -> [Stage; 2] {
        let stage = |latency, overhead| Stage { latency, overhead, per_byte: 8e-9, window: None };
        [stage(0.0, 200e-6), stage(30e-6, 5e-6)]
    }

    /// `count` sizes that add up to a MiB.
    fn cut(count: u64) -> Vec<u64> {
        let size = MIB.div_ceil(count);
        let mut sizes = vec![size; count as usize - 1];
        sizes.push(MIB - size * (count - 1));
        sizes
    }

    #[test]
    fn eight_reads_of_a_mebibyte_are_best_in_turn_and_in_larger_fragments() {
        let path = disk_and_link();
        let turn = |count| {
            let sizes = cut(count);
            in_turn(&path, &[&sizes, &sizes], None, 8).unwrap() * 1e3
        };
        let alone = |count| {
            let sizes = cut(count);
            lists(&path, &[&sizes, &sizes], None).unwrap()
        };
        // Alone six fragments are best, in company three.
        assert!((1..20).all(|count| alone(6) <= alone(count) && turn(3) <= turn(count)));
        assert!((turn(1) - 47.07).abs() < 0.01 && (turn(6) - 44.58).abs() < 0.01, "{}", turn(6));
        assert!((turn(3) - 43.38).abs() < 0.2, "{}", turn(3));
        // A fragment of each by turns: the last ones are those of the last round.
        let round = |place: usize| same_sizes(&path, &vec![MIB as f64 / 6.0; 41 + place], None);
        let mixed = (0..8).map(round).sum::<f64>() / 8.0 * 1e3;
        assert!((mixed - 72.55).abs() < 0.01, "{mixed}");
    }

    #[test]
    fn those_in_turn_are_one_long_transfer_whose_fragments_are_the_roots_longer() {
        let path = disk_and_link();
        let servers = Servers::APART;
        for count in [1, 2, 4, 8] {
            let alone = super::super::equal(&path, MIB as f64, count, None);
            for others in [1, 2, 7] {
                let beside = alone + others as f64 * work(&path, MIB, |_| count, &servers);
                let (bytes, count) = ((others + 1) * MIB, (others + 1) * count);
                let long = super::super::equal(&path, bytes as f64, count, None);
                assert!((beside - long).abs() < 1e-12, "{count} {others}");
            }
        }
        let best = |bytes| fixed::best(&path, bytes, &Constraints::default()).fragment_bytes as f64;
        let ratio = best(1024 * MIB) / best(256 * MIB);
        assert!((ratio - 2.0).abs() < 0.05, "{ratio}");
    }
}
