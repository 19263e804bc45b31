//! SRV records of a name service as a source of discovery.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData, Record};
use piped_config::{Found, NetworkError, check_node_name};
use piped_control::discovery::NODES_MAX;

use super::{Ear, Said};

/// The records are asked for no more often than this, and no less. A time to live between the two
/// is kept.
const EVERY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3600)];

/// Most records that are looked at: a node has two.
const RECORDS_MAX: usize = 2 * NODES_MAX;
/// When to ask again where nobody answered, or where there are no records.
const AGAIN: Duration = Duration::from_secs(2);
/// A name server has so long to answer with the records.
const PATIENCE: Duration = Duration::from_secs(15);
/// Addresses of targets that did not come with the records are looked up for so long, each for so
/// long, and so many of them.
const LOOKUPS_TIME: Duration = Duration::from_secs(20);
const LOOKUP_TIME: Duration = Duration::from_secs(3);
const LOOKUPS_MAX: usize = 512;

/// Asks for the records again and again.
pub(super) async fn follow(mut ear: Ear, name: String, servers: Vec<SocketAddr>) {
    loop {
        let (said, lives) = match look(&name, &servers).await {
            Ok(Some(Looked { records, hosts, lives })) => (nodes(records, &hosts), lives),
            Err(error) if error.is_no_records_found() => (nodes(Vec::new(), &[].into()), AGAIN),
            Err(error) => (Said::away(&format!("{name} is not to be had: {error}")), AGAIN),
            Ok(None) => (Said::away(&format!("{name} takes too long")), AGAIN),
        };
        ear.take(said).await;
        let [least, most] = EVERY;
        tokio::time::sleep(lives.clamp(least, most)).await;
    }
}

/// Records, with the addresses of their targets.
struct Looked {
    records: Vec<SRV>,
    /// Addresses of the targets that have one.
    hosts: BTreeMap<Name, IpAddr>,
    /// How long the first of it may be believed.
    lives: Duration,
}

/// What there is now; nothing if no answer comes in time.
async fn look(name: &str, servers: &[SocketAddr]) -> Result<Option<Looked>, NetError> {
    // Made anew each time: what another one has in its cache is older than its time to live says,
    // and /etc/resolv.conf changes.
    let resolver = resolver(servers)?;
    let found = tokio::time::timeout(PATIENCE, resolver.srv_lookup(name)).await;
    let Ok(found) = found else { return Ok(None) };
    let found = found?;
    let (mut hosts, mut lives) = (BTreeMap::new(), shortest(found.answers()));
    for record in found.additionals() {
        if let Some(address) = record.data.ip_addr() {
            hosts.entry(record.name.clone()).or_insert(address);
            lives = lives.min(shortest(std::slice::from_ref(record)));
        }
    }
    let records = found.answers().iter().filter_map(|record| match &record.data {
        RData::SRV(record) => Some(record.clone()),
        _ => None,
    });
    let records: Vec<SRV> = records.take(RECORDS_MAX).collect();
    let missing: BTreeSet<&Name> =
        records.iter().map(|it| &it.target).filter(|it| !hosts.contains_key(*it)).collect();
    let missing: Vec<Name> = missing.into_iter().take(LOOKUPS_MAX).cloned().collect();
    let look_up = async {
        for target in missing {
            // A target without an address is no node now; the others are.
            let found = tokio::time::timeout(LOOKUP_TIME, resolver.lookup_ip(target.clone())).await;
            if let Ok(Ok(found)) = found {
                lives = lives.min(shortest(found.as_lookup().answers()));
                hosts.extend(found.iter().next().map(|address| (target, address)));
            }
        }
    };
    // What was not looked up in time has no address now.
    let _ = tokio::time::timeout(LOOKUPS_TIME, look_up).await;
    Ok(Some(Looked { records, hosts, lives }))
}

/// The shortest time to live of some records.
fn shortest(records: &[Record]) -> Duration {
    let seconds = records.iter().map(|record| record.ttl).min().unwrap_or(u32::MAX);
    Duration::from_secs(seconds.into())
}

fn resolver(servers: &[SocketAddr]) -> Result<TokioResolver, NetError> {
    if servers.is_empty() {
        return TokioResolver::builder_tokio()?.build();
    }
    let server = |address: &SocketAddr| {
        let mut server = NameServerConfig::udp_and_tcp(address.ip());
        server.connections.iter_mut().for_each(|connection| connection.port = address.port());
        server
    };
    let servers = servers.iter().map(server).collect();
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).build()
}

/// Nodes of records. A node that has two is reached by way of two links: the first record is that
/// of the least priority.
fn nodes(mut records: Vec<SRV>, hosts: &BTreeMap<Name, IpAddr>) -> Said {
    let (mut nodes, mut wrong) = (BTreeMap::<String, Found>::new(), Vec::new());
    records.sort_by_cached_key(|it| (it.priority, it.target.to_lowercase().to_ascii(), it.port));
    for SRV { target, port, .. } in records {
        let words = target.to_lowercase().to_ascii();
        let name = words.split('.').next().unwrap_or_default();
        let address = hosts.get(&target).ok_or_else(|| "its target has no address".to_owned());
        let address = check_node_name(name).and(address).and_then(|address| {
            let address = SocketAddr::new(*address, port).to_string();
            address.parse().map_err(|error: NetworkError| error.to_string())
        });
        match address {
            Ok(address) => {
                let found = nodes.entry(name.to_owned()).or_default();
                if found.address.is_empty() {
                    found.address = address;
                } else if found.second_address.is_empty() && found.address != address {
                    found.second_address = address;
                }
            }
            Err(why) => wrong.push(format!("the record of {words}:{port}: {why}")),
        }
    }
    Said { nodes: Ok(nodes), wrong, revocations: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_node_and_its_second_one_another_link() {
        let name = |text: &str| -> Name { text.parse().expect("a name") };
        let record = |priority, target: &str, port| SRV::new(priority, 0, port, name(target));
        let records = vec![
            record(10, "beta.slow.example.", 7440),
            record(0, "Beta.example.", 7440),
            record(20, "beta.third.example.", 7440),
            record(0, "gamma.example.", 7441),
            record(0, "gamma.example.", 7441),
            record(0, "away.example.", 7441),
            record(0, "_x.example.", 7441),
            record(0, ".", 7440),
        ];
        let targets = records.iter().map(|it| it.target.clone());
        let hosts = targets.zip(1..).filter(|(target, _)| *target != name("away.example."));
        let hosts = hosts.map(|(target, last)| (target, IpAddr::from([10, 9, 0, last]))).collect();
        let said = nodes(records, &hosts);
        let nodes = said.nodes.expect("it answers");
        let place = |name: &str| {
            let found = &nodes[name];
            [found.address.as_str(), found.second_address.as_str()]
        };
        assert_eq!(place("beta"), ["10.9.0.2:7440", "10.9.0.1:7440"]);
        assert_eq!(place("gamma"), ["10.9.0.5:7441", ""]);
        assert_eq!((nodes.len(), said.wrong.len()), (2, 3), "{:?}", said.wrong);
    }
}
