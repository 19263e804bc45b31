//! What fragments wait for where a room over several stages begins.

use super::EvaluateFault;
use crate::room::Room;
use crate::stage::Buffers;

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
