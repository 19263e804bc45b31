//! How much of the control thread strangers on the network can have: pure.
//!
//! Who connects costs a few curve computations at worst, some 200 us, and nothing that lasts. So each address has a
//! number of attempts that grows back slowly. One that succeeds is given back: a node that restarts brings all its lanes
//! at once and uses none. An address that has none left is closed before a byte of it is read, which costs less than
//! the connection costs the other side. TCP has shown that the address is the caller's own.

use std::collections::HashMap;
use std::net::IpAddr;

use piped_model::units::Nanos;

/// Attempts that an address has at first, and at most: both lanes of every shard of a large node, once.
const ATTEMPTS: u32 = 128;

/// One grows back in so long: 20 a second take 0.4 % of the thread.
const REGROWTH: Nanos = Nanos::from_millis(50);

/// Addresses remembered: those that have used some. More than that share one account.
const ADDRESSES_MAX: usize = 4096;

/// What one address has used.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    used: u32,
    since: Nanos,
}

impl Account {
    fn regrow(&mut self, now: Nanos) {
        let grown = now.since(self.since).0 / REGROWTH.0;
        self.used = self.used.saturating_sub(u32::try_from(grown).unwrap_or(u32::MAX));
        self.since = if self.used == 0 { now } else { self.since + Nanos(grown * REGROWTH.0) };
    }

    fn take(&mut self, now: Nanos) -> bool {
        self.regrow(now);
        let left = self.used < ATTEMPTS;
        self.used += u32::from(left);
        left
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Patrol {
    accounts: HashMap<IpAddr, Account>,
    others: Account,
}

impl Patrol {
    /// An address begins an attempt. `false`: it has none left.
    pub(crate) fn admit(&mut self, from: IpAddr, now: Nanos) -> bool {
        let site = site_of(from);
        if !self.accounts.contains_key(&site) && self.accounts.len() >= ADDRESSES_MAX {
            self.accounts.retain(|_, account| {
                account.regrow(now);
                account.used > 0
            });
            if self.accounts.len() >= ADDRESSES_MAX {
                return self.others.take(now);
            }
        }
        self.accounts.entry(site).or_insert(Account { used: 0, since: now }).take(now)
    }

    /// Its attempt was a good one.
    pub(crate) fn give_back(&mut self, from: IpAddr) {
        let site = site_of(from);
        if let Some(account) = self.accounts.get_mut(&site) {
            account.used = account.used.saturating_sub(1);
            if account.used == 0 {
                self.accounts.remove(&site);
            }
        }
    }
}

/// Who has an address of IPv6 has all of its /64.
fn site_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) & !u128::from(u64::MAX)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    const START: Nanos = Nanos::from_millis(3_600_000);

    #[test]
    fn an_address_has_some_attempts_and_gets_them_back_slowly() {
        let mut patrol = Patrol::default();
        let mut admitted =
            |now: Nanos| (0..10_000).filter(|_| patrol.admit(address(1), now)).count();
        assert_eq!(admitted(START), ATTEMPTS as usize);
        assert_eq!(admitted(START + Nanos(REGROWTH.0 - 1)), 0);
        assert_eq!(admitted(START + REGROWTH), 1);
        assert_eq!(admitted(START + Nanos(REGROWTH.0 * 11)), 10);
        assert_eq!(admitted(START + Nanos(REGROWTH.0 * 100_000)), ATTEMPTS as usize);
        assert!(patrol.admit(address(2), START), "not its fault");
    }

    #[test]
    fn good_attempts_cost_nothing() {
        let mut patrol = Patrol::default();
        for _ in 0..100 * ATTEMPTS {
            assert!(patrol.admit(address(1), START));
            patrol.give_back(address(1));
        }
        assert!(patrol.accounts.is_empty());
    }

    #[test]
    fn many_addresses_take_no_more_memory() {
        let mut patrol = Patrol::default();
        let admitted = (0..100_000).filter(|number| patrol.admit(address(*number), START)).count();
        assert_eq!(patrol.accounts.len(), ADDRESSES_MAX);
        assert_eq!(admitted, ADDRESSES_MAX + ATTEMPTS as usize);
        // They are forgotten when they have used nothing for long.
        let later = START + Nanos(REGROWTH.0 * 10);
        assert!(patrol.admit(address(200_000), later));
        assert!(patrol.accounts.len() < ADDRESSES_MAX);
    }

    #[test]
    fn a_network_of_ipv6_is_one_caller() {
        let mut patrol = Patrol::default();
        let of = |host: u16| IpAddr::V6([0x2001, 0xdb8, 0, 1, 0, 0, 0, host].into());
        let admitted = (0..1000).filter(|host| patrol.admit(of(*host), START)).count();
        assert_eq!(admitted, ATTEMPTS as usize);
    }
}
