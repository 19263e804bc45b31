//! Tables without lines: columns aligned, as narrow as their content, folded where the terminal is
//! narrower. If folding does not make them legible, each row becomes a record: a line for each
//! column.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};

/// A column: its heading, and whether it has numbers.
#[derive(Debug, Clone, Copy)]
pub enum Column {
    /// Column of words, aligned left.
    Text(&'static str),
    /// Column of numbers, aligned right.
    Number(&'static str),
}

/// Renders rows; `width` is the terminal's, if there is one.
#[must_use]
pub fn render(columns: &[Column], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    match width {
        Some(width) => {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    table.set_header(columns.iter().map(|column| match column {
        Column::Text(heading) | Column::Number(heading) => *heading,
    }));
    table.add_rows(rows);
    let fixed = fits_unfolded(&table, columns, width);
    if let Some(width) = width.filter(|_| !fixed && columns.len() > 2) {
        return records(columns, &table, width.into());
    }
    let last = columns.len().saturating_sub(1);
    for (i, column) in columns.iter().enumerate() {
        if let Some(layout) = table.column_mut(i) {
            layout.set_padding((0, if i == last { 0 } else { 2 }));
            if let Column::Number(_) = column {
                layout.set_cell_alignment(CellAlignment::Right);
                if fixed {
                    layout.set_constraint(ColumnConstraint::ContentWidth);
                }
            }
        }
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// Cells in as many columns as fit into the width, one below the other; text without a table.
#[must_use]
pub fn columns(cells: &[String], width: u16) -> String {
    const GAP: usize = 2;
    let width = usize::from(width);
    let lengths: Vec<usize> = cells.iter().map(|cell| cell.chars().count()).collect();
    // A cell has a character and the gap at least; more columns than that never fit.
    let most = cells.len().min(width / (GAP + 1) + 1).max(1);
    let widths_of = |lines: usize| -> Vec<usize> {
        lengths.chunks(lines).map(|column| column.iter().max().copied().unwrap_or(0)).collect()
    };
    let fits = |widths: &[usize]| {
        widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1) <= width
    };
    let mut tried = (1..=most).rev().map(|columns| cells.len().div_ceil(columns).max(1));
    let lines = tried.find(|&lines| fits(&widths_of(lines))).unwrap_or(cells.len().max(1));
    let widths = widths_of(lines);
    let mut text = String::new();
    for line in 0..lines.min(cells.len()) {
        let mut gap = 0;
        for ((cell, length), width) in
            cells.iter().zip(&lengths).skip(line).step_by(lines).zip(&widths)
        {
            text.push_str(&" ".repeat(gap));
            text.push_str(cell);
            gap = width - length + GAP;
        }
        text.push('\n');
    }
    text
}

/// Whether the numbers can stand in one line each beside words of a readable width: then only the
/// words fold.
fn fits_unfolded(table: &Table, columns: &[Column], width: Option<u16>) -> bool {
    const WORDS_MIN: u16 = 10;
    let widths = table.column_max_content_widths();
    let needed: u16 = columns
        .iter()
        .zip(widths)
        .map(|(column, content)| match column {
            Column::Number(_) => content + 2,
            Column::Text(_) => content.min(WORDS_MIN) + 2,
        })
        .sum();
    width.is_some_and(|width| needed <= width)
}

/// Renders every row as lines of heading and value, with empty lines between rows.
fn records(columns: &[Column], table: &Table, width: usize) -> String {
    let headings = columns.iter().map(|column| match column {
        Column::Text(heading) | Column::Number(heading) => *heading,
    });
    let indent = headings.clone().map(str::len).max().unwrap_or(0) + 2;
    let mut text = String::new();
    for (number, row) in table.row_iter().enumerate() {
        text.push_str(if number > 0 { "\n" } else { "" });
        for (heading, cell) in headings.clone().zip(row.cell_iter()) {
            let value = cell.content();
            if value.is_empty() {
                continue;
            }
            let mut place = format!("{heading:indent$}");
            for piece in pieces(&value, width.saturating_sub(indent).max(8)) {
                text.push_str(&place);
                text.push_str(&piece);
                text.push('\n');
                place = " ".repeat(indent);
            }
        }
    }
    text
}

/// Splits a value into lines of at most this many characters, between words if there are any.
fn pieces(value: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in value.split_inclusive(' ') {
        let line = lines.last_mut().expect("there is one");
        let length = word.trim_end().chars().count();
        if !line.is_empty() && line.chars().count() + length > width {
            line.truncate(line.trim_end().len());
            lines.push(String::new());
        }
        for character in word.chars() {
            let line = lines.last_mut().expect("there is one");
            match line.chars().count() < width {
                true => line.push(character),
                false if character == ' ' => {}
                false => lines.push(character.to_string()),
            }
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(width: Option<u16>) -> String {
        let rows = vec![
            vec!["disk:8:1 read".to_owned(), "12.5 us".to_owned()],
            vec!["net:beta bulk in with a long name".to_owned(), "1.00 ms".to_owned()],
        ];
        render(&[Column::Text("STAGE"), Column::Number("L")], rows, width)
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_blanks() {
        let text = sample(None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0].len(), lines[1].len(), "right-aligned column ends together\n{text}");
        assert!(lines.iter().all(|line| *line == line.trim_end()), "{text:?}");
        assert!(!text.contains('\u{1b}'), "no colour codes");
    }

    #[test]
    fn cells_stand_below_each_other_in_as_many_columns_as_fit() {
        let cells: Vec<String> = ["a", "bb", "ccc", "d", "ee"].map(str::to_owned).into();
        for (width, text) in [
            (80, "a  bb  ccc  d  ee\n"),
            (12, "a   ccc  ee\nbb  d\n"),
            (11, "a   ccc  ee\nbb  d\n"),
            (10, "a    d\nbb   ee\nccc\n"),
            (3, "a\nbb\nccc\nd\nee\n"),
            (1, "a\nbb\nccc\nd\nee\n"),
        ] {
            assert_eq!(columns(&cells, width), text, "{width}");
        }
        assert_eq!(columns(&[], 80), "");
        let many: Vec<String> = (0..10_000).map(|number| format!("name-{number}")).collect();
        let text = columns(&many, 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80 && line.trim_end() == line));
        assert_eq!(text.split_whitespace().count(), many.len());
    }

    #[test]
    fn a_narrow_terminal_folds_words_and_keeps_numbers() {
        for width in [24, 30, 40, 80] {
            let text = sample(Some(width));
            for line in text.lines() {
                assert!(line.chars().count() <= usize::from(width), "{width}: {line:?}");
            }
        }
        assert!(sample(Some(24)).contains("1.00 ms"), "{}", sample(Some(24)));
    }

    #[test]
    fn what_does_not_fit_is_a_line_for_each_column() {
        let columns = ["NAME", "ONE", "TWO", "THREE", "FOUR"].map(Column::Number);
        let columns = [&columns[..], &[Column::Text("ROUTE")]].concat();
        let row = |name: &str| {
            let numbers = [name, "1234567", "1234567", "1234567", "1234567"];
            let route = "peer -> lane -> staging -> lane -> peer";
            numbers.iter().chain([&route]).map(|&cell| cell.to_owned()).collect()
        };
        let rows = || vec![row("a"), row("b")];
        let text = render(&columns, rows(), Some(40));
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.starts_with("NAME   a\nONE    1234567\n"), "{text}");
        assert!(text.contains("\n\nNAME   b\n"), "{text}");
        assert!(
            text.contains("ROUTE  peer -> lane -> staging -> lane\n       -> peer\n"),
            "{text}"
        );
        assert_eq!(
            render(&columns, rows(), Some(80)).lines().next(),
            render(&columns, rows(), None).lines().next()
        );
        assert_eq!(
            render(&columns, rows(), None).lines().count(),
            3,
            "in a pipe nothing is folded"
        );
        let path = "/a/path/without/any/blank/that/is/long";
        assert_eq!(pieces(path, 10).concat(), path);
        assert!(pieces(path, 10).iter().all(|line| line.len() <= 10));
    }
}
