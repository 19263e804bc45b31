//! Disks whose latency differs from read to read: what plans that know of it are worth.
//!
//! The disk is real, read around the page cache, and slowed by a dial whose latencies differ. The
//! plan of means is what the daemon itself makes of the same dial without a spread: as many
//! fragments, of one size.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use piped_client::{Class, Handle, OpenOptions};
use piped_config::admin::dials::DialChange;
use piped_core::modes::PlannerMode;
use piped_core::spread::LatencySpread;

use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nodes::{EXPORT, PEER, Pair, Sites, disk_stage, free_address, profile_name};
use crate::raw::Timing;
use crate::report::{Row, Unit};
use crate::rig::PROFILE;
use crate::rows::{Bench, FILE_NAME, KIB};
use crate::stats::Bar;

const BLOCK: usize = 64 * KIB;
/// Smallest unit of fragments.
const UNIT: usize = 4 * KIB;

/// Costs of the dial: a latency that outweighs what else is in the way, and a bandwidth at disk and
/// wire (250 MB/s) for which a transfer is worth cutting.
const LATENCY_NS: u64 = 300_000;
const PER_BYTE_PS: u64 = 4_000;

/// Two thousand reads, of which twenty are beyond the p99.
const MOMENT: Duration = Duration::from_millis(1_200);
/// Reads until the daemon knows the dial; and after a switch, whose first reads meet old plans.
const WARM: Duration = Duration::from_secs(6);
const SWITCHED: Duration = Duration::from_millis(50);
/// Reads that are asked how they were cut.
const EXPLANATIONS: usize = 31;

/// What p99 and mean may be of those of the plan of means.
const P99_BAR: f64 = 0.85;
const MEAN_BAR: f64 = 1.01;

/// Two daemons, and a client of A that waits for reads of B's file.
struct Scene {
    pair: Pair,
    asker: RefCell<Asker>,
    handle: Handle,
    /// The disk's reads, as a dial names them.
    disk: String,
}

impl Scene {
    fn start(bench: &mut Bench) -> Result<Self, Failure> {
        let data = bench.data()?;
        let settings = String::from("[planner]\nallow_dials = true\n");
        let sites = Sites { listen: free_address()?, settings, ..Sites::default() };
        let pair = Pair::start_at(&sites, PROFILE, bench.cpus, &data)?;
        let asker = Asker::connect_as(Class::Latency, &pair.a, Place::BesideShard, 16 << 20)?;
        let open = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read());
        let handle = open.doing("open")?;
        let disk = disk_stage(&data, "read")?;
        let wire = DialChange {
            stage: format!("net:{PEER}"),
            per_byte_ps: PER_BYTE_PS,
            ..DialChange::default()
        };
        pair.a.admin.dial(&wire)?;
        Ok(Self { pair, asker: RefCell::new(asker), handle, disk })
    }

    /// Slows the disk so from now on, and has the planner see it.
    fn dial(&self, spread: LatencySpread) -> Result<(), Failure> {
        self.pair.b.admin.dial(&DialChange {
            stage: self.disk.clone(),
            latency_ns: LATENCY_NS,
            per_byte_ps: PER_BYTE_PS,
            spread,
            ..DialChange::default()
        })?;
        self.reads(PlannerMode::Auto, WARM).map(drop)
    }

    fn reads(&self, mode: PlannerMode, duration: Duration) -> Result<Timing, Failure> {
        self.pair.plan_by(mode)?;
        let ask = Ask { handle: &self.handle, block: BLOCK, depth: 1 };
        let mut asker = self.asker.borrow_mut();
        asker.reads(ask, SWITCHED)?;
        asker.reads(ask, duration)
    }

    /// Into how many fragments the daemon cuts most reads now.
    fn cut(&self) -> Result<usize, Failure> {
        let mut seen = BTreeMap::new();
        for _ in 0..EXPLANATIONS {
            self.reads(PlannerMode::Auto, Duration::from_millis(5))?;
            let told = self.pair.b.admin.explain_last()?;
            let count = told["fragments"].as_u64();
            *seen.entry(count).or_insert(0) += 1;
        }
        let most = seen.into_iter().max_by_key(|&(_, times)| times);
        let most = most.and_then(|(count, _)| count).filter(|count| *count > 0);
        most.map(|count| count as usize).ok_or_else(|| Failure::new("no read was explained"))
    }
}

fn row(
    bench: &mut Bench,
    name: &'static str,
    bar: f64,
    figure: fn(&Timing) -> f64,
) -> Result<Row, Failure> {
    let spread = match name.contains("stalls") {
        true => LatencySpread { cv: 0.0, stalls: 0.005, times: 50.0 },
        false => LatencySpread { cv: 1.0, ..LatencySpread::NONE },
    };
    let scene = Scene::start(bench)?;
    scene.dial(LatencySpread::NONE)?;
    let count = scene.cut()?;
    if count < 2 {
        return Err(Failure::new("the plan of means is one fragment, so that there is no other"));
    }
    let means = PlannerMode::Fixed((BLOCK.div_ceil(count).next_multiple_of(UNIT)) as u32);
    scene.dial(spread)?;
    let measure = |mode| Ok(figure(&scene.reads(mode, MOMENT)?));
    let mut arms = [
        Arm::variant("auto".to_owned(), || measure(PlannerMode::Auto)),
        Arm::variant(means.to_string(), || measure(means)),
    ];
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    let found = rounds.all_ratio(0, 1)?;
    let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e3);
    let note = format!(
        "{:.3} ms, {:.3} ms with the plan of means, {means} ({count} fragments); auto has {}",
        told(0),
        told(1),
        scene.cut()?,
    );
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, Bar::AtMost(bar), note)
        .with_arms(&rounds, Unit::Seconds))
}

pub(super) fn p99(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    row(bench, name, P99_BAR, |timing| timing.percentile(0.99))
}

pub(super) fn mean(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    // One after the other.
    row(bench, name, MEAN_BAR, |timing| 1.0 / timing.rate())
}
