//! What is asked of an etcd, and its answers, as its JSON gateway writes them: bytes in base64,
//! numbers of 64 bits as text, zeros left out.
//!
//! Fields: <https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/>, rpc.proto of etcd 3.4.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Fault;
use super::http::{Connection, Lines, Refusal};

/// Most entries of one answer, of which each has 4 KiB at most if it is a node.
pub(super) const PAGE_MAX: i64 = 256;

/// A key and its value.
pub(super) type Entry = (Vec<u8>, Vec<u8>);
/// A key and its new value; none if it was removed.
pub(super) type Change = (Vec<u8>, Option<Vec<u8>>);

/// Becomes a user: the token of its requests.
pub(super) async fn authenticate(
    line: &mut Connection,
    name: &str,
    password: &str,
) -> Result<String, Fault> {
    let Authenticated { token } =
        line.ask("/v3/auth/authenticate", &Authenticate { name, password }).await?;
    Ok(token)
}

/// Takes a lease of so many seconds: its number.
pub(super) async fn grant(line: &mut Connection, seconds: u64) -> Result<i64, Fault> {
    let seconds = Number(i64::try_from(seconds).unwrap_or(i64::MAX));
    let lease: Lease = line.ask("/v3/lease/grant", &Grant { seconds }).await?;
    Ok(lease.id.0)
}

/// Keeps a lease. Whether it was still there.
pub(super) async fn renew(line: &mut Connection, lease: i64) -> Result<bool, Fault> {
    let question = Lease { id: Number(lease), ..Lease::default() };
    let answer: Streamed<Lease> = line.ask("/v3/lease/keepalive", &question).await?;
    Ok(answer.into_result()?.seconds > Number(0))
}

/// Writes an entry that ends with a lease.
pub(super) async fn put(
    line: &mut Connection,
    (key, value): Entry,
    lease: i64,
) -> Result<(), Fault> {
    let question = Put { key: Octets(key), value: Octets(value), lease: Number(lease) };
    let Done {} = line.ask("/v3/kv/put", &question).await?;
    Ok(())
}

/// Asks for nothing but an answer.
pub(super) async fn touch(line: &mut Connection, prefix: &[u8]) -> Result<(), Fault> {
    let range = Range { count_only: true, ..Range::of(prefix.to_vec(), prefix, 0) };
    let Ranged { .. } = line.ask("/v3/kv/range", &range).await?;
    Ok(())
}

/// Reads the next `most` entries that begin with a prefix, of one state (0 for the last one): the
/// number of that state, the entries, and whether there are more.
pub(super) async fn read(
    line: &mut Connection,
    (from, prefix): (Vec<u8>, &[u8]),
    most: i64,
    revision: i64,
) -> Result<(i64, Vec<Entry>, bool), Fault> {
    let range = Range { limit: Number(most), ..Range::of(from, prefix, revision) };
    let Ranged { header, kvs, more } = line.ask("/v3/kv/range", &range).await?;
    let revision = if revision == 0 { header.revision.0 } else { revision };
    Ok((revision, kvs.into_iter().map(|it| (it.key.0, it.value.0)).collect(), more))
}

/// Changes of entries, as they come.
pub(super) struct Watching(Lines);

impl Watching {
    /// Begins with the first change after a state.
    pub(super) async fn after(
        connection: Connection,
        prefix: &[u8],
        revision: i64,
    ) -> Result<Self, Fault> {
        let next = revision.checked_add(1).filter(|next| *next > 0);
        let next = next.ok_or_else(|| Fault::Odd(format!("a state has the number {revision}")))?;
        let (key, range_end) = (Octets(prefix.to_vec()), end_of(prefix));
        // Changes of one state may be many: they come in parts of 1.5 MiB.
        let (start_revision, fragment) = (Number(next), true);
        let create_request = WatchFrom { key, range_end, start_revision, fragment };
        connection.listen("/v3/watch", &Watch { create_request }).await.map(Self)
    }

    /// The next changes; none if what it was to begin with is compacted, or the server wants an
    /// end. What came of them stays if this future is dropped.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Change>>, Fault> {
        let answer: Streamed<Watched> = self.0.next().await?;
        let Watched { events, canceled } = answer.into_result()?;
        Ok((!canceled).then(|| events.into_iter().map(Event::into_change).collect()))
    }
}

/// Bytes of keys and values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Octets(Vec<u8>);

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
struct Number(i64);

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

#[derive(Debug, Serialize)]
struct Authenticate<'a> {
    name: &'a str,
    password: &'a str,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Authenticated {
    token: String,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
struct Header {
    revision: Number,
}

/// Keys from `key` up to `range_end`.
#[derive(Debug, Clone, Serialize)]
struct Range {
    key: Octets,
    range_end: Octets,
    limit: Number,
    revision: Number,
    count_only: bool,
}

impl Range {
    fn of(from: Vec<u8>, prefix: &[u8], revision: i64) -> Self {
        let (key, range_end) = (Octets(from), end_of(prefix));
        let (limit, revision, count_only) = (Number(PAGE_MAX), Number(revision), false);
        Self { key, range_end, limit, revision, count_only }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ranged {
    header: Header,
    kvs: Vec<KeyValue>,
    more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeyValue {
    key: Octets,
    value: Octets,
}

#[derive(Debug, Serialize)]
struct Put {
    key: Octets,
    value: Octets,
    lease: Number,
}

/// Answer of which nothing is needed.
#[derive(Debug, Deserialize)]
struct Done {}

#[derive(Debug, Serialize)]
struct Grant {
    #[serde(rename = "TTL")]
    seconds: Number,
}

/// Lease, in questions and in answers.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Lease {
    #[serde(rename = "ID")]
    id: Number,
    /// Seconds that it lives; none left if it is lost.
    #[serde(rename = "TTL", skip_serializing)]
    seconds: Number,
}

/// Answer of a service that streams: one line.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound = "T: Default + Deserialize<'de>")]
struct Streamed<T> {
    result: T,
    error: Option<Refusal>,
}

impl<T> Streamed<T> {
    fn into_result(self) -> Result<T, Fault> {
        match self.error {
            Some(error) => Err(Fault::Refused(error.into_words())),
            None => Ok(self.result),
        }
    }
}

#[derive(Debug, Serialize)]
struct Watch {
    create_request: WatchFrom,
}

#[derive(Debug, Serialize)]
struct WatchFrom {
    key: Octets,
    range_end: Octets,
    start_revision: Number,
    fragment: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Watched {
    events: Vec<Event>,
    canceled: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    /// `PUT`, which is left out, or `DELETE`.
    #[serde(rename = "type")]
    kind: String,
    kv: KeyValue,
}

impl Event {
    fn into_change(self) -> Change {
        let Self { kind, kv: KeyValue { key, value } } = self;
        (key.0, (kind != "DELETE").then_some(value.0))
    }
}

/// The end of all keys that begin so: the prefix with its last byte one higher.
fn end_of(prefix: &[u8]) -> Octets {
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
        let watched = |text: &str| {
            let answer: Streamed<Watched> = serde_json::from_str(text).expect("as it writes them");
            answer.into_result().expect("no refusal")
        };
        let text = r#"{"result":{"header":{"revision":"8"},"events":[{"kv":{"key":"L2E="}},
            {"type":"DELETE","kv":{"key":"L2I=","mod_revision":"8"}}]}}"#;
        let changes = watched(text).events.into_iter().map(Event::into_change);
        let expected = [(b"/a".to_vec(), Some(Vec::new())), (b"/b".to_vec(), None)];
        assert_eq!(changes.collect::<Vec<_>>(), expected);
        let text = r#"{"result":{"canceled":true,"compact_revision":"8"}}"#;
        assert!(watched(text).canceled);
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
