//! What a request takes with it and brings back.

use crate::buffer::Buffer;
use crate::buffers::Buffers;

/// The memory that a request takes with it and brings back: a [`Buffer`], several, or nothing.
pub trait Payload: sealed::Payload {}

impl Payload for Buffer {}
impl Payload for Buffers {}
impl Payload for () {}
#[cfg(feature = "async")]
#[doc(hidden)]
impl Payload for Option<Buffer> {}

pub(crate) mod sealed {
    use super::{Buffer, Buffers};

    pub trait Payload: Sized {
        /// Moves the buffer into the table of requests under way.
        fn stow(self) -> Option<Buffer>;
        /// The buffer, if it is one.
        fn peek(&self) -> Option<&Buffer>;
        /// Takes the payload back from the table. `None`: the buffer is missing.
        fn unstow(buffer: Option<Buffer>) -> Option<Self>;
    }

    impl Payload for Buffer {
        fn stow(self) -> Option<Buffer> {
            Some(self)
        }

        fn peek(&self) -> Option<&Buffer> {
            Some(self)
        }

        fn unstow(buffer: Option<Buffer>) -> Option<Self> {
            buffer
        }
    }

    impl Payload for Buffers {
        fn stow(self) -> Option<Buffer> {
            Some(self.into_list())
        }

        fn peek(&self) -> Option<&Buffer> {
            Some(self.list())
        }

        fn unstow(buffer: Option<Buffer>) -> Option<Self> {
            buffer.and_then(Self::from_list)
        }
    }

    /// The buffer of a request of which nobody needs to know whether it has one.
    #[cfg(feature = "async")]
    impl Payload for Option<Buffer> {
        fn stow(self) -> Option<Buffer> {
            self
        }

        fn peek(&self) -> Option<&Buffer> {
            self.as_ref()
        }

        fn unstow(buffer: Option<Buffer>) -> Option<Self> {
            Some(buffer)
        }
    }

    impl Payload for () {
        fn stow(self) -> Option<Buffer> {
            None
        }

        fn peek(&self) -> Option<&Buffer> {
            None
        }

        fn unstow(_: Option<Buffer>) -> Option<Self> {
            Some(())
        }
    }
}
