//! Files of exports as block devices: nbdkit with the plugin in `nbd/`, judged by programs that
//! nobody here wrote. What is not installed is skipped, and it is said so.
#![forbid(unsafe_code)]

mod faults;
mod file_system;
mod fio;
mod libnbd;
mod qemu;
mod refusals;

use std::path::PathBuf;

use system_tests::nbd::{Plugin, Served};
use system_tests::process::{Pair, Programs};

const MIB: usize = 1 << 20;

/// Two daemons, and the plugin; nbdkit runs beside alpha, the files lie at beta.
struct Stage {
    pair: Pair,
    plugin: Plugin,
    directory: tempfile::TempDir,
}

impl Stage {
    /// `None`: something is not there.
    fn set() -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a directory");
        let plugin = Plugin::build(directory.path())?;
        let pair = Pair::start(&programs, directory.path());
        Some(Self { pair, plugin, directory })
    }

    /// Serves a new file of beta's.
    fn serve_new(&self, name: &str, size: &str) -> Served {
        let (place, create) = (format!("beta:data/{name}"), format!("create={size}"));
        self.plugin.serve(&self.pair.alpha, name, &[&place, &create])
    }

    /// A file of the export, where it lies.
    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    /// A file beside the export.
    fn beside(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("text").to_owned()
    }

    /// Ends both daemons as a crash does and starts them again.
    fn restart_all(&mut self) {
        self.restart_beta(|| ());
        self.restart_alpha();
    }

    fn restart_alpha(&mut self) {
        self.pair.alpha.process.signal(rustix::process::Signal::KILL);
        self.pair.alpha.restart(&self.pair.settings[0]);
    }

    /// `meanwhile`: what happens while the daemon is away.
    fn restart_beta(&mut self, meanwhile: impl FnOnce()) {
        self.pair.beta.process.signal(rustix::process::Signal::KILL);
        self.pair.beta.process.exit();
        meanwhile();
        self.pair.beta.restart(&self.pair.settings[1]);
    }
}
