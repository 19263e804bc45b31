//! The width of lines, and the sections that comments point to.

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

/// Sections of docs/theory.md that Rust sources point to, by a `§` after its name, and that are not
/// there; and headings there that are not numbered in order.
#[must_use]
pub fn lost_sections(root: &Path) -> Vec<Finding> {
    const THEORY: &str = "docs/theory.md";
    let theory = fs::read_to_string(root.join(THEORY)).expect("text");
    let headings: Vec<&str> = theory.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let mut found = Vec::new();
    let mut add = |file: &str, line, what| {
        let file = file.to_owned();
        found.push(Finding { place: file.clone(), file, line, what });
    };
    for (index, heading) in headings.iter().enumerate() {
        if !heading.starts_with(&format!("{}. ", index + 1)) {
            add(THEORY, 0, format!("`{heading}` is heading {}", index + 1));
        }
    }
    let mut files = Vec::new();
    walk(root, "rs", &mut files);
    for path in files {
        let file = path.strip_prefix(root).expect("below it").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("text");
        for (at, _) in text.match_indices('§') {
            let (before, after) = (&text[..at], &text[at + '§'.len_utf8()..]);
            let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
            // What is about the sign has no number behind it.
            let Ok(number) = digits.parse::<usize>() else { continue };
            let named = before.trim_end_matches([' ', '\n', '/', '!']).ends_with(THEORY);
            if !named || !(1..=headings.len()).contains(&number) {
                add(&file, before.lines().count(), format!("§{number} is no section of {THEORY}"));
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
