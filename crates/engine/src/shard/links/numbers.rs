//! The numbers by which a peer names what it has open here.

use piped_core::limits;

use super::super::keys::ServedKey;
use super::super::slab::Key;

/// A number we gave a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    /// The peer's name for the open: asked again after a lost lane, it gets the same number.
    ticket: u64,
    served: ServedKey,
    /// The epoch of the latency lane on which the peer last asked for it.
    asked_epoch: u32,
    /// The number was told to the peer unasked, for the buffer of a receive.
    told: bool,
}

impl Number {
    /// A peer asks for something; what it is comes later.
    pub(super) fn asked(ticket: u64, asked_epoch: u32) -> Self {
        Self { ticket, served: Key::from_bits(u64::MAX), asked_epoch, told: false }
    }

    /// A peer is told a number that it did not ask for.
    pub(super) fn told() -> Self {
        Self { told: true, ..Self::asked(0, 0) }
    }

    pub(super) fn served(&self) -> ServedKey {
        self.served
    }

    pub(super) fn note_asked(&mut self, epoch: u32) {
        self.asked_epoch = epoch;
    }

    /// Whether it was asked for, and not since an epoch began.
    pub(super) fn is_unasked_in(&self, epoch: u32) -> bool {
        !self.told && self.asked_epoch != epoch
    }
}

/// A place for a number. A number carries its place's generation, so that the old name of a place
/// (a request that was overtaken by its handle's close) does not name its next holder.
#[derive(Debug, Clone, Copy, Default)]
struct NumberPlace {
    generation: u32,
    number: Option<Number>,
}

/// Bits of a number that are the place.
const PLACE_BITS: u32 = limits::HANDLES_PER_LINK.trailing_zeros();
/// Generations before they repeat; the highest is left out, so that no number is
/// [`piped_wire::frame::SWEEP`].
const GENERATIONS: u32 = (1 << (32 - PLACE_BITS)) - 1;
const _: () = assert!(limits::HANDLES_PER_LINK.is_power_of_two());

const fn place_of(wire: u32) -> usize {
    (wire & (limits::HANDLES_PER_LINK as u32 - 1)) as usize
}

impl NumberPlace {
    fn wire(self, at: usize) -> u32 {
        self.generation << PLACE_BITS | at as u32
    }

    fn take(&mut self) -> Option<ServedKey> {
        let number = self.number.take()?;
        self.generation = (self.generation + 1) % GENERATIONS;
        Some(number.served)
    }
}

/// The numbers that a peer was given.
#[derive(Debug, Default)]
pub(super) struct Numbers(Vec<NumberPlace>);

impl Numbers {
    /// What a number names, if it names something.
    pub(super) fn get(&self, wire: u32) -> Option<ServedKey> {
        let at = place_of(wire);
        let place = self.0.get(at).filter(|place| place.wire(at) == wire)?;
        Some(place.number?.served)
    }

    /// Gives a number, as it is told to the peer, if there is one; `make` makes what it names.
    pub(super) fn give(
        &mut self,
        number: Number,
        make: impl FnOnce() -> Option<ServedKey>,
    ) -> Option<(u32, ServedKey)> {
        let at = match self.0.iter().position(|place| place.number.is_none()) {
            Some(at) => at,
            None if self.0.len() < limits::HANDLES_PER_LINK => {
                self.0.push(NumberPlace::default());
                self.0.len() - 1
            }
            None => return None,
        };
        let served = make()?;
        self.0[at].number = Some(Number { served, ..number });
        Some((self.0[at].wire(at), served))
    }

    /// The number that a peer got for an open, and how it is told.
    pub(super) fn asked(&mut self, ticket: u64) -> Option<(&mut Number, u32)> {
        self.0.iter_mut().enumerate().find_map(|(at, place)| {
            let wire = place.wire(at);
            let number = place.number.as_mut()?;
            (!number.told && number.ticket == ticket).then_some((number, wire))
        })
    }

    /// What the peer has asked for and has open.
    pub(super) fn asked_for(&self) -> impl Iterator<Item = ServedKey> {
        let numbers = self.0.iter().filter_map(|place| place.number);
        numbers.filter(|number| !number.told).map(|number| number.served)
    }

    /// The peer closes what it has asked for. The buffers of receives come and go with their
    /// messages.
    pub(super) fn close(&mut self, wire: u32) -> Option<ServedKey> {
        let at = place_of(wire);
        let place = self.0.get_mut(at).filter(|place| place.wire(at) == wire)?;
        if place.number?.told { None } else { place.take() }
    }

    /// Numbers name nothing any more: what they named.
    pub(super) fn take_if(&mut self, wanted: impl Fn(&Number) -> bool) -> Vec<ServedKey> {
        let wanted = |place: &&mut NumberPlace| place.number.as_ref().is_some_and(&wanted);
        self.0.iter_mut().filter(wanted).filter_map(NumberPlace::take).collect()
    }
}
