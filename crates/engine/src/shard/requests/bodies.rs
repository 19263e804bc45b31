//! Bodies that are large, or that few requests have, beside the transfers: those stay small for all
//! others.
//!
//! A body lives as long as its transfer, which has its key; each has its place from the start.

use std::ops::{Index, IndexMut};

use super::super::keys::{CallKey, CopyKey, OnceKey, VectorKey, kind};
use super::super::slab::Slab;
use super::Body;
use super::buffers::Place;
use super::call::CallBody;
use super::copying::CopyBody;
use super::once::Once;
use super::pieces::VectorBody;

/// The bodies of all transfers that have one here.
#[derive(Debug)]
pub(in crate::shard) struct Bodies {
    copies: Slab<kind::Copy, CopyBody>,
    vectors: Slab<kind::Vector, VectorBody>,
    onces: Slab<kind::Once, Once>,
    calls: Slab<kind::Call, CallBody>,
    /// Lists of buffers that no request has, empty: so that none is made for each.
    lists: Vec<Vec<Place>>,
}

/// Lists that are kept for later requests, about as many as begin in a turn. The memory of more
/// would never be given back.
const LISTS_KEPT: usize = 16;

/// A slab of [`Bodies`], by what is in it.
macro_rules! bodies {
    ($slab:ident, $key:ty, $body:ty, $keep:ident, $doc:literal) => {
        impl Bodies {
            #[doc = $doc]
            pub(in crate::shard) fn $keep(&mut self, body: $body) -> $key {
                self.$slab
                    .insert(body)
                    .unwrap_or_else(|_| unreachable!("each transfer has a place"))
            }
        }

        impl Index<$key> for Bodies {
            type Output = $body;

            fn index(&self, key: $key) -> &$body {
                self.$slab.get(key).expect("a body lives as long as its transfer")
            }
        }

        impl IndexMut<$key> for Bodies {
            fn index_mut(&mut self, key: $key) -> &mut $body {
                self.$slab.get_mut(key).expect("a body lives as long as its transfer")
            }
        }
    };
}

bodies!(
    copies,
    CopyKey,
    CopyBody,
    keep_copy,
    "Keeps the body of a copy whose transfer is about to be made."
);
bodies!(
    vectors,
    VectorKey,
    VectorBody,
    keep_vector,
    "Keeps the body of a vectored request whose transfer is about to be made."
);
bodies!(
    onces,
    OnceKey,
    Once,
    keep_once,
    "Keeps what a transfer that is about to be made does once."
);
bodies!(
    calls,
    CallKey,
    CallBody,
    keep_call,
    "Keeps the call of a transfer that is about to be made."
);

impl Bodies {
    /// Places for the bodies of so many transfers.
    pub(in crate::shard) fn new(transfers: u32) -> Self {
        Self {
            copies: Slab::with_capacity(transfers),
            vectors: Slab::with_capacity(transfers),
            onces: Slab::with_capacity(transfers),
            calls: Slab::with_capacity(transfers),
            lists: Vec::new(),
        }
    }

    /// An empty list of buffers.
    pub(in crate::shard) fn take_list(&mut self) -> Vec<Place> {
        self.lists.pop().unwrap_or_default()
    }

    /// Forgets the body of a transfer that is over.
    pub(in crate::shard) fn forget(&mut self, body: &Body) {
        match body {
            Body::Copy(copy) => drop(self.copies.remove(*copy)),
            Body::Vector(vector) => {
                let list = self.vectors.remove(*vector).map(VectorBody::into_list);
                let is_kept = self.lists.len() < LISTS_KEPT;
                self.lists.extend(list.filter(|list| is_kept && list.capacity() > 0));
            }
            Body::Remote(remote) => {
                if let Some(once) = remote.once {
                    self.onces.remove(once);
                }
                if let Some(call) = remote.call {
                    self.calls.remove(call);
                }
            }
            Body::Call(call) => drop(self.calls.remove(*call)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::{HandleId, PeerId, SegmentId};

    use super::super::super::clients::Place as End;
    use super::super::super::driver::Direction;
    use super::super::Buffers;
    use super::*;

    #[test]
    fn lists_are_used_again_and_few_are_kept() {
        const MANY: u32 = 100;
        let mut bodies = Bodies::new(MANY);
        let there = (End::Remote(PeerId(0), HandleId(1)), false);
        let begun: Vec<_> = (0..MANY)
            .map(|_| {
                let mut list = bodies.take_list();
                list.reserve_exact(8);
                let (list, table) = (Buffers::Several(list), (SegmentId(1), 0, 1));
                bodies.keep_vector(VectorBody::new(there, Direction::Read, list, table))
            })
            .collect();
        begun.into_iter().for_each(|vector| bodies.forget(&Body::Vector(vector)));
        assert_eq!(bodies.lists.len(), LISTS_KEPT);
        assert!(bodies.take_list().capacity() >= 8);
    }
}
