//! The daemon from start to end.
//!
//! Start: check everything on this machine that the configuration names (users, directories), start
//! the shards, open the sockets, report READY. A failure before READY is an error that names its
//! key, and nothing is left behind. End: close the sockets, let the shards end their sessions, for
//! a bounded time; a second signal does not wait.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use piped_config::{
    Config, Fault, Findings, KeyFileError, Loaded, Names, Sources, Spin, host_name,
};
use piped_control::access::{Rules, RulesError};
use piped_control::keyring::Keyring;
use piped_core::names::shard_name;
use piped_ring::SpinBudgets;
use rustix::net::SocketType;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use crate::closing::{Account, Closer, HeldFile, close_files};
use crate::control::{Control, Parts, ShardDoor};
use crate::inherited::{Inherited, InheritedError, Wanted};
use crate::io::clock;
use crate::io::socket::{asynchronous, let_pass_descriptors};
use crate::kept::Keeper;
use crate::limiting::Limiter;
use crate::limits::{LISTENERS, SHARD_JOIN_TIMEOUT, STOP_TIMEOUT, threads_max};
use crate::open::export::{ExportError, Exports};
use crate::preflight::Held;
use crate::reload::{self, Reload, SetLevel};
use crate::sandbox::{Filtering, Sandbox, SandboxError};
use crate::shard::between::Between;
use crate::shard::message::{Message, Notice};
use crate::shard::{self, Plan, ShardHandle, StartError};
use crate::unix_socket::{self, SocketError, SocketFile};
use crate::{
    admin, client, cluster, discovery, machine, metrics, peer, settings, systemd, watchdog,
};

/// Reason why the daemon did not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Faults of the configuration on this machine: every reason, with its place.
    #[error(transparent)]
    Preflight(#[from] Findings),
    /// An unknown name in `[access]` or `[admin]`.
    #[error(transparent)]
    Access(#[from] RulesError),
    /// The sandbox cannot be entered.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// An export cannot be opened.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A shard did not start: most of all, io_uring is refused.
    #[error(transparent)]
    Shard(#[from] StartError),
    /// A unix socket cannot be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The key of this node cannot be used.
    #[error("security.key_file: {0}")]
    Key(#[from] KeyFileError),
    /// The configuration needs a key, or another one.
    #[error("`{}` {}", .0.key, .0.problem)]
    Keys(Fault),
    /// A socket of the service manager's does not fit.
    #[error(transparent)]
    Inherited(#[from] InheritedError),
    /// The listener for peers cannot be opened.
    #[error(transparent)]
    Listen(#[from] peer::ListenError),
    /// The listener for metrics cannot be opened.
    #[error(transparent)]
    Metrics(#[from] metrics::listen::MetricsListenError),
    /// The runtime of the control thread cannot be made.
    #[error("the control thread cannot be set up: {0}")]
    Runtime(#[from] std::io::Error),
    /// A shard ended by itself.
    #[error("{0}; the daemon cannot go on")]
    ShardDied(String),
    /// The shards did not end in time.
    #[error("the shards did not end in time; what clients had under way was cut off")]
    StopTimeout,
}

/// A daemon that is ready to run.
#[derive(Debug)]
pub struct Daemon {
    config: Config,
    /// Folder of its drop-ins, if the configuration came from a file.
    drop_ins: Option<PathBuf>,
    inherited: Inherited,
    reload: Reload,
    sandbox: Sandbox,
    /// Memory in bytes that this process may have.
    machine_bytes: u64,
    stop: Arc<watch::Sender<u32>>,
}

/// Stops a daemon from another thread, as a signal would.
#[derive(Debug, Clone)]
pub struct Stopper {
    stop: Arc<watch::Sender<u32>>,
}

impl Stopper {
    /// Asks for the end; asked twice, it comes at once.
    pub fn stop(&self) {
        self.stop.send_modify(|asked| *asked += 1);
    }
}

impl Daemon {
    /// Daemon with a validated configuration that has no files.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let loaded = Loaded { config, files: Vec::new(), origins: BTreeMap::new() };
        Self::with(loaded, None, None)
    }

    /// Daemon that can load its configuration again. `set_level` changes the log's level.
    #[must_use]
    pub fn reloading(loaded: Loaded, sources: Sources, set_level: Option<SetLevel>) -> Self {
        Self::with(loaded, Some(sources), set_level)
    }

    fn with(loaded: Loaded, sources: Option<Sources>, set_level: Option<SetLevel>) -> Self {
        let config = loaded.config.clone();
        let reload = Reload::new(loaded, sources, set_level);
        Self {
            config,
            drop_ins: None,
            inherited: Inherited::default(),
            reload,
            sandbox: Sandbox::default(),
            machine_bytes: machine::memory_bytes(),
            stop: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Sets the folder in which changed limits can be kept.
    #[must_use]
    pub fn with_drop_ins(self, drop_ins: Option<PathBuf>) -> Self {
        Self { drop_ins, ..self }
    }

    /// Restricts this thread, and every thread that it starts, to files that this daemon needs (see
    /// `[sandbox]`). The step cannot be undone. So it is for a process that is the daemon, before
    /// it has other threads.
    ///
    /// # Errors
    /// [`SandboxError`].
    pub fn sandboxed(self) -> Result<Self, SandboxError> {
        let sources = self.reload.sources();
        let filtering = Filtering::enter(self.config.sandbox.syscalls)?;
        let sandbox = Sandbox::enter(&self.config, sources, self.drop_ins.as_deref())?;
        let sandbox = sandbox.with(filtering);
        match sandbox.degraded() {
            None => {
                let landlock = sandbox.report();
                tracing::info!(
                    landlock = landlock.landlock_abi,
                    covers = landlock.landlock.join(" "),
                    syscalls = landlock.syscalls,
                    "sandboxed"
                );
            }
            Some(why) => tracing::warn!("{why}"),
        }
        if let Some(why) = sandbox.unfiltered() {
            tracing::warn!("{why}");
        }
        Ok(Self { sandbox, ..self })
    }

    /// Takes sockets that are open already; the daemon makes the missing ones itself.
    #[must_use]
    pub fn with_inherited(self, inherited: Inherited) -> Self {
        Self { inherited, ..self }
    }

    /// Returns a handle to stop it.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: Arc::clone(&self.stop) }
    }

    /// Runs until SIGTERM, SIGINT or [`Stopper::stop`].
    ///
    /// # Errors
    /// See [`DaemonError`]; each error has advice.
    pub fn run(self) -> Result<(), DaemonError> {
        raise_file_limit();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(threads_max(piped_config::Limits::SESSIONS_MAX))
            .thread_name("piped-opener")
            .build()?;
        let result = LocalSet::new().block_on(&runtime, self.run_here());
        // A thread that hangs in a file system does not delay the end.
        runtime.shutdown_background();
        result
    }

    async fn run_here(self) -> Result<(), DaemonError> {
        let mut asked = Asked::new(self.stop.subscribe())?;
        // From here on the signal does not end the process.
        let hangup = signal(SignalKind::hangup())?;
        let (outbox, mut notices) = mpsc::unbounded_channel();
        let (stopping, hears_stopping) = watch::channel(false);
        let mut shards = Vec::new();
        let ears = Ears { outbox, stopping: hears_stopping };
        let started = start(self, ears, &mut shards).await;
        let (control, doors) = match started {
            Ok(started) => started,
            Err(error) => {
                tell_to_stop(&shards).await;
                join(shards).await;
                return Err(error);
            }
        };
        discovery::follow(&control).await;
        let files = open_doors(&control, doors);
        tokio::task::spawn_local(watchdog::answer(Rc::clone(&control)));
        tokio::task::spawn_local(keep(Rc::clone(&control)));
        tokio::task::spawn_local(cluster::watch(Rc::clone(&control)));
        tokio::task::spawn_local(cluster::renewing(Rc::clone(&control)));
        tokio::task::spawn_local(reload_when_told(Rc::clone(&control), hangup));
        systemd::ready(&format!("{} serves", control.node));
        tracing::info!(node = control.node, shards = shards.len(), "ready");
        let died = tokio::select! {
            () = asked.wait() => None,
            ended = control.listen(&mut notices) => Some(match ended {
                Ok(shard) => format!("shard {shard} ended by itself"),
                Err(reason) => reason,
            }),
        };
        systemd::stopping();
        // An error means that no listener is left, which is the goal.
        let _ = stopping.send(true);
        drop(files);
        let ended = end(&control, shards, &mut notices, &mut asked).await;
        match died {
            Some(reason) => Err(DaemonError::ShardDied(reason)),
            None => ended,
        }
    }
}

/// All sockets that listen.
struct Doors {
    client: (AsyncFd<HeldFile>, SocketFile),
    admin: (AsyncFd<HeldFile>, SocketFile),
    peers: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

/// Receivers of news from shards, and of signals to end.
struct Ears {
    outbox: mpsc::UnboundedSender<(usize, Notice)>,
    stopping: watch::Receiver<bool>,
}

/// Starts everything up to the open sockets. Shards that were started are in `shards` even after an
/// error.
async fn start(
    Daemon { config, drop_ins, inherited, reload, sandbox, machine_bytes, .. }: Daemon,
    Ears { outbox, stopping }: Ears,
    shards: &mut Vec<ShardHandle>,
) -> Result<(Rc<Control>, Doors), DaemonError> {
    let names = Names::of_system();
    let (client, admin) = (config.client.socket.clone(), config.admin.socket.clone());
    let client = Wanted { key: "client.socket", path: &client, kind: SocketType::SEQPACKET };
    let admin = Wanted { key: "admin.socket", path: &admin, kind: SocketType::STREAM };
    let [clients, operators] = inherited.sort(client, admin)?;
    let passed = [(client, &clients), (admin, &operators)];
    let passed = passed.into_iter().filter(|(_, socket)| socket.is_some());
    let sockets = passed.map(|(wanted, _)| wanted.path.to_owned()).collect();
    reload.check(&names, Held { sockets, ..Held::default() })?;
    let own = rustix::process::geteuid().as_raw();
    let rules = Rules::new(&config, &names, own)?;
    let exports = Exports::new(&config.exports, &names)?;
    let keyring = Keyring::new(&config, reload.own_key(&config)?).map_err(DaemonError::Keys)?;
    let main_file = reload.sources().map(Sources::main_file);
    let (keyring, news) = cluster::with_files(keyring, &config, main_file);
    news.log(config.node.name_or(&host_name()), &keyring);
    let book = cluster::read_book(&config);
    let keeper = Keeper::start(&config).await;
    let node = config.node.name_or(&host_name()).to_owned();
    let incarnation = machine::random();
    let spin = spin_budgets(&config);
    let count = shard_count(&config);
    let between = Between::mesh(count as u16).map_err(StartError::Thread)?;
    for (index, between) in between.into_iter().enumerate() {
        let name = shard_name(&node, index);
        shards.push(
            shard::start(Plan {
                index,
                engine: settings::engine(&config, name, incarnation, machine::random()),
                driver: settings::driver(&config),
                staging_bytes: config.limits.staging_of_shard(count),
                limits: settings::limits(&config.limits, count),
                spin_ns: spin.daemon_ns,
                pin: config.shards.pin.then(|| config.shards.cpus.get(index).copied()),
                outbox: outbox.clone(),
                between,
            })
            .await?,
        );
    }
    let (closer, leaving) = Closer::new();
    tokio::task::spawn_local(close_files(leaving));
    let account = Account::new(closer.clone(), LISTENERS, LISTENERS, None);
    let open = [!rules.clients_are_private(), !rules.operators_are_private()];
    let doors = Doors {
        client: door(client, clients, open[0], &account).await?,
        admin: door(admin, operators, open[1], &account).await?,
        peers: peer::bind(&config.listen, keyring.identity().is_some()).await?,
        metrics: metrics::listen::bind(&config.metrics).await?,
    };
    let door = |shard: &ShardHandle| ShardDoor { mailbox: shard.mailbox.clone(), cpu: shard.cpu };
    let staging = shards.iter_mut().flat_map(|shard| std::mem::take(&mut shard.staging)).collect();
    let limiter = Limiter::new(config.limits, machine_bytes, staging, drop_ins);
    let control = Rc::new(Control::new(Parts {
        config,
        reload,
        node,
        incarnation,
        spin,
        shards: shards.iter().map(door).collect(),
        rules,
        names,
        exports,
        keyring,
        sandbox,
        limiter,
        keeper,
        book,
        closer,
        stopping,
    }));
    control.keeper.recall(&control).await;
    control.core.borrow_mut().start();
    control.tell_shards().await;
    Ok((control, doors))
}

/// Makes a listening socket. It is closed like a file, with connections that were not accepted and
/// their descriptors. A caller can pass no descriptors before it has a place.
async fn door(
    Wanted { key, path, kind }: Wanted<'_>,
    inherited: Option<OwnedFd>,
    open: bool,
    account: &Arc<Account>,
) -> Result<(AsyncFd<HeldFile>, SocketFile), DaemonError> {
    let mut room = account.room(1).await;
    let (socket, file) = match inherited {
        Some(socket) => (socket, unix_socket::adopt(path, open)),
        None => unix_socket::listen(key, path, kind, open)?,
    };
    // Before Linux 6.16 it can, and an account is charged for them.
    let _ = let_pass_descriptors(&socket, false);
    Ok((asynchronous(room.hold(socket))?, file))
}

/// Starts to serve; what comes back removes the sockets' files when dropped.
fn open_doors(control: &Rc<Control>, doors: Doors) -> [SocketFile; 2] {
    let (clients, client_file) = doors.client;
    let (operators, admin_file) = doors.admin;
    tokio::task::spawn_local(client::listen(Rc::clone(control), clients));
    tokio::task::spawn_local(admin::listen(Rc::clone(control), operators));
    if let Some(peers) = doors.peers {
        tokio::task::spawn_local(peer::listen(Rc::clone(control), peers));
    }
    if let Some(scrapers) = doors.metrics {
        tokio::task::spawn_local(metrics::listen::listen(Rc::clone(control), scrapers));
    }
    [client_file, admin_file]
}

/// Persists measurements for the next start.
async fn keep(control: Rc<Control>) {
    control.keeper.run(&control).await;
}

/// Loads the configuration again at every SIGHUP.
async fn reload_when_told(control: Rc<Control>, mut hangup: Signal) {
    while let Some(()) = tokio::select! {
        () = control.stopped() => None,
        told = hangup.recv() => told,
    } {
        // The outcome is logged, and shown by `pipectl status`.
        let _ = reload::run(&control).await;
    }
}

/// Lets the shards end their sessions, and waits for their threads.
async fn end(
    control: &Rc<Control>,
    shards: Vec<ShardHandle>,
    notices: &mut mpsc::UnboundedReceiver<(usize, Notice)>,
    asked: &mut Asked,
) -> Result<(), DaemonError> {
    tracing::info!("stopping");
    let ended = async {
        control.keeper.keep(control).await;
        tell_to_stop(&shards).await;
        let threads = join(shards);
        tokio::pin!(threads);
        loop {
            tokio::select! {
                () = &mut threads => return,
                // Sessions wait for the notice that they have drained; errors were reported before.
                _ = control.listen(notices) => tokio::task::yield_now().await,
            }
        }
    };
    tokio::select! {
        ended = tokio::time::timeout(SHARD_JOIN_TIMEOUT, ended) => {
            ended.map_err(|_| DaemonError::StopTimeout)
        }
        () = asked.wait() => {
            tracing::warn!("stopped at once");
            Ok(())
        }
    }
}

async fn tell_to_stop(shards: &[ShardHandle]) {
    let until = clock::now() + STOP_TIMEOUT;
    for shard in shards {
        // A shard that is gone has stopped.
        let _ = shard.mailbox.send(Message::Stop { until }).await;
    }
}

async fn join(shards: Vec<ShardHandle>) {
    let join = move || shards.into_iter().for_each(ShardHandle::join);
    // The threads do not panic here: their last notices have the reasons of their ends.
    let _ = tokio::task::spawn_blocking(join).await;
}

/// Signals and [`Stopper`]s, one after the other.
struct Asked {
    terminate: Signal,
    interrupt: Signal,
    stop: watch::Receiver<u32>,
}

impl Asked {
    fn new(stop: watch::Receiver<u32>) -> Result<Self, DaemonError> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())?, stop })
    }

    /// Resolves each time the end is asked for.
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            Ok(()) = self.stop.changed() => {}
        }
    }
}

/// Number of shards: the CPUs count that the affinity and the control group leave to the daemon.
fn shard_count(config: &Config) -> u32 {
    config.shard_count(std::thread::available_parallelism().map_or(1, usize::from))
}

fn spin_budgets(config: &Config) -> SpinBudgets {
    let spare = shard::allowed_cpus().len().saturating_sub(shard_count(config) as usize);
    let budgets = SpinBudgets::of(config.profile, spare);
    match config.shards.spin {
        Spin::Auto => budgets,
        Spin::For(period) => SpinBudgets { daemon_ns: period.nanos(), ..budgets },
    }
}

/// Raises the limit of files to two a handle and three a queue; the soft limit of 1024 is for
/// programs that use select(2).
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays at {:?}", limit.current);
    }
}
