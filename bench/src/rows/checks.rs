//! Floors against outside tools: a floor that is slower than a tool is none.
//!
//! Half of a check chooses the best variant of the floor and of the tool, the other half compares
//! the two: the best of noisy figures is compared in other rounds than those it was lucky in. A
//! tool takes seconds where a floor takes a moment, so it decides how many rounds there are.

use std::time::Duration;

use crate::contest::{self, Arm};
use crate::failure::Failure;
use crate::outside::{self, Sides};
use crate::raw::Wait;
use crate::raw::net::{Placement, Shape};
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB, MIB, MOMENT, floor};
use crate::stats::{Bar, Better, Interval, Verdict};

/// Bar for a floor that is behind an outside tool. A floor may be ahead: the bars that stand on it
/// only become harder.
fn within(better: Better) -> Bar {
    match better {
        Better::Smaller => Bar::AtMost(1.15),
        Better::Larger => Bar::AtLeast(0.85),
    }
}

/// Rounds that choose a tool's way. An odd number, as for the others: a median then moves only with
/// one more outlier.
const CHOOSING_TOOL: u32 = 3;

/// A shared machine has two speeds between its CPUs, one half of the other, and changes every few
/// seconds. A round that met both is an outlier; this many outvote the expected ones.
const COMPARING: u32 = 5;

/// Moment of both sides: a disk that was idle serves 5 % less in its first 50 ms than later.
const DISK_MOMENT: Duration = Duration::from_millis(100);

pub(super) fn disk(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    if !outside::is_installed("fio") {
        return Ok(missing(name, "fio"));
    }
    let (shape, figure, better): (_, floor::Figure, _) = match name {
        "check-disk-4k-1" => ((4 * KIB, 1), floor::p50, Better::Smaller),
        "check-disk-4k-16" => ((4 * KIB, 16), floor::rate, Better::Larger),
        _ => ((MIB, 4), floor::rate, Better::Larger),
    };
    let cpus = bench.cpus;
    let file = bench.file()?;
    let disk = bench.disk()?;
    let floors = floor::disk(&disk, cpus, shape, figure, DISK_MOMENT);
    let floor = bench.best(floor::CHOOSING_FLOOR, floors, better)?;
    let tools = [cpus.first, cpus.second].map(|cpu| {
        let file = file.clone();
        Arm::variant(format!("fio on CPU {cpu}"), move || {
            let found = outside::fio(&file, shape.0, shape.1, cpu, DISK_MOMENT)?;
            Ok(if better == Better::Smaller { found.p50 } else { found.rate })
        })
    });
    let tool = bench.best(CHOOSING_TOOL, tools.into(), better)?;
    compare(bench, name, [tool, floor], better)
}

pub(super) fn net(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let tool = if name == "check-net-1m" { "iperf3" } else { "sockperf" };
    if !outside::is_installed(tool) {
        return Ok(missing(name, tool));
    }
    let cpus = bench.cpus;
    bench.need_server()?;
    let server = bench.server.take().expect("needed above");
    let sides = |placement: Placement| Sides {
        client_cpu: placement.client_cpu,
        server_cpu: placement.server_cpu,
        spin: placement.wait == Wait::Spin,
    };
    let mut places = floor::placements(cpus);
    let measured = || {
        if tool == "iperf3" {
            let floors = floor::net_chunks(&server, cpus, (MIB, 4), floor::rate);
            let floor = bench.best(floor::CHOOSING_FLOOR, floors, Better::Larger)?;
            places.retain(|(_, placement)| placement.wait == Wait::Block);
            let tools = places.into_iter().map(|(place, placement)| {
                Arm::variant(format!("iperf3, {place}"), move || {
                    Ok(outside::iperf3(sides(placement))? / MIB as f64)
                })
            });
            let tool = bench.best(CHOOSING_TOOL, tools.collect(), Better::Larger)?;
            return compare(bench, name, [tool, floor], Better::Larger);
        }
        // sockperf's largest message is a little less than 64 KiB; as it goes both ways, so does
        // the floor here.
        let bytes = if name == "check-net-4k" { 4 * KIB } else { 65_000 };
        let echo = Shape { request: bytes, response: bytes, chunk: bytes, depth: 1 };
        let mut floors = floor::net(&server, cpus, echo, MOMENT);
        let rounds = bench.chosen(floor::CHOOSING_FLOOR, &mut floors)?;
        let floor = rounds.best_of_all(0..floors.len(), Better::Smaller)?;
        // sockperf takes three seconds, two of which it sleeps. Its calls are those of the floor's
        // sockets, so it is at its best where they are.
        let sockets = floors.len() - places.len();
        let place = rounds.best_of_all(sockets..floors.len(), Better::Smaller)? - sockets;
        let (place, placement) = places.swap_remove(place);
        let tool = Arm::variant(format!("sockperf, {place}"), move || {
            outside::sockperf(bytes, sides(placement))
        });
        compare(bench, name, [tool, floors.swap_remove(floor)], Better::Smaller)
    };
    let result = measured();
    bench.server = Some(server);
    result
}

/// Compares the floor with the tool, the first of the two: sockperf sleeps before it measures.
fn compare(
    bench: &mut Bench,
    name: &'static str,
    mut arms: [Arm<'_>; 2],
    better: Better,
) -> Result<Row, Failure> {
    let rounds = contest::run_in_order(COMPARING, &mut arms)?;
    bench.report.rounds_discarded += rounds.discarded;
    let ratios: Vec<f64> =
        rounds.kept.iter().filter_map(|round| Some(round.values[1]? / round.values[0]?)).collect();
    let found = Interval::of_median(&ratios)
        .ok_or_else(|| Failure::new("all rounds had stolen time: run it again"))?;
    let told = |arm: usize| {
        let median = rounds.all_of(arm).map_or(f64::NAN, |found| found.median);
        let value = match better {
            Better::Smaller => floor::in_words(median),
            Better::Larger => format!("{median:.0}/s"),
        };
        format!("{value} ({})", rounds.names[arm])
    };
    let note = format!(
        "floor {} against {}; invalid if its median is over 15 % behind, however far ahead it is",
        told(1),
        told(0)
    );
    let mut row = Row::judged(name, "-", Unit::Ratio, found, within(better), note)
        .with_arms(&rounds, Unit::of(better));
    // So few pairs have no interval worth the name.
    let agrees = within(better).judge(Interval::exact(found.median)) == Verdict::Holds;
    row.verdict = if agrees { Verdict::Holds } else { Verdict::Invalid };
    bench.checks.insert(name, agrees);
    Ok(row)
}

fn missing(name: &'static str, tool: &str) -> Row {
    Row::unchecked(name, "-", Unit::Ratio, Bar::AtMost(1.15), format!("unchecked (install {tool})"))
}
