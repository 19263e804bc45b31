//! The control threads of some nodes, and what their drivers do.

mod dialling;
mod files;
mod hearing;
mod setup;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use piped_config::{Config, NodeKey, PublicKey};
use piped_control::control::{Control, Effect};
use piped_control::dial::{Dial, Progress};
use piped_control::fault::OpenFault;
use piped_control::holdings::{Place, Right};
use piped_control::keyring::{Admitted, Keyring};
use piped_control::note::Note;
use piped_control::opens::{self, Found};
use piped_core::ids::{PeerId, SocketId};
use piped_core::link::{LaneClass, Protection};
use piped_core::names::shard_name;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Event, OpenRequest, Target};
use piped_sim::{ConnectionId, EventQueue, LinkId, NodeId, Notice, Random, SimKernel};
use piped_wire::LaneKeys;

pub use self::files::{live, reload};
pub use self::setup::{OWN_USER, Setup, Surroundings, address, peer_at, region, second_address};

/// What calendars say when a world begins.
pub const CALENDAR: u64 = 1_700_000_000;

/// One end of a connection that was handed to a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The node at this end, and its shard.
    pub node: usize,
    /// The shard at this end.
    pub shard: usize,
    /// The socket at this end.
    pub socket: SocketId,
    /// The node at the other end.
    pub other: usize,
    /// The connection in the kernel.
    pub connection: ConnectionId,
    /// How the end dialled: as which peer, which class, where.
    pub dialled: Option<(PeerId, LaneClass, SocketAddr)>,
    /// What the handshake proved; none: the connection is plain.
    pub sealed: Option<Sealed>,
}

/// What a handshake proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// The keys of the dialling and of the listening side.
    pub keys: [PublicKey; 2],
    /// What the frames are protected against.
    pub protection: Protection,
}

/// Something that a peer asks a shard of a node for.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The node that is asked.
    pub node: usize,
    life: u32,
    shard: usize,
    ticket: u64,
    asker: opens::Node,
    /// What is asked for.
    pub open: OpenRequest,
}

/// The driver and the control thread of a node.
#[derive(Debug)]
pub struct Node {
    /// How it was started, with the files of now.
    pub setup: Setup,
    control: Option<Control<()>>,
    /// Counts its starts: what was under way for an earlier one is void.
    life: u32,
    /// For each shard, when the last command arrives that is on its way.
    arrival: Vec<Nanos>,
    /// Commands on their way.
    underway: usize,
    /// By how many seconds its calendar is ahead.
    ahead: u64,
}

#[derive(Debug)]
enum Happening {
    Command { node: usize, life: u32, shard: usize, command: Box<Command> },
    Progress { dial: u64, progress: Progress },
    Connect { dial: u64, address: SocketAddr },
    Ask { dial: u64 },
    First { dial: u64, key: PublicKey, keyring: Rc<Keyring> },
    Accept(Box<Arrival>),
    Settle { node: usize, life: u32 },
}

/// A connection on its way to the listening node, which has not said yet whether it comes in.
#[derive(Debug)]
struct Arrival {
    node: usize,
    life: u32,
    other: usize,
    /// The shard there that dialled.
    from_shard: usize,
    socket: SocketId,
    connection: ConnectionId,
    shard: usize,
    keyring: Rc<Keyring>,
    proven: Option<(Admitted, LaneKeys, Sealed)>,
}

/// A dial under way, and what it has.
#[derive(Debug)]
struct UnderWay {
    node: usize,
    life: u32,
    dial: Dial,
    line: Option<Line>,
}

/// A connection before it is given to the shards.
#[derive(Debug)]
struct Line {
    to: usize,
    life: u32,
    address: SocketAddr,
    /// The keyring of the listening side when it accepted.
    keyring: Rc<Keyring>,
    proven: Option<(Admitted, [LaneKeys; 2], Sealed)>,
}

/// The control threads of all nodes of a world.
#[derive(Debug)]
pub struct Controls {
    /// The nodes, by number.
    pub nodes: Vec<Node>,
    /// How the world is now.
    pub surroundings: Surroundings,
    random: Random,
    dials: BTreeMap<u64, UnderWay>,
    dials_made: u64,
    happenings: EventQueue<Happening>,
    due: VecDeque<(usize, usize, Command)>,
    asked: VecDeque<Asked>,
    effects: VecDeque<(usize, Effect)>,
    /// By whether it leads to a second address, too.
    links: BTreeMap<(NodeId, NodeId, bool), LinkId>,
    /// Addresses where nobody is reached.
    blocked: BTreeSet<SocketAddr>,
    /// The half of each node, while the network is divided.
    halves: Vec<bool>,
    ends: Vec<End>,
    /// How many ends were left when those that are closed were forgotten last.
    ends_left: usize,
    /// How often something happened that a campaign wants to see.
    pub seen: BTreeMap<&'static str, u64>,
}

impl Controls {
    /// A world without nodes yet.
    #[must_use]
    pub fn new(seed: u64, surroundings: Surroundings) -> Self {
        Self {
            nodes: Vec::new(),
            surroundings,
            random: Random::new(seed),
            dials: BTreeMap::new(),
            dials_made: 0,
            happenings: EventQueue::new(),
            due: VecDeque::new(),
            asked: VecDeque::new(),
            effects: VecDeque::new(),
            links: BTreeMap::new(),
            blocked: BTreeSet::new(),
            halves: Vec::new(),
            ends: Vec::new(),
            ends_left: 0,
            seen: BTreeMap::new(),
        }
    }

    /// A node that runs from now on.
    ///
    /// # Errors
    /// A daemon would not start with that configuration.
    pub fn add(&mut self, setup: Setup, kernel: &SimKernel) -> Result<usize, String> {
        live(&setup.config, setup.own.as_ref())?;
        let arrival = vec![Nanos::ZERO; setup.shards.len()];
        self.nodes.push(Node { setup, control: None, life: 0, arrival, underway: 0, ahead: 0 });
        let node = self.nodes.len() - 1;
        self.start(node, kernel);
        Ok(node)
    }

    /// The link on which connections send from one shard to another: those by way of a second
    /// address, or all others.
    pub fn lay(&mut self, [from, to]: [NodeId; 2], second: bool, link: LinkId) {
        self.links.insert((from, to, second), link);
    }

    /// Nobody is reached at an address any more, and connections that were made to it are lost; or
    /// it is reached again.
    pub fn block(&mut self, address: SocketAddr, blocked: bool, kernel: &mut SimKernel) {
        if !blocked {
            self.blocked.remove(&address);
            return;
        }
        self.blocked.insert(address);
        let notice = Notice::Within(self.random.up_to(self.surroundings.step_max));
        for end in self.ends(kernel).to_vec() {
            if end.dialled.is_some_and(|(.., at)| at == address) {
                kernel.reset(end.connection, notice);
            }
        }
    }

    /// Divides the network: nothing passes between nodes of different halves any more. Without
    /// halves all reach each other again, and what was connected across stays lost.
    pub fn divide(&mut self, halves: Vec<bool>, kernel: &mut SimKernel) {
        self.halves = halves;
        for end in self.ends(kernel).to_vec() {
            if end.dialled.is_some() && self.are_apart(end.node, end.other) {
                kernel.reset(end.connection, Notice::Silent);
            }
        }
    }

    fn are_apart(&self, one: usize, other: usize) -> bool {
        self.halves.get(one) != self.halves.get(other)
    }

    /// The daemon of a node starts, with its files as they are.
    ///
    /// # Panics
    /// If it would not.
    pub fn start(&mut self, node: usize, kernel: &SimKernel) {
        let place = &mut self.nodes[node];
        let Setup { config, own, certificate, shards, .. } = &place.setup;
        let mut live = live(config, own.as_ref()).expect("a sound configuration");
        let keyring = Keyring::clone(&live.keyring).with_certificate(certificate.clone());
        live.keyring = Rc::new(keyring);
        let mut control = Control::new(shards.len(), live);
        control.start();
        place.control = Some(control);
        place.life += 1;
        place.underway = 0;
        place.arrival.fill(kernel.now());
        self.drain(node, kernel);
    }

    /// The daemon of a node is gone, with all that was under way.
    pub fn stop(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        place.control = None;
        place.life += 1;
        place.underway = 0;
        self.dials.retain(|_, dial| dial.node != node);
        self.effects.retain(|(of, _)| *of != node);
        self.ends.retain(|end| end.node != node);
    }

    /// Whether the daemon of a node runs.
    #[must_use]
    pub fn runs(&self, node: usize) -> bool {
        self.nodes[node].control.is_some()
    }

    /// The control thread of a node that runs.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn control(&self, node: usize) -> &Control<()> {
        self.nodes[node].control.as_ref().expect("the node runs")
    }

    /// Whether all that a node was to tell its shards has arrived.
    #[must_use]
    pub fn is_told(&self, node: usize) -> bool {
        self.nodes[node].underway == 0
    }

    /// Loads other files on a node that runs, as an operator does.
    ///
    /// # Errors
    /// Why the daemon refuses them; nothing has changed.
    pub fn reload(
        &mut self,
        node: usize,
        config: &Config,
        own: Option<&NodeKey>,
        kernel: &SimKernel,
    ) -> Result<(), String> {
        let place = &mut self.nodes[node];
        let control = place.control.as_mut().ok_or("the daemon does not run")?;
        reload(control, &place.setup.config, config, own)?;
        if let Some(certificate) = &place.setup.certificate {
            control.certify_self(certificate.clone());
        }
        place.setup.config = config.clone();
        place.setup.own = own.cloned();
        self.drain(node, kernel);
        Ok(())
    }

    /// Has what a node heard take effect once that is due, if anything is.
    fn settle_later(&mut self, node: usize, kernel: &SimKernel) {
        let Node { control, life, setup, .. } = &self.nodes[node];
        let due = control.as_ref().and_then(|control| control.discovery().due());
        if let Some(due) = due {
            let at = kernel.world_time(setup.shards[0], due).max(kernel.now());
            self.happenings.push(at, Happening::Settle { node, life: *life });
        }
    }

    /// What a shard has to say to its control thread.
    pub fn handle_event(&mut self, node: usize, shard: usize, event: Event, kernel: &SimKernel) {
        let now = self.time_of(node, kernel);
        if let Some(control) = &mut self.nodes[node].control {
            control.handle_event(shard, event, now);
        }
        self.drain(node, kernel);
    }

    /// When something happens next, if anything.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.happenings.next_at()
    }

    /// Lets everything happen that is due; [`Self::poll_command`] has what shards are told.
    pub fn advance(&mut self, kernel: &mut SimKernel) {
        while let Some((_, happening)) = self.happenings.pop(kernel.now()) {
            self.happen(happening, kernel);
        }
    }

    /// A command that arrives at a shard now: which node, which of its shards, and what.
    pub fn poll_command(&mut self) -> Option<(usize, usize, Command)> {
        self.due.pop_front()
    }

    /// The next thing that a peer asks for; its answer is [`Self::answer`].
    pub fn poll_asked(&mut self) -> Option<Asked> {
        self.asked.pop_front()
    }

    /// Whether the shard that asked still waits for the answer.
    #[must_use]
    pub fn waits(&self, asked: &Asked) -> bool {
        self.nodes[asked.node].life == asked.life && self.runs(asked.node)
    }

    /// Looks up what a peer asks for. None: the node has died since.
    #[must_use]
    pub fn look_up(&self, asked: &Asked) -> Option<Result<(Found<()>, Right), OpenFault>> {
        let place = &self.nodes[asked.node];
        let control = place.control.as_ref().filter(|_| place.life == asked.life)?;
        let Asked { asker, open, .. } = asked;
        let found = control.look_up(asker, open).and_then(|found| {
            if let (Found::File { user }, _) = &found {
                let asker = asker.asker(user.as_ref());
                control.grants().allow(asker, &open.name, open.access, open.create)?;
            }
            Ok(found)
        });
        Some(found)
    }

    /// Tells the shard what was opened, and enters it in the book of the control thread, which may
    /// end it at once. Whether it is open.
    pub fn answer(
        &mut self,
        asked: &Asked,
        opened: Result<(Target, Right), Status>,
        kernel: &SimKernel,
    ) -> bool {
        let Asked { node, shard, ticket, .. } = *asked;
        let mut is_held = false;
        let (result, held) = match opened {
            Ok((target, held)) => (Ok(target), Some(held)),
            Err(status) => (Err(status), None),
        };
        self.tell(node, shard, Command::ServeOpened { ticket, result }, kernel);
        if let (Some(held), Some(control)) = (held, &mut self.nodes[node].control) {
            // If a reload took the right away meanwhile, the shard is told.
            is_held = control.hold(Place::Peer(shard, ticket), asked.asker.holder(), held).is_ok();
        }
        self.drain(node, kernel);
        is_held
    }

    /// The next thing that the driver does for a client: of which node, and what.
    pub fn poll_effect(&mut self) -> Option<(usize, Effect)> {
        self.effects.pop_front()
    }

    /// The control thread of a node that runs, for what clients do; [`Self::drain`] is to follow.
    pub fn control_mut(&mut self, node: usize) -> Option<&mut Control<()>> {
        self.nodes[node].control.as_mut()
    }

    /// The ends of connections that are open: no socket of them was given back yet.
    pub fn ends(&mut self, kernel: &SimKernel) -> &[End] {
        let mut open = BTreeMap::new();
        let Self { ends, nodes, .. } = self;
        ends.retain(|end| {
            let id = nodes[end.node].setup.shards[end.shard];
            let open = open.entry(id).or_insert_with(|| kernel.open_sockets(id));
            // They are in order.
            open.binary_search(&end.socket).is_ok()
        });
        self.ends_left = self.ends.len();
        &self.ends
    }

    /// The connection of a class that a node dialled last.
    #[must_use]
    pub fn lane(&self, node: usize, class: LaneClass) -> Option<ConnectionId> {
        let mut ends = self.ends.iter().rev().filter(|end| end.node == node);
        let is_it = |end: &&End| end.dialled.is_some_and(|(_, of, _)| of == class);
        ends.find(is_it).map(|end| end.connection)
    }

    /// Tells a shard something, after all that it was told before.
    pub fn tell(&mut self, node: usize, shard: usize, command: Command, kernel: &SimKernel) {
        let after = self.random.up_to(self.surroundings.mailbox_max);
        let place = &mut self.nodes[node];
        let at = place.arrival[shard].max(kernel.now() + after);
        place.arrival[shard] = at;
        place.underway += 1;
        let (life, command) = (place.life, Box::new(command));
        self.happenings.push(at, Happening::Command { node, life, shard, command });
    }

    fn time_of(&self, node: usize, kernel: &SimKernel) -> Nanos {
        kernel.node_time(self.nodes[node].setup.shards[0])
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Performs what a control thread wants, as the driver of the daemon does.
    pub fn drain(&mut self, node: usize, kernel: &SimKernel) {
        while let Some(control) = &mut self.nodes[node].control {
            if let Some(effect) = control.poll_effect() {
                match effect {
                    Effect::Dial(dial) => {
                        let life = self.nodes[node].life;
                        self.dials_made += 1;
                        let number = self.dials_made;
                        let dial = UnderWay { node, life, dial: *dial, line: None };
                        self.dials.insert(number, dial);
                        self.progress(number, Progress::Begun, kernel);
                    }
                    Effect::Open { shard, ticket, node: asker, open } => {
                        let life = self.nodes[node].life;
                        self.asked.push_back(Asked { node, life, shard, ticket, asker, open });
                    }
                    Effect::Opened { .. }
                    | Effect::EndSession { .. }
                    | Effect::SessionDrained { .. }
                    | Effect::RegionUnused { .. } => self.effects.push_back((node, effect)),
                    Effect::Note(note) => self.count(match note {
                        Note::LaneUp { .. } => "lane up",
                        Note::LaneDown { .. } => "lane down",
                        Note::NoPlace { .. } => "no place for a lane",
                        Note::PeersFull { .. } => "peer not dialled",
                        Note::DialForbidden { .. } => "dial forbidden",
                        Note::NotConnected { .. } => "handshake failed",
                        Note::StagingDrained { .. } => "staging drained",
                    }),
                }
            } else {
                let mut shards = 0..control.shards();
                let told = |shard| Some((shard, control.poll_command(shard)?));
                let Some((shard, command)) = shards.find_map(told) else { return };
                self.tell(node, shard, command, kernel);
            }
        }
    }

    /// The name under which a shard of a node is known to others.
    #[must_use]
    pub fn shard_name(&self, node: usize, shard: usize) -> String {
        shard_name(&self.nodes[node].setup.name, shard)
    }
}
