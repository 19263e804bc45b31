//! The steps of the demo, in order.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blake3::Hash;
use piped_config::admin::{STAGES, STATUS, Stages, Status};
use piped_report::shard::{ShardReport, StageReport};

use super::moving::{self, Reader};
use super::report::{NodeFacts, NodeStages, Passed, Printer, Report};
use super::site::{self, Site};
use super::{Cancel, file, latency, slowed};
use crate::admin::Admin;
use crate::args::DemoArgs;
use crate::clock;
use crate::daemon::{self, Node, Setting};
use crate::failure::{Exit, Failure};
use crate::output::{Output, Progress};

/// Name of the asking node.
const ALPHA: &str = "alpha";
/// Name of the node with the file.
const BETA: &str = "beta";
const EXPORT: &str = "demo";
/// Longest time for a daemon to become ready.
const START: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Longest time from the close of a dead daemon's sockets until its end is seen.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// The source of the file.
struct Source {
    directory: PathBuf,
    name: String,
    bytes: u64,
    hash: Hash,
}

/// Runs all steps. Everything that they make belongs to `site`.
pub(super) fn run(
    args: &DemoArgs,
    output: &Output,
    json: bool,
    site: &Site,
    cancel: &Cancel,
) -> Result<(), Failure> {
    play(args, output, json, site, cancel).map_err(|failure| blame(failure, site))
}

/// Adds a dead daemon's last words to the failure that its death caused.
fn blame(failure: Failure, site: &Site) -> Failure {
    if failure.exit() != Exit::Unreachable {
        return failure;
    }
    // A process that dies closes its sockets a moment before it can be awaited.
    let deadline = clock::now() + LAST_WORDS;
    loop {
        match site.check() {
            Err(words) => return words,
            Ok(()) if clock::now() > deadline => return failure,
            Ok(()) => clock::pause(LOOK_AGAIN),
        }
    }
}

fn play(
    args: &DemoArgs,
    output: &Output,
    json: bool,
    site: &Site,
    cancel: &Cancel,
) -> Result<(), Failure> {
    let progress = Progress::new(!json);
    let printer = Printer::new(output, json);
    let mut report = Report::default();
    let piped = daemon::find_piped()?;
    let (disk, note) = site::disk(args.out.as_deref())?;
    report.notes.extend(note);
    let data = site.directory(&disk)?;
    let source = source(args, &data, cancel, &progress, &mut report)?;

    progress.say("starting two nodes");
    let [alpha, beta] = settings(site, &source)?;
    let admins = [Admin::new(&alpha.admin_socket())?, Admin::new(&beta.admin_socket())?];
    for setting in [&beta, &alpha] {
        site.start(|| Node::start(&piped, setting))?;
    }
    report.nodes = ready(&admins, [&alpha, &beta], site, cancel)?;
    progress.clear();
    printer.nodes(&report)?;

    let steps = Steps { cancel, progress: &progress, source: &source };
    let mut reader = Reader::open(&alpha.client_socket(), BETA, EXPORT, &source.name)?;
    report.read = steps.read(&mut reader)?;
    printer.moved(
        "Read",
        "disk of beta -> network -> memory of a client of alpha",
        &report.read,
    )?;
    report.copy = steps.copy(&mut reader, &data)?;
    printer.moved("Copy", "disk of beta -> network -> disk of alpha, synced", &report.copy)?;
    require_equal(&report)?;

    let [asker, holder] = &admins;
    let reader = &mut reader;
    let mut bench = latency::Bench { asker, holder, reader, cancel, progress: &progress };
    report.latencies = bench.run()?;
    report.stages = [(BETA, holder), (ALPHA, asker)]
        .into_iter()
        .map(|(node, admin)| {
            let Stages::<StageReport> { stages } = admin.get(STAGES)?;
            Ok(NodeStages { node, stages })
        })
        .collect::<Result<_, Failure>>()?;
    progress.clear();
    printer.stages(&report)?;
    printer.latencies(&report)?;
    report.slowed = slowed::run(&mut bench, BETA, &source.directory.join(&source.name))?;
    progress.clear();
    printer.slowed(&report)?;
    site.check()?;
    site.clear();
    printer.end(&report)
}

/// Takes the given file, or makes a random one.
fn source(
    args: &DemoArgs,
    data: &Path,
    cancel: &Cancel,
    progress: &Progress,
    report: &mut Report,
) -> Result<Source, Failure> {
    let (path, hash) = match &args.file {
        Some(given) => {
            let path = fs::canonicalize(given)
                .map_err(|error| Failure::io(format_args!("{}", given.display()), &error))?;
            let metadata =
                fs::metadata(&path).map_err(|error| Failure::io(path.display(), &error))?;
            if !metadata.is_file() || metadata.len() == 0 {
                let given = given.display();
                return Err(Failure::usage(format!("{given} is not a file with something in it")));
            }
            site::require_space(data, metadata.len())?;
            let hash = file::hash(&path, cancel, progress)?;
            (path, hash)
        }
        None => {
            site::require_space(data, 2 * args.size.0)?;
            let path = data.join("source");
            let hash = file::make(&path, args.size.0, cancel, progress)?;
            (path, hash)
        }
    };
    let bytes = fs::metadata(&path).map_err(|error| Failure::io(path.display(), &error))?.len();
    report.file.path = path.display().to_string();
    report.file.made = args.file.is_none();
    report.file.bytes = bytes;
    report.file.blake3 = hash.to_hex().to_string();
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
    else {
        let path = path.display();
        return Err(Failure::usage(format!("{path} is not UTF-8: rename the file for the demo")));
    };
    Ok(Source { directory: directory.to_owned(), name: name.to_owned(), bytes, hash })
}

/// Alpha asks beta; beta listens and has the file.
fn settings(site: &Site, source: &Source) -> Result<[Setting; 2], Failure> {
    let listen: SocketAddr = daemon::free_address()?;
    // Sockets are not on the chosen disk: the path of a socket has at most 107 bytes, and the
    // disk's may be longer.
    let run = std::env::temp_dir();
    let run = if run.as_os_str().len() > 64 { PathBuf::from("/tmp") } else { run };
    let mut alpha = Setting::new(ALPHA, site.directory(&run)?)?;
    alpha.set(&format!("peers.{BETA}.address"), format_args!("\"{listen}\""));
    let beta = Setting::new(BETA, site.directory(&run)?)?;
    let mut beta = beta.listens(listen).exports(EXPORT, &source.directory)?;
    for setting in [&mut alpha, &mut beta] {
        setting.set("planner.allow_dials", true);
        setting.write()?;
    }
    Ok([alpha, beta])
}

/// Waits until both daemons answer and every lane of alpha is up.
fn ready(
    admins: &[Admin; 2],
    settings: [&Setting; 2],
    site: &Site,
    cancel: &Cancel,
) -> Result<Vec<NodeFacts>, Failure> {
    let deadline = clock::now() + START;
    loop {
        cancel.check()?;
        site.check()?;
        let statuses: Result<Vec<Status<ShardReport>>, Failure> =
            admins.iter().map(|admin| admin.get(STATUS)).collect();
        let waiting = match statuses {
            Ok(statuses) if lanes_up(&statuses[0]) => {
                return Ok(statuses.into_iter().zip(settings).map(facts).collect());
            }
            Ok(_) => "alpha has no lanes to beta".to_owned(),
            Err(failure) if failure.exit() == Exit::Unreachable => failure.to_string(),
            Err(failure) => return Err(failure),
        };
        if clock::now() > deadline {
            return Err(Failure::new(
                Exit::Timeout,
                format!("the nodes were not ready after {} s: {waiting}", START.as_secs()),
            ));
        }
        clock::pause(LOOK_AGAIN);
    }
}

fn lanes_up(status: &Status<ShardReport>) -> bool {
    let mut lanes = status.shards.iter().flat_map(|s| &s.peers).flat_map(|p| &p.lanes).peekable();
    lanes.peek().is_some() && lanes.all(|lane| lane.up)
}

fn facts((status, setting): (Status<ShardReport>, &Setting)) -> NodeFacts {
    let role = match setting.listen() {
        Some(listen) => format!("holds the file, listens on {listen}"),
        None => format!("asks {BETA}; the client is here"),
    };
    NodeFacts {
        name: setting.name().to_owned(),
        pid: status.pid,
        role,
        profile: status.profile.to_string(),
        tier: status.tier,
        degraded: status.degraded,
    }
}

/// The two passes over the whole file.
struct Steps<'a> {
    cancel: &'a Cancel,
    progress: &'a Progress,
    source: &'a Source,
}

impl Steps<'_> {
    /// Reads once with BLAKE3, so that the daemons also learn the costs of their stages, and once
    /// timed.
    fn read(&self, reader: &mut Reader) -> Result<Passed, Failure> {
        let mut hasher = blake3::Hasher::new();
        reader.read_all(self.source.bytes, "reading and verifying", self, |piece| {
            hasher.update(piece);
        })?;
        let bytes = self.source.bytes.min(moving::TIMED_BYTES_MAX);
        let begin = clock::now();
        reader.read_all(bytes, "reading", self, |_| {})?;
        let seconds = begin.elapsed().as_secs_f64();
        self.progress.clear();
        Ok(Passed::new(hasher.finalize() == self.source.hash, bytes, seconds))
    }

    fn copy(&self, reader: &mut Reader, data: &Path) -> Result<Passed, Failure> {
        let path = data.join("copy");
        let begin = clock::now();
        reader.copy_to(&path, self)?;
        let seconds = begin.elapsed().as_secs_f64();
        let hash = file::hash(&path, self.cancel, self.progress)?;
        self.progress.clear();
        Ok(Passed::new(hash == self.source.hash, self.source.bytes, seconds))
    }
}

impl moving::Watch for Steps<'_> {
    fn step(&self, what: &str, done: u64, total: u64) -> Result<(), Failure> {
        let percent = done * 100 / total.max(1);
        self.progress.say(format_args!("{what}: {percent} %"));
        self.cancel.check()
    }
}

fn require_equal(report: &Report) -> Result<(), Failure> {
    for (way, passed) in [("read", &report.read), ("copied", &report.copy)] {
        if !passed.verified {
            return Err(Failure::failed(format!(
                "the {way} bytes are not those of {}: please report this",
                report.file.path
            )));
        }
    }
    Ok(())
}
