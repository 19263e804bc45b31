//! Gets of daemons that sleep against plain sockets that sleep.

use piped_client::Access;
use piped_core::modes::Profile;

use crate::contest::Arm;
use crate::failure::Failure;
use crate::load::{Ask, Place};
use crate::machine::Cpus;
use crate::nodes::profile_name;
use crate::raw::Wait;
use crate::raw::net::{Placement, Way};
use crate::report::{Row, Unit};
use crate::rows::peers::{in_words, region};
use crate::rows::{Bench, KIB, MOMENT, floor};
use crate::stats::Bar;

const BLOCK: usize = 4 * KIB;

/// Largest ratio to a request and its response between two processes.
const BAR: f64 = 1.2;

/// A get under the profile that saves CPU time, against `send` and `recv` of two processes, each on
/// a CPU of its own, which wait in the kernel.
pub(super) fn get(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = Profile::Throughput;
    let Cpus { first, second } = bench.cpus;
    bench.with_both(profile, |bench, server, pair| {
        let _export = region::export(pair, Access::READ, BLOCK)?;
        let (mut asker, handle) = region::open(pair, Place::BesideShard, Access::READ, 1 << 20)?;
        let placement = Placement { client_cpu: first, server_cpu: second, wait: Wait::Block };
        let shape = floor::get_shape(BLOCK);
        let mut arms = [
            Arm::variant("sockets asleep".to_owned(), || {
                Ok(server.exchange(shape, Way::Sockets, placement, MOMENT)?.p50())
            }),
            Arm::variant("piped".to_owned(), || {
                Ok(asker.reads(Ask { handle: &handle, block: BLOCK, depth: 1 }, MOMENT)?.p50())
            }),
        ];
        let rounds = bench.rounds(&mut arms)?;
        let found = rounds.all_ratio(1, 0)?;
        let note = format!("p50: {}", in_words(&rounds));
        let bar = Bar::AtMost(BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}
