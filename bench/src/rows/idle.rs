//! A daemon without work, but with a client connected and lanes up.

use std::time::Duration;

use piped_core::modes::Profile;

use crate::contest::{self, Arm};
use crate::failure::Failure;
use crate::load::{Asker, Place};
use crate::nodes::profile_name;
use crate::report::{Row, Unit};
use crate::rows::{Bench, MOMENT};
use crate::stats::{Bar, Interval};
use crate::{clock, raw};

/// Windows of together 20 seconds.
const WINDOWS: u32 = 5;
const WINDOW: Duration = Duration::from_secs(4);
const STEP: Duration = Duration::from_millis(200);

pub(super) fn idle(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = Profile::Balanced;
    bench.with_both(profile, |bench, _, pair| {
        let mut asker = Asker::connect(&pair.a, Place::BesideShard, 1 << 20)?;
        asker.nops(MOMENT)?;
        let pid = pair.a.pid();
        let mut arms = [Arm::variant("idle".to_owned(), || {
            let seconds = || {
                let time = raw::process_cpu_time(pid).map(|time| time.as_secs_f64());
                time.ok_or_else(|| Failure::new("the daemon is not there"))
            };
            let (before, begun) = (seconds()?, clock::now());
            // In steps, so that Ctrl-C is heard.
            while begun.elapsed() < WINDOW && !contest::interrupted() {
                clock::pause(STEP);
            }
            Ok((seconds()? - before) / begun.elapsed().as_secs_f64())
        })];
        let rounds = contest::run(WINDOWS, &mut arms)?;
        bench.report.rounds_discarded += rounds.discarded;
        let values: Vec<f64> = rounds.kept.iter().filter_map(|round| round.values[0]).collect();
        let found = Interval::of_median(&values)
            .ok_or_else(|| Failure::new("all windows had stolen time"))?;
        let note =
            format!("{WINDOWS} windows of {} s, client and lanes connected", WINDOW.as_secs());
        let bar = Bar::AtMost(0.002);
        Ok(Row::judged(name, &profile_name(profile), Unit::Cpu, found, bar, note))
    })
}
