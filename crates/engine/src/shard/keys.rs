//! The names of what a shard has. Each kind of thing has keys of its own, and a module that only
//! passes keys on needs to know nothing of what they open.

use piped_wire::Owner;

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
    /// What a call has beside its transfer.
    #[derive(Debug)]
    pub(in crate::shard) enum Call {}
    /// What a peer's call has beside its serve.
    #[derive(Debug)]
    pub(in crate::shard) enum Called {}
    /// A client's request at the home of its session.
    #[derive(Debug)]
    pub(in crate::shard) enum Away {}
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
pub(super) type CallKey = Key<kind::Call>;
pub(super) type CalledKey = Key<kind::Called>;
pub(super) type AwayKey = Key<kind::Away>;

/// A request in execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// A client's request, or a part of one.
    Transfer(TransferKey),
    /// A request of a peer.
    Serve(ServeKey),
}

impl Subject {
    /// Tells serves from transfers where a sender has but a number: an index is far below it.
    const SERVE: u64 = 1 << 31;

    /// The number by which a sender knows the request whose bytes a frame carries.
    pub(super) fn tag(self) -> Owner {
        match self {
            Self::Transfer(key) => Owner(key.to_bits()),
            Self::Serve(key) => Owner(key.to_bits() | Self::SERVE),
        }
    }

    /// The request that a sender names; nothing for a frame that nobody waits for.
    pub(super) fn of(owner: Owner) -> Option<Self> {
        match owner {
            Owner::NONE => None,
            Owner(bits) if bits & Self::SERVE != 0 => {
                Some(Self::Serve(Key::from_bits(bits & !Self::SERVE)))
            }
            Owner(bits) => Some(Self::Transfer(Key::from_bits(bits))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_named_by_a_number_and_found_again() {
        for bits in [0, 7, 1 << 32, u64::from(u32::MAX) << 32 | 0x7fff_fffe] {
            for owner in
                [Subject::Transfer(Key::from_bits(bits)), Subject::Serve(Key::from_bits(bits))]
            {
                assert_eq!(Subject::of(owner.tag()), Some(owner));
            }
        }
        assert_eq!(Subject::of(Owner::NONE), None);
    }
}
