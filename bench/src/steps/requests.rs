//! Steps of one thread for one request, which another thread of this program makes meanwhile.
//!
//! A request begins and ends while the stepped thread sleeps in the kernel. So it includes waking
//! up, the turns of a reactor that find nothing, and going to sleep.

use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::{Stepper, Steps};
use crate::contest;
use crate::failure::{Doing as _, Failure, joined};
use crate::machine::{self, Cpus};
use crate::stats::Interval;

/// Threads with this at the beginning of their names are the shards of a daemon.
const SHARD: &str = "piped-shard";

/// Stepped requests before those that count: the reactors learn that spinning does not pay.
pub(crate) const UNCOUNTED: usize = 2;

/// Requests that took longer (in a new plan, or on a busy machine) go on without steps, because a
/// client gives a request up after 15 s.
const LIMIT: Duration = Duration::from_secs(10);

/// Requests that are stepped and count.
pub(crate) const REQUESTS: usize = 15;

/// Fewest requests that are alike, and by how much they may differ.
pub(crate) const ALIKE: (usize, f64) = (3, 1.02);

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

/// Steps a thread while it has its part in one request, which `ask` makes. None if that takes too
/// long.
pub(crate) fn stretch(
    thread: u32,
    ask: impl FnOnce() -> Result<(), Failure>,
) -> Result<Option<Stretch>, Failure> {
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
        let answer = begun.recv().ok().map(|()| ask());
        over.store(true, Ordering::Release);
        let stretch = joined(stepping.join(), "a thread that steps")?;
        match answer {
            Some(Ok(())) => Ok(stretch),
            Some(Err(failure)) => Err(failure),
            None => Err(Failure::new("nothing was stepped")),
        }
    })
}

/// Instructions of the shard of a daemon with one shard for a request that `ask` makes: those of
/// the usual ones, of several. All that has a part in it is on one CPU, see [`Cpus::first`].
pub(crate) fn instructions(
    daemon: u32,
    mut ask: impl FnMut() -> Result<(), Failure>,
) -> Result<Vec<f64>, Failure> {
    let thread = shard_of(daemon)?;
    let mut counts = Vec::new();
    for number in 0..UNCOUNTED + REQUESTS {
        contest::check()?;
        let stretch = stretch(thread, &mut ask)?.filter(|_| number >= UNCOUNTED);
        counts.extend(stretch.map(|stretch| stretch.steps.len()));
    }
    counts.sort_unstable();
    let found = usual(&counts, |count| *count);
    let found = found.ok_or_else(|| too_few(REQUESTS, counts.len()))?;
    Ok(counts[found].iter().map(|count| *count as f64).collect())
}

/// Ratio of two counts of things that are no pairs: the ends are the farthest ones.
pub(crate) fn unpaired(new: Interval, old: Interval) -> Interval {
    Interval { low: new.low / old.high, median: new.median / old.median, high: new.high / old.low }
}

pub(crate) fn too_few(stepped: usize, ended: usize) -> Failure {
    Failure::new(format!(
        "of {stepped} stepped requests, {ended} took less than {} s, and no {} of them are alike: \
         repeat it when the machine is idle",
        LIMIT.as_secs(),
        ALIKE.0
    ))
}

/// The cheapest of some things that are alike, which begin with the cheapest of all.
pub(crate) fn usual<T>(things: &[T], cost: impl Fn(&T) -> usize) -> Option<Range<usize>> {
    let (enough, factor) = ALIKE;
    (0..things.len()).find_map(|start| {
        let most = cost(&things[start]) as f64 * factor;
        let end = things.partition_point(|thing| cost(thing) as f64 <= most);
        (end - start >= enough).then_some(start..end)
    })
}

/// Thread of the shard of a daemon.
pub(crate) fn shard_of(daemon: u32) -> Result<u32, Failure> {
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
}
