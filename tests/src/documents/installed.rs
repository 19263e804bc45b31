//! Where commands for a service manager run: a machine of its own with the package installed.

use super::rules::Typed;
use crate::container::Container;
use crate::packages::Packages;
use crate::process::words;

/// What a reader of docs/operations.md has written by the time he starts the daemon.
const SITE: &str = "[access]\ngroups = [\"users\"]\n[exports.data]\npath = \"/srv/data\"\n";

/// A booted systemd, and the package `piped`.
#[derive(Debug)]
pub struct Installed(Container);

impl Installed {
    /// Boots it and installs; `None`, with the reason printed, where that cannot be.
    ///
    /// # Panics
    /// If the package cannot be installed.
    #[must_use]
    pub fn boot() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let packages = Packages::make(directory.path())?;
        let container = Container::boot()?;
        container.copy_in(&packages.piped, "/tmp/piped.deb");
        container.succeed(&["dpkg", "--install", "/tmp/piped.deb"]);
        container.shell("install -d -m 0755 /srv/data");
        container.write("/etc/piped/conf.d/10-site.toml", SITE);
        Some(Self(container))
    }

    /// Runs something of a document, as printed, by root.
    ///
    /// # Errors
    /// What went wrong, and what it printed.
    pub fn run(&self, typed: &Typed, fails: i32) -> Result<String, String> {
        let output = self.0.run("root", &["bash", "-euo", "pipefail", "-c", &typed.text]);
        if output.status.code() == Some(fails) {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("{}, and not {fails}:\n{}", output.status, words(&output)))
    }

    /// Ends it, and looks for what it has left.
    pub fn end(self) {
        self.0.end();
    }
}
