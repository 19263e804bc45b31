//! Reads of a file at another node, against other servers of files: nbdkit, qemu-storage-daemon and
//! bare sockets.
//!
//! Each serves the same file on the second CPU, and a client on the first reads at random places,
//! one request at a time. What is best is chosen by the odd rounds.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use piped_client::{Handle, OpenOptions};
use piped_core::modes::Profile;

use crate::clock;
use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::machine;
use crate::nbd::{Caching, Server as NbdServer};
use crate::nodes::{EXPORT, PEER, Pair, profile_name};
use crate::outside::is_installed;
use crate::raw::Timing;
use crate::raw::files::{How, Server};
use crate::report::{Row, Unit};
use crate::rows::peers::best_in_words;
use crate::rows::{Bench, FILE_BYTES, FILE_NAME, KIB, MIB, MOMENT};
use crate::stats::{Bar, Better, Random, Verdict};

const PROFILE: Profile = Profile::Balanced;

/// Rounds of rows with this many arms.
const ROUNDS: u32 = 21;

/// Servers of other projects, and the packages that have them.
const TOOLS: [(NbdServer, &str); 2] =
    [(NbdServer::Nbdkit, "nbdkit"), (NbdServer::Qemu, "qemu-utils")];

/// Reads that fill bytes from an offset.
type Read<'a> = Box<dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a>;

/// Reads around the page cache, on both sides.
pub(super) fn cold(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (block, most) = match name {
        "file-cold-64k" => (64 * KIB, 0.9),
        "file-cold-1m" => (MIB, 0.6),
        _ => (16 * MIB, 0.7),
    };
    let chunks = [256 * KIB, MIB, How::WHOLE];
    let hows = chunks.into_iter().filter(|chunk| *chunk < block || *chunk == How::WHOLE);
    let hows: Vec<How> = hows.map(|chunk| How::Direct { chunk }).collect();
    compare(bench, name, (block, Bar::AtMost(most)), &hows, Caching::Cold)
}

/// Reads of a file that is in the page cache of its node.
pub(super) fn cached(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let block = match name {
        "file-cached-4k" => 4 * KIB,
        "file-cached-64k" => 64 * KIB,
        _ => MIB,
    };
    let hows = [How::SendFile, How::Cached { chunk: How::WHOLE }];
    compare(bench, name, (block, Bar::AtMost(1.0)), &hows, Caching::Cached)
}

fn compare(
    bench: &mut Bench,
    name: &'static str,
    (block, bar): (usize, Bar),
    hows: &[How],
    caching: Caching,
) -> Result<Row, Failure> {
    let moment = if block > MIB { 4 * MOMENT } else { MOMENT };
    let (client_cpu, server_cpu) = (bench.cpus.first, bench.cpus.second);
    let path = bench.file()?;
    prepare(&path, caching)?;
    let server = Server::start(&path).doing("the file server")?;
    let mut others: Vec<(String, Read<'_>)> = Vec::new();
    for &how in hows {
        let mut link = server.open(how, server_cpu).doing("the file server")?;
        others.push((how.name(), Box::new(move |offset, bytes| link.read(offset, bytes))));
    }
    let mut missing = Vec::new();
    for (server, package) in TOOLS {
        let tool = server.program();
        if !is_installed(tool) {
            missing.push(format!("; without {tool}: apt-get install {package}"));
            continue;
        }
        let mut nbd = server.connect(&path, caching, server_cpu)?;
        others.push((tool.to_owned(), Box::new(move |offset, bytes| nbd.read(offset, bytes))));
    }
    bench.with_pair(PROFILE, |bench, pair| {
        let (mut asker, handle) = open(pair, block)?;
        let ask = Ask { handle: &handle, block, depth: 1 };
        let mut arms: Vec<Arm<'_>> = Vec::new();
        for (told, mut read) in others {
            let (mut random, mut memory) = (Random::new(arms.len() as u64), vec![1; block]);
            arms.push(Arm::variant(told, move || {
                machine::pin(client_cpu)?;
                Ok(reads(&mut read, &mut memory, moment, &mut random)?.p50())
            }));
        }
        let subject = arms.len();
        // The estimators see the disk and the lane first.
        asker.reads(ask, 10 * MOMENT)?;
        arms.push(Arm::subject("piped", || Ok(asker.reads(ask, moment)?.p50())));
        let rounds = bench.chosen(bench.rounds_at_most(ROUNDS), &mut arms)?;
        let best = rounds.best(0..subject, Better::Smaller)?;
        let found = rounds.ratio(subject, best)?;
        let told = best_in_words(&rounds, [best, subject])?;
        let note = format!("p50: {told}{}", missing.concat());
        let mut row = Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds);
        if missing.len() == TOOLS.len() {
            // Bare sockets alone are a floor, and no peer.
            row.verdict = Verdict::Unchecked;
        }
        Ok(row)
    })
}

/// Takes the file out of the page cache, or reads all of it into there.
fn prepare(path: &Path, caching: Caching) -> Result<(), Failure> {
    let mut file = File::open(path).doing(path.display())?;
    match caching {
        Caching::Cold => {
            let advice = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(&file, 0, None, advice).doing("fadvise")
        }
        Caching::Cached => io::copy(&mut file, &mut io::sink()).map(drop).doing(path.display()),
    }
}

fn open(pair: &Pair, block: usize) -> Result<(Asker, Handle), Failure> {
    let arena_bytes = block.max(16 * MIB) as u64;
    let asker = Asker::connect(&pair.a, Place::BesideShard, arena_bytes)?;
    let options = OpenOptions::read();
    let handle = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, options).doing("open")?;
    Ok((asker, handle))
}

/// Times of reads at random places, one after the other, for a while.
fn reads(
    read: &mut Read<'_>,
    memory: &mut [u8],
    duration: Duration,
    random: &mut Random,
) -> io::Result<Timing> {
    let block = memory.len() as u64;
    let begun = clock::now();
    let mut latencies_ns = Vec::with_capacity(1 << 14);
    while begun.elapsed() < duration {
        let offset = random.below(FILE_BYTES / block) * block;
        let asked = clock::now();
        read(offset, memory)?;
        latencies_ns.push(asked.elapsed().as_nanos() as u64);
    }
    Ok(Timing::new(latencies_ns, begun.elapsed()))
}
