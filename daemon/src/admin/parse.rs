//! Turns method, path and body into a typed request, or into the reason why not. Pure: bytes in, a
//! value out, so that every possible input can be tried without a daemon.
//!
//! A new endpoint is a row of `ENDPOINTS`, a variant of [`AdminRequest`], and an arm of
//! `routes::answer`.

use hyper::{Method, StatusCode};
use piped_config::admin::advice::ADVICE;
use piped_config::admin::calibrate::{CALIBRATE, CalibrateBody};
use piped_config::admin::cluster::{
    CLUSTER, CLUSTER_REVOKE, CLUSTER_TOKENS, CLUSTER_TOKENS_END, EndToken, NewToken, Revoke,
};
use piped_config::admin::dials::{DIALS, DIALS_CLEAR, DialChange, DialClear};
use piped_config::admin::ending::{
    CLIENTS_END, EndClient, EndHandle, EndPeer, HANDLES, HANDLES_END, PEERS_END,
};
use piped_config::admin::limits::{LIMITS, LimitsChange};
use piped_config::admin::nodes::NODES;
use piped_config::admin::plan::{PLAN, PlanBody};
use piped_config::admin::trace::{TRACE, TraceBody};
use piped_config::admin::{self, CalibrationBody, Envelope, PlannerBody, watch};
use piped_config::check_planner_mode;
use piped_core::limits::TRACE_TRANSFERS_MAX;
use serde::de::DeserializeOwned;

/// All requests to the daemon.
#[derive(Debug, Clone, PartialEq)]
pub enum AdminRequest {
    /// The daemon at a glance, as a page for people.
    Page,
    /// The daemon at a glance.
    Status,
    /// Costs of all stages.
    Stages,
    /// Reports of all sessions.
    Clients,
    /// Metrics as text for Prometheus.
    Metrics,
    /// Sums since the start.
    Stat,
    /// Peers and their lanes.
    Peers,
    /// Transfers that run, or (`ended`) the last that ended.
    Transfers {
        /// Whether to list ended ones.
        ended: bool,
    },
    /// Exports, regions and channels of this node.
    Exports,
    /// Nodes that sources of discovery name.
    Nodes,
    /// What is known of the cluster.
    Cluster,
    /// Make a token with which nodes join.
    MakeToken(NewToken),
    /// End such a token.
    EndToken(EndToken),
    /// Revoke the key of a node.
    Revoke(Revoke),
    /// Explanation of a transfer by number, or of the last one that moved bytes.
    Explain(Option<u64>),
    /// Explanation of the last transfer of all.
    ExplainAny,
    /// Configuration that is in effect.
    Configuration,
    /// Load the configuration again.
    Reload,
    /// Change how sizes are chosen.
    SetPlanner(PlannerBody),
    /// Change whether costs follow measurements.
    SetCalibration(CalibrationBody),
    /// Recorded fragments of transfers.
    Trace,
    /// Record some of the transfers.
    SetTrace(TraceBody),
    /// Limits and their use.
    Limits,
    /// Advised size of the unexpected-message buffer.
    Advice,
    /// Change some of the limits.
    SetLimits(LimitsChange),
    /// Dials that are set.
    Dials,
    /// Set one more dial.
    SetDial(DialChange),
    /// Clear one dial, or all.
    ClearDials(DialClear),
    /// Plan for a transfer that nobody has asked for.
    Plan(PlanBody),
    /// Permit to load paths on purpose.
    Calibrate(CalibrateBody),
    /// Open handles of clients and peers.
    Handles,
    /// End one of these handles.
    EndHandle(EndHandle),
    /// End a client's session.
    EndClient(EndClient),
    /// Close the lanes from and to a node.
    EndPeer(EndPeer),
}

/// Reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Status code of the reply.
    pub status: StatusCode,
    /// Cause and its fix.
    pub error: String,
    /// Allowed methods, if it was another one.
    pub allowed: Vec<Method>,
}

/// Longer reasons are cut. There is room for the findings of a configuration that is wrong in many
/// places.
const ERROR_BYTES_MAX: usize = 4096;

impl Refused {
    /// A refusal with its HTTP status.
    #[must_use]
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        let mut error = error.into();
        // The text quotes the request, which may be long.
        if error.len() > ERROR_BYTES_MAX {
            error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
            error.push('…');
        }
        Self { status, error, allowed: Vec::new() }
    }

    /// Refuses a request that is wrong.
    #[must_use]
    pub fn bad(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }
}

/// A method of a path, with the reader of its body.
#[derive(Debug)]
pub struct Endpoint {
    method: Method,
    path: &'static str,
    /// Whether the path goes on with one more word.
    takes_word: bool,
    /// Whether the endpoint only reads, although its request has a body.
    asks: bool,
    read: Read,
}

/// Content of a request.
struct Asked<'a> {
    /// Last word of the path, where it ends with one.
    word: &'a str,
    body: &'a [u8],
}

type Read = fn(Asked<'_>) -> Result<AdminRequest, Refused>;

const fn get(path: &'static str, read: Read) -> Endpoint {
    Endpoint { method: Method::GET, path, takes_word: false, asks: true, read }
}

/// Endpoint of `GET` for users that may change the daemon.
const fn get_private(path: &'static str, read: Read) -> Endpoint {
    Endpoint { method: Method::GET, path, takes_word: false, asks: false, read }
}

/// Endpoint with one more word behind the path.
const fn get_one(path: &'static str, read: Read) -> Endpoint {
    Endpoint { method: Method::GET, path, takes_word: true, asks: true, read }
}

const fn put(path: &'static str, read: Read) -> Endpoint {
    Endpoint { method: Method::PUT, path, takes_word: false, asks: false, read }
}

const fn post(path: &'static str, read: Read) -> Endpoint {
    Endpoint { method: Method::POST, path, takes_word: false, asks: false, read }
}

/// Endpoint of a question that needs a body.
const fn ask(path: &'static str, read: Read) -> Endpoint {
    Endpoint { method: Method::POST, path, takes_word: false, asks: true, read }
}

/// All endpoints of the API.
static ENDPOINTS: &[Endpoint] = &[
    get(admin::PAGE, |_| Ok(AdminRequest::Page)),
    get(admin::STATUS, |_| Ok(AdminRequest::Status)),
    get(admin::STAGES, |_| Ok(AdminRequest::Stages)),
    get(admin::CLIENTS, |_| Ok(AdminRequest::Clients)),
    get(admin::METRICS, |_| Ok(AdminRequest::Metrics)),
    get(watch::STAT, |_| Ok(AdminRequest::Stat)),
    get(watch::PEERS, |_| Ok(AdminRequest::Peers)),
    get(watch::TRANSFERS, |_| Ok(AdminRequest::Transfers { ended: false })),
    get(watch::TRANSFERS_ENDED, |_| Ok(AdminRequest::Transfers { ended: true })),
    get(watch::EXPORTS, |_| Ok(AdminRequest::Exports)),
    get(NODES, |_| Ok(AdminRequest::Nodes)),
    get(CLUSTER, |_| Ok(AdminRequest::Cluster)),
    post(CLUSTER_TOKENS, |asked| Ok(AdminRequest::MakeToken(asked.read()?))),
    put(CLUSTER_TOKENS_END, |asked| Ok(AdminRequest::EndToken(asked.read()?))),
    post(CLUSTER_REVOKE, |asked| Ok(AdminRequest::Revoke(asked.read()?))),
    get_one(admin::EXPLAIN, explain),
    get(admin::CONFIG, |_| Ok(AdminRequest::Configuration)),
    post(admin::RELOAD, |_| Ok(AdminRequest::Reload)),
    put(admin::PLANNER, planner),
    ask(PLAN, |asked| Ok(AdminRequest::Plan(asked.read()?))),
    get(ADVICE, |_| Ok(AdminRequest::Advice)),
    get(LIMITS, |_| Ok(AdminRequest::Limits)),
    put(LIMITS, |asked| Ok(AdminRequest::SetLimits(asked.read()?))),
    get(TRACE, |_| Ok(AdminRequest::Trace)),
    put(TRACE, trace),
    get(DIALS, |_| Ok(AdminRequest::Dials)),
    put(DIALS, |asked| Ok(AdminRequest::SetDial(asked.read()?))),
    put(DIALS_CLEAR, |asked| Ok(AdminRequest::ClearDials(asked.read()?))),
    put(CALIBRATE, |asked| Ok(AdminRequest::Calibrate(asked.read()?))),
    get_private(HANDLES, |_| Ok(AdminRequest::Handles)),
    put(HANDLES_END, |asked| Ok(AdminRequest::EndHandle(asked.read()?))),
    put(CLIENTS_END, |asked| Ok(AdminRequest::EndClient(asked.read()?))),
    put(PEERS_END, |asked| Ok(AdminRequest::EndPeer(asked.read()?))),
    put(admin::CALIBRATION, |asked| Ok(AdminRequest::SetCalibration(asked.read()?))),
];

impl Endpoint {
    /// Method and path of all endpoints; a path that takes a word ends with a slash.
    pub fn all() -> impl Iterator<Item = (&'static Method, &'static str)> {
        ENDPOINTS.iter().map(|endpoint| (&endpoint.method, endpoint.path))
    }

    /// Finds the endpoint of a request.
    ///
    /// # Errors
    /// No endpoint has that path, or it takes other methods.
    pub fn find(method: &Method, path: &str) -> Result<&'static Self, Refused> {
        let here = || ENDPOINTS.iter().filter(|endpoint| endpoint.word_of(path).is_some());
        if let Some(found) = here().find(|endpoint| endpoint.method == *method) {
            return Ok(found);
        }
        let allowed: Vec<Method> = here().map(|endpoint| endpoint.method.clone()).collect();
        if allowed.is_empty() {
            let text =
                format!("there is nothing at {path}; see {} and its siblings", admin::STATUS);
            return Err(Refused::new(StatusCode::NOT_FOUND, text));
        }
        let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
        let text = format!("{path} takes {}", names.join(" and "));
        Err(Refused { allowed, ..Refused::new(StatusCode::METHOD_NOT_ALLOWED, text) })
    }

    /// Whether the endpoint needs the right to change the daemon: it changes something, or shows
    /// what only such users may see.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !self.asks
    }

    /// Reads the content of the request.
    ///
    /// # Errors
    /// The body is malformed, or has impossible values.
    pub fn read(&self, path: &str, body: &[u8]) -> Result<AdminRequest, Refused> {
        (self.read)(Asked { word: self.word_of(path).unwrap_or_default(), body })
    }

    /// Word behind the path, empty for a path that takes none; none if the path is another one.
    fn word_of<'a>(&self, path: &'a str) -> Option<&'a str> {
        let word = path.strip_prefix(self.path)?;
        let fits = if self.takes_word { !word.contains('/') } else { word.is_empty() };
        fits.then_some(word)
    }
}

/// Parses a whole request at once. The daemon checks the user between [`Endpoint::find`] and
/// [`Endpoint::read`].
///
/// # Errors
/// The errors of both.
pub fn parse(method: &Method, path: &str, body: &[u8]) -> Result<AdminRequest, Refused> {
    Endpoint::find(method, path)?.read(path, body)
}

impl Asked<'_> {
    fn read<T: DeserializeOwned>(&self) -> Result<T, Refused> {
        Envelope::parse(self.body).map_err(|error| Refused::bad(error.to_string()))
    }
}

fn explain(asked: Asked<'_>) -> Result<AdminRequest, Refused> {
    if asked.word == "last" {
        return Ok(AdminRequest::Explain(None));
    }
    if asked.word == "any" {
        return Ok(AdminRequest::ExplainAny);
    }
    let number = asked.word.parse().map_err(|_| {
        Refused::bad(format!("`{}` is no transfer: write its number, `last` or `any`", asked.word))
    })?;
    Ok(AdminRequest::Explain(Some(number)))
}

fn trace(asked: Asked<'_>) -> Result<AdminRequest, Refused> {
    let body: TraceBody = asked.read()?;
    if body.transfers > TRACE_TRANSFERS_MAX {
        return Err(Refused::bad(format!(
            "a recording has room for {TRACE_TRANSFERS_MAX} transfers, not for {}",
            body.transfers
        )));
    }
    Ok(AdminRequest::SetTrace(body))
}

fn planner(asked: Asked<'_>) -> Result<AdminRequest, Refused> {
    let body: PlannerBody = asked.read()?;
    check_planner_mode(body.mode).map_err(|why| Refused::bad(format!("the planner mode {why}")))?;
    Ok(AdminRequest::SetPlanner(body))
}

#[cfg(test)]
mod tests {
    use piped_core::modes::PlannerMode;

    use super::*;

    fn status(method: &Method, path: &str, body: &str) -> StatusCode {
        parse(method, path, body.as_bytes())
            .map_or_else(|refused| refused.status, |_| StatusCode::OK)
    }

    #[test]
    fn every_path_takes_its_methods_and_no_other() {
        for path in [
            admin::STATUS,
            admin::STAGES,
            admin::CLIENTS,
            admin::METRICS,
            watch::STAT,
            watch::PEERS,
            watch::TRANSFERS,
            watch::TRANSFERS_ENDED,
            watch::EXPORTS,
            NODES,
            ADVICE,
            "/v1/explain/last",
        ] {
            assert_eq!(status(&Method::GET, path, ""), StatusCode::OK, "{path}");
            let refused = parse(&Method::PUT, path, b"{}").expect_err(path);
            assert_eq!(refused.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
            assert_eq!(refused.allowed, [Method::GET], "{path}");
        }
        for path in [admin::PLANNER, admin::CALIBRATION] {
            let refused = parse(&Method::DELETE, path, b"").expect_err(path);
            assert!(refused.error.contains("PUT"), "{}", refused.error);
            assert!(Endpoint::find(&Method::PUT, path).expect(path).is_change());
        }
        for path in ["", "/v1", "/v1/status/", "/v1/explain", "/v1/explain/1/2", "/v2/status"] {
            assert_eq!(status(&Method::GET, path, ""), StatusCode::NOT_FOUND, "{path}");
        }
    }

    #[test]
    fn what_is_to_end_is_said_in_full() {
        let end = |path: &str, body: &str| parse(&Method::PUT, path, body.as_bytes());
        assert_eq!(
            end(HANDLES_END, r#"{"handle":7}"#),
            Ok(AdminRequest::EndHandle(EndHandle { handle: 7 }))
        );
        assert_eq!(
            end(CLIENTS_END, r#"{"session":7}"#),
            Ok(AdminRequest::EndClient(EndClient { session: 7 }))
        );
        for path in [HANDLES_END, CLIENTS_END, PEERS_END] {
            for body in ["", "{}", r#"{"handle":-1}"#, r#"{"all":true}"#, r#"{"peer":7}"#] {
                assert_eq!(end(path, body).expect_err(body).status, StatusCode::BAD_REQUEST);
            }
            assert!(Endpoint::find(&Method::PUT, path).expect(path).is_change());
        }
        assert!(
            Endpoint::find(&Method::GET, HANDLES).expect("there").is_change(),
            "it names files"
        );
    }

    #[test]
    fn who_asks_at_length_is_not_told_all_of_it() {
        let refused = parse(&Method::GET, &format!("/{}", "ü".repeat(8000)), b"").expect_err("no");
        assert!(refused.error.len() < 4200 && refused.error.ends_with('…'), "{}", refused.error);
    }

    #[test]
    fn a_recording_has_room_for_so_many_transfers() {
        let trace = |body: &str| parse(&Method::PUT, TRACE, body.as_bytes());
        for transfers in [0, 1, TRACE_TRANSFERS_MAX] {
            let body = TraceBody { transfers };
            let read = trace(&format!(r#"{{"transfers":{transfers}}}"#));
            assert_eq!(read, Ok(AdminRequest::SetTrace(body)));
        }
        for body in [r#"{"transfers":65}"#, r#"{"transfers":-1}"#, r#"{"transfer":1}"#, "{}"] {
            let refused = trace(body).expect_err(body);
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
        }
        assert_eq!(parse(&Method::GET, TRACE, b""), Ok(AdminRequest::Trace));
    }

    #[test]
    fn a_misspelt_change_of_limits_is_no_smaller_change() {
        let limits = |body: &str| parse(&Method::PUT, admin::limits::LIMITS, body.as_bytes());
        assert!(limits(r#"{"set":{"global.staging":"64MiB"},"persist":true}"#).is_ok());
        for (body, hint) in [
            (r#"{"set":{"global.staging":"64MiB"},"persits":true}"#, "persits"),
            (r#"{"set":{"global.staging":1.5}}"#, "whole number, or text"),
        ] {
            let refused = limits(body).expect_err(body);
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
            assert!(refused.error.contains(hint), "{}", refused.error);
        }
    }

    #[test]
    fn a_misspelt_dial_is_no_other_dial() {
        let set = |body: &str| parse(&Method::PUT, DIALS, body.as_bytes());
        assert!(set(r#"{"stage":"copy","overhead_ns":1000}"#).is_ok());
        for body in [
            r#"{"overhead_ns":1000}"#,
            r#"{"stage":"copy","overhead_us":1000}"#,
            r#"{"stage":"copy","overhead_ns":-1}"#,
            r#"{"stage":"copy","overhead_ns":1e300}"#,
            r#"{"stage":"copy","latency_ns":9,"spread":{"cv":1e999}}"#,
            r#"{"stage":"copy","latency_ns":9,"spread":{"cv":null}}"#,
            r#"{"stage":"copy","latency_ns":9,"spread":{"stall":0.1}}"#,
            r#"{"stage":"copy","latency_ns":9,"cv":1}"#,
        ] {
            assert_eq!(set(body).expect_err(body).status, StatusCode::BAD_REQUEST, "{body}");
        }
        let clear = |body: &str| parse(&Method::PUT, DIALS_CLEAR, body.as_bytes());
        assert_eq!(clear("{}"), Ok(AdminRequest::ClearDials(DialClear { stage: None })));
        assert!(clear(r#"{"stgae":"copy"}"#).is_err(), "not all of them");
        for path in [DIALS, DIALS_CLEAR] {
            assert!(Endpoint::find(&Method::PUT, path).expect(path).is_change());
        }
    }

    #[test]
    fn a_question_with_a_body_is_no_change() {
        let plan = |body: &str| parse(&Method::POST, PLAN, body.as_bytes());
        assert!(!Endpoint::find(&Method::POST, PLAN).expect("there").is_change());
        assert!(Endpoint::find(&Method::POST, admin::RELOAD).expect("there").is_change());
        let good = concat!(
            r#"{"from":{"export":{"peer":"b","export":"e","path":"f"}},"#,
            r#""to":{"memory":{}},"bytes":1}"#
        );
        assert!(plan(good).is_ok());
        for (from, to) in
            [("bytes", "byte"), ("memory", "moon"), ("\"path\"", "\"paths\""), (":1}", ":-1}")]
        {
            let body = good.replacen(from, to, 1);
            assert_eq!(plan(&body).expect_err(&body).status, StatusCode::BAD_REQUEST, "{body}");
        }
    }

    #[test]
    fn bodies_and_words_are_read_or_refused_with_a_reason() {
        let planner = |body| parse(&Method::PUT, admin::PLANNER, body);
        let mode = PlannerMode::Fixed(64 << 10);
        let read = planner(br#"{"schema_version":1,"mode":{"fixed":65536}}"#);
        assert_eq!(read, Ok(AdminRequest::SetPlanner(PlannerBody { mode })));
        let explain = |word: &str| parse(&Method::GET, &format!("/v1/explain/{word}"), b"");
        assert_eq!(explain("17"), Ok(AdminRequest::Explain(Some(17))));
        assert_eq!(explain("last"), Ok(AdminRequest::Explain(None)));
        assert_eq!(explain("any"), Ok(AdminRequest::ExplainAny));
        let bodies: [&[u8]; 6] = [
            b"",
            b"{",
            b"\xff",
            br#"{"mode":{"fixed":1}}"#,
            br#"{"mode":"auto","untill":"reload"}"#,
            br#"{"schema_version":9,"mode":"auto"}"#,
        ];
        for refused in bodies.map(planner).into_iter().chain(["", "x", "-1", "1e3"].map(explain)) {
            let refused = refused.expect_err("it says nothing that can be done");
            assert_eq!(refused.status, StatusCode::BAD_REQUEST);
            assert!(!refused.error.is_empty());
        }
    }
}
