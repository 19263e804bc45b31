//! Ctrl-C, SIGTERM and the end of the terminal: received by a thread, polled between two waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Exit, Failure};

/// Whether the program shall end.
#[derive(Debug, Clone)]
pub(in crate::commands) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Receives signals from now on. The second one ends the program at once: the journal holds,
    /// whatever was under way.
    pub(in crate::commands) fn listen() -> Result<Self, Failure> {
        let fail = |error| Failure::io("cannot catch signals", &error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(fail)?;
        let (mut interrupt, mut terminate, mut hang_up) = {
            let _entered = runtime.enter();
            (
                signal(SignalKind::interrupt()).map_err(fail)?,
                signal(SignalKind::terminate()).map_err(fail)?,
                signal(SignalKind::hangup()).map_err(fail)?,
            )
        };
        let stop = Self(Arc::default());
        let set = stop.clone();
        let listen = move || {
            runtime.block_on(async move {
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                        _ = hang_up.recv() => {}
                    }
                    // Relaxed: the flag guards nothing but itself.
                    if set.0.swap(true, Ordering::Relaxed) {
                        std::process::exit(Exit::Interrupted as i32);
                    }
                }
            });
        };
        thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(fail)?;
        Ok(stop)
    }

    /// Whether a signal came.
    pub(in crate::commands) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error once a signal came.
    pub(in crate::commands) fn check(&self) -> Result<(), Failure> {
        if self.is_set() { Err(interrupted()) } else { Ok(()) }
    }
}

/// Failure that a signal comes to.
pub(in crate::commands) fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted")
}
