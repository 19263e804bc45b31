//! Messages between clients: what they do, and whether they got what was sent.

use piped_core::ids::ChannelId;
use piped_core::io::Span;
use piped_core::request::Class;
use piped_core::status::Status;
use piped_core::units::Nanos;

use super::{Call, ClientState, ObjectKind, World};
use crate::mail::{MESSAGE_BYTES_MIN, TAGS};

impl World {
    /// A client's channel, as an object.
    ///
    /// # Panics
    /// If there is no such client, or none has a channel.
    #[must_use]
    pub fn channel(&self, client: usize) -> usize {
        let name = format!("channel-{client}");
        self.objects.iter().position(|it| it.name == name).expect("each client has a channel")
    }

    pub(super) fn is_channel(&self, object: usize) -> bool {
        matches!(self.objects[object].kind, ObjectKind::Channel { .. })
    }

    /// The end of a channel that a client opens.
    pub(super) fn channel_of(
        &self,
        object: usize,
        client: Option<usize>,
    ) -> Option<(ChannelId, bool)> {
        match self.objects[object].kind {
            ObjectKind::Channel { owner, channel } => Some((channel, client == Some(owner))),
            _ => None,
        }
    }

    /// Something to do with messages, or nothing.
    pub(super) fn invent_message(&mut self, client: usize, channels: &[usize]) -> Option<Call> {
        if self.clients[client].pieces.is_empty() || channels.is_empty() {
            return None;
        }
        let object = *self.random.pick(channels);
        let tag = self.random.below(TAGS);
        let longest = self.options.longest;
        if self.channel_of(object, Some(client))?.1 {
            let tag = self.random.chance(0.7).then_some(tag);
            // Mostly long enough for all.
            let length =
                if self.random.chance(0.9) { longest } else { self.random.length(longest) };
            return Some(Call::Receive { object, tag, length: length.max(1) });
        }
        let length = self.random.length(longest).clamp(MESSAGE_BYTES_MIN, longest);
        Some(Call::Send { object, tag, length })
    }

    /// A receive is over: what it has got must have been sent.
    pub(super) fn judge_received(
        &mut self,
        client: usize,
        (object, number): (usize, u64),
        status: Status,
        (buffer, bytes, tag): (Span, u64, u64),
        name: &str,
    ) {
        if status == Status::TooLong {
            return self.tally("message longer than the buffer", 1);
        }
        if status != Status::Ok {
            self.messages.give_up(object);
            return self.tally("receive given up", 1);
        }
        let node = self.nodes[self.clients[client].node].id;
        let got = self.kernel.bytes(node, Span { length: bytes as u32, ..buffer }).to_vec();
        if let Err(fault) = self.messages.receive(object, number, tag, &got) {
            panic!("{name} received what it must not: {fault}");
        }
        self.tally("message received", 1);
    }

    /// Every message that ended well is there for whoever receives it still.
    pub(super) fn judge_mail(&mut self) {
        for object in 0..self.objects.len() {
            let ObjectKind::Channel { owner, .. } = self.objects[object].kind else { continue };
            let runs = self.clients[owner].state == ClientState::Running;
            let room = !self.clients[owner].pieces.is_empty();
            if !runs || !room || self.objects[object].gone || !self.has_open(owner, object) {
                continue;
            }
            loop {
                let (well, perhaps) = self.messages.left(object);
                if well == 0 {
                    break;
                }
                let length = self.options.longest;
                let call = Call::Receive { object, tag: None, length };
                let call = self.call(owner, call, Class::Latency, Some(Nanos::from_millis(60_000)));
                let end = self.wait_within(owner, call, Nanos::from_millis(61_000));
                assert_eq!(
                    end.map(|end| end.status),
                    Some(Status::Ok),
                    "{well} messages that ended well (and {perhaps} perhaps) are left for {}",
                    self.objects[object].name
                );
                self.tally("message received at the end", 1);
            }
        }
    }
}
