//! `pipectl limits`: limits and their use, and changes while the daemon runs.

mod advise;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use piped_config::Limits;
use piped_config::admin::limits::{
    LIMITS, LimitGiven, LimitRow, LimitValue, LimitsChange, LimitsChanged, LimitsReport, PartyRow,
    Use, UserRow,
};

use crate::admin::Admin;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

/// Arguments of `pipectl limits`.
#[derive(Debug, Clone, Args)]
pub(crate) struct LimitsArgs {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Clone, Subcommand)]
enum Action {
    /// Show the limits in force, and how much of them is used (the default)
    Show,
    /// Change limits of the running daemon: all of those named, or none
    Set {
        /// Settings as in global.staging=128MiB or client.requests=64; `pipectl limits` shows the
        /// names
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = setting)]
        settings: Vec<(String, String)>,
        /// Keep them for the next start too, in a drop-in of the configuration
        #[arg(long)]
        persist: bool,
    },
    /// Show how large the unexpected-message buffer should be, from the messages seen, and why
    Advise(advise::AdviseArgs),
}

/// Checks name and amount before the daemon is asked.
fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or("write KEY=VALUE, as in global.staging=128MiB")?;
    let (key, value) = (key.trim(), value.trim());
    // The prefix `limits.` is optional.
    let key = key.strip_prefix("limits.").unwrap_or(key);
    Limits::default().set(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(crate) fn run(
    admin: &Admin,
    output: &Output,
    args: &LimitsArgs,
    json: bool,
) -> Result<(), Failure> {
    match &args.action {
        Some(Action::Set { settings, persist }) => set(admin, output, settings, *persist, json),
        Some(Action::Advise(args)) => advise::run(admin, output, args, json),
        _ => show(admin, output, json),
    }
}

fn set(
    admin: &Admin,
    output: &Output,
    settings: &[(String, String)],
    persist: bool,
    json: bool,
) -> Result<(), Failure> {
    let mut set = BTreeMap::new();
    for (key, value) in settings {
        if set.insert(key.clone(), LimitValue::Text(value.clone())).is_some() {
            return Err(Failure::usage(format!("{key} is named twice: name it once")));
        }
    }
    let body = LimitsChange { set, persist };
    if json {
        return output::json(admin.put_raw(LIMITS, body)?);
    }
    let changed: LimitsChanged = admin.put_and_read(LIMITS, body)?;
    for (key, _) in settings {
        let amount = changed.limits.get(key).copied().unwrap_or_default();
        let (asked, is_bytes) = (allowed(key, amount, is_bytes(key)), is_bytes(key));
        match changed.given.get(key) {
            Some(given) => output.prose(&less(key, &asked, given, is_bytes), 2)?,
            None => output.line(format_args!("{key} is {asked}"))?,
        }
    }
    match changed.persisted {
        Some(file) => output.prose(
            &format!(
                "Written to {}: it holds after a restart, unless a later drop-in, PIPED_* or --set \
                 says otherwise.",
                file.display()
            ),
            0,
        ),
        None => output.prose(
            "This holds until the daemon ends or its configuration is loaded again; --persist \
             keeps it.",
            0,
        ),
    }
}

/// Text as in `global.staging: 7 MiB asked; 4 MiB given: in whole 4MiB a shard`.
fn less(key: &str, asked: &str, given: &LimitGiven, is_bytes: bool) -> String {
    let amount = allowed(key, given.amount, is_bytes);
    format!("{key}: {asked} asked; {amount} given: {}", given.because)
}

fn is_bytes(key: &str) -> bool {
    let entries = Limits::default().entries();
    entries.iter().any(|(name, amount)| *name == key && amount.is_bytes())
}

/// Formats a limit; a rate of 0 is no bound.
fn allowed(key: &str, number: u64, is_bytes: bool) -> String {
    match number {
        0 if key.ends_with(".rate") => "unlimited".to_owned(),
        _ if key.ends_with(".rate") => units::rate(number as f64),
        _ => amount_of(number, is_bytes),
    }
}

fn amount_of(number: u64, is_bytes: bool) -> String {
    if is_bytes { units::bytes(number) } else { units::count(number) }
}

fn show(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(LIMITS)?);
    }
    let report: LimitsReport = admin.get(LIMITS)?;
    let row = |row: &LimitRow| {
        vec![
            row.name.clone(),
            allowed(&row.name, row.given.as_ref().map_or(row.limit, |it| it.amount), row.is_bytes),
            amount_of(row.used, row.is_bytes),
            amount_of(row.high, row.is_bytes),
        ]
    };
    let columns = [Text("LIMIT"), Number("ALLOWED"), Number("USED"), Number("MOST")];
    output.table(&columns, report.limits.iter().map(row).collect())?;
    for row in &report.limits {
        if let Some(given) = &row.given {
            let asked = allowed(&row.name, row.limit, row.is_bytes);
            output.prose(&less(&row.name, &asked, given, row.is_bytes), 2)?;
        }
    }
    let staging = &report.staging;
    let draining = match staging.draining_bytes {
        0 => String::new(),
        bytes => format!(", {} of it given back after its last use", units::bytes(bytes)),
    };
    output.prose(
        &format!(
            "staging: the shards have {}{draining}; {} is mapped; no less than {} can be set now",
            units::bytes(staging.owned_bytes),
            units::bytes(staging.mapped_bytes),
            units::bytes(staging.least_bytes)
        ),
        2,
    )?;
    output.line(format_args!(
        "{} requests wait for a limit; {} had to since start",
        units::count(report.waiting),
        units::count(report.waited)
    ))?;
    if report.stalled > 0 {
        output.prose(
            &format!(
                "{} messages found no unexpected-message buffer and waited with their senders, \
                 since start",
                units::count(report.stalled)
            ),
            2,
        )?;
    }
    users(output, &report.users)?;
    parties(output, "Clients", Text("SESSION"), &report.clients)?;
    parties(output, "Peers", Text("PEER"), &report.peers)
}

fn users(output: &Output, rows: &[UserRow]) -> Result<(), Failure> {
    if rows.is_empty() {
        return Ok(());
    }
    let row = |row: &UserRow| {
        vec![
            row.user
                .as_ref()
                .map_or_else(|| row.uid.to_string(), |name| format!("{name} ({})", row.uid)),
            row.sessions.to_string(),
            units::bytes(row.arena_bytes),
            units::bytes(row.lent_bytes),
            row.handles.to_string(),
            row.regions.to_string(),
            row.channels.to_string(),
        ]
    };
    let columns = [
        Text("USER"),
        Number("SESSIONS"),
        Number("SHARED MEMORY"),
        Number("LENT"),
        Number("HANDLES"),
        Number("REGIONS"),
        Number("CHANNELS"),
    ];
    output.heading("Users")?;
    output.table(&columns, rows.iter().map(row).collect())
}

fn parties(
    output: &Output,
    heading: &str,
    name: crate::table::Column,
    rows: &[PartyRow],
) -> Result<(), Failure> {
    if rows.is_empty() {
        return Ok(());
    }
    let bytes = |it: Use| format!("{}/{}", units::bytes(it.used), units::bytes(it.high));
    let row = |row: &PartyRow| {
        vec![
            row.user.map_or_else(|| row.name.clone(), |user| format!("{} (user {user})", row.name)),
            bytes(row.staging),
            bytes(row.in_flight),
            format!("{}/{}", row.requests.used, row.requests.high),
            row.waiting.to_string(),
            row.handles.to_string(),
        ]
    };
    let columns = [
        name,
        Number("STAGING/MOST"),
        Number("IN FLIGHT/MOST"),
        Number("REQUESTS/MOST"),
        Number("WAITING"),
        Number("HANDLES"),
    ];
    output.heading(heading)?;
    output.table(&columns, rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_before_the_daemon_is_asked() {
        let good = setting("limits.global.staging = 128MiB").expect("a limit");
        assert_eq!(good, ("global.staging".to_owned(), "128MiB".to_owned()));
        for (text, advice) in [
            ("global.staging", "KEY=VALUE"),
            ("global.stagign=1MiB", "did you mean `global.staging`?"),
            ("client.requests=1MiB", "not a number"),
            ("peer.staging=much", "64MiB"),
        ] {
            let error = setting(text).expect_err(text);
            assert!(error.contains(advice), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_told_in_units_and_numbers_plainly() {
        assert_eq!((is_bytes("peer.in_flight"), is_bytes("user.sessions")), (true, false));
        assert_eq!(amount_of(64 << 20, true), units::bytes(64 << 20));
        assert_eq!(amount_of(64, false), "64");
    }
}
