//! What peers open here, and close.

use piped_core::io::Io;
use piped_core::status::Status;
use piped_wire::Message;

use crate::command::{Event, Target};
use crate::shard::Shard;
use crate::shard::keys::ServedKey;
use crate::shard::links::{Holding, is_open, length_of};

impl Shard {
    /// The control thread opened something for a peer, or refused.
    pub(in crate::shard) fn handle_serve_opened<I: Io>(
        &mut self,
        ours: u64,
        result: Result<Target, Status>,
        io: &mut I,
    ) {
        let asked = self.links.next_from(&mut 0, |link| link.opens(Some(ours)));
        let file = result.is_ok_and(is_open);
        let room = asked.is_some_and(|link| {
            self.may_open(link, Holding::Handles, io)
                && (!file || self.may_open(link, Holding::Files, io))
        });
        let most = if room { self.cx.limits.peer.handles } else { 0 };
        let asked = asked.and_then(|link| {
            let (theirs, lane) = self.links.get_mut(link)?.take_open(ours)?;
            Some((link, theirs, lane))
        });
        // If not, the peer has restarted meanwhile, or did not ask again on its next lane.
        let Some((link, ticket, lane)) = asked else { return self.refuse_served(ours, result, io) };
        let mut opened = result.map(|target| (target, None));
        if let Ok((target, handle)) = &mut opened {
            *handle = self.links.keep(link, (ticket, ours), *target, most);
        }
        let (status, handle, length) = match opened {
            Ok((target, Some((handle, served)))) => {
                match target {
                    Target::Channel(channel) => {
                        self.open_channel(channel);
                        self.mails.begin(served);
                    }
                    Target::File(file) => self.cx.driver.open_file(&file),
                    Target::Region(_) | Target::Directory(_) => {}
                }
                (Status::Ok, handle, length_of(target))
            }
            Ok((_, None)) => {
                self.refuse_served(ours, result, io);
                (Status::WouldBlock, 0, 0)
            }
            Err(status) => (status, 0, 0),
        };
        self.tell(lane, Message::Opened { ticket, status, handle, length });
    }

    /// Nobody is there for what was opened.
    fn refuse_served<I: Io>(&mut self, ticket: u64, result: Result<Target, Status>, io: &mut I) {
        if let Ok(target) = result {
            self.release_target(target, io);
            self.cx.event(Event::ServeClosed { ticket });
        }
    }

    /// Nobody names it any more: released now, or after the last serve that uses it.
    pub(in crate::shard) fn close_served<I: Io>(&mut self, key: ServedKey, io: &mut I) {
        if !self.links.note_closed(key) {
            return;
        }
        self.forget_mail(key, Status::Closed, io);
        self.release_served(key, io);
    }

    /// Lets go of what a peer had open, or of what ended with it, if nothing uses it any more.
    pub(in crate::shard) fn release_served<I: Io>(&mut self, key: ServedKey, io: &mut I) {
        let Some((target, ticket, receive)) = self.links.release(key) else { return };
        if let Some(target) = target {
            self.release_target(target, io);
        }
        if let Some(ticket) = ticket {
            self.cx.event(Event::ServeClosed { ticket });
        }
        self.transfers.unpin(receive, &mut self.cx.sched);
    }
}
