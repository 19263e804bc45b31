//! Reads of a file of this node against fio, with direct I/O, registered memory and file.

use std::time::Duration;

use piped_client::OpenOptions;
use piped_core::modes::Profile;

use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nodes::profile_name;
use crate::outside::{self, is_installed};
use crate::report::{Row, Unit};
use crate::rows::peers::{UCX_ROUNDS, missing};
use crate::rows::{Bench, KIB, MIB, floor};
use crate::stats::{Bar, Better};

/// Moment of both sides: a disk that was idle serves 5 % less in its first 50 ms than later.
const DISK_MOMENT: Duration = Duration::from_millis(100);

/// Reads through the daemon against fio's: each on the better of two CPUs.
pub(super) fn read(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let ((block, depth), profile) = match name {
        "fio-4k-1" => ((4 * KIB, 1), Profile::Latency),
        "fio-4k-16" => ((4 * KIB, 16), Profile::Latency),
        "fio-4k-64" => ((4 * KIB, 64), Profile::Latency),
        _ => ((MIB, 4), Profile::Balanced),
    };
    let (figure, better, bar): (floor::Figure, _, _) = match depth {
        1 => (floor::p50, Better::Smaller, Bar::AtMost(1.03)),
        _ => (floor::rate, Better::Larger, Bar::AtLeast(0.98)),
    };
    if !is_installed("fio") {
        return Ok(missing(name, profile, bar, "fio", "fio"));
    }
    let file = bench.file()?;
    let cpus = bench.cpus;
    bench.with_pair(profile, |bench, pair| {
        let mut subjects = Vec::new();
        let mut arms: Vec<Arm<'_>> = Vec::new();
        for cpu in [cpus.first, cpus.second] {
            let file = &file;
            arms.push(Arm::variant(format!("fio on CPU {cpu}"), move || {
                let found = outside::fio(file, block, depth, cpu, DISK_MOMENT)?;
                Ok(if better == Better::Smaller { found.p50 } else { found.rate })
            }));
        }
        let others = arms.len();
        // The client spins on the CPU that its daemon leaves.
        for (node, cpu, other) in
            [(&pair.a, cpus.first, cpus.second), (&pair.b, cpus.second, cpus.first)]
        {
            let asker = Asker::connect(node, Place::Spin(other), 16 << 20)?;
            let handle = asker.client.open_file(&file, OpenOptions::read()).doing("open")?;
            subjects.push((format!("piped on CPU {cpu}"), asker, handle));
        }
        for (told, asker, handle) in &mut subjects {
            let ask = Ask { handle, block, depth };
            let measure = move || Ok(figure(&asker.reads(ask, DISK_MOMENT)?));
            arms.push(Arm::variant(told.clone(), measure));
        }
        let all = arms.len();
        let rounds = bench.chosen(bench.rounds_at_most(UCX_ROUNDS), &mut arms)?;
        let best = rounds.best(0..others, better)?;
        let subject = rounds.best(others..all, better)?;
        let found = rounds.ratio(subject, best)?;
        let told = |arm: usize| {
            let median = rounds.value(arm)?.median;
            let figure = match better {
                Better::Smaller => floor::in_words(median),
                Better::Larger => format!("{median:.0}/s"),
            };
            Ok::<_, Failure>(format!("{} {figure}", rounds.names[arm]))
        };
        let note = format!("{}, {}", told(best)?, told(subject)?);
        Ok(Row::judged(name, &profile_name(profile), Unit::FineRatio, found, bar, note)
            .with_arms(&rounds, Unit::of(better)))
    })
}
