//! Networks (`10.9.0.0/24`) and addresses to dial (`host:port`).

use core::fmt;
use core::str::FromStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Address that is not well-formed, with the right form.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum NetworkError {
    /// Text that is not an address with a prefix length.
    #[error("`{0}` is not a network: write an address and a prefix length, as in 10.9.0.0/24")]
    Network(String),
    /// Bits set behind the prefix, which is usually a typing mistake.
    #[error("`{given}` has bits set behind the prefix: write {meant}")]
    HostBits {
        /// Text that was written.
        given: String,
        /// Network that contains the address.
        meant: Network,
    },
    /// Text that is not `host:port`.
    #[error(
        "`{0}` is not host:port: write a host name or address and a port, as in 10.9.0.2:7440 or \
         [fd00::2]:7440"
    )]
    HostPort(String),
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether `address` lies in the network. An IPv4 address mapped into IPv6 (`::ffff:a.b.c.d`,
    /// as a dual-stack listener sees its callers) counts as the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        masked(address.to_canonical(), self.prefix) == Some(self.address)
    }
}

/// Clears the bits behind the prefix; none if the prefix is longer than the address.
fn masked(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let host = 32_u32.checked_sub(prefix.into())?;
            let bits = u32::from(v4) & u32::MAX.checked_shl(host).unwrap_or(0);
            Some(Ipv4Addr::from(bits).into())
        }
        IpAddr::V6(v6) => {
            let host = 128_u32.checked_sub(prefix.into())?;
            let bits = u128::from(v6) & u128::MAX.checked_shl(host).unwrap_or(0);
            Some(Ipv6Addr::from(bits).into())
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NetworkError::Network(text.to_owned());
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let given: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let address = masked(given, prefix).ok_or_else(wrong)?;
        let network = Self { address, prefix };
        if given == address {
            Ok(network)
        } else {
            Err(NetworkError::HostBits { given: text.to_owned(), meant: network })
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl TryFrom<String> for Network {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

/// Address to dial: `host:port`, resolved when dialled. Empty text means not set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort(String);

impl HostPort {
    /// Text as it was written, which `ToSocketAddrs` takes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether no address is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for HostPort {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let well_formed = text.is_empty()
            || text.parse::<std::net::SocketAddr>().is_ok()
            || text.rsplit_once(':').is_some_and(|(host, port)| {
                let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
                !host.is_empty()
                    && host.chars().all(name)
                    && port.parse::<u16>().is_ok_and(|port| port != 0)
            });
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            Err(NetworkError::HostPort(text.to_owned()))
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for HostPort {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<HostPort> for String {
    fn from(address: HostPort) -> Self {
        address.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(network: &str, address: &str) -> bool {
        let network: Network = network.parse().expect("a network");
        network.contains(address.parse().expect("an address"))
    }

    #[test]
    fn a_network_contains_its_addresses_only() {
        assert!(inside("10.9.0.0/24", "10.9.0.255"));
        assert!(!inside("10.9.0.0/24", "10.9.1.0"));
        assert!(inside("0.0.0.0/0", "203.0.113.9"));
        assert!(!inside("0.0.0.0/0", "fd00::1"));
        assert!(inside("10.9.0.0/24", "::ffff:10.9.0.7"), "mapped into IPv6");
        assert!(inside("fd00::/8", "fd12::1"));
        assert!(inside("10.9.0.2/32", "10.9.0.2"));
    }

    #[test]
    fn malformed_networks_are_refused_with_the_fix() {
        for text in ["", "10.9.0.0", "10.9.0.0/33", "10.9/16", "::/129", "10.9.0.0/-1"] {
            assert!(matches!(text.parse::<Network>(), Err(NetworkError::Network(_))), "{text}");
        }
        let error = "10.9.0.2/24".parse::<Network>().expect_err("host bits");
        assert!(error.to_string().contains("write 10.9.0.0/24"), "{error}");
    }

    #[test]
    fn an_address_to_dial_has_a_host_and_a_port() {
        for text in ["", "beta:7440", "beta.example.org:7440", "10.9.0.2:7440", "[fd00::2]:7440"] {
            assert!(text.parse::<HostPort>().is_ok(), "{text}");
        }
        for text in ["beta", "beta:", ":7440", "beta:0", "beta:99999", "fd00::2:7440", "a b:1"] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }
}
