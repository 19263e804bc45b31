//! Frames of a connection that wait for the turns of their clients.

use piped_core::io::Span;
use piped_wire::Message;

use super::super::fair::{Fair, Flow};
use super::super::keys::Subject;

/// A frame whose turn has not come: what it says, its payload, and the party that owns that.
pub(in crate::shard) type Waiting = (Message, Option<Span>, Option<Subject>);

/// Frames by the turns of their clients.
#[derive(Debug, Default)]
pub(in crate::shard) struct WaitingFrames {
    frames: Fair<Waiting>,
    /// How many of them have a payload.
    data: usize,
}

impl WaitingFrames {
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether a frame with a payload waits.
    pub(super) fn has_data(&self) -> bool {
        self.data > 0
    }

    /// Whether frames of more than one client wait.
    pub(super) fn is_shared(&self) -> bool {
        self.frames.is_shared()
    }

    /// Puts a frame behind the others of its flow.
    pub(super) fn push(&mut self, flow: Flow, frame: Waiting) {
        self.data += usize::from(frame.1.is_some());
        self.frames.push(flow, length(&frame), frame);
    }

    /// Takes the frame whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let (_, frame) = self.frames.pop()?;
        self.data -= usize::from(frame.1.is_some());
        Some(frame)
    }

    /// Takes out the frames of an owner; returns their lengths in bytes.
    pub(super) fn take_back(&mut self, owner: Subject) -> impl Iterator<Item = u32> + use<> {
        let taken = self.remove(|&(_, _, of)| of == Some(owner));
        taken.into_iter().map(|frame| length(&frame))
    }

    /// Gives back the memory of those that waited, if none waits now.
    pub(super) fn rest(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Takes out all frames; returns their owners.
    pub(in crate::shard) fn drain(&mut self) -> impl Iterator<Item = Subject> + use<> {
        self.remove(|_| true).into_iter().filter_map(|(_, _, owner)| owner)
    }

    fn remove(&mut self, unwanted: impl FnMut(&Waiting) -> bool) -> Vec<Waiting> {
        let removed = self.frames.remove(unwanted);
        self.data -= removed.iter().filter(|(_, payload, _)| payload.is_some()).count();
        removed
    }
}

fn length(&(_, payload, _): &Waiting) -> u32 {
    payload.map_or(0, |span| span.length)
}
