//! What clients open, enter in the book of their node, and close again.

use piped_control::holdings::{Holder, Place, Right};
use piped_control::parties::{Asker, Credentials};
use piped_control::sessions::Used;
use piped_core::access::{Access, Creation, OpenKind};
use piped_core::ids::{HandleId, SessionId};
use piped_core::request::Verb;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, OpenRequest};

use super::setup::{ALL, NAMES_TOO};
use super::{Client, ClientState, ObjectKind, Opening, OpeningState, Plan, World};
use crate::operators::{EXPORT, NAMES};

/// An open at a peer is given up so long after the deadline of requests.
pub(super) const OPEN_GRACE: Nanos = Nanos::from_millis(1_000);

impl World {
    /// Open one object for one client.
    pub(super) fn open_object(&mut self, client: usize, object: usize) {
        let (node, other) = (self.clients[client].node, self.objects[object].node);
        self.clients[client].handles_made += 1;
        let handle = HandleId(self.clients[client].handles_made);
        let opened = match other == node {
            true => self.open_here(client, object, handle),
            false => self.open_there(client, object, handle),
        };
        let state = opened.unwrap_or_else(OpeningState::Failed);
        let rights = [node, other].map(|node| self.nodes[node].rights);
        self.clients[client].handles.push(Opening { object, handle, state, rights });
        self.note(client);
    }

    /// On its own node, an object is installed, and then entered in the book.
    fn open_here(
        &mut self,
        client: usize,
        object: usize,
        handle: HandleId,
    ) -> Result<OpeningState, Status> {
        let (node, session) = (self.clients[client].node, self.clients[client].session);
        let user = self.clients[client].user;
        let who = Credentials::of(user, user);
        let (name, access) = (self.objects[object].name.clone(), ALL);
        let control = self.controls.control(node);
        let right = match self.objects[object].kind {
            ObjectKind::Directory { .. } => {
                let (export, access) = (EXPORT.to_owned(), NAMES_TOO);
                let root = control.grants().root(EXPORT);
                let allowed =
                    control.grants().allow(Asker::User(&who), EXPORT, access, Creation::No);
                allowed.map_err(|fault| fault.status)?;
                Right::File { export, path: name.into_bytes(), access, root }
            }
            ObjectKind::File(_) => {
                let (grants, export) = (control.grants(), EXPORT.to_owned());
                let root = grants.root(EXPORT);
                let allowed = grants.allow(Asker::User(&who), EXPORT, access, Creation::No);
                allowed.map_err(|fault| fault.status)?;
                if !self.is_in_folder(object) {
                    return Err(Status::NotFound);
                }
                Right::File { export, path: name.into_bytes(), access, root }
            }
            ObjectKind::Region { owner, region, .. } | ObjectKind::Board { owner, region, .. }
                if owner == client =>
            {
                Right::OfferedRegion { name, region, access }
            }
            ObjectKind::Region { .. } | ObjectKind::Board { .. } => {
                let found = control.find_region(&name, access, &who);
                let region = found.map_err(|fault| fault.status)?.region;
                Right::Region { name, region, access }
            }
            ObjectKind::Channel { owner, channel } if owner == client => {
                Right::OfferedChannel { name, channel }
            }
            ObjectKind::Channel { .. } => {
                control.find_channel(&name).map_err(|fault| fault.status)?;
                Right::Channel { name }
            }
        };
        let target = self.target(object, Some(client));
        self.command(node, Command::InstallHandle { session, handle, target });
        if self.operators.is_none() {
            let holder = Holder::User(who);
            let control = self.controls.control_mut(node).expect("the node runs");
            control.hold(Place::Session(session, handle), holder, right).expect("all is allowed");
            return Ok(OpeningState::Open);
        }
        let at = self.kernel.now() + self.opening_time();
        self.plans.push(at, Plan::Enter { client, session, handle, right: Box::new(right) });
        Ok(OpeningState::Enters)
    }

    /// How long a driver is at opening something: where operators are, mostly long enough for one.
    pub(super) fn opening_time(&mut self) -> Nanos {
        let most = if self.operators.is_some() { 1 << 26 } else { 1_000_000 };
        Nanos(self.random.length(most))
    }

    /// At the other node, an object is asked for.
    fn open_there(
        &mut self,
        client: usize,
        object: usize,
        handle: HandleId,
    ) -> Result<OpeningState, Status> {
        let (node, session) = (self.clients[client].node, self.clients[client].session);
        let open = self.open_request(object);
        let name = NAMES[self.objects[object].node];
        let control = self.controls.control_mut(node).expect("the node runs");
        let peer = control.peers().by_name(name).ok_or(Status::NotFound)?;
        let ticket = control.expect_open();
        let asked = self.kernel.now();
        self.tickets.insert((node, ticket), (client, asked));
        let command = Command::OpenRemote { ticket, session, handle, peer, open };
        // Behind what its shard is told of the peer.
        self.controls.tell(node, 0, command, &self.kernel);
        let patience = self.options.deadline + OPEN_GRACE;
        self.plans.push(asked + patience, Plan::GiveUp { node, ticket, asked });
        Ok(OpeningState::Waits { ticket })
    }

    fn open_request(&self, object: usize) -> OpenRequest {
        let name = self.objects[object].name.clone();
        let (kind, name, path, access) = match self.objects[object].kind {
            ObjectKind::File(_) => (OpenKind::File, EXPORT.to_owned(), name.into(), ALL),
            ObjectKind::Directory { .. } => {
                (OpenKind::Directory, EXPORT.to_owned(), name.into(), NAMES_TOO)
            }
            ObjectKind::Region { .. } | ObjectKind::Board { .. } => {
                (OpenKind::Region, name, Vec::new(), ALL)
            }
            ObjectKind::Channel { .. } => (OpenKind::Channel, name, Vec::new(), Access::WRITE),
        };
        OpenRequest { kind, name, path, access, create: Creation::No }
    }

    /// An open at a peer is over.
    pub(super) fn take_opened(&mut self, node: usize, ticket: u64, result: Result<u64, Status>) {
        if self.given_up.remove(&(node, ticket)) {
            return;
        }
        let client = self.tickets.remove(&(node, ticket));
        let (client, _) = client.unwrap_or_else(|| panic!("ticket {ticket} is answered twice"));
        let waits = |it: &&mut Opening| it.state == OpeningState::Waits { ticket };
        let Some(opening) = self.clients[client].handles.iter_mut().find(waits) else { return };
        let (object, handle) = (opening.object, opening.handle);
        opening.state = OpeningState::Enters;
        let session = self.clients[client].session;
        match result {
            Ok(length) => {
                // The end may move between the open and its answer.
                let most = match self.objects[object].kind {
                    ObjectKind::Board { length, .. } => length,
                    _ => self.objects[object].expected.length().end,
                };
                let name = &self.objects[object].name;
                assert!(length <= most, "{name} has at most {most} bytes, not {length}");
                let OpenRequest { kind, name, path, access, .. } = self.open_request(object);
                let peer = NAMES[self.objects[object].node].to_owned();
                let right = Right::Remote { peer, kind, name, path, access };
                self.enter(client, session, handle, right);
            }
            Err(status) => {
                assert!(
                    !self.options.is_calm() || self.disturbed || self.objects[object].gone,
                    "{} cannot be opened: {status:?}",
                    self.objects[object].name
                );
                self.fail(client, handle, status);
            }
        }
    }

    /// The driver waits no longer for an open at a peer.
    pub(super) fn give_up_open(&mut self, node: usize, ticket: u64, asked: Nanos) {
        let Some(&(client, at)) = self.tickets.get(&(node, ticket)) else { return };
        if at != asked {
            // It was asked for before the node crashed.
            return;
        }
        self.tickets.remove(&(node, ticket));
        self.given_up.insert((node, ticket));
        let waits = |it: &&Opening| it.state == OpeningState::Waits { ticket };
        let Some(&opening) = self.clients[client].handles.iter().find(waits) else { return };
        self.tally("open given up", 1);
        self.fail(client, opening.handle, Status::DeadlineExceeded);
        let (session, handle) = (self.clients[client].session, opening.handle);
        self.controls.tell(node, 0, Command::CloseHandle { session, handle }, &self.kernel);
    }

    /// What is open on the shard is entered in the book, unless a reload took the right away.
    pub(super) fn enter(
        &mut self,
        client: usize,
        session: SessionId,
        handle: HandleId,
        right: Right,
    ) {
        let Client { node, user, state, .. } = self.clients[client];
        let is_same = self.clients[client].session == session;
        let Some(control) = self.controls.control_mut(node) else { return };
        if !is_same || state != ClientState::Running {
            return;
        }
        let holder = Holder::User(Credentials::of(user, user));
        let held = control.hold(Place::Session(session, handle), holder, right);
        self.controls.drain(node, &self.kernel);
        match held {
            Ok(()) => {
                let mut handles = self.clients[client].handles.iter_mut();
                let opening = handles.find(|it| it.handle == handle).expect("it was asked for");
                opening.state = OpeningState::Open;
            }
            Err(fault) => {
                self.tally("right gone while it was opened", 1);
                let close = Command::CloseHandle { session, handle };
                self.controls.tell(node, 0, close, &self.kernel);
                self.fail(client, handle, fault.status);
            }
        }
    }

    fn fail(&mut self, client: usize, handle: HandleId, status: Status) {
        let mut handles = self.clients[client].handles.iter_mut();
        if let Some(opening) = handles.find(|it| it.handle == handle) {
            opening.state = OpeningState::Failed(status);
        }
        self.note(client);
    }

    /// A client closes a handle that nothing of its uses.
    pub(super) fn close_handle(&mut self, client: usize, handle: HandleId) {
        let Client { node, session, .. } = self.clients[client];
        if self.clients[client].calls.values().any(|call| uses(call.verb, handle)) {
            return;
        }
        let closed = self.clients[client].handles.iter().find(|it| it.handle == handle);
        if let Some(&Opening { object, .. }) = closed {
            give_up_area(self, client, object);
            self.locking.close((object, client));
        }
        let control = self.controls.control_mut(node).expect("the node runs");
        control.leave(Place::Session(session, handle));
        self.controls.tell(node, 0, Command::CloseHandle { session, handle }, &self.kernel);
        self.clients[client].handles.retain(|it| it.handle != handle);
        self.note(client);
    }

    /// The control thread hears what a client's session uses.
    fn note(&mut self, client: usize) {
        let used = self.used(client);
        let Client { node, session, .. } = self.clients[client];
        if let Some(control) = self.controls.control_mut(node) {
            control.note_session(session, used);
        }
    }

    pub(super) fn used(&self, client: usize) -> Used {
        let place = &self.clients[client];
        let open = place.handles.iter().filter(|it| !matches!(it.state, OpeningState::Failed(_)));
        let is_file = |it: &&Opening| {
            let object = &self.objects[it.object];
            object.node == place.node && matches!(object.kind, ObjectKind::File(_))
        };
        let handles = open.clone().count() as u32;
        let files = open.filter(is_file).count() as u32;
        Used { queues: 2, handles, files, ..Used::default() }
    }
}

/// The handle through which a client wrote in an object is no more.
pub(super) fn give_up_area(world: &mut World, client: usize, object: usize) {
    if world.objects[object].areas.len() > client + 2 {
        let area = world.own_area(client, object);
        world.objects[object].expected.give_up(area);
    }
}

/// Whether a request is by a handle.
pub(super) fn uses(verb: Verb, by: HandleId) -> bool {
    match verb {
        Verb::Read { handle, .. }
        | Verb::Write { handle, .. }
        | Verb::Vector { handle, .. }
        | Verb::Update { handle, .. }
        | Verb::Notify { handle, .. }
        | Verb::Wait { handle, .. }
        | Verb::Flush { handle }
        | Verb::Sync { handle }
        | Verb::Call { handle, .. }
        | Verb::Send { handle, .. }
        | Verb::Receive { handle, .. } => handle == by,
        Verb::Copy { from, to, .. } => [from, to].contains(&by),
        Verb::Nop | Verb::Cancel { .. } | Verb::Unsupported => false,
    }
}
