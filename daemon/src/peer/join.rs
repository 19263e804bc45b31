//! A node joins the cluster at one that signs, or has its certificate renewed there.
//!
//! ```text
//!   joins                                                   signs
//!     preamble │ ticket │ e, es, s, ss                 ──►  for this node? decrypts?
//!     state ◄── e, ee, se                              ◄──
//!     name, secret of a token or certificate, sealed   ──►  may it have that name?
//!     ◄── certificate and keys of the cluster, or why not, sealed
//! ```
//!
//! It is the handshake of a lane with another preamble, so that neither is taken for the other. The
//! token names the key of the node that signs: whoever is in between learns nothing, and can give
//! nothing. The secret comes with the first word that proves that the caller is there now.

use std::rc::Rc;
use std::time::Duration;

use piped_config::{NodeKey, PublicKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use snow::TransportState;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::greet::GreetingFault;
use super::noise::{ANSWER_BYTES, FIRST_BYTES, HandshakeFault, Joining, welcome};
use crate::cluster::issue::{self, Joined, Request};
use crate::control::Control;

/// How long joining may take, as those see it that join.
pub(crate) const TIME: Duration = Duration::from_secs(10);

/// Longest word of either side: the list of revoked keys is the longest part.
const WORD_BYTES_MAX: usize = 48 << 10;
const TAG_BYTES: usize = 16;
/// Most letters of what a stranger says that are logged.
const SHOWN_MAX: usize = 240;

/// What the node that signs answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Joined(Box<Joined>),
    Refused(String),
}

/// Serves a node that joins. What it gets is its own affair: it comes again as a member.
pub(super) async fn serve(
    control: &Rc<Control>,
    stream: &mut TcpStream,
    own: &NodeKey,
) -> Result<(), GreetingFault> {
    let mut first = [0; FIRST_BYTES];
    stream.read_exact(&mut first).await?;
    let (mut state, key, answer) = welcome(own, &first)?;
    stream.write_all(&answer).await?;
    let request: Request = read(stream, &mut state).await?;
    let name = request.name.clone();
    let answer = match issue::issue(control, key, request).await {
        Ok(joined) => Answer::Joined(Box::new(joined)),
        Err(why) => {
            // A stranger chose them.
            let clipped = |text: &str| text.chars().take(SHOWN_MAX).collect::<String>();
            let reason = format!("it wanted to join as {}: {}", clipped(&name), clipped(&why));
            control.journal_stranger(stream.peer_addr()?.ip(), &piped_text::shown(&reason));
            Answer::Refused(why)
        }
    };
    write(stream, &mut state, &answer).await
}

/// Asks the node of this key, which listens there, for a certificate.
///
/// # Errors
/// Why there is none, in words.
pub(crate) async fn ask(
    own: &NodeKey,
    issuer: PublicKey,
    at: &str,
    request: &Request,
) -> Result<Joined, String> {
    let words = |error: GreetingFault| format!("{at}: {error}");
    let connected = TcpStream::connect(at).await;
    let mut stream = connected.map_err(|error| format!("{at} cannot be reached: {error}"))?;
    let answer = async {
        let (joining, first) = Joining::begin(own, issuer);
        stream.write_all(&first).await?;
        let mut answer = [0; ANSWER_BYTES];
        stream.read_exact(&mut answer).await?;
        let mut state = joining.finish(&answer)?;
        write(&mut stream, &mut state, request).await?;
        read(&mut stream, &mut state).await
    };
    match answer.await {
        Ok(Answer::Joined(joined)) => Ok(*joined),
        Ok(Answer::Refused(why)) => Err(format!("{at} refuses: {why}")),
        Err(GreetingFault::Gone(_)) => Err(format!(
            "{at} hung up: it does not have the key that the token names, does not sign, or is \
             busy; its log says which"
        )),
        Err(error) => Err(words(error)),
    }
}

async fn write(
    stream: &mut TcpStream,
    state: &mut TransportState,
    word: &impl Serialize,
) -> Result<(), GreetingFault> {
    let word = zeroize::Zeroizing::new(serde_json::to_vec(word).unwrap_or_default());
    let mut sealed = vec![0; word.len() + TAG_BYTES];
    let length = state.write_message(&word, &mut sealed).map_err(|_| HandshakeFault::Forged)?;
    let head = u16::try_from(length).map_err(|_| HandshakeFault::Forged)?;
    stream.write_u16_le(head).await?;
    Ok(stream.write_all(&sealed[..length]).await?)
}

async fn read<T: DeserializeOwned>(
    stream: &mut TcpStream,
    state: &mut TransportState,
) -> Result<T, GreetingFault> {
    let length = usize::from(stream.read_u16_le().await?);
    if length > WORD_BYTES_MAX + TAG_BYTES {
        return Err(HandshakeFault::Forged.into());
    }
    let mut sealed = vec![0; length];
    stream.read_exact(&mut sealed).await?;
    let mut word = zeroize::Zeroizing::new(vec![0; length]);
    let length = state.read_message(&sealed, &mut word).map_err(|_| HandshakeFault::Forged)?;
    Ok(serde_json::from_slice(&word[..length]).map_err(|_| HandshakeFault::Version)?)
}
