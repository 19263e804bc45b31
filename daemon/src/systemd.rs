//! What the service manager is told. Without one (no NOTIFY_SOCKET) nothing happens.

use sd_notify::NotifyState;

/// The doors are open.
pub(crate) fn ready(status: &str) {
    say(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The doors are closing.
pub(crate) fn stopping() {
    say(&[NotifyState::Stopping]);
}

fn say(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
