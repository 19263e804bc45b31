//! Turns a completion into the ring entry that the client reads.

use piped_core::request::{BufferState, Completion, Origin};
use piped_core::status::Status;
use piped_ring::{CompletionEntry, CompletionKind};

/// Ring entry of a completion, with the queue that it is for.
#[must_use]
pub fn entry(completion: Completion) -> (Origin, CompletionEntry) {
    match completion {
        Completion::Finished { origin, status, bytes, value, buffer } => {
            let kind = match buffer {
                BufferState::Returned => CompletionKind::Finished,
                BufferState::Held => CompletionKind::FinishedHeld,
            };
            let entry = CompletionEntry::finished(origin.user_data, status, bytes);
            (origin, CompletionEntry { value, ..entry.with_kind(kind) })
        }
        Completion::Released { origin } => {
            let entry = CompletionEntry::finished(origin.user_data, Status::Ok, 0);
            (origin, entry.with_kind(CompletionKind::Released))
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::{QueueId, SessionId};

    use super::*;

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
