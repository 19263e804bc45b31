//! Tables without lines: columns aligned, as narrow as their content, folded where the terminal is narrower.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};

/// A column: its heading, and whether numbers stand in it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Column {
    /// Words: aligned left.
    Text(&'static str),
    /// Numbers: aligned right.
    Number(&'static str),
}

/// Renders rows; `width` is the terminal's, if there is one.
pub(crate) fn render(columns: &[Column], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
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

/// True if the numbers can stand in one line each beside words of a readable width: then only the words fold.
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
    fn a_narrow_terminal_folds_words_and_keeps_numbers() {
        for width in [24, 30, 40, 80] {
            let text = sample(Some(width));
            for line in text.lines() {
                assert!(line.chars().count() <= usize::from(width), "{width}: {line:?}");
            }
        }
        assert!(sample(Some(24)).contains("1.00 ms"), "{}", sample(Some(24)));
    }
}
