//! Limits log lines about others: clients, peers, strangers, every caller of a socket.
//!
//! They decide how often such events happen. So each cause has a number of lines a minute for each
//! party; further ones are counted, and the next line has their number (`left_out`). Metrics still
//! count all events. Actions of operators, and single events, are logged without a limit.

use std::collections::HashMap;

use piped_core::units::Nanos;

/// Lines of one party for one cause in a [`PERIOD`]. A restart of a peer is four.
const LINES: u32 = 20;
const PERIOD: Nanos = Nanos::from_millis(60_000);
/// Most accounts. Users and peers of the configuration are fewer; further parties share one.
const ACCOUNTS_MAX: usize = 512;

/// Cause of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A connection came or went.
    Lane,
    /// A client came or went.
    Client,
    /// A client got no session.
    Refused,
    /// A client broke the rules.
    Evicted,
    /// A peer may not open what it asks for.
    Open,
    /// A caller at the peers' port was turned away.
    Stranger,
    /// A connection to the admin socket, or for metrics, was sent away.
    Operator,
    /// A socket cannot accept connections.
    Accept,
    /// A peer may not be dialled at its address.
    Dial,
    /// There is no place for a connection, or one made room.
    Crowd,
    /// A source of discovery says what is no node, or is away.
    Discovery,
}

/// Party that caused it, as far as that is not its own word.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Party {
    /// A peer of the configuration.
    Peer(String),
    /// A user of this machine.
    User(u32),
    /// One of our own sockets.
    Door(&'static str),
    /// All other parties together.
    Others,
}

/// Counts lines by cause and party.
#[derive(Debug, Default)]
pub struct Journal {
    accounts: HashMap<(Cause, Party), Lines>,
}

impl Journal {
    /// Whether a line may be logged, and how many were left out before it.
    pub fn may_say(&mut self, cause: Cause, party: Party, now: Nanos) -> Option<u64> {
        let accounts = &mut self.accounts;
        let mut key = (cause, party);
        if accounts.len() >= ACCOUNTS_MAX && !accounts.contains_key(&key) {
            accounts.retain(|_, lines| !lines.is_over(now));
            if accounts.len() >= ACCOUNTS_MAX {
                key.1 = Party::Others;
            }
        }
        accounts.entry(key).or_default().may_say(now)
    }
}

/// Lines of one party for one cause.
#[derive(Debug, Default)]
pub struct Lines {
    since: Nanos,
    lines: u32,
    left_out: u64,
}

impl Lines {
    /// Whether a line may be logged, and how many were left out before it.
    pub fn may_say(&mut self, now: Nanos) -> Option<u64> {
        if now.since(self.since) >= PERIOD {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines == LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }

    /// Whether it is of no use any more.
    fn is_over(&self, now: Nanos) -> bool {
        now.since(self.since) >= PERIOD && self.left_out == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_millis(3_600_000);

    fn said(journal: &mut Journal, cause: Cause, party: &Party, now: Nanos) -> usize {
        (0..1000).filter(|_| journal.may_say(cause, party.clone(), now).is_some()).count()
    }

    #[test]
    fn each_party_has_its_lines_for_each_cause() {
        let mut journal = Journal::default();
        let peer = |name: &str| Party::Peer(name.to_owned());
        let lines = LINES as usize;
        assert_eq!(said(&mut journal, Cause::Lane, &peer("beta"), START), lines);
        assert_eq!(said(&mut journal, Cause::Lane, &Party::Others, START), lines);
        assert_eq!(
            said(&mut journal, Cause::Lane, &peer("gamma"), START),
            lines,
            "not the others' fault"
        );
        assert_eq!(said(&mut journal, Cause::Open, &peer("beta"), START), lines, "another cause");
        assert_eq!(said(&mut journal, Cause::Evicted, &Party::User(7), START), lines);
        let later = START + PERIOD;
        let left_out = Some(1000 - u64::from(LINES));
        assert_eq!(journal.may_say(Cause::Lane, peer("beta"), later), left_out);
        assert_eq!(journal.may_say(Cause::Lane, peer("beta"), later), Some(0), "it was said");
    }

    #[test]
    fn who_has_many_names_has_no_more_lines_and_no_more_memory() {
        let mut journal = Journal::default();
        let users = 10_000;
        let lines: usize = (0..users)
            .map(|uid| said(&mut journal, Cause::Refused, &Party::User(uid), START))
            .sum();
        assert!(lines <= (ACCOUNTS_MAX + 1) * LINES as usize, "{lines}");
        assert!(journal.accounts.len() <= ACCOUNTS_MAX + 1);
        // Accounts that are over make room; their left-out lines are reported before.
        let later = START + PERIOD;
        for uid in 0..users {
            journal.may_say(Cause::Refused, Party::User(uid), later);
        }
        let newcomer = Party::User(users);
        assert_eq!(journal.may_say(Cause::Refused, newcomer.clone(), later + PERIOD), Some(0));
        assert!(journal.accounts.contains_key(&(Cause::Refused, newcomer)));
    }
}
