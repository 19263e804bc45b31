//! Lending memory of the program, by its kind.

use std::os::fd::AsFd;

use piped_ring::LentKind;

use super::Client;
use crate::error::LendError;
use crate::lent::{Lent, PrivateOffer};

impl Client {
    /// Lends a sealed memfd; [`Lent`] has the rules.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn lend_memfd(&self, file: impl AsFd) -> Result<Lent, LendError> {
        Lent::by_file(&self.shared, &file, LentKind::Sealed)
    }

    /// Lends POSIX shared memory, or a file below `/dev/shm`; [`Lent`] has the rules.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn lend_shared(&self, file: impl AsFd) -> Result<Lent, LendError> {
        Lent::by_file(&self.shared, &file, LentKind::Loose)
    }

    /// Lends private memory of this process; [`Lent`] has the rules.
    ///
    /// # Errors
    /// See [`LendError`]. The area is as it was.
    ///
    /// # Safety
    /// Nothing writes the area during the call. It stays mapped until the [`Lent`] and all buffers
    /// of it are dropped. While a buffer is borrowed ([`crate::Buffer::as_slice`]), nobody else
    /// writes its bytes, and of a mutable borrow, nobody else reads them either.
    #[allow(unsafe_code, reason = "the program alone knows who uses its memory")]
    pub unsafe fn lend_private(&self, start: *mut u8, length: usize) -> Result<Lent, LendError> {
        // SAFETY: what the function asks for is what the caller promises.
        unsafe { self.offer_private(start, length)?.take_over() }
    }

    /// The first half of [`Self::lend_private`]: asks the daemon, and leaves the area as it is. The
    /// program may use it meanwhile; only [`PrivateOffer::take_over`] must have it alone.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn offer_private(&self, start: *mut u8, length: usize) -> Result<PrivateOffer, LendError> {
        PrivateOffer::new(&self.shared, start, length)
    }
}
