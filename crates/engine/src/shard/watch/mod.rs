//! What is seen of requests, while they run and after: what they did in each stage, which others
//! they met, what came of them, and counts.
//!
//! Whoever runs a request says what happens to it. Nothing here looks for a request: what is to be
//! known of one is said when it begins and when it ends.

mod company;
mod history;
mod passed;
mod told;
mod trace;

use std::collections::BTreeMap;
use std::sync::Arc;

use piped_core::ids::DeviceId;
use piped_core::limits;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::plan::Planner;
use piped_planner::planned::Planned;
use piped_planner::stage::StageIndex;
use piped_report::shard::{Counters, Explanation, Reasons, TransferReport};
use piped_report::tally::{self, HeldBy, LaneLoss, RetryReason, Tally};
use piped_report::trace::TraceState;

use self::company::{Company, Stays};
use self::history::History;
use self::passed::Passed;
use self::trace::Tracer;
use super::fair::Party;
use super::keys::{Subject, TransferKey, kind};
use super::sched::Work;
use super::slab::Beside;

pub(in crate::shard) use self::company::{Kind, SPOTS, Spot};
pub(in crate::shard) use self::history::{Head, Outcome};
pub(in crate::shard) use self::told::Told;
pub use self::trace::Recording;

/// What is seen of all requests of a shard.
#[derive(Debug)]
pub(in crate::shard) struct Watch {
    transfers: Beside<kind::Transfer, Observed>,
    serves: Beside<kind::Serve, Observed>,
    company: Company,
    history: History,
    tracer: Tracer,
    /// The number of the last request that got one.
    number: u64,
    /// Plain counts, which anybody raises.
    pub(in crate::shard) counters: Counters,
    /// Plain counts by kind, which anybody raises.
    pub(in crate::shard) tally: Box<Tally>,
}

/// What is seen of one request.
#[derive(Debug, Default)]
struct Observed {
    /// The generation of the request's key; 0 when it is over.
    generation: u32,
    began: Nanos,
    part: Option<Part>,
    passed: Passed,
    stays: Stays,
}

/// The bytes that are taken for what is seen of one request.
pub(in crate::shard) const OBSERVED_BYTES: usize = size_of::<Observed>();

/// What a transfer is a part of.
#[derive(Debug, Clone, Copy)]
struct Part {
    whole: TransferKey,
    /// Where the part's first byte lies in a whole that its fragments count for.
    start: Option<u64>,
}

impl Watch {
    /// Room for what is seen of so many transfers, and of all serves.
    pub(in crate::shard) fn new(transfers: u32) -> Self {
        Self {
            transfers: Beside::with_capacity(transfers),
            serves: Beside::with_capacity(limits::SERVES_MAX),
            company: Company::new(),
            history: History::new(),
            tracer: Tracer::default(),
            number: 0,
            counters: Counters::default(),
            tally: Box::default(),
        }
    }

    /// A number for a request, by which people ask for it.
    pub(in crate::shard) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// A request begins. `head` is asked only while somebody traces; a part of a request has none.
    pub(in crate::shard) fn begin(
        &mut self,
        subject: Subject,
        now: Nanos,
        head: impl FnOnce() -> Option<Head>,
    ) {
        let (observed, generation) = match subject {
            Subject::Transfer(key) => (self.transfers.of_new(key), key.generation()),
            Subject::Serve(key) => (self.serves.of_new(key), key.generation()),
        };
        (observed.generation, observed.began, observed.part) = (generation, now, None);
        observed.passed.clear();
        observed.stays = Stays::default();
        if self.tracer.is_active()
            && let Some(head) = head()
        {
            self.tracer.begin(subject, now, head);
        }
    }

    /// A transfer that has just begun is a part of another one: what holds it back holds that one.
    /// With `start`, where it lies in the whole, its fragments are those of the whole as well.
    pub(in crate::shard) fn begin_part(
        &mut self,
        part: TransferKey,
        whole: TransferKey,
        start: Option<u64>,
    ) {
        if let Some(observed) = self.of_mut(Subject::Transfer(part)) {
            observed.part = Some(Part { whole, start });
        }
    }

    /// What was seen of a request that runs.
    fn of(&self, subject: Subject) -> Option<&Observed> {
        let (observed, generation) = match subject {
            Subject::Transfer(key) => (self.transfers.get(key)?, key.generation()),
            Subject::Serve(key) => (self.serves.get(key)?, key.generation()),
        };
        (observed.generation == generation).then_some(observed)
    }

    /// What was seen of a request that runs, to be added to.
    fn of_mut(&mut self, subject: Subject) -> Option<&mut Observed> {
        self.in_company(subject).map(|(_, observed)| observed)
    }

    /// What is observed of a request, and those that it meets.
    fn in_company(&mut self, subject: Subject) -> Option<(&mut Company, &mut Observed)> {
        let (observed, generation) = match subject {
            Subject::Transfer(key) => (self.transfers.get_mut(key)?, key.generation()),
            Subject::Serve(key) => (self.serves.get_mut(key)?, key.generation()),
        };
        (observed.generation == generation).then_some((&mut self.company, observed))
    }

    /// The request that a fragment counts for, and where that has the first byte of the request
    /// which moves it.
    fn whole_of(&self, subject: Subject) -> (Subject, u64) {
        match self.of(subject).and_then(|observed| observed.part) {
            Some(Part { whole, start: Some(start) }) => (Subject::Transfer(whole), start),
            _ => (subject, 0),
        }
    }

    /// A fragment comes to a stage.
    pub(in crate::shard) fn enter_stage(
        &mut self,
        subject: Subject,
        stage: StageIndex,
        (offset, bytes): (u64, u32),
        now: Nanos,
    ) {
        let (subject, start) = self.whole_of(subject);
        if let Some(observed) = self.of_mut(subject) {
            observed.passed.enter(stage, now);
        }
        self.tracer.visit(subject, stage, (start + offset, bytes), (now, None));
    }

    /// A fragment leaves a stage: the one at that offset, or the oldest there is.
    pub(in crate::shard) fn leave_stage(
        &mut self,
        subject: Subject,
        stage: StageIndex,
        offset: Option<u64>,
        now: Nanos,
    ) {
        let (subject, start) = self.whole_of(subject);
        if let Some(observed) = self.of_mut(subject) {
            observed.passed.leave(stage, now);
        }
        self.tracer.depart(subject, stage, offset.map(|offset| start + offset), now);
    }

    /// A fragment of which only at its end is known that it was there. Without `arrived` it came
    /// when the one before it left.
    pub(in crate::shard) fn pass_stage(
        &mut self,
        subject: Subject,
        stage: StageIndex,
        (offset, bytes): (u64, u32),
        (arrived, departed): (Option<Nanos>, Nanos),
    ) {
        let (subject, start) = self.whole_of(subject);
        let Some(Observed { passed, began, .. }) = self.of_mut(subject) else { return };
        let arrived = arrived.unwrap_or(passed.last(stage)).max(*began).min(departed);
        passed.pass(stage, arrived, departed);
        self.tracer.visit(subject, stage, (start + offset, bytes), (arrived, Some(departed)));
    }

    /// A fragment has come by a wire, and its checksum was computed in the time `check`.
    pub(in crate::shard) fn pass_wire(
        &mut self,
        subject: Subject,
        [wire, checksum]: [StageIndex; 2],
        piece: (u64, u32),
        (sent, check, now): (Option<Nanos>, Nanos, Nanos),
    ) {
        let landed = now - check;
        self.pass_stage(subject, wire, piece, (sent, landed));
        if check > Nanos::ZERO {
            self.pass_stage(subject, checksum, piece, (Some(landed), now));
        }
    }

    /// The next fragment of a request leaves a stage whose fragments are in order and do not say
    /// where they lie.
    pub(in crate::shard) fn pass_next(
        &mut self,
        subject: Subject,
        stage: StageIndex,
        bytes: u32,
        (arrived, departed): (Nanos, Nanos),
    ) {
        let offset = self.tracer.passed_bytes(subject, stage);
        self.pass_stage(subject, stage, (offset, bytes), (Some(arrived), departed));
    }

    /// A fragment has passed a dial. `of`: the request it belongs to, and where it starts if the
    /// fragment says so.
    pub(in crate::shard) fn pass_dial(
        &mut self,
        of: Option<(Subject, Option<u64>)>,
        stage: StageIndex,
        bytes: u32,
        (arrived, departed): (Nanos, Nanos),
    ) {
        match of {
            Some((subject, Some(start))) => {
                self.pass_stage(subject, stage, (start, bytes), (Some(arrived), departed));
            }
            Some((subject, None)) => self.pass_next(subject, stage, bytes, (arrived, departed)),
            None => {}
        }
    }

    /// The sync behind a durable write is over. One that had no company says what a sync takes.
    pub(in crate::shard) fn pass_sync(
        &mut self,
        subject: Subject,
        (device, length): (DeviceId, u64),
        (since, now): (Nanos, Nanos),
        planner: &mut Planner,
    ) {
        let stage = planner.sync_stage(device);
        if self.is_alone(subject) {
            let bytes = u32::try_from(length).unwrap_or(u32::MAX);
            planner.sample_alone(stage, bytes, now.since(since));
        }
        if let Some(observed) = self.of_mut(subject) {
            observed.passed.pass(stage, since, now);
        }
    }

    /// When the first fragment of a request came to a stage; nothing if none did.
    pub(in crate::shard) fn first_fragment(&self, subject: Subject) -> Option<Nanos> {
        self.of(subject)?.passed.first()
    }

    /// The fragments of a request come again.
    pub(in crate::shard) fn forget_stages(&mut self, subject: Subject) {
        if let Some(observed) = self.of_mut(subject) {
            observed.passed.clear();
        }
    }

    /// A request comes to where it wants something.
    pub(in crate::shard) fn enter(
        &mut self,
        subject: Subject,
        spots: [Option<Spot>; SPOTS],
        (party, kind): (Party, Kind),
        now: Nanos,
    ) {
        let stays = self.company.stay(spots, party, kind, now);
        if let Some(observed) = self.of_mut(subject) {
            observed.stays = stays;
        }
    }

    /// Something keeps a request from going on, or a part of it.
    pub(in crate::shard) fn hold(&mut self, work: Work, by: HeldBy) {
        let subject = match work {
            Work::Transfer(key) => Subject::Transfer(key),
            Work::Serve(key) => Subject::Serve(key),
            Work::Lane(_) => return,
        };
        let part = self.of(subject).and_then(|observed| observed.part);
        let subject = part.map_or(subject, |part| Subject::Transfer(part.whole));
        if let Some((company, observed)) = self.in_company(subject) {
            company.hold(&mut observed.stays, by);
        }
    }

    /// A spot has moved bytes for a request.
    pub(in crate::shard) fn moved(&mut self, subject: Subject, spot: Spot, bytes: u64) {
        let stays = self.of(subject).map_or_else(Stays::default, |observed| observed.stays);
        self.company.moved(&stays, spot, bytes);
    }

    /// Whether a request waited for nobody until now.
    pub(in crate::shard) fn is_alone(&self, subject: Subject) -> bool {
        self.of(subject).is_none_or(|observed| self.company.is_alone(&observed.stays))
    }

    /// How many requests are under way beside one that is about to begin, and that its fragments
    /// would keep waiting.
    pub(in crate::shard) fn beside(&mut self, subject: Subject) -> u32 {
        self.in_company(subject).map_or(0, |(company, observed)| {
            company.go_on(&mut observed.stays);
            company.beside(&observed.stays)
        })
    }

    /// A part of a request is over.
    pub(in crate::shard) fn end_part(&mut self, part: TransferKey) {
        if let Some(observed) = self.of_mut(Subject::Transfer(part)) {
            observed.generation = 0;
        }
    }

    /// A request is over: it is counted and remembered, and no more is seen of it.
    pub(in crate::shard) fn end(
        &mut self,
        subject: Subject,
        (head, outcome): (Head, Outcome),
        planner: &Planner,
        now: Nanos,
    ) {
        let Some(observed) = self.of_mut(subject) else { return };
        observed.generation = 0;
        let (began, passed, stays) = (observed.began, observed.passed, observed.stays);
        let (status, moved, measured) = (outcome.status, outcome.moved, now.since(began));
        let met =
            self.company.settle(stays, (moved, outcome.told.is_some_and(|told| told.company)));
        match outcome.place {
            Some(place) => {
                self.count_end(status);
                self.counters.bytes += moved;
                let kind = (head.operation, place, head.class);
                self.tally.add_transfer(kind, status, moved, measured.0);
            }
            None => {
                let kind = (head.operation, head.class);
                self.tally.add_serve(kind, status, moved, measured.0);
            }
        }
        if outcome.is_whole(&head)
            && let Some((path, predicted)) = outcome.predicted
        {
            let company = if met.alone() { tally::Company::Alone } else { tally::Company::Queued };
            self.tally.add_prediction((path, company), predicted.0, measured.0);
        }
        self.tracer.end(subject, (head.id, &outcome), planner, now);
        self.history.push((head, outcome), passed, met, (measured, now));
    }

    fn count_end(&mut self, status: Status) {
        match status {
            Status::Ok => self.counters.completed += 1,
            _ => self.counters.failed += 1,
        }
    }

    /// Counts a request that needed no transfer, or was refused.
    pub(in crate::shard) fn end_at_once(&mut self, status: Status) {
        self.tally.at_once[status as usize] += 1;
        self.count_end(status);
    }

    /// Counts a plan that a request got.
    pub(in crate::shard) fn note_plan(&mut self, planned: &Planned) {
        self.tally.add_plan(planned.chosen, planned.cut.lane.first() as u32);
    }

    /// Counts a request that is sent again.
    pub(in crate::shard) fn note_retry(&mut self, reason: RetryReason) {
        self.counters.retries += 1;
        self.tally.retries[reason as usize] += 1;
    }

    /// Counts a lost connection, and the frames that it sent and received.
    pub(in crate::shard) fn note_lost(&mut self, loss: LaneLoss, frames: [u64; 2]) {
        self.counters.lanes_lost += 1;
        self.tally.lanes_lost[loss as usize] += 1;
        for (all, its) in self.tally.frames.iter_mut().zip(frames) {
            *all += its;
        }
    }

    /// All counts. `bytes` and `frames` are those of the requests and connections that there are.
    pub(in crate::shard) fn count(&self, bytes: u64, frames: [u64; 2]) -> Counters {
        let Tally { released, sends, frames: of_lost, .. } = *self.tally;
        let [sends_plain, sends_zero_copy, sends_copied] = sends;
        Counters {
            bytes: self.counters.bytes + bytes,
            released,
            frames_sent: of_lost[0] + frames[0],
            frames_received: of_lost[1] + frames[1],
            sends_plain,
            sends_zero_copy,
            sends_copied,
            ..self.counters
        }
    }

    /// Why requests ended at once or came again, and connections were lost.
    pub(in crate::shard) fn reasons(&self) -> Reasons {
        let Tally { at_once, retries, lanes_lost, .. } = &*self.tally;
        Reasons {
            at_once: some(Status::ALL.map(Status::name), at_once),
            retries: some(RetryReason::ALL.map(RetryReason::name), retries),
            lanes_lost: some(LaneLoss::ALL.map(LaneLoss::name), lanes_lost),
        }
    }

    /// What became of the request with that number, or of the last one that moved bytes. `spot`
    /// says the name of one.
    pub(in crate::shard) fn explain(
        &self,
        id: Option<u64>,
        planner: &Planner,
        spot: impl Fn(Spot) -> String,
    ) -> Option<Explanation> {
        self.history.explain(id, planner, spot)
    }

    /// The last `most` requests that ended, the latest first.
    pub(in crate::shard) fn ended(&self, now: Nanos, most: usize) -> Vec<TransferReport> {
        self.history.ended(now, most)
    }

    /// Records the next `transfers`, up to a limit; none: ends what is being recorded.
    pub(in crate::shard) fn trace(&mut self, recording: u64, transfers: u32) {
        self.tracer.arm(recording, transfers);
    }

    /// How far a recording is.
    pub(in crate::shard) fn trace_state(&self) -> TraceState {
        self.tracer.state()
    }

    /// What the last recording has, once it is over.
    pub(in crate::shard) fn recording(&self) -> Option<Arc<Recording>> {
        self.tracer.recording()
    }
}

/// The counts that are not zero, by name.
fn some<const N: usize>(names: [&'static str; N], counts: &[u64; N]) -> BTreeMap<String, u64> {
    let counts = names.into_iter().zip(counts).filter(|(_, count)| **count > 0);
    counts.map(|(name, count)| (name.to_owned(), *count)).collect()
}

#[cfg(test)]
mod tests {
    use piped_core::ids::SessionId;
    use piped_core::request::Class;

    use piped_report::tally::Operation;

    use super::history::Head;
    use super::*;
    use crate::shard::slab::Key;

    const STAGE: StageIndex = StageIndex(1);

    /// A transfer that has just begun, at a place and of a generation.
    fn begun(watch: &mut Watch, place: u64, generation: u64) -> (TransferKey, Subject) {
        let key = Key::from_bits(generation << 32 | place);
        watch.begin(Subject::Transfer(key), Nanos(10), || None);
        (key, Subject::Transfer(key))
    }

    #[test]
    fn what_a_part_does_counts_for_its_whole() {
        let mut watch = Watch::new(4);
        let (whole, seen) = begun(&mut watch, 0, 1);
        let (part, of_part) = begun(&mut watch, 1, 1);
        watch.begin_part(part, whole, Some(4096));
        watch.enter_stage(of_part, STAGE, (0, 512), Nanos(20));
        assert_eq!([seen, of_part].map(|it| watch.first_fragment(it)), [Some(Nanos(20)), None]);
        watch.hold(Work::Transfer(part), HeldBy::Rate);
        assert_eq!([seen, of_part].map(|it| watch.is_alone(it)), [false, true]);
        // A part whose fragments are its own affair still holds its whole back.
        let (whole, seen) = begun(&mut watch, 2, 1);
        let (part, of_part) = begun(&mut watch, 3, 1);
        watch.begin_part(part, whole, None);
        watch.pass_stage(of_part, STAGE, (0, 512), (Some(Nanos(5)), Nanos(30)));
        let first = [seen, of_part].map(|it| watch.first_fragment(it));
        assert_eq!(first, [None, Some(Nanos(10))], "nothing comes before its request begins");
        watch.hold(Work::Transfer(part), HeldBy::Order);
        assert!(!watch.is_alone(seen));
    }

    #[test]
    fn a_fragment_that_comes_after_the_clock_of_its_leaving_was_read_takes_no_time() {
        let mut watch = Watch::new(4);
        watch.tracer.arm(1, 1);
        let subject = Subject::Transfer(Key::from_bits(1 << 32));
        let head = Head {
            id: 0,
            operation: Operation::Read,
            session: None,
            route: "lane",
            bytes: 512,
            offset: 0,
            class: Class::Bulk,
        };
        watch.begin(subject, Nanos(10), || Some(head));
        watch.enter_stage(subject, STAGE, (0, 512), Nanos(20));
        watch.leave_stage(subject, STAGE, None, Nanos(15));
        watch.tracer.arm(2, 0);
        let recording = watch.tracer.recording().expect("it is over");
        let visit = recording.report(Nanos(0))[0].measured[0];
        assert_eq!((visit.arrived_ns, visit.departed_ns), (10, Some(10)));
    }

    #[test]
    fn nothing_is_seen_of_what_is_over_nor_of_what_never_was() {
        let mut watch = Watch::new(4);
        let (old, gone) = begun(&mut watch, 0, 1);
        let spots = [Some(Spot::Device(DeviceId(1))), None];
        watch.end_part(old);
        let (_, new) = begun(&mut watch, 0, 2);
        let unknown = Subject::Serve(Key::from_bits(7 << 32 | 3));
        for stranger in [gone, unknown] {
            watch.enter_stage(stranger, STAGE, (0, 512), Nanos(20));
            watch.pass_stage(stranger, STAGE, (0, 512), (None, Nanos(20)));
            watch.leave_stage(stranger, STAGE, None, Nanos(21));
            watch.hold(Work::from(stranger), HeldBy::Rate);
            watch.moved(stranger, Spot::Device(DeviceId(1)), 512);
        }
        let kind = Kind { class: Class::Bulk, length: 512 };
        watch.enter(new, spots, (Party::Client(SessionId(1)), kind), Nanos(1));
        assert!(watch.is_alone(new) && watch.first_fragment(new).is_none());
    }
}
