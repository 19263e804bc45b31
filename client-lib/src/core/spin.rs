//! How long the waits of a queue spin: never on the CPU of the shard that they wait for, because
//! there a spin only keeps the shard from what is waited for.

use piped_ring::{Spin, Spinner};

/// Waits for each look at the CPU, as long as that is another one than the shard's. A thread seldom
/// moves. Odd, so that of two threads that use a queue in turn each looks.
const WAITS_PER_LOOK: u32 = 17;

/// The spins of a queue's waits.
#[derive(Debug)]
pub(super) struct WaitSpin {
    spinner: Spinner,
    /// CPU of the shard, if it has one of its own.
    shard_cpu: Option<u32>,
    /// Whether the waiting thread was on that CPU when it last looked.
    beside: bool,
    /// Waits until the next look.
    waits: u32,
}

impl WaitSpin {
    /// Spins of `limit_ns` nanoseconds at most.
    pub(super) fn new(limit_ns: u64, shard_cpu: Option<u32>) -> Self {
        Self { spinner: Spinner::new(limit_ns), shard_cpu, beside: false, waits: 0 }
    }

    /// Changes the longest spin.
    pub(super) fn set_limit(&mut self, limit_ns: u64) {
        *self = Self::new(limit_ns, self.shard_cpu);
    }

    /// The queue is at another daemon's shard.
    pub(super) fn set_shard(&mut self, shard_cpu: Option<u32>) {
        (self.shard_cpu, self.beside, self.waits) = (shard_cpu, false, 0);
    }

    /// The longest spin at present, in nanoseconds.
    pub(super) fn budget_ns(&self) -> u64 {
        if self.beside { 0 } else { self.spinner.budget_ns() }
    }

    /// A wait begins. `is_on`: whether the thread is on a CPU.
    pub(super) fn begin_wait(&mut self, is_on: impl Fn(u32) -> bool) {
        // What the program did since the last wait is no spin.
        self.spinner.handle_pause();
        if self.beside || self.waits == 0 {
            self.look(is_on);
        }
        self.waits -= 1;
    }

    /// What is next after a look for completions that found none.
    pub(super) fn poll_idle(&mut self, now_ns: u64) -> Spin {
        if self.beside { Spin::Sleep } else { self.spinner.poll_idle(now_ns) }
    }

    /// Lets others on this CPU run: see [`Spinner::offer`].
    pub(super) fn offer(&mut self, clock: impl FnMut() -> u64, give: impl FnOnce()) {
        self.spinner.offer(clock, give);
    }

    /// A look for completions found some.
    pub(super) fn handle_work(&mut self) {
        self.spinner.handle_work();
    }

    /// The thread slept, and may be on another CPU.
    pub(super) fn handle_sleep(&mut self, is_on: impl Fn(u32) -> bool) {
        self.spinner.handle_sleep();
        self.look(is_on);
    }

    fn look(&mut self, is_on: impl Fn(u32) -> bool) {
        self.beside = self.shard_cpu.is_some_and(is_on);
        self.waits = WAITS_PER_LOOK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: u32 = 3;

    fn on(cpu: u32) -> impl Fn(u32) -> bool {
        move |of| of == cpu
    }

    /// One wait that begins on a CPU: whether it spins.
    fn spins(spin: &mut WaitSpin, cpu: u32) -> bool {
        spin.begin_wait(on(cpu));
        spin.poll_idle(7) != Spin::Sleep
    }

    #[test]
    fn nobody_spins_on_the_shards_cpu() {
        let mut spin = WaitSpin::new(u64::MAX, Some(SHARD));
        assert!(!spins(&mut spin, SHARD));
        assert_eq!(spin.budget_ns(), 0);
        assert!(spins(&mut spin, 1), "a thread that left is seen at once");
        let late = (1..).find(|_| !spins(&mut spin, SHARD)).expect("a look");
        assert!(late <= WAITS_PER_LOOK, "{late}");
        let mut anywhere = WaitSpin::new(u64::MAX, None);
        assert!((0..40).all(|_| spins(&mut anywhere, SHARD)), "the shard has no CPU of its own");
        let mut never = WaitSpin::new(0, Some(SHARD));
        assert!(!spins(&mut never, 1));
    }

    #[test]
    fn a_sleep_another_policy_and_another_daemon_have_it_look_again() {
        let mut spin = WaitSpin::new(u64::MAX, Some(SHARD));
        assert!(spins(&mut spin, 1));
        spin.handle_sleep(on(SHARD));
        assert_eq!(spin.poll_idle(7), Spin::Sleep, "still in the same wait");
        assert!(spins(&mut spin, 1));
        spin.set_limit(1_000_000);
        assert!(!spins(&mut spin, SHARD));
        spin.set_shard(Some(1));
        assert!(spins(&mut spin, SHARD));
        spin.set_shard(Some(SHARD));
        assert!(!spins(&mut spin, SHARD));
    }

    #[test]
    fn two_threads_in_turn_both_look() {
        let mut spin = WaitSpin::new(u64::MAX, Some(SHARD));
        let mut seen = [false; 2];
        for wait in 0..4 * WAITS_PER_LOOK as usize {
            let cpu = [SHARD, 1][wait % 2];
            seen[wait % 2] |= spins(&mut spin, cpu) == (cpu != SHARD);
        }
        assert_eq!(seen, [true; 2]);
    }
}
