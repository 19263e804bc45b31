//! Operations in flight, with all that each has borrowed, and the address lists that the kernel
//! reads.
//!
//! One slab, taken at start. An operation's place is its name towards the kernel (`user_data`),
//! together with a generation, so that a late cancellation cannot hit the next operation at that
//! place. The engine's token is looked up in the slab only to cancel; that is rare, and a scan over
//! a few thousand contiguous words costs less than a map on every operation.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

use piped_core::io::{SPANS_PER_OP_MAX, Token};

use super::counters::OpKind;

/// Source of a completion, in the top byte of `user_data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The operation at this place, if the generation matches.
    Op { index: u32, generation: u32 },
    /// A cancellation, which nobody waits for.
    Cancel,
    /// A doorbell with its id.
    Watch { id: u32 },
    /// Nothing that was submitted here.
    Unknown,
}

const KIND_OP: u64 = 1;
const KIND_CANCEL: u64 = 2;
const KIND_WATCH: u64 = 3;
const GENERATION_MASK: u32 = (1 << 24) - 1;

impl Owner {
    pub(super) const fn user_data(self) -> u64 {
        match self {
            Self::Op { index, generation } => {
                KIND_OP << 56 | (generation as u64) << 32 | index as u64
            }
            Self::Cancel => KIND_CANCEL << 56,
            Self::Watch { id } => KIND_WATCH << 56 | id as u64,
            Self::Unknown => 0,
        }
    }

    pub(super) const fn of(user_data: u64) -> Self {
        let index = user_data as u32;
        match user_data >> 56 {
            KIND_OP => Self::Op { index, generation: (user_data >> 32) as u32 & GENERATION_MASK },
            KIND_CANCEL => Self::Cancel,
            KIND_WATCH => Self::Watch { id: index },
            _ => Self::Unknown,
        }
    }
}

/// Completions that are still to come of a send that lends its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loan {
    /// Both: the bytes that are queued and then, under this token, that the memory is free.
    Both(Token),
    /// The bytes: the kernel reported the free memory first, which is told after them.
    Bytes(Token, i32),
    /// The free memory, of a send on this socket. The operation's token is the notice's by now.
    Notice { socket: Option<u32> },
}

/// Progress of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// The kernel has it, or will have it with the next submission.
    InFlight,
    /// The operation never got to the kernel; the result waits to be taken.
    Refused(i32),
}

/// One operation: all that it lent to the kernel, and the state to go on with it.
#[derive(Debug)]
pub(super) struct OpSlot {
    pub(super) state: State,
    pub(super) generation: u32,
    pub(super) kind: OpKind,
    /// File or socket of the operation.
    pub(super) descriptor: Option<u32>,
    /// Segments of its spans, one count each.
    segments: [u32; SPANS_PER_OP_MAX],
    segment_count: u8,
    /// Whether a receive is continued when the kernel ends it short.
    pub(super) whole: bool,
    pub(super) cancelled: bool,
    /// Whether a thread makes it, so that the ring does not see it.
    pub(super) aside: bool,
    /// Completions still to come of a send that lends.
    pub(super) loan: Option<Loan>,
    /// Registered buffer that has all of it.
    pub(super) buffer: Option<u16>,
    /// Memory in place of spans that can vanish.
    pub(super) bounce: Option<u16>,
    /// Bytes asked for, and bytes done in earlier rounds of a whole receive.
    pub(super) bytes: u64,
    pub(super) bytes_done: u64,
}

impl OpSlot {
    const fn new() -> Self {
        Self {
            state: State::Free,
            generation: 0,
            kind: OpKind::Nop,
            descriptor: None,
            segments: [0; SPANS_PER_OP_MAX],
            segment_count: 0,
            whole: false,
            cancelled: false,
            aside: false,
            loan: None,
            buffer: None,
            bounce: None,
            bytes: 0,
            bytes_done: 0,
        }
    }

    pub(super) fn segments(&self) -> &[u32] {
        &self.segments[..usize::from(self.segment_count)]
    }

    /// Notes that a span of a segment is lent. At most [`SPANS_PER_OP_MAX`] times.
    pub(super) fn lend_segment(&mut self, segment: u32) {
        self.segments[usize::from(self.segment_count)] = segment;
        self.segment_count += 1;
    }
}

/// Addresses that the kernel reads when it takes an operation, and the header that it writes when a
/// receive ends.
struct AddressList {
    iovecs: [libc::iovec; SPANS_PER_OP_MAX],
    header: libc::msghdr,
    count: usize,
}

/// Slab of all operations.
pub(super) struct Ops {
    slots: Box<[OpSlot]>,
    tokens: Box<[Token]>,
    /// Beside the slots, and in cells: the kernel writes here unseen by the compiler, so no
    /// reference to a list may be held across a system call. Lists never move.
    lists: Box<[UnsafeCell<AddressList>]>,
    free: Vec<u32>,
}

impl std::fmt::Debug for Ops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ops")
            .field("capacity", &self.slots.len())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Ops {
    pub(super) fn new(capacity: u32) -> Self {
        // SAFETY: `AddressList` consists of integers and raw pointers, for which zero is a value.
        let list =
            || UnsafeCell::new(unsafe { MaybeUninit::<AddressList>::zeroed().assume_init() });
        Self {
            slots: (0..capacity).map(|_| OpSlot::new()).collect(),
            tokens: (0..capacity).map(|_| Token(0)).collect(),
            lists: (0..capacity).map(|_| list()).collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes a place, clean except for its generation. `None` if all are taken.
    pub(super) fn take(&mut self, token: Token, kind: OpKind) -> Option<u32> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        *slot =
            OpSlot { generation: slot.generation, kind, state: State::InFlight, ..OpSlot::new() };
        self.tokens[index as usize] = token;
        Some(index)
    }

    pub(super) fn slot(&mut self, index: u32) -> &mut OpSlot {
        &mut self.slots[index as usize]
    }

    pub(super) fn token(&self, index: u32) -> Token {
        self.tokens[index as usize]
    }

    /// Gives an operation another token.
    pub(super) fn rename(&mut self, index: u32, token: Token) {
        self.tokens[index as usize] = token;
    }

    /// Slot of an operation that the kernel reports, unless the report is stale.
    pub(super) fn find(&mut self, index: u32, generation: u32) -> Option<&mut OpSlot> {
        self.slots
            .get_mut(index as usize)
            .filter(|slot| slot.generation == generation && slot.state == State::InFlight)
    }

    /// Place of a token in flight.
    pub(super) fn find_token(&self, token: Token) -> Option<u32> {
        let slots = self.slots.iter();
        self.tokens
            .iter()
            .zip(slots)
            .position(|(other, slot)| *other == token && slot.state != State::Free)
            .map(|index| index as u32)
    }

    /// Gives a place back, after everything that it lent was returned.
    pub(super) fn give_back(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert_ne!(slot.state, State::Free, "a place is given back once");
        slot.state = State::Free;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push(index);
    }

    pub(super) fn user_data(&self, index: u32) -> u64 {
        Owner::Op { index, generation: self.slots[index as usize].generation }.user_data()
    }

    /// Places that are taken.
    pub(super) fn taken(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| slot.state != State::Free).map(|(index, _)| index as u32)
    }

    /// Address list of an operation, between rounds.
    fn list(&mut self, index: u32) -> &mut AddressList {
        // SAFETY: `&mut self` keeps every other user in this program out, and the place belongs to
        // one operation, which is not queued (or not again) yet: its callers build or change the
        // list before they queue it, so the kernel is not in it. The reference starts at the cell's
        // own pointer and leaves the other lists, which the kernel may be in, alone.
        unsafe { &mut *self.lists[index as usize].get() }
    }

    /// Starts an operation's address list.
    pub(super) fn clear_list(&mut self, index: u32) {
        self.list(index).count = 0;
    }

    /// Appends a piece of memory to an operation's address list.
    pub(super) fn push_address(&mut self, index: u32, address: *mut u8, length: usize) {
        let list = self.list(index);
        list.iovecs[list.count] = libc::iovec { iov_base: address.cast(), iov_len: length };
        list.count += 1;
    }

    /// Takes `bytes` that were received off the front of the list.
    pub(super) fn advance_list(&mut self, index: u32, mut bytes: usize) {
        let list = self.list(index);
        let mut gone = 0;
        for iovec in &mut list.iovecs[..list.count] {
            let step = bytes.min(iovec.iov_len);
            iovec.iov_base = iovec.iov_base.cast::<u8>().wrapping_add(step).cast();
            iovec.iov_len -= step;
            bytes -= step;
            if iovec.iov_len > 0 {
                break;
            }
            gone += 1;
        }
        list.iovecs.copy_within(gone..list.count, 0);
        list.count -= gone;
    }

    /// Address list in the kernel's form: one piece, or the address of a message header.
    pub(super) fn addresses(&mut self, index: u32) -> Addresses {
        let cell = &self.lists[index as usize];
        let list = cell.get();
        // SAFETY: `&mut self` and the place being ours mean that nobody else, the kernel included,
        // uses this list now: it belongs to one operation, which has not been queued (again) yet.
        // Going through the raw pointer keeps the header's address valid for the kernel afterwards.
        unsafe {
            if (*list).count == 1 {
                let iovec = (*list).iovecs[0];
                // A span's length is a u32, so this conversion is exact.
                return Addresses::One(iovec.iov_base.cast(), iovec.iov_len as u32);
            }
            (*list).header.msg_iov = (&raw mut (*list).iovecs).cast();
            (*list).header.msg_iovlen = (*list).count as _;
            Addresses::Many(&raw mut (*list).header)
        }
    }
}

/// Location of an operation's bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Addresses {
    /// Bytes in one piece.
    One(*mut u8, u32),
    /// Bytes in several pieces, by a message header that lives in the slab.
    Many(*mut libc::msghdr),
}

#[cfg(test)]
mod tests {
    use piped_core::io::Token;

    use super::{Addresses, Ops, Owner, State};
    use crate::io::counters::OpKind;

    #[test]
    fn user_data_says_whose_it_is() {
        for owner in [
            Owner::Op { index: u32::MAX, generation: (1 << 24) - 1 },
            Owner::Op { index: 0, generation: 0 },
            Owner::Cancel,
            Owner::Watch { id: 0xfff0_0001 },
            Owner::Unknown,
        ] {
            assert_eq!(Owner::of(owner.user_data()), owner);
        }
    }

    #[test]
    fn a_late_report_does_not_reach_the_next_tenant() {
        let mut ops = Ops::new(1);
        let index = ops.take(Token(1), OpKind::Nop).unwrap();
        let Owner::Op { generation, .. } = Owner::of(ops.user_data(index)) else { panic!() };
        assert!(ops.find(index, generation).is_some());
        ops.give_back(index);
        assert!(ops.find(index, generation).is_none());
        assert_eq!(ops.take(Token(2), OpKind::Nop), Some(index));
        assert!(ops.find(index, generation).is_none());
        assert_eq!(ops.find_token(Token(1)), None);
        assert_eq!(ops.find_token(Token(2)), Some(index));
        assert_eq!(ops.slot(index).state, State::InFlight);
        assert_eq!(ops.take(Token(3), OpKind::Nop), None);
    }

    #[test]
    fn received_bytes_leave_the_front_of_the_list() {
        let mut bytes = [0_u8; 100];
        let base = bytes.as_mut_ptr();
        for (skip, left) in [
            (0, vec![10, 20, 70]),
            (10, vec![20, 70]),
            (15, vec![15, 70]),
            (31, vec![69]),
            (99, vec![1]),
        ] {
            let mut ops = Ops::new(1);
            let index = ops.take(Token(1), OpKind::Receive).unwrap();
            ops.clear_list(index);
            for (offset, length) in [(0, 10), (10, 20), (30, 70)] {
                ops.push_address(index, base.wrapping_add(offset), length);
            }
            ops.advance_list(index, skip);
            let list = ops.list(index);
            let lengths: Vec<usize> = list.iovecs[..list.count].iter().map(|v| v.iov_len).collect();
            assert_eq!(lengths, left, "after {skip}");
            assert_eq!(list.iovecs[0].iov_base.cast::<u8>(), base.wrapping_add(skip));
            let one = matches!(ops.addresses(index), Addresses::One(..));
            assert_eq!(one, left.len() == 1);
        }
    }
}
