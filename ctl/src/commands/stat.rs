//! `pipectl stat [INTERVAL [COUNT]]`: the work done, interval by interval, as `zpool iostat` shows
//! it. With places it is about files: [`files::stat`].
//!
//! The daemon reports sums since its start; a line is the difference of two reports. The first line
//! is the mean since the start, which `-y` leaves out.

use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser, ValueParserFactory};
use clap::{Args as ClapArgs, ValueHint};
use piped_config::admin::watch::{STAT, Stat};
use serde::Serialize;

use crate::admin::Admin;
use crate::args::ClientDoor;
use crate::below::{Below, HOW};
use crate::clock;
use crate::commands::files;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};
use crate::units;

mod sums;

use self::sums::{Sums, difference, quantile};

/// Arguments of `pipectl stat`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
Reads are reads and gets, writes are writes and puts; a copy counts as one of
each. Bytes count as they land, requests as they end. Remote transfers have an
end at a peer. Latencies are those of reads and writes that ended well, without
copies, to a quarter; a dash means no request.")]
pub(crate) struct StatArgs {
    /// Leave out the first line, which is the mean since the daemon started
    #[arg(short = 'y', long = "no-since-start", requires = "operands")]
    no_since_start: bool,

    /// Seconds from line to line (without it there is one), and how many lines (without it until
    /// Ctrl-C); or files: PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node
    #[arg(value_name = "INTERVAL [COUNT] | PLACE", value_hint = ValueHint::Url)]
    operands: Vec<Operand>,

    #[command(flatten)]
    door: ClientDoor,
}

/// A word of the command line: places have a colon, and numbers have none.
#[derive(Debug, Clone)]
enum Operand {
    Number(String),
    Place(Below),
}

impl Operand {
    fn parse(text: &OsStr) -> Result<Self, String> {
        let Some(number) = text.to_str().filter(|it| !it.contains(':')) else {
            return Below::parse(text).map(Self::Place);
        };
        match number.parse() {
            Ok(value) if (f64::MIN_POSITIVE..=f64::MAX).contains(&value) => {
                Ok(Self::Number(number.to_owned()))
            }
            _ => Err(format!("write seconds and a number of lines; or places: {HOW}")),
        }
    }
}

impl ValueParserFactory for Operand {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text| Self::parse(&text)).into()
    }
}

/// What is asked for.
#[derive(Debug)]
enum Asked {
    Work { interval: Option<Duration>, count: Option<u64> },
    Files(Vec<Below>),
}

impl StatArgs {
    fn asked(&self) -> Result<Asked, Failure> {
        let (mut numbers, mut places) = (Vec::new(), Vec::new());
        for operand in &self.operands {
            match operand {
                Operand::Number(text) => numbers.push(text.as_str()),
                Operand::Place(place) => places.push(place.clone()),
            }
        }
        let usage = |why: &str| Failure::usage(format!("{why} (see `pipectl stat --help`)"));
        match (numbers.as_slice(), places.is_empty()) {
            ([], true) => Ok(Asked::Work { interval: None, count: None }),
            ([], false) if !self.no_since_start => Ok(Asked::Files(places)),
            ([interval], true) => Ok(Asked::Work { interval: every(interval)?, count: None }),
            ([interval, count], true) => {
                let count = count.parse().ok().filter(|&count| count > 0);
                let count = count.ok_or_else(|| usage("COUNT is a number of lines"))?;
                Ok(Asked::Work { interval: every(interval)?, count: Some(count) })
            }
            (_, true) => Err(usage("INTERVAL and COUNT are all the numbers there are")),
            (_, false) => Err(usage("name places, or numbers")),
        }
    }
}

fn every(text: &str) -> Result<Option<Duration>, Failure> {
    seconds(text).map(Some).map_err(Failure::usage)
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("choose seconds from 0.01 to 86400".to_owned()),
    }
}

pub(crate) fn run(
    args: &StatArgs,
    admin: impl Fn() -> Result<Admin, Failure>,
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    let (interval, count) = match args.asked()? {
        Asked::Files(places) => return files::stat::run(&places, &args.door, output, json),
        Asked::Work { interval, count } => (interval, count),
    };
    let admin = &admin()?;
    let mut printer = Printer::new(output, json);
    let mut left = count.unwrap_or(if interval.is_some() { u64::MAX } else { 1 });
    let mut before: Stat = admin.get(STAT)?;
    let mut due = clock::now();
    if !args.no_since_start {
        printer.print(&Line::new(None, &before))?;
        left -= 1;
    }
    let Some(interval) = interval else { return Ok(()) };
    while left > 0 {
        // Lines are due at fixed times, however long asking and printing take.
        due += interval;
        wait(admin, due)?;
        let now: Stat = admin.get(STAT)?;
        // A daemon that was started anew has smaller sums: its line is the one since its start.
        let since = Some(&before).filter(|before| before.uptime_seconds <= now.uptime_seconds);
        printer.print(&Line::new(since, &now))?;
        before = now;
        left -= 1;
    }
    Ok(())
}

fn wait(admin: &Admin, due: std::time::Instant) -> Result<(), Failure> {
    match admin.is_interrupted_until(due)? {
        true => Err(Failure::new(Exit::Interrupted, "interrupted")),
        false => Ok(()),
    }
}

/// Values of one line.
#[derive(Debug, Serialize)]
struct Line {
    /// Whether it is the mean since the daemon's start.
    since_start: bool,
    /// Length of the interval in seconds.
    seconds: f64,
    local: Side,
    remote: Side,
    /// Transfers of any kind that failed, in a second.
    failed_per_second: f64,
    /// Latency of reads and writes; none if there were none.
    latency_p50_seconds: Option<f64>,
    latency_p99_seconds: Option<f64>,
    staging_used_bytes: u64,
    staging_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Side {
    reads_per_second: f64,
    writes_per_second: f64,
    read_bytes_per_second: f64,
    written_bytes_per_second: f64,
}

impl Line {
    fn new(before: Option<&Stat>, now: &Stat) -> Self {
        let seconds = now.uptime_seconds - before.map_or(0.0, |before| before.uptime_seconds);
        let seconds = seconds.max(1e-9);
        let done = difference(&Sums::of(now), &before.map(Sums::of).unwrap_or_default());
        let per_second = |count: u64| count as f64 / seconds;
        let side = |of: sums::Side| Side {
            reads_per_second: per_second(of.reads),
            writes_per_second: per_second(of.writes),
            read_bytes_per_second: per_second(of.read_bytes),
            written_bytes_per_second: per_second(of.written_bytes),
        };
        Self {
            since_start: before.is_none(),
            seconds,
            local: side(done.local),
            remote: side(done.remote),
            failed_per_second: per_second(done.failed),
            latency_p50_seconds: quantile(&done.latency, 0.5),
            latency_p99_seconds: quantile(&done.latency, 0.99),
            staging_used_bytes: now.staging_used_bytes,
            staging_bytes: now.staging_bytes,
        }
    }
}

/// The layouts: all columns, and those that fit into 40 characters.
const WIDE: [&str; 2] = [
    "     local ops    local bytes/s     remote ops   remote bytes/s       latency",
    "    read  write    read   write    read  write    read   write     p50     p99  fail/s  \
     staging",
];
const WIDE_COLUMNS: u16 = 96;
const NARROW: [&str; 2] =
    ["  operations     bytes/s      latency", " read write   read  write    p50    p99"];

struct Printer<'a> {
    output: &'a Output,
    json: bool,
    wide: bool,
    /// Lines until the heading is due again; none if once is enough.
    screen: Option<u64>,
    printed: u64,
}

impl<'a> Printer<'a> {
    fn new(output: &'a Output, json: bool) -> Self {
        let rows = std::io::stdout().is_terminal().then(rows_of_terminal).flatten();
        let wide = output.width().is_none_or(|width| width >= WIDE_COLUMNS);
        // The heading takes two lines.
        let screen = rows.map(|rows| u64::from(rows).saturating_sub(3).max(1));
        Self { output, json, wide, screen, printed: 0 }
    }

    fn print(&mut self, line: &Line) -> Result<(), Failure> {
        if self.json {
            return output::json_line(line);
        }
        let due = self.screen.map_or(self.printed == 0, |rows| self.printed.is_multiple_of(rows));
        if due {
            let heading = if self.wide { WIDE } else { NARROW };
            heading.iter().try_for_each(|text| self.output.line(text))?;
        }
        self.printed += 1;
        self.output.line(if self.wide { wide(line) } else { narrow(line) })
    }
}

fn rows_of_terminal() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0).then_some(size.ws_row)
}

fn wide(line: &Line) -> String {
    let (here, there) = (&line.local, &line.remote);
    format!(
        "{:>8} {:>6} {:>7} {:>7} {:>7} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8}",
        units::frequency(here.reads_per_second),
        units::frequency(here.writes_per_second),
        units::compact(here.read_bytes_per_second),
        units::compact(here.written_bytes_per_second),
        units::frequency(there.reads_per_second),
        units::frequency(there.writes_per_second),
        units::compact(there.read_bytes_per_second),
        units::compact(there.written_bytes_per_second),
        time(line.latency_p50_seconds),
        time(line.latency_p99_seconds),
        units::frequency(line.failed_per_second),
        units::compact(line.staging_used_bytes as f64),
    )
}

fn narrow(line: &Line) -> String {
    let (here, there) = (&line.local, &line.remote);
    format!(
        "{:>5} {:>5} {:>6} {:>6} {:>6} {:>6}",
        units::frequency(here.reads_per_second + there.reads_per_second),
        units::frequency(here.writes_per_second + there.writes_per_second),
        units::compact(here.read_bytes_per_second + there.read_bytes_per_second),
        units::compact(here.written_bytes_per_second + there.written_bytes_per_second),
        time(line.latency_p50_seconds),
        time(line.latency_p99_seconds),
    )
}

fn time(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |it| units::seconds(it).replace(' ', ""))
}

#[cfg(test)]
mod tests {
    use piped_config::admin::watch::OperationStat;

    use super::*;

    fn stat(uptime_seconds: f64, count: u64) -> Stat {
        let operation = |operation: &str, route: &str| OperationStat {
            operation: operation.to_owned(),
            route: route.to_owned(),
            class: "latency".to_owned(),
            completed: count,
            failed: count / 10,
            bytes: count * 4096,
            latency: vec![(Some(1e-4), count - count / 100), (Some(5e-3), count / 100)],
        };
        Stat {
            uptime_seconds,
            staging_bytes: 64 << 20,
            staging_used_bytes: 3 << 20,
            operations: vec![operation("read", "local"), operation("put", "remote")],
        }
    }

    #[test]
    fn a_line_is_what_was_done_between_two_answers() {
        let line = Line::new(Some(&stat(10.0, 1000)), &stat(12.0, 21_000));
        assert!(!line.since_start && line.seconds == 2.0);
        assert_eq!(line.local.reads_per_second, 11_000.0, "and 1000 that failed");
        assert_eq!((line.local.writes_per_second, line.remote.reads_per_second), (0.0, 0.0));
        assert_eq!(line.remote.written_bytes_per_second, 10_000.0 * 4096.0);
        assert_eq!(line.failed_per_second, 2000.0);
        assert_eq!((line.latency_p50_seconds, line.latency_p99_seconds), (Some(1e-4), Some(1e-4)));
        let idle = Line::new(Some(&stat(12.0, 1000)), &stat(13.0, 1000));
        assert_eq!(idle.latency_p50_seconds, None);
        let whole = Line::new(None, &stat(10.0, 1000));
        assert!(whole.since_start && whole.local.reads_per_second == 110.0);
    }

    #[test]
    fn operands_are_numbers_or_places() {
        let asked = |words: &[&str]| {
            let parse = |word: &&str| Operand::parse(word.as_ref());
            let operands: Result<Vec<Operand>, String> = words.iter().map(parse).collect();
            let door = ClientDoor { socket: "/client".into() };
            let operands = operands.map_err(Failure::usage)?;
            StatArgs { no_since_start: false, operands, door }.asked()
        };
        let work = |words: &[&str]| match asked(words) {
            Ok(Asked::Work { interval, count }) => (interval.map(|it| it.as_secs_f64()), count),
            other => panic!("{words:?}: {other:?}"),
        };
        assert_eq!(work(&[]), (None, None));
        assert_eq!(work(&["0.5"]), (Some(0.5), None));
        assert_eq!(work(&["1", "100000"]), (Some(1.0), Some(100_000)));
        match asked(&["b:data/1", ":data"]) {
            Ok(Asked::Files(places)) => assert_eq!(places.len(), 2),
            other => panic!("{other:?}"),
        }
        for words in [
            &["1", "2", "3"][..],
            &["0"],
            &["100000"],
            &["1", "1.5"],
            &["1", "b:data/1"],
            &["b:data/1", "1"],
            &["file"],
            &["nan"],
        ] {
            let failure = asked(words).expect_err("wrong usage");
            assert_eq!(failure.exit(), Exit::Usage, "{words:?}");
        }
    }

    #[test]
    fn lines_stand_below_their_headings_and_fit() {
        let mut line = Line::new(None, &stat(1e-3, 999_950_000));
        line.latency_p99_seconds = Some(0.123_4);
        line.latency_p50_seconds = Some(123.4e-6);
        for text in [wide(&line), narrow(&line)] {
            assert!(!text.contains("  -"), "{text}");
        }
        assert_eq!(WIDE[1].len(), wide(&line).len(), "{}\n{}", WIDE[1], wide(&line));
        assert!(usize::from(WIDE_COLUMNS) >= WIDE[1].len());
        assert_eq!(NARROW[1].len(), narrow(&line).len(), "{}\n{}", NARROW[1], narrow(&line));
        assert!(NARROW.iter().all(|text| text.len() <= 40));
    }
}
