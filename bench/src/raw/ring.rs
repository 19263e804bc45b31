//! An io_uring with registered memory and one registered file, without any comfort.
//!
//! The ring owns the memory of its operations, and checks their bounds, so its users need no
//! `unsafe`. If it is dropped while operations are under way (after an error), the memory stays
//! mapped for ever, because closing a ring does not wait for them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};
use memmap2::{Advice, MmapMut, MmapOptions};

use crate::raw::Wait;

const FILE: types::Fixed = types::Fixed(0);
const ENTER_GETEVENTS: u32 = 1;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A ring, its memory and its file.
pub(super) struct Ring {
    ring: IoUring,
    /// Taken, and leaked, only when the ring is dropped with operations under way.
    memory: Option<MmapMut>,
    /// Offset in the mapping where the memory begins.
    memory_start: usize,
    memory_bytes: usize,
    /// Description of the two pieces of an operation; leaked with the memory.
    message: Option<Box<Message>>,
    wait: Wait,
    in_flight: usize,
}

/// Two pieces of memory as the kernel wants them described.
struct Message {
    header: libc::msghdr,
    vectors: [libc::iovec; 2],
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { wait, in_flight, memory_bytes, .. } = self;
        write!(f, "Ring({wait:?}, {in_flight} under way, {memory_bytes} bytes)")
    }
}

/// A piece of the ring's memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) start: usize,
    pub(super) length: usize,
}

impl Ring {
    /// Makes a ring for at most `entries` operations at once, with `memory_bytes` of registered
    /// memory.
    ///
    /// # Errors
    /// The kernel refuses a feature, or so much locked memory.
    pub(super) fn new(
        entries: u32,
        memory_bytes: usize,
        file: BorrowedFd<'_>,
        wait: Wait,
    ) -> io::Result<Self> {
        let (memory, memory_start) = huge_pages(memory_bytes)?;
        Self::over(entries, (memory, memory_start, memory_bytes), file, wait)
    }

    /// Makes a ring over memory that is there: a mapping, the offset where the memory begins in
    /// it, and its length.
    pub(super) fn over(
        entries: u32,
        (mut memory, memory_start, memory_bytes): (MmapMut, usize, usize),
        file: BorrowedFd<'_>,
        wait: Wait,
    ) -> io::Result<Self> {
        if memory_start.checked_add(memory_bytes).is_none_or(|end| end > memory.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let ring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(entries.next_power_of_two())?;
        let base = memory.as_mut_ptr().wrapping_add(memory_start);
        let iovec = libc::iovec { iov_base: base.cast(), iov_len: memory_bytes };
        // SAFETY: the memory is mapped, and stays so while an operation can touch it (see `drop`).
        unsafe { ring.submitter().register_buffers(&[iovec])? };
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let memory = Some(memory);
        let message = None;
        Ok(Self { ring, memory, memory_start, memory_bytes, message, wait, in_flight: 0 })
    }

    /// Two pieces of the memory, the first before the second, while no operation can touch them.
    pub(super) fn bytes(&mut self, [first, second]: [Piece; 2]) -> io::Result<[&mut [u8]; 2]> {
        let fits = |piece: Piece| {
            let end = piece.start.checked_add(piece.length);
            end.filter(|end| *end <= self.memory_bytes)
        };
        let apart = fits(first).is_some_and(|end| end <= second.start) && fits(second).is_some();
        let free = apart && self.in_flight == 0;
        let memory = self.memory.as_mut().filter(|_| free).ok_or(io::ErrorKind::InvalidInput)?;
        let (before, rest) = memory[self.memory_start..].split_at_mut(second.start);
        Ok([&mut before[first.start..][..first.length], &mut rest[..second.length]])
    }

    /// Sends two pieces as one message, whole.
    pub(super) fn send_both(&mut self, from: [Piece; 2], tag: u64) -> io::Result<()> {
        let message = self.message(from)?;
        let flags = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL) as u32;
        let entry = opcode::SendMsg::new(FILE, message).flags(flags).build();
        self.push(entry.user_data(tag))
    }

    /// Fills two pieces, one after the other.
    pub(super) fn receive_both(&mut self, to: [Piece; 2], tag: u64) -> io::Result<()> {
        let message = self.message(to)?;
        let entry = opcode::RecvMsg::new(FILE, message).flags(libc::MSG_WAITALL as u32).build();
        self.push(entry.user_data(tag))
    }

    /// Describes two pieces for the kernel, at an address that stays until the next description.
    fn message(&mut self, pieces: [Piece; 2]) -> io::Result<*mut libc::msghdr> {
        if self.in_flight > 0 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        for (vector, piece) in vectors.iter_mut().zip(pieces) {
            *vector = libc::iovec { iov_base: self.address(piece)?.cast(), iov_len: piece.length };
        }
        // SAFETY: all of its fields are numbers and pointers, for which zero is a value.
        let header = unsafe { std::mem::zeroed::<libc::msghdr>() };
        let message = self.message.get_or_insert_with(|| Box::new(Message { header, vectors }));
        message.vectors = vectors;
        message.header.msg_iov = message.vectors.as_mut_ptr();
        message.header.msg_iovlen = vectors.len();
        Ok(&raw mut message.header)
    }

    /// Reads a piece of the file into registered memory.
    pub(super) fn read(&mut self, to: Piece, offset: u64, tag: u64) -> io::Result<()> {
        let memory = self.address(to)?;
        let entry =
            opcode::ReadFixed::new(FILE, memory, to.length as u32, 0).offset(offset).build();
        self.push(entry.user_data(tag))
    }

    /// Sends a piece whole. If `linked`, the next operation begins when this one has ended.
    pub(super) fn send(&mut self, from: Piece, linked: bool, tag: u64) -> io::Result<()> {
        let memory = self.address(from)?;
        let entry = opcode::Send::new(FILE, memory, from.length as u32)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build();
        self.push(linked_if(entry, linked).user_data(tag))
    }

    /// Receives a piece whole.
    pub(super) fn receive(&mut self, to: Piece, linked: bool, tag: u64) -> io::Result<()> {
        let memory = self.address(to)?;
        let entry =
            opcode::Recv::new(FILE, memory, to.length as u32).flags(libc::MSG_WAITALL).build();
        self.push(linked_if(entry, linked).user_data(tag))
    }

    /// Receives the part of a piece that is there; nothing is an error of kind `WouldBlock`.
    pub(super) fn receive_now(&mut self, to: Piece, tag: u64) -> io::Result<()> {
        let memory = self.address(to)?;
        let entry =
            opcode::Recv::new(FILE, memory, to.length as u32).flags(libc::MSG_DONTWAIT).build();
        self.push(entry.user_data(tag))
    }

    fn address(&mut self, piece: Piece) -> io::Result<*mut u8> {
        let end = piece.start.checked_add(piece.length);
        let fits =
            piece.length <= u32::MAX as usize && end.is_some_and(|end| end <= self.memory_bytes);
        let memory = self.memory.as_mut().filter(|_| fits).ok_or(io::ErrorKind::InvalidInput)?;
        // Inside the mapping, as just checked; no reference to the bytes is made.
        Ok(memory.as_mut_ptr().wrapping_add(self.memory_start + piece.start))
    }

    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: the entry's memory lies in the ring's own mapping (`address`), which outlives the
        // operation (`drop`), and so does what describes it (`message`); its file is the registered
        // one.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed
            .map_err(|_| io::Error::other("more operations at once than the ring was made for"))?;
        self.in_flight += 1;
        Ok(())
    }

    /// Submits pushed operations and waits until `want` completions can be taken.
    pub(super) fn submit_and_wait(&mut self, want: usize) -> io::Result<()> {
        match self.wait {
            Wait::Block => {
                while let Err(error) = self.ring.submit_and_wait(want) {
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
            Wait::Spin => {
                self.ring.submit()?;
                while self.ring.completion().len() < want {
                    if self.ring.submission().taskrun() {
                        let none = None::<&libc::sigset_t>;
                        // SAFETY: no argument beside the flags; it runs what completions are due.
                        unsafe { self.ring.submitter().enter(0, 0, ENTER_GETEVENTS, none)? };
                    } else {
                        std::hint::spin_loop();
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the next completion: the operation's tag and its result.
    pub(super) fn take(&mut self) -> Option<(u64, io::Result<usize>)> {
        let entry = self.ring.completion().next()?;
        self.in_flight -= 1;
        let result = entry.result();
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        Some((entry.user_data(), result))
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }
}

/// Memory that begins at the returned offset of its mapping, in huge pages where the system allows
/// them.
///
/// A device takes a request as a list of physically contiguous segments. 1 MiB in huge pages is one
/// segment; in small pages it is up to 256, as the kernel's free lists happen to lie. That is more
/// than the queue of a virtio disk holds, so the next request waits for the one before, whatever
/// the depth. Measured: 2.5 GB/s in huge pages, 0.5 to 1.2 GB/s in small ones, another figure with
/// each allocation.
fn huge_pages(bytes: usize) -> io::Result<(MmapMut, usize)> {
    let whole = bytes.next_multiple_of(HUGE_PAGE_BYTES);
    // Longer by a huge page, because old kernels do not align a mapping to one.
    let mut memory = MmapOptions::new().len(whole + HUGE_PAGE_BYTES).map_anon()?;
    let start = memory.as_mut_ptr().align_offset(HUGE_PAGE_BYTES);
    // Refused where they are switched off: then small pages are used.
    let _ = memory.advise_range(Advice::HugePage, start, whole);
    // Touch all pages before anything is timed.
    memory.advise_range(Advice::PopulateWrite, start, bytes)?;
    Ok((memory, start))
}

fn linked_if(entry: squeue::Entry, linked: bool) -> squeue::Entry {
    if linked { entry.flags(squeue::Flags::IO_LINK) } else { entry }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            std::mem::forget(self.memory.take());
            std::mem::forget(self.message.take());
        }
    }
}
