//! What this node has of its cluster, in files and over time: its certificate, which is renewed,
//! the list of revoked keys, and, on a node that signs, what it has signed.
//!
//! ```text
//!   start, reload:  files ─► keyring
//!   each second:    whose certificates ended? mine soon? ─► sign, or ask the issuer ─► file
//!   a node joins:   token ─► issue ─► book ─► certificate
//! ```

mod book;
mod files;
pub(crate) mod issue;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use piped_config::{Cluster, Config, NodeCertificate, Revocations};
use piped_control::keyring::Keyring;
use piped_control::tokens::Tokens;
use piped_core::units::Nanos;
use piped_text::shown;
use tokio::sync::{Mutex, OwnedMutexGuard};

pub(crate) use self::book::Book;
pub(crate) use self::files::{CertificateNews, read_book, with_files};
use self::issue::Request;
use crate::control::Control;
use crate::io::clock;
use crate::kept;
use crate::peer::join;

/// How often it is looked whether a certificate has ended, or is to be renewed.
const TICK: Duration = Duration::from_secs(1);

/// Before a renewal is tried again that failed, at least and at most.
const RETRY: [u64; 2] = [10, 3600];

/// What was tried of a renewal.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    /// When it may be tried again.
    next: Nanos,
    trouble: Option<String>,
}

/// What a node has of its cluster beside its keys: what it signed, tokens, and its own renewal.
#[derive(Debug)]
pub(crate) struct Desk {
    book: RefCell<Book>,
    tokens: RefCell<Tokens>,
    renewal: RefCell<Renewal>,
    /// Held by the caller that writes files of the state.
    turn: Arc<Mutex<()>>,
}

impl Desk {
    pub(crate) fn new(book: Book) -> Self {
        let (tokens, renewal) = (RefCell::default(), RefCell::default());
        Self { book: RefCell::new(book), tokens, renewal, turn: Arc::default() }
    }

    /// Names that this node has signed, where it signs.
    pub(crate) const fn book(&self) -> &RefCell<Book> {
        &self.book
    }

    /// Tokens with which nodes join.
    pub(crate) const fn tokens(&self) -> &RefCell<Tokens> {
        &self.tokens
    }

    /// What was tried of a renewal of the certificate.
    pub(crate) const fn renewal(&self) -> &RefCell<Renewal> {
        &self.renewal
    }

    async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }
}

impl Renewal {
    /// Why the last one failed, if it did.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

/// Has nodes leave whose certificates end, for as long as the daemon runs.
pub(crate) async fn watch(control: Rc<Control>) {
    while runs_on(&control).await {
        if control.keyring().has_cluster() {
            check(&control).await;
        }
    }
}

/// Waits until it is to be looked again; `false` if the daemon stops.
async fn runs_on(control: &Control) -> bool {
    tokio::select! {
        () = control.stopped() => false,
        () = tokio::time::sleep(TICK) => true,
    }
}

/// Renews what is to be renewed, for as long as the daemon runs.
pub(crate) async fn renewing(control: Rc<Control>) {
    while runs_on(&control).await {
        if is_due(&control) {
            renew(&control).await;
        }
        if has_none(&control) {
            find(&control).await;
        }
    }
}

/// Whether this node has no certificate that counts, and it is time to look for one.
fn has_none(control: &Control) -> bool {
    let (keyring, times) = (control.keyring(), clock::times());
    let is_due = control.desk.renewal().borrow().next <= times.now;
    let counts = |own: &NodeCertificate| own.check_time(times.calendar).is_ok();
    let own = keyring.identity().and_then(|it| it.certificate());
    is_due && keyring.has_cluster() && !own.is_some_and(counts)
}

/// Looks into the files again: the calendar may be right by now, or somebody has signed.
async fn find(control: &Rc<Control>) {
    let (config, keyring) = (control.config(), control.keyring());
    let (config, keyring) = (Config::clone(&config), Keyring::clone(&keyring));
    let main_file = control.reload.sources().map(|sources| sources.main_file().to_owned());
    let read = move || Ok(with_files(keyring, &config, main_file.as_deref()).0);
    let found = kept::in_time(read).await.ok();
    let found = found.as_ref().and_then(Keyring::identity).and_then(|it| it.certificate());
    if let Some(found) = found.cloned() {
        tracing::info!("this node has a certificate that counts");
        control.decide(|core, _| core.certify_self(found));
        control.tell_shards().await;
    }
    control.desk.renewal().borrow_mut().next = clock::now() + Nanos::from_millis(RETRY[0] * 1000);
}

/// Has nodes leave whose certificates count no more.
async fn check(control: &Rc<Control>) {
    let gone = control.decide(|core, _| {
        let gone = core.check_members(clock::times());
        core.settle(clock::times());
        gone
    });
    say_gone(&gone);
    control.tell_shards().await;
}

/// Writes to the log that nodes have to leave.
pub(crate) fn say_gone(nodes: &[String]) {
    for node in nodes {
        tracing::warn!(node, "its certificate counts no more: it expired, or was revoked");
    }
}

/// Takes a list of revoked keys. `false`: it is not of this cluster, or no later than the one that
/// there is.
pub(crate) async fn take_revocations(control: &Rc<Control>, list: Revocations) -> bool {
    let (number, keys) = (list.number(), list.keys().len());
    let taken = control.decide(|core, _| core.hear_revocations(list, clock::times()));
    let Some(gone) = taken else { return false };
    tracing::info!(number, keys, "a list of revoked keys was taken");
    say_gone(&gone);
    control.tell_shards().await;
    let told = |control: &Control| {
        let keyring = control.keyring();
        let list = keyring.identity().and_then(|identity| identity.revocations().cloned());
        list.map(|list| list.to_string()).unwrap_or_default()
    };
    keep(control, files::REVOCATIONS, told).await;
    // It has all keys, so this ends here.
    if let Some(all) = issue::joined_list(control).await {
        Box::pin(take_revocations(control, all)).await;
    }
    true
}

/// Writes a file of the state, with what is so when it has its turn. A node without a place for it
/// hears of it again.
async fn keep(
    control: &Control,
    name: &'static str,
    text: impl FnOnce(&Control) -> String,
) -> bool {
    // One that is given up has the turn until it has ended.
    let turn = control.desk.turn().await;
    let text = text(control);
    let Err(error) = files::write(&control.config(), name, text, turn).await else { return true };
    tracing::warn!(file = name, %error, "node.state_dir: not kept over a restart");
    false
}

fn is_due(control: &Control) -> bool {
    let times = clock::times();
    let keyring = control.keyring();
    let own = keyring.identity().and_then(|identity| identity.certificate());
    own.is_some_and(|own| own.subject().is_in_last_third(times.calendar))
        && control.desk.renewal().borrow().next <= times.now
}

async fn renew(control: &Rc<Control>) {
    let keyring = control.keyring();
    let Some(own) = keyring.identity().and_then(|it| it.certificate()).cloned() else { return };
    let left = own.subject().until.since(clock::times().calendar);
    let renewed = ask(control, &own).await;
    let mut renewal = Renewal::default();
    match renewed {
        Ok(certificate) => {
            let until = certificate.subject().until.0;
            tracing::info!(until, "the certificate of this node was renewed");
            let text = certificate.to_string();
            control.decide(|core, _| core.certify_self(certificate));
            control.tell_shards().await;
            keep(control, Cluster::CERTIFICATE_FILE, |_| text).await;
        }
        Err(why) => {
            let seconds = (left / 20).clamp(RETRY[0], RETRY[1]);
            renewal.next = clock::now() + Nanos::from_millis(seconds * 1000);
            let why = shown(&why).into_owned();
            tracing::warn!(why, seconds_left = left, "the certificate was not renewed");
            renewal.trouble = Some(why);
        }
    }
    control.desk.renewal().replace(renewal);
}

/// A certificate for this node that counts longer: its own, or that of the issuer.
async fn ask(control: &Rc<Control>, own: &NodeCertificate) -> Result<NodeCertificate, String> {
    let config = control.config();
    let keyring = control.keyring();
    let identity = keyring.identity().ok_or("this node has no key")?;
    let request = Request { name: own.subject().name.clone(), token: None, own: Some(own.clone()) };
    let certificate = if issue::signing_key_path(control).is_some() {
        issue::issue(control, own.subject().key, request).await?.certificate
    } else {
        let key = config.cluster.issuer_key.ok_or(
            "[cluster] issuer is not set: get one with `pipectl cluster sign` on a node that signs",
        )?;
        let at = config.cluster.issuer.as_str();
        let answer = tokio::time::timeout(join::TIME, join::ask(identity.own(), key, at, &request));
        let joined = answer.await.map_err(|_| format!("{at} did not answer in time"))??;
        if let Some(list) = joined.revocations.and_then(|text| text.parse().ok()) {
            take_revocations(control, list).await;
        }
        joined.certificate
    };
    let counts = identity.check(&certificate, clock::times().calendar);
    counts.map_err(|why| format!("what was signed does not count here: {why}"))?;
    match certificate.subject().key == own.subject().key {
        true => Ok(certificate),
        false => Err("what was signed is for another key".to_owned()),
    }
}
