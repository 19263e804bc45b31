//! Figures as SVG. One layout for all: the title and the source above, the legend beside the plot
//! (never on it), text large enough to be read at half the size.
//!
//! No fonts are read: the viewer's sans serif draws the text, and widths are estimated. So the same
//! data give the same bytes on every machine, which lets a test compare the figures in the
//! documentation.

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea as _};
use plotters::element::{Circle, Cross, DashedPathElement, PathElement, Rectangle, Text};
use plotters::prelude::SVGBackend;
use plotters::series::{DashedLineSeries, LineSeries};
use plotters::style::text_anchor::HPos;
use plotters::style::{BLACK, Color as _, RGBColor, ShapeStyle, WHITE};

use super::axis::Ruler;
use super::chart::{Axis, Bar, Content, Figure, Mark, Series};
use crate::svg::{CHARACTER, GREY, MESH, colour, style};

/// plotters puts everything on whole pixels: on a large canvas curves are smooth.
const WIDTH: u32 = 1800;
const HEIGHT: u32 = 1080;
/// Above the plot: two lines.
const HEAD: u32 = 170;
/// Below it: tick labels and the axis' name.
const FOOT: u32 = 140;
/// Beside it: tick labels and the axis' name.
const SIDE: u32 = 190;
/// From one line of the legend to the next.
const ROW: i32 = 60;

const TITLE: f64 = 52.0;
const TEXT: f64 = 40.0;
const SMALL: f64 = 37.0;

/// Sizes of marks in the picture's units.
const DOT: u32 = 9;
const RING: u32 = 17;
const CROSS: u32 = 14;
const DASH: u32 = 18;
const GAP: u32 = 12;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Ruler, Ruler>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// A figure as SVG text.
///
/// # Errors
/// As plotters fails; nothing here gives it a reason to.
pub(crate) fn svg(figure: &Figure) -> Result<String, String> {
    let mut text = String::new();
    let canvas = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
    draw(&canvas, figure).map_err(|error| format!("cannot draw {}: {error}", figure.name))?;
    drop(canvas);
    Ok(text)
}

fn draw(canvas: &Canvas<'_>, figure: &Figure) -> Drawn {
    canvas.fill(&WHITE)?;
    let title = style(TITLE, BLACK, HPos::Left);
    canvas.draw(&Text::new(figure.title.as_str(), (36, 50), title))?;
    canvas.draw(&Text::new(figure.source, (36, 112), style(SMALL, GREY, HPos::Left)))?;
    let (_, below) = canvas.split_vertically(HEAD);
    let names: Vec<&str> = match &figure.content {
        Content::Curves { series, .. } => series.iter().map(|one| one.name.as_str()).collect(),
        Content::Bars { parts, .. } => parts.iter().map(String::as_str).collect(),
    };
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let legend = (longest as f64 * SMALL * CHARACTER) as u32 + 130;
    let (plot, beside) = below.split_horizontally(WIDTH - legend);
    match &figure.content {
        Content::Curves { x, y, series } => {
            curves(&plot, x, y, series)?;
            for (index, one) in series.iter().enumerate() {
                let place = ROW / 2 + ROW * index as i32;
                key(&beside, place, one.mark, colour(index))?;
                named(&beside, place, &one.name)?;
            }
        }
        Content::Bars { y, parts, bars } => {
            stacked(&plot, y, bars)?;
            // From above, as the parts lie on each other.
            for (row, (index, part)) in parts.iter().enumerate().rev().enumerate() {
                let place = ROW / 2 + ROW * row as i32;
                let square = [(18, place - 18), (60, place + 18)];
                beside.draw(&Rectangle::new(square, colour(index).filled()))?;
                named(&beside, place, part)?;
            }
        }
    }
    canvas.present()
}

fn curves(area: &Canvas<'_>, x: &Axis, y: &Axis, series: &[Series]) -> Drawn {
    let points = || series.iter().flat_map(|one| one.points.iter().copied());
    let across = Ruler::new(x, points().map(|point| point.0));
    let up = Ruler::new(y, points().map(|point| point.1));
    let mut plot = framed(area, across, up)?;
    mesh(&mut plot, Some(x.label), y.label)?;
    for (index, one) in series.iter().enumerate() {
        curve(&mut plot, one, colour(index))?;
    }
    Ok(())
}

fn framed<'a, 'b>(
    area: &'a Canvas<'b>,
    across: Ruler,
    up: Ruler,
) -> Result<Plot<'a, 'b>, DrawingAreaErrorKind<std::io::Error>> {
    ChartBuilder::on(area)
        .margin_left(36)
        .margin_right(30)
        .x_label_area_size(FOOT)
        .y_label_area_size(SIDE)
        .build_cartesian_2d(across, up)
}

fn mesh(plot: &mut Plot<'_, '_>, x: Option<&str>, y: &str) -> Drawn {
    let mut mesh = plot.configure_mesh();
    mesh.max_light_lines(0)
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(MESH)
        .axis_style(GREY)
        .label_style(style(SMALL, BLACK, HPos::Left))
        .axis_desc_style(style(TEXT, BLACK, HPos::Left))
        .set_all_tick_mark_size(10)
        .y_desc(y);
    match x {
        Some(x) => mesh.x_desc(x).draw(),
        None => mesh.disable_x_mesh().disable_x_axis().draw(),
    }
}

fn curve(plot: &mut Plot<'_, '_>, series: &Series, colour: RGBColor) -> Drawn {
    let points = || series.points.iter().copied();
    match series.mark {
        Mark::Line => {
            plot.draw_series(LineSeries::new(points(), line(colour)))?;
        }
        Mark::Dots => {
            plot.draw_series(LineSeries::new(points(), line(colour)))?;
            plot.draw_series(points().map(|point| Circle::new(point, DOT, colour.filled())))?;
        }
        Mark::Dashed => {
            plot.draw_series(DashedLineSeries::new(points(), DASH, GAP, line(colour)))?;
        }
        Mark::Rings => {
            plot.draw_series(points().map(|point| Circle::new(point, RING, line(colour))))?;
        }
        Mark::Crosses => {
            plot.draw_series(points().map(|point| Cross::new(point, CROSS, line(colour))))?;
        }
    }
    Ok(())
}

/// Bars side by side, with the sum above and the name below each; a group's name stands once below
/// its bars.
fn stacked(area: &Canvas<'_>, y: &Axis, bars: &[Bar]) -> Drawn {
    // Room for the sums.
    let tops = bars.iter().map(|bar| bar.values.iter().sum::<f64>() * 1.06);
    let across = Ruler::new(&Axis::from_zero(""), [bars.len() as f64].into_iter());
    let up = Ruler::new(y, tops);
    let mut plot = framed(area, across, up)?;
    mesh(&mut plot, None, y.label)?;
    let foot = area.dim_in_pixel().1 as i32 - FOOT as i32;
    let write = |text: &str, place: (i32, i32), colour| {
        area.draw(&Text::new(text, place, style(SMALL, colour, HPos::Center)))
    };
    for (index, bar) in bars.iter().enumerate() {
        let (left, right) = (index as f64 + 0.2, index as f64 + 0.8);
        let mut base = 0.0;
        for (part, &value) in bar.values.iter().enumerate() {
            let sides = [(left, base), (right, base + value)];
            plot.draw_series([Rectangle::new(sides, colour(part).filled())])?;
            base += value;
        }
        // Counted from the corner of the canvas, `area` counts from its own.
        let (x, above) = plot.backend_coord(&(index as f64 + 0.5, base));
        write(&format!("{base:.1}"), (x, above - HEAD as i32 - 27), BLACK)?;
        write(&bar.name, (x, foot + 34), BLACK)?;
    }
    let mut first = 0;
    for group in bars.chunk_by(|a, b| a.group == b.group) {
        let middle = first as f64 + group.len() as f64 / 2.0;
        let (x, _) = plot.backend_coord(&(middle, 0.0));
        write(&group[0].group, (x, foot + 84), GREY)?;
        first += group.len();
    }
    Ok(())
}

/// A sample of a series for the legend.
fn key(area: &Canvas<'_>, place: i32, mark: Mark, colour: RGBColor) -> Drawn {
    let ends = [(9, place), (69, place)];
    let middle = (39, place);
    match mark {
        Mark::Line => area.draw(&PathElement::new(ends, line(colour))),
        Mark::Dashed => area.draw(&DashedPathElement::new(ends, DASH, GAP, line(colour))),
        Mark::Dots => {
            area.draw(&PathElement::new(ends, line(colour)))?;
            area.draw(&Circle::new(middle, DOT, colour.filled()))
        }
        Mark::Rings => area.draw(&Circle::new(middle, RING, line(colour))),
        Mark::Crosses => area.draw(&Cross::new(middle, CROSS, line(colour))),
    }
}

fn named(area: &Canvas<'_>, place: i32, name: &str) -> Drawn {
    area.draw(&Text::new(name, (86, place), style(SMALL, BLACK, HPos::Left)))
}

fn line(colour: RGBColor) -> ShapeStyle {
    colour.stroke_width(5)
}
