//! Colours and text without fonts, for all pictures.

use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color as _, FontFamily, IntoFont as _, RGBColor, TextStyle};

/// Divisor that plotters applies to a font size.
pub(crate) const FONT_UNIT: f64 = 1.24;
/// Width of a character relative to its size, generously.
pub const CHARACTER: f64 = 0.56;

/// The colour of axes and secondary text.
pub const GREY: RGBColor = RGBColor(96, 96, 96);
/// The colour of grid lines.
pub const MESH: RGBColor = RGBColor(222, 222, 222);

/// Okabe and Ito's colours, which people with any colour vision can tell apart; yellow is left out
/// because of its contrast.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    BLACK,
];

/// Colour for each of a few things, in order.
#[must_use]
pub fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// Style of text in the viewer's sans serif, `pixels` high, anchored at its left, middle or right.
#[must_use]
pub fn style(pixels: f64, colour: RGBColor, across: HPos) -> TextStyle<'static> {
    let font = (FontFamily::SansSerif, pixels * FONT_UNIT).into_font();
    TextStyle {
        color: colour.to_backend_color(),
        pos: Pos::new(across, VPos::Center),
        ..TextStyle::from(font)
    }
}
