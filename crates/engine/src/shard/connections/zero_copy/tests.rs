use piped_core::modes::CalibrationMode::{Frozen, Live, Off};
use piped_report::shard::ZeroCopyState;

use super::*;

const KIB: u64 = 1024;

/// A path, its kernel, and a clock.
struct Path {
    lane: ZeroCopy,
    now: Nanos,
    /// Whether the kernel copies.
    copies: bool,
    /// A send of so many bytes takes so long, with a copy and without.
    plain: fn(u64) -> u64,
    lent: fn(u64) -> u64,
    held: Nanos,
    /// What was lent, and what was timed of what was not.
    lends: u32,
    timed: u32,
}

impl Path {
    fn new(copies: bool, plain: fn(u64) -> u64, lent: fn(u64) -> u64) -> Self {
        let held = Nanos::from_micros(200);
        let (lane, now) = (ZeroCopy::new(), Nanos(1));
        Self { lane, now, copies, plain, lent, held, lends: 0, timed: 0 }
    }

    /// Sends so many of that size, one after the other; how many of them were lent.
    fn send(
        &mut self,
        count: u32,
        bytes: u64,
        mode: ZeroCopyMode,
        calibration: CalibrationMode,
    ) -> u32 {
        let before = self.lends;
        for _ in 0..count {
            let way = self.lane.choose(bytes, mode, calibration, self.now);
            let lends = matches!(way, Way::Lend { .. });
            let cost = if lends { (self.lent)(bytes) } else { (self.plain)(bytes) };
            self.now = self.now + Nanos(cost);
            if way.is_timed() {
                self.timed += 1;
                self.lane.sample(way, bytes, Nanos(cost));
            }
            if lends {
                self.lends += 1;
                self.now = self.now + self.held;
                self.lane.handle_notice(bytes, self.copies, self.held, self.now);
            }
        }
        self.lends - before
    }

    fn state(&self) -> ZeroCopyState {
        self.lane.report(ZeroCopyMode::Auto, false).expect("something was tried").state
    }
}

const AUTO: ZeroCopyMode = ZeroCopyMode::Auto;

/// A copy of 10 GB/s with a microsecond to begin with.
fn copy(bytes: u64) -> u64 {
    1_000 + bytes / 10
}

/// Pages at 60 GB/s, with so much more to begin with that 64 KiB is where it begins to pay.
fn pages(bytes: u64) -> u64 {
    5_000 + bytes / 60
}

#[test]
fn a_kernel_that_copies_is_asked_four_times_and_then_rarely() {
    let mut path = Path::new(true, copy, pages);
    // A day at a thousand long sends a second.
    let mut lent = 0;
    for _ in 0..24 * 3600 {
        lent += path.send(1, 256 * KIB, AUTO, Live);
        path.now = path.now + Nanos::from_millis(1_000);
    }
    assert_eq!(path.state(), ZeroCopyState::Copied);
    // 10, 40, 160, 640, 2560 s, and each hour: 28 times four at most.
    assert!((4..=29 * TRIALS).contains(&lent), "{lent}");
    assert!(!path.lane.any(AUTO));
    let report = path.lane.report(AUTO, false).expect("tried");
    assert_eq!((report.in_place, report.copied), (0, u64::from(lent)));
    assert_eq!((report.pays_from_bytes, report.pause_seconds), (None, Some(3600.0)));
}

#[test]
fn it_is_used_from_the_size_on_at_which_it_is_measured_to_pay() {
    let mut path = Path::new(false, copy, pages);
    for bytes in [16, 32, 64, 128, 256, 512] {
        path.send(2_000, bytes * KIB, AUTO, Live);
    }
    assert_eq!(path.state(), ZeroCopyState::Pays);
    for (kib, pays) in [(16, false), (32, false), (64, true), (128, true), (512, true)] {
        let lent = path.send(640, kib * KIB, AUTO, Live);
        // Some are sent the other way, to see whether that is still so.
        let expected = if pays { 625..=640 } else { 1..=10 };
        assert!(expected.contains(&lent), "{kib} KiB: {lent}");
    }
    let report = path.lane.report(AUTO, false).expect("tried");
    assert_eq!(report.pays_from_bytes, Some(64 * KIB));
    let of_64 = report.sizes.iter().find(|size| size.bytes == 64 * KIB).expect("measured");
    assert!(
        of_64.pays && (of_64.plain_seconds.expect("timed") - 7.5536e-6).abs() < 1e-8,
        "{of_64:?}"
    );
    assert_eq!(of_64.held_seconds, Some(200e-6));
}

#[test]
fn a_size_goes_back_when_it_no_longer_pays_and_not_for_a_little() {
    let mut path = Path::new(false, copy, pages);
    path.send(2_000, 256 * KIB, AUTO, Live);
    assert!(path.lane.any(AUTO));
    // 0.90 of a copy: too little to begin with, enough to go on with.
    path.lent = |bytes| copy(bytes) * 90 / 100;
    path.send(4_000, 256 * KIB, AUTO, Live);
    assert!(path.lane.any(AUTO));
    path.lent = |bytes| copy(bytes) * 98 / 100;
    path.send(4_000, 256 * KIB, AUTO, Live);
    assert_eq!((path.lane.any(AUTO), path.state()), (false, ZeroCopyState::DoesNotPay));
    path.lent = |bytes| copy(bytes) * 90 / 100;
    path.send(4_000, 256 * KIB, AUTO, Live);
    assert!(!path.lane.any(AUTO), "it takes more to begin than to go on");
}

#[test]
fn some_samples_that_something_disturbed_change_nothing() {
    let mut path = Path::new(false, copy, pages);
    path.send(2_000, 256 * KIB, AUTO, Live);
    for _ in 0..3 {
        let slow = Nanos::from_millis(50);
        path.lane.sample(Way::Lend { timed: true }, 256 * KIB, slow);
    }
    assert!(path.lane.any(AUTO));
    path.lane.sample(Way::Plain { timed: true }, 256 * KIB, Nanos::ZERO);
    path.lane.sample(Way::Lend { timed: true }, 0, Nanos::MAX);
    assert!(path.send(100, 256 * KIB, AUTO, Live) > 90);
}

#[test]
fn a_path_that_begins_to_be_copied_is_left() {
    let mut path = Path::new(false, copy, pages);
    path.send(2_000, 256 * KIB, AUTO, Live);
    path.copies = true;
    assert!(path.send(1_000, 256 * KIB, AUTO, Live) <= 16);
    assert_eq!(path.state(), ZeroCopyState::Copied);
    path.copies = false;
    path.now = path.now + Nanos::from_millis(10_000);
    path.send(2_000, 256 * KIB, AUTO, Live);
    assert_eq!(path.state(), ZeroCopyState::Pays, "and comes back when it no longer is");
}

#[test]
fn memory_that_is_held_for_long_does_not_pay() {
    let mut path = Path::new(false, copy, pages);
    path.held = Nanos::from_millis(150);
    path.send(2_000, 256 * KIB, AUTO, Live);
    assert_eq!(path.state(), ZeroCopyState::DoesNotPay);
}

#[test]
fn what_is_not_to_be_measured_is_not_tried() {
    for calibration in [Frozen, Off] {
        let mut path = Path::new(false, copy, pages);
        assert_eq!(path.send(1_000, 256 * KIB, AUTO, calibration), 0);
        assert_eq!((path.timed, path.lane.report(AUTO, false)), (0, None));
    }
    // What was measured before is used on, without a further sample.
    let mut path = Path::new(false, copy, pages);
    path.send(2_000, 256 * KIB, AUTO, Live);
    let timed = path.timed;
    assert_eq!(path.send(100, 256 * KIB, AUTO, Frozen), 100);
    assert_eq!(path.send(100, 256 * KIB, AUTO, Off), 0);
    assert_eq!(path.timed, timed);
}

#[test]
fn the_switch_is_obeyed() {
    let mut path = Path::new(true, copy, pages);
    assert_eq!(path.send(50, 16 * KIB, ZeroCopyMode::On, Off), 50);
    assert_eq!(path.send(50, 512 * KIB, ZeroCopyMode::Off, Live), 0);
    assert!(path.lane.any(ZeroCopyMode::On) && !path.lane.any(ZeroCopyMode::Off));
    assert_eq!(path.timed, 0, "there is nothing to decide");
}

#[test]
fn a_refusal_lasts_an_hour() {
    let mut path = Path::new(false, copy, pages);
    assert!(matches!(path.lane.choose(256 * KIB, AUTO, Live, path.now), Way::Lend { .. }));
    path.lane.handle_refusal(path.now);
    assert_eq!(path.send(1_000, 256 * KIB, AUTO, Live), 0);
    assert_eq!(path.state(), ZeroCopyState::Refused);
    path.now = path.now + PAUSE_MAX;
    assert!(path.send(100, 256 * KIB, AUTO, Live) > 0);
}
