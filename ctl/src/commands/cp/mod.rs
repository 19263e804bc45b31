//! `pipectl cp`: one file, between this node and its peers, the bytes do not pass through this
//! program.
//!
//! ```text
//! ends     source and destination: opened, checked, told apart
//! beside   both in one export: its node copies by itself
//! journal  the part that is certainly durable: makes an interrupted copy resumable
//! moving   pieces under way, checkpoints, lost peers and daemons
//! pace     length of a piece, by the time that pieces took
//! ranges   which bytes are copied
//! waiting  how long nothing has moved, and which party is waited for
//! verify   BLAKE3 of both ends; samples of both before a copy goes on
//! meter    a bar, lines, or nothing
//! stop     Ctrl-C
//! ```
//!
//! The destination is written in place, so an interrupted copy is useless without the journal. The
//! journal records only bytes that a sync of the destination has covered: it is right after kill -9
//! and after a power cut, here or at the peer.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args as ClapArgs, ValueHint};
use serde::Serialize;

use self::ends::{Ends, Found};
use self::journal::Journal;
use self::meter::Meter;
use self::moving::{Mover, connect};
use self::stop::Stop;
use self::waiting::Waiting;
use crate::args::ClientDoor;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};
use crate::place::Place;
use crate::units;

mod beside;
mod ends;
mod journal;
mod meter;
mod moving;
mod pace;
mod ranges;
pub(super) mod stop;
mod verify;
mod waiting;

const AFTER_HELP: &str = "\
Copied means on stable storage (see --no-sync). The destination is written in
place. While a copy is not finished, a journal says how much of it is certainly
there: .NAME.piped-cp beside a local destination (.HASH.piped-cp for a long
NAME), in $XDG_STATE_HOME/piped (~/.local/state/piped) for one at a peer, or
--journal. A copy that is refused leaves no new file.
A new local file has the source's permission bits less the umask (0666 less the
umask for a peer's file); a file below an export has the bits that its daemon
gives (0640). A file at a peer is not shortened: remove one that is longer than
the source.";

/// Arguments of `pipectl cp`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CpArgs {
    /// From: PATH, PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node
    ///
    /// PEER may be several nodes that have the file, as in `beta,gamma`, or `*` for all that
    /// discovery knows to have the export: the file comes from all of them.
    #[arg(value_name = "SRC", value_hint = ValueHint::Url)]
    source: Place,

    /// To: likewise; a directory, or EXPORT/PATH/ with a slash at its end, takes the source's name
    #[arg(value_name = "DST", value_hint = ValueHint::Url)]
    destination: OsString,

    /// Write over an existing file
    #[arg(short = 'f', long, conflicts_with = "resume")]
    overwrite: bool,

    /// Go on with an interrupted copy where that is certainly right; begin if there is none
    #[arg(long)]
    resume: bool,

    /// Read both back from their disks at the end, and compare them by BLAKE3
    #[arg(long)]
    verify: bool,

    /// Do not wait for stable storage at the end
    #[arg(long)]
    no_sync: bool,

    /// Do not show any progress
    #[arg(short, long)]
    quiet: bool,

    /// Seconds to go on without progress, when a peer or the daemon is lost or stands still
    #[arg(long, value_name = "T", default_value_t = 60.0, value_parser = seconds)]
    timeout: f64,

    /// Seconds between checkpoints, at which the copied bytes are made durable and noted in the
    /// journal
    #[arg(long, value_name = "T", default_value_t = 2.0, value_parser = seconds)]
    checkpoint: f64,

    /// Path of the journal
    #[arg(long, value_name = "PATH")]
    journal: Option<PathBuf>,

    #[command(flatten)]
    door: ClientDoor,
}

impl CpArgs {
    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout)
    }
}

/// Result in plain bytes and seconds.
#[derive(Debug, Serialize)]
struct Report {
    source: String,
    destination: String,
    /// Length of the whole file.
    bytes: u64,
    /// Bytes copied by an earlier run.
    resumed_from: u64,
    /// Time of the copying and the sync, without the verification.
    seconds: f64,
    /// Rate of the bytes that this run copied.
    bytes_per_second: f64,
    durable: bool,
    /// Times that a lost peer or daemon was reached again.
    reconnects: u32,
    verified: Option<Verified>,
}

#[derive(Debug, Serialize)]
struct Verified {
    blake3: String,
    seconds: f64,
}

/// Runs the copy. `admin` is the daemon's admin socket, which may tell which party is waited for.
pub(crate) fn run(args: &CpArgs, admin: &Path, output: &Output, json: bool) -> Result<(), Failure> {
    let stop = Stop::listen()?;
    let begin = clock::now();
    let client = connect(args)?;
    let mut ends = Ends::find(args, &client)?;
    let (mut journal, from) = begin_or_resume(args, &mut ends, &client)?;
    let ends = ends;
    let nothing = |failure: Failure, journal: &Journal| {
        journal.remove();
        match ends.remove_new() {
            true => failure,
            false => failure.and(format_args!("{} is left, and is empty", ends.destination)),
        }
    };
    let unfinished = |failure: Failure, done, journal: &Journal| {
        if failure.is_spoilt() {
            // A later --resume would trust bytes that are not certain.
            journal.remove();
            return failure;
        }
        let (done, all) = (units::bytes(done), units::bytes(ends.length));
        failure.and(format_args!("{done} of {all} are copied; {}", journal.advice(args)))
    };
    ends.allocate().map_err(|failure| match from {
        0 => nothing(failure, &journal),
        _ => unfinished(failure, from, &journal),
    })?;
    let mut meter = Meter::new(args.quiet || json, ends.length, from);
    let mut mover = Mover::new(args, admin, &ends, &mut journal, from, &stop);
    let moved = mover.run(client, &mut meter);
    let (done, reconnects, client) = (mover.certain(), mover.reconnects, mover.take_client());
    // A copy that never began leaves nothing to clean up.
    let moved = moved.map_err(|failure| (failure, mover.has_copied()));
    let seconds = begin.elapsed().as_secs_f64();
    let unfinished = |failure| unfinished(failure, done, &journal);
    moved.map_err(|(failure, has_copied)| match has_copied || ends.found != Found::Nothing {
        true => unfinished(failure),
        false => nothing(failure, &journal),
    })?;
    let mut verified = None;
    if args.verify {
        let begin = clock::now();
        let client = client.map_or_else(|| connect(args), Ok).map_err(unfinished)?;
        let waiting = Waiting::new(admin, [&ends.source, &ends.destination], args.timeout());
        let watch = verify::Watch { meter: &mut meter, stop: &stop, waiting };
        let blake3 = verify::compare(args, &client, &ends, watch).map_err(unfinished)?;
        verified = Some(Verified { blake3, seconds: begin.elapsed().as_secs_f64() });
    }
    meter.finish();
    journal.remove();
    let report = Report {
        source: ends.source.to_string(),
        destination: ends.destination.to_string(),
        bytes: ends.length,
        resumed_from: from,
        seconds,
        bytes_per_second: (ends.length - from) as f64 / seconds,
        durable: !args.no_sync,
        reconnects,
        verified,
    };
    if json { output::json(&report) } else { report.print(output) }
}

/// Returns the journal to keep, and where the copy begins.
fn begin_or_resume(
    args: &CpArgs,
    ends: &mut Ends,
    client: &piped_client::Client,
) -> Result<(Journal, u64), Failure> {
    let mut journal = Journal::at(args, ends)?;
    let earlier = journal.read()?;
    let refuse = |why: String| Err(Failure::new(Exit::Refused, why));
    let destination = ends.destination.clone();
    match (earlier, ends.found) {
        (Some(earlier), Found::Empty | Found::Filled) if args.resume => {
            if let Some(other) = journal.differs_from(&earlier) {
                return refuse(format!(
                    "{other} since the copy to {destination} was interrupted: begin anew with \
                     --overwrite"
                ));
            }
            let from = earlier.durable_bytes.min(ends.length);
            verify::samples(args, client, ends, from)?;
            Ok((journal, from))
        }
        (Some(_), Found::Filled) if !args.overwrite => refuse(format!(
            "{destination} is an interrupted copy: go on with --resume, or begin anew with \
             --overwrite"
        )),
        (None, Found::Filled) if args.resume => refuse(format!(
            "{destination} exists, and {} says nothing of an interrupted copy: begin anew with \
             --overwrite",
            journal.shown()
        )),
        (None, Found::Filled) if !args.overwrite => Err(ends::exists(&destination)),
        _ => {
            // Everything that can be refused without a destination has been checked.
            ends.make(client)?;
            // Write the journal before copying: the copy can then be resumed whatever ends this
            // program.
            journal.begin(ends);
            Ok((journal, 0))
        }
    }
}

impl Report {
    fn print(&self, output: &Output) -> Result<(), Failure> {
        let Self { source, destination, seconds, .. } = self;
        let mut text = format!(
            "{source} to {destination}: {} in {}, {}",
            units::bytes(self.bytes),
            units::seconds(*seconds),
            units::rate(self.bytes_per_second)
        );
        if self.resumed_from > 0 {
            text.push_str(&format!(", after {} before", units::bytes(self.resumed_from)));
        }
        text.push_str(if self.durable { ", on stable storage" } else { ", not synced" });
        output.line(text)?;
        match &self.verified {
            Some(verified) => output.line(format_args!(
                "verified: BLAKE3 equal, {} ({})",
                verified.blake3,
                units::seconds(verified.seconds)
            )),
            None => Ok(()),
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "write seconds, as in 2.5".to_owned())?;
    let bounds = 0.01..=3600.0;
    if bounds.contains(&seconds) { Ok(seconds) } else { Err("choose 0.01 to 3600".to_owned()) }
}
