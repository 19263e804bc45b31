//! One data-plane shard: sessions, handles, transfers, lanes and plans of one reactor thread.
//!
//! ```text
//!  submit ─► resolve ─► transfer ─┬─► disk (local files)
//!                                 ├─► memory (local regions)
//!                                 ├─► remote ─► lane ─► peer
//!                                 ├─► receive (messages, here and from peers)
//!                                 ├─► between (messages of other shards)
//!                                 └─► copy (two child transfers a chunk)
//!  peer ─► lane ─► inbound ─► serve ─► disk | memory ─► lane ─► peer
//! ```
//!
//! Everything is a place in a `slab` and everything that wants a turn is a `Work` of `sched`, so
//! no call recurses through the machine and one turn does a bounded amount.

pub(crate) mod landed;
mod lines;

mod account;
mod arena;
mod buffers;
mod call;
mod clients;
mod connections;
mod cx;
mod delays;
mod driver;
mod fair;
mod faults;
mod flows;
mod keys;
mod links;
mod messages;
mod notifications;
mod numbers;
mod peers;
mod per_byte;
mod pins;
mod rate;
mod relays;
mod requests;
mod responder;
mod sched;
mod slab;
mod starved;
mod stripes;
mod timers;
mod tries;
mod watch;

use piped_core::ids::{RegionId, SegmentId};
use piped_core::io::{Done, Io, Resource};
use piped_core::limits;
use piped_core::modes::{CalibrationMode, EagerMode, PlannerMode, ZeroCopyMode};
use piped_core::noise::Noise;
use piped_core::units::Nanos;

use self::clients::{Asks, Away, Clients, HandleKind, Handles};
use self::connections::{Lane, Lanes};
use self::cx::Cx;
use self::delays::{Effect, Hop};
use self::driver::{Ended, JobEnd, JobOwner, notice_of};
use self::links::Links;
use self::messages::{Mails, Messages, Takes};
use self::notifications::{Notifications, PeerNotifies};
use self::peers::Peers;
use self::pins::AnyPin;
use self::relays::Relays;
use self::requests::{Bodies, Transfers};
use self::responder::{Serve, Serves};
use self::sched::Work;
use crate::command::{Command, Event, Output};
use crate::relay::Relay;

pub use self::watch::Recording;

/// What other shards ask for has one of so many places of the transfers, for each kind.
const ASKED_SHARE: u32 = 16;

/// Sizes and choices fixed when a shard is made. Memory is taken then, never per request.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// This node's name, told to peers.
    pub node_name: String,
    /// Distinguishes this run of the daemon from earlier ones; random.
    pub incarnation: u64,
    /// Seed for jitter (back-off, persistent excitation, delays that differ); random in the daemon,
    /// fixed in tests.
    pub seed: u64,
    /// The most requests in execution.
    pub transfers_max: u32,
    /// The most operations at the driver.
    pub ops_max: u32,
    /// Deadline of requests that name none.
    pub deadline_default: Nanos,
    /// How sizes are chosen.
    pub planner: PlannerMode,
    /// Whether costs follow the samples.
    pub calibration: CalibrationMode,
    /// Whether lanes send without a copy.
    pub zero_copy: ZeroCopyMode,
    /// Which messages are sent without being announced.
    pub eager: EagerMode,
    /// `auto` begins with plans that ask a device for one fragment at a time, where it has any,
    /// instead of waiting for measurements that speak for them: for worlds of tests, which are
    /// short.
    pub serial_first: bool,
}

/// What is known of when a shard is to be driven.
#[derive(Debug, Clone, Copy)]
enum Due {
    /// The shard was fed, so now.
    Now,
    /// The shard was driven since, and not asked.
    Unknown,
    /// What [`Shard::poll_timeout`] says until something comes.
    At(Option<Nanos>),
}

/// A shard. Feed it with [`Shard::submit`], [`Shard::handle_command`] and [`Shard::handle_done`];
/// then call [`Shard::drive`] if [`Shard::is_due`], and take what it puts out with
/// [`Shard::poll_output`].
#[derive(Debug)]
pub struct Shard {
    cx: Cx,
    due: Due,
    transfers: Transfers,
    bodies: Bodies,
    serves: Serves,
    lanes: Lanes,
    peers: Peers,
    links: Links,
    clients: Clients,
    handles: Handles,
    /// Requests of its queues that the homes of their sessions have.
    away: Away,
    /// Requests of other shards' queues for sessions that have their home here.
    asks: Asks,
    /// Regions that are revoked and still in use.
    revoked: Vec<RegionId>,
    messages: Messages,
    mails: Mails,
    notifications: Notifications,
    peer_notifies: PeerNotifies,
    /// Takes of other shards that wait for a place among the transfers.
    takes: Takes,
}

impl Shard {
    /// An empty shard; takes all the memory it will need for requests.
    #[must_use]
    pub fn new(config: ShardConfig) -> Self {
        let transfers = config.transfers_max;
        Self {
            transfers: Transfers::with_capacity(transfers),
            bodies: Bodies::new(transfers),
            due: Due::Unknown,
            serves: Serves::with_capacity(limits::SERVES_MAX),
            lanes: Lanes::new(config.zero_copy),
            peers: Peers::new(Noise(config.seed | 1)),
            links: Links::new(),
            clients: Clients::new(transfers),
            handles: Handles::default(),
            away: Away::default(),
            asks: Asks::new(transfers / ASKED_SHARE),
            revoked: Vec::new(),
            messages: Messages::default(),
            mails: Mails::new(),
            notifications: Notifications::default(),
            peer_notifies: PeerNotifies::default(),
            takes: Takes::default(),
            cx: Cx::new(config),
        }
    }

    /// The shard as one of so many on its node, with this number. Whoever drives them takes
    /// [`Shard::poll_relay`] of each to [`Shard::handle_relay`] of the other, in order.
    #[must_use]
    pub fn among(mut self, own: u16, shards: u16) -> Self {
        self.cx.relays = Relays::new(own, shards);
        if shards > 1 {
            self.away = Away::with_capacity(self.cx.config.transfers_max);
        }
        self
    }

    /// The shard with lanes that give back their memory after another time without work than
    /// [`limits::LANE_REST_TIME`]: for worlds of tests, which are short.
    #[must_use]
    pub fn with_lane_rest_time(mut self, time: Nanos) -> Self {
        self.lanes.set_rest_time(time);
        self
    }

    /// Takes a message of the control thread.
    pub fn handle_command<I: Io>(&mut self, command: Command, io: &mut I) {
        self.due = Due::Now;
        match command {
            Command::AddStaging { segment, length } => self.add_staging(segment, length),
            Command::SetStaging { bytes } => self.set_staging(bytes),
            Command::SetLimits(limits) => self.set_limits(limits, io.now()),
            Command::OpenSession { session, weight, home, user } => {
                self.clients.open(session, weight, (home, user));
            }
            Command::AddSegment { session, segment, length } => {
                self.clients.add_segment(session, segment, length);
            }
            Command::TakeBack { session, number } => self.take_back(session, number, io),
            Command::SegmentTorn { segment } => {
                self.end_region_users(|region| region.segment == segment, io);
            }
            Command::CloseSession { session } => self.close_session(session, io),
            Command::InstallHandle { session, handle, target } => {
                self.install_handle(session, handle, target);
            }
            Command::OpenRemote { ticket, session, handle, peer, open } => {
                self.open_remote(ticket, session, handle, peer, open, io);
            }
            Command::JoinHandles { session, handle, members, length } => {
                self.join_handles((session, handle), &members, length);
            }
            Command::PointHandle { session, handle } => {
                self.handles.add(session, handle, HandleKind::AtHome);
            }
            Command::CloseHandle { session, handle } => self.close_handle(session, handle, io),
            Command::EndHandle { session, handle } => self.end_handle(session, handle, io),
            Command::EndServed { ticket } => self.end_served(ticket, io),
            Command::EndPeer { name } => self.end_peer(&name, io),
            Command::RevokeRegion { region } => self.revoke_region(region, io),
            Command::ServeOpened { ticket, result } => self.handle_serve_opened(ticket, result, io),
            Command::AddPeer { peer, name, checksum, second, dialling } => {
                self.add_peer((peer, second), (name, checksum), dialling, io);
            }
            Command::RemovePeer { peer } => self.remove_peer(peer, io),
            Command::RedialPeer { peer } => self.redial_peer(peer, io),
            Command::LaneConnected { peer, class, socket, near, keys } => {
                self.lane_connected(peer, class, (socket, near, keys), io);
            }
            Command::ConnectFailed { peer, class } => {
                self.dial_failed(peer, class, io.now());
            }
            Command::LaneAccepted { socket, caller, keys } => {
                self.lane_accepted((socket, keys), caller, io);
            }
            Command::ExpelPeers { names, plain } => self.expel_peers(&names, plain, io),
            Command::Planned(answer) => self.cx.planner.handle_answer(&answer),
            Command::TakeKept(stages) => self.cx.planner.take_kept(stages),
            Command::ForcePlan(plan) => self.cx.planner.force(plan),
            Command::SetPlanner(mode) => self.cx.planner.set_mode(mode),
            Command::SetCalibration(mode) => self.cx.planner.set_calibration(mode),
            Command::SetZeroCopy(mode) => self.lanes.set_zero_copy(mode),
            Command::Trace { recording, transfers } => self.cx.watch.trace(recording, transfers),
            Command::SetEager(mode) => self.cx.config.eager = mode,
            Command::SetDeadline(deadline) => self.cx.config.deadline_default = deadline,
            Command::SetDial { place, cost } => self.set_dial(place, cost, io),
            Command::ClearDials { place } => {
                self.clear_dials(place.as_ref(), io);
                self.report_dials(io.now());
            }
        }
    }

    /// Takes the end of an operation.
    pub fn handle_done<I: Io>(&mut self, done: Done, io: &mut I) {
        self.due = Due::Now;
        if let Some(notice) = notice_of(done.token) {
            self.handle_notice(notice, done.result, io);
            return self.cx.sched.wake_starved();
        }
        let (driver, mut lent) = self.cx.lend();
        let Some((ended, on)) = driver.end(done, &mut lent, io) else { return };
        match ended {
            Ended::Nothing => {}
            Ended::Job(job) if self.cx.dials.any() && job.result.bytes > 0 => {
                let bytes = job.result.bytes;
                self.pass(Hop::Disk, Effect::Job(job), bytes, io);
            }
            Ended::Job(job) => self.handle_job(job, io),
            Ended::Step(AnyPin::Transfer(pin), result) => {
                self.handle_transfer_step(pin, result, io);
            }
            Ended::Step(AnyPin::Serve(pin), result) => {
                let now = io.now();
                self.handle_serve_step(pin, result, now);
            }
            Ended::Sent(lane, result) => self.handle_sent(lane, result, io),
            Ended::Received(lane, result) => self.handle_received(lane, result, io),
        }
        if let Some(on) = on {
            self.cx.driver.end_at(on, io.now(), &mut self.cx.sched);
        }
        self.cx.sched.wake_starved();
    }

    /// A fragment has left its device, and the dial behind it if there is one.
    fn handle_job<I: Io>(&mut self, job: JobEnd, io: &mut I) {
        let JobEnd { owner, pin, result, .. } = job;
        let start = owner.start();
        match (owner, pin) {
            (JobOwner::Transfer { .. }, AnyPin::Transfer(pin)) => {
                self.handle_fragment(pin, start, result, io);
            }
            (JobOwner::ServeRead { .. }, AnyPin::Serve(pin)) => {
                self.handle_fragment_read(pin, start, result);
            }
            (JobOwner::ServeWrite { paid, .. }, AnyPin::Serve(pin)) => {
                self.handle_fragment_written(pin, start, paid, result);
            }
            _ => {}
        }
        self.cx.sched.make_ready(owner.subject().into());
    }

    /// What is given up does not go to its device any more.
    fn drop_waiting<I: Io>(&mut self, work: Work, io: &mut I) {
        let (driver, mut lent) = self.cx.lend();
        for job in driver.drop_waiting(work, &mut lent, io) {
            self.handle_job(job, io);
        }
    }

    /// Whether the shard is to be driven: something came since the last time, or its time has come.
    /// A thread that spins drives nothing in most of its turns.
    pub fn is_due(&mut self, now: Nanos) -> bool {
        if let Due::Unknown = self.due {
            self.due = Due::At(self.poll_timeout());
        }
        match self.due {
            Due::At(at) => at.is_some_and(|at| at <= now),
            _ => true,
        }
    }

    /// Pushes what can be pushed and expires what is due. Call when [`Shard::is_due`], and before
    /// waiting.
    ///
    /// `false`: it ended early, so that what was pushed is submitted before the rest is done.
    /// Submit before the next call, which is due at once.
    pub fn drive<I: Io>(&mut self, io: &mut I) -> bool {
        self.due = Due::Unknown;
        self.release_drained(io);
        let (driver, mut lent) = self.cx.lend();
        driver.begin_turn(&mut lent, io);
        let now = io.now();
        let through = self.work_off(now, io);
        self.cx.driver.end_turn(now);
        through
    }

    fn work_off<I: Io>(&mut self, now: Nanos, io: &mut I) -> bool {
        while let Some(key) = self.transfers.take_due(now) {
            // It may be starved, and nothing may end that would wake it.
            self.cx.sched.wake_starved();
            self.expire(key, io);
        }
        while let Some(key) = self.serves.take_due(now) {
            self.cx.sched.wake_starved();
            self.expire_serve(key, io);
        }
        while let Some(key) = self.lanes.take_due(now) {
            self.expire_lane_time(key, io);
        }
        while let Some(key) = self.lanes.take_due_frame(now) {
            self.expire_frame(key, io);
        }
        while let Some(key) = self.links.take_due(now) {
            self.end_leases(key, now, io);
        }
        if self.lanes.next_rest().is_some_and(|at| at <= now) {
            self.rest_lanes(now);
        }
        if self.peers.next_look().is_some_and(|at| at <= now) {
            self.rest_peers(now, io);
        }
        self.expire_mail(now, io);
        self.takes.begin_turn();
        self.begin_takes(io);
        self.expire_asks(now);
        self.begin_asks(io);
        self.release_due(now, io);
        self.cx.sched.wake_due(now);
        for turn in 0..limits::WORK_PER_TURN {
            let Some(work) = self.cx.sched.poll(turn) else { break };
            self.work(work, io);
            if self.cx.sched.take_hand_over() {
                return false;
            }
        }
        self.copy_pieces(io);
        // Each once: what they make ready meanwhile is for the next turn.
        for _ in 0..self.cx.sched.lanes() {
            let Some(work) = self.cx.sched.poll_lane() else { break };
            self.work(work, io);
        }
        true
    }

    fn work<I: Io>(&mut self, work: Work, io: &mut I) {
        match work {
            Work::Transfer(key) => self.drive_transfer(key, io),
            Work::Serve(key) => self.drive_serve(key, io),
            Work::Lane(key) => self.drive_lane(key, io),
        }
    }

    /// The next thing for a client or the control thread.
    pub fn poll_output(&mut self) -> Option<Output> {
        let output = self.cx.outputs.pop_front();
        output.or_else(|| self.cx.planner.poll_question().map(Output::Plan))
    }

    /// The next thing for another shard of the node. Ask when there is room for it.
    pub fn poll_relay(&mut self, to: u16) -> Option<Relay> {
        self.cx.relays.poll(to)
    }

    /// How many relays wait for room.
    #[must_use]
    pub fn relays_waiting(&self) -> usize {
        self.cx.relays.len()
    }

    /// When [`Shard::drive`] must be called at the latest, if nothing happens before.
    /// [`Nanos::ZERO`] when there is work left for the next turn.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        if self.has_work() {
            return Some(Nanos::ZERO);
        }
        self.lanes
            .next_due()
            .into_iter()
            .chain(self.transfers.next_deadline())
            .chain(self.serves.next_due())
            .chain(self.links.next_due())
            .chain(self.peers.next_look())
            .chain(self.mails.next_due().map(|(at, _)| at))
            .chain(self.cx.driver.next_look())
            .chain(self.cx.sched.next_due())
            .chain(self.cx.dials.next())
            .chain(self.asks.next_due())
            .min()
    }

    /// Whether nothing is in execution.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let under_way = self.transfers.len() + self.serves.len() + self.away.len();
        under_way == 0 && !self.has_work()
    }

    fn has_work(&self) -> bool {
        let takes = !self.takes.is_empty() && self.transfers.room() > 0;
        takes || !self.cx.sched.is_empty() || self.cx.buffers.has_drained() || self.asks.has_next()
    }

    /// What would have to be added if staging were to have so many bytes.
    #[must_use]
    pub fn staging_missing(&self, bytes: u64) -> u64 {
        self.cx.buffers.missing(bytes)
    }

    fn add_staging(&mut self, segment: SegmentId, length: u64) {
        self.cx.buffers.add(segment, length);
        self.move_windows();
        self.cx.sched.wake_starved();
    }

    fn set_staging(&mut self, bytes: u64) {
        self.cx.buffers.resize(bytes);
        self.move_scratches();
        self.move_windows();
        self.cx.sched.wake_starved();
    }

    fn release_drained<I: Io>(&mut self, io: &mut I) {
        while let Some(segment) = self.cx.buffers.poll_drained() {
            io.release(Resource::Segment(segment));
            self.cx.event(Event::StagingDrained { segment });
        }
    }
}
