//! Questions to an etcd and its answers, as its JSON gateway writes them: bytes in base64, numbers
//! of 64 bits as text, zeros left out.
//!
//! Fields: <https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/>, rpc.proto of etcd 3.4.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes of keys and values.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Octets(pub(super) Vec<u8>);

impl Serialize for Octets {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Octets {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        BASE64_STANDARD.decode(text).map(Self).map_err(de::Error::custom)
    }
}

/// Number of 64 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(pub(super) i64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

/// What an etcd says that it does not do, and why.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    message: String,
    error: serde_json::Value,
}

impl Refusal {
    pub(super) fn into_words(self) -> String {
        let error = &self.error;
        let inner = error.as_str().or_else(|| error.get("message")?.as_str());
        let words =
            if self.message.is_empty() { inner.unwrap_or("no reason") } else { &self.message };
        words.to_owned()
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Authenticate<'a> {
    pub(super) name: &'a str,
    pub(super) password: &'a str,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Authenticated {
    pub(super) token: String,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) revision: Number,
}

/// Keys from `key` up to `range_end`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Range {
    pub(super) key: Octets,
    pub(super) range_end: Octets,
    pub(super) limit: Number,
    /// State that is read; 0 for the last one.
    pub(super) revision: Number,
    pub(super) count_only: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ranged {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
    pub(super) more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) key: Octets,
    pub(super) value: Octets,
}

#[derive(Debug, Serialize)]
pub(super) struct Put {
    pub(super) key: Octets,
    pub(super) value: Octets,
    pub(super) lease: Number,
}

/// Answer of which nothing is needed.
#[derive(Debug, Deserialize)]
pub(super) struct Done {}

#[derive(Debug, Serialize)]
pub(super) struct Grant {
    #[serde(rename = "TTL")]
    pub(super) seconds: Number,
}

/// Lease, in questions and in answers.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Lease {
    #[serde(rename = "ID")]
    pub(super) id: Number,
    /// Seconds that it lives; none left if it is lost.
    #[serde(rename = "TTL", skip_serializing)]
    pub(super) seconds: Number,
}

/// Answer of a service that streams: one line.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound = "T: Default + Deserialize<'de>")]
pub(super) struct Streamed<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<Refusal>,
}

#[derive(Debug, Serialize)]
pub(super) struct Watch {
    pub(super) create_request: WatchFrom,
}

#[derive(Debug, Serialize)]
pub(super) struct WatchFrom {
    pub(super) key: Octets,
    pub(super) range_end: Octets,
    pub(super) start_revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Watched {
    pub(super) events: Vec<Event>,
    /// The watch is over: what it was to begin with is compacted, or the server wants it so.
    pub(super) canceled: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event {
    /// `PUT`, which is left out, or `DELETE`.
    #[serde(rename = "type")]
    kind: String,
    pub(super) kv: KeyValue,
}

impl Event {
    pub(super) fn is_removal(&self) -> bool {
        self.kind == "DELETE"
    }
}

/// The end of all keys that begin so: the prefix with its last byte one higher.
pub(super) fn end_of(prefix: &[u8]) -> Octets {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return Octets(end);
        }
    }
    // All keys there are.
    Octets(vec![0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_an_etcd_writes_them() {
        let text = r#"{"header":{"cluster_id":"14841639068965178418","revision":"7"},
            "kvs":[{"key":"L2E=","create_revision":"2","value":"eA=="}],"more":true,"count":"9"}"#;
        let ranged: Ranged = serde_json::from_str(text).expect("as it writes them");
        assert_eq!((ranged.header.revision, ranged.more), (Number(7), true));
        assert_eq!(ranged.kvs[0].key, Octets(b"/a".to_vec()));
        let text = r#"{"result":{"header":{"revision":"8"},"events":[{"kv":{"key":"L2E="}},
            {"type":"DELETE","kv":{"key":"L2I=","mod_revision":"8"}}]}}"#;
        let watched: Streamed<Watched> = serde_json::from_str(text).expect("as it writes them");
        let events = watched.result.expect("events").events;
        assert_eq!([0, 1].map(|at| events[at].is_removal()), [false, true]);
        let text =
            r#"{"result":{"header":{"revision":"9"},"canceled":true,"compact_revision":"8"}}"#;
        let watched: Streamed<Watched> = serde_json::from_str(text).expect("as it writes them");
        assert!(watched.result.expect("an end").canceled);
        for text in [
            r#"{"error":"etcdserver: invalid auth token","code":16,"message":"etcdserver: x"}"#,
            r#"{"error":{"grpc_code":14,"message":"etcdserver: x"}}"#,
            r#"{"error":"etcdserver: x"}"#,
        ] {
            let refusal: Refusal = serde_json::from_str(text).expect("as it writes them");
            assert_eq!(refusal.into_words(), "etcdserver: x");
        }
        let lease: Lease = serde_json::from_str(r#"{"ID":"5"}"#).expect("a lease that is lost");
        assert_eq!((lease.id, lease.seconds), (Number(5), Number(0)));
        assert_eq!(serde_json::to_string(&lease).expect("plain"), r#"{"ID":"5"}"#);
    }

    #[test]
    fn a_prefix_has_an_end() {
        assert_eq!(end_of(b"/piped/"), Octets(b"/piped0".to_vec()));
        assert_eq!(end_of(b"a\xff"), Octets(b"b".to_vec()));
        assert_eq!(end_of(b"\xff"), Octets(vec![0]));
    }
}
