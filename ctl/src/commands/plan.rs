//! `pipectl plan`: the plan of a transfer and the time it would take. A dry run: nothing is moved,
//! opened for reading, or changed.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use clap::builder::{OsStringValueParser, TypedValueParser as _, ValueParser, ValueParserFactory};
use clap::{Args as ClapArgs, ValueEnum};
use piped_config::Bytes;
use piped_config::admin::plan::{PLAN, PlanBody, PlanClass, PlanEnd, PlanPart, Plans};
use piped_planner::draft::Forecast;

use super::certificate::Planned;
use super::explain::{Chosen, candidates, plan, possible, possible_json};
use super::stages;
use crate::admin::Admin;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};
use crate::place::Place;
use crate::units;

const AFTER_HELP: &str = "\
The node that holds the data plans. For data from a peer, only the stages seen
from here are shown, with the command that shows the rest there. The command does
not ask peers whether they have an export or a file.";

/// Arguments of `pipectl plan`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct PlanArgs {
    /// From: PATH, PEER:EXPORT/PATH, :EXPORT/PATH for an export of this node, PEER:memory for a
    /// region, or memory (-)
    #[arg(long, value_name = "SRC")]
    from: End,

    /// To: the same forms as --from
    #[arg(long, value_name = "DST", default_value = "memory")]
    to: End,

    /// Bytes of the transfer
    #[arg(long, value_name = "SIZE")]
    bytes: Bytes,

    /// Urgency (default: bulk for copies between files, latency for all else)
    #[arg(long, value_enum)]
    class: Option<Class>,

    /// Plan the transfer that this peer would get when it asks this node
    #[arg(long = "for", value_name = "PEER", conflicts_with = "to")]
    peer_asks: Option<String>,
}

/// [`PlanClass`] as words of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Class {
    /// Somebody is blocked on it
    Latency,
    /// Nobody waits; throughput matters
    Bulk,
}

impl From<Class> for PlanClass {
    fn from(class: Class) -> Self {
        match class {
            Class::Latency => Self::Latency,
            Class::Bulk => Self::Bulk,
        }
    }
}

/// An end as in `cp`, or memory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Memory,
    /// A region at a peer.
    Region(String),
    File(Place),
}

impl End {
    fn parse(text: &OsStr) -> Result<Self, String> {
        let words = text.to_str();
        match (words, words.and_then(|words| words.strip_suffix(":memory"))) {
            (Some("memory" | "-"), _) | (_, Some("")) => Ok(Self::Memory),
            (_, Some(peer)) if !peer.contains('/') => Ok(Self::Region(peer.to_owned())),
            _ => Place::parse(text).map(Self::File).map_err(|error| {
                format!("{error}; or memory, or PEER:memory (./memory for a file of that name)")
            }),
        }
    }
}

/// Reads like [`Place`], because a path may not be text.
impl ValueParserFactory for End {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text| Self::parse(&text)).into()
    }
}

pub(crate) fn run(
    admin: &Admin,
    output: &Output,
    args: &PlanArgs,
    json: bool,
) -> Result<(), Failure> {
    let body = PlanBody {
        from: end(&args.from, false)?,
        to: end(&args.to, true)?,
        bytes: args.bytes.0,
        class: args.class.map(Into::into),
        peer_asks: args.peer_asks.clone(),
    };
    if json {
        let mut answer = admin.ask_raw(PLAN, body)?;
        for part in answer["parts"].as_array_mut().into_iter().flatten() {
            if let Ok(it) = serde_json::from_value::<Forecast>(part["forecast"].clone()) {
                part["forecast"]["possible"] = possible_json(&planned(&it));
            }
        }
        return output::json(answer);
    }
    let plans: Plans<Forecast> = admin.ask(PLAN, body)?;
    print(output, &plans)
}

fn end(end: &End, write: bool) -> Result<PlanEnd, Failure> {
    Ok(match end {
        End::Memory => PlanEnd::Memory { peer: None },
        End::Region(peer) => PlanEnd::Memory { peer: Some(peer.clone()) },
        End::File(place @ Place::Remote { peer, export, path }) => PlanEnd::Export {
            peer: Some(peer.clone()).filter(|peer| !peer.is_empty()),
            export: export.clone(),
            path: path.to_str().map(str::to_owned).ok_or_else(|| {
                Failure::usage(format!(
                    "{place}: the name is no text (UTF-8), and a daemon is asked for plans in \
                     text: name a file beside it, which has the same plan"
                ))
            })?,
        },
        End::File(Place::Local(path)) => device(path, write)?,
    })
}

/// A file is named by its device. The caller finds it with its own rights, and without opening the
/// file.
fn device(path: &Path, write: bool) -> Result<PlanEnd, Failure> {
    let fail = |error| Failure::io(output::path(path), &error);
    let facts = match fs::metadata(path) {
        // A new file will lie where its directory does.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && write => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            fs::metadata(folder.unwrap_or(Path::new("."))).map_err(fail)?
        }
        facts => check(path, facts.map_err(fail)?, write)?,
    };
    let device = facts.dev();
    Ok(PlanEnd::Device { major: rustix::fs::major(device), minor: rustix::fs::minor(device) })
}

fn check(path: &Path, facts: Metadata, write: bool) -> Result<Metadata, Failure> {
    // `cp` makes a file in a directory.
    if facts.is_file() || write && facts.is_dir() {
        return Ok(facts);
    }
    let text =
        format!("{} is no regular file; nothing else is read or written", output::path(path));
    Err(Failure::new(Exit::Refused, text))
}

fn print(output: &Output, plans: &Plans<Forecast>) -> Result<(), Failure> {
    if let Some(piece) = plans.piece_bytes.filter(|&piece| piece < plans.bytes) {
        let text = format!(
            "{} go in pieces of {}, several at once; of each:",
            units::bytes(plans.bytes),
            units::bytes(piece)
        );
        output.prose(&text, 0)?;
    }
    plans.parts.iter().try_for_each(|part| print_part(output, part))
}

fn print_part(output: &Output, part: &PlanPart<Forecast>) -> Result<(), Failure> {
    let it = &part.forecast;
    output.prose(&format!("{}, {}", units::bytes(it.bytes), part.route), 2)?;
    if let Some(peer) = &part.planned_by {
        output.field(
            "planner",
            &format!("{peer}: it holds the data; what is seen from here is below"),
        )?;
    }
    if let Some(words) = &part.ask_there {
        output.field("ask there", words)?;
    }
    if !it.chosen.is_empty() {
        output.field("plan", &plan(&chosen(it)))?;
        let (predicted, margin) = (it.predicted_seconds, it.margin_seconds);
        let text = format!("{} +- {}", units::seconds(predicted), units::seconds(margin));
        output.field("predicted", &text)?;
        output.field("possible", &possible(&planned(it)))?;
    }
    if let Some(trial) = &it.trial {
        let text = format!(
            "the very next transfer tries {} of {}, to see what it takes",
            trial.algorithm,
            units::bytes(trial.fragment_bytes)
        );
        output.field("but", &text)?;
    }
    if !it.stages.is_empty() {
        output.heading("Stages as known now")?;
        stages::table(output, &it.stages)?;
        stages::notes(output, &it.stages)?;
    }
    candidates(output, &it.candidates, false)
}

fn planned(it: &Forecast) -> Planned<'_> {
    let (bytes, depth) = (it.bytes, it.depth);
    Planned { bytes, stages: &it.stages, levels: &it.levels, depth, owed: 0 }
}

fn chosen(it: &Forecast) -> Chosen<'_> {
    Chosen {
        algorithm: &it.chosen,
        levels: &it.levels,
        fragment_bytes: it.fragment_bytes,
        shrink_bytes: it.shrink_bytes,
        fragments: it.fragments,
        depth: it.depth,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn ends_are_what_cp_takes_and_memory() {
        let parse = |text: &str| End::parse(OsStr::new(text));
        assert_eq!(parse("memory"), Ok(End::Memory));
        assert_eq!(parse("-"), Ok(End::Memory));
        assert_eq!(parse(":memory"), Ok(End::Memory));
        assert_eq!(parse("beta:memory"), Ok(End::Region("beta".to_owned())));
        assert_eq!(parse("./memory"), Ok(End::File(Place::Local("./memory".into()))));
        assert_eq!(parse("a/b:memory"), Ok(End::File(Place::Local("a/b:memory".into()))));
        assert!(matches!(parse("b:data/f"), Ok(End::File(Place::Remote { .. }))));
        let error = parse("beta:data").expect_err("no file");
        assert!(error.contains("PEER:memory"), "{error}");
    }

    #[test]
    fn a_name_that_is_no_text_has_a_plan_here_and_cannot_be_asked_for_elsewhere() {
        let parse = |bytes| End::parse(OsStr::from_bytes(bytes)).expect("a place");
        let there = end(&parse(b"beta:data/caf\xe9\n\x1b"), false).expect_err("no text");
        let words = there.to_string();
        assert!(words.starts_with("beta:data/caf\\xe9\\n\\u{1b}: the name is no text"), "{words}");
        assert!(there.exit() == Exit::Usage && words.contains("name a file beside it"), "{words}");
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join(OsStr::from_bytes(b"caf\xe9\x1b"));
        let words = end(&parse(file.as_os_str().as_bytes()), false).expect_err("none").to_string();
        assert!(words.contains("caf\\xe9\\u{1b}"), "{words}");
        fs::write(&file, "x").expect("written");
        let known = end(&parse(file.as_os_str().as_bytes()), false);
        assert_eq!(known.expect("there"), device(directory.path(), true).expect("there"));
    }

    #[test]
    fn a_file_is_named_by_its_device_or_its_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        let new = device(&file, true).expect("its directory is there");
        let missing = device(&file, false).expect_err("nothing to read");
        assert_eq!(missing.exit(), Exit::NotFound);
        fs::write(&file, "x").expect("written");
        assert_eq!(device(&file, false).expect("there"), new);
        assert_eq!(device(directory.path(), false).expect_err("no file").exit(), Exit::Refused);
        assert_eq!(
            device(Path::new("/dev/null"), true).expect_err("no file").exit(),
            Exit::Refused
        );
    }
}
