//! The best count, and the best pair of counts.

/// Below this count every one is tried.
const DENSE: u64 = 16;

/// The first of `low..=high` for which `holds`, if it holds from some point on; `high` if nowhere
/// before.
pub(super) fn first(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// The count of least latency, the smallest such, among `1..=most`.
///
/// Feasible counts (of finite latency) are those up to some count. Among them the latency is convex
/// but for a slight bend near the largest (seen by differentiating equation 18 twice). So the
/// bottom of the convex part, the few smallest and the largest are compared.
pub(super) fn best_count(most: u64, latency: impl Fn(u64) -> f64) -> u64 {
    let infinite = |count: u64| latency(count).is_infinite();
    let most = if infinite(most) { first(1, most, infinite) - 1 } else { most };
    if most <= 1 {
        return 1;
    }
    let rises = |count: u64| {
        let here = latency(count);
        // A gain below the arithmetic's own noise is none.
        latency(count + 1) >= here - here * 1e-14
    };
    let bottom = first(1, most, rises);
    let mut best = (latency(1), 1);
    for count in (2..=most.min(DENSE)).chain([bottom, most]) {
        let seconds = latency(count);
        if seconds < best.0 - best.0 * 1e-14 {
            best = (seconds, count);
        }
    }
    best.1
}

/// The pair of counts of least latency with `up + down - 1 <= most`.
///
/// By turns the best `down` for this `up` and the best `up` for this `down`, then steps to better
/// neighbours (the two are not independent), until nothing changes.
pub(super) fn best_pair(most: u64, latency: impl Fn(u64, u64) -> f64) -> (u64, u64) {
    let mut best = (1, 1);
    let mut seconds = latency(1, 1);
    loop {
        let before = best;
        let down = best_count(most + 1 - best.0, |down| latency(best.0, down));
        let up = best_count(most + 1 - down, |up| latency(up, down));
        let mut consider = |pair: (u64, u64)| {
            let here = latency(pair.0, pair.1);
            if pair.0 + pair.1 - 1 <= most && here < seconds - seconds * 1e-14 {
                (best, seconds) = (pair, here);
            }
        };
        consider((up, down));
        for near_up in up.saturating_sub(2).max(1)..=up + 2 {
            for near_down in down.saturating_sub(2).max(1)..=down + 2 {
                consider((near_up, near_down));
            }
        }
        if best == before {
            return best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_count_may_be_at_the_border_of_the_feasible() {
        let falling = |count: u64| if count <= 777 { -(count as f64) } else { f64::INFINITY };
        assert_eq!(best_count(1 << 16, falling), 777);
        assert_eq!(best_count(100, falling), 100);
        assert_eq!(best_count(1, |_| 1.0), 1);
        // A bend down before the border is not taken for the bottom.
        let bent = |count: u64| match count {
            ..=700 => (count as f64 - 300.0).abs() + 2.0,
            701..=777 => (777 - count) as f64 + 1.0,
            _ => f64::INFINITY,
        };
        assert_eq!(best_count(1 << 16, bent), 777);
        let valley = |count: u64| (count as f64 - 300.0).powi(2) + 1.0;
        assert_eq!(best_count(1 << 16, valley), 300);
    }

    #[test]
    fn the_best_pair_is_found_off_the_axes() {
        let bowl = |up: u64, down: u64| {
            let (x, y) = (up as f64 - 40.0, down as f64 - 25.0);
            1.0 + x * x + y * y + 1.8 * x * y
        };
        assert_eq!(best_pair(1000, bowl), (40, 25));
        assert_eq!(best_pair(1, bowl), (1, 1));
    }
}
