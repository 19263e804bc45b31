//! The control threads of some nodes, and what their drivers do.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use piped_config::{Config, Names, NodeKey, PublicKey};
use piped_control::access::Rules;
use piped_control::control::{Control, Effect, Live};
use piped_control::dial::{Dial, Progress, Step};
use piped_control::fault::OpenFault;
use piped_control::grants::{Grants, Root};
use piped_control::greeting::origin;
use piped_control::holdings::{Place, Right};
use piped_control::keyring::Keyring;
use piped_control::note::Note;
use piped_control::opens::{self, Found};
use piped_control::parties::FarEnd;
use piped_control::patrol::Verdict;
use piped_control::reload::{Next, Outside};
use piped_core::ids::{PeerId, SocketId};
use piped_core::io::{Io as _, Resource};
use piped_core::link::LaneClass;
use piped_core::link::Protection;
use piped_core::names::shard_name;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Caller, Command, Event, OpenRequest, Target};
use piped_sim::{ConnectionId, Cost, EventQueue, LinkId, NodeId, Notice, Random, SimKernel};
use piped_wire::{FrameKey, LaneKeys};

/// The user that daemons run as.
pub const OWN_USER: u32 = 990;

/// How the world between the nodes is.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings {
    /// The longest that looking a host up, connecting, and each message of a handshake take.
    pub step_max: Nanos,
    /// The longest that a command waits for its shard.
    pub mailbox_max: Nanos,
    /// Per look-up: the host is not found.
    pub resolve_fails: f64,
    /// Per connection: there is none.
    pub connect_fails: f64,
    /// Per handshake: the other side says nothing any more.
    pub handshake_hangs: f64,
    /// Bytes of a socket's buffer, each direction.
    pub socket_buffer: usize,
    /// What a link costs that is made when two shards first meet.
    pub link: Cost,
}

/// A node that starts.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The name that it gives itself.
    pub name: String,
    /// What its files say.
    pub config: Config,
    /// The key that it has.
    pub own: Option<NodeKey>,
    /// Its shards, as the kernel knows them.
    pub shards: Vec<NodeId>,
    /// Where it listens, and has its address.
    pub address: SocketAddr,
    /// The user of that machine, for nodes of the same machine.
    pub user: u32,
}

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
    /// The connection.
    pub connection: ConnectionId,
    /// This end dialled, as this peer.
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
}

#[derive(Debug)]
enum Happening {
    Command { node: usize, life: u32, shard: usize, command: Box<Command> },
    Progress { dial: u64, progress: Progress },
    Connect { dial: u64, address: SocketAddr },
    First { dial: u64, key: PublicKey, keyring: Rc<Keyring> },
    Accept(Box<Arrival>),
}

/// A connection on its way to the listening node, which has not said yet whether it comes in.
#[derive(Debug)]
struct Arrival {
    node: usize,
    life: u32,
    other: usize,
    socket: SocketId,
    connection: ConnectionId,
    shard: usize,
    keyring: Rc<Keyring>,
    proven: Option<(String, LaneKeys, Sealed)>,
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
    proven: Option<(String, [LaneKeys; 2], Sealed)>,
}

/// See the crate.
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
    links: BTreeMap<(NodeId, NodeId), LinkId>,
    ends: Vec<End>,
    /// How often something happened that a campaign wants to see.
    pub seen: BTreeMap<&'static str, u64>,
}

impl Controls {
    /// No nodes yet.
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
            links: BTreeMap::new(),
            ends: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    /// A node that runs from now on.
    ///
    /// # Panics
    /// If a daemon would not start with that.
    pub fn add(&mut self, setup: Setup, kernel: &SimKernel) -> usize {
        let arrival = vec![Nanos::ZERO; setup.shards.len()];
        self.nodes.push(Node { setup, control: None, life: 0, arrival, underway: 0 });
        let node = self.nodes.len() - 1;
        self.start(node, kernel);
        node
    }

    /// The daemon of a node starts, with its files as they are.
    ///
    /// # Panics
    /// If it would not.
    pub fn start(&mut self, node: usize, kernel: &SimKernel) {
        let place = &mut self.nodes[node];
        let Setup { config, own, shards, .. } = &place.setup;
        let made = made_of(config, own.as_ref()).expect("a sound configuration");
        let (rules, keyring, grants, names) = made;
        let live = Live {
            config: Rc::new(config.clone()),
            rules: Rc::new(rules),
            keyring: Rc::new(keyring),
            grants: Arc::new(grants),
            names: Rc::new(names),
        };
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
        let (rules, keyring, grants, names) = made_of(config, own)?;
        let place = &mut self.nodes[node];
        let control = place.control.as_mut().ok_or("the daemon does not run")?;
        let outside = Outside::new();
        control.check_next(config, &keyring, &outside)?;
        let before = std::mem::replace(&mut place.setup.config, config.clone());
        place.setup.own = own.cloned();
        control.reload(Next {
            before: &before,
            after: config,
            outside: &outside,
            rules,
            keyring,
            grants: Arc::new(grants),
            names,
        });
        self.drain(node, kernel);
        Ok(())
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

    /// Looks up what a peer asks for. None: the node has died since.
    pub fn look_up(&self, asked: &Asked) -> Option<Result<(Found<()>, Right), OpenFault>> {
        let place = &self.nodes[asked.node];
        let control = place.control.as_ref().filter(|_| place.life == asked.life)?;
        Some(control.look_up(asked.shard, &asked.asker, &asked.open))
    }

    /// Tells the shard what was opened, and enters it in the book of the control thread, which may end it at once.
    pub fn answer(
        &mut self,
        asked: &Asked,
        opened: Result<(Target, Right), Status>,
        kernel: &SimKernel,
    ) {
        let Asked { node, shard, ticket, .. } = *asked;
        let (result, held) = match opened {
            Ok((target, held)) => (Ok(target), Some(held)),
            Err(status) => (Err(status), None),
        };
        self.tell(node, shard, Command::ServeOpened { ticket, result }, kernel);
        if let (Some(held), Some(control)) = (held, &mut self.nodes[node].control) {
            // If a reload took the right away meanwhile, the shard is told.
            let _ = control.hold(Place::Peer(shard, ticket), asked.asker.holder(), held);
        }
        self.drain(node, kernel);
    }

    /// The control thread of a node that runs, for what clients do; [`Self::drain`] is to follow.
    pub fn control_mut(&mut self, node: usize) -> Option<&mut Control<()>> {
        self.nodes[node].control.as_mut()
    }

    /// The ends of connections whose sockets were not given back yet.
    pub fn ends(&mut self, kernel: &SimKernel) -> &[End] {
        let mut open = BTreeMap::new();
        let Self { ends, nodes, .. } = self;
        ends.retain(|end| {
            let id = nodes[end.node].setup.shards[end.shard];
            open.entry(id).or_insert_with(|| kernel.open_sockets(id)).contains(&end.socket)
        });
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
                    // Clients are the world's own: it has seen the event.
                    Effect::Opened { .. }
                    | Effect::EndSession { .. }
                    | Effect::SessionDrained { .. }
                    | Effect::RegionUnused { .. } => {}
                    Effect::Note(note) => self.count(match note {
                        Note::LaneUp { .. } => "lane up",
                        Note::LaneDown { .. } => "lane down",
                        Note::NoPlace { .. } => "no place for a lane",
                        Note::DialForbidden { .. } => "dial forbidden",
                        Note::NotConnected { .. } => "handshake failed",
                        Note::StagingDrained { .. } => "staging drained",
                    }),
                }
            } else if let Some((shard, command)) = control.poll_command() {
                self.tell(node, shard, command, kernel);
            } else {
                return;
            }
        }
    }

    fn soon(&mut self, kernel: &SimKernel, happening: Happening) {
        let at = kernel.now() + self.random.up_to(self.surroundings.step_max);
        self.happenings.push(at, happening);
    }

    fn happen(&mut self, happening: Happening, kernel: &mut SimKernel) {
        match happening {
            Happening::Command { node, life, shard, command } => {
                if self.nodes[node].life == life {
                    self.nodes[node].underway -= 1;
                    self.due.push_back((node, shard, *command));
                }
            }
            Happening::Progress { dial, progress } => {
                let delivered = self.progress(dial, progress, kernel);
                if delivered {
                    self.deliver(dial, kernel);
                }
            }
            Happening::Connect { dial, address } => self.connect(dial, address, kernel),
            Happening::First { dial, key, keyring } => self.first(dial, key, &keyring, kernel),
            Happening::Accept(arrival) => self.accept(*arrival, kernel),
        }
    }

    /// Has a dial go on. Whether its connection is to be delivered now.
    fn progress(&mut self, number: u64, progress: Progress, kernel: &SimKernel) -> bool {
        let Some(UnderWay { node, life, .. }) = self.dials.get(&number) else { return false };
        let (node, life, now) = (*node, *life, self.time_of(*node, kernel));
        let is_same = life == self.nodes[node].life;
        let Some(control) = self.nodes[node].control.as_mut().filter(|_| is_same) else {
            return false;
        };
        let dial = &mut self.dials.get_mut(&number).expect("it is there").dial;
        let step = match now > dial.until() {
            true => control.advance(dial, Progress::Late, now),
            false => control.advance(dial, progress, now),
        };
        let (until, shard, peer, class) = (dial.until(), dial.shard, dial.peer, dial.class);
        let first = self.nodes[node].setup.shards[0];
        match step {
            Step::Wait(at) => {
                // By the clock of the shard that asked: each simulated one has its own.
                let asker = self.nodes[node].setup.shards[shard];
                let at = kernel.world_time(asker, at).max(kernel.now());
                let progress = Progress::Waited;
                self.happenings.push(at, Happening::Progress { dial: number, progress });
            }
            Step::Resolve(host) => {
                let found = match self.random.chance(self.surroundings.resolve_fails) {
                    true => Err("no such host".to_owned()),
                    false => host.as_str().parse().map(|it| vec![it]).map_err(|_| host.to_string()),
                };
                let progress = Progress::Resolved(found);
                self.soon(kernel, Happening::Progress { dial: number, progress });
            }
            Step::Connect(address) => {
                self.soon(kernel, Happening::Connect { dial: number, address });
            }
            Step::Prove { .. } if self.random.chance(self.surroundings.handshake_hangs) => {
                self.count("handshake without an end");
                let at = kernel.world_time(first, until) + Nanos(1);
                let progress = Progress::Late;
                self.happenings.push(at, Happening::Progress { dial: number, progress });
            }
            Step::Prove { keyring, key } => {
                self.soon(kernel, Happening::First { dial: number, key, keyring });
            }
            Step::Deliver => return true,
            Step::Fail(_) => {
                self.dials.remove(&number);
                self.tell(node, shard, Command::ConnectFailed { peer, class }, kernel);
            }
        }
        self.drain(node, kernel);
        false
    }

    /// A connection arrives where somebody listens, or nobody does.
    fn connect(&mut self, number: u64, address: SocketAddr, kernel: &mut SimKernel) {
        let Some(node) = self.dials.get(&number).map(|dial| dial.node) else { return };
        let from = self.nodes[node].setup.address.ip();
        let listener = self.nodes.iter().position(|it| {
            it.control.is_some()
                && it.setup.address == address
                && it.setup.config.listen.address.is_some()
        });
        let refused = self.random.chance(self.surroundings.connect_fails);
        let connected = listener.filter(|_| !refused).ok_or("connection refused").and_then(|to| {
            let now = self.time_of(to, kernel);
            let held = self.far_end(to, node);
            let place = &mut self.nodes[to];
            let control = place.control.as_mut().expect("it listens");
            let asks = control.asks_for_keys();
            if asks && control.admit(origin(from, Some(held)), now) == Verdict::No {
                return Err("connection reset");
            }
            let (keyring, life) = (control.keyring(), place.life);
            Ok(Line { to, life, address, keyring, proven: None })
        });
        let progress = match connected {
            Ok(line) => {
                self.dials.get_mut(&number).expect("it is there").line = Some(line);
                Progress::Connected(Ok(()))
            }
            Err(why) => Progress::Connected(Err(why.to_owned())),
        };
        if self.progress(number, progress, kernel) {
            self.deliver(number, kernel);
        }
    }

    /// The first message of a handshake arrives; what it leads to is back with the dialling side some time later.
    fn first(&mut self, number: u64, key: PublicKey, mine: &Keyring, kernel: &SimKernel) {
        let Some(UnderWay { line: Some(line), .. }) = self.dials.get(&number) else { return };
        let theirs = Rc::clone(&line.keyring);
        let is_there = self.nodes[line.to].life == line.life;
        let agreed = mine.identity().zip(theirs.identity()).filter(|_| is_there);
        let proven = agreed.ok_or("it hung up").and_then(|(mine, theirs)| {
            if theirs.own().public() != key {
                return Err("its ticket is for another key");
            }
            let node = theirs.node(&mine.own().public()).ok_or("its key is not trusted")?;
            let protection = mine.protection().max(theirs.protection());
            let [to, fro] = [(); 2].map(|()| self.frame_key());
            let keys = |send: &FrameKey, receive: &FrameKey| LaneKeys {
                protection,
                send: send.clone(),
                receive: receive.clone(),
            };
            let both = [keys(&to, &fro), keys(&fro, &to)];
            let keys = [mine.own().public(), theirs.own().public()];
            Ok((node.to_owned(), both, Sealed { keys, protection }))
        });
        let outcome = proven.as_ref().map(|_| ()).map_err(|why| (*why).to_owned());
        if let Some(UnderWay { line: Some(line), .. }) = self.dials.get_mut(&number) {
            line.proven = proven.ok();
        }
        self.soon(
            kernel,
            Happening::Progress { dial: number, progress: Progress::Proved(outcome) },
        );
    }

    fn frame_key(&mut self) -> FrameKey {
        let bytes = [self.random.bits(), self.random.bits()].map(u64::to_le_bytes);
        FrameKey::new(bytes.concat().try_into().expect("16 bytes"))
    }

    /// The dialling side gives its socket to its shard; the other side hears the last word later.
    fn deliver(&mut self, number: u64, kernel: &mut SimKernel) {
        let Some(UnderWay { node, dial, line: Some(line), .. }) = self.dials.remove(&number) else {
            return;
        };
        if self.random.chance(self.surroundings.connect_fails) {
            // It broke before the shard had it.
            let (peer, class) = (dial.peer, dial.class);
            return self.tell(node, dial.shard, Command::ConnectFailed { peer, class }, kernel);
        }
        let Line { to, life, address, keyring, proven } = line;
        if self.nodes[to].life != life {
            let (peer, class) = (dial.peer, dial.class);
            return self.tell(node, dial.shard, Command::ConnectFailed { peer, class }, kernel);
        }
        let from = self.nodes[node].setup.address.ip();
        let home = self.nodes[to].control.as_ref().map_or(0, |control| control.home_of(from));
        let ids = [self.nodes[node].setup.shards[dial.shard], self.nodes[to].setup.shards[home]];
        let links = [self.link(ids[0], ids[1], kernel), self.link(ids[1], ids[0], kernel)];
        let (connection, sockets) = kernel.connect(ids, links, self.surroundings.socket_buffer);
        let (mine, theirs) = match proven {
            Some((name, [mine, theirs], sealed)) => {
                (Some((mine, sealed)), Some((name, theirs, sealed)))
            }
            None => (None, None),
        };
        // Those that are closed are forgotten now and then.
        self.ends(kernel);
        self.count(if mine.is_some() { "sealed connection" } else { "plain connection" });
        self.ends.push(End {
            node,
            shard: dial.shard,
            socket: sockets[0],
            other: to,
            connection,
            dialled: Some((dial.peer, dial.class, address)),
            sealed: mine.as_ref().map(|(_, sealed)| *sealed),
        });
        let keys = mine.map(|(keys, _)| keys);
        let (peer, class, socket) = (dial.peer, dial.class, sockets[0]);
        let command = Command::LaneConnected { peer, class, socket, keys };
        self.tell(node, dial.shard, command, kernel);
        let arrival = Arrival {
            node: to,
            life,
            other: node,
            socket: sockets[1],
            connection,
            shard: home,
            keyring,
            proven: theirs,
        };
        self.soon(kernel, Happening::Accept(Box::new(arrival)));
    }

    fn accept(&mut self, arrival: Arrival, kernel: &mut SimKernel) {
        let Arrival { node, life, other, socket, connection, shard, keyring, proven } = arrival;
        let (now, held) = (self.time_of(node, kernel), self.far_end(node, other));
        let from = self.nodes[other].setup.address.ip();
        let place = &mut self.nodes[node];
        let Some(control) = place.control.as_mut().filter(|_| place.life == life) else {
            return kernel.reset(connection, Notice::Within(self.surroundings.step_max));
        };
        let (caller, keys, sealed) = match proven {
            Some((name, keys, sealed)) => {
                (Ok(Caller::Proven { node: name }), Some(keys), Some(sealed))
            }
            None => (control.meet_plain(from, held), None, None),
        };
        let from = origin(from, Some(held));
        let caller = caller.and_then(|caller| {
            control.come_in(&caller, &keyring, from, now)?;
            Ok(caller)
        });
        let Ok(caller) = caller else {
            self.count("turned away at the door");
            kernel.io(self.nodes[node].setup.shards[shard]).release(Resource::Socket(socket));
            return;
        };
        self.ends.push(End { node, shard, socket, other, connection, dialled: None, sealed });
        self.tell(node, shard, Command::LaneAccepted { socket, caller, keys }, kernel);
    }

    /// What the kernel of a node says of the other end of a connection.
    fn far_end(&self, node: usize, other: usize) -> FarEnd {
        let [here, there] = [node, other].map(|it| &self.nodes[it].setup);
        if here.address.ip() == there.address.ip() {
            FarEnd::User(there.user)
        } else {
            FarEnd::Elsewhere
        }
    }

    fn link(&mut self, from: NodeId, to: NodeId, kernel: &mut SimKernel) -> LinkId {
        let cost = self.surroundings.link;
        *self.links.entry((from, to)).or_insert_with(|| kernel.add_link(cost, None))
    }

    /// The name under which a shard of a node is known to others.
    #[must_use]
    pub fn shard_name(&self, node: usize, shard: usize) -> String {
        shard_name(&self.nodes[node].setup.name, shard)
    }
}

type Made = (Rules, Keyring, Grants, Names);

/// What follows from files and a key.
fn made_of(config: &Config, own: Option<&NodeKey>) -> Result<Made, String> {
    config.validate().map_err(|fault| format!("`{}` {}", fault.key, fault.problem))?;
    let names = Names::default();
    let rules = Rules::new(config, &names, OWN_USER).map_err(|error| error.to_string())?;
    let keyring = Keyring::new(config, own.cloned());
    let keyring = keyring.map_err(|fault| format!("`{}` {}", fault.key, fault.problem))?;
    let mut grants = Grants::default();
    for (inode, (name, export)) in config.exports.iter().enumerate() {
        let root = Root { device: 1, inode: inode as u64 };
        let added = grants.add(name, export, &names, root);
        added.map_err(|(list, error)| format!("exports.{name}.{list}: {error}"))?;
    }
    Ok((rules, keyring, grants, names))
}
