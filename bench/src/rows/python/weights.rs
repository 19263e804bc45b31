//! A cold file of weights of the other node, loaded into numpy's arrays.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::worker::Worker;
use super::{FEW_ROUNDS, PROFILE, seconds_of, unmeasured};
use crate::clock;
use crate::contest::Arm;
use crate::copiers::Copier;
use crate::failure::{Doing as _, Failure};
use crate::machine;
use crate::nodes::{EXPORT, PEER, Pair, profile_name};
use crate::raw::disk::Disk;
use crate::raw::{Wait, stream};
use crate::report::{Row, Unit};
use crate::rows::copy::{SETTLE, timed};
use crate::rows::nbd::make_cold;
use crate::rows::{Bench, KIB, MIB};
use crate::stats::{Bar, Better};

/// The file, and the tensors of 16 MiB in it.
const NAME: &str = "weights-2g.safetensors";
const TENSORS: usize = 128;

/// Rounds that choose the better of others.
const CHOOSING: u32 = 3;

/// What the better way by a local copy needs.
const TOOLS: [(&str, &str); 3] =
    [("nbdkit", "nbdkit"), ("nbdcopy", "libnbd-bin"), ("rsync", "rsync")];

/// A file of weights in a directory that B exports.
pub(super) struct Weights {
    path: PathBuf,
    tensors: usize,
}

impl Weights {
    /// Makes the file, if it does not exist, with so many tensors of 16 MiB.
    pub(super) fn make(
        folder: &Path,
        name: &str,
        tensors: usize,
        worker: &mut Worker,
    ) -> Result<Self, Failure> {
        let weights = Self { path: folder.join(name), tensors };
        if !weights.path.exists() {
            worker.ask(&json!(["make", weights.path, tensors]))?;
        }
        Ok(weights)
    }

    /// Where it is on this machine's disk.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its number of tensors.
    pub(super) fn tensors(&self) -> usize {
        self.tensors
    }

    /// Its name without directory.
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Its length in bytes.
    fn bytes(&self) -> Result<u64, Failure> {
        Ok(self.path.metadata().doing(self.path.display())?.len())
    }

    /// Takes it out of the page cache, and gives the device time to do what was asked before.
    pub(super) fn make_cold(&self) -> Result<(), Failure> {
        make_cold(&self.path)?;
        clock::pause(SETTLE);
        Ok(())
    }

    /// Seconds of a load by piped_io, cold, from A.
    pub(super) fn load(&self, pair: &Pair, worker: &mut Worker) -> Result<f64, Failure> {
        self.make_cold()?;
        let url = format!("piped://{PEER}/{EXPORT}/{}", self.name());
        worker.ask(&json!(["load", self.tensors, pair.a.client_socket, url]))
    }
}

/// Against a copy to the local disk by the faster of nbdcopy and rsync, and a load of the copy.
pub(super) fn against_copies(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let bar = Bar::AtMost(0.6);
    if let Some(row) = unmeasured(name, bar, &TOOLS) {
        return Ok(row);
    }
    let cpu = bench.cpus.second;
    with_weights(bench, |bench, pair, weights, worker| {
        let scratch = tempfile::tempdir_in(bench.data()?)?;
        let (source, copy) = (weights.path(), scratch.path().join("copy"));
        let copiers = [
            Copier::nbdcopy(source, &copy, cpu)?,
            Copier::rsync(source, &copy, scratch.path())?.without_sync(),
        ];
        let bytes = weights.bytes()?;
        let by = |copier: Copier| {
            let copy = copy.clone();
            Arm::variant(format!("{} and load_file", copier.name), move || {
                timed(source, &copy, bytes, || {
                    copier.copy()?;
                    let load = json!(["load_local", weights.tensors(), copy]);
                    worker.borrow_mut().ask(&load).map(drop)
                })
            })
        };
        let other = bench.best(CHOOSING, copiers.map(by).into(), Better::Smaller)?;
        let ours = || weights.load(pair, &mut worker.borrow_mut());
        let mut arms = [other, Arm::variant("piped_io".to_owned(), ours)];
        let rounds = bench.chosen(bench.rounds_at_most(FEW_ROUNDS), &mut arms)?;
        let (found, note) = (rounds.all_ratio(1, 0)?, seconds_of(&rounds));
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Against what takes longer, the disk alone or the wire alone.
pub(super) fn against_floor(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (client_cpu, peer_cpu) = (bench.cpus.first, bench.cpus.second);
    with_weights(bench, |bench, pair, weights, worker| {
        let (path, bytes) = (weights.path(), weights.bytes()?);
        let disk = |(block, depth): (usize, usize)| {
            Arm::variant(format!("disk, {depth} x {} KiB", block / KIB), move || {
                weights.make_cold()?;
                machine::pin(peer_cpu)?;
                let disk = Disk::open(path).doing(path.display())?;
                disk.read_whole(block, depth, Wait::Block).doing("the disk's floor")
            })
        };
        let wire = |(piece, cpus): (usize, [usize; 2])| {
            let [from, to] = cpus;
            let told = format!("wire, {} KiB from CPU {from} to CPU {to}", piece / KIB);
            Arm::variant(told, move || {
                stream::seconds(bytes, piece, cpus).doing("the wire's floor")
            })
        };
        let disks = [(256 * KIB, 16), (MIB, 4), (MIB, 8)].map(disk);
        let two = [peer_cpu, client_cpu];
        let wires = [(256 * KIB, two), (MIB, two), (MIB, [client_cpu; 2])].map(wire);
        let disk = bench.best(CHOOSING, disks.into(), Better::Smaller)?;
        let wire = bench.best(CHOOSING, wires.into(), Better::Smaller)?;
        let ours = || weights.load(pair, &mut worker.borrow_mut());
        let mut arms = [disk, wire, Arm::variant("piped_io".to_owned(), ours)];
        let rounds = bench.chosen(bench.rounds_at_most(FEW_ROUNDS), &mut arms)?;
        let found = rounds.all(|round| {
            let slower = round.values[0]?.max(round.values[1]?);
            Some(round.values[2]? / slower)
        })?;
        let (bar, note) = (Bar::AtMost(1.1), seconds_of(&rounds));
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Measures with daemons, the file and a worker that has loaded it once.
fn with_weights(
    bench: &mut Bench,
    body: impl FnOnce(&mut Bench, &Pair, &Weights, &RefCell<Worker>) -> Result<Row, Failure>,
) -> Result<Row, Failure> {
    // What is started from here may run anywhere, as it would for its users.
    machine::unpin()?;
    let mut worker = Worker::start(&bench.python()?, &machine::allowed_cpus())?;
    let weights = Weights::make(&bench.data()?, NAME, TENSORS, &mut worker)?;
    bench.with_pair(PROFILE, |bench, pair| {
        // The estimators see disk and lane first, and the interpreter its modules.
        weights.load(pair, &mut worker)?;
        body(bench, pair, &weights, &RefCell::new(worker))
    })
}
