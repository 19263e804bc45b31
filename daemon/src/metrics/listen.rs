//! `[metrics] address`: `GET /metrics` for a Prometheus server, `GET /` for people, and nothing else.
//!
//! Whoever reaches the port may read. So a scraper costs little: few connections, a time for each request,
//! and the shards are not asked more often than [`crate::limits::METRICS_AGE`] whoever scrapes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use piped_config::admin;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::admin::page;
use crate::control::Control;
use crate::journal::{Cause, Party};
use crate::limits::{METRICS_CONNECTIONS_MAX, METRICS_EXCHANGE_TIMEOUT, METRICS_TIMEOUT};

/// How long to leave a full table of files alone.
const PAUSE: Duration = Duration::from_millis(100);

/// There is no listener for metrics.
#[derive(Debug, thiserror::Error)]
#[error(
    "metrics.address: cannot listen on {address} ({error}); is the port taken? Choose another one, or \
     \"\" for no listener (the admin socket has /metrics, too)"
)]
pub struct MetricsListenError {
    address: SocketAddr,
    error: std::io::Error,
}

/// Listens where the configuration says; `None`: nowhere.
pub(crate) async fn bind(
    config: &piped_config::Metrics,
) -> Result<Option<TcpListener>, MetricsListenError> {
    let Some(address) = config.address else { return Ok(None) };
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "whoever reaches this address can read the metrics");
    }
    let listener = TcpListener::bind(address).await;
    listener.map(Some).map_err(|error| MetricsListenError { address, error })
}

/// Answers scrapers until the daemon stops.
pub(crate) async fn listen(control: Rc<Control>, listener: TcpListener) {
    let slots = Arc::new(Semaphore::new(METRICS_CONNECTIONS_MAX));
    loop {
        // Who finds no slot waits in the socket's backlog.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let accepted = tokio::select! {
            () = control.stopped() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let control = Rc::clone(&control);
                tokio::task::spawn_local(async move {
                    let _slot = slot;
                    tokio::select! {
                        () = control.stopped() => {}
                        () = serve(&control, stream) => {}
                    }
                });
            }
            Err(error) => {
                if let Some(left_out) = control.may_say(Cause::Accept, Party::Door("metrics")) {
                    tracing::warn!(%error, left_out, "no scraper can be accepted");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// One request a connection: a scraper that keeps its connection would keep its place, and one that reads
/// slowly has a time for all of it.
async fn serve(control: &Rc<Control>, stream: TcpStream) {
    let service = service_fn(|request| respond(control, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(METRICS_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(METRICS_EXCHANGE_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a scrape ended badly"),
        Err(_) => tracing::debug!("a scrape took too long"),
    }
}

async fn respond(
    control: &Rc<Control>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    if path != admin::METRICS && path != admin::PAGE {
        let text =
            format!("there are {} and {} here and nothing else\n", admin::METRICS, admin::PAGE);
        return Ok(reply(StatusCode::NOT_FOUND, text));
    }
    // Of an answer to HEAD hyper sends the head.
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut reply = reply(StatusCode::METHOD_NOT_ALLOWED, "it takes GET\n".to_owned());
        reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(reply);
    }
    let unavailable = |error: String| reply(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"));
    Ok(match path {
        admin::PAGE => page::show(control).await.unwrap_or_else(|error| unavailable(error.error)),
        _ => match super::scrape_seldom(control).await {
            Ok(text) => exposition(&text),
            Err(error) => unavailable(error.to_string()),
        },
    })
}

/// The metrics as an answer, here and on the admin socket.
pub(crate) fn exposition(text: &str) -> Response<Full<Bytes>> {
    let mut reply = reply(StatusCode::OK, text.to_owned());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(super::CONTENT_TYPE));
    reply
}

fn reply(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut reply = Response::new(Full::new(Bytes::from(text)));
    *reply.status_mut() = status;
    reply
}
