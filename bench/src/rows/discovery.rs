//! How soon a node follows what says where its peers are.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use piped_admin::Admin;
use piped_config::admin::nodes::{NODES, NodeReport, Nodes};
use system_tests::keys::Key;
use system_tests::process::{Daemon, Programs};
use system_tests::servers::{Etcd, NameServer, RECORDS};

use crate::failure::{Doing as _, Failure};
use crate::nodes::program;
use crate::report::{Row, Unit};
use crate::rows::{Bench, Entry, Group};
use crate::stats::{Bar, Interval};
use crate::{clock, contest};

/// Rows of sources that come and go.
pub(crate) static DISCOVERY: Group =
    Group { name: "discovery", rows_stand_alone: true, entries: &ENTRIES };

const ENTRIES: [Entry; 5] = [
    ("etcd-changes", etcd),
    ("etcd-returns", etcd),
    ("etcd-stood-still", etcd),
    ("etcd-flooded", etcd),
    ("dns-changes", dns),
];

/// A change is followed within this time after the etcd is there.
const ETCD_BAR: f64 = 2.0;
/// Records may be kept for so long.
const DNS_SECONDS: u32 = 3;
/// Longer than a connection is believed in that says nothing.
const STILL: Duration = Duration::from_secs(8);
const ROUNDS: u32 = 15;
const LATE: Duration = Duration::from_secs(30);
/// Names in one change of the flood: an etcd takes 128 at once.
const FLOOD_NAMES: usize = 120;
const FLOOD_THREADS: usize = 2;

/// A node that trusts a peer by its key and has no address of it. Nobody is there.
struct Scene {
    daemon: Daemon,
    admin: Admin,
    said: u16,
}

impl Scene {
    fn start(directory: &Path, table: &str) -> Result<Self, Failure> {
        let programs = Programs { piped: program("piped")?, pipectl: program("pipectl")? };
        let [own, peer] = ["alpha", "beta"].map(|name| Key::make(&programs, directory, name));
        let settings = own.security("integrity") + &peer.peer("beta", None) + table;
        let daemon = Daemon::start(&programs, directory, "alpha", &settings);
        let admin = Admin::new(&daemon.admin_socket()).doing("the admin API")?;
        Ok(Self { daemon, admin, said: 1000 })
    }

    /// An address that was not said before.
    fn next(&mut self) -> SocketAddr {
        self.said += 1;
        (Ipv4Addr::LOCALHOST, self.said).into()
    }

    /// Waits until the node has heard of the address; the time since.
    fn heard(&self, address: SocketAddr, since: Instant) -> Result<f64, Failure> {
        let address = address.to_string();
        let is_it = |it: &NodeReport| it.node == "beta" && it.address == address;
        let heard = clock::poll(LATE, || {
            let Nodes { nodes, .. } = self.admin.get(NODES).ok()?;
            nodes.iter().any(is_it).then_some(())
        });
        let took = since.elapsed().as_secs_f64();
        heard.map(|()| took).ok_or_else(|| Failure::new(format!("{address} was not heard of")))
    }

    fn cpu_seconds(&self) -> f64 {
        let pid = self.daemon.process.0.id();
        crate::raw::process_cpu_time(pid).map_or(f64::NAN, |time| time.as_secs_f64())
    }
}

fn etcd(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let directory = tempfile::tempdir()?;
    let bar = Bar::AtMost(ETCD_BAR);
    let Some(mut etcd) = Etcd::start(directory.path(), false) else {
        return Ok(Row::unchecked(name, "-", Unit::Seconds, bar, "needs etcd and etcdctl"));
    };
    let table = format!("[discovery.etcd]\nendpoints = [\"{}\"]\n", etcd.url());
    let mut scene = Scene::start(directory.path(), &table)?;
    let first = scene.next();
    etcd.say("beta", first);
    scene.heard(first, clock::now())?;
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let (begun, before) = (clock::now(), scene.cpu_seconds());
    let mut values = Vec::new();
    std::thread::scope(|scope| {
        if name == "etcd-flooded" {
            let (address, stop, changes) = (etcd.address(), &stop, &changes);
            for thread in 0..FLOOD_THREADS {
                scope.spawn(move || flood(address, thread, stop, changes));
            }
            clock::pause(Duration::from_secs(1));
        }
        let measured = (0..bench.rounds_at_most(ROUNDS)).try_for_each(|_| {
            contest::check()?;
            match name {
                "etcd-returns" => {
                    etcd.kill();
                    etcd.run();
                }
                "etcd-stood-still" => {
                    etcd.freeze(true);
                    clock::pause(STILL);
                    etcd.freeze(false);
                }
                _ => clock::pause(Duration::from_millis(300)),
            }
            let (address, since) = (scene.next(), clock::now());
            etcd.say("beta", address);
            values.push(scene.heard(address, since)?);
            Ok::<(), Failure>(())
        });
        stop.store(true, Ordering::Relaxed);
        measured
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = (scene.cpu_seconds() - before) / seconds;
    let note = match name {
        "etcd-changes" => "from a put to what `pipectl nodes` shows".to_owned(),
        "etcd-returns" => "killed and started again; from its first answer".to_owned(),
        "etcd-stood-still" => format!("for {} s; from when it goes on", STILL.as_secs()),
        _ => format!(
            "beside {:.0} changes of other keys a second; the daemon takes {:.0} % of a CPU",
            changes.load(Ordering::Relaxed) as f64 / seconds,
            100.0 * cpu
        ),
    };
    worst(name, &values, bar, &note)
}

/// Changes many keys at once, again and again.
fn flood(address: SocketAddr, thread: usize, stop: &AtomicBool, changes: &AtomicU64) {
    for round in 1_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let port = 1 + round % 60_000;
        let value = format!("{{\"address\": \"127.0.0.1:{port}\"}}");
        let names = (0..FLOOD_NAMES).map(|number| format!("flood-{thread}-{number}"));
        Etcd::put_all(address, names, &value);
        changes.fetch_add(FLOOD_NAMES as u64, Ordering::Relaxed);
    }
}

fn dns(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let directory = tempfile::tempdir()?;
    let bar = Bar::AtMost(f64::from(DNS_SECONDS) + 0.1);
    let Some(mut server) = NameServer::new() else {
        return Ok(Row::unchecked(name, "-", Unit::Seconds, bar, "needs dnsmasq"));
    };
    let servers = server.address();
    let table = format!("[discovery]\ndns = \"{RECORDS}\"\ndns_servers = [\"{servers}\"]\n");
    let mut scene = Scene::start(directory.path(), &table)?;
    let mut values = Vec::new();
    for round in 0..bench.rounds_at_most(ROUNDS) {
        contest::check()?;
        // At another moment of the time to live each time.
        clock::pause(Duration::from_millis(u64::from(round) * 370 % 3000));
        let (address, since) = (scene.next(), clock::now());
        server.run(&[("beta", address)], DNS_SECONDS);
        let took = scene.heard(address, since)?;
        // Before the first one there was no answer, and no time to live.
        if round > 0 {
            values.push(took);
        }
    }
    let note = format!("a time to live of {DNS_SECONDS} s, and 0.1 s for the question");
    worst(name, &values, bar, &note)
}

/// A row that holds if each of its values does.
fn worst(name: &str, values: &[f64], bar: Bar, note: &str) -> Result<Row, Failure> {
    let of_median = Interval::of_median(values).ok_or_else(|| Failure::new("no rounds"))?;
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    let found = Interval { low: least, high: most, ..of_median };
    let note = format!("{note}; the shortest and longest of {}", values.len());
    Ok(Row::judged(name, "-", Unit::Seconds, found, bar, note))
}
