//! The daemon's own use of [`piped_config::preflight()`], before a start or a reload changes
//! anything.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use piped_config::{Config, Findings, Loaded, Look, Names};

/// Sockets that are open already.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) sockets: Vec<PathBuf>,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Held {
    /// Sockets of a configuration that runs.
    pub(crate) fn by(running: &Config) -> Self {
        Self {
            sockets: vec![running.client.socket.clone(), running.admin.socket.clone()],
            addresses: running.listen.address.into_iter().chain(running.metrics.address).collect(),
        }
    }
}

/// Checks a configuration against this machine, and logs the warnings. May block.
///
/// # Errors
/// All reasons, each with its place.
pub(crate) fn check(
    loaded: &Loaded,
    main_file: Option<&Path>,
    names: &Names,
    held: Held,
) -> Result<(), Findings> {
    let uid = rustix::process::geteuid().as_raw();
    let number = uid.to_string();
    let Held { sockets, addresses } = held;
    let user = names.user(uid).unwrap_or(&number);
    let look = Look { main_file, user, is_user: true, sockets, addresses, made: Vec::new() };
    let found = piped_config::preflight(loaded, names, &look);
    for warning in &found.warned {
        tracing::warn!("{warning}");
    }
    Findings::none_or(found.refused)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// Directives of `log.level` name parts of the daemon. A part that logs without such a name, or
    /// has the name and logs nothing, fails here.
    #[test]
    fn the_parts_that_log_are_those_that_can_be_named() {
        fn says(path: &Path) -> bool {
            if path.is_dir() {
                let entries = fs::read_dir(path).expect("sources");
                return entries.map(|entry| entry.expect("read").path()).any(|path| says(&path));
            }
            let text = fs::read_to_string(path).expect("source");
            ["info", "warn", "error", "debug", "trace"]
                .iter()
                .any(|level| text.contains(&format!("tracing::{level}!(")))
        }
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let entries = fs::read_dir(sources).expect("sources").map(|it| it.expect("read").path());
        let stem = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
        let found: BTreeSet<String> = entries.filter(|it| says(it)).map(|it| stem(&it)).collect();
        let named: BTreeSet<String> =
            piped_config::LOG_PARTS.iter().map(|it| (*it).to_owned()).collect();
        // Lines of the program itself have the name of the crate alone.
        let found: BTreeSet<String> = found.into_iter().filter(|it| it != "main").collect();
        assert_eq!(found, named, "config/src/log_level.rs: LOG_PARTS");
    }
}
