//! How long a queue looks for completions before it sleeps.

use std::num::NonZero;
use std::time::Duration;

use piped_core::modes::Profile;
use piped_ring::SpinBudgets;

use crate::clock;

/// How a queue waits: how long it looks for completions before it sleeps.
///
/// More spinning threads than CPUs are worse than none, so every policy gives up spinning when it
/// notices that the thread loses its CPU while it spins. On the CPU of the daemon's shard
/// ([`Client::shard_cpu`]) no policy spins: there a spin only keeps the shard from what is waited
/// for.
///
/// ```
/// use std::time::Duration;
/// use piped_client::WaitPolicy;
/// let never = WaitPolicy::Custom { spin: Duration::ZERO };
/// assert_ne!(never, WaitPolicy::Latency);
/// ```
///
/// [`Client::shard_cpu`]: crate::Client::shard_cpu
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Spin briefly where a CPU is to spare.
    Balanced,
    /// Spin long before sleeping.
    Latency,
    /// Sleep at once, and never spin.
    Throughput,
    /// Spin as long as that at most.
    Custom {
        /// The longest spin; zero sleeps at once.
        spin: Duration,
    },
}

impl WaitPolicy {
    pub(crate) fn spin_ns(self) -> u64 {
        let profile = match self {
            Self::Balanced => Profile::Balanced,
            Self::Latency => Profile::Latency,
            Self::Throughput => Profile::Throughput,
            Self::Custom { spin } => return clock::nanos(spin),
        };
        // One CPU is the shard's.
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        SpinBudgets::of(profile, cpus - 1).client_ns
    }
}
