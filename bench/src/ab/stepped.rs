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

use std::path::Path;

use piped_core::modes::Profile;

use super::process::{Arm, PROCESSES};
use super::report::Process;
use crate::contest;
use crate::failure::Failure;
use crate::machine::{self, Cpus};
use crate::stats::Interval;
use crate::steps::requests::{
    ALIKE, REQUESTS, Stretch, UNCOUNTED, shard_of, stretch, too_few, unpaired, usual,
};

/// The usual task: a get of 4 KiB.
pub(crate) const TASK: &str = "get-4k";

/// Requests at full speed before stepping, for the estimators, in seconds.
const WARM: f64 = 1.0;

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
        let found = usual(&all, |stretch| stretch.steps().len());
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
        all.sort_by_key(|stretch| stretch.steps().len());
        Ok(all)
    }

    fn stretch(&mut self, thread: u32) -> Result<Option<Stretch>, Failure> {
        let (arm, task) = (&mut self.arm, self.task);
        stretch(thread, || match arm.ask(task, 0.0)?.requests {
            1 => Ok(()),
            several => Err(Failure::new(format!("{several} requests instead of one"))),
        })
    }
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
        Ok(gets.map(|gets| gets.iter().map(|get| get.steps().len() as f64).collect()))
    };
    counted().map_err(|failure: Failure| failure.within(format!("{name} build")))
}

/// The counts of an old and a new build as rows of the report.
pub(super) fn processes(counts: &[[Vec<f64>; 2]; 2]) -> Vec<Process> {
    let [_, daemons @ ..] = PROCESSES;
    let rows = daemons.into_iter().enumerate().filter_map(|(daemon, process)| {
        let [old, new] = counts.each_ref().map(|build| Interval::of_median(&build[daemon]));
        let (old, new) = (old?, new?);
        let ratio = Some(unpaired(new, old));
        Some(Process { row: TASK.to_owned(), process, what: "instructions", old, new, ratio })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
