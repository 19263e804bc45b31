//! The names of what a shard has. Each kind of thing has keys of its own, and a module that only
//! passes keys on needs to know nothing of what they open.

use super::slab::Key;

/// What a key can name. They are marks for the compiler: nothing is of these types.
pub(super) mod kind {
    /// A client's request in execution, or a part of one.
    #[derive(Debug)]
    pub(in crate::shard) enum Transfer {}
    /// A peer's request in execution.
    #[derive(Debug)]
    pub(in crate::shard) enum Serve {}
    /// A connection between two nodes.
    #[derive(Debug)]
    pub(in crate::shard) enum Lane {}
    /// A node that asks us.
    #[derive(Debug)]
    pub(in crate::shard) enum Link {}
    /// Something of ours that a peer has open.
    #[derive(Debug)]
    pub(in crate::shard) enum Served {}
    /// A fragment at a device.
    #[derive(Debug)]
    pub(in crate::shard) enum Job {}
    /// An operation at the driver.
    #[derive(Debug)]
    pub(in crate::shard) enum Op {}
    /// Memory that is lent to the kernel by a send.
    #[derive(Debug)]
    pub(in crate::shard) enum Notice {}
    /// An injected delay of one kind of hop.
    #[derive(Debug)]
    pub(in crate::shard) enum Dial {}
    /// What a copy has beside its transfer.
    #[derive(Debug)]
    pub(in crate::shard) enum Copy {}
    /// What a vectored request has beside its transfer.
    #[derive(Debug)]
    pub(in crate::shard) enum Vector {}
    /// What a transfer does once, beside it.
    #[derive(Debug)]
    pub(in crate::shard) enum Once {}
}

pub(super) type TransferKey = Key<kind::Transfer>;
pub(super) type ServeKey = Key<kind::Serve>;
pub(super) type LaneKey = Key<kind::Lane>;
pub(super) type LinkKey = Key<kind::Link>;
pub(super) type ServedKey = Key<kind::Served>;
pub(super) type JobKey = Key<kind::Job>;
pub(super) type OpKey = Key<kind::Op>;
pub(super) type NoticeKey = Key<kind::Notice>;
pub(super) type DialKey = Key<kind::Dial>;
pub(super) type CopyKey = Key<kind::Copy>;
pub(super) type VectorKey = Key<kind::Vector>;
pub(super) type OnceKey = Key<kind::Once>;

/// A request in execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// A client's request, or a part of one.
    Transfer(TransferKey),
    /// A request of a peer.
    Serve(ServeKey),
}
