//! How much of the control thread the callers at the peers' door can have.
//!
//! Who connects costs a few curve computations at worst, some 200 us, and nothing that lasts. So
//! each address has a budget that grows back slowly. An attempt that fails takes more of it than
//! one that succeeds: a node that restarts brings all its lanes at once. An address that has none
//! left is closed before a byte of it is read, which costs less than the connection costs the other
//! side. TCP has shown that the address is the caller's own. Where the other end is on this machine
//! the kernel says which user has it, and the user has the budget, not the address: so no user of
//! this machine uses up that of another's node.
//!
//! All of them together have a budget, too, but not the addresses where a key was proved lately:
//! whatever strangers do elsewhere, known nodes come back. Who has a known node's address, or is
//! its user, has its budget as well.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use piped_core::units::Nanos;
use piped_engine::command::Origin;

/// What an attempt takes, and what is given back of it when it succeeds.
const ATTEMPT: u32 = 8;
const GOOD: u32 = 7;

/// The budget of an address: both lanes of every shard of a large node, once, all of them failing.
const OF_ADDRESS: u32 = 128 * ATTEMPT;

/// The time in which a unit of it grows back: 20 attempts that fail a second, or 160 that succeed,
/// take 0.4 % of the thread, or 3 %.
const REGROWTH: Nanos = Nanos(50_000_000 / ATTEMPT as u64);

/// All addresses that are not known, together: 200 attempts a second take 4 % of the thread.
const OF_STRANGERS: u32 = 512 * ATTEMPT;
const REGROWTH_OF_STRANGERS: Nanos = Nanos(5_000_000 / ATTEMPT as u64);

/// Addresses remembered: those that have used some of their budget. More than that share one.
const ADDRESSES_MAX: usize = 4096;

/// Addresses where a key was proved, and for how long that counts.
const KNOWN_MAX: usize = 1024;
const KNOWN_FOR: Nanos = Nanos::from_millis(24 * 3_600_000);

/// What has been used of a budget.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    used: u32,
    since: Nanos,
}

impl Account {
    fn regrow(&mut self, pace: Nanos, now: Nanos) {
        let grown = now.since(self.since).0 / pace.0;
        self.used = self.used.saturating_sub(u32::try_from(grown).unwrap_or(u32::MAX));
        self.since = if self.used == 0 { now } else { self.since + Nanos(grown * pace.0) };
    }

    fn take(&mut self, budget: u32, pace: Nanos, now: Nanos) -> bool {
        self.regrow(pace, now);
        let left = self.used + ATTEMPT <= budget;
        self.used += if left { ATTEMPT } else { 0 };
        left
    }
}

/// Whether somebody may try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A node that proved its key called from there lately.
    Known,
    /// No node did so lately.
    Stranger,
    /// There is no budget left for it.
    No,
}

/// The budgets of all addresses and users.
#[derive(Debug, Default)]
pub struct Patrol {
    accounts: HashMap<Origin, Account>,
    /// The account that all others share when the table is full.
    others: Account,
    strangers: Account,
    /// When somebody proved himself there the last time.
    known: HashMap<Origin, Nanos>,
}

impl Patrol {
    /// Takes the cost of an attempt that begins.
    pub fn admit(&mut self, from: Origin, now: Nanos) -> Verdict {
        if !self.account(from, now).take(OF_ADDRESS, REGROWTH, now) {
            return Verdict::No;
        }
        if self.known.get(&from).is_some_and(|at| now.since(*at) < KNOWN_FOR) {
            return Verdict::Known;
        }
        match self.strangers.take(OF_STRANGERS, REGROWTH_OF_STRANGERS, now) {
            true => Verdict::Stranger,
            false => Verdict::No,
        }
    }

    /// Whether an address or user has used some of its budget lately.
    #[must_use]
    pub fn remembers(&self, from: Origin) -> bool {
        self.accounts.contains_key(&from)
    }

    /// Gives the most of an attempt back that succeeded. `proven`: by a key.
    pub fn give_back(&mut self, from: Origin, proven: bool, now: Nanos) {
        if let Some(account) = self.accounts.get_mut(&from) {
            account.used = account.used.saturating_sub(GOOD);
        }
        if !proven {
            return;
        }
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&from) {
            let oldest = self.known.iter().min_by_key(|(_, at)| **at).map(|(origin, _)| *origin);
            oldest.and_then(|origin| self.known.remove(&origin));
        }
        self.known.insert(from, now);
    }

    fn account(&mut self, from: Origin, now: Nanos) -> &mut Account {
        if !self.accounts.contains_key(&from) && self.accounts.len() >= ADDRESSES_MAX {
            // Not again and again while all are in use: then the shared one says no.
            if self.others.used == 0 || self.others.used + ATTEMPT > OF_ADDRESS {
                self.accounts.retain(|_, account| {
                    account.regrow(REGROWTH, now);
                    account.used > 0
                });
            }
            if self.accounts.len() >= ADDRESSES_MAX {
                return &mut self.others;
            }
        }
        self.accounts.entry(from).or_insert(Account { used: 0, since: now })
    }
}

/// The site that an address counts for: of IPv6 its /64, and loopback as a whole.
#[must_use]
pub fn site_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        here if here.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) & !u128::from(u64::MAX)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> Origin {
        site(IpAddr::V4((0x0a00_0000 + number).into()))
    }

    fn site(address: IpAddr) -> Origin {
        Origin::Site(site_of(address))
    }

    const START: Nanos = Nanos::from_millis(3_600_000);
    const EACH: usize = (OF_ADDRESS / ATTEMPT) as usize;
    const ALL: usize = (OF_STRANGERS / ATTEMPT) as usize;

    fn admitted(patrol: &mut Patrol, from: impl Iterator<Item = Origin>, now: Nanos) -> usize {
        from.filter(|from| patrol.admit(*from, now) != Verdict::No).count()
    }

    fn tries(patrol: &mut Patrol, from: Origin, now: Nanos) -> usize {
        admitted(patrol, std::iter::repeat_n(from, 10_000), now)
    }

    #[test]
    fn an_address_has_some_attempts_and_gets_them_back_slowly() {
        let mut patrol = Patrol::default();
        let one = Nanos(REGROWTH.0 * u64::from(ATTEMPT));
        assert_eq!(tries(&mut patrol, address(1), START), EACH);
        assert_eq!(tries(&mut patrol, address(1), START + Nanos(one.0 - 1)), 0);
        assert_eq!(tries(&mut patrol, address(1), START + one), 1);
        assert_eq!(tries(&mut patrol, address(1), START + Nanos(one.0 * 11)), 10);
        assert_eq!(tries(&mut patrol, address(1), START + Nanos(one.0 * 100_000)), EACH);
        assert_eq!(patrol.admit(address(2), START), Verdict::Stranger, "not its fault");
    }

    #[test]
    fn good_attempts_take_little() {
        let mut patrol = Patrol::default();
        let mut good = 0;
        while patrol.admit(address(1), START) != Verdict::No {
            patrol.give_back(address(1), true, START);
            good += 1;
        }
        assert_eq!(good, OF_ADDRESS - ATTEMPT + 1, "one unit each");
    }

    #[test]
    fn many_addresses_have_no_more_than_their_share_and_known_ones_come_through() {
        let mut patrol = Patrol::default();
        assert_eq!(patrol.admit(address(7), START), Verdict::Stranger);
        patrol.give_back(address(7), true, START);
        let flood = (1000..50_000).map(address);
        assert_eq!(admitted(&mut patrol, flood, START), ALL - 1);
        assert_eq!(patrol.admit(address(8), START), Verdict::No, "nobody knows it");
        assert_eq!(patrol.admit(address(7), START), Verdict::Known);
        let next_day = START + KNOWN_FOR;
        assert_eq!(patrol.admit(address(7), next_day), Verdict::Stranger);
    }

    #[test]
    fn many_addresses_take_no_more_memory() {
        let mut patrol = Patrol::default();
        let mut now = START;
        for number in 0..100_000 {
            now = now + Nanos(1000);
            let _ = patrol.admit(address(number), now);
        }
        assert_eq!(patrol.accounts.len(), ADDRESSES_MAX);
        for number in 0..10_000 {
            patrol.give_back(address(number), true, now);
        }
        assert_eq!(patrol.known.len(), KNOWN_MAX);
        // They are forgotten when they have used nothing for long.
        let later = now + Nanos(REGROWTH.0 * u64::from(OF_ADDRESS));
        let _ = patrol.admit(address(200_000), later);
        assert!(patrol.accounts.len() < ADDRESSES_MAX);
    }

    #[test]
    fn a_network_of_ipv6_is_one_caller_and_so_is_this_machine() {
        let mut patrol = Patrol::default();
        let of = |host: u16| site(IpAddr::V6([0x2001, 0xdb8, 0, 1, 0, 0, 0, host].into()));
        assert_eq!(admitted(&mut patrol, (0..1000).map(of), START), EACH);
        let here = |host: u8| site(IpAddr::V4([127, 0, 0, host].into()));
        assert_eq!(admitted(&mut patrol, (0..=255).map(here), START), EACH);
        assert_eq!(patrol.admit(site("::1".parse().expect("an address")), START), Verdict::No);
    }

    #[test]
    fn a_user_of_this_machine_uses_up_no_other_users_budget() {
        let mut patrol = Patrol::default();
        let (node, other) = (Origin::User(4000), Origin::User(65_534));
        assert_eq!(patrol.admit(node, START), Verdict::Stranger);
        patrol.give_back(node, true, START);
        assert_eq!(tries(&mut patrol, other, START), EACH);
        assert_eq!(tries(&mut patrol, site("127.0.0.1".parse().expect("loopback")), START), EACH);
        assert_eq!(patrol.admit(other, START), Verdict::No);
        assert_eq!(patrol.admit(node, START), Verdict::Known);
    }
}
