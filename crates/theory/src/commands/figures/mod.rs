//! `pipectl model figures`: the papers' figures, drawn from the models.
//!
//! A figure is a small pure function that returns data (one file for each paper); [`draw`] makes a
//! picture of it, [`files`] a table.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::Text;
use piped_model::stage::Stage;
use serde::Serialize;

use chart::Figure;

mod axis;
mod buffers;
mod chart;
mod draw;
mod files;
mod hierarchies;
mod pdf;
mod pipelines;
mod servers;
mod signature;
mod strips;
mod tiles;
mod typeset;

/// Arguments of `pipectl model figures`.
#[derive(Debug, ClapArgs)]
pub(crate) struct FiguresArgs {
    /// The directory to write to; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// The written files as `--json` prints them.
#[derive(Debug, Serialize)]
struct Written<'a> {
    index: String,
    figures: Vec<Row<'a>>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    title: &'a str,
    source: &'a str,
    parameters: &'a str,
    caption: &'a str,
    svg: String,
    pdf: String,
    csv: String,
}

pub(crate) fn run(args: &FiguresArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let figures = all();
    files::write(&args.out, &figures)?;
    if json {
        let figures = figures.iter().map(row).collect();
        return output::json(Written { index: files::INDEX.to_owned(), figures });
    }
    let rows = figures.iter().map(|figure| {
        vec![files::svg_name(figure), figure.title.clone(), figure.source.to_owned()]
    });
    output.table(&[Text("FILE"), Text("SHOWS"), Text("AFTER")], rows.collect())?;
    output.line(format_args!("all with their data: {}", args.out.join(files::INDEX).display()))
}

fn row(figure: &Figure) -> Row<'_> {
    Row {
        name: figure.name,
        title: &figure.title,
        source: figure.source,
        parameters: &figure.parameters,
        caption: &figure.caption,
        svg: files::svg_name(figure),
        pdf: files::pdf_name(figure),
        csv: files::csv_name(figure),
    }
}

/// The parameters of a path as pictures have them, `g` in µs and `G` in µs per `unit` bytes.
fn parameters(name: &str, path: &[Stage], unit: f64, more: &str) -> String {
    let list = |of: fn(&Stage) -> f64, scale: f64| {
        let round = |stage| (of(stage) * scale * 1e4).round() / 1e4;
        path.iter().map(|stage| round(stage).to_string()).collect::<Vec<_>>().join(" ")
    };
    let (overheads, per_unit) =
        (list(|stage| stage.overhead, 1e6), list(|stage| stage.per_byte, 1e6 * unit));
    format!("{name}: g {overheads} µs, G {per_unit} µs per {unit} bytes{more}")
}

/// Every figure, paper by paper.
fn all() -> Vec<Figure> {
    [
        pipelines::figures(),
        hierarchies::figures(),
        servers::figures(),
        strips::figures(),
        signature::figures(),
        buffers::figures(),
        tiles::figures(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use chart::Content;
    use piped_cli::failure::Exit;

    #[test]
    fn every_figure_is_three_files_and_on_the_page() {
        let out = tempfile::tempdir().expect("a directory");
        let (figures, out) = (all(), out.path().join("new").join("deeper"));
        files::write(&out, &figures).expect("written");
        let page = std::fs::read_to_string(out.join(files::INDEX)).expect("the page");
        let mut wanted = BTreeSet::from([files::INDEX.to_owned()]);
        for figure in &figures {
            let names = [files::svg_name(figure), files::pdf_name(figure), files::csv_name(figure)];
            for name in names {
                assert!(page.contains(&format!("\"{name}\"")), "{name}");
                assert!(wanted.insert(name), "{} is there twice", figure.name);
            }
        }
        let found = std::fs::read_dir(&out).expect("the directory").map(|entry| {
            let name = entry.expect("an entry").file_name();
            name.into_string().expect("UTF-8")
        });
        assert_eq!(found.collect::<BTreeSet<_>>(), wanted);
    }

    const SVG: &str = "http://www.w3.org/2000/svg";

    #[test]
    fn pictures_are_well_formed_and_say_what_they_show() {
        for figure in all() {
            let svg = draw::svg(&figure).expect(figure.name);
            assert_eq!(svg, draw::svg(&figure).expect(figure.name), "the same every time");
            let svg = roxmltree::Document::parse(&svg).expect(figure.name);
            assert_eq!(svg.root_element().tag_name().name(), "svg");
            // What a text is in all: lowered letters are elements of their own.
            let whole = |node: roxmltree::Node<'_, '_>| {
                let parts = node.descendants().filter(|it| it.is_text());
                parts.filter_map(|it| it.text()).collect::<String>().trim().to_owned()
            };
            let texts: Vec<String> =
                svg.descendants().filter(|it| it.has_tag_name((SVG, "text"))).map(whole).collect();
            let has = |text: &str| {
                let plain = text.replace('_', "");
                assert!(texts.contains(&plain), "{}: {text}", figure.name);
                assert!(pdf::has_all(text), "{}: {text} in PDF", figure.name);
            };
            has(&figure.title);
            has(figure.source);
            has(&figure.parameters);
            match &figure.content {
                Content::Curves { x, y, series } => {
                    has(&x.shown());
                    has(&y.shown());
                    series.iter().for_each(|one| has(&one.name));
                }
                Content::Bars { y, parts, bars } => {
                    has(&y.shown());
                    parts.iter().for_each(|part| has(part));
                    bars.iter().for_each(|bar| has(&bar.name));
                }
            }
        }
    }

    #[test]
    fn pages_for_print_are_whole_and_the_same_every_time() {
        for figure in all() {
            let page = draw::pdf(&figure).expect(figure.name);
            assert!(page.starts_with(b"%PDF-") && page.ends_with(b"%%EOF"), "{}", figure.name);
            assert_eq!(page, draw::pdf(&figure).expect(figure.name));
            let has = |bytes: &[u8]| page.windows(bytes.len()).any(|window| window == bytes);
            // A page, its size, two fonts, and text that is drawn.
            for word in ["/MediaBox [0 0 504", "/Helvetica", "/Symbol", "BT", "Tj", "ET"] {
                assert!(has(word.as_bytes()), "{}: {word}", figure.name);
            }
            // The title's letters are written in one piece.
            let title = figure.title.replace('(', "\\(").replace(')', "\\)");
            assert!(has(title.as_bytes()) || title.contains(['(', '\'']), "{}", figure.name);
        }
    }

    #[test]
    fn tables_hold_every_point_as_it_is() {
        for figure in all() {
            let table = files::table(&figure).expect(figure.name);
            let mut table = csv::Reader::from_reader(&table[..]);
            let rows: Vec<(String, String, f64)> =
                table.deserialize().collect::<Result<_, _>>().expect(figure.name);
            let Content::Curves { x, y, series } = &figure.content else { continue };
            assert_eq!(table.headers().expect("a head"), vec!["series", x.label, y.label]);
            let points = series.iter().flat_map(|one| {
                one.points.iter().map(|point| (one.name.clone(), point.0.to_string(), point.1))
            });
            assert_eq!(rows, points.collect::<Vec<_>>(), "{}", figure.name);
        }
    }

    #[test]
    fn figures_have_numbers_units_and_captions() {
        for figure in all() {
            assert!(figure.caption.len() > 40 && figure.caption.ends_with('.'), "{}", figure.name);
            assert!(figure.title.chars().count() <= 56, "{} does not fit", figure.title);
            for text in [figure.source, &figure.parameters] {
                let width = typeset::width(text);
                assert!((1..=draw::LINE_MAX).contains(&width), "{text} has {width}");
            }
            match &figure.content {
                Content::Curves { x, y, series } => {
                    let unit = |label: &str| label.ends_with(')') || label.starts_with("number");
                    assert!(
                        unit(x.label) && unit(y.label),
                        "{}: {} {}",
                        figure.name,
                        x.label,
                        y.label
                    );
                    for one in series {
                        assert!(!one.points.is_empty(), "{}: {}", figure.name, one.name);
                        let finite = |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
                        assert!(one.points.iter().all(finite), "{}: {}", figure.name, one.name);
                    }
                }
                Content::Bars { parts, bars, .. } => {
                    for bar in bars {
                        assert_eq!(bar.values.len(), parts.len(), "{}: {}", figure.name, bar.name);
                        assert!(bar.values.iter().all(|value| *value >= 0.0), "{bar:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_refused_by_name() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("file");
        std::fs::write(&file, "").expect("written");
        for out in [&file, &file.join("below")] {
            let failure = files::write(out, &[]).expect_err("no directory");
            assert_eq!(failure.exit(), Exit::Failed);
            assert!(failure.to_string().contains(&*out.to_string_lossy()), "{failure}");
        }
        let taken = place.path().join(files::INDEX);
        std::fs::create_dir(&taken).expect("made");
        let failure = files::write(place.path(), &[]).expect_err("its name is taken");
        assert!(failure.to_string().contains("index.html"), "{failure}");
    }

    /// After a change: `pipectl model figures --out DIR`, look at them, copy those that
    /// docs/figures has.
    #[test]
    fn the_figures_of_the_documentation_are_what_is_drawn_now() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let text = std::fs::read_to_string(docs.join("theory.md")).expect("docs/theory.md");
        let links = text.split("](figures/").skip(1).filter_map(|rest| rest.split(')').next());
        let shown: BTreeSet<String> = links.map(str::to_owned).collect();
        let found = std::fs::read_dir(docs.join("figures")).expect("docs/figures").map(|entry| {
            let name = entry.expect("an entry").file_name();
            name.into_string().expect("UTF-8")
        });
        // These are measured: bench draws them.
        let is_measured =
            |name: &String| ["sizes.", "truth.", "scale."].iter().any(|it| name.starts_with(it));
        let found = found.filter(|name| !is_measured(name));
        assert_eq!(found.collect::<BTreeSet<_>>(), shown, "docs/figures has what theory.md shows");
        let figures = all();
        for name in &shown {
            let figure = figures.iter().find(|figure| files::svg_name(figure) == *name);
            let drawn = draw::svg(figure.expect(name)).expect(name);
            let kept = std::fs::read_to_string(docs.join("figures").join(name)).expect(name);
            assert!(kept == drawn, "docs/figures/{name} is not what is drawn now");
        }
    }
}
