//! A world in a process of its own: this program once more, which is told the world as JSON and
//! answers with its figures as JSON. All that a world took is free again when the next one begins.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use piped_ring::allocations;
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use system_tests::scale::{self, Churned, Figures, File, Machine, Options, Peers, Scene};
use system_tests::world::caught;

use crate::failure::{Doing as _, Failure};
use crate::{clock, contest, raw};

/// From so many bytes on, the allocator maps an allocation on its own, and unmaps what is freed. It
/// would raise that limit by itself, and keep what large tables left behind.
const MAPPED_MIN: &str = "131072";

/// What is done in a world.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Play {
    /// The nodes do nothing.
    Idle(Peers),
    /// The nodes play a scene.
    Scene(Scene),
    /// Clients read such files while disasters happen.
    Churn(File),
}

/// A world as its process is told it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct World {
    play: Play,
    nodes: usize,
    /// How many others each node asks, at most.
    peers: usize,
    /// Bytes of a block.
    block: u64,
    /// Bytes of staging of each node.
    staging: u64,
    seed: u64,
}

impl World {
    /// Nodes that all ask each other, as the tables have them.
    pub(super) const fn new(play: Play, nodes: usize) -> Self {
        let (block, staging) = (64 << 10, Machine::USUAL.staging);
        Self { play, nodes, peers: nodes - 1, block, staging, seed: 1 }
    }

    /// Something else is done there.
    pub(super) const fn playing(self, play: Play) -> Self {
        Self { play, ..self }
    }

    /// Each node asks so many others, at most.
    pub(super) const fn asking(self, peers: usize) -> Self {
        Self { peers, ..self }
    }

    /// What is asked for has so many bytes.
    pub(super) const fn with_blocks(self, block: u64) -> Self {
        Self { block, ..self }
    }

    /// Each node has so many bytes of staging.
    pub(super) const fn with_staging(self, staging: u64) -> Self {
        Self { staging, ..self }
    }

    /// All chance is that of a seed.
    pub(super) const fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The options of a world, whose heap is counted.
    pub(super) fn options(&self) -> Options {
        Options {
            peers: self.peers,
            block: self.block,
            machine: Machine { staging: self.staging, ..Machine::USUAL },
            heap: allocations::held_by_this_thread,
            ..Options::all(self.nodes, self.seed)
        }
    }

    fn name(&self) -> String {
        let (nodes, asked) = (self.nodes, self.options().asked());
        match self.play {
            Play::Idle(with) => format!("idle, {nodes} nodes, {asked} peers {}", with.name()),
            Play::Scene(scene) => format!("{}, {nodes} nodes, {asked} asked", scene.name()),
            Play::Churn(_) => format!("disasters, {nodes} nodes, {asked} asked"),
        }
    }

    /// Has another process play an idle world or a scene, and says in the log what that took.
    ///
    /// # Errors
    /// The scene cannot be played so, a promise was broken, or the process was killed.
    pub(super) fn figures(&self) -> Result<Figures, String> {
        contest::check().map_err(|error| error.to_string())?;
        let begun = clock::now();
        let found: Result<Figures, String> =
            self.elsewhere().map_err(|error| error.to_string()).flatten();
        let (name, seconds) = (self.name(), begun.elapsed().as_secs_f64());
        match &found {
            Ok(it) => eprintln!(
                "bench: {name}: {} events in {seconds:.0} s; up {}, took {}, {:?} requests, {:?}",
                it.events, it.up, it.took, it.requests, it.costs
            ),
            Err(error) => eprintln!("bench: {name}: {error}"),
        }
        found
    }

    /// Has another process live a world with disasters: what it went through, or the promise that
    /// was broken.
    ///
    /// # Errors
    /// The process did not come to an end: it was killed, or could not be started.
    pub(super) fn churned(&self) -> Result<Result<Churned, String>, Failure> {
        self.elsewhere()
    }

    fn elsewhere<T: DeserializeOwned>(&self) -> Result<Result<T, String>, Failure> {
        let mut process = Command::new(std::env::current_exe()?);
        process.env("MALLOC_MMAP_THRESHOLD_", MAPPED_MIN).arg("scale-world");
        process.arg(serde_json::to_string(self).doing("a world")?).stdin(Stdio::null());
        let ended = process.stderr(Stdio::inherit()).output()?;
        if !ended.status.success() {
            let was_killed = ended.status.signal() == Some(Signal::KILL.as_raw());
            let why = if was_killed { ": this machine may have too little memory" } else { "" };
            return Err(Failure::new(format!("its process ended by {}{why}", ended.status)));
        }
        serde_json::from_slice(&ended.stdout).doing("figures of a world")
    }
}

/// Plays the world of this process, and writes what it showed.
pub(crate) fn play(world: &str) -> Result<(), Failure> {
    raw::end_with_parent()?;
    let world: World = serde_json::from_str(world).doing("a world")?;
    let options = world.options();
    match world.play {
        Play::Idle(peers) => write(|| scale::idle(options, peers)),
        Play::Scene(scene) => write(|| scene.play(options)),
        Play::Churn(file) => write(|| scale::churn(options, file)),
    }
}

fn write<T: Serialize>(world: impl FnOnce() -> Result<T, String>) -> Result<(), Failure> {
    let mut found = Err(String::new());
    if let Some(broken) = caught(|| found = world()) {
        found = Err(format!("a promise was broken: {broken}"));
    }
    println!("{}", serde_json::to_string(&found).doing("figures of a world")?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use piped_core::units::Nanos;

    use super::*;

    #[test]
    fn a_world_and_its_figures_are_the_same_on_the_other_side() {
        let world = World::new(Play::Scene(Scene::Incast), 9).asking(3).with_seed(7);
        let told = serde_json::to_string(&world).expect("it is JSON");
        let heard: World = serde_json::from_str(&told).expect("it is JSON");
        assert_eq!(format!("{heard:?}"), format!("{world:?}"));
        let failures = [("PeerLost".to_owned(), 2)].into();
        let took = Nanos(u64::MAX);
        let figures = Figures { took, rates: vec![0.5], failures, ..Figures::default() };
        for found in [Ok(figures), Err("a promise was broken".to_owned())] {
            let told = serde_json::to_string(&found).expect("it is JSON");
            let heard: Result<Figures, String> = serde_json::from_str(&told).expect("it is JSON");
            assert_eq!(heard, found);
        }
    }
}
