//! Which stages have one server with what else happens here.
//!
//! Two questions, of stages that can be busy while something else works:
//! - Is it the shard's thread that serves it? Checksums, copies and the overheads that dials take of the thread are timed by
//!   themselves; if they lengthen the times between departures of a busy stage, it is served by the thread.
//! - Of a device: do reads delay writes, and writes reads?
//!
//! What is timed on the thread is one server by construction. The rest is measured, see [`Shared`].

use piped_model::estimate::shared::{Servers as Known, Shared};
use piped_model::units::Nanos;

use super::stage::StageIndex;
use crate::report::ServedWith;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Servers {
    /// Work of the thread that was timed, in seconds.
    thread: f64,
    /// By stage.
    watches: Vec<Watch>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Watch {
    /// The departure before, and what the thread and the other direction had done by then.
    last: Option<Nanos>,
    then: [f64; 2],
    /// What this stage has done, in seconds.
    done: f64,
    /// Reads of a device have its writes, and the other way round.
    sibling: Option<StageIndex>,
    /// With the thread, and with the other direction.
    with: [Shared; 2],
}

impl Servers {
    /// A stage of a new kind takes this place.
    pub(super) fn renew(&mut self, stage: StageIndex) {
        let place = usize::from(stage.0);
        if self.watches.len() <= place {
            self.watches.resize_with(place + 1, Watch::default);
        }
        self.watches[place] = Watch::default();
        for watch in self.watches.iter_mut().filter(|watch| watch.sibling == Some(stage)) {
            watch.sibling = None;
        }
    }

    /// Two directions of a device.
    pub(super) fn pair(&mut self, one: StageIndex, other: StageIndex) {
        for (stage, sibling) in [(one, other), (other, one)] {
            if let Some(watch) = self.watches.get_mut(usize::from(stage.0)) {
                watch.sibling = Some(sibling);
            }
        }
    }

    /// The thread worked on something that is timed by itself.
    pub(super) fn work(&mut self, time: Nanos) {
        self.thread += time.seconds();
    }

    /// A fragment left a stage, where it takes `cost` seconds. `waited`: it was there before the one before it left, and
    /// for longer than one that meets nobody.
    pub(super) fn depart(
        &mut self,
        stage: StageIndex,
        bytes: u64,
        cost: f64,
        waited: bool,
        now: Nanos,
    ) {
        let thread = self.thread;
        let sibling = self.watch(stage).and_then(|watch| watch.sibling);
        let other = sibling.and_then(|sibling| self.watch(sibling)).map_or(0.0, |it| it.done);
        let Some(watch) = self.watches.get_mut(usize::from(stage.0)) else { return };
        watch.done += cost;
        if let Some(last) = watch.last.replace(now).filter(|_| waited) {
            let gap = now.since(last).seconds();
            watch.with[0].observe(bytes, gap, thread - watch.then[0]);
            if sibling.is_some() {
                watch.with[1].observe(bytes, gap, other - watch.then[1]);
            }
        }
        watch.then = [thread, other];
    }

    /// An execution ended otherwise: what comes next says nothing.
    pub(super) fn interrupt(&mut self, stage: StageIndex) {
        if let Some(watch) = self.watches.get_mut(usize::from(stage.0)) {
            watch.last = None;
        }
    }

    /// When the last fragment left.
    pub(super) fn last(&self, stage: StageIndex) -> Option<Nanos> {
        self.watch(stage)?.last
    }

    fn watch(&self, stage: StageIndex) -> Option<&Watch> {
        self.watches.get(usize::from(stage.0))
    }

    /// What is known of a stage; `name` of another one.
    pub(super) fn report(
        &self,
        stage: StageIndex,
        on_thread: bool,
        name: impl Fn(StageIndex) -> String,
    ) -> Vec<ServedWith> {
        let thread = || THREAD.to_owned();
        if on_thread {
            return vec![ServedWith { name: thread(), one_server: true, measured: None }];
        }
        let Some(watch) = self.watch(stage) else { return Vec::new() };
        let names = [Some(thread()), watch.sibling.map(name)];
        let known = watch.with.iter().zip(names).filter_map(|(shared, name)| {
            let one_server = match shared.servers() {
                Known::Shared => true,
                Known::Separate => false,
                Known::Unknown => return None,
            };
            let measured = shared.slope().map(|(slope, error)| [slope, error, shared.groups()]);
            Some(ServedWith { name: name?, one_server, measured })
        });
        known.collect()
    }
}

/// What serves everything that is timed on it.
const THREAD: &str = "thread";

#[cfg(test)]
mod tests {
    use super::*;

    const READ: StageIndex = StageIndex(0);
    const WRITE: StageIndex = StageIndex(1);

    fn servers() -> Servers {
        let mut servers = Servers::default();
        servers.renew(READ);
        servers.renew(WRITE);
        servers.pair(READ, WRITE);
        servers
    }

    fn known(servers: &Servers, stage: StageIndex) -> Vec<(String, bool)> {
        let report = servers.report(stage, false, |other| format!("stage {}", other.0));
        report.into_iter().map(|it| (it.name, it.one_server)).collect()
    }

    /// Reads that are always waited for, and writes now and then: behind each other, or beside.
    fn pass(servers: &mut Servers, is_shared: bool, thread_is_shared: bool) {
        let micros = |micros: f64| Nanos::from_seconds(micros * 1e-6);
        let (mut now, mut wrote) = (0.0, 0.0_f64);
        for read in 0..16_000_u32 {
            // For a while each, as requests come.
            let writes = if read / 64 % 5 < 2 { 1 + read % 2 } else { 0 };
            for _ in 0..writes {
                wrote = if is_shared { now + 80.0 } else { wrote.max(now - 50.0) + 80.0 };
                servers.depart(WRITE, 65_536, 80e-6, false, micros(wrote));
                now = if is_shared { wrote } else { now };
            }
            let work = if read / 40 % 3 < 1 { 60.0 } else { 0.0 };
            servers.work(micros(work));
            now += 100.0 + if thread_is_shared { work } else { 0.0 };
            servers.depart(READ, 65_536, 100e-6, true, micros(now));
        }
    }

    #[test]
    fn each_pair_is_known_for_what_it_is() {
        for is_shared in [true, false] {
            for thread_is_shared in [true, false] {
                let mut servers = servers();
                pass(&mut servers, is_shared, thread_is_shared);
                let expected =
                    vec![(THREAD.to_owned(), thread_is_shared), ("stage 1".to_owned(), is_shared)];
                assert_eq!(known(&servers, READ), expected);
                // Nobody waited for a write.
                assert_eq!(known(&servers, WRITE), []);
            }
        }
    }

    #[test]
    fn a_stage_that_takes_anothers_place_knows_nothing() {
        let mut servers = servers();
        pass(&mut servers, true, false);
        servers.renew(WRITE);
        assert_eq!(servers.watch(READ).expect("there").sibling, None);
        servers.renew(READ);
        assert_eq!(known(&servers, READ), []);
        servers.interrupt(StageIndex::NONE);
        servers.depart(StageIndex::NONE, 1, 1.0, true, Nanos(1));
    }
}
