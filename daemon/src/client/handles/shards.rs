//! The shards of a session: its home, and the others that serve its queues.

use std::rc::Rc;
use std::sync::Arc;

use piped_control::fault::OpenFault;
use piped_core::ids::{HandleId, SessionId};
use piped_engine::command::Command;
use piped_ring::{Segment, ServerQueue};

use super::super::wanted::Wanted;
use super::gone;
use crate::closing::Account;
use crate::control::Control;
use crate::open::Source;
use crate::shard::message::{Answer, Mailbox, Message};

/// The shards that serve a session, its home first.
#[derive(Debug)]
pub(in crate::client) struct Shards {
    control: Rc<Control>,
    session: SessionId,
    /// Numbers of the shards, each once; there is one at least.
    all: Vec<usize>,
}

impl Shards {
    pub(super) fn new(control: Rc<Control>, session: SessionId, all: Vec<usize>) -> Self {
        Self { control, session, all }
    }

    /// CPU of the shard, for the Welcome; queues of several shards have no one CPU.
    pub(in crate::client) fn cpu(&self) -> i32 {
        let [shard] = self.all[..] else { return -1 };
        self.control.shards[shard].cpu.and_then(|cpu| i32::try_from(cpu).ok()).unwrap_or(-1)
    }

    /// Opens the session at each of its shards, with its memory and the queues that are of each.
    pub(in crate::client) async fn open(
        &self,
        wanted: &Wanted,
        user: u32,
        (segments, queues): (Vec<Arc<Segment>>, Vec<ServerQueue>),
    ) -> Result<(), OpenFault> {
        let Wanted { class, weight, .. } = *wanted;
        let (session, home) = (self.session, self.home());
        let mut queues_of: Vec<Vec<ServerQueue>> = Vec::new();
        queues_of.resize_with(self.all.len(), Vec::new);
        for (number, queue) in queues.into_iter().enumerate() {
            queues_of[number % self.all.len()].push(queue);
        }
        for (shard, queues) in self.all.iter().zip(queues_of) {
            let segments = segments.clone();
            let open = |answer| Message::OpenSession {
                session,
                user,
                class,
                weight,
                home,
                segments,
                queues,
                answer,
            };
            self.ask_at(*shard, open).await?;
        }
        Ok(())
    }

    /// The shard that has what has one place only.
    pub(super) fn home(&self) -> usize {
        self.all[0]
    }

    /// Numbers of the shards.
    pub(super) fn all(&self) -> &[usize] {
        &self.all
    }

    /// Adds a queue by its number to the shard whose turn it is.
    pub(super) async fn add_queue(
        &self,
        number: u32,
        queue: Box<ServerQueue>,
    ) -> Result<(), OpenFault> {
        let (session, shard) = (self.session, self.all[number as usize % self.all.len()]);
        self.ask_at(shard, |answer| Message::AddQueue { session, queue, answer }).await
    }

    /// Adds a segment to the arena at each shard, which all have this number free first; at all of
    /// them or at none.
    pub(super) async fn add_segment(
        &self,
        number: u32,
        segment: &Arc<Segment>,
    ) -> Result<(), OpenFault> {
        let session = self.session;
        for (at, shard) in self.all.iter().enumerate() {
            let segment = Arc::clone(segment);
            let add = |answer| Message::AddSegment { session, segment, answer };
            let Err(fault) = self.ask_at(*shard, add).await else { continue };
            // One that was late has it all the same.
            for shard in &self.all[..=at] {
                let take = |answer| Message::TakeBack { session, number, answer };
                // A shard that is gone has no sessions.
                let _ = self.ask_at(*shard, take).await;
            }
            return Err(fault);
        }
        Ok(())
    }

    /// Closes the session at each shard.
    pub(super) async fn close(&self) {
        for shard in &self.all {
            // A shard that is gone has no sessions.
            let _ =
                self.mailbox_of(*shard).send(Message::CloseSession { session: self.session }).await;
        }
    }

    /// Sends the home of the session a message that it answers.
    pub(super) async fn ask(
        &self,
        message: impl FnOnce(Answer) -> Message,
    ) -> Result<(), OpenFault> {
        self.ask_at(self.home(), message).await
    }

    /// Sends each shard of the session a message that it answers. All are asked, whatever the
    /// answers; the first fault comes back.
    pub(super) async fn ask_each(
        &self,
        message: impl Fn(Answer) -> Message,
    ) -> Result<(), OpenFault> {
        let mut outcome = Ok(());
        for shard in &self.all {
            outcome = outcome.and(self.ask_at(*shard, &message).await);
        }
        outcome
    }

    async fn ask_at(
        &self,
        shard: usize,
        message: impl FnOnce(Answer) -> Message,
    ) -> Result<(), OpenFault> {
        let answer = self.mailbox_of(shard).ask(message).await.map_err(gone)?;
        answer.map_err(|refusal| OpenFault::new(refusal.status(), refusal.to_string()))
    }

    /// Tells each shard of the session something.
    pub(super) async fn tell_each(&self, command: &Command) {
        self.tell(&self.all, command).await;
    }

    /// Tells the shards of the session something but its home.
    pub(super) async fn tell_others(&self, command: &Command) {
        self.tell(&self.all[1..], command).await;
    }

    async fn tell(&self, shards: &[usize], command: &Command) {
        for shard in shards {
            // A shard that is gone has no sessions.
            let _ = self.mailbox_of(*shard).send(Message::Engine(command.clone())).await;
        }
    }

    /// Has the other shards of the session ask its home for what names a handle.
    pub(super) async fn point(&self, handle: HandleId) -> Result<(), OpenFault> {
        let session = self.session;
        for shard in &self.all[1..] {
            self.ask_at(*shard, |answer| Message::Point { session, handle, answer }).await?;
        }
        Ok(())
    }

    /// The mailbox of the session's home.
    pub(super) fn mailbox(&self) -> &Mailbox {
        self.mailbox_of(self.home())
    }

    fn mailbox_of(&self, shard: usize) -> &Mailbox {
        &self.control.shards[shard].mailbox
    }

    /// Gives each shard of the session what was opened.
    pub(super) async fn install(
        &self,
        handle: HandleId,
        source: Source,
        files: &Arc<Account>,
    ) -> Result<(), OpenFault> {
        let Some((last, others)) = self.all.split_last() else { return Ok(()) };
        for shard in others {
            self.install_at(*shard, handle, source.again(files)?).await?;
        }
        self.install_at(*last, handle, source).await
    }

    async fn install_at(
        &self,
        shard: usize,
        handle: HandleId,
        source: Source,
    ) -> Result<(), OpenFault> {
        let session = self.session;
        self.ask_at(shard, |answer| Message::Install { session, handle, source, answer }).await
    }
}
