//! Communication patterns of several nodes, and the application kernel of the strip-mining paper:
//! by strips against one get of everything.

use std::cell::RefCell;
use std::thread;
use std::time::Duration;

use piped_client::{StripPolicy, Strips, WaitPolicy};

use crate::clock;
use crate::contest::{Arm, Rounds};
use crate::failure::{Failure, joined};
use crate::kernels::Kernel;
use crate::machine;
use crate::nodes::{CALLER, PEER, profile_name};
use crate::report::{Row, Unit};
use crate::rig::{GIGABIT, Rig};
use crate::rows::loops::{Loop, Remote};
use crate::rows::strips::{NEVER_WORSE_BAR, PROFILE};
use crate::rows::{Bench, KIB, MIB};
use crate::stats::{Bar, Better};

const BYTES: usize = 8 * MIB;

/// Fixed strips of the sweep, four ahead each.
const STRIPS: [usize; 4] = [32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB];
const UNROLL: u32 = 4;

/// Loops before anything is measured: the daemons learn the path.
const WARM: usize = 20;

/// Rate of a link on which the redistribution's memory traffic takes about as long as its transfer.
const FAST: u64 = 8 * GIGABIT;

/// Waiting without spinning, because processes share CPUs with each other or with a daemon.
const SHARED: WaitPolicy = WaitPolicy::Custom { spin: Duration::ZERO };

/// A process of a pattern and its CPU.
struct Process<'a> {
    it: Loop<'a>,
    cpu: usize,
}

impl Process<'_> {
    fn run(&mut self, strips: Option<Strips>) -> Result<f64, Failure> {
        machine::pin(self.cpu)?;
        strips.map_or_else(|| self.it.vectorised(), |strips| self.it.stripped(strips))
    }
}

/// Time of all processes once, from their common begin until the last has ended, in seconds.
fn together(processes: &mut [Process<'_>], strips: Option<Strips>) -> Result<f64, Failure> {
    let begun = clock::now();
    if let [alone] = processes {
        alone.run(strips)?;
        return Ok(begun.elapsed().as_secs_f64());
    }
    thread::scope(|scope| {
        let each = processes.iter_mut();
        let running: Vec<_> = each.map(|process| scope.spawn(|| process.run(strips))).collect();
        running.into_iter().try_for_each(|it| joined(it.join(), "a process").map(drop))
    })?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Compares strips that the library chooses, one get of everything, and fixed strips.
fn compare(bench: &mut Bench, processes: &mut [Process<'_>]) -> Result<Rounds, Failure> {
    for _ in 0..WARM {
        together(processes, Some(Strips::new()))?;
        together(processes, None)?;
    }
    let processes = RefCell::new(processes);
    let arm = |name: String, strips| {
        let processes = &processes;
        Arm::variant(name, move || together(&mut processes.borrow_mut(), strips))
    };
    let fixed = STRIPS.map(|strip| {
        let strips = Strips::new().policy(StripPolicy::Fixed(strip)).unroll(UNROLL);
        arm(format!("{} KiB", strip / KIB), Some(strips))
    });
    let mut arms =
        vec![arm("auto".to_owned(), Some(Strips::new())), arm("vectorised".to_owned(), None)];
    arms.extend(fixed);
    bench.rounds(&mut arms)
}

/// Measures the row with that name.
pub(super) fn row(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (first, second) = (bench.cpus.first, bench.cpus.second);
    let rounds = if name.starts_with("one-to-one") {
        bench.with_rig_on(PROFILE, bench.cpus, |bench, rig| {
            rig.set_rate(GIGABIT)?;
            let (a, b) = (&rig.pair.a, &rig.pair.b);
            let there = Remote::open(a, (b, PEER), ("there", BYTES), SHARED)?;
            let back = Remote::open(b, (a, CALLER), ("back", BYTES), SHARED)?;
            reductions(bench, [(&there, first), (&back, second)])
        })
    } else if name.starts_with("all-to-one") {
        bench.with_rig_for_one(PROFILE, |bench, rig| {
            rig.set_rate(GIGABIT)?;
            let (a, b) = (&rig.pair.a, &rig.pair.b);
            let [one, other] =
                ["one", "other"].map(|name| Remote::open(a, (b, PEER), (name, BYTES), SHARED));
            reductions(bench, [(&one?, second), (&other?, second)])
        })
    } else {
        bench.with_rig_for_one(PROFILE, |bench, rig| {
            rig.set_rate(if name.ends_with("fast") { FAST } else { GIGABIT })?;
            redistribution(bench, rig, second)
        })
    };
    machine::unpin()?;
    let rounds = rounds?;
    let found = rounds.all_ratio(0, 1)?;
    let best = rounds.best_of_all(2..rounds.names.len(), Better::Smaller)?;
    let told = |arm: usize| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e3);
    let note = format!(
        "auto {:.1} ms, vectorised {:.1} ms, fixed {} {:.1} ms",
        told(0),
        told(1),
        rounds.names[best],
        told(best)
    );
    let bar = Bar::AtMost(NEVER_WORSE_BAR);
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
        .with_arms(&rounds, Unit::Seconds))
}

/// Reductions with computation that takes as long as their bytes take an idle link.
fn reductions(bench: &mut Bench, remotes: [(&Remote, usize); 2]) -> Result<Rounds, Failure> {
    let [one, other] = remotes.map(|(remote, cpu)| {
        machine::pin(cpu)?;
        let it = Loop::new(remote, (Kernel::Reduction, BYTES), 1.0 / GIGABIT as f64)?;
        Ok::<_, Failure>(Process { it, cpu })
    });
    compare(bench, &mut [one?, other?])
}

/// A redistribution, in which the computation moves the received bytes to their places.
fn redistribution(bench: &mut Bench, rig: &Rig, cpu: usize) -> Result<Rounds, Failure> {
    let (a, b) = (&rig.pair.a, (&rig.pair.b, PEER));
    let remote = Remote::open(a, b, ("grid", BYTES), WaitPolicy::Latency)?;
    machine::pin(cpu)?;
    let it = Loop::new(&remote, (Kernel::Redistribution, BYTES), 0.0)?;
    compare(bench, &mut [Process { it, cpu }])
}
