//! Clients that connect.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::door::Door;
use super::reasons::HandshakeRefusal;
use super::session;
use crate::closing::HeldFile;
use crate::connection::{Connection, accept};
use crate::control::Control;
use crate::io::socket::peer_credentials;
use crate::journal::{Cause, Party};
use crate::limits::FILES_PER_HANDSHAKE;

/// How long to leave a full table of files alone.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients until the daemon stops.
pub(crate) async fn listen(control: Rc<Control>, listener: AsyncFd<HeldFile>) {
    loop {
        let connection = tokio::select! {
            () = control.stopped() => return,
            connection = accept(&listener, &control.doorstep) => connection,
        };
        match connection {
            Ok(connection) => {
                if let Err(error) = admit(&control, connection) {
                    tracing::debug!(%error, "a client left before it was looked at");
                }
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                if let Some(left_out) = control.may_say(Cause::Accept, Party::Door("clients")) {
                    tracing::warn!(
                        left_out,
                        "no client can be accepted: raise LimitNOFILE= of the unit"
                    );
                }
                tokio::time::sleep(PAUSE).await;
            }
            // The client hung up first.
            Err(_) => {}
        }
    }
}

/// Starts a client's task, if there is room for one more that has not said Hello. Strangers have few
/// places of their own, so that they cannot take those of others.
fn admit(control: &Rc<Control>, connection: Connection) -> std::io::Result<()> {
    let who = peer_credentials(connection.socket().get_ref())?;
    let admitted = control.rules().admits_client(&who);
    let slots = if admitted { &control.handshake_slots } else { &control.refusal_slots };
    let Ok(slot) = Arc::clone(slots).try_acquire_owned() else {
        control.count_refusal(match admitted {
            true => HandshakeRefusal::Busy,
            false => HandshakeRefusal::Stranger,
        });
        tracing::debug!(uid = who.uid, pid = who.pid, "turned away: too many handshakes at once");
        return Ok(());
    };
    // From here on its place answers for it.
    let account = control.account(FILES_PER_HANDSHAKE, 1, Some(Arc::new(slot)));
    let mut door = Door::new(connection);
    door.move_to(&account);
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        if admitted {
            session::run(control, door, who, account).await;
        } else {
            session::refuse_stranger(&control, door, who, account).await;
        }
    });
    Ok(())
}
