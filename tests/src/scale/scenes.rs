//! What is done with very many nodes, and what that shows.

use std::collections::VecDeque;

use piped_core::access::OpenKind;
use piped_core::limits::{LANE_REST_TIME, REPLICAS_MAX};
use piped_core::link::Dialling;
use piped_core::request::Class;
use piped_core::units::Nanos;
use piped_sim::Notice;
use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::jobs::Job;
use super::layout::Layout;
use super::load::{Load, work_off};
use super::machine::Options;
use super::member::DEPTH;
use super::world::World;

/// All connections of a world that nobody disturbs are up after so long, or never.
const LIMIT: Nanos = Nanos::from_millis(300_000);

/// Blocks that each node reads of the first one's file, or writes into its memory.
const BLOCKS: u64 = 8;

/// Blocks of a request of those that read a file.
const BLOCKS_AT_ONCE: u64 = 4;

/// Blocks of a request for a file that several nodes have, and how many such requests follow each
/// other.
const BLOCKS_OF_ALL: u64 = 64;
const READS_OF_ALL: u64 = 48;

/// Clients on each node of a load that goes on, and how long each thinks.
const CLIENTS: usize = 2;
const PAUSE: Nanos = Nanos::from_millis(200);

/// Time between the disturbances of a scene, before the first and after the last.
const REST: Nanos = Nanos::from_millis(1_000);

/// Daemons that are restarted at once in turn.
const AT_ONCE: usize = 5;

/// How long a daemon that is restarted is down.
const DOWN: Nanos = Nanos::from_millis(100);

/// How long a network is divided: its kernels give connections up meanwhile, and requests do not
/// reach their deadlines.
const DIVIDED: Nanos = Nanos::from_millis(17_000);

/// How long a source is away.
const AWAY: Nanos = Nanos::from_millis(5_000);

/// Each node with a number that this divides is restarted while the source is away; each second one
/// of these moves.
const RESTARTED: usize = 10;

/// Something that is done with very many nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scene {
    /// Each node gets a block of the memory of each other one.
    AllToAll,
    /// All nodes read a file of one.
    Broadcast,
    /// All nodes put blocks into the memory of one.
    Incast,
    /// One node reads a file that up to eight others have, on disks of different speed.
    Replicas,
    /// Each daemon in turn is killed and started, while clients read files.
    Restarts,
    /// The network falls into halves and becomes one again, while clients read files.
    Partition,
    /// What says where nodes are is away, while some restart and clients read files.
    Discovery,
}

impl Scene {
    /// All scenes, in the order of tables.
    pub const ALL: [Self; 7] = [
        Self::AllToAll,
        Self::Broadcast,
        Self::Incast,
        Self::Replicas,
        Self::Restarts,
        Self::Partition,
        Self::Discovery,
    ];

    /// The name of a scene in tables and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all-to-all",
            Self::Broadcast => "broadcast",
            Self::Incast => "incast",
            Self::Replicas => "replicas",
            Self::Restarts => "restarts",
            Self::Partition => "partition",
            Self::Discovery => "discovery",
        }
    }

    /// Whether the load goes on while nodes are disturbed; otherwise it is worked off.
    #[must_use]
    pub const fn is_disturbed(self) -> bool {
        matches!(self, Self::Restarts | Self::Partition | Self::Discovery)
    }

    /// Plays the scene to its end.
    ///
    /// # Errors
    /// A daemon would not start so, or something does not end.
    ///
    /// # Panics
    /// If a promise is broken.
    pub fn play(self, options: Options) -> Result<Figures, String> {
        match self {
            Self::AllToAll => all_to_all(options),
            Self::Broadcast => broadcast(options),
            Self::Incast => incast(options),
            Self::Replicas => replicas(options),
            Self::Restarts => restarts(options),
            Self::Partition => partition(options),
            Self::Discovery => discovery(options),
        }
    }
}

/// What nodes at rest have had to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peers {
    /// A source told where they are, and nobody has asked them for anything: there are no
    /// connections.
    Found,
    /// All connections are up, and nothing was asked for.
    Connected,
    /// Each node has read a block of each other one by both connections, some time ago.
    Used,
}

impl Peers {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 3] = [Self::Found, Self::Connected, Self::Used];

    /// The word for them in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Connected => "connected",
            Self::Used => "used",
        }
    }
}

/// Nodes that do nothing now: what their peers alone cost.
///
/// # Errors
/// A daemon would not start so, not all connections come up, or some request does not end.
pub fn idle(options: Options, peers: Peers) -> Result<Figures, String> {
    let layout = Layout::mesh(&options, OpenKind::Region);
    let (mut world, figures) = match peers {
        Peers::Found => {
            let layout = layout.discovered(Dialling::Used);
            let mut world = World::new(options, layout)?;
            (0..options.nodes).for_each(|node| world.tell(node, true));
            let (nodes, asked) = (options.nodes, options.asked());
            (world, Figures { nodes, asked, ..Figures::default() })
        }
        Peers::Connected => begun(options, layout)?,
        Peers::Used => {
            let (mut world, mut figures) = opened(options, layout)?;
            let lists = reads(&options, &world, &[Class::Latency, Class::Bulk]);
            work_off(&mut world, lists, DEPTH as usize, &mut figures)?;
            (world, figures)
        }
    };
    let until = world.now() + LANE_REST_TIME + LANE_REST_TIME;
    world.run(until);
    Ok(ended(world, figures))
}

/// The first node opens, reads and closes a block of each other one, one after the other. A source
/// tells where all of them are.
///
/// # Errors
/// A daemon would not start so, or something does not end.
pub fn tour(options: Options) -> Result<Figures, String> {
    let layout = Layout::fan(&options, OpenKind::Region, options.block, options.block);
    let mut world = World::new(options, layout.discovered(Dialling::Used))?;
    world.tell(0, true);
    let (begun, asked) = (world.now(), options.asked());
    let mut figures = Figures { nodes: options.nodes, asked, ..Figures::default() };
    for other in world.layout().asks(0).to_vec() {
        world.open_one((0, other), LIMIT)?;
        let job = Job { other, offset: 0, bytes: options.block, writes: false, class: Class::Bulk };
        let mut lists = vec![VecDeque::new(); options.nodes];
        lists[0].push_back(job);
        work_off(&mut world, lists, 1, &mut figures)?;
        world.close(0, other);
    }
    figures.took = world.now().since(begun);
    Ok(ended(world, figures))
}

/// Reads of a block of each node that is asked, of each class.
fn reads(options: &Options, world: &World, classes: &[Class]) -> Vec<VecDeque<Job>> {
    let bytes = options.block;
    let get = |other: usize| {
        classes.iter().map(move |&class| Job { other, offset: 0, bytes, writes: false, class })
    };
    let gets = |node: usize| world.layout().asks(node).iter().flat_map(|&other| get(other));
    (0..options.nodes).map(|node| gets(node).collect()).collect()
}

/// A world whose connections are up.
fn begun(options: Options, layout: Layout) -> Result<(World, Figures), String> {
    let mut world = World::new(options, layout)?;
    (0..options.nodes).for_each(|node| world.tell(node, true));
    let up = world.run_until_whole(LIMIT);
    let up = up.ok_or_else(|| format!("not all connections are up after {} s", LIMIT.seconds()))?;
    let asked = (0..options.nodes).map(|node| world.layout().asks(node).len()).max();
    let (nodes, asked) = (options.nodes, asked.unwrap_or(0));
    Ok((world, Figures { nodes, asked, up, ..Figures::default() }))
}

/// A world whose connections are up, and whose clients have what they ask for open.
fn opened(options: Options, layout: Layout) -> Result<(World, Figures), String> {
    let (mut world, figures) = begun(options, layout)?;
    world.open_all(LIMIT)?;
    Ok((world, figures))
}

fn ended(world: World, mut figures: Figures) -> Figures {
    figures.events = world.events();
    figures.costs = world.costs();
    figures
}

/// How long so many bytes take on one link, from the first request on.
fn on_one_link(options: &Options, bytes: u64) -> Nanos {
    let link = options.machine.link;
    link.transmission(bytes) + link.latency + link.latency
}

fn all_to_all(options: Options) -> Result<Figures, String> {
    let layout = Layout::mesh(&options, OpenKind::Region);
    let (mut world, mut figures) = opened(options, layout)?;
    let lists = reads(&options, &world, &[Class::Bulk]);
    work_off(&mut world, lists, DEPTH as usize, &mut figures)?;
    figures.best = on_one_link(&options, options.asked() as u64 * options.block);
    Ok(ended(world, figures))
}

fn broadcast(options: Options) -> Result<Figures, String> {
    let (bytes, longest) = (BLOCKS * options.block, BLOCKS_AT_ONCE * options.block);
    let layout = Layout::star(&options, OpenKind::File, bytes, longest);
    let (mut world, mut figures) = opened(options, layout)?;
    let read = |offset| Job { other: 0, offset, bytes: longest, writes: false, class: Class::Bulk };
    let reads: VecDeque<Job> = (0..bytes).step_by(longest as usize).map(read).collect();
    let mut lists = vec![reads; options.nodes];
    lists[0].clear();
    work_off(&mut world, lists, DEPTH as usize, &mut figures)?;
    let all = (options.nodes as u64 - 1) * bytes;
    let disk = options.machine.disk;
    let read = disk.latency + disk.transmission(all);
    figures.best = on_one_link(&options, all).max(read);
    Ok(ended(world, figures))
}

fn incast(options: Options) -> Result<Figures, String> {
    let (block, each) = (options.block, BLOCKS * options.block);
    let bytes = options.nodes as u64 * each;
    let layout = Layout::star(&options, OpenKind::Region, bytes, block).into_the_first();
    let (mut world, mut figures) = opened(options, layout)?;
    let place = |node: usize| node as u64 * each;
    let put = |offset| Job { other: 0, offset, bytes: block, writes: true, class: Class::Bulk };
    let puts = |node: usize| (0..BLOCKS).map(|number| put(place(node) + number * block)).collect();
    let mut lists: Vec<VecDeque<Job>> = (0..options.nodes).map(puts).collect();
    lists[0].clear();
    work_off(&mut world, lists, DEPTH as usize, &mut figures)?;
    (1..options.nodes).for_each(|node| world.compare_written(node, place(node), each));
    figures.best = on_one_link(&options, (options.nodes as u64 - 1) * each);
    Ok(ended(world, figures))
}

/// How slow the disks of nodes are that have one file: as fast as the link, or two or six times as
/// slow.
fn slower(node: usize) -> f64 {
    [9.6, 1.6, 3.2][node % 3]
}

fn replicas(options: Options) -> Result<Figures, String> {
    let options = Options { peers: options.asked().min(REPLICAS_MAX), ..options };
    let longest = BLOCKS_OF_ALL * options.block;
    let layout = Layout::fan(&options, OpenKind::File, longest, longest).with_one_file(slower);
    let (mut world, mut figures) = opened(options, layout)?;
    world.join(0);
    let other = match world.layout().asks(0) {
        [only] => *only,
        _ => world.layout().anybody(),
    };
    let read = |_| Job { other, offset: 0, bytes: longest, writes: false, class: Class::Bulk };
    let mut lists = vec![VecDeque::new(); options.nodes];
    lists[0] = (0..READS_OF_ALL).map(read).collect();
    work_off(&mut world, lists, 1, &mut figures)?;
    // A node sends what it reads meanwhile, so the slower of disk and link counts.
    let per_byte = |node: &usize| {
        let disk = options.machine.reading(slower(*node)).nanos_per_byte;
        disk.max(options.machine.link.nanos_per_byte)
    };
    let rate: f64 = world.layout().asks(0).iter().map(|node| 1.0 / per_byte(node)).sum();
    let each = (longest as f64 / rate) as u64 + options.machine.disk.latency.0;
    figures.best = Nanos(READS_OF_ALL * (each + 2 * options.machine.link.latency.0));
    Ok(ended(world, figures))
}

/// A world of files with a load that goes on, some time after it began.
fn loaded(options: Options, layout: Layout) -> Result<(World, Load, Figures), String> {
    let (mut world, mut figures) = opened(options, layout)?;
    let about = (CLIENTS, PAUSE, options.block);
    let mut load = Load::new(&world, options.nodes, about, options.seed);
    figures.best = options.machine.connecting();
    let until = world.now() + REST;
    load.run(&mut world, until, &mut figures);
    Ok((world, load, figures))
}

/// The load ends some time after the last disturbance.
fn calmed(mut world: World, mut load: Load, mut figures: Figures) -> Result<Figures, String> {
    let until = world.now() + REST;
    load.run(&mut world, until, &mut figures);
    load.end(&mut world, &mut figures)?;
    Ok(ended(world, figures))
}

fn restarts(options: Options) -> Result<Figures, String> {
    let layout = Layout::mesh(&options, OpenKind::File);
    let (mut world, mut load, mut figures) = loaded(options, layout)?;
    let nodes: Vec<usize> = (0..options.nodes).collect();
    for some in nodes.chunks(AT_ONCE) {
        restart(some, |_| false, &mut world, (&mut load, &mut figures));
        let took = load.run_until_whole(&mut world, LIMIT, &mut figures)?;
        figures.took = figures.took.max(took);
    }
    calmed(world, load, figures)
}

/// Daemons die with their clients, and start some time later, some of them elsewhere.
fn restart(
    nodes: &[usize],
    moves: impl Fn(usize) -> bool,
    world: &mut World,
    (load, figures): (&mut Load, &mut Figures),
) {
    let now = world.now();
    for &node in nodes {
        let dropped = world.crash(node, Notice::Within(Nanos::from_millis(10)));
        figures.dropped += dropped;
        load.think(node, dropped, now);
    }
    load.run(world, now + DOWN, figures);
    for &node in nodes {
        if moves(node) {
            world.relocate(node);
        }
        world.start(node);
    }
}

fn partition(options: Options) -> Result<Figures, String> {
    let layout = Layout::mesh(&options, OpenKind::File);
    let (mut world, mut load, mut figures) = loaded(options, layout)?;
    world.divide((0..options.nodes).map(|node| node < options.nodes / 2).collect());
    let until = world.now() + DIVIDED;
    load.run(&mut world, until, &mut figures);
    world.divide(Vec::new());
    figures.took = load.run_until_whole(&mut world, LIMIT, &mut figures)?;
    calmed(world, load, figures)
}

fn discovery(options: Options) -> Result<Figures, String> {
    let layout = Layout::mesh(&options, OpenKind::File).discovered(Dialling::Always);
    let (mut world, mut load, mut figures) = loaded(options, layout)?;
    (0..options.nodes).for_each(|node| world.tell(node, false));
    let back = world.now() + AWAY;
    let some: Vec<usize> = (0..options.nodes).step_by(RESTARTED).collect();
    let moves = |node| node % (2 * RESTARTED) == 0;
    restart(&some, moves, &mut world, (&mut load, &mut figures));
    some.iter().for_each(|&node| world.tell(node, false));
    let until = back.max(world.now());
    load.run(&mut world, until, &mut figures);
    for node in 0..options.nodes {
        world.tell(node, true);
    }
    figures.took = load.run_until_whole(&mut world, LIMIT, &mut figures)?;
    calmed(world, load, figures)
}
