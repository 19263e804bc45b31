//! Memory lent by sends: the kernel reads it after the send has ended, and notifies when it is
//! done.
//!
//! The real kernel does not complain when such memory is written too early; the other side gets
//! bytes that were never sent. Here the spans stay pinned, like those of an operation, so that a
//! touch panics. Also, when the kernel lets go, the memory must hold the bytes that were queued, so
//! a write without a check is found, too. The time until then is random: notices overtake each
//! other, and come long after the other side has answered.

use piped_core::ids::SocketId;
use piped_core::io::{Done, NOTICE_COPIED, NOTICE_IN_PLACE, Op, Spans, Token};
use piped_core::units::Nanos;

use super::kernel::SimKernel;
use super::memory::{OpKey, Touch};
use super::net::NodeId;
use super::pending::KernelEvent;
use super::stage::Cost;

/// How sends without a copy end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ZeroCopy {
    /// Per send: the kernel copies all the same.
    pub copied: f64,
    /// The longest time until the kernel lets go; one send in twenty takes ten times as long.
    pub held_max: Nanos,
    /// Per send: the kernel refuses it.
    pub refused: f64,
    /// Costs of a send on the thread: with a copy, and without. `None`: no time at all.
    pub costs: Option<[Cost; 2]>,
}

/// A send whose memory is lent, until the kernel notifies that it is done.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) node: NodeId,
    token: Token,
    spans: Spans,
    socket: SocketId,
    /// The bytes that were queued, which the memory must still hold at the notice.
    bytes: Vec<u8>,
    result: i32,
    /// Whether the send has ended.
    ended: bool,
}

/// ENOBUFS: too much is pinned.
const REFUSAL: i32 = -105;

impl SimKernel {
    /// Pins the memory of a send that lends it.
    pub(super) fn lend(&mut self, node: NodeId, key: OpKey, op: &Op) {
        let Op::SendZeroCopy { socket, spans, notice } = *op else { return };
        let Some(zero_copy) = self.zero_copy else {
            panic!("sim: {node:?} lends {spans:?} to a driver that does not take it");
        };
        let result =
            if self.random.chance(zero_copy.copied) { NOTICE_COPIED } else { NOTICE_IN_PLACE };
        for span in spans.as_slice() {
            self.memory[node].pin(key, *span, Touch::Reads);
        }
        let (token, bytes, ended) = (notice, Vec::new(), false);
        let notice = Notice { node, token, spans, socket, bytes, result, ended };
        self.notices.insert(key, notice);
    }

    /// The errno if the kernel refuses a send without a copy.
    pub(super) fn refuses(&mut self, op: &Op) -> Option<i32> {
        let zero_copy = self.zero_copy.filter(|_| matches!(op, Op::SendZeroCopy { .. }))?;
        let refused = self.random.chance(zero_copy.refused);
        self.refused_sends += u64::from(refused);
        refused.then_some(REFUSAL)
    }

    /// Keeps the thread busy for the time of a send.
    pub(super) fn spend_on_send(&mut self, node: NodeId, op: &Op) {
        let Some([plain, lent]) = self.zero_copy.and_then(|it| it.costs) else { return };
        let (spans, cost) = match op {
            Op::Send { spans, .. } => (spans, plain),
            Op::SendZeroCopy { spans, .. } => (spans, lent),
            _ => return,
        };
        self.keep_busy(node, cost.occupancy(spans.bytes()));
    }

    /// Records which bytes of a lending send are queued.
    pub(super) fn note_lent(&mut self, key: OpKey, bytes: &[u8]) {
        if let Some(notice) = self.notices.get_mut(&key) {
            notice.bytes = bytes.to_vec();
        }
    }

    /// Plans the notice of a send that has ended.
    pub(super) fn plan_notice(&mut self, key: OpKey) {
        let Some(zero_copy) = self.zero_copy else { return };
        let long = if self.random.chance(0.05) { 10 } else { 1 };
        let most = Nanos(zero_copy.held_max.0.saturating_mul(long));
        let at = self.now + self.random.up_to(most);
        if let Some(notice) = self.notices.get_mut(&key) {
            notice.ended = true;
        }
        self.events.push(at, KernelEvent::LetGo { op: key });
    }

    /// Plans early notices for a closed socket, whose queued bytes are dropped.
    pub(super) fn hurry_notices(&mut self, node: NodeId, socket: SocketId) {
        let its = |notice: &Notice| notice.node == node && notice.socket == socket && notice.ended;
        let keys: Vec<OpKey> =
            self.notices.iter().filter(|(_, notice)| its(notice)).map(|(&key, _)| key).collect();
        self.lent_at_close += u64::from(!keys.is_empty());
        for op in keys {
            let at = self.now + self.random.up_to(Nanos::from_millis(1));
            self.events.push(at, KernelEvent::LetGo { op });
        }
    }

    /// Notifies that the kernel is done with lent memory (the first of several times, if it was
    /// hurried).
    pub(super) fn let_go(&mut self, key: OpKey) {
        let Some(notice) = self.notices.remove(&key) else { return };
        let Notice { node, token, spans, bytes, result, .. } = notice;
        let shared = |segment| self.memory[node].is_shared(segment);
        // What clients race on may change: that is theirs to lose.
        if !spans.as_slice().iter().any(|span| shared(span.segment)) {
            let now = self.gather(node, &spans, bytes.len());
            assert!(now == bytes, "sim: {node:?}: what #{key} lent has changed: {spans:?}");
        }
        for span in spans.as_slice() {
            self.memory[node].unpin(key, span.segment);
        }
        self.dones.push(node, Done { token, result });
        self.note(|| format!("{node:?} #{key} is let go of, {result}"));
    }

    /// Number of ended sends whose memory a node still lends.
    pub(super) fn lent_by(&self, node: NodeId) -> usize {
        self.notices.values().filter(|notice| notice.node == node && notice.ended).count()
    }
}
