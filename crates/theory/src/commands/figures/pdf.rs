//! Figures as PDF, for print: what plotters draws, as operators of one page.
//!
//! Text is in Helvetica, and Greek letters and signs in Symbol: two of the fonts that every viewer
//! has. So there is no font to ship or to choose, and the same data give the same bytes.

use std::convert::Infallible;

use pdf_writer::types::LineJoinStyle;
use pdf_writer::{Content, Finish as _, Name, Pdf, Rect, Ref, Str, TextStr};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    FontTransform,
};

use super::typeset::{DROP, SMALLER, pieces};
use crate::svg::FONT_UNIT;

/// Points of a picture's unit: 1800 units are seven inches, the width of a page's text.
const POINTS: f32 = 504.0 / 1800.0;

/// Distance of a control point that makes a quarter of a circle, as a part of its radius.
const QUARTER: f32 = 0.552_284_8;

const HELVETICA: Name<'_> = Name(b"H");
const SYMBOL: Name<'_> = Name(b"S");

/// A page while it is drawn.
pub(super) struct Page<'a> {
    size: (u32, u32),
    content: &'a mut Content,
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

/// A figure so many units wide and high, drawn by `draw`, as a file of one page.
///
/// # Errors
/// As `draw` fails.
pub(super) fn file<E>(
    title: &str,
    size: (u32, u32),
    draw: impl FnOnce(Page<'_>) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    let mut drawn = Content::new();
    drawn.set_line_join(LineJoinStyle::RoundJoin);
    draw(Page { size, content: &mut drawn })?;
    let [catalog, tree, page, content, helvetica, symbol, info] =
        [1, 2, 3, 4, 5, 6, 7].map(Ref::new);
    let mut pdf = Pdf::new();
    pdf.catalog(catalog).pages(tree);
    pdf.document_info(info).title(TextStr(title));
    pdf.pages(tree).kids([page]).count(1);
    let [width, height] = [size.0, size.1].map(|units| units as f32 * POINTS);
    let mut only = pdf.page(page);
    only.media_box(Rect::new(0.0, 0.0, width, height)).parent(tree).contents(content);
    only.resources().fonts().pair(HELVETICA, helvetica).pair(SYMBOL, symbol);
    only.finish();
    pdf.type1_font(helvetica)
        .base_font(Name(b"Helvetica"))
        .encoding_predefined(Name(b"WinAnsiEncoding"));
    pdf.type1_font(symbol).base_font(Name(b"Symbol"));
    pdf.stream(content, &drawn.finish());
    Ok(pdf.finish())
}

impl Page<'_> {
    /// A place on the page: PDF counts from below.
    fn at(&self, (x, y): BackendCoord) -> (f32, f32) {
        (x as f32 * POINTS, (self.size.1 as i32 - y) as f32 * POINTS)
    }

    fn stroked<S: BackendStyle>(&mut self, style: &S) {
        let [r, g, b] = colour(style.color());
        self.content.set_stroke_rgb(r, g, b);
        self.content.set_line_width(style.stroke_width() as f32 * POINTS);
    }

    fn filled(&mut self, ink: BackendColor) {
        let [r, g, b] = colour(ink);
        self.content.set_fill_rgb(r, g, b);
    }

    fn outline(&mut self, points: impl IntoIterator<Item = BackendCoord>) {
        for (index, point) in points.into_iter().enumerate() {
            let (x, y) = self.at(point);
            if index == 0 {
                self.content.move_to(x, y);
            } else {
                self.content.line_to(x, y);
            }
        }
    }
}

fn colour(ink: BackendColor) -> [f32; 3] {
    let (r, g, b) = ink.rgb;
    [r, g, b].map(|part| f32::from(part) / 255.0)
}

impl DrawingBackend for Page<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, ink: BackendColor) -> Drawn {
        self.fill_polygon([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)], &ink)
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        (left, top): BackendCoord,
        (right, bottom): BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let corners = [(left, top), (right, top), (right, bottom), (left, bottom)];
        if fill {
            return self.fill_polygon(corners, &style.color());
        }
        self.draw_path(corners.into_iter().chain([(left, top)]), style)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        if style.color().alpha > 0.0 {
            self.stroked(style);
            self.outline(path);
            self.content.stroke();
        }
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        centre: BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        if style.color().alpha == 0.0 {
            return Ok(());
        }
        let ((x, y), r) = (self.at(centre), radius as f32 * POINTS);
        let k = r * QUARTER;
        self.stroked(style);
        self.filled(style.color());
        self.content
            .move_to(x + r, y)
            .cubic_to(x + r, y + k, x + k, y + r, x, y + r)
            .cubic_to(x - k, y + r, x - r, y + k, x - r, y)
            .cubic_to(x - r, y - k, x - k, y - r, x, y - r)
            .cubic_to(x + k, y - r, x + r, y - k, x + r, y)
            .close_path();
        if fill {
            self.content.fill_nonzero();
        } else {
            self.content.stroke();
        }
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        corners: I,
        style: &S,
    ) -> Drawn {
        if style.color().alpha > 0.0 {
            self.filled(style.color());
            self.outline(corners);
            self.content.close_path().fill_nonzero();
        }
        Ok(())
    }

    fn draw_text<T: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &T,
        place: BackendCoord,
    ) -> Drawn {
        let size = (style.size() / FONT_UNIT) as f32 * POINTS;
        let runs: Vec<Run> = pieces(text).iter().flat_map(|it| runs(it.text, it.lowered)).collect();
        let width = runs.iter().map(|run| run.width(size)).sum::<f32>();
        let along = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => -width / 2.0,
            HPos::Right => -width,
        };
        // As the SVG has it: 0.76 em, or half the height of an x.
        let below = match style.anchor().v_pos {
            VPos::Top => 0.76,
            VPos::Center => 0.26,
            VPos::Bottom => -0.26,
        } * size;
        // The direction in which the text runs, in PDF's axes.
        let (cos, sin) = match style.transform() {
            FontTransform::None => (1.0, 0.0),
            FontTransform::Rotate90 => (0.0, -1.0),
            FontTransform::Rotate180 => (-1.0, 0.0),
            FontTransform::Rotate270 => (0.0, 1.0),
        };
        let (x, y) = self.at(place);
        let start = (x + along * cos + below * sin, y + along * sin - below * cos);
        self.filled(style.color());
        self.content.begin_text().set_text_matrix([cos, sin, -sin, cos, start.0, start.1]);
        for run in runs {
            let rise = if run.lowered { -DROP as f32 * size } else { 0.0 };
            self.content.set_rise(rise).set_font(run.font, run.size(size)).show(Str(&run.bytes));
        }
        self.content.set_rise(0.0).end_text();
        Ok(())
    }
}

/// Characters of one font and height.
struct Run {
    font: Name<'static>,
    lowered: bool,
    bytes: Vec<u8>,
    /// In thousandths of the size.
    advance: u32,
}

impl Run {
    fn size(&self, size: f32) -> f32 {
        if self.lowered { size * SMALLER as f32 } else { size }
    }

    fn width(&self, size: f32) -> f32 {
        self.advance as f32 / 1000.0 * self.size(size)
    }
}

fn runs(text: &str, lowered: bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (font, byte, advance) in text.chars().map(glyph) {
        match runs.last_mut() {
            Some(run) if run.font == font => {
                run.bytes.push(byte);
                run.advance += advance;
            }
            _ => runs.push(Run { font, lowered, bytes: vec![byte], advance }),
        }
    }
    runs
}

/// Widths of Helvetica from the blank to `~`, in thousandths of the size (Adobe's metrics).
#[rustfmt::skip]
const WIDTHS: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278,
    556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
    1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
    333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556,
    556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];

/// A character's font, its byte there and its width; a question mark for one that neither has.
fn glyph(character: char) -> (Name<'static>, u8, u32) {
    match character {
        'µ' => (HELVETICA, 0xB5, 556),
        '·' => (HELVETICA, 0xB7, 278),
        '×' => (HELVETICA, 0xD7, 584),
        '–' => (HELVETICA, 0x96, 556),
        'λ' => (SYMBOL, b'l', 549),
        'α' => (SYMBOL, b'a', 631),
        'δ' => (SYMBOL, b'd', 494),
        '≥' => (SYMBOL, 0xB3, 549),
        '→' => (SYMBOL, 0xAE, 987),
        _ => match WIDTHS.get((character as usize).wrapping_sub(0x20)) {
            Some(&width) => (HELVETICA, character as u8, width.into()),
            None => (HELVETICA, b'?', WIDTHS[usize::from(b'?' - 0x20)].into()),
        },
    }
}

/// Whether a text can be written in these fonts.
#[cfg(test)]
pub(super) fn has_all(text: &str) -> bool {
    text.chars().all(|c| c == '?' || glyph(c).1 != b'?')
}
