//! A stage's cost over the fragment size: straight pieces between measured sizes.

use core::num::NonZeroU32;

use super::{REGIMES, border, regime};
use crate::stage::{Stage, StageCost};

/// The cost at one measured size.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Node {
    /// The size in bytes.
    pub(super) bytes: f64,
    /// `g + xG` there, in seconds.
    pub(super) occupancy: f64,
    /// `L` there, in seconds.
    pub(super) latency: f64,
    /// `G` there, in seconds per byte; not above `occupancy / bytes`.
    pub(super) slope: f64,
    /// The samples behind the node.
    pub(super) weight: f64,
}

/// A measured cost with its bends: piecewise linear between the sizes in use, straight beyond them.
/// Copied into plans' inputs; constant size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostCurve {
    nodes: [Node; REGIMES],
    count: usize,
    window: Option<NonZeroU32>,
}

impl CostCurve {
    /// A curve without bends.
    ///
    /// ```
    /// use piped_model::estimate::CostCurve;
    /// use piped_model::stage::{Stage, StageCost};
    /// let stage = Stage { latency: 70e-6, overhead: 17e-6, per_byte: 0.4e-9, window: None };
    /// let curve = CostCurve::straight(stage);
    /// let alone = curve.stage_at(65536.0).alone(65536.0);
    /// assert!((alone / stage.alone(65536.0) - 1.0).abs() < 1e-12);
    /// ```
    #[must_use]
    pub fn straight(stage: Stage) -> Self {
        let node = Node {
            bytes: 0.0,
            occupancy: stage.overhead,
            latency: stage.latency,
            slope: stage.per_byte,
            weight: 1.0,
        };
        let mut nodes = [Node::default(); REGIMES];
        nodes[0] = node;
        Self { nodes, count: 1, window: stage.window }
    }

    /// Through these nodes, in the order of their sizes. Larger fragments are never cheaper: where
    /// noise says so, neighbours are averaged.
    pub(super) fn through(measured: &[Node], window: Option<NonZeroU32>) -> Self {
        let mut nodes = [Node::default(); REGIMES];
        let mut count = 0;
        for &node in measured.iter().take(REGIMES) {
            nodes[count] = node;
            count += 1;
        }
        // Pool adjacent violators: runs of nodes with one mean, each above the one before.
        let mut runs = [(0.0_f64, 0.0_f64, 0_usize); REGIMES];
        let mut last = 0;
        for (place, node) in nodes[..count].iter().enumerate() {
            runs[last] = (node.occupancy, node.weight, place + 1);
            while last > 0 && runs[last - 1].0 > runs[last].0 {
                let ((a, below, _), (b, above, end)) = (runs[last - 1], runs[last]);
                let weight = below + above;
                runs[last - 1] = ((a * below + b * above) / weight, weight, end);
                last -= 1;
            }
            last += 1;
        }
        let mut start = 0;
        for &(mean, _, end) in &runs[..last] {
            nodes[start..end].iter_mut().for_each(|node| node.occupancy = mean);
            start = end;
        }
        for node in &mut nodes[..count] {
            if node.bytes > 0.0 {
                node.slope = node.slope.min(node.occupancy / node.bytes);
            }
        }
        Self { nodes, count, window }
    }

    /// The straight pieces of the curve in the order of their sizes: a size in bytes, and the line
    /// there. A curve without bends has one.
    ///
    /// ```
    /// use piped_model::estimate::CostCurve;
    /// use piped_model::stage::Stage;
    /// let stage = Stage { latency: 70e-6, overhead: 17e-6, per_byte: 0.4e-9, window: None };
    /// let curve = CostCurve::straight(stage);
    /// let lines: Vec<_> = curve.lines().collect();
    /// assert_eq!(CostCurve::of_lines(&lines, None), curve);
    /// ```
    pub fn lines(&self) -> impl Iterator<Item = (f64, Stage)> + '_ {
        self.nodes[..self.count].iter().map(|node| {
            let overhead = (node.occupancy - node.bytes * node.slope).max(0.0);
            let (latency, per_byte) = (node.latency, node.slope);
            (node.bytes, Stage { latency, overhead, per_byte, window: self.window })
        })
    }

    /// The curve of such pieces. What is no cost, or not beyond the size before it, is left out.
    #[must_use]
    pub fn of_lines(lines: &[(f64, Stage)], window: Option<NonZeroU32>) -> Self {
        let mut nodes = [Node::default(); REGIMES];
        let mut count = 0;
        for (bytes, line) in lines {
            let beyond = |last: &Node| *bytes > last.bytes;
            let fits = bytes.is_finite() && *bytes >= 0.0 && line.checked().is_ok();
            if count < REGIMES && fits && nodes[..count].last().is_none_or(beyond) {
                nodes[count] = Node {
                    bytes: *bytes,
                    occupancy: line.occupancy(*bytes),
                    latency: line.latency,
                    slope: line.per_byte,
                    weight: 1.0,
                };
                count += 1;
            }
        }
        Self::through(&nodes[..count], window)
    }

    /// The line of the size's own regime, as far as it was measured: from there to the next one a
    /// curve bends.
    pub(super) fn own_line(&self, bytes: f64) -> Stage {
        let place = regime(bytes as u64);
        let own = self.lines().find(|(at, _)| *at > 0.0 && regime(*at as u64) == place);
        own.map_or_else(|| self.stage_at(bytes), |(_, line)| line)
    }

    /// `g + xG` of a fragment of `bytes`, in seconds.
    #[must_use]
    pub fn backlogged(&self, bytes: f64) -> f64 {
        self.stage_at(bytes).occupancy(bytes)
    }

    /// `L + g + xG` of a fragment of `bytes`, in seconds.
    #[must_use]
    pub fn alone(&self, bytes: f64) -> f64 {
        self.stage_at(bytes).alone(bytes)
    }
}

impl StageCost for CostCurve {
    fn stage_at(&self, bytes: f64) -> Stage {
        let nodes = &self.nodes[..self.count];
        let after = nodes.partition_point(|node| node.bytes <= bytes);
        let (occupancy, latency, slope) = match (after.checked_sub(1), nodes.get(after)) {
            (None, None) => (0.0, 0.0, 0.0),
            (None, Some(first)) => (line(first, bytes), first.latency, first.slope),
            (Some(last), None) => {
                (line(&nodes[last], bytes), nodes[last].latency, nodes[last].slope)
            }
            (Some(below), Some(above)) => {
                let below = &nodes[below];
                let width = above.bytes - below.bytes;
                let part = (bytes - below.bytes) / width;
                let latency = below.latency + part * (above.latency - below.latency);
                let (occupancy, slope) = between(below, above, bytes);
                (occupancy, latency, slope)
            }
        };
        // A steep piece would have a negative overhead; the sum is what counts at this size.
        let per_byte = if bytes > 0.0 { slope.min(occupancy / bytes) } else { slope };
        let overhead = (occupancy - bytes * per_byte).max(0.0);
        Stage { latency, overhead, per_byte, window: self.window }
    }
}

/// Occupancy and slope between two nodes. Within its own regime a node's own line holds, and what
/// is not measured is the straight way from one regime to the other: a line from node to node would
/// charge a fragment a little larger than the node for a bend that is far away.
fn between(below: &Node, above: &Node, bytes: f64) -> (f64, f64) {
    let chord = |from: (f64, f64), to: (f64, f64)| {
        let slope = ((to.1 - from.1) / (to.0 - from.0)).max(0.0);
        (from.1 + slope * (bytes - from.0), slope)
    };
    let nodes = ((below.bytes, below.occupancy), (above.bytes, above.occupancy));
    let (left, right) =
        (border(regime(below.bytes as u64) + 1), border(regime(above.bytes as u64)));
    let (low, high) = (line(below, left), line(above, right));
    // Neighbours share a border, where their lines may differ; and lines that cross are of too few
    // sizes.
    if left >= right || low > high || left < below.bytes || right > above.bytes {
        return chord(nodes.0, nodes.1);
    }
    if bytes <= left {
        (line(below, bytes), below.slope)
    } else if bytes >= right {
        (line(above, bytes), above.slope)
    } else {
        chord((left, low), (right, high))
    }
}

/// The straight continuation of a node's own line.
fn line(node: &Node, bytes: f64) -> f64 {
    (node.occupancy + node.slope * (bytes - node.bytes)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(bytes: f64, occupancy: f64) -> Node {
        Node { bytes, occupancy, latency: 1.0, slope: 0.0, weight: 1.0 }
    }

    #[test]
    fn bends_are_kept() {
        let curve =
            CostCurve::through(&[node(100.0, 2.0), node(200.0, 3.0), node(400.0, 40.0)], None);
        assert_eq!(curve.backlogged(100.0), 2.0);
        assert_eq!(curve.backlogged(150.0), 2.5);
        assert!((curve.backlogged(400.0) - 40.0).abs() < 1e-9);
        assert!((curve.backlogged(300.0) - 21.5).abs() < 1e-9);
        assert!((curve.alone(300.0) - 22.5).abs() < 1e-9);
        // The steep piece starts below zero: its overhead is held there.
        assert_eq!(curve.stage_at(300.0).overhead, 0.0);
        assert!(curve.stage_at(300.0).checked().is_ok());
    }

    #[test]
    fn a_bend_far_away_is_not_charged_nearby() {
        let near = Node { slope: 0.5e-3, ..node(16_384.0, 20.0) };
        let far = Node { slope: 3e-3, ..node(1_048_576.0, 4000.0) };
        let curve = CostCurve::through(&[near, far], None);
        // 16 KiB and 20 KiB are of one regime; so are 600 KiB and 1 MiB.
        assert!((curve.backlogged(20_480.0) - 22.048).abs() < 1e-9);
        assert!((curve.backlogged(800_000.0) - (4000.0 - 3e-3 * 248_576.0)).abs() < 1e-9);
        let costs: Vec<f64> = (0..2000).map(|i| curve.backlogged(f64::from(i) * 1000.0)).collect();
        assert!(costs.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9));
        // No jumps: no thousand bytes cost more than the steepest piece.
        assert!(costs.windows(2).all(|pair| pair[1] - pair[0] <= 10.0), "{costs:?}");
    }

    #[test]
    fn larger_fragments_are_never_cheaper() {
        let nodes = [(1.0, 5.0), (2.0, 3.0), (3.0, 4.0), (4.0, 1.0), (5.0, 9.0)];
        let curve = CostCurve::through(&nodes.map(|(x, y)| node(x, y)), None);
        let costs: Vec<f64> = (0..60).map(|i| curve.backlogged(f64::from(i) * 0.1)).collect();
        assert!(costs.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9), "{costs:?}");
        // The nearest that rises: the first four are one run, with the mean of all of them.
        for bytes in [1.0, 2.0, 3.0, 4.0] {
            assert!((curve.backlogged(bytes) - 3.25).abs() < 1e-12, "{costs:?}");
        }
    }
}
