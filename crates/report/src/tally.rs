//! What a shard counts for metrics: arrays of a fixed size, each place named by enums.
//!
//! They are added to where a request ends and where a lane is lost, copied as a whole when somebody
//! asks (about 60 KiB), and turned into names and labels by who asked. So every label has as many
//! values as its enum.

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
        /// From a file.
        Read = "read",
        /// To a file.
        Write = "write",
        /// From a region.
        Get = "get",
        /// To a region.
        Put = "put",
        /// Between two handles.
        Copy = "copy",
        /// To stable storage.
        Sync = "sync",
        /// To a channel.
        Send = "send",
        /// From a channel.
        Receive = "receive",
        /// A change of a word of a region.
        Atomic = "atomic",
        /// Of a region's exporter.
        Notify = "notify",
        /// For notifications.
        Wait = "wait",
        /// For what was asked before.
        Flush = "flush",
    }
);

named!(
    /// Where a transfer's other end is.
    Route {
        /// On this node alone.
        Local = "local",
        /// At a peer, or one end of a copy is.
        Remote = "remote",
    }
);

named!(
    /// Who made a plan that a prediction came from, and where.
    PlanPath {
        /// A local file: this node.
        Local = "local",
        /// A write to a peer: this node, which has the data.
        PeerWrite = "peer_write",
        /// A read from a peer: the peer, which has the data.
        PeerRead = "peer_read",
    }
);

named!(
    /// Why a request was sent again.
    RetryReason {
        /// The lane it went out on was lost.
        LaneLost = "lane_lost",
        /// A payload did not match its checksum.
        Corrupt = "corrupt",
    }
);

named!(
    /// Why a fragment took a copy.
    BounceReason {
        /// An edge that direct I/O cannot take.
        Unaligned = "unaligned",
        /// The receive landed elsewhere than predicted.
        Mispredicted = "mispredicted",
    }
);

named!(
    /// How a lane's send went.
    SendWay {
        /// The kernel copied it into the socket.
        Plain = "plain",
        /// Out of the memory itself.
        ZeroCopy = "zero_copy",
        /// It was to go out of the memory, and the kernel copied it all the same.
        Copied = "copied",
    }
);

named!(
    /// Why a lane was lost.
    LaneLoss {
        /// The other side closed the connection.
        Closed = "closed",
        /// The kernel could not send.
        Send = "send",
        /// The kernel could not receive: a reset, a timeout.
        Receive = "receive",
        /// Bytes that are no frame.
        Frame = "frame",
        /// A frame of another epoch.
        Epoch = "epoch",
        /// A frame that breaks the protocol's rules.
        Protocol = "protocol",
        /// It did not say who it is.
        Silent = "silent",
        /// A newer incarnation took its place.
        Replaced = "replaced",
        /// The peer does not read what it asked for.
        Unread = "unread",
        /// The peer began a frame and did not go on.
        Stalled = "stalled",
        /// The configuration was loaded again, without the peer, or with another address, key, mode
        /// or networks for plain lanes.
        Reconfigured = "reconfigured",
        /// An operator ended it.
        Ended = "ended",
        /// It had no work and did not prove who it is, and another one needed the place.
        Displaced = "displaced",
    }
);

impl LaneLoss {
    /// Whether the peer did what it must not, rather than that the connection went.
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
            | Self::Displaced => false,
        }
    }
}

named!(
    /// What kept a request from going on.
    HeldBy {
        /// A limit on requests or bytes in execution.
        Limit = "limit",
        /// Requests of its queue that come before it.
        Order = "order",
        /// What its client or peer may move in a second.
        Rate = "rate",
        /// There was no lane to its peer.
        Peer = "peer",
    }
);

impl HeldBy {
    /// Its place in a set of them, as a bit.
    #[must_use]
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }
}

named!(
    /// Whether a transfer that was predicted had its path for itself.
    Company {
        /// It waited for nobody: its prediction is held against what it took.
        Alone = "alone",
        /// Others were there, or something held it back: no prediction knows of that.
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

/// Both classes, each at the place of its number.
pub const CLASSES: [Class; 2] = [Class::Latency, Class::Bulk];

/// A class's name.
#[must_use]
pub const fn class_name(class: Class) -> &'static str {
    match class {
        Class::Latency => "latency",
        Class::Bulk => "bulk",
    }
}

named!(
    /// What was done with a message that a client sent or is to receive.
    MessageWay {
        /// Sent to a peer without being announced.
        Eager = "eager",
        /// Announced to a peer, and written when it was asked for.
        Announced = "announced",
        /// Taken into early-arrival memory, to be copied once it is asked for.
        Early = "early",
        /// There was no early-arrival memory for it: it stayed with its sender until it was asked
        /// for.
        Stalled = "stalled",
    }
);

/// What became of requests of one kind, and the bytes of those that run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// By [`Status`].
    pub by_status: [u64; Status::ALL.len()],
    /// Bytes moved, also by those that failed or still run.
    pub bytes: u64,
    /// From submission to the end, of those that ended with `Ok`.
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

    /// Whether there was nothing of that kind.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.count() == 0
    }

    /// How many ended.
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

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    transfers: [[ByClass; Route::ALL.len()]; Operation::ALL.len()],
    serves: [ByClass; Operation::ALL.len()],
    /// Requests that ended without a transfer, by [`Status`]: refused ones, and `Ok` for those that
    /// ask for none.
    pub at_once: [u64; Status::ALL.len()],
    /// By [`RetryReason`].
    pub retries: [u64; RetryReason::ALL.len()],
    /// By [`LaneLoss`].
    pub lanes_lost: [u64; LaneLoss::ALL.len()],
    /// Plans used, by algorithm in the order of [`ALGORITHMS`].
    pub plans: [u64; ALGORITHMS.len()],
    /// First fragments of the plans used, in bytes.
    pub fragments: Sizes,
    /// Measured over predicted latency of those that waited for nobody, by [`PlanPath`].
    pub predictions: [Ratios; PlanPath::ALL.len()],
    /// Transfers that were predicted, by [`PlanPath`] and [`Company`].
    pub predicted: [[u64; Company::ALL.len()]; PlanPath::ALL.len()],
    /// Frames sent and received on lanes that are gone.
    pub frames: [u64; 2],
    /// Buffers that were held past the end of their request and are free again.
    pub released: u64,
    /// Sends of lanes, by [`SendWay`].
    pub sends: [u64; SendWay::ALL.len()],
    /// Messages, by [`MessageWay`].
    pub messages: [u64; MessageWay::ALL.len()],
}

impl Tally {
    /// What clients' transfers of one kind became.
    #[must_use]
    pub const fn transfers(&self, operation: Operation, route: Route, class: Class) -> &Ended {
        &self.transfers[operation as usize][route as usize][class as usize]
    }

    /// What peers' requests of one kind became. No copies are among them.
    #[must_use]
    pub const fn serves(&self, operation: Operation, class: Class) -> &Ended {
        &self.serves[operation as usize][class as usize]
    }

    /// A client's transfer is over.
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

    /// A client's transfer that runs has moved so many bytes.
    pub fn add_transfer_bytes(
        &mut self,
        (operation, route, class): (Operation, Route, Class),
        bytes: u64,
    ) {
        self.transfers[operation as usize][route as usize][class as usize].add_bytes(bytes);
    }

    /// So has a peer's request.
    pub fn add_serve_bytes(&mut self, (operation, class): (Operation, Class), bytes: u64) {
        self.serves[operation as usize][class as usize].add_bytes(bytes);
    }

    /// A peer's request is over.
    pub fn add_serve(
        &mut self,
        (operation, class): (Operation, Class),
        status: Status,
        bytes: u64,
        nanos: u64,
    ) {
        self.serves[operation as usize][class as usize].add(status, bytes, nanos);
    }

    /// A transfer or a peer's request got a plan.
    pub fn add_plan(&mut self, chosen: Algorithm, fragment_bytes: u32) {
        self.plans[algorithm(chosen)] += 1;
        self.fragments.add(fragment_bytes.into());
    }

    /// A transfer took so long where a plan promised so much. With company it is counted, and no
    /// more.
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

    /// Adds what another shard counted.
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
const _: () = assert!(size_of::<Tally>() <= 80 * 1024);

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
