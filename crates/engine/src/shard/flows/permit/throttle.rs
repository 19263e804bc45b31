//! The rates of clients and of peers, when something of theirs is to be moved.

use piped_core::units::Nanos;
use piped_report::tally::HeldBy;

use crate::command::Limits;
use crate::shard::Shard;
use crate::shard::rate::Throttle;
use crate::shard::requests::Waiter;
use crate::shard::sched::Work;

impl Shard {
    /// Whether work may move something now, as far as the rate of who pays for it goes. If not, it
    /// is put off until it may.
    pub(in crate::shard) fn may_move(&mut self, work: Work, now: Nanos) -> bool {
        if self.cx.rate_of(work) == 0 {
            return true;
        }
        let Some(until) = self.throttle_of(work).and_then(|it| it.until(now)) else { return true };
        self.cx.sched.look_at(until);
        self.put_off(work);
        false
    }

    /// Work is looked at again when somebody's rate allows something, or when there are other news
    /// of it.
    pub(in crate::shard) fn put_off(&mut self, work: Work) {
        if self.cx.sched.put_off(work) {
            self.cx.watch.counters.rate_waits += 1;
            self.cx.watch.hold(work, HeldBy::Rate);
        }
    }

    /// Charges bytes to the party that pays for `work`.
    pub(in crate::shard) fn charge(&mut self, work: Work, bytes: u64, now: Nanos) {
        let rate = self.cx.rate_of(work);
        if let Some(throttle) = self.throttle_of(work) {
            throttle.charge(bytes, rate, now);
        }
    }

    /// Gives bytes back to the party that paid for `work` and did not move them.
    pub(in crate::shard) fn refund(&mut self, work: Work, bytes: u64) {
        let rate = self.cx.rate_of(work);
        if bytes > 0
            && let Some(throttle) = self.throttle_of(work)
        {
            throttle.refund(bytes, rate);
            // Others of the party may go on before it was thought.
            self.cx.sched.look_soon();
        }
    }

    /// Other rates, for what is owed, too.
    pub(in crate::shard) fn change_rates(&mut self, new: &Limits, now: Nanos) {
        let (old, clients) = (self.cx.limits, new.client.rate);
        self.clients.change_rate(old.client.rate, clients, now);
        self.links.change_rate(old.peer.rate, new.peer.rate, now);
        self.cx.sched.look_at(now);
    }

    fn throttle_of(&mut self, work: Work) -> Option<&mut Throttle> {
        let link = match work {
            Work::Transfer(key) => {
                let transfer = self.transfers.get(key)?;
                if matches!(transfer.waiter, Waiter::Copy { .. }) && !transfer.reads() {
                    return None;
                }
                return self.clients.throttle(transfer.session);
            }
            Work::Serve(key) => self.serves.get(key)?.link,
            Work::Lane(key) => self.lanes.get(key)?.inbound()?,
        };
        Some(&mut self.links.account(link)?.throttle)
    }
}
