//! What is logged about lanes. Peers decide how often a lane comes and goes, so each has so many lines
//! a minute, and those who are not in the configuration have as many together; what is left out is
//! counted and said with the next line.

use std::collections::HashMap;
use std::net::IpAddr;

use piped_engine::command::LaneClass;
use piped_model::units::Nanos;

/// Lines of one peer in a [`PERIOD`]. A restart of a peer is four.
const LINES: u32 = 20;
const PERIOD: Nanos = Nanos::from_millis(60_000);

/// See the module.
#[derive(Debug)]
pub(crate) struct Journal {
    peers: HashMap<String, Account>,
    others: Account,
}

#[derive(Debug, Default)]
struct Account {
    since: Nanos,
    lines: u32,
    left_out: u64,
}

impl Journal {
    /// For the peers of the configuration.
    pub(crate) fn new<'a>(peers: impl Iterator<Item = &'a str>) -> Self {
        let peers = peers.map(|name| (name.to_owned(), Account::default())).collect();
        Self { peers, others: Account::default() }
    }

    pub(crate) fn lane_up(
        &mut self,
        (shard, peer): (usize, &str),
        class: LaneClass,
        epoch: u32,
        now: Nanos,
    ) {
        if let Some(left_out) = self.may_say(peer, now) {
            tracing::info!(shard, peer, ?class, epoch, left_out, "lane up");
        }
    }

    pub(crate) fn lane_down(
        &mut self,
        (shard, peer): (usize, &str),
        class: LaneClass,
        reason: &str,
        now: Nanos,
    ) {
        if let Some(left_out) = self.may_say(peer, now) {
            tracing::warn!(shard, peer, ?class, reason, left_out, "lane down");
        }
    }

    /// Somebody connected and did not get a lane.
    pub(crate) fn stranger(&mut self, from: IpAddr, reason: &str, now: Nanos) {
        if let Some(left_out) = self.may_say("", now) {
            tracing::warn!(%from, reason, left_out, "a peer was turned away");
        }
    }

    /// Whether there is a line left, and how many were left out before it.
    fn may_say(&mut self, peer: &str, now: Nanos) -> Option<u64> {
        let account = self.peers.get_mut(peer).unwrap_or(&mut self.others);
        if now.since(account.since) >= PERIOD {
            (account.since, account.lines) = (now, 0);
        }
        if account.lines == LINES {
            account.left_out += 1;
            return None;
        }
        account.lines += 1;
        Some(std::mem::take(&mut account.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_its_lines_and_strangers_share_theirs() {
        let mut journal = Journal::new(["beta", "gamma"].into_iter());
        let start = Nanos::from_millis(3_600_000);
        let said = |journal: &mut Journal, peer: &str, now: Nanos| {
            (0..1000).filter(|_| journal.may_say(peer, now).is_some()).count()
        };
        assert_eq!(said(&mut journal, "beta", start), LINES as usize);
        assert_eq!(said(&mut journal, "mallory", start), LINES as usize);
        assert_eq!(said(&mut journal, "eve", start), 0, "one of many names");
        assert_eq!(said(&mut journal, "gamma", start), LINES as usize, "not the others' fault");
        let later = start + PERIOD;
        assert_eq!(journal.may_say("beta", later), Some(1000 - u64::from(LINES)));
        assert_eq!(journal.may_say("beta", later), Some(0), "it was said");
    }
}
