//! The service manager's watchdog: answered only if every shard has just answered.
//!
//! An idle shard sleeps, so its turns show nothing; a question wakes it, and it answers in its next
//! turn. The control thread asks, so a hanging control thread is noticed, too.

use std::rc::Rc;
use std::time::Duration;

use crate::control::Control;
use crate::limits::SHARD_TIMEOUT;
use crate::shard::message::{Message, Question};
use crate::systemd;

/// Answers the watchdog, if there is one, until the daemon stops.
pub(crate) async fn answer(control: Rc<Control>) {
    let Some(interval) = systemd::watchdog_interval() else { return };
    // Half of it, so that one late answer is no end; the rest is for the shards.
    let pause = interval / 2;
    loop {
        tokio::select! {
            () = control.stopped() => return,
            () = tokio::time::sleep(pause) => {}
        }
        match first_that_hangs(&control, pause.min(SHARD_TIMEOUT)).await {
            None => systemd::alive(),
            Some(shard) => tracing::error!(
                shard,
                "the shard does not turn: the watchdog is not answered, and the service manager \
                 will end the daemon"
            ),
        }
    }
}

async fn first_that_hangs(control: &Control, patience: Duration) -> Option<usize> {
    for (number, shard) in control.shards.iter().enumerate() {
        let asked = shard.mailbox.ask(|answer| Message::Ask(Question::Alive(answer)));
        if !matches!(tokio::time::timeout(patience, asked).await, Ok(Ok(()))) {
            return Some(number);
        }
    }
    None
}
