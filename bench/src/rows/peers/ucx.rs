//! Gets against UCX over TCP.

use piped_client::Access;
use piped_core::modes::Profile;

use crate::contest::Arm;
use crate::failure::Failure;
use crate::load::Ask;
use crate::nodes::profile_name;
use crate::outside::{Sides, is_installed};
use crate::report::{Row, Unit};
use crate::rows::peers::{UCX_ROUNDS, best_in_words, missing, reader};
use crate::rows::{Bench, KIB, MIB, MOMENT};
use crate::stats::{Bar, Better};
use crate::ucx::{TOOL, Test, round_trip};

/// A get against one of UCX, which spins, sleeps, or does what is best for it.
pub(super) fn get(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (block, most, count) = match name {
        "ucx-get-4k-spinning" => (4 * KIB, 1.8, 4000),
        "ucx-get-4k-asleep" => (4 * KIB, 0.5, 2000),
        "ucx-get-64k" => (64 * KIB, 0.75, 1500),
        "ucx-get-256k" => (256 * KIB, 0.5, 500),
        "ucx-get-1m" => (MIB, 0.35, 150),
        _ => (16 * MIB, 0.25, 15),
    };
    let asleep = name.ends_with("asleep");
    let profile = if asleep { Profile::Throughput } else { Profile::Latency };
    let bar = Bar::AtMost(most);
    if !is_installed(TOOL) {
        return Ok(missing(name, profile, bar, "ucx_perftest", "ucx-utils"));
    }
    let spins: &[bool] = match name {
        "ucx-get-4k-spinning" => &[true],
        "ucx-get-4k-asleep" => &[false],
        _ => &[true, false],
    };
    let cpus = bench.cpus;
    bench.with_pair(profile, |bench, pair| {
        let _export = reader::export(pair, Access::READ, block)?;
        let (mut asker, handle) = reader::beside_shard(pair, Access::READ, MIB.max(block))?;
        let ask = Ask { handle: &handle, block, depth: 1 };
        let mut arms = Vec::new();
        for &spin in spins {
            let sides = Sides { client_cpu: cpus.first, server_cpu: cpus.second, spin };
            let told = if spin { "UCX spinning" } else { "UCX asleep" };
            arms.push(Arm::variant(told.to_owned(), move || {
                round_trip(Test::Get, block, sides, count)
            }));
        }
        let subject = arms.len();
        arms.push(Arm::subject("piped", || Ok(asker.reads(ask, 2 * MOMENT)?.p50())));
        let rounds = bench.chosen(bench.rounds_at_most(UCX_ROUNDS), &mut arms)?;
        let best = rounds.best(0..subject, Better::Smaller)?;
        let found = rounds.ratio(subject, best)?;
        let note = format!("p50: {}", best_in_words(&rounds, [best, subject])?);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}
