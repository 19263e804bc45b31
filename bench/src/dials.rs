//! `bench dials`: dials compared with what calibration reads back, with two real daemons on
//! loopback.
//!
//! Node A sets the dials at the receiver of a read (the wire, itself), node B those at its sender
//! (its disk, its checksum, its socket). Each dial is set alone, and reads of many sizes pass. The
//! dial's stage has to read as it was set, within 2 % or 2 us. A `g` (or `G`, or `o`) shows only
//! where fragments wait for it; elsewhere the row says so and does not count.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use piped_client::{Handle, OpenOptions};
use piped_config::admin::dials::DialChange;
use piped_core::modes::{PlannerMode, Profile};
use serde::Serialize;

use crate::contest;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::machine::Cpus;
use crate::nodes::{CALLER, EXPORT, Node, PEER, Pair, Sites, disk_stage, free_address};
use crate::raw::disk::make_file;

const FILE_NAME: &str = "dialled";
const FILE_BYTES: u64 = 64 << 20;
/// Length of a read with fragments that queue at a dial.
const BLOCK: usize = 512 << 10;
/// Sizes of fragments: a planner varies them, and without that `g` cannot be told from `G`.
const SIZES_KIB: [u64; 6] = [16, 64, 28, 52, 40, 60];
/// Times of traffic of one size: with fragments that queue, and with lone fragments.
const QUEUED: Duration = Duration::from_millis(50);
const ALONE: Duration = Duration::from_millis(40);
/// Size for which costs are shown.
const SHOWN: f64 = 65_536.0;
/// Samples of a busy stage that prove that fragments waited.
const BUSY_MIN: u64 = 24;

/// Arguments of `bench dials`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// One JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Values in us; for `G` the time of 64 KiB.
    #[arg(long, value_name = "US", value_delimiter = ',',
        default_values_t = [20, 50, 100, 250, 500])]
    values: Vec<u64>,
    /// Only stages with a name that contains this.
    #[arg(long, value_name = "STAGE", default_value = "")]
    only: String,
    /// A directory on the disk to use. Default: beside this program.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Row {
    stage: String,
    parameter: &'static str,
    set_us: f64,
    read_us: f64,
    samples: [u64; 2],
    /// Lateness of releases: half of them, and 99 of 100, were late by at most this.
    late_us: [f64; 2],
    /// None if no fragment waited for another one.
    holds: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Report {
    schema_version: u32,
    rows: Vec<Row>,
}

/// Parameters, each dialled alone.
const PARAMETERS: [&str; 4] = ["L", "g", "G", "o"];

fn change(stage: &str, parameter: &str, micros: u64) -> DialChange {
    let of = |wanted: &str| if parameter == wanted { micros * 1_000 } else { 0 };
    DialChange {
        stage: stage.to_owned(),
        latency_ns: of("L"),
        overhead_ns: of("g"),
        per_byte_ps: of("G") * 1_000 / SHOWN as u64,
        host_ns: of("o"),
        ..DialChange::default()
    }
}

pub(crate) fn run(arguments: Arguments) -> Result<u8, Failure> {
    crate::hear_interrupts()?;
    let directory = crate::beside_this(arguments.dir)?;
    let data = tempfile::Builder::new().prefix("piped-dials-").tempdir_in(directory)?;
    let file = data.path().join(FILE_NAME);
    make_file(&file, FILE_BYTES)?;
    let settings = String::from("[planner]\nallow_dials = true\n");
    let sites = Sites { listen: free_address()?, settings, ..Sites::default() };
    let pair = Pair::start_at(&sites, Profile::Balanced, Cpus::here(), data.path())?;
    let mut asker = Asker::connect(&pair.a, Place::BesideShard, 16 << 20)?;
    let open = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read());
    let handle = open.doing("open")?;
    let places = [
        (&pair.b, disk_stage(&file, "read")?),
        (&pair.b, String::from("check")),
        (&pair.b, format!("send:{CALLER}")),
        (&pair.a, format!("net:{PEER}")),
        (&pair.a, format!("receive:{PEER}")),
    ];
    let places = places.iter().filter(|(_, stage)| stage.contains(&arguments.only));
    let points = places.flat_map(|(node, stage)| {
        let values = &arguments.values;
        PARAMETERS
            .iter()
            .flat_map(move |name| values.iter().map(move |us| (node, stage, *name, *us)))
    });
    let mut rows = Vec::new();
    for (node, stage, parameter, micros) in points {
        // Show the results so far.
        if contest::interrupted() {
            break;
        }
        node.admin.dial(&change(stage, parameter, micros))?;
        let passed = pass(&pair.b, &mut asker, &handle);
        let row = passed.and_then(|()| read_back(node, stage, parameter, micros));
        node.admin.clear_dials()?;
        rows.push(row?);
    }
    if rows.is_empty() && !contest::interrupted() {
        return Err(Failure::new("no stage is called so: disk, check, send, net and receive are"));
    }
    let failed = rows.iter().any(|row| row.holds == Some(false));
    match arguments.json {
        true => println!(
            "{}",
            serde_json::to_string(&Report { schema_version: 1, rows }).doing("JSON")?
        ),
        false => show(&rows),
    }
    if contest::interrupted() {
        return Err(Failure::new("interrupted: not all was measured"));
    }
    Ok(u8::from(failed))
}

/// Reads of all sizes; the sender plans.
fn pass(sender: &Node, asker: &mut Asker, handle: &Handle) -> Result<(), Failure> {
    for kib in SIZES_KIB {
        sender.admin.set_planner(PlannerMode::Fixed((kib << 10) as u32))?;
        asker.reads(Ask { handle, block: BLOCK, depth: 2 }, QUEUED)?;
        asker.reads(Ask { handle, block: (kib << 10) as usize, depth: 1 }, ALONE)?;
    }
    Ok(())
}

fn read_back(
    node: &Node,
    stage: &str,
    parameter: &'static str,
    micros: u64,
) -> Result<Row, Failure> {
    let host = if parameter == "o" { " host" } else { "" };
    let name = format!("dial {stage}{host}");
    let stages = node.admin.stages()?;
    let found = stages.iter().find(|stage| stage.name == name);
    let found = found.ok_or_else(|| Failure::new(format!("there is no stage `{name}`")))?;
    let late = node.admin.dials()?.first().map_or([f64::NAN; 2], |dial| dial.late_seconds);
    let seconds = match parameter {
        "L" => found.latency_seconds,
        "G" => found.per_byte_seconds * SHOWN,
        _ => found.overhead_seconds,
    };
    let set_us = match parameter {
        // As it was set, in whole picoseconds a byte.
        "G" => change(stage, "G", micros).per_byte_ps as f64 * SHOWN * 1e-6,
        _ => micros as f64,
    };
    let read_us = seconds * 1e6;
    let shows = parameter == "L" || found.samples_backlogged >= BUSY_MIN;
    Ok(Row {
        stage: stage.to_owned(),
        parameter,
        set_us,
        read_us,
        samples: [found.samples_alone, found.samples_backlogged],
        late_us: late.map(|seconds| seconds * 1e6),
        holds: shows.then_some((read_us - set_us).abs() <= (0.02 * set_us).max(2.0)),
    })
}

fn show(rows: &[Row]) {
    println!(
        "{:24} {:1} {:>9} {:>9} {:>8} {:>13} {:>13} VERDICT",
        "STAGE", "", "SET us", "READ us", "OFF us", "SAMPLES", "LATE us"
    );
    for row in rows {
        let Row { stage, parameter, set_us, read_us, samples, late_us, holds } = row;
        let verdict = match holds {
            None => "does not dominate",
            Some(true) => "holds",
            Some(false) => "FAILS",
        };
        let samples = format!("{}/{}", samples[0], samples[1]);
        let late = format!("{:.1}/{:.1}", late_us[0], late_us[1]);
        let off = read_us - set_us;
        println!(
            "{stage:24} {parameter:1} {set_us:9.1} {read_us:9.1} {off:8.2} {samples:>13} \
             {late:>13} {verdict}"
        );
    }
}
