//! Many worlds from many seeds, and how to see one of them again.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use piped_engine::sim::Random;

use super::{Options, World};

/// Worlds of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Campaign {
    /// The test's name, for the line that replays a seed.
    pub name: &'static str,
    /// How many seeds, unless `PIPED_SIM_SEEDS` says.
    pub seeds: u64,
    /// The options of a world.
    pub options: fn(&mut Random) -> Options,
}

/// Lines of the trace shown with a failure.
const TRACE_LINES: usize = 400;

impl Campaign {
    /// Lives all worlds. `PIPED_SIM_SEED=N` lives only that one and shows what happened;
    /// `PIPED_SIM_SEEDS=COUNT` changes how many.
    ///
    /// # Panics
    /// If a world fails, with its seed.
    pub fn run(&self) {
        if let Some(seed) = number("PIPED_SIM_SEED") {
            match self.live(seed, true) {
                Ok(_) => eprintln!("seed {seed} lives"),
                Err(message) => panic!("seed {seed}: {message}"),
            }
            return;
        }
        let seeds = number("PIPED_SIM_SEEDS").unwrap_or(self.seeds);
        let mut failures = Vec::new();
        for seed in 0..seeds {
            let end = self.live(seed, false);
            // A run that cannot be repeated cannot be debugged: repeat some of them.
            let end = match end {
                Ok(end) if seed % 16 == 0 => match self.live(seed, false) {
                    Ok(again) if again == end => Ok(end),
                    Ok(again) => Err(format!("the second run differs: {end:?}, {again:?}")),
                    Err(message) => Err(format!("only the second run fails: {message}")),
                },
                end => end,
            };
            if let Err(message) = end {
                failures.push((seed, message));
            }
        }
        let Some((first, message)) = failures.first() else { return };
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

    /// Lives one world; how much happened in it and when it ended, or what it died of.
    fn live(&self, seed: u64, loud: bool) -> Result<(u64, u64), String> {
        let options = (self.options)(&mut Random::new(seed ^ 0x5eed));
        if loud {
            eprintln!("seed {seed}: {options:#?}");
        }
        let mut world = World::new(seed, options);
        if loud {
            world.kernel.start_trace();
        }
        let end = caught(|| world.live());
        if loud {
            let lines: Vec<&str> = world.kernel.trace_lines().collect();
            for line in &lines[lines.len().saturating_sub(TRACE_LINES)..] {
                eprintln!("{line}");
            }
        }
        match end {
            Some(message) => Err(message),
            None => Ok((world.kernel.events_pushed(), world.kernel.now().0)),
        }
    }
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
