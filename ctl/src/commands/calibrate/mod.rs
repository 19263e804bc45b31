//! `pipectl calibrate`: costs of stages, measured on purpose, beside the daemon's own figures.
//!
//! ```text
//! target   the paths: a peer's memory, a file there, a device; and how they are read
//! runner   a client of the daemon like any other: sends the requests of the procedure
//!          (piped_model::estimate::active chooses them, within bounds)
//! compare  the daemon's stages of that path against the measurement, and a verdict in words
//! leave    the daemon's permit, renewed while this lives
//! show     tables
//! ```
//!
//! The command first asks the daemon for a permit, which only one operator at a time has. In all
//! else it is a client: limits hold for it, others' urgent requests go first, and when it is gone
//! the daemon cleans up behind it.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use clap::Args as ClapArgs;
use piped_client::{Class, Client, ClientBuilder, WaitPolicy};
use piped_config::Bytes;
use piped_config::admin::watch::{STAT, Stat};
use piped_config::admin::{STAGES, STATUS, Stages, Status};
use piped_core::modes::CalibrationMode;
use piped_model::estimate::active::{Options, Procedure};
use piped_report::shard::{ShardReport, StageReport};

use self::compare::{Compared, Context};
use self::leave::{Leave, Watch};
use self::runner::Runner;
use self::target::{Opened, Target};
use crate::admin::Admin;
use crate::args::{Args, ClientDoor};
use crate::client;
use crate::commands::cp::stop::Stop;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output, Progress};

mod compare;
mod leave;
mod runner;
mod show;
mod target;
#[cfg(test)]
mod tests;

const AFTER_HELP: &str = "\
Only root and the daemon's user may do this. It sends bulk requests beside those
of others: for no more than --share of the time, at most 32 requests and 8 MiB
at once, in runs of about 20 ms with rests between. No data of anybody's is
written. A peer is asked for memory of zeros that every node keeps for this. A
device is read through a file of random bytes, made in --dir without a name, or
through --file. Ctrl-C ends it and shows the results so far.
See docs/calibrate.md (/usr/share/doc/piped/calibrate.md) for the meaning of the
rows.";

/// Arguments of `pipectl calibrate`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CalibrateArgs {
    /// Gets from a peer's memory: the way there, without its disk (default, without --device too:
    /// all peers)
    #[arg(long = "peer", value_name = "P")]
    peers: Vec<String>,

    /// Direct reads of a device, as MAJOR:MINOR (default, without --peer too: that of --file or
    /// --dir)
    #[arg(long = "device", value_name = "D", value_parser = target::device)]
    devices: Vec<(u32, u32)>,

    /// Read this file instead of a scratch file: on the device (without --device: on its own), or,
    /// as EXPORT/PATH, at each peer beside its memory
    #[arg(long, value_name = "FILE")]
    file: Option<String>,

    /// Directory for the scratch file
    #[arg(long, value_name = "DIR", default_value = "/var/lib/piped")]
    dir: PathBuf,

    /// Seconds for each path, rests included
    #[arg(long, value_name = "T", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,

    /// Bytes for each path, at most
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = sent)]
    bytes: Bytes,

    /// Percent of the time that a path may be in use
    #[arg(long, value_name = "PERCENT", default_value_t = 25,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    share: u32,

    #[command(flatten)]
    door: ClientDoor,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (1.0..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("choose 1 to 600".to_owned()),
    }
}

fn sent(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    let (from, to) = (Bytes::mib(16), Bytes::gib(64));
    if (from..=to).contains(&size) { Ok(size) } else { Err(format!("choose {from} to {to}")) }
}

/// The arena has room for outstanding requests, and for what the allocator's order wastes.
const ARENA_BYTES: u64 = 24 << 20;
/// CPUs for this program and a shard, and for a peer's daemon on the same machine.
const CPUS_TO_SPIN: usize = 4;
/// Deadlines of requests in seconds: not above the time for a path, and long enough for any answer.
const DEADLINE_SECONDS: [f64; 2] = [2.0, 30.0];
/// Opens may take longer than the requests of a short run: a busy daemon makes memory for a client.
const OPEN: Duration = Duration::from_secs(10);
/// Longest wait before a signal is seen or the permit renewed: in runs, rests, opens.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &Args, asked: &CalibrateArgs, output: &Output) -> Result<(), Failure> {
    let admin = Admin::new(&args.socket)?;
    let targets = target::choose(&admin, asked)?;
    let stop = Stop::listen()?;
    let leave = Leave::take(&admin)?;
    let watch = Watch { stop: &stop, leave: &leave };
    let progress = Progress::new(!args.json);
    let mut done = Vec::new();
    let ended = measure_all(&admin, asked, &targets, (watch, &progress), &mut done);
    progress.clear();
    drop(leave);
    if !done.is_empty() {
        if args.json {
            output::json(show::Report { paths: &done })?;
        } else {
            show::print(output, &done)?;
        }
    }
    ended
}

fn measure_all(
    admin: &Admin,
    asked: &CalibrateArgs,
    targets: &[Target],
    (watch, progress): (Watch<'_>, &Progress),
    done: &mut Vec<Compared>,
) -> Result<(), Failure> {
    let client = connect(asked)?;
    for target in targets {
        let (compared, ended) = measure(admin, asked, &client, target, (watch, progress))?;
        done.push(compared);
        ended?;
    }
    Ok(())
}

/// Measures a path. Returns the figures and, if the run ended early, the reason. An error alone
/// means that nothing was measured.
fn measure(
    admin: &Admin,
    asked: &CalibrateArgs,
    client: &Client,
    target: &Target,
    (watch, progress): (Watch<'_>, &Progress),
) -> Result<(Compared, Result<(), Failure>), Failure> {
    progress.say(format_args!("{target}: getting ready"));
    let opened = open(client, asked, target, watch)?;
    let before = Seen::now(admin)?;
    let options = Options {
        seconds_max: asked.seconds,
        bytes_max: asked.bytes.0,
        share: f64::from(asked.share) / 100.0,
        largest: opened.largest(),
        ..Options::default()
    };
    let mut runner = Runner::new(client, opened, watch, deadline(asked.seconds))?;
    let mut procedure = Procedure::new(options, runner.now());
    let ended = runner.drive(&mut procedure, |part, at| {
        progress.say(format_args!(
            "{target}: {at}, {:.0} % (Ctrl-C shows what there is)",
            part * 100.0
        ));
    });
    if ended.is_err() {
        procedure.stop(runner.now());
    }
    let found = procedure.found(runner.now());
    let after = match (Seen::now(admin), &ended) {
        (Ok(after), _) => after,
        // A daemon that is gone reports nothing more; what was measured until then is kept.
        (Err(_), Err(_)) => before.clone(),
        (Err(failure), Ok(())) => return Err(failure),
    };
    let others = after.others(&before, runner.requests(), found.bytes);
    let context = Context {
        mode: after.mode,
        others,
        before: target.path(&before.stages, &after.stages),
        after: target.path(&after.stages, &after.stages),
        broke_off: ended
            .as_ref()
            .err()
            .filter(|it| it.exit() != Exit::Interrupted)
            .map(Failure::to_string),
    };
    Ok((compare::compare(target, &found, &context), ended))
}

/// Opens on a thread of its own, because it writes a scratch file or asks a peer, and a signal must
/// be heard meanwhile.
fn open(
    client: &Client,
    asked: &CalibrateArgs,
    target: &Target,
    watch: Watch<'_>,
) -> Result<Opened, Failure> {
    let (sender, opened) = mpsc::channel();
    let (client, asked, target) = (client.clone(), asked.clone(), target.clone());
    // Nobody receives it any more after a signal.
    let open = move || drop(sender.send(target.open(&client, &asked)));
    let spawned = thread::Builder::new().name("open".to_owned()).spawn(open);
    spawned.map_err(|error| Failure::io("cannot start a thread", &error))?;
    loop {
        watch.look()?;
        match opened.recv_timeout(LOOK) {
            Ok(opened) => return opened,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::failed("the thread that opens is gone: please report this"));
            }
        }
    }
}

fn deadline(seconds: f64) -> Duration {
    let [least, most] = DEADLINE_SECONDS;
    Duration::from_secs_f64(seconds.clamp(least, most))
}

fn connect(asked: &CalibrateArgs) -> Result<Client, Failure> {
    // The client spins where there are CPUs for it and the daemons, so that wake-ups are not
    // measured. Without enough CPUs it sleeps: a daemon without a CPU would be worse.
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let wait = if cpus >= CPUS_TO_SPIN { WaitPolicy::Latency } else { WaitPolicy::Balanced };
    let builder = ClientBuilder::new().arena_bytes(ARENA_BYTES).class(Class::Bulk);
    let builder = builder.wait(wait).depth(64).timeout(deadline(asked.seconds).max(OPEN));
    client::connect(builder, &asked.door.socket)
}

/// State of the daemon at one time.
#[derive(Debug, Clone)]
struct Seen {
    stages: Vec<StageReport>,
    stat: Stat,
    mode: CalibrationMode,
}

impl Seen {
    fn now(admin: &Admin) -> Result<Self, Failure> {
        let Stages { stages } = admin.get(STAGES)?;
        let status: Status<ShardReport> = admin.get(STATUS)?;
        let mode = status.shards.first().map_or(CalibrationMode::Live, |shard| shard.calibration);
        Ok(Self { stages, stat: admin.get(STAT)?, mode })
    }

    /// Part of the requests or of the bytes since `before` that were others': the larger of the
    /// two.
    fn others(&self, before: &Self, requests: u64, bytes: u64) -> f64 {
        let sums = |stat: &Stat| {
            let all = stat.operations.iter();
            all.fold((0, 0), |(count, bytes), it| {
                (count + it.completed + it.failed, bytes + it.bytes)
            })
        };
        let (now, then) = (sums(&self.stat), sums(&before.stat));
        let part = |all: u64, own: u64| all.saturating_sub(own) as f64 / all.max(1) as f64;
        part(now.0 - then.0.min(now.0), requests).max(part(now.1 - then.1.min(now.1), bytes))
    }
}

#[cfg(test)]
mod bounds {
    use super::*;

    #[test]
    fn a_request_has_no_longer_than_its_path() {
        for (seconds, is) in [(1.0, 2), (2.0, 2), (10.0, 10), (600.0, 30)] {
            assert_eq!(deadline(seconds), Duration::from_secs(is));
        }
    }
}
