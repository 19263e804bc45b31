//! Many worlds from many seeds, and how to see one of them again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use piped_core::units::Nanos;
use piped_sim::{Random, SimKernel};

use super::{Options, World};
use crate::operators::network::{self, Network};
use crate::shards;

/// Worlds of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Campaign {
    /// The test's name, for the line that replays a seed.
    pub name: &'static str,
    /// How many seeds, unless `PIPED_SIM_SEEDS` says.
    pub seeds: u64,
    /// What a seed makes.
    pub life: Life,
    /// What must have happened somewhere in `seeds` worlds, else the campaign tests nothing.
    pub must_see: &'static [&'static str],
}

/// What a seed makes: its options have a seed of their own.
#[derive(Debug, Clone, Copy)]
pub enum Life {
    /// Two nodes with clients.
    World(fn(&mut Random) -> Options),
    /// Two or three nodes, of some shards each, without clients.
    Network(fn(&mut Random) -> network::Options),
    /// A node of several shards and another one, with clients on all of them.
    Shards(fn(&mut Random) -> shards::Options),
}

/// The end of a world that kept its promises.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) events: u64,
    pub(super) at: Nanos,
    pub(super) seen: BTreeMap<&'static str, u64>,
}

/// Lines of the trace shown with a failure.
const TRACE_LINES: usize = 2000;

impl Campaign {
    /// Lives worlds that failed once.
    ///
    /// # Panics
    /// If a world fails, with its seed.
    pub fn replay(&self, seeds: &[u64]) {
        for &seed in seeds {
            if let Err(message) = self.life.live(seed, false) {
                panic!("seed {seed}: {message}");
            }
        }
    }

    /// Lives all worlds. `PIPED_SIM_SEED=N` lives only that one and shows what happened;
    /// `PIPED_SIM_SEEDS=COUNT` changes how many.
    ///
    /// # Panics
    /// If a world fails, with its seed.
    pub fn run(&self) {
        if let Some(seed) = number("PIPED_SIM_SEED") {
            match self.life.live(seed, true) {
                Ok(_) => eprintln!("seed {seed} lives"),
                Err(message) => panic!("seed {seed}: {message}"),
            }
            return;
        }
        let seeds = number("PIPED_SIM_SEEDS").unwrap_or(self.seeds);
        let mut failures = Vec::new();
        let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
        for seed in 0..seeds {
            let end = self.life.live(seed, false);
            // A run that cannot be repeated cannot be debugged: repeat some of them.
            let end = match end {
                Ok(end) if seed % 16 == 0 => match self.life.live(seed, false) {
                    Ok(again) if again == end => Ok(end),
                    Ok(again) => Err(format!("the second run differs: {end:?}, {again:?}")),
                    Err(message) => Err(format!("only the second run fails: {message}")),
                },
                end => end,
            };
            match end {
                Ok(end) => {
                    for (what, count) in end.seen {
                        *seen.entry(what).or_default() += count;
                    }
                }
                Err(message) => failures.push((seed, message)),
            }
        }
        eprintln!("{}: {seeds} worlds: {seen:#?}", self.name);
        let Some((first, message)) = failures.first() else {
            for what in self.must_see.iter().filter(|_| seeds >= self.seeds) {
                assert!(seen.get(what).is_some_and(|&count| count > 0), "no world saw: {what}");
            }
            return;
        };
        let list: Vec<u64> = failures.iter().map(|&(seed, _)| seed).collect();
        let name = self.name;
        for (seed, message) in &failures {
            let end = message.lines().nth(1).unwrap_or_default();
            eprintln!("seed {seed}: {}", end.chars().take(300).collect::<String>());
        }
        panic!(
            "{} of {seeds} worlds failed, seeds {list:?}\nseed {first}: {message}\nreplay with \
             PIPED_SIM_SEED={first} cargo test -p system-tests --test simulation {name}",
            list.len()
        );
    }
}

impl Life {
    /// Lives what a seed makes; how much happened in it and when it ended, or what it died of.
    /// `loud`: shows what happened.
    pub(super) fn live(self, seed: u64, loud: bool) -> Result<End, String> {
        let random = &mut Random::new(seed ^ 0x5eed);
        match self {
            Self::World(options) => {
                let mut world = World::new(seed, told(options(random), seed, loud));
                let end = watched(&mut world, loud, |it| &mut it.kernel, World::live);
                end.map(|(events, at)| End { events, at, seen: world.seen })
            }
            Self::Network(options) => {
                let mut network = Network::new(seed, told(options(random), seed, loud));
                let end = watched(&mut network, loud, Network::kernel, Network::live);
                end.map(|(events, at)| End { events, at, seen: network.seen().clone() })
            }
            Self::Shards(options) => {
                let mut world = shards::World::new(seed, told(options(random), seed, loud));
                let kernel = shards::World::kernel;
                let end = watched(&mut world, loud, kernel, shards::World::live);
                end.map(|(events, at)| End { events, at, seen: world.seen })
            }
        }
    }
}

fn told<T: std::fmt::Debug>(options: T, seed: u64, loud: bool) -> T {
    if loud {
        eprintln!("seed {seed}: {options:#?}");
    }
    options
}

/// Has something live, and tells how many events its kernel had and when it ended.
fn watched<T>(
    it: &mut T,
    loud: bool,
    kernel: impl Fn(&mut T) -> &mut SimKernel,
    live: impl FnOnce(&mut T),
) -> Result<(u64, Nanos), String> {
    if loud {
        kernel(it).start_trace();
    }
    let end = caught(|| live(it));
    let kernel = kernel(it);
    if loud {
        let lines: Vec<&str> = kernel.trace_lines().collect();
        for line in &lines[lines.len().saturating_sub(TRACE_LINES)..] {
            eprintln!("{line}");
        }
    }
    end.map_or_else(|| Ok((kernel.events_pushed(), kernel.now())), Err)
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: give a whole number")))
}

thread_local! {
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
    static CATCHING: RefCell<bool> = const { RefCell::new(false) };
}

/// Runs it; the message and place of its panic, if it panics. Nothing is printed.
pub fn caught(run: impl FnOnce()) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if CATCHING.with_borrow(|&catching| catching) {
                CAUGHT.set(Some(info.to_string()));
            } else {
                usual(info);
            }
        }));
    });
    CATCHING.set(true);
    let end = panic::catch_unwind(AssertUnwindSafe(run));
    CATCHING.set(false);
    let message = CAUGHT.take();
    end.is_err().then(|| message.unwrap_or_else(|| "a panic without words".to_owned()))
}
