//! Reads of a file of which the page cache has half, against reads of one of which it has nothing,
//! and against a program that reads such a file through the cache.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use piped_client::OpenOptions;
use piped_core::modes::Profile;
use rustix::fs::{Advice, fadvise};

use crate::clock;
use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::machine;
use crate::nodes::{EXPORT, PEER, profile_name};
use crate::raw::Timing;
use crate::report::{Row, Unit};
use crate::rows::peers::in_words;
use crate::rows::{Bench, MIB, MOMENT};
use crate::stats::{Bar, Interval};

const PROFILE: Profile = Profile::Balanced;

/// Reads by the daemon of both files, and by a program of one.
pub(super) fn read(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (block, peer, most) = match name {
        "file-half-1m" => (MIB, None, 0.75),
        "file-half-16m" => (16 * MIB, None, 0.65),
        "file-half-1m-peer" => (MIB, Some(PEER), 0.9),
        _ => (16 * MIB, Some(PEER), 0.8),
    };
    let moment = if block > MIB { 4 * MOMENT } else { MOMENT };
    let (data, cpu) = (bench.data()?, bench.cpus.second);
    let files = ["none", "half", "other-half"].map(|of| format!("{of}-{block}"));
    for (file, cached) in files.iter().zip([0, block / 2, block / 2]) {
        make(&data.join(file), block, cached)?;
    }
    bench.with_pair(PROFILE, |bench, pair| {
        let mut sides = Vec::new();
        for file in &files[..2] {
            let asker = Asker::connect(&pair.a, Place::BesideShard, block.max(16 * MIB) as u64)?;
            let options = OpenOptions::read();
            let handle = match peer {
                Some(peer) => asker.client.open_export(Some(peer), EXPORT, file, options),
                None => asker.client.open_file(data.join(file), options),
            };
            sides.push((asker, handle.doing("open")?));
        }
        // The estimators see both ways first.
        for (asker, handle) in &mut sides {
            asker.reads(Ask { handle, block, depth: 1 }, 10 * MOMENT)?;
        }
        let told = ["past the cache", "both"];
        let mut arms: Vec<Arm<'_>> = Vec::new();
        for ((asker, handle), told) in sides.iter_mut().zip(told) {
            arms.push(Arm::variant(told.to_owned(), move || {
                Ok(asker.reads(Ask { handle, block, depth: 1 }, moment)?.p50())
            }));
        }
        let path = data.join(&files[2]);
        arms.push(Arm::variant("through the cache, here".to_owned(), move || {
            machine::pin(cpu)?;
            Ok(through(&path, block, moment)?.p50())
        }));
        let rounds = bench.rounds(&mut arms)?;
        let (found, through) = (rounds.all_ratio(1, 0)?, rounds.all_ratio(1, 2)?);
        let Interval { low, high, median } = through;
        let note = format!(
            "p50: {}; {median:.2} ({low:.2} .. {high:.2}) of what it takes through the cache",
            in_words(&rounds)
        );
        let bar = Bar::AtMost(most);
        let row = Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note);
        Ok(row.with_arms(&rounds, Unit::Seconds))
    })
}

/// Makes a file of which the page cache has the first bytes and no others.
fn make(path: &Path, length: usize, cached: usize) -> Result<(), Failure> {
    std::fs::write(path, vec![0x5a; length]).doing(path.display())?;
    let file = open(path)?;
    file.sync_all().doing("sync")?;
    fadvise(&file, 0, None, Advice::DontNeed).doing("fadvise")?;
    file.read_exact_at(&mut vec![0; cached], 0).doing(path.display())
}

/// A file that is not read ahead of what is asked.
fn open(path: &Path) -> Result<File, Failure> {
    let file = File::options().read(true).write(true).open(path).doing(path.display())?;
    fadvise(&file, 0, None, Advice::Random).doing("fadvise")?;
    Ok(file)
}

/// Times of reads through the page cache for a while, each of which finds the first half there.
fn through(path: &Path, block: usize, moment: std::time::Duration) -> Result<Timing, Failure> {
    let (file, mut memory) = (open(path)?, vec![1; block]);
    let (begun, mut latencies) = (clock::now(), Vec::new());
    while begun.elapsed() < moment {
        let half = block as u64 / 2;
        fadvise(&file, half, std::num::NonZeroU64::new(half), Advice::DontNeed).doing("fadvise")?;
        let asked = clock::now();
        file.read_exact_at(&mut memory, 0).doing(path.display())?;
        latencies.push(asked.elapsed().as_nanos() as u64);
    }
    Ok(Timing::new(latencies, begun.elapsed()))
}
