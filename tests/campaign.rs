//! Hundreds of deaths and attacks beside a client that must not notice, and what is left of them.
#![forbid(unsafe_code)]

use piped_client::Client;
use piped_sim::Random;
use system_tests::attack::{Abuse, Footprint, Neighbour, Targets, memory_kib};
use system_tests::process::{Pair, Programs, eventually};

/// Deaths and attacks.
const ABUSES: u64 = 200;
/// At most so many at a time.
const TOGETHER: u64 = 4;
/// Connects and disconnects.
const CONNECTS: usize = 1000;
/// What the daemon's memory may grow by over the last nine tenths of them: its allocator's whims,
/// far less than one leaked queue (12 KiB) or session each.
const GROWTH_KIB: u64 = 2 << 10;

/// Not a test: the process that tests kill.
#[test]
#[ignore = "runs only as a process that others kill"]
fn victim() {
    system_tests::attack::victim();
}

fn seed() -> u64 {
    let given = std::env::var("PIPED_CAMPAIGN_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or(1)
}

#[test]
fn two_hundred_deaths_and_attacks_cost_a_neighbour_nothing() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let targets = Targets { file: directory.path().join("root/blocks"), victim: "victim" };
    let seed = seed();
    println!("PIPED_CAMPAIGN_SEED={seed} repeats it");
    let neighbour = Neighbour::start(&pair, directory.path());
    // Each way once: then the daemon has what its pools keep.
    let warm = |number: u64| Abuse::ALL[number as usize % Abuse::ALL.len()];
    for number in 0..Abuse::ALL.len() as u64 {
        warm(number).run(&pair.alpha, &targets, &mut Random::new(seed ^ number));
    }
    eventually("only the neighbour is left", || (pair.alpha.number("sessions") == 1).then_some(()));
    let (before, memory) = (Footprint::of(&pair.alpha), memory_kib(&pair.alpha, "VmRSS:"));
    std::thread::scope(|scope| {
        for lane in 0..TOGETHER {
            let (pair, targets) = (&pair, &targets);
            scope.spawn(move || {
                for number in (lane..ABUSES).step_by(TOGETHER as usize) {
                    let mut random = Random::new(seed.wrapping_add(number));
                    let abuse = Abuse::ALL[random.below(Abuse::ALL.len() as u64) as usize];
                    abuse.run(&pair.alpha, targets, &mut random);
                }
            });
        }
    });
    neighbour.await_served();
    let served = neighbour.stop();
    println!("{served:?}");
    assert_eq!(served.wrong, 0, "{served:?}");
    // The neighbour is gone as well.
    let none = Footprint { sessions: 0, staging_bytes: u64::MAX, ..before };
    none.await_again(&pair.alpha);
    let grown = memory_kib(&pair.alpha, "VmRSS:").saturating_sub(memory);
    assert!(grown < GROWTH_KIB, "{grown} KiB more than after the first {}", Abuse::ALL.len());
    for log in [pair.alpha.log(), pair.beta.log()] {
        assert!(!log.contains("panicked"), "{log}");
        assert!(!log.contains("lane down"), "no client costs a lane: {log}");
    }
}

#[test]
fn a_thousand_connects_leave_memory_files_and_slots_as_they_were() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let connect = || {
        let client = Client::connect(pair.alpha.client_socket()).expect("a place");
        client.queue().expect("a queue").nop().expect("served");
    };
    let gone = || {
        eventually("they are gone", || (pair.alpha.number("sessions") == 0).then_some(()));
    };
    let mut before = None;
    for number in 0..CONNECTS {
        connect();
        if number == CONNECTS / 10 {
            gone();
            before = Some((Footprint::settled(&pair.alpha), memory_kib(&pair.alpha, "VmRSS:")));
        }
        // No more at once than there are places.
        if number % 50 == 0 {
            gone();
        }
    }
    gone();
    let (footprint, memory) = before.expect("looked at after the first tenth");
    footprint.await_again(&pair.alpha);
    let mut grown = 0;
    let flat = eventually_flat(|| {
        grown = memory_kib(&pair.alpha, "VmRSS:").saturating_sub(memory);
        grown < GROWTH_KIB
    });
    assert!(flat, "{grown} KiB more for {} connects", CONNECTS - CONNECTS / 10);
    println!("{grown} KiB more for {} connects", CONNECTS - CONNECTS / 10);
}

/// Memory of the last ones is unmapped a moment after their sessions' end.
fn eventually_flat(mut is_flat: impl FnMut() -> bool) -> bool {
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("memory is flat", || is_flat().then_some(()));
    }));
    looked.is_ok()
}
