//! `bench sensitivity`: how much slower reads, gets and copies become when one parameter of one
//! stage does.
//!
//! The LogGP study ("A systematic characterization of application sensitivity to network
//! performance") on two real daemons on loopback: `L`, `g`, `G` and `o` of each stage of a
//! transfer, over that paper's ranges, one at a time. Each round of a point has four parts:
//! undialled, whole and by `auto`; dialled, whole and by `auto`. A slowdown is relative to `auto`
//! undialled in the same round. So the distance between the curves of whole and auto is the gain of
//! planning.

mod plot;
mod scene;

use std::path::PathBuf;

use clap::Args;
use piped_config::admin::dials::DialChange;
use piped_core::modes::{PlannerMode, Profile};
use serde::Serialize;

use self::scene::{OPERATIONS, Operation, Scene};
use crate::contest;
use crate::failure::{Doing as _, Failure};
use crate::machine::{Cpus, Ticks};
use crate::stats::Interval;

/// Arguments of `bench sensitivity`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// One JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Only points with a name (as read/net/L) that begins with one of these, separated by commas
    /// or given again.
    #[arg(long, value_name = "OP/DIAL", value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds of a point, fixed beforehand.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=31))]
    rounds: u32,
    /// Write all points as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the points as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// A directory on the disk to use. Default: beside this program.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A parameter with its values: times in us, and for `G` bandwidths in MB/s, as the paper has it.
#[derive(Debug, Clone, Copy)]
struct Parameter {
    name: &'static str,
    unit: &'static str,
    values: [f64; 4],
}

/// The paper's ranges: overhead to 103 us, gap to 105 us, latency to 105 us, bandwidth from 38 MB/s
/// down to 1. Bandwidths that this machine would not notice are left out, and so are those where a
/// transfer takes a second.
const PARAMETERS: [Parameter; 4] = [
    Parameter { name: "L", unit: "us", values: [10.0, 30.0, 55.0, 105.0] },
    Parameter { name: "g", unit: "us", values: [10.0, 30.0, 55.0, 105.0] },
    Parameter { name: "G", unit: "MB/s", values: [400.0, 150.0, 75.0, 38.0] },
    Parameter { name: "o", unit: "us", values: [10.0, 28.0, 53.0, 103.0] },
];

/// One point of the study.
#[derive(Debug, Clone, Serialize)]
struct Point {
    operation: &'static str,
    /// Name of the stage, without its node.
    place: &'static str,
    parameter: &'static str,
    /// Value in the parameter's unit.
    value: f64,
    unit: &'static str,
    /// Time of a transfer undialled, by `auto`, in seconds.
    base_seconds: f64,
    /// Slowdowns as multiples of that.
    auto: Interval,
    whole: Interval,
    /// Prediction of the planner before: dialled over undialled. Absent if nobody predicts.
    predicted: Option<f64>,
    rounds: usize,
}

#[derive(Debug, Serialize)]
struct Report {
    schema_version: u32,
    points: Vec<Point>,
    discarded: u32,
}

pub(crate) fn run(arguments: Arguments) -> Result<u8, Failure> {
    crate::hear_interrupts()?;
    let directory = crate::beside_this(arguments.dir)?;
    let data = tempfile::Builder::new().prefix("piped-sensitivity-").tempdir_in(directory)?;
    let mut scene = Scene::start(data.path(), Cpus::here(), Profile::Balanced)?;
    let mut report = Report { schema_version: 1, points: Vec::new(), discarded: 0 };
    let wanted = |name: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|only| name.starts_with(&**only))
    };
    let places = OPERATIONS.into_iter().flat_map(|it| it.places().iter().map(move |at| (it, *at)));
    let curves = places.flat_map(|(it, at)| PARAMETERS.map(|parameter| (it, at, parameter)));
    let curves = curves.filter(|(operation, place, parameter)| {
        wanted(&format!("{}/{place}/{}", operation.name(), parameter.name))
    });
    let points = curves
        .flat_map(|(it, at, parameter)| parameter.values.map(|value| (it, at, parameter, value)));
    for point in points {
        match report.measure(&mut scene, point, arguments.rounds) {
            // Show and write the points so far.
            Err(_) if contest::interrupted() => break,
            measured => measured?,
        }
    }
    if report.points.is_empty() && !contest::interrupted() {
        return Err(Failure::new("no point is called so: they are as in read/net/L"));
    }
    if let Some(path) = &arguments.csv {
        std::fs::write(path, table(&report.points)).doing(path.display())?;
    }
    if let Some(path) = &arguments.svg {
        std::fs::write(path, plot::svg(&report.points)?).doing(path.display())?;
    }
    match arguments.json {
        true => println!("{}", serde_json::to_string(&report).doing("JSON")?),
        false => print!("{}", shown(&report)),
    }
    if contest::interrupted() {
        return Err(Failure::new("interrupted: not all was measured"));
    }
    Ok(0)
}

/// A dial of one parameter.
fn change(stage: &str, parameter: &str, value: f64) -> DialChange {
    let of =
        |wanted: &str, scaled: f64| if parameter == wanted { scaled.round() as u64 } else { 0 };
    DialChange {
        stage: stage.to_owned(),
        latency_ns: of("L", value * 1e3),
        overhead_ns: of("g", value * 1e3),
        // Values are MB/s: a byte takes 1/value us.
        per_byte_ps: of("G", 1e6 / value),
        host_ns: of("o", value * 1e3),
        ..DialChange::default()
    }
}

impl Report {
    fn measure(
        &mut self,
        scene: &mut Scene,
        (operation, place, parameter, value): (Operation, &'static str, Parameter, f64),
        rounds: u32,
    ) -> Result<(), Failure> {
        let (mut auto, mut whole) = (Vec::new(), Vec::new());
        let (mut bases, mut promises) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            contest::check()?;
            let before = Ticks::now();
            scene.clear()?;
            scene.median_by(operation, PlannerMode::Whole)?;
            let (base, base_promise) = scene.median_by(operation, PlannerMode::Auto)?;
            scene.dial(operation, place, |stage| change(stage, parameter.name, value))?;
            let (slow_whole, _) = scene.median_by(operation, PlannerMode::Whole)?;
            let (slow, promise) = scene.median_by(operation, PlannerMode::Auto)?;
            scene.clear()?;
            if Ticks::now().stolen_since(before) > contest::STOLEN_MAX {
                self.discarded += 1;
                continue;
            }
            bases.push(base);
            auto.push(slow / base);
            whole.push(slow_whole / base);
            promises.extend(promise.zip(base_promise).map(|(slow, base)| slow / base));
        }
        let few = || Failure::new("too few rounds are left: run it again with more --rounds");
        let point = Point {
            operation: operation.name(),
            place,
            parameter: parameter.name,
            value,
            unit: parameter.unit,
            base_seconds: crate::stats::median(&bases).ok_or_else(few)?,
            auto: Interval::of_median(&auto).ok_or_else(few)?,
            whole: Interval::of_median(&whole).ok_or_else(few)?,
            predicted: crate::stats::median(&promises),
            rounds: auto.len(),
        };
        eprintln!("{}", line(&point));
        self.points.push(point);
        Ok(())
    }
}

fn table(points: &[Point]) -> String {
    let mut text = String::from(
        "operation,stage,parameter,value,unit,base_us,\
         auto,auto_low,auto_high,whole,whole_low,whole_high,predicted,rounds\n",
    );
    for point in points {
        let Point { operation, place, parameter, value, unit, auto, whole, rounds, .. } = point;
        let predicted = point.predicted.map_or_else(String::new, |it| format!("{it:.4}"));
        text += &format!(
            "{operation},{place},{parameter},{value},{unit},{:.2},\
             {:.4},{:.4},{:.4},{:.4},{:.4},{:.4},{predicted},{rounds}\n",
            point.base_seconds * 1e6,
            auto.median,
            auto.low,
            auto.high,
            whole.median,
            whole.low,
            whole.high,
        );
    }
    text
}

const HEAD: &str = "POINT                  VALUE        UNDIALLED        AUTO                  \
    WHOLE        PREDICTED";

fn line(point: &Point) -> String {
    let name = format!("{}/{}/{}", point.operation, point.place, point.parameter);
    let spread = |it: &Interval| format!("{:5.2} ({:.2} .. {:.2})", it.median, it.low, it.high);
    format!(
        "{name:18} {:6} {:5} {:10.1} us  {:21} {:21} {}",
        point.value,
        point.unit,
        point.base_seconds * 1e6,
        spread(&point.auto),
        spread(&point.whole),
        point.predicted.map_or_else(|| String::from("-"), |it| format!("{it:.2}"))
    )
}

fn shown(report: &Report) -> String {
    let mut text = format!("{HEAD}\n");
    for point in &report.points {
        text += &line(point);
        text.push('\n');
    }
    text + &format!(
        "Multiples of an undialled transfer by auto. {} rounds discarded.\n",
        report.discarded
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point() -> Point {
        Point {
            operation: "read",
            place: "net",
            parameter: "G",
            value: 38.0,
            unit: "MB/s",
            base_seconds: 5e-4,
            auto: Interval { low: 1.9, median: 2.0, high: 2.1 },
            whole: Interval::exact(3.0),
            predicted: None,
            rounds: 5,
        }
    }

    #[test]
    fn a_dial_has_one_parameter_in_its_own_unit() {
        let of = |parameter, value| {
            let change = change("net:b", parameter, value);
            [change.latency_ns, change.overhead_ns, change.per_byte_ps, change.host_ns]
        };
        assert_eq!(of("L", 105.0), [105_000, 0, 0, 0]);
        assert_eq!(of("g", 10.0), [0, 10_000, 0, 0]);
        // 38 MB/s: 26.3 ns a byte.
        assert_eq!(of("G", 38.0), [0, 0, 26_316, 0]);
        assert_eq!(of("o", 103.0), [0, 0, 0, 103_000]);
    }

    #[test]
    fn the_table_has_a_column_for_each_heading() {
        let table = table(&[point()]);
        let columns: Vec<usize> = table.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [14, 14]);
        assert!(table.contains("read,net,G,38,MB/s,500.00,2.0000"), "{table}");
    }

    #[test]
    fn a_picture_has_the_curves_of_what_was_measured_and_nothing_else() {
        let more = Point { value: 75.0, ..point() };
        let picture = plot::svg(&[point(), more]).expect("drawn");
        assert!(picture.contains("read") && picture.contains("MB/s") && !picture.contains(">get"));
        assert!(picture.contains("#D55E00"), "the curve of net");
        assert!(!picture.contains("#0072B2"), "and none of the disk");
    }
}
