//! Measured costs of the stages over restarts: a file in the state directory.
//!
//! ```text
//!   start:  file ─► entries ─► shards (all but disks)
//!   an open:  the device's name ─► shards (its disk)
//!   each minute, and at the end:  shards ─► entries ─► file, if there is news
//! ```
//!
//! Every shard starts with the same figures, since they stand for the same hardware. If several
//! shards measured a stage, the figures with the most samples are kept. A stage that nobody used
//! stays in the file as it was. What candidates took in practice (the guard's knowledge) is not
//! kept. It compares them under the conditions of one time, and a veto from another time would hide
//! the better plan without a reason that can be shown.
//!
//! With `calibration = live` the file is read and written; `frozen` begins with it and does not
//! write, so plans are the same after every restart; `off` leaves it alone.
//!
//! Nothing here stops the daemon: without a file, or with one that is not to be believed, it begins
//! with what every machine begins with, and says so.

mod device;
pub mod format;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use piped_config::{AutoPath, Config};
use piped_core::ids::DeviceId;
use piped_core::modes::CalibrationMode;
use piped_engine::command::Command;
use piped_planner::kept::{KeptStage, KnownStage};
use piped_report::shard::StageResource;

use self::format::{Entry, FILE_BYTES_MAX, FormatFault, STAGES_MAX, StageName};
use crate::control::Control;
use crate::io::clock;
use crate::limits::{DEVICES_NAMED_MAX, KEEP_EVERY, KEEP_TIMEOUT};
use crate::open::Source;
use crate::replace::{replace, try_to_begin};
use crate::shard::message::{Message, Question};

/// The file's name in the state directory.
pub const FILE: &str = "stages.json";

/// The daemon's, and readable for its group.
const MODE: u32 = 0o640;

/// Bits of the mode with which others could have written it.
const WRITABLE: u32 = 0o022;

/// Confidence that has moved by this much since the last write is news.
const CONFIDENCE_NEWS: f64 = 0.1;

/// Keeps measured costs of stages in a file over restarts.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// The file; `None` if nothing is kept.
    path: Option<PathBuf>,
    /// Whether shards start with the costs in the file.
    recalls: bool,
    state: RefCell<State>,
    /// Held while the file is written.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<StageName, Entry>,
    /// There is something that the file does not say.
    news: bool,
    devices: HashMap<DeviceId, String>,
    trouble: Option<String>,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
enum ReadFault {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is a symbolic link, and those are not followed")]
    Link,
    #[error("it is no regular file")]
    Kind,
    #[error("it belongs to user {0}: only root's and the daemon's own is believed")]
    Owner(u32),
    #[error("its mode is {0:o}: others could have written it (chmod go-w)")]
    Mode(u32),
    #[error(transparent)]
    Format(#[from] FormatFault),
}

/// Does it aside, where a file system that hangs holds up nobody.
pub(crate) async fn in_time<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::time::timeout(KEEP_TIMEOUT, tokio::task::spawn_blocking(work)).await {
        Ok(done) => done.unwrap_or_else(|error| Err(io::Error::other(error))),
        Err(_) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the file system did not answer in time"))
        }
    }
}

/// Advice for a directory that cannot be written.
fn fix(kind: io::ErrorKind) -> &'static str {
    use io::ErrorKind::{
        NotADirectory, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    match kind {
        NotFound => "make the directory above it",
        NotADirectory => "something on its way is no directory: name another place",
        PermissionDenied | ReadOnlyFilesystem => "give the daemon's user the right to write there",
        StorageFull | QuotaExceeded => "make room there",
        _ => "name another place",
    }
}

impl Keeper {
    /// Reads what was kept.
    pub(crate) async fn start(config: &Config) -> Self {
        let Some(path) = directory(config).map(|directory| directory.join(FILE)) else {
            return Self::default();
        };
        let reading = path.clone();
        let read =
            in_time(move || Ok(read(&reading))).await.unwrap_or_else(|error| Err(error.into()));
        let file = path.display().to_string();
        let entries = read.unwrap_or_else(|error| {
            tracing::warn!(
                file,
                %error,
                "what was measured before is not used: stages begin as on a new machine. The file \
                 is written anew; remove it if this goes on"
            );
            Vec::new()
        });
        let recalls = config.planner.calibration != CalibrationMode::Off;
        tracing::info!(file, stages = entries.len(), used = recalls, "what was measured before");
        let entries = entries.into_iter().map(|entry| (entry.stage.clone(), entry)).collect();
        let state = RefCell::new(State { entries, ..State::default() });
        let keeper =
            Self { path: Some(path.clone()), recalls, state, turn: tokio::sync::Mutex::default() };
        // Who has given a place that cannot work hears it now and not when there is something to
        // keep.
        if config.planner.calibration == CalibrationMode::Live {
            let target = path.clone();
            keeper.note(&path, in_time(move || try_to_begin(&target, MODE)).await);
        }
        keeper
    }

    /// Why the file cannot be written.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.state.borrow().trouble.clone()
    }

    /// Tells the shards the costs to begin with. Disks are left out, since their numbers are not
    /// known before one is opened.
    pub(crate) async fn recall(&self, control: &Control) {
        let known = self.state.borrow().entries.values().filter_map(begun).collect();
        self.tell(control, known).await;
    }

    /// Something was opened: its device gets its name, and what was kept of it.
    pub(crate) async fn meet(&self, control: &Control, source: &Source) {
        let Source::File(file) = source else { return };
        let (device, file_system) = (file.device, file.file_system);
        if self.path.is_none() || self.state.borrow().devices.contains_key(&device) {
            return;
        }
        let naming = in_time(move || Ok(device::stable_name(device, file_system)));
        // A device that does not say who it is in time is asked again at the next open.
        let Ok(name) = naming.await else { return };
        let known = self.state.borrow_mut().name(device, name);
        self.tell(control, known).await;
    }

    async fn tell(&self, control: &Control, known: Vec<(StageResource, KeptStage)>) {
        if !self.recalls || known.is_empty() {
            return;
        }
        for shard in &control.shards {
            let command = Command::TakeKept(known.clone());
            // A shard that is gone is reported by its last notice.
            let _ = shard.mailbox.send(Message::Engine(command)).await;
        }
    }

    /// Keeps what the shards know, each minute until the daemon stops.
    pub(crate) async fn run(&self, control: &Control) {
        if self.path.is_none() {
            return;
        }
        while tokio::select! {
            () = control.stopped() => false,
            () = tokio::time::sleep(KEEP_EVERY) => true,
        } {
            self.keep(control).await;
        }
    }

    /// Keeps it now, if there is news.
    pub(crate) async fn keep(&self, control: &Control) {
        let Some(path) = self.path.clone() else { return };
        let Ok(_turn) = tokio::time::timeout(KEEP_TIMEOUT, self.turn.lock()).await else { return };
        let mut known = Vec::new();
        for shard in &control.shards {
            let asked = shard.mailbox.ask(|answer| Message::Ask(Question::Kept(answer))).await;
            known.extend(asked.unwrap_or_default());
        }
        let Some(entries) = self.state.borrow_mut().learn(known, clock::calendar()) else { return };
        let target = path.clone();
        let written = in_time(move || replace(&target, &format::write(entries), MODE)).await;
        self.note(&path, written);
    }

    fn note(&self, path: &Path, written: io::Result<()>) {
        let mut state = self.state.borrow_mut();
        state.news = written.is_err();
        let trouble = written.err().map(|error| {
            format!(
                "what is measured cannot be kept for the next start: {}: {error}; {}, or set \
                 node.state_dir = \"\"",
                path.display(),
                fix(error.kind())
            )
        });
        // Said when it begins, not each minute.
        if let Some(trouble) = trouble.as_ref().filter(|it| state.trouble.as_ref() != Some(*it)) {
            tracing::warn!("{trouble}");
        }
        state.trouble = trouble;
    }
}

impl State {
    /// A device has its name; what was kept of it.
    fn name(&mut self, device: DeviceId, name: String) -> Vec<(StageResource, KeptStage)> {
        let known = [false, true].map(|write| {
            let stage = StageName::Disk { device: name.clone(), write };
            let entry = self.entries.get(&stage)?;
            Some((StageResource::Disk { device, write }, entry.cost.clone()))
        });
        if self.devices.len() < DEVICES_NAMED_MAX {
            self.devices.insert(device, name);
        }
        known.into_iter().flatten().collect()
    }

    /// The entries to write, if the shards know more than the file.
    fn learn(&mut self, known: Vec<KnownStage>, now: f64) -> Option<Vec<Entry>> {
        let mut most = BTreeMap::<StageName, KnownStage>::new();
        // One without samples knows what the file says.
        for known in known.into_iter().filter(|known| known.samples > 0) {
            let Some(stage) = self.name_of(&known.what) else { continue };
            let best = most.entry(stage).or_insert_with(|| known.clone());
            if known.samples > best.samples {
                *best = known;
            }
        }
        for (stage, KnownStage { cost, .. }) in most {
            let old = self.entries.get(&stage);
            if old.is_none_or(|old| is_news(&old.cost, &cost)) {
                self.entries.insert(stage.clone(), Entry { stage, measured_unix: now, cost });
                self.news = true;
            }
        }
        while self.entries.len() > STAGES_MAX {
            let oldest = self.entries.values().min_by(|a, b| age(a).total_cmp(&age(b)));
            let Some(oldest) = oldest.map(|entry| entry.stage.clone()) else { break };
            self.entries.remove(&oldest);
        }
        self.news.then(|| self.entries.values().cloned().collect())
    }

    fn name_of(&self, what: &StageResource) -> Option<StageName> {
        match what.clone() {
            StageResource::Disk { device, write } => {
                let device = self.devices.get(&device)?.clone();
                Some(StageName::Disk { device, write })
            }
            StageResource::Net { peer, class, outbound, incoming } => {
                Some(StageName::Net { peer, class: class.into(), outbound, incoming })
            }
            StageResource::Copy => Some(StageName::Copy),
            StageResource::Check => Some(StageName::Check),
            StageResource::Peer { .. }
            | StageResource::Dial { .. }
            | StageResource::Cache { .. }
            | StageResource::Sync { .. }
            | StageResource::PeerSync { .. } => None,
        }
    }
}

fn age(entry: &Entry) -> f64 {
    entry.measured_unix
}

/// The stage and cost of an entry, for a shard's start; `None` for a disk, which is known only when
/// it is opened.
fn begun(entry: &Entry) -> Option<(StageResource, KeptStage)> {
    let what = match entry.stage.clone() {
        StageName::Disk { .. } => return None,
        StageName::Net { peer, class, outbound, incoming } => {
            StageResource::Net { peer, class: class.into(), outbound, incoming }
        }
        StageName::Copy => StageResource::Copy,
        StageName::Check => StageResource::Check,
    };
    Some((what, entry.cost.clone()))
}

/// Published costs move only when they have changed; what else is worth a write is that more is
/// known.
fn is_news(old: &KeptStage, new: &KeptStage) -> bool {
    old.lines != new.lines
        || old.sizes.len() != new.sizes.len()
        || (old.confidence - new.confidence).abs() >= CONFIDENCE_NEWS
}

/// The directory of the file, if costs are kept.
pub(crate) fn directory(config: &Config) -> Option<PathBuf> {
    match &config.node.state_dir {
        AutoPath::Auto => of_service(std::env::var_os("STATE_DIRECTORY").as_deref()),
        AutoPath::None => None,
        AutoPath::At(path) => Some(path.clone()),
    }
}

/// systemd's StateDirectory=; of several the first.
fn of_service(listed: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    let first = listed?.as_encoded_bytes().split(|&byte| byte == b':').next()?;
    let path = PathBuf::from(std::str::from_utf8(first).ok()?);
    path.is_absolute().then_some(path)
}

/// Reads the file, if it is one that only the daemon can have written.
fn read(path: &Path) -> Result<Vec<Entry>, ReadFault> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(ReadFault::Link),
        Err(error) => return Err(error.into()),
    };
    let facts = file.metadata()?;
    if !fs::FileType::is_file(&facts.file_type()) {
        return Err(ReadFault::Kind);
    }
    if facts.uid() != 0 && facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(ReadFault::Owner(facts.uid()));
    }
    if facts.mode() & WRITABLE != 0 {
        return Err(ReadFault::Mode(facts.mode() & 0o777));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(format::parse(&bytes)?)
}
