//! The front page's picture: reads with every size set by hand, against piped's own choice.
//!
//! Each point is a ratio within rounds, as in rows. The points are stored beside the picture, so
//! that it can be drawn again without a measurement, and a test can compare the two.

use std::fs;
use std::path::{Path, PathBuf};

use piped_core::modes::PlannerMode;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use super::plot::{number, style};
use super::scene::{Caller, Pace, Scene};
use super::{PROFILE, Rig, sweep};
use crate::contest::{self, Arm};
use crate::failure::{Doing as _, Failure};
use crate::load::Way;
use crate::machine::{Cpus, Machine};
use crate::rows::MIB;
use crate::stats::Interval;

/// Bytes of each read.
const BLOCK: usize = MIB;

/// The paths, with the name that the picture's key gives each of them.
const PATHS: [(&str, Pace); 3] = [
    ("disk and link of 100 MB/s", Pace::Equal100),
    ("slow disk: 0.5 ms a fragment; 1 Gbit/s", Pace::SlowDisk),
    ("this machine's disk, a link as fast", Pace::EqualOwn),
];

/// The points, in docs/figures/sizes.json.
#[derive(Debug, Serialize, Deserialize)]
struct Study {
    machine: String,
    rounds: u32,
    curves: Vec<Curve>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Curve {
    path: String,
    /// Seconds of a read with the size that piped chose.
    auto_seconds: f64,
    points: Vec<Point>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Point {
    /// Bytes of a fragment; [`BLOCK`] is the read in one piece.
    bytes: u64,
    /// Time over the time with piped's choice.
    #[serde(flatten)]
    ratio: Interval,
}

/// Measures all curves; `directory` is on a real disk.
pub(crate) fn measure(rounds: u32, directory: &Path, docs: &Path) -> Result<(), Failure> {
    crate::hear_interrupts()?;
    // First: what measures is kept on one CPU.
    let Machine { cpus, model, kernel, .. } = Machine::here();
    let rig = Rig::set_up(PROFILE, Cpus::here(), directory)?;
    let curves = PATHS.into_iter().map(|(path, pace)| {
        eprintln!("bench: {path}");
        curve(&rig, path, pace, rounds)
    });
    let curves = curves.collect::<Result<_, _>>()?;
    let study = Study { machine: format!("{cpus} CPUs ({model}), Linux {kernel}"), rounds, curves };
    let [json, _] = files(docs);
    let text = serde_json::to_string_pretty(&study).doing("JSON")? + "\n";
    fs::write(&json, text).doing(json.display())
}

fn curve(rig: &Rig, path: &str, pace: Pace, rounds: u32) -> Result<Curve, Failure> {
    let caller = Caller::start(rig, Scene { way: Way::Read, block: BLOCK, pace })?;
    let caller = &caller;
    let sizes = sweep::by_hand(BLOCK);
    let auto = sizes.len();
    let modes = sizes.iter().copied().chain([PlannerMode::Auto]);
    let arms = modes.map(|mode| Arm::variant(mode.to_string(), move || caller.median_by(mode)));
    let rounds = contest::run(rounds, &mut arms.collect::<Vec<_>>());
    rig.plan_by(PlannerMode::Auto)?;
    let rounds = rounds?;
    let points = sizes.iter().enumerate().map(|(arm, size)| {
        let bytes = if let PlannerMode::Fixed(bytes) = *size { bytes.into() } else { BLOCK as u64 };
        Ok(Point { bytes, ratio: rounds.all_ratio(arm, auto)? })
    });
    let points = points.collect::<Result<_, Failure>>()?;
    let auto_seconds = rounds.all_of(auto).map_or(f64::NAN, |found| found.median);
    Ok(Curve { path: path.to_owned(), auto_seconds, points })
}

/// Draws what was measured last.
pub(crate) fn draw(docs: &Path) -> Result<(), Failure> {
    let [json, picture] = files(docs);
    let study = fs::read_to_string(&json).doing(json.display())?;
    fs::write(&picture, svg(&study)?).doing(picture.display())
}

fn files(docs: &Path) -> [PathBuf; 2] {
    ["json", "svg"].map(|extension| docs.join(format!("figures/sizes.{extension}")))
}

const SIZE: (u32, u32) = (1200, 700);
const HEAD: u32 = 175;
const TEXT: f64 = 25.0;
/// Okabe and Ito's blue, orange and green: most people can tell them apart.
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115)];
/// Where the vertical axis begins, in octaves: a size that beat piped would be seen below 1 x.
const LOWEST: f64 = -0.5;

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn svg(study: &str) -> Result<String, Failure> {
    let study: Study = serde_json::from_str(study).doing("the points")?;
    let mut text = String::new();
    picture(&mut text, &study).map_err(|error| Failure::new(format!("cannot draw: {error}")))?;
    Ok(text)
}

fn picture(text: &mut String, study: &Study) -> Drawn {
    let canvas = SVGBackend::with_string(text, SIZE).into_drawing_area();
    canvas.fill(&WHITE)?;
    let (head, below) = canvas.split_vertically(HEAD);
    let title = "Reads of 1 MiB from another node's disk: time over that with piped's own choice";
    head.draw(&Text::new(title, (30, 30), style(TEXT, BLACK)))?;
    for (line, (curve, colour)) in study.curves.iter().zip(COLOURS).enumerate() {
        let y = 72 + 32 * line as i32;
        head.draw(&PathElement::new([(30, y), (80, y)], colour.stroke_width(4)))?;
        let milliseconds = number(curve.auto_seconds * 1e3);
        let key = format!("{}: piped takes {milliseconds} ms", curve.path);
        head.draw(&Text::new(key, (95, y), style(TEXT, BLACK)))?;
    }
    let points = || study.curves.iter().flat_map(|curve| &curve.points);
    let top = points().map(|point| point.ratio.high).fold(2.0, f64::max).log2() + 0.15;
    let whole = (BLOCK as f64).log2();
    let mut chart = ChartBuilder::on(&below)
        .margin(14)
        .margin_right(50)
        .x_label_area_size(80)
        .y_label_area_size(90)
        .build_cartesian_2d((12.0..whole + 0.2).step(1.0), (LOWEST..top).step(0.5))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("fragment size set by hand")
        .y_desc("times piped's choice")
        .label_style(style(TEXT * 0.85, BLACK))
        .axis_desc_style(style(TEXT, BLACK))
        .x_label_formatter(&|log| match *log {
            log if log < whole => format!("{:.0} KiB", log.exp2() / 1024.0),
            _ => "one piece".to_owned(),
        })
        .y_label_formatter(&|log| match log.fract() {
            0.0 => format!("{:.0} x", log.exp2()),
            _ => String::new(),
        })
        .draw()?;
    let own = Text::new("piped's own choice", (12.1, -0.17), style(TEXT * 0.9, BLACK));
    chart.draw_series([own])?;
    chart.draw_series(LineSeries::new([(12.0, 0.0), (whole, 0.0)], BLACK.stroke_width(4)))?;
    for (curve, colour) in study.curves.iter().zip(COLOURS) {
        let at = |point: &Point, ratio: f64| ((point.bytes as f64).log2(), ratio.log2());
        let middles = curve.points.iter().map(|point| at(point, point.ratio.median));
        chart.draw_series(LineSeries::new(middles.clone(), colour.stroke_width(3)))?;
        chart.draw_series(middles.map(|place| Circle::new(place, 6, colour.filled())))?;
        for point in &curve.points {
            let spread = [at(point, point.ratio.low), at(point, point.ratio.high)];
            chart.draw_series([PathElement::new(spread, colour.stroke_width(2))])?;
        }
    }
    drop(chart);
    canvas.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_pages_picture_is_drawn_from_the_points_beside_it() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let [json, picture] = files(&docs).map(|file| fs::read_to_string(file).expect("there"));
        assert!(svg(&json).expect("drawn") == picture, "`bench front` draws it again");
        let study: Study = serde_json::from_str(&json).expect("points");
        assert_eq!(study.curves.len(), PATHS.len());
        for curve in &study.curves {
            assert_eq!(curve.points.len(), sweep::by_hand(BLOCK).len(), "{}", curve.path);
        }
    }
}
