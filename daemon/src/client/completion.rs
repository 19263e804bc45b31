//! Completion to ring entry: what the client reads.

use piped_engine::request::{BufferState, Completion, Origin, Status};
use piped_ring::{CompletionEntry, CompletionKind};

/// Whom a completion is for, and the entry for its ring.
#[must_use]
pub fn entry(completion: Completion) -> (Origin, CompletionEntry) {
    match completion {
        Completion::Finished { origin, status, bytes, value, buffer } => {
            let kind = match buffer {
                BufferState::Returned => CompletionKind::Finished,
                BufferState::Held => CompletionKind::FinishedHeld,
            };
            let entry = CompletionEntry::finished(origin.user_data, wire_status(status), bytes);
            (origin, CompletionEntry { value, ..entry.with_kind(kind) })
        }
        Completion::Released { origin } => {
            let entry = CompletionEntry::finished(origin.user_data, piped_ring::Status::Ok, 0);
            (origin, entry.with_kind(CompletionKind::Released))
        }
    }
}

/// The engine's status in the words of the ring and the handshake.
#[must_use]
pub fn wire_status(status: Status) -> piped_ring::Status {
    use piped_ring::Status as Wire;
    match status {
        Status::Ok => Wire::Ok,
        Status::Unsupported => Wire::Unsupported,
        Status::Invalid => Wire::Invalid,
        Status::BadHandle => Wire::BadHandle,
        Status::BadBuffer => Wire::BadBuffer,
        Status::Denied => Wire::Denied,
        Status::DeadlineExceeded => Wire::DeadlineExceeded,
        Status::Cancelled => Wire::Cancelled,
        Status::Io => Wire::Io,
        Status::NoSpace => Wire::NoSpace,
        Status::PeerLost => Wire::PeerLost,
        Status::Gone => Wire::Gone,
        Status::NotFound => Wire::NotFound,
        Status::WouldBlock => Wire::WouldBlock,
        Status::OutcomeUnknown => Wire::OutcomeUnknown,
        Status::Corrupt => Wire::Corrupt,
        Status::Closed => Wire::Closed,
        Status::TooLong => Wire::TooLong,
    }
}

#[cfg(test)]
mod tests {
    use piped_engine::ids::{QueueId, SessionId};

    use super::*;

    #[test]
    fn engine_and_ring_agree_on_every_status() {
        // Those behind are of opens alone, and the client's alone: `open::Reason`.
        assert_eq!(piped_ring::Status::ALL[Status::ALL.len()], piped_ring::Status::NoExport);
        for status in Status::ALL {
            let wire = wire_status(status);
            assert_eq!(wire as u16, status as u16, "{status:?}");
            assert_eq!(format!("{wire:?}"), format!("{status:?}"));
            assert_eq!(piped_ring::Status::ALL[status as usize], wire);
        }
    }

    #[test]
    fn an_entry_says_what_the_completion_says() {
        let origin =
            Origin { session: SessionId(1), queue: QueueId(2), slot: 3, user_data: u64::MAX };
        for (buffer, kind) in [
            (BufferState::Returned, CompletionKind::Finished),
            (BufferState::Held, CompletionKind::FinishedHeld),
        ] {
            let status = Status::DeadlineExceeded;
            let (bytes, value) = (9, 77);
            let finished = Completion::Finished { origin, status, bytes, value, buffer };
            let (whose, entry) = entry(finished);
            assert_eq!(whose, origin);
            assert_eq!((entry.user_data, entry.bytes, entry.value), (u64::MAX, 9, 77));
            assert_eq!((entry.status, entry.kind), (6, kind as u8));
        }
        let (_, entry) = entry(Completion::Released { origin });
        assert_eq!(CompletionKind::from_u8(entry.kind), Some(CompletionKind::Released));
        assert_eq!(entry.user_data, u64::MAX);
    }
}
