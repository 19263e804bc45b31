//! What must hold of what shards do with each other.

use std::collections::BTreeMap;

use piped_core::io::Span;
use piped_core::request::{BufferState, Completion, Update};
use piped_core::status::Status;
use piped_core::units::Nanos;

use super::{Asked, BOARD, NAMES, PATIENCE, World};
use crate::operators::judge::{SPREAD, judge_homes};

/// Words and notifications as they were asked for, and what came of that.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// By client and word: what was surely added, and what may have been.
    words: BTreeMap<(usize, u64), (u64, u64)>,
    /// By client and number: raised for sure, perhaps, and taken.
    raised: BTreeMap<(usize, u32), (u64, u64, u64)>,
}

impl Counts {
    /// From now on it may be done.
    pub(super) fn begin(&mut self, asked: Asked) {
        match asked {
            Asked::Add { to, word, number } => self.word(to, word).1 += number,
            Asked::Notify { to, id } => self.raised.entry((to, id)).or_default().1 += 1,
            _ => {}
        }
    }

    fn word(&mut self, to: usize, word: u64) -> &mut (u64, u64) {
        self.words.entry((to, word)).or_default()
    }

    /// Something is over: as it ended, or unknown with the client that asked.
    pub(super) fn end(&mut self, asked: Asked, status: Option<Status>, client: usize) {
        let well = status == Some(Status::Ok);
        match asked {
            Asked::Add { to, word, number } if well => self.word(to, word).0 += number,
            Asked::Notify { to, id } if well => {
                self.raised.entry((to, id)).or_default().0 += 1;
            }
            Asked::Wait { id, count } if well => {
                let raised = self.raised.entry((client, id)).or_default();
                raised.2 += count;
                assert!(
                    raised.2 <= raised.1,
                    "client {client} took {} notifications {id} of {}",
                    raised.2,
                    raised.1
                );
            }
            _ => {}
        }
    }
}

impl World {
    pub(super) fn handle_end(&mut self, completion: Completion) {
        let origin = match completion {
            Completion::Finished { origin, .. } | Completion::Released { origin } => origin,
        };
        // That of a cancel, or of nobody any more.
        if origin.user_data == 0 {
            return;
        }
        let Some(mut running) = self.running.remove(&origin.user_data) else {
            let client = origin.session.0 as usize - 1;
            assert!(!self.clients[client].lives, "it ended before: {completion:?}");
            return;
        };
        let held = match completion {
            Completion::Finished { status, bytes, value, buffer, .. } => {
                assert!(!running.finished, "it ends twice: {completion:?}");
                running.finished = true;
                self.judge_end((origin.user_data, &running), status, (bytes, value));
                buffer == BufferState::Held
            }
            Completion::Released { .. } => {
                assert!(running.finished, "it was not held: {completion:?}");
                false
            }
        };
        if held {
            *self.seen.entry("held buffers").or_default() += 1;
            self.running.insert(origin.user_data, running);
        } else {
            self.close_window(&running);
        }
    }

    fn judge_end(
        &mut self,
        (number, running): (u64, &super::Running),
        status: Status,
        (bytes, value): (u64, u64),
    ) {
        let super::Running { client, asked, span, .. } = *running;
        self.counts.end(asked, Some(status), client);
        let [shard, node] = [self.clients[client].shard, self.clients[client].node];
        match asked {
            Asked::Send { to } => {
                self.messages.end((client, number), status);
                let there = &self.clients[to];
                let across = there.node == node && there.shard != shard;
                let what = match (status, across) {
                    (Status::Ok, true) => "message sent across shards",
                    (Status::Ok, false) => "message sent",
                    (_, true) => "message across shards given up",
                    (_, false) => "message given up",
                };
                *self.seen.entry(what).or_default() += 1;
            }
            Asked::Receive if status == Status::Ok => {
                let id = self.id_of(client);
                let got = self.nodes.kernel.bytes(id, Span { length: bytes as u32, ..span });
                let got = got.to_vec();
                if let Err(fault) = self.messages.receive(client, number, value, &got) {
                    panic!("request {number} of client {client}: {fault}");
                }
                *self.seen.entry("message received").or_default() += 1;
            }
            Asked::Receive if status == Status::TooLong => {}
            Asked::Receive => {
                self.messages.give_up(client);
                *self.seen.entry("receive given up").or_default() += 1;
            }
            Asked::Notify { to, .. } if status == Status::Ok => {
                let there = &self.clients[to];
                if there.shard != shard && there.node == node {
                    *self.seen.entry("notified across shards").or_default() += 1;
                }
            }
            Asked::Wait { .. } if status == Status::Ok => {
                *self.seen.entry("notifications taken").or_default() += 1;
            }
            _ => {}
        }
    }

    /// What was sent and said to be taken in is there; what was notified, too; words have their
    /// sums.
    pub(super) fn finish(&mut self) {
        self.run_until(|world| world.running.values().all(|it| waits(it.asked) || it.finished));
        for client in 0..self.clients.len() {
            if !self.clients[client].lives {
                continue;
            }
            loop {
                if self.messages.left(client).0 == 0 {
                    break;
                }
                // Those that are asked for already take theirs.
                let open = self.running.values().filter(|it| it.client == client && !it.finished);
                if open.filter(|it| it.asked == Asked::Receive).count() == 0 {
                    let asked = self.ask(client, Asked::Receive, None, (Some(PATIENCE), false));
                    assert!(asked.is_some(), "its buffers are free");
                }
                let before = self.running.len();
                self.run_until(|world| world.running.len() < before);
            }
            self.judge_raised(client);
        }
        self.judge_words();
        for node in 0..NAMES.len() {
            *self.seen.entry(SPREAD).or_default() += judge_homes(self.nodes.shards(node));
        }
    }

    fn judge_raised(&mut self, client: usize) {
        for id in 0..3 {
            let (surely, _, taken) =
                self.counts.raised.get(&(client, id)).copied().unwrap_or_default();
            // Others in line before it, for more than there are, would keep it from them.
            let in_line = self.running.values().any(|it| {
                it.client == client && matches!(it.asked, Asked::Wait { id: of, .. } if of == id)
            });
            if surely > taken && !in_line {
                let count = surely - taken;
                let wait = Asked::Wait { id, count };
                let number = self.ask(client, wait, None, (Some(PATIENCE), false));
                let number = number.expect("it takes no buffer");
                self.run_until(|world| !world.running.contains_key(&number));
                let now = self.counts.raised[&(client, id)].2;
                assert_eq!(now, taken + count, "client {client} was notified of {id}");
            }
        }
    }

    fn judge_words(&mut self) {
        for (&(client, word), &(surely, perhaps)) in &self.counts.words {
            if !self.clients[client].lives {
                continue;
            }
            let span = Span {
                segment: self.clients[client].segment,
                offset: word * Update::BYTES,
                length: Update::BYTES as u32,
            };
            assert!(span.offset < BOARD);
            let bytes = self.nodes.kernel.bytes(self.id_of(client), span);
            let is = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            assert!(
                (surely..=perhaps).contains(&is),
                "word {word} of client {client} is {is}: {surely} were added, {perhaps} perhaps"
            );
        }
        *self.seen.entry("words judged").or_default() += self.counts.words.len() as u64;
    }

    /// Nothing is left of clients that are gone.
    pub(super) fn judge_rest(&mut self) {
        let until = self.nodes.kernel.now() + Nanos::from_millis(1_000);
        self.run(until);
        for node in 0..self.options.shards.len() {
            let first = self.nodes.controls.nodes[node].setup.shards[0];
            let left = self.nodes.kernel.segments(first);
            assert_eq!(left.len(), self.options.shards[node], "only staging is left: {left:?}");
            for shard in self.nodes.shards(node) {
                assert!(shard.is_idle() && shard.relays_waiting() == 0);
            }
        }
    }
}

/// Whether it may wait for ever.
fn waits(asked: Asked) -> bool {
    matches!(asked, Asked::Receive | Asked::Wait { .. } | Asked::Send { .. })
}
