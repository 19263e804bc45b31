//! What several clients get done in a second, together, against one of them alone.

use std::thread;
use std::time::Duration;

use piped_client::{Access, Handle};
use piped_core::modes::Profile;

use crate::clock;
use crate::contest::Arm;
use crate::failure::{Failure, joined};
use crate::load::{Ask, Asker, Place};
use crate::nodes::profile_name;
use crate::report::{Row, Unit};
use crate::rows::peers::region;
use crate::rows::{Bench, KIB};
use crate::stats::Bar;

/// Least part of one client's rate that several must get done together.
const BAR: f64 = 0.9;

const BLOCK: usize = 64 * KIB;
const DEPTH: usize = 16;

/// Time until all clients have begun, which is not counted, and time that is.
pub(crate) const SETTLE: Duration = Duration::from_millis(30);
pub(crate) const WINDOW: Duration = Duration::from_millis(100);

/// Gets of several clients, each in a thread with a session of its own.
pub(super) fn rate(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let many = if name.ends_with("16") { 16 } else { 4 };
    let profile = Profile::Balanced;
    bench.with_pair(profile, |bench, pair| {
        let _export = region::export(pair, Access::READ, BLOCK)?;
        let readers = |count: usize| -> Result<Vec<_>, Failure> {
            let readers = 0..count;
            let one = |_| region::open(pair, Place::BesideShard, Access::READ, DEPTH * BLOCK);
            readers.map(one).collect()
        };
        let (mut one, mut others) = (readers(1)?, readers(many)?);
        let mut arms = [
            Arm::variant("1 client".to_owned(), || together(&mut one, (BLOCK, DEPTH))),
            Arm::variant(format!("{many} clients"), || together(&mut others, (BLOCK, DEPTH))),
        ];
        let rounds = bench.rounds(&mut arms)?;
        let found = rounds.all_ratio(1, 0)?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |rate| rate.median);
        let note = format!(
            "gets of 64 KiB, {DEPTH} at once each: {many} clients {:.0}/s together, one {:.0}/s",
            told(1),
            told(0)
        );
        let bar = Bar::AtLeast(BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::PerSecond))
    })
}

/// Reads per second of all readers together, of that length and depth each.
pub(crate) fn together(
    readers: &mut [(Asker, Handle)],
    (block, depth): (usize, usize),
) -> Result<f64, Failure> {
    let from = clock::now() + SETTLE;
    let to = from + WINDOW;
    let counts = thread::scope(|scope| {
        let reading = |(asker, handle): &mut (Asker, Handle)| {
            let mut count = 0u64;
            let ask = Ask { handle, block, depth };
            asker.reads_while(ask, |_, ended| {
                count += u64::from(from <= ended && ended < to);
                ended < to
            })?;
            Ok(count)
        };
        let threads: Vec<_> =
            readers.iter_mut().map(|reader| scope.spawn(move || reading(reader))).collect();
        let counts = threads.into_iter().map(|thread| joined(thread.join(), "a client"));
        counts.collect::<Result<Vec<u64>, Failure>>()
    })?;
    Ok(counts.iter().sum::<u64>() as f64 / WINDOW.as_secs_f64())
}
