//! Handshakes over sockets, on the control thread: no shard hears of a node before it has proved
//! who it is.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use piped_config::{CERTIFICATE_BYTES_MAX, NodeCertificate, PublicKey};
use piped_control::greeting::Unwelcome;
use piped_control::keyring::{Admitted, Identity, Keyring};
use piped_engine::command::{Caller, Crowded, Origin, Standing};
use piped_wire::LaneKeys;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::join;
use super::noise::{
    ANSWER_BYTES, Answered, At, Beginning, CONFIRMATION_BYTES, Dialled, FIRST_BYTES, HEAD_BYTES,
    HandshakeFault, Proof, beginning, has_length, question, sealed_length,
};
use crate::control::Control;
use crate::io::clock;
use crate::io::far_end::far_end;
use crate::limits::GREETING_TIME;

/// Bytes by which a handshake is told from a frame.
const BEGINNING_BYTES: usize = 8;

/// How often to look whether more of them came: they come in one packet or from somebody who plays.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How the greeting of an accepted connection ended. After [`Self::Proven`], it is a connection of
/// a known node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Greeting {
    /// The other side proved its identity by a key.
    Proven,
    /// The other side's address has had too many failed attempts, or too many are under way.
    Busy,
    /// The other side sent nothing more in time, or closed the connection.
    Silent,
    /// The connection is plain, and only nodes with keys are admitted from its network.
    Plain,
    /// The other side began no handshake of this version.
    Version,
    /// The other side knows another key of this node, or none.
    Ticket,
    /// The other side could not prove its key.
    Forged,
    /// The other side proved a key that is not trusted.
    Untrusted,
    /// The other side repeated a handshake of somebody else.
    Repeated,
    /// The connection is plain, and belongs to a user of this machine whom `[access]` does not
    /// admit.
    User,
    /// The connection is plain and from this machine, and no user holds its other end.
    Nobody,
    /// The connection is plain, and its address or user has its share of such connections.
    Share,
    /// There are as many connections or nodes as there may be.
    Full,
    /// There is no staging for another connection.
    Staging,
    /// The connection had no work, and another one needed its place.
    Displaced,
}

impl Greeting {
    /// All outcomes, each at the index of its number.
    pub(crate) const ALL: [Self; 15] = [
        Self::Proven,
        Self::Busy,
        Self::Silent,
        Self::Plain,
        Self::Version,
        Self::Ticket,
        Self::Forged,
        Self::Untrusted,
        Self::Repeated,
        Self::User,
        Self::Nobody,
        Self::Share,
        Self::Full,
        Self::Staging,
        Self::Displaced,
    ];

    /// The outcome as metrics and JSON name it.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Busy => "busy",
            Self::Silent => "silent",
            Self::Plain => "plain",
            Self::Version => "version",
            Self::Ticket => "ticket",
            Self::Forged => "forged",
            Self::Untrusted => "untrusted",
            Self::Repeated => "repeated",
            Self::User => "user",
            Self::Nobody => "nobody",
            Self::Share => "share",
            Self::Full => "full",
            Self::Staging => "staging",
            Self::Displaced => "displaced",
        }
    }
}

impl From<Crowded> for Greeting {
    fn from(why: Crowded) -> Self {
        match why {
            Crowded::Share => Self::Share,
            Crowded::Full => Self::Full,
            Crowded::Staging => Self::Staging,
            Crowded::Displaced => Self::Displaced,
        }
    }
}

/// What the log tells an operator about a connection that found no place, by its standing.
pub(crate) const fn advice(why: Crowded, standing: Standing) -> &'static str {
    match why {
        Crowded::Full if matches!(standing, Standing::Proven) => {
            "there are as many lanes or nodes as there may be, and all of them work; it tries again"
        }
        Crowded::Share => {
            "its address or user has its share of plain lanes, and all of them work; nodes with \
             keys have no such bound: `pipectl keys generate` there, `pipectl keys trust` here"
        }
        Crowded::Full => {
            "there are as many lanes or nodes as there may be, and all of them work; some are kept \
             for nodes with keys: `pipectl keys generate` there, `pipectl keys trust` here"
        }
        Crowded::Staging => {
            "there is no staging for another lane; raise it: `pipectl limits set \
             global.staging=SIZE --persist`"
        }
        Crowded::Displaced => {
            "it had nothing to do, and another one needed its place; it connects again when it is \
             used"
        }
    }
}

/// Number of connections by the outcome of their greeting.
pub(crate) type Greetings = [u64; Greeting::ALL.len()];

/// Why an accepted connection is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum GreetingFault {
    #[error(transparent)]
    Unwelcome(#[from] Unwelcome),
    #[error(
        "its lane is plain, and the kernel cannot be asked whether a user of this machine has it \
         ({0}); the unit needs AF_NETLINK in RestrictAddressFamilies="
    )]
    Unasked(io::Error),
    #[error("it said nothing in time")]
    Late,
    #[error(
        "the connection ended before the handshake ({0}): the other node does not trust this one's \
         key, has another key than [peers] says here, has none, or is busy; its log and its \
         `pipectl status` say which"
    )]
    Gone(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeFault),
}

impl GreetingFault {
    pub(super) fn outcome(&self) -> Greeting {
        match self {
            Self::Unwelcome(Unwelcome::Plain) => Greeting::Plain,
            Self::Unwelcome(Unwelcome::User(_)) => Greeting::User,
            Self::Unwelcome(Unwelcome::Reloaded | Unwelcome::Crowd) => Greeting::Busy,
            Self::Unwelcome(Unwelcome::Nobody) | Self::Unasked(_) => Greeting::Nobody,
            Self::Late | Self::Gone(_) => Greeting::Silent,
            Self::Handshake(fault) => match fault {
                HandshakeFault::Version | HandshakeFault::Weak => Greeting::Version,
                HandshakeFault::Ticket => Greeting::Ticket,
                HandshakeFault::Forged => Greeting::Forged,
                HandshakeFault::Untrusted(..) => Greeting::Untrusted,
                HandshakeFault::Repeated => Greeting::Repeated,
            },
        }
    }
}

/// Proves who we are to a peer that was dialled, and has it prove who it is. `shard`: the one that
/// asked for the connection.
pub(super) async fn dialled(
    stream: &mut TcpStream,
    identity: &Identity,
    (peer, shows): (PublicKey, bool),
    shard: usize,
) -> Result<LaneKeys, GreetingFault> {
    let shown = identity.certificate().filter(|_| shows).map(NodeCertificate::to_bytes);
    let (shown, wish) = (shown.unwrap_or_default(), identity.protection());
    let (dialled, first) = Dialled::begin(identity.own(), peer, wish, shard, &shown);
    stream.write_all(&first).await?;
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).await?;
    let (keys, confirmation) = dialled.finish(&answer)?;
    stream.write_all(&confirmation).await?;
    Ok(keys)
}

/// Asks the other side for its certificate, before anything else is said: its bytes, none if it has
/// none.
pub(super) async fn ask(stream: &mut TcpStream) -> Result<Vec<u8>, GreetingFault> {
    stream.write_all(&question()).await?;
    let length = usize::from(stream.read_u16_le().await?);
    if length > CERTIFICATE_BYTES_MAX {
        return Err(HandshakeFault::Version.into());
    }
    let mut shown = vec![0; length];
    stream.read_exact(&mut shown).await?;
    Ok(shown)
}

/// Shows a certificate to a caller that asks for it.
async fn show(stream: &mut TcpStream, identity: &Identity) -> Result<(), GreetingFault> {
    let mut asked = [0; BEGINNING_BYTES];
    stream.read_exact(&mut asked).await?;
    let shown = identity.certificate().map(NodeCertificate::to_bytes).unwrap_or_default();
    // A certificate is shorter than that can say.
    stream.write_u16_le(shown.len() as u16).await?;
    Ok(stream.write_all(&shown).await?)
}

/// Finds out who connected, in [`GREETING_TIME`]. What comes back holds until the next await: a
/// reload may change whom to trust.
pub(super) async fn accepted(
    control: &Rc<Control>,
    stream: &mut TcpStream,
    from: IpAddr,
    origin: Origin,
) -> Result<Met, GreetingFault> {
    let keyring = control.keyring();
    let greeting = tokio::time::timeout(GREETING_TIME, who_is(control, &keyring, stream, from));
    let met = greeting.await.unwrap_or(Err(GreetingFault::Late))?;
    let Some((caller, keys, shown)) = met else { return Ok(None) };
    let member = shown.as_ref().map(|it| it.subject().name.clone());
    let proof = (&keyring, shown);
    control.decide(|core, now| core.come_in(&caller, proof, origin, now))?;
    // What a new certificate changes is told before the connection is.
    control.tell_shards().await;
    // A reload may have come in between, or the end of its certificate.
    let counts =
        member.is_none_or(|name| control.core.borrow().members().certificate(&name).is_some());
    match counts && Rc::ptr_eq(&keyring, &control.keyring()) {
        true => Ok(Some((caller, keys))),
        false => Err(Unwelcome::Reloaded.into()),
    }
}

/// The party at the other end, and the connection's keys if it has any; none of a node that joined.
type Met = Option<(Caller, Option<LaneKeys>)>;

/// The same, with the certificate that the party showed.
type Shown = Option<(Caller, Option<LaneKeys>, Option<NodeCertificate>)>;

async fn who_is(
    control: &Rc<Control>,
    keyring: &Keyring,
    stream: &mut TcpStream,
    from: IpAddr,
) -> Result<Shown, GreetingFault> {
    let plain = |caller| Some((caller, None, None));
    let Some(identity) = keyring.identity() else {
        return unproven(control, stream, from).map(plain);
    };
    let mut begun = beginning(&first_bytes(stream).await?);
    if begun == Beginning::Asks {
        show(stream, identity).await?;
        begun = beginning(&first_bytes(stream).await?);
    }
    match begun {
        Beginning::Handshake => {}
        Beginning::Plain => return unproven(control, stream, from).map(plain),
        Beginning::Joins => {
            join::serve(control, stream, identity.own()).await?;
            return Ok(None);
        }
        // Once is enough.
        Beginning::Asks => return Err(HandshakeFault::Version.into()),
    }
    let first = first_message(stream).await?;
    let (answered, answer) = Answered::begin(&At::new(identity, clock::times().calendar), &first)?;
    stream.write_all(&answer).await?;
    let mut confirmation = [0; CONFIRMATION_BYTES];
    stream.read_exact(&mut confirmation).await?;
    let Proof { admitted, shard, keys } = answered.finish(&confirmation)?;
    let Admitted { node, certificate } = admitted;
    Ok(Some((Caller::Proven { node, shard }, Some(keys), certificate)))
}

/// The first message of a handshake, whole.
async fn first_message(stream: &mut TcpStream) -> Result<Vec<u8>, GreetingFault> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).await?;
    let mut first = head.to_vec();
    let mut left = FIRST_BYTES - HEAD_BYTES;
    if has_length(&head) {
        let mut length = [0; 2];
        stream.read_exact(&mut length).await?;
        first.extend(length);
        left = sealed_length(length).ok_or(HandshakeFault::Version)?;
    }
    let start = first.len();
    first.resize(start + left, 0);
    stream.read_exact(&mut first[start..]).await?;
    Ok(first)
}

/// One that proves nothing: it is admitted by its network, and from this machine by its user.
fn unproven(control: &Control, stream: &TcpStream, from: IpAddr) -> Result<Caller, GreetingFault> {
    let core = control.core.borrow();
    // First, for it asks the kernel nothing.
    core.check_plain(from)?;
    let (near, far) = (stream.local_addr()?, stream.peer_addr()?);
    let held = far_end(near, far).map_err(GreetingFault::Unasked)?;
    Ok(core.meet_plain(from, held)?)
}

/// The first bytes of a stream, which stay in it: a shard reads a plain one's frames from the
/// beginning.
async fn first_bytes(stream: &TcpStream) -> io::Result<[u8; BEGINNING_BYTES]> {
    let mut bytes = [0; BEGINNING_BYTES];
    loop {
        match stream.peek(&mut bytes).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            BEGINNING_BYTES => return Ok(bytes),
            _ => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}
