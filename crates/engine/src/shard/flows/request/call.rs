//! A client's call: copied, checked, and carried out here or asked of a peer.
//!
//! The client may write its buffer at any time, and the answer comes to the same place. So the call
//! is copied into a cell of staging, checked there, and carried out from there; what is sent again
//! after a lost lane is that copy. One that waits for a device, a lane or a limit has no cell.

use piped_core::call::CALL_BYTES_MAX;
use piped_core::io::{Io, Op};
use piped_core::status::Status;

use crate::shard::Shard;
use crate::shard::buffers::CallOf;
use crate::shard::call::{Synced, check, told};
use crate::shard::keys::{CallKey, TransferKey};
use crate::shard::requests::{Body, RemoteBody, Transfer};
use crate::shard::sched::Work;

impl Shard {
    pub(in crate::shard) fn drive_call<I: Io>(
        &mut self,
        key: TransferKey,
        call: CallKey,
        io: &mut I,
    ) {
        let body = self.bodies[call];
        let Some((file, on)) = body.local().filter(|_| !body.is_started()) else { return };
        if let Err(wanted) = self.cx.driver.may_call(on) {
            return self.cx.want(Work::Transfer(key), wanted);
        }
        if !self.take_call(key, call, io) {
            return;
        }
        let body = &mut self.bodies[call];
        let (Some(copy), Some(transfer)) = (body.copy(), self.transfers.get_mut(key)) else {
            return;
        };
        let answer = body.memory().span(0, transfer.length as u32);
        let op = Op::Call { file, call: copy, answer };
        match self.cx.driver.start_call((key, &mut transfer.pins), on, (op, 0), io) {
            Ok(()) => body.start(),
            Err(wanted) => self.cx.want(Work::Transfer(key), wanted),
        }
    }

    /// Copies a call out of its client's buffer, if that was not done, and checks the copy.
    /// `false`: there is no room for it now, or the call is refused.
    pub(in crate::shard) fn take_call<I: Io>(
        &mut self,
        key: TransferKey,
        call: CallKey,
        io: &mut I,
    ) -> bool {
        let body = self.bodies[call];
        if body.copy().is_some() {
            return true;
        }
        let (from, rights) = (body.asked_at(), body.rights());
        let Some(transfer) = self.transfers.get(key) else { return false };
        let (session, room) = (transfer.session, transfer.length as u32);
        let mut bytes = [0; CALL_BYTES_MAX];
        let bytes = &mut bytes[..from.length as usize];
        io.load(from, bytes);
        let facts = match check(bytes, rights, room) {
            Ok(facts) => facts,
            Err(status) => {
                self.decide(key, status, io);
                return false;
            }
        };
        let own = self.clients.call_bytes(session);
        let Some(cell) = self.cx.buffers.take_cell(CallOf::Client, own) else {
            self.cx.sched.starve(Work::Transfer(key));
            return false;
        };
        self.clients.count_call(session, true);
        io.store(bytes, cell.span().part(0, from.length));
        self.bodies[call].take(cell, facts);
        true
    }

    /// What goes to a peer, with the copy of its call if it is one. `None`: not now, or not at all.
    pub(in crate::shard) fn with_call<I: Io>(
        &mut self,
        key: TransferKey,
        body: RemoteBody,
        io: &mut I,
    ) -> Option<RemoteBody> {
        let Some(call) = body.call else { return Some(body) };
        // One that waits for a lane has no staging.
        let lane = self.transfers.get(key).and_then(|transfer| self.lane_for(transfer, &body));
        if lane.is_some() && !self.take_call(key, call, io) {
            return None;
        }
        Some(RemoteBody { enclosed: self.bodies[call].copy(), ..body })
    }

    /// The driver has carried a call out.
    pub(in crate::shard) fn end_local_call<I: Io>(
        &mut self,
        key: TransferKey,
        result: i32,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(key).filter(|it| it.status.is_none()) else {
            return;
        };
        if result < 0 {
            let Body::Call(call) = transfer.body else { return };
            let (access, _) = self.bodies[call].rights();
            return self.decide(key, told(access, result), io);
        }
        let bytes = (result as u64).min(transfer.length);
        let landed = self.transfers.land(key, 0, bytes);
        debug_assert!(landed.is_ok(), "an answer comes at once");
        self.charge(Work::Transfer(key), bytes, io.now());
        self.decide(key, Status::Ok, io);
    }

    /// A peer has carried a call out, or refused: how it ends here.
    pub(in crate::shard) fn end_remote_call<I: Io>(
        &mut self,
        key: TransferKey,
        status: Status,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let landed = transfer.landed.watermark();
        let Body::Remote(body) = transfer.body else { return };
        let facts = body.call.and_then(|call| self.bodies[call].facts());
        self.charge(Work::Transfer(key), landed, io.now());
        // One that failed may have changed something all the same.
        if facts.is_some_and(|facts| facts.changes()) {
            self.note_unsynced(key, body, io.now());
        }
        if let (Status::Ok, Some(locking)) = (status, facts.and_then(|facts| facts.locks()))
            && let Some(remote) = self.remote_of(key, body.handle)
        {
            remote.note_locked(locking);
        }
        let status = match (status, facts.and_then(|facts| facts.syncs())) {
            (Status::Ok, Some(Synced::All)) => self.vouch(key, body),
            (Status::Ok, Some(Synced::Part)) => self.vouch_for_part(key, body),
            (status, _) => status,
        };
        self.decide(key, status, io);
    }

    /// A call is over, and nothing touches its memory: its cell and its number are free.
    pub(in crate::shard) fn leave_call(&mut self, key: TransferKey, call: CallKey) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let (session, handle) = (transfer.session, transfer.remote().map(|it| it.handle));
        let number = self.bodies[call].number();
        if let Some(cell) = self.bodies[call].give_back() {
            self.cx.buffers.free_cell(cell, CallOf::Client, &mut self.cx.sched);
            self.clients.count_call(session, false);
        }
        if let (Some((number, _)), Some(handle)) = (number, handle)
            && let Some(remote) = self.remote_of(key, handle)
        {
            remote.updates.end(number);
        }
    }

    /// The number under which a peer remembers what came of a call that it must not carry out
    /// twice, and how many before it may come again. `Ok(None)`: such a call needs none.
    ///
    /// # Errors
    /// A status to end with, or none: the peer remembers as many as it can.
    pub(in crate::shard) fn number_of_call(
        &mut self,
        key: TransferKey,
        body: &RemoteBody,
        incarnation: u64,
    ) -> Result<Option<(u32, u8)>, Option<Status>> {
        let Some(call) = body.call.map(|call| self.bodies[call]) else { return Ok(None) };
        if !call.facts().is_some_and(|facts| facts.once()) {
            return Ok(None);
        }
        // It may have been carried out by a daemon that is no more.
        if call.number().is_some_and(|(_, of)| of != incarnation) {
            return Err(Some(Status::OutcomeUnknown));
        }
        let remote = self.remote_of(key, body.handle).ok_or(Some(Status::BadHandle))?;
        if call.number().is_none() && remote.updates.is_full() {
            return Err(None);
        }
        let number = call.number().map_or(remote.updates.next(), |(number, _)| number);
        Ok(Some((number, number.wrapping_sub(remote.updates.oldest()) as u8)))
    }

    /// A call is on its way to a peer: one that has a number keeps it from now on.
    pub(in crate::shard) fn note_call_sent(&mut self, key: TransferKey, incarnation: u64) {
        let Some(body) = self.transfers.get(key).and_then(Transfer::remote) else { return };
        let (handle, Some(call)) = (body.handle, body.call) else { return };
        let state = self.bodies[call];
        if state.number().is_some() || !state.facts().is_some_and(|facts| facts.once()) {
            return;
        }
        if let Some(remote) = self.remote_of(key, handle) {
            let number = remote.updates.begin();
            self.bodies[call].set_number((number, incarnation));
        }
    }
}
