//! Standard output with one writer, so that a closed pipe is noticed once, tables know their width,
//! and escapes cannot reach a terminal.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use piped_config::admin::Envelope;
use piped_text::{shown, shown_bytes, shown_json, shown_lines};
use serde::Serialize;

use crate::failure::Failure;
use crate::table::{self, Column};

/// Writer of a command's results.
#[derive(Debug)]
pub struct Output {
    width: Option<u16>,
}

impl Output {
    /// Writer with tables as wide as the terminal, and unlimited into a pipe, where folded rows
    /// would hinder `grep`. `COLUMNS` decides for both.
    #[must_use]
    pub fn stdout() -> Self {
        let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
        let terminal = || {
            let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
            (size.ws_col > 0).then_some(size.ws_col)
        };
        Self { width: columns.filter(|&columns| columns > 0).or_else(terminal) }
    }

    /// Limits the width, also into a pipe.
    #[must_use]
    pub fn at_most(self, width: u16) -> Self {
        Self { width: Some(self.width.map_or(width, |own| own.min(width))) }
    }

    /// Number of columns, if there is a bound.
    #[must_use]
    pub const fn width(&self) -> Option<u16> {
        self.width
    }

    /// Writes one line of text.
    ///
    /// # Errors
    /// If stdout cannot be written to.
    pub fn line(&self, text: impl Display) -> Result<(), Failure> {
        write(&format!("{text}\n"))
    }

    /// Writes the text as it is.
    ///
    /// # Errors
    /// If stdout cannot be written to.
    pub fn text(&self, text: &str) -> Result<(), Failure> {
        write(text)
    }

    /// Writes an empty line and a heading, folded at the width.
    ///
    /// # Errors
    /// If stdout cannot be written to.
    pub fn heading(&self, text: &str) -> Result<(), Failure> {
        write(&format!("\n{}", fold(text, self.width.map(usize::from), 0)))
    }

    /// Writes a table; nothing if it has no rows.
    ///
    /// # Errors
    /// If stdout cannot be written to.
    pub fn table(&self, columns: &[Column], rows: Vec<Vec<String>>) -> Result<(), Failure> {
        if rows.is_empty() {
            return Ok(());
        }
        write(&table::render(columns, rows, self.width))
    }

    /// Writes a name and its value, aligned with those of other lines.
    pub fn field(&self, name: &str, value: &str) -> Result<(), Failure> {
        self.labelled(name, value, 10)
    }

    /// Writes a mark, and beside it a sentence that is folded at the width and stays to the right
    /// of the mark.
    pub fn labelled(&self, mark: &str, text: &str, indent: usize) -> Result<(), Failure> {
        let width = self.width.map(|width| usize::from(width).saturating_sub(indent).max(10));
        let text = fold(text, width, 0).replace('\n', &format!("\n{:indent$}", ""));
        write(&format!("{mark:indent$}{}\n", text.trim_end()))
    }

    /// Writes a sentence, folded at the width. The first line begins with the blanks of `text`, the
    /// others with `indent` blanks.
    pub fn prose(&self, text: &str, indent: usize) -> Result<(), Failure> {
        write(&fold(text, self.width.map(usize::from), indent))
    }
}

/// Writes `body` with its `schema_version`, readable.
///
/// # Errors
/// If `body` is no JSON, or stdout cannot be written to.
pub fn json(body: impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&Envelope::new(body))
        .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
    write(&format!("{}\n", shown_json(&text)))
}

/// Writes `body` as JSON on one line.
pub fn json_line(body: impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(&Envelope::new(body))
        .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
    write(&format!("{}\n", shown_json(&text)))
}

/// Writes text. Names and messages of others cannot move the cursor or reorder a line. They cannot
/// make a line either, because the daemon's text is escaped when it comes in ([`crate::admin`]).
fn write(text: &str) -> Result<(), Failure> {
    let text = shown_lines(text);
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::stdout(&error))
}

/// A path for people, on one line, with escapes for bytes that cannot be shown.
#[must_use]
pub fn path(path: &Path) -> Cow<'_, str> {
    shown_bytes(path.as_os_str().as_bytes())
}

fn fold(text: &str, width: Option<usize>, indent: usize) -> String {
    let width = width.unwrap_or(usize::MAX);
    let mut column = text.len() - text.trim_start_matches(' ').len();
    let mut folded = " ".repeat(column);
    for (number, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if number > 0 && column + 1 + length > width {
            folded.push('\n');
            folded.push_str(&" ".repeat(indent));
            column = indent;
        } else if number > 0 {
            folded.push(' ');
            column += 1;
        }
        folded.push_str(word);
        column += length;
    }
    folded.push('\n');
    folded
}

/// A line about the work in progress, on a terminal only, which leaves no trace.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Progress that is silent unless stderr is a terminal and it is `wanted`.
    #[must_use]
    pub fn new(wanted: bool) -> Self {
        Self { shown: wanted && io::stderr().is_terminal() }
    }

    /// Replaces the line by another.
    pub fn say(&self, text: impl Display) {
        if self.shown {
            // A terminal that cannot be written is no reason to stop the work.
            let text = text.to_string();
            let _ = write!(io::stderr(), "\r\u{1b}[K{}", shown(&text));
        }
    }

    /// Removes the line from the terminal.
    pub fn clear(&self) {
        self.say("");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::fold;

    #[test]
    fn sentences_fold_at_words() {
        assert_eq!(fold("a  bb ccc dddd", Some(6), 2), "a bb\n  ccc\n  dddd\n");
        assert_eq!(fold("  a bb ccc", Some(6), 4), "  a bb\n    ccc\n");
        assert_eq!(fold("unlimited in a pipe", None, 2), "unlimited in a pipe\n");
        assert_eq!(fold("waytoolongaword x", Some(4), 0), "waytoolongaword\nx\n");
    }
}
