//! A connection to a member: questions and answers in JSON, and answers without an end.

use std::pin::Pin;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use piped_config::Endpoint;
use rustix::net::sockopt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Fault;
use super::tls::Tls;

/// A member that takes longer is not there.
const PATIENCE: Duration = Duration::from_secs(2);
/// A longer answer, or a longer line of one, is not read.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// A connection on which nothing comes is asked whether it is there, so often.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// A connection is given up after so many questions without an answer.
const KEEPALIVE_COUNT: u32 = 2;

/// Letters of an answer that are shown where it is not understood.
const WORDS_MAX: usize = 200;

trait Stream: AsyncRead + AsyncWrite {}
impl<T: AsyncRead + AsyncWrite> Stream for T {}

/// A connection, and what each of its requests says.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    token: Option<String>,
}

impl Connection {
    /// Connects to a member. Its requests have the token, if there is one.
    pub(super) async fn open(
        endpoint: &Endpoint,
        tls: &Tls,
        token: Option<String>,
    ) -> Result<Self, Fault> {
        in_time(async {
            let tcp = TcpStream::connect(endpoint.at().as_str()).await?;
            keep_alive(&tcp)?;
            let stream: Pin<Box<dyn Stream>> = match tls {
                Tls::Plain => Box::pin(tcp),
                Tls::Secure(connector, name) => {
                    Box::pin(connector.connect(name.clone(), tcp).await?)
                }
            };
            let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
            // It ends with the sender and the last answer.
            tokio::task::spawn_local(async move {
                let _ = driver.await;
            });
            Ok(Self { sender, host: endpoint.at().to_string(), token })
        })
        .await
    }

    /// Asks, and reads the answer whole.
    pub(super) async fn ask<T: DeserializeOwned>(
        &mut self,
        path: &str,
        question: &impl Serialize,
    ) -> Result<T, Fault> {
        in_time(async {
            let response = self.send(path, question).await?;
            let is_fine = response.status().is_success();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| match error.is::<LengthLimitError>() {
                true => Fault::Long(ANSWER_BYTES_MAX),
                false => Fault::Odd(error.to_string()),
            })?;
            let body = body.to_bytes();
            if is_fine { parse(&body) } else { Err(refused(&body)) }
        })
        .await
    }

    /// Asks for an answer that goes on, line by line.
    pub(super) async fn listen(
        mut self,
        path: &str,
        question: &impl Serialize,
    ) -> Result<Lines, Fault> {
        let response = in_time(self.send(path, question)).await?;
        let is_fine = response.status().is_success();
        let mut lines = Lines { body: response.into_body(), kept: Vec::new(), begin: 0, seen: 0 };
        if !is_fine {
            return Err(in_time(lines.line()).await.map_or_else(|fault| fault, |it| refused(&it)));
        }
        Ok(lines)
    }

    async fn send(
        &mut self,
        path: &str,
        question: &impl Serialize,
    ) -> Result<Response<Incoming>, Fault> {
        let body = serde_json::to_vec(question).map_err(|error| Fault::Odd(error.to_string()))?;
        let mut request = Request::post(path)
            .header(HOST, self.host.as_str())
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.as_str());
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| Fault::Odd(error.to_string()))?;
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }
}

/// An answer that goes on.
pub(super) struct Lines {
    body: Incoming,
    kept: Vec<u8>,
    /// Where the next line begins in `kept`, and up to where no line ends from there on.
    begin: usize,
    seen: usize,
}

impl Lines {
    /// The next line. What came of it stays if this future is dropped.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        parse(&self.line().await?)
    }

    async fn line(&mut self) -> Result<Vec<u8>, Fault> {
        // Very many short lines leave others their turns.
        tokio::task::yield_now().await;
        loop {
            if let Some(end) = self.kept[self.seen..].iter().position(|byte| *byte == b'\n') {
                let line = self.kept[self.begin..=self.seen + end].to_vec();
                (self.begin, self.seen) = (self.seen + end + 1, self.seen + end + 1);
                return Ok(line);
            }
            self.kept.drain(..self.begin);
            (self.begin, self.seen) = (0, self.kept.len());
            if self.seen > ANSWER_BYTES_MAX {
                return Err(Fault::Long(ANSWER_BYTES_MAX));
            }
            let frame = self.body.frame().await.ok_or(Fault::Ended)??;
            if let Ok(bytes) = frame.into_data() {
                self.kept.extend_from_slice(&bytes);
            }
        }
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or(Err(Fault::Late))
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(text).map_err(|error| Fault::Odd(error.to_string()))
}

/// What an etcd says that it does not do, and why.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    message: String,
    error: serde_json::Value,
}

impl Refusal {
    pub(super) fn into_words(self) -> String {
        let error = &self.error;
        let inner = error.as_str().or_else(|| error.get("message")?.as_str());
        let message = Some(self.message.as_str()).filter(|message| !message.is_empty());
        message.or(inner).unwrap_or("no reason").to_owned()
    }
}

/// What is refused, in the words of an etcd or of whatever answers there.
fn refused(text: &[u8]) -> Fault {
    let in_json = parse::<Refusal>(text).map(Refusal::into_words);
    Fault::Refused(in_json.unwrap_or_else(|_| {
        let words = String::from_utf8_lossy(text);
        words.trim().chars().take(WORDS_MAX).collect()
    }))
}

/// The far end of a connection may be gone without a word, as behind a link that is cut.
fn keep_alive(socket: &TcpStream) -> Result<(), Fault> {
    let set = || {
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT)
    };
    set().map_err(|error| Fault::Io(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_words_in_json_or_not() {
        for text in [
            r#"{"error":"etcdserver: invalid auth token","code":16,"message":"etcdserver: x"}"#,
            r#"{"error":{"grpc_code":14,"message":"etcdserver: x"}}"#,
            r#"{"error":"etcdserver: x"}"#,
            "etcdserver: x\n",
        ] {
            assert_eq!(refused(text.as_bytes()).to_string(), "it refuses: etcdserver: x");
        }
        let long = "x".repeat(10_000);
        assert!(refused(long.as_bytes()).to_string().len() < 300);
    }
}
