use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use piped_core::io::Io;
use piped_core::modes::IoFeature;
use piped_core::units::Nanos;
use rustix::event::{EventfdFlags, eventfd};

use super::{PATIENCE, config, driver, expect_silence};
use crate::io::wake::drain;
use crate::io::{FeatureMask, UringConfig, UringIo, WatchId};

fn doorbell() -> (OwnedFd, OwnedFd) {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    (fd.try_clone().unwrap(), fd)
}

fn ring(bell: &OwnedFd) {
    assert_eq!(rustix::io::write(bell, &1_u64.to_ne_bytes()).unwrap(), 8);
}

/// Sleeps until a doorbell rings, for all in `known`; a wait may end early.
fn hear(io: &mut UringIo, wanted: WatchId, known: &[WatchId]) {
    let until = io.now() + PATIENCE;
    while io.now() < until {
        io.wait(Some(until)).unwrap();
        io.poll_dones(&mut |done| panic!("{done:?}"));
        let heard: Vec<WatchId> = io.take_woken().collect();
        assert!(heard.iter().all(|watch| known.contains(watch)), "{heard:?}");
        if heard.contains(&wanted) {
            return;
        }
    }
    panic!("it was not heard");
}

/// Rings doorbells before, between and while asleep.
pub(super) fn exercise(io: &mut UringIo) {
    let (ours, theirs) = doorbell();
    // Ring before it is watched.
    ring(&theirs);
    let watch = io.watch(ours).unwrap();
    hear(io, watch, &[watch]);
    // Ring between two turns.
    for _ in 0..5 {
        ring(&theirs);
        hear(io, watch, &[watch]);
        // One ring is one wake-up: the driver sleeps now.
        let until = io.now() + Nanos::from_millis(1);
        while io.now() < until {
            io.wait(Some(until)).unwrap();
            io.poll_dones(&mut |done| panic!("{done:?}"));
        }
        assert_eq!(io.take_woken().count(), 0);
    }
    // Ring while asleep.
    let bell = theirs.try_clone().unwrap();
    let ringer = std::thread::spawn(move || ring(&bell));
    hear(io, watch, &[watch]);
    ringer.join().unwrap();
    // A doorbell that rings does not wake another, and one that is not watched wakes nobody.
    let (other_ours, other_theirs) = doorbell();
    let other = io.watch(other_ours).unwrap();
    ring(&other_theirs);
    hear(io, other, &[other]);
    io.unwatch(watch);
    ring(&theirs);
    ring(&other_theirs);
    hear(io, other, &[other]);
    io.unwatch(other);
    expect_silence(io);
}

#[test]
fn doorbells_wake_the_shard() {
    exercise(&mut driver());
}

#[test]
fn a_doorbell_that_somebody_else_empties_does_not_block_the_shard() {
    // A blocking read, as a hostile client can cause.
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let (sender, through) = std::sync::mpsc::channel();
    let emptied = bell.try_clone().unwrap();
    std::thread::spawn(move || {
        drain(&emptied);
        sender.send(()).unwrap();
    });
    through.recv_timeout(Duration::from_nanos(PATIENCE.0)).expect("it is stuck");

    for features in [FeatureMask::ALL, FeatureMask::without(&[IoFeature::MultishotPoll])] {
        let mut io = UringIo::new(&UringConfig { features, ..config() }).unwrap();
        let watch = io.watch(bell.try_clone().unwrap()).unwrap();
        io.submit().unwrap();
        ring(&bell);
        rustix::io::read(&bell, &mut [0; 8]).unwrap();
        ring(&bell);
        hear(&mut io, watch, &[watch]);
        drain(&bell);
    }
}

#[test]
fn watching_and_unwatching_leaves_nothing_behind() {
    let mut io = UringIo::new(&UringConfig { watches_max: 2, ..config() }).unwrap();
    let (ours, theirs) = doorbell();
    for round in 0..1000 {
        let watch = io.watch(ours.try_clone().unwrap()).unwrap_or_else(|e| panic!("{round}: {e}"));
        if round % 3 > 0 {
            io.submit().unwrap();
        }
        if round % 3 > 1 {
            ring(&theirs);
        }
        io.unwatch(watch);
        io.unwatch(watch);
        // Its place is free once the poll has come back.
        while io.watches.any_armed() {
            io.wait(None).unwrap();
            io.poll_dones(&mut |done| panic!("{done:?}"));
        }
        assert_eq!(io.take_woken().count(), 0, "{round}");
    }
}

#[test]
fn a_wait_ends_with_its_time() {
    let mut io = driver();
    let until = io.now() + Nanos::from_millis(5);
    let mut waits = 0;
    while io.now() < until {
        io.wait(Some(until)).unwrap();
        waits += 1;
    }
    assert!(waits < 10, "{waits} waits: it does not sleep");
    let before = io.counters().enters;
    io.wait(Some(Nanos::ZERO)).unwrap();
    assert_eq!(io.counters().enters, before, "there was nothing to say");
}

#[test]
fn a_signal_ends_a_wait() {
    extern "C" fn heard(_: libc::c_int) {}
    // SAFETY: the handler does nothing, which is safe in any context; nobody else uses the signal.
    unsafe { libc::signal(libc::SIGWINCH, heard as *const () as libc::sighandler_t) };
    // SAFETY: it has no precondition.
    let thread = unsafe { libc::pthread_self() };
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let signaller = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            // SAFETY: the thread joins this one before it ends, so its name is valid.
            unsafe { libc::pthread_kill(thread, libc::SIGWINCH) };
            std::thread::yield_now();
        }
    });
    let mut io = driver();
    io.wait(None).unwrap();
    over.store(true, Ordering::Relaxed);
    signaller.join().unwrap();
}
