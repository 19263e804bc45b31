//! A node's driver: the [`Io`] that its engine gets from the simulated kernel.

use crc_fast::{CrcAlgorithm, checksum};
use piped_core::ids::{FileId, SegmentId};
use piped_core::io::{Cached, Io, Op, Resource, Span, Token};
use piped_core::request::Update;
use piped_core::units::Nanos;

use super::{NodeId, SimKernel, Touch};

/// The driver of one node, as the engine sees it.
#[derive(Debug)]
pub struct SimIo<'kernel> {
    kernel: &'kernel mut SimKernel,
    node: NodeId,
}

impl<'kernel> SimIo<'kernel> {
    pub(super) const fn new(kernel: &'kernel mut SimKernel, node: NodeId) -> Self {
        Self { kernel, node }
    }

    fn check(&self, span: Span, touch: Touch, who: &str) {
        self.kernel.memory[self.node].check(span, touch, &format_args!("{who}"));
    }
}

impl Io for SimIo<'_> {
    fn now(&mut self) -> Nanos {
        self.kernel.node_time(self.node)
    }

    fn push(&mut self, token: Token, op: Op) -> bool {
        self.kernel.push(self.node, token, op)
    }

    fn cancel(&mut self, token: Token) {
        self.kernel.cancel(self.node, token);
    }

    fn release(&mut self, resource: Resource) {
        let node = self.node;
        self.kernel.note(|| format!("{node:?} releases {resource:?}"));
        match resource {
            Resource::Segment(segment) => self.kernel.memory[node].remove(segment),
            Resource::File(file) => self.kernel.close_file(node, file),
            Resource::Socket(socket) => self.kernel.close_socket(node, socket),
        }
    }

    fn cached(&mut self, file: FileId, offset: u64, length: u64) -> Cached {
        let inode = self.kernel.inode(self.node, file);
        self.kernel.disk.cached(inode, offset, length)
    }

    fn copy(&mut self, from: Span, to: Span) {
        assert_eq!(from.length, to.length, "sim: copy {from:?} to {to:?}: lengths differ");
        let apart = from.segment != to.segment
            || from.offset + u64::from(from.length) <= to.offset
            || to.offset + u64::from(to.length) <= from.offset;
        assert!(apart, "sim: copy {from:?} to {to:?}: they overlap");
        self.check(from, Touch::Reads, "copy");
        self.check(to, Touch::Writes, "copy");
        let memory = &mut self.kernel.memory[self.node];
        let bytes = memory.bytes(from).to_vec();
        if !memory.is_torn(to.segment) {
            memory.bytes_mut(to).copy_from_slice(&bytes);
        }
    }

    fn load(&mut self, from: Span, to: &mut [u8]) {
        assert_eq!(from.length as usize, to.len(), "sim: load of {from:?}: lengths differ");
        self.check(from, Touch::Reads, "load");
        to.copy_from_slice(self.kernel.bytes(self.node, from));
    }

    fn store(&mut self, from: &[u8], to: Span) {
        assert_eq!(to.length as usize, from.len(), "sim: store to {to:?}: lengths differ");
        self.check(to, Touch::Writes, "store");
        if !self.is_torn(to.segment) {
            self.kernel.bytes_mut(self.node, to).copy_from_slice(from);
        }
    }

    fn update(&mut self, at: Span, update: Update) -> u64 {
        assert_eq!(u64::from(at.length), Update::BYTES, "sim: update of {at:?}: not a word");
        assert_eq!(at.offset % Update::BYTES, 0, "sim: update of {at:?}: no multiple of 8");
        self.check(at, Touch::Writes, "update");
        let bytes = self.kernel.bytes_mut(self.node, at);
        let word = u64::from_ne_bytes((&*bytes).try_into().expect("8 bytes"));
        bytes.copy_from_slice(&update.of(word).to_ne_bytes());
        word
    }

    fn spend(&mut self, time: Nanos) {
        self.kernel.keep_busy(self.node, time);
    }

    fn sends_without_copy(&self) -> bool {
        self.kernel.zero_copy.is_some()
    }

    fn hand_over(&mut self) -> bool {
        self.kernel.zero_copy.is_some_and(|it| it.costs.is_some())
    }

    fn is_loose(&self, segment: SegmentId) -> bool {
        self.kernel.memory[self.node].is_loose(segment)
    }

    fn is_torn(&self, segment: SegmentId) -> bool {
        self.kernel.memory[self.node].is_torn(segment)
    }

    fn crc32c(&mut self, span: Span) -> u32 {
        self.check(span, Touch::Reads, "crc32c");
        checksum(CrcAlgorithm::Crc32Iscsi, self.kernel.bytes(self.node, span)) as u32
    }
}
