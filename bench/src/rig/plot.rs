//! A plot of the time of each transfer, and the same as CSV.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::failure::{Doing as _, Failure};

/// Point of one transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) seconds: f64,
    /// Size of its first fragment.
    pub(super) fragment_bytes: u64,
}

/// Transfers one after the other.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    /// Name of what differs in this run.
    pub(super) name: &'static str,
    pub(super) points: Vec<Point>,
    /// The first transfer of each part.
    pub(super) steps: Vec<usize>,
}

impl Run {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, points: Vec::new(), steps: Vec::new() }
    }
}

/// Writes NAME.csv and NAME.svg.
pub(super) fn write(directory: &Path, name: &str, runs: &[Run]) -> Result<(), Failure> {
    fs::create_dir_all(directory).doing(directory.display())?;
    let path = |extension: &str| directory.join(format!("{name}.{extension}"));
    let (csv, picture) = (path("csv"), path("svg"));
    let mut file = fs::File::create(&csv).doing(csv.display())?;
    file.write_all(table(runs).as_bytes()).doing(csv.display())?;
    fs::write(&picture, svg(name, runs)?).doing(picture.display())
}

fn table(runs: &[Run]) -> String {
    let mut text = String::from("calibration,transfer,part,latency_us,fragment_bytes\n");
    for run in runs {
        for (number, point) in run.points.iter().enumerate() {
            let part = run.steps.iter().filter(|&&step| step <= number).count();
            let Point { seconds, fragment_bytes } = point;
            text +=
                &format!("{},{number},{part},{:.1},{fragment_bytes}\n", run.name, seconds * 1e6);
        }
    }
    text
}

const SIZE: (u32, u32) = (1600, 1100);
const HEAD: i32 = 110;
const TEXT: f64 = 34.0;
/// Okabe and Ito's blue and orange, which all people can tell apart; the lines lie over each other.
const COLOURS: [RGBColor; 2] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0)];
const GREY: RGBColor = RGBColor(110, 110, 110);

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn svg(name: &str, runs: &[Run]) -> Result<String, Failure> {
    let mut text = String::new();
    draw(&mut text, name, runs).map_err(|error| Failure::new(format!("cannot draw: {error}")))?;
    Ok(text)
}

fn draw(text: &mut String, name: &str, runs: &[Run]) -> Drawn {
    let canvas = SVGBackend::with_string(text, SIZE).into_drawing_area();
    canvas.fill(&WHITE)?;
    canvas.draw(&Text::new(name.to_owned(), (40, 40), style(TEXT * 1.2, BLACK)))?;
    for (index, (run, colour)) in runs.iter().zip(COLOURS).enumerate() {
        let left = 640 + 420 * index as i32;
        canvas.draw(&PathElement::new([(left, 40), (left + 60, 40)], colour.stroke_width(5)))?;
        let key = format!("calibration = {}", run.name);
        canvas.draw(&Text::new(key, (left + 75, 40), style(TEXT, BLACK)))?;
    }
    let (_, plots) = canvas.split_vertically(HEAD);
    let (above, below) = plots.split_vertically((SIZE.1 as i32 - HEAD) * 3 / 5);
    let millis = |point: &Point| point.seconds * 1e3;
    panel(&above, runs, "latency (ms)", millis)?;
    let kibibytes = |point: &Point| point.fragment_bytes as f64 / 1024.0;
    panel(&below, runs, "first fragment (KiB)", kibibytes)?;
    canvas.present()
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    runs: &[Run],
    label: &str,
    value: impl Fn(&Point) -> f64 + Copy,
) -> Drawn {
    let values = || runs.iter().flat_map(|run| run.points.iter().map(value));
    let (low, high) = octaves(values());
    // Ticks at powers of two: plotters' own ticks of a logarithmic axis collide, or there are none.
    let ticks = if high - low > 3.0 { 1.0 } else { 0.5 };
    let longest = runs.iter().map(|run| run.points.len()).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(area)
        .margin(20)
        .x_label_area_size(70)
        .y_label_area_size(150)
        .build_cartesian_2d(0..longest, (low..high).step(ticks))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .y_desc(label)
        .x_desc("transfers")
        .label_style(style(TEXT * 0.85, BLACK))
        .axis_desc_style(style(TEXT, BLACK))
        .y_label_formatter(&|tick| number(tick.exp2()))
        .draw()?;
    for &step in runs.first().map_or(&[][..], |run| &run.steps).iter().skip(1) {
        let ends = [(step, low), (step, high)];
        chart.draw_series(DashedLineSeries::new(ends, 10, 8, GREY.stroke_width(3)))?;
    }
    for (run, colour) in runs.iter().zip(COLOURS) {
        let points = run
            .points
            .iter()
            .enumerate()
            .map(|(at, point)| (at, value(point).log2().clamp(low, high)));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(3)))?;
    }
    Ok(())
}

/// The whole octaves around the values, as powers of two.
fn octaves(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let logs = values.filter(|value| *value > 0.0).map(f64::log2);
    let low = logs.clone().fold(f64::INFINITY, f64::min).floor();
    let high = logs.fold(f64::NEG_INFINITY, f64::max).ceil();
    // plotters never ends with an axis that has no end.
    if low.is_finite() { (low, high.max(low + 1.0)) } else { (0.0, 1.0) }
}

/// A number short enough for a tick.
pub(super) fn number(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

pub(crate) fn style(size: f64, colour: RGBColor) -> TextStyle<'static> {
    let font = (FontFamily::SansSerif, size).into_font();
    TextStyle {
        color: colour.to_backend_color(),
        pos: Pos::new(HPos::Left, VPos::Center),
        ..TextStyle::from(font)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> Vec<Run> {
        let points = |seconds: f64| {
            (0..4).map(move |at| Point {
                seconds: seconds * f64::from(at + 1),
                fragment_bytes: 65_536,
            })
        };
        let run =
            |name, seconds| Run { points: points(seconds).collect(), steps: vec![0, 2], name };
        vec![run("live", 1e-3), run("frozen", 2e-3)]
    }

    #[test]
    fn the_table_has_each_transfer_with_the_part_it_belongs_to() {
        let table = table(&runs());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 9);
        assert_eq!(lines[2], "live,1,1,2000.0,65536");
        assert_eq!(lines[3], "live,2,2,3000.0,65536");
        assert_eq!(lines[5], "frozen,0,1,2000.0,65536");
    }

    #[test]
    fn an_axis_has_whole_octaves_around_its_values() {
        assert_eq!(octaves([3.0, 0.3, 9.0].into_iter()), (-2.0, 4.0));
        assert_eq!(octaves([0.0, 4.0].into_iter()), (2.0, 3.0));
        assert_eq!(octaves([0.0].into_iter()), (0.0, 1.0), "nothing to show");
    }

    #[test]
    fn a_picture_has_a_line_for_each_run_in_both_panels_and_one_for_each_step() {
        let picture = svg("step", &runs()).expect("drawn");
        let polylines = picture.matches("<polyline").count();
        let nothing: Vec<Run> =
            runs().into_iter().map(|run| Run { points: Vec::new(), ..run }).collect();
        let empty = svg("step", &nothing).expect("drawn").matches("<polyline").count();
        assert!(polylines >= empty + 4, "{polylines} lines, {empty} without points");
        assert!(picture.contains("calibration = frozen"));
        for colour in ["#0072B2", "#D55E00"] {
            assert!(picture.contains(colour), "{colour}");
        }
    }
}
