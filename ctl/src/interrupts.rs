//! Ctrl-C and its like for work that goes step by step: each step looks whether to go on, and what
//! was made so far is removed in an orderly way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::daemon::interrupted;
use crate::failure::Failure;

/// Whether somebody wants the work to stop. From then on such signals do nothing else, also while
/// things are removed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupts(Arc<AtomicBool>);

impl Interrupts {
    /// Begins to listen, before anything exists that would have to be removed.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::io("cannot start a runtime", &error))?;
        let it = Self::default();
        let heard = it.clone();
        let [mut interrupt, mut terminate, mut hang_up] = {
            let _inside = runtime.enter();
            let listen =
                |kind| signal(kind).map_err(|error| Failure::io("cannot catch signals", &error));
            [
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
            ]
        };
        let wait = async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => (),
                    _ = terminate.recv() => (),
                    _ = hang_up.recv() => (),
                }
                // Relaxed: the flag guards nothing but itself.
                heard.0.store(true, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(wait))
            .map_err(|error| Failure::io("cannot start a thread", &error))?;
        Ok(it)
    }

    /// Whether one has come.
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if one has come.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.came() { Err(interrupted()) } else { Ok(()) }
    }
}
