//! `[limits]`: what may be used at once, by everybody together, by one client, by one peer.
//!
//! Every kind has one meaning in each scope, or does not exist there:
//!
//! | kind | `global` | `client` | `peer` |
//! | --- | --- | --- | --- |
//! | `staging` | the staging memory of all shards | – | – |
//! | `sessions` | sessions | – | – |

use serde::{Deserialize, Serialize};

use crate::quantity::Bytes;
use crate::validate::Faults;

/// `[limits]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Everybody together.
    pub global: GlobalLimits,
}

/// `[limits.global]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GlobalLimits {
    /// Staging buffers of all shards.
    pub staging: Bytes,
    /// Sessions at once.
    pub sessions: u32,
}

impl Default for GlobalLimits {
    fn default() -> Self {
        Self { staging: Bytes::mib(64), sessions: 64 }
    }
}

/// More staging than that has more segments than a shard has places.
const STAGING_MAX: Bytes = Bytes::gib(16);
const SESSIONS_MAX: u32 = 4096;

impl Limits {
    /// What a shard's staging grows and shrinks by, and the least it works with: a fragment of the longest
    /// kind each way, and what a few lanes need.
    pub const STAGING_UNIT: Bytes = Bytes::mib(4);

    /// Bounds and relations.
    pub(crate) fn check(&self, shards: u32, faults: &mut Faults) {
        let global = &self.global;
        let least = Bytes(Self::STAGING_UNIT.0 * u64::from(shards));
        let fits = (least..=STAGING_MAX).contains(&global.staging);
        faults.check(fits, "limits.global.staging", || {
            format!(
                "is {}: choose from {least} ({} for each shard) to {STAGING_MAX}",
                global.staging,
                Self::STAGING_UNIT
            )
        });
        faults.within(global.sessions, 1, SESSIONS_MAX, "limits.global.sessions");
    }
}
