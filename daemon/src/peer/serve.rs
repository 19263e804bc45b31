//! Opens that peers request.

use std::rc::Rc;
use std::sync::Arc;

use piped_control::fault::OpenFault;
use piped_control::holdings::{Place, Right};
use piped_control::journal::Cause;
use piped_control::opens::{Found, Node};
use piped_core::access::OpenKind;
use piped_core::limits::PROVEN_SHARE;
use piped_core::status::Status;
use piped_engine::command::{Command, OpenRequest, Standing};

use crate::control::Control;
use crate::limits::{FILES_PER_OPEN, PEER_OPENS_MAX};
use crate::open::Source;
use crate::shard::message::Message;

/// Opens something for a peer and tells the shard.
pub(crate) async fn answer(
    control: Rc<Control>,
    shard: usize,
    ticket: u64,
    node: Node,
    open: OpenRequest,
) {
    let name = open.name.clone();
    let opened = open_for(&control, &node, open).await;
    let holder = node.holder();
    let peer = node.name;
    let (result, held) = match opened {
        Ok((source, held)) => (Ok(source), Some(held)),
        Err(fault) => (Err(fault), None),
    };
    let result = result.map_err(|fault| {
        // A peer gets the status; who wants the text finds it here.
        if let Some(left_out) = control.may_say(Cause::Open, control.party_of(&peer)) {
            tracing::info!(peer, name, %fault, left_out, "an open for a peer failed");
        }
        fault.status
    });
    if let Ok(source) = &result {
        control.keeper.meet(&control, source).await;
    }
    let region = match &result {
        Ok(Source::Region(source)) => Some(source.region),
        _ => None,
    };
    let mailbox = &control.shards[shard].mailbox;
    // A shard that is gone ends the daemon by itself.
    let _ = mailbox.send(Message::Serve { ticket, result }).await;
    if let Some(held) = held {
        // If a reload took the right away meanwhile, the shard is told.
        let _ = control.core.borrow_mut().hold(Place::Peer(shard, ticket), holder, held);
        control.tell_shard(shard).await;
    }
    if let Some(region) = region
        && !control.core.borrow().regions().has(region)
    {
        // Withdrawn meanwhile: say it again, so that this shard has heard it last.
        let _ = mailbox.send(Message::Engine(Command::RevokeRegion { region })).await;
    }
}

async fn open_for(
    control: &Control,
    node: &Node,
    open: OpenRequest,
) -> Result<(Source, Right), OpenFault> {
    let looked_up = control.core.borrow().look_up(node, &open);
    let (found, held) = looked_up?;
    let user = match found {
        Found::Echo => return Ok((Source::Region(control.echo.find(open.access)?), held)),
        Found::Region(found) => return Ok((Source::Region(found), held)),
        Found::Channel(found) => return Ok((Source::Channel(found), held)),
        Found::File { user } => user,
    };
    // Who has not proved a name leaves some for those that have, where there are any.
    let beside_keys = node.standing != Standing::Proven && !control.keyring().reserved().is_empty();
    let left = control.peer_open_slots.available_permits();
    if beside_keys && left <= PEER_OPENS_MAX / PROVEN_SHARE as usize {
        return Err(OpenFault::new(
            Status::WouldBlock,
            "too many opens of peers without keys at once",
        ));
    }
    let Ok(slot) = Arc::clone(&control.peer_open_slots).try_acquire_owned() else {
        return Err(OpenFault::new(Status::WouldBlock, "too many opens of peers at once"));
    };
    let Some(room) = control.peer_files.try_room(FILES_PER_OPEN) else {
        return Err(OpenFault::new(Status::WouldBlock, "too many files of peers are open"));
    };
    let (exports, node) = (control.exports(), node.clone());
    let OpenRequest { kind, name, path, access, create } = open;
    let work = move || {
        let _slot = slot;
        let asker = node.asker(user.as_ref());
        if kind == OpenKind::Directory {
            let opened = exports.open_directory(asker, &name, &path, access, room);
            return opened.map(Source::Directory);
        }
        exports.open(asker, &name, &path, access, create, room).map(Source::File)
    };
    let opened = tokio::task::spawn_blocking(work).await;
    let opened = opened.unwrap_or_else(|error| Err(OpenFault::new(Status::Io, error.to_string())));
    Ok((opened?, held))
}
