//! Sources that say where nodes are, and what this node says of itself.

use core::fmt;
use core::str::FromStr;
use std::net::SocketAddr;
use std::path::PathBuf;

use piped_core::link::Dialling;
use serde::{Deserialize, Serialize};

use crate::network::HostPort;
use crate::quantity::Period;

/// Table `[discovery]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Discovery {
    /// Directory of files `NAME.toml` that say where nodes are; empty for none. They give a peer
    /// with a key and without an address its address.
    pub files: PathBuf,
    /// Name of SRV records that say where nodes are; empty for none.
    pub dns: String,
    /// Name servers that are asked for the records; empty for those of the system.
    pub dns_servers: Vec<SocketAddr>,
    /// When there are connections to peers whose address is found.
    pub connect: Dialling,
    /// Addresses at which this node says that it is, the second by way of another link; empty for
    /// that of `[listen]`.
    pub advertise: Vec<HostPort>,
    /// The etcd in which nodes write where they are.
    pub etcd: Etcd,
}

impl Discovery {
    /// Whether anything says where nodes are.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.files.as_os_str().is_empty()
            || !self.dns.is_empty()
            || !self.etcd.endpoints.is_empty()
    }

    /// Addresses that a node publishes that listens there: none if it listens nowhere.
    #[must_use]
    pub fn advertised(&self, listen: Option<SocketAddr>) -> Vec<HostPort> {
        if !self.advertise.is_empty() {
            return self.advertise.clone();
        }
        let address = listen.filter(|address| !address.ip().is_unspecified());
        address.and_then(|it| it.to_string().parse().ok()).into_iter().collect()
    }
}

impl Default for Discovery {
    fn default() -> Self {
        Self {
            files: PathBuf::new(),
            dns: String::new(),
            dns_servers: Vec::new(),
            connect: Dialling::Used,
            advertise: Vec::new(),
            etcd: Etcd::default(),
        }
    }
}

/// Table `[discovery.etcd]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Etcd {
    /// URLs of its members; empty for none. The first that answers is used.
    pub endpoints: Vec<Endpoint>,
    /// Beginning of keys: a node is at the prefix with its name behind it.
    pub prefix: String,
    /// User of the etcd that this node is; empty for none.
    pub user: String,
    /// File with the user's password.
    pub password_file: PathBuf,
    /// File with the certificates (PEM) that vouch for those of its members, for https.
    pub ca_file: PathBuf,
    /// File with a certificate (PEM) of this node for members that want one; empty for none.
    pub certificate_file: PathBuf,
    /// File with the key (PEM) of that certificate.
    pub key_file: PathBuf,
    /// Time after which a node that died is named no more.
    pub lease: Period,
}

impl Default for Etcd {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            prefix: "/piped/nodes/".to_owned(),
            user: String::new(),
            password_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            certificate_file: PathBuf::new(),
            key_file: PathBuf::new(),
            lease: Period::seconds(10),
        }
    }
}

/// URL of a member of an etcd: `http://host:port`, or with `https`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    is_secure: bool,
    at: HostPort,
}

/// Text that is not the URL of a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a URL of a member of an etcd: write it as in https://10.9.0.9:2379")]
pub struct NoEndpoint(String);

impl Endpoint {
    /// Whether the connection is TLS.
    #[must_use]
    pub const fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Address to connect to.
    #[must_use]
    pub const fn at(&self) -> &HostPort {
        &self.at
    }

    /// Name or IP address of the host.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.at.as_str().rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether nobody else reads what is sent there.
    pub(crate) fn keeps_secrets(&self) -> bool {
        let address = self.host().parse::<std::net::IpAddr>();
        self.is_secure
            || self.host() == "localhost"
            || address.is_ok_and(|address| address.is_loopback())
    }
}

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NoEndpoint(text.to_owned());
        let (is_secure, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err(wrong()),
        };
        let at: HostPort = rest.trim_end_matches('/').parse().map_err(|_| wrong())?;
        if at.is_empty() {
            return Err(wrong());
        }
        Ok(Self { is_secure, at })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_secure { "https" } else { "http" }, self.at)
    }
}

impl TryFrom<String> for Endpoint {
    type Error = NoEndpoint;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    /// The key of the first setting that is wrong.
    fn fault(change: impl FnOnce(&mut Discovery)) -> Option<String> {
        fault_of(None, change)
    }

    fn fault_of(listen: Option<SocketAddr>, change: impl FnOnce(&mut Discovery)) -> Option<String> {
        let mut config = Config::default();
        (config.listen.address, config.listen.allow_plain) = (listen, Vec::new());
        config.discovery.etcd.endpoints = vec!["http://10.9.0.9:2379".parse().expect("a URL")];
        change(&mut config.discovery);
        config.validate().err().map(|fault| fault.key)
    }

    #[test]
    fn what_belongs_together_is_set_together() {
        let wrong = |key: &str| Some(format!("discovery.{key}"));
        let path = |name: &str| PathBuf::from(name);
        let https = || "https://etcd.example:2379".parse().expect("a URL");
        let user = |it: &mut Discovery| {
            (it.etcd.user, it.etcd.password_file) = ("piped".to_owned(), path("/p"));
        };
        assert_eq!(fault(|_| ()), None);
        assert_eq!(fault(|it| it.etcd.endpoints.push(https())), wrong("etcd.ca_file"));
        assert_eq!(fault(|it| it.etcd.certificate_file = path("/c")), wrong("etcd.key_file"));
        assert_eq!(fault(|it| it.etcd.password_file = path("/p")), wrong("etcd.password_file"));
        assert_eq!(fault(user), wrong("etcd.user"), "it would go in the clear");
        let private = fault(|it| {
            user(it);
            it.etcd.endpoints = vec!["http://[::1]:2379".parse().expect("a URL"), https()];
            it.etcd.ca_file = path("/ca");
        });
        assert_eq!(private, None);
        assert_eq!(fault(|it| it.etcd.lease = Period::seconds(1)), wrong("etcd.lease"));
        assert_eq!(fault(|it| it.etcd.prefix.clear()), wrong("etcd.prefix"));
        assert_eq!(fault(|it| it.dns = "a b".to_owned()), wrong("dns"));
        assert_eq!(fault(|it| it.files = path("here")), wrong("files"));
    }

    #[test]
    fn a_node_that_listens_everywhere_says_where_others_find_it() {
        let at = |text: &str| Some(text.parse().expect("an address"));
        let told = |all: &[&str]| -> Vec<HostPort> {
            all.iter().map(|it| it.parse().expect("an address")).collect()
        };
        let wrong = Some("discovery.advertise".to_owned());
        assert_eq!(fault_of(at("0.0.0.0:7440"), |_| ()), wrong);
        let two = told(&["10.9.0.2:7440", "node.example:7440"]);
        assert_eq!(fault_of(at("0.0.0.0:7440"), |it| it.advertise = two.clone()), None);
        assert_eq!(fault(|it| it.advertise = told(&["a:1", "b:1", "c:1"])), wrong);
        let own = Discovery::default().advertised(at("10.9.0.2:7440"));
        assert_eq!(own, told(&["10.9.0.2:7440"]));
        assert_eq!(Discovery::default().advertised(None), []);
        let named = Discovery { advertise: two.clone(), ..Discovery::default() };
        assert_eq!(named.advertised(at("0.0.0.0:7440")), two);
    }

    #[test]
    fn urls_of_members_are_read_and_written() {
        for text in ["http://h:1", "https://[fd00::2]:2379"] {
            let endpoint: Endpoint = text.parse().expect("a URL");
            assert_eq!(endpoint.to_string(), text);
        }
        let endpoint: Endpoint = "https://[fd00::2]:2379/".parse().expect("a URL");
        assert_eq!((endpoint.host(), endpoint.is_secure()), ("fd00::2", true));
        for text in ["", "h:1", "http://", "ftp://h:1", "http://h", "http://h:0", "http://h:1/x"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
