//! `plan`: the plan for a transfer that nobody has asked for. Opens nothing for reading and changes
//! nothing.

use std::sync::Arc;

use hyper::StatusCode;
use piped_config::admin::plan::{PlanBody, PlanClass, PlanEnd, PlanPart, Plans};
use piped_control::fault::OpenFault;
use piped_control::parties::Credentials;
use piped_core::ids::{DeviceId, PeerId};
use piped_core::limits::{FRAGMENT_BYTES_MAX, REQUEST_BYTES_MAX};
use piped_core::request::Class;
use piped_core::status::Status;
use piped_planner::draft::{DraftAsk, DraftFault, Forecast, Way};
use piped_report::shard::device_of;

use super::parse::Refused;
use crate::control::Control;
use crate::shard::message::{Message, Question};
use piped_control::parties::Asker;

/// One end, as far as plans are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Memory,
    Disk(DeviceId),
    /// A peer: a description of the end there, and how that node names it.
    Peer {
        peer: PeerId,
        name: String,
        is_file: bool,
        there: String,
    },
}

/// A part of the way before it is planned.
#[derive(Debug)]
struct Leg {
    route: String,
    way: Way,
    /// Peer that plans it instead, and the command to ask there.
    elsewhere: Option<(String, String)>,
}

pub(super) async fn draft(
    control: &Control,
    who: &Credentials,
    body: PlanBody,
) -> Result<Plans<Forecast>, Refused> {
    let from = end(control, who, &body.from, false).await?;
    let to = end(control, who, &body.to, true).await?;
    // A transfer that touches no memory of a client is a copy, and goes in chunks.
    let is_copy = body.peer_asks.is_none() && from != End::Memory && to != End::Memory;
    check_bytes(body.bytes, is_copy)?;
    let piece_bytes = is_copy.then(|| body.bytes.min(FRAGMENT_BYTES_MAX.into()));
    let class = match body.class {
        Some(PlanClass::Latency) => Class::Latency,
        Some(PlanClass::Bulk) => Class::Bulk,
        None if is_copy => Class::Bulk,
        None => Class::Latency,
    };
    if body.peer_asks.is_none() && from == End::Memory && to == End::Memory {
        return Err(Refused::bad("both ends are memory of this node: nothing is cut on that way"));
    }
    let legs = match &body.peer_asks {
        Some(peer) => vec![served(peer, from, &to)?],
        None => legs(control, from, to, body.bytes),
    };
    let bytes = piece_bytes.unwrap_or(body.bytes);
    let mut parts = Vec::with_capacity(legs.len());
    for leg in legs {
        let ask = DraftAsk { way: leg.way, bytes, class };
        let forecast = forecast(control, ask).await?;
        let (planned_by, ask_there) = leg.elsewhere.unzip();
        parts.push(PlanPart { route: leg.route, planned_by, ask_there, forecast });
    }
    Ok(Plans { bytes: body.bytes, piece_bytes, parts })
}

fn check_bytes(bytes: u64, is_copy: bool) -> Result<(), Refused> {
    if bytes == 0 {
        return Err(Refused::bad("a transfer of no bytes has no plan: say how many"));
    }
    if !is_copy && bytes > REQUEST_BYTES_MAX {
        return Err(Refused::bad(format!(
            "one request moves {REQUEST_BYTES_MAX} bytes at most, not {bytes}: ask for a part, or \
             for a copy between files"
        )));
    }
    Ok(())
}

async fn end(
    control: &Control,
    who: &Credentials,
    end: &PlanEnd,
    write: bool,
) -> Result<End, Refused> {
    let here = |peer: &Option<String>| {
        peer.as_deref().is_none_or(|peer| peer.is_empty() || peer == control.node)
    };
    match end {
        PlanEnd::Memory { peer } if here(peer) => Ok(End::Memory),
        PlanEnd::Memory { peer } => at_peer(control, peer.as_deref(), false, "memory".to_owned()),
        PlanEnd::Device { major, minor } => device_of(*major, *minor)
            .map(End::Disk)
            .ok_or_else(|| Refused::bad(format!("there is no device {major}:{minor}"))),
        PlanEnd::Export { peer, export, path } if here(peer) => {
            // A user that may open nothing here does not learn what exists.
            if !control.rules().admits_client(who) {
                let text = format!(
                    "user {} may not use this daemon, so it is not told what an export has; name \
                     it in [access] users or groups, or plan for a device",
                    who.uid
                );
                return Err(Refused::new(StatusCode::FORBIDDEN, text));
            }
            let Ok(slot) = Arc::clone(&control.plan_slots).try_acquire_owned() else {
                let text = "too many plans look at files that do not answer; try again, or plan \
                    for a device";
                return Err(Refused::new(StatusCode::SERVICE_UNAVAILABLE, text.to_owned()));
            };
            let (exports, who) = (control.exports(), who.clone());
            let (export, path) = (export.clone(), path.clone());
            let look = move || {
                // Held as long as the thread looks, whether somebody waits for it or not.
                let _slot = slot;
                exports.device(Asker::User(&who), &export, path.as_bytes(), write)
            };
            let device = tokio::task::spawn_blocking(look)
                .await
                .unwrap_or_else(|error| Err(OpenFault::new(Status::Io, error.to_string())));
            device.map(End::Disk).map_err(|fault| unopened(&fault))
        }
        PlanEnd::Export { peer, export, path } => {
            at_peer(control, peer.as_deref(), true, format!(":{export}/{path}"))
        }
    }
}

fn at_peer(
    control: &Control,
    name: Option<&str>,
    is_file: bool,
    there: String,
) -> Result<End, Refused> {
    let name = name.unwrap_or_default().to_owned();
    let Some(peer) = control.peer(&name) else {
        let text = format!("there is no peer `{name}` in the configuration; see `pipectl peers`");
        return Err(Refused::new(StatusCode::NOT_FOUND, text));
    };
    Ok(End::Peer { peer, name, is_file, there })
}

fn unopened(fault: &OpenFault) -> Refused {
    let status = match fault.status {
        Status::NotFound | Status::NoExport | Status::NoDirectory | Status::NotDirectory => {
            StatusCode::NOT_FOUND
        }
        Status::Denied
        | Status::IsDirectory
        | Status::Loop
        | Status::CrossDevice
        | Status::NotPermitted
        | Status::ReadOnly => StatusCode::FORBIDDEN,
        Status::Invalid | Status::NameTooLong => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Refused::new(status, fault.text.clone())
}

/// Leg of a transfer from us to a peer's client.
fn served(peer: &str, from: End, to: &End) -> Result<Leg, Refused> {
    let device = match from {
        End::Memory => None,
        End::Disk(device) => Some(device),
        End::Peer { .. } => {
            let text = format!("{peer} asks this node: the bytes come from a file or memory here");
            return Err(Refused::bad(text));
        }
    };
    if *to != End::Memory {
        let text = format!("what {peer} reads goes to its memory: leave the other end out");
        return Err(Refused::bad(text));
    }
    let what = if device.is_some() { "file" } else { "memory" };
    let route = format!("{what} -> lane -> {peer}, which asks");
    Ok(Leg { route, way: Way::Served { peer: peer.to_owned(), device }, elsewhere: None })
}

/// Legs of a way; the node that holds the data plans.
fn legs(control: &Control, from: End, to: End, bytes: u64) -> Vec<Leg> {
    let own = |route: &str, way: Way| Leg { route: route.to_owned(), way, elsewhere: None };
    let source = match &from {
        End::Disk(device) => Some(*device),
        _ => None,
    };
    match (from, to) {
        (End::Peer { peer, name, is_file, there }, to) => {
            let what = if is_file { "file" } else { "memory" };
            // Of several shards on another node only the first one's name is used.
            let asker = &control.node;
            let words = format!("pipectl plan --for {asker} --from {there} --bytes {bytes}");
            let device = match &to {
                End::Disk(device) => Some(*device),
                _ => None,
            };
            let mut legs = vec![Leg {
                route: format!("{what} of {name} -> lane -> this node"),
                way: Way::Landing { peer, device: None },
                elsewhere: Some((name.clone(), words)),
            }];
            match to {
                End::Memory => {}
                End::Disk(_) => {
                    let route = format!("lane from {name} -> file");
                    legs.push(own(&route, Way::Landing { peer, device }));
                }
                End::Peer { peer, name, .. } => {
                    let route = format!("this node -> lane -> {name}");
                    legs.push(own(&route, Way::ToPeer { peer, device: None }));
                }
            }
            legs
        }
        (_, End::Peer { peer, name, .. }) => {
            let what = if source.is_some() { "file" } else { "memory" };
            let route = format!("{what} -> lane -> {name}");
            vec![own(&route, Way::ToPeer { peer, device: source })]
        }
        (_, to) => {
            let read =
                source.map(|device| own("file -> memory", Way::Disk { device, write: false }));
            let write = match to {
                End::Disk(device) => Some(own("memory -> file", Way::Disk { device, write: true })),
                _ => None,
            };
            read.into_iter().chain(write).collect()
        }
    }
}

async fn forecast(control: &Control, ask: DraftAsk) -> Result<Forecast, Refused> {
    let served = matches!(ask.way, Way::Served { .. });
    // A client gets the shard with the fewest sessions; a peer's lanes end at one of them.
    let next = control.next_shard();
    let shards = (0..control.shards.len()).filter(|&shard| served || shard == next);
    let mut fault = DraftFault::UnknownPeer;
    for shard in shards {
        let mailbox = &control.shards[shard].mailbox;
        let asked = ask.clone();
        let drafted = mailbox.ask(|answer| Message::Ask(Question::Draft(asked, answer))).await?;
        match drafted {
            Ok(draft) => {
                // This takes up to some milliseconds, so it must not block the thread that serves
                // everybody.
                let thought = tokio::task::spawn_blocking(move || draft.forecast()).await;
                return thought.map_err(|error| {
                    Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
                });
            }
            Err(other) => fault = other,
        }
    }
    let status = match fault {
        DraftFault::UnknownPeer => StatusCode::NOT_FOUND,
        DraftFault::NoLane => StatusCode::SERVICE_UNAVAILABLE,
    };
    Err(Refused::new(status, format!("{fault}; see `pipectl peers`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_leads_to_is_no_fault_of_the_daemon() {
        let code = |status| unopened(&OpenFault::new(status, "why")).status;
        for status in
            [Status::NotFound, Status::NoExport, Status::NoDirectory, Status::NotDirectory]
        {
            assert_eq!(code(status), StatusCode::NOT_FOUND, "{status:?}");
        }
        for status in [
            Status::Denied,
            Status::IsDirectory,
            Status::Loop,
            Status::CrossDevice,
            Status::NotPermitted,
            Status::ReadOnly,
        ] {
            assert_eq!(code(status), StatusCode::FORBIDDEN, "{status:?}");
        }
        for status in [Status::Invalid, Status::NameTooLong] {
            assert_eq!(code(status), StatusCode::BAD_REQUEST, "{status:?}");
        }
        assert_eq!(code(Status::Io), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
