//! The study as a plot: a row of panels for each operation, a panel for each parameter, a colour
//! for each stage.

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use super::{PARAMETERS, Parameter, Point};
use crate::failure::Failure;
use crate::rig::style;

const PANEL: (u32, u32) = (560, 430);
const HEAD: u32 = 130;
const TEXT: f64 = 24.0;

/// Okabe and Ito's colours, which all people can tell apart.
const COLOURS: [(&str, RGBColor); 6] = [
    ("disk", RGBColor(0, 114, 178)),
    ("check", RGBColor(230, 159, 0)),
    ("send", RGBColor(0, 158, 115)),
    ("net", RGBColor(213, 94, 0)),
    ("receive", RGBColor(204, 121, 167)),
    ("sink", RGBColor(86, 86, 86)),
];

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(super) fn svg(points: &[Point]) -> Result<String, Failure> {
    let mut text = String::new();
    draw(&mut text, points).map_err(|error| Failure::new(format!("cannot draw: {error}")))?;
    Ok(text)
}

fn draw(text: &mut String, points: &[Point]) -> Drawn {
    let has = |of: &dyn Fn(&Point) -> bool| points.iter().any(of);
    let operations: Vec<&str> = super::OPERATIONS
        .iter()
        .map(|operation| operation.name())
        .filter(|name| has(&|point| point.operation == *name))
        .collect();
    let parameters: Vec<Parameter> = PARAMETERS
        .into_iter()
        .filter(|parameter| has(&|point| point.parameter == parameter.name))
        .collect();
    let (rows, columns) = (operations.len().max(1), parameters.len().max(1));
    let size = ((PANEL.0 * columns as u32).max(1120), HEAD + PANEL.1 * rows as u32);
    let canvas = SVGBackend::with_string(text, size).into_drawing_area();
    canvas.fill(&WHITE)?;
    let (head, panels) = canvas.split_vertically(HEAD);
    legend(&head, points)?;
    for (place, area) in panels.split_evenly((rows, columns)).iter().enumerate() {
        let (Some(operation), Some(parameter)) =
            (operations.get(place / columns), parameters.get(place % columns))
        else {
            continue;
        };
        let mine: Vec<&Point> = points
            .iter()
            .filter(|it| it.operation == *operation && it.parameter == parameter.name)
            .collect();
        if !mine.is_empty() {
            panel(area, operation, parameter, &mine)?;
        }
    }
    canvas.present()
}

fn legend(head: &Area<'_>, points: &[Point]) -> Drawn {
    let title = "Slowdown of a transfer when one parameter of one stage is dialled";
    head.draw(&Text::new(title, (30, 30), style(TEXT * 1.15, BLACK)))?;
    let used = COLOURS.iter().filter(|(name, _)| points.iter().any(|it| it.place == *name));
    for (place, (name, colour)) in used.enumerate() {
        let left = 30 + 170 * place as i32;
        head.draw(&PathElement::new([(left, 70), (left + 45, 70)], colour.stroke_width(5)))?;
        head.draw(&Text::new((*name).to_owned(), (left + 55, 70), style(TEXT, BLACK)))?;
    }
    let line = [(30, 108), (75, 108)];
    head.draw(&PathElement::new(line, BLACK.stroke_width(3)))?;
    head.draw(&Text::new("auto, with its 95 %", (85, 108), style(TEXT, BLACK)))?;
    for left in [350, 370] {
        head.draw(&PathElement::new([(left, 108), (left + 12, 108)], BLACK.stroke_width(2)))?;
    }
    head.draw(&Text::new("whole", (395, 108), style(TEXT, BLACK)))?;
    head.draw(&Circle::new((520, 108), 7, BLACK.stroke_width(2)))?;
    head.draw(&Text::new("predicted of auto", (540, 108), style(TEXT, BLACK)))
}

/// Position of a value on its axis: bandwidths by the time of a byte, so that slower ones are on
/// the right.
fn along(parameter: &str, value: f64) -> f64 {
    if parameter == "G" { 1e3 / value } else { value }
}

fn panel(area: &Area<'_>, operation: &str, parameter: &Parameter, points: &[&Point]) -> Drawn {
    let x = |point: &Point| along(parameter.name, point.value);
    let right = points.iter().map(|point| x(point)).fold(0.0, f64::max) * 1.08;
    let tops =
        points.iter().flat_map(|it| [it.auto.high, it.whole.high, it.predicted.unwrap_or(1.0)]);
    let top = tops.fold(1.5, f64::max) * 1.05;
    let bottoms =
        points.iter().flat_map(|it| [it.auto.low, it.whole.low, it.predicted.unwrap_or(1.0)]);
    let low = bottoms.fold(0.9, f64::min) * 0.97;
    let unit = match parameter.name {
        "G" => "ns/B",
        _ => parameter.unit,
    };
    let name = match parameter.name {
        "G" => format!(
            "{operation}: G ({unit}; {} to {} MB/s)",
            parameter.values[0], parameter.values[3]
        ),
        _ => format!("{operation}: {} ({unit})", parameter.name),
    };
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .margin_right(24)
        .x_label_area_size(70)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..right, low..top)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(6)
        .y_labels(6)
        .x_desc(name)
        .y_desc("times undialled")
        .label_style(style(TEXT * 0.8, BLACK))
        .axis_desc_style(style(TEXT * 0.9, BLACK))
        .x_label_formatter(&|tick| short(*tick))
        .y_label_formatter(&|tick| format!("{tick:.1}"))
        .draw()?;
    for (stage, colour) in COLOURS {
        let mut mine: Vec<&&Point> = points.iter().filter(|point| point.place == stage).collect();
        mine.sort_by(|a, b| x(a).total_cmp(&x(b)));
        if mine.is_empty() {
            continue;
        }
        let start = std::iter::once((0.0, 1.0));
        let auto = start.chain(mine.iter().map(|point| (x(point), point.auto.median)));
        chart.draw_series(LineSeries::new(auto, colour.stroke_width(3)))?;
        for point in &mine {
            let spread = [(x(point), point.auto.low), (x(point), point.auto.high)];
            chart.draw_series([PathElement::new(spread, colour.stroke_width(2))])?;
        }
        let whole = mine.iter().map(|point| (x(point), point.whole.median));
        chart.draw_series(DashedLineSeries::new(whole, 9, 7, colour.stroke_width(2)))?;
        let predicted = mine.iter().filter_map(|point| Some((x(point), point.predicted?)));
        chart.draw_series(predicted.map(|at| Circle::new(at, 5, colour.stroke_width(2))))?;
    }
    Ok(())
}

fn short(tick: f64) -> String {
    if tick.fract().abs() < 1e-9 { format!("{tick:.0}") } else { format!("{tick:.1}") }
}
