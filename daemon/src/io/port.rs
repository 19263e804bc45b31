//! The engine's view of the driver: its [`Io`] trait.

use piped_core::ids::{FileId, SegmentId, SocketId};
use piped_core::io::{Cached, Io, Op, Resource, Span, Token, WireState};
use piped_core::request::Update;
use piped_core::units::Nanos;

use super::counters::OpKind;
use super::ring::Patience;
use super::tables::DescriptorKind;
use super::uring::UringIo;
use super::{calls, clock, memory, page_cache, socket};
use piped_core::modes::IoFeature;

impl Io for UringIo {
    fn now(&mut self) -> Nanos {
        clock::now()
    }

    fn push(&mut self, token: Token, op: Op) -> bool {
        if self.ops.is_full() || !self.make_room() {
            return false;
        }
        let kind = OpKind::from(&op);
        let Some(index) = self.ops.take(token, kind) else { return false };
        self.counters.ops[kind as usize] += 1;
        if let Op::Call { file, call, answer } = op {
            calls::begin(self, index, file, call, answer);
            return true;
        }
        if let Some(job) = self.prepare_aside(index, &op) {
            self.ops.slot(index).aside = true;
            match (job, &mut self.aside) {
                (Ok(job), Some(aside)) => aside.start(job),
                (job, _) => self.refuse(index, job.err().unwrap_or(-libc::EBADF)),
            }
            return true;
        }
        self.file_ops += u32::from(kind.is_file());
        match self.prepare(index, &op) {
            Ok(None) => {
                // The kernel waits for the rest of a whole one inside one call.
                let may_try = !self.ops.slot(index).whole && !self.ring.is_polled();
                self.receives.begin(index, may_try);
            }
            Ok(Some(entry)) => {
                self.file_ops_queued += u32::from(kind.is_file());
                let queued = self.queue(&entry);
                debug_assert!(queued, "room was made above");
            }
            Err(errno) => self.refuse(index, errno),
        }
        true
    }

    fn cancel(&mut self, token: Token) {
        if let Some(index) = self.ops.find_token(token) {
            self.cancel_at(index);
        }
    }

    fn release(&mut self, resource: Resource) {
        let submitter = self.ring.submitter();
        let counters = &mut self.counters;
        let known = match resource {
            Resource::File(FileId(id)) => {
                self.descriptors.release(id, DescriptorKind::File, &submitter, counters)
            }
            Resource::Socket(SocketId(id)) => {
                self.descriptors.release(id, DescriptorKind::Socket, &submitter, counters)
            }
            Resource::Segment(SegmentId(id)) => self.memory.release(id, &submitter, counters),
        };
        counters.misuses += u64::from(!known);
    }

    fn copy(&mut self, from: Span, to: Span) {
        let copied = match (self.memory.segment(from), self.memory.segment(to)) {
            (Some(source), Some(target)) if from.length == to.length => {
                source.copy(from.offset, target, to.offset, u64::from(from.length)).is_ok()
            }
            _ => false,
        };
        // What was there may be of somebody else, and is about to be handed to a client or a peer.
        if !copied && let Some(target) = self.memory.segment(to) {
            memory::clear(target, to.offset, to.length.into());
        }
        let [one, other] = [from, to].map(|span| !copied && self.memory.note_torn(span.segment.0));
        self.counters.misuses += u64::from(!copied && !one && !other);
    }

    fn load(&mut self, from: Span, to: &mut [u8]) {
        let loaded = self.memory.segment(from).is_some_and(|it| it.load(from.offset, to).is_ok());
        let is_torn = !loaded && self.memory.note_torn(from.segment.0);
        if !(loaded || is_torn) || to.len() != from.length as usize {
            self.counters.misuses += 1;
        }
        if !loaded {
            to.fill(0);
        }
    }

    fn store(&mut self, from: &[u8], to: Span) {
        let stored = from.len() == to.length as usize
            && self.memory.segment(to).is_some_and(|it| it.store(to.offset, from).is_ok());
        let is_torn = !stored && self.memory.note_torn(to.segment.0);
        self.counters.misuses += u64::from(!stored && !is_torn);
    }

    fn update(&mut self, at: Span, update: Update) -> u64 {
        let segment = self.memory.segment(at).filter(|_| u64::from(at.length) == Update::BYTES);
        let word = segment.and_then(|it| match update {
            Update::Add(addend) => it.fetch_add(at.offset, addend).ok(),
            Update::CompareSwap { expected, new } => it.compare_swap(at.offset, expected, new).ok(),
        });
        self.counters.misuses += u64::from(word.is_none());
        word.unwrap_or(0)
    }

    fn spend(&mut self, time: Nanos) {
        clock::spin(time);
    }

    fn sends_without_copy(&self) -> bool {
        self.features.has(IoFeature::SendZeroCopy)
    }

    fn hand_over(&mut self) -> bool {
        // A kernel thread that submits takes its own time.
        if self.ring.is_polled() {
            return false;
        }
        let before = self.ring.completions();
        if self.ring.sq_len() > 0 {
            self.enter(Patience::None);
        }
        self.ring.completions() > before
    }

    fn wire_state(&mut self, SocketId(id): SocketId) -> Option<WireState> {
        let socket = self.descriptors.socket(id)?;
        self.counters.other_syscalls += 1;
        socket::wire_state(socket).ok()
    }

    fn cached(&mut self, FileId(id): FileId, offset: u64, length: u64) -> Cached {
        if !self.features.has(IoFeature::PageCache) {
            return Cached::default();
        }
        let Some(file) = self.descriptors.file(id) else { return Cached::default() };
        self.counters.other_syscalls += 1;
        page_cache::holds(file, offset, length).unwrap_or_default()
    }

    fn pace(&mut self, SocketId(id): SocketId, bytes_per_second: Option<u64>) {
        let Some(socket) = self.descriptors.socket(id) else { return };
        self.counters.other_syscalls += 1;
        // If the kernel cannot pace it, the lane goes on without.
        let _ = socket::set_pace(socket, bytes_per_second);
    }

    fn crc32c(&mut self, span: Span) -> u32 {
        let segment = self.memory.segment(span);
        let sum = segment.and_then(|it| it.crc32c(span.offset, u64::from(span.length)).ok());
        let is_torn = sum.is_none() && self.memory.note_torn(span.segment.0);
        self.counters.misuses += u64::from(sum.is_none() && !is_torn);
        sum.unwrap_or(0)
    }

    fn is_loose(&self, SegmentId(id): SegmentId) -> bool {
        self.memory.is_loose(id)
    }

    fn is_torn(&self, SegmentId(id): SegmentId) -> bool {
        self.memory.is_torn(id)
    }
}
