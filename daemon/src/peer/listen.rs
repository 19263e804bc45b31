//! Peers that connect to us.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use piped_config::Listen;
use piped_control::greeting::origin;
use piped_control::journal::{Cause, Party};
use piped_engine::command::{Caller, Origin};
use tokio::net::{TcpListener, TcpStream};

use super::greet::{self, Greeting};
use super::options::lane_socket;
use crate::control::Control;
use crate::io::far_end::far_end;
use crate::shard::message::Message;

/// How long to leave a full table of files alone.
const PAUSE: Duration = Duration::from_millis(100);

/// Why this node does not listen for peers.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Connections would be plain, and the address can be reached from networks that the
    /// configuration does not name.
    #[error(
        "listen.address: {0} is outside loopback and this node has no key, so lanes would be \
         plain; run `pipectl keys generate`; or name the networks you trust in listen.allow_plain, \
         or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
    /// The kernel refused to listen.
    #[error("listen.address: cannot listen on {address} ({error}); is the port taken?")]
    Listen {
        /// The address from the configuration.
        address: SocketAddr,
        /// The error of the kernel.
        error: std::io::Error,
    },
}

/// Listens at the address of the configuration; `None` if there is none. `has_key`: peers must
/// prove their identity.
///
/// # Errors
/// See [`ListenError`].
pub(crate) async fn bind(
    listen: &Listen,
    has_key: bool,
) -> Result<Option<TcpListener>, ListenError> {
    let Some(address) = listen.address else { return Ok(None) };
    // The configuration was validated; the door does not rely on who did.
    if !has_key && !listen.may_be_plain() {
        return Err(ListenError::Open(address));
    }
    if !address.ip().is_loopback() && !listen.allow_plain.is_empty() {
        tracing::warn!(
            %address,
            "lanes of nodes without keys are PLAIN: whoever is on the networks of \
             listen.allow_plain can read and forge what they send"
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
            Ok((stream, address)) => admit(&control, stream, address.ip()).await,
            Err(error) => {
                if let Some(left_out) = control.may_say(Cause::Accept, Party::Door("peers")) {
                    tracing::warn!(%error, left_out, "no peer can be accepted");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn admit(control: &Rc<Control>, stream: TcpStream, from: IpAddr) {
    if !control.core.borrow().asks_for_keys() {
        // Nobody is asked to prove anything, so there is nothing to wait for.
        return greet(control, stream, from, origin(from, None)).await;
    }
    let origin = origin_of(control, &stream, from);
    let Some(place) = control.greeting_place(origin) else {
        // It is not read: a reset is all it costs.
        control.count_greeting(Greeting::Busy);
        return control.journal_stranger(
            from,
            "its address, or user of this machine, or strangers together, have had too many \
             attempts",
        );
    };
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        let _place = place;
        tokio::select! {
            () = control.stopped() => {}
            () = greet(&control, stream, from, origin) => {}
        }
    });
}

/// The budget that an attempt counts for.
fn origin_of(control: &Control, stream: &TcpStream, from: IpAddr) -> Origin {
    if control.core.borrow().knows_site(from) {
        return origin(from, None);
    }
    let ends = stream.local_addr().and_then(|near| Ok((near, stream.peer_addr()?)));
    origin(from, ends.and_then(|(near, far)| far_end(near, far)).ok())
}

/// Finds out who that is, and gives the lane to its shard.
async fn greet(control: &Rc<Control>, mut stream: TcpStream, from: IpAddr, origin: Origin) {
    let (caller, keys) = match greet::accepted(control, &mut stream, from, origin).await {
        Ok(Some(met)) => met,
        // It is a node of the cluster now, and comes again as one.
        Ok(None) => return,
        Err(fault) => {
            control.count_greeting(fault.outcome());
            return control.journal_stranger(from, &fault.to_string());
        }
    };
    // What a plain one says is not known yet: it is trusted by its network.
    if matches!(caller, Caller::Proven { .. }) {
        control.count_greeting(Greeting::Proven);
    }
    let socket = match lane_socket(stream) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::debug!(%from, %error, "a peer left before it was looked at");
            return;
        }
    };
    let proven = match &caller {
        Caller::Proven { node, shard } => Some((node.as_str(), *shard)),
        Caller::Unproven { .. } => None,
    };
    let shard = control.core.borrow_mut().home_of(proven, from);
    // A shard that is gone ends the daemon by itself.
    let _ = control.shards[shard].mailbox.send(Message::Accepted { socket, caller, keys }).await;
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
        let plain = async |listen: &Listen| bind(listen, false).await;
        assert!(plain(&Listen::default()).await.expect("nowhere").is_none());
        assert!(plain(&listen_on("127.0.0.1:0", &[])).await.expect("loopback").is_some());
        assert!(plain(&listen_on("0.0.0.0:0", &["10.9.0.0/24"])).await.expect("told").is_some());
        assert!(bind(&listen_on("0.0.0.0:0", &[]), true).await.expect("keyed").is_some());
        for (address, networks) in
            [("0.0.0.0:0", &[][..]), ("192.0.2.1:0", &[][..]), ("192.0.2.1:0", &["10.9.0.0/24"])]
        {
            let error = plain(&listen_on(address, networks)).await.expect_err("open");
            assert!(matches!(error, ListenError::Open(_)), "{error}");
            assert!(error.to_string().contains("listen.allow_plain"), "{error}");
        }
    }
}
