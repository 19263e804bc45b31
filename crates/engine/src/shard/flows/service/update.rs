//! What a peer asks us to do once: changes of words, and notifications. What came of it is kept as
//! long as the peer may ask again.

use piped_core::ids::RegionId;
use piped_core::io::Io;
use piped_core::link::LaneClass;
use piped_core::request::Class;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::Operation;
use piped_wire::{After, Change, Message};

use crate::command::Target;
use crate::relay::{NotifyAsker, Relay};
use crate::shard::Shard;
use crate::shard::clients::access_of;
use crate::shard::connections::{Lane, PeerLane, PeerRequest};
use crate::shard::fair::{Flow, Party};
use crate::shard::faults::PeerFault;
use crate::shard::flows::request::once::update_word;
use crate::shard::keys::LaneKey;
use crate::shard::sched::Work;

/// A request for something that is done once, as it came.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Asked {
    pub(in crate::shard) transfer: u64,
    pub(in crate::shard) handle: u32,
    pub(in crate::shard) change: Change,
    pub(in crate::shard) sequence: u32,
    pub(in crate::shard) behind: u8,
}

/// What comes of something that is done once.
enum Outcome {
    /// Done, be it that it was before.
    Known(u64),
    /// Another shard is asked, and its answer goes to the peer.
    Asked,
}

impl Shard {
    /// A peer wants something done once. An error is its fault.
    pub(in crate::shard) fn handle_update(
        &mut self,
        on: PeerLane,
        asked: Asked,
        io: &mut impl Io,
    ) -> Result<(), PeerFault> {
        let begun = io.now();
        let lane = on.lane;
        let (status, value) = match self.update_once(on, asked, io) {
            Ok(Outcome::Known(value)) => (Status::Ok, value),
            Ok(Outcome::Asked) => return Ok(()),
            Err(status) => (status, 0),
        };
        let operation = match asked.change {
            Change::Word { .. } => Operation::Atomic,
            Change::Notify { .. } => Operation::Notify,
        };
        self.tally_once(lane, operation, (status, io.now().since(begun)));
        let message = Message::Updated { transfer: asked.transfer, status, value };
        let pushed = self.lanes.get_mut(lane).is_none_or(|lane| lane.push(message));
        self.cx.sched.make_ready(Work::Lane(lane));
        pushed.then_some(()).ok_or(PeerFault::UnreadAnswers)
    }

    fn update_once(
        &mut self,
        on: PeerLane,
        asked: Asked,
        io: &mut impl Io,
    ) -> Result<Outcome, Status> {
        let PeerLane { lane, link } = on;
        let Asked { transfer, handle, change, sequence, behind } = asked;
        let (key, served) = self.links.named(link, handle).ok_or(Status::BadHandle)?;
        served.updates().forget_before(sequence.wrapping_sub(behind.into()));
        if let Some(value) = served.updates().get(sequence) {
            return Ok(Outcome::Known(value));
        }
        let (of, waits) = ((key, sequence), (lane, transfer));
        let target = served.target();
        // Its answer was lost with its lane, or will be: it is raised once.
        if self.peer_notifies.ask_again(of, waits) {
            return Ok(Outcome::Asked);
        }
        let region = match target? {
            Target::Region(region) if region.region != RegionId::MESSAGE => region,
            _ => return Err(Status::Invalid),
        };
        let value = match change {
            Change::Word { offset, update } => update_word(region, offset, update, io)?,
            Change::Notify { id, after } => {
                let held_back = match after {
                    After::Nothing => false,
                    After::Writes { client, failed } => self.has_unlanded(lane, client, failed),
                    After::Known => true,
                };
                if !access_of(Target::Region(region)).write {
                    return Err(Status::Denied);
                }
                if held_back {
                    return Err(Status::WouldBlock);
                }
                if region.home != self.cx.relays.own() {
                    let asker = NotifyAsker::Peer(self.peer_notifies.ask(of, waits, io.now())?);
                    let notify = Relay::Notify { asker, region: region.region, id };
                    self.cx.relays.tell(region.home, notify);
                    return Ok(Outcome::Asked);
                }
                let serve = self.transfers.serves_waits(&mut self.cx.sched);
                self.notifications.raise(region.region, id, serve)?;
                0
            }
        };
        if let Some((_, served)) = self.links.named(link, handle) {
            served.updates().add(sequence, value);
        }
        Ok(Outcome::Known(value))
    }

    /// Another shard says what came of a peer's notification.
    pub(in crate::shard) fn answer_notify(
        &mut self,
        number: u64,
        status: Status,
        io: &mut impl Io,
    ) {
        let Some(asked) = self.peer_notifies.take(number) else { return };
        let (begun, (served, sequence), (lane, transfer)) = asked;
        if status == Status::Ok
            && let Some(served) = self.links.served_mut(served)
        {
            served.updates().add(sequence, 0);
        }
        self.tally_once(lane, Operation::Notify, (status, io.now().since(begun)));
        let Some(state) = self.lanes.get_mut(lane) else { return };
        let pushed = state.push(Message::Updated { transfer, status, value: 0 });
        if let Some(serving) = state.serving_mut() {
            // It would wait for ever.
            serving.overrun |= !pushed;
        }
        self.cx.sched.make_ready(Work::Lane(lane));
    }

    fn tally_once(&mut self, lane: LaneKey, operation: Operation, (status, time): (Status, Nanos)) {
        let class = match self.lanes.get(lane).map(|lane| lane.class) {
            Some(LaneClass::Bulk) => Class::Bulk,
            _ => Class::Latency,
        };
        self.cx.watch.tally.add_serve((operation, class), status, 0, time.0);
    }

    /// Whether a write that a peer's client asked for on a lane has not landed, or has failed and
    /// the peer did not know.
    fn has_unlanded(&self, lane: LaneKey, client: u32, failed: u32) -> bool {
        let Some(serving) = self.lanes.get(lane).and_then(Lane::serving) else { return true };
        let unlanded = |request: &PeerRequest| {
            self.serves.get(request.serve).is_some_and(|serve| {
                let Flow { party, .. } = serve.flow();
                let own = matches!(party, Party::Peer(_, of) if of == client);
                let whole = serve.done == serve.ask.length;
                let well = serve.status.is_none_or(|status| status == Status::Ok);
                own && serve.writes() && !(whole && well)
            })
        };
        serving.ends_failed != failed || serving.serves.iter().any(unlanded)
    }
}
