//! `bench simulate`: very many simulated worlds with faults, and their outcomes.
//!
//! The worlds are in `system-tests`. This file decides how many run at once, times them, and says
//! how to repeat a failure.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use system_tests::world::{Kind, Sweep, Swept};

use crate::contest::INTERRUPTED;
use crate::failure::{Doing as _, Failure};
use crate::{clock, hear_interrupts};

/// Worlds of one run of the bar.
const SEEDS: u64 = 100_000;

/// Time between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(20);

/// Arguments of `bench simulate`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of worlds to run.
    #[arg(long, value_name = "N", default_value_t = SEEDS,
        value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Seed of the first one. With `--seeds 1` the world's last events are shown.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Number of worlds at once. Default: one on each CPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// One JSON document instead of text.
    #[arg(long)]
    json: bool,
}

/// Result of a run.
#[derive(Debug, Serialize)]
struct Summary {
    schema_version: u32,
    from: u64,
    seeds: u64,
    worlds: u64,
    threads: usize,
    seconds: f64,
    seeds_per_second: f64,
    events: u64,
    simulated_seconds: f64,
    interrupted: bool,
    kinds: std::collections::BTreeMap<&'static str, u64>,
    seen: std::collections::BTreeMap<&'static str, u64>,
    /// Events that no world saw although some must.
    unseen: Vec<&'static str>,
    failed: u64,
    /// The first failures of them.
    failures: Vec<FailedWorld>,
}

#[derive(Debug, Serialize)]
struct FailedWorld {
    seed: u64,
    kind: &'static str,
    message: String,
    replay: String,
}

/// Runs the worlds. Returns the exit code: 0 all kept their promises, 1 some did not, 2 none failed
/// but the run was interrupted or saw too little.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    if arguments.seeds == 1 && !arguments.json {
        return Ok(replay(arguments.from));
    }
    hear_interrupts()?;
    // Threads inherit it, and people at work on this machine go first.
    rustix::process::setpriority_process(None, 19).doing("a low priority")?;
    let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or_else(cpus, usize::from);
    let sweep = Sweep { from: arguments.from, seeds: arguments.seeds, threads };
    let begun = clock::now();
    let swept = watched(sweep);
    let summary = Summary::new(sweep, swept, begun.elapsed().as_secs_f64());
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&summary).doing("the summary")?);
    } else {
        print!("{}", summary.text());
    }
    Ok(summary.exit_code())
}

fn replay(seed: u64) -> u8 {
    let kind = Kind::of(seed).name;
    match Sweep::replay(seed) {
        Ok(()) => {
            println!("seed {seed} ({kind}) keeps all promises");
            0
        }
        Err(message) => {
            println!("seed {seed} ({kind}): {message}");
            1
        }
    }
}

/// Runs the sweep on threads of its own, and prints a line now and then.
fn watched(sweep: Sweep) -> Swept {
    let lived = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let worlds = scope.spawn(|| sweep.run(&INTERRUPTED, &lived));
        let (begun, mut told) = (clock::now(), Duration::ZERO);
        while !worlds.is_finished() {
            clock::pause(Duration::from_millis(50));
            let passed = begun.elapsed();
            if passed >= told + PROGRESS {
                told = passed;
                let count = lived.load(Ordering::Relaxed);
                let rate = count as f64 / passed.as_secs_f64();
                eprintln!("{count} of {} worlds, {rate:.0}/s", sweep.seeds);
            }
        }
        worlds.join().expect("the worlds' panics are caught")
    })
}

impl Summary {
    fn new(sweep: Sweep, swept: Swept, seconds: f64) -> Self {
        let unseen = swept.unseen();
        let failures = swept.failures.into_iter().map(|failed| FailedWorld {
            seed: failed.seed,
            kind: failed.kind,
            message: failed.message,
            replay: format!(
                "cargo run --release -p bench -- simulate --seeds 1 --from {}",
                failed.seed
            ),
        });
        Self {
            schema_version: 1,
            from: sweep.from,
            seeds: sweep.seeds,
            worlds: swept.worlds,
            threads: sweep.threads,
            seconds,
            seeds_per_second: swept.worlds as f64 / seconds.max(f64::MIN_POSITIVE),
            events: swept.events,
            simulated_seconds: swept.time.0 as f64 / 1e9,
            interrupted: swept.worlds < sweep.seeds,
            kinds: swept.kinds,
            seen: swept.seen,
            unseen,
            failed: swept.failed,
            failures: failures.collect(),
        }
    }

    fn exit_code(&self) -> u8 {
        match () {
            () if self.failed > 0 => 1,
            () if self.interrupted || !self.unseen.is_empty() => 2,
            () => 0,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| writeln!(text, "{words}").expect("a String takes it");
        let Self { worlds, threads, seconds, seeds_per_second, failed, .. } = self;
        for world in &self.failures {
            let FailedWorld { seed, kind, message, replay } = world;
            line(format!("seed {seed} ({kind}): {message}\n  replay with: {replay}"));
        }
        let kinds = self.kinds.iter().map(|(kind, count)| format!("{count} {kind}"));
        line(format!("worlds: {}", kinds.collect::<Vec<_>>().join(", ")));
        for (what, count) in &self.seen {
            line(format!("{count:>12} {what}"));
        }
        for what in &self.unseen {
            line(format!("no world saw: {what}"));
        }
        if self.interrupted {
            line(format!("interrupted after {worlds} of {} worlds", self.seeds));
        }
        line(format!(
            "seeds {}..{}: {worlds} worlds in {seconds:.0} s on {threads} threads, \
             {seeds_per_second:.0} seeds/s, {} events, {:.0} s simulated: {failed} failed",
            self.from,
            self.from.saturating_add(self.seeds),
            self.events,
            self.simulated_seconds,
        ));
        text
    }
}
