//! Gets of another node's memory against raw request and response over TCP.

use piped_client::{Access, Handle, RegionExport};
use piped_core::modes::Profile;

use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::machine::Cpus;
use crate::nodes::{PEER, Pair, profile_name};
use crate::raw::REGION_BYTES;
use crate::report::{Row, Unit};
use crate::rows::{BEST_OF_TWO, Bench, KIB, MIB, MOMENT, floor};
use crate::stats::{Bar, Better};

/// Name of the region.
pub(crate) const NAME: &str = "bench";

/// A region at B, opened at A.
pub(crate) struct Region {
    pub(crate) asker: Asker,
    pub(crate) handle: Handle,
    /// Export that lives as long as the region is read.
    pub(crate) _export: RegionExport,
}

impl Region {
    /// Opens a region for reading.
    pub(crate) fn open(pair: &Pair) -> Result<Self, Failure> {
        Self::open_for(pair, Access::READ)
    }

    pub(crate) fn open_for(pair: &Pair, access: Access) -> Result<Self, Failure> {
        let owner = Asker::connect(&pair.b, Place::BesideShard, REGION_BYTES as u64)?;
        let mut buffer = owner.client.allocate(REGION_BYTES).doing("allocate")?;
        buffer.as_mut_slice().fill(0x5a);
        let export = owner.client.export_region(NAME, buffer, access).doing("export")?;
        let asker = Asker::connect(&pair.a, Place::BesideShard, 16 << 20)?;
        let handle = open_at(&asker, access)?;
        Ok(Self { asker, handle, _export: export })
    }
}

/// Opens the region for one more session.
pub(crate) fn open_at(asker: &Asker, access: Access) -> Result<Handle, Failure> {
    asker.client.open_region(Some(PEER), NAME, access).doing("open")
}

pub(super) fn latency(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (profile, bar) = if name.ends_with("latency") {
        (Profile::Latency, Bar::AtMost(1.2))
    } else {
        (Profile::Balanced, Bar::AtMost(2.0))
    };
    let (block, check) =
        if name.contains("64k") { (64 * KIB, "check-net-64k") } else { (4 * KIB, "check-net-4k") };
    let cpus = bench.cpus;
    bench.with_both(profile, |bench, server, pair| {
        let mut region = Region::open(pair)?;
        let mut arms = floor::net(server, cpus, floor::get_shape(block), MOMENT);
        let subject = arms.len();
        let ask = Ask { handle: &region.handle, block, depth: 1 };
        let asker = &mut region.asker;
        arms.push(Arm::subject("piped", move || Ok(asker.reads(ask, MOMENT)?.p50())));
        let rounds = bench.rounds(&mut arms)?;
        let best = rounds.best(0..subject, Better::Smaller)?;
        let found = rounds.ratio(subject, best)?;
        let told = |arm| Ok::<_, Failure>(floor::in_words(rounds.value(arm)?.median));
        // Each way is at its best, because piped could not help the losses of the other.
        let ways = [0..subject / 2, subject / 2..subject].map(|way| {
            let best = rounds.best(way, Better::Smaller)?;
            Ok::<_, Failure>(format!("{} ({})", told(best)?, rounds.names[best]))
        });
        let [ring, sockets] = ways;
        let note = format!("raw {}, {}; piped {}", ring?, sockets?, told(subject)?);
        let row = Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds);
        Ok(bench.judged(row, &[check]))
    })
}

/// Throughput of gets. A floor may choose its CPUs, so an operator of piped may, too: a shard for
/// each node that spins on a CPU of its own, or both on one CPU, where neither spins and the data
/// stays in its cache.
pub(super) fn throughput(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let depth = if name.ends_with('4') { 4 } else { 1 };
    let cpus = bench.cpus;
    let one_cpu = Cpus { second: cpus.first, first: cpus.first };
    let data = bench.data()?;
    let beside = Pair::start(Profile::Throughput, one_cpu, &data)?;
    bench.with_both(Profile::Latency, |bench, server, pair| {
        let mut apart = Region::open(pair)?;
        let mut beside = Region::open(&beside)?;
        let rate = (floor::rate as floor::Figure, Better::Larger);
        let mut arms = floor::net_best_chunks(bench, server, (MIB, depth), rate)?;
        let floors = arms.len();
        for (place, region) in
            [("latency, two CPUs", &mut apart), ("throughput, same CPU", &mut beside)]
        {
            let Region { asker, handle, .. } = region;
            let ask = Ask { handle, block: MIB, depth };
            let measure = move || Ok(asker.reads(ask, MOMENT)?.rate());
            arms.push(Arm::variant(format!("piped, {place}"), measure));
        }
        let all = arms.len();
        let rounds = bench.rounds(&mut arms)?;
        let best = rounds.best(0..floors, Better::Larger)?;
        let subject = rounds.best(floors..all, Better::Larger)?;
        let found = rounds.ratio(subject, best)?;
        let note = format!(
            "raw {:.0} MiB/s ({}), {:.0} MiB/s ({})",
            rounds.value(best)?.median,
            rounds.names[best],
            rounds.value(subject)?.median,
            rounds.names[subject]
        );
        let bar = Bar::AtLeast(0.9);
        let row = Row::judged(name, BEST_OF_TWO, Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::PerSecond);
        Ok(bench.judged(row, &["check-net-1m"]))
    })
}
