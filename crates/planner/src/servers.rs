//! Which stages have one server with what else happens here.
//!
//! Of stages that can be busy while the shard's thread works: is it the thread that serves them?
//! Checksums, copies and the overheads that dials take of the thread are timed by themselves; if
//! they lengthen the times between departures of a busy stage, it is served by the thread. What is
//! timed on the thread is one server by construction.
//!
//! Reads and writes of a device are not asked of each other: what either costs is known from its
//! own times between departures, which contain the other if they have one server, so the work would
//! be known the worse the more they share.

use piped_core::units::Nanos;
use piped_model::estimate::shared::{Servers as Known, Shared};
use piped_report::shard::ServedWith;

use super::stage::StageIndex;

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
    /// The departure before, and what the thread had done by then.
    last: Option<Nanos>,
    then: f64,
    with_thread: Shared,
}

impl Servers {
    /// A stage of a new kind takes this place.
    pub(super) fn renew(&mut self, stage: StageIndex) {
        let place = usize::from(stage.0);
        if self.watches.len() <= place {
            self.watches.resize_with(place + 1, Watch::default);
        }
        self.watches[place] = Watch::default();
    }

    /// The thread worked on something that is timed by itself.
    pub(super) fn work(&mut self, time: Nanos) {
        self.thread += time.seconds();
    }

    /// A fragment left a stage. `waited`: it was there before the one before it left, and for
    /// longer than one that meets nobody.
    pub(super) fn depart(&mut self, stage: StageIndex, bytes: u64, waited: bool, now: Nanos) {
        let thread = self.thread;
        let Some(watch) = self.watches.get_mut(usize::from(stage.0)) else { return };
        if let Some(last) = watch.last.replace(now).filter(|_| waited) {
            watch.with_thread.observe(bytes, now.since(last).seconds(), thread - watch.then);
        }
        watch.then = thread;
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

    /// What is known of a stage.
    pub(super) fn report(&self, stage: StageIndex, on_thread: bool) -> Vec<ServedWith> {
        let with = |one_server, measured| {
            vec![ServedWith { name: THREAD.to_owned(), one_server, measured }]
        };
        if on_thread {
            return with(true, None);
        }
        let Some(Watch { with_thread, .. }) = self.watch(stage) else { return Vec::new() };
        let groups = with_thread.groups();
        let measured = with_thread.slope().map(|(slope, error)| [slope, error, groups]);
        match (with_thread.servers(), measured) {
            (Known::Unknown, _) | (_, None) => Vec::new(),
            (known, measured) => with(known == Known::Shared, measured),
        }
    }
}

/// What serves everything that is timed on it.
const THREAD: &str = "thread";

#[cfg(test)]
mod tests {
    use super::*;

    const STAGE: StageIndex = StageIndex(3);

    /// A busy stage, and a thread that works for a while and then for a while not.
    fn pass(servers: &mut Servers, is_shared: bool) {
        let micros = |micros: f64| Nanos::from_seconds(micros * 1e-6);
        let mut now = 0.0;
        for round in 0..16_000_u32 {
            let work = if round / 40 % 3 < 1 { 60.0 } else { 0.0 };
            servers.work(micros(work));
            now += 100.0 + if is_shared { work } else { 0.0 };
            servers.depart(STAGE, 65_536, true, micros(now));
        }
    }

    #[test]
    fn a_stage_is_known_for_what_it_is() {
        for is_shared in [true, false] {
            let mut servers = Servers::default();
            servers.renew(STAGE);
            assert_eq!(servers.report(STAGE, false), []);
            pass(&mut servers, is_shared);
            let report = servers.report(STAGE, false);
            assert_eq!((report.len(), report[0].one_server), (1, is_shared), "{report:?}");
            assert!(servers.report(STAGE, true)[0].measured.is_none(), "by construction");
            servers.renew(STAGE);
            assert_eq!(servers.report(STAGE, false), [], "another stage in its place");
        }
    }

    #[test]
    fn stages_that_there_are_none_of_are_ignored() {
        let mut servers = Servers::default();
        servers.interrupt(StageIndex::NONE);
        servers.depart(StageIndex::NONE, 1, true, Nanos(1));
        assert_eq!((servers.last(StageIndex::NONE), servers.report(STAGE, false)), (None, vec![]));
    }
}
