//! Carries out requests that are parsed ([`super::parse`]), for senders that are known.

use std::collections::BTreeMap;
use std::rc::Rc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use piped_config::admin::{Envelope, ErrorBody, Explained, Stages, Status};
use piped_control::parties::Credentials;
use piped_engine::command::Command;
use piped_report::shard::{Explanation, StageReport};
use serde::Serialize;

use super::parse::{AdminRequest, Endpoint, Refused};
use super::{calibrate, cluster, configuration, dials, ending, page, plan, trace, watch};
use crate::client::reasons::{Eviction, HandshakeRefusal};
use crate::control::Control;
use crate::io::clock;
use crate::limits::{ADMIN_BODY_BYTES_MAX, ADMIN_TIMEOUT};
use crate::peer::greet::Greeting;
use crate::shard::message::{Message, Question, ShardGone, ShardStatus};
use crate::{advising, limiting, metrics};

pub(super) type Reply = Response<Full<Bytes>>;

impl From<ShardGone> for Refused {
    fn from(error: ShardGone) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

/// Replies to the request. `has_arrived` is called once all of it has come.
pub(super) async fn route(
    control: &Rc<Control>,
    who: &Credentials,
    request: Request<Incoming>,
    has_arrived: impl FnOnce(),
) -> Reply {
    let asked = understand(control, who, request).await;
    let reply = match asked {
        Ok(asked) => {
            has_arrived();
            answer(control, who, asked).await
        }
        Err(refused) => Err(refused),
    };
    reply.unwrap_or_else(|refused| refuse(&refused))
}

/// Parses the request. A sender without the right is refused before a byte of the body is read.
async fn understand(
    control: &Control,
    who: &Credentials,
    request: Request<Incoming>,
) -> Result<AdminRequest, Refused> {
    let path = request.uri().path().to_owned();
    let endpoint = Endpoint::find(request.method(), &path)?;
    let rules = control.rules();
    let refused = match endpoint.is_change() {
        false if !rules.admits_status(who) => format!(
            "user {} may not look here: name it, or a group of it, in [admin] status_users or \
             status_groups (where both are empty, in [access])",
            who.uid
        ),
        true if !rules.admits_changes(who) => format!(
            "user {} may not change anything here: name it, or a group of it, in [admin] users or \
             groups, or ask as root or the daemon's user",
            who.uid
        ),
        _ => return endpoint.read(&path, &body(request).await?),
    };
    Err(Refused::new(StatusCode::FORBIDDEN, refused))
}

async fn answer(
    control: &Rc<Control>,
    who: &Credentials,
    asked: AdminRequest,
) -> Result<Reply, Refused> {
    match asked {
        AdminRequest::Page => page::show(control).await,
        AdminRequest::Status => status(control).await.map(json),
        AdminRequest::Stages => Ok(json(Stages { stages: stages(control).await? })),
        AdminRequest::Clients => Ok(json(watch::clients(control).await?)),
        AdminRequest::Metrics => Ok(metrics::listen::exposition(&metrics::scrape(control).await?)),
        AdminRequest::Stat => Ok(json(watch::stat(control).await?)),
        AdminRequest::Peers => Ok(json(watch::peers(control).await?)),
        AdminRequest::Transfers { ended } => Ok(json(watch::transfers(control, ended).await?)),
        AdminRequest::Exports => Ok(json(watch::exports(control))),
        AdminRequest::Nodes => Ok(json(watch::nodes(control))),
        AdminRequest::Cluster => Ok(json(cluster::show(control))),
        AdminRequest::MakeToken(body) => cluster::make_token(control, who, body).map(json),
        AdminRequest::EndToken(body) => cluster::end_token(control, who, body).map(json),
        AdminRequest::Revoke(body) => cluster::revoke(control, who, body).await.map(json),
        AdminRequest::Explain(number) => {
            Ok(json(Explained { explanation: explain(control, number).await? }))
        }
        AdminRequest::ExplainAny => {
            let ended = watch::transfers(control, true).await?.transfers;
            let number = ended.first().map(|it| it.transfer.id);
            Ok(json(Explained { explanation: explain(control, number).await? }))
        }
        AdminRequest::Plan(body) => plan::draft(control, who, body).await.map(json),
        AdminRequest::Trace => trace::report(control).await,
        AdminRequest::SetTrace(body) => trace::arm(control, body).await.map(json),
        AdminRequest::Limits => limiting::report(control).await.map(json),
        AdminRequest::Advice => advising::advise(control).await.map(json),
        AdminRequest::SetLimits(body) => limiting::change(control, body).await.map(json),
        AdminRequest::Dials => dials::show(control).await.map(json),
        AdminRequest::SetDial(body) => dials::set(control, body).await.map(json),
        AdminRequest::ClearDials(body) => dials::clear(control, body).await.map(json),
        AdminRequest::Calibrate(body) => calibrate::change(control, body).map(json),
        AdminRequest::Configuration => Ok(json(configuration::show(control))),
        AdminRequest::Reload => configuration::reload(control).await.map(json),
        AdminRequest::Handles => Ok(json(control.core.borrow().holdings().report())),
        AdminRequest::EndHandle(body) => ending::handle(control, who, body).await.map(json),
        AdminRequest::EndClient(body) => ending::client(control, who, body).map(json),
        AdminRequest::EndPeer(body) => ending::peer(control, who, body).await.map(json),
        AdminRequest::SetPlanner(body) => {
            tell(control, Command::SetPlanner(body.mode)).await?;
            control.reload.note_runtime("planner.mode", body.mode);
            tracing::info!(mode = %body.mode, "planner changed until the daemon ends");
            Ok(json(body))
        }
        AdminRequest::SetCalibration(body) => {
            tell(control, Command::SetCalibration(body.mode)).await?;
            control.reload.note_runtime("planner.calibration", body.mode);
            tracing::info!(mode = body.mode.name(), "calibration changed until the daemon ends");
            Ok(json(body))
        }
    }
}

pub(super) async fn status(control: &Control) -> Result<Status<ShardStatus>, Refused> {
    let mut shards = Vec::with_capacity(control.shards.len());
    let (mut tier, mut degraded) = (Vec::new(), Vec::new());
    let mut evictions = control.evictions();
    for (index, shard) in control.shards.iter().enumerate() {
        let view = shard.mailbox.ask(|answer| Message::Ask(Question::Report(answer))).await?;
        // The shards' rings are alike and lack the same, but each may degrade for itself.
        if index == 0 {
            tier = view.tier;
        }
        evictions.iter_mut().zip(view.evictions).for_each(|(count, more)| *count += more);
        for line in view.degraded {
            if !degraded.contains(&line) {
                degraded.push(line);
            }
        }
        shards.push(view.status);
    }
    degraded.extend(control.keeper.trouble());
    degraded.extend(control.sandbox.degraded().map(str::to_owned));
    degraded.extend(control.sandbox.unfiltered().map(str::to_owned));
    Ok(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: control.node.clone(),
        incarnation: control.incarnation,
        pid: std::process::id(),
        uptime_seconds: clock::now().since(control.started).seconds(),
        profile: control.config().profile,
        tier,
        sandbox: control.sandbox.report(),
        degraded,
        evicted: some(Eviction::ALL.map(|why| (why.name(), evictions[why as usize]))),
        refused: some(
            HandshakeRefusal::ALL.map(|why| (why.name(), control.refusals()[why as usize])),
        ),
        greeted: some(Greeting::ALL.map(|how| (how.name(), control.greetings()[how as usize]))),
        discovery: watch::sources(control),
        public_key: control.keyring().identity().map(|it| it.own().public()),
        config: control.reload.state(&control.config()),
        shards,
    })
}

/// Keeps reasons with a count above zero.
fn some<const N: usize>(counts: [(&'static str, u64); N]) -> BTreeMap<String, u64> {
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    counts.map(|(name, count)| (name.to_owned(), count)).collect()
}

pub(super) async fn stages(control: &Control) -> Result<Vec<StageReport>, Refused> {
    let mut stages = Vec::new();
    for (index, shard) in control.shards.iter().enumerate() {
        let mut some = shard.mailbox.ask(|answer| Message::Ask(Question::Stages(answer))).await?;
        if control.shards.len() > 1 {
            for stage in &mut some {
                stage.name = format!("shard {index}: {}", stage.name);
            }
        }
        stages.append(&mut some);
    }
    Ok(stages)
}

pub(super) async fn explain(
    control: &Control,
    number: Option<u64>,
) -> Result<Box<Explanation>, Refused> {
    let number = match number {
        Some(number) => Some(number),
        // Take the last of all shards; a sync, or one that moved nothing, only if there is no
        // other.
        None => {
            let ended = watch::transfers(control, true).await?.transfers;
            let moved = ended.iter().find(|it| it.transfer.bytes_done > 0);
            moved.or(ended.first()).map(|it| it.transfer.id)
        }
    };
    if let Some(number) = number {
        let (shard, id) = control.transfer_of(number);
        let mailbox = &control.shards[shard].mailbox;
        let found = mailbox.ask(|answer| Message::Ask(Question::Explain(Some(id), answer))).await?;
        if let Some(explanation) = found {
            return Ok(Box::new(Explanation { id: number, ..*explanation }));
        }
    }
    let text = match number {
        None => "no transfer has ended since the daemon started".to_owned(),
        Some(number) => format!(
            "transfer {number} is not among the last that ended, which `pipectl transfers --ended` \
             shows"
        ),
    };
    Err(Refused::new(StatusCode::NOT_FOUND, text))
}

pub(super) async fn tell(control: &Control, command: Command) -> Result<(), Refused> {
    for shard in &control.shards {
        shard.mailbox.send(Message::Engine(command.clone())).await?;
    }
    Ok(())
}

async fn body(request: Request<Incoming>) -> Result<Bytes, Refused> {
    let collect = Limited::new(request.into_body(), ADMIN_BODY_BYTES_MAX).collect();
    let collected = tokio::time::timeout(ADMIN_TIMEOUT, collect)
        .await
        .map_err(|_| Refused::bad("the body did not arrive in time"))?
        .map_err(|error| {
            Refused::bad(format!(
                "the body cannot be read ({error}); it has {ADMIN_BODY_BYTES_MAX} bytes at most"
            ))
        })?;
    Ok(collected.to_bytes())
}

fn refuse(refused: &Refused) -> Reply {
    let mut reply = json(ErrorBody { error: refused.error.clone() });
    *reply.status_mut() = refused.status;
    let methods: Vec<&str> = refused.allowed.iter().map(Method::as_str).collect();
    if let Ok(methods) = HeaderValue::try_from(methods.join(", "))
        && !refused.allowed.is_empty()
    {
        reply.headers_mut().insert(ALLOW, methods);
    }
    reply
}

/// Reply with a body in its envelope.
pub(super) fn json<T: Serialize>(body: T) -> Reply {
    written(Envelope::new(body).json())
}

/// Reply with JSON that has its envelope.
pub(super) fn written(json: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(json)));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
