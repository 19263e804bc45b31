//! Translates the configuration into the terms of the crates below: one function a setting, no
//! logic.

use piped_config::Config;
use piped_core::limits::NOTICES_MAX;
use piped_core::units::Nanos;
use piped_engine::command::{ClientLimits, Limits, PeerLimits};
use piped_engine::shard::ShardConfig;

use crate::io::{FeatureMask, UringConfig};
use crate::limits::{FILES_MAX, OPS_MAX, SEGMENTS_MAX, TRANSFERS_MAX};

/// Doorbells of a shard beside those of its queues: the mailbox's.
const OWN_WATCHES: u32 = 1;

/// The most doorbells of the driver; a configuration that allows more queues is served until they
/// are used up.
const WATCHES_MAX: u32 = 16 * 1024;

/// Idle milliseconds after which the kernel's polling thread sleeps.
const SQPOLL_IDLE_MS: u32 = 10;

/// The deadline of requests that name none.
#[must_use]
pub(crate) fn deadline(config: &Config) -> Nanos {
    Nanos(config.client.deadline_default.nanos())
}

/// Configuration of a shard's engine.
#[must_use]
pub(crate) fn engine(
    config: &Config,
    node_name: String,
    incarnation: u64,
    seed: u64,
) -> ShardConfig {
    ShardConfig {
        node_name,
        incarnation,
        seed,
        transfers_max: TRANSFERS_MAX,
        ops_max: OPS_MAX,
        deadline_default: deadline(config),
        planner: config.planner.mode,
        calibration: config.planner.calibration,
        zero_copy: config.planner.zero_copy,
        eager: config.planner.eager,
        serial_first: false,
    }
}

/// Rounds bytes up to whole units of staging.
#[must_use]
pub(crate) fn whole_units(bytes: u64) -> u64 {
    bytes.next_multiple_of(piped_config::Limits::STAGING_UNIT.0)
}

/// Limits of a shard, with an equal share of the global ones.
#[must_use]
pub(crate) fn limits(limits: &piped_config::Limits, shards: u32) -> Limits {
    // Only the control thread knows a user's sessions.
    let piped_config::Limits { global, user: _, client, peer } = limits;
    Limits {
        requests: global.requests / shards,
        in_flight: global.in_flight.0 / u64::from(shards),
        early_arrival: global.early_arrival.0 / u64::from(shards),
        client: ClientLimits {
            staging: client.staging.0,
            in_flight: client.in_flight.0,
            requests: client.requests,
            early_arrival: client.early_arrival.0,
            rate: client.rate.0,
        },
        peer: PeerLimits {
            staging: peer.staging.0,
            in_flight: peer.in_flight.0,
            requests: peer.requests,
            handles: peer.handles,
            rate: peer.rate.0,
        },
    }
}

/// Configuration of a shard's driver.
#[must_use]
pub(crate) fn driver(config: &Config) -> UringConfig {
    let queues = config.limits.global.sessions.saturating_mul(config.client.queues_max);
    UringConfig {
        // A send lends its memory longer than the engine has its operation.
        ops_max: OPS_MAX + NOTICES_MAX,
        sq_entries: config.io.entries,
        files_max: FILES_MAX,
        segments_max: SEGMENTS_MAX,
        watches_max: queues.min(WATCHES_MAX - OWN_WATCHES) + OWN_WATCHES,
        features: FeatureMask::without(&config.io.disable_features),
        sqpoll_idle_ms: config.io.sqpoll.then_some(SQPOLL_IDLE_MS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_configuration_fits_the_limits() {
        let config = Config::default();
        let driver = driver(&config);
        assert_eq!(driver.watches_max, 64 * 16 + 1);
        assert!(driver.sqpoll_idle_ms.is_none());
        let engine = engine(&config, "alpha".to_owned(), 1, 2);
        assert_eq!(engine.deadline_default, Nanos(30_000_000_000));
        assert_eq!(
            engine.ops_max + NOTICES_MAX,
            driver.ops_max,
            "one place at the driver for each of the engine's"
        );
    }
}
