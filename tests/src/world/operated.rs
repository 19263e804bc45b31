//! Operators at work: what they change of nodes and clients, and the rights that must hold then.
//!
//! A request that is made when the configuration of a node forbids it, and its shards have been
//! told, does not end well. One that nobody has forbidden does not end for want of a right. When
//! the operators are through, each client opens all that it may, and nothing else; and the books of
//! the control threads have what clients have.

use std::collections::BTreeMap;

use piped_control::control::Effect;
use piped_control::offers::Kind;
use piped_control::parties::Credentials;
use piped_core::ids::{RegionId, SessionId};
use piped_core::request::{Class, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_sim::Faults;
use piped_world::controls::region;

use super::opens::{OPEN_GRACE, give_up_area, uses};
use super::setup::{ALL, NODES};
use super::{
    Call, Client, ClientState, Denied, InFlight, LockEnd, Object, ObjectKind, Opening,
    OpeningState, Plan, World, naming,
};
use crate::operators::judge::{self, NAMING, Party};
use crate::operators::network::{REST, calmed, up};
use crate::operators::{EXPORT, Errand, FOLDER, NAMES, Scene};

/// A client that was thrown out tries again after that time.
const COMES_AFTER: Nanos = Nanos::from_millis(300);

/// Bytes of a region that a client offers beside its own.
const OFFER_BYTES: u64 = 64;

impl World {
    /// Operators do what is due.
    pub(super) fn operate(&mut self) {
        let now = self.kernel.now();
        while let Some(operators) = &mut self.operators
            && let Some(act) = operators.pop(now)
        {
            let Self { kernel, controls, random, .. } = self;
            match operators.act(act, &mut Scene { kernel, controls, random }) {
                Some(Errand::Judge) => self.judge_connections(),
                Some(Errand::Crash(node, notice)) => self.crash(node, notice),
                Some(Errand::Start(node)) => self.restart(node),
                Some(Errand::Changed(node)) => self.follow_change(node),
                None => {}
            }
        }
    }

    /// A node has another configuration, or has ended something.
    fn follow_change(&mut self, node: usize) {
        self.nodes[node].rights += 1;
        self.locking.disturb();
        self.take_effects();
        let control = self.controls.control(node);
        for object in self.objects.iter_mut().filter(|it| it.node == node && !it.gone) {
            object.gone = match object.kind {
                ObjectKind::File(_) | ObjectKind::Directory { .. } => false,
                ObjectKind::Channel { .. } => control.find_channel(&object.name).is_err(),
                ObjectKind::Region { region, .. } | ObjectKind::Board { region, .. } => {
                    !control.regions().has(region)
                }
            };
        }
        let setup = &self.controls.nodes[node].setup;
        for (number, client) in self.clients.iter_mut().enumerate() {
            if client.node == node && client.state == ClientState::Running {
                client.offers.retain(|region| control.regions().has(*region));
                let welcome = judge::admits_user(setup, client.user);
                assert!(welcome, "client {number} of user {} has its session still", client.user);
            }
        }
    }

    /// The control threads have something for clients.
    pub(super) fn take_effects(&mut self) {
        while let Some((node, effect)) = self.controls.poll_effect() {
            match effect {
                Effect::Opened { ticket, result } => self.take_opened(node, ticket, result),
                Effect::SessionDrained { session } => {
                    let client = self.client_at(node, session);
                    self.judge_drained(client.expect("sessions that drain were opened here"));
                }
                Effect::EndSession { session, .. } => {
                    let client = self.client_at(node, session).expect("it is a session");
                    // It may have left by itself, and its control thread waits for the shard.
                    self.tally("session ended by its node", 1);
                    self.close_client(client);
                }
                Effect::RegionUnused { region } => {
                    let waited = self.withdrawn.remove(&(node, region));
                    assert!(waited, "nobody uses {region:?}, and nobody asked");
                    self.tally("region withdrawn", 1);
                }
                Effect::Dial(_) | Effect::Note(_) | Effect::Open { .. } => {
                    unreachable!("the driver does that itself")
                }
            }
        }
    }

    fn client_at(&self, node: usize, session: SessionId) -> Option<usize> {
        self.clients.iter().position(|it| it.node == node && it.session == session)
    }

    /// A client has no session any more.
    pub(super) fn leave(&mut self, client: usize) {
        naming::leave(self, client);
        (0..self.objects.len()).for_each(|object| self.locking.close((object, client)));
        let rest = self.kernel.now() + self.options.quarantine;
        let place = &mut self.clients[client];
        place.state = ClientState::Gone;
        place.session = SessionId(0);
        place.calls.clear();
        place.handles.clear();
        place.offers.clear();
        // What it asked of peers may still be done.
        place.locks.iter_mut().for_each(|lock| lock.until = LockEnd::Time(rest));
        if self.operators.is_some() && !self.ending {
            self.plans.push(self.kernel.now() + COMES_AFTER, Plan::Come { client });
        }
    }

    /// A client that is gone comes anew if its node lets it.
    pub(super) fn come(&mut self, client: usize) {
        if self.ending || self.clients[client].state != ClientState::Gone {
            return;
        }
        let (node, user) = (self.clients[client].node, self.clients[client].user);
        let rules = self.controls.runs(node).then(|| self.controls.control(node).rules());
        if rules.is_some_and(|it| it.admits_client(&Credentials::of(user, user))) {
            self.tally("client came anew", 1);
            self.clients[client].region_segments.clear();
            self.enter_session(client);
            (0..self.objects.len()).for_each(|object| give_up_area(self, client, object));
            self.plans.push(self.kernel.now(), Plan::Think { client });
        } else if !self.settled {
            self.plans.push(self.kernel.now() + COMES_AFTER, Plan::Come { client });
        }
    }

    /// A client offers one more region if it may, or takes one back.
    pub(super) fn offer_or_withdraw(&mut self, client: usize) {
        if self.operators.is_none() || !self.random.chance(0.3) {
            return;
        }
        let Client { node, user, session, .. } = self.clients[client];
        let own = |kind| match kind {
            ObjectKind::Region { region, .. } | ObjectKind::Board { region, .. } => Some(region),
            _ => None,
        };
        let kept: Vec<RegionId> = self.objects.iter().filter_map(|it| own(it.kind)).collect();
        let offers = &self.clients[client].offers;
        let extra: Vec<RegionId> = offers.iter().filter(|it| !kept.contains(it)).copied().collect();
        let control = self.controls.control_mut(node).expect("the node runs");
        if !extra.is_empty() && self.random.chance(0.5) {
            let region = *self.random.pick(&extra);
            control.withdraw_region(region);
            self.withdrawn.insert((node, region));
            self.clients[client].offers.remove(&region);
            return self.controls.drain(node, &self.kernel);
        }
        let limits = control.config().limits;
        let counted = |of: &dyn Fn(&Client) -> bool| {
            let clients = self.clients.iter().filter(|it| it.node == node && of(it));
            clients.map(|it| it.offers.len() as u32).sum::<u32>()
        };
        let has_room = counted(&|it| it.session == session) < limits.client.regions
            && counted(&|it| it.user == user) < limits.user.regions
            && counted(&|_| true) < limits.global.regions;
        let may = control.check_offer(session, Kind::Region, &limits);
        assert_eq!(may.is_ok(), has_room, "client {client} offers one more: {may:?}");
        if !has_room {
            return self.tally("no room for one more offer", 1);
        }
        let name = format!("extra-{client}-{}", self.kernel.now());
        let source = region(session, 0..OFFER_BYTES, ALL);
        let offered = control.offer_region(&name, source, OFFER_BYTES);
        if let Ok(source) = offered {
            self.clients[client].offers.insert(source.region);
        }
    }

    /// Whether a file is in the folder that its node exports.
    pub(super) fn is_in_folder(&self, object: usize) -> bool {
        let Object { kind, node, .. } = self.objects[object];
        let exports = &self.controls.nodes[node].setup.config.exports;
        let folder = || exports.get(EXPORT).is_some_and(|it| it.path.as_os_str() == FOLDER);
        !matches!(kind, ObjectKind::File(_)) || folder()
    }

    /// Whether a request is for a file that its client may not use, as all shards know.
    pub(super) fn denied(&self, client: usize, verb: Verb) -> Option<Denied> {
        self.operators.as_ref()?;
        let place = &self.clients[client];
        let used = place.handles.iter().filter(|it| uses(verb, it.handle));
        let forbids = |node: usize| {
            let here = &self.controls.nodes[node].setup;
            let name = NAMES[place.node];
            let parties = match node == place.node {
                true => [Party::User(place.user); 2],
                // Nobody here knows over which connection it was opened.
                false => [Party::Proven(name), Party::Plain(name, None)],
            };
            let told = self.controls.runs(node) && self.controls.is_told(node);
            told && parties.iter().all(|&party| !judge::may_open(here, party))
        };
        let is_file = |object: usize| matches!(self.objects[object].kind, ObjectKind::File(_));
        let is_sink =
            |handle| matches!(verb, Verb::Copy { from, to, .. } if to == handle && from != to);
        let denied = used.filter(|it| is_file(it.object) && forbids(self.objects[it.object].node));
        let Opening { object, handle, .. } = denied.min_by_key(|it| is_sink(it.handle))?;
        let node = self.objects[*object].node;
        Some(Denied { node, rights: self.nodes[node].rights, if_moved: is_sink(*handle) })
    }

    /// A request has ended: it was allowed if it ended well, and forbidden if it has ended for want
    /// of a right. Its client gives up what it cannot use.
    pub(super) fn judge_rights(
        &mut self,
        client: usize,
        flight: &InFlight,
        (status, bytes): (Status, u64),
        name: &str,
    ) {
        if self.operators.is_none() || flight.raw {
            return;
        }
        let denied = flight.denied.filter(|_| status == Status::Ok);
        if let Some(Denied { node, rights, .. }) = denied.filter(|it| bytes > 0 || !it.if_moved) {
            let changed = self.nodes[node].rights != rights;
            assert!(changed, "{name} ends well, and {} does not allow it", NAMES[node]);
        }
        if !matches!(status, Status::Gone | Status::BadHandle) {
            return;
        }
        self.tally("ended for want of a right", 1);
        let here = self.clients[client].node;
        let used = self.clients[client].handles.iter().filter(|it| uses(flight.verb, it.handle));
        let used: Vec<Opening> = used.copied().collect();
        let may_end = used.iter().any(|it| {
            let object = &self.objects[it.object];
            let is_lost = self.locking.may_be_lost((it.object, client));
            object.gone
                || is_lost
                || it.rights != [here, object.node].map(|node| self.nodes[node].rights)
        });
        assert!(may_end, "{name} ends with {status:?}, and nobody has changed a right: {used:?}");
        for Opening { object, handle, .. } in used {
            if !self.is_own(client, object) {
                self.close_handle(client, handle);
            }
        }
    }

    /// Whether a client offers an object: the object ends with the handle.
    fn is_own(&self, client: usize, object: usize) -> bool {
        match self.objects[object].kind {
            ObjectKind::File(_) | ObjectKind::Directory { .. } => false,
            ObjectKind::Region { owner, .. }
            | ObjectKind::Channel { owner, .. }
            | ObjectKind::Board { owner, .. } => owner == client,
        }
    }

    /// Connections are as they may be, and the books of the nodes have what clients have.
    fn judge_connections(&mut self) {
        let Self { kernel, controls, operators, nodes, .. } = self;
        let Some(operators) = operators else { return };
        operators.judge.judge(controls, kernel);
        if operators.options.careful {
            let up =
                |from: usize, to, _| nodes[from].shard.as_ref().map_or([false; 2], |it| up(it, to));
            operators.judge.judge_alone(controls, &up, kernel.now());
        }
        for node in (0..NODES).filter(|&node| self.controls.runs(node)) {
            self.judge_accounts(node);
        }
    }

    fn judge_accounts(&self, node: usize) {
        let control = self.controls.control(node);
        let there = |it: &&Client| it.node == node && it.state != ClientState::Gone;
        let clients = self.clients.iter().filter(there);
        assert_eq!(control.sessions().count(), clients.count() as u64, "sessions of {node}");
        let mut by_user: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
        for (number, client) in self.clients.iter().enumerate().filter(|(_, it)| there(it)) {
            let used = self.used(number);
            let sums = by_user.entry(client.user).or_default();
            *sums = [sums[0] + u64::from(used.handles), sums[1] + u64::from(used.files)];
        }
        for (user, [handles, files]) in by_user {
            let noted = [control.sessions().handles_of(user), control.sessions().files_of(user, 0)];
            assert_eq!(noted, [handles, files], "handles and files of user {user} of {node}");
        }
        for line in control.holdings().report().handles {
            let Some(session) = line.session else { continue };
            let client = self.client_at(node, SessionId(session));
            assert!(client.is_some(), "{line:?} is of a session that is over");
        }
    }

    /// When no session is left, the books of clients are empty.
    pub(super) fn judge_books(&self) {
        for node in 0..NODES {
            let control = self.controls.control(node);
            let sessions = control.sessions();
            let left = (sessions.count(), sessions.handles(), control.regions().count());
            assert_eq!(left, (0, 0, 0), "sessions, handles and regions of {node} are left");
            assert_eq!(control.channels().owners().count(), 0, "channels of {node} are left");
            let held = control.holdings().report().handles;
            let of_session = held.iter().find(|line| line.session.is_some());
            assert!(of_session.is_none(), "the book of {node} has {of_session:?} still");
        }
        assert!(self.withdrawn.is_empty(), "{:?} are in use for ever", self.withdrawn);
    }

    /// Nobody disturbs the nodes any more: they are connected as they may be, and clients open what
    /// they may.
    pub(super) fn settle(&mut self) {
        if self.operators.is_none() {
            return;
        }
        self.kernel.set_faults(Faults::none());
        self.controls.surroundings = calmed(self.controls.surroundings);
        for node in 0..NODES {
            self.restart(node);
        }
        self.run_for(REST);
        self.judge_connections();
        self.run_for(NAMING + NAMING);
        self.judge_connections();
        let nodes = &self.nodes;
        let up =
            |from: usize, to, _| nodes[from].shard.as_ref().map_or([false; 2], |it| up(it, to));
        for (what, count) in judge::judge_lanes(&self.controls, &up) {
            self.tally(what, count);
        }
        self.settled = true;
        for client in 0..self.clients.len() {
            self.come(client);
            self.judge_open(client);
        }
        // Peers say what they have closed only while they are connected.
        let Self { kernel, controls, random, operators, .. } = self;
        let operators = operators.as_ref().expect("above");
        operators.make_peace(&mut Scene { kernel, controls, random });
        (0..NODES).for_each(|node| self.follow_change(node));
        self.run_for(REST);
    }

    /// A client opens all that there is anew: it has what it may, can use it, and has nothing else.
    fn judge_open(&mut self, client: usize) {
        if self.clients[client].state != ClientState::Running {
            return;
        }
        for Opening { object, handle, .. } in self.clients[client].handles.clone() {
            if !self.is_own(client, object) {
                self.close_handle(client, handle);
            }
        }
        self.clients[client].to_do = 0;
        let patience = self.options.deadline + OPEN_GRACE + OPEN_GRACE;
        self.open_objects(client);
        let under_way =
            |it: &Opening| matches!(it.state, OpeningState::Waits { .. } | OpeningState::Enters);
        let answered =
            self.run_until(patience, |world| !world.clients[client].handles.iter().any(under_way));
        assert!(answered, "client {client} waits for opens: {:?}", self.clients[client].handles);
        let node = self.clients[client].node;
        for object in 0..self.objects.len() {
            if self.objects[object].gone {
                continue;
            }
            let other = self.objects[object].node;
            let party = match other == node {
                true => Party::User(self.clients[client].user),
                false => judge::party_of(&self.controls, node, other),
            };
            let there = &self.controls.nodes[other].setup;
            let is_file = matches!(self.objects[object].kind, ObjectKind::File(_));
            let may = match is_file {
                true => judge::may_open(there, party),
                false => judge::is_welcome(there, party),
            };
            let may = may && (other == node || judge::can_dial(&self.controls, node, other));
            let name = &self.objects[object].name;
            let has = self.has_open(client, object);
            let all = &self.clients[client].handles;
            assert_eq!(has, may, "client {client} has {name} of {other} open: {all:?}");
            self.tally(if may { "open at the end" } else { "not allowed at the end" }, 1);
            if may && is_file && !self.clients[client].pieces.is_empty() {
                let call = Call::Read { object, offset: 0, length: 1 };
                let call = self.call(client, call, Class::Latency, None);
                assert_eq!(self.wait(client, call).status, Status::Ok, "a read of {object}");
            }
        }
    }
}
