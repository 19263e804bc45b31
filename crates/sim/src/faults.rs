//! Probabilities of faults in the simulated kernel.

use piped_core::units::Nanos;

use super::random::Random;

/// Probabilities of the simulated kernel's faults. Explicit calls of
/// [`SimKernel`](super::SimKernel) add the rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// Per run of bytes that enters a link: the connection is reset and bytes on the way are lost.
    pub reset: f64,
    /// The longest time until an end notices that its connection was reset.
    pub reset_notice_max: Nanos,
    /// Per operation or run of bytes: it arrives later by up to `delay_max`.
    pub delay: f64,
    /// The longest of those delays.
    pub delay_max: Nanos,
    /// Per disk read or write: it fails with EIO.
    pub disk_error: f64,
    /// Per flush of a file: it fails with EIO.
    pub sync_error: f64,
    /// Per disk read or write: fewer bytes than asked.
    pub disk_short: f64,
    /// Per run of bytes that enters a link: one bit is flipped.
    pub corrupt: f64,
    /// Per send: the socket takes fewer bytes than it has room for.
    pub send_short: f64,
    /// Per receive that does not ask for the whole: fewer bytes than have arrived.
    pub receive_short: f64,
    /// Per push: the driver is full, whether or not anything is in flight.
    pub full: f64,
    /// Per cancel of a disk operation that waits for the device: it works.
    pub cancel_works: f64,
    /// Per run of bytes that enters a link: other bytes arrive in its place.
    pub garbage: f64,
    /// Per run of bytes that enters a link: nothing of this direction arrives any more. Both ends
    /// learn of it when their kernels give up.
    pub half_open: f64,
}

impl Faults {
    /// Nothing goes wrong; a waiting disk operation can be revoked.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            reset: 0.0,
            reset_notice_max: Nanos::ZERO,
            delay: 0.0,
            delay_max: Nanos::ZERO,
            disk_error: 0.0,
            sync_error: 0.0,
            disk_short: 0.0,
            corrupt: 0.0,
            send_short: 0.0,
            receive_short: 0.0,
            full: 0.0,
            cancel_works: 1.0,
            garbage: 0.0,
            half_open: 0.0,
        }
    }

    /// A mix of faults: each kind is on in about half of the worlds, at a random rate. Worlds with
    /// few kinds get deep into each; worlds with many find what only meets by chance.
    #[must_use]
    pub fn mixed(random: &mut Random) -> Self {
        let mut rate = |max: f64| {
            if random.chance(0.5) { max * (1 + random.below(100)) as f64 / 100.0 } else { 0.0 }
        };
        Self {
            reset: rate(0.01),
            reset_notice_max: Nanos(rate(50e6) as u64),
            delay: rate(0.05),
            delay_max: Nanos(1 + rate(20e6) as u64),
            disk_error: rate(0.01),
            sync_error: rate(0.05),
            disk_short: rate(0.1),
            corrupt: rate(0.03),
            send_short: rate(0.3),
            receive_short: rate(0.3),
            full: rate(0.1),
            cancel_works: rate(1.0),
            garbage: rate(0.01),
            half_open: rate(0.003),
        }
    }
}
