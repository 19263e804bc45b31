//! `pipectl trace`: the fragments of the next transfers, stage by stage, measured beside predicted;
//! as a table, a Gantt chart, or a trace for Chrome and Perfetto.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use piped_config::admin::trace::{TRACE, TraceBody, Traces};
use piped_core::limits::TRACE_TRANSFERS_MAX;
use piped_core::status::Status;
use piped_report::trace::TransferTrace;

use self::bars::Sums;
pub(crate) use self::bars::sizes as runs;
use self::target::Target;
use crate::admin::Admin;
use crate::commands::words;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output, Progress};
use crate::table::Column::{Number, Text};
use crate::{clock, units};

mod bars;
mod chrome;
mod gantt;
mod target;

const AFTER_HELP: &str = "\
The daemon records the stages of its own node. For a read from a peer, the
peer's daemon has the disk and the sending side: trace there at the same time.
Syncs have no fragments and are not counted.

Example, while something reads:
  pipectl trace --transfers 4 --svg trace.svg --chrome trace.json";

/// Time between two questions to the daemon.
const EVERY: Duration = Duration::from_millis(50);

/// Arguments of `pipectl trace`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct TraceArgs {
    /// Record the next N transfers and requests of peers
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(TRACE_TRANSFERS_MAX)))]
    transfers: u32,

    /// Wait no longer than that, then show the transfers recorded so far
    #[arg(long, value_name = "T", default_value_t = 10.0, value_parser = patience)]
    seconds: f64,

    #[command(flatten)]
    files: Files,
}

/// Files for pictures of a trace.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct Files {
    /// Draw a Gantt chart, predicted beneath measured
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write a trace for Chrome (chrome://tracing) or Perfetto
    #[arg(long, value_name = "FILE")]
    chrome: Option<PathBuf>,
}

fn patience(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("choose 0.1 to 3600".to_owned()),
    }
}

pub(crate) fn run(
    admin: &Admin,
    output: &Output,
    args: &TraceArgs,
    json: bool,
) -> Result<(), Failure> {
    let files = args.files.open()?;
    let begun: Traces = admin.put_and_read(TRACE, TraceBody { transfers: args.transfers })?;
    let recorded = wait(admin, args, begun.recording, json)?;
    if recorded.transfers.is_empty() {
        return Err(Failure::new(
            Exit::Timeout,
            format!("nothing was transferred within {} s", args.seconds),
        ));
    }
    let title = "Fragments of recorded transfers";
    if json {
        output::json(&recorded)?;
        return files.write(title, &recorded.transfers);
    }
    show(output, &recorded.transfers)?;
    if recorded.ended < recorded.wanted {
        let text = format!("{} of {} ended within the time.", recorded.ended, recorded.wanted);
        output.prose(&text, 0)?;
    }
    files.write_and_tell(output, title, &recorded.transfers)
}

/// Waits until there are enough, the time is over, or Ctrl-C; then stops the recording.
fn wait(
    admin: &Admin,
    args: &TraceArgs,
    recording: u64,
    quiet: bool,
) -> Result<Traces<TransferTrace>, Failure> {
    let progress = Progress::new(!quiet);
    let end = clock::now() + Duration::from_secs_f64(args.seconds);
    loop {
        let now: Traces<TransferTrace> = admin.get(TRACE)?;
        if now.recording != recording {
            return Err(Failure::failed(
                "somebody else began another recording, which ended this one; try again",
            ));
        }
        if now.over {
            return Ok(now);
        }
        progress.say(format_args!(
            "{} of {} ended (Ctrl-C shows what there is)",
            now.ended, now.wanted
        ));
        let next = clock::now() + EVERY;
        if next >= end || admin.is_interrupted_until(next)? {
            break;
        }
    }
    let _: Traces = admin.put_and_read(TRACE, TraceBody { transfers: 0 })?;
    admin.get(TRACE)
}

impl Files {
    /// Opens the files first, so that a wrong path wastes no work.
    pub(crate) fn open(&self) -> Result<Opened<'_>, Failure> {
        fn of(file: &Option<PathBuf>) -> Result<Option<Target<'_>>, Failure> {
            file.as_deref().map(Target::open).transpose()
        }
        Ok(Opened { files: self, svg: of(&self.svg)?, chrome: of(&self.chrome)? })
    }
}

/// Files that can be written.
#[derive(Debug)]
pub(crate) struct Opened<'a> {
    files: &'a Files,
    svg: Option<Target<'a>>,
    chrome: Option<Target<'a>>,
}

impl Opened<'_> {
    /// Draws and writes the files.
    pub(crate) fn write(self, title: &str, transfers: &[TransferTrace]) -> Result<(), Failure> {
        if let Some(file) = self.svg {
            file.write(&gantt::svg(title, transfers).map_err(Failure::failed)?)?;
        }
        if let Some(file) = self.chrome {
            file.write(&chrome::json(transfers).to_string())?;
        }
        Ok(())
    }

    /// Writes the files, and says where they are.
    pub(crate) fn write_and_tell(
        self,
        output: &Output,
        title: &str,
        transfers: &[TransferTrace],
    ) -> Result<(), Failure> {
        let files = self.files;
        self.write(title, transfers)?;
        for file in [&files.svg, &files.chrome].into_iter().flatten() {
            output.line(format_args!("written: {}", file.display()))?;
        }
        Ok(())
    }
}

/// Prints all transfers as tables.
pub(crate) fn show(output: &Output, transfers: &[TransferTrace]) -> Result<(), Failure> {
    for transfer in transfers {
        output.heading(&heading(transfer))?;
        output.prose(&summary(transfer), 2)?;
        table(output, transfer)?;
        for note in &transfer.notes {
            output.prose(note, 2)?;
        }
    }
    output.line("")
}

/// Describes a transfer in a line.
pub(crate) fn heading(it: &TransferTrace) -> String {
    let what = if it.served { "serve " } else { "" };
    let number = if it.id > 0 { format!("transfer {}: ", it.id) } else { String::new() };
    let status = match it.status {
        Some(Status::Ok) => String::new(),
        Some(status) => format!(": {}", words::status(status)),
        None => ": not ended".to_owned(),
    };
    format!("{number}{what}{} of {}, {}{status}", it.operation, units::bytes(it.bytes), it.route)
}

/// Describes its plan, and how good its prediction was.
pub(crate) fn summary(it: &TransferTrace) -> String {
    let mut text = it.chosen.clone();
    let levels = it.levels.iter();
    let levels: Vec<(&str, String)> =
        levels.map(|one| (one.level.as_str(), bars::sizes(&one.sizes, one.count))).collect();
    match &levels[..] {
        [] => {}
        [(_, first), rest @ ..] if rest.iter().all(|(_, sizes)| sizes == first) => {
            text.push_str(&format!(": {first}"));
        }
        all => {
            let all: Vec<String> =
                all.iter().map(|(level, sizes)| format!("{level} {sizes}")).collect();
            text.push_str(&format!(": {}", all.join("; ")));
        }
    }
    if it.depth > 0 {
        text.push_str(&format!("; {} at once", it.depth));
    }
    if let Some(measured) = it.measured_seconds {
        text.push_str(&format!(". Measured {}", units::seconds(measured)));
    }
    if it.predicted_seconds > 0.0 {
        text.push_str(&format!(", predicted {}", units::seconds(it.predicted_seconds)));
        if it.margin_seconds > 0.0 {
            text.push_str(&format!(" +- {}", units::seconds(it.margin_seconds)));
        }
        if let Some(measured) = it.measured_seconds {
            let percent = (measured / it.predicted_seconds - 1.0) * 100.0;
            text.push_str(&format!(" ({percent:+.0} %)"));
        }
    }
    text
}

fn table(output: &Output, it: &TransferTrace) -> Result<(), Failure> {
    let end = end_of(it);
    let rows = it.stages.iter().enumerate().map(|(stage, name)| {
        let [measured, predicted] =
            [&it.measured, &it.predicted].map(|visits| Sums::of(&bars::bars(visits, stage, end)));
        let time = |sums: Sums, nanos: u64| match sums.fragments {
            0 => "-".to_owned(),
            _ => units::seconds(nanos as f64 * 1e-9),
        };
        let stuck = match measured.stuck {
            0 => String::new(),
            stuck => format!("{stuck} never left"),
        };
        vec![
            name.clone(),
            measured.fragments.max(predicted.fragments).to_string(),
            time(measured, measured.busy),
            time(predicted, predicted.busy),
            time(measured, measured.last),
            time(predicted, predicted.last),
            stuck,
        ]
    });
    let columns = [
        Text("STAGE"),
        Number("FRAGMENTS"),
        Number("BUSY"),
        Number("PREDICTED"),
        Number("LAST LEFT"),
        Number("PREDICTED"),
        Text(""),
    ];
    output.table(&columns, rows.collect())
}

/// End of what was recorded of it, in nanoseconds from its start.
pub(crate) fn end_of(it: &TransferTrace) -> u64 {
    let measured = it.measured_seconds.map_or(0, |seconds| (seconds * 1e9) as u64);
    let seen = it.measured.iter().map(|visit| visit.departed_ns.unwrap_or(visit.arrived_ns)).max();
    measured.max(seen.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use piped_core::request::Class;
    use piped_report::trace::{LevelSizes, Visit};

    use super::*;

    /// Recording of a read of 256 KiB in four pieces.
    pub(super) fn served_read() -> TransferTrace {
        let piece = 64 << 10;
        let visit = |stage: u32, index: u64, from: u64, to: u64| Visit {
            stage,
            offset: index * piece,
            bytes: piece,
            arrived_ns: from * 1000,
            departed_ns: Some(to * 1000),
        };
        let all = |late: u64| {
            (0..4).flat_map(move |index| {
                let (read, sent) = (80 + 70 * index, 100 + 75 * index + late);
                [
                    visit(0, index, 0, read),
                    visit(1, index, read, read + 4),
                    visit(2, index, read + 4, sent + 50),
                ]
            })
        };
        let level =
            |name: &str| LevelSizes { level: name.to_owned(), sizes: vec![piece; 4], count: 4 };
        TransferTrace {
            id: 17,
            operation: "read".to_owned(),
            served: true,
            route: "local file -> staging -> lane -> peer".to_owned(),
            bytes: 4 * piece,
            class: Class::Latency,
            status: Some(Status::Ok),
            began_ns: 0,
            chosen: "fixed".to_owned(),
            depth: 8,
            levels: vec![level("source"), level("lane")],
            owed_bytes: 0,
            predicted_seconds: 375e-6,
            margin_seconds: 12e-6,
            measured_seconds: Some(400e-6),
            stages: ["disk 8:0 read", "check", "net beta latency served out", "check (peer)"]
                .map(str::to_owned)
                .into(),
            measured: all(20).collect(),
            predicted: all(0).collect(),
            lost: 0,
            notes: vec!["A piece has left the lane here when the kernel has taken it.".to_owned()],
        }
    }

    /// A similar read, stopped in the middle.
    pub(super) fn stuck() -> TransferTrace {
        let mut it = served_read();
        for visit in it.measured.iter_mut().skip(6) {
            visit.departed_ns = None;
        }
        TransferTrace {
            id: 0,
            status: None,
            measured_seconds: None,
            predicted: Vec::new(),
            notes: vec!["It had not ended when the recording was stopped.".to_owned()],
            ..it
        }
    }

    #[test]
    fn files_are_opened_first_and_keep_what_they_hold_until_there_is_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let (svg, chrome) = (directory.path().join("t.svg"), directory.path().join("t.json"));
        let long = "x".repeat(1 << 20);
        std::fs::write(&chrome, &long).expect("written");
        let files = Files { svg: Some(svg.clone()), chrome: Some(chrome.clone()) };
        let opened = files.open().expect("they can be written");
        assert_eq!(std::fs::read_to_string(&chrome).expect("there"), long);
        opened.write("a title", &[served_read()]).expect("written");
        let written = std::fs::read_to_string(&chrome).expect("there");
        assert!(serde_json::from_str::<serde_json::Value>(&written).is_ok(), "nothing old is left");
        assert!(std::fs::read_to_string(&svg).expect("there").contains("a title"));

        let nowhere = directory.path().join("missing/t.svg");
        let files = Files { svg: None, chrome: Some(nowhere.clone()) };
        let failure = files.open().expect_err("there is no such directory");
        assert_eq!(failure.exit(), Exit::Failed);
        assert!(failure.to_string().contains(&nowhere.display().to_string()), "{failure}");
    }

    #[test]
    fn a_transfer_is_told_in_two_lines() {
        let it = served_read();
        assert_eq!(
            heading(&it),
            "transfer 17: serve read of 256 KiB, local file -> staging -> lane -> peer"
        );
        assert_eq!(
            summary(&it),
            "fixed: 4 x 64 KiB; 8 at once. Measured 400 us, predicted 375 us +- 12.0 us (+7 %)"
        );
        let mut nested = it;
        nested.levels[1].sizes = vec![4096; 64];
        nested.levels[1].count = 64;
        assert!(
            summary(&nested).starts_with("fixed: source 4 x 64 KiB; lane 64 x 4 KiB; 8 at once")
        );
        let never = stuck();
        assert!(heading(&never).ends_with("-> peer: not ended"), "{}", heading(&never));
        assert!(!summary(&never).contains("Measured"));
    }

    #[test]
    fn what_is_seen_ends_with_the_last_that_was() {
        assert_eq!(end_of(&served_read()), 400_000);
        assert_eq!(end_of(&stuck()), 294_000, "the last that came");
    }
}
