//! A path on the command line: what its stages cost, what limits them, and which servers they have.

use std::num::NonZeroU32;

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_config::measured::{self, KbArgs, PerByte, Size};
use piped_model::servers::Servers;
use piped_model::stage::{Buffers, Path, Stage};

/// How lists of stages are written, for helps.
pub(super) const LISTS: &str = "\
A list has one item for each stage, from the source to the destination, with `;` between them (in
quotes, because of the shell); --latency and --window also take one item for all.";

/// The stages of a path.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct PathArgs {
    /// Overhead g and inverse bandwidth G of each stage [us, us/KB]
    #[arg(long, value_name = "g,G;g,G;...", value_parser = stages)]
    stages: Stages,

    /// Latency L of each stage, or of all [us; default 0]
    #[arg(long, value_name = "L;L;...", value_parser = latencies)]
    latency: Option<Latencies>,

    /// The most fragments at once in each stage, or in all; `-` for no bound [default: no bound]
    #[arg(long, value_name = "N;N;...", value_parser = windows, allow_hyphen_values = true)]
    window: Option<Windows>,

    /// The server of each stage; stages with the same one share it [default: each its own]
    #[arg(long, value_name = "NAME;NAME;...", value_parser = names)]
    servers: Option<Names>,

    /// Servers that work in turns, as an event loop: all that is ready when a turn begins is
    /// served, and leaves when the turn ends
    #[arg(long, value_name = "NAME;...", value_parser = names, requires = "servers")]
    in_turns: Option<Names>,

    #[command(flatten)]
    kb: KbArgs,
}

/// What holds fragments back between and before the stages.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct RoomArgs {
    /// The most fragments outstanding at the first stage [default: no bound]
    #[arg(long, value_name = "N")]
    depth: Option<NonZeroU32>,

    /// Bytes of room before each stage but the first, or before all of them; `-` for no bound
    /// [default: no bound]
    #[arg(long, value_name = "SIZE;SIZE;...", value_parser = rooms, allow_hyphen_values = true)]
    buffers: Option<Rooms>,
}

/// `g` in seconds and `G` of each stage.
#[derive(Debug, Clone)]
struct Stages(Vec<(f64, PerByte)>);

/// `L` of each stage, or of all, in seconds.
#[derive(Debug, Clone)]
struct Latencies(Vec<f64>);

/// The server of each stage.
#[derive(Debug, Clone)]
struct Names(Vec<String>);

/// `w` of each stage, or of all.
#[derive(Debug, Clone)]
struct Windows(Vec<Option<NonZeroU32>>);

/// The room before each stage but the first, or before all.
#[derive(Debug, Clone)]
struct Rooms(Vec<Option<Size>>);

fn stages(text: &str) -> Result<Stages, String> {
    let stage = |item: &str| {
        let (overhead, per_byte) = item
            .split_once(',')
            .ok_or_else(|| format!("`{item}` is not a stage: write g,G, as in 36,124.5"))?;
        Ok((measured::time(overhead)?, measured::per_byte(per_byte)?))
    };
    items(text, ";", stage).map(Stages)
}

fn latencies(text: &str) -> Result<Latencies, String> {
    items(text, ";,", measured::time).map(Latencies)
}

fn names(text: &str) -> Result<Names, String> {
    let name = |item: &str| match item {
        "" => Err(String::from("a server without a name: write one, as in thread;wire;thread")),
        _ => Ok(item.to_owned()),
    };
    items(text, ";,", name).map(Names)
}

fn windows(text: &str) -> Result<Windows, String> {
    let window = |item: &str| match item {
        "-" => Ok(None),
        _ => item.parse().map(Some).map_err(|_| {
            format!(
                "`{item}` is not a window: write how many fragments, at least 1, or - for no bound"
            )
        }),
    };
    items(text, ";,", window).map(Windows)
}

fn rooms(text: &str) -> Result<Rooms, String> {
    let room = |item: &str| match item {
        "-" => Ok(None),
        _ => measured::size(item).map(Some),
    };
    items(text, ";,", room).map(Rooms)
}

/// The items of a list, each read by `read`. A separator may end the list.
pub(super) fn items<T>(
    text: &str,
    separators: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let text = text.trim().trim_end_matches(|c| separators.contains(c));
    let read = |(index, item): (usize, &str)| {
        read(item.trim()).map_err(|error| format!("item {}: {error}", index + 1))
    };
    text.split(|c| separators.contains(c)).enumerate().map(read).collect()
}

/// One item for each of `count` stages: those given, the one given, or `none`.
pub(super) fn each<T: Copy>(list: Option<&[T]>, none: T, count: usize) -> Result<Vec<T>, String> {
    match list {
        None => Ok(vec![none; count]),
        Some(&[one]) => Ok(vec![one; count]),
        Some(list) if list.len() == count => Ok(list.to_vec()),
        Some(list) => Err(format!(
            "{} items for {count} stages: give one for each, or one for all",
            list.len()
        )),
    }
}

impl PathArgs {
    /// The stages as a path.
    ///
    /// # Errors
    /// Which option does not fit the others, or what is no path.
    pub(super) fn path(&self) -> Result<Path, Failure> {
        self.read().map_err(Failure::usage)
    }

    fn read(&self) -> Result<Path, String> {
        let Stages(costs) = &self.stages;
        let latencies = each(self.latency.as_ref().map(|list| &*list.0), 0.0, costs.len());
        let latencies = latencies.map_err(|reason| format!("--latency: {reason}"))?;
        let windows = each(self.window.as_ref().map(|list| &*list.0), None, costs.len());
        let windows = windows.map_err(|reason| format!("--window: {reason}"))?;
        let stages: Vec<Stage> = costs
            .iter()
            .zip(latencies.into_iter().zip(windows))
            .map(|(&(overhead, per_byte), (latency, window))| Stage {
                latency,
                overhead,
                per_byte: per_byte.seconds(self.kb.kb),
                window,
            })
            .collect();
        Path::new(&stages).map_err(|fault| format!("--stages: {fault}"))
    }

    /// Which of the stages share a server.
    ///
    /// # Errors
    /// If there is not one name for each stage, or no stage for a server in turns.
    pub(super) fn servers(&self) -> Result<Servers, Failure> {
        let stages = self.stages.0.len();
        let Some(Names(names)) = &self.servers else { return Ok(Servers::APART) };
        if names.len() != stages {
            return Err(Failure::usage(format!(
                "--servers: {} names for {stages} stages: give one for each",
                names.len()
            )));
        }
        let in_turns = self.in_turns.iter().flat_map(|Names(names)| names);
        in_turns.into_iter().try_fold(Servers::of(names), |servers, name| {
            let stage = names.iter().position(|other| other == name);
            stage.map(|stage| servers.in_turns(stage)).ok_or_else(|| {
                Failure::usage(format!("--in-turns: no stage has the server `{name}`"))
            })
        })
    }

    /// A size in whole bytes, with the KB of this command line.
    ///
    /// # Errors
    /// If it is none, with the name of its option.
    pub(super) fn whole_bytes(&self, option: &str, size: Size) -> Result<u64, Failure> {
        let bytes = size.whole_bytes(self.kb.kb);
        bytes.map_err(|error| Failure::usage(format!("{option}: {error}")))
    }

    /// Bytes of the KB in which `G` is given and shown.
    pub(super) const fn kb_bytes(&self) -> f64 {
        self.kb.kb.bytes()
    }
}

impl RoomArgs {
    /// The most fragments outstanding at the first stage.
    pub(super) fn depth(&self) -> NonZeroU32 {
        self.depth.unwrap_or(NonZeroU32::MAX)
    }

    /// The room between the stages of `path`.
    ///
    /// # Errors
    /// If there is not one size for each stage but the first, or one of them is none.
    pub(super) fn buffers(&self, path: &PathArgs) -> Result<Buffers, Failure> {
        let between = path.stages.0.len().saturating_sub(1);
        let list = each(self.buffers.as_ref().map(|list| &*list.0), None, between);
        let list = list.map_err(|reason| {
            let reason = reason.replace("stages", "stages behind the first");
            Failure::usage(format!("--buffers: {reason}"))
        })?;
        let sizes = list.into_iter().enumerate();
        sizes
            .filter_map(|(index, size)| Some((index + 1, size?)))
            .try_fold(Buffers::UNLIMITED, |buffers, (stage, size)| {
                Ok(buffers.with(stage, path.whole_bytes("--buffers", size)?))
            })
    }
}
