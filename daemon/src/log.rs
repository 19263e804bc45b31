//! The log: to the journal, field by field, if stderr leads there; else to stderr as text.
//!
//! In the journal each field has a name of its own (`PIPED_PEER`, `PIPED_SHARD`, `PIPED_UID` ...),
//! so that `journalctl -u piped PIPED_PEER=beta` finds all lines about one peer.
//!
//! Peers, clients and file systems choose some of the logged text: names, and reasons that repeat
//! them. So every value is escaped here, on its way to either place, and callers need not think of
//! it.

mod escaping;

use std::io::IsTerminal;
use std::os::fd::AsFd;

use rustix::fs::fstat;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt, registry, reload};

use self::escaping::Escaping;
use crate::SetLevel;

/// Prefix of field names.
const PREFIX: &str = "PIPED";

/// Begins to log; the result changes the level.
///
/// # Errors
/// `level` is not a level.
pub fn start(level: &str) -> Result<SetLevel, Box<dyn std::error::Error>> {
    let stderr = std::io::stderr();
    let (journal, failure) = match leads_to_journal(&stderr).then(tracing_journald::layer) {
        Some(Ok(layer)) => (Some(layer), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let journal = journal.map(|layer| {
        let layer = layer.with_syslog_identifier("piped".to_owned());
        Escaping::new(layer.with_field_prefix(Some(PREFIX.to_owned())))
    });
    let ansi = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let text = fmt::layer().with_ansi(ansi).with_writer(std::io::stderr);
    let text = journal.is_none().then_some(Escaping::new(text));
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(level)?);
    registry().with(filter).with(journal).with(text).init();
    if let Some(error) = failure {
        tracing::warn!(%error, "the journal takes no fields: messages are text");
    }
    Ok(Box::new(move |level| {
        let filter = EnvFilter::try_new(level).map_err(|error| error.to_string())?;
        handle.reload(filter).map_err(|error| error.to_string())
    }))
}

/// Whether a file leads to the journal, by the service manager's word.
fn leads_to_journal(file: impl AsFd) -> bool {
    let said = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let named =
        said.split_once(':').and_then(|(dev, ino)| Some((dev.parse().ok()?, ino.parse().ok()?)));
    let own = fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
    own.is_ok_and(|own| named == Some(own))
}
