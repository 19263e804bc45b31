//! Notifications to the service manager. Without one (no NOTIFY_SOCKET) nothing happens.

use std::time::Duration;

use sd_notify::NotifyState;

/// Reports that the sockets are open.
pub(crate) fn ready(status: &str) {
    say(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the configuration is loaded again; [`ready`] follows.
pub(crate) fn reloading() {
    // The service manager tells by the time which reload a READY belongs to.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => say(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "no time for the service manager"),
    }
}

/// Time that the service manager waits for [`alive`]; none if it does not.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero())
}

/// Reports that all threads are alive.
pub(crate) fn alive() {
    say(&[NotifyState::Watchdog]);
}

/// Reports that the sockets are closing.
pub(crate) fn stopping() {
    say(&[NotifyState::Stopping]);
}

fn say(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
