//! What the path behind a handle costs, for who sizes requests by it.

/// Requests of `x` bytes that follow each other on a path are `overhead + x · per_byte` apart, the
/// pace of its slowest stage; one that is alone takes `latency` longer. Seconds, and seconds per
/// byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathCost {
    /// `g` of the slowest stage.
    pub overhead_seconds: f64,
    /// `L` of all stages, and `g` of the others.
    pub latency_seconds: f64,
    /// `G` of the slowest stage.
    pub per_byte_seconds: f64,
    /// How well the slowest stage is known, 0 to 1.
    pub confidence: f64,
}
