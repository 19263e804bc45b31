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
//! With a number of fragments, `i` also waits for the fragment of the last stage that is so many
//! before the one with the bytes up to `e_i`.
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
    /// How many fragments of the last stage may have come in and not left; `None` is any number.
    pub fragments: Option<NonZeroU32>,
    /// The least number of bytes that is worth being told of; 0 is 1.
    pub batch: u64,
    /// Seconds until the first stage knows of what has left.
    pub back: f64,
}

impl Room {
    /// Room for so many bytes between entering `first` and leaving `last`, known at once.
    #[must_use]
    pub const fn bytes(first: usize, last: usize, bytes: u64) -> Self {
        Self { first, last, bytes, fragments: None, batch: 1, back: 0.0 }
    }

    /// The largest fragment, in bytes, that is sure to find room while nothing else is in it.
    #[must_use]
    pub fn certain(&self) -> u64 {
        self.bytes.saturating_sub(self.batch.max(1) - 1)
    }

    /// Whether a path of so many stages has its stages.
    pub(crate) fn is_on(&self, stages: usize) -> bool {
        self.first <= self.last && self.last < stages
    }

    /// Whether nothing of a transfer of so many bytes waits for it.
    #[must_use]
    pub fn holds(&self, bytes: u64) -> bool {
        self.fragments.is_none() && self.bytes >= bytes
    }

    /// By how much a transfer in equal fragments takes longer for this room.
    fn delay<C: StageCost>(&self, path: &[C], size: u64, bytes: u64, servers: &Servers) -> f64 {
        let size = size.clamp(1, bytes.max(1));
        let count = bytes.div_ceil(size);
        let by_bytes = (self.bytes / size, self.batch.max(1).div_ceil(size));
        let by_number = self.fragments.map(|most| (u64::from(most.get()), 1));
        let waits = core::iter::once(by_bytes).chain(by_number).filter(|&(fit, _)| fit < count);
        let of = |(fit, batch): (u64, u64)| {
            let Some(jump) = fit.checked_sub(batch - 1).filter(|&jump| jump > 0) else {
                return f64::INFINITY;
            };
            let pace = |stages| pace(path, stages, size as f64, servers);
            let [any, before] = [pace(0..path.len()), pace(0..self.last + 1)];
            let [own, behind] = [self.last + 1, path.len()].map(|end| pace(self.first..end));
            let through = self.through(path, size as f64);
            // From one fragment that waits to the next, by the batches that they wait for.
            let period = batch * ((fit + 1).div_ceil(batch) - 1);
            let most = (count - 1 - fit) / period + 1;
            let taken = |waits: u64| {
                let between = (waits - 1) * (period - jump);
                let spare = count - batch - waits * jump - between;
                let jumps = waits as f64 * through + between as f64 * own;
                // What is left advances before the first wait, in whole batches, or at the end.
                let [early, late] = [spare / batch * batch, 0].map(|early| {
                    (batch - 1 + early) as f64 * before + (spare - early) as f64 * behind
                });
                jumps + early.max(late) - (count - 1) as f64 * any
            };
            taken(1).max(taken(most)).max(0.0)
        };
        waits.map(of).fold(0.0, f64::max)
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
/// let exact = within(&path, &[&[8; 20]; 2], None, &window)?;
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
        // The end of the batch at hand, its last fragment, and what came back before.
        let (mut batch, mut before) = (None, 0_u128);
        let mut waits = Vec::with_capacity(ends[0].len());
        let mut begin = 0;
        for &end in &ends[0] {
            let needed = end.saturating_sub(room.bytes.into());
            while batch.map_or(0, |place: usize| behind[place]) < needed {
                let due = before + u128::from(room.batch.max(1));
                let place = behind.partition_point(|&at| at < due);
                before = *behind.get(place).ok_or(fault)?;
                batch = Some(place);
            }
            let place = behind.partition_point(|&at| at < end);
            let leaver = room.fragments.and_then(|most| place.checked_sub(most.get() as usize));
            let wanted = batch.max(leaver);
            // What has to have come in for that.
            let came = wanted.map_or(0, |place| {
                ends.iter().rev().fold(behind[place], |end, own| {
                    own[own.partition_point(|&at| at < end)]
                })
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

/// The end of each fragment in bytes: lists from outside may add up to more than 64 bits.
pub(crate) fn ends(sizes: &[u64]) -> Vec<u128> {
    let end = |end: &mut u128, &size: &u64| {
        *end += u128::from(size);
        Some(*end)
    };
    sizes.iter().scan(0, end).collect()
}
