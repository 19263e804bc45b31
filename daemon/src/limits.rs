//! All bounds of the daemon outside the engine, with their reasons. Relations are proved at compile
//! time.

use std::time::Duration;

use piped_core::units::Nanos;
use piped_ring::handshake;

use crate::places::Bounds;

/// Time before a dial's release in which a shard spins instead of sleeping: longer than a wake-up
/// takes, even if another CPU has to be woken.
pub const DIAL_SPIN: Nanos = Nanos::from_micros(150);

/// Requests taken from one queue before the next has its turn: enough to amortize a turn, few
/// enough that 16 busy queues still share each turn.
pub const REQUESTS_PER_QUEUE: u32 = 32;

/// Requests taken in one turn: at about 100 ns each the turn stays well below a disk's latency.
pub const REQUESTS_PER_TURN: u32 = 256;

/// The least time without requests and completions after which a queue rests: its client rings from
/// then on, and no turn looks at it. As long as a client spins at most by default. A shard that
/// spins for long waits twice as long as it spins.
pub const QUEUE_RESTS_AFTER: Nanos = Nanos::from_millis(1);

/// Requests of clients in execution on one shard. Further ones wait in the clients' rings.
pub const REQUESTS_MAX: u32 = 2048;

/// Receives and waits in execution on one shard, beside those requests, because they wait for
/// others. Further ones are refused.
pub const WAITS_MAX: u32 = 2048;

/// Receives and waits of one user: half of them.
pub const WAITS_OF_USER: u32 = WAITS_MAX / 2;

/// Transfers of the engine: those requests, receives and waits, the parts of copies, and requests
/// that were given up but are still with the kernel.
pub const TRANSFERS_MAX: u32 = 6144;

/// Operations at the driver of one shard.
pub const OPS_MAX: u32 = 4096;

/// Files and sockets of one shard. The limit of open files of the process may lower it.
pub const FILES_MAX: u32 = 32 * 1024;

/// Segments of one shard: arenas, regions of other shards, staging.
pub const SEGMENTS_MAX: u32 = 4096;

/// Messages of the control thread that wait for one shard. A full mailbox makes the sender wait.
pub const MAILBOX: usize = 256;

/// Messages taken in one turn. Some of them cost system calls (registering a file).
pub const MESSAGES_PER_TURN: u32 = 16;

/// Relays that wait between two shards, in each direction. There are as many queues as ordered
/// pairs of shards, some 20 KiB each; what finds one full waits in the engine, whose own bounds
/// hold.
pub const RELAYS_PER_QUEUE: usize = 256;

/// Relays taken from one other shard in one turn: as many as requests, which cost as much.
pub const RELAYS_PER_TURN: u32 = REQUESTS_PER_TURN;

/// Time between two writes of measurements, if there is news: a restart forgets a minute at most.
pub const KEEP_EVERY: Duration = Duration::from_secs(60);

/// Longest time to read or write them: the daemon begins, and ends, without.
pub const KEEP_TIMEOUT: Duration = Duration::from_secs(3);

/// Devices with known names. Stages on other devices are not persisted.
pub const DEVICES_NAMED_MAX: usize = 1024;

/// Segments of one session: the Welcome's, those of GrowArena, and lent ones.
pub const SEGMENTS_PER_SESSION: usize = 256;

/// Handles of one session.
pub const HANDLES_PER_SESSION: usize = 4096;

/// Descriptors of one open file: through the page cache, and around it.
pub const FILES_PER_OPEN: u32 = 2;

/// Files of one session that are open or not closed yet, for each shard that serves it: those of
/// all its handles, and those of its connection.
pub const FILES_PER_SESSION: usize =
    FILES_PER_OPEN as usize * HANDLES_PER_SESSION + FILES_PER_HANDSHAKE;

/// Files of one connection: its socket, and those that may come with its next message.
pub const FILES_PER_HANDSHAKE: usize = 1 + handshake::fds::FDS_RECEIVED_MAX;

/// Segments of all sessions of one user that the daemon made. With those that they lend no user has
/// more than half of the places of a shard.
pub const SEGMENTS_OF_USER: u64 = SEGMENTS_MAX as u64 / 4;

/// Segments that all sessions of one user lend.
pub const LENT_SEGMENTS_OF_USER: u64 = SEGMENTS_MAX as u64 / 4;

/// Files that all sessions of one user have open on one shard, as handles of [`FILES_PER_OPEN`]
/// descriptors: a quarter of the shard's places. All peers have a quarter together, so half is for
/// others and for sockets.
pub const FILES_OF_USER: u64 = (FILES_MAX / FILES_PER_OPEN / 4) as u64;

/// Clients that have connected and not said Hello yet: at most half of them of one user, for
/// programs that start many clients at once. Beyond that the oldest makes room, see
/// [`crate::places`].
pub(crate) const HANDSHAKES: Bounds = Bounds { all: 64, reserved: 0, each: 32 };

/// Strangers that have connected and are being told that they are. They are one party: the next one
/// takes the place of the oldest.
pub(crate) const STRANGERS: Bounds = Bounds { all: 8, reserved: 0, each: 8 };

/// Users with connections on a doorstep, turned away and not closed yet, each with an account of
/// its own. Further users count with the strangers.
pub const DOORSTEP_USERS_MAX: usize = 32;

/// Connections of strangers, and of operators, on one doorstep that are closed at once.
pub const DOORSTEP_CLOSERS: usize = 8;

/// Connections of another user that are closed at once.
pub const DOORSTEP_CLOSERS_OF_USER: usize = 2;

/// Connections of strangers, and of operators, that may wait on one doorstep to be closed, in a
/// process with this many files. A user has a part of that. All of them together leave more than
/// half of the files to others. Beyond the limit the next caller waits to be accepted, so the limit
/// is high: an attacker must hold as many hanging descriptors open.
#[must_use]
pub const fn doorstep_files(nofile: usize) -> usize {
    if nofile < 16 * 64 { 64 } else { nofile / 16 }
}

/// Connections of one user that may wait there.
#[must_use]
pub const fn doorstep_files_of_user(nofile: usize) -> usize {
    let part = doorstep_files(nofile) / DOORSTEP_USERS_MAX;
    if part < 8 { 8 } else { part }
}

/// Longest time for a client to say Hello, and to take a reply.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time that the control thread waits for a shard's answer. Turns take microseconds, so a shard
/// without an answer for this long is broken.
pub const SHARD_TIMEOUT: Duration = Duration::from_secs(10);

/// Time beyond a request's own deadline before an open at a peer is given up.
pub const REMOTE_OPEN_GRACE: Duration = Duration::from_secs(1);

/// Time that other nodes have to open a file when one of several has opened it.
pub const REPLICA_OPEN_GRACE: Duration = Duration::from_secs(1);

/// Opens for peers at once; further ones are told to try again.
pub const PEER_OPENS_MAX: usize = 64;

/// Files that plans look at, at once, because their file systems may hang.
pub const PLAN_LOOKS_MAX: usize = 4;

/// Longest time for a peer that connected to prove its identity. Three round trips; a lost packet
/// is sent again twice.
pub const GREETING_TIME: Duration = Duration::from_secs(4);

/// Peers that are proving their identity at once, from addresses without an earlier proof.
pub const GREETINGS_MAX: usize = 512;

/// Peers from addresses with an earlier proof: no stranger takes their places.
pub const KNOWN_GREETINGS_MAX: usize = 256;

/// How long data sent to a peer may stay unacknowledged before the lane is lost.
pub const LANE_TIMEOUT: Duration = Duration::from_secs(10);

/// Idle time of a lane before the kernel asks for the other side, and time between its questions. A
/// peer that is gone without a word (power, cable) is lost at the first question that is due once
/// [`LANE_TIMEOUT`] is over.
pub const LANE_KEEPALIVE: Duration = Duration::from_secs(5);

/// Unsent bytes of a lane's socket: more would make urgent frames wait behind others, less would
/// let the link run dry between two turns.
pub const LANE_UNSENT_BYTES: u32 = 256 * 1024;

/// Connections to the admin API at once: a quarter is kept for users that may change the daemon,
/// and one user that may only look has a third of the rest.
pub(crate) const OPERATORS: Bounds = Bounds { all: 32, reserved: 8, each: 8 };

/// Longest time for a request to the admin API to arrive, for its answer to be taken, and for its
/// connection to stay idle.
pub const ADMIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest time to read the files of a configuration, and to open the directories of exports.
/// `pipectl` waits longer.
pub const RELOAD_TIMEOUT: Duration = Duration::from_secs(4);

/// The longest body of a request to the admin API, in bytes.
pub const ADMIN_BODY_BYTES_MAX: usize = 16 * 1024;

/// Connections to `[metrics] address` at once: a few servers scrape, and each has one at a time. An
/// address has some more, because a network may be behind it.
pub(crate) const SCRAPERS: Bounds = Bounds { all: 16, reserved: 0, each: 8 };

/// Longest time for a scraper to ask.
pub const METRICS_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time of a scrape from connection to the last byte: as long as Prometheus waits, and
/// longer than [`SHARD_TIMEOUT`].
pub const METRICS_EXCHANGE_TIMEOUT: Duration = Duration::from_secs(15);

/// Greatest age of an answer on `[metrics] address`: shards are not asked more often, however many
/// scrape.
pub const METRICS_AGE: Nanos = Nanos::from_millis(100);

/// Greatest age of the page of `GET /`, which asks more of the shards.
pub const PAGE_AGE: Nanos = Nanos::from_millis(1_000);

/// Transfers in one list. Further ones are counted, not listed, because a shard makes the list on
/// its own thread.
pub const TRANSFERS_LISTED_MAX: usize = 512;

/// Files that all peers together have open or not closed yet: as many handles as the engines of so
/// many shards have for them.
#[must_use]
pub const fn peer_files_max(shards: usize) -> usize {
    shards * FILES_PER_OPEN as usize * piped_core::limits::SERVED_FILES_MAX as usize
}

/// Files of peers closed at once. They lie in directories that the operator chose, which hang as a
/// whole if at all.
pub const PEER_CLOSERS: usize = 8;

/// Threads for calls that may hang in a file system. A session opens one file at a time and closes
/// one, a connection closes one, and peers open and close some. A few more do work that takes long
/// but ends.
#[must_use]
pub const fn threads_max(sessions: u32) -> usize {
    let places = HANDSHAKES.connections() + OPERATORS.connections();
    // Both unix sockets have strangers and a doorstep.
    let doorstep = 2 * DOORSTEP_CLOSERS + DOORSTEP_USERS_MAX * DOORSTEP_CLOSERS_OF_USER;
    let connections = places + LISTENERS * (STRANGERS.connections() + doorstep);
    2 * sessions as usize
        + connections
        + LISTENERS
        + PEER_OPENS_MAX
        + PEER_CLOSERS
        + PLAN_LOOKS_MAX
        + 8
}

/// Unix sockets the daemon listens on: the clients' and the operators'.
pub const LISTENERS: usize = 2;

/// Longest time for a shard to end its sessions when the daemon stops.
pub const STOP_TIMEOUT: Nanos = Nanos::from_millis(3_000);

/// Time that the daemon waits for its shards when it stops: the above, the driver's own time when
/// it is dropped, and some more.
pub const SHARD_JOIN_TIMEOUT: Duration = Duration::from_secs(8);

/// A staging segment. The driver registers at most this much in a turn.
pub const STAGING_SEGMENT_BYTES: u64 = crate::io::REGISTRATION_BYTES_PER_TURN;

const _: () = assert!(REQUESTS_PER_QUEUE <= REQUESTS_PER_TURN);
// One session does not reach the limit of its user.
const _: () = assert!(SEGMENTS_PER_SESSION as u64 <= SEGMENTS_OF_USER);
const _: () = assert!(SEGMENTS_PER_SESSION as u64 <= LENT_SEGMENTS_OF_USER);
const _: () = assert!(2 * (SEGMENTS_OF_USER + LENT_SEGMENTS_OF_USER) <= SEGMENTS_MAX as u64);
const _: () = assert!(HANDLES_PER_SESSION as u64 <= FILES_OF_USER);
const _: () = assert!(REQUESTS_PER_TURN <= REQUESTS_MAX);
// At least one question stays without answer before the lane is lost.
const _: () = assert!(2 * LANE_KEEPALIVE.as_secs() <= LANE_TIMEOUT.as_secs());
// A third of the transfers stay for parts of copies, for requests that were given up, and (less
// than a fifth) for what other shards ask.
const _: () = assert!(2 * REQUESTS_MAX + WAITS_MAX <= TRANSFERS_MAX);
// The engine's own bound of receives and waits is not reached.
const _: () = assert!(WAITS_MAX <= TRANSFERS_MAX / 2);
// Every transfer can have an operation at the kernel, and every lane two.
const _: () = assert!(OPS_MAX >= REQUESTS_MAX + 2 * piped_core::limits::LANES_MAX);
const _: () = assert!(4 * FILES_PER_OPEN * piped_core::limits::SERVED_FILES_MAX <= FILES_MAX);
// The lanes leave most of the table of files to files.
const _: () = assert!(FILES_MAX > 4 * piped_core::limits::LANES_MAX);
const _: () = assert!(SEGMENTS_PER_SESSION >= handshake::WELCOME_SEGMENTS_MAX as usize);
const _: () = assert!(
    SHARD_JOIN_TIMEOUT.as_nanos() as u64 > STOP_TIMEOUT.0 + crate::io::UringIo::SHUTDOWN_TIMEOUT.0
);
