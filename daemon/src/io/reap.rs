//! The other half of the driver: submitting, waiting, taking completions, shutting down.

use io_uring::cqueue;
use piped_core::io::Done;
use piped_core::units::Nanos;

use super::aside::Aside;
use super::counters::OpKind;
use super::ops::{Ops, Owner, State};
use super::ring::Patience;
use super::uring::UringIo;
use super::{UringError, WatchId, clock};

impl UringIo {
    /// Longest wait for unfinished operations when the driver is dropped.
    pub const SHUTDOWN_TIMEOUT: Nanos = Nanos::from_millis(2_000);

    /// Submits all pushed operations in one system call, or in none if there is nothing to do.
    /// Returns whether there was one: then the kernel also went on with unfinished operations.
    ///
    /// # Errors
    /// [`UringError::Enter`], after which the driver is of no more use. A kernel short of memory is
    /// no error: the rest goes with the next call.
    pub fn submit(&mut self) -> Result<bool, UringError> {
        self.queue_deferred();
        let due = self.ring.sq_len() > 0 || self.ring.wants_collecting(&mut self.counters);
        if due {
            self.enter(Patience::None);
        }
        self.take_fault()?;
        Ok(due)
    }

    /// Submits like [`UringIo::submit`], but lets file operations and their completions wait a
    /// moment for more of their kind, see `hold.rs`. All others go at once. `now` is the time of
    /// this turn.
    ///
    /// # Errors
    /// As for [`UringIo::submit`].
    pub fn submit_soon(&mut self, now: Nanos) -> Result<bool, UringError> {
        self.hold.handle_turn(now, self.file_ops);
        let queued = self.file_ops_queued;
        // If a kernel thread takes entries by itself, none of this is known, or needed.
        let in_kernel = if self.ring.is_polled() { 0 } else { self.file_ops - queued };
        let only_files =
            self.receives.is_empty() && self.cancels.is_empty() && self.ring.sq_len() == queued;
        if only_files {
            let is_due = queued > 0 || self.ring.wants_collecting(&mut self.counters);
            if is_due && self.hold.may_wait(now, queued, in_kernel) {
                return Ok(false);
            }
            if !is_due && !self.watches.any_unarmed() {
                return self.take_fault().map(|()| false);
            }
        }
        self.submit()
    }

    /// Submits, and sleeps until there is something to take, a doorbell rings, a signal comes or
    /// `until` has passed (`None`: without limit). May return early.
    ///
    /// # Errors
    /// As for [`UringIo::submit`].
    pub fn wait(&mut self, until: Option<Nanos>) -> Result<(), UringError> {
        self.receives.end_tries();
        self.queue_deferred();
        let has_news = !self.refused.is_empty()
            || !self.receives.is_empty()
            || self.watches.has_woken()
            || self.aside.as_ref().is_some_and(Aside::has_news)
            || self.ring.has_completions()
            || self.fault.is_some();
        let left = until.map(|until| until.since(clock::now()));
        match left {
            _ if has_news => return self.submit().map(drop),
            Some(Nanos::ZERO) => return self.submit().map(drop),
            Some(left) => self.enter(Patience::AtMost(left)),
            None => self.enter(Patience::Forever),
        }
        self.take_fault()
    }

    /// Hands all completions to `sink`, and returns how many there were. Enters the kernel only if
    /// completions wait there, and submits what was pushed on the way.
    pub fn poll_dones(&mut self, sink: &mut impl FnMut(Done)) -> u32 {
        if self.ring.wants_collecting(&mut self.counters) {
            self.enter(Patience::None);
        }
        self.reap(sink)
    }

    /// Hands those completions to `sink` that need no system call. A loop that ends each turn with
    /// [`UringIo::submit`] gets the rest by that call.
    pub fn reap(&mut self, sink: &mut impl FnMut(Done)) -> u32 {
        let mut count = 0;
        while let Some(index) = self.refused.pop_front() {
            if let State::Refused(errno) = self.ops.slot(index).state {
                count += self.end_refused(index, errno, sink);
            }
        }
        if let Some(mut aside) = self.aside.take() {
            for ended in aside.take() {
                sink(self.finish(ended.index, ended.result));
                count += 1;
            }
            self.aside = Some(aside);
        }
        let mut tried = 0;
        while let Some((index, result)) = {
            let Self { receives, ops, descriptors, counters, .. } = self;
            receives.poll(&mut tried, ops, descriptors, counters)
        } {
            sink(self.finish(index, result));
            count += 1;
        }
        // A doorbell that rings all the time must not keep the shard here: one queue's worth.
        for _ in 0..self.ring.cq_entries() {
            let Some(cqe) = self.ring.pop() else { break };
            count += self.handle_cqe(&cqe, sink);
        }
        count
    }

    /// Handles one completion, and returns how many ends it brought.
    fn handle_cqe(&mut self, cqe: &cqueue::Entry, sink: &mut impl FnMut(Done)) -> u32 {
        match Owner::of(cqe.user_data()) {
            Owner::Op { index, generation } => {
                let Some(slot) = self.ops.find(index, generation) else { return 0 };
                if let Some(loan) = slot.loan {
                    return self.handle_lent(index, loan, cqe, sink);
                }
                let Some(result) = self.accumulate(index, cqe.result()) else { return 0 };
                sink(self.finish(index, result));
                1
            }
            Owner::Watch { id } => {
                self.watches.handle(id, cqe, &self.ring.submitter(), &mut self.counters);
                0
            }
            Owner::Cancel | Owner::Unknown => 0,
        }
    }

    /// Result of the operation, or `None` if it goes on: kernels before 5.19 end a receive with
    /// MSG_WAITALL short when the data come in pieces, so a whole receive asks for its rest.
    fn accumulate(&mut self, index: u32, result: i32) -> Option<i32> {
        let slot = self.ops.slot(index);
        if slot.cancelled && result == -libc::EINTR {
            return Some(-libc::ECANCELED);
        }
        if !slot.whole {
            return Some(result);
        }
        // A whole receive has at most i32::MAX bytes, see `prepare`.
        let received = u32::try_from(result).unwrap_or(0);
        slot.bytes_done += u64::from(received);
        let total = slot.bytes_done.min(i32::MAX as u64) as i32;
        let unfinished = received > 0 && slot.bytes_done < slot.bytes && !slot.cancelled;
        let target =
            slot.descriptor.filter(|_| unfinished).and_then(|id| self.descriptors.lent(id));
        if let Some(target) = target
            && self.make_room()
        {
            self.ops.advance_list(index, received as usize);
            let entry = self.stream_entry(index, target);
            if self.queue(&entry) {
                self.counters.continued += 1;
                return None;
            }
        }
        Some(if total > 0 { total } else { result })
    }

    /// Finishes an operation, and returns what it had borrowed.
    pub(super) fn finish(&mut self, index: u32, result: i32) -> Done {
        let token = self.ops.token(index);
        let submitter = self.ring.submitter();
        let slot = self.ops.slot(index);
        if slot.kind.is_file() && !slot.aside {
            self.file_ops -= 1;
            self.hold.handle_end();
        }
        if let Some(bounce) = slot.bounce {
            if slot.kind == OpKind::Receive {
                self.bounces.empty(bounce, u64::try_from(result).unwrap_or(0), &mut self.memory);
            }
            self.bounces.give_back(bounce);
        }
        for segment in slot.segments() {
            self.memory.give_back(*segment, &submitter, &mut self.counters);
        }
        if let Some(id) = slot.descriptor {
            self.descriptors.give_back(id, &submitter, &mut self.counters);
        }
        self.ops.give_back(index);
        Done { token, result }
    }

    /// Queues doorbells to arm, receives, and cancellations that had to wait for the queue.
    fn queue_deferred(&mut self) {
        while let Some(entry) = self.watches.next_to_arm() {
            if !self.make_room() || !self.queue(&entry) {
                return;
            }
            self.watches.armed_next();
        }
        while let Some(index) = self.receives.first() {
            let descriptor = self.ops.slot(index).descriptor;
            let Some(target) = descriptor.and_then(|id| self.descriptors.lent(id)) else {
                // A socket that was given back is shut down: nothing comes any more.
                self.receives.pop();
                self.end_later(index, 0);
                continue;
            };
            if !self.make_room() {
                return;
            }
            let entry = self.stream_entry(index, target);
            if !self.queue(&entry) {
                return;
            }
            self.receives.pop();
        }
        while let Some(owner) = self.cancels.front() {
            if !self.queue_cancel(*owner) {
                return;
            }
            self.cancels.pop_front();
        }
    }

    pub(super) fn take_fault(&mut self) -> Result<(), UringError> {
        self.fault.take().map_or(Ok(()), Err)
    }

    /// Cancels everything and waits for it. `false` if the kernel still has some of it.
    fn drain(&mut self) -> bool {
        self.descriptors.release_sockets(&self.ring.submitter(), &mut self.counters);
        let taken: Vec<u32> = self.ops.taken().collect();
        for index in taken {
            self.cancel_at(index);
        }
        let aside = self.aside.as_ref().map(|aside| aside.watch);
        for id in self.watches.armed().into_iter().map(WatchId) {
            if Some(id) != aside {
                self.unwatch(id);
            }
        }
        let until = clock::now() + Self::SHUTDOWN_TIMEOUT;
        loop {
            self.poll_dones(&mut |_| {});
            if self.ops.in_flight() == 0 {
                if let Some(aside) = self.aside.take() {
                    self.unwatch(aside.watch);
                }
                if !self.watches.any_armed() {
                    return true;
                }
            }
            if clock::now() >= until || self.wait(Some(until)).is_err() {
                return self.ops.in_flight() == 0;
            }
        }
    }
}

impl Drop for UringIo {
    fn drop(&mut self) {
        if !self.drain() {
            self.memory.leak_lent();
            std::mem::forget(std::mem::take(&mut self.bounces));
            // Leak the address lists as well: a receive writes into its message header when it
            // ends.
            std::mem::forget(std::mem::replace(&mut self.ops, Ops::new(0)));
        }
    }
}
