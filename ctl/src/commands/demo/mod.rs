//! `pipectl demo`: piped at work on this machine, in half a minute, leaving nothing behind.
//!
//! ```text
//! this thread  ┌ waits for the worker or Ctrl-C; owns and clears the site (processes, directories)
//! worker       └ starts two nodes, moves the file, measures, prints
//! ```
//!
//! The worker may be blocked in a request when Ctrl-C comes, so it is not the one to clean up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::args::DemoArgs;
use crate::daemon::interrupted;
use crate::failure::Failure;
use crate::output::Output;

mod file;
mod latency;
mod moving;
mod report;
mod scenario;
mod site;
mod slowed;
mod told;

/// Time for an interrupted worker to notice, before its daemons are ended.
const GRACE: Duration = Duration::from_millis(500);

/// Runs the demo of the command line.
pub(crate) fn run(args: &DemoArgs, output: Output, json: bool) -> Result<(), Failure> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start a runtime", &error))?;
    let site = site::Site::new();
    let result = runtime.block_on(work(args.clone(), output.at_most(80), json, &site));
    site.clear();
    result
}

async fn work(
    args: DemoArgs,
    output: Output,
    json: bool,
    site: &site::Site,
) -> Result<(), Failure> {
    // Listen before anything exists that would have to be removed.
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    let cancel = Cancel::default();
    let (done, mut result) = oneshot::channel();
    let (for_worker, stop) = (site.clone(), cancel.clone());
    let worker = thread::Builder::new()
        .name("demo".to_owned())
        .spawn(move || {
            // The receiver is gone only after an interrupt, which is reported already.
            let _ = done.send(scenario::run(&args, &output, json, &for_worker, &stop));
        })
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    tokio::select! {
        finished = &mut result => {
            // A panic is on stderr already; the site is cleared by the caller.
            let _ = worker.join();
            finished.unwrap_or_else(|_| Err(Failure::failed("the demo itself broke: please report \
                it")))
        }
        _ = interrupt.recv() => Err(stopped(&cancel, result).await),
        _ = terminate.recv() => Err(stopped(&cancel, result).await),
        _ = hang_up.recv() => Err(stopped(&cancel, result).await),
    }
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::io("cannot catch signals", &error))
}

async fn stopped(cancel: &Cancel, result: oneshot::Receiver<Result<(), Failure>>) -> Failure {
    cancel.set();
    let _ = tokio::time::timeout(GRACE, result).await;
    interrupted()
}

/// Tells the worker to stop at its next step.
#[derive(Debug, Clone, Default)]
struct Cancel(Arc<AtomicBool>);

impl Cancel {
    fn set(&self) {
        // Relaxed: the flag guards nothing but itself.
        self.0.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), Failure> {
        if self.0.load(Ordering::Relaxed) { Err(interrupted()) } else { Ok(()) }
    }
}
