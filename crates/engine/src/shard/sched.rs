//! Whose turn it is: the work of a shard, from the moment it wants a turn to the turn.
//!
//! ```text
//!   make_ready ──► classes ──► a turn        urgent first; of four turns one is bulk's
//!   stand_in_line ► lines ───► leave_line    until others of its client are begun
//!   starve ──────► starved ──► wake_starved  until anything ends, then by turns
//!   park ────────► (its device) ► unpark     until its device ends something
//!   put_off ─────► put off ───► wake_due     until a party's rate allows more
//!   copies ──────► pieces in turn            bytes that the daemon itself moves
//! ```
//!
//! What the work is for is named by its key and no more. Which lists it is in is noted here, so
//! that it is in each once, however often it is asked for.

use std::collections::VecDeque;

use piped_core::limits;
use piped_core::request::Class;
use piped_core::units::Nanos;

use super::fair::{Fair, Flow, Party};
use super::keys::{LaneKey, ServeKey, Subject, TransferKey};
use super::lines::{At, Lines};
use super::slab::Key;
use super::starved::Starved;

/// Something that wants a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Transfer(TransferKey),
    Serve(ServeKey),
    Lane(LaneKey),
}

impl From<Subject> for Work {
    fn from(subject: Subject) -> Self {
        match subject {
            Subject::Transfer(key) => Self::Transfer(key),
            Subject::Serve(key) => Self::Serve(key),
        }
    }
}

/// What is noted of one piece of work.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// The generation of its key; 0 while nothing has the place.
    generation: u32,
    party: Party,
    class: Class,
    /// One bit for each list it is in.
    lists: u8,
    /// The device in whose line it stands.
    line: Option<At>,
    /// The number of the last wake that it was woken by from being starved; 0: by none.
    woken: u64,
}

impl Mark {
    const NONE: Self = Self {
        generation: 0,
        party: Party::NOBODY,
        class: Class::Bulk,
        lists: 0,
        line: None,
        woken: 0,
    };
    /// Work waits for a turn; a transfer or serve may also wait for anything to end.
    const QUEUED: u8 = 1;
    /// A lane waits for anything to end, while its sends go on.
    const STARVED: u8 = 2;
    const PARKED: u8 = 4;
    const PUT_OFF: u8 = 8;
}

/// The marks of one kind of work, by place.
#[derive(Debug)]
struct Marks(Vec<Mark>);

impl Marks {
    fn new(places: u32) -> Self {
        Self(vec![Mark::NONE; places as usize])
    }

    fn of<K>(&mut self, key: Key<K>) -> Option<&mut Mark> {
        let mark = self.0.get_mut(key.index() as usize)?;
        (mark.generation == key.generation()).then_some(mark)
    }
}

/// The lists of a shard's work.
#[derive(Debug)]
pub(super) struct Sched {
    transfers: Marks,
    serves: Marks,
    lanes: Marks,
    /// Transfers and serves that want a turn, of the latency class and of bulk.
    classes: [VecDeque<Work>; 2],
    /// Lanes that want one. They come last: a lane sends all that the others have queued, and posts
    /// its receive when it is known what will arrive.
    ready_lanes: VecDeque<Work>,
    /// Transfers and serves that found no staging or no place for an operation.
    starved: Starved<Work>,
    /// Wakes of them so far, and what the last one woke: kept for its memory.
    wakes: u64,
    woken: Vec<Work>,
    starved_lanes: VecDeque<Work>,
    /// Work whose party has used up what its rate gives it, and when some of it may go on.
    put_off: VecDeque<Work>,
    put_off_until: Option<Nanos>,
    /// As much as there can be in a list.
    capacity: usize,
    /// Transfers and serves that have fragments to begin at a device.
    lines: Lines<Work>,
    /// Local transfers whose next piece is to be copied.
    copies: Fair<TransferKey>,
    /// This turn ends here: operations that were pushed go to the kernel before the rest is done.
    hand_over_first: bool,
}

impl Sched {
    /// Room for the work of so many transfers, and of all serves and lanes.
    pub(super) fn new(transfers: u32) -> Self {
        let work = (transfers + limits::SERVES_MAX + limits::LANES_MAX) as usize;
        Self {
            transfers: Marks::new(transfers),
            serves: Marks::new(limits::SERVES_MAX),
            lanes: Marks::new(limits::LANES_MAX),
            classes: [(); 2].map(|()| VecDeque::with_capacity(work)),
            ready_lanes: VecDeque::with_capacity(limits::LANES_MAX as usize),
            starved: Starved::default(),
            wakes: 0,
            woken: Vec::new(),
            starved_lanes: VecDeque::with_capacity(limits::LANES_MAX as usize),
            put_off: VecDeque::new(),
            put_off_until: None,
            capacity: work,
            lines: Lines::default(),
            copies: Fair::default(),
            hand_over_first: false,
        }
    }

    fn mark(&mut self, work: Work) -> Option<&mut Mark> {
        match work {
            Work::Transfer(key) => self.transfers.of(key),
            Work::Serve(key) => self.serves.of(key),
            Work::Lane(key) => self.lanes.of(key),
        }
    }

    /// Puts work on a list's mark. Whether it was not there before.
    fn enlist(&mut self, work: Work, list: u8) -> bool {
        self.mark(work).is_some_and(|mark| {
            let new = mark.lists & list == 0;
            mark.lists |= list;
            new
        })
    }

    /// Takes work off a list's mark. Whether it was there.
    fn strike(&mut self, work: Work, list: u8) -> bool {
        self.mark(work).is_some_and(|mark| {
            let was = mark.lists & list != 0;
            mark.lists &= !list;
            was
        })
    }

    /// Work of this party and class exists from now on. It has no turn yet.
    pub(super) fn begin(&mut self, work: Work, party: Party, class: Class) {
        let (marks, place, generation) = match work {
            Work::Transfer(key) => (&mut self.transfers, key.index(), key.generation()),
            Work::Serve(key) => (&mut self.serves, key.index(), key.generation()),
            Work::Lane(key) => (&mut self.lanes, key.index(), key.generation()),
        };
        marks.0[place as usize] = Mark { generation, party, class, ..Mark::NONE };
    }

    /// Work exists no more. It may still be in lists, where it is passed over.
    pub(super) fn end(&mut self, work: Work) {
        self.leave_line(work);
        if let Some(mark) = self.mark(work) {
            *mark = Mark::NONE;
        }
    }

    /// Whether work may begin another fragment at a device, of so many bytes `left`; if so, how
    /// many pieces of work its party has in line there, itself included. If not, it has a turn when
    /// it may. What begins with its last fragment (`is_last`) waits for nobody. Neither does
    /// anything if there is no line (`at`).
    pub(super) fn stand_in_line(
        &mut self,
        work: Work,
        at: Option<At>,
        (left, is_last): (u64, bool),
    ) -> Option<u32> {
        let Some(at) = at.filter(|_| left > 0) else {
            self.leave_line(work);
            return Some(1);
        };
        let Some(mark) = self.mark(work) else { return Some(1) };
        if mark.line.is_none() && is_last {
            return Some(1);
        }
        mark.line = Some(at);
        let key = (mark.party, mark.class, at);
        self.lines.ask(key, work, left)
    }

    /// Work has no more fragments to begin: those behind it may.
    pub(super) fn leave_line(&mut self, work: Work) {
        let Some(mark) = self.mark(work) else { return };
        let Some(at) = mark.line.take() else { return };
        let key = (mark.party, mark.class, at);
        self.lines.leave(key, work).into_iter().flatten().for_each(|next| self.make_ready(next));
    }

    /// Gives work a turn, once however often it is asked for.
    pub(super) fn make_ready(&mut self, work: Work) {
        if self.enlist(work, Mark::QUEUED) {
            self.push(work);
        }
    }

    fn push(&mut self, work: Work) {
        if let Work::Lane(_) = work {
            return self.ready_lanes.push_back(work);
        }
        let class = self.mark(work).map_or(Class::Bulk, |mark| mark.class);
        self.classes[class as usize].push_back(work);
    }

    /// Has work wait until anything ends. A lane that cannot receive for want of staging must still
    /// send, for that frees staging: it keeps its turns.
    pub(super) fn starve(&mut self, work: Work) {
        if let Work::Lane(_) = work {
            if self.enlist(work, Mark::STARVED) {
                self.starved_lanes.push_back(work);
            }
        } else if self.enlist(work, Mark::QUEUED) {
            // What has ended is among them, and is passed over when they are looked at.
            if self.starved.len() >= self.capacity {
                self.wake_starved();
            }
            if let Some(&mut Mark { party, woken, .. }) = self.mark(work) {
                self.starved.push(party, work, woken != 0 && woken == self.wakes);
            }
        }
    }

    /// Work got memory that others may wait for: if it wants more, they are before it.
    pub(super) fn give(&mut self, work: Work) {
        if let Some(party) = self.mark(work).map(|mark| mark.party) {
            self.starved.give(party);
        }
    }

    /// Something has ended: what waited for anything may try again.
    pub(super) fn wake_starved(&mut self) {
        // So it is after nearly every operation.
        if self.starved_lanes.is_empty() && self.starved.is_empty() {
            return;
        }
        while let Some(work) = self.starved_lanes.pop_front() {
            if self.strike(work, Mark::STARVED) {
                self.make_ready(work);
            }
        }
        self.wakes += 1;
        let (wakes, mut works) = (self.wakes, std::mem::take(&mut self.woken));
        self.starved.take(&mut works);
        for work in works.drain(..) {
            if let Some(mark) = self.mark(work) {
                mark.woken = wakes;
                self.push(work);
            }
        }
        self.woken = works;
    }

    /// Has work wait for its device, which knows it. Other news still reach it. Whether it did not
    /// wait before.
    pub(super) fn park(&mut self, work: Work) -> bool {
        self.enlist(work, Mark::PARKED)
    }

    /// Whether work waits for its device.
    pub(super) fn is_parked(&mut self, work: Work) -> bool {
        self.mark(work).is_some_and(|mark| mark.lists & Mark::PARKED != 0)
    }

    /// The device of parked work has ended something.
    pub(super) fn unpark(&mut self, work: Work) {
        self.strike(work, Mark::PARKED);
        self.make_ready(work);
    }

    /// Whether work exists that a list elsewhere may have kept too long.
    pub(super) fn knows(&mut self, work: Work) -> bool {
        self.mark(work).is_some()
    }

    /// Has work wait until a party's rate allows something, or until there are other news of it.
    /// Whether it did not wait before.
    pub(super) fn put_off(&mut self, work: Work) -> bool {
        let new = self.enlist(work, Mark::PUT_OFF);
        if new {
            // What has ended meanwhile is forgotten when it becomes much.
            if self.put_off.len() >= self.capacity {
                let put_off = std::mem::take(&mut self.put_off);
                self.put_off = put_off.into_iter().filter(|&work| self.knows(work)).collect();
            }
            self.put_off.push_back(work);
        }
        new
    }

    /// Some of what is put off may go on then.
    pub(super) fn look_at(&mut self, at: Nanos) {
        self.put_off_until = Some(self.put_off_until.map_or(at, |until| until.min(at)));
    }

    /// Some of what is put off, if anything is, may go on before it was thought.
    pub(super) fn look_soon(&mut self) {
        self.put_off_until = self.put_off_until.map(|_| Nanos::ZERO);
    }

    /// Looks again at what is put off, when that is due.
    pub(super) fn wake_due(&mut self, now: Nanos) {
        if self.put_off_until.is_none_or(|at| at > now) {
            return;
        }
        self.put_off_until = None;
        // Some of it may be starved as well, by memory that others of it have.
        self.wake_starved();
        for _ in 0..self.put_off.len() {
            let Some(work) = self.put_off.pop_front() else { return };
            if self.strike(work, Mark::PUT_OFF) {
                self.make_ready(work);
            }
        }
    }

    /// When [`Self::wake_due`] must be called.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.put_off_until
    }

    /// The next transfer or serve whose turn it is; `turn` counts them.
    pub(super) fn poll(&mut self, turn: usize) -> Option<Work> {
        let [urgent, bulk] = &mut self.classes;
        let (first, second) = if turn % 4 == 3 { (bulk, urgent) } else { (urgent, bulk) };
        let work = first.pop_front().or_else(|| second.pop_front())?;
        self.strike(work, Mark::QUEUED);
        Some(work)
    }

    /// The next lane whose turn it is.
    pub(super) fn poll_lane(&mut self) -> Option<Work> {
        let work = self.ready_lanes.pop_front()?;
        self.strike(work, Mark::QUEUED);
        Some(work)
    }

    /// How many lanes want a turn.
    pub(super) fn lanes(&self) -> usize {
        self.ready_lanes.len()
    }

    /// A local transfer has a piece to copy, which waits for its flow's turn.
    pub(super) fn push_copy(&mut self, flow: Flow, bytes: u32, transfer: TransferKey) {
        self.copies.push(flow, bytes, transfer);
    }

    /// The next piece to copy: its length in bytes, and the transfer.
    pub(super) fn poll_copy(&mut self) -> Option<(u32, TransferKey)> {
        self.copies.pop()
    }

    /// Ends the turn, so that what was pushed goes to the kernel before the rest is done.
    pub(super) fn hand_over_first(&mut self) {
        self.hand_over_first = true;
    }

    /// Whether the turn ends here.
    pub(super) fn take_hand_over(&mut self) -> bool {
        std::mem::take(&mut self.hand_over_first)
    }

    /// Whether nothing wants a turn.
    pub(super) fn is_empty(&self) -> bool {
        let mut lists = self.classes.iter().chain([&self.ready_lanes]);
        lists.all(VecDeque::is_empty) && self.copies.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piped_core::ids::SessionId;

    fn transfer(place: u64) -> Work {
        Work::Transfer(Key::from_bits(1 << 32 | place))
    }

    #[test]
    fn work_has_one_turn_however_often_it_is_asked_for() {
        let mut sched = Sched::new(4);
        let (urgent, bulk) = (transfer(0), transfer(1));
        sched.begin(urgent, Party::NOBODY, Class::Latency);
        sched.begin(bulk, Party::NOBODY, Class::Bulk);
        for _ in 0..3 {
            sched.make_ready(bulk);
            sched.make_ready(urgent);
        }
        assert_eq!(std::array::from_fn(|turn| sched.poll(turn)), [Some(urgent), Some(bulk), None]);
        sched.make_ready(urgent);
        assert_eq!(sched.poll(0), Some(urgent), "after its turn it may have another");
        assert!(sched.is_empty());
    }

    #[test]
    fn who_comes_to_a_place_later_has_nothing_of_who_was_there() {
        let mut sched = Sched::new(4);
        let (old, new) = (transfer(0), Work::Transfer(Key::from_bits(2 << 32)));
        sched.begin(old, Party::NOBODY, Class::Bulk);
        sched.starve(old);
        assert!(sched.park(old) && sched.put_off(old));
        sched.end(old);
        sched.begin(new, Party::NOBODY, Class::Bulk);
        sched.wake_starved();
        assert!(sched.is_empty() && !sched.knows(old) && !sched.is_parked(new));
        sched.make_ready(new);
        assert_eq!(sched.poll(0), Some(new));
        assert!(sched.put_off(new));
        sched.look_at(Nanos(5));
        sched.wake_due(Nanos(5));
        assert_eq!([sched.poll(0), sched.poll(0)], [Some(new), None]);
    }

    /// What is scarce is no memory: nobody says who got it.
    #[test]
    fn who_got_a_place_is_behind_who_did_not() {
        let mut sched = Sched::new(16);
        for place in 0..5 {
            let party = Party::Client(SessionId(u32::from(place == 4)));
            sched.begin(transfer(place), party, Class::Bulk);
            sched.starve(transfer(place));
        }
        let mut got = Vec::new();
        for _ in 0..5 {
            sched.wake_starved();
            got.extend(sched.poll(0));
            let rest: Vec<_> = std::iter::from_fn(|| sched.poll(0)).collect();
            rest.into_iter().for_each(|work| sched.starve(work));
        }
        assert_eq!(got, [0, 4, 1, 2, 3].map(transfer));
    }

    #[test]
    fn a_starved_lane_keeps_its_turns_and_a_starved_transfer_does_not() {
        let mut sched = Sched::new(4);
        let (lane, waits) = (Work::Lane(Key::from_bits(1 << 32)), transfer(0));
        sched.begin(lane, Party::NOBODY, Class::Latency);
        sched.begin(waits, Party::NOBODY, Class::Bulk);
        sched.starve(lane);
        sched.starve(waits);
        sched.make_ready(lane);
        sched.make_ready(waits);
        assert_eq!((sched.poll(0), sched.poll_lane()), (None, Some(lane)));
        sched.wake_starved();
        assert_eq!((sched.poll(0), sched.poll_lane()), (Some(waits), Some(lane)));
    }

    #[test]
    fn what_is_put_off_goes_on_when_it_is_time_though_it_is_starved_too() {
        let mut sched = Sched::new(4);
        let work = transfer(0);
        sched.begin(work, Party::NOBODY, Class::Bulk);
        assert!(sched.put_off(work));
        sched.look_at(Nanos(5));
        sched.starve(work);
        sched.wake_due(Nanos(4));
        assert_eq!(sched.poll(0), None);
        sched.wake_due(Nanos(5));
        assert_eq!([sched.poll(0), sched.poll(0)], [Some(work), None]);
    }
}
