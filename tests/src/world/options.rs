//! How large a world is and what goes wrong in it.

use piped_core::limits::LANE_REST_TIME;
use piped_core::link::{Checksum, Protection};
use piped_core::modes::{CalibrationMode, EagerMode, PlannerMode, ZeroCopyMode};
use piped_core::units::Nanos;
use piped_sim::{Cost, Faults, Random, ZeroCopy};

use crate::operators;

/// What a world is made of.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Clients, spread over both nodes.
    pub clients: usize,
    /// Requests each of them makes.
    pub requests: u32,
    /// The most requests of one client in flight.
    pub depth: u32,
    /// The longest request, in bytes.
    pub longest: u64,
    /// Files on each node.
    pub files: usize,
    /// The probabilities of the kernel's faults.
    pub faults: Faults,
    /// Probability that a dial fails.
    pub connect_fails: f64,
    /// Clients that die in the middle.
    pub deaths: usize,
    /// Nodes that lose power in the middle, and come back.
    pub crashes: usize,
    /// Times a device serves nobody for a while.
    pub stalls: usize,
    /// What each device has room for beyond its files, in bytes; `None`: plenty.
    pub spare: Option<u64>,
    /// Times that limits change in the middle.
    pub limit_changes: usize,
    /// Times that a dial is set or cleared in the middle.
    pub dial_changes: usize,
    /// Probability that a client cancels its last request.
    pub cancels: f64,
    /// Probability of a deadline too short to be met.
    pub hasty: f64,
    /// Probability that a shard's thread is away after a turn, and the longest time.
    pub busy: f64,
    /// The longest that a thread is [`busy`](Self::busy).
    pub busy_max: Nanos,
    /// Deadline of requests that do not say.
    pub deadline: Nanos,
    /// How long a range rests after a write that failed.
    pub quarantine: Nanos,
    /// Staging memory of each node, in bytes.
    pub staging: u64,
    /// Bytes of a socket's buffer, each direction.
    pub socket_buffer: usize,
    /// The most operations at a driver, and at a shard.
    pub ops_max: u32,
    /// The mode in which shards plan.
    pub planner: PlannerMode,
    /// The mode in which shards learn costs.
    pub calibration: CalibrationMode,
    /// Whether `auto` begins with one fragment at a time.
    pub serial_first: bool,
    /// How long a lane has nothing to do before it rests.
    pub lane_rest_time: Nanos,
    /// Whether each client has a channel.
    pub channels: bool,
    /// Which part of what clients do is done to boards; 0: nobody has one.
    pub boards: f64,
    /// Which part of what clients do is calls of files and of their directories; 0: they have none.
    pub calls: f64,
    /// Which messages are sent without being announced.
    pub eager: EagerMode,
    /// Whether lanes send without a copy.
    pub zero_copy: ZeroCopyMode,
    /// Whether nodes are reached at two addresses.
    pub two_ways: bool,
    /// Times that something becomes of a way: a lane is lost, an address is not reached for a
    /// while, or a second address is taken back or becomes that of another node.
    pub way_changes: usize,
    /// What lanes are sealed with; `None`: plain.
    pub sealed: Option<Protection>,
    /// What checksums of a node's plain lanes are to cover. Where payloads change on the way, they
    /// cover them all the same.
    pub checksums: [Checksum; 2],
    /// What becomes of such sends; `None`: the driver takes none.
    pub lending: Option<ZeroCopy>,
    /// The longest that a client waits before it thinks of something else.
    pub think_max: Nanos,
    /// What operators do to the nodes meanwhile.
    pub operators: Option<operators::Options>,
    /// The most turns of the world until it must have come to rest.
    pub turns_max: u64,
}

impl Options {
    /// Two clients with nothing to do: the test says what happens.
    #[must_use]
    pub const fn scripted() -> Self {
        Self {
            clients: 2,
            requests: 0,
            depth: 4,
            longest: 4 << 20,
            files: 1,
            faults: Faults::none(),
            connect_fails: 0.0,
            deaths: 0,
            crashes: 0,
            stalls: 0,
            spare: None,
            limit_changes: 0,
            dial_changes: 0,
            cancels: 0.0,
            hasty: 0.0,
            busy: 0.0,
            busy_max: Nanos::ZERO,
            deadline: Nanos::from_millis(2_000),
            quarantine: Nanos::from_millis(5_000),
            staging: 32 << 20,
            socket_buffer: 1 << 20,
            ops_max: 512,
            planner: PlannerMode::Auto,
            calibration: CalibrationMode::Live,
            serial_first: false,
            lane_rest_time: LANE_REST_TIME,
            channels: false,
            boards: 0.0,
            calls: 0.0,
            eager: EagerMode::Auto,
            zero_copy: ZeroCopyMode::Auto,
            two_ways: false,
            way_changes: 0,
            sealed: None,
            checksums: [Checksum::Auto; 2],
            lending: None,
            think_max: Nanos::from_millis(20),
            operators: None,
            turns_max: 4_000_000,
        }
    }

    /// Requests of all kinds, nothing goes wrong.
    #[must_use]
    pub fn calm(random: &mut Random) -> Self {
        let planner = match random.below(4) {
            0 => PlannerMode::Whole,
            1 => PlannerMode::Fixed(1 << random.between(12, 20)),
            _ => PlannerMode::Auto,
        };
        let calibration = *random.pick(&[
            CalibrationMode::Live,
            CalibrationMode::Live,
            CalibrationMode::Frozen,
            CalibrationMode::Off,
        ]);
        // Large requests find other things than many small ones, and cost the host more.
        let large = random.chance(0.1);
        let (depth, longest) = match large {
            true => (random.between(1, 4), random.between(19, 21)),
            false => (random.between(1, 16), random.between(10, 18)),
        };
        Self {
            clients: random.between(1, if large { 2 } else { 4 }) as usize,
            requests: random.between(5, 40) as u32,
            depth: depth as u32,
            longest: 1 << longest,
            files: random.between(1, if large { 1 } else { 2 }) as usize,
            cancels: if random.chance(0.3) { 0.1 } else { 0.0 },
            hasty: if random.chance(0.3) { 0.1 } else { 0.0 },
            busy: if random.chance(0.5) { 0.1 } else { 0.0 },
            busy_max: Nanos::from_micros(200),
            deadline: Nanos::from_millis(100_000),
            staging: 1 << random.between(22, 25),
            socket_buffer: 1 << random.between(14, 22),
            ops_max: 1 << random.between(5, 9),
            planner,
            calibration,
            serial_first: random.chance(0.4),
            // Some rest between two requests, others never.
            lane_rest_time: Nanos(1 << random.clone().between(20, 33)),
            channels: true,
            boards: 0.3,
            calls: 0.2,
            eager: match random.below(3) {
                0 => EagerMode::Auto,
                _ => EagerMode::Fixed(random.length(1 << 18) as u32 - 1),
            },
            checksums: [(); 2].map(|()| *random.pick(&Checksum::ALL)),
            ..Self::scripted()
        }
    }

    /// A world with faults of all kinds.
    #[must_use]
    pub fn stormy(random: &mut Random) -> Self {
        Self {
            faults: Faults::mixed(random),
            connect_fails: if random.chance(0.5) { 0.3 } else { 0.0 },
            deaths: random.below(3) as usize,
            crashes: random.below(3) as usize,
            deadline: Nanos::from_millis(random.between(50, 3_000)),
            ..Self::calm(random)
        }
    }

    /// Disks that fail, are full and stall, with sound lanes and daemons.
    #[must_use]
    pub fn sick_disks(random: &mut Random) -> Self {
        let calm = Self::calm(random);
        let all = Faults::mixed(random);
        let faults = Faults {
            disk_error: all.disk_error * 5.0,
            sync_error: all.sync_error * 5.0,
            disk_short: all.disk_short * 5.0,
            delay: all.delay,
            delay_max: all.delay_max,
            full: all.full,
            cancel_works: all.cancel_works,
            ..Faults::none()
        };
        Self {
            faults,
            stalls: random.below(4) as usize,
            spare: random.chance(0.5).then(|| random.below(calm.longest)),
            deaths: random.below(2) as usize,
            deadline: Nanos::from_millis(random.between(20, 1_000)),
            ..calm
        }
    }

    /// Little of everything a node has to give, and storms.
    #[must_use]
    pub fn scarce(random: &mut Random) -> Self {
        let stormy = Self::stormy(random);
        Self {
            clients: random.between(2, 4) as usize,
            longest: stormy.longest.min(1 << 18),
            staging: 4 << 20,
            socket_buffer: 1 << random.between(12, 14),
            ops_max: 1 << random.between(5, 6),
            stalls: random.below(2) as usize,
            ..stormy
        }
    }

    /// A calm or stormy world whose limits change.
    #[must_use]
    pub fn limited(random: &mut Random) -> Self {
        let base = if random.chance(0.5) { Self::calm(random) } else { Self::stormy(random) };
        Self { limit_changes: random.between(1, 12) as usize, ..base }
    }

    /// A world whose stages are dialled, and whose limits change at times.
    #[must_use]
    pub fn dialled(random: &mut Random) -> Self {
        let base = match random.below(3) {
            0 => Self::calm(random),
            1 => Self::stormy(random),
            _ => Self::limited(random),
        };
        Self { dial_changes: random.between(1, 24) as usize, ..base }
    }

    /// Lanes lend their memory to the kernel, which keeps it for long, copies it at times and
    /// refuses it at times, in worlds of all other kinds.
    #[must_use]
    pub fn lending(random: &mut Random) -> Self {
        let base = match random.below(6) {
            0 => Self::calm(random),
            1 => Self::limited(random),
            2 => Self::dialled(random),
            3 => Self::scarce(random),
            _ => Self::stormy(random),
        };
        let cost = |random: &mut Random| Cost {
            latency: Nanos::ZERO,
            overhead: Nanos(random.between(500, 5_000)),
            nanos_per_byte: random.between(1, 20) as f64 / 100.0,
        };
        let lending = ZeroCopy {
            copied: if random.chance(0.5) { 0.0 } else { random.below(100) as f64 / 100.0 },
            held_max: Nanos(1 << random.between(10, 27)),
            refused: if random.chance(0.7) { 0.0 } else { 0.3 },
            costs: random.chance(0.3).then(|| [cost(random), cost(random)]),
        };
        let zero_copy = *random.pick(&[ZeroCopyMode::On, ZeroCopyMode::On, ZeroCopyMode::Auto]);
        let longest = base.longest.max(1 << 17);
        Self { zero_copy, lending: Some(lending), longest, ..base }
    }

    /// Lanes are sealed, in worlds of other kinds.
    #[must_use]
    pub fn sealed(random: &mut Random) -> Self {
        let base = match random.below(6) {
            0 => Self::calm(random),
            1 => Self::limited(random),
            2 => Self::dialled(random),
            3 => Self::lending(random),
            4 => Self::one_sided(random),
            _ => Self::stormy(random),
        };
        let sealed = *random.pick(&[Protection::Integrity, Protection::Encrypted]);
        // Lanes that encrypt have more scratch.
        Self { sealed: Some(sealed), staging: base.staging.max(16 << 20), ..base }
    }

    /// Nodes that are reached at two addresses, with many reads of which half are long, in worlds
    /// of other kinds.
    #[must_use]
    pub fn of_two_ways(random: &mut Random) -> Self {
        let base = match random.below(6) {
            0 => Self::calm(random),
            1 => Self::limited(random),
            2 | 3 => Self::sealed(random),
            _ => Self::stormy(random),
        };
        let way_changes = if random.chance(0.2) { 0 } else { random.between(1, 24) as usize };
        Self {
            two_ways: true,
            way_changes,
            requests: random.between(100, 300) as u32,
            depth: base.depth.min(4),
            longest: base.longest.max(1 << 20),
            staging: base.staging.max(16 << 20),
            channels: false,
            boards: base.boards.min(0.1),
            ..base
        }
    }

    /// Mostly atomics, puts and notifications, with lanes that are lost often, in worlds of other
    /// kinds.
    #[must_use]
    pub fn one_sided(random: &mut Random) -> Self {
        let base = match random.below(6) {
            0 => Self::calm(random),
            1 => Self::limited(random),
            2 => Self::dialled(random),
            3 => Self::lending(random),
            _ => Self::stormy(random),
        };
        let faults = Faults {
            reset: base.faults.reset.max(if random.chance(0.5) { 0.02 } else { 0.0 }),
            reset_notice_max: Nanos(random.length(10_000_000)),
            ..base.faults
        };
        Self {
            faults,
            boards: 0.9,
            clients: base.clients.max(2),
            requests: base.requests * 2,
            depth: base.depth.max(8),
            longest: 1 << random.between(8, 18),
            ..base
        }
    }

    /// Operators change addresses, keys, users, exports and limits under clients that work, end
    /// their sessions and handles, and daemons die and move, in worlds of other kinds.
    #[must_use]
    pub fn operated(random: &mut Random) -> Self {
        let careful = random.chance(0.2);
        let base = match random.below(4) {
            0 => Self::one_sided(random),
            1 => Self::limited(random),
            2 => Self::stormy(random),
            _ => Self::calm(random),
        };
        let base = if careful { Self::calm(random) } else { base };
        let plans = match careful {
            true => operators::Options::careful(random),
            false => operators::Options::wild(random),
        };
        let pause_max = Nanos(1 << random.between(20, 29));
        Self {
            operators: Some(operators::Options { nodes: 2, pause_max, ..plans }),
            think_max: Nanos(1 << random.between(22, 27)),
            requests: base.requests * 2,
            crashes: 0,
            ..base
        }
    }

    /// Whether payloads may change on the way.
    #[must_use]
    pub fn changes_payloads(&self) -> bool {
        self.faults.corrupt > 0.0 || self.faults.garbage > 0.0
    }

    /// Whether a request may end with something else than `Ok` for reasons of the world.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.faults == Faults::none()
            && self.connect_fails == 0.0
            && self.deaths == 0
            && self.crashes == 0
            && self.stalls == 0
            && self.spare.is_none()
            && self.operators.is_none()
    }
}
