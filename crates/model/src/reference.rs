//! The papers' pipelines, for tests, benches, figures and the command line.
//!
//! All from Wang et al. (docs/theory.md §5). Two units of size are in use there, and figures come
//! out only with the right one:
//!
//! | pipelines | `G` in us per | packet sizes |
//! | --- | --- | --- |
//! | [`gam`], [`gms`] | 1024 bytes ([`KIB`]) | 4 KB = 4096 bytes, 8 KB = 8192 bytes |
//! | [`network`], [`disk`] and chains of them | 1000 bytes ([`KB`]) | 64 KB = [`PACKET_BYTES`] |
//!
//! Chains are [`network_disk`] and [`network_disk_network`]. 5 MB/s are 5·10⁶ bytes/s, and 64 KB
//! are 65536 bytes.
//!
//! All stages have `L = 0` and no window: the papers' model.

use crate::stage::{Path, STAGES_MAX, Stage};

/// 1024 bytes: the KB of the tables of GAM and GMS.
pub const KIB: f64 = 1024.0;

/// 1000 bytes: the KB of section 5.5's inverse bandwidths.
pub const KB: f64 = 1000.0;

/// Section 5.5's packet of 64 KB, in bytes.
pub const PACKET_BYTES: u64 = 65_536;

/// Table 1: `g` in us, `G` in us per KB.
const GAM: [(f64, f64); 4] = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)];

/// Table 3: `g` in us, `G` in us per KB.
const GMS: [(f64, f64); 4] = [(2.1, 25.6), (4.0, 60.1), (2.1, 25.6), (92.8, 26.2)];

/// A stage of the papers' model: `g` in us, `G` in us per `unit` bytes, `L = 0`, no window.
///
/// ```
/// use piped_model::reference::{KB, stage};
/// let disk = stage(4000.0, 200.0, KB);
/// assert!((disk.occupancy(1e6) - 0.204).abs() < 1e-12);
/// ```
#[must_use]
pub const fn stage(overhead_us: f64, per_unit_us: f64, unit: f64) -> Stage {
    Stage {
        latency: 0.0,
        overhead: overhead_us * 1e-6,
        per_byte: per_unit_us * 1e-6 / unit,
        window: None,
    }
}

/// Generic Active Messages on Myrinet (table 1), KB = 1024 bytes. 4 KB in 5 fragments take 188.90
/// us.
///
/// ```
/// use piped_model::{evaluate::equal, reference::gam};
/// assert!((equal(&gam(), 4096.0, 5, None) * 1e6 - 188.90).abs() < 0.005);
/// ```
#[must_use]
pub fn gam() -> [Stage; 4] {
    GAM.map(|(overhead, per_kb)| stage(overhead, per_kb, KIB))
}

/// Global memory on AN2 (table 3), KB = 1024 bytes: the bottleneck moves from the last stage to
/// stage 1 where fragments pass 2.6195 KB. 8 KB in 3 fragments take 796.2 us.
///
/// ```
/// use piped_model::{evaluate::equal, reference::gms};
/// assert!((equal(&gms(), 8192.0, 3, None) * 1e6 - 796.2).abs() < 0.05);
/// ```
#[must_use]
pub fn gms() -> [Stage; 4] {
    GMS.map(|(overhead, per_kb)| stage(overhead, per_kb, KIB))
}

/// Section 5.5's network: GAM with five times `g` and `G`, `G` in us per 1000 bytes.
#[must_use]
pub fn network() -> [Stage; 4] {
    GAM.map(|(overhead, per_kb)| stage(5.0 * overhead, 5.0 * per_kb, KB))
}

/// Section 5.5's disk: 4 ms, and 200 us per 1000 bytes (5·10⁶ B/s).
#[must_use]
pub const fn disk() -> Stage {
    stage(4000.0, 200.0, KB)
}

/// Section 5.5's first path: network → disk, 5 stages.
///
/// ```
/// use piped_model::fixed::optimum;
/// use piped_model::reference::{PACKET_BYTES, network_disk};
/// // Algorithm A, all stages as peers.
/// let a = optimum(&network_disk(), PACKET_BYTES as f64, (1, PACKET_BYTES), None);
/// assert!((a.predicted_seconds * 1e6 - 31876.9).abs() < 0.1);
/// ```
#[must_use]
pub fn network_disk() -> Path {
    joined(&[&network(), &[disk()]])
}

/// Section 5.5's second path: network → disk → network, 9 stages.
///
/// ```
/// use piped_model::fixed::optimum;
/// use piped_model::reference::{PACKET_BYTES, network_disk_network};
/// let a = optimum(&network_disk_network(), PACKET_BYTES as f64, (1, PACKET_BYTES), None);
/// assert!((a.predicted_seconds * 1e6 - 39557.8).abs() < 0.1);
/// ```
#[must_use]
pub fn network_disk_network() -> Path {
    joined(&[&network(), &[disk()], &network()])
}

fn joined(parts: &[&[Stage]]) -> Path {
    const { assert!(STAGES_MAX >= 9, "section 5.5's longer path has nine stages") };
    Path::new(&parts.concat()).expect("constant costs, at most nine stages")
}
