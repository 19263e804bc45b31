//! Frames that a delay injection holds: they stay in the queue, and no later frame leaves.

use piped_core::units::Nanos;

use super::{Entry, Message, Owner, Payload, Sender};

impl Sender {
    /// Holds the next frame with a payload in memory that is in no batch and was not considered
    /// before. The frame stays until [`Sender::release`]. Returns its number, the length of its
    /// payload and its owner.
    pub fn hold_next(&mut self) -> Option<(u64, u32, Owner)> {
        let first = self.pushed - self.queue.len() as u64;
        self.looked_at = self.looked_at.max(first + self.batch.frames as u64);
        while self.looked_at < self.pushed {
            let number = self.looked_at;
            self.looked_at += 1;
            let entry = &mut self.queue[(number - first) as usize];
            if let Payload::Memory(span) = entry.payload {
                entry.held = true;
                return Some((number, span.length, entry.owner));
            }
        }
        None
    }

    /// Lets a held frame leave. Nothing happens if the frame was forgotten with its connection.
    pub fn release(&mut self, number: u64) {
        let Some(place) = self.place(number) else { return };
        // Whether it waits for the wire is known only now.
        let waits = self.queue.range(..place).any(Entry::is_data);
        let entry = &mut self.queue[place];
        entry.held = false;
        if let Message::Data { backlogged, .. } | Message::WriteData { backlogged, .. } =
            &mut entry.message
        {
            *backlogged = waits;
        }
    }

    /// Tells how long a held frame has waited, which is no time of the wire.
    pub fn wait_told(&mut self, number: u64, waited: Nanos) {
        let Some(place) = self.place(number) else { return };
        if let Message::Data { service_us, .. } = &mut self.queue[place].message {
            let micros = u32::try_from(waited.0 / 1_000).unwrap_or(u32::MAX);
            *service_us = service_us.saturating_add(micros);
        }
    }

    fn place(&self, number: u64) -> Option<usize> {
        let first = self.pushed - self.queue.len() as u64;
        let place = usize::try_from(number.checked_sub(first)?).ok()?;
        (place >= self.batch.frames && place < self.queue.len()).then_some(place)
    }
}
