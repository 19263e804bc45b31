//! Peers that connect to us.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use piped_config::Listen;
use tokio::net::{TcpListener, TcpStream};

use super::options::lane_socket;
use crate::control::Control;
use crate::shard::message::Message;

/// How long to leave a full table of files alone.
const PAUSE: Duration = Duration::from_millis(100);

/// Why there is no listener for peers.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Lanes are plain, and this address is not only for those who may read them.
    #[error(
        "listen.address: {0} is outside loopback and lanes are not encrypted; name the networks \
         you trust in listen.allow_plain, or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
    /// The kernel says no.
    #[error("listen.address: cannot listen on {address} ({error}); is the port taken?")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What it says.
        error: std::io::Error,
    },
}

/// Listens where the configuration says; `None`: nowhere.
///
/// # Errors
/// See [`ListenError`].
pub(crate) async fn bind(listen: &Listen) -> Result<Option<TcpListener>, ListenError> {
    let Some(address) = listen.address else { return Ok(None) };
    // The configuration was validated; the door does not rely on who did.
    let everywhere = address.ip().is_unspecified() && !listen.allow_plain.is_empty();
    if !everywhere && !listen.admits_plain(address.ip()) {
        return Err(ListenError::Open(address));
    }
    if !address.ip().is_loopback() {
        tracing::warn!(
            %address,
            "lanes are PLAIN: whoever is on the networks of listen.allow_plain can read and forge \
             what peers send"
        );
    }
    let listener = TcpListener::bind(address).await;
    listener.map(Some).map_err(|error| ListenError::Listen { address, error })
}

/// Accepts peers until the daemon stops.
pub(crate) async fn listen(control: Rc<Control>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            () = control.stopped() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => admit(&control, stream, address).await,
            Err(error) => {
                tracing::warn!(%error, "no peer can be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn admit(control: &Control, stream: TcpStream, address: SocketAddr) {
    if !control.config().listen.admits_plain(address.ip()) {
        tracing::warn!(
            %address,
            "a peer was turned away: its network is neither loopback nor in listen.allow_plain"
        );
        return;
    }
    let socket = match lane_socket(stream) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::debug!(%address, %error, "a peer left before it was looked at");
            return;
        }
    };
    let shard = home_of(address.ip(), control.shards.len());
    // A shard that is gone ends the daemon by itself.
    let _ = control.shards[shard].mailbox.send(Message::Accepted { socket }).await;
}

/// The shard that serves a node: both its lanes must meet, because handles opened over one are used
/// over the other.
fn home_of(address: IpAddr, shards: usize) -> usize {
    let octets = match address.to_canonical() {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    };
    (octets % shards.max(1) as u128) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen_on(address: &str, allow_plain: &[&str]) -> Listen {
        Listen {
            address: Some(address.parse().expect("an address")),
            allow_plain: allow_plain.iter().map(|it| it.parse().expect("a network")).collect(),
        }
    }

    #[tokio::test]
    async fn an_open_address_needs_a_trusted_network() {
        assert!(bind(&Listen::default()).await.expect("nowhere").is_none());
        assert!(bind(&listen_on("127.0.0.1:0", &[])).await.expect("loopback").is_some());
        assert!(bind(&listen_on("0.0.0.0:0", &["10.9.0.0/24"])).await.expect("told").is_some());
        for (address, networks) in
            [("0.0.0.0:0", &[][..]), ("192.0.2.1:0", &[][..]), ("192.0.2.1:0", &["10.9.0.0/24"])]
        {
            let error = bind(&listen_on(address, networks)).await.expect_err("open");
            assert!(matches!(error, ListenError::Open(_)), "{error}");
            assert!(error.to_string().contains("listen.allow_plain"), "{error}");
        }
    }

    #[test]
    fn all_lanes_of_a_node_meet_on_one_shard() {
        let plain: IpAddr = "10.9.0.3".parse().expect("an address");
        let mapped: IpAddr = "::ffff:10.9.0.3".parse().expect("an address");
        for shards in 1..8 {
            assert_eq!(home_of(plain, shards), home_of(mapped, shards));
            assert!(home_of(plain, shards) < shards);
        }
    }
}
