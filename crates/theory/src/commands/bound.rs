//! `pipectl model bound`: what no plan can beat.

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::{Number, Text};
use piped_config::measured::{self, Size};
use piped_model::stage::Path;
use serde::Serialize;

use super::micros;
use super::path::{LISTS, PathArgs};
use crate::bound;

const AFTER_HELP: &str = "\
The bound is the largest of three, each of them true of every plan: equation 5 of the pipeline paper
(all bytes pass the slowest stage, and something passes the others), what the servers have to do,
and the nested bound of docs/theory.md, computed on a grid of sizes. A finer grid gives a closer
bound and takes longer, with the square of its cells. Depths, windows, buffers and alignments only
make plans slower: the bound holds for them, too.

Example, the network and the disk of the paper, on three grids:
  pipectl model bound --stages '36,36;26,124.5;37.5,124.5;37,39.5;4ms,5MB/s' --bytes 64KiB \\
    --cells 192,384,768";

/// Arguments of `pipectl model bound`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = format!("{LISTS}\n{AFTER_HELP}"))]
pub(crate) struct BoundArgs {
    #[command(flatten)]
    path: PathArgs,

    /// Bytes of the transfer
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    bytes: Size,

    /// Cells of the grid of sizes, several with commas [default: as `model plan --certificate` has
    /// it]
    #[arg(long, value_name = "N,N", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    cells: Vec<u32>,
}

/// The answer as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bytes: u64,
    /// The largest of those below.
    lower_bound_us: f64,
    equation_5_us: f64,
    servers_us: f64,
    nested: Vec<Nested>,
}

#[derive(Debug, Serialize)]
struct Nested {
    /// `null` for the grid that is usually chosen.
    cells: Option<u32>,
    bound_us: f64,
}

pub(crate) fn run(args: &BoundArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let (path, servers) = (args.path.path()?, args.path.servers()?);
    let bytes = args.path.whole_bytes("--bytes", args.bytes)?;
    let on = |&cells: &u32| {
        let bound = bound::on_grid(&path, bytes, cells as usize);
        Nested { cells: Some(cells), bound_us: micros(bound) }
    };
    let usual = || Nested { cells: None, bound_us: micros(bound::lower_bound(&path, bytes)) };
    let nested: Vec<Nested> = match args.cells.as_slice() {
        [] => vec![usual()],
        cells => cells.iter().map(on).collect(),
    };
    let equation_5_us = micros(equation_5(&path, bytes));
    let servers_us = micros(bound::of_servers(&path, bytes, &servers));
    let largest = nested.iter().map(|it| it.bound_us).fold(equation_5_us.max(servers_us), f64::max);
    let report = Report { bytes, lower_bound_us: largest, equation_5_us, servers_us, nested };
    if json { output::json(report) } else { print(output, &report) }
}

/// Wang et al., equation 5, with latencies: `B·G_b + sum g + sum L` for the largest `G_b`.
fn equation_5(path: &Path, bytes: u64) -> f64 {
    let steepest = path.iter().map(|stage| stage.per_byte).fold(0.0, f64::max);
    path.iter().map(|stage| stage.alone(0.0)).sum::<f64>() + steepest * bytes as f64
}

fn print(output: &Output, report: &Report) -> Result<(), Failure> {
    output.line(format_args!("No plan can take less than {:.3} us.", report.lower_bound_us))?;
    let row = |name: String, us: f64| vec![name, format!("{us:.3}")];
    let mut rows = vec![
        row("equation 5".to_owned(), report.equation_5_us),
        row("work of the servers".to_owned(), report.servers_us),
    ];
    rows.extend(report.nested.iter().map(|it| {
        let cells = it.cells.map_or_else(String::new, |cells| format!(", {cells} cells"));
        row(format!("nested{cells}"), it.bound_us)
    }));
    output.table(&[Text("BOUND"), Number("LATENCY (us)")], rows)
}
