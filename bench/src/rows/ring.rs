//! The way to the daemon and back: time, system calls, heap allocations.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use piped_client::OpenOptions;
use piped_core::modes::Profile;

use crate::clock;
use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nodes::{Pair, counter, profile_name};
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB, MOMENT};
use crate::stats::{Bar, Interval};
use crate::strace::{Calls, Strace, Watched};

const PROFILE: Profile = Profile::Latency;
const DEPTH: usize = 64;
/// Time in which calls and allocations are counted.
const COUNTED: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(300);

pub(super) fn nop_alone(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let cpus = bench.cpus;
    bench.with_both(PROFILE, |bench, _, pair| {
        let mut asker = Asker::connect(&pair.a, Place::Spin(cpus.second), 1 << 20)?;
        let found = repeated(bench, || Ok(asker.nops(MOMENT)?.p50()))?;
        let note = "p50; client and daemon spin on two CPUs";
        let bar = Bar::AtMost(2e-6);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Seconds, found, bar, note))
    })
}

pub(super) fn nop_deep(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let cpus = bench.cpus;
    bench.with_both(PROFILE, |bench, _, pair| {
        let mut asker = Asker::connect(&pair.a, Place::Spin(cpus.second), 1 << 20)?;
        let found = repeated(bench, || Ok(asker.nops_deep(DEPTH, MOMENT)?.0))?;
        let bar = Bar::AtLeast(1e6);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::PerSecond, found, bar, "depth 64"))
    })
}

/// Value over all rounds: there is nothing to choose, so none of them is for choosing.
fn repeated(
    bench: &mut Bench,
    measure: impl FnMut() -> Result<f64, Failure>,
) -> Result<Interval, Failure> {
    let rounds = bench.rounds(&mut [Arm::variant("piped".to_owned(), measure)])?;
    let values: Vec<f64> = rounds.kept.iter().filter_map(|round| round.values[0]).collect();
    Interval::of_median(&values).ok_or_else(|| Failure::new("all rounds had stolen time"))
}

/// The client's own count, in rounds without stolen time: a daemon that lost its CPU for longer
/// than it spins has to be woken, by whatever client. The count of strace beside it includes all of
/// that.
pub(super) fn syscalls_client(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let bar = Bar::AtMost(0.0);
    let cpus = bench.cpus;
    bench.with_both(PROFILE, |bench, _, pair| {
        let mut asker = Asker::connect(&pair.a, Place::Spin(cpus.second), 1 << 20)?;
        asker.nops_deep(DEPTH, WARM_UP)?;
        let rounds = bench.rounds(&mut [Arm::variant("piped".to_owned(), || {
            let before = asker.calls();
            let (_, requests, _) = asker.nops_deep(DEPTH, MOMENT)?;
            Ok((asker.calls() - before) as f64 / requests as f64)
        })])?;
        drop(asker);
        let values: Vec<f64> = rounds.kept.iter().filter_map(|round| round.values[0]).collect();
        if values.is_empty() {
            return Err(Failure::new("all rounds had stolen time"));
        }
        let found = Interval::exact(values.iter().sum::<f64>() / values.len() as f64);
        let mut note = format!("its own count in {} rounds", values.len());
        if Strace::is_installed() {
            let load = Load::Nops(cpus.second);
            let (calls, requests) = load.watched(pair, |worker| {
                let strace = Strace::attach(Watched::Thread(worker))?;
                Ok(Box::new(move || strace.finish()))
            })?;
            note += &format!("; strace, stolen time and all: {}", told(&calls, requests));
        }
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::PerRequest, found, bar, note))
    })
}

pub(super) fn syscalls_daemon(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let bar = Bar::AtMost(0.1);
    let cpus = bench.cpus;
    let file = bench.file()?;
    bench.with_both(PROFILE, |_, _, pair| {
        let load = if name.ends_with("nop") {
            Load::Nops(cpus.second)
        } else {
            Load::Reads(cpus.second, file)
        };
        // The daemon's own count comes first: strace slows each call, and a slow daemon takes
        // larger batches.
        let (own, requests) = load.watched(pair, |_| {
            let before = own_calls(pair)?;
            Ok(Box::new(move || {
                let after = own_calls(pair)?;
                Ok(after.zip(before).map(|(after, before)| after - before))
            }))
        })?;
        let mut note = own.map_or_else(
            || "the daemon has no count of its own".to_owned(),
            |own| format!("its own count: {own} calls for {requests} requests"),
        );
        let mut found = own.map(|own| own as f64 / requests as f64);
        if Strace::is_installed() {
            let (calls, requests) = load.watched(pair, |_| {
                let strace = Strace::attach(Watched::Process(pair.a.pid()))?;
                Ok(Box::new(move || strace.finish()))
            })?;
            note += &format!("; strace: {}", told(&calls, requests));
            found = found.or(Some(calls.total as f64 / requests as f64));
        }
        let profile = profile_name(PROFILE);
        Ok(match found.map(Interval::exact) {
            Some(found) => Row::judged(name, &profile, Unit::PerRequest, found, bar, note),
            None => {
                Row::unchecked(name, &profile, Unit::PerRequest, bar, note + " (install strace)")
            }
        })
    })
}

fn own_calls(pair: &Pair) -> Result<Option<u64>, Failure> {
    counter(&pair.a.admin, &["reactor", "syscalls"])
}

fn told(calls: &Calls, requests: u64) -> String {
    let most: Vec<String> =
        calls.by_name.iter().take(3).map(|(name, count)| format!("{name} {count}")).collect();
    let most = if most.is_empty() { "none".to_owned() } else { most.join(", ") };
    format!("{most} for {requests} requests")
}

pub(super) fn allocations_client(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let cpus = bench.cpus;
    bench.with_both(PROFILE, |_, _, pair| {
        let mut asker = Asker::connect(&pair.a, Place::Spin(cpus.second), 1 << 20)?;
        asker.nops_deep(DEPTH, WARM_UP)?;
        let (_, requests, allocations) = asker.nops_deep(DEPTH, COUNTED)?;
        let found = Interval::exact(allocations as f64 / requests as f64);
        let note = format!("{allocations} of the client's thread for {requests} requests");
        let bar = Bar::AtMost(0.0);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::PerRequest, found, bar, note))
    })
}

pub(super) fn allocations_daemon(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let bar = Bar::AtMost(0.0);
    let cpus = bench.cpus;
    let file = bench.file()?;
    bench.with_both(PROFILE, |_, _, pair| {
        let profile = profile_name(PROFILE);
        let mut sum = 0.0;
        let mut notes = Vec::new();
        for (what, load) in
            [("nops", Load::Nops(cpus.second)), ("4 KiB reads", Load::Reads(cpus.second, file))]
        {
            let (count, requests) = load.watched(pair, |_| {
                let before = counter(&pair.a.admin, ALLOCATIONS)?;
                Ok(Box::new(move || {
                    let after = counter(&pair.a.admin, ALLOCATIONS)?;
                    Ok(after.zip(before).map(|(after, before)| after - before))
                }))
            })?;
            let Some(count) = count else {
                let note = "this daemon does not count them: `cargo build --release -p piped \
                            --features count-allocations`";
                return Ok(Row::unchecked(name, &profile, Unit::PerRequest, bar, note));
            };
            sum += count as f64 / requests as f64;
            notes.push(format!("{count} for {requests} {what}"));
        }
        let note = format!("of the shard's thread: {}", notes.join(", "));
        let found = Interval::exact(sum);
        Ok(Row::judged(name, &profile, Unit::PerRequest, found, bar, note))
    })
}

const ALLOCATIONS: &[&str] = &["reactor", "allocations"];

/// Work of a client at depth 64 while something is counted.
enum Load {
    Nops(usize),
    Reads(usize, std::path::PathBuf),
}

/// Ends a count and returns it.
type Finish<'a, T> = Box<dyn FnOnce() -> Result<T, Failure> + 'a>;

impl Load {
    /// Runs the load on a thread of its own. `begin` is called with that thread's number when it is
    /// warm, and its result is called at the end. Returns the count and the requests meanwhile.
    fn watched<'a, T>(
        &self,
        pair: &Pair,
        begin: impl FnOnce(u32) -> Result<Finish<'a, T>, Failure>,
    ) -> Result<(T, u64), Failure> {
        let done = AtomicU64::new(0);
        let worker = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                worker.store(
                    rustix::thread::gettid().as_raw_nonzero().get() as u64,
                    Ordering::Relaxed,
                );
                self.work(pair, &done, &over)
            });
            let counted = (|| {
                clock::pause(WARM_UP);
                let worker = worker.load(Ordering::Relaxed);
                let finish = begin(worker as u32)?;
                let before = done.load(Ordering::Relaxed);
                clock::pause(COUNTED);
                let requests = done.load(Ordering::Relaxed) - before;
                Ok::<_, Failure>((finish()?, requests))
            })();
            over.store(true, Ordering::Relaxed);
            let worked = working.join().map_err(|_| Failure::new("the load's thread panicked"))?;
            worked?;
            let (counted, requests) = counted?;
            if requests == 0 {
                return Err(Failure::new("no request completed while they were counted"));
            }
            Ok((counted, requests))
        })
    }

    fn work(&self, pair: &Pair, done: &AtomicU64, over: &AtomicBool) -> Result<(), Failure> {
        match self {
            Self::Nops(cpu) => {
                let mut asker = Asker::connect(&pair.a, Place::Spin(*cpu), 1 << 20)?;
                asker.nops_while(DEPTH, done, || !over.load(Ordering::Relaxed))
            }
            Self::Reads(cpu, file) => {
                let mut asker = Asker::connect(&pair.a, Place::Spin(*cpu), 1 << 20)?;
                let handle = asker.client.open_file(file, OpenOptions::read()).doing("open")?;
                let ask = Ask { handle: &handle, block: 4 * KIB, depth: DEPTH };
                asker.reads_while(ask, |_, _| {
                    done.fetch_add(1, Ordering::Relaxed);
                    !over.load(Ordering::Relaxed)
                })
            }
        }
    }
}
