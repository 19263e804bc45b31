//! The Python package: requests against client-lib's on the same daemons, and weights in the
//! safetensors format against what Python programs load them by.
//!
//! The Python side is one program ([`worker`]) that a row asks for one figure at a time, so that no
//! figure has the start of an interpreter.

mod environment;
mod far;
mod requests;
mod weights;
mod worker;

use piped_core::modes::Profile;

use crate::contest::Rounds;
use crate::outside::is_installed;
use crate::report::Row;
use crate::rows::{Group, peers};
use crate::stats::Bar;

pub(super) use environment::Environment;

/// Rows of the Python package.
pub(crate) static PYTHON: Group = Group {
    name: "python",
    rows_stand_alone: true,
    entries: &[
        ("python-get-4k", requests::small),
        ("python-get-1m", requests::large),
        ("python-threads", requests::threads),
        ("weights-2g", weights::against_copies),
        ("weights-2g-floor", weights::against_floor),
        ("weights-link-http", far::http),
        ("weights-link-sftp", far::sftp),
    ],
};

const PROFILE: Profile = Profile::Balanced;

/// Rounds of rows that take seconds each.
const FEW_ROUNDS: u32 = 11;

/// Row that is not measured, if one of these programs of Debian's packages is missing.
fn unmeasured(name: &str, bar: Bar, tools: &[(&str, &str)]) -> Option<Row> {
    let (tool, package) = tools.iter().find(|(tool, _)| !is_installed(tool))?;
    Some(peers::missing(name, PROFILE, bar, tool, package))
}

/// Median seconds of each arm with its name, for notes of rows that take seconds.
fn seconds_of(rounds: &Rounds) -> String {
    let arms = rounds
        .names
        .iter()
        .enumerate()
        .filter_map(|(arm, name)| Some(format!("{name} {:.2} s", rounds.all_of(arm)?.median)));
    arms.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Verdict;

    #[test]
    fn a_row_without_its_program_is_unchecked_and_names_the_package() {
        assert!(unmeasured("row", Bar::AtMost(1.0), &[("sh", "dash")]).is_none());
        let tools = [("sh", "dash"), ("no-such-program-of-piped", "none")];
        let row = unmeasured("row", Bar::AtMost(1.0), &tools).expect("it is not there");
        assert_eq!((row.verdict, row.found), (Verdict::Unchecked, None));
        assert!(row.note.contains("no no-such-program-of-piped: apt-get install none"));
    }
}
