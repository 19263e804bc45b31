//! Accepts clients that connect.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use piped_control::journal::{Cause, Party};
use piped_control::parties::Credentials;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::door::Door;
use super::reasons::HandshakeRefusal;
use super::session::{self, Handshake};
use crate::closing::{Account, HeldFile, Kept};
use crate::connection::{Connection, accept};
use crate::control::Control;
use crate::doorstep::Knock;
use crate::limits::FILES_PER_HANDSHAKE;

/// How long to leave a full table of files alone.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients until the daemon stops.
pub(crate) async fn listen(control: Rc<Control>, listener: AsyncFd<HeldFile>) {
    loop {
        let doorstep = &control.doorstep;
        let connection = tokio::select! {
            () = control.stopped() => return,
            connection = accept(&listener, doorstep, |who| knock(&control, who)) => connection,
        };
        match connection {
            Ok((connection, who)) => {
                admit(&control, connection, who);
                // Read a message that was already sent before the next connection: it is not
                // silent.
                tokio::task::yield_now().await;
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

/// Account of a connection that has no place yet.
fn knock(control: &Control, who: &Credentials) -> Knock {
    let rules = control.rules();
    Knock::of(&rules, who, rules.admits_client(who))
}

/// Starts a client's task, if there is room for one more without Hello. Strangers have few places
/// of their own, so that they cannot take those of others.
fn admit(control: &Rc<Control>, connection: Connection, who: Credentials) {
    if !control.rules().admits_client(&who) {
        control.count_refusal(HandshakeRefusal::Stranger);
        // A user can have many numbers (subordinate ones), so strangers share their log lines.
        if let Some(left_out) = control.may_say(Cause::Refused, Party::Others) {
            let why = "client refused: [access] does not name its user or groups";
            tracing::info!(uid = who.uid, pid = who.pid, left_out, "{why}");
        }
        let Some(admitted) = control.strangers.enter((), false) else { return };
        let (door, account) = settle(control, connection, admitted.place);
        tokio::task::spawn_local(async move {
            tokio::select! {
                biased;
                () = session::refuse_stranger(&door, who, &account) => {}
                _ = admitted.displaced => {}
            }
        });
        return;
    }
    let Some(admitted) = control.handshakes.enter(who.uid, false) else {
        control.count_refusal(HandshakeRefusal::Busy);
        if let Some(left_out) = control.may_say(Cause::Refused, Party::User(who.uid)) {
            let why = "client turned away: too many connect at once";
            tracing::info!(uid = who.uid, pid = who.pid, left_out, "{why}");
        }
        return;
    };
    connection.take_descriptors();
    let (door, account) = settle(control, connection, Arc::clone(&admitted.place) as Kept);
    let handshake = Handshake { account, place: admitted.place, displaced: admitted.displaced };
    tokio::task::spawn_local(session::run(Rc::clone(control), door, who, handshake));
}

/// Moves a connection to the account of its place.
fn settle(control: &Control, connection: Connection, place: Kept) -> (Door, Arc<Account>) {
    let account = control.account(FILES_PER_HANDSHAKE, 1, Some(place));
    let mut door = Door::new(connection);
    door.move_to(&account);
    (door, account)
}
