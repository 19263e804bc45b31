//! What is said of requests to those who look on: what one is, where it goes, and what became of
//! it.

use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::PlanPath;

use crate::shard::clients::Place;
use crate::shard::cx::Cx;
use crate::shard::driver::Driver;
use crate::shard::keys::{ServeKey, Subject, TransferKey};
use crate::shard::requests::{Bodies, Body, RemoteOp, Transfer, file_of};
use crate::shard::responder::{Serve, device_of};
use crate::shard::watch::{Head, Outcome, SPOTS, Spot};

/// What a client's request is; nothing of a part of one, which is the whole's affair.
pub(in crate::shard) fn head_of_transfer(transfer: &Transfer, bodies: &Bodies) -> Option<Head> {
    (!transfer.waiter.is_part()).then(|| Head {
        id: transfer.id,
        operation: transfer.kind,
        session: Some(transfer.session),
        route: transfer.body.route(bodies),
        bytes: transfer.length,
        offset: transfer.body.offset(bodies),
        class: transfer.class,
    })
}

/// What a peer's request is.
pub(in crate::shard) fn head_of_serve(serve: &Serve, id: u64) -> Head {
    Head {
        id,
        operation: serve.operation(),
        session: None,
        route: serve.route(),
        bytes: serve.ask.length,
        offset: serve.ask.offset,
        class: serve.ask.asker.class,
    }
}

/// Where a client's request meets others. Those for messages and notifications, and what is done in
/// memory here, meet nobody.
pub(in crate::shard) fn spots_of_transfer(
    body: &Body,
    bodies: &Bodies,
    driver: &Driver,
) -> [Option<Spot>; SPOTS] {
    let of = |place: Place| match place {
        Place::Local(target) => file_of(target).map(|file| Spot::Device(file.device)),
        Place::Remote(peer, _) => Some(Spot::Peer(peer)),
        Place::Replicas(_) => None,
    };
    match body {
        Body::File(body) => [Some(Spot::Device(body.target().device)), None],
        Body::Call(call) => [bodies[*call].local().map(|(_, on)| Spot::Device(on.device())), None],
        Body::Sync { file, .. } => [driver.on(*file).map(|on| Spot::Device(on.device())), None],
        Body::Remote(body) if body.op == RemoteOp::Once => [None, None],
        Body::Remote(body) => [Some(Spot::Peer(body.peer)), None],
        Body::Copy(copy) => {
            let copy = &bodies[*copy];
            let [from, to] = [of(copy.source().0), of(copy.sink().0)];
            [from, to.filter(|to| Some(*to) != from)]
        }
        Body::Vector(vector) => [of(bodies[*vector].end()), None],
        Body::Memory(_)
        | Body::Send(_)
        | Body::Receive(_)
        | Body::Wait(_)
        | Body::Update { .. }
        | Body::Settled => [None, None],
    }
}

/// Where a peer's request meets others.
pub(in crate::shard) fn spots_of_serve(serve: &Serve) -> [Option<Spot>; SPOTS] {
    [Some(caller_of(serve)), device_of(serve.target).map(Spot::Device)]
}

/// Where a peer's request meets others of its peer: those on the same wire.
pub(in crate::shard) fn caller_of(serve: &Serve) -> Spot {
    match serve.class_of_lane {
        LaneClass::Latency | LaneClass::Bulk => Spot::Caller(serve.link),
        LaneClass::Second => Spot::Second(serve.link),
    }
}

/// Says that a client's request, or a part of one, is over.
pub(in crate::shard) fn end_transfer(
    key: TransferKey,
    transfer: &Transfer,
    bodies: &Bodies,
    cx: &mut Cx,
    now: Nanos,
) {
    let Some(head) = head_of_transfer(transfer, bodies) else { return cx.watch.end_part(key) };
    let subject = Subject::Transfer(key);
    // It could begin at its device, or when its peer was asked.
    let begun = match &transfer.body {
        Body::File(_) => cx.watch.first_fragment(subject),
        _ => None,
    };
    let outcome = Outcome {
        status: transfer.status.unwrap_or(Status::Ok),
        done: transfer.landed.watermark(),
        moved: transfer.moved(),
        place: Some(transfer.body.place(bodies)),
        plan: transfer.plans.own().cloned(),
        told: transfer.plans.told(),
        predicted: prediction(transfer),
        beyond: (transfer.plans.sync(), transfer.plans.owed()),
        held: begun.unwrap_or(transfer.begun).since(transfer.started),
        mispredicted: transfer.attempts.mispredicted(),
        retries: transfer.attempts.retries(),
        not_compared: match () {
            () if transfer.attempts.is_repeated() => "it was sent again",
            () if waits_for_others(transfer) => {
                "it waited for its receiver, or for a notification behind it"
            }
            () if is_durable(transfer) && transfer.plans.sync().is_none() => {
                "what its sync takes was not known yet"
            }
            () => "",
        },
    };
    cx.watch.end(subject, (head, outcome), &cx.planner, now);
}

/// Says that a peer's request is over, as this side planned and saw it.
pub(in crate::shard) fn end_serve(key: ServeKey, serve: &Serve, cx: &mut Cx, now: Nanos) {
    let subject = Subject::Serve(key);
    let outcome = Outcome {
        status: serve.status.unwrap_or(Status::Ok),
        done: serve.done,
        moved: serve.moved(),
        place: None,
        plan: serve.plan.clone(),
        told: None,
        predicted: None,
        beyond: (None, 0),
        held: cx.watch.first_fragment(subject).unwrap_or(now).since(serve.started),
        mispredicted: 0,
        retries: 0,
        not_compared: match serve.read.is_striped() {
            true => "it came from the page cache and the device",
            false => "",
        },
    };
    let head = head_of_serve(serve, cx.watch.next_number());
    cx.watch.end(subject, (head, outcome), &cx.planner, now);
}

/// Whether the end of a transfer is not its last byte's, but that of something others do.
fn waits_for_others(transfer: &Transfer) -> bool {
    match &transfer.body {
        Body::Remote(body) => body.message.is_some() || body.once.is_some(),
        _ => false,
    }
}

fn is_durable(transfer: &Transfer) -> bool {
    match &transfer.body {
        Body::File(body) => body.is_durable(),
        Body::Remote(body) => body.op == RemoteOp::Write { durable: true },
        _ => false,
    }
}

/// What was predicted of a transfer, and by whom. Nothing of those whose end is not the last
/// byte's, unless it is known what the sync of a durable write takes, and of those that were sent
/// twice.
fn prediction(transfer: &Transfer) -> Option<(PlanPath, Nanos)> {
    if transfer.attempts.is_repeated() || waits_for_others(transfer) {
        return None;
    }
    let sync = match is_durable(transfer) {
        true => transfer.plans.sync()?,
        false => Nanos::ZERO,
    };
    let planned = transfer
        .plans
        .own()
        .map(|plan| plan.predicted + plan.owed(transfer.length, transfer.plans.owed()) + sync);
    match &transfer.body {
        Body::File(_) => Some((PlanPath::Local, planned?)),
        Body::Remote(body) => match body.op {
            RemoteOp::Read => Some((PlanPath::PeerRead, transfer.plans.told()?.predicted)),
            RemoteOp::Write { .. } => Some((PlanPath::PeerWrite, planned?)),
            RemoteOp::Sync | RemoteOp::Send | RemoteOp::Once | RemoteOp::Call => None,
        },
        _ => None,
    }
}
