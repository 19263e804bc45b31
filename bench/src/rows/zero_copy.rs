//! Gets by lanes that send without a copy, against lanes that copy: on loopback, and between
//! namespaces. On both the kernel copies when the other side receives, so the bar is that `auto`
//! notices. The note has the cost of `on`, and the CPU time of both daemons for a byte.

use std::time::Duration;

use piped_core::modes::Profile;

use super::region::Region;
use crate::contest::Arm;
use crate::failure::Failure;
use crate::load::Ask;
use crate::nodes::{Pair, profile_name};
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB, MIB};
use crate::stats::Bar;

/// Long against a reload, and against the first sends, in which the copying is noticed.
const MOMENT: Duration = Duration::from_millis(400);

/// Largest cost of deciding where there is nothing to win.
const BAR: f64 = 1.03;

const MODES: [&str; 3] = ["off", "auto", "on"];
const DEPTH: usize = 4;

pub(super) fn loopback(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = Profile::Throughput;
    bench.with_pair(profile, |bench, pair| compare(bench, name, profile, pair))
}

/// Row between the namespaces of the rig.
pub(crate) fn cable(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    bench.with_rig(|bench, rig| compare(bench, name, rig.pair.profile, &rig.pair))
}

fn compare(
    bench: &mut Bench,
    name: &'static str,
    profile: Profile,
    pair: &Pair,
) -> Result<Row, Failure> {
    let block = if name.ends_with("64k") { 64 * KIB } else { MIB };
    let region = std::cell::RefCell::new(Region::open(pair)?);
    let nodes = [&pair.a, &pair.b];
    let cpu_time = || -> Result<f64, Failure> { Ok(pair.a.cpu_seconds()? + pair.b.cpu_seconds()?) };
    let spent = MODES.map(|_| std::cell::Cell::new((0.0, 0.0)));
    let arm = |place: usize| {
        let (region, spent) = (&region, &spent[place]);
        Arm::variant(MODES[place].to_owned(), move || {
            nodes.into_iter().try_for_each(|node| node.set_planner("zero_copy", MODES[place]))?;
            let Region { asker, handle, .. } = &mut *region.borrow_mut();
            let before = cpu_time()?;
            let rate = asker.reads(Ask { handle, block, depth: DEPTH }, MOMENT)?.rate();
            let (time, bytes) = spent.get();
            let moved = rate * MOMENT.as_secs_f64() * block as f64;
            spent.set((time + cpu_time()? - before, bytes + moved));
            Ok(1.0 / rate)
        })
    };
    let mut arms = [arm(0), arm(1), arm(2)];
    let rounds = bench.rounds(&mut arms);
    drop(arms);
    nodes.into_iter().try_for_each(|node| node.set_planner("zero_copy", "auto"))?;
    let rounds = rounds?;
    let (auto, on) = (rounds.all_ratio(1, 0)?, rounds.all_ratio(2, 0)?);
    let per_byte = spent.each_ref().map(|it| it.get().0 / it.get().1 * 1e9);
    let status = pair.b.admin.status()?;
    let sends = |what: &str| status.shards[0]["counters"][what].as_u64().unwrap_or(0);
    let note = format!(
        "{DEPTH} gets at a time; on/off {:.3} ({:.3} to {:.3}); CPU ns a byte of both daemons: off \
         {:.3}, auto {:.3}, on {:.3}; of B's sends {} lent in place, {} copied all the same",
        on.median,
        on.low,
        on.high,
        per_byte[0],
        per_byte[1],
        per_byte[2],
        sends("sends_zero_copy"),
        sends("sends_copied"),
    );
    Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, auto, Bar::AtMost(BAR), note)
        .with_arms(&rounds, Unit::Seconds))
}
