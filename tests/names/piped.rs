//! The same operations through client-lib.

use std::collections::BTreeMap;
use std::path::Path;

use piped_client::call::{Entries, Extent, ExtentKind, FileKind, Range, Stat};
use piped_client::{
    Access, Buffer, BufferState, Call, Cause, Client, Done, Handle, OpenError, OpenOptions, Queue,
    Request, RequestError, SessionError, Status,
};
use system_tests::process::eventually;

use super::invent::{BYTES_MAX, Op, SLOTS};
use super::mirror::{Known, Told};

/// Room for the longest transfer.
const BUFFER_BYTES: usize = BYTES_MAX as usize;

/// How an operation ended, if that is known.
#[derive(Debug)]
pub(crate) enum Ended {
    Told(Told),
    InDoubt(String),
}

/// A client, with the directory and the files that it has open.
#[derive(Debug)]
pub(crate) struct Piped {
    client: Client,
    queue: Queue,
    peer: Option<&'static str>,
    root: Handle,
    files: [Option<Handle>; SLOTS],
    buffer: Option<Buffer>,
}

impl Piped {
    pub(crate) fn connect(socket: &Path, peer: Option<&'static str>) -> Self {
        let client = eventually("the daemon serves", || Client::connect(socket).ok());
        let names = Access { names: true, ..Access::READ_WRITE };
        let root = eventually("the export is open", || {
            client.open_directory(peer, "data", "", names).ok()
        });
        let queue = client.queue().expect("a queue");
        Self { client, queue, peer, root, files: Default::default(), buffer: None }
    }

    pub(crate) fn close_all(&mut self) {
        self.files = Default::default();
    }

    /// Waits until a daemon that was killed is asked again.
    pub(crate) fn await_answer(&mut self) {
        eventually("it answers again", || {
            let stat = Op::Stat { path: String::new() };
            matches!(self.perform(&stat), Ended::Told(Told::Known(_))).then_some(())
        });
    }

    /// Performs an operation.
    pub(crate) fn perform(&mut self, op: &Op) -> Ended {
        match op {
            Op::Create { slot, path } => {
                self.open(*slot, path, OpenOptions::read_write().create_new(true).mode(0o640))
            }
            Op::Open { slot, path } => self.open(*slot, path, OpenOptions::read_write()),
            Op::Close { slot } => {
                self.files[*slot] = None;
                Ended::Told(Told::Nothing)
            }
            Op::List { path } => self.list(path),
            Op::Extents { slot, range } => self.extents(*slot, *range),
            _ => {
                let request = self.request(op);
                let ended = self.queue.submit(request).expect("room").wait(&mut self.queue);
                self.interpret(op, ended)
            }
        }
    }

    /// Performs an operation that is one request, and something while it is under way.
    pub(crate) fn perform_under(&mut self, op: &Op, meanwhile: &mut dyn FnMut()) -> Ended {
        let request = self.request(op);
        let pending = self.queue.submit(request).expect("room");
        self.queue.flush();
        meanwhile();
        let ended = pending.wait(&mut self.queue);
        self.interpret(op, ended)
    }

    fn open(&mut self, slot: usize, path: &str, options: OpenOptions) -> Ended {
        match self.client.open_export(self.peer, "data", path, options) {
            Ok(handle) => {
                self.files[slot] = Some(handle);
                Ended::Told(Told::Nothing)
            }
            Err(OpenError::Session(SessionError::Refused { status, .. })) => {
                Ended::Told(Told::Refused(status))
            }
            Err(error) => Ended::InDoubt(error.to_string()),
        }
    }

    fn file(&self, slot: usize) -> &Handle {
        self.files[slot].as_ref().expect("it is open")
    }

    /// A buffer, whose bytes are anything.
    fn take_buffer(&mut self) -> Buffer {
        let buffer = self.buffer.take();
        buffer.unwrap_or_else(|| self.client.allocate(BUFFER_BYTES).expect("memory"))
    }

    /// The request of an operation.
    fn request(&mut self, op: &Op) -> Request<Buffer> {
        let mut buffer = self.take_buffer();
        match *op {
            Op::Read { slot, range } => {
                let piece = 0..range.length as usize;
                return Request::read(self.file(slot), range.offset, buffer).piece(piece);
            }
            Op::Write { slot, range, fill } => {
                let piece = 0..range.length as usize;
                buffer.as_mut_slice()[piece.clone()].fill(fill);
                return Request::write(self.file(slot), range.offset, buffer).piece(piece);
            }
            _ => {}
        }
        let (of, call) = self.call(op);
        let bytes = call.encode(buffer.as_mut_slice()).expect("short paths");
        Request::call(of, buffer, bytes)
    }

    fn call<'a>(&'a self, op: &'a Op) -> (&'a Handle, Call<'a>) {
        let root = &self.root;
        match op {
            Op::Truncate { slot, length } => (self.file(*slot), Call::Truncate { length: *length }),
            Op::Zero { slot, range, release } => {
                (self.file(*slot), Call::Zero { range: *range, release: *release })
            }
            Op::Trim { slot, range } => (self.file(*slot), Call::Trim { range: *range }),
            Op::Allocate { slot, range, keep_length } => {
                let (range, keep_length) = (*range, *keep_length);
                (self.file(*slot), Call::Allocate { range, keep_length })
            }
            Op::Extents { slot, range } => (self.file(*slot), Call::Extents { range: *range }),
            Op::Digest { slot, range } => (self.file(*slot), Call::Digest { range: *range }),
            Op::Sync { slot, data_only } => {
                let (range, data_only) = (Range::default(), *data_only);
                (self.file(*slot), Call::Sync { range, data_only })
            }
            Op::Look { slot } => (self.file(*slot), Call::Stat { path: b"" }),
            Op::Stat { path } => (root, Call::Stat { path: path.as_bytes() }),
            Op::Make { path, parents } => {
                let (path, parents) = (path.as_bytes(), *parents);
                (root, Call::MakeDirectory { path, mode: 0o755, parents })
            }
            Op::Remove { path, kind } => {
                (root, Call::Remove { path: path.as_bytes(), kind: *kind })
            }
            Op::Rename { from, to, over, durable } => {
                let (from, to, over, durable) = (from.as_bytes(), to.as_bytes(), *over, *durable);
                (root, Call::Rename { from, to, over, durable })
            }
            Op::Link { from, to } => {
                (root, Call::Link { from: from.as_bytes(), to: to.as_bytes() })
            }
            Op::Copy { from, to, range, durable } => {
                let (from, to, range, durable) = (from.as_bytes(), to.as_bytes(), *range, *durable);
                (root, Call::Copy { from, to, range, durable })
            }
            _ => panic!("{op:?} is no call"),
        }
    }

    fn interpret(&mut self, op: &Op, ended: Result<Done<Buffer>, RequestError>) -> Ended {
        let done = match ended {
            Ok(done) => done,
            Err(error) => {
                let ended = in_words(&error);
                if let BufferState::Returned(buffer) = error.buffer {
                    self.buffer = Some(buffer);
                }
                return ended;
            }
        };
        let answer = &done.payload.as_slice()[..done.bytes as usize];
        let told = match op {
            Op::Read { .. } | Op::Digest { .. } | Op::Copy { .. } => Told::Bytes(answer.to_vec()),
            Op::Write { range, .. } => {
                assert_eq!(done.bytes, range.length, "{op:?} ends well, and too early");
                Told::Nothing
            }
            Op::Look { .. } | Op::Stat { .. } => {
                let Stat { kind, mode, links, length, .. } = Stat::parse(answer).expect("a stat");
                let length = (kind == FileKind::File).then_some(length);
                Told::Known(Known { kind, mode, links, length })
            }
            _ => {
                assert!(answer.is_empty(), "{op:?} says {answer:?}");
                Told::Nothing
            }
        };
        self.buffer = Some(done.payload);
        Ended::Told(told)
    }

    /// All names of a directory, in parts.
    fn list(&mut self, path: &str) -> Ended {
        let (mut names, mut cookie) = (BTreeMap::new(), Some(0));
        while let Some(at) = cookie {
            // Short ones, so that there are some.
            let buffer = self.client.allocate(64).expect("memory");
            let call = Call::List { path: path.as_bytes(), cookie: at, stats: false };
            let (buffer, bytes) = match self.queue.call(&self.root, &call, buffer) {
                Ok(answered) => answered,
                Err(error) => return in_words(&error),
            };
            let entries = Entries::parse(&buffer.as_slice()[..bytes]).expect("names");
            for entry in entries.iter() {
                let name = String::from_utf8(entry.name.to_vec()).expect("ours are");
                let before = names.insert(name, entry.kind);
                assert_eq!(before, None, "{entry:?} comes twice");
            }
            cookie = entries.next();
        }
        Ended::Told(Told::Names(names))
    }

    /// Extents of a range, which must be there without gaps, and zeros where they say so.
    fn extents(&mut self, slot: usize, range: Range) -> Ended {
        let read = Op::Read { slot, range };
        let bytes = match self.perform(&read) {
            Ended::Told(Told::Bytes(bytes)) => bytes,
            other => return other,
        };
        let (mut at, end) = (range.offset, range.offset + bytes.len() as u64);
        while at < end {
            let left = Range { offset: at, length: end - at };
            let file = self.files[slot].as_ref().expect("it is open");
            let buffer = self.client.allocate(4 * Extent::BYTES).expect("memory");
            let call = Call::Extents { range: left };
            let (buffer, told) = match self.queue.call(file, &call, buffer) {
                Ok(answered) => answered,
                Err(error) => return in_words(&error),
            };
            assert!(told > 0, "nothing from {at} to {end}");
            for extent in buffer.as_slice()[..told].chunks(Extent::BYTES) {
                let Extent { offset, length, kind } = Extent::parse(extent).expect("an extent");
                assert!(
                    offset == at && length > 0 && at + length <= end,
                    "{at}: {offset} {length}"
                );
                let part =
                    (offset - range.offset) as usize..(offset + length - range.offset) as usize;
                let is_zero = bytes[part].iter().all(|&byte| byte == 0);
                assert!(kind == ExtentKind::Data || is_zero, "{kind:?} at {offset} has bytes");
                at += length;
            }
        }
        Ended::Told(Told::Right)
    }
}

/// How a request failed: it was refused, or nobody knows.
fn in_words(error: &RequestError) -> Ended {
    let lost = [Status::OutcomeUnknown, Status::PeerLost, Status::DeadlineExceeded, Status::Gone];
    match error.cause {
        Cause::Status(status) if !lost.contains(&status) => Ended::Told(Told::Refused(status)),
        _ => Ended::InDoubt(error.to_string()),
    }
}
