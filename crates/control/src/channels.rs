//! The channels that local clients receive on, by name.

use std::collections::BTreeMap;

use piped_config::admin::watch::ChannelReport;
use piped_core::ids::{ChannelId, SessionId};
use piped_core::status::Status;

use crate::fault::OpenFault;
use crate::owners::Owners;

/// A channel somebody receives on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelSource {
    /// The identity of the channel.
    pub channel: ChannelId,
    /// The session that receives.
    pub owner: SessionId,
    /// The shard that serves the owner, which alone decides the order.
    pub home: usize,
    /// Whether this end of the channel receives.
    pub receives: bool,
}

/// All channels. Names are unique on the node.
#[derive(Debug, Default)]
pub struct Channels {
    by_name: BTreeMap<String, ChannelSource>,
    owners: Owners,
    last: u32,
}

impl Channels {
    /// A client receives under this name from now on.
    ///
    /// # Errors
    /// The name is empty or taken.
    pub fn offer(
        &mut self,
        name: &str,
        owner: SessionId,
        home: usize,
    ) -> Result<ChannelSource, OpenFault> {
        if name.is_empty() {
            return Err(OpenFault::new(Status::Invalid, "a channel needs a name"));
        }
        if self.by_name.contains_key(name) {
            let text = format!("the channel name `{name}` is taken on this node; choose another");
            return Err(OpenFault::new(Status::WouldBlock, text));
        }
        // Not used twice before all others were: a handle that is closed late names nothing else.
        self.last = self.last.wrapping_add(1);
        let source = ChannelSource { channel: ChannelId(self.last), owner, home, receives: true };
        self.by_name.insert(name.to_owned(), source);
        self.owners.add(owner);
        Ok(source)
    }

    /// On how many each session receives; those on none are left out.
    pub fn owners(&self) -> impl Iterator<Item = (SessionId, u32)> {
        self.owners.iter()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.by_name.len() as u64
    }

    /// Looks a channel up for a sender.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn find(&self, name: &str) -> Result<ChannelSource, OpenFault> {
        let source = self.by_name.get(name).ok_or_else(|| {
            OpenFault::new(Status::NotFound, format!("no channel `{name}` on this node"))
        })?;
        Ok(ChannelSource { receives: false, ..*source })
    }

    /// The name of a channel, if somebody still receives on it.
    #[must_use]
    pub fn name_of(&self, channel: ChannelId) -> Option<&str> {
        let mut names = self.by_name.iter();
        names.find(|(_, source)| source.channel == channel).map(|(name, _)| name.as_str())
    }

    /// Takes a channel back.
    pub fn withdraw(&mut self, channel: ChannelId) {
        let mut gone = self.by_name.extract_if(.., |_, source| source.channel == channel);
        if let Some((_, source)) = gone.next() {
            self.owners.sub(source.owner);
        }
    }

    /// Takes all channels of a session back.
    pub fn withdraw_all(&mut self, owner: SessionId) {
        self.by_name.retain(|_, source| source.owner != owner);
        self.owners.leave(owner);
    }

    /// All channels, by name, for the admin API.
    #[must_use]
    pub fn report(&self) -> Vec<ChannelReport> {
        let report = |(name, source): (&String, &ChannelSource)| ChannelReport {
            name: name.clone(),
            session: source.owner.0,
        };
        let mut channels: Vec<ChannelReport> = self.by_name.iter().map(report).collect();
        channels.sort_by(|a, b| a.name.cmp(&b.name));
        channels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: SessionId = SessionId(3);

    #[test]
    fn a_name_is_taken_until_its_channel_is_closed() {
        let mut channels = Channels::default();
        let first = channels.offer("mail", OWNER, 0).expect("free");
        let taken = channels.offer("mail", SessionId(4), 0).expect_err("taken");
        assert!(taken.status == Status::WouldBlock && taken.text.contains("choose another"));
        channels.withdraw(first.channel);
        let next = channels.offer("mail", SessionId(4), 0).expect("free again");
        assert_ne!(next.channel, first.channel);
        assert_eq!(channels.name_of(next.channel), Some("mail"));
        assert_eq!(channels.name_of(first.channel), None);
        // The close of the old one comes late.
        channels.withdraw(first.channel);
        assert!(channels.find("mail").is_ok());
        channels.withdraw_all(SessionId(4));
        assert_eq!(channels.find("mail").expect_err("gone").status, Status::NotFound);
    }

    #[test]
    fn senders_get_the_other_end_and_where_the_receiver_is() {
        let mut channels = Channels::default();
        assert_eq!(channels.offer("", OWNER, 0).expect_err("no name").status, Status::Invalid);
        let source = channels.offer("mail", OWNER, 1).expect("free");
        let found = channels.find("mail").expect("there");
        assert_eq!(found, ChannelSource { receives: false, ..source });
        assert_eq!((found.home, found.owner), (1, OWNER));
    }
}
