//! Where a document about installing and operating runs, from its first line to its last: a machine
//! of its own, on which nothing of piped is there but what was built.
//!
//! The project lies at [`PROJECT`], as it is when it was built: with programs in `target/release`
//! and packages in `target/debian`, which are of the build that runs the test.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::rules::{How, Typed};
use super::world::PROJECT;
use crate::container::Container;
use crate::packages::Packages;
use crate::process::{Programs, words};

/// As shipped; and what a machine has room for where that cannot be locked: for the service, in its
/// environment, so that piped's own directories are as a reader finds them.
const STAGING: u64 = 128 << 20;
const LITTLE: &str = "[Service]\nEnvironment=PIPED_LIMITS__GLOBAL__STAGING=4MiB\n";

/// What was built is there already.
const CARGO: &str = "#!/bin/sh\n[ \"$*\" = \"build --release\" ]\n";

/// A booted systemd, and no piped yet.
#[derive(Debug)]
pub struct Machine(Container);

impl Machine {
    /// Boots it; `None`, with the reason printed, where that cannot be.
    ///
    /// # Panics
    /// If something of the project is not there.
    #[must_use]
    pub fn boot(packages: &Packages, programs: &Programs, project: &Path) -> Option<Self> {
        let container = Container::boot()?;
        let release = format!("{PROJECT}/target/release");
        let debian = format!("{PROJECT}/target/debian");
        container.shell(&format!("mkdir -p {PROJECT}/config {PROJECT}/systemd {release} {debian}"));
        for beforehand in ["/etc/piped", "/srv/data", "/usr/bin/piped"] {
            let there = container.path(beforehand).exists();
            assert!(!there, "{beforehand} is there before a document has made it");
        }
        let copy = |from: &Path, to: &str| {
            let name = from.file_name().expect("a file").to_string_lossy();
            container.copy_in(from, &format!("{to}/{name}"));
        };
        packages.all().into_iter().for_each(|package| copy(package, &debian));
        [&programs.piped, &programs.pipectl]
            .into_iter()
            .for_each(|program| copy(program, &release));
        copy(&project.join("config/piped.toml"), &format!("{PROJECT}/config"));
        for file in std::fs::read_dir(project.join("systemd")).expect("of the project") {
            copy(&file.expect("read").path(), &format!("{PROJECT}/systemd"));
        }
        container.write("/usr/local/bin/cargo", CARGO);
        container.shell("chmod 755 /usr/local/bin/cargo");
        // A machine may not let its root raise limits (CAP_SYS_RESOURCE); then the unit cannot
        // either, and the doctor is right.
        if getrlimit(Resource::Memlock).maximum.is_some_and(|most| most < STAGING) {
            eprintln!("this machine locks little memory, so the daemon has little staging");
            container.shell("mkdir -p /etc/systemd/system/piped.service.d");
            container.write("/etc/systemd/system/piped.service.d/machine.conf", LITTLE);
        }
        Some(Self(container))
    }

    /// Looks whether what is installed starts and answers.
    ///
    /// # Panics
    /// If it does not.
    pub fn serves(&self) {
        self.0.succeed(&["systemctl", "start", "piped.socket", "piped.service"]);
        let status = self.0.succeed(&["pipectl", "status", "--json"]);
        assert!(status.contains("\"shards\""), "{status}");
    }

    /// Runs something of a document, as printed, by root.
    ///
    /// # Errors
    /// What went wrong, and what it printed.
    pub fn run(&self, typed: &Typed, fails: i32) -> Result<String, String> {
        if typed.how != How::ToItsEnd || typed.on_beta {
            return Err("only what ends, and is typed here, runs on a machine".to_owned());
        }
        let script = format!("cd {PROJECT}\n{}", typed.text);
        let output = self.0.run("root", &["bash", "-euo", "pipefail", "-c", &script]);
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
