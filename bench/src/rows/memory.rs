//! Memory that programs lend: reads into each kind against the arena's own, and a gibibyte that is
//! lent beside another client.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use piped_client::{Buffer, Client, Lent, OpenOptions};
use piped_core::modes::Profile;
use rustix::fs::{MemfdFlags, SealFlags};

use super::{Bench, Entry, FILE_NAME, Group, KIB, MIB, MOMENT, floor};
use crate::clock;
use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nodes::{Node, profile_name};
use crate::raw::area::Area;
use crate::report::{Row, Unit};
use crate::stats::{Bar, Interval};

const PROFILE: Profile = Profile::Latency;

/// Rows of memory that programs lend.
pub(crate) static MEMORY: Group =
    Group { name: "memory", rows_stand_alone: true, entries: &ENTRIES };

const ENTRIES: [Entry; 18] = [
    ("lent-sealed-4k", into_lent),
    ("lent-sealed-64k", into_lent),
    ("lent-sealed-1m", into_lent),
    ("lent-private-4k", into_lent),
    ("lent-private-64k", into_lent),
    ("lent-private-1m", into_lent),
    ("lent-shared-4k", into_lent),
    ("lent-shared-64k", into_lent),
    ("lent-shared-1m", into_lent),
    ("lent-sealed-64k-alone", into_lent),
    ("lent-sealed-1m-alone", into_lent),
    ("lent-private-64k-alone", into_lent),
    ("lent-private-1m-alone", into_lent),
    ("lent-shared-64k-alone", into_lent),
    ("lent-shared-1m-alone", into_lent),
    ("lend-1g-time", time),
    ("lend-1g-beside", beside),
    ("lend-1g-against-copies", beside),
];

/// Length of the arena, and of memory from which a block is taken.
const POOL: usize = 16 << 20;

/// Length of the area that is lent as a whole.
const LARGE: usize = 1 << 30;
/// Rounds in which that is done.
const LARGE_ROUNDS: u32 = 15;

/// Lent memory, and what must outlive it.
struct Own {
    buffer: Option<Buffer>,
    _lent: Lent,
    _area: Option<Area>,
}

impl Own {
    /// Lends memory of a kind that a row's name has, with a buffer of `block` bytes at its start.
    fn lend(client: &Client, name: &str, block: usize) -> Result<Self, Failure> {
        let length = if name.ends_with("-alone") { block } else { POOL };
        let (lent, area) = if name.starts_with("lent-private") {
            let area = Area::new(length)?;
            (area.lend(client)?, Some(area))
        } else if name.starts_with("lent-sealed") {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memfd = rustix::fs::memfd_create(c"bench", flags).doing("a memfd")?;
            rustix::fs::ftruncate(&memfd, length as u64).doing("a memfd's length")?;
            fill(&memfd, length)?;
            rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK).doing("a memfd's seal")?;
            (client.lend_memfd(&memfd).doing("lend a memfd")?, None)
        } else {
            let file: File = tempfile::tempfile_in("/dev/shm").doing("a file of memory")?;
            fill(&file, length)?;
            (client.lend_shared(&file).doing("lend shared memory")?, None)
        };
        let buffer = Some(lent.buffer(0, block).doing("a buffer")?);
        Ok(Self { buffer, _lent: lent, _area: area })
    }
}

/// Memory as a program has it that has used all of it before.
fn fill(file: impl AsFd, length: usize) -> Result<(), Failure> {
    let bytes = vec![7; MIB];
    for at in (0..length).step_by(bytes.len()) {
        let part = &bytes[..bytes.len().min(length - at)];
        let written = rustix::io::pwrite(&file, part, at as u64);
        assert_eq!(written.doing("bytes of a file of memory")?, part.len(), "memory takes all");
    }
    Ok(())
}

fn into_lent(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let size = name.trim_end_matches("-alone").rsplit('-').next();
    let block = match size {
        Some("4k") => 4 * KIB,
        Some("64k") => 64 * KIB,
        _ => MIB,
    };
    let file = bench.file()?;
    let other = bench.cpus.second;
    bench.with_pair(PROFILE, |bench, pair| {
        let connect = || Asker::connect(&pair.a, Place::Spin(other), POOL as u64);
        let (mut own, mut lending) = (connect()?, connect()?);
        let mut memory = Own::lend(&lending.client, name, block)?;
        lending.use_buffer(memory.buffer.take().expect("lent with one"));
        let open = |asker: &Asker| asker.client.open_file(&file, OpenOptions::read()).doing("open");
        let handles = [open(&own)?, open(&lending)?];
        let ask = |handle| Ask { handle, block, depth: 1 };
        let mut arms = vec![
            Arm::variant("the arena's own".to_owned(), || {
                Ok(floor::p50(&own.reads(ask(&handles[0]), MOMENT)?))
            }),
            Arm::variant("lent".to_owned(), || {
                Ok(floor::p50(&lending.reads(ask(&handles[1]), MOMENT)?))
            }),
        ];
        let rounds = bench.rounds(&mut arms)?;
        let found = rounds.all_ratio(1, 0)?;
        let [arena, lent] = [0, 1].map(|arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median));
        let note = format!(
            "reads from this node's disk, one at a time: {} into the arena, {} into lent memory",
            floor::in_words(arena),
            floor::in_words(lent)
        );
        let (profile, unit) = (profile_name(PROFILE), Unit::FineRatio);
        // Memory of others that is shorter than a huge page lies where it lies.
        let row = match name.ends_with("-alone") && !name.starts_with("lent-private") {
            true => Row::reported(name, &profile, unit, found, note),
            false => Row::judged(name, &profile, unit, found, Bar::AtMost(1.03), note),
        };
        Ok(row.with_arms(&rounds, Unit::Seconds))
    })
}

/// A session that lends an area of a gibibyte again and again.
struct Lender {
    client: Client,
}

impl Lender {
    fn connect(node: &Node) -> Result<Self, Failure> {
        Ok(Self { client: Client::connect(&node.client_socket).doing("connect")? })
    }

    /// Seconds of one lend.
    fn lend(&self) -> Result<f64, Failure> {
        let area = Area::new(LARGE)?;
        let begun = clock::now();
        let lent = area.lend(&self.client)?;
        let took = begun.elapsed().as_secs_f64();
        drop(lent);
        Ok(took)
    }
}

fn time(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    bench.with_pair(PROFILE, |bench, pair| {
        let lender = Lender::connect(&pair.a)?;
        let mut arms = vec![Arm::variant("lend 1 GiB".to_owned(), || lender.lend())];
        let rounds = bench.chosen(bench.rounds_at_most(LARGE_ROUNDS), &mut arms)?;
        let found: Interval = rounds.all(|round| round.values[0])?;
        let note = "a private area of 1 GiB with all its pages, until the first buffer can be made";
        Ok(Row::reported(name, &profile_name(PROFILE), Unit::Seconds, found, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// A program that has and copies as much memory as one that lends an area does, without lending.
fn copy() {
    let area = std::hint::black_box(vec![7_u8; LARGE]);
    drop(std::hint::black_box(area.clone()));
}

/// 99th percentile of a client's reads, in seconds, while `work` is done over and over.
fn p99_beside(
    asker: &mut Asker,
    ask: Ask<'_>,
    work: impl Fn() -> Result<(), Failure> + Sync,
) -> Result<f64, Failure> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                work()?;
            }
            Ok::<_, Failure>(())
        });
        let timing = asker.reads(ask, 10 * MOMENT);
        over.store(true, Ordering::Relaxed);
        working.join().map_err(|_| Failure::new("the work broke off"))??;
        Ok(timing?.percentile(0.99))
    })
}

fn beside(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    bench.data()?;
    let file = bench.file()?;
    let other = bench.cpus.second;
    bench.with_pair(PROFILE, |bench, pair| {
        let lender = Lender::connect(&pair.a)?;
        let mut asker = Asker::connect(&pair.a, Place::Spin(other), POOL as u64)?;
        let handle = asker.client.open_file(&file, OpenOptions::read()).doing(FILE_NAME)?;
        let ask = Ask { handle: &handle, block: 4 * KIB, depth: 1 };
        let asker = std::cell::RefCell::new(&mut asker);
        let (first, words) = match name {
            "lend-1g-beside" => (
                Arm::variant("alone".to_owned(), || {
                    Ok(asker.borrow_mut().reads(ask, 10 * MOMENT)?.percentile(0.99))
                }),
                "alone",
            ),
            _ => (
                Arm::variant("beside copies".to_owned(), || {
                    p99_beside(&mut asker.borrow_mut(), ask, || {
                        copy();
                        Ok(())
                    })
                }),
                "beside a program that copies as much",
            ),
        };
        let lending = Arm::variant("beside".to_owned(), || {
            p99_beside(&mut asker.borrow_mut(), ask, || lender.lend().map(drop))
        });
        let mut arms = vec![first, lending];
        let rounds = bench.chosen(bench.rounds_at_most(LARGE_ROUNDS), &mut arms)?;
        let found = rounds.all_ratio(1, 0)?;
        let [other, beside] = [0, 1].map(|arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median));
        let note = format!(
            "p99 of another client's reads of 4 KiB: {} {words}, {} while areas of 1 GiB are lent",
            floor::in_words(other),
            floor::in_words(beside)
        );
        let bar = Bar::AtMost(2.0);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}
