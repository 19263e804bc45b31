//! Settings of a client that is to be made.

use std::path::{Path, PathBuf};
use std::time::Duration;

use piped_ring::handshake::{
    FEATURE_LENDING, FEATURE_NAPS, FEATURE_PATH_COSTS, FEATURE_SPREAD, Hello,
};
use piped_ring::layout::ENTRIES_MAX;

use super::Client;
use crate::arena::PAGE_BYTES;
use crate::connection::Shared;
use crate::error::ConnectError;
use crate::request::Class;
use crate::settings::Settings;
use crate::socket::{SOCKET_VARIABLE, SocketOrigin, default_socket};
use crate::wait::WaitPolicy;

/// Settings of a new client: what to ask of the daemon when it connects.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Class, ClientBuilder};
/// let client = ClientBuilder::new()
///     .arena_bytes(64 << 20)
///     .depth(64)
///     .class(Class::Latency)
///     .connect("/run/piped/client.sock")?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    arena_bytes: u64,
    depth: u32,
    class: Class,
    weight: u32,
    spread: bool,
    wait: Option<WaitPolicy>,
    timeout: Duration,
    reconnect: Option<Duration>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            arena_bytes: 16 << 20,
            depth: 255,
            class: Class::Session,
            weight: 0,
            spread: false,
            wait: None,
            timeout: Duration::from_secs(30),
            reconnect: None,
        }
    }
}

impl ClientBuilder {
    /// The defaults: 16 MiB of arena, 255 requests a queue, class, weight and waiting as the daemon
    /// says.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the arena's first segment, and the least it grows by later.
    #[must_use]
    pub fn arena_bytes(self, arena_bytes: u64) -> Self {
        Self { arena_bytes, ..self }
    }

    /// Requests that each queue can have under way. Its rings have the next power of two above, and
    /// use it. One entry is for cancels, so 255 is as dear as 128.
    #[must_use]
    pub fn depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }

    /// The class of requests that name none.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// The share of bytes among clients of the same class, 1 to 255, wherever several want the same
    /// disk, connection or copy. Default: 1. A client of weight 3 gets three times the bytes of one
    /// of weight 1.
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// Has all shards of the daemon serve the client's queues, each queue one, by turns. Default:
    /// one shard serves them all. It is for programs with a queue for each of several threads that
    /// move more of this node's files and regions than one shard can.
    ///
    /// Things of other nodes, channels that are received on, and notifications that are waited for
    /// have one place: the shard of the first queue. Requests for them that come by queues of other
    /// shards pass from these to that one and back. Memory is registered with each shard. A daemon
    /// with one shard, or of a release that does not know of this, serves them as ever.
    #[must_use]
    pub fn spread(self, spread: bool) -> Self {
        Self { spread, ..self }
    }

    /// How queues wait. Default: as the daemon recommends.
    #[must_use]
    pub fn wait(self, policy: WaitPolicy) -> Self {
        Self { wait: Some(policy), ..self }
    }

    /// How long opening, growing and connecting may take. Data requests have deadlines.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Keep the facts that [`Client::reconnect`] needs, and let it take that long.
    ///
    /// Without it, the client ends with the daemon. With it, the client keeps the descriptors of
    /// the local files it opened and the names of everything else. Requests that ask for it
    /// ([`crate::Request::resubmit`]) outlive the daemon.
    #[must_use]
    pub fn reconnect(self, within: Duration) -> Self {
        Self { reconnect: Some(within), ..self }
    }

    /// Connect to the daemon that listens on a unix socket.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(self, path: impl AsRef<Path>) -> Result<Client, ConnectError> {
        let settings = self.settings((path.as_ref().to_owned(), SocketOrigin::Given));
        Ok(Client::new(Shared::connect(settings)?))
    }

    /// Connect to the daemon that [`SOCKET_VARIABLE`] names, or else the one at
    /// [`crate::DEFAULT_SOCKET`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect_default(self) -> Result<Client, ConnectError> {
        let settings = self.settings(default_socket(std::env::var_os(SOCKET_VARIABLE)));
        Ok(Client::new(Shared::connect(settings)?))
    }

    pub(crate) fn settings(self, (path, origin): (PathBuf, SocketOrigin)) -> Settings {
        let spread = if self.spread { FEATURE_SPREAD } else { 0 };
        let hello = Hello {
            features: FEATURE_PATH_COSTS | FEATURE_NAPS | FEATURE_LENDING | spread,
            arena_bytes: self.arena_bytes.max(1).next_multiple_of(PAGE_BYTES),
            entries: self.depth.clamp(1, ENTRIES_MAX - 1).saturating_add(1).next_power_of_two(),
            queues: 1,
            weight: self.weight,
            class: self.class.number(),
        };
        Settings {
            path,
            origin,
            hello,
            timeout: self.timeout,
            spin_ns: self.wait.map(WaitPolicy::spin_ns),
            reconnect: self.reconnect,
        }
    }
}
