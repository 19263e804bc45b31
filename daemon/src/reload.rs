//! Another configuration while running, as a whole or not at all.
//!
//! ```text
//!   load ─► resolve users, open exports ─► fits what runs? ─┬► replace, tell the shards ─► READY
//!      └──────────────┴─────────────────────────┴► refused ─┴► everything as before    ─► READY
//! ```
//!
//! Whatever can fail is done before anything changes. What changes is what the files say
//! differently than when they were last loaded; what `pipectl` changed meanwhile, and the files do
//! not, stays.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use piped_config::admin::{
    Change, ConfigKey, ConfigState, Configuration, RefusedReload, Reloaded, SourcesReport,
};
use piped_config::{Config, Findings, KeyFileError, Loaded, Names, NodeKey, Place, Sources, load};
use piped_control::access::Rules;
use piped_control::control::Live;
use piped_control::keyring::Keyring;
use piped_control::reload::{Next, Outside, until_restart};
use piped_core::units::Nanos;
use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::cluster::{self, CertificateNews};
use crate::control::Control;
use crate::io::clock;
use crate::limits::RELOAD_TIMEOUT;
use crate::open::export::Exports;
use crate::preflight::{self, Held};
use crate::sandbox::Sandbox;
use crate::{limiting, systemd, unix_socket};

/// Changes the level of the log.
pub type SetLevel = Box<dyn Fn(&str) -> Result<(), String> + Send>;

/// How a daemon came by its configuration, and comes by the next one.
pub(crate) struct Reload {
    /// None: it was given one, and there is nothing to read again.
    sources: Option<Sources>,
    set_level: Option<SetLevel>,
    /// The configuration as it was last loaded: what is in effect, and what waits for a restart.
    loaded: RefCell<Arc<Loaded>>,
    loaded_at: Cell<Nanos>,
    /// The places of keys that wait for a restart, in the configuration that is still in effect.
    started: BTreeMap<String, Place>,
    refused: RefCell<Option<(Nanos, String)>>,
    /// Settings that were changed by other means since, by key.
    runtime: RefCell<BTreeMap<String, Value>>,
    turn: Arc<Mutex<()>>,
}

impl std::fmt::Debug for Reload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reload").field("sources", &self.sources).finish_non_exhaustive()
    }
}

/// Everything for a change that nothing can stop any more.
struct Prepared {
    loaded: Loaded,
    rules: Rules,
    exports: Exports,
    keyring: Keyring,
    news: CertificateNews,
    names: Names,
    /// Exports that wait for a restart: the sandbox keeps their directories from us.
    outside: Outside,
    /// No other reload comes between what was read and what is in effect.
    _turn: OwnedMutexGuard<()>,
}

/// The state of the daemon before a reload.
struct Before {
    exports: Arc<Exports>,
    /// The exports as they are configured.
    offered: BTreeMap<String, piped_config::Export>,
    sandbox: Arc<Sandbox>,
    held: Held,
}

impl Reload {
    pub(crate) fn new(
        loaded: Loaded,
        sources: Option<Sources>,
        set_level: Option<SetLevel>,
    ) -> Self {
        Self {
            sources,
            set_level,
            started: loaded.origins.clone(),
            loaded: RefCell::new(Arc::new(loaded)),
            loaded_at: Cell::new(clock::now()),
            refused: RefCell::default(),
            runtime: RefCell::default(),
            turn: Arc::default(),
        }
    }

    /// This node's key, where the configuration says.
    ///
    /// # Errors
    /// There is one and it cannot be used, or there is none where a path says so.
    pub(crate) fn own_key(&self, config: &Config) -> Result<Option<NodeKey>, KeyFileError> {
        own_key(config, self.sources.as_ref())
    }

    /// Looks whether this machine has what the configuration names that was loaded last.
    ///
    /// # Errors
    /// All that it has not.
    pub(crate) fn check(&self, names: &Names, held: Held) -> Result<(), Findings> {
        let main_file = self.sources.as_ref().map(Sources::main_file);
        preflight::check(&self.loaded.borrow(), main_file, names, held)
    }

    /// The places that the configuration comes from, if from anywhere.
    pub(crate) fn sources(&self) -> Option<&Sources> {
        self.sources.as_ref()
    }

    /// A key was changed by other means than the files, until the daemon ends or the files change
    /// it.
    pub(crate) fn note_runtime(&self, key: &str, value: impl serde::Serialize) {
        let value = serde_json::to_value(value).unwrap_or_default();
        self.runtime.borrow_mut().insert(key.to_owned(), value);
    }

    /// How what runs relates to the files.
    pub(crate) fn state(&self, effect: &Config) -> ConfigState {
        let now = clock::now();
        let loaded = Arc::clone(&self.loaded.borrow());
        let refused = self.refused.borrow();
        ConfigState {
            files: loaded.files.iter().map(|file| file.display().to_string()).collect(),
            loaded_seconds_ago: now.since(self.loaded_at.get()).seconds(),
            restart_needed: effect.changes_to(&loaded.config),
            refused_reload: refused.as_ref().map(|(at, error)| RefusedReload {
                seconds_ago: now.since(*at).seconds(),
                error: error.clone(),
            }),
        }
    }

    /// Every key in effect, and where it came from.
    pub(crate) fn configuration(&self, effect: &Config) -> Configuration {
        let loaded = Arc::clone(&self.loaded.borrow());
        let runtime = self.runtime.borrow();
        let state = self.state(effect);
        let place = |key: &str| {
            let waits = state.restart_needed.iter().any(|change| change.key == key);
            if waits { self.started.get(key) } else { loaded.origins.get(key) }
        };
        let key = |(key, value): (String, Value)| {
            let origin = place(&key).map_or_else(|| "default".to_owned(), ToString::to_string);
            match runtime.get(&key) {
                Some(value) => ConfigKey {
                    key,
                    value: value.clone(),
                    origin: "runtime".to_owned(),
                    configured: Some(origin),
                },
                None => ConfigKey { key, value, origin, configured: None },
            }
        };
        let keys = effect.keys().map(key).collect();
        Configuration { keys, state, sources: self.sources.as_ref().map(SourcesReport::from) }
    }
}

fn own_key(config: &Config, sources: Option<&Sources>) -> Result<Option<NodeKey>, KeyFileError> {
    let path = config.security.key_path(sources.map(Sources::main_file));
    path.map(|path| NodeKey::read(&path)).transpose()
}

/// Loads the configuration again.
///
/// # Errors
/// Why everything is as it was: every reason, one a line.
pub(crate) async fn run(control: &Rc<Control>) -> Result<Reloaded, String> {
    systemd::reloading();
    let outcome = match prepare(control).await {
        Ok(prepared) => Ok(apply(control, prepared).await),
        Err(error) => Err(error),
    };
    match &outcome {
        Ok(done) => {
            let (changed, waiting) = (names(&done.changed), names(&done.state.restart_needed));
            let Reloaded { ended_sessions, ended_handles, .. } = done;
            tracing::info!(
                changed,
                restart_needed = waiting,
                ended_sessions,
                ended_handles,
                "configuration reloaded"
            );
            systemd::ready(&format!("{} serves", control.node));
        }
        Err(error) => {
            tracing::error!("the configuration stays as it is, the new one is refused:");
            error.lines().for_each(|reason| tracing::error!("{reason}"));
            *control.reload.refused.borrow_mut() = Some((clock::now(), error.clone()));
            let first = error.lines().next().unwrap_or_default();
            systemd::ready(&format!("{} serves; a reload was refused: {first}", control.node));
        }
    }
    outcome
}

fn names(changes: &[Change]) -> String {
    let names: Vec<&str> = changes.iter().map(|change| change.key.as_str()).collect();
    names.join(" ")
}

/// Everything that can fail.
async fn prepare(control: &Rc<Control>) -> Result<Prepared, String> {
    let sources = control.reload.sources.clone().ok_or("the daemon was started without files")?;
    let read = async {
        let turn = Arc::clone(&control.reload.turn).lock_owned().await;
        // What may hang in a file system holds the turn until it ends.
        let (exports, sandbox) = (control.exports(), Arc::clone(&control.sandbox));
        let (held, offered) = (Held::by(&control.config()), control.config().exports.clone());
        let before = Before { exports, offered, sandbox, held };
        tokio::task::spawn_blocking(move || read(&sources, before, turn)).await
    };
    let prepared = tokio::time::timeout(RELOAD_TIMEOUT, read)
        .await
        .map_err(|_| {
            "the files, or the directory of an export, cannot be read: their file system does not \
             answer"
                .to_owned()
        })?
        .map_err(|error| error.to_string())??;
    let next = &prepared.loaded.config;
    control.core.borrow().check_next(next, &prepared.keyring, &prepared.outside)?;
    // The last that can fail; it changes all limits or none.
    let before = Arc::clone(&control.reload.loaded.borrow());
    let limits = limiting::follow(control, &before.config.limits, &next.limits).await;
    limits.map_err(|refused| format!("[limits]: {}", refused.error))?;
    Ok(prepared)
}

/// Reads and checks the configuration, which may block.
fn read(sources: &Sources, before: Before, turn: OwnedMutexGuard<()>) -> Result<Prepared, String> {
    let Before { exports, offered, sandbox, held } = before;
    let loaded = load(sources).map_err(|findings| findings.to_string())?;
    let names = Names::of_system();
    let checked = preflight::check(&loaded, Some(sources.main_file()), &names, held);
    checked.map_err(|findings| findings.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    let rules = Rules::new(&loaded.config, &names, own).map_err(|error| error.to_string())?;
    let configured = &loaded.config.exports;
    let outside = configured.iter().filter(|(_, export)| !sandbox.admits(export));
    let outside: Outside = outside
        .map(|(name, export)| {
            let is_same = exports.is_at(name, &export.path);
            (name.clone(), until_restart(offered.get(name), export, is_same))
        })
        .collect();
    let exports = exports.follow(configured, &names, &outside);
    let exports = exports.map_err(|error| error.to_string())?;
    let own = own_key(&loaded.config, Some(sources));
    let own = own.map_err(|error| format!("security.key_file: {error}"))?;
    let keyring = Keyring::new(&loaded.config, own);
    let keyring = keyring.map_err(|fault| format!("`{}` {}", fault.key, fault.problem))?;
    let (keyring, news) = cluster::with_files(keyring, &loaded.config, Some(sources.main_file()));
    Ok(Prepared { news, loaded, rules, exports, keyring, names, outside, _turn: turn })
}

/// Nothing of this can fail; what the kernel refuses is logged.
async fn apply(control: &Rc<Control>, prepared: Prepared) -> Reloaded {
    let Prepared { loaded, rules, exports, keyring, news, names, outside, _turn } = prepared;
    news.log(&control.node, &keyring);
    for (name, export) in &outside {
        let until = match export {
            Some(_) => "until then it gives what it gave before and the files still give",
            None => "until then it is not offered",
        };
        tracing::warn!(
            "exports.{name} waits for a restart: what it is to be is outside of what the sandbox \
             admitted when the daemon started; {until}"
        );
    }
    let reload = &control.reload;
    let loaded = Arc::new(loaded);
    let before = reload.loaded.replace(Arc::clone(&loaded));
    reload.loaded_at.set(clock::now());
    reload.refused.take();
    let old = control.live();
    let next = Next {
        before: &before.config,
        after: &loaded.config,
        outside: &outside,
        rules,
        keyring,
        grants: exports.grants(),
        names,
    };
    let (done, gone) = control.decide(|core, _| {
        let done = core.reload(next);
        let gone = core.check_members(clock::times());
        (done, gone)
    });
    cluster::say_gone(&gone);
    control.replace_exports(exports);
    let mut changed = done.changed;
    let Live { config: effect, rules, keyring, .. } = control.live();
    changed.extend(changed_key(&old.keyring, &keyring));
    let doors = |rules: &Rules| [rules.clients_are_private(), rules.operators_are_private()];
    let (before_them, private) = (doors(&old.rules), doors(&rules));
    for (at, path) in [&effect.client.socket, &effect.admin.socket].into_iter().enumerate() {
        if before_them[at] != private[at]
            && let Err(error) = unix_socket::set_mode(path, !private[at])
        {
            tracing::error!(path = %path.display(), %error, "its permissions stay as they are");
        }
    }
    if before.config.log != loaded.config.log
        && let Some(set_level) = &reload.set_level
        && let Err(error) = set_level(&loaded.config.log.level)
    {
        tracing::error!(error, "log.level stays as it is");
    }
    for change in before.config.changes_to(&loaded.config) {
        reload.runtime.borrow_mut().remove(&change.key);
    }
    control.tell_shards().await;
    let (ended_sessions, ended_handles) = (done.ended_sessions, done.ended_handles);
    Reloaded { changed, ended_sessions, ended_handles, state: reload.state(&effect) }
}

/// This node's key, by its public half: its file may have changed where its name did not.
fn changed_key(before: &Keyring, after: &Keyring) -> Option<Change> {
    let [from, to] = [before, after].map(|ring| {
        let own = ring.identity().map(|it| it.own().public());
        own.map_or(Value::Null, |public| public.to_string().into())
    });
    (from != to).then(|| Change { key: "public_key".to_owned(), from, to })
}
