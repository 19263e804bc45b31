//! Every bound of the data path, with its reason: in one file, since they hold each other.
//! Relations are proved at compile time.

use crate::units::Nanos;

/// The longest payload of a frame in bytes. A lane is not blocked longer than this takes to send.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 20;

/// The unit of staging, in bytes.
pub const GRANULE_BYTES: u32 = 64 * 1024;

/// The longest run of staging: a fragment of 1 MiB with an unaligned edge on both sides.
pub const RUN_BYTES_MAX: u32 = 18 * GRANULE_BYTES;

/// The most extents of a transfer that are in place beyond its watermark. An honest sender has at
/// most a plan's depth of fragments under way, so more is a fault of the sender's.
pub const EXTENTS_MAX: usize = 32;

/// The longest fragment: one run of staging holds it, one frame carries it.
pub const FRAGMENT_BYTES_MAX: u32 = 1 << 20;

/// The shortest fragment of a plan with equal sizes at all levels (solved ones have bounds of their
/// own, `solve.rs`). Below it the per-fragment cost of the reactor itself (about 2 us) is no longer
/// small against the device's.
pub const FRAGMENT_BYTES_MIN: u32 = 16 * 1024;

/// The most fragments of one transfer under way: a receiver keeps as many extents.
pub const DEPTH_MAX: u32 = 32;

/// Questions for plans that a shard has out at once: a path and size class has one, and each is
/// answered within a millisecond or so. What is not asked now is asked when costs move again.
pub const QUESTIONS_MAX: usize = 64;

/// The longest read, write or one part of a copy. Longer transfers are `copy`, which has no limit.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Chunks of a copy under way at once.
pub const COPY_CHUNKS: usize = 8;

/// What the copies of one session may have of staging, as a multiple of what is left for all
/// copies: one session gets three quarters, and a quarter of what is left always remains for the
/// next.
pub const COPY_SHARE: u64 = 3;

/// Lanes, in and out, over all peers.
pub const LANES_MAX: u32 = 256;

/// Of those and of [`LINKS_MAX`], as a divisor, what only nodes that have proved who they are can
/// have, where there are such: 32 of them with both lanes.
pub const PROVEN_SHARE: u32 = 4;

/// And of staging, for the scratch of plain lanes: half is for the others.
pub const PLAIN_STAGING_DIVISOR: u64 = 2;

/// What one address, one user or one node with a key may have of what all of them may have (lanes,
/// handles, requests, messages), in thirds: so none of them has all by coming under ever new names.
/// For plain ones, where keys are used and they are the exception, it is one third.
pub const ORIGIN_THIRDS: u32 = 2;
/// See [`ORIGIN_THIRDS`].
pub const ORIGIN_THIRDS_BESIDE_KEYS: u32 = 1;

/// Places for lanes that close, so that one that is displaced leaves room at once.
pub const LANES_CLOSING: u32 = 16;

/// Sends of all lanes whose memory the kernel has after they have ended. A driver has a place for
/// each beside those of operations; lanes that find none copy.
pub const NOTICES_MAX: u32 = 512;

/// Peers in the configuration, and peers that may be connected. Of those that connected and left,
/// the one that left first makes room for a new one.
pub const LINKS_MAX: u32 = 128;

/// Requests of one peer being served; told in HelloAck, more is a fault of the peer's.
pub const SERVES_PER_LANE: u32 = 256;

/// Requests being served for all peers.
pub const SERVES_MAX: u32 = 2048;

/// Handles one peer may hold.
pub const HANDLES_PER_LINK: usize = 4096;

/// Opens under way on one lane.
pub const OPENS_PER_LANE: u32 = 64;

/// Connections to us that have not said who they are; the oldest makes room for a new one.
pub const STRANGERS_MAX: usize = 16;

/// How long a connection to us may take to say who it is. Hello is its first segment: this allows
/// for two losses of it, and no longer, because a connection holds a socket and staging from the
/// start.
pub const HELLO_TIME: Nanos = Nanos::from_millis(5_000);

/// The longest deadline of a request.
pub const DEADLINE_MAX: Nanos = Nanos::from_millis(3_600_000);

/// Handles of all peers together.
pub const SERVED_MAX: u32 = 16_384;

/// And those of files among them: each is two descriptors of a table that clients' files and
/// sockets are in, too.
pub const SERVED_FILES_MAX: u32 = 4096;

/// Messages, or changes of words and notifications, by one handle that are not over: as many may
/// come again after a lost lane, and be known then. No more than a frame can say.
pub const NUMBERS_PER_HANDLE: u32 = 256;

/// What one part of a vectored request moves, in bytes: staging on both sides, and what a turn
/// copies at once.
pub const PART_BYTES: u32 = 512 * 1024;

/// Pieces of a part: each is a copy.
pub const PART_PIECES: u32 = 4096;

/// Rows of its table.
pub const PART_ROWS: u32 = 1024;

/// Parts of a vectored request under way at once.
pub const VECTOR_PARTS: usize = 8;

/// Rows of a client's table.
pub const TABLE_ROWS_MAX: u32 = 1 << 16;

/// Of staging, a peer's limit and all there is, tables of gets may have one part in so many, and
/// tables of puts another.
pub const TABLE_STAGING_DIVISOR: u64 = 8;

/// Numbers of notifications on a region that were raised and that nobody has taken.
pub const NOTIFICATIONS_PER_REGION: usize = 4096;

/// Messages that peers have announced and that are not received: each is an entry of 150 bytes
/// here, and nothing else, for its bytes are with its sender.
pub const MAIL_MAX: usize = 65_536;

/// Those of one peer.
pub const MAIL_PER_LINK: u32 = 8192;

/// Of those whose senders have given them up, what one turn forgets.
pub const MAIL_PER_TURN: usize = 256;

/// Channels of a shard whose messages are remembered for advice on their memory: 30 KiB each, which
/// whoever asks copies on the shard's thread.
pub const CHANNELS_SEEN_MAX: usize = 16;

/// Messages remembered of each: some bursts of a hundred.
pub const MESSAGES_SEEN: usize = 512;

/// Early-arrival memory of a shard at most, as a divisor of its staging: what nobody asks for
/// stays.
pub const EARLY_STAGING_DIVISOR: u64 = 4;

/// What early-arrival memory is given out in, in bytes; short messages share one.
pub const EARLY_GRANULE_BYTES: u64 = GRANULE_BYTES as u64;

/// The longest message that is sent without being announced: the latency lane carries it, and
/// others wait behind it.
pub const EAGER_BYTES_MAX: u32 = 256 * 1024;

/// And no longer than it keeps that lane busy for this long.
pub const EAGER_TIME_MAX: Nanos = Nanos::from_micros(500);

/// The least that is tried for the longest one.
pub const EAGER_BYTES_MIN: u32 = 1024;

/// What a hand-shake with a peer takes, until one was measured.
pub const HANDSHAKE_FIRST: Nanos = Nanos::from_micros(50);

/// Frames of data queued on one lane.
pub const LANE_QUEUE_DATA: usize = 128;

/// What all clients of a peer weigh together, at most, beside clients of this node and other peers.
pub const PEER_WEIGHT_MAX: u64 = 64;

/// What a lane sends at once, in bytes, while several share it.
pub const SHARED_BATCH_BYTES: u64 = 128 * 1024;

/// Frames of data of one lane whose turn has not come: more than its requests have together, unless
/// they are very many and of many short frames.
pub const LANE_WAITING_MAX: usize = 16 * SERVES_PER_LANE as usize;

/// Frames queued on one lane: data, and an answer to every request and open there may be, so that
/// answers always find room. (Messages that are announced are answered at once, and told of later
/// when they are asked for: there may be more of those than find room. Then the lane is lost, and
/// they are announced again.)
pub const LANE_QUEUE: usize = LANE_QUEUE_DATA + 2 * SERVES_PER_LANE as usize;

/// Frames one serve or write may have queued on its lane, so that others get a turn.
pub const FRAMES_PER_OWNER: u32 = 4;

/// Write data a peer may have under way to us per lane, in bytes (of payload, and of the staging
/// that holds it), and the most of all staging that may stand for it as a divisor.
pub const CREDIT_BYTES: u64 = 8 << 20;
/// See [`CREDIT_BYTES`].
pub const CREDIT_STAGING_DIVISOR: u64 = 8;

/// Credit goes back to the peer when so much of its window, as a divisor, is free again: one frame
/// for many pieces.
pub const CREDIT_BATCH_DIVISOR: u64 = 4;

/// The longest piece of a write on a lane with that window of credit. What the peer keeps back
/// until it is worth a frame must never be what the next piece waits for.
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

/// How long what has landed of a peer's write may wait for room at a device that ends nothing.
/// Others are on that lane, too, and its credit is theirs as well.
pub const CHOKED_TIME: Nanos = Nanos::from_millis(2_000);

/// Parts of what a peer may use here: one for the writes of each of its two lanes, the rest for its
/// reads.
pub const LINK_SHARES: u64 = 4;

/// Staging below which nothing works, beside what lanes hold: the longest fragment of a read, and
/// the least credit for a write. A copy takes its chunks from half of it.
pub const STAGING_LEAST: u64 = RUN_BYTES_MAX as u64 + FRAGMENT_BYTES_MAX as u64;

/// How long frames of a read that is over may stay queued while none of the lane's leaves, before
/// the lane is lost: they name memory that somebody may wait for. As long as a link may be mute.
pub const UNREAD_TIME: Nanos = Nanos::from_millis(10_000);

/// How long such frames may stay queued whatever the lane's progress is: a peer that reads a frame
/// now and then would hold that memory for as long as its queue is. A full queue of the longest
/// frames takes this long at 17 Mbit/s.
pub const UNREAD_TIME_MAX: Nanos = Nanos::from_millis(60_000);

/// How long a frame may take from the first of its bytes to the last of its header, and on to the
/// last of its payload: it has staging that others wait for, or a client's buffer. The longest
/// takes this long at 280 kbit/s.
pub const FRAME_TIME: Nanos = Nanos::from_millis(30_000);

/// A driver that had no room is asked again after this long, if none of its operations ends before.
/// Long beside an operation, short beside a deadline.
pub const DRIVER_FULL_TIME: Nanos = Nanos::from_millis(1);

/// Least time between two reports of a peer that count: one costs more than the frame it came in,
/// and an honest peer has nothing new sooner.
pub const REPORT_PAUSE: Nanos = Nanos::from_micros(500);

/// Times one request is sent again because its payload did not match its checksum.
pub const CORRUPT_RETRIES: u32 = 3;

/// Requests at most this long travel on the latency lane when their class is `latency`.
pub const LATENCY_LANE_BYTES_MAX: u64 = 256 * 1024;

/// What is copied from memory to memory at once, in bytes.
pub const COPY_PIECE_BYTES: u32 = 256 * 1024;

/// Bytes of memory-to-memory copies in one turn of a shard, so that long puts do not hold it up:
/// about 50 us.
pub const COPY_BYTES_PER_TURN: u32 = 512 * 1024;

/// Pieces of work one turn looks at.
pub const WORK_PER_TURN: usize = 256;

/// What reads of peers from one device may have of staging, as a multiple of what is left: four
/// fifths for the only one. (One that is foreign gets half of what is not needed by lanes.)
pub const STAGING_SHARE: u64 = 4;

/// The most operations of one fragment at a file.
pub const OPS_PER_JOB: u32 = 3;

/// Operations at a foreign file system, each of which keeps a thread of the driver busy: enough to
/// keep a link to another machine busy with the longest fragments.
pub const FOREIGN_OPS_PER_DEVICE: u32 = 32;

/// Operations at all foreign file systems. One that has none may begin one all the same.
pub const FOREIGN_OPS_MAX: u32 = 256;

/// Finished transfers remembered for `explain`.
pub const HISTORY: usize = 256;

/// The most transfers of one recording.
pub const TRACE_TRANSFERS_MAX: u32 = 64;

/// Visits of fragments to stages that a recording has room for, shared alike by its transfers: 2
/// MiB, and some 6 MB of JSON.
pub const TRACE_VISITS_MAX: u32 = 65_536;

/// Visits of a plan that are evaluated on the shard's thread for `explain`.
pub const EXPLAIN_VISITS_MAX: usize = 2048;

/// Stages in one answer for metrics: four for each lane of every peer there may be would be as
/// many, and a shard copies them on its own thread.
pub const STAGES_OBSERVED_MAX: usize = 512;

/// Stages that are not there and whose costs are remembered: eight for each of as many peers as can
/// be configured; of those that come and go, the latest.
pub const STAGES_REMEMBERED_MAX: usize = 1024;

/// Dials set at once: two for a disk and three for a peer are what studies use.
pub const DIALS_MAX: u32 = 64;

/// Fragments that all dials together may hold. Beyond it disks begin nothing more and lanes are not
/// read, so what comes is held up where it comes from.
pub const DIALS_HELD_MAX: usize = 4096;

/// The longest `L` and `g` of a dial: short beside the time after which a lane is taken for dead.
pub const DIAL_TIME_MAX: Nanos = Nanos::from_millis(1_000);

/// The largest `G` of a dial, in picoseconds a byte: the longest fragment then takes about as long
/// as the largest `g`.
pub const DIAL_PER_BYTE_PS_MAX: u64 = 1_000_000;

/// The longest `o` of a dial: everybody on the shard waits for it.
pub const DIAL_HOST_MAX: Nanos = Nanos::from_millis(10);

const _: () = assert!(DIAL_TIME_MAX.0 < UNREAD_TIME.0);
const _: () = assert!(FRAGMENT_BYTES_MAX <= PAYLOAD_BYTES_MAX);
const _: () = assert!(EAGER_BYTES_MAX <= PAYLOAD_BYTES_MAX && EAGER_BYTES_MAX <= RUN_BYTES_MAX);
// A misaligned fragment needs a granule more on each side.
const _: () = assert!(FRAGMENT_BYTES_MAX + 2 * GRANULE_BYTES <= RUN_BYTES_MAX);
const _: () = assert!(DEPTH_MAX as usize <= EXTENTS_MAX);
const _: () = assert!(FRAGMENT_BYTES_MIN <= FRAGMENT_BYTES_MAX);
const _: () = assert!(FRAGMENT_BYTES_MAX as u64 <= STAGING_LEAST / 2);
const _: () = assert!(UNREAD_TIME.0 < UNREAD_TIME_MAX.0);
