//! How long to look for work before sleeping.
//!
//! A wake-up across CPUs costs tens of microseconds, a look at a cached word nothing: so a side
//! that just had work spins for a bounded time. But with more spinners than CPUs everybody waits
//! for a spinner's time slice to end, which is worse than sleeping by an order of magnitude. No
//! count of CPUs tells (other programs run too), so the spinner watches itself: polls follow each
//! other within a microsecond unless the thread was taken off its CPU. A long gap between two polls
//! halves the budget; work that arrives while spinning, and every so many sleeps, give a little
//! back.
//!
//! Others on this CPU may be the very thread that is waited for: a client, or another daemon. The
//! kernel may let it wait for the end of a time slice, which is milliseconds. So a spin offers its
//! CPU at once after others were woken, and then every now and then; often, as long as offers are
//! taken. An offer costs a system call.
//!
//! Pure logic: the caller brings the time, in nanoseconds from any origin.

use piped_core::modes::Profile;

/// A gap between two idle polls that shows that the thread was taken off its CPU.
pub const PREEMPTION_GAP_NS: u64 = 50_000;

/// A budget below this is none: a poll or two would not catch anything.
const BUDGET_NS_MIN: u64 = 1_000;

/// Sleeps without a preemption after which a little of the budget is tried again.
const SLEEPS_PER_TRIAL: u32 = 32;

/// The part of the limit that is given back at a time: halving loses it in one step, so that an
/// oversubscribed machine spends little on trying.
const RECOVERY_PARTS: u64 = 16;

/// Time of spinning after which others on this CPU get a turn. Most answers of another node come
/// sooner: an offer is a system call, and its taker may keep the CPU for a time slice.
const OFFER_NS: u64 = 100_000;

/// Time between offers after one that was taken: who shares the CPU wants it again soon.
const OFFER_SOON_NS: u64 = 4_000;

/// Offers that come so soon after one that was taken. More than one, because a kernel that counts
/// offers against a thread takes several of one thread for each of another.
const OFFERS_SOON: u32 = 32;

/// An offer that takes longer was taken, if it also takes longer than [`OFFER_TAKEN_TIMES`] the
/// shortest one: a call that finds nobody takes a part of a microsecond, or more under a hypervisor
/// or a tracer.
const OFFER_TAKEN_NS: u64 = 3_000;

/// The other bound of what [`OFFER_TAKEN_NS`] says.
const OFFER_TAKEN_TIMES: u64 = 4;

/// The next step after a poll that found nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spin {
    /// Poll once again now.
    Again,
    /// Let others on this CPU run by [`Spinner::offer`], then poll once again.
    Offer,
    /// Prepare to sleep, then sleep.
    Sleep,
}

/// The longest spins of both sides, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpinBudgets {
    /// Spin of a daemon's shard.
    pub daemon_ns: u64,
    /// A client's, as told in the handshake.
    pub client_ns: u64,
}

impl SpinBudgets {
    /// The budgets of a profile on a machine with `spare_cpus` CPUs that no shard is pinned to. A
    /// balanced client spins only if there are at least two of them: one for it, one for everything
    /// else.
    #[must_use]
    pub fn of(profile: Profile, spare_cpus: usize) -> Self {
        match profile {
            Profile::Balanced => {
                Self { daemon_ns: 50_000, client_ns: if spare_cpus >= 2 { 20_000 } else { 0 } }
            }
            // Longer than a few reads of a disk take: a side that slept is tens of microseconds
            // late.
            Profile::Latency => Self { daemon_ns: 1_000_000, client_ns: 1_000_000 },
            Profile::Throughput => Self { daemon_ns: 5_000, client_ns: 0 },
        }
    }
}

/// Times of a run of idle polls.
#[derive(Debug, Clone, Copy)]
struct Idle {
    since: u64,
    last_poll: u64,
    /// The end of the last offer, or the begin.
    offered: u64,
    /// Until then there is nothing to do but to poll.
    next: u64,
    /// The last offer was to nobody in particular.
    to_anybody: bool,
}

impl Idle {
    fn begin(now_ns: u64) -> Self {
        Self { since: now_ns, last_poll: now_ns, offered: now_ns, next: now_ns, to_anybody: false }
    }
}

/// An adaptive, bounded spin. [`Self::handle_work`] after a poll that found something,
/// [`Self::poll_idle`] after one that did not, [`Self::offer`] and [`Self::handle_sleep`] as it
/// says, [`Self::handle_wake`] after others were woken.
#[derive(Debug, Clone)]
pub struct Spinner {
    limit_ns: u64,
    budget_ns: u64,
    idle: Option<Idle>,
    /// Whether others were woken since the last idle poll.
    woke: bool,
    /// Sleeps since the budget last changed.
    sleeps: u32,
    /// Offers that come soon, one after the other.
    offers_soon: u32,
    /// The shortest time that an offer took.
    offer_ns_min: u64,
}

impl Spinner {
    /// A spinner that spins `limit_ns` nanoseconds at most; 0 sleeps at once.
    #[must_use]
    pub fn new(limit_ns: u64) -> Self {
        Self {
            limit_ns,
            budget_ns: limit_ns,
            idle: None,
            woke: false,
            sleeps: 0,
            offers_soon: 0,
            offer_ns_min: u64::MAX,
        }
    }

    /// The present budget in nanoseconds, at most the limit.
    #[must_use]
    pub fn budget_ns(&self) -> u64 {
        self.budget_ns
    }

    /// Change the limit; the budget starts anew there.
    pub fn set_limit(&mut self, limit_ns: u64) {
        *self = Self::new(limit_ns);
    }

    /// A poll found work: the next idle poll starts a new spin.
    pub fn handle_work(&mut self) {
        if self.idle.take().is_some() {
            // Work that came while spinning is what spinning is for.
            self.recover();
        }
    }

    /// A poll found nothing.
    #[must_use]
    pub fn poll_idle(&mut self, now_ns: u64) -> Spin {
        let Some(idle) = &mut self.idle else { return self.begin(now_ns) };
        let gap_ns = now_ns.saturating_sub(idle.last_poll);
        if gap_ns > PREEMPTION_GAP_NS {
            self.budget_ns /= 2;
            if self.budget_ns < BUDGET_NS_MIN {
                self.budget_ns = 0;
            }
            self.sleeps = 0;
            // What was spun before the gap is gone. A gap now and then is the host's doing and no
            // reason to sleep; on an oversubscribed machine the budget is soon none.
            return self.begin(now_ns);
        }
        idle.last_poll = now_ns;
        // A spin is mostly this.
        if now_ns < idle.next && !self.woke {
            return Spin::Again;
        }
        self.look_up(now_ns)
    }

    /// What is next in a spin: others' turn, its end, or nothing for a while.
    fn look_up(&mut self, now_ns: u64) -> Spin {
        let woke = std::mem::take(&mut self.woke);
        let Some(idle) = &mut self.idle else { return Spin::Again };
        if now_ns.saturating_sub(idle.since) >= self.budget_ns {
            return Spin::Sleep;
        }
        let every_ns = if self.offers_soon > 0 { OFFER_SOON_NS } else { OFFER_NS };
        let is_due = now_ns.saturating_sub(idle.offered) >= every_ns;
        if woke || is_due {
            // Those that were woken are expected to take it, once.
            idle.to_anybody = !woke;
            if !woke {
                self.offers_soon = self.offers_soon.saturating_sub(1);
            }
            return Spin::Offer;
        }
        let end = idle.since.saturating_add(self.budget_ns);
        idle.next = idle.offered.saturating_add(every_ns).min(end);
        Spin::Again
    }

    /// Lets others on this CPU run, after [`Spin::Offer`]: `give` asks the kernel. `clock` tells
    /// the time in nanoseconds just before and after it, which tells whether somebody came.
    pub fn offer(&mut self, mut clock: impl FnMut() -> u64, give: impl FnOnce()) {
        let begun_ns = clock();
        give();
        let now_ns = clock();
        let took_ns = now_ns.saturating_sub(begun_ns);
        self.offer_ns_min = self.offer_ns_min.min(took_ns);
        let taken_ns = self.offer_ns_min.saturating_mul(OFFER_TAKEN_TIMES).max(OFFER_TAKEN_NS);
        let Some(idle) = &mut self.idle else { return };
        (idle.offered, idle.next) = (now_ns, now_ns);
        if idle.to_anybody && took_ns > taken_ns {
            self.offers_soon = OFFERS_SOON;
        }
    }

    /// Others were woken, and may wait for this CPU.
    pub fn handle_wake(&mut self) {
        self.woke = true;
    }

    fn begin(&mut self, now_ns: u64) -> Spin {
        self.idle = Some(Idle::begin(now_ns));
        self.look_up(now_ns)
    }

    /// The thread does something else for a while, which is no spin.
    pub fn handle_pause(&mut self) {
        self.idle = None;
    }

    /// The thread slept and is up again.
    pub fn handle_sleep(&mut self) {
        self.idle = None;
        self.sleeps += 1;
        if self.sleeps >= SLEEPS_PER_TRIAL {
            self.recover();
        }
    }

    fn recover(&mut self) {
        self.sleeps = 0;
        let step = (self.limit_ns / RECOVERY_PARTS).max(BUDGET_NS_MIN);
        self.budget_ns = self.budget_ns.saturating_add(step).min(self.limit_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Idle polls every `step_ns` from `now` until told to sleep; returns the time of that.
    fn spin(spinner: &mut Spinner, mut now: u64, step_ns: u64) -> u64 {
        for _ in 0..1_000_000 {
            if spinner.poll_idle(now) == Spin::Sleep {
                return now;
            }
            now += step_ns;
        }
        panic!("the spin does not end");
    }

    #[test]
    fn a_spin_lasts_its_budget_and_no_longer() {
        let mut spinner = Spinner::new(50_000);
        assert_eq!(spin(&mut spinner, 7, 100), 7 + 50_000);
        spinner.handle_sleep();
        spinner.handle_work();
        assert_eq!(spin(&mut spinner, 1_000_000, 1_000), 1_050_000);
        assert_eq!(spinner.budget_ns(), 50_000);
    }

    #[test]
    fn zero_sleeps_at_once_and_stays_zero() {
        let mut spinner = Spinner::new(0);
        for now in 0..1_000 {
            assert_eq!(spinner.poll_idle(now), Spin::Sleep);
            spinner.handle_sleep();
            spinner.handle_work();
        }
        assert_eq!(spinner.budget_ns(), 0);
    }

    #[test]
    fn preemption_stops_the_spinning_and_calm_brings_it_back() {
        let mut spinner = Spinner::new(50_000);
        let mut now = 0;
        for round in 0..6 {
            spinner.handle_work();
            let _ = spinner.poll_idle(now);
            now += PREEMPTION_GAP_NS + 1;
            let last = round == 5;
            assert_eq!(spinner.poll_idle(now) == Spin::Sleep, last, "a gap alone is no reason");
            spinner.handle_sleep();
        }
        assert_eq!(spinner.budget_ns(), 0, "six halvings of 50 us end below a microsecond");
        // Still oversubscribed: each trial costs one short spin and is taken back.
        for _ in 0..SLEEPS_PER_TRIAL {
            spinner.handle_sleep();
        }
        assert_eq!(spinner.budget_ns(), 50_000 / RECOVERY_PARTS);
        // Calm: it comes back, in at most RECOVERY_PARTS trials.
        for _ in 0..RECOVERY_PARTS as u32 * SLEEPS_PER_TRIAL {
            spinner.handle_sleep();
        }
        assert_eq!(spinner.budget_ns(), 50_000);
    }

    #[test]
    fn others_get_a_turn_at_once_after_they_were_woken_and_then_now_and_then() {
        let mut spinner = Spinner::new(10 * OFFER_NS);
        spinner.handle_wake();
        let mut offers = Vec::new();
        let mut now = 7;
        loop {
            match spinner.poll_idle(now) {
                Spin::Again => {}
                Spin::Offer => {
                    offers.push(now - 7);
                    spinner.offer(|| now, || ());
                }
                Spin::Sleep => break,
            }
            now += OFFER_NS / 100;
        }
        let every: Vec<u64> = (0..10).map(|count| count * OFFER_NS).collect();
        assert_eq!(offers, every);
        // Without a budget there is nothing to offer: sleeping gives more.
        let mut never = Spinner::new(0);
        never.handle_wake();
        assert_eq!(never.poll_idle(0), Spin::Sleep);
    }

    /// Offers in a spin, each of which takes so long, with their distances.
    fn offers(spinner: &mut Spinner, count: usize, takes_ns: u64) -> Vec<u64> {
        let (mut now, mut last, mut distances) = (0, 0, Vec::new());
        while distances.len() < count {
            now += 100;
            match spinner.poll_idle(now) {
                Spin::Again => {}
                Spin::Offer => {
                    distances.push(now - last);
                    let begun = now;
                    now += takes_ns;
                    last = now;
                    let mut times = [begun, now].into_iter();
                    spinner.offer(|| times.next().expect("two looks"), || ());
                }
                Spin::Sleep => panic!("the budget is for longer"),
            }
        }
        distances.split_off(1)
    }

    #[test]
    fn offers_that_are_taken_come_soon_again_and_others_seldom() {
        let mut spinner = Spinner::new(100_000_000);
        let near = |of: u64| move |distance: &u64| (of..of + 200).contains(distance);
        let untaken = offers(&mut spinner, 8, 300);
        assert!(untaken.iter().all(near(OFFER_NS)), "{untaken:?}");
        spinner.handle_pause();
        let taken = offers(&mut spinner, 100, 20_000);
        let (_, taken) = taken.split_at(1);
        assert!(taken.iter().all(near(OFFER_SOON_NS)), "{taken:?}");
        spinner.handle_work();
        let after = offers(&mut spinner, OFFERS_SOON as usize + 8, 300);
        let (soon, late) = after.split_at(OFFERS_SOON as usize - 1);
        assert!(soon.iter().all(near(OFFER_SOON_NS)), "{soon:?}");
        assert!(late.iter().all(near(OFFER_NS)), "{late:?}");
    }

    #[test]
    fn what_the_woken_take_is_no_reason_for_more_offers() {
        let mut spinner = Spinner::new(100_000_000);
        for round in 0..10 {
            let now = round * 1_000_000;
            spinner.handle_wake();
            assert_eq!(spinner.poll_idle(now), Spin::Offer);
            let mut times = [now, now + 20_000].into_iter();
            spinner.offer(|| times.next().expect("two looks"), || ());
            assert_eq!(spinner.poll_idle(now + 20_000 + OFFER_SOON_NS), Spin::Again);
            spinner.handle_work();
        }
    }

    #[test]
    fn where_every_offer_takes_long_none_counts_as_taken() {
        let mut spinner = Spinner::new(100_000_000);
        let slow = offers(&mut spinner, 16, 2 * OFFER_TAKEN_NS);
        assert!(slow.iter().all(|&distance| distance >= OFFER_NS), "{slow:?}");
    }

    #[test]
    fn offers_to_the_woken_use_up_none_of_those_that_come_soon() {
        let mut spinner = Spinner::new(100_000_000);
        let _ = offers(&mut spinner, 2, 300);
        spinner.handle_pause();
        let _ = offers(&mut spinner, 2, 20_000);
        for round in 1..=2 * u64::from(OFFERS_SOON) {
            spinner.handle_work();
            spinner.handle_wake();
            assert_eq!(spinner.poll_idle(round * 10_000_000), Spin::Offer);
        }
        spinner.handle_work();
        assert_eq!(spinner.poll_idle(0), Spin::Again);
        assert_eq!(spinner.poll_idle(OFFER_SOON_NS), Spin::Offer);
    }

    #[test]
    fn what_a_thread_does_between_spins_is_no_preemption() {
        let mut spinner = Spinner::new(50_000);
        let _ = spinner.poll_idle(0);
        spinner.handle_pause();
        assert_eq!(spinner.poll_idle(10 * PREEMPTION_GAP_NS), Spin::Again);
        assert_eq!(spinner.budget_ns(), 50_000);
    }

    #[test]
    fn an_offer_that_took_a_time_slice_is_a_preemption() {
        let mut spinner = Spinner::new(1_000_000);
        spinner.handle_wake();
        assert_eq!(spinner.poll_idle(0), Spin::Offer);
        let mut times = [0, PREEMPTION_GAP_NS].into_iter();
        spinner.offer(|| times.next().expect("two looks"), || ());
        assert_eq!(spinner.poll_idle(PREEMPTION_GAP_NS), Spin::Again);
        assert_eq!(spinner.budget_ns(), 1_000_000);
        assert_eq!(spinner.poll_idle(2 * PREEMPTION_GAP_NS + 1), Spin::Again);
        assert_eq!(spinner.budget_ns(), 500_000);
    }

    #[test]
    fn a_long_piece_of_work_is_not_a_preemption() {
        let mut spinner = Spinner::new(50_000);
        assert_eq!(spinner.poll_idle(0), Spin::Again);
        spinner.handle_work();
        assert_eq!(spinner.poll_idle(900_000), Spin::Again);
        assert_eq!(spinner.budget_ns(), 50_000);
    }

    #[test]
    fn clocks_that_step_back_do_no_harm() {
        let mut spinner = Spinner::new(1_000);
        assert_eq!(spinner.poll_idle(u64::MAX), Spin::Again);
        assert_eq!(spinner.poll_idle(0), Spin::Again);
        assert_eq!(spinner.budget_ns(), 1_000);
    }
}
