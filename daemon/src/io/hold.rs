//! How long file operations wait to be submitted and collected together.
//!
//! Each submission costs a system call and a call to the device, a device ends several operations at about
//! the same time, and clients whose requests ended together ask again together. Waiting pays as long as
//! the device has enough to do, which its own pace tells: with `n` operations of which one ends
//! every `gap`, it stays busy for `n * gap`.

use piped_model::units::Nanos;

/// Waits no longer than this with few operations in the kernel: less than a device needs for one.
const SHALLOW: Nanos = Nanos(5_000);

/// And by so much longer for each beyond [`FEW`], up to [`DEEP`]: who asks for so many at once wants many,
/// not one soon.
const EACH: Nanos = Nanos(1_500);
const FEW: u32 = 16;
const DEEP: u32 = 64;

/// But never longer than the device needs for this part of what it has.
const PARTS: u64 = 4;

/// With fewer in the kernel nothing waits.
const IN_KERNEL_MIN: u32 = 4;

/// Operations over which the pace is averaged.
const PACE_OPS: u32 = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Since when something waits.
    since: Option<Nanos>,
    /// Mean time between the ends of two operations.
    gap: Nanos,
    /// Ends since `counted_from`.
    ended: u32,
    counted_from: Nanos,
}

impl Hold {
    /// A file operation ended.
    pub(super) fn handle_end(&mut self) {
        self.ended += 1;
    }

    /// Whatever waited has gone to the kernel.
    pub(super) fn reset(&mut self) {
        self.since = None;
    }

    /// Whether what there is may wait on, of it `queued` operations, while the kernel has `in_kernel`.
    pub(super) fn may_wait(&mut self, now: Nanos, queued: u32, in_kernel: u32) -> bool {
        if self.ended >= PACE_OPS {
            self.gap = Nanos(now.since(self.counted_from).0 / u64::from(self.ended));
            (self.ended, self.counted_from) = (0, now);
        }
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

    /// Ends at a device's pace, then how long one queued operation waits beside `in_kernel` others.
    fn wait(gap_ns: u64, in_kernel: u32) -> u64 {
        let mut hold = Hold::default();
        let start = 128 * gap_ns;
        for end in 0..=128 {
            hold.handle_end();
            hold.may_wait(Nanos(end * gap_ns), 1, in_kernel);
            hold.reset();
        }
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
    fn half_of_the_work_does_not_wait() {
        let mut hold = Hold::default();
        assert!(hold.may_wait(Nanos(0), 31, 64));
        assert!(!hold.may_wait(Nanos(0), 32, 64));
    }
}
