//! Every bound of the data path, with its reason: in one file, since they hold each other.
//! Relations are proved at compile time.

use crate::units::Nanos;

/// The longest payload of a frame in bytes. No frame blocks its connection for longer than these
/// bytes take to send.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 20;

/// The unit of staging, in bytes.
pub const GRANULE_BYTES: u32 = 64 * 1024;

/// The longest run of staging: a fragment of 1 MiB with an unaligned edge on both sides.
pub const RUN_BYTES_MAX: u32 = 18 * GRANULE_BYTES;

/// The most extents of a transfer that are in place beyond its watermark. An honest sender has at
/// most a plan's depth of fragments under way. More extents are a fault of the sender.
pub const EXTENTS_MAX: usize = 32;

/// The longest fragment: one run of staging holds it, one frame carries it.
pub const FRAGMENT_BYTES_MAX: u32 = 1 << 20;

/// The shortest fragment, in bytes, of a plan with equal sizes at all levels; solved sizes have
/// bounds of their own (`solve.rs`). Below this size the cost of the shard for each fragment (about
/// 2 us) is no longer small beside the device's.
pub const FRAGMENT_BYTES_MIN: u32 = 16 * 1024;

/// The most fragments of one transfer under way: a receiver keeps as many extents.
pub const DEPTH_MAX: u32 = 32;

/// Most requests for a plan that a shard has out at once. Each path and size class has one, and
/// each is answered within about a millisecond. A plan that finds no room here is requested when
/// costs change again.
pub const QUESTIONS_MAX: usize = 64;

/// The longest read, write or one part of a copy, in bytes. Longer transfers are a `copy`, which
/// has no limit.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Chunks of one copy that are under way at once.
pub const COPY_CHUNKS: usize = 8;

/// Most staging for the copies of one session, as a multiple of what is left for all copies. One
/// session gets three quarters. A quarter of what is left always remains for the next session.
pub const COPY_SHARE: u64 = 3;

/// Most connections with all peers together, dialled and accepted: with [`LINKS_MAX`] nodes two
/// each way. At rest they take a ninth of a default staging.
pub const LANES_MAX: u32 = 1024;

/// Staging of a connection that does nothing, in bytes: a ninth of a granule. It suffices for all
/// that a connection does, in small bites, but for encrypted payloads that are sent.
pub const LANE_RESTING_BYTES: u32 = 7 * 1024;

/// How long a connection has nothing to do, at the least, before it gives back the memory that it
/// took for work. Who asks for something so seldom does not notice that it is taken again.
pub const LANE_REST_TIME: Nanos = Nanos::from_millis(10_000);

/// Divides [`LANES_MAX`] and [`LINKS_MAX`]: one such part is kept for nodes that have proved who
/// they are, if there are keys. 64 of these nodes then have all of their connections.
pub const PROVEN_SHARE: u32 = 4;

/// Divides staging: one such part, half, is the most that scratch memory of connections without a
/// key may take.
pub const PLAIN_STAGING_DIVISOR: u64 = 2;

/// How many thirds of all places one address, one user or one node with a key may have. Places are
/// connections, handles, requests and messages. A party that comes under ever new names thus never
/// has all of them.
pub const ORIGIN_THIRDS: u32 = 2;
/// Replaces [`ORIGIN_THIRDS`] for connections without a key where the node uses keys, since they
/// are the exception there.
pub const ORIGIN_THIRDS_BESIDE_KEYS: u32 = 1;

/// Places for connections that are closing, so that a displaced connection leaves room at once.
pub const LANES_CLOSING: u32 = 16;

/// Most sends, over all connections, whose memory the kernel still uses after they have ended. A
/// driver has a place for each, beside its places for operations. A connection that finds no place
/// here copies instead.
pub const NOTICES_MAX: u32 = 512;

/// Most peers that a shard dials at a time. Those at which nothing is open make room for others.
/// Each has two connections, or three with a second address, so a quarter of [`LANES_MAX`] at the
/// least stays for nodes that ask.
pub const PEERS_DIALLED_MAX: u32 = 256;

/// So many more are dialled for a while, where those at which nothing is open are still to be told
/// something.
pub const PEERS_RESTING_MAX: u32 = 16;

/// Most connections that a shard has dialled. The rest of [`LANES_MAX`] is for nodes that ask.
pub const LANES_DIALLED_MAX: u32 = 3 * PEERS_DIALLED_MAX;

/// Most of [`PEERS_DIALLED_MAX`] that are dialled always because a source of discovery names them:
/// all others of a cluster of 200 nodes. The rest is for those that are dialled when they are used.
pub const PEERS_ALWAYS_MAX: u32 = PEERS_DIALLED_MAX / 8 * 7;

/// Most nodes that ask a shard, connected or remembered. A new one takes the place of the one that
/// left first.
pub const LINKS_MAX: u32 = 256;

/// Most requests of one peer that are served at once. HelloAck tells the peer this number, so more
/// is a fault of the peer.
pub const SERVES_PER_LANE: u32 = 256;

/// Replaces [`SERVES_PER_LANE`] on a connection by way of a second address, where only parts of
/// reads go.
pub const SERVES_OF_SECOND: u32 = 64;

/// Most requests of all peers together that are served at once.
pub const SERVES_MAX: u32 = 2048;

/// Most handles that one peer may hold.
pub const HANDLES_PER_LINK: usize = 4096;

/// Most opens under way on one connection.
pub const OPENS_PER_LANE: u32 = 64;

/// Most accepted connections that have not said who they are; the oldest makes room for a new one.
pub const STRANGERS_MAX: usize = 16;

/// How long an accepted connection may take to say who it is. Hello is its first segment, and this
/// time allows for two losses of it. More is not allowed, because a connection holds a socket and
/// staging from the start.
pub const HELLO_TIME: Nanos = Nanos::from_millis(5_000);

/// The longest deadline of a request: one hour.
pub const DEADLINE_MAX: Nanos = Nanos::from_millis(3_600_000);

/// Most handles that all peers together may hold.
pub const SERVED_MAX: u32 = 16_384;

/// Most of the handles in [`SERVED_MAX`] that are files. Each file takes two descriptors of the
/// table that clients' files and sockets are in.
pub const SERVED_FILES_MAX: u32 = 4096;

/// Most unfinished messages, changes of words and notifications by one handle. As many may be
/// repeated after a lost connection and must be recognised then. A frame cannot say a larger
/// number.
pub const NUMBERS_PER_HANDLE: u32 = 256;

/// Most bytes that one part of a vectored request moves: the staging it takes on both sides, and
/// what a turn copies at once.
pub const PART_BYTES: u32 = 512 * 1024;

/// Most pieces in one part of a vectored request; each piece is a copy.
pub const PART_PIECES: u32 = 4096;

/// Most rows in the table of one part of a vectored request.
pub const PART_ROWS: u32 = 1024;

/// Most parts of one vectored request that are under way at once.
pub const VECTOR_PARTS: usize = 8;

/// Most rows in the table of a client's vectored request.
pub const TABLE_ROWS_MAX: u32 = 1 << 16;

/// Most buffers of one request: as many as `readv` takes. One turn reads the list of all of them.
pub const BUFFERS_MAX: u32 = 1024;

/// Divides the staging of one peer and all staging: the tables of gets may have one such part, the
/// tables of puts another, and calls of peers and of clients one each.
pub const TABLE_STAGING_DIVISOR: u64 = 8;

/// Most distinct notification ids of a region that were raised and not taken yet.
pub const NOTIFICATIONS_PER_REGION: usize = 4096;

/// Notifications of peers that other shards of the node are asked for at once. They answer within
/// a few turns; a peer that asks for more in that time is told to come again.
pub const NOTIFICATIONS_ASKED_MAX: usize = 1024;

/// Most messages that peers have announced and that nobody has received. Each takes an entry of 150
/// bytes here and nothing else, because its bytes stay with the sender.
pub const MAIL_MAX: usize = 65_536;

/// Most announced messages of one peer, of [`MAIL_MAX`] for all.
pub const MAIL_PER_LINK: u32 = 8192;

/// Most announced messages that one turn forgets because their senders' deadlines have passed.
pub const MAIL_PER_TURN: usize = 256;

/// Most channels of a shard whose messages are remembered for advice on memory. Each takes 30 KiB,
/// which the shard's thread copies for every request for advice.
pub const CHANNELS_SEEN_MAX: usize = 16;

/// Messages remembered of each such channel: some bursts of a hundred.
pub const MESSAGES_SEEN: usize = 512;

/// Divides a shard's staging: one such part is the most that its unexpected-message buffer takes,
/// because messages that nobody asks for stay there.
pub const EARLY_STAGING_DIVISOR: u64 = 4;

/// Unit in which the unexpected-message buffer is given out, in bytes; short messages share a unit.
pub const EARLY_GRANULE_BYTES: u64 = GRANULE_BYTES as u64;

/// The longest message, in bytes, that is sent without being announced. The latency connection
/// carries it, and other messages wait behind it.
pub const EAGER_BYTES_MAX: u32 = 256 * 1024;

/// The longest time for which an eager message may keep the latency connection busy.
pub const EAGER_TIME_MAX: Nanos = Nanos::from_micros(500);

/// The smallest bound for eager messages that is tried, in bytes.
pub const EAGER_BYTES_MIN: u32 = 1024;

/// Assumed time of a rendezvous with a peer until one was measured.
pub const HANDSHAKE_FIRST: Nanos = Nanos::from_micros(50);

/// Most frames of data queued on one connection.
pub const LANE_QUEUE_DATA: usize = 128;

/// Largest total weight of all clients of a peer, beside clients of this node and other peers.
pub const PEER_WEIGHT_MAX: u64 = 64;

/// Bytes that a connection sends at once while several requests share it.
pub const SHARED_BATCH_BYTES: u64 = 128 * 1024;

/// Most frames of data of one connection that wait for their turn. A connection's requests have
/// fewer together, unless very many of them have many short frames.
pub const LANE_WAITING_MAX: usize = 16 * SERVES_PER_LANE as usize;

/// Most frames queued on one connection: data, and one answer to every request and open there may
/// be, so that answers always find room. An announced message is an exception: it is answered at
/// once, and again when somebody receives it. If these answers find no room, the connection is
/// closed, and the messages are announced again.
pub const LANE_QUEUE: usize = LANE_QUEUE_DATA + 2 * SERVES_PER_LANE as usize;

/// Most frames that one request may have queued on its connection, so that others get a turn.
pub const FRAMES_PER_OWNER: u32 = 4;

/// Most bytes of writes that a peer may have under way to us on one connection. They count as
/// payload and as the staging that holds the payload.
pub const CREDIT_BYTES: u64 = 8 << 20;
/// Divides all staging: one such part is the largest window of credit, if it is less than
/// [`CREDIT_BYTES`].
pub const CREDIT_STAGING_DIVISOR: u64 = 8;

/// Divides the window of credit: when one such part is free again, credit goes back to the peer.
/// One frame thus serves many pieces.
pub const CREDIT_BATCH_DIVISOR: u64 = 4;

/// The longest piece of a write, in bytes, on a connection with that window of credit. The peer
/// keeps credit back until it is worth a frame. The next piece must never wait for that credit.
#[must_use]
pub const fn write_piece_max(credit_window: u64) -> u64 {
    let certain = credit_window - credit_window.div_ceil(CREDIT_BATCH_DIVISOR);
    // In whole pages, so that what follows stays aligned; a window of less is not worth a thought,
    // but no piece is empty, whatever a peer says its window is.
    let aligned = certain / 4096 * 4096;
    let piece = match certain {
        0 => 1,
        _ if aligned > 0 => aligned,
        _ => certain,
    };
    if piece < FRAGMENT_BYTES_MAX as u64 { piece } else { FRAGMENT_BYTES_MAX as u64 }
}

/// How long received bytes of a peer's write may wait for a device that completes nothing. Other
/// requests use the same connection and its credit.
pub const CHOKED_TIME: Nanos = Nanos::from_millis(2_000);

/// Parts that a peer's limits are divided into: one for the writes of each of its two connections,
/// the rest for its reads.
pub const LINK_SHARES: u64 = 4;

/// How long locks last of a node that is away: then it loses what it has open here. Long enough for
/// a restart of a switch, short enough for whoever waits for the lock.
pub const LOCK_LEASE: Nanos = Nanos::from_millis(30_000);

/// The least staging that works, in bytes, beside what connections hold: the longest fragment of a
/// read, and the least credit for a write. A copy takes its chunks from half of it.
pub const STAGING_LEAST: u64 = RUN_BYTES_MAX as u64 + FRAGMENT_BYTES_MAX as u64;

/// How long frames of a finished read may stay queued while the connection sends nothing. Then the
/// connection is closed, because these frames name memory that somebody may wait for. A peer may be
/// silent for as long.
pub const UNREAD_TIME: Nanos = Nanos::from_millis(10_000);

/// How long frames of a finished read may stay queued whatever the connection sends. A peer that
/// reads a frame now and then would otherwise hold that memory for as long as its queue is. A full
/// queue of the longest frames takes this long at 17 Mbit/s.
pub const UNREAD_TIME_MAX: Nanos = Nanos::from_millis(60_000);

/// How long a frame may take from its first byte to the end of its header, and from there to the
/// end of its payload. Meanwhile it holds staging that others wait for, or a client's buffer. The
/// longest frame takes this long at 280 kbit/s.
pub const FRAME_TIME: Nanos = Nanos::from_millis(30_000);

/// A full driver is tried again after this time, if none of its operations ends before. The time is
/// long beside an operation and short beside a deadline.
pub const DRIVER_FULL_TIME: Nanos = Nanos::from_millis(1);

/// Least time between two reports of a peer that are used. A report costs more than the frame that
/// carries it, and an honest peer has nothing new sooner.
pub const REPORT_PAUSE: Nanos = Nanos::from_micros(500);

/// How often one request is sent again because its payload did not match its checksum.
pub const CORRUPT_RETRIES: u32 = 3;

/// Requests of at most this many bytes travel on the latency connection when their class is
/// `latency`.
pub const LATENCY_LANE_BYTES_MAX: u64 = 256 * 1024;

/// Reads of at least this many bytes go two ways where their peer is reached on two: shorter
/// ones take about as long as the request that each way costs.
pub const WAYS_BYTES_MIN: u64 = 128 * 1024;

/// A way on which nothing was heard for so long, though something was asked for, gets no new reads.
pub const WAY_SILENT: Nanos = Nanos::from_millis(250);

/// Where a transfer may be cut that goes two ways: at what devices read at once.
pub const WAY_UNIT_BYTES: u64 = 4096;

/// Most nodes that one handle reads a file from. Each has a bit of a byte.
pub const REPLICAS_MAX: usize = 8;

/// A part of a read has at least so long before another replica is asked for it: much longer than
/// a disk that seeks or a connection that is made anew, and short beside a deadline.
pub const REPLICA_PATIENCE: Nanos = Nanos::from_millis(500);

/// A replica that failed, or was too slow, gets no new reads for so long if there are others.
pub const REPLICA_REST: Nanos = Nanos::from_millis(1_000);

/// Most times that parts of one read go to another replica.
pub const REPLICA_MOVES_MAX: u8 = 16;

/// Reads of files of at least this many bytes are taken from the page cache and from the device at
/// once where the cache has a part of them: of shorter ones the latency of the device is most.
pub const STRIPED_BYTES_MIN: u64 = 128 * 1024;

/// Longer reads than this are not: the time to ask what the page cache has of a read grows with its
/// length (1 us for 32 MiB), and nobody else has the shard's thread meanwhile.
pub const STRIPED_BYTES_MAX: u64 = 32 << 20;

/// Where the page cache is asked for a part of a range: no page of any machine lies on both sides,
/// and a part is long enough to be worth a request of its own.
pub const STRIPE_UNIT_BYTES: u64 = 64 * 1024;

/// Most calls that find out which parts of a range are in the page cache. Each halves a part that
/// is there in part. So many find one end of what is cached in 8 MiB to the unit, and take less
/// than the device takes for a block.
pub const STRIPE_LOOKS_MAX: usize = 7;

/// Most parts of a read that come from the page cache and the device by turns: all looks find them.
pub const STRIPES_MAX: usize = STRIPE_LOOKS_MAX + 1;

/// Most bytes that a peer's read is ahead at the device of what is sent, while what is before them
/// comes from the page cache: so much staging waits.
pub const STRIPES_AHEAD_BYTES: u64 = 4 << 20;

/// Most bytes that are copied from memory to memory at once.
pub const COPY_PIECE_BYTES: u32 = 256 * 1024;

/// The longest message that is copied to the receive of another shard as soon as that asks for it,
/// in about 2 us. A longer one takes its turn, piece by piece.
pub const TAKEN_AT_ONCE_BYTES: u32 = 16 * 1024;

/// Most bytes of memory-to-memory copies in one turn of a shard, about 50 us, so that long puts do
/// not hold other work up.
pub const COPY_BYTES_PER_TURN: u32 = 512 * 1024;

/// Most pieces of work that one turn looks at.
pub const WORK_PER_TURN: usize = 256;

/// Most staging for reads of peers from one device, as a multiple of what is left: a single device
/// gets four fifths. A device of a foreign file system gets half of what connections do not need.
pub const STAGING_SHARE: u64 = 4;

/// The most operations that one fragment needs at a file.
pub const OPS_PER_JOB: u32 = 3;

/// Most operations at once at a foreign file system, each of which keeps a thread of the driver
/// busy. So many keep a link to another machine busy with the longest fragments.
pub const FOREIGN_OPS_PER_DEVICE: u32 = 32;

/// Most operations at once at all foreign file systems together. A file system without any may
/// begin one beyond this bound.
pub const FOREIGN_OPS_MAX: u32 = 256;

/// The unit of staging for calls, in bytes: the longest call, and a short answer behind it.
pub const CELL_BYTES: u32 = 4096;

/// Most calls at once at one device, each of which may keep a thread of the driver busy for as long
/// as the device takes. The driver has threads for several devices that stall.
pub const CALLS_PER_DEVICE: u32 = 32;

/// Finished transfers remembered for `explain`.
pub const HISTORY: usize = 256;

/// The most transfers of one recording.
pub const TRACE_TRANSFERS_MAX: u32 = 64;

/// Most visits of fragments to stages in one recording, shared equally by its transfers: 2 MiB of
/// memory, and about 6 MB of JSON.
pub const TRACE_VISITS_MAX: u32 = 65_536;

/// Most visits of a plan that are evaluated on the shard's thread for `explain`.
pub const EXPLAIN_VISITS_MAX: usize = 2048;

/// Most stages in one answer for metrics: those of 64 peers, with four for each connection. A shard
/// copies them on its own thread. One with more of them shows a part.
pub const STAGES_OBSERVED_MAX: usize = 512;

/// Most stages that do not exist at present and whose costs are remembered: eight for each of 128
/// peers. Stages of peers that connect uninvited make room first, the oldest before the others.
pub const STAGES_REMEMBERED_MAX: usize = 1024;

/// Most delay injections that are set at once. Studies use two for a disk and three for a peer.
pub const DIALS_MAX: u32 = 64;

/// Most fragments that all delay injections together hold. Beyond it, disks begin nothing more and
/// connections are not read, so that the sources wait.
pub const DIALS_HELD_MAX: usize = 4096;

/// The longest `L` and `g` of a delay injection: short beside the time after which a connection
/// counts as dead.
pub const DIAL_TIME_MAX: Nanos = Nanos::from_millis(1_000);

/// The largest `G` of a delay injection, in picoseconds a byte: the longest fragment then takes
/// about as long as the largest `g`.
pub const DIAL_PER_BYTE_PS_MAX: u64 = 1_000_000;

/// The longest `o` of a delay injection: all requests of the shard wait for it.
pub const DIAL_HOST_MAX: Nanos = Nanos::from_millis(10);

const _: () = assert!(DIAL_TIME_MAX.0 < UNREAD_TIME.0);
const _: () = assert!(4 * LINKS_MAX <= LANES_MAX);
const _: () = assert!(LANES_DIALLED_MAX + PEERS_DIALLED_MAX <= LANES_MAX);
const _: () = assert!(crate::call::CALL_BYTES_MAX < CELL_BYTES as usize);
// An answer is one run of staging and one frame.
const _: () = assert!(crate::call::ANSWER_BYTES_MAX <= PAYLOAD_BYTES_MAX as u64);
const _: () = assert!(crate::call::ANSWER_BYTES_MAX <= RUN_BYTES_MAX as u64);
const _: () = assert!(FRAGMENT_BYTES_MAX <= PAYLOAD_BYTES_MAX);
const _: () = assert!(EAGER_BYTES_MAX <= PAYLOAD_BYTES_MAX && EAGER_BYTES_MAX <= RUN_BYTES_MAX);
// A misaligned fragment needs a granule more on each side.
const _: () = assert!(FRAGMENT_BYTES_MAX + 2 * GRANULE_BYTES <= RUN_BYTES_MAX);
const _: () = assert!(DEPTH_MAX as usize <= EXTENTS_MAX);
// All parts may be under way at once, and land in any order.
const _: () = assert!(STRIPES_MAX <= VECTOR_PARTS);
const _: () = assert!(REPLICAS_MAX <= STRIPES_MAX && REPLICAS_MAX <= u8::BITS as usize);
const _: () = assert!(STRIPE_UNIT_BYTES.is_multiple_of(WAY_UNIT_BYTES));
const _: () = assert!(FRAGMENT_BYTES_MIN <= FRAGMENT_BYTES_MAX);
const _: () = assert!(FRAGMENT_BYTES_MAX as u64 <= STAGING_LEAST / 2);
const _: () = assert!(UNREAD_TIME.0 < UNREAD_TIME_MAX.0);
