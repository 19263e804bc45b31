//! Signing for others: nodes that join or renew, and keys that are revoked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use piped_config::{
    Cluster, ClusterKey, NodeCertificate, PublicKey, Revocations, SigningKey, Sources, Subject,
    UnixTime, check_node_name,
};
use piped_control::journal::{Cause, Party};
use piped_control::keyring::Identity;
use piped_control::tokens::Digest;
use serde::{Deserialize, Serialize};

use super::{files, keep, take_revocations};
use crate::control::Control;
use crate::io::clock;
use crate::kept;

/// What a node asks of one that signs.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// The name that the node gives itself.
    pub(crate) name: String,
    /// The secret of a token, as its bytes, of a node that joins.
    #[serde(default)]
    pub(crate) token: Option<Vec<u8>>,
    /// The certificate that it has, of a node that renews.
    #[serde(default)]
    pub(crate) own: Option<NodeCertificate>,
}

/// What a node gets that joins.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Joined {
    /// Certificate that was signed for the node.
    pub(crate) certificate: NodeCertificate,
    /// Keys that sign for the cluster.
    pub(crate) keys: Vec<ClusterKey>,
    /// The list of revoked keys, if there is one.
    #[serde(default)]
    pub(crate) revocations: Option<String>,
}

/// The digest by which a token is found.
pub(crate) fn digest(secret: &[u8]) -> Digest {
    blake3::derive_key("piped cluster 1: secret of a token", secret)
}

/// Where the cluster's private key is, on a node that signs.
pub(crate) fn signing_key_path(control: &Control) -> Option<PathBuf> {
    let main_file = control.reload.sources().map(Sources::main_file);
    control.config().cluster.signing_key_path(main_file)
}

/// The cluster's private key. It is read for each signature, and stays nowhere.
async fn signing_key(control: &Control) -> Result<SigningKey, String> {
    let path = signing_key_path(control);
    let path = path.ok_or("this node does not sign: see signing_key_file in [cluster]")?;
    let read = tokio::task::spawn_blocking(move || SigningKey::read(&path)).await;
    let key = read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let trusted = control.config().cluster.keys.contains(&key.public());
    match trusted {
        true => Ok(key),
        false => Err("signing_key_file is not the private half of a key in [cluster]".to_owned()),
    }
}

/// Signs for a node that has proved this key, if it may have what it asks for.
///
/// # Errors
/// Why not, in words that a stranger may read.
pub(crate) async fn issue(
    control: &Rc<Control>,
    key: PublicKey,
    request: Request,
) -> Result<Joined, String> {
    check_node_name(&request.name)?;
    // First, for it costs nothing.
    groups_of(control, key, &request, clock::times().calendar)?;
    if let Some(own) = request.own.as_ref().filter(|own| is_early(own)) {
        // It has no use for another one yet, and may not make work.
        let joined = Joined { certificate: own.clone(), keys: Vec::new(), revocations: None };
        return Ok(joined);
    }
    let by = signing_key(control).await.map_err(|error| {
        if let Some(left_out) = control.may_say(Cause::Stranger, Party::Others) {
            tracing::warn!(error, left_out, "a node wants a certificate, and none can be signed");
        }
        "it does not sign, or cannot read the cluster's key; its log says why".to_owned()
    })?;
    let now = clock::times().calendar;
    let groups = groups_of(control, key, &request, now)?;
    let validity = control.config().cluster.validity;
    let subject = Subject::new((key, &request.name), groups, now, validity);
    let certificate = NodeCertificate::issue(subject, &by)?;
    let keyring = control.keyring();
    let identity = keyring.identity().ok_or("the node that signs has no key")?;
    identity.check(&certificate, now).map_err(|why| why.to_string())?;
    let before = control.desk.book().borrow().find(&request.name, now).cloned();
    control.desk.book().borrow_mut().enter(&certificate, now)?;
    // The use counts from here on, whether the node hears of it or not: with another token it can
    // have its certificate again.
    if let Some(secret) = request.token.as_deref().map(digest) {
        control.desk.tokens().borrow_mut().take(&secret);
    }
    let is_kept = keep(control, files::BOOK, |control| control.desk.book().borrow().text()).await;
    if !is_kept && kept::directory(&control.config()).is_some() {
        control.desk.book().borrow_mut().restore(&request.name, before);
        return Err("the node that signs cannot write down what it signs".to_owned());
    }
    tracing::info!(node = request.name, %key, "a certificate was signed");
    let keys = identity.cluster().to_vec();
    let revocations = identity.revocations().map(|list| list.to_string());
    Ok(Joined { certificate, keys, revocations })
}

/// Whether a certificate is to be renewed that counts for more than half of its time still.
fn is_early(own: &NodeCertificate) -> bool {
    let (subject, now) = (own.subject(), clock::times().calendar);
    subject.until.since(now) > subject.until.since(subject.from) / 2
}

/// The groups that a node has a right to, if it has a right to the name.
fn groups_of(
    control: &Control,
    key: PublicKey,
    request: &Request,
    now: UnixTime,
) -> Result<Vec<String>, String> {
    let keyring = control.keyring();
    let identity = keyring.identity().ok_or("the node that signs has no key")?;
    if identity.has_revoked(&key) {
        return Err("this key was revoked: make another with `pipectl keys generate`".to_owned());
    }
    let book = control.desk.book().borrow();
    let line = book.find(&request.name, now);
    let groups = match (&request.token, &request.own) {
        (Some(secret), _) => {
            let mut tokens = control.desk.tokens().borrow_mut();
            let token = tokens.find(&digest(secret), &request.name, clock::now());
            token.map_err(|fault| fault.to_string())?.groups
        }
        (None, Some(own)) => {
            identity.check(own, now).map_err(|why| format!("what is to be renewed: {why}"))?;
            let subject = own.subject();
            if subject.key != key || subject.name != request.name {
                return Err("what is to be renewed is another node's".to_owned());
            }
            // What the node shows may be older than what it was given last.
            let given = line.filter(|line| line.key == key).map(|line| &line.groups);
            given.unwrap_or(&subject.groups).clone()
        }
        (None, None) => return Err("neither a token nor a certificate came with it".to_owned()),
    };
    let core = control.core.borrow();
    let seen = core.members().certificate(&request.name).map(|it| it.subject().key);
    let holder = line.map(|line| line.key).or(seen);
    let is_own = request.name == control.node && key != identity.own().public();
    if is_own || holder.is_some_and(|holder| holder != key) {
        return Err(format!(
            "the name `{0}` belongs to another key; choose another name, or if that node is gone: \
             pipectl cluster revoke {0}",
            request.name
        ));
    }
    Ok(groups)
}

/// Revokes the key of a node, named by its name or its key: the key, and the list.
///
/// # Errors
/// There is no such node, or no list can be signed.
pub(crate) async fn revoke(
    control: &Rc<Control>,
    node: &str,
) -> Result<(PublicKey, Revocations), String> {
    let by = signing_key(control).await?;
    let times = clock::times();
    let key = match node.parse::<PublicKey>() {
        Ok(key) => key,
        Err(_) => key_of(control, node).ok_or_else(|| {
            format!("no node `{node}` is known here; revoke it by its key (`pipectl keys show`)")
        })?,
    };
    let keyring = control.keyring();
    let identity = keyring.identity().ok_or("this node has no key")?;
    if key == identity.own().public() {
        return Err("that is the key of this node, which signs: let another one revoke it".into());
    }
    let mut keys = identity.revoked_now(times.calendar);
    // Of a key that this node did not sign it is not known for how long somebody did.
    let signed = control.desk.book().borrow().name_of(&key).is_some();
    let longest = if signed { control.config().cluster.validity } else { Cluster::VALIDITY_MAX };
    let until = times.calendar.after(longest).max(known_until(control, &key).unwrap_or_default());
    let known = keys.entry(key).or_insert(until);
    *known = (*known).max(until);
    let list = sign_list(identity, keys, &by)?;
    if !take_revocations(control, list.clone()).await {
        return Err("the list of revoked keys changed meanwhile; try again".to_owned());
    }
    control.desk.book().borrow_mut().strike(&key);
    keep(control, files::BOOK, |control| control.desk.book().borrow().text()).await;
    Ok((key, list))
}

/// A list of these keys that is later than all that were seen.
fn sign_list(
    identity: &Identity,
    keys: BTreeMap<PublicKey, UnixTime>,
    by: &SigningKey,
) -> Result<Revocations, String> {
    // At least the calendar's seconds: a node that signs may have lost its state.
    let last = identity.revocations().map_or(0, |list| list.number());
    Revocations::issue(last.saturating_add(1).max(clock::times().calendar.0), keys, by)
}

/// Two nodes that sign may not have heard of each other's lists: on one of them, a list of all keys
/// that are known to be revoked. None where the list says all, or this node does not sign.
pub(super) async fn joined_list(control: &Rc<Control>) -> Option<Revocations> {
    let keyring = control.keyring();
    let now = clock::times().calendar;
    let identity = keyring.identity().filter(|identity| !identity.tells_all(now))?;
    signing_key_path(control)?;
    let by = signing_key(control).await.ok()?;
    sign_list(identity, identity.revoked_now(now), &by).ok()
}

fn key_of(control: &Control, node: &str) -> Option<PublicKey> {
    let now = clock::times().calendar;
    let signed = control.desk.book().borrow().find(node, now).map(|line| line.key);
    let core = control.core.borrow();
    signed.or_else(|| core.members().certificate(node).map(|it| it.subject().key))
}

/// The end of the last certificate that is known of a key.
fn known_until(control: &Control, key: &PublicKey) -> Option<UnixTime> {
    let core = control.core.borrow();
    let mut seen = core.members().iter().map(NodeCertificate::subject);
    let seen = seen.find(|subject| subject.key == *key).map(|subject| subject.until);
    let book = control.desk.book().borrow();
    let signed = book.name_of(key).and_then(|name| book.find(name, UnixTime(0)));
    seen.max(signed.map(|line| line.until))
}
