//! Makes the memory of a session.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use piped_control::fault::OpenFault;
use piped_core::status::Status;
use piped_ring::handshake::{FEATURE_LENDING, FEATURE_NAPS, FEATURE_PATH_COSTS, FEATURE_SPREAD};
use piped_ring::{Segment, ServerQueue};

use super::wanted::Wanted;
use crate::arenas::Share;
use crate::patience::Turns;

/// Optional features of the handshake that this daemon has.
pub(super) const FEATURES: u64 =
    FEATURE_PATH_COSTS | FEATURE_NAPS | FEATURE_LENDING | FEATURE_SPREAD;

/// The memory of a session. Making it takes time, because every page is faulted in.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) queues: Vec<ServerQueue>,
}

impl Memory {
    /// Makes the memory. `share` counts the first segment for as long as it exists.
    pub(super) fn create(
        wanted: Wanted,
        share: Option<Share>,
        turns: &mut Turns<'_>,
    ) -> io::Result<Self> {
        let segments = match wanted.arena_bytes {
            0 => Vec::new(),
            bytes => vec![make_segment(bytes, share, turns)?],
        };
        let queues: io::Result<Vec<ServerQueue>> =
            (0..wanted.queues).map(|_| ServerQueue::create(wanted.entries)).collect();
        Ok(Self { segments, queues: queues? })
    }

    /// Descriptors that are passed to the client.
    pub(super) fn fds(&self) -> io::Result<Vec<OwnedFd>> {
        let segments = self.segments.iter().map(|segment| segment.fd());
        let queues = self.queues.iter().flat_map(|queue| queue.fds());
        segments.chain(queues).map(|fd| fd.try_clone_to_owned()).collect()
    }
}

/// Makes a segment with the share that counts it.
pub(super) fn make_segment(
    bytes: u64,
    share: Option<Share>,
    turns: &mut Turns<'_>,
) -> io::Result<Arc<Segment>> {
    let mut segment = Segment::create_by(bytes, || turns.next())?;
    if let Some(share) = share {
        segment.keep(share);
    }
    Ok(Arc::new(segment))
}

pub(super) fn memory_fault(error: &io::Error) -> OpenFault {
    let text = format!(
        "the daemon cannot make the memory ({error}); ask for less, or raise its limits of memory \
         and open files"
    );
    OpenFault::new(Status::WouldBlock, text)
}
