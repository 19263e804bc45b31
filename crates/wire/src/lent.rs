//! Memory that sends without a copy have lent to the kernel.
//!
//! Such a send ends twice: first its bytes are queued, later the kernel is done with the memory.
//! What lies between is a [`Lent`]: it is made by the send, nobody can copy it, and the frames'
//! memory and the box in which their headers lie are free only when it has been handed back
//! ([`Sender::take_back`](super::Sender::take_back)). So there is no way to tell an owner too
//! early: who has the `Lent` is the notification.
//!
//! Owners are told in the order of their frames, also if the kernel lets go of a later batch first:
//! a reader frees its oldest fragment when it hears of a frame.

use std::collections::VecDeque;

use super::send::Owner;

/// Batches of a lane that may be lent at once. Each may have
/// [`BATCH_BYTES_MAX`](super::BATCH_BYTES_MAX) on the way: 4 MiB are what 10 Gbit/s bring in 3 ms.
/// Beyond it the lane copies, which waits for nothing.
pub const LENT_MAX: usize = 8;

/// Frames of one: half the spans of an operation.
pub(super) const BOX_FRAMES: usize = piped_core::io::SPANS_PER_OP_MAX / 2;

/// A send's claim to its memory, until the kernel has let go of it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "memory that is never handed back is never free"]
pub struct Lent {
    /// The number of its batch.
    batch: u64,
}

/// A batch of which something is lent, or will be.
#[derive(Debug)]
struct Flight {
    /// Where its headers lie; none any more when it is over, while an older one is not.
    place: Option<usize>,
    /// Sends whose notification has not come.
    notices: u32,
    /// Not all of it is sent.
    open: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Flights {
    /// Oldest first.
    flights: VecDeque<Flight>,
    /// The first one's number.
    first: u64,
    /// Boxes in use.
    boxes: [bool; LENT_MAX],
    /// Frames that are with the kernel, in order, and before which batch's number all others must
    /// be over.
    taken: VecDeque<(Owner, u64)>,
    /// That number for the next frame, if it is copied.
    after: u64,
    /// How many of them were told as taken.
    told: usize,
}

impl Flights {
    pub(super) fn with_capacity(frames: usize) -> Self {
        Self {
            flights: VecDeque::with_capacity(LENT_MAX),
            taken: VecDeque::with_capacity(frames),
            ..Self::default()
        }
    }

    /// Whether another batch may be lent.
    pub(super) fn has_box(&self) -> bool {
        self.boxes.iter().any(|used| !used)
    }

    /// Whether something is lent.
    pub(super) fn any(&self) -> bool {
        self.flights.iter().any(|flight| flight.notices > 0)
    }

    /// A batch begins that is to be lent: its number, and its box.
    pub(super) fn begin(&mut self) -> Option<(u64, usize)> {
        let place = self.boxes.iter().position(|used| !used)?;
        self.boxes[place] = true;
        let number = self.first + self.flights.len() as u64;
        self.flights.push_back(Flight { place: Some(place), notices: 0, open: true });
        Some((number, place))
    }

    /// A send of the batch is handed to the kernel.
    pub(super) fn lend(&mut self, batch: u64) -> Lent {
        if let Some(flight) = self.flight(batch) {
            flight.notices += 1;
        }
        Lent { batch }
    }

    /// The batch has no more to send.
    pub(super) fn close(&mut self, batch: u64) {
        if let Some(flight) = self.flight(batch) {
            flight.open = false;
        }
        self.forget();
    }

    /// The kernel has let go of a send's memory.
    pub(super) fn take_back(&mut self, lent: Lent) {
        if let Some(flight) = self.flight(lent.batch) {
            flight.notices -= 1;
        }
        self.forget();
    }

    /// The kernel has a frame, of that batch or (`None`) in its own copy.
    pub(super) fn take(&mut self, owner: Owner, batch: Option<u64>) {
        self.after = self.after.max(batch.map_or(0, |batch| batch + 1));
        if owner != Owner::NONE {
            self.taken.push_back((owner, self.after));
        }
    }

    /// Frames that are with the kernel and whose owners have not heard.
    pub(super) fn frames(&self) -> usize {
        self.taken.len()
    }

    /// The owner of the next frame that the kernel has taken; it still may read it.
    pub(super) fn poll_taken(&mut self) -> Option<Owner> {
        let owner = self.taken.get(self.told).map(|&(owner, _)| owner)?;
        self.told += 1;
        Some(owner)
    }

    /// The owner of the next frame whose memory is free.
    pub(super) fn poll_free(&mut self) -> Option<Owner> {
        let &(owner, after) = self.taken.front()?;
        if after > self.first {
            return None;
        }
        self.taken.pop_front();
        self.told = self.told.saturating_sub(1);
        Some(owner)
    }

    /// The lane is lost, and nothing of it is lent any more: what was begun is not gone on with.
    pub(super) fn give_up(&mut self) {
        debug_assert!(!self.any(), "the kernel still reads what was lent");
        self.first += self.flights.len() as u64;
        self.flights.clear();
        self.boxes = [false; LENT_MAX];
    }

    fn flight(&mut self, batch: u64) -> Option<&mut Flight> {
        let place = batch.checked_sub(self.first)?;
        self.flights.get_mut(usize::try_from(place).ok()?)
    }

    /// Frees the boxes of batches that are over, and counts past those that have no older one
    /// before them.
    fn forget(&mut self) {
        for flight in self.flights.iter_mut().filter(|flight| flight.is_over()) {
            if let Some(place) = flight.place.take() {
                self.boxes[place] = false;
            }
        }
        while self.flights.front().is_some_and(Flight::is_over) {
            self.flights.pop_front();
            self.first += 1;
        }
    }
}

impl Flight {
    fn is_over(&self) -> bool {
        !self.open && self.notices == 0
    }
}
