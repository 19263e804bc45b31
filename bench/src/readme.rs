//! Writes the rows of a run between the markers of documents: no figure there is typed by hand.
//!
//! docs/benchmarks.md has a table for each group of rows. README's table has copies of some rows.

use std::fs;
use std::path::Path;

use crate::failure::{Doing as _, Failure};

const BENCHMARKS: &str = "docs/benchmarks.md";
const README: &str = "README.md";
const FRONT: &str = "front";

/// README's rows: the row's name, what is done, and beside what. All are times, so less is better.
const FRONT_ROWS: [[&str; 3]; 6] = [
    ["local-4k-1", "read 4 KiB from this node's disk", "raw io_uring, registered buffers"],
    ["get-4k-latency", "get 4 KiB of another node's memory", "two processes and a TCP socket"],
    ["file-1m-whole", "read 1 MiB from another node's disk", "the same read in one piece"],
    ["reads-equal-100-whole", "the same, disk and link 100 MB/s", "the same read in one piece"],
    ["reads-equal-100-1m", "the same, disk and link 100 MB/s", "the best of nine sizes by hand"],
    ["cp-1g", "copy 1 GiB from there, cold, synced", "the faster of rsync, qemu-img"],
];

/// Writes the rows of a group into docs/benchmarks.md below `root`, and README's table anew.
///
/// With `names`, rows that were not measured stay, in the order of `names`: for groups whose rows
/// need no others of the same run.
pub(crate) fn write_rows(
    root: &Path,
    group: &str,
    names: &[&str],
    table: &str,
) -> Result<(), Failure> {
    let path = root.join(BENCHMARKS);
    let text = fs::read_to_string(&path).doing(path.display())?;
    let old = between(&text, group).unwrap_or("");
    let table = if names.is_empty() { table.to_owned() } else { merged(old, table, names) };
    write(&path, &text, group, &table)?;
    write_front(root)
}

/// Writes what belongs between the markers of that name into a document below `root`.
pub(crate) fn write_part(
    root: &Path,
    document: &str,
    name: &str,
    part: &str,
) -> Result<(), Failure> {
    let path = root.join(document);
    let text = fs::read_to_string(&path).doing(path.display())?;
    write(&path, &text, name, part)
}

/// Writes README's table from the rows in docs/benchmarks.md below `root`.
pub(crate) fn write_front(root: &Path) -> Result<(), Failure> {
    let path = root.join(BENCHMARKS);
    let benchmarks = fs::read_to_string(&path).doing(path.display())?;
    let table = front(&benchmarks)?;
    let path = root.join(README);
    let text = fs::read_to_string(&path).doing(path.display())?;
    write(&path, &text, FRONT, &table)
}

fn front(benchmarks: &str) -> Result<String, Failure> {
    let mut text = String::from("| task | beside | time | 95 % |\n| --- | --- | ---: | --- |\n");
    for [name, task, beside] in FRONT_ROWS {
        let cells = row(benchmarks, name).map(|line| line.split('|').map(str::trim).collect());
        let cells: Vec<&str> = cells.unwrap_or_default();
        let &[_, _, _, found, interval, ..] = &cells[..] else {
            return Err(Failure::new(format!("{BENCHMARKS} has no row {name}")));
        };
        text += &format!("| {task} | {beside} | {found} | {interval} |\n");
    }
    Ok(text)
}

/// The line of a table that begins with that name.
fn row<'a>(table: &'a str, name: &str) -> Option<&'a str> {
    let first_cell = format!("| {name} |");
    table.lines().find(|line| line.starts_with(&first_cell))
}

fn write(path: &Path, text: &str, group: &str, table: &str) -> Result<(), Failure> {
    let text = replaced(text, group, table).ok_or_else(|| {
        let [begin, end] = markers(group);
        Failure::new(format!("{}: it needs one `{}` and one `{end}`", path.display(), begin.trim()))
    })?;
    fs::write(path, text).doing(path.display())
}

fn merged(old: &str, fresh: &str, names: &[&str]) -> String {
    let rows = names.iter().filter_map(|name| row(fresh, name).or_else(|| row(old, name)));
    let head = fresh.lines().take(2);
    let below = fresh.lines().skip_while(|line| line.starts_with('|'));
    head.chain(rows).chain(below).flat_map(|line| [line, "\n"]).collect()
}

fn markers(group: &str) -> [String; 2] {
    [format!("<!-- {group}:begin -->\n"), format!("<!-- {group}:end -->")]
}

/// What stands between the markers of that name.
pub(crate) fn between<'a>(text: &'a str, group: &str) -> Option<&'a str> {
    let [begin, end] = markers(group);
    Some(text.split_once(&begin)?.1.split_once(&end)?.0)
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
    fn the_projects_documents_have_the_markers_and_the_front_page_copies_of_rows() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |name: &str| fs::read_to_string(root.join(name)).expect("the document");
        let (readme, benchmarks) = (read(README), read(BENCHMARKS));
        let rows = [
            &crate::rows::FLOORS,
            &crate::rows::SERVICE,
            &crate::rows::BUFFERS,
            &crate::rows::OVERLAP,
            &crate::rows::SECURITY,
            &crate::rows::MEMORY,
            &crate::rows::PIPELINES,
            &crate::rows::SHARDS,
            &crate::rows::CROWD,
            &crate::rows::NAMES,
            &crate::rows::PEERS,
        ];
        for group in rows.into_iter().chain([&crate::rig::RIG]) {
            assert!(replaced(&benchmarks, group.name, "").is_some(), "{}", group.name);
        }
        for name in ["truth", "scale"] {
            assert!(replaced(&benchmarks, name, "").is_some(), "the tables of `bench {name}`");
        }
        let table = front(&benchmarks).expect("all of its rows");
        assert_eq!(between(&readme, FRONT), Some(&*table), "`bench front` writes it again");
    }
}
