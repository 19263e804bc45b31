//! Requests of a client over its socket: files, exports, regions, channels, more memory.

mod lending;
mod named;
mod opens;
mod replicas;
mod shards;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use piped_control::fault::OpenFault;
use piped_control::holdings::{Holder, Place, Right};
use piped_control::parties::Credentials;
use piped_control::sessions::Used;
use piped_core::access::{Access, Creation, OpenKind};
use piped_core::ids::{ChannelId, HandleId, RegionId, SessionId};
use piped_core::status::Status;
use piped_engine::command::{Command, OpenRequest};
use piped_planner::cost::PathCost;
use piped_ring::handshake::{PathCosts, Reply, Request};
use piped_ring::{Segment, ServerQueue};
use tokio::sync::OwnedSemaphorePermit;

use self::named::Named;
use self::shards::Shards;
use super::wanted::check_arena;
use super::welcome::{make_segment, memory_fault};
use crate::arenas::{Maker, Share};
use crate::closing::{Account, HeldFile, Kept};
use crate::control::Control;
use crate::limits::{
    FILES_PER_SESSION, HANDLES_PER_SESSION, REMOTE_OPEN_GRACE, SEGMENTS_PER_SESSION,
};
use crate::open::Source;
use crate::patience::Turns;
use crate::shard::message::{Message, Question, ShardGone};

/// A session's side on the control thread.
#[derive(Debug)]
pub(super) struct Client {
    control: Rc<Control>,
    pub(super) id: SessionId,
    shards: Shards,
    who: Credentials,
    /// Number of entries of each queue.
    pub(super) entries: u32,
    pub(super) queues: u32,
    /// Segments by their numbers; a hole is free.
    segments: Vec<Option<Own>>,
    /// Memory of its queues.
    pub(super) rings: Vec<Arc<Segment>>,
    handles: HashMap<u32, Held>,
    /// The handles that those of replicas stand for.
    replicas: HashMap<u32, Vec<HandleId>>,
    /// Number of open files among the handles.
    open_files: u32,
    last_handle: u32,
    /// Place among the sessions, also held by work for the session on other threads.
    slot: Arc<OwnedSemaphorePermit>,
    files: Arc<Account>,
}

/// Kind of a handle, as far as it matters here.
#[derive(Debug, Clone, Copy)]
enum Held {
    /// A thing of others, or at a peer.
    Other,
    /// A file, which takes places of the shard's for descriptors.
    File,
    /// A region that the session offers, and the number of its segment.
    Region(RegionId, u32),
    /// A channel that the session receives on.
    Channel(ChannelId),
    /// Replicas of a file at several nodes.
    Replicas,
}

/// A segment of a session.
#[derive(Debug)]
struct Own {
    memory: Arc<Segment>,
    /// Whether the client lends it.
    lent: bool,
}

type Done = Result<(Reply, Vec<OwnedFd>), OpenFault>;

impl Client {
    pub(super) fn new(
        control: Rc<Control>,
        id: SessionId,
        shards: Vec<usize>,
        who: Credentials,
        slot: Arc<OwnedSemaphorePermit>,
    ) -> Self {
        let shards = Shards::new(Rc::clone(&control), id, shards);
        // One thread is enough: if a close or an open hangs, only this client waits.
        let place: Kept = Arc::<OwnedSemaphorePermit>::clone(&slot);
        let files = control.account(FILES_PER_SESSION * shards.all().len(), 1, Some(place));
        Self {
            control,
            id,
            shards,
            who,
            entries: 0,
            queues: 0,
            segments: Vec::new(),
            rings: Vec::new(),
            handles: HashMap::new(),
            replicas: HashMap::new(),
            open_files: 0,
            last_handle: 0,
            slot,
            files,
        }
    }

    /// Handles a request, and returns the reply with its descriptors.
    pub(super) async fn handle(&mut self, request: Request, mut files: Vec<HeldFile>) -> Done {
        let opened = match request {
            Request::Hello(_) => {
                return Err(OpenFault::new(Status::Invalid, "Hello was said already"));
            }
            Request::AddQueue => return self.add_queue().await,
            Request::GrowArena { bytes } => return self.grow_arena(bytes).await,
            Request::Lend { bytes, kind } => {
                let missing = || OpenFault::new(Status::Invalid, "no descriptor was passed");
                let file = files.pop().ok_or_else(missing)?;
                return lending::take(self, file, bytes, kind).await;
            }
            Request::TakeBack { segment } => return lending::end(self, segment).await,
            Request::CloseHandle { handle } => return self.close_handle(handle).await,
            Request::PathCosts { handle, write } => return self.path_costs(handle, write).await,
            Request::OpenFile { access, .. } => {
                // The number of descriptors was checked with the message.
                let missing = || OpenFault::new(Status::Invalid, "no descriptor was passed");
                let buffered = files.pop().ok_or_else(missing)?;
                self.open_file(files.pop(), buffered, access).await
            }
            Request::OpenExport { peer, export, path, access, create } => {
                if let Some(nodes) = Named::read(&peer) {
                    self.open_replicas(nodes, (export, path), access, create).await
                } else if self.is_here(&peer) {
                    self.open_export((export, path), access, Some(create)).await
                } else {
                    let kind = OpenKind::File;
                    let open = OpenRequest { kind, name: export, path, access, create };
                    self.open_remote(&peer, open).await
                }
            }
            Request::OpenDirectory { peer, export, path, access } => {
                if self.is_here(&peer) {
                    self.open_export((export, path), access, None).await
                } else {
                    let kind = OpenKind::Directory;
                    let open =
                        OpenRequest { kind, name: export, path, access, create: Creation::No };
                    self.open_remote(&peer, open).await
                }
            }
            Request::ExportRegion { name, segment, offset, length, access, audience } => {
                let place = (segment, offset, length);
                self.export_region(&name, place, access, audience).await
            }
            Request::OfferChannel { name } => self.offer_channel(&name).await,
            Request::OpenChannel { peer, name } => {
                if self.is_here(&peer) {
                    let source = self.control.core.borrow().find_channel(&name);
                    self.install(Source::Channel(source?), Right::Channel { name }).await
                } else {
                    let (kind, path) = (OpenKind::Channel, Vec::new());
                    let access = Access::WRITE;
                    let open = OpenRequest { kind, name, path, access, create: Creation::No };
                    self.open_remote(&peer, open).await
                }
            }
            Request::OpenRegion { peer, name, access } => {
                self.control.core.borrow().check_echo(&name, &self.who)?;
                if self.is_here(&peer) {
                    self.open_region(&name, access).await
                } else {
                    let (kind, path) = (OpenKind::Region, Vec::new());
                    let open = OpenRequest { kind, name, path, access, create: Creation::No };
                    self.open_remote(&peer, open).await
                }
            }
        };
        self.note();
        let (handle, direct_alignment, length) = opened?;
        Ok((Reply::Opened { handle: handle.0, direct_alignment, length }, Vec::new()))
    }

    /// Ends the session: withdraws its regions and closes it on its shards. Returns what is left:
    /// its memory, with that of its queues, and its place.
    pub(super) async fn close(self) -> (Vec<Arc<Segment>>, Arc<OwnedSemaphorePermit>) {
        self.control.core.borrow_mut().close_session(self.id);
        self.control.tell_shards().await;
        self.shards.close().await;
        let segments = self.segments.into_iter().flatten().map(|own| own.memory);
        (segments.chain(self.rings).collect(), self.slot)
    }

    /// Sets the segments that the daemon made for the session, in the order of their numbers.
    pub(super) fn begin_arena(&mut self, segments: &[Arc<Segment>]) {
        let own = |memory: &Arc<Segment>| Some(Own { memory: Arc::clone(memory), lent: false });
        self.segments = segments.iter().map(own).collect();
    }

    /// Reports the session's state to the admin API.
    pub(super) fn note(&self) {
        let used = Used {
            queues: self.queues,
            arena_bytes: self.bytes_of(false),
            lent_bytes: self.bytes_of(true),
            handles: self.handles.len() as u32,
            files: self.open_files,
        };
        self.control.note_session(self.id, self.who.uid, used);
    }

    /// How long a peer may take to open something.
    fn open_patience(&self) -> Duration {
        self.control.config().client.deadline_default.0 + REMOTE_OPEN_GRACE
    }

    /// Closes a handle that the client does not know.
    async fn drop_handle(&mut self, handle: HandleId) {
        self.forget(handle.0);
        self.control.core.borrow_mut().leave(self.place(handle));
        self.shards.tell_each(&Command::CloseHandle { session: self.id, handle }).await;
    }

    fn place(&self, handle: HandleId) -> Place {
        Place::Session(self.id, handle)
    }

    /// A handle is no more; what it was of.
    fn forget(&mut self, handle: u32) -> Option<Held> {
        let held = self.handles.remove(&handle);
        self.open_files -= u32::from(matches!(held, Some(Held::File)));
        held
    }

    /// Enters an open handle, unless a reload has taken the right away meanwhile.
    async fn enter(&mut self, handle: HandleId, right: Right) -> Result<(), OpenFault> {
        let (place, holder) = (self.place(handle), Holder::User(self.who.clone()));
        let held = self.control.core.borrow_mut().hold(place, holder, right);
        let Err(fault) = held else { return Ok(()) };
        self.forget(handle.0);
        for shard in self.shards.all() {
            self.control.tell_shard(*shard).await;
        }
        let session = self.id;
        self.shards.ask_each(|answer| Message::CloseHandle { session, handle, answer }).await?;
        Err(fault)
    }

    /// A number for a handle, if there may be one more.
    fn new_handle(&mut self) -> Result<HandleId, OpenFault> {
        let limits = self.control.limiter.limits();
        let of_session = (limits.client.handles as usize).min(HANDLES_PER_SESSION);
        if self.handles.len() >= of_session {
            let text = format!(
                "there are {} handles already (limits.client.handles); close some",
                self.handles.len()
            );
            return Err(OpenFault::new(Status::WouldBlock, text));
        }
        if let Err(text) = self.control.check_handles_of_user(self.who.uid) {
            return Err(OpenFault::new(Status::WouldBlock, text));
        }
        let all = self.control.handles_open();
        if all >= limits.global.handles.into() {
            let text = format!(
                "all sessions have {all} handles together (limits.global.handles); close some or \
                 raise the limit"
            );
            return Err(OpenFault::new(Status::WouldBlock, text));
        }
        // Fewer than 2^32 are open, so the search ends.
        while {
            self.last_handle = self.last_handle.wrapping_add(1);
            self.handles.contains_key(&self.last_handle)
        } {}
        self.handles.insert(self.last_handle, Held::Other);
        // At once: who opens beside this one is to see it.
        self.note();
        Ok(HandleId(self.last_handle))
    }

    /// The shards that serve it.
    pub(super) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Account of its open files and of those being closed.
    pub(super) fn files(&self) -> &Arc<Account> {
        &self.files
    }

    /// Runs a call that may block on another thread.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, OpenFault> + Send + 'static,
    ) -> Result<T, OpenFault> {
        let slot = Arc::clone(&self.slot);
        let work = move || {
            // The session's place is taken as long as the thread is.
            let _slot = slot;
            work()
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
            Err(OpenFault::new(Status::Io, format!("the daemon failed while opening: {error}")))
        })
    }

    /// Makes memory, which takes long, on a thread that gives way.
    pub(super) async fn patiently<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Turns<'_>) -> Result<T, OpenFault> + Send + 'static,
    ) -> Result<T, OpenFault> {
        let slot = Arc::clone(&self.slot);
        let work = move |turns: &mut Turns<'_>| {
            // As above, the place is taken.
            let _slot = slot;
            work(turns)
        };
        self.control.patience.work(work).await.unwrap_or_else(|error| Err(memory_fault(&error)))
    }

    /// Reserves shared memory for a segment in the share of its user; none for zero bytes.
    pub(super) fn reserve(&self, bytes: u64) -> Result<Option<Share>, OpenFault> {
        if bytes == 0 {
            return Ok(None);
        }
        let refused = |text| OpenFault::new(Status::WouldBlock, text);
        self.control.reserve(Maker::Daemon, self.who.uid, bytes).map(Some).map_err(refused)
    }

    fn is_here(&self, peer: &str) -> bool {
        peer.is_empty() || peer == self.control.node
    }

    /// Bytes of its segments, of lent ones or of the others.
    fn bytes_of(&self, lent: bool) -> u64 {
        let own = self.segments.iter().flatten().filter(|own| own.lent == lent);
        own.map(|own| own.memory.len()).sum()
    }

    /// Adds a segment under the lowest free number, which is that on its shards as well. It is here
    /// before a shard is asked, so that it is given back with the rest if the client hangs up.
    async fn add_segment(&mut self, own: Own) -> Result<u32, OpenFault> {
        let memory = Arc::clone(&own.memory);
        let place = self.segments.iter().position(Option::is_none).unwrap_or_else(|| {
            self.segments.push(None);
            self.segments.len() - 1
        });
        self.segments[place] = Some(own);
        if let Err(fault) = self.shards.add_segment(place as u32, &memory).await {
            drop(memory);
            let own = self.segments[place].take();
            drop(self.control.give_back(own.map(|own| own.memory), None));
            return Err(fault);
        }
        self.note();
        Ok(place as u32)
    }

    /// Whether there is a place for one more segment.
    fn check_segments(&self) -> Result<(), OpenFault> {
        if self.segments.iter().flatten().count() < SEGMENTS_PER_SESSION {
            return Ok(());
        }
        let text = format!("there are {SEGMENTS_PER_SESSION} segments already; ask for larger");
        Err(OpenFault::new(Status::WouldBlock, text))
    }

    async fn add_queue(&mut self) -> Done {
        let max = self.control.config().client.queues_max;
        if self.queues >= max {
            let text = format!("there are {max} queues already (client.queues_max)");
            return Err(OpenFault::new(Status::WouldBlock, text));
        }
        let entries = self.entries;
        let (queue, fds) = self
            .blocking(move || {
                let queue = ServerQueue::create(entries).map_err(|error| memory_fault(&error))?;
                let fds: std::io::Result<Vec<OwnedFd>> =
                    queue.fds().iter().map(|fd| fd.try_clone_to_owned()).collect();
                Ok((Box::new(queue), fds.map_err(|error| memory_fault(&error))?))
            })
            .await?;
        self.rings.push(queue.memory());
        self.shards.add_queue(self.queues, queue).await?;
        self.queues += 1;
        self.note();
        Ok((Reply::Queue { queue: self.queues - 1 }, fds))
    }

    async fn grow_arena(&mut self, bytes: u64) -> Done {
        let limits = &self.control.config().client;
        let bytes = check_arena(bytes.max(1), self.bytes_of(false), limits)?;
        self.check_segments()?;
        let share = self.reserve(bytes)?;
        let (segment, fd) = self
            .patiently(move |turns| {
                let made = make_segment(bytes, share, turns);
                let segment = made.map_err(|error| memory_fault(&error))?;
                let fd = segment.fd().try_clone_to_owned().map_err(|error| memory_fault(&error))?;
                Ok((segment, fd))
            })
            .await?;
        let segment = self.add_segment(Own { memory: segment, lent: false }).await?;
        Ok((Reply::Segment { segment }, vec![fd]))
    }

    async fn close_handle(&mut self, handle: u32) -> Done {
        let Some(held) = self.forget(handle) else {
            return Err(OpenFault::new(Status::BadHandle, format!("there is no handle {handle}")));
        };
        // The session's home closes the handles of replicas with theirs.
        for member in self.replicas.remove(&handle).into_iter().flatten() {
            self.forget(member.0);
            self.control.core.borrow_mut().leave(self.place(member));
            let close = Command::CloseHandle { session: self.id, handle: member };
            self.shards.tell_others(&close).await;
        }
        self.note();
        self.control.core.borrow_mut().leave(self.place(HandleId(handle)));
        if let Held::Channel(channel) = held {
            self.control.core.borrow_mut().withdraw_channel(channel);
        }
        if let Held::Region(region, _) = held {
            // Done means that the memory is its owner's alone again. An operator that ended the
            // handle before has not waited for that.
            self.control.withdraw(region).await;
        }
        // The client's next request may overtake a message without an answer.
        let (session, handle) = (self.id, HandleId(handle));
        self.shards.ask_each(|answer| Message::CloseHandle { session, handle, answer }).await?;
        Ok((Reply::Done, Vec::new()))
    }

    async fn path_costs(&self, handle: u32, write: bool) -> Done {
        let (session, handle) = (self.id, HandleId(handle));
        let ask = |answer| Message::Ask(Question::Costs { session, handle, write, answer });
        let found = self.shards.mailbox().ask(ask).await.map_err(gone)?;
        let costs = found.map_err(|status| {
            OpenFault::new(status, format!("what the handle {} costs: {status}", handle.0))
        })?;
        Ok((Reply::PathCosts(costs.map_or(PathCosts::UNKNOWN, wire_costs)), Vec::new()))
    }
}

/// Costs rounded to whole nanoseconds. Known costs are not reported as unknown.
fn wire_costs(costs: PathCost) -> PathCosts {
    const MEBIBYTE: f64 = 1_048_576.0;
    // Saturates: no path is as slow as that.
    let nanos = |seconds: f64| (seconds * 1e9).round() as u64;
    let confidence = costs.confidence.clamp(0.0, 1.0) * f64::from(PathCosts::CERTAIN_PPM);
    PathCosts {
        overhead_ns: nanos(costs.overhead_seconds),
        latency_ns: nanos(costs.latency_seconds),
        mebibyte_ns: nanos(costs.per_byte_seconds * MEBIBYTE),
        confidence_ppm: (confidence.round() as u32).max(1),
    }
}

fn gone(error: ShardGone) -> OpenFault {
    OpenFault::new(Status::Closed, error.to_string())
}
