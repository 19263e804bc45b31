//! Worlds of very many nodes with disasters from a seed: what they must keep whatever happens.

use piped_core::access::OpenKind;
use piped_core::link::Dialling;
use piped_core::units::Nanos;
use piped_sim::{Notice, Random};
use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::layout::Layout;
use super::load::Load;
use super::machine::Options;
use super::world::World;

/// Disasters of a world, and the longest time between two of them.
const DISASTERS: u32 = 24;
const PAUSE_MAX: Nanos = Nanos::from_millis(1_500);

/// The longest that a daemon is down, that a network is divided, and that a clock jumps ahead.
const DOWN_MAX: Nanos = Nanos::from_millis(3_000);
const DIVIDED_MAX: Nanos = Nanos::from_millis(14_000);
const JUMP_MAX: Nanos = Nanos::from_millis(60_000);

/// Nodes that nobody disturbs any more are connected so long after.
const LIMIT: Nanos = Nanos::from_millis(60_000);

/// Clients on each node, and how long each thinks.
const CLIENTS: usize = 2;
const THINKS: Nanos = Nanos::from_millis(400);

/// The files that are read in a world with disasters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum File {
    /// Each node has one of its own.
    OfEach,
    /// All nodes have the same, which is read from all of them.
    OfAll,
}

/// What a world with disasters went through.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Churned {
    /// Figures of its load; the time is that until all connections were up again.
    pub figures: Figures,
    /// Daemons that died, and started again.
    pub restarts: u32,
    /// Networks that fell into halves.
    pub partitions: u32,
    /// Clocks that jumped ahead.
    pub jumps: u32,
    /// Connections that were cut.
    pub cuts: u32,
    /// Times that a source went away.
    pub losses: u32,
    /// Parts of reads that went on at another replica, at daemons that ran at the end.
    pub moved: u64,
}

/// Lives a world with disasters. What must hold: no byte is another one than its node has; each
/// request ends once and within its deadline; when nobody disturbs the nodes any more all are
/// connected, and everything can be read.
///
/// # Errors
/// A promise was broken.
///
/// # Panics
/// If a promise was broken, of those that are kept all the time.
pub fn churn(options: Options, file: File) -> Result<Churned, String> {
    let mut random = Random::new(options.seed ^ 0x6368_7572);
    let layout = Layout::mesh(&options, OpenKind::File).discovered(Dialling::Always);
    let layout = match file {
        File::OfEach => layout,
        File::OfAll => layout.with_one_file(|_| 1.0),
    };
    let mut world = World::new(options, layout)?;
    let mut told = Churned::default();
    told.figures.nodes = options.nodes;
    told.figures.asked = options.asked();
    (0..options.nodes).for_each(|node| world.tell(node, true));
    // Disasters begin while nodes connect.
    world.run(Nanos(random.length(1_000_000_000)));
    (0..options.nodes).for_each(|node| world.open_missing(node));
    let about = (CLIENTS, THINKS, options.block);
    let mut load = Load::new(&world, options.nodes, about, options.seed);
    let (mut down, mut healed): (Vec<(Nanos, usize)>, Option<Nanos>) = (Vec::new(), None);
    let mut is_there = true;
    let mut disasters = 0;
    let mut next = world.now();
    while disasters < DISASTERS || !down.is_empty() || healed.is_some() {
        let soonest = down.iter().map(|(at, _)| *at).chain(healed);
        let stop = soonest.chain((disasters < DISASTERS).then_some(next)).min();
        let stop = stop.unwrap_or(next).max(world.now());
        load.run(&mut world, stop, &mut told.figures);
        let now = world.now();
        if healed.is_some_and(|at| at <= now) {
            world.divide(Vec::new());
            healed = None;
        }
        for (_, node) in down.extract_if(.., |(at, _)| *at <= now) {
            if random.chance(0.2) {
                world.relocate(node);
            }
            world.start(node);
            world.tell(node, is_there);
        }
        if next > now || disasters == DISASTERS {
            continue;
        }
        (disasters, next) = (disasters + 1, now + Nanos(random.length(PAUSE_MAX.0)));
        let node = random.below(options.nodes as u64) as usize;
        match random.below(10) {
            0..=3 if world.runs(node) => {
                let notice = match random.chance(0.3) {
                    true => Notice::Silent,
                    false => Notice::Within(Nanos(random.length(100_000_000))),
                };
                let dropped = world.crash(node, notice);
                told.figures.dropped += dropped;
                load.think(node, dropped, now);
                down.push((now + Nanos(random.length(DOWN_MAX.0)), node));
                told.restarts += 1;
            }
            4 if healed.is_none() => {
                world.divide((0..options.nodes).map(|_| random.chance(0.5)).collect());
                healed = Some(now + Nanos(random.length(DIVIDED_MAX.0)));
                told.partitions += 1;
            }
            5 | 6 => {
                world.jump(node, Nanos(random.length(JUMP_MAX.0)));
                told.jumps += 1;
            }
            7 => {
                is_there = !is_there;
                (0..options.nodes).for_each(|node| world.tell(node, is_there));
                told.losses += u32::from(!is_there);
            }
            _ => {
                world.cut(&mut random);
                told.cuts += 1;
            }
        }
    }
    // From here on nobody disturbs them.
    for node in 0..options.nodes {
        world.tell(node, true);
    }
    told.figures.took = load.run_until_whole(&mut world, LIMIT, &mut told.figures)?;
    load.end(&mut world, &mut told.figures)?;
    world.open_all(LIMIT)?;
    let failed = told.figures.requests[1];
    let mut again = Load::new(&world, options.nodes, about, options.seed);
    let until = world.now() + Nanos(2 * THINKS.0);
    again.run(&mut world, until, &mut told.figures);
    again.end(&mut world, &mut told.figures)?;
    let later = told.figures.requests[1] - failed;
    if later > 0 {
        return Err(format!("{later} requests failed when nobody disturbed the nodes"));
    }
    told.moved = world.moved();
    told.figures.events = world.events();
    told.figures.costs = world.costs();
    Ok(told)
}
