//! `pipectl model figures`: the papers' figures, drawn from the models.
//!
//! A figure is a small pure function that returns data (one file for each paper); [`draw`] makes a
//! picture of it, [`files`] a table.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::Text;
use serde::Serialize;

use chart::Figure;

mod axis;
mod buffers;
mod chart;
mod draw;
mod files;
mod hierarchies;
mod pipelines;
mod signature;
mod strips;
mod tiles;

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
    caption: &'a str,
    svg: String,
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
        caption: &figure.caption,
        svg: files::svg_name(figure),
        csv: files::csv_name(figure),
    }
}

/// Every figure, paper by paper.
fn all() -> Vec<Figure> {
    [
        pipelines::figures(),
        hierarchies::figures(),
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
    fn every_figure_is_two_files_and_on_the_page() {
        let out = tempfile::tempdir().expect("a directory");
        let (figures, out) = (all(), out.path().join("new").join("deeper"));
        files::write(&out, &figures).expect("written");
        let page = std::fs::read_to_string(out.join(files::INDEX)).expect("the page");
        let mut wanted = BTreeSet::from([files::INDEX.to_owned()]);
        for figure in &figures {
            for name in [files::svg_name(figure), files::csv_name(figure)] {
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

    #[test]
    fn pictures_are_well_formed_and_say_what_they_show() {
        for figure in all() {
            let svg = draw::svg(&figure).expect(figure.name);
            assert_eq!(svg, draw::svg(&figure).expect(figure.name), "the same every time");
            let svg = roxmltree::Document::parse(&svg).expect(figure.name);
            assert_eq!(svg.root_element().tag_name().name(), "svg");
            let texts: Vec<&str> =
                svg.descendants().filter_map(|node| node.text()).map(str::trim).collect();
            let has = |text: &str| assert!(texts.contains(&text), "{}: {text}", figure.name);
            has(&figure.title);
            has(figure.source);
            match &figure.content {
                Content::Curves { x, y, series } => {
                    has(x.label);
                    has(y.label);
                    series.iter().for_each(|one| has(&one.name));
                }
                Content::Bars { y, parts, bars } => {
                    has(y.label);
                    parts.iter().for_each(|part| has(part));
                    bars.iter().for_each(|bar| has(&bar.name));
                }
            }
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
        let found = found.filter(|name| !name.starts_with("sizes.") && !name.starts_with("truth."));
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
