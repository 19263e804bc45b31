//! Lanes to peers: when a shard asks for one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use piped_config::{Peer, PublicKey};
use piped_core::ids::PeerId;
use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_engine::command::Command;
use piped_wire::LaneKeys;
use tokio::net::TcpStream;

use super::greet;
use super::options::lane_socket;
use crate::control::Control;
use crate::io::clock;
use crate::journal::Cause;
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
        Ok((socket, keys)) => Message::Connected { peer: name, class, socket, keys },
        Err(error) => {
            let peers = control.peers.borrow();
            let peer = peers.name(name).unwrap_or("?");
            tracing::debug!(peer, ?class, %error, "no lane");
            Message::Engine(Command::ConnectFailed { peer: name, class })
        }
    };
    // A shard that is gone needs no lane.
    let _ = control.shards[shard].mailbox.send(message).await;
}

async fn connect(control: &Control, peer: PeerId) -> io::Result<(OwnedFd, Option<LaneKeys>)> {
    let (name, target) = named(control, peer)?;
    // One that changes its key has either.
    let keys: Vec<_> = target.keys().map(Some).collect();
    let keys = if keys.is_empty() { vec![None] } else { keys };
    let host = target.address.clone();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in tokio::net::lookup_host(host.as_str()).await? {
        if !may_be_dialled(control, &target, address) {
            if let Some(left_out) = control.may_say(Cause::Dial, control.party_of(&name)) {
                tracing::error!(
                    peer = name,
                    %address,
                    left_out,
                    "not connected: the peer has no key, so the lane would be plain, and this address is not in \
                     listen.allow_plain (nor loopback, of a node that has no key either); run `pipectl keys trust`"
                );
            }
            last = io::ErrorKind::PermissionDenied.into();
            continue;
        }
        let mut unproven = None;
        for key in &keys {
            let stream = match TcpStream::connect(address).await {
                Ok(stream) => stream,
                Err(error) => {
                    last = error;
                    break;
                }
            };
            is_still(control, peer, &target, address)?;
            match prove(control, stream, *key).await {
                Ok((stream, keys)) => {
                    is_still(control, peer, &target, address)?;
                    return Ok((lane_socket(stream)?, keys));
                }
                Err(error) => unproven = Some(error),
            }
        }
        if let Some(error) = unproven {
            if let Some(left_out) = control.may_say(Cause::Dial, control.party_of(&name)) {
                tracing::warn!(peer = name, %address, %error, left_out, "not connected");
            }
            last = error;
        }
    }
    Err(last)
}

/// It may have moved, or left, meanwhile; or its network is no longer one for plain lanes.
fn is_still(control: &Control, peer: PeerId, target: &Peer, address: SocketAddr) -> io::Result<()> {
    let is_same = named(control, peer)?.1 == *target && may_be_dialled(control, target, address);
    if is_same { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Whether the lane would be sealed, or may be plain.
fn may_be_dialled(control: &Control, target: &Peer, address: SocketAddr) -> bool {
    let has_key = control.keyring().identity().is_some();
    target.key.is_some() || control.config().listen.admits_plain(address.ip(), has_key)
}

/// The handshake with a peer that has a key.
async fn prove(
    control: &Control,
    mut stream: TcpStream,
    key: Option<PublicKey>,
) -> io::Result<(TcpStream, Option<LaneKeys>)> {
    let keyring = control.keyring();
    let Some(key) = key else { return Ok((stream, None)) };
    // A configuration that has the one without the other is refused.
    let identity = keyring.identity().ok_or(io::ErrorKind::PermissionDenied)?;
    let keys = greet::dialled(&mut stream, identity, key).await;
    let keys = keys.map_err(|fault| io::Error::new(io::ErrorKind::PermissionDenied, fault))?;
    if !Rc::ptr_eq(&keyring, &control.keyring()) {
        // What was agreed on is not what is to be now.
        return Err(io::ErrorKind::Interrupted.into());
    }
    Ok((stream, Some(keys)))
}

/// The peer's name, and where it listens and what its key is by the configuration of now.
fn named(control: &Control, peer: PeerId) -> io::Result<(String, Peer)> {
    let peers = control.peers.borrow();
    let named = peers.name(peer).zip(peers.target(peer));
    let (name, target) = named.ok_or(io::Error::from(io::ErrorKind::NotFound))?;
    Ok((name.to_owned(), target.clone()))
}
