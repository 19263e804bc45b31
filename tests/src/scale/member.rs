//! A node of a scale world as its client has it: memory, handles, and what it may still ask for.

use std::collections::{BTreeMap, BTreeSet};

use piped_control::opens::Found;
use piped_control::parties::Credentials;
use piped_core::access::{Access, Creation, OpenKind};
use piped_core::ids::{DeviceId, HandleId, QueueId, SegmentId, SessionId};
use piped_core::io::Span;
use piped_core::limits::NOTICES_MAX;
use piped_core::request::{ArenaBuffer, Origin, Verb};
use piped_core::status::Status;
use piped_engine::command::{Command, FileTarget, OpenRequest, RegionTarget, Target};
use piped_sim::{InodeId, NodeId, SimKernel};
use piped_world::controls::{OWN_USER, region};
use piped_world::nodes::Nodes;

use super::jobs::Job;
use super::layout::{EXPORT, Layout, name_of};
use super::machine::Options;

/// Requests of a client that are under way at once.
pub(super) const DEPTH: u32 = 32;

/// Operations at the driver of a node, as the daemon has them.
pub(super) const OPS_MAX: u32 = 4096;

/// The file that every node offers, and the memory.
const FILE: &[u8] = b"file";
const MEMORY: &str = "memory";

/// The client's segments by number: what it offers, and its buffers.
const ARENA: u32 = 1;

/// A node and its client.
#[derive(Debug)]
pub(super) struct Member {
    number: usize,
    id: NodeId,
    device: DeviceId,
    inode: InodeId,
    /// Bytes of which all that it has is made, again and again.
    data: Vec<u8>,
    session: SessionId,
    arena: SegmentId,
    memory: SegmentId,
    /// Nodes of which it has a handle, and those that it has asked for one, by ticket.
    open: BTreeSet<usize>,
    opening: BTreeMap<u64, usize>,
    /// Free parts of the arena.
    slots: Vec<u32>,
    life: u32,
}

impl Member {
    /// A node with its disk, and with nothing else yet.
    pub(super) fn new(
        number: usize,
        (options, layout): (&Options, &Layout),
        data: Vec<u8>,
        kernel: &mut SimKernel,
    ) -> Self {
        let id = kernel.add_node((OPS_MAX + NOTICES_MAX) as usize);
        let device =
            kernel.add_device(options.machine.device(layout.replicated(number).unwrap_or(1.0)));
        let length = match layout.kind() {
            OpenKind::File => layout.length(number) as usize,
            _ => 0,
        };
        let content = data.iter().copied().cycle().take(length).collect();
        Self {
            number,
            id,
            device,
            inode: kernel.create_file(id, device, content),
            data,
            session: SessionId(0),
            arena: SegmentId(0),
            memory: SegmentId(0),
            open: BTreeSet::new(),
            opening: BTreeMap::new(),
            slots: Vec::new(),
            life: 0,
        }
    }

    /// The node as the kernel knows it.
    pub(super) fn id(&self) -> NodeId {
        self.id
    }

    /// Counts how often it has died.
    pub(super) fn life(&self) -> u32 {
        self.life
    }

    /// Gives a daemon that starts its staging, and a client with what it offers and its buffers.
    pub(super) fn provide(&mut self, (options, layout): (&Options, &Layout), nodes: &mut Nodes) {
        let (node, id, staging) = (self.number, self.id, options.machine.staging);
        let segment = nodes.kernel.add_segment(id, staging);
        nodes.command(node, 0, Command::AddStaging { segment, length: staging });
        let control = nodes.controls.control_mut(node).expect("the node runs");
        let (session, _) = control.enter_session(Credentials::of(OWN_USER, OWN_USER), 1);
        self.session = session;
        nodes.command(node, 0, Command::OpenSession { session, weight: 1, home: 0, user: 0 });
        let mut add = |length| {
            let segment = nodes.kernel.add_segment(id, length);
            nodes.command(node, 0, Command::AddSegment { session, segment, length });
            segment
        };
        let length = match layout.kind() {
            OpenKind::Region => layout.length(node),
            _ => 4096,
        };
        self.memory = add(length);
        self.arena = add(layout.longest() * u64::from(DEPTH));
        self.slots = (0..DEPTH).rev().collect();
        if layout.kind() == OpenKind::Region {
            nodes.kernel.share(id, self.memory);
            let control = nodes.controls.control_mut(node).expect("the node runs");
            let offered = region(session, 0..length, Access::ALL);
            control.offer_region(MEMORY, offered, length).expect("a new name");
            let span = Span { segment: self.memory, offset: 0, length: length as u32 };
            self.fill(span, nodes);
        }
    }

    /// Fills memory with the node's own bytes.
    fn fill(&self, span: Span, nodes: &mut Nodes) {
        for part in nodes.kernel.bytes_mut(self.id, span).chunks_mut(self.data.len()) {
            part.copy_from_slice(&self.data[..part.len()]);
        }
    }

    /// Whether bytes are those that the node has from `offset` on.
    pub(super) fn has(&self, bytes: &[u8], offset: u64) -> bool {
        let begin = (offset % self.data.len() as u64) as usize;
        let (first, rest) = bytes.split_at(bytes.len().min(self.data.len() - begin));
        first == &self.data[begin..begin + first.len()]
            && rest.chunks(self.data.len()).all(|part| part == &self.data[..part.len()])
    }

    /// A part of what it offers.
    pub(super) fn offered(&self, offset: u64, length: u32) -> Span {
        Span { segment: self.memory, offset, length }
    }

    /// The buffer of a request.
    pub(super) fn buffer(&self, slot: u32, job: &Job, layout: &Layout) -> Span {
        let offset = u64::from(slot) * layout.longest();
        Span { segment: self.arena, offset, length: job.bytes as u32 }
    }

    /// Takes a part of the arena for a request to a node of which it has a handle.
    pub(super) fn take_slot(&mut self, other: usize) -> Option<u32> {
        if self.open.contains(&other) { self.slots.pop() } else { None }
    }

    /// A part of the arena is free again.
    pub(super) fn free_slot(&mut self, slot: u32) {
        self.slots.push(slot);
    }

    /// A request, and where its answer goes. What it writes is put into its buffer.
    pub(super) fn request(
        &self,
        (number, slot, job): (u64, u32, &Job),
        layout: &Layout,
        nodes: &mut Nodes,
    ) -> (Origin, Verb) {
        let span = self.buffer(slot, job, layout);
        let buffer = ArenaBuffer { segment: ARENA, offset: span.offset, length: job.bytes };
        let (handle, offset) = (handle_of(job.other), job.offset);
        let verb = match job.writes {
            true => Verb::Write { handle, offset, buffer, durable: false, notify: None },
            false => Verb::Read { handle, offset, buffer, wanted: 0 },
        };
        if job.writes {
            self.fill(span, nodes);
        }
        let session = self.session;
        (Origin { session, queue: QueueId(0), slot, user_data: number }, verb)
    }

    /// Nodes of which it has a handle.
    pub(super) fn open(&self) -> &BTreeSet<usize> {
        &self.open
    }

    /// Whether it has no handle of what another node has, and has not asked for one.
    pub(super) fn misses(&self, other: usize) -> bool {
        !self.open.contains(&other) && !self.opening.values().any(|it| *it == other)
    }

    /// Asks for a handle of what another node has. False: it is not known where that is.
    pub(super) fn ask(&mut self, other: usize, layout: &Layout, nodes: &mut Nodes) -> bool {
        let Some(control) = nodes.controls.control_mut(self.number) else { return true };
        let Some(peer) = control.peers().by_name(&name_of(other)) else { return false };
        let ticket = control.expect_open();
        let (name, path) = match layout.kind() {
            OpenKind::Region => (MEMORY, Vec::new()),
            _ => (EXPORT, FILE.to_vec()),
        };
        let (kind, name) = (layout.kind(), name.to_owned());
        let open =
            OpenRequest { kind, name, path, access: Access::READ_WRITE, create: Creation::No };
        self.opening.insert(ticket, other);
        let (session, handle) = (self.session, handle_of(other));
        let command = Command::OpenRemote { ticket, session, handle, peer, open };
        nodes.command(self.number, 0, command);
        true
    }

    /// Gives up its handle of what another node has.
    pub(super) fn close(&mut self, other: usize, nodes: &mut Nodes) {
        let (session, handle) = (self.session, handle_of(other));
        nodes.command(self.number, 0, Command::CloseHandle { session, handle });
        self.open.remove(&other);
    }

    /// Makes one handle of those of the file that all nodes have, if it has several.
    pub(super) fn join(&mut self, layout: &Layout, nodes: &mut Nodes) {
        let anybody = layout.anybody();
        if self.open.len() < 2 || self.open.contains(&anybody) {
            return;
        }
        let members = self.open.iter().map(|other| handle_of(*other)).collect();
        let (session, handle) = (self.session, handle_of(anybody));
        let length = layout.length(self.number);
        let command = Command::JoinHandles { session, handle, members, length };
        nodes.command(self.number, 0, command);
        self.open.insert(anybody);
    }

    /// Takes the answer to an open; the node that has to be asked again, if there is one.
    pub(super) fn answered(&mut self, ticket: u64, result: Result<u64, Status>) -> Option<usize> {
        let other = self.opening.remove(&ticket)?;
        if result.is_err() {
            return Some(other);
        }
        self.open.insert(other);
        None
    }

    /// What a peer opens here.
    pub(super) fn target(
        &self,
        found: &Found<()>,
        (access, length): (Access, u64),
        kernel: &mut SimKernel,
    ) -> Target {
        match found {
            Found::Region(source) => Target::Region(RegionTarget {
                region: source.region,
                segment: self.memory,
                offset: 0,
                length,
                access,
                home: 0,
            }),
            _ => Target::File(FileTarget {
                direct: None,
                buffered: kernel.open_file(self.id, self.inode, false),
                device: self.device,
                length,
                access,
                foreign: false,
                cached: false,
            }),
        }
    }

    /// Its daemon has died, and its client with it.
    pub(super) fn die(&mut self) {
        self.life += 1;
        self.open.clear();
        self.opening.clear();
    }
}

fn handle_of(other: usize) -> HandleId {
    HandleId(other as u32 + 1)
}
