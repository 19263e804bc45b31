//! The operator door: HTTP/1.1 and JSON over a unix socket.
//!
//! `curl --unix-socket /run/piped/admin.sock http://piped/v1/status` works; `pipectl` is a client of
//! it. Who may do what is the kernel's word on who connected, not a token.

pub(crate) mod calibrate;
mod configuration;
mod dials;
pub(crate) mod page;
pub mod parse;
mod plan;
mod routes;
mod stream;
mod trace;
mod watch;

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

pub(crate) use self::parse::Refused;
use self::stream::Stream;
use crate::closing::HeldFile;
use crate::connection::accept;
use crate::control::Control;
use crate::io::socket::{Credentials, peer_credentials};
use crate::journal::{Cause, Party};
use crate::limits::{ADMIN_CONNECTIONS_MAX, ADMIN_TIMEOUT, FILES_PER_HANDSHAKE};

/// How long to leave a full table of files alone.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the admin API until the daemon stops.
pub(crate) async fn listen(control: Rc<Control>, listener: AsyncFd<HeldFile>) {
    let slots = Arc::new(Semaphore::new(ADMIN_CONNECTIONS_MAX));
    loop {
        // Who finds no slot waits in the socket's backlog.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let account = control.account(FILES_PER_HANDSHAKE, 1, Some(Arc::new(slot)));
        let accepted = tokio::select! {
            () = control.stopped() => return,
            accepted = accept(&listener, &account) => accepted,
        };
        match accepted {
            Ok(connection) => {
                let control = Rc::clone(&control);
                tokio::task::spawn_local(async move {
                    tokio::select! {
                        () = control.stopped() => {}
                        () = serve(&control, Stream::new(connection, account)) => {}
                    }
                });
            }
            Err(error) => {
                if let Some(left_out) = control.may_say(Cause::Accept, Party::Door("admin")) {
                    tracing::warn!(%error, left_out, "no operator can be accepted");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve(control: &Rc<Control>, stream: Stream) {
    let Ok(who) = peer_credentials(&stream) else { return };
    let service = service_fn(|request| respond(control, &who, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ADMIN_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the admin API ended badly");
    }
}

async fn respond(
    control: &Rc<Control>,
    who: &Credentials,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = routes::route(control, who, request).await;
    let status = response.status().as_u16();
    tracing::debug!(uid = who.uid, %method, path, status, "admin");
    Ok(response)
}
