//! Three panels: how even the nodes' times are, what loads did through disturbances, and what an
//! idle peer costs by the number of nodes.

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use system_tests::scale::{Figures, Peers};

use super::table::{Idle, PEER_BYTES_MAX, Study};
use crate::failure::Failure;
use crate::rig::style;

const SIZE: (u32, u32) = (1680, 600);
const TEXT: f64 = 22.0;
const KIB: f64 = 1024.0;

/// Okabe and Ito's colours, which most people can tell apart.
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115)];

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line of a panel, with its name.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// What a panel shows: the names of its axes, its lines, and a level that is drawn across.
struct Panel {
    across: String,
    up: &'static str,
    lines: Vec<Line>,
    level: Option<f64>,
}

pub(super) fn svg(study: &Study) -> Result<String, Failure> {
    let mut text = String::new();
    draw(&mut text, study).map_err(|error| Failure::new(format!("cannot draw: {error}")))?;
    Ok(text)
}

fn draw(text: &mut String, study: &Study) -> Drawn {
    let canvas = SVGBackend::with_string(text, SIZE).into_drawing_area();
    canvas.fill(&WHITE)?;
    let panels = [times(study), loads(study), peers(study)];
    for (area, panel) in canvas.split_evenly((1, panels.len())).iter().zip(&panels) {
        draw_panel(area, panel)?;
    }
    canvas.present()
}

/// Times that equal work takes the nodes, over their mean, the soonest first.
fn times(study: &Study) -> Panel {
    let line = |name: &str, figures: &Figures| {
        let mut times: Vec<f64> = figures.rates.iter().map(|rate| rate.recip()).collect();
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        let place = |node: usize| 100.0 * (node + 1) as f64 / times.len() as f64;
        let points = times.iter().enumerate().map(|(node, time)| (place(node), time / mean));
        Line { name: name.to_owned(), points: points.collect() }
    };
    // Where one node works alone there is nothing to compare.
    let shown = study.shown(false).into_iter();
    let lines = shown.filter(|(_, figures)| figures.rates.len() > 1).collect::<Vec<_>>();
    Panel {
        across: "nodes, the soonest first (%)".to_owned(),
        up: "time over the mean",
        lines: lines.iter().map(|(scene, figures)| line(scene.name(), figures)).collect(),
        level: Some(1.0),
    }
}

/// Requests that ended in a second, by time.
fn loads(study: &Study) -> Panel {
    let bin = Figures::BIN.seconds();
    let line = |name: &str, figures: &Figures| {
        let points = figures.series.iter().enumerate();
        let points = points.map(|(at, count)| (bin * at as f64, f64::from(*count) / bin));
        Line { name: name.to_owned(), points: points.collect() }
    };
    let lines = study.shown(true);
    Panel {
        across: "virtual time (s)".to_owned(),
        up: "requests that end in a second",
        lines: lines.iter().map(|(scene, figures)| line(scene.name(), figures)).collect(),
        level: None,
    }
}

/// What an idle peer costs, by the number of nodes.
fn peers(study: &Study) -> Panel {
    let line = |name: &str, of: fn([f64; 2]) -> f64| {
        let point = |it: &Idle| Some((it.options.nodes as f64, of(it.of_a_peer()?) / KIB));
        let idles = study.idles.iter().filter(|it| it.peers == Peers::Connected);
        let points = idles.filter_map(point).collect();
        Line { name: name.to_owned(), points }
    };
    let lines = vec![
        line("heap and staging", |[heap, staging]| heap + staging),
        line("heap", |[heap, _]| heap),
        line("staging", |[_, staging]| staging),
    ];
    Panel {
        across: format!("nodes; the line is the bar, {:.0} KiB", PEER_BYTES_MAX / KIB),
        up: "an idle peer with connections (KiB)",
        lines,
        level: Some(PEER_BYTES_MAX / KIB),
    }
}

fn draw_panel(area: &Area<'_>, panel: &Panel) -> Drawn {
    let points = || panel.lines.iter().flat_map(|line| line.points.iter().copied());
    let most = |value: fn((f64, f64)) -> f64, least: f64| points().map(value).fold(least, f64::max);
    let (right, top) = (most(|(x, _)| x, 1.0), most(|(_, y)| y, panel.level.unwrap_or(1.0)));
    let mut chart = ChartBuilder::on(area)
        .margin(14)
        .margin_top(120)
        .margin_right(26)
        .x_label_area_size(64)
        .y_label_area_size(100)
        .build_cartesian_2d(0.0..right, 0.0..1.1 * top)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(panel.across.as_str())
        .y_desc(panel.up)
        .x_labels(6)
        .x_label_formatter(&|value| ticked(*value, right))
        .y_label_formatter(&|value| ticked(*value, top))
        .label_style(style(TEXT * 0.8, BLACK))
        .axis_desc_style(style(TEXT, BLACK))
        .draw()?;
    if let Some(level) = panel.level {
        let across = [(0.0, level), (right, level)];
        chart.draw_series(LineSeries::new(across, BLACK.stroke_width(2)))?;
    }
    // Of lines that lie on each other all are seen.
    for ((line, colour), width) in panel.lines.iter().zip(COLOURS).zip([9, 5, 2]) {
        let points = line.points.iter().copied();
        chart.draw_series(LineSeries::new(points, colour.stroke_width(width)))?;
    }
    for (place, (line, colour)) in panel.lines.iter().zip(COLOURS).enumerate() {
        let at = 30 + 32 * place as i32;
        area.draw(&PathElement::new([(110, at), (155, at)], colour.stroke_width(5)))?;
        area.draw(&Text::new(line.name.clone(), (168, at), style(TEXT, BLACK)))?;
    }
    Ok(())
}

/// A number at an axis that ends there.
fn ticked(value: f64, end: f64) -> String {
    if end < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::study;
    use super::*;

    #[test]
    fn a_picture_has_a_line_for_each_scene_that_was_played_and_for_each_cost() {
        let picture = svg(&study()).expect("drawn");
        for name in ["all-to-all", "partition", "heap and staging", "nodes; the line is the bar"] {
            assert!(picture.contains(name), "{name}");
        }
        assert!(!picture.contains("incast"), "it was refused");
        for colour in ["#0072B2", "#D55E00", "#009E73"] {
            assert!(picture.contains(colour), "{colour}");
        }
    }
}
