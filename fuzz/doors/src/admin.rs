//! An operator's request: it is one of those there are, or refused with cause and fix.
//!
//! An input is text as on the wire: `METHOD PATH`, a line feed, and the body.

use hyper::{Method, StatusCode, Uri};
use piped::admin::parse::{AdminRequest, Endpoint, Refused, parse};
use piped_config::admin::Envelope;
use piped_config::admin::ending::HANDLES;
use piped_config::admin::plan::PLAN;

use crate::Seed;

/// Checks the admin door with an input.
pub fn check(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (line, body) = (&input[..end], input.get(end + 1..).unwrap_or_default());
    let space = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    // What is no HTTP does not come so far.
    let Ok(method) = Method::from_bytes(&line[..space]) else { return };
    let Ok(uri) = Uri::try_from(line.get(space + 1..).unwrap_or_default()) else { return };
    let path = uri.path();
    match parse(&method, path, body) {
        Ok(request) => check_request(&method, path, body, &request),
        Err(refused) => check_refusal(&method, path, &refused),
    }
}

fn check_request(method: &Method, path: &str, body: &[u8], request: &AdminRequest) {
    let endpoint = Endpoint::find(method, path).expect("it was found a moment ago");
    // A path that names files is read by users that may change things, and a question may have a
    // body.
    let is_guarded = (*method != Method::GET && path != PLAN) || path == HANDLES;
    assert_eq!(endpoint.is_change(), is_guarded);
    assert_eq!(endpoint.read(path, body).as_ref(), Ok(request));
    if *method == Method::GET {
        // A request that only looks says all with the path.
        assert_eq!(parse(method, path, b"").as_ref(), Ok(request));
    }
    if let Some(body) = written(request) {
        assert_eq!(parse(method, path, body.as_bytes()).as_ref(), Ok(request), "{body}");
    }
}

/// The body as `pipectl` writes it.
fn written(request: &AdminRequest) -> Option<String> {
    match request {
        AdminRequest::SetPlanner(body) => Some(Envelope::new(*body).json()),
        AdminRequest::SetCalibration(body) => Some(Envelope::new(*body).json()),
        AdminRequest::SetTrace(body) => Some(Envelope::new(*body).json()),
        _ => None,
    }
}

fn check_refusal(method: &Method, path: &str, refused: &Refused) {
    assert!(refused.status.is_client_error() && !refused.error.is_empty(), "{refused:?}");
    // It goes into a log and onto a terminal.
    assert!(refused.error.len() < 4200, "{} bytes", refused.error.len());
    let wrong_method = refused.status == StatusCode::METHOD_NOT_ALLOWED;
    assert_eq!(wrong_method, !refused.allowed.is_empty(), "{refused:?}");
    assert!(!refused.allowed.contains(method), "{refused:?}");
    for allowed in &refused.allowed {
        assert!(Endpoint::find(allowed, path).is_ok(), "{refused:?}");
    }
}

/// A request of every kind, and mistakes as people make them.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let requests = [
        ("explain", "GET /v1/explain/17\n"),
        ("explain-last", "GET /v1/explain/last\n"),
        ("planner", "PUT /v1/planner\n{\"schema_version\":1,\"mode\":\"whole\"}"),
        ("planner-fixed", "PUT /v1/planner\n{\"mode\":{\"fixed\":65536}}"),
        ("calibration", "PUT /v1/calibration\n{\"schema_version\":1,\"mode\":\"frozen\"}"),
        ("trace", "PUT /v1/trace\n{\"transfers\":8}"),
        ("other-version", "PUT /v1/planner\n{\"schema_version\":2,\"mode\":\"auto\"}"),
        ("wrong-method", "POST /v1/status\n{}"),
        ("nothing", "GET /v2/status?x=1\n"),
        ("no-number", "GET /v1/explain/-1\n"),
    ];
    let requests = requests.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    // Every endpoint, so that a new one is a seed by itself.
    let endpoints = Endpoint::all().map(|(method, path)| {
        (format!("{method}{}", path.replace('/', "-")), format!("{method} {path}\n{{}}"))
    });
    requests.chain(endpoints).map(|(name, text)| (name, text.into_bytes())).collect()
}
