//! Figures as files: an SVG, a PDF and a CSV each, and a page that shows them all.

use std::fmt::Write as _;
use std::path::Path;

use piped_cli::failure::Failure;

use super::chart::{Content, Figure};
use super::draw;

/// The page that shows them all.
pub(crate) const INDEX: &str = "index.html";

/// Writes all figures and the page into `out`, which is made if it is not there. Files of the same
/// names are replaced, others left alone.
pub(crate) fn write(out: &Path, figures: &[Figure]) -> Result<(), Failure> {
    std::fs::create_dir_all(out)
        .map_err(|error| Failure::io(format_args!("cannot make {}", out.display()), &error))?;
    let put = |name: &str, content: &[u8]| {
        let path = out.join(name);
        std::fs::write(&path, content)
            .map_err(|error| Failure::io(format_args!("cannot write {}", path.display()), &error))
    };
    for figure in figures {
        put(&svg_name(figure), draw::svg(figure).map_err(Failure::failed)?.as_bytes())?;
        put(&pdf_name(figure), &draw::pdf(figure).map_err(Failure::failed)?)?;
        put(&csv_name(figure), &table(figure)?)?;
    }
    put(INDEX, page(figures).as_bytes())
}

pub(crate) fn svg_name(figure: &Figure) -> String {
    format!("{}.svg", figure.name)
}

pub(crate) fn pdf_name(figure: &Figure) -> String {
    format!("{}.pdf", figure.name)
}

pub(crate) fn csv_name(figure: &Figure) -> String {
    format!("{}.csv", figure.name)
}

/// The data: a row for each point, headed by the axes with their units. Numbers are unrounded.
pub(crate) fn table(figure: &Figure) -> Result<Vec<u8>, Failure> {
    let mut table = csv::Writer::from_writer(Vec::new());
    let written = rows(figure).try_for_each(|row| table.write_record(row));
    written.and_then(|()| table.into_inner().map_err(|error| error.into_error().into())).map_err(
        |error: csv::Error| Failure::failed(format!("cannot write {}: {error}", figure.name)),
    )
}

fn rows(figure: &Figure) -> Box<dyn Iterator<Item = [String; 3]> + '_> {
    let row = |name: &str, x: String, y: f64| [name.to_owned(), x, y.to_string()];
    match &figure.content {
        Content::Curves { x, y, series } => {
            let head = ["series", x.label, y.label].map(str::to_owned);
            let points = series.iter().flat_map(move |one| {
                one.points.iter().map(move |point| row(&one.name, point.0.to_string(), point.1))
            });
            Box::new(std::iter::once(head).chain(points))
        }
        Content::Bars { y, parts, bars } => {
            let head = ["bar", "part", y.label].map(str::to_owned);
            let values = bars.iter().flat_map(move |bar| {
                let name = format!("{} {}", bar.name, bar.group);
                let parts = parts.iter().zip(&bar.values);
                let values = parts.map(|(part, &value)| row(&name, part.clone(), value));
                let least = row(&name, draw::LEAST.to_owned(), bar.least);
                values.chain([least]).collect::<Vec<_>>()
            });
            Box::new(std::iter::once(head).chain(values))
        }
    }
}

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>Figures of the pipeline models</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 3rem 0; } img { width: 100%; border: 1px solid #ddd; } \
figcaption { margin-top: .5rem; }
</style>
<h1>Figures of the pipeline models</h1>
<p>Computed by <code>pipectl model figures</code>. Each picture is there as PDF, \
too, with its data as CSV.</p>
";

fn page(figures: &[Figure]) -> String {
    let mut page = HEAD.to_owned();
    for figure in figures {
        let (svg, pdf, csv) = (svg_name(figure), pdf_name(figure), csv_name(figure));
        let [title, source, parameters, caption] =
            [figure.title.as_str(), figure.source, &figure.parameters, &figure.caption]
                .map(escaped);
        // Writing to a String cannot fail.
        let _ = write!(
            page,
            "<figure id=\"{name}\">\n<img src=\"{svg}\" \
             alt=\"{title}\">\n<figcaption><b>{title}</b> ({source}; {parameters}). {caption} <a \
             href=\"{pdf}\">PDF</a>, <a href=\"{csv}\">data</a></figcaption>\n</figure>\n",
            name = figure.name,
        );
    }
    page.push_str("</html>\n");
    page
}

/// The text, escaped for a page and for an attribute's value.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
