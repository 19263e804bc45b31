//! The compared tasks. Each task is the same for both builds, and uses all of one: its client, its
//! two daemons, and for a copy its `pipectl`.

use std::path::Path;
use std::time::Duration;

use piped_client::{Access, Handle, OpenOptions};

use super::protocol::Measured;
use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place, Way};
use crate::machine::Cpus;
use crate::nodes::{EXPORT, PEER, Pair};
use crate::raw::Timing;
use crate::rows::copy::Cp;
use crate::rows::messages::Post;
use crate::rows::region::{self, Region};
use crate::rows::{FILE_NAME, KIB, MIB};

/// Sockets and directories for a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) pair: &'a Pair,
    pub(super) cpus: Cpus,
    /// Directory that the second daemon exports, with [`FILE_NAME`] and the file that is copied.
    pub(super) data: &'a Path,
}

/// Does its work for about that long.
pub(super) type Task<'a> = Box<dyn FnMut(Duration) -> Result<Measured, Failure> + 'a>;

/// Opens what a task needs: sessions, handles, regions.
type Open = for<'a> fn(Site<'a>) -> Result<Task<'a>, Failure>;

/// All tasks by name, in the order of measuring.
pub(super) const TASKS: [(&str, Open); 21] = [
    ("nop-1", |site| nop(site, 1)),
    ("nop-64", |site| nop(site, 64)),
    ("local-4k", |site| local(site, 4 * KIB)),
    ("local-1m", |site| local(site, MIB)),
    ("get-4k", |site| get(site, 4 * KIB)),
    ("get-4k-first", |site| on(site, site.cpus.first, of_median)),
    ("get-4k-second", |site| on(site, site.cpus.second, of_median)),
    ("get-4k-second-p99", |site| on(site, site.cpus.second, of_tail)),
    ("get-4k-rare", |site| rare(site, of_median)),
    ("get-4k-rare-p99", |site| rare(site, of_tail)),
    ("get-64k", |site| get(site, 64 * KIB)),
    ("get-64k-16", |site| crowd(site, 1)),
    ("get-64k-16x4", |site| crowd(site, 4)),
    ("get-1m", |site| get(site, MIB)),
    ("put-64k", |site| put(site, 64 * KIB)),
    ("file-1m", |site| file(site, MIB)),
    ("cached-4k-here", |site| cached(site, None, 4 * KIB)),
    ("cached-4k", |site| cached(site, Some(PEER), 4 * KIB)),
    ("cached-1m", |site| cached(site, Some(PEER), MIB)),
    ("message-64", |site| message(site, 64)),
    ("cp-64m", copy),
];

/// Name and length of the file that is copied.
pub(super) const COPIED: (&str, u64) = ("copied", 64 << 20);

const ARENA_BYTES: u64 = 16 << 20;

/// Length of the file that the page cache has.
const CACHED_BYTES: usize = 32 * MIB;

/// Pause before a request of a client that asks rarely.
const PAUSE: Duration = Duration::from_millis(1);

/// Requests of a session at once, where several sessions ask.
const DEPTH: usize = 16;

fn nop(site: Site<'_>, depth: usize) -> Result<Task<'_>, Failure> {
    let mut asker = Asker::connect(&site.pair.a, Place::Spin(site.cpus.second), ARENA_BYTES)?;
    if depth == 1 {
        return Ok(Box::new(move |duration| Ok(of_median(&asker.nops(duration)?))));
    }
    Ok(Box::new(move |duration| {
        let (rate, requests, _) = asker.nops_deep(depth, duration)?;
        Ok(Measured { seconds: 1.0 / rate, requests })
    }))
}

fn local(site: Site<'_>, block: usize) -> Result<Task<'_>, Failure> {
    let asker = Asker::connect(&site.pair.a, Place::BesideShard, ARENA_BYTES)?;
    let file = site.data.join(FILE_NAME);
    let handle = asker.client.open_file(&file, OpenOptions::read()).doing("open")?;
    Ok(reads(asker, handle, block))
}

fn get(site: Site<'_>, block: usize) -> Result<Task<'_>, Failure> {
    let mut region = Region::open(site.pair)?;
    Ok(Box::new(move |duration| {
        // Capture all of it, with its export.
        let region = &mut region;
        let ask = Ask { handle: &region.handle, block, depth: 1 };
        Ok(of_median(&region.asker.reads(ask, duration)?))
    }))
}

/// Gets of a client that waits as the daemon recommends, on this CPU.
fn on(site: Site<'_>, cpu: usize, of: fn(&Timing) -> Measured) -> Result<Task<'_>, Failure> {
    let region = Region::open(site.pair)?;
    let mut asker = Asker::connect(&site.pair.a, Place::Usual(cpu), ARENA_BYTES)?;
    let handle = region::open_at(&asker, Access::READ)?;
    Ok(Box::new(move |duration| {
        let _kept_open = &region;
        let ask = Ask { handle: &handle, block: 4 * KIB, depth: 1 };
        Ok(of(&asker.reads(ask, duration)?))
    }))
}

/// Gets with a pause before each.
fn rare(site: Site<'_>, of: fn(&Timing) -> Measured) -> Result<Task<'_>, Failure> {
    let mut region = Region::open(site.pair)?;
    Ok(Box::new(move |duration| {
        let region = &mut region;
        let begun = clock::now();
        let mut latencies = Vec::new();
        while begun.elapsed() < duration {
            clock::pause(PAUSE);
            let took = region.asker.one(Way::Read, &region.handle, 4 * KIB)?;
            latencies.push(took.as_nanos() as u64);
        }
        Ok(of(&Timing::new(latencies, begun.elapsed())))
    }))
}

/// Gets of 64 KiB of several sessions, [`DEPTH`] at once each; the mean time between two ends.
fn crowd(site: Site<'_>, sessions: usize) -> Result<Task<'_>, Failure> {
    let region = Region::open(site.pair)?;
    let mut askers = Vec::new();
    for _ in 0..sessions {
        let asker = Asker::connect(&site.pair.a, Place::BesideShard, ARENA_BYTES)?;
        let handle = region::open_at(&asker, Access::READ)?;
        askers.push((asker, handle));
    }
    Ok(Box::new(move |duration| {
        let _kept_open = &region;
        let rate = std::thread::scope(|scope| {
            let read = |(asker, handle): &mut (Asker, Handle)| {
                let ask = Ask { handle: &*handle, block: 64 * KIB, depth: DEPTH };
                Ok::<_, Failure>(asker.reads(ask, duration)?.rate())
            };
            let threads: Vec<_> =
                askers.iter_mut().map(|asker| scope.spawn(move || read(asker))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("it only returns failures"))
                .sum::<Result<f64, Failure>>()
        })?;
        let requests = (rate * duration.as_secs_f64()) as u64;
        Ok(Measured { seconds: 1.0 / rate, requests })
    }))
}

fn put(site: Site<'_>, block: usize) -> Result<Task<'_>, Failure> {
    let mut region = Region::open_for(site.pair, Access::WRITE)?;
    Ok(Box::new(move |duration| {
        let region = &mut region;
        let begun = clock::now();
        let mut latencies = Vec::new();
        while begun.elapsed() < duration {
            let took = region.asker.one(Way::Write, &region.handle, block)?;
            latencies.push(took.as_nanos() as u64);
        }
        Ok(of_median(&Timing::new(latencies, begun.elapsed())))
    }))
}

fn file(site: Site<'_>, block: usize) -> Result<Task<'_>, Failure> {
    let asker = Asker::connect(&site.pair.a, Place::BesideShard, ARENA_BYTES)?;
    let open = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read());
    let handle = open.doing("open")?;
    Ok(reads(asker, handle, block))
}

/// Reads of a file that the page cache has, here or of the peer.
fn cached<'a>(site: Site<'a>, peer: Option<&str>, block: usize) -> Result<Task<'a>, Failure> {
    let asker = Asker::connect(&site.pair.a, Place::BesideShard, ARENA_BYTES)?;
    // Of this arm alone, and written the usual way.
    let name = format!("cached-{}", std::process::id());
    let path = site.data.join(&name);
    std::fs::write(&path, vec![0x5a; CACHED_BYTES]).doing(path.display())?;
    let handle = match peer {
        Some(peer) => asker.client.open_export(Some(peer), EXPORT, &name, OpenOptions::read()),
        None => asker.client.open_file(&path, OpenOptions::read()),
    };
    Ok(reads(asker, handle.doing("open")?, block))
}

fn reads<'a>(mut asker: Asker, handle: Handle, block: usize) -> Task<'a> {
    Box::new(move |duration| {
        Ok(of_median(&asker.reads(Ask { handle: &handle, block, depth: 1 }, duration)?))
    })
}

fn message(site: Site<'_>, length: usize) -> Result<Task<'_>, Failure> {
    let mut post = Post::open(site.pair, length, site.cpus.second)?;
    Ok(Box::new(move |duration| Ok(of_median(&post.timing(Post::expected, duration)?))))
}

fn copy(site: Site<'_>) -> Result<Task<'_>, Failure> {
    let (name, bytes) = COPIED;
    // The destination is this arm's alone; both arms share the source.
    let destination = site.data.join(format!("{name}-{}", std::process::id()));
    let mut cp = Cp::new(site.pair, site.data.join(name), destination, bytes)?;
    Ok(Box::new(move |_| Ok(Measured { seconds: cp.timed()?, requests: 1 })))
}

fn of_median(timing: &Timing) -> Measured {
    Measured { seconds: timing.p50(), requests: timing.count() as u64 }
}

fn of_tail(timing: &Timing) -> Measured {
    Measured { seconds: timing.percentile(0.99), requests: timing.count() as u64 }
}
