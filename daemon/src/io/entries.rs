//! Turns an engine's operation into a submission queue entry, and borrows all that the kernel will
//! touch. Entries are built nowhere else.

use io_uring::{opcode, squeue, types};
use piped_core::io::{Op, Span, Spans};

use super::aside::{Call, Job, Piece};
use super::counters::OpKind;
use super::memory::{BAD_SPAN, Loan};
use super::ops::{Addresses, Loan as Lent};
use super::probe::REPORT_USAGE;
use super::tables::{DescriptorKind, Target};
use super::uring::UringIo;

impl UringIo {
    /// Makes the job of an operation on a foreign file; `None` if the operation is for the ring.
    /// After a fault the slot holds what was borrowed, to be returned.
    pub(super) fn prepare_aside(&mut self, index: u32, op: &Op) -> Option<Result<Job, i32>> {
        let (Op::Read { file: id, .. }
        | Op::Write { file: id, .. }
        | Op::Sync { file: id }
        | Op::Allocate { file: id, .. }) = *op
        else {
            return None;
        };
        let file = self.descriptors.foreign(id.0)?;
        let call = self.descriptors.lend(id.0, DescriptorKind::File).and_then(|_| {
            self.ops.slot(index).descriptor = Some(id.0);
            Ok(match *op {
                Op::Read { offset, into, .. } => {
                    Call::Read { offset, memory: self.lend_piece(index, into)? }
                }
                Op::Write { offset, from, .. } => {
                    Call::Write { offset, memory: self.lend_piece(index, from)? }
                }
                Op::Allocate { offset, length, .. } => Call::Allocate { offset, length },
                _ => Call::Sync,
            })
        });
        Some(call.map(|call| Job { index, file, call }))
    }

    fn lend_piece(&mut self, index: u32, span: Span) -> Result<Piece, i32> {
        let Loan { address, length, .. } = self.lend_span(index, span)?;
        let segment = self.memory.keep(span).ok_or(BAD_SPAN)?;
        Ok(Piece { _segment: segment, address, length })
    }

    /// Borrows all that an operation needs and builds its entry; none for a receive, which gets one
    /// if it goes to the ring. After a fault the slot holds what was borrowed, to be returned.
    pub(super) fn prepare(&mut self, index: u32, op: &Op) -> Result<Option<squeue::Entry>, i32> {
        let entry = match *op {
            Op::Read { file, offset, into } => {
                let target = self.lend_descriptor(index, file.0, DescriptorKind::File)?;
                let Loan { address, length, buffer } = self.lend_block(index, into)?;
                let (fd, ioprio) = (number(target), self.priorities.of(offset, length));
                let entry = match buffer {
                    Some(buffer) => opcode::ReadFixed::new(fd, address, length, buffer)
                        .offset(offset)
                        .ioprio(ioprio)
                        .build(),
                    None => {
                        opcode::Read::new(fd, address, length).offset(offset).ioprio(ioprio).build()
                    }
                };
                entry.flags(flags(target))
            }
            Op::Write { file, offset, from } => {
                let target = self.lend_descriptor(index, file.0, DescriptorKind::File)?;
                let Loan { address, length, buffer } = self.lend_block(index, from)?;
                let (fd, ioprio) = (number(target), self.priorities.of(offset, length));
                let entry = match buffer {
                    Some(buffer) => opcode::WriteFixed::new(fd, address, length, buffer)
                        .offset(offset)
                        .ioprio(ioprio)
                        .build(),
                    None => opcode::Write::new(fd, address, length)
                        .offset(offset)
                        .ioprio(ioprio)
                        .build(),
                };
                entry.flags(flags(target))
            }
            Op::Sync { file } => {
                let target = self.lend_descriptor(index, file.0, DescriptorKind::File)?;
                let sync = opcode::Fsync::new(number(target)).flags(types::FsyncFlags::DATASYNC);
                sync.build().flags(flags(target))
            }
            Op::Allocate { file, offset, length } => {
                let target = self.lend_descriptor(index, file.0, DescriptorKind::File)?;
                let allocate = opcode::Fallocate::new(number(target), length).offset(offset);
                allocate.build().flags(flags(target))
            }
            Op::Send { socket, ref spans } => {
                let target = self.lend_descriptor(index, socket.0, DescriptorKind::Socket)?;
                self.lend_spans(index, spans)?;
                self.stream_entry(index, target)
            }
            Op::SendZeroCopy { socket, ref spans, notice } => {
                self.ops.slot(index).loan = Some(Lent::Both(notice));
                let target = self.lend_descriptor(index, socket.0, DescriptorKind::Socket)?;
                self.lend_spans(index, spans)?;
                self.lending_entry(index, target)
            }
            Op::Receive { socket, ref spans, whole } => {
                self.lend_descriptor(index, socket.0, DescriptorKind::Socket)?;
                self.lend_spans(index, spans)?;
                let slot = self.ops.slot(index);
                // A result is an i32, so a longer whole cannot be reported.
                slot.whole = whole && i32::try_from(slot.bytes).is_ok();
                return Ok(None);
            }
            // Begun without an entry, in `calls`.
            Op::Call { .. } => return Err(-libc::EINVAL),
            Op::Nop => opcode::Nop::new().build().flags(self.bounds.flags()),
        };
        Ok(Some(entry.user_data(self.ops.user_data(index))))
    }

    /// Builds the entry of a send or of (the rest of) a receive, from the operation's address list.
    pub(super) fn stream_entry(&mut self, index: u32, target: Target) -> squeue::Entry {
        let (fd, ask_whole) = (number(target), self.ask_whole);
        let slot = self.ops.slot(index);
        let sends = slot.kind == OpKind::Send;
        let waits = sends || (slot.whole && ask_whole);
        let wait_all = if waits { libc::MSG_WAITALL } else { 0 };
        let message_flags = libc::MSG_NOSIGNAL | wait_all;
        let entry = match (self.ops.addresses(index), sends) {
            (Addresses::One(address, length), true) => {
                opcode::Send::new(fd, address, length).flags(message_flags).build()
            }
            (Addresses::Many(header), true) => {
                opcode::SendMsg::new(fd, header).flags(message_flags as u32).build()
            }
            (Addresses::One(address, length), false) => {
                opcode::Recv::new(fd, address, length).flags(message_flags).build()
            }
            (Addresses::Many(header), false) => {
                opcode::RecvMsg::new(fd, header).flags(message_flags as u32).build()
            }
        };
        entry.flags(flags(target)).user_data(self.ops.user_data(index))
    }

    /// Builds the entry of a send that lends its memory. One piece in one registered buffer needs
    /// no look-up of pages; several pieces, headers among them, are pinned by the kernel.
    fn lending_entry(&mut self, index: u32, target: Target) -> squeue::Entry {
        let fd = number(target);
        let message_flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let buffer = self.ops.slot(index).buffer;
        let entry = match self.ops.addresses(index) {
            Addresses::One(address, length) => opcode::SendZc::new(fd, address, length)
                .buf_index(buffer)
                .zc_flags(REPORT_USAGE)
                .flags(message_flags)
                .build(),
            Addresses::Many(header) => opcode::SendMsgZc::new(fd, header)
                .ioprio(REPORT_USAGE)
                .flags(message_flags as u32)
                .build(),
        };
        entry.flags(flags(target)).user_data(self.ops.user_data(index))
    }

    fn lend_spans(&mut self, index: u32, spans: &Spans) -> Result<(), i32> {
        // An empty receive would end with 0, which means that the other side has closed.
        if spans.as_slice().is_empty() {
            return Err(-libc::EINVAL);
        }
        self.ops.clear_list(index);
        let mut bytes = 0;
        for span in spans.as_slice() {
            let loan = self.lend_span(index, *span)?;
            let (address, length) = match self.memory.is_loose(span.segment.0) {
                true => bounce(self, index, *span, bytes)?,
                false => (loan.address, loan.length),
            };
            self.ops.slot(index).buffer = loan.buffer;
            if length > 0 {
                self.ops.push_address(index, address, length as usize);
            }
            bytes += u64::from(length);
            // What follows a part that is left out must wait for it.
            if length < span.length {
                break;
            }
        }
        let slot = self.ops.slot(index);
        slot.bytes = bytes;
        if let Some(bounce) = slot.bounce.filter(|_| slot.kind != OpKind::Receive) {
            self.bounces.fill(bounce, &mut self.memory);
        }
        Ok(())
    }

    fn lend_descriptor(
        &mut self,
        index: u32,
        id: u32,
        kind: DescriptorKind,
    ) -> Result<Target, i32> {
        let target = self.descriptors.lend(id, kind)?;
        self.ops.slot(index).descriptor = Some(id);
        match target {
            Target::Fixed(_) => self.counters.files_fixed += 1,
            Target::Plain(_) => self.counters.files_plain += 1,
        }
        Ok(target)
    }

    fn lend_span(&mut self, index: u32, span: Span) -> Result<Loan, i32> {
        let loan = self.memory.lend(span)?;
        self.ops.slot(index).lend_segment(span.segment.0);
        Ok(loan)
    }

    fn lend_block(&mut self, index: u32, span: Span) -> Result<Loan, i32> {
        let loan = self.lend_span(index, span)?;
        match loan.buffer {
            Some(_) => self.counters.buffers_fixed += 1,
            None => self.counters.buffers_plain += 1,
        }
        Ok(loan)
    }
}

/// Memory in place of a span that can vanish, as much as there is, for an operation that has
/// `before` bytes already.
fn bounce(io: &mut UringIo, index: u32, span: Span, before: u64) -> Result<(*mut u8, u32), i32> {
    let slot = io.ops.slot(index);
    if slot.bounce.is_none() {
        slot.bounce = io.bounces.take();
    }
    let bounce = slot.bounce.ok_or(-libc::ENOBUFS)?;
    Ok(io.bounces.replace(bounce, span, before))
}

/// Number for a target in an entry; [`flags`] gives its meaning.
fn number(target: Target) -> types::Fd {
    types::Fd(match target {
        Target::Fixed(place) => place as i32,
        Target::Plain(fd) => fd,
    })
}

fn flags(target: Target) -> squeue::Flags {
    match target {
        Target::Fixed(_) => squeue::Flags::FIXED_FILE,
        Target::Plain(_) => squeue::Flags::empty(),
    }
}
