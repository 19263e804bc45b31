//! Writes a run's rows between the README's markers: figures there are never typed by hand.

use std::fs;
use std::path::Path;

use crate::failure::{Doing as _, Failure};

const BEGIN: &str = "<!-- figures:begin -->\n";
const END: &str = "<!-- figures:end -->";

/// Replaces what is between the markers of the file.
pub(crate) fn write(path: &Path, table: &str) -> Result<(), Failure> {
    let text = fs::read_to_string(path).doing(path.display())?;
    let text = replaced(&text, table).ok_or_else(|| {
        Failure::new(format!("{}: it needs one `{}` and one `{END}`", path.display(), BEGIN.trim()))
    })?;
    fs::write(path, text).doing(path.display())
}

fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    (!after.contains(BEGIN) && !after.contains(END))
        .then(|| format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let text = format!("above\n{BEGIN}old\n{END}\nbelow\n");
        let once = replaced(&text, "| new |\n").expect("it has both markers");
        assert_eq!(once, format!("above\n{BEGIN}| new |\n{END}\nbelow\n"));
        assert_eq!(replaced(&once, "| new |\n"), Some(once.clone()), "twice changes nothing more");
    }

    #[test]
    fn a_file_without_the_markers_is_left_alone() {
        assert_eq!(replaced("nothing here", "x"), None);
        assert_eq!(replaced(BEGIN, "x"), None);
        assert_eq!(replaced(&format!("{BEGIN}{END}{BEGIN}{END}"), "x"), None);
    }

    #[test]
    fn the_projects_readme_has_the_markers() {
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        let text = fs::read_to_string(readme).expect("the project's README");
        assert!(replaced(&text, "").is_some());
    }
}
