//! Requests that a client asks through a queue, and their results.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use piped_core::call::{Call, HEAD_BYTES, Locking};
use piped_ring::{
    CLASS_BULK, CLASS_DEFAULT, CLASS_LATENCY, Descriptor, FLAG_ANY_TAG, FLAG_BUFFERS, FLAG_DURABLE,
    FLAG_FENCE, FLAG_NO_WAIT, Opcode,
};

use crate::buffer::Buffer;
use crate::buffers::Buffers;
use crate::clock;
use crate::error::{BufferState, Cause, RequestError, SubmitError};
use crate::handle::{Handle, HandleCore};
use crate::payload::{Payload, sealed};
use crate::pieces::Pieces;

/// How urgent a request is.
///
/// ```
/// assert_eq!(piped_client::Class::default(), piped_client::Class::Session);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Class {
    /// The class that the session named when it connected (or the daemon's default).
    #[default]
    Session,
    /// Somebody is blocked on it: goes first.
    Latency,
    /// Throughput matters more than latency.
    Bulk,
}

impl Class {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Session => CLASS_DEFAULT,
            Self::Latency => CLASS_LATENCY,
            Self::Bulk => CLASS_BULK,
        }
    }
}

/// Which messages of a channel a receive takes.
///
/// ```
/// use piped_client::Tag;
/// assert_eq!(Tag::from(7), Tag::Is(7));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tag {
    /// The next one, whatever its tag.
    Any,
    /// The next one with this tag.
    Is(u64),
}

impl From<u64> for Tag {
    fn from(tag: u64) -> Self {
        Self::Is(tag)
    }
}

/// A handle that has locks is not opened again in silence: notes it if a call is about them.
fn note_locks(of: &Handle, buffer: &Buffer, bytes: usize) {
    let mut call = [0; HEAD_BYTES];
    if bytes != call.len() || buffer.read_at(0, &mut call).is_err() {
        return;
    }
    match Call::parse(&call).ok().and_then(|call| call.locking()) {
        Some(Locking::Some) => of.core.note_locked(true),
        Some(Locking::None) => of.core.note_locked(false),
        Some(Locking::Fewer) | None => {}
    }
}

/// A request that was refused has ended, too.
impl<B: Payload> From<SubmitError<B>> for RequestError {
    fn from(SubmitError { fault, buffer }: SubmitError<B>) -> Self {
        let buffer = sealed::Payload::stow(buffer);
        let buffer = buffer.map_or(BufferState::None, BufferState::Returned);
        Self { cause: Cause::NotSubmitted(fault), bytes: 0, buffer }
    }
}

/// A request that is not submitted yet: a verb and what deviates from the defaults.
///
/// ```
/// use std::time::Duration;
/// use piped_client::{Class, Request};
/// let request = Request::nop().class(Class::Latency).deadline(Duration::from_millis(5)).tag(7);
/// assert!(format!("{request:?}").starts_with("Request"));
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is submitted"]
pub struct Request<B> {
    pub(crate) descriptor: Descriptor,
    pub(crate) handles: [Option<Arc<HandleCore>>; 2],
    /// The piece of the buffer, from its start; a descriptor has the piece from the segment's.
    pub(crate) piece: Option<Range<usize>>,
    /// The table of its pieces, if it is vectored.
    pub(crate) pieces: Option<Pieces>,
    pub(crate) tag: u64,
    /// Whether to submit it again if the daemon ends first.
    pub(crate) again: bool,
    pub(crate) payload: B,
}

impl Request<Buffer> {
    /// Fill the buffer from `offset` of a file or region.
    pub fn read(from: &Handle, offset: u64, buffer: Buffer) -> Self {
        Self::transfer(Opcode::Read, from, offset, buffer)
    }

    /// Write the buffer at `offset` of a file or region.
    pub fn write(to: &Handle, offset: u64, buffer: Buffer) -> Self {
        Self::transfer(Opcode::Write, to, offset, buffer)
    }

    /// Fill the buffer with pieces of a file or region, in one request ([`crate::Client::pieces`]).
    /// [`Done::bytes`] counts them one behind the other, in the table's order; [`Queue::progress`]
    /// does, too. Short pieces of a peer's region travel together and cost a copy each; those of
    /// files are a transfer each.
    ///
    /// [`Queue::progress`]: crate::Queue::progress
    pub fn read_pieces(from: &Handle, pieces: &Pieces, buffer: Buffer) -> Self {
        Self::vectored(Opcode::ReadV, from, pieces, buffer)
    }

    /// Write pieces of the buffer to a file or region, in one request. They are written in any
    /// order: pieces that overlap in the file or region have no defined result.
    pub fn write_pieces(to: &Handle, pieces: &Pieces, buffer: Buffer) -> Self {
        Self::vectored(Opcode::WriteV, to, pieces, buffer)
    }

    /// Make the call that lies in the first `bytes` of the buffer ([`Call::encode`]). Its answer
    /// comes to the start of the buffer; [`Done::bytes`] is how long that is.
    ///
    /// A call that changes names is carried out once, however often the connection to a peer is
    /// lost. If the peer's daemon ends in between, it ends with [`crate::Status::OutcomeUnknown`];
    /// and one that ended at its deadline may have been carried out, or not.
    ///
    /// [`Call::encode`]: crate::Call::encode
    pub fn call(of: &Handle, buffer: Buffer, bytes: usize) -> Self {
        note_locks(of, &buffer, bytes);
        let mut request = Self::transfer(Opcode::Call, of, 0, buffer);
        request.descriptor.operand_a = bytes as u64;
        request
    }

    fn vectored(opcode: Opcode, handle: &Handle, pieces: &Pieces, buffer: Buffer) -> Self {
        let mut request = Self::transfer(opcode, handle, 0, buffer);
        request.take_pieces(pieces);
        request
    }

    /// Send the buffer to a channel ([`crate::Client::open_channel`]) under a tag. The request ends
    /// when the message was taken in: a short one by the receiver's node, a longer one by its
    /// receiver.
    pub fn send(to: &Handle, tag: u64, buffer: Buffer) -> Self {
        let mut request = Self::transfer(Opcode::Send, to, 0, buffer);
        request.descriptor.tag = tag;
        request
    }

    /// Receive the next message of a channel ([`crate::Client::offer_channel`]) with that tag into
    /// the buffer. Messages of one sender and tag come in the order in which they were sent.
    /// [`Done::value`] is the message's tag. A message that is longer than the buffer stays, and
    /// the request ends with [`crate::Cause::Status`] `TooLong`.
    pub fn receive(from: &Handle, tag: impl Into<Tag>, buffer: Buffer) -> Self {
        let mut request = Self::transfer(Opcode::Recv, from, 0, buffer);
        match tag.into() {
            Tag::Any => request.descriptor.flags |= FLAG_ANY_TAG,
            Tag::Is(tag) => request.descriptor.tag = tag,
        }
        request
    }

    fn transfer(opcode: Opcode, handle: &Handle, offset: u64, buffer: Buffer) -> Self {
        let mut request = Self::new(opcode, buffer);
        request.descriptor.offset_a = offset;
        request.handles[0] = Some(Arc::clone(&handle.core));
        request
    }

    /// Move a piece of the buffer only, in bytes from its start.
    pub fn piece(mut self, piece: Range<usize>) -> Self {
        self.piece = Some(piece);
        self
    }

    /// Submit it again if the daemon ends before it does, within its deadline: the client must be
    /// made with [`crate::ClientBuilder::reconnect`], or this changes nothing. It can also be
    /// submitted while no daemon is there. A thread that waits on the queue reconnects; one that
    /// only polls it calls [`crate::Client::reconnect`].
    ///
    /// Reads and writes can be done twice, since their buffer is theirs until they end. The bytes
    /// that a read brought from the daemon before count no more, and its progress begins at 0
    /// again. Nothing changes for other requests: the source of a copy may have changed, a sync
    /// would vouch for writes of another daemon, and a message could be received twice. If no
    /// daemon comes until the deadline, the request ends with [`crate::Cause::Disconnected`].
    ///
    /// ```no_run
    /// # fn write(
    /// #     queue: &mut piped_client::Queue,
    /// #     file: &piped_client::Handle,
    /// #     block: piped_client::Buffer,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use piped_client::Request;
    /// let request = Request::write(file, 0, block).deadline(Duration::from_secs(20)).resubmit();
    /// let block = queue.run(request)?.payload;
    /// # Ok(()) }
    /// ```
    pub fn resubmit(mut self) -> Self {
        let opcode = self.descriptor.opcode;
        self.again = [Opcode::Read as u8, Opcode::Write as u8].contains(&opcode);
        self
    }

    /// Let the write complete when its bytes are on stable storage.
    pub fn durable(mut self) -> Self {
        self.descriptor.flags |= FLAG_DURABLE;
        self
    }

    /// For a write to a region: notify its exporter of `id`, after this write and all puts that
    /// this queue asked of that node before, whichever way their bytes go. The request ends after
    /// the notification. A write that fails notifies nobody.
    ///
    /// The promises are those of [`Request::notify`].
    pub fn then_notify(mut self, id: u32) -> Self {
        self.descriptor.opcode = Opcode::PutNotify as u8;
        self.descriptor.notify_id = id;
        // The notified process may have gone on: the bytes are not to be written again.
        self.again = false;
        self
    }

    /// For a read: name the byte that is wanted first, from the start of the request, as after a
    /// page fault. The page about it (4 KiB of the file or region) travels before the rest;
    /// [`Queue::landed`] says when it is there.
    ///
    /// [`Queue::landed`]: crate::Queue::landed
    pub fn wanted_first(mut self, offset: u64) -> Self {
        self.descriptor.wanted_offset = offset;
        self
    }
}

impl Request<Buffers> {
    /// Fill several buffers from `offset` of a file or region on, one behind the other, in one
    /// request. [`Done::bytes`] counts over all of them. Short buffers of a peer's region travel
    /// together and cost a copy each; those of files are a transfer each.
    pub fn read_buffers(from: &Handle, offset: u64, buffers: Buffers) -> Self {
        Self::scattered(Opcode::ReadV, from, offset, buffers)
    }

    /// Write several buffers one behind the other, from `offset` of a file or region on.
    pub fn write_buffers(to: &Handle, offset: u64, buffers: Buffers) -> Self {
        Self::scattered(Opcode::WriteV, to, offset, buffers)
    }

    /// Move these pieces of the file or region instead of a range. Their places in the buffer count
    /// over all buffers.
    pub fn pieces(mut self, pieces: &Pieces) -> Self {
        self.take_pieces(pieces);
        self
    }

    fn scattered(opcode: Opcode, handle: &Handle, offset: u64, buffers: Buffers) -> Self {
        let mut request = Self::new(opcode, buffers);
        request.descriptor.flags |= FLAG_BUFFERS;
        request.descriptor.offset_a = offset;
        request.handles[0] = Some(Arc::clone(&handle.core));
        request
    }
}

impl Request<()> {
    /// Do nothing: measures the way to the daemon and back.
    pub fn nop() -> Self {
        Self::new(Opcode::Nop, ())
    }

    /// Copy `length` bytes between two handles, without passing through this process. The source's
    /// end ends the copy early.
    pub fn copy(from: &Handle, from_offset: u64, to: &Handle, to_offset: u64, length: u64) -> Self {
        let mut request = Self::new(Opcode::Copy, ());
        request.descriptor.offset_a = from_offset;
        request.descriptor.offset_b = to_offset;
        request.descriptor.length = length;
        request.handles = [Some(Arc::clone(&from.core)), Some(Arc::clone(&to.core))];
        request
    }

    /// Add to 8 bytes of a region, wrapping around: one atomic step for all that change them by
    /// such requests. [`Done::value`] is what they were. They are a word of the exporter's byte
    /// order at a multiple of 8 bytes, and the handle is open for [`crate::Access::atomic`].
    ///
    /// The addition is done exactly once, however often the connection to the peer is lost. If the
    /// peer's daemon ends in between, the request ends with [`crate::Status::OutcomeUnknown`]; and
    /// one that ended at its deadline may have been done, or not.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use piped_client::{Access, Client, Request};
    /// let client = Client::connect("/run/piped/client.sock")?;
    /// let counters = client.open_region(Some("beta"), "counters", Access::ALL)?;
    /// let ticket = client.queue()?.run(Request::fetch_add(&counters, 0, 1))?.value;
    /// println!("my ticket is {ticket}");
    /// # Ok(()) }
    /// ```
    pub fn fetch_add(region: &Handle, offset: u64, addend: u64) -> Self {
        let mut request = Self::on(Opcode::FetchAdd, region, offset);
        request.descriptor.operand_a = addend;
        request
    }

    /// Replace 8 bytes of a region if they are `expected`, otherwise as [`Self::fetch_add`].
    /// [`Done::value`] is what they were: if that is `expected`, they were replaced.
    pub fn compare_swap(region: &Handle, offset: u64, expected: u64, new: u64) -> Self {
        let mut request = Self::on(Opcode::CompareSwap, region, offset);
        (request.descriptor.operand_a, request.descriptor.operand_b) = (expected, new);
        request
    }

    /// Notify the exporter of a region of `id`, after all puts that this queue asked of that node
    /// before. The notification is given exactly once, like an atomic.
    ///
    /// An earlier put that fails does not hold it back. To make sure, look at the put's result
    /// first, or let [`Request::then_notify`] do both.
    ///
    /// A notification that ended at its deadline or was cancelled may have been given. A put before
    /// it whose answer is lost with the connection is then not sent again, because the exporter may
    /// use the memory for something else by now: it ends with [`crate::Status::OutcomeUnknown`]. So
    /// does a durable write before a notification that was given: whether it is on stable storage
    /// nobody can tell any more.
    pub fn notify(region: &Handle, id: u32) -> Self {
        let mut request = Self::on(Opcode::Notify, region, 0);
        request.descriptor.notify_id = id;
        request
    }

    /// Wait until `count` notifications of `id` have come to a region of this client
    /// ([`crate::RegionExport::handle`]), and take them. Several waits for one `id` are served in
    /// their order. [`Done::value`] is how many are left.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use piped_client::{Access, Client, Request};
    /// let client = Client::connect("/run/piped/client.sock")?;
    /// let halo = client.export_region("halo", client.allocate(1 << 20)?, Access::WRITE)?;
    /// let mut queue = client.queue()?;
    /// queue.run(Request::wait(halo.handle(), 7, 1))?; // Somebody has put the next rows.
    /// # Ok(()) }
    /// ```
    pub fn wait(region: &Handle, id: u32, count: u64) -> Self {
        let mut request = Self::on(Opcode::Wait, region, 0);
        request.descriptor.notify_id = id;
        request.descriptor.operand_a = count;
        request
    }

    /// Wait for all reads, writes, atomics and notifications that this queue asked of the handle's
    /// node before. Each of them says itself how it ended.
    pub fn flush(handle: &Handle) -> Self {
        Self::on(Opcode::Flush, handle, 0)
    }

    fn on(opcode: Opcode, handle: &Handle, offset: u64) -> Self {
        let mut request = Self::new(opcode, ());
        request.descriptor.offset_a = offset;
        request.handles[0] = Some(Arc::clone(&handle.core));
        request
    }

    /// Bring what completed writes wrote to stable storage.
    pub fn sync(handle: &Handle) -> Self {
        Self::on(Opcode::Sync, handle, 0)
    }
}

impl<B> Request<B> {
    fn new(opcode: Opcode, payload: B) -> Self {
        let descriptor = Descriptor::new(opcode, 0);
        let handles = [None, None];
        Self { descriptor, handles, piece: None, pieces: None, tag: 0, again: false, payload }
    }

    fn take_pieces(&mut self, pieces: &Pieces) {
        let (segment, offset) = pieces.table.place();
        (self.descriptor.table_segment, self.descriptor.table_offset) = (segment, offset);
        self.descriptor.table_count = pieces.rows();
        self.descriptor.operand_a = pieces.bytes();
        self.pieces = Some(pieces.clone());
    }

    /// The request, whatever it takes with it.
    #[cfg(feature = "async")]
    pub(crate) fn of_any(self) -> Request<Option<Buffer>>
    where
        B: Payload,
    {
        let Self { descriptor, handles, piece, pieces, tag, again, payload } = self;
        let payload = payload.stow();
        Request { descriptor, handles, piece, pieces, tag, again, payload }
    }

    /// Set how urgent it is.
    pub fn class(mut self, class: Class) -> Self {
        self.descriptor.class = class.number();
        self
    }

    /// Set the longest time from its submission. Default: the daemon's.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        // 0 would be the default; a nanosecond is as soon as it gets.
        self.descriptor.deadline_ns = clock::nanos(deadline).max(1);
        self
    }

    /// End with [`crate::Status::WouldBlock`] instead of waiting: for a limit of the daemon, for a
    /// sender or receiver, or for room for what is sent. The daemon still takes earlier requests in
    /// the ring first.
    pub fn no_wait(mut self) -> Self {
        self.descriptor.flags |= FLAG_NO_WAIT;
        self
    }

    /// For a read, write, call, atomic or notification: begin only when all of these that this
    /// queue asked of the same node before are over. Without a fence the daemon does requests in
    /// any order, and only notifications wait for puts.
    pub fn fence(mut self) -> Self {
        self.descriptor.flags |= FLAG_FENCE;
        self
    }

    /// A number of the caller's own, for [`Completed::tag`].
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }
}

/// The name of a request of a queue.
///
/// A number that is never used twice in a queue's life, except after 2^32 requests in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(crate) queue: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The result of a request that did everything (reads: up to the end of the file).
#[derive(Debug)]
pub struct Done<B> {
    /// Bytes moved, from the request's start.
    pub bytes: u64,
    /// For a receive, the message's tag; for an atomic, what the word was; for a wait, how many
    /// notifications are left; otherwise 0.
    pub value: u64,
    /// The buffer of the request, or nothing.
    pub payload: B,
}

/// A detached request that ended.
#[derive(Debug)]
pub struct Completed {
    /// The request that ended.
    pub id: RequestId,
    /// The number of [`Request::tag`].
    pub tag: u64,
    /// How the request ended, with its buffer if it had one.
    pub result: Result<Done<Option<Buffer>>, RequestError>,
}

/// A buffer that was [`crate::BufferState::Held`] and is free now.
#[derive(Debug)]
pub struct Released {
    /// The request that had it.
    pub id: RequestId,
    /// The number of [`Request::tag`].
    pub tag: u64,
    /// The buffer, free again.
    pub buffer: Buffer,
}
