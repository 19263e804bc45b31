//! The control threads: dials, opens, deaths, crashes; and the life of a world from start to rest.

use piped_control::holdings::Right;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{ClientLimits, Command, Event, Limits, PeerLimits};
use piped_report::dial::{DialCost, DialPlace};
use piped_report::tally::MessageWay;
use piped_sim::{ConnectionId, Faults, Notice};
use piped_world::controls::Asked;

use super::setup::{self, NODES};
use super::{ClientState, ObjectKind, OpeningState, Options, Plan, World, naming, node_name, ways};
use crate::operators::Operators;

/// Everything must be at rest within that time after its cause is gone.
const REST: Nanos = Nanos::from_millis(120_000);

/// What a clock may do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockStep {
    /// The clock jumps ahead by this.
    Forward(Nanos),
    /// The clock goes back by this.
    Back(Nanos),
    /// The clock shows multiples of this.
    Tick(Nanos),
}

impl World {
    /// The whole life of a world: everybody does what they want, then all is closed and judged.
    ///
    /// # Panics
    /// If the engine breaks a promise.
    pub fn live(&mut self) {
        let limit = Nanos::from_millis(3_600_000);
        let done = self.run_until(limit, |world| {
            let busy = |place: &super::Client| place.to_do > 0 || !place.calls.is_empty();
            let acts = world.operators.as_ref().and_then(Operators::next_at);
            let clients = world.clients.iter();
            acts.is_none()
                && clients
                    .filter(|place| place.state == ClientState::Running)
                    .all(|place| !busy(place))
        });
        assert!(done, "clients wait for ever: {}", self.waiting());
        self.settle();
        self.end();
    }

    /// Ends all sessions and waits for rest: nothing is in execution, nothing was leaked.
    ///
    /// # Panics
    /// If something is.
    pub fn end(&mut self) {
        self.kernel.set_faults(Faults::none());
        self.controls.surroundings.connect_fails = 0.0;
        self.ending = true;
        for node in 0..NODES {
            self.restart(node);
            self.tally_report(node);
        }
        ways::restore_ways(self);
        self.judge_contents();
        self.judge_mail();
        self.judge_boards();
        naming::judge_at_end(self);
        let sealed = self.controls.seen.get("sealed connection").copied().unwrap_or(0);
        self.tally("lanes sealed", sealed);
        for (what, count) in std::mem::take(&mut self.controls.seen) {
            self.tally(what, count);
        }
        for client in 0..self.clients.len() {
            self.close_client(client);
        }
        let drained = self.run_until(REST, |world| {
            world.clients.iter().all(|place| place.state == ClientState::Gone)
        });
        assert!(drained, "sessions do not drain within {REST}: {}", self.waiting());
        let down = &self.lanes_down;
        assert!(down.is_empty(), "lanes go down in a calm world: {down:?}");
        let rested = self.run_until(REST, |world| (0..NODES).all(|node| world.rests(node)));
        assert!(rested, "no rest within {REST}: {}", self.waiting());
        self.judge_books();
        // Peers say by and by what they have closed.
        let is_closed =
            |world: &Self, node| world.controls.control(node).holdings().report().total == 0;
        let closed = self.run_until(REST, |world| (0..NODES).all(|node| is_closed(world, node)));
        assert!(closed, "nobody uses what the books have: {}", self.waiting());
        for node in &self.nodes {
            let segments = self.kernel.segments(node.id);
            let report = node.shard.as_ref().expect("all nodes run at the end").report();
            let staging = report.limits.staging_segments as usize;
            assert_eq!(segments.len(), staging, "only staging is left, not {segments:?}");
        }
        self.part();
    }

    /// Lanes own staging while they are up. Without lanes nothing is left: no operation, no socket,
    /// no staging in use.
    fn part(&mut self) {
        self.disturbed = true;
        self.controls.surroundings.connect_fails = 1.0;
        let ends = self.controls.ends(&self.kernel).to_vec();
        for end in ends.iter().filter(|end| end.dialled.is_some()) {
            self.kernel.reset(end.connection, Notice::Within(Nanos::from_millis(1)));
        }
        let parted = self.run_until(REST, |world| {
            world.nodes.iter().all(|node| {
                let report = node.shard.as_ref().expect("all nodes run at the end").report();
                let kernel = &world.kernel;
                report.staging_used_bytes == 0
                    && report.ops == 0
                    && report.lent == 0
                    && kernel.ops_in_flight(node.id) == 0
                    && kernel.open_sockets(node.id).is_empty()
            })
        });
        assert!(parted, "something is left after all lanes are lost: {}", self.waiting());
        for node in &self.nodes {
            let report = node.shard.as_ref().expect("all nodes run at the end").report();
            let use_ = report.limits;
            assert_eq!(use_.staging_draining_bytes, 0, "unused staging was not given back");
            assert!(
                report.staging_bytes <= use_.staging_limit_bytes,
                "more staging than the limit"
            );
            let left = (use_.in_flight.now, use_.requests.now, use_.waiting);
            assert_eq!(left, (0, 0, 0), "the ledger is not empty at rest");
        }
    }

    /// Counts what happened in the life of a shard.
    fn tally_report(&mut self, node: usize) {
        let report = self.shard(node).report();
        let lanes = report.peers.iter().flat_map(|peer| &peer.lanes);
        let second = lanes.clone().filter(|it| it.up && it.class == LaneClass::Second).count();
        self.tally("second lanes", second as u64);
        let without = lanes.filter(|lane| lane.sums == Some(false)).count();
        self.tally("lanes without checksums of payloads", without as u64);
        let counters = report.counters;
        let last = self.shard(node).explain(None);
        self.tally("serial plans", last.is_some_and(|it| it.chosen == "serial").into());
        self.tally("retries", counters.retries);
        self.tally("unaligned bounces", counters.bounced_unaligned);
        self.tally("fragments waited for their turn", counters.turns_waited);
        self.tally("mispredicted bounces", counters.bounced_mispredicted);
        self.tally("discarded bytes", counters.discarded_bytes);
        self.tally("corrupt frames", counters.corrupt_frames);
        self.tally("held buffers", counters.held);
        self.tally("lanes lost", counters.lanes_lost);
        self.tally("peer faults", counters.peer_faults);
        let half_opens = self.kernel.take_half_opens();
        self.tally("half-open connections", half_opens);
        let (lent_at_close, refused) = self.kernel.take_loans();
        self.tally("lent when a lane was closed", lent_at_close);
        self.tally("sends refused", refused);
        self.tally("sends without a copy", counters.sends_zero_copy);
        self.tally("sends copied all the same", counters.sends_copied);
        let limits = self.shard(node).report().limits;
        self.tally("waited for a limit", limits.waited);
        let messages = self.shard(node).observe().tally.messages;
        for (way, count) in MessageWay::ALL.into_iter().zip(messages) {
            let what = match way {
                MessageWay::Eager => "eager messages",
                MessageWay::Announced => "announced messages",
                MessageWay::Early => "early messages",
                MessageWay::Stalled => "stalled messages",
            };
            self.tally(what, count);
        }
        self.tally("scratches moved", limits.scratches_moved);
    }

    /// Counts what a campaign must have seen to be worth its time.
    pub(super) fn tally(&mut self, what: &'static str, count: u64) {
        *self.seen.entry(what).or_default() += count;
    }

    fn rests(&self, node: usize) -> bool {
        let report = self.nodes[node].shard.as_ref().expect("all nodes run at the end").report();
        report.sessions == 0
            && report.transfers == 0
            && report.serves == 0
            && self.kernel.open_files(self.nodes[node].id).is_empty()
    }

    /// What does not end, for a failure's message.
    fn waiting(&self) -> String {
        let mut lines = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            let calls: Vec<_> =
                client.calls.iter().map(|(call, f)| (call, f.verb, f.held)).collect();
            let waits =
                client.handles.iter().filter(|h| matches!(h.state, OpeningState::Waits { .. }));
            let (state, to_do, waits) = (client.state, client.to_do, waits.count());
            lines.push(format!(
                "client {number} on node {}: {state:?}, {to_do} to do, {waits} opening, {calls:?}",
                client.node
            ));
        }
        for node in &self.nodes {
            let report = node.shard.as_ref().map(piped_engine::shard::Shard::report);
            let ops = self.kernel.ops_in_flight(node.id);
            let sockets = self.kernel.open_sockets(node.id);
            let files = self.kernel.open_files(node.id);
            let left = format!("{ops} operations, {sockets:?}, {files:?}");
            lines.push(format!("{:?}: {left}, {report:?}", node.id));
        }
        format!("\n  {}", lines.join("\n  "))
    }

    /// Lanes of a node to its peer that were connected last, by class.
    #[must_use]
    pub fn lane(&self, node: usize, class: LaneClass) -> Option<ConnectionId> {
        self.controls.lane(node, class)
    }

    /// A node's clock jumps ahead, or goes back.
    pub fn put_clock(&mut self, node: usize, step: ClockStep) {
        self.clocks_differ = true;
        let id = self.nodes[node].id;
        match step {
            ClockStep::Forward(by) => self.kernel.put_clock_forward(id, by),
            ClockStep::Back(by) => self.kernel.put_clock_back(id, by),
            ClockStep::Tick(tick) => self.kernel.set_clock_tick(id, tick),
        }
    }

    /// How often lanes of a node came up.
    #[must_use]
    pub fn lane_ups(&self, node: usize) -> u64 {
        self.nodes[node].lane_ups
    }

    /// A running node's shard, for its reports.
    ///
    /// # Panics
    /// If the node is down.
    #[must_use]
    pub fn shard(&self, node: usize) -> &piped_engine::shard::Shard {
        self.nodes[node].shard.as_ref().expect("the node runs")
    }

    /// The nodes, by number.
    #[must_use]
    pub fn nodes(&self) -> [piped_sim::NodeId; NODES] {
        [self.nodes[0].id, self.nodes[1].id]
    }

    /// The device of a node.
    #[must_use]
    pub fn device(&self, node: usize) -> piped_core::ids::DeviceId {
        self.nodes[node].device
    }

    /// A node loses power: daemon and clients are gone, its files keep what was stable.
    pub fn crash(&mut self, node: usize, notice: Notice) {
        self.disturbed = true;
        if self.nodes[node].shard.is_none() {
            return;
        }
        self.tally_report(node);
        self.nodes[node].shard = None;
        self.controls.stop(node);
        self.nodes[node].busy_until = Nanos::ZERO;
        self.kernel.crash(self.nodes[node].id, notice);
        self.tickets.retain(|(of, _), _| *of != node);
        self.given_up.retain(|(of, _)| *of != node);
        self.withdrawn.retain(|(of, _)| *of != node);
        self.nodes[node].rights += 1;
        for client in 0..self.clients.len() {
            if self.clients[client].node == node {
                self.leave(client);
            }
        }
        for object in self.objects.iter_mut().filter(|object| object.node == node) {
            match object.kind {
                ObjectKind::File(inode) => {
                    object.expected.crash(self.kernel.file_content(inode));
                }
                ObjectKind::Directory { .. } => {}
                ObjectKind::Region { .. }
                | ObjectKind::Channel { .. }
                | ObjectKind::Board { .. } => object.gone = true,
            }
        }
        naming::crash(self, node);
    }

    /// The daemon of a node comes back.
    pub fn restart(&mut self, node: usize) {
        if self.nodes[node].shard.is_none() {
            self.kernel.restart(self.nodes[node].id);
            self.start_shard(node);
            self.controls.start(node, &self.kernel);
        }
    }

    pub(super) fn plan_disasters(&mut self) {
        let span = Nanos::from_micros(500 * u64::from(self.options.requests) + 1);
        let Options { clients, deaths, crashes, stalls, limit_changes, dial_changes, .. } =
            self.options;
        let mut plan = |times: usize, places: usize, plan: fn(usize) -> Plan| {
            for _ in 0..times {
                let place = self.random.below(places as u64) as usize;
                let at = self.random.up_to(span);
                self.plans.push(at, plan(place));
            }
        };
        plan(deaths, clients, |client| Plan::Die { client });
        plan(crashes, NODES, |node| Plan::Crash { node });
        plan(stalls, NODES, |node| Plan::Stall { node });
        plan(limit_changes, NODES, |node| Plan::Limit { node });
        plan(dial_changes, NODES, |node| Plan::Slow { node });
        plan(self.options.way_changes, NODES, |node| Plan::Way { node });
    }

    /// A stage becomes slower by a little or by much, or as fast as it was.
    fn change_dials(&mut self, node: usize) {
        let Some(shard) = &self.nodes[node].shard else { return };
        let holds = shard.dials().iter().any(|dial| dial.held > 0);
        let busy = self.clients.iter().any(|client| !client.calls.is_empty());
        let random = &mut self.random;
        let (device, peer) = (self.nodes[node].device, node_name(1 - node));
        let place = match random.below(7) {
            0 => DialPlace::Copy,
            1 => DialPlace::Check,
            2 => DialPlace::Send { peer },
            3 => DialPlace::Net { peer },
            4 => DialPlace::Receive { peer },
            way => DialPlace::Disk { device, write: way == 5 },
        };
        let command = match random.below(4) {
            0 => Command::ClearDials { place: Some(place).filter(|_| random.chance(0.5)) },
            _ => {
                let cost = DialCost {
                    latency_ns: random.length(20_000_000),
                    overhead_ns: random.length(2_000_000),
                    per_byte_ps: random.length(20_000),
                    host_ns: if random.chance(0.3) { random.length(50_000) } else { 0 },
                    spread: setup::any_spread(random),
                };
                Command::SetDial { place, cost }
            }
        };
        match command {
            Command::ClearDials { place: None } if holds => {
                self.tally("dial cleared that held something", 1);
            }
            Command::SetDial { .. } if busy => self.tally("dial set with calls in flight", 1),
            _ => {}
        }
        self.command(node, command);
    }

    /// New limits, mostly far below what clients would use.
    fn change_limits(&mut self, node: usize) {
        if self.nodes[node].shard.is_none() {
            return;
        }
        self.tally("limits changed", 1);
        let random = &mut self.random;
        let bytes = [(); 9].map(|()| 1_u64 << random.between(12, 24));
        let count = [(); 3].map(|()| random.between(1, 16) as u32);
        let limits = Limits {
            requests: count[0] * 4,
            in_flight: bytes[0] * 4,
            early_arrival: bytes[5],
            client: ClientLimits {
                staging: bytes[1],
                in_flight: bytes[2],
                requests: count[1],
                early_arrival: bytes[6],
                rate: bytes[7] * 16,
            },
            peer: PeerLimits {
                staging: bytes[3],
                in_flight: bytes[4],
                requests: count[2],
                handles: u32::MAX,
                rate: bytes[8] * 16,
            },
        };
        let staging = random.between(1, 12) << 22;
        let resized = random.chance(0.7);
        // Where there are lanes for two ways some may find none, and who dialled says nothing.
        self.disturbed |= resized && self.options.two_ways;
        self.command(node, Command::SetLimits(limits));
        if resized {
            let mut missing = self.shard(node).staging_missing(staging);
            self.command(node, Command::SetStaging { bytes: staging });
            while missing > 0 {
                let length = missing.min(8 << 20);
                let segment = self.kernel.add_segment(self.nodes[node].id, length);
                self.command(node, Command::AddStaging { segment, length });
                missing -= length;
            }
        }
    }

    pub(super) fn follow(&mut self, plan: Plan) {
        match plan {
            Plan::Answer(answer) => self.answer(&answer.0, answer.1),
            Plan::Come { client } => self.come(client),
            Plan::GiveUp { node, ticket, asked } => self.give_up_open(node, ticket, asked),
            Plan::Enter { client, session, handle, right } => {
                self.enter(client, session, handle, *right);
            }
            Plan::Think { client } => self.think(client),
            Plan::Limit { node } => self.change_limits(node),
            Plan::Slow { node } => self.change_dials(node),
            Plan::Way { node } => ways::change_way(self, node),
            Plan::Unblock { address } => self.controls.block(address, false, &mut self.kernel),
            Plan::Die { .. } | Plan::Crash { .. } | Plan::Stall { .. } if self.ending => {}
            Plan::Die { client } => {
                if !self.clients[client].calls.is_empty() {
                    self.tally("client died with calls in flight", 1);
                }
                self.close_client(client);
            }
            Plan::Crash { node } => {
                if self.clients.iter().any(|c| c.node != node && !c.calls.is_empty()) {
                    self.tally("node crashed with calls of its peer in flight", 1);
                }
                let notice = match self.random.below(3) {
                    0 => Notice::Silent,
                    _ => Notice::Within(Nanos(self.random.length(100_000_000))),
                };
                self.crash(node, notice);
                let back = Nanos(self.random.length(3_000_000_000));
                self.plans.push(self.kernel.now() + back, Plan::Restart { node });
            }
            Plan::Restart { node } => self.restart(node),
            Plan::Stall { node } => {
                if self.clients.iter().any(|client| !client.calls.is_empty()) {
                    self.tally("device stalled with calls in flight", 1);
                }
                // Shorter than deadlines, and longer.
                let time = Nanos(self.random.length(2 * self.options.deadline.0));
                self.kernel.block_device(self.nodes[node].device, time);
                setup::change_cache(self, node);
            }
        }
    }

    pub(super) fn take_event(&mut self, node: usize, event: Event) {
        let id = self.nodes[node].id;
        self.kernel.note(|| format!("{id:?} -> {event:?}"));
        match &event {
            Event::StagingDrained { .. } => self.tally("staging drained", 1),
            Event::LaneUp { .. } => self.nodes[node].lane_ups += 1,
            Event::LaneDown { peer, class, reason } => {
                let refused = self.lanes_refused > 0;
                self.lanes_refused -= u32::from(refused);
                let calm = self.options.is_calm() && !self.disturbed && !self.clocks_differ;
                if calm && !refused {
                    self.lanes_down.push(format!("the {class:?} lane to {peer}: {reason}"));
                }
                self.locking.disturb();
                assert!(!reason.is_empty(), "{class:?} lane to {peer} goes down without a reason");
            }
            // Little staging, since a limit was lowered: it connects again. The other side may have
            // heard of it before a thread that is busy says so.
            Event::LaneRefused { .. } if self.lanes_down.pop().is_some() => {}
            Event::LaneRefused { .. } => self.lanes_refused += 1,
            _ => {}
        }
        self.controls.handle_event(node, 0, event, &self.kernel);
        self.take_effects();
    }

    /// The driver opens what a peer asked for and may have.
    fn answer(&mut self, asked: &Asked, found: Result<Right, Status>) {
        if !self.controls.waits(asked) {
            return;
        }
        self.served_opens += 1;
        let named = match found {
            Ok(Right::File { .. }) => asked.open.path.clone(),
            _ => asked.open.name.clone().into_bytes(),
        };
        let object = self.objects.iter().position(|object| {
            object.node == asked.node && object.name.as_bytes() == named && !object.gone
        });
        let object = object.filter(|&object| self.is_in_folder(object));
        let opened = found.and_then(|right| {
            let object = object.ok_or(Status::NotFound)?;
            Ok((self.target(object, None), right))
        });
        let (ok, node) = (opened.is_ok(), asked.node);
        if !self.controls.answer(asked, opened, &self.kernel) && ok {
            // What is open until its end has arrived is no fault.
            self.nodes[node].rights += 1;
            self.locking.disturb();
            self.tally("right gone while it was opened", 1);
        }
    }
}
