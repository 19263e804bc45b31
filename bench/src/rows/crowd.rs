//! Who does nothing must cost the others nothing: a get of 4 KiB beside 1000 sessions that do
//! nothing against beside one, and between nodes with 256 peers against nodes with one.
//!
//! Two pairs of daemons run at once and have their gets by turns. The one that has no turn sleeps.
//! Sessions are real ones, which have been admitted, made a request, and rest; each of the two
//! nodes has as many. Peers are real daemons on loopback, with names of their own: the node that
//! asks has connections to all of them, and all of them have connections to the node that serves.
//! They run during both arms, so what their threads take from the CPUs both arms lose.
//!
//! The counts are of instructions of the two shards for one get, which no other program disturbs.
//! They have no bar: a search in a tree of a thousand takes a few hundred instructions more than in
//! one of two, and no time that could be measured.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use piped_client::{Client, ClientBuilder, Queue};
use piped_core::modes::Profile;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::region::Region;
use super::{Bench, Entry, Group, KIB, MOMENT};
use crate::contest::{self, Arm};
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Way};
use crate::machine::{self, Cpus};
use crate::nodes::{
    Node, PEER, Pair, Sites, await_all_lanes, await_lanes, free_address, profile_name, program,
};
use crate::report::{Row, Unit};
use crate::stats::{Bar, Interval};
use crate::steps::requests;

/// What a get may take beside many, over what it takes beside one.
const BAR: Bar = Bar::AtMost(1.1);

const BLOCK: usize = 4 * KIB;
const SESSIONS: usize = 1000;
const PEERS: usize = 256;

/// Gets until the estimators know their stages.
const WARM_MOMENTS: usize = 20;

/// The least arena of a session, and its depth.
const IDLE_ARENA: u64 = 64 << 10;
const IDLE_DEPTH: u32 = 1;

/// Files of one session in one process: five of a client, seven of a daemon, and some more.
const FILES_PER_SESSION: u64 = 8;

/// Limits of all pairs: as many sessions as there may be, and staging for all connections.
const SETTINGS: &str = "[limits.global]\nsessions = 1100\nstaging = \"128MiB\"\n[limits.user]\n\
    sessions = 1100\n";

/// What a peer that does nothing has: the least.
const PEER_SETTINGS: &str = "[limits.global]\nstaging = \"4MiB\"\n";

/// Rows of many that do nothing.
pub(crate) static CROWD: Group = Group { name: "crowd", rows_stand_alone: true, entries: &ENTRIES };

const ENTRIES: [Entry; 8] = [
    ("sessions-get-4k-balanced", sessions),
    ("sessions-get-4k-latency", sessions),
    ("sessions-steps-asked", session_steps),
    ("sessions-steps-serving", session_steps),
    ("peers-get-4k-balanced", peers),
    ("peers-get-4k-latency", peers),
    ("peers-steps-asked", peer_steps),
    ("peers-steps-serving", peer_steps),
];

/// A pair of daemons, a region to get from, and who does nothing there. They end in this order.
struct Scene {
    region: RefCell<Region>,
    _idle: Vec<Idle>,
    pair: Pair,
    _peers: Vec<Node>,
    _directory: Option<tempfile::TempDir>,
}

/// A session that does nothing.
type Idle = (Client, Queue);

impl Scene {
    /// Two nodes, each with so many sessions that do nothing.
    fn with_sessions(
        data: &Path,
        profile: Profile,
        cpus: Cpus,
        count: usize,
    ) -> Result<Self, Failure> {
        let sites = sites()?;
        let pair = Pair::start_at(&sites, profile, cpus, data)?;
        let nodes = [&pair.a, &pair.b].into_iter();
        let idle = nodes.flat_map(|node| (0..count).map(|_| idle_at(node)));
        let idle = idle.collect::<Result<Vec<_>, Failure>>()?;
        Self::whole(pair, idle, Vec::new(), None)
    }

    /// Two nodes, of which one asks so many peers, and the other one is asked by as many.
    fn with_peers(
        data: &Path,
        profile: Profile,
        cpus: Cpus,
        count: usize,
    ) -> Result<Self, Failure> {
        let piped = program("piped")?;
        let directory = tempfile::Builder::new().prefix("piped-bench-").tempdir()?;
        let mut sites = sites()?;
        let port = free_address()?.port();
        let mut peers = Vec::new();
        for number in 1..count {
            contest::check()?;
            let name = format!("crowd-{number}");
            let [high, low] = (number as u16).to_be_bytes();
            let address = SocketAddr::from((Ipv4Addr::new(127, 77, high, low), port));
            let settings = format!(
                "[node]\nname = {name:?}\n[listen]\naddress = \"{address}\"\n[peers.{PEER}]\n\
                 address = \"{}\"\n{PEER_SETTINGS}",
                sites.listen
            );
            let cpu = [cpus.first, cpus.second][number % 2];
            let place = (directory.path().join(&name), None);
            let node = Node::start(&piped, place, Profile::Throughput, cpu, &settings);
            peers.push(node.map_err(|failure| failure.within(&name))?);
            sites.settings_of_a += &format!("[peers.{name}]\naddress = \"{address}\"\n");
        }
        let pair = Pair::start_at(&sites, profile, cpus, data)?;
        await_all_lanes(&pair.a, count)?;
        peers.iter_mut().try_for_each(await_lanes)?;
        Self::whole(pair, Vec::new(), peers, Some(directory))
    }

    fn whole(
        pair: Pair,
        idle: Vec<Idle>,
        peers: Vec<Node>,
        directory: Option<tempfile::TempDir>,
    ) -> Result<Self, Failure> {
        let region = RefCell::new(Region::open(&pair)?);
        let scene = Self { region, _idle: idle, pair, _peers: peers, _directory: directory };
        for _ in 0..WARM_MOMENTS {
            contest::check()?;
            scene.p50()?;
        }
        Ok(scene)
    }

    /// The median time of a get.
    fn p50(&self) -> Result<f64, Failure> {
        let Region { asker, handle, .. } = &mut *self.region.borrow_mut();
        Ok(asker.reads(Ask { handle, block: BLOCK, depth: 1 }, MOMENT)?.p50())
    }

    /// Instructions for a get, of the shard that is asked or of the one that serves.
    fn instructions(&self, is_asked: bool) -> Result<Interval, Failure> {
        let node = if is_asked { &self.pair.a } else { &self.pair.b };
        let counts = requests::instructions(node.pid(), || {
            let Region { asker, handle, .. } = &mut *self.region.borrow_mut();
            asker.one(Way::Read, handle, BLOCK).map(drop)
        })?;
        Interval::of_median(&counts).ok_or_else(|| Failure::new("no get was counted"))
    }
}

fn sites() -> Result<Sites, Failure> {
    let settings = String::from(SETTINGS);
    Ok(Sites { listen: free_address()?, settings, ..Sites::default() })
}

/// A session that has made a request, and does nothing from now on.
fn idle_at(node: &Node) -> Result<Idle, Failure> {
    contest::check()?;
    let builder = ClientBuilder::new().arena_bytes(IDLE_ARENA).depth(IDLE_DEPTH);
    let client = builder.connect(&node.client_socket).doing("connect a session")?;
    let mut queue = client.queue().doing("queue")?;
    queue.nop().doing("nop")?;
    Ok((client, queue))
}

/// Makes sure that this program and its daemons may have all files, before daemons are started.
fn allow_files() -> Result<(), Failure> {
    let needed = 2 * SESSIONS as u64 * FILES_PER_SESSION;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(needed));
    let raised = Rlimit { current: Some(needed), maximum };
    setrlimit(Resource::Nofile, raised).map_err(|error| {
        Failure::new(format!(
            "{needed} files are needed, and not allowed ({error}): raise the limit (`ulimit -n`)"
        ))
    })
}

fn profile_of(name: &str) -> Profile {
    if name.ends_with("latency") { Profile::Latency } else { Profile::Balanced }
}

type Start = fn(&Path, Profile, Cpus, usize) -> Result<Scene, Failure>;

fn sessions(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    compared(bench, name, Scene::with_sessions, (SESSIONS, "sessions"))
}

fn peers(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    compared(bench, name, Scene::with_peers, (PEERS, "peers"))
}

fn session_steps(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    counted(bench, name, Scene::with_sessions, (SESSIONS, "sessions"))
}

fn peer_steps(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    counted(bench, name, Scene::with_peers, (PEERS, "peers"))
}

/// Times of gets beside one and beside many, by turns.
fn compared(
    bench: &mut Bench,
    name: &'static str,
    start: Start,
    (many, what): (usize, &str),
) -> Result<Row, Failure> {
    allow_files()?;
    let (profile, cpus, data) = (profile_of(name), bench.cpus, bench.data()?);
    let [one, crowd] = [1, many].map(|count| start(&data, profile, cpus, count));
    let (one, crowd) = (one?, crowd?);
    let mut arms = [
        Arm::variant(format!("1 of {what}"), || one.p50()),
        Arm::variant(format!("{many} {what}"), || crowd.p50()),
    ];
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    let found = rounds.all_ratio(1, 0)?;
    let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
    let note = format!("p50: {:.1} us with {many} {what}, {:.1} us with 1", told(1), told(0));
    Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, BAR, note)
        .with_arms(&rounds, Unit::Seconds))
}

/// Instructions of a shard for a get beside one and beside many.
fn counted(
    bench: &mut Bench,
    name: &'static str,
    start: Start,
    (many, what): (usize, &str),
) -> Result<Row, Failure> {
    allow_files()?;
    let (profile, data) = (profile_of(name), bench.data()?);
    // Stepping takes all that has a part in a get on one CPU.
    let cpu = bench.cpus.first;
    let cpus = Cpus { first: cpu, second: cpu };
    let is_asked = name.ends_with("asked");
    let count = |count| start(&data, profile, cpus, count)?.instructions(is_asked);
    let (one, crowd) = (count(1)?, count(many)?);
    machine::unpin()?;
    let found = requests::unpaired(crowd, one);
    let note = format!(
        "instructions of one get: {:.0} with {many} {what}, {:.0} with 1",
        crowd.median, one.median
    );
    Ok(Row::reported(name, &profile_name(profile), Unit::Ratio, found, note))
}
