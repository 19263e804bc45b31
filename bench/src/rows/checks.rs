//! Floors against outside tools: a floor that somebody else beats is none.

use crate::contest::Arm;
use crate::failure::Failure;
use crate::outside::{self, Sides};
use crate::raw::Wait;
use crate::raw::net::Shape;
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB, MIB, floor};
use crate::stats::{Bar, Better, Verdict, median};

/// A floor may be this far behind an outside tool. Ahead of it is no fault of a floor: the bars that
/// stand on it only become harder.
fn within(better: Better) -> Bar {
    match better {
        Better::Smaller => Bar::AtMost(1.15),
        Better::Larger => Bar::AtLeast(0.85),
    }
}

/// Rounds of a check: a tool takes a second, so a floor is compared with it less often than with
/// piped. Half of them choose the best placement, of the tool too.
const ROUNDS: u32 = 4;

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
    let mut arms = floor::disk(&disk, cpus, shape, figure);
    let floors = arms.len();
    for cpu in [cpus.first, cpus.second] {
        let file = file.clone();
        arms.push(Arm::variant(format!("fio on CPU {cpu}"), move || {
            let found = outside::fio(&file, shape.0, shape.1, cpu)?;
            Ok(if better == Better::Smaller { found.p50 } else { found.rate })
        }));
    }
    compare(bench, name, arms, floors, better)
}

pub(super) fn net(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let tool = if name == "check-net-1m" { "iperf3" } else { "sockperf" };
    if !outside::is_installed(tool) {
        return Ok(missing(name, tool));
    }
    let cpus = bench.cpus;
    bench.need_server()?;
    let server = bench.server.take().expect("needed above");
    let sides = |placement: crate::raw::net::Placement| Sides {
        client_cpu: placement.client_cpu,
        server_cpu: placement.server_cpu,
        spin: placement.wait == Wait::Spin,
    };
    let placements = floor::placements(cpus).into_iter();
    let result = if tool == "iperf3" {
        let mut arms = floor::net_chunks(&server, cpus, (MIB, 4), floor::rate);
        let floors = arms.len();
        for (place, placement) in placements.filter(|(_, it)| it.wait == Wait::Block) {
            arms.push(Arm::variant(format!("iperf3, {place}"), move || {
                Ok(outside::iperf3(sides(placement))? / MIB as f64)
            }));
        }
        compare(bench, name, arms, floors, Better::Larger)
    } else {
        // sockperf's largest message is a little less than 64 KiB; both ways, so is the floor here.
        let bytes = if name == "check-net-4k" { 4 * KIB } else { 65_000 };
        let echo = Shape { request: bytes, response: bytes, chunk: bytes, depth: 1 };
        let mut arms = floor::net(&server, cpus, echo, floor::p50);
        let floors = arms.len();
        for (place, placement) in placements {
            if placement.wait == Wait::Spin && placement.client_cpu == placement.server_cpu {
                continue;
            }
            arms.push(Arm::variant(format!("sockperf, {place}"), move || {
                outside::sockperf(bytes, sides(placement))
            }));
        }
        compare(bench, name, arms, floors, Better::Smaller)
    };
    bench.server = Some(server);
    result
}

/// The best floor against the best of the tool, both chosen on odd rounds.
fn compare(
    bench: &mut Bench,
    name: &'static str,
    mut arms: Vec<Arm<'_>>,
    floors: usize,
    better: Better,
) -> Result<Row, Failure> {
    let rounds = crate::contest::run(ROUNDS, &mut arms)?;
    bench.report.rounds_discarded += rounds.discarded;
    let ours = rounds.best(0..floors, better)?;
    let theirs = rounds.best(floors..arms.len(), better)?;
    let found = rounds.ratio(ours, theirs)?;
    let note = format!(
        "floor {} against {}",
        described(&rounds, ours, better),
        described(&rounds, theirs, better)
    );
    let mut row = Row::judged(name, "-", Unit::Ratio, found, within(better), note);
    // So few pairs have no interval worth the name: the median decides.
    let agrees =
        within(better).judge(crate::stats::Interval::exact(found.median)) == Verdict::Holds;
    row.verdict = if agrees { Verdict::Holds } else { Verdict::Invalid };
    bench.checks.insert(name, agrees);
    Ok(row)
}

fn described(rounds: &crate::contest::Rounds, arm: usize, better: Better) -> String {
    let values: Vec<f64> = rounds.kept.iter().filter_map(|round| round.values[arm]).collect();
    let value = median(&values).unwrap_or(f64::NAN);
    let value = match better {
        Better::Smaller => floor::in_words(value),
        Better::Larger => format!("{value:.0}/s"),
    };
    format!("{value} ({})", rounds.names[arm])
}

fn missing(name: &'static str, tool: &str) -> Row {
    Row::unchecked(name, "-", Unit::Ratio, Bar::AtMost(1.15), format!("unchecked (install {tool})"))
}
