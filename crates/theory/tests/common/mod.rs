//! Chance, and the optimum of tiny transfers from all their plans.
#![allow(dead_code, reason = "each test uses a part")]

use piped_model::evaluate;
use piped_model::servers::Servers;
use piped_model::stage::StageCost;

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn power(&mut self, low: f64, high: f64) -> f64 {
        10_f64.powf(low + (high - low) * self.unit())
    }
}

/// The least latency of all plans on whole bytes.
pub(crate) fn exhaustive<C: StageCost>(path: &[C], bytes: u64, servers: &Servers) -> f64 {
    let lists: Vec<Vec<u64>> = (0..1_u64 << (bytes - 1))
        .map(|pattern| {
            let ends = (1..bytes).filter(|byte| pattern >> (byte - 1) & 1 == 1).chain([bytes]);
            let mut begin = 0;
            ends.map(|end| end - std::mem::replace(&mut begin, end)).collect()
        })
        .collect();
    let mut least = f64::INFINITY;
    let mut choice = vec![0; path.len()];
    loop {
        let plan: Vec<&[u64]> =
            choice.iter().map(|&index: &usize| lists[index].as_slice()).collect();
        let seconds = if servers.is_shared(path.len()) {
            evaluate::served(path, &plan, None, servers)
        } else {
            evaluate::lists(path, &plan, None)
        };
        least = least.min(seconds.expect("lists that add up"));
        let Some(stage) = choice.iter().position(|&index| index + 1 < lists.len()) else {
            return least;
        };
        choice[stage] += 1;
        choice[..stage].fill(0);
    }
}
