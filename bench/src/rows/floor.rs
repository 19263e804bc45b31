//! The variants of a floor: {same CPU, two CPUs} × {block, spin}.

use std::time::Duration;

use crate::contest::Arm;
use crate::failure::Failure;
use crate::machine::{self, Cpus};
use crate::raw::disk::Disk;
use crate::raw::net::{Placement, Server, Shape, Way};
use crate::raw::{Timing, Wait};
use crate::rows::{Bench, MOMENT};
use crate::stats::{Better, Random};

/// Part of a timing that is compared.
pub(super) type Figure = fn(&Timing) -> f64;

const WAITS: [Wait; 2] = [Wait::Block, Wait::Spin];

/// Reads of a file from raw io_uring.
pub(super) fn disk<'a>(
    disk: &'a Disk,
    cpus: Cpus,
    (block, depth): (usize, usize),
    figure: Figure,
    duration: Duration,
) -> Vec<Arm<'a>> {
    disk_ways(cpus, move |wait, random| {
        Ok(figure(&disk.read(block, depth, wait, duration, random)?))
    })
}

/// Reads of a file in all variants, on the CPU that takes the device's interrupts or on the other
/// one.
pub(super) fn disk_ways<'a>(
    cpus: Cpus,
    read: impl Fn(Wait, &mut Random) -> Result<f64, Failure> + Copy + 'a,
) -> Vec<Arm<'a>> {
    let mut arms = Vec::new();
    for cpu in cpu_choices(cpus) {
        for wait in WAITS {
            let mut random = Random::new(arms.len() as u64);
            arms.push(Arm::variant(format!("CPU {cpu}, {}", wait.name()), move || {
                machine::pin(cpu)?;
                read(wait, &mut random)
            }));
        }
    }
    arms
}

fn cpu_choices(cpus: Cpus) -> Vec<usize> {
    if cpus.are_two() { vec![cpus.first, cpus.second] } else { vec![cpus.first] }
}

/// Places and waits of a connection's two sides. Two sides that spin on one CPU are left out: each
/// would wait for the end of the other's time slice.
pub(super) fn placements(cpus: Cpus) -> Vec<(String, Placement)> {
    let mut all = Vec::new();
    for server_cpu in cpu_choices(cpus) {
        for wait in WAITS {
            let same = server_cpu == cpus.first;
            if same && wait == Wait::Spin {
                continue;
            }
            let place = if same { "same CPU" } else { "two CPUs" };
            let name = format!("{place}, {}", wait.name());
            all.push((name, Placement { client_cpu: cpus.first, server_cpu, wait }));
        }
    }
    all
}

/// One request and its response at a time over TCP, with io_uring and without.
pub(super) fn net(server: &Server, cpus: Cpus, shape: Shape, duration: Duration) -> Vec<Arm<'_>> {
    let mut arms = Vec::new();
    for (name, way) in [("io_uring", Way::Turns), ("sockets", Way::Sockets)] {
        for (place, placement) in placements(cpus) {
            arms.push(Arm::variant(format!("{name}, {place}"), move || {
                Ok(server.exchange(shape, way, placement, duration)?.p50())
            }));
        }
    }
    arms
}

/// Chunk sizes that are tried for a large response.
const CHUNKS: [usize; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];

/// Rounds that choose among chunk sizes or ways to wait. An odd number: a median then moves only
/// with one more outlier.
pub(super) const CHOOSING_FLOOR: u32 = 5;

/// Responses of `response` bytes in all chunk sizes.
pub(super) fn net_chunks<'a>(
    server: &'a Server,
    cpus: Cpus,
    response: (usize, usize),
    figure: Figure,
) -> Vec<Arm<'a>> {
    let places = placements(cpus).into_iter();
    places.flat_map(|place| chunks(server, place, response, figure)).collect()
}

/// The best chunk size at each placement, chosen beforehand, because rounds with all of them would
/// hardly ever be without stolen time.
pub(super) fn net_best_chunks<'a>(
    bench: &mut Bench,
    server: &'a Server,
    response: (usize, usize),
    (figure, better): (Figure, Better),
) -> Result<Vec<Arm<'a>>, Failure> {
    let places = placements(bench.cpus).into_iter();
    let best = places
        .map(|place| bench.best(CHOOSING_FLOOR, chunks(server, place, response, figure), better));
    best.collect()
}

fn chunks<'a>(
    server: &'a Server,
    (name, placement): (String, Placement),
    (response, depth): (usize, usize),
    figure: Figure,
) -> Vec<Arm<'a>> {
    let chunks = CHUNKS.into_iter().filter(|chunk| *chunk <= response);
    let arm = |chunk: usize| {
        let shape = Shape { request: REQUEST_BYTES, response, chunk, depth };
        Arm::variant(format!("{} KiB, {name}", chunk >> 10), move || {
            Ok(figure(&server.exchange(shape, Way::Pieces, placement, MOMENT)?))
        })
    };
    chunks.map(arm).collect()
}

/// Bytes of a raw request: an offset and a length.
pub(super) const REQUEST_BYTES: usize = 16;

/// Shape of a get of that size in one piece.
pub(super) fn get_shape(bytes: usize) -> Shape {
    Shape { request: REQUEST_BYTES, response: bytes, chunk: bytes, depth: 1 }
}

pub(super) fn p50(timing: &Timing) -> f64 {
    timing.p50()
}

pub(super) fn rate(timing: &Timing) -> f64 {
    timing.rate()
}

/// Median of seconds or of a rate in people's units, for notes.
pub(super) fn in_words(seconds: f64) -> String {
    format!("{:.1} us", seconds * 1e6)
}
