//! Gets against three bare processes on the same path: the same hand-overs, checksums of headers
//! alone, and no engine.

use piped_core::modes::Profile;

use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::Ask;
use crate::nodes::profile_name;
use crate::raw::frames::Calls;
use crate::raw::path::{Asker, Choices, Wake};
use crate::report::{Row, Unit};
use crate::rows::peers::in_words;
use crate::rows::region::Region;
use crate::rows::{Bench, KIB, MIB, MOMENT, floor};
use crate::stats::{Bar, Better};

/// Frame sizes that are tried for a get that is longer, and the whole get in one.
const CHUNKS: [usize; 3] = [64 * KIB, 128 * KIB, 256 * KIB];

/// A get against the best of the prototype's choices, which is chosen in rounds beforehand.
pub(super) fn get(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (block, most) = match name {
        "path-4k" => (4 * KIB, 1.15),
        "path-64k" => (64 * KIB, 1.1),
        "path-256k" => (256 * KIB, 1.08),
        _ => (MIB, 1.05),
    };
    let profile = Profile::Latency;
    let bar = Bar::AtMost(most);
    let cpus = bench.cpus;
    if !cpus.are_two() {
        let note = "unchecked (both processes of the prototype would spin on the only CPU)";
        return Ok(Row::unchecked(name, &profile_name(profile), Unit::Ratio, bar, note));
    }
    bench.with_both(profile, |bench, server, pair| {
        let path = std::cell::RefCell::new(Asker::start(server).doing("the prototype")?);
        let arm = |(told, choices): (String, Choices)| {
            let path = &path;
            let measure = move || Ok(path.borrow_mut().gets(block, choices, cpus, MOMENT)?.p50());
            Arm::variant(told, measure)
        };
        let arms = choices(block).into_iter().map(arm).collect();
        let best = bench.best(floor::CHOOSING_FLOOR, arms, Better::Smaller)?;
        let mut region = Region::open(pair)?;
        let ask = Ask { handle: &region.handle, block, depth: 1 };
        let asker = &mut region.asker;
        let ours = Arm::variant("piped".to_owned(), move || Ok(asker.reads(ask, MOMENT)?.p50()));
        let mut arms = [best, ours];
        let rounds = bench.rounds(&mut arms)?;
        let found = rounds.all_ratio(1, 0)?;
        let note = format!("p50: prototype with {}", in_words(&rounds));
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// All choices for a get of that size, with their names.
fn choices(block: usize) -> Vec<(String, Choices)> {
    let mut all = Vec::new();
    let shorter = CHUNKS.into_iter().filter(|chunk| *chunk < block);
    for chunk in shorter.chain([block]) {
        for calls in Calls::ALL {
            for wake in [Wake::Socket, Wake::Futex] {
                let told = format!(
                    "receive by {}, send by {}, wake by {}, frames of {} KiB",
                    calls.receive.name(),
                    calls.send.name(),
                    wake.name(),
                    chunk >> 10
                );
                all.push((told, Choices { calls, wake, chunk }));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_never_longer_than_the_get() {
        assert_eq!(choices(4 * KIB).len(), 8);
        assert_eq!(choices(MIB).len(), 32);
        assert!(choices(256 * KIB).iter().all(|(_, it)| it.chunk <= 256 * KIB));
    }
}
