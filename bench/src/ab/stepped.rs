//! Instructions of one request, one by one: see [`crate::steps`].
//!
//! A request begins and ends while the stepped thread sleeps in the kernel. So it includes waking
//! up, the turns of a reactor that find nothing, and going to sleep. One thread is stepped at a
//! time, and the others have the full speed: a stepped daemon then finds the answer of the other
//! one without sleeping, as it does at full speed. Everything is on one CPU, which makes stepping
//! fast.
//!
//! Time does not wait for a stepped thread. What a daemon does once in a while, such as to solve a
//! plan anew, comes once in ten thousand gets at full speed, and in every fifth of these: see
//! [`usual`].

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use piped_core::modes::Profile;

use super::process::{Arm, PROCESSES};
use super::report::Process;
use crate::contest;
use crate::failure::{Doing as _, Failure, joined};
use crate::machine::{self, Cpus};
use crate::stats::Interval;
use crate::steps::{Stepper, Steps};

/// The usual task: a get of 4 KiB.
pub(crate) const TASK: &str = "get-4k";

/// Threads with this at the beginning of their names are the shards of a daemon.
const SHARD: &str = "piped-shard";

/// Requests at full speed before stepping, for the estimators, in seconds.
const WARM: f64 = 1.0;

/// Stepped requests before those that count: the reactors learn that spinning does not pay.
const UNCOUNTED: usize = 2;

/// Requests that took longer (in a new plan, or on a busy machine) go on without steps, because a
/// client gives a request up after 15 s.
const LIMIT: Duration = Duration::from_secs(10);

/// Requests that are stepped and count.
const REQUESTS: usize = 15;

/// Fewest requests that are alike, and by how much they may differ.
const ALIKE: (usize, f64) = (3, 1.02);

/// Steps of one thread for one request.
#[derive(Debug)]
pub(crate) struct Stretch {
    /// Steps when it is woken for nothing.
    idle: Steps,
    steps: Steps,
}

impl Stretch {
    /// Addresses of the steps when the thread is woken for nothing, and of those of the request.
    pub(crate) fn into_addresses(self) -> [Vec<u64>; 2] {
        [self.idle, self.steps].map(Steps::into_addresses)
    }

    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Steps when it is woken for nothing.
    pub(crate) fn idle(&self) -> &Steps {
        &self.idle
    }
}

/// An arm with threads that can be stepped.
#[derive(Debug)]
pub(crate) struct Stepped {
    arm: Arm,
    task: &'static str,
    /// The thread of each process that a request is the work of.
    threads: [u32; PROCESSES.len()],
}

impl Stepped {
    /// Starts the daemons of a build, with one shard each, to step one of the tasks of `bench ab`.
    pub(crate) fn start(
        task: &'static str,
        name: &'static str,
        build: &Path,
        profile: Profile,
        data: &Path,
    ) -> Result<Self, Failure> {
        // The arm and its daemons inherit the CPU.
        machine::pin(Cpus::here().first)?;
        let started = Arm::start(name, build, profile, data);
        machine::unpin()?;
        let mut arm = started?;
        arm.ask(task, WARM)?;
        let [client, asked, serving] = arm.processes();
        Ok(Self { arm, task, threads: [client, shard_of(asked)?, shard_of(serving)?] })
    }

    /// Process numbers in the order of [`PROCESSES`].
    pub(crate) fn processes(&self) -> [u32; PROCESSES.len()] {
        self.arm.processes()
    }

    /// Steps requests in a process, by its place in [`PROCESSES`]. Returns the usual ones, fewest
    /// steps first.
    pub(crate) fn requests(&mut self, process: usize) -> Result<Vec<Stretch>, Failure> {
        let mut all = self.recorded(process, REQUESTS)?;
        let found = usual(&all, |stretch| stretch.steps.len());
        let found = found.ok_or_else(|| too_few(REQUESTS, all.len()))?;
        all.truncate(found.end);
        all.drain(..found.start);
        Ok(all)
    }

    /// Steps so many requests in a process. Returns those that ended in time, fewest steps first:
    /// long requests may not be alike.
    pub(crate) fn recorded(
        &mut self,
        process: usize,
        count: usize,
    ) -> Result<Vec<Stretch>, Failure> {
        let mut all = Vec::new();
        for number in 0..UNCOUNTED + count {
            contest::check()?;
            let stretch = self.stretch(self.threads[process])?;
            all.extend(stretch.filter(|_| number >= UNCOUNTED));
        }
        if all.len() < ALIKE.0 {
            return Err(too_few(count, all.len()));
        }
        all.sort_by_key(|stretch| stretch.steps.len());
        Ok(all)
    }

    fn stretch(&mut self, thread: u32) -> Result<Option<Stretch>, Failure> {
        let (arm, task) = (&mut self.arm, self.task);
        let over = &AtomicBool::new(false);
        let (begin, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            // It owns the sender: if it fails, the receiver hears of that.
            let stepping = scope.spawn(move || {
                machine::pin(Cpus::here().first)?;
                let mut stepper = Stepper::attach(thread)?;
                let idle = stepper.run(|| true, LIMIT)?;
                let _ = begin.send(());
                let steps = stepper.run(|| over.load(Ordering::Acquire), LIMIT)?;
                Ok(idle.zip(steps).map(|(idle, steps)| Stretch { idle, steps }))
            });
            // Without that message it failed, and says why below.
            let answer = begun.recv().ok().map(|()| arm.ask(task, 0.0));
            over.store(true, Ordering::Release);
            let stretch = joined(stepping.join(), "a thread that steps")?;
            match answer {
                Some(Ok(measured)) if measured.requests == 1 => Ok(stretch),
                Some(Ok(measured)) => {
                    Err(Failure::new(format!("{} requests instead of one", measured.requests)))
                }
                Some(Err(failure)) => Err(failure),
                None => Err(Failure::new("nothing was stepped")),
            }
        })
    }
}

fn too_few(stepped: usize, ended: usize) -> Failure {
    Failure::new(format!(
        "of {stepped} stepped requests, {ended} took less than {} s, and no {} of them are alike: \
         repeat it when the machine is idle",
        LIMIT.as_secs(),
        ALIKE.0
    ))
}

/// The cheapest of some things that are alike, which begin with the cheapest of all.
fn usual<T>(things: &[T], cost: impl Fn(&T) -> usize) -> Option<Range<usize>> {
    let (enough, factor) = ALIKE;
    (0..things.len()).find_map(|start| {
        let most = cost(&things[start]) as f64 * factor;
        let end = things.partition_point(|thing| cost(thing) as f64 <= most);
        (end - start >= enough).then_some(start..end)
    })
}

/// Instructions of a get in each daemon, get by get: see [`processes`].
pub(super) fn count(
    name: &'static str,
    build: &Path,
    profile: Profile,
    data: &Path,
) -> Result<[Vec<f64>; 2], Failure> {
    let counted = || {
        let mut stepped = Stepped::start(TASK, name, build, profile, data)?;
        let gets = [stepped.requests(1)?, stepped.requests(2)?];
        Ok(gets.map(|gets| gets.iter().map(|get| get.steps.len() as f64).collect()))
    };
    counted().map_err(|failure: Failure| failure.within(format!("{name} build")))
}

/// The counts of an old and a new build as rows of the report.
pub(super) fn processes(counts: &[[Vec<f64>; 2]; 2]) -> Vec<Process> {
    let [_, daemons @ ..] = PROCESSES;
    let rows = daemons.into_iter().enumerate().filter_map(|(daemon, process)| {
        let [old, new] = counts.each_ref().map(|build| Interval::of_median(&build[daemon]));
        let (old, new) = (old?, new?);
        // The gets of the builds are no pairs, so the ends are the farthest ones.
        let ratio = Some(Interval {
            low: new.low / old.high,
            median: new.median / old.median,
            high: new.high / old.low,
        });
        Some(Process { row: TASK.to_owned(), process, what: "instructions", old, new, ratio })
    });
    rows.collect()
}

/// Thread of the shard of a daemon.
fn shard_of(daemon: u32) -> Result<u32, Failure> {
    for thread in fs::read_dir(format!("/proc/{daemon}/task")).doing("threads")? {
        let thread = thread?;
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if name.starts_with(SHARD)
            && let Some(number) = thread.file_name().to_str().and_then(|name| name.parse().ok())
        {
            return Ok(number);
        }
    }
    Err(Failure::new(format!("process {daemon} has no thread {SHARD}-0")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_are_the_cheapest_that_are_alike() {
        let usual = |costs: &[usize]| usual(costs, |cost| *cost);
        assert_eq!(usual(&[]), None);
        assert_eq!(usual(&[100, 200]), None);
        assert_eq!(usual(&[100, 101, 103]), None);
        assert_eq!(usual(&[100, 101, 102]), Some(0..3));
        // One that is cheaper by chance, and several that did more.
        assert_eq!(usual(&[90, 100, 100, 101, 102, 110, 110, 110, 110, 500]), Some(1..5));
    }

    #[test]
    fn gets_of_two_builds_are_compared_by_daemon() {
        let old = [vec![100.0, 110.0, 90.0], vec![10.0; 3]];
        let new = [vec![50.0, 50.0, 5000.0], vec![20.0; 3]];
        let processes = processes(&[old, new]);
        let [asked, serving] = &processes[..] else { panic!("two daemons: {processes:?}") };
        assert_eq!((asked.process, serving.process), ("asked", "serving"));
        assert_eq!((asked.old.median, asked.new.median), (100.0, 50.0));
        let ratio = asked.ratio.expect("both did something");
        assert_eq!(ratio.median, 0.5);
        assert!(ratio.low <= 50.0 / 110.0 && ratio.high >= 50.0 / 90.0, "{ratio:?}");
        assert_eq!(serving.ratio, Some(Interval::exact(2.0)));
    }
}
