//! How long file operations wait to be submitted and collected together.
//!
//! Each submission costs a system call and a call to the device. A device ends several operations
//! at about the same time, and clients with requests that ended together ask again together.
//! Waiting pays as long as the device has enough to do, which its pace tells: with `n` operations
//! of which one ends every `gap`, it stays busy for `n * gap`.

use piped_core::units::Nanos;

/// Longest wait with few operations in the kernel: less than a device needs for one.
const SHALLOW: Nanos = Nanos(5_000);

/// Additional wait for each operation beyond [`FEW`], up to [`DEEP`]: a deep queue asks for
/// throughput, not for one early end.
const EACH: Nanos = Nanos(1_500);
const FEW: u32 = 16;
const DEEP: u32 = 64;

/// The wait is at most this part of the time that the device needs for its operations.
const PARTS: u64 = 4;

/// Below this number of operations in the kernel, no operation is held back.
const IN_KERNEL_MIN: u32 = 4;

/// Operations over which the pace is averaged.
const PACE_OPS: u32 = 64;

/// Decides whether operations wait.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Time since which an operation waits.
    since: Option<Nanos>,
    /// Mean time between the ends of two operations.
    gap: Nanos,
    /// Ends since the last estimate, and the busy time that they took.
    ended: u32,
    took: Nanos,
    /// Time of the previous turn.
    last_turn: Nanos,
    had_work: bool,
}

impl Hold {
    /// Handles a turn with this many file operations.
    pub(super) fn handle_turn(&mut self, now: Nanos, operations: u32) {
        if self.had_work {
            self.took = self.took + now.since(self.last_turn);
        }
        (self.last_turn, self.had_work) = (now, operations > 0);
        if self.ended >= PACE_OPS {
            self.gap = Nanos(self.took.0 / u64::from(self.ended));
            (self.ended, self.took) = (0, Nanos::ZERO);
        }
    }

    /// Handles the end of a file operation.
    pub(super) fn handle_end(&mut self) {
        self.ended += 1;
    }

    /// Forgets the wait, because all operations have gone to the kernel.
    pub(super) fn reset(&mut self) {
        self.since = None;
    }

    /// Whether `queued` operations may wait on, while the kernel has `in_kernel`.
    pub(super) fn may_wait(&mut self, now: Nanos, queued: u32, in_kernel: u32) -> bool {
        if in_kernel < IN_KERNEL_MIN || queued >= in_kernel / 2 {
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let beyond = u64::from(in_kernel.min(DEEP).saturating_sub(FEW));
        let busy = self.gap.0 * u64::from(in_kernel) / PARTS;
        now.since(since) < Nanos(SHALLOW.0 + (beyond * EACH.0).min(busy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds ends at a device's pace, and returns how long one queued operation waits beside
    /// `in_kernel` others.
    fn wait(gap_ns: u64, in_kernel: u32) -> u64 {
        wait_after(&mut Hold::default(), 0, gap_ns, in_kernel)
    }

    /// Does so from `from` on, before which there was nothing to do.
    fn wait_after(hold: &mut Hold, from: u64, gap_ns: u64, in_kernel: u32) -> u64 {
        for end in 0..=128 {
            hold.handle_turn(Nanos(from + end * gap_ns), in_kernel + 1);
            hold.handle_end();
        }
        let start = from + 129 * gap_ns;
        hold.handle_turn(Nanos(start), 0);
        let waits = |ns: &u64| hold.may_wait(Nanos(start + ns), 1, in_kernel);
        (0..1_000_000).step_by(100).take_while(waits).count() as u64 * 100
    }

    #[test]
    fn deep_queues_of_a_slow_device_wait_longer_and_shallow_ones_hardly() {
        assert_eq!(wait(16_000, 3), 0);
        assert_eq!(wait(16_000, 16), 5_000);
        assert_eq!(wait(16_000, 64), 77_000);
        assert_eq!(wait(16_000, 1000), 77_000);
    }

    #[test]
    fn a_fast_device_is_not_left_without_work() {
        let waited = wait(500, 64);
        assert!((5_000..=13_100).contains(&waited), "{waited}: it has work for 32 us");
    }

    #[test]
    fn the_time_without_work_is_no_part_of_a_devices_pace() {
        let mut hold = Hold::default();
        for from in [1_000_000_000, 9_000_000_000] {
            let waited = wait_after(&mut hold, from, 500, 64);
            assert!((5_000..=13_100).contains(&waited), "{waited}: it has work for 32 us");
            hold.reset();
        }
        // The pause before ends that are too few for a pace does not count either.
        let mut hold = Hold::default();
        for burst in 1..=8 {
            for end in 0..20 {
                hold.handle_turn(Nanos(burst * 1_000_000_000 + end * 500), 20 - end as u32);
                hold.handle_end();
            }
            hold.handle_turn(Nanos(burst * 1_000_000_000 + 20 * 500), 0);
        }
        assert_eq!(hold.gap, Nanos(500));
    }

    #[test]
    fn half_of_the_work_does_not_wait() {
        let mut hold = Hold::default();
        assert!(hold.may_wait(Nanos(0), 31, 64));
        assert!(!hold.may_wait(Nanos(0), 32, 64));
    }
}
