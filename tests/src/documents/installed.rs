//! Where commands for a service manager run: a machine of its own with the package installed.

use rustix::process::{Resource, getrlimit};

use super::rules::Typed;
use crate::container::Container;
use crate::packages::Packages;
use crate::process::words;

/// What a reader of docs/operations.md has written by the time he starts the daemon.
const SITE: &str = "[access]\ngroups = [\"users\"]\n[exports.data]\npath = \"/srv/data\"\n";

/// As shipped; and what a machine has room for where that cannot be locked.
const STAGING: u64 = 128 << 20;
const LITTLE: &str = "[limits.global]\nstaging = \"4MiB\"\n";

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
        // A machine may not let its root raise limits (CAP_SYS_RESOURCE); then the unit cannot either, and the doctor is right.
        if getrlimit(Resource::Memlock).maximum.is_some_and(|most| most < STAGING) {
            eprintln!("this machine locks little memory, so the daemon has little staging");
            container.write("/etc/piped/conf.d/05-machine.toml", LITTLE);
        }
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
