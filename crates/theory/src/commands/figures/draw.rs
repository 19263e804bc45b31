//! Figures as SVG and as PDF. One layout for all: title, source and parameters above, the legend
//! beside the plot (never on it), text large enough to be read at half the size.
//!
//! No fonts are read: the viewer's sans serif draws the text, and widths are estimated. So the same
//! data give the same bytes on every machine, which lets a test compare the figures in the
//! documentation.
//!
//! Curves that lie on each other are drawn one in the other: the one below is wider.

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea as _};
use plotters::element::{Circle, Cross, DashedPathElement, PathElement, Rectangle, Text};
use plotters::prelude::{DrawingBackend, SVGBackend};
use plotters::series::{DashedLineSeries, LineSeries};
use plotters::style::text_anchor::HPos;
use plotters::style::{BLACK, Color as _, ShapeStyle, WHITE};

use super::axis::Ruler;
use super::chart::{Axis, Bar, Content, Figure, Mark, Series};
use super::{pdf, typeset};
use crate::svg::{CHARACTER, GREY, MESH, colour, style};

/// plotters puts everything on whole pixels: on a large canvas curves are smooth.
const WIDTH: u32 = 1800;
const HEIGHT: u32 = 1130;
/// Above the plot: three lines.
const HEAD: u32 = 220;
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
/// Width of a line, and by how much one is wider for each that lies on it.
const LINE: u32 = 5;
const WIDER: u32 = 5;

/// Characters that a line above the plot has room for.
#[cfg(test)]
pub(crate) const LINE_MAX: usize = 84;

type Canvas<B> = DrawingArea<B, Shift>;
type Plot<'a, B> = ChartContext<'a, B, Cartesian2d<Ruler, Ruler>>;
type Failed<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;
type Drawn<B> = Result<(), Failed<B>>;

/// A figure as SVG text.
///
/// # Errors
/// As plotters fails; nothing here gives it a reason to.
pub(crate) fn svg(figure: &Figure) -> Result<String, String> {
    let mut text = String::new();
    let canvas = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
    draw(&canvas, figure).map_err(|error| format!("cannot draw {}: {error}", figure.name))?;
    drop(canvas);
    Ok(typeset::lowered(&text))
}

/// A figure as a PDF of one page.
///
/// # Errors
/// As [`svg`].
pub(crate) fn pdf(figure: &Figure) -> Result<Vec<u8>, String> {
    let drawn =
        pdf::file(&figure.title, (WIDTH, HEIGHT), |page| draw(&page.into_drawing_area(), figure));
    drawn.map_err(|error| format!("cannot draw {}: {error}", figure.name))
}

fn draw<B: DrawingBackend>(canvas: &Canvas<B>, figure: &Figure) -> Drawn<B> {
    canvas.fill(&WHITE)?;
    let title = style(TITLE, BLACK, HPos::Left);
    canvas.draw(&Text::new(figure.title.as_str(), (36, 50), title))?;
    let small = || style(SMALL, GREY, HPos::Left);
    canvas.draw(&Text::new(figure.source, (36, 112), small()))?;
    canvas.draw(&Text::new(figure.parameters.as_str(), (36, 164), small()))?;
    let (_, below) = canvas.split_vertically(HEAD);
    let names: Vec<&str> = match &figure.content {
        Content::Curves { series, .. } => series.iter().map(|one| one.name.as_str()).collect(),
        Content::Bars { parts, .. } => parts.iter().map(String::as_str).chain([LEAST]).collect(),
    };
    let longest = names.iter().map(|name| typeset::width(name)).max().unwrap_or(0);
    let legend = (longest as f64 * SMALL * CHARACTER) as u32 + 130;
    let (plot, beside) = below.split_horizontally(WIDTH - legend);
    match &figure.content {
        Content::Curves { x, y, series } => {
            let strokes = strokes(series);
            curves(&plot, x, y, series, &strokes)?;
            for (index, (one, stroke)) in series.iter().zip(strokes).enumerate() {
                let place = ROW / 2 + ROW * index as i32;
                key(&beside, place, one.mark, stroke)?;
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
            let place = ROW / 2 + ROW * parts.len() as i32;
            key(&beside, place, Mark::Dashed, BLACK.stroke_width(LINE))?;
            named(&beside, place, LEAST)?;
        }
    }
    canvas.present()
}

/// The name of [`Bar::least`] in the legend.
pub(crate) const LEAST: &str = "no plan is below";

/// How each series is drawn. Lines have colours in order, and are wider where others lie on them;
/// rings and crosses are black, so that they stand out from every line.
fn strokes(series: &[Series]) -> Vec<ShapeStyle> {
    let stroke = |(index, one): (usize, &Series)| match one.mark {
        Mark::Rings | Mark::Crosses => BLACK.stroke_width(LINE),
        Mark::Line | Mark::Dashed | Mark::Dots => {
            let above =
                series[index + 1..].iter().filter(|other| one.coincides(other)).count().min(2);
            colour(index).stroke_width(LINE + WIDER * above as u32)
        }
    };
    series.iter().enumerate().map(stroke).collect()
}

fn curves<B: DrawingBackend>(
    area: &Canvas<B>,
    x: &Axis,
    y: &Axis,
    series: &[Series],
    strokes: &[ShapeStyle],
) -> Drawn<B> {
    let points = || series.iter().flat_map(|one| one.points.iter().copied());
    let across = Ruler::new(x, points().map(|point| point.0));
    let up = Ruler::new(y, points().map(|point| point.1));
    let mut plot = framed(area, across, up)?;
    mesh(&mut plot, Some(&x.shown()), &y.shown())?;
    for (one, &stroke) in series.iter().zip(strokes) {
        curve(&mut plot, one, stroke)?;
    }
    Ok(())
}

fn framed<B: DrawingBackend>(
    area: &Canvas<B>,
    across: Ruler,
    up: Ruler,
) -> Result<Plot<'_, B>, Failed<B>> {
    ChartBuilder::on(area)
        .margin_left(36)
        .margin_right(30)
        .x_label_area_size(FOOT)
        .y_label_area_size(SIDE)
        .build_cartesian_2d(across, up)
}

fn mesh<B: DrawingBackend>(plot: &mut Plot<'_, B>, x: Option<&str>, y: &str) -> Drawn<B> {
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

fn curve<B: DrawingBackend>(
    plot: &mut Plot<'_, B>,
    series: &Series,
    stroke: ShapeStyle,
) -> Drawn<B> {
    let points = || series.points.iter().copied();
    // Around rings and crosses, so that they stand out on a line of their own colour.
    let halo = WHITE.stroke_width(LINE + 6);
    match series.mark {
        Mark::Line => {
            plot.draw_series(LineSeries::new(points(), stroke))?;
        }
        Mark::Dots => {
            plot.draw_series(LineSeries::new(points(), stroke))?;
            plot.draw_series(points().map(|point| Circle::new(point, DOT, stroke.filled())))?;
        }
        Mark::Dashed => {
            plot.draw_series(DashedLineSeries::new(points(), DASH, GAP, stroke))?;
        }
        Mark::Rings => {
            for style in [halo, stroke] {
                plot.draw_series(points().map(|point| Circle::new(point, RING, style)))?;
            }
        }
        Mark::Crosses => {
            for style in [halo, stroke] {
                plot.draw_series(points().map(|point| Cross::new(point, CROSS, style)))?;
            }
        }
    }
    Ok(())
}

/// Bars side by side, with the sum above and the name below each; a group's name stands once below
/// its bars, and a broken line is where none of them can come.
fn stacked<B: DrawingBackend>(area: &Canvas<B>, y: &Axis, bars: &[Bar]) -> Drawn<B> {
    // Room for the sums.
    let tops = bars.iter().map(|bar| bar.values.iter().sum::<f64>() * 1.06);
    let across = Ruler::new(&Axis::from_zero(""), [bars.len() as f64].into_iter());
    let up = Ruler::new(y, tops);
    let mut plot = framed(area, across, up)?;
    mesh(&mut plot, None, &y.shown())?;
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
    let mut first = 0.0;
    for group in bars.chunk_by(|a, b| a.group == b.group) {
        let last = first + group.len() as f64;
        let (x, _) = plot.backend_coord(&((first + last) / 2.0, 0.0));
        write(&group[0].group, (x, foot + 84), GREY)?;
        let ends = [(first + 0.1, group[0].least), (last - 0.1, group[0].least)];
        let stroke = BLACK.stroke_width(LINE);
        plot.draw_series(DashedLineSeries::new(ends, DASH, GAP, stroke))?;
        first = last;
    }
    Ok(())
}

/// A sample of a series for the legend.
fn key<B: DrawingBackend>(
    area: &Canvas<B>,
    place: i32,
    mark: Mark,
    stroke: ShapeStyle,
) -> Drawn<B> {
    let ends = [(9, place), (69, place)];
    let middle = (39, place);
    match mark {
        Mark::Line => area.draw(&PathElement::new(ends, stroke)),
        Mark::Dashed => area.draw(&DashedPathElement::new(ends, DASH, GAP, stroke)),
        Mark::Dots => {
            area.draw(&PathElement::new(ends, stroke))?;
            area.draw(&Circle::new(middle, DOT, stroke.filled()))
        }
        Mark::Rings => area.draw(&Circle::new(middle, RING, stroke)),
        Mark::Crosses => area.draw(&Cross::new(middle, CROSS, stroke)),
    }
}

fn named<B: DrawingBackend>(area: &Canvas<B>, place: i32, name: &str) -> Drawn<B> {
    area.draw(&Text::new(name, (86, place), style(SMALL, BLACK, HPos::Left)))
}
