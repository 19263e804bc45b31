//! Names of a peer's directory, and what is known of its files, against gets and the kernel here.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use piped_client::{Access, Handle, OpenOptions};
use piped_core::call::{ANSWER_BYTES_MAX, Call, Entries, Stat};
use piped_core::modes::Profile;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};

use super::region::Region;
use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nodes::{EXPORT, PEER, profile_name};
use crate::raw::Timing;
use crate::report::{Row, Unit};
use crate::rows::{Bench, Entry, FILE_NAME, Group, KIB, MOMENT, floor};
use crate::stats::Bar;
use crate::{clock, machine};

/// Rows of names and stats.
pub(crate) static NAMES: Group = Group { name: "names", rows_stand_alone: true, entries: &ENTRIES };

const ENTRIES: [Entry; 4] =
    [("list-100k", list), ("list-100k-stats", list), ("stat-open", stat), ("stat-path", stat)];

/// Names a second that a listing has to give.
const LIST_BAR: f64 = 200_000.0;
/// Largest ratio of a stat to a get.
const STAT_BAR: f64 = 1.3;

/// Names in the directory.
const FILES: usize = 100_000;
const DIRECTORY: &str = "names";

/// What a get brings that a stat is compared with.
const GET_BYTES: usize = 64;

/// Both daemons take turns with the client on two CPUs.
const PROFILE: Profile = Profile::Balanced;

/// Names a second of a directory at a peer, in parts as long as an answer can be, one after the
/// other; beside what the kernel gives of the same directory here.
fn list(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let stats = name.ends_with("stats");
    let path = directory(&bench.data()?)?;
    bench.with_pair(PROFILE, |bench, pair| {
        let asker = Asker::connect(&pair.a, Place::BesideShard, 16 << 20)?;
        let open = |path| asker.client.open_directory(Some(PEER), EXPORT, path, Access::READ);
        let handle = open(DIRECTORY).doing("open")?;
        let mut asker = asker;
        let cpu = bench.cpus.second;
        let mut arms = [
            Arm::variant("getdents64 here".to_owned(), || {
                machine::pin(cpu)?;
                let begun = clock::now();
                let names = list_here(&path, stats)?;
                Ok(names as f64 / begun.elapsed().as_secs_f64())
            }),
            Arm::variant("piped".to_owned(), || {
                let begun = clock::now();
                let names = list_there(&mut asker, &handle, stats)?;
                Ok(names as f64 / begun.elapsed().as_secs_f64())
            }),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all(|round| round.values[1])?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median / 1e6);
        let call = if stats { "getdents64 and statx" } else { "getdents64" };
        let note = format!("{call} here {:.2} M/s, of a peer {:.2} M/s", told(0), told(1));
        let profile = profile_name(PROFILE);
        let row = match stats {
            true => Row::reported(name, &profile, Unit::PerSecond, found, note),
            false => {
                let bar = Bar::AtLeast(LIST_BAR);
                Row::judged(name, &profile, Unit::PerSecond, found, bar, note)
            }
        };
        Ok(row.with_arms(&rounds, Unit::PerSecond))
    })
}

/// A stat of a peer's open file, or of a path there whose names the kernel has in its cache,
/// against a get of the same client from the same node.
fn stat(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let by_path = name.ends_with("path");
    let file = bench.file()?;
    bench.with_pair(PROFILE, |bench, pair| {
        let Region { asker, handle: region, _export } = Region::open(pair)?;
        let (of, path) = match by_path {
            true => (open_directory(&asker)?, FILE_NAME),
            false => (open_file(&asker)?, ""),
        };
        let ask = Ask { handle: &region, block: GET_BYTES, depth: 1 };
        let (asker, cpu) = (RefCell::new(asker), bench.cpus.second);
        let mut arms = [
            Arm::variant("get of 64 bytes".to_owned(), || {
                Ok(asker.borrow_mut().reads(ask, MOMENT)?.p50())
            }),
            Arm::variant("stat".to_owned(), || {
                Ok(stats_there(&mut asker.borrow_mut(), &of, path.as_bytes(), MOMENT)?.p50())
            }),
            Arm::variant("statx here".to_owned(), || {
                machine::pin(cpu)?;
                Ok(stats_here(&file)?.p50())
            }),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all_ratio(1, 0)?;
        let told = |arm| rounds.all_of(arm).map(|it| floor::in_words(it.median));
        let [get, stat, here] = [0, 1, 2].map(|arm| told(arm).unwrap_or_default());
        let note = format!("a get {get}, a stat {stat}, p50; statx here {here}");
        let bar = Bar::AtMost(STAT_BAR);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

fn open_directory(asker: &Asker) -> Result<Handle, Failure> {
    asker.client.open_directory(Some(PEER), EXPORT, "", Access::READ).doing("open")
}

fn open_file(asker: &Asker) -> Result<Handle, Failure> {
    asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read()).doing("open")
}

/// Lists a directory from its first name to its last, and counts them.
fn list_there(asker: &mut Asker, of: &Handle, stats: bool) -> Result<usize, Failure> {
    machine::pin(asker.cpu)?;
    let mut buffer = asker.client.allocate(ANSWER_BYTES_MAX as usize).doing("allocate")?;
    let (mut cookie, mut names) = (Some(0), 0);
    while let Some(at) = cookie {
        let call = Call::List { path: b"", cookie: at, stats };
        let (answered, bytes) = asker.call(of, &call, buffer)?;
        buffer = answered;
        let entries = Entries::parse(&buffer.as_slice()[..bytes]).doing("a listing")?;
        names += entries.iter().count();
        cookie = entries.next();
    }
    if names < FILES {
        return Err(Failure::new(format!("{names} names of {FILES}")));
    }
    Ok(names)
}

/// Measures stats for a while, one at a time.
fn stats_there(
    asker: &mut Asker,
    of: &Handle,
    path: &[u8],
    duration: Duration,
) -> Result<Timing, Failure> {
    machine::pin(asker.cpu)?;
    let mut buffer = asker.client.allocate(4 * KIB).doing("allocate")?;
    let mut latencies = Vec::with_capacity(1 << 18);
    let start = clock::now();
    let mut begun = start;
    while begun - start < duration && latencies.len() < latencies.capacity() {
        let (answered, bytes) = asker.call(of, &Call::Stat { path }, buffer)?;
        buffer = answered;
        let ended = clock::now();
        latencies.push((ended - begun).as_nanos() as u64);
        Stat::parse(&buffer.as_slice()[..bytes]).doing("a stat")?;
        begun = ended;
    }
    Ok(Timing::new(latencies, begun - start))
}

/// Makes the directory, with empty files, if it is not there.
fn directory(data: &Path) -> Result<PathBuf, Failure> {
    let path = data.join(DIRECTORY);
    if !path.is_dir() {
        fs::create_dir(&path)?;
        // Names as programs have them: some in common, some that differ.
        (0..FILES).try_for_each(|number| {
            File::create(path.join(format!("checkpoint-{number:06}.bin"))).map(drop)
        })?;
    }
    Ok(path)
}

/// Lists a directory by the kernel, and counts its names.
fn list_here(path: &Path, stats: bool) -> Result<usize, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).doing(path.display())?;
    let mut memory = Vec::with_capacity(ANSWER_BYTES_MAX as usize);
    let mut names = RawDir::new(&directory, memory.spare_capacity_mut());
    let mut count = 0;
    while let Some(name) = names.next() {
        let name = name.doing("getdents64")?;
        if stats {
            let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::statx(&directory, name.file_name(), flags, wanted).doing("statx")?;
        }
        count += 1;
    }
    Ok(count)
}

/// Measures what the kernel takes to look at a path, for a while.
fn stats_here(path: &Path) -> Result<Timing, Failure> {
    let mut latencies = Vec::with_capacity(1 << 18);
    let start = clock::now();
    let mut begun = start;
    while begun - start < MOMENT && latencies.len() < latencies.capacity() {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        rustix::fs::statx(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted)
            .doing("statx")?;
        let ended = clock::now();
        latencies.push((ended - begun).as_nanos() as u64);
        begun = ended;
    }
    Ok(Timing::new(latencies, begun - start))
}
