//! Performs decisions: dials, answers, ends, lines of the log, commands for shards.

use std::rc::Rc;

use piped_control::control::Effect;
use piped_control::note::Note;
use piped_core::ids::SessionId;
use piped_core::units::Nanos;
use piped_engine::command::{Origin, Standing};

use super::{Control, Core, Ending};
use crate::io::clock;
use crate::peer;
use crate::shard::message::Message;

impl Control {
    /// Has something decided now, and performs what follows from it as soon as it can be.
    pub(crate) fn decide<T>(self: &Rc<Self>, decide: impl FnOnce(&mut Core, Nanos) -> T) -> T {
        let decided = decide(&mut self.core.borrow_mut(), clock::now());
        self.perform();
        decided
    }

    fn perform(self: &Rc<Self>) {
        // The borrow ends before the effect begins.
        while let Some(effect) = { self.core.borrow_mut().poll_effect() } {
            match effect {
                Effect::Dial(dial) => {
                    tokio::task::spawn_local(peer::connect::lane(Rc::clone(self), *dial));
                }
                Effect::Note(note) => self.write(note),
                Effect::Open { shard, ticket, node, open } => {
                    let control = Rc::clone(self);
                    let answer = peer::serve::answer(control, shard, ticket, node, open);
                    tokio::task::spawn_local(answer);
                }
                Effect::Opened { ticket, result } => {
                    // Without an asker the session is closing, and its handle with it.
                    if let Some(opened) = self.opens.borrow_mut().remove(&ticket) {
                        let _ = opened.send(result);
                    }
                }
                Effect::EndSession { session, why } => self.end(session, Ending::TakenBack(why)),
                Effect::SessionDrained { session } => {
                    let mut sessions = self.sessions.borrow_mut();
                    let drained = sessions.get_mut(&session).and_then(|it| it.drained.take());
                    let _ = drained.map(|drained| drained.send(()));
                }
                Effect::RegionUnused { region } => {
                    // Who waited may have given up.
                    let unused = self.withdrawals.borrow_mut().remove(&region);
                    let _ = unused.map(|unused| unused.send(()));
                }
            }
        }
    }

    pub(super) fn end(&self, session: SessionId, why: Ending) {
        let mut sessions = self.sessions.borrow_mut();
        let ended = sessions.get_mut(&session).and_then(|it| it.ended.take());
        let _ = ended.map(|ended| ended.send(why));
    }

    /// Tells all shards what was decided for them.
    pub(crate) async fn tell_shards(&self) {
        for shard in 0..self.shards.len() {
            self.tell_shard(shard).await;
        }
    }

    /// Tells a shard what was decided for it, in order. A caller that waits here may go away: what
    /// was not told yet is told by the next one that comes.
    ///
    /// One caller at a time has room in a shard's mailbox, for the command that is first: room that
    /// was asked for earlier must not carry a later command past what others sent meanwhile. A node
    /// whose access is taken back would stay if it came in between.
    pub(crate) async fn tell_shard(&self, shard: usize) {
        let _turn = self.turns[shard].lock().await;
        while self.core.borrow().has_command(shard) {
            let room = self.shards[shard].mailbox.room().await;
            let command = self.core.borrow_mut().poll_command(shard);
            // A shard that is gone ends the daemon by itself.
            if let (Ok(room), Some(command)) = (room, command) {
                room.send(Message::Engine(command));
            }
        }
    }

    /// Writes a line of the log.
    fn write(&self, note: Note) {
        match note {
            Note::LaneUp { shard, peer, class, epoch, left_out } => {
                tracing::info!(shard, peer, ?class, epoch, left_out, "lane up");
            }
            Note::LaneDown { shard, peer, class, reason, left_out } => {
                tracing::warn!(shard, peer, ?class, reason, left_out, "lane down");
            }
            Note::NoPlace { shard, standing, why, left_out } => {
                self.count_greeting(why.into());
                let from = match standing {
                    Standing::Plain(Origin::User(uid)) => format!("user {uid} of this machine"),
                    Standing::Plain(Origin::Site(site)) => site.to_string(),
                    Standing::Proven => "a node with a key".to_owned(),
                };
                if let Some(left_out) = left_out {
                    let reason = peer::greet::advice(why, standing);
                    tracing::warn!(shard, from, reason, left_out, "a lane has no place");
                }
            }
            Note::PeersFull { shard, peer, user, left_out } => {
                let most = piped_core::limits::PEERS_DIALLED_MAX;
                let reason = "as many peers as may be are in use, or this user leaves none to \
                              others: close what is not needed there";
                tracing::warn!(shard, peer, user, most, reason, left_out, "a peer is not dialled");
            }
            Note::DialForbidden { peer, address, left_out } => {
                peer::connect::forbidden(&peer, address, left_out);
            }
            Note::NotConnected { peer, address, error, left_out } => {
                peer::connect::not_connected(&peer, address, &error, left_out);
            }
            Note::StagingDrained { shard, segment } => {
                tracing::debug!(shard, ?segment, "staging given back");
            }
        }
    }
}
