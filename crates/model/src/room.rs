//! Room over several stages: what may be between entering one stage and leaving a later one.
//!
//! A sender with a window of credit may have so many bytes under way, through all stages up to the
//! one behind which they count as delivered. Staging that a fragment takes when it is read and
//! gives back when it was sent is such a room, too. Bytes enter it when the first stage starts
//! their fragment. They leave it when the fragment that holds them has left the last stage, and
//! the first stage knows of it `back` later. Credit may come back in batches: all that has left,
//! once that is at least `batch`. Let `e_i` be the end of fragment `i` at the first stage `f`:
//!
//! ```text
//! start(i,f) >= depart(q,l) + back         q: the fragment of the last stage l that ends the first
//!                                          batch with which e_i - bytes or more have come back
//! ```
//!
//! What earlier transfers have left behind as less than a batch is `due`: it takes room until the
//! first batch comes back.
//!
//! Memory that is taken for a whole fragment of the last stage, when its first byte comes in, has a
//! `grain`. Such fragments count in whole grains, and there may be so many of them at once.
//!
//! A room that cannot hold what has to be put together in it waits forever, as a buffer does. Then
//! some fragment waits for bytes that are behind itself.

use core::num::NonZeroU32;

use crate::evaluate::EvaluateFault;
use crate::servers::Servers;
use crate::stage::{Buffers, StageCost};

/// Room over a run of stages.
///
/// ```
/// use piped_model::evaluate::within;
/// use piped_model::room::Room;
/// use piped_model::stage::{Buffers, Stage};
/// let wire = Stage { latency: 10.0, overhead: 1.0, per_byte: 0.0, window: None };
/// let store = Stage { latency: 0.0, overhead: 1.0, per_byte: 0.0, window: None };
/// let sizes: [&[u64]; 2] = [&[8; 4]; 2];
/// let open = within(&[wire, store], &sizes, None, &Buffers::UNLIMITED)?;
/// assert_eq!(open, 15.0);
/// // Two under way: the third begins when the first is stored, and that is known 10 later.
/// let window = Room { back: 10.0, ..Room::bytes(0, 1, 16) };
/// let seconds = within(&[wire, store], &sizes, None, &Buffers::UNLIMITED.over(window))?;
/// assert_eq!(seconds, 22.0 + 13.0);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// The stage that waits for room.
    pub first: usize,
    /// The stage behind which bytes take none.
    pub last: usize,
    /// How many bytes it holds.
    pub bytes: u64,
    /// Where memory is taken for whole fragments of the last stage: the unit in which, and how many
    /// fragments may have come in and not left. `None`: bytes count as they are.
    pub grain: Option<(u64, NonZeroU32)>,
    /// The least number of bytes that is worth being told of; 0 is 1. Without a grain.
    pub batch: u64,
    /// How many bytes of earlier transfers the first stage is not told of yet; less than a batch.
    pub due: u64,
    /// Seconds until the first stage knows of what has left.
    pub back: f64,
}

impl Room {
    /// Room for so many bytes between entering `first` and leaving `last`, known at once.
    #[must_use]
    pub const fn bytes(first: usize, last: usize, bytes: u64) -> Self {
        Self { first, last, bytes, grain: None, batch: 1, due: 0, back: 0.0 }
    }

    /// The largest fragment, in bytes, that is sure to find room while nothing else is in it.
    #[must_use]
    pub fn certain(&self) -> u64 {
        match self.grain {
            Some((grain, _)) => self.bytes / grain.max(1) * grain.max(1),
            None => self.bytes.saturating_sub(self.batch.max(1) - 1),
        }
    }

    /// Whether a path of so many stages has its stages.
    pub(crate) fn is_on(&self, stages: usize) -> bool {
        self.first <= self.last && self.last < stages
    }

    /// What a fragment takes of it.
    fn footprint(&self, size: u64) -> u64 {
        let grain = self.grain.map_or(1, |(grain, _)| grain.max(1));
        size.div_ceil(grain).saturating_mul(grain)
    }

    fn due(&self) -> u64 {
        self.due.min(self.batch.max(1) - 1)
    }

    /// By how much a transfer in equal fragments takes longer for this room.
    fn delay<C: StageCost>(&self, path: &[C], size: u64, bytes: u64, servers: &Servers) -> f64 {
        let size = size.clamp(1, bytes.max(1));
        let last = bytes.div_ceil(size) - 1;
        // How many fit, at first and later, and how many make a batch.
        let [(fits_first, first), (fits, batch)] = match self.grain {
            Some((_, most)) => {
                [(u64::from(most.get()).min(self.bytes / self.footprint(size)), 1); 2]
            }
            None => [self.due(), 0].map(|due| {
                let batch = (self.batch.max(1) - due).div_ceil(size);
                (self.bytes.saturating_sub(due) / size, batch)
            }),
        };
        if last < fits_first {
            return 0.0;
        }
        // Fragments from the end of a batch to the one that waits for it.
        let [Some(_), Some(jump)] = [(fits_first, first), (fits, batch)]
            .map(|(fits, batch)| (fits + 1).checked_sub(batch).filter(|&jump| jump > 0))
        else {
            return f64::INFINITY;
        };
        let pace = |stages| pace(path, stages, size as f64, servers);
        let [any, before] = [pace(0..path.len()), pace(0..self.last + 1)];
        let [own, behind] = [self.last + 1, path.len()].map(|end| pace(self.first..end));
        let through = self.through(path, size as f64);
        let period = batch * jump.div_ceil(batch);
        // From a fragment on, at a time: to the next end of a batch at some pace, and on by jumps.
        let go_on = |at: u64, time: f64, pace: f64, least: u64| {
            let source = first + (at.max(least) + 1 - first).div_ceil(batch) * batch - 1;
            let end = |jumps: u64| {
                let at_last = source + jump + (jumps - 1) * period;
                let between = (jumps - 1) * (period - jump);
                let time = time + (source - at) as f64 * pace + jumps as f64 * through;
                (last - at_last, time + between as f64 * own)
            };
            let most = (last + 1).checked_sub(source + jump).filter(|&left| left > 0);
            let most = most.map(|left| (left - 1) / period + 1);
            most.map(|most| [1, most].map(end))
        };
        let mut longest = last as f64 * any;
        // What waits at first waits for the first batch.
        let at_first = (first - 1) as f64 * before + through;
        longest = longest.max(at_first + (last - fits_first) as f64 * behind);
        for (left, time) in go_on(fits_first, at_first, own, first).into_iter().flatten() {
            longest = longest.max(time + left as f64 * behind);
        }
        // Or only later ones wait, and what is left advances before them in whole batches.
        for (left, time) in go_on(0, 0.0, before, first).into_iter().flatten() {
            let early = left / batch * batch;
            let late = time + (early as f64 * before + (left - early) as f64 * behind);
            longest = longest.max(time + left as f64 * behind).max(late);
        }
        longest - last as f64 * any
    }

    /// From the start of a fragment to when its room is known to be free.
    fn through<C: StageCost>(&self, path: &[C], size: f64) -> f64 {
        let stages = &path[self.first..=self.last];
        self.back + stages.iter().map(|cost| cost.stage_at(size).alone(size)).sum::<f64>()
    }
}

/// Time from one fragment to the next at the slowest server of some stages.
fn pace<C: StageCost>(
    path: &[C],
    stages: core::ops::Range<usize>,
    size: f64,
    servers: &Servers,
) -> f64 {
    let of = |server: usize| {
        let own = stages.clone().filter(|&stage| servers.first(stage) == server);
        let costs = own.map(|stage| path[stage].stage_at(size));
        let (busy, interval) = costs.fold((0.0, 0.0_f64), |(busy, interval), stage| {
            (busy + stage.occupancy(size), interval.max(stage.interval(size)))
        });
        interval.max(busy)
    };
    (0..stages.end).map(of).fold(0.0, f64::max)
}

/// By how much `bytes` in fragments of `size` take longer because of rooms over several stages, in
/// seconds; infinite if that never ends. Added to a latency without them.
///
/// One fragment after the other goes once through every stage, and in between the path through the
/// recurrence advances by a fragment in the time of the slowest stage. Where a room binds, it
/// advances by as many as fit in the time that one of them takes through all stages of the room.
/// Exact for equal fragments on stages with servers of their own, whose windows do not bind, and
/// one room. Of several rooms the one that costs most counts.
///
/// ```
/// use piped_model::evaluate::{uniform, within};
/// use piped_model::room::{Room, delay};
/// use piped_model::servers::Servers;
/// use piped_model::stage::{Buffers, Stage};
/// let path = [Stage { latency: 50.0, overhead: 1.0, per_byte: 0.1, window: None }; 2];
/// let window = Buffers::UNLIMITED.over(Room { batch: 16, ..Room::bytes(0, 1, 40) });
/// let sizes: [&[u64]; 2] = [&[8; 20]; 2];
/// let exact = within(&path, &sizes, None, &window)?;
/// let open = uniform(&path, 8, 160, None);
/// assert!((open + delay(&path, 8, 160, &window, &Servers::APART) - exact).abs() < 1e-9);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
#[must_use]
pub fn delay<C: StageCost>(
    path: &[C],
    size: u64,
    bytes: u64,
    buffers: &Buffers,
    servers: &Servers,
) -> f64 {
    let rooms = buffers.rooms().filter(|room| room.is_on(path.len()));
    rooms.map(|room| room.delay(path, size, bytes, servers)).fold(0.0, f64::max)
}

/// What the fragments of a room's first stage wait for.
pub(crate) struct Gate {
    pub(crate) first: usize,
    pub(crate) last: usize,
    pub(crate) back: f64,
    /// For each of them the fragment of the last stage, if there is one.
    pub(crate) waits: Vec<Option<usize>>,
}

impl Gate {
    /// The gates of all rooms on a path, for these fragments.
    pub(crate) fn all(sizes: &[&[u64]], buffers: &Buffers) -> Result<Vec<Self>, EvaluateFault> {
        let rooms = buffers.rooms().filter(|room| room.is_on(sizes.len()));
        rooms.map(|room| Self::of(room, sizes)).collect()
    }

    fn of(room: &Room, sizes: &[&[u64]]) -> Result<Self, EvaluateFault> {
        let Room { first, last, back, .. } = *room;
        let ends: Vec<Vec<u128>> = sizes[first..=last].iter().map(|list| ends(list)).collect();
        let behind = &ends[last - first];
        let fault = EvaluateFault::Room { first, last, bytes: room.bytes };
        let mut leavers = Leavers {
            room,
            sizes: sizes[last],
            ends: behind,
            batch: None,
            first: 0,
            held: 0,
            next: 0,
        };
        let mut waits = Vec::with_capacity(ends[0].len());
        let mut begin = 0;
        for &end in &ends[0] {
            let wanted = leavers.before(end).ok_or(fault)?;
            // What has to have come in for that.
            let came = wanted.map_or(0, |place| {
                ends.iter()
                    .rev()
                    .fold(behind[place], |end, own| own[own.partition_point(|&at| at < end)])
            });
            if came > begin {
                return Err(fault);
            }
            waits.push(wanted);
            begin = end;
        }
        Ok(Self { first, last, back, waits })
    }
}

/// The fragments of a room's last stage, by what waits for them.
struct Leavers<'a> {
    room: &'a Room,
    sizes: &'a [u64],
    ends: &'a [u128],
    /// The last fragment of the batch at hand.
    batch: Option<usize>,
    /// With a grain: the first fragment that is in, the next one that comes in, and what those
    /// between take.
    first: usize,
    next: usize,
    held: u128,
}

impl Leavers<'_> {
    /// The fragment after which there is room for all up to `end`, if one has to leave; `None` if
    /// none makes enough.
    fn before(&mut self, end: u128) -> Option<Option<usize>> {
        let Self { room, sizes, ends, .. } = *self;
        let bytes = u128::from(room.bytes);
        if let Some((_, most)) = room.grain {
            while self.next == 0 || ends[self.next - 1] < end {
                self.held += u128::from(room.footprint(*sizes.get(self.next)?));
                self.next += 1;
            }
            while self.held > bytes || self.next - self.first > most.get() as usize {
                self.held -= u128::from(room.footprint(*sizes.get(self.first)?));
                self.first += 1;
            }
            return Some(self.first.checked_sub(1));
        }
        let due = u128::from(room.due());
        // All that came back with a batch.
        let back = |batch: Option<usize>| batch.map_or(0, |place| ends[place] + due);
        while back(self.batch) + bytes < end + due {
            let least = back(self.batch) + u128::from(room.batch.max(1));
            let place = ends.partition_point(|&at| at + due < least);
            self.batch = Some(place).filter(|&place| place < ends.len());
            self.batch?;
        }
        Some(self.batch)
    }
}

/// The end of each fragment in bytes: lists from outside may add up to more than 64 bits.
pub(crate) fn ends(sizes: &[u64]) -> Vec<u128> {
    let end = |end: &mut u128, &size: &u64| {
        *end += u128::from(size);
        Some(*end)
    };
    sizes.iter().scan(0, end).collect()
}
