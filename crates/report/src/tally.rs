//! What a shard counts for metrics: arrays of a fixed size, with enums as indices.
//!
//! The shard counts where a request ends and where a connection is lost. It copies the whole (about
//! 60 KiB) for a reader, which turns counts into names and labels. Every label therefore has as
//! many values as its enum.

use piped_core::request::Class;
use piped_core::status::Status;
use piped_model::plan::Algorithm;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::histogram::{Latencies, RATIO_ONE, Ratios, Sizes};

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
        pub enum $name {
            $($(#[$of])* #[cfg_attr(feature = "serde", serde(rename = $text))] $value,)+
        }

        impl $name {
            /// All of them, each at the place of its number.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }
        }
    };
}

named!(
    /// What a transfer does. `get` and `put` are reads and writes of memory regions.
    Operation {
        /// Bytes of a file to the client.
        Read = "read",
        /// Bytes of the client to a file.
        Write = "write",
        /// Bytes of a region to the client.
        Get = "get",
        /// Bytes of the client to a region.
        Put = "put",
        /// Bytes from one handle to another.
        Copy = "copy",
        /// Completed writes of a file to stable storage.
        Sync = "sync",
        /// A message to a channel.
        Send = "send",
        /// A message from a channel.
        Receive = "receive",
        /// An atomic change of a word of a region.
        Atomic = "atomic",
        /// A notification to a region's exporter.
        Notify = "notify",
        /// Waits for notifications on a region.
        Wait = "wait",
        /// Waits for earlier requests of the queue.
        Flush = "flush",
        /// A call of a file or directory.
        Call = "call",
    }
);

named!(
    /// Where the other end of a transfer is.
    Route {
        /// The transfer stays on this node.
        Local = "local",
        /// The transfer, or one end of a copy, is at a peer.
        Remote = "remote",
    }
);

named!(
    /// Which node made the plan that a prediction came from.
    PlanPath {
        /// Local files: this node plans.
        Local = "local",
        /// Writes to a peer: this node plans, since it has the data.
        PeerWrite = "peer_write",
        /// Reads from a peer: the peer plans, since it has the data.
        PeerRead = "peer_read",
    }
);

named!(
    /// Why a request was sent again.
    RetryReason {
        /// The connection that carried the request was lost.
        LaneLost = "lane_lost",
        /// A payload did not match its checksum.
        Corrupt = "corrupt",
        /// Another replica was asked for what one had not brought of a read.
        Replica = "replica",
    }
);

named!(
    /// Why a fragment was copied.
    BounceReason {
        /// Direct I/O cannot take an edge of the fragment.
        Unaligned = "unaligned",
        /// The bytes landed elsewhere than predicted.
        Mispredicted = "mispredicted",
    }
);

named!(
    /// How the kernel handled a send on a connection.
    SendWay {
        /// The kernel copied the bytes into the socket.
        Plain = "plain",
        /// The kernel sent from the payload's own memory.
        ZeroCopy = "zero_copy",
        /// The send was to avoid the copy, but the kernel copied all the same.
        Copied = "copied",
    }
);

named!(
    /// Why a connection was lost.
    LaneLoss {
        /// The other side closed the connection.
        Closed = "closed",
        /// The kernel could not send.
        Send = "send",
        /// The kernel could not receive: a reset, a timeout.
        Receive = "receive",
        /// The peer sent bytes that are no frame.
        Frame = "frame",
        /// The peer sent a frame of another epoch.
        Epoch = "epoch",
        /// The peer sent a frame that breaks the protocol's rules.
        Protocol = "protocol",
        /// The peer did not say who it is.
        Silent = "silent",
        /// A newer incarnation of the connection took its place.
        Replaced = "replaced",
        /// The peer does not read the data that it asked for.
        Unread = "unread",
        /// The peer began a frame and did not finish it.
        Stalled = "stalled",
        /// A reload of the configuration removed the peer, or changed its address, key, mode or
        /// networks for plain connections.
        Reconfigured = "reconfigured",
        /// An operator closed the connection.
        Ended = "ended",
        /// The connection had no work and no proof of identity, and another one needed its place.
        Displaced = "displaced",
        /// Nothing had been open at the peer for a while.
        Unused = "unused",
    }
);

impl LaneLoss {
    /// Whether the peer did what it must not, as opposed to a connection that broke.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        match self {
            Self::Frame
            | Self::Epoch
            | Self::Protocol
            | Self::Silent
            | Self::Unread
            | Self::Stalled => true,
            Self::Closed
            | Self::Send
            | Self::Receive
            | Self::Replaced
            | Self::Reconfigured
            | Self::Ended
            | Self::Displaced
            | Self::Unused => false,
        }
    }
}

named!(
    /// What kept a request from proceeding.
    HeldBy {
        /// A limit on requests or bytes in execution.
        Limit = "limit",
        /// Earlier requests of the same queue.
        Order = "order",
        /// A limit on the bytes that its client or peer moves in a second.
        Rate = "rate",
        /// There was no connection to the peer.
        Peer = "peer",
    }
);

impl HeldBy {
    /// The bit of this reason in a set of reasons.
    #[must_use]
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }
}

named!(
    /// Whether a transfer with a prediction had its path for itself.
    Company {
        /// The transfer waited for nobody, so its duration is compared with the prediction.
        Alone = "alone",
        /// Other requests were there, or something held the transfer back, which no prediction
        /// knows of.
        Queued = "queued",
    }
);

/// Names of [`Algorithm`]s without their numbers, in the order of `algorithm`.
pub const ALGORITHMS: [&str; 10] = [
    "whole",
    "static",
    "fixed",
    "serial",
    "ramp-up",
    "ramp-up-down",
    "hierarchical-fixed",
    "hierarchical-ramp",
    "release-curve",
    "searched",
];

const fn algorithm(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::Whole => 0,
        Algorithm::Static(_) => 1,
        Algorithm::Fixed => 2,
        Algorithm::Serial => 3,
        Algorithm::RampUp => 4,
        Algorithm::RampUpDown => 5,
        Algorithm::HierarchicalFixed => 6,
        Algorithm::HierarchicalRamp => 7,
        Algorithm::ReleaseCurve => 8,
        Algorithm::Searched => 9,
    }
}

/// Both classes, each at the index of its number.
pub const CLASSES: [Class; 2] = [Class::Latency, Class::Bulk];

/// The name of a class in metrics and JSON.
#[must_use]
pub const fn class_name(class: Class) -> &'static str {
    match class {
        Class::Latency => "latency",
        Class::Bulk => "bulk",
    }
}

named!(
    /// How a message that a client sent or is to receive travelled.
    MessageWay {
        /// Sent to a peer without being announced.
        Eager = "eager",
        /// Announced to a peer, and written when the receiver asked for it.
        Announced = "announced",
        /// Taken into the unexpected-message buffer, and copied when the receiver asks for it.
        Early = "early",
        /// Left with its sender until the receiver asked for it, because the unexpected-message
        /// buffer had no room.
        Stalled = "stalled",
    }
);

/// Outcomes of requests of one kind, and bytes moved by those that still run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// Number of ended requests, by [`Status`].
    pub by_status: [u64; Status::ALL.len()],
    /// Bytes moved, including by requests that failed or still run.
    pub bytes: u64,
    /// Times from submission to the end, in nanoseconds, of requests that ended with `Ok`.
    pub latencies: Latencies,
}

impl Ended {
    fn add(&mut self, status: Status, bytes: u64, nanos: u64) {
        self.by_status[status as usize] += 1;
        self.add_bytes(bytes);
        if status == Status::Ok {
            self.latencies.add(nanos);
        }
    }

    fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Whether there was no request of that kind.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.count() == 0
    }

    /// How many requests ended.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.by_status.iter().sum()
    }

    fn merge(&mut self, other: &Self) {
        add_all(&mut self.by_status, &other.by_status);
        self.add_bytes(other.bytes);
        self.latencies.merge(&other.latencies);
    }
}

type ByClass = [Ended; CLASSES.len()];

/// All counters and histograms that a shard keeps for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    transfers: [[ByClass; Route::ALL.len()]; Operation::ALL.len()],
    serves: [ByClass; Operation::ALL.len()],
    /// Requests that ended without a transfer, by [`Status`]: refused ones, and `Ok` for those that
    /// need none.
    pub at_once: [u64; Status::ALL.len()],
    /// Requests sent again, by [`RetryReason`].
    pub retries: [u64; RetryReason::ALL.len()],
    /// Lost connections, by [`LaneLoss`].
    pub lanes_lost: [u64; LaneLoss::ALL.len()],
    /// Plans used, by algorithm in the order of [`ALGORITHMS`].
    pub plans: [u64; ALGORITHMS.len()],
    /// First fragments of the plans used, in bytes.
    pub fragments: Sizes,
    /// Measured over predicted latency of transfers that waited for nobody, by [`PlanPath`].
    pub predictions: [Ratios; PlanPath::ALL.len()],
    /// Transfers with a prediction, by [`PlanPath`] and [`Company`].
    pub predicted: [[u64; Company::ALL.len()]; PlanPath::ALL.len()],
    /// Frames sent and received on connections that are closed.
    pub frames: [u64; 2],
    /// Buffers that the kernel kept past the end of their request and that are free again.
    pub released: u64,
    /// Sends on connections, by [`SendWay`].
    pub sends: [u64; SendWay::ALL.len()],
    /// Messages of clients, by [`MessageWay`].
    pub messages: [u64; MessageWay::ALL.len()],
}

impl Tally {
    /// Outcomes of clients' transfers of one kind.
    #[must_use]
    pub const fn transfers(&self, operation: Operation, route: Route, class: Class) -> &Ended {
        &self.transfers[operation as usize][route as usize][class as usize]
    }

    /// Outcomes of peers' requests of one kind, which include no copies.
    #[must_use]
    pub const fn serves(&self, operation: Operation, class: Class) -> &Ended {
        &self.serves[operation as usize][class as usize]
    }

    /// Counts a client's transfer that is over.
    pub fn add_transfer(
        &mut self,
        (operation, route, class): (Operation, Route, Class),
        status: Status,
        bytes: u64,
        nanos: u64,
    ) {
        let place = &mut self.transfers[operation as usize][route as usize][class as usize];
        place.add(status, bytes, nanos);
    }

    /// Counts bytes of a client's transfer that still runs.
    pub fn add_transfer_bytes(
        &mut self,
        (operation, route, class): (Operation, Route, Class),
        bytes: u64,
    ) {
        self.transfers[operation as usize][route as usize][class as usize].add_bytes(bytes);
    }

    /// Counts bytes of a peer's request that still runs.
    pub fn add_serve_bytes(&mut self, (operation, class): (Operation, Class), bytes: u64) {
        self.serves[operation as usize][class as usize].add_bytes(bytes);
    }

    /// Counts a peer's request that is over.
    pub fn add_serve(
        &mut self,
        (operation, class): (Operation, Class),
        status: Status,
        bytes: u64,
        nanos: u64,
    ) {
        self.serves[operation as usize][class as usize].add(status, bytes, nanos);
    }

    /// Counts a plan that a transfer or a peer's request got.
    pub fn add_plan(&mut self, chosen: Algorithm, fragment_bytes: u32) {
        self.plans[algorithm(chosen)] += 1;
        self.fragments.add(fragment_bytes.into());
    }

    /// Compares a transfer's duration with its prediction. A transfer with company is only counted.
    pub fn add_prediction(
        &mut self,
        (path, company): (PlanPath, Company),
        predicted_nanos: u64,
        measured_nanos: u64,
    ) {
        if predicted_nanos == 0 {
            return;
        }
        self.predicted[path as usize][company as usize] += 1;
        if company == Company::Alone {
            let ratio = u128::from(measured_nanos) * u128::from(RATIO_ONE);
            let ratio = ratio / u128::from(predicted_nanos);
            self.predictions[path as usize].add(u64::try_from(ratio).unwrap_or(u64::MAX));
        }
    }

    /// Adds the counts of another shard.
    pub fn merge(&mut self, other: &Self) {
        let all = self.transfers.as_flattened_mut().iter_mut().flatten();
        let more = other.transfers.as_flattened().iter().flatten();
        all.zip(more).for_each(|(ended, more)| ended.merge(more));
        let all = self.serves.iter_mut().flatten();
        all.zip(other.serves.iter().flatten()).for_each(|(ended, more)| ended.merge(more));
        add_all(&mut self.at_once, &other.at_once);
        add_all(&mut self.retries, &other.retries);
        add_all(&mut self.lanes_lost, &other.lanes_lost);
        add_all(&mut self.plans, &other.plans);
        self.fragments.merge(&other.fragments);
        for (counts, more) in self.predicted.iter_mut().zip(&other.predicted) {
            add_all(counts, more);
        }
        for (ratios, more) in self.predictions.iter_mut().zip(&other.predictions) {
            ratios.merge(more);
        }
        add_all(&mut self.frames, &other.frames);
        self.released += other.released;
        add_all(&mut self.sends, &other.sends);
        add_all(&mut self.messages, &other.messages);
    }
}

fn add_all<const N: usize>(counts: &mut [u64; N], more: &[u64; N]) {
    for (count, more) in counts.iter_mut().zip(more) {
        *count += more;
    }
}

// It is copied on a shard's thread when somebody asks: that must stay a matter of microseconds.
const _: () = assert!(size_of::<Tally>() <= 104 * 1024);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enums_are_places_and_algorithms_have_the_planners_names() {
        assert!(Operation::ALL.iter().enumerate().all(|(at, &it)| it as usize == at));
        assert!(LaneLoss::ALL.iter().enumerate().all(|(at, &it)| it as usize == at));
        assert!(CLASSES.iter().enumerate().all(|(at, &it)| it as usize == at));
        for known in [
            Algorithm::Whole,
            Algorithm::Fixed,
            Algorithm::Serial,
            Algorithm::RampUp,
            Algorithm::RampUpDown,
            Algorithm::HierarchicalFixed,
            Algorithm::HierarchicalRamp,
            Algorithm::ReleaseCurve,
            Algorithm::Searched,
        ] {
            assert_eq!(ALGORITHMS[algorithm(known)], known.to_string());
        }
        let fixed = Algorithm::Static(4096);
        assert!(fixed.to_string().starts_with(ALGORITHMS[algorithm(fixed)]));
    }

    #[test]
    fn two_shards_add_up() {
        let mut one = Tally::default();
        let kind = (Operation::Put, Route::Remote, Class::Bulk);
        one.add_transfer(kind, Status::Ok, 10, 2_000);
        one.add_transfer(kind, Status::PeerLost, 3, 9_000);
        one.add_serve((Operation::Get, Class::Latency), Status::Ok, 7, 1);
        one.add_plan(Algorithm::Serial, 65_536);
        one.add_prediction((PlanPath::Local, Company::Alone), 100, 200);
        one.add_prediction((PlanPath::Local, Company::Queued), 100, 1500);
        one.add_prediction((PlanPath::Local, Company::Alone), 0, 200);
        let mut both = one.clone();
        both.merge(&one);
        let ended = both.transfers(Operation::Put, Route::Remote, Class::Bulk);
        assert_eq!((ended.count(), ended.bytes, ended.latencies.count()), (4, 26, 2));
        assert_eq!(both.serves(Operation::Get, Class::Latency).bytes, 14);
        assert_eq!((both.plans[3], both.fragments.sum()), (2, 131_072));
        let ratios = &both.predictions[PlanPath::Local as usize];
        assert_eq!(
            (ratios.count(), ratios.sum()),
            (2, 4 * RATIO_ONE),
            "twice as long as predicted, and nothing of the one in company"
        );
        assert_eq!(both.predicted[PlanPath::Local as usize], [2, 2]);
    }
}
