//! Results as rows with verdicts, as CSV, and as tables for docs/benchmarks.md.

use super::candidates::{List, TRUE};
use super::knobs::Sweep;
use super::scene::{BLOCKS, Load, Path};
use super::sweep::{BAR, Cell, Hand, fragment_bytes};
use crate::machine::Machine;
use crate::nodes::profile_name;
use crate::report::{Row, Unit};
use crate::rig::PROFILE;
use crate::rows::KIB;
use crate::stats::{self, Bar, Interval, Verdict};

/// Least part of the candidates that are what the model says, and of the transfers in which the
/// model's first is the guard's favourite, for files of a peer over loopback.
const TRUE_BAR: f64 = 0.9;
const FIRST_BAR: f64 = 0.8;

/// Results of a whole run, for tables and picture.
#[derive(Debug, Clone, Default)]
pub(super) struct Study {
    pub(crate) cells: Vec<Cell>,
    pub(crate) sweeps: Vec<Sweep>,
}

/// Cells of one path and load.
struct Group<'a> {
    path: Path,
    load: Load,
    cells: Vec<&'a Cell>,
}

impl Group<'_> {
    fn name(&self) -> String {
        format!("{}-{}", self.path.name(), self.load.name())
    }

    fn sum(&self, of: fn(&List) -> [usize; 2]) -> Option<f64> {
        let counts = self.cells.iter().map(|cell| of(&cell.list));
        let [some, all] = counts.fold([0, 0], |[a, b], [some, all]| [a + some, b + all]);
        (all > 0).then(|| some as f64 / all as f64)
    }

    fn candidates(&self) -> [usize; 2] {
        let measured = self.cells.iter().map(|cell| cell.list.truths()[1]).sum();
        [measured, self.cells.iter().map(|cell| cell.list.seen().len()).sum()]
    }

    /// Median of what the model's first took, over the best.
    fn loss(&self) -> Option<f64> {
        let losses: Vec<f64> = self.cells.iter().filter_map(|cell| cell.list.loss()).collect();
        stats::median(&losses)
    }
}

impl Study {
    fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let all = Load::ALL.into_iter().flat_map(|load| Path::ALL.map(|path| (path, load)));
        let groups = all.map(|(path, load)| {
            let cells = self.cells.iter().filter(|cell| (cell.path, cell.load) == (path, load));
            Group { path, load, cells: cells.collect() }
        });
        groups.filter(|group| !group.cells.is_empty())
    }

    /// Rows of the model, from the lists of all lengths of a path and load.
    pub(super) fn of_model(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for group in self.groups() {
            let [measured, all] = group.candidates();
            let order = group.sum(List::order).map_or_else(|| "-".to_owned(), in_percent);
            let note =
                format!("{measured} of {all} candidates measured, {order} of pairs in order");
            let barred = (group.path, group.load) == (Path::File, Load::Quiet);
            let figures = [
                ("predicted", group.sum(List::truths), TRUE_BAR),
                ("first", group.sum(List::favourites), FIRST_BAR),
            ];
            for (what, found, least) in figures {
                let Some(found) = found.map(Interval::exact) else { continue };
                let (name, profile) = (format!("{what}-{}", group.name()), profile_name(PROFILE));
                rows.push(if barred {
                    let bar = Bar::AtLeast(least);
                    Row::judged(&name, &profile, Unit::Part, found, bar, &*note)
                } else {
                    Row::reported(&name, &profile, Unit::Part, found, &*note)
                });
            }
        }
        rows
    }

    /// CSV with a line for each size and each candidate.
    pub(super) fn csv(&self) -> String {
        let mut text = String::from(
            "what,path,load,bytes,plan,fragment_bytes,seconds,predicted_seconds,ratio,low,high\n",
        );
        for cell in &self.cells {
            let Cell { path, load, block, auto, best, ratio, list, .. } = cell;
            let about = format!("{},{},{block}", path.name(), load.name());
            text += &format!(
                "auto,{about},beside {best},,{auto:.9},{:.9},{:.4},{:.4},{:.4}\n",
                list.predicted(),
                ratio.median,
                ratio.low,
                ratio.high
            );
            for hand in &cell.hand {
                let bytes = fragment_bytes(hand.mode(), *block);
                text += &format!(
                    "hand,{about},{},{bytes},{:.9},,{:.4},,\n",
                    hand.mode(),
                    hand.seconds(),
                    hand.seconds() / auto
                );
            }
            for seen in list.seen() {
                let measured = seen.measured().map(|seconds| format!("{seconds:.9}"));
                let ratio = seen.measured().map(|it| format!("{:.4}", it / seen.predicted()));
                text += &format!(
                    "candidate,{about},{},{},{},{:.9},{},,\n",
                    seen.plan(),
                    seen.fragment_bytes(),
                    measured.unwrap_or_default(),
                    seen.predicted(),
                    ratio.unwrap_or_default()
                );
            }
            let [first, watched] = list.favourites();
            text += &format!("first,{about},of {watched},,,,{:.4},,\n", part(first, watched));
        }
        for sweep in &self.sweeps {
            let Sweep { name, auto, best, ratio, .. } = sweep;
            text += &format!(
                "auto,{name},quiet,,beside {best},,{auto:.9},,{:.4},{:.4},{:.4}\n",
                ratio.median, ratio.low, ratio.high
            );
            for it in &sweep.settings {
                let (bytes, seconds) = (it.bytes(), it.seconds());
                let ratio = seconds / auto;
                text +=
                    &format!("setting,{name},quiet,,{bytes},{bytes},{seconds:.9},,{ratio:.4},,\n");
            }
        }
        text
    }

    /// Tables for docs/benchmarks.md, with the machine below them.
    pub(super) fn markdown(&self, machine: &Machine, rounds: u32, discarded: u32) -> String {
        let lengths = BLOCKS.map(in_words).join(" | ");
        let mut text = format!("| auto over the best by hand | {lengths} |\n");
        text += "| --- | --- | --- | --- | --- | --- |\n";
        for group in self.groups() {
            let cells = BLOCKS.map(|block| {
                let cell = group.cells.iter().find(|cell| cell.block == block);
                cell.map_or_else(|| "-".to_owned(), |cell| judged(cell.ratio))
            });
            text += &format!("| {} | {} |\n", group.name(), cells.join(" | "));
        }
        text += "\n| the model | candidates | measured | true | pairs in order | \
                 first is favourite | first over best |\n\
                 | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
        for group in self.groups() {
            let [measured, all] = group.candidates();
            let figures = [List::truths, List::order, List::favourites]
                .map(|of| group.sum(of).map_or_else(|| "-".to_owned(), in_percent));
            let loss = group.loss().map_or_else(|| "-".to_owned(), |loss| format!("{loss:.2} x"));
            let [figures, name] = [figures.join(" | "), group.name()];
            text += &format!("| {name} | {all} | {measured} | {figures} | {loss} |\n");
        }
        if !self.sweeps.is_empty() {
            text += "\n| others' own size | their best | auto over it | 95 % |\n";
            text += "| --- | ---: | ---: | --- |\n";
        }
        for Sweep { about, best, ratio, .. } in &self.sweeps {
            text += &format!(
                "| {about} | {} | {:.2} x | {:.2} .. {:.2} |\n",
                in_words(*best),
                ratio.median,
                ratio.low,
                ratio.high
            );
        }
        let Machine { cpus, model, kernel, .. } = machine;
        text + &format!(
            "\n![Every size set by hand, over piped's own choice](figures/truth.svg)\n\n\
             {cpus} CPUs ({model}), Linux {kernel}; at most {rounds} rounds each,\n\
             {discarded} discarded for stolen time. All figures:\n\
             [truth.csv](figures/truth.csv).\n"
        )
    }
}

fn in_percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

fn part(some: usize, all: usize) -> f64 {
    if all == 0 { f64::NAN } else { some as f64 / all as f64 }
}

/// The interval, and the verdict if it is not that the bar holds.
fn judged(ratio: Interval) -> String {
    let interval = format!("{:.3} .. {:.3}", ratio.low, ratio.high);
    match BAR.judge(ratio) {
        Verdict::Holds => interval,
        Verdict::Fails => format!("FAILS {interval}"),
        _ => format!("undecided {interval}"),
    }
}

/// A length such as `64 KiB`.
pub(super) fn in_words(bytes: usize) -> String {
    let kib = bytes / KIB;
    if kib < 1024 { format!("{kib} KiB") } else { format!("{} MiB", kib / 1024) }
}

/// Row of `auto` against the best size by hand.
pub(super) fn row_of_cell(cell: &Cell) -> Row {
    let best = cell.hand.iter().find(|hand| hand.mode() == cell.best);
    let [truths, order] = [cell.list.truths(), cell.list.order()];
    let note = format!(
        "auto {:.0} us, {} {:.0} us, {} rounds; {} of {} candidates within {} .. {}, {} of {} \
         pairs in order",
        cell.auto * 1e6,
        cell.best,
        best.map_or(f64::NAN, Hand::seconds) * 1e6,
        cell.rounds,
        truths[0],
        truths[1],
        TRUE.start(),
        TRUE.end(),
        order[0],
        order[1],
    );
    let profile = profile_name(PROFILE);
    Row::judged(&cell.name(), &profile, Unit::FineRatio, cell.ratio, BAR, note)
}

/// Row of `auto` against another program's best setting, without a bar.
pub(super) fn row_of_sweep(sweep: &Sweep) -> Row {
    let times = sweep
        .settings
        .iter()
        .map(|it| format!("{} {:.2} ms", in_words(it.bytes()), it.seconds() * 1e3));
    let note = format!(
        "{}: {}; auto {:.2} ms, {} rounds, best {}",
        sweep.about,
        times.collect::<Vec<_>>().join(", "),
        sweep.auto * 1e3,
        sweep.rounds,
        in_words(sweep.best)
    );
    Row::reported(sweep.name, &profile_name(PROFILE), Unit::Ratio, sweep.ratio, note)
}

#[cfg(test)]
pub(super) mod tests {
    use piped_core::modes::PlannerMode;

    use super::super::knobs::Setting;
    use super::*;
    use crate::rows::MIB;

    pub(in super::super) fn study() -> Study {
        let hand = [14, 15, 16].map(|power| {
            let mode =
                if power == 16 { PlannerMode::Whole } else { PlannerMode::Fixed(1 << power) };
            Hand::new(mode, f64::from(power) * 1e-5)
        });
        let cell = |path, load, ratio| Cell {
            path,
            load,
            block: 64 * KIB,
            auto: 1.4e-4,
            hand: hand.to_vec(),
            best: PlannerMode::Fixed(1 << 14),
            ratio,
            rounds: 9,
            discarded: 0,
            list: List::new(Vec::new(), 4, 3),
        };
        let near = Interval { low: 0.99, median: 1.0, high: 1.01 };
        let far = Interval { low: 1.03, median: 1.1, high: 1.2 };
        Study {
            cells: vec![cell(Path::File, Load::Quiet, near), cell(Path::Get, Load::Late, far)],
            sweeps: vec![Sweep {
                name: "nbdcopy-256m",
                about: "nbdcopy --request-size",
                settings: vec![Setting::new(64 * KIB, 0.2), Setting::new(MIB, 0.1)],
                auto: 0.05,
                best: MIB,
                ratio: Interval { low: 0.4, median: 0.5, high: 0.6 },
                rounds: 5,
                discarded: 0,
            }],
        }
    }

    #[test]
    fn the_csv_has_a_column_for_each_heading() {
        let text = study().csv();
        let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [11; 1 + 2 * 5 + 3]);
        assert!(text.contains("hand,file,quiet,65536,fixed:16KiB,16384,0.000140000,,1.0000,,"));
        assert!(text.contains("auto,nbdcopy-256m,quiet,,beside 1048576,,0.050000000,,0.5000"));
    }

    #[test]
    fn the_tables_say_what_holds_and_what_does_not() {
        let machine = Machine { cpus: 2, model: "m".into(), kernel: "6".into(), load: 0.0 };
        let text = study().markdown(&machine, 31, 0);
        assert!(text.contains("| file-quiet | 0.990 .. 1.010 | - | - | - | - |"), "{text}");
        assert!(text.contains("| get-10ms | FAILS 1.030 .. 1.200 | -"), "{text}");
        assert!(text.contains("| nbdcopy --request-size | 1 MiB | 0.50 x | 0.40 .. 0.60 |"));
    }

    #[test]
    fn only_files_of_a_peer_over_loopback_have_a_bar_on_the_model() {
        let rows = study().of_model();
        let told: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.verdict)).collect();
        // Three of four is below 80 %.
        let expected =
            [("first-file-quiet", Verdict::Fails), ("first-get-10ms", Verdict::Reported)];
        assert_eq!(told, expected, "no candidate was measured, so none is judged");
    }
}
