//! Costs of the path behind a handle, by which clients size their requests.

/// Costs of requests on a path. Requests of `x` bytes that follow each other end `overhead + x ·
/// per_byte` apart, the pace of the slowest stage. A request alone takes `latency` longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathCost {
    /// `g` of the slowest stage, in seconds.
    pub overhead_seconds: f64,
    /// `L` of all stages and `g` of the others, in seconds.
    pub latency_seconds: f64,
    /// `G` of the slowest stage, in seconds per byte.
    pub per_byte_seconds: f64,
    /// Confidence in the costs of the slowest stage, 0 to 1.
    pub confidence: f64,
}
