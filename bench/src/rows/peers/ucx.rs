//! Gets and puts against UCX over TCP.

use piped_client::{Access, Handle};
use piped_core::modes::Profile;

use crate::clock;
use crate::contest::Arm;
use crate::failure::Failure;
use crate::load::{Ask, Asker, Place, Way};
use crate::nodes::profile_name;
use crate::outside::Sides;
use crate::raw::Timing;
use crate::report::{Row, Unit};
use crate::rows::peers::{UCX_ROUNDS, best_in_words, missing, region};
use crate::rows::{Bench, KIB, MIB, MOMENT};
use crate::stats::{Bar, Better};
use crate::ucx::{TOOL, Test, Ucx};

/// Packages that have [`TOOL`].
pub(super) const PACKAGE: &str = "ucx-utils";

/// What a row asks of both sides.
struct Asked {
    test: Test,
    block: usize,
    bar: Bar,
    /// Requests that UCX makes in a round.
    count: u32,
    /// Whether UCX spins, in each of its ways.
    spins: &'static [bool],
    profile: Profile,
}

/// A get against one of UCX, which spins, sleeps, or does what is best for it.
pub(super) fn get(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (spins, profile): (&[bool], _) = match name {
        "ucx-get-4k-spinning" => (&[true], Profile::Latency),
        "ucx-get-4k-asleep" => (&[false], Profile::Throughput),
        _ => (&[true, false], Profile::Latency),
    };
    let (block, most, count) = match name {
        "ucx-get-4k-spinning" => (4 * KIB, 1.8, 4000),
        "ucx-get-4k-asleep" => (4 * KIB, 0.5, 2000),
        "ucx-get-64k" => (64 * KIB, 0.75, 1500),
        "ucx-get-256k" => (256 * KIB, 0.5, 500),
        "ucx-get-1m" => (MIB, 0.35, 150),
        _ => (16 * MIB, 0.25, 15),
    };
    let bar = Bar::AtMost(most);
    compare(bench, name, &Asked { test: Test::Get, block, bar, count, spins, profile })
}

/// A put until its completion against one of UCX until the other side has it and has said so.
pub(super) fn put(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (block, count) = match name {
        "ucx-put-4k" => (4 * KIB, 4000),
        "ucx-put-64k" => (64 * KIB, 1500),
        "ucx-put-256k" => (256 * KIB, 500),
        _ => (MIB, 150),
    };
    let (bar, spins, profile) = (Bar::AtMost(1.0), &[true], Profile::Latency);
    compare(bench, name, &Asked { test: Test::Put, block, bar, count, spins, profile })
}

fn compare(bench: &mut Bench, name: &'static str, asked: &Asked) -> Result<Row, Failure> {
    let &Asked { test, block, bar, count, spins, profile } = asked;
    let Some(ucx) = Ucx::find() else {
        return Ok(missing(name, profile, bar, TOOL, PACKAGE));
    };
    let version = ucx.version();
    let cpus = bench.cpus;
    bench.with_pair(profile, |bench, pair| {
        let access = if test == Test::Put { Access::WRITE } else { Access::READ };
        let _export = region::export(pair, access, block)?;
        let (mut asker, handle) = region::open(pair, Place::BesideShard, access, MIB.max(block))?;
        let mut arms = Vec::new();
        for &spin in spins {
            let sides = Sides { client_cpu: cpus.first, server_cpu: cpus.second, spin };
            let told = if spin { "spinning" } else { "asleep" };
            let ucx = &ucx;
            arms.push(Arm::variant(format!("UCX {version} {told}"), move || {
                ucx.time(test, block, sides, count)
            }));
        }
        let subject = arms.len();
        arms.push(Arm::subject("piped", || match test {
            Test::Put => Ok(puts(&mut asker, &handle, block)?.p50()),
            _ => Ok(asker.reads(Ask { handle: &handle, block, depth: 1 }, 2 * MOMENT)?.p50()),
        }));
        let rounds = bench.chosen(bench.rounds_at_most(UCX_ROUNDS), &mut arms)?;
        let best = rounds.best(0..subject, Better::Smaller)?;
        let found = rounds.ratio(subject, best)?;
        let about = if test == Test::Put { " (UCX: a put, and 8 bytes back)" } else { "" };
        let note = format!("p50{about}: {}", best_in_words(&rounds, [best, subject])?);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Times of puts at random places, one after the other, for a while.
fn puts(asker: &mut Asker, handle: &Handle, block: usize) -> Result<Timing, Failure> {
    let begun = clock::now();
    let mut latencies_ns = Vec::with_capacity(1 << 14);
    while begun.elapsed() < 2 * MOMENT {
        latencies_ns.push(asker.one(Way::Write, handle, block)?.as_nanos() as u64);
    }
    Ok(Timing::new(latencies_ns, begun.elapsed()))
}
