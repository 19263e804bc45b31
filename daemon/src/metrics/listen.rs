//! `[metrics] address`: `GET /metrics` for a Prometheus server, `GET /` for people, and nothing
//! else.
//!
//! Everybody that reaches the port may read. So a scraper can cost only little: few connections, a
//! time for each request, and the shards are asked at most every [`crate::limits::METRICS_AGE`].

use std::cell::Cell;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use piped_config::admin;
use piped_control::journal::{Cause, Party};
use piped_control::patrol::site_of;
use tokio::net::{TcpListener, TcpStream};

use crate::admin::page;
use crate::admin::sent::{Door, Sent};
use crate::control::Control;
use crate::limits::{METRICS_EXCHANGE_TIMEOUT, METRICS_TIMEOUT, SCRAPERS};
use crate::places::{Admitted, Place, Places};

/// How long to leave a full table of files alone.
const PAUSE: Duration = Duration::from_millis(100);

/// No listener for metrics could be made.
#[derive(Debug, thiserror::Error)]
#[error(
    "metrics.address: cannot listen on {address} ({error}); is the port taken? Choose another one, \
     or \"\" for no listener (the admin socket has /metrics, too)"
)]
pub struct MetricsListenError {
    address: SocketAddr,
    error: std::io::Error,
}

/// Listens where the configuration says; `None` if nowhere.
pub(crate) async fn bind(
    config: &piped_config::Metrics,
) -> Result<Option<TcpListener>, MetricsListenError> {
    let Some(address) = config.address else { return Ok(None) };
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "everybody that reaches this address can read the metrics");
    }
    let listener = TcpListener::bind(address).await;
    listener.map(Some).map_err(|error| MetricsListenError { address, error })
}

/// Answers scrapers until the daemon stops.
pub(crate) async fn listen(control: Rc<Control>, listener: TcpListener) {
    let places = Places::new(SCRAPERS);
    loop {
        let accepted = tokio::select! {
            () = control.stopped() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                admit(&control, &places, stream, from.ip());
                // Read a request that was already sent before the next connection: it is not
                // silent.
                tokio::task::yield_now().await;
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

/// Serves a new connection, if there is room; each address is a party.
fn admit(control: &Rc<Control>, places: &Places<IpAddr>, stream: TcpStream, from: IpAddr) {
    let Some(Admitted { place, displaced }) = places.enter(site_of(from), false) else {
        return send_away(control, from, Sent::Busy);
    };
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        tokio::select! {
            biased;
            () = control.stopped() => {}
            Ok(()) = displaced => send_away(&control, from, Sent::Displaced),
            () = serve(&control, &place, stream, from) => {}
        }
    });
}

fn send_away(control: &Control, from: IpAddr, why: Sent) {
    control.count_sent(Door::Metrics, why);
    if let Some(left_out) = control.may_say(Cause::Operator, Party::Door("metrics")) {
        tracing::info!(%from, reason = why.name(), left_out, "a scraper was sent away");
    }
}

/// Serves one request a connection. A scraper that kept its connection would keep its place; one
/// that reads slowly has a time for all of it.
async fn serve(control: &Rc<Control>, place: &Place<IpAddr>, stream: TcpStream, from: IpAddr) {
    let has_asked = Cell::new(false);
    let service = service_fn(|request| {
        has_asked.set(true);
        // Until it has taken its answer it counts as silent.
        place.is_served();
        async {
            let response = respond(control, request).await;
            place.was_served();
            response
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(METRICS_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(METRICS_EXCHANGE_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) if error.is_timeout() && !has_asked.get() => {
            send_away(control, from, Sent::Silent);
        }
        Ok(Err(error)) => tracing::debug!(%error, "a scrape ended badly"),
        Err(_) => send_away(control, from, Sent::Unread),
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
    // For HEAD, hyper sends only the head of the answer.
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

/// Answer with the metrics, here and on the admin socket.
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
