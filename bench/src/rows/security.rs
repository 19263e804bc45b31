//! Cost of authenticated and encrypted lanes, and the effect of strangers on trusted peers.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use piped_client::{Access, Client, Handle, OpenOptions, RegionExport};
use piped_config::{NodeKey, PublicKey};
use piped_core::modes::Profile;

use crate::contest::{self, Arm};
use crate::failure::{Doing as _, Failure};
use crate::flood::{self, Flood, Nonsense, Sink};
use crate::load::{Ask, Asker, Place};
use crate::machine::Cpus;
use crate::nodes::{EXPORT, Node, PEER, await_lanes, free_address, profile_name, program};
use crate::report::{Row, Unit};
use crate::rows::{Bench, FILE_NAME, KIB, MIB, MOMENT};
use crate::stats::{Bar, Interval};
use crate::{clock, rig};

const PROFILE: Profile = Profile::Balanced;

/// Largest ratio of integrity to plain.
const INTEGRITY_BAR: f64 = 1.10;

/// Largest ratio for peers while strangers come, against strangers that go to another program.
const FLOOD_BAR: f64 = 1.5;

/// Largest growth of a daemon while they come: the reserve of an allocator, and no more.
const GROWTH_BAR: u64 = MIB as u64;

/// Time of strangers in each measurement, and the number of measurements.
const FLOOD_TIME: Duration = Duration::from_secs(10);
const FLOODS: u32 = 7;

/// Address outside loopback, so that no lane is plain there.
const ADDRESS: &str = "10.77.0.1";
const PORTS: [u16; 2] = [7440, 7441];

/// Long against the caches, as in the other rows.
const REGION_BYTES: usize = 64 * MIB;

/// A node that asks, its client, and its open region.
struct Reader {
    asker: RefCell<Asker>,
    region: Handle,
    file: Handle,
    _node: Node,
}

impl Reader {
    fn p50(&self, what: What) -> Result<f64, Failure> {
        let (handle, block) = match what {
            What::Get4k => (&self.region, 4 * KIB),
            What::Read1m => (&self.file, MIB),
        };
        let ask = Ask { handle, block, depth: 1 };
        Ok(self.asker.borrow_mut().reads(ask, MOMENT)?.p50())
    }
}

#[derive(Clone, Copy)]
enum What {
    Get4k,
    Read1m,
}

/// One node that serves, and others that ask it, each in its own way. They are dropped in this
/// order.
struct Scene {
    readers: Vec<Reader>,
    server: Node,
    _export: RegionExport,
    _owner: Client,
    _directory: tempfile::TempDir,
}

/// Protection of a node that asks; none without any.
type Mode = Option<&'static str>;

impl Scene {
    /// Starts the node that serves on the second CPU, those that ask on the first.
    fn start(
        cpus: Cpus,
        data: &Path,
        listen: SocketAddr,
        namespace: Option<&Path>,
        modes: &[Mode],
    ) -> Result<Self, Failure> {
        let piped = program("piped")?;
        let directory = tempfile::Builder::new().prefix("piped-bench-").tempdir()?;
        let place = |name: &str| (directory.path().join(name), namespace);
        let key = |name: &str| key(directory.path(), name);
        let (server_key, served) = key("server")?;
        let mut trusted = String::new();
        let mut askers = Vec::new();
        for mode in modes {
            let name = mode.unwrap_or("plain");
            let mut settings =
                format!("[node]\nname = {name:?}\n[peers.{PEER}]\naddress = \"{listen}\"\n");
            if let Some(mode) = mode {
                let (file, public) = key(name)?;
                trusted += &format!("[peers.{name}]\nkey = \"{public}\"\n");
                settings += &format!(
                    "key = \"{served}\"\n[security]\nmode = {mode:?}\nkey_file = {file:?}\n"
                );
            }
            askers.push((name, settings));
        }
        let settings = format!(
            "[node]\nname = \"{PEER}\"\n[listen]\naddress = \"{listen}\"\nallow_plain = \
             [\"{}/32\"]\n[security]\nkey_file = {server_key:?}\n[exports.{EXPORT}]\npath = \
             {data:?}\n{trusted}",
            listen.ip()
        );
        let server = Node::start(&piped, place("b"), PROFILE, cpus.second, &settings)?;
        let owner = Asker::connect(&server, Place::BesideShard, REGION_BYTES as u64)?.client;
        let mut buffer = owner.allocate(REGION_BYTES).doing("allocate")?;
        buffer.as_mut_slice().fill(0x5a);
        let export = owner.export_region("bench", buffer, Access::READ).doing("export")?;
        let mut readers = Vec::new();
        for (name, settings) in askers {
            let mut node = Node::start(&piped, place(name), PROFILE, cpus.first, &settings)?;
            await_lanes(&mut node)?;
            let asker = Asker::connect(&node, Place::BesideShard, 16 << 20)?;
            let region =
                asker.client.open_region(Some(PEER), "bench", Access::READ).doing("open")?;
            let file = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read());
            readers.push(Reader {
                asker: RefCell::new(asker),
                region,
                file: file.doing("open")?,
                _node: node,
            });
        }
        Ok(Self { readers, server, _export: export, _owner: owner, _directory: directory })
    }
}

fn key(directory: &Path, name: &str) -> Result<(PathBuf, PublicKey), Failure> {
    let file = directory.join(format!("{name}.key"));
    let key = NodeKey::generate()?;
    key.write(&file, None).doing("a key")?;
    Ok((file, key.public()))
}

/// Sealed lanes against plain ones: the same node serves both, and the same client asks both in
/// turn.
pub(super) fn sealed(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let what = if name.ends_with("4k") { What::Get4k } else { What::Read1m };
    let mode = if name.starts_with("integrity") { "integrity" } else { "encrypted" };
    let (data, listen) = (bench.data()?, free_address()?);
    let scene = Scene::start(bench.cpus, &data, listen, None, &[None, Some(mode)])?;
    // Estimators see their lanes before anything counts.
    for reader in &scene.readers {
        for _ in 0..10 {
            reader.p50(what)?;
        }
    }
    let mut arms: Vec<Arm<'_>> = ["plain", mode]
        .into_iter()
        .zip(&scene.readers)
        .map(|(name, reader)| Arm::variant(name.to_owned(), || reader.p50(what)))
        .collect();
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    let found = rounds.all_ratio(1, 0)?;
    let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
    let note = format!("p50: {:.1} us, plain {:.1} us", told(1), told(0));
    let profile = profile_name(PROFILE);
    let row = match mode {
        "integrity" => {
            Row::judged(name, &profile, Unit::Ratio, found, Bar::AtMost(INTEGRITY_BAR), note)
        }
        _ => Row::reported(name, &profile, Unit::Ratio, found, note),
    };
    Ok(row.with_arms(&rounds, Unit::Seconds))
}

/// Strangers that attack the node, and a sink that they go to in every other measurement.
struct Siege {
    scene: Scene,
    namespace: piped_netns::Namespace,
    _sink: Sink,
}

impl Siege {
    fn begin(bench: &mut Bench) -> Result<Self, Failure> {
        let namespace = rig::closed_network("siege")?;
        namespace.ip(&["address", "add", &format!("{ADDRESS}/32"), "dev", "lo"])?;
        let [door, sink] = targets();
        let data = bench.data()?;
        let modes = [Some("integrity")];
        let path = namespace.path();
        let scene = Scene::start(bench.cpus, &data, door, Some(&path), &modes)?;
        let sink = Sink::start(&path, sink)?;
        Ok(Self { scene, namespace, _sink: sink })
    }

    /// The p99 of the trusted node's gets while strangers come, and the number of strangers in a
    /// second.
    fn p99(&self, target: SocketAddr, nonsense: Nonsense) -> Result<(f64, f64), Failure> {
        let reader = &self.scene.readers[0];
        let ask = Ask { handle: &reader.region, block: 4 * KIB, depth: 1 };
        let flood = Flood::start(&self.namespace.path(), target, nonsense);
        let begun = clock::now();
        let timing = reader.asker.borrow_mut().reads(ask, FLOOD_TIME)?;
        let rate = flood.made() as f64 / begun.elapsed().as_secs_f64();
        flood.end()?;
        contest::check()?;
        Ok((timing.percentile(0.99), rate))
    }
}

/// Addresses of the node and the sink.
fn targets() -> [SocketAddr; 2] {
    PORTS.map(|port| SocketAddr::new(ADDRESS.parse().expect("an address"), port))
}

/// Malformed handshakes, or frames, of an unauthenticated peer.
pub(super) fn flood(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let nonsense = if name.contains("frames") { Nonsense::Frames } else { Nonsense::Handshakes };
    let siege = Siege::begin(bench)?;
    let rates = RefCell::new(Vec::new());
    let [door, sink] = targets();
    let measure = |target| {
        let (p99, rate) = siege.p99(target, nonsense)?;
        rates.borrow_mut().push(rate);
        Ok(p99)
    };
    let mut arms = [
        Arm::variant("sink".to_owned(), || measure(sink)),
        Arm::variant("piped".to_owned(), || measure(door)),
    ];
    let rounds = contest::run(bench.rounds_at_most(FLOODS), &mut arms)?;
    drop(arms);
    bench.report.rounds_discarded += rounds.discarded;
    let found = rounds.all_ratio(1, 0)?;
    let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
    let slowest = rates.borrow().iter().copied().fold(f64::INFINITY, f64::min);
    let note = format!(
        "p99 of 4 KiB gets beside {} for {} s: {:.0} us, with a sink {:.0} us; at least \
         {slowest:.0} came a second",
        if nonsense == Nonsense::Frames { "malformed frames" } else { "malformed handshakes" },
        FLOOD_TIME.as_secs(),
        told(1),
        told(0),
    );
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, Bar::AtMost(FLOOD_BAR), note)
        .with_arms(&rounds, Unit::Seconds))
}

/// Growth of the daemon while they come.
pub(super) fn memory(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let siege = Siege::begin(bench)?;
    let [door, _] = targets();
    let process = siege.scene.server.pid();
    // After the first time it has all memory that it needs.
    siege.p99(door, Nonsense::Handshakes)?;
    let before = flood::resident(process)?;
    let mut came = 0.0;
    for nonsense in [Nonsense::Handshakes, Nonsense::Frames] {
        came += siege.p99(door, nonsense)?.1 * FLOOD_TIME.as_secs_f64();
    }
    let after = flood::resident(process)?;
    let found = Interval::exact(after.saturating_sub(before) as f64);
    let note = format!(
        "bytes by which the daemon grew while {came:.0} strangers came; it has {} MiB",
        after / MIB as u64
    );
    let bar = Bar::AtMost(GROWTH_BAR as f64);
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Count, found, bar, note))
}
