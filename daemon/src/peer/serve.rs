//! What peers ask us to open.

use std::rc::Rc;
use std::sync::Arc;

use piped_config::admin::calibrate::ECHO_REGION;
use piped_core::access::OpenKind;
use piped_core::limits::PROVEN_SHARE;
use piped_core::names::{is_shard_name, node_of};
use piped_core::status::Status;
use piped_engine::command::{OpenRequest, Origin, Standing};

use crate::control::Control;
use crate::holdings::{Holder, Place, Right, check_echo_of_node};
use crate::io::socket::Credentials;
use crate::journal::Cause;
use crate::limits::{FILES_PER_OPEN, PEER_OPENS_MAX};
use crate::open::export::Asker;
use crate::open::{OpenFault, Source};
use crate::shard::message::Message;

/// The node of a name that is one of its shards': a peer may come under any.
pub(crate) fn shard_of(peer: &str) -> Option<&str> {
    is_shard_name(peer).then(|| node_of(peer))
}

/// A node that asks for something: the name that it has given itself, and what stands behind that.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) standing: Standing,
}

impl Node {
    /// Who asks, for those who decide; `who`: the user of [`Self::user`].
    fn asker<'a>(&'a self, who: Option<&'a Credentials>) -> Asker<'a> {
        let name = node_of(&self.name);
        match self.standing {
            Standing::Proven => Asker::Peer(name),
            Standing::Plain(_) => Asker::Plain { name, user: who },
        }
    }

    /// The same for later.
    fn holder(&self) -> Holder {
        let name = node_of(&self.name).to_owned();
        match self.standing {
            Standing::Proven => Holder::Peer(name),
            Standing::Plain(Origin::User(uid)) => Holder::Plain { name, user: Some(uid) },
            Standing::Plain(Origin::Site(_)) => Holder::Plain { name, user: None },
        }
    }

    /// The user of this machine whose node it is, if it is known only by that.
    fn user(&self, control: &Control) -> Option<Credentials> {
        match self.standing {
            Standing::Plain(Origin::User(uid)) => Some(control.credentials_of(uid)),
            Standing::Plain(Origin::Site(_)) | Standing::Proven => None,
        }
    }
}

/// Opens something for a peer and tells the shard.
pub(crate) async fn answer(
    control: Rc<Control>,
    shard: usize,
    ticket: u64,
    node: Node,
    open: OpenRequest,
) {
    let name = open.name.clone();
    let opened = open_for(&control, shard, &node, open).await;
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
        fault.for_peer()
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
    let place = Place::Peer(shard, ticket);
    if let Some(held) = held
        && control.hold(place, holder, held.clone()).is_err()
    {
        // A reload took the right away meanwhile.
        control.end(place, &held).await;
    }
    if let Some(region) = region
        && !control.regions.borrow().has(region)
    {
        // Withdrawn meanwhile: say it again, so that this shard has heard it last.
        let _ = mailbox.send(Message::Revoke { region }).await;
    }
}

async fn open_for(
    control: &Control,
    shard: usize,
    node: &Node,
    open: OpenRequest,
) -> Result<(Source, Right), OpenFault> {
    let OpenRequest { kind, name, path, access, create } = open;
    if kind == OpenKind::Region {
        let who = node.user(control);
        let asker = node.asker(who.as_ref());
        let found = match name == ECHO_REGION {
            true => {
                check_echo_of_node(&control.rules(), who.as_ref())?;
                control.echo.find(access)?
            }
            false => control.regions.borrow().find(&name, access, asker)?,
        };
        let held = Right::Region { name, region: found.region, access };
        return Ok((Source::Region(found), held));
    }
    if kind == OpenKind::Channel {
        let found = control.channels.borrow().find(&name, shard)?;
        return Ok((Source::Channel(found), Right::Channel { name }));
    }
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
    let (exports, who) = (control.exports(), node.user(control));
    let node = Node { name: node.name.clone(), standing: node.standing };
    let root = exports.root(&name);
    let held = Right::File { export: name.clone(), path: path.clone(), access, root };
    let work = move || {
        let _slot = slot;
        let asker = node.asker(who.as_ref());
        exports.open(asker, &name, &path, access, create, room).map(Source::File)
    };
    let opened = tokio::task::spawn_blocking(work).await;
    let opened = opened.unwrap_or_else(|error| Err(OpenFault::new(Status::Io, error.to_string())));
    Ok((opened?, held))
}

#[cfg(test)]
mod tests {
    use piped_core::names::shard_name;

    use super::*;

    #[test]
    fn a_shards_name_leads_back_to_its_node() {
        assert_eq!(shard_name("alpha", 0), "alpha");
        for shard in 0..3 {
            assert_eq!(node_of(&shard_name("alpha", shard)), "alpha");
        }
        assert_eq!(shard_of("alpha#1"), Some("alpha"));
        for odd in ["alpha#", "alpha#0", "alpha#01", "alpha#+1", "alpha#x", "alpha#64"] {
            assert_eq!(shard_of(odd), None, "{odd}");
        }
        assert_ne!(shard_name("alpha", 1), shard_name("alpha", 2));
    }
}
