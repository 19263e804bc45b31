//! What clients have open, by the numbers they were given.

use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, OccupiedEntry};

use piped_core::access::{Access, OpenKind};
use piped_core::call::Locking;
use piped_core::ids::{HandleId, PeerId, SessionId};
use piped_core::status::Status;
use piped_core::units::Nanos;

use super::super::messages::Outbox;
use super::super::numbers::Numbers;
use super::replicas::Replicas;
use crate::command::{ChannelTarget, OpenRequest, Target};

/// Something a client opened.
#[derive(Debug)]
struct Handle {
    kind: HandleKind,
    /// Transfers that use it.
    uses: u32,
    closing: bool,
}

/// What a handle stands for.
#[derive(Debug)]
pub(in crate::shard) enum HandleKind {
    Local(Target),
    Remote(Box<RemoteHandle>),
    /// A file that several of the session's handles are replicas of.
    Replicas(Box<Replicas>),
    /// Something that the home of the session has.
    AtHome,
    /// The handle was ended; the requests that ended with it still use this target.
    Ended(Box<Self>),
    /// The exporter of the region is gone, or the handle was ended.
    Gone,
}

/// A handle whose file or region lies at a peer.
#[derive(Debug)]
pub(in crate::shard) struct RemoteHandle {
    pub(in crate::shard) peer: PeerId,
    pub(in crate::shard) open: OpenRequest,
    /// The peer's number for it, and the peer's incarnation that gave it.
    pub(in crate::shard) number: Option<(u32, u64)>,
    pub(in crate::shard) length: u64,
    /// The control thread's ticket until the first open ended.
    pub(in crate::shard) ticket: Option<u64>,
    /// Names the open to the peer: sent again after a lost lane, it opens nothing twice.
    pub(in crate::shard) wire_ticket: u64,
    /// The epoch of the latency lane on which the peer was last asked for it.
    pub(in crate::shard) asked_epoch: u32,
    /// An open is under way: only then is an answer to it believed.
    pub(in crate::shard) pending: bool,
    /// The peer's incarnation that counted bytes of the first write that no sync has covered, and
    /// when the last such write ended: a peer that restarted may have lost them.
    pub(in crate::shard) unsynced: Option<(u64, Nanos)>,
    /// The number under which a range of the file was locked, and the incarnation that gave it:
    /// opened again under another, the handle would seem to have locks that it lost.
    locked_as: Option<(u32, u64)>,
    /// Messages sent to the channel; empty for a handle on a region.
    pub(in crate::shard) outbox: Outbox,
    /// Numbers of what is done once: updates of a region, and calls of a file or directory; unused
    /// on a channel.
    pub(in crate::shard) updates: Numbers,
}

impl RemoteHandle {
    /// Something that a peer is to be asked for: with the control thread's ticket, and ours.
    pub(in crate::shard) fn new(
        peer: PeerId,
        open: OpenRequest,
        ticket: u64,
        wire_ticket: u64,
    ) -> Self {
        Self {
            peer,
            open,
            number: None,
            length: 0,
            ticket: Some(ticket),
            wire_ticket,
            asked_epoch: 0,
            pending: false,
            unsynced: None,
            locked_as: None,
            outbox: Outbox::default(),
            updates: Numbers::default(),
        }
    }

    /// The locks of the file have changed: they end with the number that the handle has there.
    pub(in crate::shard) fn note_locked(&mut self, locking: Locking) {
        match locking {
            Locking::Some => self.locked_as = self.number,
            Locking::None => self.locked_as = None,
            Locking::Fewer => {}
        }
    }

    /// Whether it had locks that it does not have under a new number of that run of the peer.
    pub(in crate::shard) fn loses_locks_as(&self, number: (u32, u64)) -> bool {
        self.locked_as.is_some_and(|locked_as| locked_as != number)
    }
}

/// What a handle resolves to when a request names it.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) enum Place {
    Local(Target),
    Remote(PeerId, HandleId),
    /// Where the replicas are that this handle stands for.
    Replicas(HandleId),
}

/// A handle that is there.
type Known<'a> = OccupiedEntry<'a, (SessionId, HandleId), Handle>;

/// The handles of all clients.
#[derive(Debug, Default)]
pub(in crate::shard) struct Handles(BTreeMap<(SessionId, HandleId), Handle>);

impl Handles {
    /// Gives what was opened its number.
    pub(in crate::shard) fn add(&mut self, session: SessionId, id: HandleId, kind: HandleKind) {
        self.0.insert((session, id), Handle { kind, uses: 0, closing: false });
    }

    /// How many there are.
    pub(in crate::shard) fn len(&self) -> usize {
        self.0.len()
    }

    /// The numbers of a session's handles.
    pub(in crate::shard) fn of(&self, session: SessionId) -> Vec<HandleId> {
        self.0.keys().filter(|(of, _)| *of == session).map(|&(_, id)| id).collect()
    }

    /// What a handle stands for.
    pub(in crate::shard) fn kind(&self, session: SessionId, id: HandleId) -> Option<&HandleKind> {
        self.0.get(&(session, id)).map(|handle| &handle.kind)
    }

    /// Whether the home of the session has what a handle stands for.
    pub(in crate::shard) fn is_at_home(&self, session: SessionId, id: HandleId) -> bool {
        matches!(self.kind(session, id), Some(HandleKind::AtHome))
    }

    /// A handle whose file, region or channel lies at a peer.
    pub(in crate::shard) fn remote(
        &self,
        session: SessionId,
        id: HandleId,
    ) -> Option<&RemoteHandle> {
        match self.kind(session, id)? {
            HandleKind::Remote(remote) => Some(remote),
            _ => None,
        }
    }

    /// The mutable form of [`Self::remote`].
    pub(in crate::shard) fn remote_mut(
        &mut self,
        session: SessionId,
        id: HandleId,
    ) -> Option<&mut RemoteHandle> {
        match &mut self.0.get_mut(&(session, id))?.kind {
            HandleKind::Remote(remote) => Some(remote),
            _ => None,
        }
    }

    /// The replicas that a handle stands for.
    pub(in crate::shard) fn replicas(&self, session: SessionId, id: HandleId) -> Option<&Replicas> {
        match self.kind(session, id)? {
            HandleKind::Replicas(replicas) => Some(replicas),
            _ => None,
        }
    }

    /// The mutable form of [`Self::replicas`].
    pub(in crate::shard) fn replicas_mut(
        &mut self,
        session: SessionId,
        id: HandleId,
    ) -> Option<&mut Replicas> {
        match &mut self.0.get_mut(&(session, id))?.kind {
            HandleKind::Replicas(replicas) => Some(replicas),
            _ => None,
        }
    }

    /// All handles of a peer's, with their sessions and numbers.
    pub(in crate::shard) fn at_peer(
        &mut self,
        peer: PeerId,
    ) -> impl Iterator<Item = ((SessionId, HandleId), &mut RemoteHandle)> {
        self.0.iter_mut().filter_map(move |(&id, handle)| match &mut handle.kind {
            HandleKind::Remote(remote) if remote.peer == peer => Some((id, &mut **remote)),
            _ => None,
        })
    }

    /// Sessions with peers at which they have something open, or end requests of what they had.
    pub(in crate::shard) fn open_at_peers(&self) -> impl Iterator<Item = (SessionId, PeerId)> {
        self.0.iter().filter_map(|(&(session, _), handle)| {
            let kind = match &handle.kind {
                HandleKind::Ended(ended) => &**ended,
                kind => kind,
            };
            match kind {
                HandleKind::Remote(remote) => Some((session, remote.peer)),
                _ => None,
            }
        })
    }

    /// A request uses a handle from now on.
    pub(in crate::shard) fn enter(&mut self, session: SessionId, id: HandleId) {
        if let Some(handle) = self.0.get_mut(&(session, id)) {
            handle.uses += 1;
        }
    }

    /// A request that used a handle is over. What is to be released with it.
    pub(in crate::shard) fn leave(
        &mut self,
        session: SessionId,
        id: HandleId,
    ) -> Option<HandleKind> {
        let mut handle = self.known(session, id)?;
        handle.get_mut().uses -= 1;
        take_unused(handle)
    }

    /// A client closes a handle; running requests end first. What is to be released now.
    pub(in crate::shard) fn close(
        &mut self,
        session: SessionId,
        id: HandleId,
    ) -> Option<HandleKind> {
        let mut handle = self.known(session, id)?;
        handle.get_mut().closing = true;
        take_unused(handle)
    }

    /// Takes back what a handle stands for. It stays until its client closes it, so that its number
    /// names nothing else. What is to be released now.
    pub(in crate::shard) fn end(&mut self, session: SessionId, id: HandleId) -> Option<HandleKind> {
        let mut handle = self.known(session, id)?;
        let kind = &mut handle.get_mut().kind;
        if let HandleKind::Local(_) | HandleKind::Remote(_) | HandleKind::Replicas(_) = kind {
            *kind = HandleKind::Ended(Box::new(std::mem::replace(kind, HandleKind::Gone)));
        }
        take_unused(handle)
    }

    fn known(&mut self, session: SessionId, id: HandleId) -> Option<Known<'_>> {
        match self.0.entry((session, id)) {
            Entry::Occupied(handle) => Some(handle),
            Entry::Vacant(_) => None,
        }
    }

    /// A handle serves nothing any more: what it stands for is gone.
    pub(in crate::shard) fn lose(&mut self, session: SessionId, id: HandleId) {
        if let Some(handle) = self.0.get_mut(&(session, id)) {
            handle.kind = HandleKind::Gone;
        }
    }

    /// Handles on such things of this node serve nothing any more.
    pub(in crate::shard) fn revoke(&mut self, is_it: impl Fn(Target) -> bool) {
        for handle in self.0.values_mut() {
            if matches!(handle.kind, HandleKind::Local(target) if is_it(target)) {
                handle.kind = HandleKind::Gone;
            }
        }
    }

    /// A peer is no more: handles of its serve nothing. Those whose open was under way, and the
    /// tickets of the opens.
    pub(in crate::shard) fn lose_peer(&mut self, peer: PeerId) -> Vec<(u64, SessionId, HandleId)> {
        let mut unopened = Vec::new();
        for (&(session, id), handle) in &mut self.0 {
            let HandleKind::Remote(remote) = &mut handle.kind else { continue };
            if remote.peer == peer {
                unopened.extend(remote.ticket.take().map(|ticket| (ticket, session, id)));
                handle.kind = HandleKind::Gone;
            }
        }
        unopened
    }

    /// Whether some handle stands for such a thing of this node.
    pub(in crate::shard) fn any(&self, is_it: impl Fn(Target) -> bool) -> bool {
        let kinds = self.0.values().map(|handle| &handle.kind);
        kinds.into_iter().any(|kind| matches!(kind, HandleKind::Local(target) if is_it(*target)))
    }

    /// What a request may use by a handle, in the way that it wants to, and of which kind that is.
    pub(in crate::shard) fn place(
        &self,
        session: SessionId,
        id: HandleId,
        wanted: Access,
    ) -> Result<(Place, OpenKind), Status> {
        let handle = self.0.get(&(session, id)).ok_or(Status::BadHandle)?;
        if handle.closing {
            return Err(Status::BadHandle);
        }
        let (place, kind, access) = match &handle.kind {
            HandleKind::Local(target) => {
                (Place::Local(*target), kind_of(*target), access_of(*target))
            }
            HandleKind::Remote(remote) if remote.ticket.is_some() => return Err(Status::BadHandle),
            HandleKind::Remote(remote) => {
                (Place::Remote(remote.peer, id), remote.open.kind, remote.open.access)
            }
            HandleKind::Replicas(_) => (Place::Replicas(id), OpenKind::File, Access::READ),
            // No request that names it stays here.
            HandleKind::AtHome => return Err(Status::BadHandle),
            HandleKind::Ended(_) | HandleKind::Gone => return Err(Status::Gone),
        };
        access.allows(wanted).then_some((place, kind)).ok_or(Status::Denied)
    }

    /// What a request that makes calls may use by a handle: a file or directory, what may be done
    /// with it, and whether it is a directory.
    pub(in crate::shard) fn place_of_calls(
        &self,
        session: SessionId,
        id: HandleId,
    ) -> Result<(Place, Access, bool), Status> {
        let (place, kind) = self.place(session, id, Access::NONE)?;
        if !matches!(kind, OpenKind::File | OpenKind::Directory) {
            return Err(Status::Invalid);
        }
        let access = match (place, self.remote(session, id)) {
            (Place::Local(target), _) => access_of(target),
            (Place::Remote(..) | Place::Replicas(_), remote) => {
                remote.map_or(Access::NONE, |it| it.open.access)
            }
        };
        Ok((place, access, kind == OpenKind::Directory))
    }

    /// A file or a region: with a channel nothing else can be done than to send and receive, and of
    /// a directory calls are made.
    pub(in crate::shard) fn place_of_bytes(
        &self,
        session: SessionId,
        id: HandleId,
        wanted: Access,
    ) -> Result<(Place, OpenKind), Status> {
        let found = self.place(session, id, wanted)?;
        let has_bytes = matches!(found.1, OpenKind::File | OpenKind::Region);
        has_bytes.then_some(found).ok_or(Status::Invalid)
    }

    /// Finds a region that a handle stands for, and checks the wanted access.
    pub(in crate::shard) fn place_of_region(
        &self,
        session: SessionId,
        id: HandleId,
        wanted: Access,
    ) -> Result<Place, Status> {
        let (place, kind) = self.place(session, id, wanted)?;
        (kind == OpenKind::Region).then_some(place).ok_or(Status::Invalid)
    }
}

/// What a handle stood for that is closed or ended, once nothing uses it.
fn take_unused(mut handle: Known<'_>) -> Option<HandleKind> {
    let Handle { kind, uses, closing } = handle.get_mut();
    let kind = match kind {
        _ if *uses > 0 => return None,
        _ if *closing => handle.remove().kind,
        HandleKind::Ended(_) => std::mem::replace(kind, HandleKind::Gone),
        _ => return None,
    };
    match kind {
        HandleKind::Ended(kind) => Some(*kind),
        kind => Some(kind),
    }
}

fn kind_of(target: Target) -> OpenKind {
    match target {
        Target::File(_) => OpenKind::File,
        Target::Region(_) => OpenKind::Region,
        Target::Channel(_) => OpenKind::Channel,
        Target::Directory(_) => OpenKind::Directory,
    }
}

/// What may be done with something of this node.
pub(in crate::shard) fn access_of(target: Target) -> Access {
    match target {
        Target::File(file) => file.access,
        Target::Region(region) => region.access,
        Target::Channel(ChannelTarget { receives: true, .. }) => Access::READ,
        Target::Channel(_) => Access::WRITE,
        Target::Directory(directory) => directory.access,
    }
}
