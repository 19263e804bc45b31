//! Clients that connect.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use tokio::io::unix::AsyncFd;

use super::door::Door;
use super::session;
use crate::control::Control;
use crate::io::socket::peer_credentials;

/// How long to leave a full table of files alone.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients until the daemon stops.
pub(crate) async fn listen(control: Rc<Control>, listener: AsyncFd<OwnedFd>) {
    loop {
        let socket = tokio::select! {
            () = control.stopped() => return,
            socket = accept(&listener) => socket,
        };
        match socket {
            Ok(socket) => {
                if let Err(error) = admit(&control, socket) {
                    tracing::debug!(%error, "a client left before it was looked at");
                }
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                tracing::warn!("no client can be accepted: raise LimitNOFILE= of the unit");
                tokio::time::sleep(PAUSE).await;
            }
            // The client hung up first.
            Err(_) => {}
        }
    }
}

async fn accept(listener: &AsyncFd<OwnedFd>) -> Result<OwnedFd, Errno> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener.get_ref(), flags) {
            Err(Errno::AGAIN) => match listener.readable().await {
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return Err(Errno::NOBUFS),
            },
            result => return result,
        }
    }
}

/// Starts a client's task, if there is room for one more that has not said Hello. Strangers have few
/// places of their own, so that they cannot take those of others.
fn admit(control: &Rc<Control>, socket: OwnedFd) -> std::io::Result<()> {
    let who = peer_credentials(&socket)?;
    let admitted = control.rules.admits_client(&who);
    let slots = if admitted { &control.handshake_slots } else { &control.refusal_slots };
    let Ok(slot) = std::sync::Arc::clone(slots).try_acquire_owned() else {
        tracing::debug!(uid = who.uid, pid = who.pid, "turned away: too many handshakes at once");
        return Ok(());
    };
    let door = Door::new(socket)?;
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        if admitted {
            session::run(control, door, who, slot).await;
        } else {
            session::refuse_stranger(door, who, slot).await;
        }
    });
    Ok(())
}
