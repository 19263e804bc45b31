//! Local reads through a daemon against raw io_uring.

use piped_client::OpenOptions;
use piped_core::modes::Profile;

use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nodes::profile_name;
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB, MIB, MOMENT, floor};
use crate::stats::{Bar, Better};

pub(super) fn local(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let ((block, depth), figure, better, bar, profile, check): (_, floor::Figure, _, _, _, _) =
        match name {
            "local-4k-1" => (
                (4 * KIB, 1),
                floor::p50,
                Better::Smaller,
                Bar::AtMost(1.15),
                Profile::Latency,
                "check-disk-4k-1",
            ),
            "local-4k-16" => (
                (4 * KIB, 16),
                floor::rate,
                Better::Larger,
                Bar::AtLeast(0.85),
                Profile::Latency,
                "check-disk-4k-16",
            ),
            _ => (
                (MIB, 4),
                floor::rate,
                Better::Larger,
                Bar::AtLeast(0.95),
                Profile::Balanced,
                "check-disk-1m-4",
            ),
        };
    let file = bench.file()?;
    let disk = bench.disk()?;
    let cpus = bench.cpus;
    bench.with_both(profile, |bench, _, pair| {
        let mut subjects = Vec::new();
        // A floor may choose the CPU, so an operator of piped may, too. The client spins on the
        // other one.
        for (node, cpu, other) in
            [(&pair.a, cpus.first, cpus.second), (&pair.b, cpus.second, cpus.first)]
        {
            let asker = Asker::connect(node, Place::Spin(other), 16 << 20)?;
            let handle = asker.client.open_file(&file, OpenOptions::read()).doing("open")?;
            subjects.push((format!("CPU {cpu}"), asker, handle));
        }
        let mut arms = floor::disk(&disk, cpus, (block, depth), figure, MOMENT);
        let floors = arms.len();
        for (name, asker, handle) in &mut subjects {
            let ask = Ask { handle, block, depth };
            let measure = move || Ok(figure(&asker.reads(ask, MOMENT)?));
            arms.push(Arm::variant(format!("piped, {name}"), measure));
        }
        let all = arms.len();
        let rounds = bench.rounds(&mut arms)?;
        let best = rounds.best(0..floors, better)?;
        let subject = rounds.best(floors..all, better)?;
        let found = rounds.ratio(subject, best)?;
        let show = |value: f64| match better {
            Better::Smaller => floor::in_words(value),
            Better::Larger => format!("{value:.0}/s"),
        };
        let note = format!(
            "raw {} ({}), {} ({})",
            show(rounds.value(best)?.median),
            rounds.names[best],
            show(rounds.value(subject)?.median),
            rounds.names[subject]
        );
        let row = Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::of(better));
        Ok(bench.judged(row, &[check]))
    })
}
