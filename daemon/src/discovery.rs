//! Sources of discovery, asked again and again: where peers are is decided in
//! [`piped_control::discovery`].

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use piped_config::{Found, FoundNodes};
use piped_control::discovery::Source;

use crate::control::Control;
use crate::io::clock;

/// How often a directory is read. It is read, and not watched: a directory on a network, or one
/// whose whole content is exchanged by a link, tells nobody.
const EVERY: Duration = Duration::from_secs(1);

/// Reads the directory of `discovery.files` for as long as the daemon runs.
pub(crate) async fn follow_files(control: Rc<Control>) {
    let directory = control.config().discovery.files.clone();
    if directory.as_os_str().is_empty() {
        return;
    }
    let follow = async {
        let mut last = Seen::default();
        loop {
            let directory = directory.clone();
            // A file system that hangs has this thread, and the last addresses stay.
            let read = tokio::task::spawn_blocking(move || Seen::of(&directory)).await;
            let seen = read.unwrap_or_default();
            seen.log(&last);
            take(&control, Source::Files, seen.said.clone()).await;
            last = seen;
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = control.stopped() => {}
        () = follow => {}
    }
}

/// Has what a source said decided on, and told to the shards once it is due.
async fn take(
    control: &Rc<Control>,
    source: Source,
    said: Result<BTreeMap<String, Found>, String>,
) {
    let due = control.decide(|core, now| {
        core.hear(source, said, now);
        core.discovery().due()
    });
    if let Some(due) = due {
        tokio::time::sleep(Duration::from_nanos(due.since(clock::now()).0)).await;
        control.decide(|core, now| core.settle(now));
        control.tell_shards().await;
    }
}

/// What a directory had when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    said: Result<BTreeMap<String, Found>, String>,
    /// One line for each file that names no node.
    wrong: Vec<String>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { said: Ok(BTreeMap::new()), wrong: Vec::new() }
    }
}

impl Seen {
    fn of(directory: &Path) -> Self {
        match FoundNodes::read(directory) {
            Ok(FoundNodes { nodes, wrong }) => Self { said: Ok(nodes), wrong },
            Err(error) => Self { said: Err(words(directory, &error)), wrong: Vec::new() },
        }
    }

    /// Writes to the log what is wrong now and was not before.
    fn log(&self, before: &Self) {
        if let Err(error) = &self.said
            && self.said != before.said
        {
            tracing::warn!(error, "discovery.files: the last known addresses stay");
        }
        for line in self.wrong.iter().filter(|line| !before.wrong.contains(line)) {
            tracing::warn!("discovery.files: {line}");
        }
    }
}

fn words(directory: &Path, error: &std::io::Error) -> String {
    format!("{} cannot be read: {error}", directory.display())
}
