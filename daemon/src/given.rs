//! Limits that are in force, where that is less than was asked for: a limit is given out in whole
//! units, in equal shares of shards, or is a part of another one. The operator is told, because an
//! acknowledged number that is not in force misleads.

use std::collections::BTreeMap;

use piped_config::admin::limits::LimitGiven;
use piped_config::{Bytes, Limits};
use piped_core::limits::{EARLY_GRANULE_BYTES, EARLY_STAGING_DIVISOR};

use crate::settings;

/// Limits in force on this many shards with this many bytes of staging each; limits that are given
/// as asked for are left out.
pub(crate) fn of(limits: &Limits, shards: u32, staging: u64) -> BTreeMap<String, LimitGiven> {
    let all = u64::from(shards);
    let engine = settings::limits(limits, shards);
    let mut given = BTreeMap::new();
    let mut note = |key: &str, asked: u64, amount: u64, because: String| {
        if amount != asked {
            given.insert(key.to_owned(), LimitGiven { amount, because });
        }
    };
    let Limits { global, user, client, peer } = limits;

    let unit = Limits::STAGING_UNIT;
    let because = match limits.staging_of_shard(shards) > staging {
        true => "the machine gave no more memory; the journal says why".to_owned(),
        false => format!("in whole {unit} a shard"),
    };
    note("global.staging", global.staging.0, staging * all, because);
    let shares = || format!("{shards} shards have equal shares");
    note("global.in_flight", global.in_flight.0, engine.in_flight * all, shares());
    note("global.requests", global.requests.into(), u64::from(engine.requests) * all, shares());
    let early = engine.early_arrival.min(staging / EARLY_STAGING_DIVISOR);
    let because = if early < engine.early_arrival {
        "a quarter of staging at most".to_owned()
    } else {
        shares()
    };
    note("global.early_arrival", global.early_arrival.0, early * all, because);

    let user_sessions = user.sessions.min(global.sessions);
    let whole = |of: &str| format!("no more than {of}");
    note(
        "user.sessions",
        user.sessions.into(),
        user_sessions.into(),
        whole("limits.global.sessions"),
    );
    let most = user.arena.bytes().min(global.arena.bytes());
    note("user.arena", user.arena.bytes(), most, whole("limits.global.arena"));
    let most = user.lent.bytes().min(global.lent.bytes());
    note("user.lent", user.lent.bytes(), most, whole("limits.global.lent"));
    let scope = if user.lent.bytes() <= global.lent.bytes() { "user" } else { "global" };
    let because = whole(&format!("limits.{scope}.lent"));
    note("client.lent", client.lent.bytes(), client.lent.bytes().min(most), because);
    for (kind, [of_client, of_user, of_all]) in [
        ("handles", [client.handles, user.handles, global.handles]),
        ("regions", [client.regions, user.regions, global.regions]),
        ("channels", [client.channels, user.channels, global.channels]),
    ] {
        let most = of_user.min(of_all);
        let because = whole(&format!("limits.global.{kind}"));
        note(&format!("user.{kind}"), of_user.into(), most.into(), because);
        let scope = if of_user <= of_all { "user" } else { "global" };
        let because = whole(&format!("limits.{scope}.{kind}"));
        note(&format!("client.{kind}"), of_client.into(), of_client.min(most).into(), because);
    }

    let of_one = |kind: &str| match shards {
        1 => format!("no more than limits.global.{kind}"),
        _ => format!(
            "no more than a shard's share of limits.global.{kind}, for a session is on one shard"
        ),
    };
    let in_flight = client.in_flight.0.min(engine.in_flight);
    note("client.in_flight", client.in_flight.0, in_flight, of_one("in_flight"));
    let requests = client.requests.min(engine.requests);
    note("client.requests", client.requests.into(), requests.into(), of_one("requests"));
    let half = staging / 2;
    let because = format!("copies have half of a shard's staging, which is {}", Bytes(staging));
    note("client.staging", client.staging.0, client.staging.0.min(half), because);
    let steps = client.early_arrival.0 / EARLY_GRANULE_BYTES * EARLY_GRANULE_BYTES;
    let because = match early < steps {
        true => format!("all messages of a shard have {}", Bytes(early)),
        false => format!("in steps of {}", Bytes(EARLY_GRANULE_BYTES)),
    };
    note("client.early_arrival", client.early_arrival.0, steps.min(early), because);
    let because = format!("a shard has {} of staging", Bytes(staging));
    note("peer.staging", peer.staging.0, peer.staging.0.min(staging), because);
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of_set(shards: u32, set: &[(&str, &str)]) -> BTreeMap<String, LimitGiven> {
        let mut limits = Limits::default();
        set.iter().for_each(|(key, value)| limits.set(key, value).expect("an amount"));
        limits.validate(shards).expect("allowed");
        of(&limits, shards, limits.staging_of_shard(shards))
    }

    #[test]
    fn the_defaults_are_given_as_they_are() {
        assert_eq!(of_set(1, &[]), BTreeMap::new());
    }

    #[test]
    fn what_is_rounded_or_bounded_by_another_limit_is_said_with_the_reason() {
        for (shards, set, key, amount, because) in [
            (1, [("global.staging", "7MiB")], "global.staging", 4 * MIB, "whole 4MiB a shard"),
            (2, [("global.staging", "63MiB")], "global.staging", 56 * MIB, "whole 4MiB a shard"),
            (1, [("global.staging", "8MiB")], "client.staging", 4 * MIB, "half of"),
            (1, [("global.staging", "8MiB")], "peer.staging", 8 * MIB, "8MiB of staging"),
            (1, [("global.staging", "8MiB")], "global.early_arrival", 2 * MIB, "a quarter"),
            (1, [("global.staging", "8MiB")], "client.early_arrival", 2 * MIB, "have 2MiB"),
            (1, [("client.early_arrival", "100KiB")], "client.early_arrival", 64 << 10, "64KiB"),
            (3, [("global.requests", "1000")], "global.requests", 999, "equal shares"),
            (3, [("global.requests", "1000")], "client.requests", 333, "a shard's share"),
            (1, [("global.requests", "100")], "client.requests", 100, "limits.global.requests"),
            (1, [("global.in_flight", "4MiB")], "client.in_flight", 4 * MIB, "global.in_flight"),
            (1, [("global.sessions", "5")], "user.sessions", 5, "limits.global.sessions"),
            (1, [("global.handles", "9")], "user.handles", 9, "limits.global.handles"),
            (1, [("global.handles", "9")], "client.handles", 9, "limits.global.handles"),
            (1, [("user.handles", "9")], "client.handles", 9, "limits.user.handles"),
            (1, [("global.regions", "8")], "user.regions", 8, "limits.global.regions"),
            (1, [("global.regions", "8")], "client.regions", 8, "limits.global.regions"),
            (1, [("user.regions", "7")], "client.regions", 7, "limits.user.regions"),
            (1, [("global.channels", "8")], "user.channels", 8, "limits.global.channels"),
            (1, [("user.channels", "7")], "client.channels", 7, "limits.user.channels"),
            (1, [("global.arena", "1MiB")], "user.arena", MIB, "limits.global.arena"),
            (1, [("global.lent", "1MiB")], "user.lent", MIB, "limits.global.lent"),
            (1, [("global.lent", "1MiB")], "client.lent", MIB, "limits.global.lent"),
            (1, [("user.lent", "2MiB")], "client.lent", 2 * MIB, "limits.user.lent"),
        ] {
            let given = of_set(shards, &set);
            let found = given.get(key).unwrap_or_else(|| panic!("{set:?}: no {key} in {given:?}"));
            assert_eq!(found.amount, amount, "{set:?} {key}");
            assert!(found.because.contains(because), "{set:?} {key}: {}", found.because);
        }
    }

    #[test]
    fn memory_that_the_machine_did_not_give_is_not_claimed() {
        let limits = Limits::default();
        let given = of(&limits, 1, 32 * MIB);
        assert_eq!(given["global.staging"].amount, 32 * MIB);
        assert!(given["global.staging"].because.contains("journal"), "{given:?}");
    }
}
