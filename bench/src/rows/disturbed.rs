//! A client's gets while others connect, register 1 GiB and die, against the same gets undisturbed.

use std::time::Duration;

use piped_core::modes::Profile;

use super::region::Region;
use crate::clock;
use crate::contest::Arm;
use crate::failure::Failure;
use crate::load::Ask;
use crate::newcomer::Crowd;
use crate::nodes::{Node, counter, profile_name};
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB};
use crate::stats::Bar;

/// Long against the life of a newcomer.
const MOMENT: Duration = Duration::from_millis(1000);

/// Largest ratio of the disturbed 99th percentile to the undisturbed one.
const BAR: f64 = 2.0;

/// Longest time for memory to be given back.
const DRAINED_WITHIN: Duration = Duration::from_secs(30);

/// Measures the row. The asker's own session is the one that stays.
pub(super) fn get(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = Profile::Balanced;
    bench.with_pair(profile, |bench, pair| {
        let mut region = Region::open(pair)?;
        let crowd = Crowd::new(&pair.a.client_socket)?;
        let ask = Ask { handle: &region.handle, block: 4 * KIB, depth: 1 };
        let asker = std::cell::RefCell::new(&mut region.asker);
        let mut arms = [
            Arm::variant("undisturbed".to_owned(), || {
                Ok(asker.borrow_mut().reads(ask, MOMENT)?.percentile(0.99))
            }),
            Arm::variant("disturbed".to_owned(), || {
                crowd.set(true)?;
                let timing = asker.borrow_mut().reads(ask, MOMENT);
                crowd.set(false)?;
                await_drained(&pair.a)?;
                Ok(timing?.percentile(0.99))
            }),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all_ratio(1, 0)?;
        let shown = |arm| rounds.all_of(arm).map_or(f64::NAN, |found| found.median * 1e6);
        let note = format!(
            "99th percentile {:.1} us undisturbed, {:.1} us while {} newcomers died",
            shown(0),
            shown(1),
            crowd.died()
        );
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, Bar::AtMost(BAR), note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

fn await_drained(node: &Node) -> Result<(), Failure> {
    let drained = clock::poll(DRAINED_WITHIN, || {
        (counter(&node.admin, &["sessions"]).ok()? == Some(1)).then_some(())
    });
    drained.ok_or_else(|| Failure::new("the dead clients' sessions do not end"))
}
