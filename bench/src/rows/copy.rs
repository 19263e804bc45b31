//! `pipectl cp` of a cold file from one node to another, durable, against other programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use piped_core::modes::Profile;

use crate::contest::{self, Arm};
use crate::copiers::{Copier, TOOLS};
use crate::failure::{Doing as _, Failure};
use crate::nodes::{EXPORT, PEER, Pair, profile_name, program};
use crate::raw::disk::make_file;
use crate::report::{Row, Unit};
use crate::rows::Bench;
use crate::stats::{Bar, Better, Interval};
use crate::{clock, outside};

const BYTES: u64 = 1 << 30;
const SOURCE: &str = "gibibyte";

/// Rounds that choose the better of the others, and rounds that compare with it: seconds each.
const CHOOSING: u32 = 3;
const COMPARING: u32 = 9;

/// Time after the sync of a removal for the device to discard the blocks.
pub(super) const SETTLE: Duration = Duration::from_millis(300);

pub(super) fn cp(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (profile, bar) = (Profile::Balanced, Bar::AtMost(1.0));
    if let Some(tool) = TOOLS.into_iter().find(|tool| !outside::is_installed(tool)) {
        let note = format!("unchecked (install {tool})");
        return Ok(Row::unchecked(name, &profile_name(profile), Unit::Ratio, bar, note));
    }
    let data = bench.data()?;
    let source = data.join(SOURCE);
    make_file(&source, BYTES).doing("a file of 1 GiB")?;
    let scratch = tempfile::Builder::new().prefix("copies-").tempdir_in(&data)?;
    let sink = |name: &str| scratch.path().join(name);
    bench.need_pair(profile)?;
    let pair = bench.pair.take().expect("needed above");
    let mut measured = || {
        let copiers = [
            Copier::qemu(&source, &sink("qemu"))?,
            Copier::rsync(&source, &sink("rsync"), scratch.path())?,
        ];
        let others = copiers.iter().map(|copier| {
            let source = source.clone();
            let destination = sink(if copier.name == "rsync" { "rsync" } else { "qemu" });
            Arm::variant(copier.name.to_owned(), move || {
                timed(&source, &destination, BYTES, || copier.copy())
            })
        });
        let other = bench.best(CHOOSING, others.collect(), Better::Smaller)?;
        let mut cp = Cp::new(&pair, source.clone(), sink("piped"), BYTES)?;
        let ours = Arm::variant("pipectl cp".to_owned(), move || cp.timed());
        let mut arms = [other, ours];
        let rounds = contest::run(COMPARING, &mut arms)?;
        bench.report.rounds_discarded += rounds.discarded;
        let ratios: Vec<f64> = rounds
            .kept
            .iter()
            .filter_map(|round| Some(round.values[1]? / round.values[0]?))
            .collect();
        let found = Interval::of_median(&ratios)
            .ok_or_else(|| Failure::new("all rounds had stolen time: run it again"))?;
        let median = |arm: usize| rounds.all_of(arm).map_or(f64::NAN, |found| found.median);
        let note = format!(
            "{COMPARING} rounds of 1 GiB, cold, synced: {:.2} s (pipectl cp) against {:.2} s ({})",
            median(1),
            median(0),
            rounds.names[0]
        );
        let row = Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note);
        Ok(row.with_arms(&rounds, Unit::Seconds))
    };
    let row = measured();
    bench.pair = Some(pair);
    // The source is not needed any more.
    std::fs::remove_file(&source)?;
    row
}

/// Copies a file of the second daemon's export with `pipectl cp`.
pub(crate) struct Cp {
    command: Command,
    source: PathBuf,
    destination: PathBuf,
    bytes: u64,
}

impl Cp {
    /// Prepares a copy of `source`, which is in the directory that the second daemon of the pair
    /// exports.
    pub(crate) fn new(
        pair: &Pair,
        source: PathBuf,
        destination: PathBuf,
        bytes: u64,
    ) -> Result<Self, Failure> {
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let mut command = Command::new(program("pipectl")?);
        command.args(["cp", "--quiet", "--client-socket"]).arg(&pair.a.client_socket);
        command.arg(format!("{PEER}:{EXPORT}/{name}")).arg(&destination);
        command.env_remove("PIPED_CLIENT_SOCKET");
        Ok(Self { command, source, destination, bytes })
    }

    /// Seconds of one copy.
    pub(crate) fn timed(&mut self) -> Result<f64, Failure> {
        let Self { command, source, destination, bytes } = self;
        timed(source, destination, *bytes, || outside::output(command).map(drop))
    }
}

/// Seconds of a copy that begins without a page cache at either end.
pub(super) fn timed(
    source: &Path,
    destination: &Path,
    length: u64,
    mut copy: impl FnMut() -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let opened = std::fs::File::open(source)?;
    rustix::fs::fadvise(&opened, 0, None, rustix::fs::Advice::DontNeed).doing("fadvise")?;
    clock::pause(SETTLE);
    let begun = clock::now();
    copy()?;
    let seconds = begun.elapsed().as_secs_f64();
    let bytes = std::fs::metadata(destination)?.len();
    if bytes != length {
        return Err(Failure::new(format!("the copy has {bytes} bytes")));
    }
    std::fs::remove_file(destination)?;
    rustix::fs::syncfs(&opened).doing("syncfs")?;
    Ok(seconds)
}
