//! Very many worlds with disasters, some at once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use system_tests::scale::{Churned, File};

use super::apart::{Play, World};
use super::table::{head, line};
use crate::failure::{Doing as _, Failure};
use crate::{clock, contest};

/// What worlds with disasters went through, and what of it broke a promise.
#[derive(Debug, Default)]
pub(super) struct Lived {
    worlds: u64,
    /// Worlds that broke one.
    broken: u64,
    /// Worlds of which the process did not come to an end.
    unplayed: u64,
    events: u64,
    restarts: u64,
    partitions: u64,
    jumps: u64,
    cuts: u64,
    losses: u64,
    requests: [u64; 2],
    failures: BTreeMap<String, u64>,
    /// The longest time until all connections were up again, in seconds.
    whole_again: f64,
}

/// Lives so many worlds like that one, some at once, with seeds from its own on.
pub(super) fn live(world: World, worlds: u64, threads: Option<u16>) -> Result<Lived, Failure> {
    // Children inherit it, and people at work on this machine go first.
    rustix::process::setpriority_process(None, 19).doing("a low priority")?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let first = world.options().seed;
    let end = first.saturating_add(worlds);
    let (begun, next, all) = (clock::now(), AtomicU64::new(first), Mutex::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.map_or(cpus, usize::from) {
            scope.spawn(|| {
                while !contest::interrupted() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    one((world, seed), &all);
                }
            });
        }
    });
    let lived: Lived = all.into_inner().doing("a thread")?;
    let (seconds, events) = (begun.elapsed().as_secs_f64(), lived.events);
    eprintln!("bench: {} worlds in {seconds:.0} s, {events} events", lived.worlds);
    Ok(lived)
}

fn one((world, seed): (World, u64), all: &Mutex<Lived>) {
    // Each second one has one file that all nodes have.
    let file = if seed.is_multiple_of(2) { File::OfAll } else { File::OfEach };
    let told = world.with_seed(seed).playing(Play::Churn(file)).churned();
    match &told {
        // It ended with this run.
        Err(_) if contest::interrupted() => return,
        Err(failure) => println!("seed {seed}: {failure}"),
        Ok(Err(broken)) => println!("seed {seed}: {broken}"),
        Ok(Ok(told)) => eprintln!(
            "bench: seed {seed}: {} restarts, {} partitions, {} jumps, {} cuts, {} losses, {:?} \
             requests, {:?}, whole again after {:.2} s",
            told.restarts,
            told.partitions,
            told.jumps,
            told.cuts,
            told.losses,
            told.figures.requests,
            told.figures.failures,
            told.figures.took.seconds(),
        ),
    }
    if let Ok(mut all) = all.lock() {
        all.add(told.ok().as_ref());
    }
}

impl Lived {
    /// A world that kept its promises or broke one; none if it was not played to its end.
    fn add(&mut self, told: Option<&Result<Churned, String>>) {
        self.worlds += 1;
        let told = match told {
            Some(Ok(told)) => told,
            Some(Err(_)) => return self.broken += 1,
            None => return self.unplayed += 1,
        };
        let figures = &told.figures;
        self.events += figures.events;
        self.restarts += u64::from(told.restarts);
        self.partitions += u64::from(told.partitions);
        self.jumps += u64::from(told.jumps);
        self.cuts += u64::from(told.cuts);
        self.losses += u64::from(told.losses);
        self.requests = [0, 1].map(|kind| self.requests[kind] + figures.requests[kind]);
        for (status, count) in &figures.failures {
            *self.failures.entry(status.clone()).or_default() += count;
        }
        self.whole_again = self.whole_again.max(figures.took.seconds());
    }

    /// Whether so many worlds were lived to their ends.
    pub(super) fn is_whole(&self, wanted: u64) -> bool {
        self.worlds == wanted && self.unplayed == 0
    }

    /// The exit code of a run that should live so many: 0 all kept their promises, 1 some did not,
    /// 2 the run was interrupted.
    pub(super) fn exit_code(&self, wanted: u64) -> u8 {
        match () {
            () if self.broken > 0 => 1,
            () if !self.is_whole(wanted) => 2,
            () => 0,
        }
    }

    /// A table for people and for docs/benchmarks.md.
    pub(super) fn markdown(&self, world: &World) -> String {
        let options = world.options();
        let (nodes, asked, block) = (options.nodes, options.asked(), options.block);
        let mut text = format!(
            "Worlds of {nodes} nodes with disasters; each node asks {asked} others, for blocks of \
             {} KiB.\n\n",
            block >> 10
        );
        let [ended, failed] = self.requests;
        let mut failures = failed.to_string();
        for (status, count) in &self.failures {
            let _ = write!(failures, ", {count} {status}");
        }
        text += &head(&["what", "number"]);
        for (what, count) in [
            ("worlds", self.worlds.to_string()),
            ("of these broke a promise", self.broken.to_string()),
            ("of these were not played to their ends", self.unplayed.to_string()),
            ("daemons killed and started again", self.restarts.to_string()),
            ("networks divided", self.partitions.to_string()),
            ("clocks that jumped", self.jumps.to_string()),
            ("connections cut", self.cuts.to_string()),
            ("sources of addresses away", self.losses.to_string()),
            ("requests that ended well", ended.to_string()),
            ("others, and how", failures),
            ("longest until all connections were up", format!("{:.2} s", self.whole_again)),
        ] {
            text += &line(&[what.to_owned(), count]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use piped_core::units::Nanos;
    use system_tests::scale::Figures;

    use super::*;

    #[test]
    fn worlds_add_up_and_one_that_broke_a_promise_or_is_missing_shows() {
        let failures = BTreeMap::from([("PeerLost".to_owned(), 2)]);
        let took = Nanos::from_millis(2500);
        let figures = Figures { requests: [10, 2], failures, took, ..Figures::default() };
        let told = Churned { figures, restarts: 3, jumps: 1, ..Churned::default() };
        let mut lived = Lived::default();
        lived.add(Some(&Ok(told.clone())));
        lived.add(Some(&Ok(told)));
        assert_eq!((lived.exit_code(2), lived.exit_code(3)), (0, 2));
        lived.add(None);
        assert_eq!(lived.exit_code(3), 2, "one was killed");
        lived.add(Some(&Err("lost".to_owned())));
        assert_eq!(lived.exit_code(4), 1);
        let text = lived.markdown(&World::new(Play::Churn(File::OfEach), 5));
        for row in [
            "| worlds | 4 |",
            "| of these were not played to their ends | 1 |",
            "| of these broke a promise | 1 |",
            "| daemons killed and started again | 6 |",
            "| requests that ended well | 20 |",
            "| others, and how | 4, 4 PeerLost |",
            "| longest until all connections were up | 2.50 s |",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
    }
}
