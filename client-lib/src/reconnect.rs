//! Going on with the next daemon.
//!
//! A reconnect makes a new session, opens the client's handles in it under new numbers, and has a
//! ring ready for each of its queues; only then is it seen. The queues move over one by one, each
//! when its thread uses it next, and submit again what was asked to be. Nothing here is on the way
//! of a request: a queue compares one number.

use std::sync::{Arc, TryLockError};
use std::time::Duration;

use piped_core::status::Status;

use crate::clock;
use crate::connection::{Connection, Shared};
use crate::error::{ConnectError, ReconnectError, SessionError};
use crate::handle::{HandleCore, Reopened};

/// First wait after an attempt that failed; doubles up to the longest.
const PAUSE_FIRST_NS: u64 = 5_000_000;
const PAUSE_LONGEST_NS: u64 = 200_000_000;

/// Nanoseconds between two looks for a queue at a daemon that gave none.
pub(crate) const NAP_NS: u64 = 5_000_000;

/// Whether requests that wait for the next daemon wait in vain.
pub(crate) fn is_hopeless(found: &Result<Reconnected, ReconnectError>, patience_ns: u64) -> bool {
    match found {
        Ok(_) => false,
        Err(ReconnectError::Away { .. }) => clock::now_ns() >= patience_ns,
        Err(_) => true,
    }
}

/// Outcome of a reconnect; see [`crate::Client::reconnect`].
///
/// ```
/// assert_eq!(piped_client::Reconnected::default().lost, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reconnected {
    /// Handles that are open again, under new numbers. 0 also if another thread was first.
    pub opened: usize,
    /// Handles that could not be opened again: their file is gone, or access to it. Requests on
    /// them are refused with [`crate::SubmitFault::HandleLost`].
    pub lost: usize,
}

impl Shared {
    /// Find a daemon until `until_ns`, with at least one attempt; at once if the daemon is there.
    /// Handles with peers that are not there are given up at `patience_ns`. Until then the daemon
    /// counts as not found: a caller with little time must not lose the handles for all.
    pub(crate) fn reconnect(
        &self,
        until_ns: u64,
        patience_ns: u64,
    ) -> Result<Reconnected, ReconnectError> {
        let Some(within) = self.settings.reconnect else { return Err(ReconnectError::NotAsked) };
        let mut pause_ns = PAUSE_FIRST_NS;
        let mut last = None;
        loop {
            if self.connection().control.is_open() {
                return Ok(Reconnected::default());
            }
            // A thread that panicked there left the old connection in its place.
            let turn = match self.reconnecting.try_lock() {
                Err(TryLockError::WouldBlock) => None,
                Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
                Ok(turn) => Some(turn),
            };
            // The thread that had the turn before may have found it.
            if let Some(mut next) = turn
                && !self.connection().control.is_open()
            {
                match self.attempt(&mut next, until_ns, patience_ns) {
                    Ok(Some(found)) => return Ok(found),
                    Ok(None) => last = Some(SessionError::TimedOut.into()),
                    Err(error) if is_final(&error) => return Err(ReconnectError::Connect(error)),
                    Err(error) => last = Some(error),
                }
            }
            let left_ns = until_ns.saturating_sub(clock::now_ns());
            if left_ns == 0 {
                return Err(ReconnectError::Away { within, last });
            }
            clock::nap(pause_ns.min(left_ns));
            pause_ns = (pause_ns * 2).min(PAUSE_LONGEST_NS);
        }
    }

    /// `None`: the daemon is there, and handles are left to be opened, at the `next` connection.
    fn attempt(
        &self,
        next: &mut Option<Connection>,
        until_ns: u64,
        patience_ns: u64,
    ) -> Result<Option<Reconnected>, ConnectError> {
        let left = until_ns.saturating_sub(clock::now_ns()).max(PAUSE_LONGEST_NS);
        let timeout = self.settings.timeout.min(Duration::from_nanos(left));
        let begun = next.take().filter(|connection| connection.control.is_open());
        let connection = match begun {
            Some(connection) => connection,
            None => {
                let generation = self.link.generation() + 1;
                let connection =
                    Connection::open(&self.settings, self.client, generation, timeout)?;
                // Handles that are dropped meanwhile are closed where they are open.
                self.link.move_to(&connection);
                connection
            }
        };
        connection.control.set_timeout(timeout).map_err(SessionError::from)?;
        self.lend_again(&connection);
        let Some(found) = self.reopen_all(&connection, until_ns, patience_ns)? else {
            *next = Some(connection);
            return Ok(None);
        };
        match connection.prepare_rings(self.queues()) {
            // A queue that finds none asks by itself, and says what is wrong.
            Ok(()) | Err(_) if connection.control.is_open() => {}
            _ => return Err(SessionError::Disconnected.into()),
        }
        connection.control.set_timeout(self.settings.timeout).map_err(SessionError::from)?;
        self.replace(connection);
        Ok(Some(found))
    }

    /// Opens every handle again that is not open there yet. A peer may be out of reach just after
    /// the start of its neighbour: those are tried again. `None`: some of them wait for another
    /// attempt.
    fn reopen_all(
        &self,
        connection: &Connection,
        until_ns: u64,
        patience_ns: u64,
    ) -> Result<Option<Reconnected>, ConnectError> {
        let all = self.link.handles();
        let is_open = |handle: &Arc<HandleCore>| handle.place().0 == connection.generation;
        let mut left: Vec<_> = all.iter().filter(|handle| !is_open(handle)).collect();
        let mut pause_ns = PAUSE_FIRST_NS;
        loop {
            left.retain(|handle| {
                let now_ns = clock::now_ns();
                let hurries = now_ns >= until_ns && now_ns < patience_ns;
                hurries || handle.reopen(connection) == Reopened::NotNow
            });
            if !connection.control.is_open() {
                return Err(SessionError::Disconnected.into());
            }
            let now_ns = clock::now_ns();
            if left.is_empty() || now_ns >= patience_ns {
                let opened = all.iter().filter(|handle| is_open(handle)).count();
                return Ok(Some(Reconnected { opened, lost: all.len() - opened }));
            }
            if now_ns >= until_ns {
                return Ok(None);
            }
            clock::nap(pause_ns.min(until_ns - now_ns));
            pause_ns = (pause_ns * 2).min(PAUSE_LONGEST_NS);
        }
    }
}

/// Whether it will be the same the next time: somebody is there and says no.
fn is_final(error: &ConnectError) -> bool {
    match error {
        ConnectError::Socket { source, .. } => {
            source.kind() == std::io::ErrorKind::PermissionDenied
        }
        ConnectError::Session(SessionError::Refused { status, .. }) => {
            *status != Status::WouldBlock
        }
        ConnectError::Session(error) => !matches!(
            error,
            SessionError::Disconnected | SessionError::TimedOut | SessionError::System(_)
        ),
        ConnectError::Memory(_) | ConnectError::Queue(_) => true,
    }
}
