//! An etcd as a source of discovery: this node publishes itself there, and learns the others.
//!
//! ```text
//!   connect ─► authenticate ─► lease, put ─► range ─► watch from there ─► hand over
//!      ▲                                       ▲         │ compacted, cancelled
//!      │ any failure: next member              └─────────┘
//! ```
//!
//! The JSON gateway of etcd is spoken, over HTTP/1.1: the same service as gRPC, in every etcd since
//! 3.4, without a compiler of protocols to build ([decision
//! 0190](../../../docs/decisions/0190-etcd-by-its-json-gateway.md)). Nothing that comes from there
//! is trusted: entries that are no nodes are left out, and answers have limits.

mod api;
mod http;
mod kept;
mod session;
mod tls;

use std::time::Duration;

use piped_config::Etcd;

use self::session::Session;
use self::tls::Tls;
use super::{Ear, Said};

/// Before another member is tried.
const RETRY: Duration = Duration::from_millis(500);

/// Before another member is tried, once so many have failed in a row.
const RETRY_LATER: Duration = Duration::from_millis(1_500);
const RETRIES: usize = 120;

/// Why an etcd cannot be used, now.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("it does not answer in time")]
    Late,
    #[error("it refuses: {0}")]
    Refused(String),
    #[error("its answer is not one of an etcd: {0}")]
    Odd(String),
    #[error("its answer is longer than {0} bytes")]
    Long(usize),
    #[error("the watch ended")]
    Ended,
}

/// Stays with one member after the other for as long as the daemon runs.
pub(super) async fn follow(mut ear: Ear, etcd: Etcd) {
    let (mut failed, mut lease) = (0, None);
    for endpoint in etcd.endpoints.iter().cycle() {
        // Files are read anew: certificates are renewed.
        let (fault, was_heard) = match Tls::of(&etcd, endpoint) {
            Ok(tls) => Session::new(&mut ear, (&etcd, endpoint), tls, &mut lease).run().await,
            Err(fault) => (fault, false),
        };
        failed = if was_heard { 0 } else { failed + 1 };
        // One member that is away is no news while another one answers.
        if failed >= etcd.endpoints.len() {
            ear.take(Said::away(&format!("{endpoint}: {fault}"))).await;
        } else {
            tracing::debug!(%endpoint, error = %fault, "discovery.etcd: the next member");
        }
        // For a minute as often as that, then less: many nodes wait for it.
        let pause = if failed > RETRIES { RETRY_LATER } else { RETRY };
        tokio::time::sleep(pause).await;
    }
}
