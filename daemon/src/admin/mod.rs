//! The admin API: HTTP/1.1 and JSON over a unix socket.
//!
//! `curl --unix-socket /run/piped/admin.sock http://piped/v1/status` works; `pipectl` is a client
//! of it. Rights follow from the kernel's word about the user that connected, not from a token.

pub(crate) mod calibrate;
mod cluster;
mod configuration;
mod dials;
mod ending;
pub(crate) mod page;
pub mod parse;
mod plan;
mod routes;
pub(crate) mod sent;
mod stream;
mod trace;
mod watch;

use std::cell::Cell;
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
use piped_control::journal::{Cause, Party};
use piped_control::parties::Credentials;
use tokio::io::unix::AsyncFd;

pub(crate) use self::parse::Refused;
use self::sent::{Door, Sent};
use self::stream::Stream;
use crate::closing::{HeldFile, Kept};
use crate::connection::{Connection, accept};
use crate::control::Control;
use crate::doorstep::Knock;
use crate::limits::{ADMIN_TIMEOUT, FILES_PER_HANDSHAKE, OPERATORS, STRANGERS};
use crate::places::{Admitted, Place, Places};

/// How long to leave a full table of files alone.
const PAUSE: Duration = Duration::from_millis(100);

/// Places for connections of operators.
#[derive(Debug)]
struct Porter {
    operators: Places<u32>,
    strangers: Places<()>,
}

/// Serves the admin API until the daemon stops.
pub(crate) async fn listen(control: Rc<Control>, listener: AsyncFd<HeldFile>) {
    let porter = Porter { operators: Places::new(OPERATORS), strangers: Places::new(STRANGERS) };
    loop {
        let doorstep = &control.admin_doorstep;
        let accepted = tokio::select! {
            () = control.stopped() => return,
            accepted = accept(&listener, doorstep, |who| knock(&control, who)) => accepted,
        };
        match accepted {
            Ok((connection, who)) => {
                porter.admit(&control, connection, who);
                // Read a request that was already sent before the next connection: it is not
                // silent.
                tokio::task::yield_now().await;
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

/// Account of a connection that has no place yet.
fn knock(control: &Control, who: &Credentials) -> Knock {
    let rules = control.rules();
    Knock::of(&rules, who, rules.admits_status(who))
}

impl Porter {
    /// Serves a new connection, if there is room. Users without any right are told so, in one of a
    /// few places for them. Each connection that is sent away is counted once, a stranger's always
    /// as a stranger's.
    fn admit(&self, control: &Rc<Control>, connection: Connection, who: Credentials) {
        let rules = control.rules();
        let (place, kept, displaced) = if rules.admits_status(&who) {
            let Some(admitted) = self.operators.enter(who.uid, rules.admits_changes(&who)) else {
                control.count_sent(Door::Admin, Sent::Busy);
                return say(control, &who, "an operator is turned away: too many connect at once");
            };
            let Admitted { place, displaced } = admitted;
            (Some(Arc::clone(&place)), place as Kept, displaced)
        } else {
            control.count_sent(Door::Admin, Sent::Stranger);
            let what = "somebody that may not ask for anything connected to the admin socket";
            say(control, &who, what);
            let Some(Admitted { place, displaced }) = self.strangers.enter((), false) else {
                return;
            };
            (None, place as Kept, displaced)
        };
        let stream = settle(control, connection, kept);
        let control = Rc::clone(control);
        tokio::task::spawn_local(async move {
            tokio::select! {
                biased;
                () = control.stopped() => {}
                Ok(()) = displaced => if place.is_some() {
                    control.count_sent(Door::Admin, Sent::Displaced);
                    say(&control, &who, "a silent connection of an operator makes room for \
                        another");
                },
                () = serve(&control, &who, place.as_deref(), stream) => {}
            }
        });
    }
}

/// Moves a connection to the account of its place.
fn settle(control: &Control, mut connection: Connection, place: Kept) -> Stream {
    let account = control.account(FILES_PER_HANDSHAKE, 1, Some(place));
    if let Some(mut room) = account.try_room(1) {
        connection.move_to(&mut room);
    }
    Stream::new(connection, account, ADMIN_TIMEOUT)
}

/// Logs an event that a caller caused.
fn say(control: &Control, who: &Credentials, what: &str) {
    let party = match control.rules().admits_status(who) {
        true => Party::User(who.uid),
        // A user can have many numbers (subordinate ones), so strangers share their log lines.
        false => Party::Others,
    };
    if let Some(left_out) = control.may_say(Cause::Operator, party) {
        tracing::info!(uid = who.uid, pid = who.pid, left_out, "{what}");
    }
}

async fn serve(
    control: &Rc<Control>,
    who: &Credentials,
    place: Option<&Place<u32>>,
    stream: Stream,
) {
    let has_asked = Cell::new(false);
    let service = service_fn(|request| {
        has_asked.set(true);
        respond(control, who, place, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ADMIN_TIMEOUT)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    let Err(error) = connection.await else { return };
    tracing::debug!(%error, "a connection to the admin API ended badly");
    // A stranger is counted already.
    if place.is_none() {
        return;
    }
    if stream::is_unread(&error) {
        control.count_sent(Door::Admin, Sent::Unread);
        say(control, who, "an operator did not take its answer");
    } else if error.is_timeout() && !has_asked.get() {
        control.count_sent(Door::Admin, Sent::Silent);
        say(control, who, "an operator asked nothing in time");
    }
}

async fn respond(
    control: &Rc<Control>,
    who: &Credentials,
    place: Option<&Place<u32>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = routes::route(control, who, request, || {
        if let Some(place) = place {
            place.is_served();
        }
    })
    .await;
    // Until it has taken its answer it counts as silent.
    if let Some(place) = place {
        place.was_served();
    }
    let status = response.status().as_u16();
    tracing::debug!(uid = who.uid, %method, path, status, "admin");
    Ok(response)
}
