//! The data-plane threads: start, mailbox, end.

mod attention;
pub mod between;
mod cpu;
pub mod message;
mod reactor;
mod sessions;
mod solver;

use std::io;
use std::path::Path;
use std::thread::JoinHandle;

use piped_engine::command::{Command, Limits};
use piped_engine::shard::{Shard, ShardConfig};
use tokio::sync::{mpsc, oneshot};

use self::between::Between;
pub(crate) use self::cpu::allowed as allowed_cpus;
use self::message::{Inbox, Mailbox, Notice};
use self::reactor::{Parts, Reactor};
use self::solver::Solver;
use crate::io::{UringConfig, UringError, UringIo};
use crate::limiting::{StagingPiece, make_staging};

/// Everything that a shard needs to start.
#[derive(Debug)]
pub struct Plan {
    /// Number of the shard.
    pub index: usize,
    /// Configuration of the engine.
    pub engine: ShardConfig,
    /// Configuration of the driver.
    pub driver: UringConfig,
    /// Staging memory, in bytes.
    pub staging_bytes: u64,
    /// Limits of use at one time.
    pub limits: Limits,
    /// Longest spin, in nanoseconds.
    pub spin_ns: u64,
    /// Whether the shard stays on one CPU, and which one if that is configured.
    pub pin: Option<Option<u32>>,
    /// Sender of its notices.
    pub outbox: mpsc::UnboundedSender<(usize, Notice)>,
    /// Queues to and from the other shards.
    pub between: Between,
}

/// A shard that runs.
#[derive(Debug)]
pub struct ShardHandle {
    /// Mailbox for messages to it.
    pub mailbox: Mailbox,
    /// CPU that the thread is pinned to.
    pub cpu: Option<u32>,
    /// Staging at the start.
    pub(crate) staging: Vec<StagingPiece>,
    thread: JoinHandle<()>,
}

/// Reason why a shard does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The driver cannot be made.
    #[error(transparent)]
    Driver(#[from] UringError),
    /// No staging memory can be had.
    #[error(
        "{bytes} bytes of staging memory cannot be had ({error}); make limits.global.staging \
         smaller"
    )]
    Staging {
        /// Bytes that were asked for.
        bytes: u64,
        /// Error that the kernel reports.
        error: io::Error,
    },
    /// No thread, or no descriptors, can be had.
    #[error(
        "a shard's thread cannot be started ({0}); check LimitNOFILE= and TasksMax= of the unit"
    )]
    Thread(#[from] io::Error),
    /// The thread ended before it was ready.
    #[error("a shard's thread ended while it started; see the message above")]
    Died,
}

/// Starts a shard's thread and waits until it serves.
///
/// # Errors
/// See [`StartError`].
pub async fn start(plan: Plan) -> Result<ShardHandle, StartError> {
    let (mailbox, inbox) = Mailbox::new()?;
    let solver = Solver::start(plan.index, mailbox.faint())?;
    let (ready, started) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name(format!("piped-shard-{}", plan.index))
        .spawn(move || run(plan, inbox, solver, ready))?;
    let (cpu, staging) = started.await.map_err(|_| StartError::Died)??;
    Ok(ShardHandle { mailbox, cpu, staging, thread })
}

impl ShardHandle {
    /// Waits for the end of a thread that was told to stop. Blocks.
    pub fn join(self) {
        // Its last notice has the reason of its end.
        let _ = self.thread.join();
    }
}

/// Result of a start: the CPU and the staging.
type Started = (Option<u32>, Vec<StagingPiece>);

/// Runs the thread from its start to its end.
fn run(
    plan: Plan,
    inbox: Inbox,
    solver: Solver,
    ready: oneshot::Sender<Result<Started, StartError>>,
) {
    let mut ended = Ended {
        index: plan.index,
        outbox: plan.outbox.clone(),
        result: Some(Err("it panicked; the message above says where".to_owned())),
    };
    let nodes = cpu::nodes(Path::new(cpu::SYSFS));
    let allowed = cpu::in_order(cpu::allowed(), &nodes, plan.index);
    let claim = plan.pin.and_then(|configured| cpu::claim(configured, &allowed));
    let cpu = claim.as_ref().map(|claim| claim.cpu).filter(|&cpu| match cpu::pin(cpu) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(cpu, %error, "the shard cannot be pinned (see [shards] cpus)");
            false
        }
    });
    if plan.pin.is_some() && cpu.is_none() {
        tracing::info!(shard = plan.index, "not pinned: no CPU is left that no shard stays on");
    }
    let place = (cpu, cpu.and_then(|cpu| cpu::node_of(cpu, &nodes)));
    let (reactor, staging) = match build(plan, inbox, solver, place) {
        Ok(built) => built,
        Err(error) => {
            ended.result = Some(Ok(()));
            let _ = ready.send(Err(error));
            return;
        }
    };
    if ready.send(Ok((cpu, staging))).is_err() {
        return;
    }
    ended.result = Some(reactor.run().map_err(|error| error.to_string()));
}

fn build(
    plan: Plan,
    inbox: Inbox,
    solver: Solver,
    place: (Option<u32>, Option<u32>),
) -> Result<(Reactor, Vec<StagingPiece>), StartError> {
    let mut io = UringIo::new(&plan.driver)?;
    let (own, shards) = plan.between.place();
    let mut shard = Shard::new(plan.engine).among(own, shards);
    let bytes = plan.staging_bytes;
    let memory = make_staging(bytes).map_err(|error| StartError::Staging { bytes, error })?;
    let staging = memory.iter().map(StagingPiece::of).collect();
    for piece in memory {
        let length = piece.len();
        let segment = io.add_segment(piece)?;
        shard.handle_command(Command::AddStaging { segment, length }, &mut io);
    }
    shard.handle_command(Command::SetStaging { bytes }, &mut io);
    // Nobody waits yet, so register everything now.
    while io.poll_registration() {}
    for line in io.degraded() {
        tracing::warn!(shard = plan.index, "{line}");
    }
    let parts = Parts {
        index: plan.index,
        place,
        io,
        shard,
        inbox,
        solver,
        outbox: plan.outbox,
        between: plan.between,
        spin_ns: plan.spin_ns,
        limits: plan.limits,
    };
    Ok((Reactor::new(parts)?, staging))
}

/// Reports the end of the thread, however it ends.
struct Ended {
    index: usize,
    outbox: mpsc::UnboundedSender<(usize, Notice)>,
    result: Option<Result<(), String>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or(Ok(()));
        let _ = self.outbox.send((self.index, Notice::Ended(result)));
    }
}
