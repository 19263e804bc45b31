//! The client of the daemon's admin API: HTTP/1.1 on a unix socket, one connection a request.
//!
//! `pipectl` and `bench` ask a daemon through this crate.
//!
//! Blocking towards the commands, which do one thing after the other; hyper wants a runtime, so a
//! client owns a current-thread one.
//!
//! Names in the daemon's answers were chosen by clients and peers: in what the commands show they
//! are escaped here, all of them, and with them the few texts that are the daemon's own. `--json`
//! has them as they are, written so that a terminal obeys none ([`piped_cli::output::json`]). Where
//! a command goes on with them, it reads them as they are ([`Admin::get_exact`]).

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use piped_cli::failure::{Exit, Failure};
use piped_config::admin::{BodyError, Envelope, ErrorBody};
use piped_text::{shown, shown_lines};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// An answer longer than this is not from piped.
const BODY_BYTES_MAX: usize = 16 << 20;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Before another try to connect where too many do.
const QUEUE_FULL_PAUSE: Duration = Duration::from_millis(5);

/// A daemon's admin API.
#[derive(Debug)]
pub struct Admin {
    socket: PathBuf,
    runtime: Runtime,
    /// Ctrl-C as it is waited for, from the first wait on: what is pressed between two waits counts
    /// at the next one.
    interrupts: Mutex<Option<Signal>>,
}

impl Admin {
    /// A client of the daemon at `socket`; connects with each request.
    ///
    /// # Errors
    /// If no runtime can be started.
    pub fn new(socket: &Path) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::io("cannot start a runtime", &error))?;
        Ok(Self { socket: socket.to_owned(), runtime, interrupts: Mutex::new(None) })
    }

    /// `GET`, with a typed answer.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.read(&self.request(Method::GET, path, String::new())?)
    }

    /// `GET` with a typed answer, its texts as the daemon wrote them: for what is used, as paths
    /// are. What is shown of it is to be escaped there.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn get_exact<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let body = self.request(Method::GET, path, String::new())?;
        Envelope::parse(&body).map_err(|error| self.malformed(&error))
    }

    /// `GET` as the daemon wrote it, for `--json`: fields this program does not know are kept.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn get_raw(&self, path: &str) -> Result<Value, Failure> {
        self.read_raw(&self.request(Method::GET, path, String::new())?)
    }

    /// `GET` of what is no JSON.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn get_text(&self, path: &str) -> Result<String, Failure> {
        let body = self.request(Method::GET, path, String::new())?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// `POST` without a body, typed.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.read(&self.request(Method::POST, path, String::new())?)
    }

    /// `POST` without a body; the answer as the daemon wrote it, for `--json`.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn post_raw(&self, path: &str) -> Result<Value, Failure> {
        self.read_raw(&self.request(Method::POST, path, String::new())?)
    }

    /// `POST` of a question that has more to say than fits a path, typed.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn ask<T: DeserializeOwned>(&self, path: &str, body: impl Serialize) -> Result<T, Failure> {
        self.read(&self.request(Method::POST, path, Envelope::new(body).json())?)
    }

    /// `POST` of a question; the answer as the daemon wrote it, for `--json`.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn ask_raw(&self, path: &str, body: impl Serialize) -> Result<Value, Failure> {
        self.read_raw(&self.request(Method::POST, path, Envelope::new(body).json())?)
    }

    /// `PUT`; what the daemon answers beside success does not matter.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn put(&self, path: &str, body: impl Serialize) -> Result<(), Failure> {
        self.request(Method::PUT, path, Envelope::new(body).json()).map(drop)
    }

    /// `PUT`, and what the daemon answers.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn put_and_read<T: DeserializeOwned>(
        &self,
        path: &str,
        body: impl Serialize,
    ) -> Result<T, Failure> {
        self.read(&self.request(Method::PUT, path, Envelope::new(body).json())?)
    }

    /// `PUT`, and the answer as the daemon wrote it, for `--json`.
    ///
    /// # Errors
    /// If the daemon does not answer, refuses, or answers what is not expected.
    pub fn put_raw(&self, path: &str, body: impl Serialize) -> Result<Value, Failure> {
        self.read_raw(&self.request(Method::PUT, path, Envelope::new(body).json())?)
    }

    /// Waits until then; true if Ctrl-C came before, or since the first of these waits began.
    ///
    /// # Errors
    /// If signals cannot be waited for.
    pub fn is_interrupted_until(&self, due: Instant) -> Result<bool, Failure> {
        let mut interrupts = self.interrupts.lock();
        self.runtime.block_on(async {
            let interrupts = match &mut *interrupts {
                Some(interrupts) => interrupts,
                none => {
                    let interrupts = signal(SignalKind::interrupt());
                    let failed = |error| Failure::io("cannot wait for Ctrl-C", &error);
                    none.insert(interrupts.map_err(failed)?)
                }
            };
            tokio::select! {
                biased;
                _ = interrupts.recv() => Ok(true),
                () = tokio::time::sleep_until(due.into()) => Ok(false),
            }
        })
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Failure> {
        read_shown(body).map_err(|error| self.malformed(&error))
    }

    fn read_raw(&self, body: &[u8]) -> Result<Value, Failure> {
        Envelope::parse(body).map_err(|error| self.malformed(&error))
    }

    fn malformed(&self, error: &BodyError) -> Failure {
        Failure::failed(format!("the answer from {}: {error}", self.socket.display()))
    }

    fn request(&self, method: Method, path: &str, body: String) -> Result<Bytes, Failure> {
        self.runtime.block_on(async {
            tokio::time::timeout(TIMEOUT, exchange(&self.socket, method, path, body))
                .await
                .unwrap_or_else(|_| Err(self.timed_out()))
        })
    }

    fn timed_out(&self) -> Failure {
        Failure::new(
            Exit::Timeout,
            format!(
                "the daemon at {} did not answer within {} s; see `systemctl status piped` and its \
                 journal",
                self.socket.display(),
                TIMEOUT.as_secs()
            ),
        )
    }
}

/// A body, every text in it as it is shown.
fn read_shown<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    let value = show(Envelope::parse(body)?);
    serde_json::from_value(value).map_err(|error| BodyError::Malformed(error.to_string()))
}

fn show(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(shown(&text).into_owned()),
        Value::Array(all) => all.into_iter().map(show).collect(),
        Value::Object(fields) => {
            let field = |(key, value): (String, Value)| match (key, value) {
                // Why a configuration was refused: a reason a line. Its lines are the daemon's.
                (key, Value::String(text)) if key == "error" => {
                    (key, Value::String(shown_lines(&text).into_owned()))
                }
                (key, value) => (shown(&key).into_owned(), show(value)),
            };
            Value::Object(fields.into_iter().map(field).collect())
        }
        other => other,
    }
}

async fn exchange(
    socket: &Path,
    method: Method,
    path: &str,
    body: String,
) -> Result<Bytes, Failure> {
    let stream = loop {
        match UnixStream::connect(socket).await {
            // Very many connect at once, and have filled the kernel's queue: whoever waits for the
            // answer waits for a place in it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(QUEUE_FULL_PAUSE).await;
            }
            connected => {
                break connected.map_err(|error| unreachable(socket, &error, "--socket"))?;
            }
        }
    };
    let broken = |error: hyper::Error| {
        Failure::failed(format!("the daemon at {} broke off: {error}", socket.display()))
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Ends by itself when the sender is dropped; its error is the sender's error too.
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "piped")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| Failure::usage(format!("`{path}` is no request: {error}")))?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX)
        .collect()
        .await
        .map_err(|error| Failure::failed(format!("the answer broke off: {error}")))?
        .to_bytes();
    drop(sender);
    connection.abort();
    if status.is_success() { Ok(body) } else { Err(refused(status, &body)) }
}

/// No connection: the daemon is not running, or does not admit this user. `option` names another
/// socket.
pub fn unreachable(socket: &Path, error: &io::Error, option: &str) -> Failure {
    let socket = socket.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::new(
            Exit::Refused,
            format!(
                "not allowed to connect to {socket}: only root and the daemon's user may, unless \
                 [access] of its configuration names you"
            ),
        ),
        _ => Failure::new(
            Exit::Unreachable,
            format!(
                "no daemon at {socket} ({error}): start it with `systemctl start piped`, or name \
                 its socket with {option}"
            ),
        ),
    }
}

/// The failure for an answer of the daemon that is no success.
fn refused(status: StatusCode, body: &[u8]) -> Failure {
    let exit = match status {
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Exit::Timeout,
        status if status.is_client_error() => Exit::Refused,
        _ => Exit::Failed,
    };
    let message = Envelope::<ErrorBody>::parse(body).map_or_else(
        |_| format!("the daemon answered {status} without a reason"),
        |body| body.error,
    );
    Failure::new(exit, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_answers_are_shown_and_stay_what_they_are_for_programs() {
        use piped_config::admin::watch::{Exports, RegionReport};

        let name = "x\u{1b}[2J\nforged  line\u{202e}\u{9b}";
        let region =
            RegionReport { name: name.to_owned(), bytes: 1, read: true, write: false, session: 3 };
        let all = Exports { exports: Vec::new(), regions: vec![region], channels: Vec::new() };
        let json = Envelope::new(all).json();
        let body: Exports = read_shown(json.as_bytes()).expect("a body");
        assert_eq!(body.regions[0].name, "x\\u{1b}[2J\\nforged  line\\u{202e}\\u{9b}");
        let row = vec![vec![body.regions[0].name.clone(), "1".to_owned()]];
        let columns =
            [piped_cli::table::Column::Text("REGION"), piped_cli::table::Column::Number("BYTES")];
        let table = piped_cli::table::render(&columns, row, None);
        assert_eq!(table.lines().count(), 2, "{table}");
        assert!(!table.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{table:?}");
        let raw: Value = Envelope::parse(json.as_bytes()).expect("a body");
        let written = piped_text::shown_json(&raw.to_string()).into_owned();
        assert!(written.is_ascii() && !written.contains('\u{1b}'), "{written:?}");
        let back: Value = serde_json::from_str(&written).expect("JSON");
        assert_eq!(back["regions"][0]["name"], name);
        let refused = show(serde_json::json!({ "error": "one\ntwo\u{1b}" }));
        assert_eq!(refused["error"], "one\ntwo\\u{1b}");
    }

    #[test]
    fn what_is_pressed_between_two_waits_is_not_lost() {
        use rustix::process::{Signal, getpid, kill_process};

        let admin = Admin::new(Path::new("/nowhere")).expect("a runtime");
        let begun = tokio::time::Instant::now().into_std();
        assert!(!admin.is_interrupted_until(begun).expect("a wait"));
        kill_process(getpid(), Signal::INT).expect("this process");
        let due = begun + Duration::from_secs(600);
        assert!(admin.is_interrupted_until(due).expect("a wait"));
    }

    #[test]
    fn answers_map_to_exit_codes_with_the_daemons_reason() {
        let body = br#"{"schema_version":1,"error":"no transfer 7: it was too long ago"}"#;
        for (status, code) in [
            (StatusCode::NOT_FOUND, Exit::NotFound),
            (StatusCode::FORBIDDEN, Exit::Refused),
            (StatusCode::BAD_REQUEST, Exit::Refused),
            (StatusCode::SERVICE_UNAVAILABLE, Exit::Failed),
        ] {
            let failure = refused(status, body);
            assert_eq!(failure.exit(), code, "{status}");
            assert!(failure.to_string().contains("no transfer 7"), "{failure}");
        }
        assert!(refused(StatusCode::BAD_GATEWAY, b"<html>").to_string().contains("502"));
    }
}
