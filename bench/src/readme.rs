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
        for group in [&crate::rows::FLOORS, &crate::rows::SERVICE, &crate::rows::PIPELINES] {
            assert!(replaced(&text, group.name, "").is_some(), "{}", group.name);
        }
    }
}
