//! `auto` against other programs with their own size set by hand: the requests of nbdcopy, the
//! segments of UCX.

use std::path::Path as FilePath;
use std::process::Command;

use piped_core::modes::PlannerMode;

use super::scene::{self, Nodes, Path};
use super::sweep::Effort;
use crate::clock;
use crate::contest::{self, Arm};
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker};
use crate::machine::Cpus;
use crate::nbd::{Caching, Server};
use crate::outside::{Sides, is_installed, output};
use crate::rows::{KIB, MIB};
use crate::stats::{Better, Interval};
use crate::ucx::{Test, Ucx};

const ROUNDS: u32 = 11;

/// A program's setting and the median time with it, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Setting {
    bytes: usize,
    seconds: f64,
}

impl Setting {
    pub(super) const fn new(bytes: usize, seconds: f64) -> Self {
        Self { bytes, seconds }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) const fn seconds(&self) -> f64 {
        self.seconds
    }
}

/// `auto` and one setting of another program, swept.
#[derive(Debug, Clone)]
pub(super) struct Sweep {
    pub(crate) name: &'static str,
    /// Program, setting and work, in words.
    pub(crate) about: &'static str,
    pub(crate) settings: Vec<Setting>,
    /// Median of `auto`, in seconds.
    pub(crate) auto: f64,
    /// The best setting, and `auto` over it.
    pub(crate) best: usize,
    pub(crate) ratio: Interval,
    pub(crate) rounds: usize,
    pub(crate) discarded: u32,
}

/// A sweep that is not measured yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Knob {
    pub(crate) name: &'static str,
    about: &'static str,
    work: Work,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// The whole cached file of the peer.
    File,
    /// A get of the peer's memory: its bytes, and how many of it UCX makes in a round.
    Get(usize, u32),
}

pub(super) const KNOBS: [Knob; 3] = [
    Knob {
        name: "nbdcopy-256m",
        about: "nbdcopy --request-size, 256 MiB that nbdkit has in the page cache",
        work: Work::File,
    },
    Knob {
        name: "ucx-get-1m",
        about: "UCX_TCP_TX_SEG_SIZE, a get of 1 MiB (ucp_get)",
        work: Work::Get(MIB, 60),
    },
    Knob {
        name: "ucx-get-16m",
        about: "UCX_TCP_TX_SEG_SIZE, a get of 16 MiB (ucp_get)",
        work: Work::Get(16 * MIB, 8),
    },
];

/// Requests of nbdcopy, by doubling: its default is 256 KiB.
const REQUESTS: std::ops::RangeInclusive<usize> = 64 * KIB..=4 * MIB;

/// Segments of UCX over TCP, in which a get's bytes travel: its default is 8 KiB.
const SEGMENTS: std::ops::RangeInclusive<usize> = 8 * KIB..=512 * KIB;

/// Receive segments of UCX, which must not be shorter than those sent.
const SEGMENT_RECEIVED: usize = 64 * KIB;

/// Reads of the peer's file: their length, and how many at once.
const READ_BYTES: usize = 16 * MIB;
const READ_DEPTH: usize = 2;

fn doubling(range: std::ops::RangeInclusive<usize>) -> Vec<usize> {
    let sizes = std::iter::successors(Some(*range.start()), |bytes| Some(bytes * 2));
    sizes.take_while(|bytes| range.contains(bytes)).collect()
}

impl Knob {
    /// Measures it; the failure of a program that is not there has the
    /// command that installs it.
    pub(super) fn measure(
        self,
        nodes: &Nodes<'_>,
        cpus: Cpus,
        data: &FilePath,
        effort: Effort,
    ) -> Result<Sweep, Failure> {
        let rounds = effort.rounds();
        match self.work {
            Work::File => {
                for (tool, package) in [("nbdcopy", "libnbd-bin"), ("nbdkit", "nbdkit")] {
                    if !is_installed(tool) {
                        return Err(missing(tool, package));
                    }
                }
                let file = data.join(scene::CACHED_NAME);
                // Opening it for this node reads all of it into the page cache.
                drop(nodes.caller(Path::Cached, READ_BYTES)?);
                let (_server, uri) = Server::Nbdkit.serve(&file, Caching::Cached, cpus.second)?;
                let (mut asker, handle) = nodes.cached_at_peer()?;
                let arms = doubling(REQUESTS).into_iter().map(|bytes| {
                    let uri = &uri;
                    (bytes, move || {
                        let begun = clock::now();
                        let mut command = Command::new("taskset");
                        command.args(["-c", &cpus.first.to_string(), "nbdcopy"]);
                        command.arg(format!("--request-size={bytes}")).args([uri, "null:"]);
                        output(&mut command).doing("nbdcopy")?;
                        Ok(begun.elapsed().as_secs_f64())
                    })
                });
                let auto = || read_all(&mut asker, &handle);
                self.compare(arms, auto, rounds)
            }
            Work::Get(block, count) => {
                let ucx = Ucx::find().ok_or_else(|| missing("ucx_perftest", "ucx-utils"))?;
                let caller = nodes.caller(Path::Get, block)?;
                caller.warm(effort.warm())?;
                let sides = Sides { client_cpu: cpus.first, server_cpu: cpus.second, spin: true };
                let arms = doubling(SEGMENTS).into_iter().map(|bytes| {
                    let received = bytes.max(SEGMENT_RECEIVED);
                    let ucx = ucx
                        .clone()
                        .with("UCX_TCP_TX_SEG_SIZE", bytes.to_string())
                        .with("UCX_TCP_RX_SEG_SIZE", received.to_string());
                    (bytes, move || ucx.time(Test::Get, block, sides, count))
                });
                self.compare(arms, || caller.median_by(PlannerMode::Auto), rounds)
            }
        }
    }

    fn compare<'a, F: FnMut() -> Result<f64, Failure> + 'a>(
        self,
        settings: impl Iterator<Item = (usize, F)>,
        auto: impl FnMut() -> Result<f64, Failure> + 'a,
        rounds: u32,
    ) -> Result<Sweep, Failure> {
        let mut arms = Vec::new();
        let mut sizes = Vec::new();
        for (bytes, measure) in settings {
            sizes.push(bytes);
            arms.push(Arm::variant(bytes.to_string(), measure));
        }
        arms.push(Arm::subject("auto", auto));
        let subject = sizes.len();
        let rounds = contest::run(rounds.min(ROUNDS), &mut arms)?;
        let best = rounds.best(0..subject, Better::Smaller)?;
        let seconds = |arm| rounds.all_of(arm).map_or(f64::NAN, |found| found.median);
        let settings = sizes.iter().enumerate();
        Ok(Sweep {
            name: self.name,
            about: self.about,
            settings: settings.map(|(arm, bytes)| Setting::new(*bytes, seconds(arm))).collect(),
            auto: seconds(subject),
            best: sizes[best],
            ratio: rounds.ratio(subject, best)?,
            rounds: rounds.kept.len(),
            discarded: rounds.discarded,
        })
    }
}

fn missing(tool: &str, package: &str) -> Failure {
    Failure::new(format!("no {tool}: apt-get install {package}, or bench/peers.sh"))
}

/// Time of as many bytes as the file has, read at random places.
fn read_all(asker: &mut Asker, handle: &piped_client::Handle) -> Result<f64, Failure> {
    let ask = Ask { handle, block: READ_BYTES, depth: READ_DEPTH };
    let reads = handle.len() / READ_BYTES as u64;
    let (begun, mut asked) = (clock::now(), READ_DEPTH as u64);
    asker.reads_while(ask, |_, _| {
        asked += 1;
        asked <= reads
    })?;
    Ok(begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_double_from_the_least_to_the_largest() {
        assert_eq!(doubling(REQUESTS).len(), 7);
        assert!(doubling(REQUESTS).contains(&(256 * KIB)), "the default of nbdcopy");
        let segments = doubling(SEGMENTS);
        assert_eq!((segments[0], segments[6]), (8 * KIB, 512 * KIB));
    }
}
