//! Random operations on files and names by two real daemons, here and at a peer, against the same
//! operations on a directory by plain system calls.
//!
//! Each campaign has 20 000 operations, of which some are under way when a daemon is killed.
//! `PIPED_NAMES_OPERATIONS=1000000 cargo test --release -p system-tests --test names` makes so many
//! in all, each 20 000 from an empty directory on, with the next seed.
//! `PIPED_CAMPAIGN_SEED=N` repeats one; a failure prints its seed and the last operations.
#![forbid(unsafe_code)]

mod invent;
mod mirror;
mod piped;

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;

use piped_sim::Random;
use rustix::process::Signal;
use system_tests::process::{Daemon, Programs, free_address};

use self::invent::{Inventor, Op};
use self::mirror::{Mirror, Told, Tree};
use self::piped::{Ended, Piped};

/// Operations of a campaign.
const OPERATIONS: u64 = 20_000;
/// One of so many is under way when a daemon is killed.
const KILLED: f64 = 1.0 / 1_500.0;
/// The whole trees are compared after so many.
const COMPARED: u64 = 400;
/// Operations that a failure tells.
const LAST: usize = 30;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `alpha` asks `beta`, and both offer a directory.
struct Scene {
    alpha: Daemon,
    beta: Daemon,
    settings: [String; 2],
    directory: tempfile::TempDir,
}

impl Scene {
    fn start(programs: &Programs) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let offered = |name: &str| {
            let root = directory.path().join(format!("{name}-root"));
            fs::create_dir(&root).expect("made");
            format!("[exports.data]\npath = {root:?}\nwrite = true\nnames = true\n")
        };
        let address = free_address();
        let settings = [
            format!("{}[peers.beta]\naddress = \"{address}\"\n", offered("alpha")),
            format!("{}[listen]\naddress = \"{address}\"\n", offered("beta")),
        ];
        let beta = Daemon::start(programs, directory.path(), "beta", &settings[1]);
        let alpha = Daemon::start(programs, directory.path(), "alpha", &settings[0]);
        alpha.await_lanes();
        Self { alpha, beta, settings, directory }
    }

    fn root(&self, peer: Option<&str>) -> PathBuf {
        self.directory.path().join(format!("{}-root", peer.unwrap_or("alpha")))
    }

    fn kill(&mut self, alpha: bool) {
        let (daemon, settings) = match alpha {
            true => (&mut self.alpha, &self.settings[0]),
            false => (&mut self.beta, &self.settings[1]),
        };
        daemon.process.signal(Signal::KILL);
        daemon.restart(settings);
    }
}

/// What was done last, told when the test fails.
struct Journal {
    seed: u64,
    last: VecDeque<String>,
}

impl Journal {
    fn note(&mut self, what: String) {
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(what);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last: Vec<_> = self.last.iter().map(String::as_str).collect();
            eprintln!(
                "PIPED_CAMPAIGN_SEED={}; the last operations:\n{}",
                self.seed,
                last.join("\n")
            );
        }
    }
}

/// How often things happened.
#[derive(Debug, Default)]
struct Tally {
    done: u64,
    refused: u64,
    kills: u64,
    in_doubt: u64,
}

fn campaigns(peer: Option<&'static str>) {
    let Some(programs) = Programs::find() else { return };
    let mut seed = number("PIPED_CAMPAIGN_SEED").unwrap_or(1);
    let mut left = number("PIPED_NAMES_OPERATIONS").unwrap_or(OPERATIONS);
    while left > 0 {
        let operations = left.min(OPERATIONS);
        campaign(&programs, peer, (seed, operations));
        (seed, left) = (seed + 1, left - operations);
    }
}

fn campaign(programs: &Programs, peer: Option<&'static str>, (seed, operations): (u64, u64)) {
    let mut scene = Scene::start(programs);
    let mirror = scene.directory.path().join("mirror");
    fs::create_dir(&mirror).expect("made");
    let mut journal = Journal { seed, last: VecDeque::new() };
    let mut inventor = Inventor::new(Random::new(seed));
    let mut piped = Piped::connect(&scene.alpha.client_socket(), peer);
    let mut mirror = Mirror::new(mirror);
    let mut tally = Tally::default();
    for operation in 1..=operations {
        let op = inventor.invent(mirror.open_files());
        journal.note(format!("{operation}: {op:?}"));
        // A handle of a peer that was killed is of what its path leads to then.
        let stays = op.slot().is_none_or(|slot| mirror.is_where_it_was(slot));
        let dies = op.is_request() && inventor.chance(KILLED) && stays;
        let ended = match dies {
            false => piped.perform(&op),
            true => {
                let alpha = peer.is_none() || inventor.chance(0.5);
                journal.note(format!("{} is killed", if alpha { "alpha" } else { "beta" }));
                tally.kills += 1;
                let mut kill = || scene.kill(alpha);
                let ended = piped.perform_under(&op, &mut kill);
                if alpha {
                    piped = Piped::connect(&scene.alpha.client_socket(), peer);
                }
                piped.await_answer();
                // What it had asked of its peer is over as well.
                scene.beta.await_rest();
                ended
            }
        };
        let root = scene.root(peer);
        match ended {
            Ended::InDoubt(_) if dies => {
                tally.in_doubt += 1;
                take_over(&op, &mut mirror, &root);
            }
            Ended::InDoubt(why) => panic!("nobody was killed: {op:?} ends with {why}"),
            Ended::Told(told) => {
                let wanted = mirror.perform(&op);
                let alike = told == wanted || is_as_good(&told, &wanted);
                assert!(alike, "{op:?}: {told:?}, and by system calls {wanted:?}");
                let ok = !matches!(told, Told::Refused(_));
                (tally.done, tally.refused) =
                    (tally.done + u64::from(ok), tally.refused + u64::from(!ok));
            }
        }
        if dies {
            // Files that were open are open by their paths from now on, which may lead elsewhere.
            piped.close_all();
            mirror.close_all();
        }
        if dies || operation % COMPARED == 0 || operation == operations {
            Tree::of(&root).compare(&Tree::of(mirror.root()));
        }
    }
    eprintln!("seed {seed}, {operations} operations: {tally:?}");
    assert!(tally.done > operations / 4 && tally.refused > operations / 20, "{tally:?}");
}

/// Whether two ends mean the same: an open tells what the directory of a missing file is.
fn is_as_good(told: &Told, wanted: &Told) -> bool {
    use piped_client::Status::{NoDirectory, NotFound};
    (told, wanted) == (&Told::Refused(NoDirectory), &Told::Refused(NotFound))
}

/// An operation may have been done, or not, or of bytes a part: what is there is what counts.
fn take_over(op: &Op, mirror: &mut Mirror, root: &std::path::Path) {
    let (there, before) = (Tree::of(root), Tree::of(mirror.root()));
    if there == before {
        return;
    }
    if let Some(range) = op.bytes() {
        return mirror.take_bytes(&there, range);
    }
    let told = mirror.perform(op);
    assert!(!matches!(told, Told::Refused(_)), "{op:?} changed something, and cannot be: {told:?}");
}

#[test]
fn operations_here_do_what_system_calls_do_while_the_daemon_is_killed() {
    campaigns(None);
}

#[test]
fn operations_at_a_peer_do_what_system_calls_do_while_both_daemons_are_killed() {
    campaigns(Some("beta"));
}
