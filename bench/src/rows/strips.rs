//! Strip mining on a shaped link: loops over another node's memory, by `auto`, by fixed strips, after one get of
//! everything, and against what no order of gets and computation can beat.
//!
//! Both daemons are on one CPU and the application has the other to itself: it is the node whose computation is to
//! overlap, and the other node's work on the same CPU would be computation of somebody else.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use piped_client::{
    Access, Buffer, Client, ClientBuilder, Handle, Queue, RegionExport, StripPolicy, StripReader,
    Strips, WaitPolicy,
};
use piped_config::Profile;
use piped_model::strip::StripModel;

use crate::clock;
use crate::contest::{Arm, Rounds};
use crate::failure::{Doing as _, Failure};
use crate::kernels::{ELEMENT, Kernel, Work, steps_for};
use crate::machine;
use crate::nodes::{PEER, Pair, profile_name};
use crate::report::{Row, Unit};
use crate::rig::GIGABIT;
use crate::rows::{Bench, KIB, MIB, MOMENT};
use crate::stats::{Bar, Better, Interval, median};

/// Of both daemons: they share a CPU, so neither may spin on it for long.
const PROFILE: Profile = Profile::Throughput;

const BEST_BAR: f64 = 1.05;
const BALANCED_BAR: f64 = 0.7;
const NEVER_WORSE_BAR: f64 = 1.02;
const BOUND_BAR: f64 = 1.10;

/// Computation on a byte, as a part of what the link takes for it.
const RATIOS: [f64; 4] = [0.25, 0.5, 1.0, 2.0];
const BALANCED: usize = 2;

/// Fixed strips of the sweep: doubling from the least to half of everything, each with so many ahead.
const STRIP_MIN: usize = 2 * KIB;
const UNROLLS: [u32; 3] = [2, 4, 8];

/// Rounds that choose which fixed strips are worth comparing, and how much slower than the best one such may look.
const CHOOSING: u32 = 5;
const WORTH: f64 = 1.08;

/// Loops of a measurement, at least, and those before it that let path and daemons settle.
const LOOPS_MIN: usize = 3;
const SETTLE: usize = 1;

/// What a kernel is timed on, and how often, while its computation is being set.
const TIMED_BYTES: usize = 256 * KIB;
const TIMINGS: usize = 7;

/// Loops before anything is measured: the daemons learn the path.
const WARM: Duration = Duration::from_millis(1500);

/// The client with its queue, and the other node's memory.
struct Remote {
    client: Client,
    queue: RefCell<Queue>,
    handle: Handle,
    _owner: Client,
    _export: RegionExport,
}

impl Remote {
    fn open(pair: &Pair, bytes: usize) -> Result<Self, Failure> {
        let connect = |socket: &std::path::Path| {
            let builder = ClientBuilder::new().arena_bytes(40 << 20).wait(WaitPolicy::Latency);
            builder.connect(socket).doing("connect")
        };
        let owner = connect(&pair.b.client_socket)?;
        let mut buffer = owner.allocate(bytes).doing("allocate")?;
        for (place, byte) in buffer.as_mut_slice().iter_mut().enumerate() {
            *byte = (place % 251) as u8;
        }
        let export = owner.export_region("strips", buffer, Access::READ).doing("export")?;
        let client = connect(&pair.a.client_socket)?;
        let handle = client.open_region(Some(PEER), "strips", Access::READ).doing("open")?;
        let mut queue = client.queue().doing("queue")?;
        queue.set_wait_policy(WaitPolicy::Latency);
        let queue = RefCell::new(queue);
        Ok(Self { client, queue, handle, _owner: owner, _export: export })
    }
}

/// A loop over so many bytes of it.
struct Loop<'a> {
    remote: &'a Remote,
    bytes: usize,
    work: RefCell<Work>,
    /// For one get of everything.
    buffer: Cell<Option<Buffer>>,
    wanted: u64,
}

impl<'a> Loop<'a> {
    /// With so much computation on a byte, in seconds.
    fn new(
        remote: &'a Remote,
        (kernel, bytes): (Kernel, usize),
        compute: f64,
    ) -> Result<Self, Failure> {
        let buffer = Cell::new(Some(remote.client.allocate(bytes).doing("allocate")?));
        let work = RefCell::new(Work::new(kernel, bytes));
        let it = Self { remote, bytes, work, buffer, wanted: 0 };
        let timed = bytes.min(TIMED_BYTES);
        let steps = steps_for(compute * timed as f64, |steps| {
            it.work.borrow_mut().set_steps(steps);
            let times: Result<Vec<f64>, _> = (0..TIMINGS).map(|_| it.computed(timed)).collect();
            median(&times?).ok_or_else(|| Failure::new("nothing was timed"))
        })?;
        it.work.borrow_mut().set_steps(steps);
        it.vectorised()?;
        let wanted = it.work.borrow().outcome();
        Ok(Self { wanted, ..it })
    }

    /// One get, in seconds.
    fn get(&self, bytes: usize) -> Result<f64, Failure> {
        let mut buffer = self.buffer.take().expect("it is here between loops");
        buffer.set_len(bytes).doing("a shorter get")?;
        let begun = clock::now();
        let (buffer, _) =
            self.remote.queue.borrow_mut().read(&self.remote.handle, 0, buffer).doing("get")?;
        let seconds = begun.elapsed().as_secs_f64();
        self.buffer.set(Some(buffer));
        Ok(seconds)
    }

    /// One get, then everything is computed.
    fn vectorised(&self) -> Result<f64, Failure> {
        let work = &mut *self.work.borrow_mut();
        work.clear();
        let begun = clock::now();
        self.get(self.bytes)?;
        let buffer = self.buffer.take().expect("it is here between loops");
        work.compute(0, buffer.as_slice());
        self.buffer.set(Some(buffer));
        Ok(begun.elapsed().as_secs_f64())
    }

    /// By strips.
    fn stripped(&self, strips: Strips) -> Result<f64, Failure> {
        let Remote { client, queue, handle, .. } = self.remote;
        let (queue, work) = (&mut *queue.borrow_mut(), &mut *self.work.borrow_mut());
        work.clear();
        let begun = clock::now();
        let all = 0..self.bytes as u64;
        let mut reader =
            StripReader::open(client, handle, all, strips.grain(ELEMENT)).doing("strips")?;
        while let Some(strip) = reader.next(queue).doing("a strip")? {
            work.compute(strip.offset(), &strip);
        }
        let seconds = begun.elapsed().as_secs_f64();
        if work.outcome() != self.wanted {
            return Err(Failure::new("the strips' outcome is another than that of one get"));
        }
        Ok(seconds)
    }

    /// The computation on bytes that have just come, in seconds: what was computed on before lies nearer.
    fn computed(&self, bytes: usize) -> Result<f64, Failure> {
        self.get(bytes)?;
        let buffer = self.buffer.take().expect("it is here between loops");
        let begun = clock::now();
        self.work.borrow_mut().compute(0, buffer.as_slice());
        let seconds = begun.elapsed().as_secs_f64();
        self.buffer.set(Some(buffer));
        Ok(seconds)
    }

    /// What a submission takes the thread, in seconds: the get's own time is not in it.
    fn issued(&self) -> Result<f64, Failure> {
        let buffer = self.buffer.take().expect("it is here between loops");
        let queue = &mut *self.remote.queue.borrow_mut();
        let begun = clock::now();
        let pending = queue.submit_read(&self.remote.handle, 0, buffer).map_err(|it| it.fault);
        let pending = pending.doing("submit")?;
        queue.flush();
        let seconds = begun.elapsed().as_secs_f64();
        self.buffer.set(Some(pending.wait(queue).doing("get")?.payload));
        Ok(seconds)
    }
}

/// The median of a moment's loops.
fn for_a_moment(one: impl Fn() -> Result<f64, Failure>, cpu: usize) -> Result<f64, Failure> {
    machine::pin(cpu)?;
    for _ in 0..SETTLE {
        one()?;
    }
    let begun = clock::now();
    let mut times = Vec::new();
    while times.len() < LOOPS_MIN || begun.elapsed() < MOMENT {
        times.push(one()?);
    }
    median(&times).ok_or_else(|| Failure::new("nothing was measured"))
}

/// What one kernel, size and computation showed.
#[derive(Debug)]
struct Scene {
    ratio: f64,
    rounds: Rounds,
    best: Interval,
    vectorised: Interval,
    bound: Interval,
    note: String,
}

/// What all computations of a kernel and size showed, kept for the rows that judge them.
#[derive(Debug, Default)]
pub(crate) struct Found(std::collections::BTreeMap<String, Rc<Vec<Scene>>>);

/// The arms in front of the sweep.
const AUTO: usize = 0;
const VECTORISED: usize = 1;
const GET: usize = 2;
const GET_QUARTER: usize = 3;
const COMPUTE: usize = 4;
const ISSUE: usize = 5;
const OTHERS: usize = 6;

/// What no order of gets and computation takes less than on a network that moves one byte after the other
/// ([`StripModel::optimal`]), by the round's own figures: the least of the model's programs, and the latency of one get.
fn bound(bytes: f64, values: &[Option<f64>]) -> Option<f64> {
    let at = |arm: usize| values[arm];
    let per_byte = (at(GET)? - at(GET_QUARTER)?) / (0.75 * bytes);
    let (issue, compute) = (at(ISSUE)?, at(COMPUTE)? / bytes);
    let latency = (at(GET)? - per_byte * bytes - issue).max(0.0);
    let model = StripModel::new(issue, per_byte, compute).ok()?;
    Some(latency + model.optimal(bytes)?.cost_seconds + compute * bytes)
}

fn scene(
    bench: &mut Bench,
    remote: &Remote,
    (kernel, bytes, ratio): (Kernel, usize, f64),
    per_byte: f64,
) -> Result<Scene, Failure> {
    let cpu = bench.cpus.second;
    machine::pin(cpu)?;
    let it = Loop::new(remote, (kernel, bytes), ratio * per_byte)?;
    let it = &it;
    let fixed = |(strip, unroll): (usize, u32)| {
        let strips = Strips::new().policy(StripPolicy::Fixed(strip)).unroll(unroll);
        let name = format!("{} KiB, {unroll} ahead", strip / KIB);
        Arm::variant(name, move || for_a_moment(|| it.stripped(strips), cpu))
    };
    let sizes = std::iter::successors(Some(STRIP_MIN), |strip| Some(strip * 2));
    let sizes = sizes.take_while(|strip| *strip <= bytes / 2 && strip * 4096 >= bytes);
    let all = sizes.flat_map(|strip| UNROLLS.map(|unroll| (strip, unroll)));
    let mut sweep: Vec<Arm<'_>> = all.map(fixed).collect();
    let chosen = bench.chosen(CHOOSING, &mut sweep)?;
    let least = chosen.best_of_all(0..sweep.len(), Better::Smaller)?;
    let looked = |arm| chosen.all_of(arm).map_or(f64::INFINITY, |found| found.median);
    let most = looked(least) * WORTH;
    let sweep = sweep.into_iter().enumerate().filter(|(arm, _)| looked(*arm) <= most);
    let auto = || for_a_moment(|| it.stripped(Strips::new()), cpu);
    let get = move |bytes| move || for_a_moment(|| it.get(bytes), cpu);
    let mut arms = vec![
        Arm::variant("auto".to_owned(), auto),
        Arm::variant("vectorised".to_owned(), || for_a_moment(|| it.vectorised(), cpu)),
        Arm::variant("get".to_owned(), get(bytes)),
        Arm::variant("get of a quarter".to_owned(), get(bytes / 4)),
        Arm::variant("computation".to_owned(), || for_a_moment(|| it.computed(bytes), cpu)),
        Arm::variant("issue".to_owned(), || for_a_moment(|| it.issued(), cpu)),
    ];
    arms.extend(sweep.map(|(_, arm)| arm));
    let rounds = bench.rounds(&mut arms)?;
    let fixed = rounds.best(OTHERS..arms.len(), Better::Smaller)?;
    drop(arms);
    let best = rounds.ratio(AUTO, fixed)?;
    let vectorised = rounds.all_ratio(AUTO, VECTORISED)?;
    let bounds =
        rounds.all(|round| Some(round.values[AUTO]? / bound(bytes as f64, &round.values)?))?;
    let micros = |arm| rounds.all_of(arm).map_or(f64::NAN, |found| found.median * 1e6);
    let note = format!(
        "K = {ratio} G: auto {:.0} us, {} {:.0} us, vectorised {:.0} us, get {:.0} us, computation {:.0} us, issue {:.1} us",
        micros(AUTO),
        rounds.names[fixed],
        micros(fixed),
        micros(VECTORISED),
        micros(GET),
        micros(COMPUTE),
        micros(ISSUE),
    );
    eprintln!(
        "bench: {note}; best {:.3}, vectorised {:.3}, bound {:.3}",
        best.median, vectorised.median, bounds.median
    );
    Ok(Scene { ratio, rounds, best, vectorised, bound: bounds, note })
}

/// All computations of a row's kernel and size, measured once for all of its rows.
fn scenes(bench: &mut Bench, kernel: Kernel, bytes: usize) -> Result<Rc<Vec<Scene>>, Failure> {
    let name = format!("{kernel:?} {bytes}");
    if let Some(found) = bench.strips.0.get(&name) {
        return Ok(Rc::clone(found));
    }
    let found = bench.with_rig_for_one(PROFILE, |bench, rig| {
        rig.set_rate(GIGABIT)?;
        let remote = Remote::open(&rig.pair, 8 * MIB)?;
        machine::pin(bench.cpus.second)?;
        let probe = Loop::new(&remote, (kernel, bytes), 0.0)?;
        let begun = clock::now();
        while begun.elapsed() < WARM {
            probe.stripped(Strips::new())?;
            probe.vectorised()?;
        }
        let wire = 1.0 / GIGABIT as f64;
        let all =
            RATIOS.into_iter().map(|ratio| scene(bench, &remote, (kernel, bytes, ratio), wire));
        all.collect::<Result<Vec<_>, _>>()
    });
    machine::unpin()?;
    let found = Rc::new(found?);
    bench.strips.0.insert(name, Rc::clone(&found));
    Ok(found)
}

/// What a row's name says: `reduction-64k-best`.
pub(super) fn row(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let kernel =
        if name.starts_with("reduction") { Kernel::Reduction } else { Kernel::VectorToVector };
    let bytes = match name.split('-').nth(1).unwrap_or_default() {
        "64k" => 64 * KIB,
        "512k" => 512 * KIB,
        _ => 8 * MIB,
    };
    let scenes = scenes(bench, kernel, bytes)?;
    let (of, bar): (fn(&Scene) -> Interval, f64) = match name.rsplit('-').next() {
        Some("best") => (|scene| scene.best, BEST_BAR),
        Some("bound") => (|scene| scene.bound, BOUND_BAR),
        Some("balanced") => (|scene| scene.vectorised, BALANCED_BAR),
        _ => (|scene| scene.vectorised, NEVER_WORSE_BAR),
    };
    let judged: Vec<&Scene> = match name.ends_with("balanced") {
        true => scenes.iter().filter(|scene| scene.ratio == RATIOS[BALANCED]).collect(),
        false => scenes.iter().collect(),
    };
    // The one that is nearest to the bar, or farthest beyond.
    let worst = judged.iter().max_by(|one, other| of(one).high.total_cmp(&of(other).high));
    let worst = worst.ok_or_else(|| Failure::new("nothing was measured"))?;
    let figures: Vec<String> =
        judged.iter().map(|scene| format!("{:.2}", of(scene).median)).collect();
    let note = format!("{} for K of {RATIOS:?} G; the worst: {}", figures.join(", "), worst.note);
    let found = of(worst);
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, Bar::AtMost(bar), note)
        .with_arms(&worst.rounds, Unit::Seconds))
}
