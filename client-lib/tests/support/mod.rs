//! The daemon's side, played over the real rings and the real socket.
//!
//! Two ways: [`Session::take`] and [`Session::post`] let a test be the daemon step by step, on its
//! own thread, without any timing; [`Session::serve`] answers everything on a thread. Every test
//! file uses its part of it.

#![allow(dead_code, unreachable_pub, missing_debug_implementations)]

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use piped_core::status::Status;
use piped_ring::handshake::{
    FEATURE_LENDING, FEATURE_PATH_COSTS, Hello, MESSAGE_BYTES_MAX, PathCosts, Reply, Request,
    Welcome, fds,
};
use piped_ring::{CompletionEntry, CompletionKind, Descriptor, Opcode, Segment, ServerQueue, lent};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

/// Looks for something that another thread does, before a test gives up.
const PATIENCE: u32 = 200_000;

/// How the played daemon behaves.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// Segments it grants by GrowArena.
    pub growths: u32,
    /// The CPU it claims to run on.
    pub shard_cpu: i32,
    /// The spin it recommends.
    pub client_spin_ns: u64,
    /// Answers to opening the export `slow`, and for more memory, wait for [`Session::let_go`].
    pub slow: bool,
    /// Costs of paths that it reports, if it can report any.
    pub costs: Option<PathCosts>,
    /// Rings it grants by AddQueue.
    pub rings: u32,
    /// Takes memory of programs.
    pub lends: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            growths: 0,
            shard_cpu: -1,
            client_spin_ns: 0,
            slow: false,
            costs: None,
            rings: u32::MAX,
            lends: false,
        }
    }
}

pub struct Daemon {
    folder: tempfile::TempDir,
    listener: OwnedFd,
    sessions: Mutex<Receiver<Arc<Session>>>,
    accepting: Option<JoinHandle<()>>,
}

impl Daemon {
    pub fn start(manners: Manners) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let kind = SocketType::SEQPACKET;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
                .expect("a socket");
        let address = SocketAddrUnix::new(folder.path().join("client.sock")).expect("a path");
        rustix::net::bind(&listener, &address).expect("a fresh path");
        rustix::net::listen(&listener, 8).expect("a bound socket");
        let (sender, sessions) = channel();
        let accepting = accept(listener.try_clone().expect("a descriptor"), manners, sender);
        Self { folder, listener, sessions: Mutex::new(sessions), accepting: Some(accepting) }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("client.sock")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The session of the next client that connected.
    pub fn session(&self) -> Arc<Session> {
        let sessions = self.sessions.lock().expect("no panics");
        sessions.recv().expect("the accepting thread lives as long as the daemon")
    }

    /// A client and its session.
    pub fn pair(
        &self,
        builder: piped_client::ClientBuilder,
    ) -> (piped_client::Client, Arc<Session>) {
        let client = builder.connect(self.socket()).expect("the played daemon welcomes everybody");
        (client, self.session())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: OwnedFd, manners: Manners, sessions: Sender<Arc<Session>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while let Ok(socket) = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC) {
            let session = Arc::new(Session::new(socket, manners));
            let talking = Arc::clone(&session);
            std::thread::spawn(move || talking.talk());
            if sessions.send(session).is_err() {
                return;
            }
        }
    })
}

/// The object that a handle stands for.
#[derive(Clone)]
pub enum Object {
    File(Arc<File>),
    Region { segment: u32, offset: u64, length: u64, name: String },
}

pub struct Session {
    socket: OwnedFd,
    manners: Manners,
    pub queues: Mutex<Vec<ServerQueue>>,
    pub segments: Mutex<Vec<Arc<Segment>>>,
    pub objects: Mutex<HashMap<u32, Object>>,
    /// Everything the client asked over the socket.
    pub asked: Mutex<Vec<Request>>,
    entries: AtomicU32,
    arena_bytes: Mutex<u64>,
    next_handle: AtomicU32,
    growths: AtomicU32,
    rings: AtomicU32,
    gone: AtomicBool,
    stop: AtomicBool,
    delayed: Mutex<Vec<(u32, Reply, Vec<OwnedFd>)>>,
    read: AtomicU64,
}

impl Session {
    fn new(socket: OwnedFd, manners: Manners) -> Self {
        Self {
            socket,
            manners,
            queues: Mutex::default(),
            segments: Mutex::default(),
            objects: Mutex::default(),
            asked: Mutex::default(),
            entries: AtomicU32::new(0),
            arena_bytes: Mutex::new(0),
            next_handle: AtomicU32::new(1),
            growths: AtomicU32::new(0),
            rings: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            delayed: Mutex::default(),
            read: AtomicU64::new(0),
        }
    }

    fn talk(&self) {
        let mut message = [0; MESSAGE_BYTES_MAX];
        while let Ok(received) = fds::receive(&self.socket, &mut message) {
            let Ok((sequence, request)) = Request::parse(&message[..received.length]) else {
                break;
            };
            self.asked.lock().expect("no panics").push(request.clone());
            let slow = match &request {
                Request::OpenExport { export, .. } => export == "slow",
                Request::GrowArena { .. } => true,
                _ => false,
            };
            let (reply, fds) = self.answer(request, received.fds);
            if slow && self.manners.slow {
                self.delayed.lock().expect("no panics").push((sequence, reply, fds));
            } else {
                self.send(sequence, &reply, &fds);
            }
        }
        self.gone.store(true, Ordering::SeqCst);
    }

    fn send(&self, sequence: u32, reply: &Reply, fds: &[OwnedFd]) {
        let mut message = [0; MESSAGE_BYTES_MAX];
        let length = reply.encode(sequence, &mut message).expect("a reply of ours");
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // The client may be gone.
        let _ = fds::send(&self.socket, &message[..length], &fds);
    }

    /// Send the answers that were held back.
    pub fn let_go(&self) {
        for (sequence, reply, fds) in self.delayed.lock().expect("no panics").drain(..) {
            self.send(sequence, &reply, &fds);
        }
    }

    /// Answers that are held back.
    pub fn delays(&self) -> usize {
        self.delayed.lock().expect("no panics").len()
    }

    fn answer(&self, request: Request, fds: Vec<OwnedFd>) -> (Reply, Vec<OwnedFd>) {
        match request {
            Request::Hello(hello) => self.welcome(hello),
            Request::AddQueue
                if self.rings.fetch_add(1, Ordering::SeqCst) >= self.manners.rings =>
            {
                (refused(Status::WouldBlock, "this session has its queues"), vec![])
            }
            Request::AddQueue => {
                let fds = self.add_queue();
                let queue = self.queues.lock().expect("no panics").len() as u32 - 1;
                (Reply::Queue { queue }, fds)
            }
            Request::GrowArena { bytes } => {
                if self.growths.fetch_add(1, Ordering::SeqCst) >= self.manners.growths {
                    return (
                        refused(Status::WouldBlock, "this session's limit is reached"),
                        vec![],
                    );
                }
                let fds = vec![self.add_segment(bytes)];
                let segment = self.segments.lock().expect("no panics").len() as u32 - 1;
                (Reply::Segment { segment }, fds)
            }
            Request::OpenFile { .. } => {
                let file = File::from(fds.into_iter().next_back().expect("a descriptor"));
                (self.open(Object::File(Arc::new(file))), vec![])
            }
            Request::OpenExport { path, .. } if file(&path).with_extension("away").exists() => {
                (refused(Status::PeerLost, "the peer is away"), vec![])
            }
            Request::OpenExport { path, .. } => match File::open(file(&path)) {
                Ok(file) => (self.open(Object::File(Arc::new(file))), vec![]),
                Err(_) => (refused(Status::NotFound, "no such file below the export"), vec![]),
            },
            Request::ExportRegion { name, segment, offset, length, .. } => {
                (self.open(Object::Region { segment, offset, length, name }), vec![])
            }
            Request::OpenRegion { name: wanted, .. } => {
                let objects = self.objects.lock().expect("no panics").clone();
                let found = objects.into_values().find(
                    |object| matches!(object, Object::Region { name, .. } if *name == wanted),
                );
                match found {
                    Some(region) => (self.open(region), vec![]),
                    None => (refused(Status::NotFound, "no such region"), vec![]),
                }
            }
            Request::OpenDirectory { .. } => {
                (refused(Status::Unsupported, "no directories here"), vec![])
            }
            Request::OfferChannel { .. } | Request::OpenChannel { .. } => {
                (refused(Status::Unsupported, "no channels here"), vec![])
            }
            Request::PathCosts { .. } => match self.manners.costs {
                Some(costs) => (Reply::PathCosts(costs), vec![]),
                None => panic!("asked without the feature"),
            },
            Request::Lend { .. } | Request::TakeBack { .. } if !self.manners.lends => {
                panic!("asked without the feature")
            }
            Request::Lend { bytes, kind } => {
                let fd = fds.first().expect("a descriptor");
                let memory = lent::map(fd, bytes, kind).expect("memory that can be lent");
                let mut segments = self.segments.lock().expect("no panics");
                segments.push(Arc::new(memory));
                (Reply::Lent { segment: segments.len() as u32 - 1 }, vec![])
            }
            // Its number is not used again.
            Request::TakeBack { .. } => (Reply::Done, vec![]),
            Request::CloseHandle { handle } => {
                match self.objects.lock().expect("no panics").remove(&handle) {
                    Some(_) => (Reply::Done, vec![]),
                    None => (refused(Status::BadHandle, "no such handle"), vec![]),
                }
            }
        }
    }

    fn welcome(&self, hello: Hello) -> (Reply, Vec<OwnedFd>) {
        self.entries.store(hello.entries, Ordering::SeqCst);
        *self.arena_bytes.lock().expect("no panics") = hello.arena_bytes;
        let mut fds = vec![self.add_segment(hello.arena_bytes)];
        for _ in 0..hello.queues {
            fds.extend(self.add_queue());
        }
        let costs = if self.manners.costs.is_some() { FEATURE_PATH_COSTS } else { 0 };
        let lending = if self.manners.lends { FEATURE_LENDING } else { 0 };
        let welcome = Welcome {
            features: hello.features & (costs | lending),
            session: 7,
            segments: 1,
            queues: hello.queues,
            shard_cpu: self.manners.shard_cpu,
            client_spin_ns: self.manners.client_spin_ns,
            deadline_default_ns: 30_000_000_000,
        };
        (Reply::Welcome(welcome), fds)
    }

    fn add_queue(&self) -> Vec<OwnedFd> {
        let queue = ServerQueue::create(self.entries.load(Ordering::SeqCst)).expect("a queue");
        let fds = queue.fds().map(|fd| fd.try_clone_to_owned().expect("a descriptor")).into();
        self.queues.lock().expect("no panics").push(queue);
        fds
    }

    fn add_segment(&self, bytes: u64) -> OwnedFd {
        let segment = Segment::create(bytes).expect("memory");
        let fd = segment.fd().try_clone_to_owned().expect("a descriptor");
        self.segments.lock().expect("no panics").push(Arc::new(segment));
        fd
    }

    fn open(&self, object: Object) -> Reply {
        let length = match &object {
            Object::File(file) => file.metadata().expect("an open file").len(),
            Object::Region { length, .. } => *length,
        };
        let handle = self.next_handle.fetch_add(1, Ordering::SeqCst);
        self.objects.lock().expect("no panics").insert(handle, object);
        Reply::Opened { handle, direct_alignment: 0, length }
    }

    fn queue(&self, number: usize) -> MappedQueue<'_> {
        MappedQueue { queues: self.queues.lock().expect("no panics"), number }
    }

    /// The next descriptor of a queue, if the client published one.
    pub fn take(&self, queue: usize) -> Option<Descriptor> {
        self.queue(queue).get().take().expect("an honest client")
    }

    /// Complete, and let the client see it.
    pub fn post(&self, queue: usize, entry: CompletionEntry) {
        let mut queue = self.queue(queue);
        queue.get().post(entry).expect("room for what was taken");
        queue.get().publish();
    }

    pub fn finish(&self, queue: usize, descriptor: &Descriptor, status: Status, bytes: u64) {
        self.post(queue, CompletionEntry::finished(descriptor.user_data, status, bytes));
    }

    pub fn hold(&self, queue: usize, descriptor: &Descriptor) {
        let entry = CompletionEntry::finished(descriptor.user_data, Status::DeadlineExceeded, 0);
        self.post(queue, entry.with_kind(CompletionKind::FinishedHeld));
    }

    pub fn release(&self, queue: usize, descriptor: &Descriptor) {
        let entry = CompletionEntry::finished(descriptor.user_data, Status::Ok, 0);
        self.post(queue, entry.with_kind(CompletionKind::Released));
    }

    pub fn set_progress(&self, queue: usize, slot: u32, bytes: u64) {
        self.queue(queue).get().set_progress(slot, bytes);
    }

    /// Fill the buffer of a read.
    pub fn fill(&self, descriptor: &Descriptor, byte: u8) {
        let segment = self.segment(descriptor.segment);
        let bytes = vec![byte; descriptor.length as usize];
        segment.store(descriptor.buffer_offset, &bytes).expect("inside the arena");
    }

    pub fn segment(&self, number: u32) -> Arc<Segment> {
        Arc::clone(&self.segments.lock().expect("no panics")[number as usize])
    }

    /// Bytes that clients asked for by reads that [`Self::serve`] answered.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::SeqCst)
    }

    /// How often the client closed a handle so far.
    pub fn closed(&self) -> Vec<u32> {
        let asked = self.asked.lock().expect("no panics");
        let close = |request: &Request| match request {
            Request::CloseHandle { handle } => Some(*handle),
            _ => None,
        };
        asked.iter().filter_map(close).collect()
    }

    /// End as a dying daemon does: everything is closed.
    pub fn die(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.queues.lock().expect("no panics").clear();
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Answer everything on a thread, until the client is gone. `awake`: never sleeps.
    pub fn serve(self: &Arc<Self>, awake: bool) -> JoinHandle<()> {
        let session = Arc::clone(self);
        std::thread::spawn(move || {
            while !session.gone.load(Ordering::SeqCst) && !session.stop.load(Ordering::SeqCst) {
                if !session.turn() {
                    if awake {
                        std::thread::yield_now();
                    } else {
                        session.sleep();
                    }
                }
            }
        })
    }

    fn turn(&self) -> bool {
        let mut queues = self.queues.lock().expect("no panics");
        let mut worked = false;
        for queue in queues.iter_mut() {
            while let Some(descriptor) = queue.take().expect("an honest client") {
                worked = true;
                let (status, bytes) = self.perform(&descriptor);
                let entry = CompletionEntry::finished(descriptor.user_data, status, bytes);
                queue.post(entry).expect("room for what was taken");
            }
            queue.publish();
        }
        worked
    }

    fn sleep(&self) {
        let mut queues = self.queues.lock().expect("no panics");
        // All of them: each tells its client.
        let ready = queues.iter_mut().filter_map(|queue| queue.prepare_sleep().then_some(()));
        let may = ready.count() == queues.len();
        if may {
            let wake: Vec<OwnedFd> = queues
                .iter()
                .map(|queue| queue.wake_fd().try_clone_to_owned().expect("a descriptor"))
                .collect();
            drop(queues);
            let mut polled: Vec<_> = wake.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            // The time is for noticing the end, and queues that were added meanwhile.
            let timeout = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            let _ = rustix::event::poll(&mut polled, Some(&timeout));
            queues = self.queues.lock().expect("no panics");
        }
        for queue in queues.iter_mut() {
            queue.finish_sleep();
            queue.drain();
        }
    }

    fn perform(&self, descriptor: &Descriptor) -> (Status, u64) {
        let objects = self.objects.lock().expect("no panics");
        let object = objects.get(&descriptor.handle_a).cloned();
        let other = objects.get(&descriptor.handle_b).cloned();
        drop(objects);
        let mut bytes = vec![0; descriptor.length as usize];
        match (Opcode::from_u8(descriptor.opcode), object) {
            (Some(Opcode::Nop | Opcode::Cancel), _) => (Status::Ok, 0),
            (Some(Opcode::Sync), Some(Object::File(file))) => {
                file.sync_data().expect("a file");
                (Status::Ok, 0)
            }
            (Some(Opcode::Read), Some(object)) => {
                let count = self.load(&object, descriptor.offset_a, &mut bytes);
                self.read.fetch_add(descriptor.length, Ordering::SeqCst);
                let segment = self.segment(descriptor.segment);
                segment.store(descriptor.buffer_offset, &bytes[..count]).expect("inside");
                (Status::Ok, count as u64)
            }
            (Some(Opcode::Write), Some(object)) => {
                let segment = self.segment(descriptor.segment);
                segment.load(descriptor.buffer_offset, &mut bytes).expect("inside");
                self.store(&object, descriptor.offset_a, &bytes);
                (Status::Ok, descriptor.length)
            }
            (Some(Opcode::Copy), Some(from)) => {
                let Some(to) = other else { return (Status::BadHandle, 0) };
                let count = self.load(&from, descriptor.offset_a, &mut bytes);
                self.store(&to, descriptor.offset_b, &bytes[..count]);
                (Status::Ok, count as u64)
            }
            (_, None) => (Status::BadHandle, 0),
            _ => (Status::Unsupported, 0),
        }
    }

    fn load(&self, object: &Object, from: u64, bytes: &mut [u8]) -> usize {
        match object {
            Object::File(file) => {
                let mut count = 0;
                while count < bytes.len() {
                    match file.read_at(&mut bytes[count..], from + count as u64) {
                        Ok(0) => break,
                        Ok(more) => count += more,
                        Err(error) => panic!("a readable file: {error}"),
                    }
                }
                count
            }
            Object::Region { segment, offset, length, .. } => {
                let count = length.saturating_sub(from).min(bytes.len() as u64) as usize;
                let segment = self.segment(*segment);
                segment.load(offset + from, &mut bytes[..count]).expect("inside");
                count
            }
        }
    }

    fn store(&self, object: &Object, to: u64, bytes: &[u8]) {
        match object {
            Object::File(file) => file.write_all_at(bytes, to).expect("a writable file"),
            Object::Region { segment, offset, .. } => {
                self.segment(*segment).store(offset + to, bytes).expect("inside");
            }
        }
    }
}

struct MappedQueue<'a> {
    queues: MutexGuard<'a, Vec<ServerQueue>>,
    number: usize,
}

impl MappedQueue<'_> {
    fn get(&mut self) -> &mut ServerQueue {
        &mut self.queues[self.number]
    }
}

fn refused(status: Status, message: &str) -> Reply {
    Reply::Refused { status, message: message.to_owned() }
}

/// Wait for what another thread does.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..PATIENCE {
        if is_so() {
            return;
        }
        // A millisecond's sleep without a clock.
        let _ = rustix::event::poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 50_000 }));
    }
    panic!("it never came true that {what}");
}

/// Memory without a name that can be lent; `sealed`: nobody can cut it.
pub fn memory(bytes: u64, sealed: bool) -> File {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("lent", flags).expect("a file of memory"));
    file.set_len(bytes).expect("room");
    if sealed {
        fcntl_add_seals(&file, SealFlags::SHRINK).expect("nobody maps it yet");
    }
    file
}

/// A file of its exports, whatever path is asked for.
fn file(path: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(path))
}
