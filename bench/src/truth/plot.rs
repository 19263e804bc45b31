//! Every size set by hand over `auto`: a row of panels for each load, a column for each path; below
//! them, other programs with their own sizes.

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use piped_core::modes::PlannerMode;

use super::knobs::Sweep;
use super::scene::{BLOCKS, Load, Path};
use super::sweep::{Cell, fragment_bytes};
use super::table::{Study, in_words};
use crate::failure::Failure;
use crate::rig::style;

const PANEL: (u32, u32) = (480, 360);
const HEAD: u32 = 150;
const TEXT: f64 = 22.0;

/// Okabe and Ito's colours, which most people can tell apart, for the lengths.
const COLOURS: [RGBColor; BLOCKS.len()] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];

/// Ends of the axes, in octaves: sizes of 16 KiB to 16 MiB, a third faster to four times slower.
/// What is slower is drawn at the upper edge.
const SIZES: (f64, f64) = (14.0, 24.0);
const TIMES: (f64, f64) = (-0.5, 2.0);

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line of a panel: sizes in bytes with times over `auto`, and the same by the model.
struct Line {
    measured: Vec<(f64, f64)>,
    predicted: Vec<(f64, f64)>,
    colour: RGBColor,
}

pub(super) fn svg(study: &Study) -> Result<String, Failure> {
    let mut text = String::new();
    draw(&mut text, study).map_err(|error| Failure::new(format!("cannot draw: {error}")))?;
    Ok(text)
}

fn draw(text: &mut String, study: &Study) -> Drawn {
    let has = |load: &Load| study.cells.iter().any(|cell| cell.load == *load);
    let loads: Vec<Load> = Load::ALL.into_iter().filter(has).collect();
    let rows = loads.len() + usize::from(!study.sweeps.is_empty());
    let columns = Path::ALL.len();
    let size = (PANEL.0 * columns as u32, HEAD + PANEL.1 * rows.max(1) as u32);
    let canvas = SVGBackend::with_string(text, size).into_drawing_area();
    canvas.fill(&WHITE)?;
    let (head, panels) = canvas.split_vertically(HEAD);
    legend(&head)?;
    for (place, area) in panels.split_evenly((rows.max(1), columns)).iter().enumerate() {
        let (row, column) = (place / columns, place % columns);
        if let Some(load) = loads.get(row) {
            let path = Path::ALL[column];
            let cells = study.cells.iter().filter(|cell| (cell.path, cell.load) == (path, *load));
            let lines: Vec<Line> = cells.map(of_cell).collect();
            if !lines.is_empty() {
                panel(area, &format!("{}, {}", path.name(), load.name()), &lines)?;
            }
        } else if let Some(sweep) = study.sweeps.get(column) {
            panel(area, sweep.name, &[of_sweep(sweep)])?;
        }
    }
    canvas.present()
}

fn of_cell(cell: &Cell) -> Line {
    // One piece is drawn at the transfer's own length.
    let place = |bytes: u64, is_whole| if is_whole { cell.block as f64 } else { bytes as f64 };
    let measured = cell.hand.iter().map(|hand| {
        let bytes = fragment_bytes(hand.mode(), cell.block);
        (place(bytes, hand.mode() == PlannerMode::Whole), hand.seconds() / cell.auto)
    });
    let seen = cell.list.seen().iter();
    let equal = seen.filter(|seen| seen.plan().starts_with("static-") || seen.plan() == "whole");
    let predicted = equal.map(|seen| {
        let is_whole = seen.plan() == "whole";
        (place(seen.fragment_bytes(), is_whole), seen.predicted() / cell.list.predicted())
    });
    let colour = BLOCKS.iter().position(|block| *block == cell.block).unwrap_or(0);
    Line { measured: measured.collect(), predicted: predicted.collect(), colour: COLOURS[colour] }
}

fn of_sweep(sweep: &Sweep) -> Line {
    let measured = sweep.settings.iter().map(|it| (it.bytes() as f64, it.seconds() / sweep.auto));
    Line { measured: measured.collect(), predicted: Vec::new(), colour: BLACK }
}

fn legend(head: &Area<'_>) -> Drawn {
    let title = "Every size set by hand, in times piped's own choice (the line at 1 x)";
    head.draw(&Text::new(title, (30, 30), style(TEXT * 1.3, BLACK)))?;
    for (place, (block, colour)) in BLOCKS.into_iter().zip(COLOURS).enumerate() {
        let left = 30 + 200 * place as i32;
        head.draw(&PathElement::new([(left, 78), (left + 45, 78)], colour.stroke_width(5)))?;
        head.draw(&Text::new(in_words(block), (left + 55, 78), style(TEXT, BLACK)))?;
    }
    head.draw(&Circle::new((52, 120), 6, BLACK.stroke_width(2)))?;
    let circles = "the model, in times its own prediction; one piece is at the transfer's length; \
                   what is above 4 x is at the edge; below: other programs' own sizes";
    head.draw(&Text::new(circles, (85, 120), style(TEXT, BLACK)))
}

fn panel(area: &Area<'_>, name: &str, lines: &[Line]) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_right(26)
        .x_label_area_size(64)
        .y_label_area_size(64)
        .build_cartesian_2d((13.0..SIZES.1 + 0.3).step(1.0), (TIMES.0..TIMES.1).step(0.5))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(name)
        .label_style(style(TEXT * 0.8, BLACK))
        .axis_desc_style(style(TEXT, BLACK))
        .x_label_formatter(&|log| match log % 2.0 {
            0.0 => in_words(log.exp2() as usize),
            _ => String::new(),
        })
        .y_label_formatter(&|log| match log.fract() {
            0.0 => format!("{:.0} x", log.exp2()),
            _ => String::new(),
        })
        .draw()?;
    let own = [(13.0, 0.0), (SIZES.1, 0.0)];
    chart.draw_series(LineSeries::new(own, BLACK.stroke_width(3)))?;
    let at = |(bytes, times): &(f64, f64)| (bytes.log2(), times.log2().clamp(TIMES.0, TIMES.1));
    for line in lines {
        let measured = || line.measured.iter().filter(|(_, times)| times.is_finite()).map(at);
        chart.draw_series(LineSeries::new(measured(), line.colour.stroke_width(3)))?;
        chart.draw_series(measured().map(|place| Circle::new(place, 4, line.colour.filled())))?;
        let shown = |(bytes, times): &&(f64, f64)| bytes.log2() >= SIZES.0 && times.is_finite();
        let predicted = line.predicted.iter().filter(shown).map(at);
        chart.draw_series(
            predicted.map(|place| Circle::new(place, 7, line.colour.stroke_width(2))),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::study;
    use super::*;

    #[test]
    fn a_picture_has_a_panel_for_what_was_measured_and_no_other() {
        let study = study();
        let picture = svg(&study).expect("drawn");
        for name in ["file, quiet", "get, 10ms", "nbdcopy-256m"] {
            assert!(picture.contains(name), "{name}");
        }
        assert!(!picture.contains("put, quiet") && !picture.contains("slow-disk"));
        let dots = |picture: &str| picture.matches("<circle").count();
        let without = svg(&Study { sweeps: Vec::new(), ..study.clone() }).expect("drawn");
        assert_eq!(dots(&picture) - dots(&without), study.sweeps[0].settings.len());
        assert_eq!(svg(&Study::default()).map(|picture| dots(&picture)), Ok(1), "only the key's");
    }
}
