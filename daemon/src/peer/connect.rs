//! Dials, performed: each step of one is decided by [`piped_control::dial`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use piped_control::dial::{Dial, DialFault, Progress, Step};
use piped_engine::command::Command;
use piped_wire::LaneKeys;
use tokio::net::TcpStream;

use super::greet;
use super::options::lane_socket;
use crate::control::Control;
use crate::io::clock;
use crate::shard::message::Message;

/// The results of a dial so far.
#[derive(Debug, Default)]
struct Line {
    stream: Option<TcpStream>,
    keys: Option<LaneKeys>,
}

/// Performs a dial for a shard, and tells it the outcome.
pub(crate) async fn lane(control: Rc<Control>, mut dial: Dial) {
    let line = tokio::select! {
        () = control.stopped() => return,
        line = run(&control, &mut dial) => line,
    };
    let (peer, class) = (dial.peer, dial.class);
    let message = match line.and_then(|line| line.socket().map_err(failed)) {
        Ok((socket, near, keys)) => Message::Connected { peer, class, socket, near, keys },
        Err(fault) => {
            tracing::debug!(peer = dial.name(), ?class, error = %fault, "no lane");
            Message::Engine(Command::ConnectFailed { peer, class })
        }
    };
    // A shard that is gone needs no lane.
    let _ = control.shards[dial.shard].mailbox.send(message).await;
}

async fn run(control: &Rc<Control>, dial: &mut Dial) -> Result<Line, DialFault> {
    let mut line = Line::default();
    let mut progress = Progress::Begun;
    loop {
        let step = control.decide(|core, _| core.advance(dial, progress, clock::times()));
        let left = Duration::from_nanos(dial.until().since(clock::now()).0);
        let performed = match step {
            Step::Deliver => {
                // What a new certificate changes is told before the connection is.
                control.tell_shards().await;
                return match control.core.borrow().may_deliver(dial) {
                    true => Ok(line),
                    false => Err(DialFault::Changed),
                };
            }
            Step::Fail(fault) => return Err(fault),
            step => tokio::time::timeout(left, line.perform(step)),
        };
        progress = performed.await.unwrap_or(Progress::Late);
    }
}

impl Line {
    async fn perform(&mut self, step: Step) -> Progress {
        match step {
            Step::Wait(until) => {
                let left = Duration::from_nanos(until.since(clock::now()).0);
                tokio::time::sleep(left).await;
                Progress::Waited
            }
            Step::Resolve(host) => {
                let found = tokio::net::lookup_host(host.as_str()).await;
                Progress::Resolved(found.map(Iterator::collect).map_err(words))
            }
            Step::Connect(address) => {
                // The other end has no place for two of one dial.
                (self.stream, self.keys) = (None, None);
                let connected = TcpStream::connect(address).await;
                Progress::Connected(connected.map(|it| self.stream = Some(it)).map_err(words))
            }
            Step::Ask => {
                let Some(stream) = &mut self.stream else {
                    return Progress::Showed(Err("there is no connection".to_owned()));
                };
                Progress::Showed(greet::ask(stream).await.map_err(|fault| fault.to_string()))
            }
            Step::Prove { keyring, key, shows, shard } => {
                let (Some(stream), Some(identity)) = (&mut self.stream, keyring.identity()) else {
                    return Progress::Proved(Err("there is no connection, or no key".to_owned()));
                };
                let proved = greet::dialled(stream, identity, (key, shows), shard).await;
                let proved = proved.map(|keys| self.keys = Some(keys));
                Progress::Proved(proved.map_err(|fault| fault.to_string()))
            }
            Step::Deliver | Step::Fail(_) => unreachable!("these end a dial"),
        }
    }

    /// The socket, whether the dialled address is of this machine, and the keys.
    fn socket(self) -> io::Result<(OwnedFd, bool, Option<LaneKeys>)> {
        let stream = self.stream.ok_or(io::ErrorKind::NotConnected)?;
        let [from, to] =
            [stream.local_addr()?, stream.peer_addr()?].map(|it| it.ip().to_canonical());
        Ok((lane_socket(stream)?, to.is_loopback() || from == to, self.keys))
    }
}

fn words(error: io::Error) -> String {
    error.to_string()
}

fn failed(error: io::Error) -> DialFault {
    DialFault::Failed(words(error))
}

/// Logs that a peer was not dialled, and what to do about it.
pub(crate) fn forbidden(peer: &str, address: SocketAddr, left_out: u64) {
    tracing::error!(
        peer,
        %address,
        left_out,
        "not connected: the peer has no key, so the lane would be plain, and this address is not \
         in listen.allow_plain (nor loopback, of a node that has no key either); run `pipectl keys \
         trust`"
    );
}

/// Logs that a peer did not prove itself.
pub(crate) fn not_connected(peer: &str, address: SocketAddr, error: &str, left_out: u64) {
    tracing::warn!(peer, %address, %error, left_out, "not connected");
}
