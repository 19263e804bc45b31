//! Dials and the door, as the driver of a daemon performs them, in virtual time.

use std::net::SocketAddr;
use std::rc::Rc;

use piped_config::{NodeCertificate, PublicKey};
use piped_control::dial::{Progress, Step};
use piped_control::greeting::origin;
use piped_control::keyring::{Admitted, Keyring};
use piped_control::parties::FarEnd;
use piped_control::patrol::Verdict;
use piped_core::io::{Io as _, Resource};
use piped_core::units::Nanos;
use piped_engine::command::{Caller, Command};
use piped_sim::{LinkId, NodeId, Notice, SimKernel};
use piped_wire::{FrameKey, LaneKeys};

use super::{Arrival, Controls, End, Happening, Line, Sealed, UnderWay};

impl Controls {
    pub(super) fn soon(&mut self, kernel: &SimKernel, happening: Happening) {
        let at = kernel.now() + self.random.up_to(self.surroundings.step_max);
        self.happenings.push(at, happening);
    }

    pub(super) fn happen(&mut self, happening: Happening, kernel: &mut SimKernel) {
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
            Happening::Ask { dial } => self.ask(dial, kernel),
            Happening::First { dial, key, keyring } => self.first(dial, key, &keyring, kernel),
            Happening::Accept(arrival) => self.accept(*arrival, kernel),
            Happening::Settle { node, life } => {
                let times = self.times_of(node, kernel);
                let place = &mut self.nodes[node];
                if let Some(control) = place.control.as_mut().filter(|_| place.life == life) {
                    control.settle(times);
                }
                self.drain(node, kernel);
            }
        }
    }

    /// Has a dial go on. Whether its connection is to be delivered now.
    pub(super) fn progress(&mut self, number: u64, progress: Progress, kernel: &SimKernel) -> bool {
        let Some(UnderWay { node, life, .. }) = self.dials.get(&number) else { return false };
        let (node, life, times) = (*node, *life, self.times_of(*node, kernel));
        let is_same = life == self.nodes[node].life;
        let Some(control) = self.nodes[node].control.as_mut().filter(|_| is_same) else {
            return false;
        };
        let dial = &mut self.dials.get_mut(&number).expect("it is there").dial;
        let step = match times.now > dial.until() {
            true => control.advance(dial, Progress::Late, times),
            false => control.advance(dial, progress, times),
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
            Step::Ask => self.soon(kernel, Happening::Ask { dial: number }),
            Step::Prove { .. } if self.random.chance(self.surroundings.handshake_hangs) => {
                self.count("handshake without an end");
                let at = kernel.world_time(first, until) + Nanos(1);
                let progress = Progress::Late;
                self.happenings.push(at, Happening::Progress { dial: number, progress });
            }
            Step::Prove { keyring, key, .. } => {
                self.soon(kernel, Happening::First { dial: number, key, keyring });
            }
            Step::Deliver => {
                // What a new certificate changes is told before the connection is.
                self.drain(node, kernel);
                self.settle_later(node, kernel);
                return true;
            }
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
        let Some(UnderWay { node, dial, .. }) = self.dials.get(&number) else { return };
        let (node, until) = (*node, dial.until());
        let from = self.nodes[node].setup.address.ip();
        let listener = self.nodes.iter().position(|it| {
            it.control.is_some()
                && (it.setup.address == address || it.setup.second == Some(address))
                && it.setup.config.listen.address.is_some()
        });
        if listener.is_some_and(|to| self.are_apart(node, to)) {
            // Nobody answers.
            let at = kernel.world_time(self.nodes[node].setup.shards[0], until) + Nanos(1);
            let progress = Progress::Late;
            return self.happenings.push(at, Happening::Progress { dial: number, progress });
        }
        let fails = self.random.chance(self.surroundings.connect_fails);
        let refused = fails || self.blocked.contains(&address);
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

    /// The question for a certificate arrives, and what it leads to is back some time later.
    fn ask(&mut self, number: u64, kernel: &SimKernel) {
        let Some(UnderWay { line: Some(line), .. }) = self.dials.get(&number) else { return };
        let is_there = self.nodes[line.to].life == line.life;
        let shown = line.keyring.identity().filter(|_| is_there).map(|identity| {
            identity.certificate().map(NodeCertificate::to_bytes).unwrap_or_default()
        });
        let progress = Progress::Showed(shown.ok_or_else(|| "it hung up".to_owned()));
        self.soon(kernel, Happening::Progress { dial: number, progress });
    }

    /// The first message of a handshake arrives; what it leads to is back with the dialling side
    /// some time later.
    fn first(&mut self, number: u64, key: PublicKey, mine: &Keyring, kernel: &SimKernel) {
        let Some(UnderWay { line: Some(line), .. }) = self.dials.get(&number) else { return };
        let theirs = Rc::clone(&line.keyring);
        let is_there = self.nodes[line.to].life == line.life;
        let agreed = mine.identity().zip(theirs.identity()).filter(|_| is_there);
        let calendar = self.times_of(line.to, kernel).calendar;
        let proven = agreed.ok_or("it hung up").and_then(|(mine, theirs)| {
            if theirs.own().public() != key {
                return Err("its ticket is for another key");
            }
            let shown = mine.certificate().map(NodeCertificate::to_bytes).unwrap_or_default();
            let admitted = theirs.admit(&mine.own().public(), &shown, calendar);
            let admitted = admitted.map_err(|_| "its key is not trusted")?;
            let protection = mine.protection().max(theirs.protection());
            let [to, fro] = [(); 2].map(|()| self.frame_key());
            let keys = |send: &FrameKey, receive: &FrameKey| LaneKeys {
                protection,
                send: send.clone(),
                receive: receive.clone(),
            };
            let both = [keys(&to, &fro), keys(&fro, &to)];
            let keys = [mine.own().public(), theirs.own().public()];
            Ok((admitted, both, Sealed { keys, protection }))
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
        if self.nodes[to].life != life || self.are_apart(node, to) {
            let (peer, class) = (dial.peer, dial.class);
            return self.tell(node, dial.shard, Command::ConnectFailed { peer, class }, kernel);
        }
        let from = self.nodes[node].setup.address.ip();
        let caller = proven.as_ref().map(|(admitted, ..)| (admitted.node.as_str(), dial.shard));
        let control = self.nodes[to].control.as_mut();
        let home = control.map_or(0, |control| control.home_of(caller, from));
        let ids = [self.nodes[node].setup.shards[dial.shard], self.nodes[to].setup.shards[home]];
        let second = self.nodes[to].setup.second == Some(address);
        let links = [ids, [ids[1], ids[0]]].map(|ends| self.link(ends, second, kernel));
        let (connection, sockets) = kernel.connect(ids, links, self.surroundings.socket_buffer);
        let (mine, theirs) = match proven {
            Some((admitted, [mine, theirs], sealed)) => {
                (Some((mine, sealed)), Some((admitted, theirs, sealed)))
            }
            None => (None, None),
        };
        // Those that are closed are forgotten now and then: each time, many nodes would take long.
        if self.ends.len() > 2 * self.ends_left + 64 {
            self.ends(kernel);
        }
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
        let near = from == address.ip();
        let command = Command::LaneConnected { peer, class, socket, near, keys };
        self.tell(node, dial.shard, command, kernel);
        let arrival = Arrival {
            node: to,
            life,
            other: node,
            from_shard: dial.shard,
            socket: sockets[1],
            connection,
            shard: home,
            keyring,
            proven: theirs,
        };
        self.soon(kernel, Happening::Accept(Box::new(arrival)));
    }

    fn accept(&mut self, arrival: Arrival, kernel: &mut SimKernel) {
        let Arrival { node, life, other, from_shard, socket, connection, shard, .. } = arrival;
        let (keyring, proven) = (arrival.keyring, arrival.proven);
        let (now, held) = (self.time_of(node, kernel), self.far_end(node, other));
        let from = self.nodes[other].setup.address.ip();
        let place = &mut self.nodes[node];
        let Some(control) = place.control.as_mut().filter(|_| place.life == life) else {
            return kernel.reset(connection, Notice::Within(self.surroundings.step_max));
        };
        let (caller, keys, sealed, shown) = match proven {
            Some((Admitted { node, certificate }, keys, sealed)) => {
                let caller = Caller::Proven { node, shard: from_shard };
                (Ok(caller), Some(keys), Some(sealed), certificate)
            }
            None => (control.meet_plain(from, held), None, None, None),
        };
        let from = origin(from, Some(held));
        let caller = caller.and_then(|caller| {
            control.come_in(&caller, (&keyring, shown), from, now)?;
            Ok(caller)
        });
        let Ok(caller) = caller else {
            self.count("turned away at the door");
            kernel.io(self.nodes[node].setup.shards[shard]).release(Resource::Socket(socket));
            return;
        };
        self.ends.push(End { node, shard, socket, other, connection, dialled: None, sealed });
        // What a new certificate changes is told before the connection is.
        self.drain(node, kernel);
        self.settle_later(node, kernel);
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

    fn link(&mut self, [from, to]: [NodeId; 2], second: bool, kernel: &mut SimKernel) -> LinkId {
        let cost = self.surroundings.link;
        *self.links.entry((from, to, second)).or_insert_with(|| kernel.add_link(cost, None))
    }
}
