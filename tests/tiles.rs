//! Tiled loops over grids of processes, with real daemons: what they compute, and what becomes of
//! them when one of them, or a node, goes.
#![forbid(unsafe_code)]

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

use piped_client::{
    Axes, Client, Grid, Schedule, TileError, TileHeight, TileOptions, TilePipeline,
};
use rustix::process::Signal;
use system_tests::process::{Daemon, Programs, Running, command, eventually, mutual, words};

/// Two nodes that know each other.
struct Nodes {
    alpha: Daemon,
    beta: Daemon,
    _directory: tempfile::TempDir,
}

/// `None`: the programs are not there.
fn nodes() -> Option<Nodes> {
    let programs = Programs::find()?;
    let directory = tempfile::tempdir().expect("a directory");
    let [alpha, beta] = mutual(&programs, directory.path());
    Some(Nodes { alpha, beta, _directory: directory })
}

impl Nodes {
    fn stencil(&self, both: bool, arguments: &[&str]) -> std::process::Command {
        let mut stencil = command(Path::new(env!("CARGO_BIN_EXE_tiled_stencil")));
        let node = |name: &str, socket: PathBuf| format!("{name}={}", socket.display());
        stencil.args(["--node", &node("alpha", self.alpha.client_socket())]);
        if both {
            stencil.args(["--node", &node("beta", self.beta.client_socket())]);
        }
        stencil.args(arguments);
        stencil
    }
}

#[test]
fn every_grid_computes_what_one_process_does_bit_for_bit() {
    let Some(nodes) = nodes() else { return };
    // Sizes that no grid divides evenly, heights that do not divide the depth.
    for both in [false, true] {
        for grid in ["1x1", "2x1", "1x2", "3x3"] {
            let size = ["--size", "10x11x301", "--heights", "auto,1,7,64,500"];
            let output = nodes.stencil(both, &[&["--grid", grid][..], &size].concat()).output();
            let output = output.expect("it runs");
            let said = words(&output);
            assert!(output.status.success(), "{grid}: {said}{}", nodes.alpha.log());
            assert!(said.contains("bit for bit"), "{grid}: {said}");
            let rows = said.lines().filter(|line| line.contains("overlapping ")).count();
            assert_eq!(rows, 10, "both schedules, five heights: {said}");
        }
    }
}

/// Processes of a loop that lasts, started one by one.
fn long_running(nodes: &Nodes, grid: &str, processes: usize) -> Vec<Running> {
    let lasts = ["--grid", grid, "--size", "12x12x20000", "--check", "no", "--repeat", "100000"];
    let heights = ["--heights", "10", "--schedule", "overlapping"];
    let start = |rank: usize| {
        let rank = rank.to_string();
        let all = [&lasts[..], &heights, &["--rank", &rank]].concat();
        Running(nodes.stencil(true, &all).spawn().expect("it starts"))
    };
    let mut all: Vec<Running> = (0..processes).map(start).collect();
    // The last one has computed something, so all are at it.
    let last = all.last_mut().expect("there are some");
    await_line(&mut last.0);
    all
}

fn await_line(child: &mut Child) {
    use std::io::Read as _;
    let mut byte = [0];
    let said = child.stdout.as_mut().expect("a pipe").read(&mut byte).expect("a pipe");
    assert_eq!(said, 1, "it ended before it began");
    // What else it says is not to stop it.
    let mut rest = child.stdout.take().expect("a pipe");
    thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
}

/// Why a process ended, which it must.
fn reason(process: &mut Running) -> String {
    use std::io::Read as _;
    let status = process.exit();
    let mut text = String::new();
    process.0.stderr.take().expect("a pipe").read_to_string(&mut text).expect("words");
    assert!(!status.success(), "its neighbour is gone: {text}");
    text
}

#[test]
fn a_killed_process_ends_all_others_and_each_says_which_neighbour_was_lost() {
    let Some(nodes) = nodes() else { return };
    let mut all = long_running(&nodes, "3x3", 9);
    all[4].signal(Signal::KILL);
    for (rank, process) in all.iter_mut().enumerate().filter(|(rank, _)| *rank != 4) {
        let reason = reason(process);
        // Not by patience: those that wait ask whether the other is there.
        assert!(reason.contains("is lost: "), "process {rank}: {reason}");
    }
    // Nothing of them stays at the daemons.
    for daemon in [&nodes.alpha, &nodes.beta] {
        eventually("the sessions are closed", || (daemon.number("sessions") == 0).then_some(()));
        assert_eq!(daemon.json(&["exports"])["regions"].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn a_killed_node_ends_the_processes_of_both() {
    let Some(nodes) = nodes() else { return };
    let mut all = long_running(&nodes, "2x1", 2);
    nodes.beta.process.signal(Signal::KILL);
    assert!(reason(&mut all[1]).contains("the daemon closed the session"));
    let other = reason(&mut all[0]);
    assert!(other.contains("(1, 0) is lost") || other.contains("(1, 0) did nothing"), "{other}");
}

fn row(at: u32) -> TileOptions {
    let grid = Grid { x: NonZeroU32::new(2).expect("not 0"), y: NonZeroU32::MIN };
    TileOptions::new("row", grid, Axes { x: at, y: 0 }).height_max(8)
}

/// Both processes of a row of two, on two nodes.
fn opened(nodes: &Nodes) -> [TilePipeline; 2] {
    let open = |daemon: &Daemon, at: u32, peer: &str| {
        let client = Client::connect(daemon.client_socket()).expect("it serves");
        let node = Some(peer.to_owned());
        TilePipeline::open(&client, row(at).patience(LATE), |_| node.clone())
    };
    thread::scope(|scope| {
        let second = scope.spawn(|| open(&nodes.beta, 1, "alpha").expect("the other one comes"));
        let first = open(&nodes.alpha, 0, "beta").expect("the other one comes");
        [first, second.join().expect("no panic")]
    })
}

const LATE: Duration = Duration::from_secs(300);
const SHORT: Duration = Duration::from_millis(300);

/// Counts on.
fn count(tile: &mut piped_client::Tile<'_>, sums: &mut Vec<u64>) {
    for (at, row) in tile.rows.clone().enumerate() {
        let before = tile.before.x.map_or(row, |edge| {
            u64::from_le_bytes(edge[at * 8..][..8].try_into().expect("8 bytes"))
        });
        sums.push(before + 1);
        if let Some(edge) = &mut tile.after.x {
            edge[at * 8..][..8].copy_from_slice(&(before + 1).to_le_bytes());
        }
    }
}

#[test]
fn borders_arrive_in_order_run_after_run_whatever_the_heights_are() {
    let Some(nodes) = nodes() else { return };
    let [mut first, mut second] = opened(&nodes);
    for (height, schedule) in [
        (TileHeight::Fixed(8), Schedule::Overlapping),
        (TileHeight::Auto, Schedule::Overlapping),
        (TileHeight::Fixed(3), Schedule::NonOverlapping),
        (TileHeight::Auto, Schedule::NonOverlapping),
        (TileHeight::Fixed(1), Schedule::Overlapping),
    ] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let (one, other) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                // What it would choose does not count: the first one's tiles say it.
                second.run(1001, TileHeight::Auto, schedule, |tile| count(tile, &mut theirs))
            });
            let one = first.run(1001, height, schedule, |tile| count(tile, &mut ours));
            (one.expect("it ends"), other.join().expect("no panic").expect("it ends"))
        });
        assert_eq!(theirs, (2..1003).collect::<Vec<u64>>());
        assert_eq!(ours, (1..1002).collect::<Vec<u64>>());
        assert_eq!((one.tiles, one.height), (other.tiles, other.height));
        if let TileHeight::Fixed(height) = height {
            assert_eq!((one.tiles, one.height), (1001_u64.div_ceil(height), height));
        }
    }
    // Nobody is after the second one.
    assert!(second.link_costs().expect("nothing to fail").is_none());
    let costs = first.link_costs().expect("it is there").expect("somebody is after it");
    assert!(costs.alone_seconds > 0.0 && costs.alone_seconds < 10.0, "{costs:?}");
    // A column without rows.
    let empty = first.run(0, TileHeight::Auto, Schedule::Overlapping, |_| panic!("no tile"));
    assert_eq!(empty.expect("nothing to fail").tiles, 0);
}

#[test]
fn a_neighbour_that_does_nothing_does_something_else_or_never_comes_is_told_apart() {
    let Some(nodes) = nodes() else { return };
    let overlapping = (TileHeight::Fixed(4), Schedule::Overlapping);
    let run = |pipeline: &mut TilePipeline, depth| {
        let (height, schedule) = overlapping;
        pipeline.run(depth, height, schedule, |_| ()).expect_err("the other one does not do it")
    };
    // It is there, and idle.
    let [mut first, mut second] = opened(&nodes);
    second.set_patience(SHORT);
    let error = run(&mut second, 100);
    assert!(matches!(error, TileError::Late { at: Axes { x: 0, y: 0 }, .. }), "{error}");
    assert!(matches!(run(&mut second, 100), TileError::Over));
    // And now its region is gone, which the other one hears when it wants to go on.
    let error = run(&mut first, 100);
    assert!(matches!(error, TileError::Neighbour { at: Axes { x: 1, y: 0 }, .. }), "{error}");
    drop((first, second));
    // It has another depth.
    let [mut first, mut second] = opened(&nodes);
    thread::scope(|scope| {
        scope.spawn(|| run(&mut first, 100));
        let error = run(&mut second, 50);
        assert!(matches!(error, TileError::Mismatch { what: "depth", .. }), "{error}");
    });
    drop((first, second));
    // It is not there at all, and neither is its place taken twice.
    let client = Client::connect(nodes.alpha.client_socket()).expect("it serves");
    let alone = TilePipeline::open(&client, row(0).patience(SHORT), |_| Some("beta".to_owned()));
    let error = alone.expect_err("nobody comes");
    assert!(matches!(error, TileError::Absent { at: Axes { x: 1, y: 0 }, .. }), "{error}");
}

#[test]
fn one_place_of_the_grid_is_one_processs() {
    let Some(nodes) = nodes() else { return };
    let [first, second] = opened(&nodes);
    let client = Client::connect(nodes.alpha.client_socket()).expect("it serves");
    let twice = TilePipeline::open(&client, row(0).patience(SHORT), |_| Some("beta".to_owned()));
    let error = twice.expect_err("its place is taken");
    assert!(matches!(error, TileError::Export(_)), "{error}");
    drop((first, second));
}
