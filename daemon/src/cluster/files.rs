//! Files of the cluster: those that operators write, and those of the state.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use piped_config::{Cluster, Config, NodeCertificate, Revocations, read_text};
use piped_control::keyring::{Identity, Keyring};
use piped_text::shown;
use tokio::sync::OwnedMutexGuard;

use super::book::Book;
use crate::io::clock;
use crate::kept;
use crate::replace::replace;

/// Name of the file with the list of revoked keys, in the directory of the state.
pub(super) const REVOCATIONS: &str = "revocations";

/// Name of the file with what this node has signed.
pub(super) const BOOK: &str = "signed.json";

/// The daemon's, and readable for its group.
const MODE: u32 = 0o640;

/// What is to be said about the certificate of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateNews(Option<String>);

impl CertificateNews {
    /// Writes to the log what is wrong. `node`: the name that this node gives itself.
    pub(crate) fn log(&self, node: &str, keyring: &Keyring) {
        if let Some(news) = &self.0 {
            tracing::warn!("{news}");
        }
        let own = keyring.identity().and_then(Identity::certificate);
        if let Some(other) = own.map(|own| &own.subject().name).filter(|name| *name != node) {
            tracing::warn!(
                "the certificate of this node is for the name {other}, by which nodes of the \
                 cluster know it: set `name` in [node]"
            );
        }
    }
}

/// A keyring with what files say of the cluster. May block in the file system.
pub(crate) fn with_files(
    keyring: Keyring,
    config: &Config,
    main_file: Option<&Path>,
) -> (Keyring, CertificateNews) {
    if !keyring.has_cluster() {
        return (keyring, CertificateNews(None));
    }
    let state = kept::directory(config);
    let in_state = |name: &str| state.as_ref().map(|directory| directory.join(name));
    let written = config.cluster.certificate_path(main_file);
    let (certificate, news) = match keyring.identity() {
        Some(identity) => choose(identity, [written, in_state(Cluster::CERTIFICATE_FILE)]),
        None => (None, None),
    };
    let mut keyring = keyring.with_certificate(certificate);
    if let Some(list) = in_state(REVOCATIONS).and_then(|path| read_list(&path)) {
        keyring.take_revocations(Arc::new(list));
    }
    (keyring, CertificateNews(news))
}

/// The list of revoked keys that was kept.
fn read_list(path: &Path) -> Option<Revocations> {
    let read = match read_text(path) {
        Ok(text) => text.parse::<Revocations>().map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => Err(error.to_string()),
    };
    let path = path.display();
    read.map_err(|error| tracing::warn!(%path, error, "revoked keys are not known until heard of"))
        .ok()
}

/// The certificate that was signed last, and what is wrong if none counts.
fn choose(
    identity: &Identity,
    paths: [Option<PathBuf>; 2],
) -> (Option<NodeCertificate>, Option<String>) {
    let (mut best, mut wrong) = (None::<NodeCertificate>, None);
    for path in paths.into_iter().flatten() {
        let text = match read_text(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                wrong = Some(format!("{}: {error}", path.display()));
                continue;
            }
        };
        match check(identity, &text) {
            Ok(read) => {
                if best.as_ref().is_none_or(|best| read.is_later_than(best)) {
                    best = Some(read);
                }
            }
            Err(why) => wrong = Some(format!("{}: {}", path.display(), shown(&why))),
        }
    }
    let news = best.is_none().then(|| {
        let why = wrong.unwrap_or_else(|| "it has none".to_owned());
        format!(
            "this node has no certificate that counts ({why}); nodes that do not pin its key turn \
             it away: `piped join` makes one"
        )
    });
    (best, news)
}

fn check(identity: &Identity, text: &str) -> Result<NodeCertificate, String> {
    let read: NodeCertificate = text.parse().map_err(|it| format!("what it holds {it}"))?;
    if read.subject().key != identity.own().public() {
        return Err("it is for another key than this node's".to_owned());
    }
    let counts = identity.check(&read, clock::times().calendar);
    counts.map_err(|why| why.to_string()).map(|()| read)
}

/// What this node has signed so far. May block in the file system.
pub(crate) fn read_book(config: &Config) -> Book {
    let path = kept::directory(config).map(|directory| directory.join(BOOK));
    let Some(path) = path else { return Book::default() };
    let read = match read_text(&path) {
        Ok(text) => Book::parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Book::default()),
        Err(error) => Err(error.to_string()),
    };
    read.unwrap_or_else(|error| {
        let path = path.display();
        tracing::warn!(%path, error, "names that were given away are not known");
        Book::default()
    })
}

/// Writes a file of the state as a whole.
pub(super) async fn write(
    config: &Config,
    name: &'static str,
    text: String,
    turn: OwnedMutexGuard<()>,
) -> io::Result<()> {
    let directory = kept::directory(config).ok_or_else(|| io::Error::other("it is not set"))?;
    let work = move || {
        let _turn = turn;
        replace(&directory.join(name), text.as_bytes(), MODE)
    };
    kept::in_time(work).await
}
