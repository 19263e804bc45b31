//! Which stages share one server with other work of this node.
//!
//! The question is whether the shard's thread serves a stage that can be busy while the thread
//! works. Checksums, copies and the overheads of delay injections are timed on the thread. If they
//! lengthen the times between departures of a busy stage, the thread serves that stage. Stages that
//! are timed on the thread share its server by construction.
//!
//! Reads and writes of a device are not compared with each other. The cost of either comes from its
//! own times between departures, which include the other if they share a server. The more they
//! share, the worse the work would be known.

use piped_core::units::Nanos;
use piped_model::estimate::shared::{Servers as Known, Shared};
use piped_report::shard::ServedWith;

use super::stage::StageIndex;

/// Evidence for each stage of whether the shard's thread serves it.
#[derive(Debug, Default)]
pub(super) struct Servers {
    /// Work of the thread that was timed, in seconds.
    thread: f64,
    /// Evidence by stage, at the stage's index.
    watches: Vec<Watch>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Watch {
    /// The departure before, and the thread's work by that time in seconds.
    last: Option<Nanos>,
    then: f64,
    with_thread: Shared,
}

impl Servers {
    /// Starts anew for a stage that takes this index.
    pub(super) fn renew(&mut self, stage: StageIndex) {
        let place = usize::from(stage.0);
        if self.watches.len() <= place {
            self.watches.resize_with(place + 1, Watch::default);
        }
        self.watches[place] = Watch::default();
    }

    /// Counts time that the thread worked on something that is timed by itself.
    pub(super) fn work(&mut self, time: Nanos) {
        self.thread += time.seconds();
    }

    /// Counts a fragment that left a stage. `waited`: the fragment was there before the one before
    /// it left, and stayed for longer than a fragment that meets no other.
    pub(super) fn depart(&mut self, stage: StageIndex, bytes: u64, waited: bool, now: Nanos) {
        let thread = self.thread;
        let Some(watch) = self.watches.get_mut(usize::from(stage.0)) else { return };
        if let Some(last) = watch.last.replace(now).filter(|_| waited) {
            watch.with_thread.observe(bytes, now.since(last).seconds(), thread - watch.then);
        }
        watch.then = thread;
    }

    /// Notes an execution that ended otherwise, so that the next departure says nothing.
    pub(super) fn interrupt(&mut self, stage: StageIndex) {
        if let Some(watch) = self.watches.get_mut(usize::from(stage.0)) {
            watch.last = None;
        }
    }

    /// Time at which the last fragment left the stage.
    pub(super) fn last(&self, stage: StageIndex) -> Option<Nanos> {
        self.watch(stage)?.last
    }

    fn watch(&self, stage: StageIndex) -> Option<&Watch> {
        self.watches.get(usize::from(stage.0))
    }

    /// The result for a stage, if anything is known.
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

/// Name in reports of the server of everything that the shard's thread does.
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
