//! Lanes to peers: when a shard asks for one.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use piped_engine::command::{Command, LaneClass};
use piped_engine::ids::PeerId;
use piped_model::units::Nanos;
use tokio::net::TcpStream;

use super::options::lane_socket;
use crate::control::Control;
use crate::io::clock;
use crate::limits::CONNECT_TIMEOUT;
use crate::shard::message::Message;

/// Connects a lane for a shard, not before `after`, and tells it the outcome.
pub(crate) async fn lane(
    control: Rc<Control>,
    shard: usize,
    name: PeerId,
    class: LaneClass,
    after: Nanos,
) {
    let connect = async {
        tokio::time::sleep(Duration::from_nanos(after.since(clock::now()).0)).await;
        tokio::time::timeout(CONNECT_TIMEOUT, connect(&control, name))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    };
    let outcome = tokio::select! {
        () = control.stopped() => return,
        outcome = connect => outcome,
    };
    let message = match outcome {
        Ok(socket) => Message::Connected { peer: name, class, socket },
        Err(error) => {
            let peer = control.peers.get(name.0 as usize).map_or("?", |(name, _)| name);
            tracing::debug!(peer, ?class, %error, "no lane");
            Message::Engine(Command::ConnectFailed { peer: name, class })
        }
    };
    // A shard that is gone needs no lane.
    let _ = control.shards[shard].mailbox.send(message).await;
}

async fn connect(control: &Control, peer: PeerId) -> io::Result<OwnedFd> {
    let (name, address) =
        control.peers.get(peer.0 as usize).ok_or(io::Error::from(io::ErrorKind::NotFound))?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in tokio::net::lookup_host(address.as_str()).await? {
        if !control.config.listen.admits_plain(address.ip()) {
            tracing::error!(
                peer = name,
                %address,
                "not connected: lanes are not encrypted and this address is neither loopback nor \
                 in listen.allow_plain"
            );
            last = io::ErrorKind::PermissionDenied.into();
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => return lane_socket(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
