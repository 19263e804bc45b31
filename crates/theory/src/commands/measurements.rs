//! Measurements from a CSV file: columns by name in any order, and for a bad line its number and
//! the reason.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Trim};
use piped_cli::failure::Failure;

/// The columns of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    /// Columns that must be there.
    pub(super) required: &'static [&'static str],
    /// Columns that may be there.
    pub(super) optional: &'static [&'static str],
}

/// A line, by names of columns.
#[derive(Debug)]
pub(super) struct Line<'a> {
    names: &'a StringRecord,
    fields: &'a StringRecord,
}

impl Line<'_> {
    /// What stands in a column; `None` if nothing does, or there is no such column.
    pub(super) fn get(&self, column: &str) -> Option<&str> {
        let place = self.names.iter().position(|name| name == column)?;
        self.fields.get(place).filter(|field| !field.is_empty())
    }

    /// What a column says, read by `parse`.
    pub(super) fn read<T>(
        &self,
        column: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        let text = self.get(column).ok_or_else(|| format!("{column} is empty: fill it in"))?;
        parse(text).map_err(|error| format!("{column}: {error}"))
    }
}

/// Bytes that a file may have: more are no measurements of a model of a few parameters.
const BYTES_MAX: u64 = 64 << 20;

/// All lines of a file (`-` is stdin), each read by `line`.
pub(super) fn read<T>(
    path: &Path,
    columns: Columns,
    line: impl Fn(&Line<'_>) -> Result<T, String>,
) -> Result<Vec<T>, Failure> {
    let name = path.display();
    let text = contents(path)?;
    let refuse = |position: Option<&csv::Position>, what: &str| {
        let number = position.map_or(1, |it| line_number(&text, it.byte() as usize));
        Failure::usage(format!("{name}, line {number}: {what}"))
    };
    let mut reader =
        ReaderBuilder::new().trim(Trim::All).comment(Some(b'#')).from_reader(text.as_slice());
    let bad = |error: &csv::Error| refuse(error.position(), &reason(error));
    let names = reader.headers().map_err(|error| bad(&error))?.clone();
    check_names(path, &names, columns)?;
    let mut all = Vec::new();
    for fields in reader.into_records() {
        let fields = fields.map_err(|error| bad(&error))?;
        let read = line(&Line { names: &names, fields: &fields });
        all.push(read.map_err(|error| refuse(fields.position(), &error))?);
    }
    if all.is_empty() {
        return Err(Failure::usage(format!(
            "{name} has no measurements: see --help for an example"
        )));
    }
    Ok(all)
}

/// All of a file, or of standard input for `-`, if it is no larger than measurements are.
pub(super) fn contents(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(|error| Failure::io(name.to_string(), &error))?)
    };
    let mut text = Vec::new();
    let read = source.take(BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(|error| Failure::io(name.to_string(), &error))?;
    if text.len() as u64 > BYTES_MAX {
        let most = BYTES_MAX >> 20;
        return Err(Failure::usage(format!(
            "{name} has more than {most} MiB: give a smaller file"
        )));
    }
    Ok(text)
}

/// The number of the line that is read from this byte on: the reader's own position is before the
/// empty lines and comments that it passes over.
fn line_number(text: &[u8], from: usize) -> usize {
    let (before, behind) = text.split_at(from.min(text.len()));
    let passed = behind
        .split(|&byte| byte == b'\n')
        .take_while(|line| line.trim_ascii().is_empty() || line.starts_with(b"#"));
    before.iter().filter(|&&byte| byte == b'\n').count() + passed.count() + 1
}

fn check_names(path: &Path, names: &StringRecord, columns: Columns) -> Result<(), Failure> {
    let fail = |what: String| {
        let known = [columns.required, columns.optional].concat().join(", ");
        Err(Failure::usage(format!(
            "{}, line 1: {what}; the first line names the columns, which are {known}",
            path.display()
        )))
    };
    for (place, name) in names.iter().enumerate() {
        if !columns.required.contains(&name) && !columns.optional.contains(&name) {
            return fail(format!("`{name}` is no column"));
        }
        if names.iter().take(place).any(|before| before == name) {
            return fail(format!("the column {name} is there twice"));
        }
    }
    match columns.required.iter().find(|column| !names.iter().any(|name| name == **column)) {
        Some(column) => fail(format!("there is no column {column}")),
        None => Ok(()),
    }
}

/// What the reader has against a line.
fn reason(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields where the first line names {expected_len} columns")
        }
        csv::ErrorKind::Utf8 { .. } => "this is no text in UTF-8".to_owned(),
        _ => error.to_string(),
    }
}
