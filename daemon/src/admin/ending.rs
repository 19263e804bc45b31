//! Ends a handle, a client or a node's lanes for an operator, and logs the operator.

use std::rc::Rc;

use hyper::StatusCode;
use piped_config::admin::ending::{EndClient, EndHandle, EndPeer, Ended};
use piped_control::parties::Credentials;
use piped_core::ids::SessionId;
use piped_core::names::node_of;
use piped_engine::command::Command;

use super::parse::Refused;
use super::routes::tell;
use super::watch;
use crate::control::Control;

pub(super) async fn handle(
    control: &Control,
    who: &Credentials,
    body: EndHandle,
) -> Result<Ended, Refused> {
    let EndHandle { handle } = body;
    let ended = control.core.borrow_mut().end_handle(handle);
    let Some(it) = ended else {
        let text = format!("no handle {handle} is open; `pipectl handles` shows those that are");
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    };
    control.tell_shards().await;
    let of = match (it.session, &it.peer) {
        (Some(session), _) => format!("session {session}"),
        (None, peer) => format!("node {}", peer.as_deref().unwrap_or_default()),
    };
    tracing::info!(
        operator = who.uid,
        handle,
        of,
        kind = it.kind,
        name = it.name,
        "a handle was ended by an operator"
    );
    Ok(Ended { ended: format!("handle {handle} of {of}: {} {}", it.kind, it.name) })
}

pub(super) fn client(
    control: &Rc<Control>,
    who: &Credentials,
    body: EndClient,
) -> Result<Ended, Refused> {
    let EndClient { session } = body;
    let why = format!("user {} ended it (pipectl client end)", who.uid);
    if !control.decide(|core, _| core.end_session(SessionId(session), &why)) {
        let text = format!("there is no session {session}; `pipectl clients` shows those that are");
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    }
    tracing::info!(operator = who.uid, session, "a client was ended by an operator");
    Ok(Ended { ended: format!("session {session}") })
}

pub(super) async fn peer(
    control: &Control,
    who: &Credentials,
    body: EndPeer,
) -> Result<Ended, Refused> {
    let EndPeer { peer } = body;
    let known = watch::peers(control).await?.peers;
    if known.iter().all(|it| node_of(&it.name) != peer) {
        let text = format!("there is no node `{peer}` here; `pipectl peers` shows those that are");
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    }
    tell(control, Command::EndPeer { name: peer.clone() }).await?;
    tracing::info!(operator = who.uid, peer, "lanes were ended by an operator");
    Ok(Ended { ended: format!("the lanes from and to {peer}") })
}
