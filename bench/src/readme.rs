//! Writes a run's rows between the README's markers: figures there are never typed by hand.

use std::fs;
use std::path::Path;

use crate::failure::{Doing as _, Failure};

/// Replaces what is between the markers of the group in the file.
pub(crate) fn write(path: &Path, group: &str, table: &str) -> Result<(), Failure> {
    let text = fs::read_to_string(path).doing(path.display())?;
    let text = replaced(&text, group, table).ok_or_else(|| {
        let [begin, end] = markers(group);
        Failure::new(format!("{}: it needs one `{}` and one `{end}`", path.display(), begin.trim()))
    })?;
    fs::write(path, text).doing(path.display())
}

/// Replaces the rows of `fresh` in the group's table, and what stands below it; rows that were not measured
/// stay, in the order of `names`. For groups whose rows need no others of the same run.
pub(crate) fn merge(path: &Path, group: &str, names: &[&str], fresh: &str) -> Result<(), Failure> {
    let text = fs::read_to_string(path).doing(path.display())?;
    let [begin, end] = markers(group);
    let old = text.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
    let old = old.map_or("", |(old, _)| old);
    write(path, group, &merged(old, fresh, names))
}

fn merged(old: &str, fresh: &str, names: &[&str]) -> String {
    fn row<'a>(table: &'a str, name: &str) -> Option<&'a str> {
        let first_cell = format!("| {name} |");
        table.lines().find(|line| line.starts_with(&first_cell))
    }
    let rows = names.iter().filter_map(|name| row(fresh, name).or_else(|| row(old, name)));
    let head = fresh.lines().take(2);
    let below = fresh.lines().skip_while(|line| line.starts_with('|'));
    head.chain(rows).chain(below).flat_map(|line| [line, "\n"]).collect()
}

fn markers(group: &str) -> [String; 2] {
    [format!("<!-- {group}:begin -->\n"), format!("<!-- {group}:end -->")]
}

fn replaced(text: &str, group: &str, table: &str) -> Option<String> {
    let [begin, end] = markers(group);
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    (!after.contains(&begin) && !after.contains(&end))
        .then(|| format!("{before}{begin}{table}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let [begin, end] = markers("floors");
        let text = format!("above\n{begin}old\n{end}\nbelow\n");
        let once = replaced(&text, "floors", "| new |\n").expect("it has both markers");
        assert_eq!(once, format!("above\n{begin}| new |\n{end}\nbelow\n"));
        let twice = replaced(&once, "floors", "| new |\n");
        assert_eq!(twice, Some(once), "twice changes nothing more");
        assert_eq!(replaced(&text, "service", ""), None, "another group's markers");
    }

    #[test]
    fn a_merged_table_has_the_fresh_rows_and_the_others_in_order() {
        let old = "| row |\n| --- |\n| a | 1 |\n| ab | 1 |\n| gone | 1 |\n\nold machine\n";
        let fresh = "| row |\n| --- |\n| c | 2 |\n| a | 2 |\n\nmachine\n";
        let both = merged(old, fresh, &["a", "ab", "c", "d"]);
        assert_eq!(both, "| row |\n| --- |\n| a | 2 |\n| ab | 1 |\n| c | 2 |\n\nmachine\n");
        assert_eq!(merged("", &both, &["a", "ab", "c"]), both);
    }

    #[test]
    fn a_file_without_the_markers_is_left_alone() {
        let [begin, end] = markers("floors");
        for text in ["nothing here".to_owned(), begin.clone(), format!("{begin}{end}{begin}{end}")]
        {
            assert_eq!(replaced(&text, "floors", "x"), None, "{text}");
        }
    }

    #[test]
    fn the_projects_readme_has_the_markers() {
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        let text = fs::read_to_string(readme).expect("the project's README");
        let rows = [
            &crate::rows::FLOORS,
            &crate::rows::SERVICE,
            &crate::rows::BUFFERS,
            &crate::rows::PIPELINES,
        ];
        for group in rows.into_iter().chain([&crate::rig::RIG]) {
            assert!(replaced(&text, group.name, "").is_some(), "{}", group.name);
        }
    }
}
