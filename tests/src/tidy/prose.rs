//! The width of lines.

use std::fs;
use std::path::Path;

use super::{Finding, Source, walk};

/// Columns a line may have.
pub const COLUMNS_MAX: usize = 100;

/// Lines of code and comments that are too wide.
#[must_use]
pub fn wide_lines_of_code(sources: &[Source]) -> Vec<Finding> {
    sources
        .iter()
        .flat_map(|source| {
            let lines = source.text.lines().enumerate().filter(|(_, line)| is_wide(line));
            lines.map(|(number, line)| source.finding(number + 1, columns(line)))
        })
        .collect()
}

/// Lines of documents that are too wide. Tables, code and lines of one unbreakable word are as wide
/// as they are.
#[must_use]
pub fn wide_lines_of_documents(root: &Path) -> Vec<Finding> {
    let mut files = Vec::new();
    walk(root, "md", &mut files);
    let mut found = Vec::new();
    for path in files {
        let file = path.strip_prefix(root).expect("below it").to_string_lossy().into_owned();
        // What it says is about the past, and is not written anew.
        if file == "CHANGELOG.md" {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let mut in_code = false;
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            let as_it_is = in_code || line.trim_start().starts_with('|') || is_one_word(line);
            if !as_it_is && is_wide(line) {
                let place = file.clone();
                found.push(Finding {
                    place,
                    file: file.clone(),
                    line: number + 1,
                    what: columns(line),
                });
            }
        }
    }
    found
}

fn is_wide(line: &str) -> bool {
    line.chars().count() > COLUMNS_MAX
}

/// A link or an address cannot be broken, whatever mark stands before it.
fn is_one_word(line: &str) -> bool {
    line.split_whitespace().filter(|word| word.chars().count() > 2).count() <= 1
}

fn columns(line: &str) -> String {
    format!("{} columns, {COLUMNS_MAX} at most", line.chars().count())
}
