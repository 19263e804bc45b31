//! Text of figures: `T_f` is a `T` with a lowered, smaller `f`, in SVG and in PDF.

/// A run of characters, lowered or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// The characters of the run.
    pub(crate) text: &'a str,
    /// Whether it stands lower and smaller: what followed a `_`.
    pub(crate) lowered: bool,
}

/// Size of lowered text, as a part of the text's size.
pub(super) const SMALLER: f64 = 0.7;
/// How far lowered text stands below the line, as a part of the text's size.
pub(super) const DROP: f64 = 0.18;

/// The text in runs: letters and digits behind a `_` are lowered.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut parts = text.split('_');
    pieces.extend(parts.next().map(|text| Piece { text, lowered: false }));
    for part in parts {
        let end = part.find(|c: char| !c.is_alphanumeric()).unwrap_or(part.len());
        let (low, level) = part.split_at(end);
        pieces.push(Piece { text: low, lowered: true });
        pieces.push(Piece { text: level, lowered: false });
    }
    pieces.retain(|piece| !piece.text.is_empty());
    pieces
}

/// The number of characters that are seen.
pub(super) fn width(text: &str) -> usize {
    text.chars().filter(|c| *c != '_').count()
}

/// An SVG of plotters with lowered text where its texts have a `_`: plotters knows no runs.
pub(super) fn lowered(svg: &str) -> String {
    let mut out = String::with_capacity(svg.len());
    for line in svg.lines() {
        // plotters writes each text on a line of its own, between its tags.
        if line.starts_with('<') || !line.contains('_') {
            out.push_str(line);
        } else {
            let back = DROP / SMALLER;
            let mut is_low = false;
            for piece in pieces(line) {
                let text = piece.text;
                out.push_str(&match (piece.lowered, is_low) {
                    (true, _) => {
                        format!("<tspan dy=\"{back:.3}em\" font-size=\"70%\">{text}</tspan>")
                    }
                    (false, true) => format!("<tspan dy=\"-{DROP}em\">{text}</tspan>"),
                    (false, false) => text.to_owned(),
                });
                is_low = piece.lowered;
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_an_underscore_is_lowered_up_to_the_next_sign() {
        let runs = |text| {
            let runs = pieces(text).into_iter().map(|it| (it.text.to_owned(), it.lowered));
            runs.collect::<Vec<_>>()
        };
        let run = |text: &str, lowered| (text.to_owned(), lowered);
        assert_eq!(runs("latency (ms)"), [run("latency (ms)", false)]);
        assert_eq!(
            runs("T_f + T_l"),
            [run("T", false), run("f", true), run(" + T", false), run("l", true)]
        );
        assert_eq!(width("T_f + T_l"), 7);
    }

    #[test]
    fn only_texts_of_an_svg_change() {
        let svg = "<text x=\"1\" id=\"a_b\">\nT_b &lt; T\n</text>\n";
        let out = lowered(svg);
        assert!(out.contains("id=\"a_b\"") && out.contains("T<tspan dy=\"0.257em\""), "{out}");
        let text = roxmltree::Document::parse(&out).expect("well formed");
        let seen: String =
            text.descendants().filter(|it| it.is_text()).filter_map(|it| it.text()).collect();
        assert_eq!(seen.trim(), "Tb < T");
    }
}
