//! What can be asked and changed.

use std::rc::Rc;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use piped_config::admin::{
    self, CalibrationBody, Clients, Envelope, ErrorBody, Explained, PlannerBody, Stages, Status,
};
use piped_engine::command::Command;
use piped_engine::report::{Explanation, StageReport};
use serde::Serialize;

use crate::control::Control;
use crate::io::clock;
use crate::io::socket::Credentials;
use crate::limits::{ADMIN_BODY_BYTES_MAX, ADMIN_TIMEOUT};
use crate::settings;
use crate::shard::message::{Message, Question, ShardGone, ShardStatus};

type Reply = Response<Full<Bytes>>;

/// Why there is no answer: the HTTP status, and cause and fix.
#[derive(Debug)]
struct Refused(StatusCode, String);

impl From<ShardGone> for Refused {
    fn from(error: ShardGone) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

/// The reply to a request.
pub(super) async fn route(
    control: &Rc<Control>,
    who: &Credentials,
    request: Request<Incoming>,
) -> Reply {
    let path = request.uri().path().to_owned();
    let Some(allowed) = method_of(&path) else {
        let text = format!("there is nothing at {path}; see {} and its siblings", admin::STATUS);
        return refuse(&Refused(StatusCode::NOT_FOUND, text));
    };
    if *request.method() != allowed {
        let text = format!("{path} takes {allowed}");
        let mut reply = refuse(&Refused(StatusCode::METHOD_NOT_ALLOWED, text));
        reply.headers_mut().insert(ALLOW, allowed_header(&allowed));
        return reply;
    }
    let admitted = match allowed {
        Method::GET => control.rules.admits_status(who),
        _ => control.rules.admits_changes(who),
    };
    if !admitted {
        let text = format!(
            "user {} may not {} here: status is for [access], changes are for root and the \
             daemon's user",
            who.uid,
            if allowed == Method::GET { "look" } else { "change anything" }
        );
        return refuse(&Refused(StatusCode::FORBIDDEN, text));
    }
    answer(control, &path, request).await.unwrap_or_else(|refused| refuse(&refused))
}

/// The one method of each path.
fn method_of(path: &str) -> Option<Method> {
    match path {
        admin::STATUS | admin::STAGES | admin::CLIENTS => Some(Method::GET),
        admin::PLANNER | admin::CALIBRATION => Some(Method::PUT),
        _ => path.strip_prefix(admin::EXPLAIN).filter(|id| !id.contains('/')).map(|_| Method::GET),
    }
}

fn allowed_header(method: &Method) -> hyper::header::HeaderValue {
    hyper::header::HeaderValue::from_static(if *method == Method::GET { "GET" } else { "PUT" })
}

async fn answer(
    control: &Rc<Control>,
    path: &str,
    request: Request<Incoming>,
) -> Result<Reply, Refused> {
    match path {
        admin::STATUS => status(control).await.map(|body| json(StatusCode::OK, body)),
        admin::STAGES => {
            let stages = stages(control).await?;
            Ok(json(StatusCode::OK, Stages { stages }))
        }
        admin::CLIENTS => Ok(json(StatusCode::OK, Clients { clients: control.clients() })),
        admin::PLANNER => {
            let body: PlannerBody = body(request).await?;
            body.mode.validate().map_err(|text| Refused(StatusCode::BAD_REQUEST, text))?;
            tell(control, Command::SetPlanner(settings::planner(body.mode))).await?;
            tracing::info!(mode = %body.mode, "planner changed until the daemon ends");
            Ok(json(StatusCode::OK, body))
        }
        admin::CALIBRATION => {
            let body: CalibrationBody = body(request).await?;
            tell(control, Command::SetCalibration(settings::calibration(body.mode))).await?;
            tracing::info!(mode = body.mode.name(), "calibration changed until the daemon ends");
            Ok(json(StatusCode::OK, body))
        }
        _ => {
            let id = path.strip_prefix(admin::EXPLAIN).unwrap_or_default();
            let explanation = explain(control, id).await?;
            Ok(json(StatusCode::OK, Explained { explanation }))
        }
    }
}

async fn status(control: &Control) -> Result<Status<ShardStatus>, Refused> {
    let mut shards = Vec::with_capacity(control.shards.len());
    let (mut tier, mut degraded) = (Vec::new(), Vec::new());
    for (index, shard) in control.shards.iter().enumerate() {
        let view = shard.mailbox.ask(|answer| Message::Ask(Question::Report(answer))).await?;
        // The shards' rings are alike; what one lacks all lack, but each may degrade for itself.
        if index == 0 {
            tier = view.tier;
        }
        for line in view.degraded {
            if !degraded.contains(&line) {
                degraded.push(line);
            }
        }
        shards.push(view.status);
    }
    Ok(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: control.node.clone(),
        incarnation: control.incarnation,
        pid: std::process::id(),
        uptime_seconds: clock::now().since(control.started).seconds(),
        profile: control.config.profile,
        tier,
        degraded,
        shards,
    })
}

async fn stages(control: &Control) -> Result<Vec<StageReport>, Refused> {
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

async fn explain(control: &Control, id: &str) -> Result<Box<Explanation>, Refused> {
    let number = match id {
        "last" => None,
        _ => Some(id.parse::<u64>().map_err(|_| {
            let text = format!("`{id}` is no transfer: write its number, or `last`");
            Refused(StatusCode::BAD_REQUEST, text)
        })?),
    };
    for shard in &control.shards {
        let found =
            shard.mailbox.ask(|answer| Message::Ask(Question::Explain(number, answer))).await?;
        if let Some(explanation) = found {
            return Ok(explanation);
        }
    }
    let text = match number {
        None => "no transfer has ended since the daemon started".to_owned(),
        Some(number) => format!("transfer {number} is not among the last that ended"),
    };
    Err(Refused(StatusCode::NOT_FOUND, text))
}

async fn tell(control: &Control, command: Command) -> Result<(), Refused> {
    for shard in &control.shards {
        shard.mailbox.send(Message::Engine(command.clone())).await?;
    }
    Ok(())
}

async fn body<T: serde::de::DeserializeOwned>(request: Request<Incoming>) -> Result<T, Refused> {
    let bad = |text: String| Refused(StatusCode::BAD_REQUEST, text);
    let collect = Limited::new(request.into_body(), ADMIN_BODY_BYTES_MAX).collect();
    let collected = tokio::time::timeout(ADMIN_TIMEOUT, collect)
        .await
        .map_err(|_| bad("the body did not arrive in time".to_owned()))?
        .map_err(|error| {
            bad(format!(
                "the body cannot be read ({error}); it has {ADMIN_BODY_BYTES_MAX} bytes at most"
            ))
        })?;
    Envelope::parse(&collected.to_bytes()).map_err(|error| bad(error.to_string()))
}

fn refuse(refused: &Refused) -> Reply {
    json(refused.0, ErrorBody { error: refused.1.clone() })
}

fn json<T: Serialize>(status: StatusCode, body: T) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(Envelope::new(body).json())));
    *reply.status_mut() = status;
    let value = hyper::header::HeaderValue::from_static("application/json");
    reply.headers_mut().insert(CONTENT_TYPE, value);
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_one_method() {
        for path in [admin::STATUS, admin::STAGES, admin::CLIENTS, "/v1/explain/last"] {
            assert_eq!(method_of(path), Some(Method::GET), "{path}");
        }
        for path in [admin::PLANNER, admin::CALIBRATION] {
            assert_eq!(method_of(path), Some(Method::PUT), "{path}");
        }
        for path in ["/", "/v1", "/v1/status/", "/v1/explain", "/v1/explain/1/2", "/v2/status"] {
            assert_eq!(method_of(path), None, "{path}");
        }
    }
}
