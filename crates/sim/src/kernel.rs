//! The kernel of all nodes: which nodes there are, the time, and which operations have ended.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use piped_core::ids::{DeviceId, FileId, SegmentId, SocketId};
use piped_core::io::{Done, Span, Token};
use piped_core::units::Nanos;

use super::clock::Clock;
use super::disk::{DeviceCosts, Disk, InodeId, OpenFile, OpenFiles};
use super::dones::Dones;
use super::events::EventQueue;
use super::faults::Faults;
use super::lent::{Notice, ZeroCopy};
use super::memories::Memories;
use super::memory::{Memory, OpKey, Touch, WindowId};
use super::names::Names;
use super::net::{self, Connection, ConnectionId, Link, LinkId, NodeId, PIECE_BYTES, Place};
use super::pending::{InFlight, KernelEvent};
use super::random::Random;
use super::stage::{Cost, Server};

mod driver;

pub use driver::SimIo;

/// The simulated kernel. [`SimKernel::io`] is a node's driver; the owner lets time pass with
/// [`SimKernel::advance`], and takes ends of operations with [`SimKernel::poll_done`].
#[derive(Debug)]
pub struct SimKernel {
    pub(super) now: Nanos,
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) events: EventQueue<KernelEvent>,
    pub(super) nodes: Vec<Node>,
    pub(super) memory: Memories,
    pub(super) disk: Disk,
    pub(super) links: Vec<Link>,
    pub(super) connections: Vec<Connection>,
    pub(super) ops: BTreeMap<OpKey, InFlight>,
    pub(super) ops_begun: OpKey,
    /// Memory that sends have lent, by the operation.
    pub(super) notices: BTreeMap<OpKey, Notice>,
    pub(super) zero_copy: Option<ZeroCopy>,
    /// Connections that went half open since this was taken.
    pub(super) half_opens: u64,
    /// Sockets closed while they lent memory, and refused sends without a copy, since then.
    pub(super) lent_at_close: u64,
    pub(super) refused_sends: u64,
    pub(super) dones: Dones,
    trace: Option<VecDeque<String>>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) clock: Clock,
    /// The world's time until which the node's thread is busy.
    busy_until: Nanos,
    alive: bool,
    pub(super) files: OpenFiles,
    pub(super) inodes: Vec<InodeId>,
    names: Names,
    pub(super) sockets: BTreeMap<SocketId, Place>,
    pub(super) tokens: BTreeMap<Token, OpKey>,
    pub(super) ops_max: usize,
    holds: bool,
    files_made: u32,
    sockets_made: u32,
}

impl SimKernel {
    /// A kernel without nodes. Everything that happens follows from the seed and the calls.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            now: Nanos::ZERO,
            random: Random::new(seed),
            faults,
            events: EventQueue::new(),
            nodes: Vec::new(),
            memory: Memories::default(),
            disk: Disk::default(),
            links: Vec::new(),
            connections: Vec::new(),
            ops: BTreeMap::new(),
            ops_begun: 0,
            notices: BTreeMap::new(),
            zero_copy: None,
            half_opens: 0,
            lent_at_close: 0,
            refused_sends: 0,
            dones: Dones::default(),
            trace: None,
        }
    }

    /// Keeps the last lines of what happens, for [`SimKernel::trace_lines`].
    pub fn start_trace(&mut self) {
        self.trace = Some(VecDeque::new());
    }

    /// The trace, oldest line first; empty unless started.
    pub fn trace_lines(&self) -> impl Iterator<Item = &str> {
        self.trace.iter().flatten().map(String::as_str)
    }

    /// Adds a line to the trace. The text is only made when a trace is kept.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        const LINES_MAX: usize = 4000;
        if let Some(lines) = &mut self.trace {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(format!("{} {}", self.now, text()));
        }
    }

    /// The world's time, which no node's clock shows.
    #[must_use]
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Time of the next event, if there is one.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        self.events.next_at()
    }

    /// Lets time pass to `until`, with all events on the way.
    pub fn advance(&mut self, until: Nanos) {
        while let Some((at, event)) = self.events.pop(until) {
            self.now = self.now.max(at);
            self.happen(event);
        }
        self.now = self.now.max(until);
    }

    /// Number of events so far, which bounds a run's length.
    #[must_use]
    pub const fn events_pushed(&self) -> u64 {
        self.events.pushed()
    }

    /// The next ended operation of a node, for `Shard::handle_done`.
    pub fn poll_done(&mut self, node: NodeId) -> Option<Done> {
        self.dones.pop(node)
    }

    /// Whether operations of a node have ended that were not taken.
    #[must_use]
    pub fn has_done(&self, node: NodeId) -> bool {
        self.dones.has(node)
    }

    /// Nodes for which an operation has ended, or whose clock has changed, since this was last
    /// asked: all others have nothing new to look at.
    pub fn take_stirred(&mut self) -> impl Iterator<Item = NodeId> + use<> {
        self.dones.take_stirred().into_iter()
    }

    /// Connections that went half open since this was last asked.
    pub fn take_half_opens(&mut self) -> u64 {
        std::mem::take(&mut self.half_opens)
    }

    /// Sockets closed while they lent something, and refused sends without a copy, since then.
    pub fn take_loans(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.lent_at_close), std::mem::take(&mut self.refused_sends))
    }

    /// Sets the probabilities of faults from now on.
    pub const fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Sets whether drivers take sends without a copy, and how these end.
    pub const fn set_zero_copy(&mut self, zero_copy: Option<ZeroCopy>) {
        self.zero_copy = zero_copy;
    }

    /// Adds a node whose driver takes at most `ops_max` operations at once.
    pub fn add_node(&mut self, ops_max: usize) -> NodeId {
        self.memory.add();
        self.dones.add_node();
        let id = NodeId(self.nodes.len() as u32);
        let clock = Clock::new(self.random.up_to(Nanos::from_millis(10_000)));
        self.nodes.push(Node {
            clock,
            busy_until: Nanos::ZERO,
            alive: true,
            files: OpenFiles::new(),
            inodes: Vec::new(),
            names: Names::default(),
            sockets: BTreeMap::new(),
            tokens: BTreeMap::new(),
            ops_max,
            holds: false,
            files_made: 0,
            sockets_made: 0,
        });
        id
    }

    /// A node's driver for the duration of a call.
    pub const fn io(&mut self, node: NodeId) -> SimIo<'_> {
        SimIo::new(self, node)
    }

    /// The time that the node's clock shows.
    #[must_use]
    pub fn node_time(&self, node: NodeId) -> Nanos {
        let node_state = &self.nodes[node.0 as usize];
        node_state.clock.shows(self.now.max(node_state.busy_until))
    }

    /// The world's time until which the node's thread is busy, and nothing is run on it.
    #[must_use]
    pub fn busy_until(&self, node: NodeId) -> Nanos {
        self.nodes[node.0 as usize].busy_until
    }

    pub(super) fn keep_busy(&mut self, node: NodeId, time: Nanos) {
        let now = self.now;
        let node = self.node_mut(node);
        node.busy_until = node.busy_until.max(now) + time;
    }

    /// Has a node that was just added be another shard of `other`: they share one memory.
    pub fn join(&mut self, node: NodeId, other: NodeId) {
        self.memory.join(node, other);
    }

    /// Adds a segment of so many bytes to a node's memory.
    pub fn add_segment(&mut self, node: NodeId, length: u64) -> SegmentId {
        self.memory[node].add(length)
    }

    /// Segments of a node that were not released.
    #[must_use]
    pub fn segments(&self, node: NodeId) -> Vec<SegmentId> {
        self.memory[node].ids()
    }

    /// Bytes of a node's memory, as its client sees them.
    #[must_use]
    pub fn bytes(&self, node: NodeId, span: Span) -> &[u8] {
        self.memory[node].bytes(span)
    }

    /// Bytes of a node's memory, for its client to write.
    pub fn bytes_mut(&mut self, node: NodeId, span: Span) -> &mut [u8] {
        self.memory[node].bytes_mut(span)
    }

    /// Guards a segment: from now on the engine may touch it only inside open windows.
    pub fn guard(&mut self, node: NodeId, segment: SegmentId) {
        self.memory[node].guard(segment);
    }

    /// Marks a segment as shared by clients, such as an exported region: an operation may read what
    /// another one writes. Two operations that write the same bytes are still a bug.
    pub fn share(&mut self, node: NodeId, segment: SegmentId) {
        self.memory[node].share(segment);
    }

    /// Has one more shard of a node have a segment: it is there until each of them released it.
    pub fn hold(&mut self, node: NodeId, segment: SegmentId) {
        self.memory[node].hold(segment);
    }

    /// Has the memory of a segment, which must be there, be such that can vanish.
    pub fn loosen(&mut self, node: NodeId, segment: SegmentId) {
        self.memory[node].loosen(segment);
    }

    /// Takes the memory of such a segment away: it reads as zeros, and what is written is lost.
    pub fn tear(&mut self, node: NodeId, segment: SegmentId) {
        self.memory[node].tear(segment);
    }

    /// Opens a window for a request's span: the engine may read it, and write it if `writable`.
    pub fn open_window(&mut self, node: NodeId, span: Span, writable: bool) -> WindowId {
        self.memory[node].open_window(span, writable)
    }

    /// Marks the window's first `bytes` as final: a later write there is a bug.
    ///
    /// # Panics
    /// If an operation in flight writes them.
    pub fn raise_window(&mut self, node: NodeId, window: WindowId, bytes: u64) {
        self.memory[node].raise_window(window, bytes);
    }

    /// Closes the window of a request that gave its buffer back.
    ///
    /// # Panics
    /// If an operation in flight still uses it.
    pub fn close_window(&mut self, node: NodeId, window: WindowId) {
        self.memory[node].close_window(window);
    }

    /// Adds a device with these costs.
    pub fn add_device(&mut self, costs: DeviceCosts) -> DeviceId {
        self.disk.add_device(costs)
    }

    /// Adds a file with stable content to a device.
    pub fn create_file(&mut self, node: NodeId, device: DeviceId, content: Vec<u8>) -> InodeId {
        let inode = self.disk.create(device, content);
        self.node_mut(node).inodes.push(inode);
        inode
    }

    /// Adds an empty directory to a device, for calls below it.
    pub fn create_directory(&mut self, node: NodeId, device: DeviceId) -> InodeId {
        let inode = self.create_file(node, device, Vec::new());
        self.names_mut(node).add_root(inode);
        inode
    }

    /// Gives a file or directory of a node a name in a directory, which is stable from the start.
    ///
    /// # Panics
    /// If the directory is none.
    pub fn add_name(&mut self, node: NodeId, directory: InodeId, name: &[u8], inode: InodeId) {
        self.names_mut(node).add_stable(directory, name, inode);
    }

    /// What stands in a directory at present, stable or not: each name, with what it stands for and
    /// whether that is a directory.
    #[must_use]
    pub fn names_in(&self, node: NodeId, directory: InodeId) -> Vec<(&[u8], InodeId, bool)> {
        let names = self.names(node);
        let all = names.behind(directory, 0).into_iter().map(|(name, it)| (name, it.inode()));
        all.map(|(name, inode)| (name, inode, names.is_directory(inode))).collect()
    }

    pub(super) fn names(&self, node: NodeId) -> &Names {
        &self.nodes[node.0 as usize].names
    }

    pub(super) fn names_mut(&mut self, node: NodeId) -> &mut Names {
        &mut self.node_mut(node).names
    }

    /// Says whether the page cache has all of a file, however long it becomes.
    pub fn set_cached(&mut self, inode: InodeId, cached: bool) {
        self.set_range_cached(inode, 0..u64::MAX, cached);
    }

    /// Says whether the page cache has the pages of a range. Nothing else changes that: reads fill
    /// no page.
    pub fn set_range_cached(&mut self, inode: InodeId, range: Range<u64>, cached: bool) {
        self.disk.set_cached(inode, range, cached);
    }

    /// Cuts a file to a length, as another program does.
    pub fn truncate(&mut self, inode: InodeId, length: u64) {
        self.disk.truncate(inode, length);
    }

    /// Changes what reads of a device cost, and those that the page cache answers.
    pub fn set_read_costs(&mut self, device: DeviceId, read: Cost, cached: Cost) {
        self.disk.set_read_costs(device, read, cached);
    }

    /// The present bytes of a file, stable or not.
    #[must_use]
    pub fn file_content(&self, inode: InodeId) -> &[u8] {
        self.disk.content(inode)
    }

    /// Opens a file, with O_DIRECT or through the page cache.
    pub fn open_file(&mut self, node: NodeId, inode: InodeId, direct: bool) -> FileId {
        let direct = direct.then(|| self.disk.costs(inode).alignment);
        let node = self.node_mut(node);
        let id = FileId(node.files_made);
        node.files_made += 1;
        node.files.insert(id, OpenFile::new(inode, direct));
        id
    }

    /// Files that a node has open.
    #[must_use]
    pub fn open_files(&self, node: NodeId) -> Vec<FileId> {
        let files = self.nodes[node.0 as usize].files.iter();
        files.filter(|(_, file)| !file.closed).map(|(&id, _)| id).collect()
    }

    /// Stops the device for that long; operations that it has started are not delayed.
    pub fn block_device(&mut self, device: DeviceId, time: Nanos) {
        let until = self.now + time;
        self.disk.server(device).block(until);
    }

    /// Adds a one-way link with these costs.
    pub fn add_link(&mut self, cost: Cost, window: Option<u32>) -> LinkId {
        self.links.push(Link { cost, server: Server::new(window), piece: PIECE_BYTES });
        LinkId(self.links.len() as u32 - 1)
    }

    /// Changes what a link costs, for all that is sent from now on.
    pub fn set_link(&mut self, link: LinkId, cost: Cost) {
        self.links[link.0 as usize].cost = cost;
    }

    /// Sets the size of pieces in which bytes leave the link, instead of 64 KiB. Small pieces are
    /// closer to real packets, and slower to simulate.
    pub fn set_piece(&mut self, link: LinkId, bytes: usize) {
        self.links[link.0 as usize].piece = bytes.max(1);
    }

    /// Connects two nodes over a link each way, with socket buffers of `buffer` bytes a direction.
    pub fn connect(
        &mut self,
        nodes: [NodeId; 2],
        links: [LinkId; 2],
        buffer: usize,
    ) -> (ConnectionId, [SocketId; 2]) {
        let connection = self.connections.len();
        let sockets = [0, 1].map(|side| {
            let node = self.node_mut(nodes[side]);
            let socket = SocketId(node.sockets_made);
            node.sockets_made += 1;
            node.sockets.insert(socket, Place { connection, side, released: false });
            socket
        });
        self.connections.push(Connection::new(nodes, links, buffer));
        (ConnectionId(connection as u32), sockets)
    }

    /// Sockets a node has not released.
    #[must_use]
    pub fn open_sockets(&self, node: NodeId) -> Vec<SocketId> {
        let sockets = self.nodes[node.0 as usize].sockets.iter();
        sockets.filter(|(_, place)| !place.released).map(|(&id, _)| id).collect()
    }

    /// Number of operations in flight at a node.
    #[must_use]
    pub fn ops_in_flight(&self, node: NodeId) -> usize {
        self.nodes[node.0 as usize].tokens.len()
    }

    /// Whether the node has not crashed since it was added or restarted.
    #[must_use]
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.nodes[node.0 as usize].alive
    }

    /// Simulates a loss of power: memory, descriptors and operations are gone. Files keep what was
    /// stable and a part of the rest. Peers notice it as `notice` says.
    pub fn crash(&mut self, node: NodeId, notice: net::Notice) {
        self.note(|| format!("{node:?} crashes"));
        self.crash_writes(node);
        self.ops.retain(|_, op| op.node != node);
        self.notices.retain(|_, notice| notice.node != node);
        self.crash_connections(node, notice);
        let place = &mut self.nodes[node.0 as usize];
        place.alive = false;
        place.files.clear();
        place.sockets.clear();
        place.tokens.clear();
        self.dones.forget(node);
        self.memory[node] = Memory::default();
        for inode in self.nodes[node.0 as usize].inodes.clone() {
            self.disk.crash(inode, &mut self.random);
        }
        self.nodes[node.0 as usize].names.crash(&mut self.random);
    }

    /// Restarts a crashed node, with its files and nothing else.
    pub fn restart(&mut self, node: NodeId) {
        self.node_mut(node).alive = true;
    }

    /// Whether operations of a node wait for a [`Hand`](super::hand::Hand).
    pub(super) fn holds(&mut self, node: NodeId) -> &mut bool {
        &mut self.node_mut(node).holds
    }

    pub(super) fn node_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.0 as usize]
    }

    fn happen(&mut self, event: KernelEvent) {
        match event {
            KernelEvent::Begin { op } => self.begin_late(op),
            KernelEvent::Finish { op } => self.finish(op),
            KernelEvent::LetGo { op } => self.let_go(op),
            KernelEvent::CancelStream { op } => self.cancel_stream(op),
            KernelEvent::Deliver { connection, to, bytes } => self.deliver(connection, to, &bytes),
            KernelEvent::Ended { connection, at_side } => self.end_stream(connection, at_side),
            KernelEvent::Broken { connection, at_side } => self.break_end(connection, at_side),
        }
    }
}
