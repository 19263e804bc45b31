//! The certificate of a node: what the cluster says of one key.
//!
//! ```text
//!   version 1 │ key 32 │ from 8 │ until 8 │ name │ number of groups 1 │ groups… │ signature 64
//!                                           └ each text: length 1, bytes
//! ```
//!
//! Numbers are little-endian. There is one form only of what is said: groups are in order, each
//! once, and nothing follows the signature.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use super::UnixTime;
use super::key::{ClusterKey, SIGNATURE_BYTES, SigningKey};
use super::sealed::{NotSealed, Reader, Signature, bytes_of, letters};
use crate::node_key::{KEY_BYTES, PublicKey};
use crate::quantity::Period;
use crate::validate::{NAME_MAX, check_node_name};

/// Most groups of one node.
pub const GROUPS_MAX: usize = 8;

/// Longest certificate in bytes.
pub const CERTIFICATE_BYTES_MAX: usize =
    1 + KEY_BYTES + 8 + 8 + (1 + NAME_MAX) * (1 + GROUPS_MAX) + 1 + SIGNATURE_BYTES;

const VERSION: u8 = 1;
const KIND: &str = "piped node certificate";
const NO_CERTIFICATE: NotSealed = NotSealed::no("certificate of a node");

/// What a certificate says: whose key it is, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Key that the node proves.
    pub key: PublicKey,
    /// Name that the node has.
    pub name: String,
    /// Groups that the node is in, in order, each once.
    pub groups: Vec<String>,
    /// The time from which the certificate counts.
    pub from: UnixTime,
    /// The time from which it counts no more.
    pub until: UnixTime,
}

/// A certificate: what was said, and the signature. That it was read proves nothing; see
/// [`Self::check`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeCertificate {
    subject: Subject,
    signature: Signature,
}

/// Why a certificate does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// No trusted key has signed it.
    #[error("no key of [cluster] signed it; compare `keys` there on both nodes")]
    Stranger,
    /// The time of the certificate has not begun.
    #[error("it counts in {0} s only: compare the clocks of both nodes, and of the one that signs")]
    Early(u64),
    /// The time of the certificate is over.
    #[error("it expired {0} s ago; renew it: `pipectl cluster show` there says how")]
    Late(u64),
    /// The key that it is for counts no more.
    #[error("its key was revoked")]
    Revoked,
    /// The certificate is for another key than the one that was proved.
    #[error("it is for another key")]
    OtherKey,
    /// The certificate is for another node than the one that was asked for.
    #[error("it is for the node {0:?}")]
    OtherName(String),
    /// What was shown is no certificate.
    #[error("what it shows {0}")]
    Unreadable(NotSealed),
}

/// A certificate counts from so many seconds ago: calendars differ.
const BACKDATED: u64 = 300;

impl Subject {
    /// What is said of a node from now on, for so long.
    #[must_use]
    pub fn new(
        (key, name): (PublicKey, &str),
        groups: Vec<String>,
        now: UnixTime,
        validity: Period,
    ) -> Self {
        let from = UnixTime(now.0.saturating_sub(BACKDATED));
        Self { key, name: name.to_owned(), groups, from, until: now.after(validity) }
    }

    /// When the last third of the time begins, in which a certificate is to be renewed.
    #[must_use]
    pub const fn begin_of_last_third(&self) -> UnixTime {
        let whole = self.until.since(self.from).saturating_sub(BACKDATED);
        UnixTime(self.until.0 - whole / 3)
    }

    /// Whether the last third of the time has begun, and is not over.
    #[must_use]
    pub fn is_in_last_third(&self, now: UnixTime) -> bool {
        (self.begin_of_last_third()..self.until).contains(&now)
    }

    fn check(&self) -> Result<(), String> {
        check_node_name(&self.name)?;
        for group in &self.groups {
            check_node_name(group).map_err(|why| format!("a group is named like a node; {why}"))?;
        }
        if self.groups.len() > GROUPS_MAX {
            return Err(format!("a node is in {GROUPS_MAX} groups at most"));
        }
        if !self.groups.is_sorted_by(|one, next| one < next) {
            return Err("groups are in order, each once".to_owned());
        }
        match self.from < self.until {
            true => Ok(()),
            false => Err("it would end before it begins".to_owned()),
        }
    }

    fn body(&self) -> Vec<u8> {
        let mut body = vec![VERSION];
        body.extend(self.key.as_bytes());
        body.extend(self.from.0.to_le_bytes());
        body.extend(self.until.0.to_le_bytes());
        let mut text = |text: &str| {
            // Names have lengths that were checked.
            body.push(text.len() as u8);
            body.extend(text.as_bytes());
        };
        text(&self.name);
        let mut groups = vec![self.groups.len() as u8];
        for group in &self.groups {
            groups.push(group.len() as u8);
            groups.extend(group.as_bytes());
        }
        body.extend(groups);
        body
    }
}

impl NodeCertificate {
    /// Signs what is said of a node. Groups may come in any order.
    ///
    /// # Errors
    /// A name, a number or a time that no certificate can have.
    pub fn issue(mut subject: Subject, by: &SigningKey) -> Result<Self, String> {
        subject.groups.sort();
        subject.groups.dedup();
        subject.check()?;
        let signature = Signature::of(KIND, &subject.body(), by);
        Ok(Self { subject, signature })
    }

    /// Reads the bytes of a certificate. Whether it counts is another question.
    ///
    /// # Errors
    /// It is none, or of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotSealed> {
        let read = || {
            let mut reader = Reader::of(bytes);
            let version = reader.byte()?;
            let key = PublicKey::new(reader.array()?);
            let (from, until) = (UnixTime(reader.number()?), UnixTime(reader.number()?));
            let name = reader.text()?.to_owned();
            let count = usize::from(reader.byte()?);
            let groups = (0..count.min(GROUPS_MAX + 1)).map(|_| reader.text().map(str::to_owned));
            let groups = groups.collect::<Option<Vec<_>>>()?;
            let subject = Subject { key, name, groups, from, until };
            let signature = reader.signature()?;
            let is_whole = version == VERSION && reader.is_at_end() && subject.check().is_ok();
            is_whole.then_some(Self { subject, signature })
        };
        read().ok_or(NO_CERTIFICATE)
    }

    /// The bytes of the certificate.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.subject.body();
        bytes.extend(self.signature.bytes());
        bytes
    }

    /// Whether the certificate was signed after another one, or at the same time for longer.
    #[must_use]
    pub fn is_later_than(&self, other: &Self) -> bool {
        let order = |it: &Self| (it.subject.from, it.subject.until);
        order(self) > order(other)
    }

    /// The signature, which no two certificates share.
    #[must_use]
    pub const fn signature(&self) -> [u8; SIGNATURE_BYTES] {
        *self.signature.bytes()
    }

    /// What the certificate says, whether it counts or not.
    #[must_use]
    pub const fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Whether the certificate counts now, for a node that trusts these keys.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check(&self, keys: &[ClusterKey], now: UnixTime) -> Result<(), CertificateFault> {
        self.check_time(now)?;
        match self.signature.is_by(KIND, &self.subject.body(), keys) {
            true => Ok(()),
            false => Err(CertificateFault::Stranger),
        }
    }

    /// Whether now is a time at which the certificate counts.
    ///
    /// # Errors
    /// By how much it is too early or too late.
    pub fn check_time(&self, now: UnixTime) -> Result<(), CertificateFault> {
        let Subject { from, until, .. } = self.subject;
        match (now < from, now >= until) {
            (true, _) => Err(CertificateFault::Early(from.since(now))),
            (_, true) => Err(CertificateFault::Late(now.since(until))),
            _ => Ok(()),
        }
    }
}

impl FromStr for NodeCertificate {
    type Err = NotSealed;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = bytes_of(text, CERTIFICATE_BYTES_MAX).ok_or(NO_CERTIFICATE)?;
        Self::from_bytes(&bytes)
    }
}

impl fmt::Display for NodeCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&letters(&self.to_bytes()))
    }
}

impl TryFrom<String> for NodeCertificate {
    type Error = NotSealed;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<NodeCertificate> for String {
    fn from(certificate: NodeCertificate) -> Self {
        certificate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKey;

    fn subject(groups: &[&str]) -> Subject {
        Subject {
            key: NodeKey::generate().expect("random").public(),
            name: "beta".to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            from: UnixTime(100),
            until: UnixTime(200),
        }
    }

    fn signing() -> SigningKey {
        SigningKey::generate().expect("random")
    }

    #[test]
    fn what_is_signed_is_read_back_and_counts_in_its_time_for_those_that_trust_the_key() {
        let (by, other) = (signing(), signing());
        let issued = NodeCertificate::issue(subject(&["web", "disk", "web"]), &by).expect("sound");
        assert_eq!(issued.subject().groups, ["disk", "web"]);
        let read: NodeCertificate = issued.to_string().parse().expect("a certificate");
        assert_eq!(read, issued);
        let keys = [other.public(), by.public()];
        for (now, right) in [
            (99, Err(CertificateFault::Early(1))),
            (100, Ok(())),
            (199, Ok(())),
            (200, Err(CertificateFault::Late(0))),
        ] {
            assert_eq!(read.check(&keys, UnixTime(now)), right);
        }
        for keys in [&[][..], &[other.public()]] {
            assert_eq!(read.check(keys, UnixTime(150)), Err(CertificateFault::Stranger));
        }
    }

    #[test]
    fn a_certificate_is_renewed_in_the_last_third_of_its_time() {
        let (key, now) = (NodeKey::generate().expect("random").public(), UnixTime(1000));
        let subject = Subject::new((key, "beta"), Vec::new(), now, Period::seconds(300));
        assert_eq!((subject.from, subject.until), (UnixTime(700), UnixTime(1300)));
        let is_due = |now| subject.is_in_last_third(UnixTime(now));
        assert_eq!([900, 1199, 1200, 1299, 1300].map(is_due), [false, false, true, true, false]);
    }

    #[test]
    fn every_bit_counts() {
        let by = signing();
        let issued = NodeCertificate::issue(subject(&["disk"]), &by).expect("sound");
        let bytes = issued.to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let Ok(read) = NodeCertificate::from_bytes(&changed) else { continue };
            let now = read.subject().from;
            assert_eq!(read.check(&[by.public()], now), Err(CertificateFault::Stranger), "{bit}");
        }
        for length in 0..bytes.len() {
            assert!(NodeCertificate::from_bytes(&bytes[..length]).is_err(), "{length}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(NodeCertificate::from_bytes(&longer).is_err());
    }

    #[test]
    fn the_longest_certificate_fits_and_what_is_no_node_is_not_signed() {
        let long = |letter: char| letter.to_string().repeat(NAME_MAX);
        let groups: Vec<String> = ('a'..).take(GROUPS_MAX).map(long).collect();
        let most = Subject { name: long('n'), groups, ..subject(&[]) };
        let issued = NodeCertificate::issue(most.clone(), &signing()).expect("sound");
        assert_eq!(issued.to_bytes().len(), CERTIFICATE_BYTES_MAX);
        assert!(issued.to_string().parse::<NodeCertificate>().is_ok());
        let more = Subject { groups: [most.groups.clone(), vec![long('z')]].concat(), ..most };
        for wrong in [
            more,
            subject(&["a b"]),
            subject(&[""]),
            Subject { name: "../beta".to_owned(), ..subject(&[]) },
            Subject { until: UnixTime(100), ..subject(&[]) },
        ] {
            assert!(NodeCertificate::issue(wrong.clone(), &signing()).is_err(), "{wrong:?}");
        }
    }
}
