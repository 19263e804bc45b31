//! The task of a client: from its Hello until its memory is free again.
//!
//! It handles one request at a time, so a client has at most one open under way. A client that
//! makes a file system hang (its own FUSE, say) holds one thread and its own place.

use std::rc::Rc;
use std::sync::Arc;

use piped_control::fault::OpenFault;
use piped_control::journal::{Cause, Party};
use piped_control::parties::Credentials;
use piped_core::status::Status;
use piped_ring::handshake::fds::ReceiveFault;
use piped_ring::handshake::{
    self, HandshakeFault, Hello, MESSAGE_BYTES_MAX, Reply, Request, Welcome,
};
use tokio::sync::oneshot;

use super::door::Door;
use super::handles::Client;
use super::reasons::{Eviction, HandshakeRefusal};
use super::wanted::{Wanted, check, shards_wanted};
use super::welcome::{FEATURES, Memory, memory_fault};
use crate::arenas::Share;
use crate::closing::{Account, HeldFile};
use crate::control::{Control, Ending, SessionEars};
use crate::limits::HANDSHAKE_TIMEOUT;
use crate::places::Place;

/// A place among the clients without a Hello.
#[derive(Debug)]
pub(super) struct Handshake {
    /// Account that is charged for the client at this place.
    pub(super) account: Arc<Account>,
    pub(super) place: Arc<Place<u32>>,
    /// Resolves when another client needs the place.
    pub(super) displaced: oneshot::Receiver<()>,
}

/// Serves one client to its end.
pub(super) async fn run(
    control: Rc<Control>,
    mut door: Door,
    who: Credentials,
    handshake: Handshake,
) {
    let (uid, pid) = (who.uid, who.pid);
    let Handshake { account, place, displaced } = handshake;
    let said = tokio::select! {
        biased;
        said = receive_hello(&control, &door, &who, &account) => said,
        Ok(()) = displaced => {
            if let Some(left_out) = control.may_say(Cause::Refused, Party::User(uid)) {
                let why = "client gone: it said nothing, and another one needed its place";
                tracing::info!(uid, pid, left_out, "{why}");
            }
            Err(HandshakeRefusal::Displaced)
        }
    };
    let (sequence, hello) = match said {
        Ok(said) => said,
        Err(why) => return control.count_refusal(why),
    };
    place.is_served();
    drop(place);
    // The client may have waited while a reload took its access away.
    if !control.rules().admits_client(&who) {
        control.count_refusal(HandshakeRefusal::Stranger);
        return refuse(&door, sequence, &stranger(uid)).await;
    }
    let slot = match control.session_place(uid) {
        Ok(slot) => slot,
        Err(text) => {
            control.count_refusal(HandshakeRefusal::Sessions);
            return refuse(&door, sequence, &OpenFault::new(Status::WouldBlock, text)).await;
        }
    };
    let wanted = shards_wanted(&hello, &control.config().client);
    let (id, shards, mut ears) = control.enter_session(who.clone(), wanted);
    let home = shards[0];
    let mut client = Client::new(Rc::clone(&control), id, shards, who, slot);
    // From here on the place among the handshakes is free.
    door.move_to(client.files());
    drop(account);
    let granted = check(&hello, &control.config().client)
        .and_then(|wanted| Ok((wanted, client.reserve(wanted.arena_bytes)?)));
    let refused = match granted {
        Err(fault) => Some((HandshakeRefusal::Limits, fault)),
        Ok(granted) => {
            let welcomed =
                welcome(&control, &mut client, &door, sequence, (hello, uid), granted).await;
            welcomed.err().map(|fault| (HandshakeRefusal::Resources, fault))
        }
    };
    match refused {
        None => {
            if let Some(left_out) = control.may_say(Cause::Client, Party::User(uid)) {
                tracing::info!(session = id.0, uid, pid, home, left_out, "client connected");
            }
            serve(&control, &mut client, &door, &mut ears, uid).await;
        }
        Some((why, fault)) => {
            if let Some(left_out) = control.may_say(Cause::Refused, Party::User(uid)) {
                tracing::info!(uid, pid, %fault, left_out, "client refused");
            }
            control.count_refusal(why);
            refuse(&door, sequence, &fault).await;
        }
    }
    // The client sees the end of its socket now.
    door.end();
    let files = Arc::clone(client.files());
    let (memory, place) = client.close().await;
    if let Ok(()) = ears.drained.await
        && let Some(left_out) = control.may_say(Cause::Client, Party::User(uid))
    {
        tracing::info!(session = id.0, uid, left_out, "client gone");
    }
    let hung_up = tokio::select! {
        biased;
        () = door.closed() => true,
        () = std::future::ready(()) => memory.is_empty(),
    };
    if !hung_up {
        // Shared memory stays the client's until it hangs up: its buffers hold data to write, its
        // rings unseen completions. Until then memory and place count as its user's; the session
        // has ended.
        control.leave_session(id);
        tokio::select! {
            () = door.await_hang_up(&files) => {}
            () = control.stopped() => {}
        }
    }
    drop((door, files));
    // An error is the end as well. The place is free when the memory is.
    let _ = control.give_back(memory, Some(place)).await;
    if hung_up {
        control.leave_session(id);
    }
}

/// Refuses a client that is not on the list, in reply to its Hello.
pub(super) async fn refuse_stranger(door: &Door, who: Credentials, account: &Arc<Account>) {
    let uid = who.uid;
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let receive = door.receive(&mut buffer, account);
    let Ok(Ok((length, _))) = tokio::time::timeout(HANDSHAKE_TIMEOUT, receive).await else {
        return;
    };
    let sequence = handshake::sequence(&buffer[..length]).unwrap_or(0);
    refuse(door, sequence, &stranger(uid)).await;
}

fn stranger(uid: u32) -> OpenFault {
    let text = format!("user {uid} may not use this daemon; name it in [access] users or groups");
    OpenFault::new(Status::Denied, text)
}

async fn receive_hello(
    control: &Control,
    door: &Door,
    who: &Credentials,
    account: &Arc<Account>,
) -> Result<(u32, Hello), HandshakeRefusal> {
    let (uid, pid) = (who.uid, who.pid);
    let may_say = || control.may_say(Cause::Refused, Party::User(uid));
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let receive = door.receive(&mut buffer, account);
    let (length, files) = match tokio::time::timeout(HANDSHAKE_TIMEOUT, receive).await {
        Ok(Ok(received)) => received,
        Ok(Err(ReceiveFault::Closed)) => {
            if let Some(left_out) = may_say() {
                tracing::info!(uid, pid, left_out, "client gone before its Hello");
            }
            return Err(HandshakeRefusal::NoHello);
        }
        Ok(Err(fault)) => {
            if let Some(left_out) = may_say() {
                tracing::info!(uid, pid, %fault, left_out, "client gone before its Hello");
            }
            return Err(HandshakeRefusal::Malformed);
        }
        Err(_) => {
            if let Some(left_out) = may_say() {
                tracing::info!(uid, pid, left_out, "client gone: no Hello in time");
            }
            return Err(HandshakeRefusal::NoHello);
        }
    };
    let message = &buffer[..length];
    let fault = match Request::parse(message) {
        Ok((_, Request::Hello(_))) if !files.is_empty() => {
            "Hello takes no file descriptors".to_owned()
        }
        Ok((sequence, Request::Hello(hello))) => return Ok((sequence, hello)),
        Ok(_) => "the first message must be Hello".to_owned(),
        Err(fault) => fault.to_string(),
    };
    if let Some(left_out) = may_say() {
        tracing::info!(uid, pid, fault, left_out, "client refused");
    }
    let sequence = handshake::sequence(message).unwrap_or(0);
    refuse(door, sequence, &OpenFault::new(Status::Invalid, fault)).await;
    Err(HandshakeRefusal::Malformed)
}

async fn refuse(door: &Door, sequence: u32, fault: &OpenFault) {
    // A client that does not listen learns from the end of the socket.
    let _ = door.send(&refusal(fault), sequence, &[]).await;
}

fn refusal(fault: &OpenFault) -> Reply {
    Reply::Refused { status: fault.status, message: fault.text.clone() }
}

/// Makes the memory, passes it to the shards, and then to the client.
async fn welcome(
    control: &Rc<Control>,
    client: &mut Client,
    door: &Door,
    sequence: u32,
    (hello, user): (Hello, u32),
    (wanted, share): (Wanted, Option<Share>),
) -> Result<(), OpenFault> {
    let memory = client.patiently(move |turns| {
        let made = Memory::create(wanted, share, turns);
        let memory = made.map_err(|error| memory_fault(&error))?;
        let fds = memory.fds().map_err(|error| memory_fault(&error))?;
        Ok((memory, fds))
    });
    let (Memory { segments, queues }, fds) = memory.await?;
    client.entries = wanted.entries;
    let features = hello.features & FEATURES;
    client.begin_arena(&segments);
    let made = segments.len() as u32;
    client.rings = queues.iter().map(|queue| queue.memory()).collect();
    client.queues = wanted.queues;
    client.note();
    client.shards().open(&wanted, user, (segments, queues)).await?;
    let welcome = Welcome {
        features,
        session: client.id.0,
        segments: made,
        queues: wanted.queues,
        shard_cpu: client.shards().cpu(),
        client_spin_ns: control.spin.client_ns,
        deadline_default_ns: control.config().client.deadline_default.nanos(),
    };
    door.send(&Reply::Welcome(welcome), sequence, &fds).await.map_err(|error| {
        OpenFault::new(Status::Closed, format!("the client did not take its Welcome ({error})"))
    })
}

/// Answers requests until the client leaves, is evicted, or the daemon stops.
async fn serve(
    control: &Rc<Control>,
    client: &mut Client,
    door: &Door,
    ears: &mut SessionEars,
    uid: u32,
) {
    let session = client.id.0;
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    loop {
        let received = tokio::select! {
            biased;
            why = &mut ears.ended => return log_ending(control, session, uid, why),
            () = control.stopped() => return,
            received = door.receive(&mut buffer, client.files()) => received,
        };
        let (length, files) = match received {
            Ok(received) => received,
            Err(ReceiveFault::Closed) => return,
            Err(fault) => {
                say_evicted(control, session, uid, &fault);
                control.count_eviction(Eviction::from(&fault));
                return;
            }
        };
        let (sequence, request) = match parse(&buffer[..length], &files) {
            Ok(parsed) => parsed,
            Err(fault) => {
                say_evicted(control, session, uid, &fault);
                control.count_eviction(Eviction::from(&fault));
                let sequence = handshake::sequence(&buffer[..length]).unwrap_or(0);
                let fault = OpenFault::new(Status::Invalid, fault.to_string());
                return refuse(door, sequence, &fault).await;
            }
        };
        let reply = tokio::select! {
            biased;
            why = &mut ears.ended => return log_ending(control, session, uid, why),
            () = control.stopped() => return,
            () = door.closed() => return,
            reply = client.handle(request, files) => reply,
        };
        let (reply, fds) = reply.unwrap_or_else(|fault| (refusal(&fault), Vec::new()));
        if let Err(error) = door.send(&reply, sequence, &fds).await {
            if error.kind() == std::io::ErrorKind::TimedOut {
                control.count_eviction(Eviction::Deaf);
            }
            if let Some(left_out) = control.may_say(Cause::Client, Party::User(uid)) {
                let why = "client gone: it does not take its replies";
                tracing::info!(session, uid, %error, left_out, "{why}");
            }
            return;
        }
    }
}

fn parse(message: &[u8], files: &[HeldFile]) -> Result<(u32, Request), HandshakeFault> {
    let (sequence, request) = Request::parse(message)?;
    request.check_fds(files)?;
    Ok((sequence, request))
}

fn say_evicted(control: &Control, session: u32, uid: u32, reason: &dyn std::fmt::Display) {
    if let Some(left_out) = control.may_say(Cause::Evicted, Party::User(uid)) {
        tracing::warn!(session, uid, %reason, left_out, "client evicted");
    }
}

fn log_ending(
    control: &Control,
    session: u32,
    uid: u32,
    why: Result<Ending, tokio::sync::oneshot::error::RecvError>,
) {
    match why.unwrap_or_else(|_| Ending::Evicted("its shard is gone".to_owned())) {
        Ending::Evicted(reason) => say_evicted(control, session, uid, &reason),
        Ending::TakenBack(reason) => {
            if let Some(left_out) = control.may_say(Cause::Client, Party::User(uid)) {
                tracing::info!(session, uid, reason, left_out, "client ended");
            }
        }
    }
}
