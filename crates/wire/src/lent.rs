//! Memory that sends without a copy have lent to the kernel.
//!
//! Such a send ends twice: first its bytes are queued, later the kernel is done with the memory. In
//! between, a [`Lent`] stands for the lent memory. The send creates it, and nobody can copy it. The
//! frames' memory and the box with their headers are free only after
//! [`Sender::take_back`](super::Sender::take_back) got it. An owner therefore cannot be told too
//! early: only the kernel's notification has the `Lent`.
//!
//! Owners are told in the order of their frames, also if the kernel lets go of a later batch first.
//! A reader relies on this: it frees its oldest fragment when it hears of a frame.

use std::collections::VecDeque;

/// Batches of a connection that may be lent at once. Each may have
/// [`BATCH_BYTES_MAX`](super::BATCH_BYTES_MAX) on the way: 4 MiB are what 10 Gbit/s bring in 3 ms.
/// Beyond it the connection copies, which waits for nothing.
pub const LENT_MAX: usize = 8;

/// Most frames of a lent batch: half the spans of an operation.
pub(super) const BOX_FRAMES: usize = piped_core::io::SPANS_PER_OP_MAX / 2;

/// Frames for which a new connection has room without taking more memory. Most connections of a
/// node with many peers are idle, and one that works grows to what it needs once.
pub(super) const FRAMES_FIRST: usize = 4;

/// Names the party to tell when a frame's memory is free again. The value is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u64);

impl Owner {
    /// No party waits for the frame.
    pub const NONE: Self = Self(u64::MAX);
}

/// The claim of a send to its memory, until the kernel has let go of it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "memory that is never handed back is never free"]
pub struct Lent {
    /// The number of the send's batch.
    batch: u64,
}

/// A batch with lent memory, now or soon.
#[derive(Debug)]
struct Flight {
    /// Index of the box with the batch's headers; `None` once the batch is over while an older one
    /// is not.
    place: Option<usize>,
    /// Sends of the batch whose notification has not come.
    notices: u32,
    /// Whether part of the batch is still to be sent.
    open: bool,
}

/// All lent batches of a connection, and frames whose owners are to be told.
#[derive(Debug, Default)]
pub(super) struct Flights {
    /// Batches that are not over, or have an older one before them; oldest first.
    flights: VecDeque<Flight>,
    /// The number of the first batch in `flights`.
    first: u64,
    /// Which of the boxes for headers are in use.
    boxes: [bool; LENT_MAX],
    /// Frames that are with the kernel, in order. Each is free when all batches below its number
    /// are over.
    taken: VecDeque<(Owner, u64)>,
    /// The number that the next copied frame gets in `taken`.
    after: u64,
    /// How many frames of `taken` were reported by [`Flights::poll_taken`].
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

    /// Keeps memory for what is there, and for no more.
    pub(super) fn rest(&mut self) {
        self.flights.shrink_to_fit();
        self.taken.shrink_to_fit();
    }

    /// Whether another batch may be lent.
    pub(super) fn has_box(&self) -> bool {
        self.boxes.iter().any(|used| !used)
    }

    /// Whether something is lent.
    pub(super) fn any(&self) -> bool {
        self.flights.iter().any(|flight| flight.notices > 0)
    }

    /// Begins a batch that will be lent: its number and its box. `None` without a free box.
    pub(super) fn begin(&mut self) -> Option<(u64, usize)> {
        let place = self.boxes.iter().position(|used| !used)?;
        self.boxes[place] = true;
        let number = self.first + self.flights.len() as u64;
        self.flights.push_back(Flight { place: Some(place), notices: 0, open: true });
        Some((number, place))
    }

    /// Counts a send of the batch that goes to the kernel.
    pub(super) fn lend(&mut self, batch: u64) -> Lent {
        if let Some(flight) = self.flight(batch) {
            flight.notices += 1;
        }
        Lent { batch }
    }

    /// Notes that the batch has no more to send.
    pub(super) fn close(&mut self, batch: u64) {
        if let Some(flight) = self.flight(batch) {
            flight.open = false;
        }
        self.forget();
    }

    /// Notes that the kernel has let go of a send's memory.
    pub(super) fn take_back(&mut self, lent: Lent) {
        if let Some(flight) = self.flight(lent.batch) {
            flight.notices -= 1;
        }
        self.forget();
    }

    /// Notes that the kernel has a frame: of that batch, or (`None`) in its own copy.
    pub(super) fn take(&mut self, owner: Owner, batch: Option<u64>) {
        self.after = self.after.max(batch.map_or(0, |batch| batch + 1));
        if owner != Owner::NONE {
            self.taken.push_back((owner, self.after));
        }
    }

    /// Frames that are with the kernel and whose owners are not told yet.
    pub(super) fn frames(&self) -> usize {
        self.taken.len()
    }

    /// The owner of the next frame that the kernel has; the kernel may still read its memory.
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

    /// Forgets all batches of a lost connection. Nothing may be lent any more.
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

    /// Frees the boxes of batches that are over, and drops the oldest batches that are over.
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
