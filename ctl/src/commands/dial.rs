//! `pipectl dial`: delay injection, stages that are made slower on purpose.

use clap::{Args, Subcommand};
use piped_config::admin::dials::{DIALS, DIALS_CLEAR, DialChange, DialClear, Dials};
use piped_core::spread::LatencySpread;
use piped_report::dial::{DialCost, DialPlace, DialReport};

use crate::admin::Admin;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::quantity::{self, KbArgs, PerByte};
use crate::table::Column::{Number, Text};
use crate::units;

/// Arguments of `pipectl dial`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DialArgs {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Clone, Subcommand)]
enum Action {
    /// Show the dials that are set (the default)
    Show,
    /// Make a stage slower, until the dial is cleared or the daemon ends
    Set(SetArgs),
    /// Clear the dial of a stage, or all of them; fragments held by them go on at once
    Clear {
        /// The stage, as in `dial set`
        #[arg(value_parser = stage)]
        stage: Option<String>,
    },
}

/// Arguments of `dial set`; missing costs are zero.
#[derive(Debug, Clone, Args)]
struct SetArgs {
    /// disk:MAJOR:MINOR (or with :read or :write behind it), send:PEER, net:PEER, receive:PEER,
    /// check or copy
    #[arg(value_parser = stage)]
    stage: String,

    /// Latency that overlaps with other fragments, as in 100us (1s at most)
    #[arg(long = "L", value_name = "TIME", value_parser = quantity::time, default_value = "0")]
    latency: f64,

    /// Overhead of each fragment, which the next one waits for, as in 50us (1s at most)
    #[arg(long = "g", value_name = "TIME", value_parser = quantity::time, default_value = "0")]
    overhead: f64,

    /// Time of each byte, which the next fragment waits for, as in 100us/KB, 10ns/B or 100MB/s
    #[arg(long = "G", value_name = "TIME/SIZE", value_parser = quantity::per_byte,
          default_value = "0")]
    per_byte: PerByte,

    /// Time of the shard's thread for each fragment, as in 5us (10ms at most)
    #[arg(long = "o", value_name = "TIME", value_parser = quantity::time, default_value = "0")]
    host: f64,

    /// How much single latencies differ from L: their standard deviation as a part of it, as in 1.0
    /// (lognormal; 10 at most)
    #[arg(long, value_name = "PART", default_value = "0")]
    cv: f64,

    /// The part of the fragments that stalls, as in 0.005
    #[arg(long, value_name = "PART", default_value = "0", requires = "times")]
    stalls: f64,

    /// The latency of a stall as a multiple of L, as in 50 (at most 1s in all)
    #[arg(long, value_name = "TIMES", default_value = "0", requires = "stalls")]
    times: f64,

    #[command(flatten)]
    kb: KbArgs,
}

fn stage(text: &str) -> Result<String, String> {
    DialPlace::parse(text).map(|_| text.to_owned()).map_err(|fault| fault.to_string())
}

impl SetArgs {
    fn change(&self) -> Result<DialChange, Failure> {
        let cost = DialCost {
            latency_ns: whole(self.latency, 1e-9),
            overhead_ns: whole(self.overhead, 1e-9),
            per_byte_ps: whole(self.per_byte.seconds(self.kb.kb), 1e-12),
            host_ns: whole(self.host, 1e-9),
            spread: LatencySpread { cv: self.cv, stalls: self.stalls, times: self.times },
        };
        let cost = cost.check().map_err(|fault| Failure::usage(fault.to_string()))?;
        let DialCost { latency_ns, overhead_ns, per_byte_ps, host_ns, spread } = cost;
        let stage = self.stage.clone();
        Ok(DialChange { stage, latency_ns, overhead_ns, per_byte_ps, host_ns, spread })
    }
}

/// Whole number of units. A float that is too large saturates, and is refused as a number as well.
fn whole(seconds: f64, unit: f64) -> u64 {
    (seconds / unit).round() as u64
}

pub(crate) fn run(
    admin: &Admin,
    output: &Output,
    args: &DialArgs,
    json: bool,
) -> Result<(), Failure> {
    match &args.action {
        Some(Action::Set(set)) => change(admin, output, DIALS, set.change()?, json),
        Some(Action::Clear { stage }) => {
            change(admin, output, DIALS_CLEAR, DialClear { stage: stage.clone() }, json)
        }
        Some(Action::Show) | None if json => output::json(admin.get_raw(DIALS)?),
        Some(Action::Show) | None => show(output, &admin.get(DIALS)?),
    }
}

fn change(
    admin: &Admin,
    output: &Output,
    path: &str,
    body: impl serde::Serialize,
    json: bool,
) -> Result<(), Failure> {
    if json {
        return output::json(admin.put_raw(path, body)?);
    }
    show(output, &admin.put_and_read(path, body)?)
}

fn show(output: &Output, dials: &Dials<DialReport>) -> Result<(), Failure> {
    if dials.dials.is_empty() {
        let how = match dials.allowed {
            true => "`pipectl dial set STAGE` makes one slower.",
            false => "They are off: see planner.allow_dials.",
        };
        return output.prose(&format!("No stage is dialled. {how}"), 0);
    }
    let columns = [
        Text("DIAL"),
        Number("L"),
        Text("SPREAD"),
        Number("g"),
        Number("1/G"),
        Number("o"),
        Number("HELD"),
        Number("RELEASED"),
        Number("LATE"),
    ];
    output.table(&columns, dials.dials.iter().map(row).collect())?;
    output.prose(
        "L, g, 1/G, o: as set; `pipectl stages` shows what is measured. SPREAD: how much latencies \
         differ from L. LATE: half and 99 of 100 releases were late by no more than this.",
        0,
    )?;
    let unknown: Vec<&str> =
        dials.dials.iter().filter(|dial| dial.unknown).map(|dial| &*dial.stage).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    output.prose(&unknown_in_words(&unknown), 0)
}

fn unknown_in_words(stages: &[&str]) -> String {
    format!(
        "Nothing passes {} yet: no such peer is configured or has been here, or nothing has used \
         that device. Is it spelt as in `pipectl stages` and `pipectl peers`?",
        stages.join(", ")
    )
}

/// Deviation and stalls, in words as of `pipectl stages`.
fn spread_in_words(spread: LatencySpread) -> String {
    let LatencySpread { cv, stalls, times } = spread;
    let differ = (cv > 0.0).then(|| format!("{:.0} %", cv * 100.0));
    let stall = (stalls > 0.0).then(|| format!("{:.2} % x {times}", stalls * 100.0));
    match (differ, stall) {
        (None, None) => "-".to_owned(),
        (differ, stall) => differ.into_iter().chain(stall).collect::<Vec<_>>().join(", "),
    }
}

fn row(dial: &DialReport) -> Vec<String> {
    let time = |ns: u64| units::seconds(ns as f64 * 1e-9);
    let [half, most] = dial.late_seconds.map(units::seconds);
    vec![
        dial.stage.clone(),
        time(dial.cost.latency_ns),
        spread_in_words(dial.cost.spread),
        time(dial.cost.overhead_ns),
        units::rate(1e12 / dial.cost.per_byte_ps as f64),
        time(dial.cost.host_ns),
        dial.held.to_string(),
        units::short(dial.released),
        format!("{half}/{most}"),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Command};

    fn parsed(words: &str) -> Result<DialChange, String> {
        let words = ["pipectl", "dial", "set"].into_iter().chain(words.split(' '));
        let args = Args::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Dial(DialArgs { action: Some(Action::Set(set)) }) = args.command else {
            panic!("{args:?}")
        };
        set.change().map_err(|failure| failure.to_string())
    }

    #[test]
    fn parameters_are_read_in_their_units() {
        let change = parsed("send:beta --L 60us --g 4ms --G 100us/KB --o 1500ns").expect("a dial");
        let expected = DialChange {
            stage: "send:beta".to_owned(),
            latency_ns: 60_000,
            overhead_ns: 4_000_000,
            per_byte_ps: 100_000,
            host_ns: 1_500,
            spread: LatencySpread::NONE,
        };
        assert_eq!(change, expected);
        let spread =
            parsed("copy --L 70us --cv 1 --stalls 0.005 --times 50").expect("a dial").spread;
        assert_eq!(spread, LatencySpread { cv: 1.0, stalls: 0.005, times: 50.0 });
        assert_eq!(spread_in_words(spread), "100 %, 0.50 % x 50");
        assert_eq!(spread_in_words(LatencySpread::NONE), "-");
        // A daemon that knows of no spread understands the rest.
        let plain = serde_json::to_string(&expected).expect("JSON");
        assert!(!plain.contains("spread"), "{plain}");
        assert_eq!(parsed("copy --G 10ns/B").expect("a dial").per_byte_ps, 10_000);
        assert_eq!(parsed("copy --G 125MB/s").expect("a dial").per_byte_ps, 8_000);
    }

    #[test]
    fn what_no_dial_has_is_refused_before_the_daemon_is_asked() {
        for (words, hint) in [
            ("disk --g 1ms", "disk:MAJOR:MINOR"),
            ("copy --g 2s", "1 s"),
            ("copy --G 1s/B", "1 us/B"),
            ("copy --o 1s", "10 ms"),
            ("copy --g x", "36us"),
            ("copy", "give one of"),
            ("copy --L 0 --G 0", "give one of"),
            ("copy --g 1us --cv 1", "--L 70us"),
            ("copy --cv 1", "--L 70us"),
            ("copy --L 70us --cv 11", "cv up to 10"),
            ("copy --L 70us --cv nan", "cv up to 10"),
            ("copy --L 70us --cv x", "invalid float"),
            ("copy --L 70us --cv=-1", "cv up to 10"),
            ("copy --L 70us --stalls 1 --times 50", "stalls as a part"),
            ("copy --L 70us --stalls 0.1", "--times"),
            ("copy --L 70us --times 9", "--stalls"),
            ("copy --L 70us --stalls 0.1 --times 0.5", "from 1 to a million"),
            ("copy --L 70us --stalls 0.1 --times 1e5", "a stall of a dial is at most 1 s"),
        ] {
            let error = parsed(words).expect_err(words);
            assert!(error.contains(hint), "{error}");
        }
    }
}
