//! A file of another node as a block device: nbdkit with piped's plugin beside the client, against
//! servers of NBD at that node.
//!
//! The servers read the same file on the second CPU, and the client on the first speaks to them
//! over TCP. The plugin is on the client's node, with a unix socket; its daemon asks the other one.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use piped_client::OpenOptions;
use piped_core::modes::Profile;

use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nbd::{Caching, Nbd, Plugin, Served, Server};
use crate::nodes::{EXPORT, Node, PEER, profile_name, program};
use crate::outside::{is_installed, output};
use crate::raw::disk::make_file;
use crate::report::{Row, Unit};
use crate::rig::{self, GIGABIT};
use crate::rows::peers::best_in_words;
use crate::rows::{Bench, Entry, FILE_BYTES, FILE_NAME, Group, KIB, MIB};
use crate::stats::{Bar, Better, Random};
use crate::{clock, machine};

/// Rows of block devices.
pub(crate) static NBD: Group = Group { name: "nbd", rows_stand_alone: true, entries: &ENTRIES };

const ENTRIES: [Entry; 7] = [
    ("nbd-4k-1", random),
    ("nbd-4k-16", random),
    ("nbd-4k-64", random),
    ("nbd-1m", sequential),
    ("nbdcopy-1g", copy),
    ("nbd-over-client", over_client),
    ("nbd-link-p99", link),
];

const PROFILE: Profile = Profile::Balanced;

/// Time of an arm in a round: long against a scheduler's turns, with many threads on two CPUs.
const MOMENT: Duration = Duration::from_millis(200);

/// Rounds of rows that take seconds each.
const FEW_ROUNDS: u32 = 11;

/// The file that is copied as a whole.
const COPIED_NAME: &str = "copied";
const COPIED_BYTES: u64 = 1 << 30;

/// Most that the way through nbdkit may add to a read of 4 KiB.
const OVER_CLIENT: f64 = 25e-6;

fn need(servers: &[Server]) -> Result<(), Failure> {
    match servers.iter().find(|server| !is_installed(server.program())) {
        Some(Server::Nbdkit) => {
            Err(Failure::new("without nbdkit: apt-get install nbdkit nbdkit-plugin-dev"))
        }
        Some(Server::Qemu) => {
            Err(Failure::new("without qemu-storage-daemon: apt-get install qemu-utils"))
        }
        None => Ok(()),
    }
}

/// What the plugin is to serve of a node.
fn parameters(node: &Node, file: &str, class: &str) -> Vec<String> {
    vec![
        format!("{PEER}:{EXPORT}/{file}"),
        format!("socket={}", node.client_socket.display()),
        format!("class={class}"),
        "queues=64".to_owned(),
    ]
}

/// Takes what the plugin reads past the page cache out of it.
pub(super) fn make_cold(path: &std::path::Path) -> Result<(), Failure> {
    let file = std::fs::File::open(path).doing(path.display())?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).doing("fadvise")
}

/// Reads of 4 KiB at random places of a cold file, by depth: the time an operation.
fn random(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (depth, bar) = match name {
        "nbd-4k-1" => (1, 0.9),
        "nbd-4k-16" => (16, 0.8),
        _ => (64, 0.6),
    };
    compare(bench, name, (4 * KIB, depth), bar, &[Server::Nbdkit], MOMENT)
}

/// Reads of 1 MiB, one after the other.
fn sequential(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    compare(bench, name, (MIB, 1), 0.6, &[Server::Nbdkit, Server::Qemu], 2 * MOMENT)
}

fn compare(
    bench: &mut Bench,
    name: &'static str,
    (block, depth): (usize, usize),
    bar: f64,
    peers: &[Server],
    moment: Duration,
) -> Result<Row, Failure> {
    need(peers)?;
    let (client_cpu, server_cpu) = (bench.cpus.first, bench.cpus.second);
    let path = bench.file()?;
    make_cold(&path)?;
    let plugin = Plugin::build(&program("libpiped.a")?)?;
    bench.with_pair(PROFILE, |bench, pair| {
        let served = plugin.serve(name, client_cpu, &parameters(&pair.a, FILE_NAME, "latency"))?;
        let mut devices = Vec::new();
        for peer in peers {
            let device = peer.connect(&path, Caching::Cold, server_cpu)?;
            devices.push((peer.program().to_owned(), device));
        }
        devices.push(("piped".to_owned(), Nbd::dial_plugin(&served)?));
        let subject = devices.len() - 1;
        let mut arms: Vec<Arm<'_>> = Vec::new();
        for (number, (told, mut device)) in devices.into_iter().enumerate() {
            let mut random = Random::new(number as u64);
            let mut measure = move |duration| {
                machine::pin(client_cpu)?;
                let timing = device.reads((block, depth), FILE_BYTES, duration, &mut random);
                Ok::<_, Failure>(1.0 / timing.doing("nbd")?.rate())
            };
            // The estimators see disk and lane first.
            measure(5 * moment)?;
            arms.push(Arm::variant(told, move || measure(moment)));
        }
        let rounds = bench.rounds(&mut arms)?;
        let best = rounds.best_of_all(0..subject, Better::Smaller)?;
        let found = rounds.all_ratio(subject, best)?;
        let told = |arm: usize| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
        let all: Vec<String> =
            (0..=subject).map(|arm| format!("{} {:.1} us", rounds.names[arm], told(arm))).collect();
        let note = format!("an operation: {}", all.join(", "));
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, Bar::AtMost(bar), note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// `nbdcopy` of 1 GiB that no cache has, into nothing.
fn copy(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    need(&[Server::Nbdkit, Server::Qemu])?;
    if !is_installed("nbdcopy") {
        return Err(Failure::new("without nbdcopy: apt-get install libnbd-bin"));
    }
    let (client_cpu, server_cpu) = (bench.cpus.first, bench.cpus.second);
    let path = bench.data()?.join(COPIED_NAME);
    if !path.exists() {
        make_file(&path, COPIED_BYTES).doing(path.display())?;
    }
    let plugin = Plugin::build(&program("libpiped.a")?)?;
    bench.with_pair(PROFILE, |bench, pair| {
        let served = plugin.serve(name, client_cpu, &parameters(&pair.a, COPIED_NAME, "bulk"))?;
        let (_nbdkit, nbdkit) = Server::Nbdkit.serve(&path, Caching::Cold, server_cpu)?;
        let (_qemu, qemu) = Server::Qemu.serve(&path, Caching::Cold, server_cpu)?;
        let mut arms: Vec<Arm<'_>> = Vec::new();
        let uris = [("nbdkit", nbdkit), ("qemu-storage-daemon", qemu), ("piped", served.uri())];
        for (told, uri) in uris {
            let path: PathBuf = path.clone();
            arms.push(Arm::variant(told.to_owned(), move || {
                make_cold(&path)?;
                let begun = clock::now();
                let mut nbdcopy = Command::new("taskset");
                nbdcopy.args(["-c", &client_cpu.to_string(), "nbdcopy", &uri, "null:"]);
                output(&mut nbdcopy).doing("nbdcopy")?;
                Ok(begun.elapsed().as_secs_f64())
            }));
        }
        let rounds = bench.chosen(bench.rounds_at_most(FEW_ROUNDS), &mut arms)?;
        let best = rounds.best_of_all(0..2, Better::Smaller)?;
        let found = rounds.all_ratio(2, best)?;
        let note = best_in_words(&rounds, [best, 2])?;
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, Bar::AtMost(0.6), note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// What the way through nbdkit adds to a read of client-lib.
fn over_client(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    need(&[Server::Nbdkit])?;
    let client_cpu = bench.cpus.first;
    make_cold(&bench.file()?)?;
    let plugin = Plugin::build(&program("libpiped.a")?)?;
    bench.with_pair(PROFILE, |bench, pair| {
        let served = plugin.serve(name, client_cpu, &parameters(&pair.a, FILE_NAME, "latency"))?;
        let asker = Asker::connect(&pair.a, Place::BesideShard, 16 << 20)?;
        let handle = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read());
        let handle = handle.doing("open")?;
        let ask = Ask { handle: &handle, block: 4 * KIB, depth: 1 };
        let (mut asker, mut device) = (asker, Nbd::dial_plugin(&served)?);
        let mut random = Random::new(1);
        asker.reads(ask, 5 * MOMENT)?;
        let mut arms = [
            Arm::variant("client-lib".to_owned(), || Ok(asker.reads(ask, MOMENT)?.p50())),
            Arm::variant("nbdkit".to_owned(), || {
                machine::pin(client_cpu)?;
                let timing = device.reads((4 * KIB, 1), FILE_BYTES, MOMENT, &mut random);
                Ok(timing.doing("nbd")?.p50())
            }),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all(|round| Some(round.values[1]? - round.values[0]?))?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
        let note = format!(
            "p50 of 4 KiB: {:.1} us by client-lib, {:.1} us through nbdkit",
            told(0),
            told(1)
        );
        let bar = Bar::AtMost(OVER_CLIENT);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Seconds, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Time of a moment of small reads beside a reader of 1 MiB at a time, eight at once.
fn beside_bulk(small: &mut Nbd, bulk: &mut Nbd, random: &mut Random) -> Result<f64, Failure> {
    const LONG: Duration = Duration::from_millis(1000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut random = Random::new(9);
            while !stop.load(Ordering::Relaxed) {
                bulk.reads((MIB, 8), rig::BYTES, LONG / 10, &mut random)?;
            }
            Ok::<_, std::io::Error>(())
        });
        let timing = small.reads((4 * KIB, 1), rig::BYTES, LONG, random);
        stop.store(true, Ordering::Relaxed);
        reader.join().map_err(|_| Failure::new("the bulk reader broke off"))?.doing("nbd")?;
        Ok(timing.doing("nbd")?.percentile(0.99))
    })
}

/// Reads of 4 KiB over a link of 1 Gbit/s, beside bulk: the 99th percentile.
fn link(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    need(&[Server::Nbdkit])?;
    let cpus = bench.cpus;
    let plugin = Plugin::build(&program("libpiped.a")?)?;
    bench.with_rig(|bench, rig| {
        rig.set_rate(GIGABIT)?;
        let file = rig.directory().join(FILE_NAME);
        make_cold(&file)?;
        let (_server, address) = rig.serve_nbd(&file, cpus.second)?;
        let dial = || rig.at_caller(|| Nbd::dial(address));
        let (small, bulk) = (RefCell::new(dial()?), RefCell::new(dial()?));
        let serve = |class: &str| -> Result<(Served, Nbd), Failure> {
            let socket = format!("{name}-{class}");
            let served =
                plugin.serve(&socket, cpus.first, &parameters(&rig.pair.a, FILE_NAME, class))?;
            let device = Nbd::dial_plugin(&served)?;
            Ok((served, device))
        };
        let ((_latency, fast), (_bulk, large)) = (serve("latency")?, serve("bulk")?);
        let (fast, large) = (RefCell::new(fast), RefCell::new(large));
        let random = RefCell::new(Random::new(3));
        let measure = |small: &RefCell<Nbd>, bulk: &RefCell<Nbd>| {
            beside_bulk(&mut small.borrow_mut(), &mut bulk.borrow_mut(), &mut random.borrow_mut())
        };
        measure(&fast, &large)?;
        let mut arms = [
            Arm::variant("nbdkit".to_owned(), || measure(&small, &bulk)),
            Arm::variant("piped".to_owned(), || measure(&fast, &large)),
        ];
        let rounds = bench.chosen(bench.rounds_at_most(FEW_ROUNDS), &mut arms)?;
        drop(arms);
        let found = rounds.all_ratio(1, 0)?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e3);
        let note = format!("p99: nbdkit {:.2} ms, piped {:.2} ms", told(0), told(1));
        let profile = profile_name(rig::PROFILE);
        Ok(Row::judged(name, &profile, Unit::Ratio, found, Bar::AtMost(0.5), note)
            .with_arms(&rounds, Unit::Seconds))
    })
}
