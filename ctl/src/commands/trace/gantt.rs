//! Transfers as a Gantt chart (SVG): a panel for each, a row for each stage, predicted times below
//! measured ones, on one axis of time. A fragment's size stands in its bar where it fits.

use piped_core::status::Status;
use piped_report::trace::{TransferTrace, Visit};
use piped_theory::svg::{CHARACTER, GREY, MESH, colour, style};
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea as _};
use plotters::element::{PathElement, Rectangle, Text};
use plotters::prelude::SVGBackend;
use plotters::style::text_anchor::HPos;
use plotters::style::{BLACK, Color as _, RGBColor, WHITE};

use super::bars::{self, Bar};
use super::{end_of, heading, summary};
use crate::units;

const WIDTH: i32 = 1800;
/// Left and right end of the time axis.
const LEFT: i32 = 480;
const RIGHT: i32 = 1740;
const MARGIN: i32 = 36;

/// Height of the page's first line, and of the legend below it.
const TOP: i32 = 130;
/// Height of a panel's two lines of words.
const HEAD: i32 = 96;
/// Heights of a measured row, of a predicted one, and of the space between two stages.
const MEASURED: i32 = 46;
const PREDICTED: i32 = 30;
const GAP: i32 = 20;
/// Height of tick labels, and of the space between two panels.
const FOOT: i32 = 100;
/// Height of a note's line.
const NOTE: i32 = 34;
const NOTE_CHARACTERS: usize = 116;

const TITLE: f64 = 40.0;
const TEXT: f64 = 30.0;
const SMALL: f64 = 24.0;

/// Bars with less between them are told apart by their shades alone.
const SEPARATED: i32 = 6;

const RED: RGBColor = RGBColor(190, 20, 20);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// All panels below each other, as SVG text.
///
/// # Errors
/// Errors of plotters, which nothing here causes.
pub(crate) fn svg(title: &str, transfers: &[TransferTrace]) -> Result<String, String> {
    let panels: Vec<Panel<'_>> = transfers.iter().map(Panel::new).collect();
    let height = TOP + panels.iter().map(Panel::height).sum::<i32>();
    let mut text = String::new();
    let size = (WIDTH as u32, height as u32);
    let canvas = SVGBackend::with_string(&mut text, size).into_drawing_area();
    draw(&canvas, title, &panels).map_err(|error| format!("cannot draw the trace: {error}"))?;
    drop(canvas);
    Ok(text)
}

fn draw(canvas: &Canvas<'_>, title: &str, panels: &[Panel<'_>]) -> Drawn {
    canvas.fill(&WHITE)?;
    words(canvas, title, (MARGIN, 44), TITLE, BLACK, HPos::Left)?;
    legend(canvas, 98)?;
    let mut top = TOP;
    for panel in panels {
        panel.draw(canvas, top)?;
        top += panel.height();
    }
    canvas.present()
}

/// Explains bars by examples.
fn legend(canvas: &Canvas<'_>, y: i32) -> Drawn {
    let grey = |shade: f64| GREY.mix(shade);
    let mut x = MARGIN;
    let mut entry = |text: &str, sample: &dyn Fn(i32) -> Drawn| -> Drawn {
        sample(x)?;
        words(canvas, text, (x + 62, y), SMALL, GREY, HPos::Left)?;
        x += 62 + (text.chars().count() as f64 * SMALL * CHARACTER) as i32 + 34;
        Ok(())
    };
    let bar = |x: i32, shade: f64| -> Drawn {
        canvas.draw(&Rectangle::new([(x, y - 13), (x + 48, y + 13)], grey(shade).filled()))
    };
    entry("measured", &|x| bar(x, 0.9))?;
    entry("predicted", &|x| bar(x, 0.35))?;
    entry("waits for its turn", &|x| {
        canvas.draw(&PathElement::new([(x, y), (x + 48, y)], grey(0.9).stroke_width(3)))
    })?;
    entry("never left", &|x| {
        let corners = [(x, y - 13), (x + 48, y + 13)];
        canvas.draw(&Rectangle::new(corners, RED.stroke_width(3)))
    })
}

/// A transfer with the stages that have something to show.
struct Panel<'a> {
    transfer: &'a TransferTrace,
    rows: Vec<Row<'a>>,
    notes: Vec<String>,
    /// End of the axis, in nanoseconds.
    end: u64,
    ticks: Vec<u64>,
}

struct Row<'a> {
    name: &'a str,
    stage: usize,
    measured: Vec<Bar>,
    predicted: Vec<Bar>,
}

impl Row<'_> {
    fn height(&self) -> i32 {
        let part = |bars: &[Bar], height| if bars.is_empty() { 0 } else { height };
        part(&self.measured, MEASURED) + part(&self.predicted, PREDICTED) + GAP
    }
}

impl<'a> Panel<'a> {
    fn new(transfer: &'a TransferTrace) -> Self {
        let end = end_of(transfer);
        let row = |(stage, name): (usize, &'a String)| Row {
            name,
            stage,
            measured: bars::bars(&transfer.measured, stage, end),
            predicted: bars::bars(&transfer.predicted, stage, end),
        };
        let rows = transfer.stages.iter().enumerate().map(row);
        let rows = rows.filter(|row| !row.measured.is_empty() || !row.predicted.is_empty());
        let notes = transfer.notes.iter().flat_map(|note| folded(note));
        let (end, ticks) = axis(end.max(last(&transfer.predicted)));
        Self { transfer, rows: rows.collect(), notes: notes.collect(), end, ticks }
    }

    fn height(&self) -> i32 {
        let rows: i32 = self.rows.iter().map(Row::height).sum();
        HEAD + rows.max(GAP) + NOTE * self.notes.len() as i32 + FOOT
    }

    fn x(&self, nanos: u64) -> i32 {
        LEFT + (nanos as f64 / self.end as f64 * f64::from(RIGHT - LEFT)).round() as i32
    }

    fn draw(&self, canvas: &Canvas<'_>, top: i32) -> Drawn {
        let failed = self.transfer.status.is_none_or(|status| status != Status::Ok);
        let ink = if failed { RED } else { BLACK };
        words(canvas, &heading(self.transfer), (MARGIN, top + 22), TEXT, ink, HPos::Left)?;
        words(canvas, &summary(self.transfer), (MARGIN, top + 60), SMALL, GREY, HPos::Left)?;
        let rows = top + HEAD;
        let foot = rows + self.rows.iter().map(Row::height).sum::<i32>().max(GAP);
        self.mesh(canvas, (rows, foot))?;
        let mut y = rows + GAP / 2;
        for row in &self.rows {
            self.row(canvas, row, y)?;
            y += row.height();
        }
        self.ends(canvas, (rows, foot))?;
        for (line, note) in self.notes.iter().enumerate() {
            let place = (MARGIN, foot + 66 + NOTE * line as i32);
            words(canvas, note, place, SMALL, GREY, HPos::Left)?;
        }
        Ok(())
    }

    fn mesh(&self, canvas: &Canvas<'_>, (top, foot): (i32, i32)) -> Drawn {
        for &tick in &self.ticks {
            let x = self.x(tick);
            canvas.draw(&PathElement::new([(x, top), (x, foot)], MESH.stroke_width(2)))?;
            let text = units::seconds(tick as f64 * 1e-9);
            words(canvas, &text, (x, foot + 22), SMALL, BLACK, HPos::Center)?;
        }
        canvas.draw(&PathElement::new([(LEFT, foot), (RIGHT, foot)], GREY.stroke_width(2)))
    }

    fn row(&self, canvas: &Canvas<'_>, row: &Row<'_>, top: i32) -> Drawn {
        let middle = top + (row.height() - GAP) / 2;
        let name = shortened(row.name);
        words(canvas, &name, (LEFT - 22, middle), SMALL, BLACK, HPos::Right)?;
        let mut y = top;
        let ink = colour(row.stage);
        if !row.measured.is_empty() {
            self.bars(canvas, &row.measured, (y, y + MEASURED - 4), ink, 1.0)?;
            y += MEASURED;
        }
        if !row.predicted.is_empty() {
            self.bars(canvas, &row.predicted, (y, y + PREDICTED - 4), ink, 0.4)?;
        }
        Ok(())
    }

    fn bars(
        &self,
        canvas: &Canvas<'_>,
        bars: &[Bar],
        (top, bottom): (i32, i32),
        ink: RGBColor,
        strength: f64,
    ) -> Drawn {
        let middle = i32::midpoint(top, bottom);
        // A fragment that waits while another one is served is drawn behind that one's bar.
        let mut waited = LEFT;
        for bar in bars {
            let (from, to) = (self.x(bar.arrived).max(waited), self.x(bar.started));
            if from < to {
                let line = [(from, middle), (to, middle)];
                canvas.draw(&PathElement::new(line, ink.mix(strength).stroke_width(3)))?;
            }
            waited = waited.max(self.x(bar.ended));
        }
        // One of many bars in the same pixel is drawn.
        let same = |a: &Bar, b: &Bar| a.left == b.left && self.x(a.ended) >= self.x(b.ended);
        let mut drawn = LEFT - 1;
        for (place, group) in bars.chunk_by(same).enumerate() {
            let bar = group[0];
            let from = self.x(bar.started).max(drawn);
            let to = self.x(bar.ended).max(from + 1);
            drawn = to;
            let corners = [(from, top), (to, bottom)];
            if !bar.left {
                canvas.draw(&Rectangle::new(corners, RED.stroke_width(3)))?;
                continue;
            }
            // Neighbours have two shades.
            let shade = if place % 2 == 0 { strength } else { strength * 0.72 };
            canvas.draw(&Rectangle::new(corners, WHITE.filled()))?;
            canvas.draw(&Rectangle::new(corners, ink.mix(shade).filled()))?;
            if to - from > SEPARATED {
                canvas.draw(&PathElement::new([(to, top), (to, bottom)], WHITE.stroke_width(1)))?;
            }
            let size = if bottom - top > 30 { SMALL } else { SMALL * 0.85 };
            let fits = |text: &String| {
                let width = text.chars().count() as f64 * size * CHARACTER;
                (width as i32) + 8 < to - from
            };
            if let Some(text) = label(group).into_iter().find(fits) {
                let paper = if shade > 0.6 && is_dark(ink) { WHITE } else { BLACK };
                let place = (i32::midpoint(from, to), middle);
                words(canvas, &text, place, size, paper, HPos::Center)?;
            }
        }
        Ok(())
    }

    /// Marks the measured and the predicted end.
    fn ends(&self, canvas: &Canvas<'_>, (top, foot): (i32, i32)) -> Drawn {
        let line = |seconds: f64, ink: RGBColor, width: u32| -> Drawn {
            let x = self.x(((seconds * 1e9) as u64).min(self.end));
            canvas.draw(&PathElement::new([(x, top - 6), (x, foot)], ink.stroke_width(width)))
        };
        if self.transfer.predicted_seconds > 0.0 {
            line(self.transfer.predicted_seconds, GREY, 2)?;
        }
        self.transfer.measured_seconds.map_or(Ok(()), |seconds| line(seconds, BLACK, 3))
    }
}

fn last(visits: &[Visit]) -> u64 {
    visits.iter().filter_map(|visit| visit.departed_ns).max().unwrap_or(0)
}

/// End of an axis that holds `end`, and its ticks: 1, 2 or 5 of a unit.
fn axis(end: u64) -> (u64, Vec<u64>) {
    let end = end.max(1);
    let mut step = 1;
    for factor in [2, 5, 10].iter().cycle() {
        if end / step < 8 {
            break;
        }
        let power = 10_u64.pow(step.ilog10());
        step = power * factor;
    }
    (end, (0..=end / step).map(|tick| tick * step).collect())
}

fn is_dark(ink: RGBColor) -> bool {
    let RGBColor(red, green, blue) = ink;
    0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue) < 140.0
}

/// Labels for the bar of fragments that left together; the longest that fits is used.
fn label(group: &[Bar]) -> Vec<String> {
    let sizes: Vec<u64> = group.iter().map(|bar| bar.bytes).collect();
    let all = bars::sizes(&sizes, sizes.len() as u64);
    match group {
        [_] => vec![all],
        _ => vec![all, format!("{} together", group.len()), format!("{} x", group.len())],
    }
}

/// Stage's name in the given room; its ends say most.
fn shortened(name: &str) -> String {
    const CHARACTERS: usize = 32;
    let all: Vec<char> = name.chars().collect();
    if all.len() <= CHARACTERS {
        return name.to_owned();
    }
    let half = CHARACTERS / 2 - 1;
    let (head, tail) = (&all[..half], &all[all.len() - half..]);
    format!("{}...{}", head.iter().collect::<String>(), tail.iter().collect::<String>())
}

fn folded(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > NOTE_CHARACTERS {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

fn words(
    canvas: &Canvas<'_>,
    text: &str,
    place: (i32, i32),
    size: f64,
    ink: RGBColor,
    across: HPos,
) -> Drawn {
    canvas.draw(&Text::new(text.to_owned(), place, style(size, ink, across)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{served_read, stuck};
    use super::*;

    /// Texts that plotters writes, without reading a font.
    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).expect("SVG");
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        texts.filter_map(|node| node.text().map(|text| text.trim().to_owned())).collect()
    }

    #[test]
    fn sizes_stand_in_the_bars_and_both_ends_on_the_axis() {
        let svg = svg("title", &[served_read()]).expect("drawn");
        let texts = texts(&svg);
        let sizes = texts.iter().filter(|text| *text == "64 KiB").count();
        // Sizes of the disk and the lane, measured and predicted; the checksums are too short for
        // words.
        assert_eq!(sizes, 2 * 4 * 2, "{texts:?}");
        assert!(texts.iter().any(|text| text == "disk 8:0 read"), "{texts:?}");
        assert!(texts.iter().any(|text| text == "200 us"), "{texts:?}");
    }

    #[test]
    fn what_never_left_is_red_and_nothing_is_no_picture_without_words() {
        let svg_of = |transfers: &[TransferTrace]| svg("title", transfers).expect("drawn");
        let broken = svg_of(&[stuck()]);
        assert!(broken.contains("#BE1414"), "{broken}");
        assert!(texts(&broken).iter().any(|text| text.contains("had not ended")));
        let empty = TransferTrace { measured: Vec::new(), predicted: Vec::new(), ..stuck() };
        assert!(texts(&svg_of(&[empty])).len() > 3);
        assert!(texts(&svg_of(&[])).contains(&"title".to_owned()));
    }

    #[test]
    fn fragments_that_leave_together_share_a_bar() {
        let mut together = served_read();
        for visit in together.measured.iter_mut().filter(|visit| visit.stage == 0) {
            visit.departed_ns = Some(290_000);
        }
        let texts = texts(&svg("title", &[together]).expect("drawn"));
        assert!(texts.iter().any(|text| text == "4 x 64 KiB"), "{texts:?}");
    }

    #[test]
    fn many_fragments_are_no_more_bars_than_pixels() {
        let mut many = served_read();
        let one = many.measured[0];
        many.measured = (0..100_000)
            .map(|index| Visit {
                offset: index * 512,
                bytes: 512,
                arrived_ns: 0,
                departed_ns: Some(index * 10 + 10),
                ..one
            })
            .collect();
        let svg = svg("title", &[many]).expect("drawn");
        assert!(svg.len() < 2_000_000, "{} bytes", svg.len());
    }

    #[test]
    fn an_axis_has_a_few_round_ticks() {
        for end in [1, 7, 999, 1_234, 83_000, 5_000_000_000, u64::MAX / 4] {
            let (end_of_axis, ticks) = axis(end);
            assert!(end_of_axis >= end && (2..=9).contains(&ticks.len()), "{end}: {ticks:?}");
            assert!(ticks.iter().all(|&tick| tick <= end));
        }
        assert_eq!(axis(1_234).1, [0, 200, 400, 600, 800, 1000, 1200]);
    }

    #[test]
    fn long_names_keep_their_ends() {
        let name = "net a-node-with-a-very-long-name latency asked out";
        let short = shortened(name);
        assert!(short.starts_with("net a-node") && short.ends_with("asked out"), "{short}");
        assert!(short.chars().count() <= 33);
    }
}
