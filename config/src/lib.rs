//! Everything an operator can say to piped: the configuration, and the bodies of the admin API.
//!
//! The picture: layers of TOML are checked one by one, so that a mistake is reported with its file
//! and line. Then they are merged and checked as a whole:
//!
//! ```text
//! defaults < /etc/piped/piped.toml < conf.d/*.toml < PIPED_* environment < --set key=value
//!                 └──────── each: TOML ► known keys ► typed values ────────┘
//!                                       merged ► Config ► Config::validate
//! ```
//!
//! Why not let one deserializer see only the merged result: it no longer knows where a value came
//! from, and "invalid type" without a file name sends an operator through five places.
//!
//! [`Config`] is also the list of all keys: a key that is not a field of it is refused.

#![forbid(unsafe_code)]

pub mod admin;
pub mod measured;
pub mod program;
pub mod units;

mod cluster;
mod discovery;
mod drop_in;
mod error;
mod found;
mod keys;
mod layer;
mod limits;
mod load;
mod log_level;
mod modes;
mod names;
mod network;
mod node_key;
mod preflight;
mod quantity;
mod regular;
mod schema;
mod secret_file;
mod validate;

pub use cluster::{
    CERTIFICATE_BYTES_MAX, CLUSTER_KEYS_MAX, CertificateFault, Cluster, ClusterKey, GROUP_MARK,
    GROUPS_MAX, JoinToken, NoClusterKey, NoToken, NodeCertificate, NotSealed, REVOKED_MAX,
    Revocations, SigningKey, Subject, UnixTime,
};
pub use discovery::{Discovery, Endpoint, Etcd, NoEndpoint};
pub use drop_in::{CLUSTER_DROP_IN, LIMITS_DROP_IN, cluster_drop_in, limits_drop_in};
pub use error::{ConfigError, Findings, Place};
pub use found::{Found, FoundNodes};
pub use keys::nearest;
pub use limits::{Amount, ClientLimits, GlobalLimits, Limits, PeerLimits, UserLimits};
pub use load::{DEFAULT_FILE, Input, Loaded, RESERVED_ENV, Sources, load, parse, read};
pub use log_level::LOG_PARTS;
pub use modes::{
    AutoPath, LandlockMode, Principal, ShardCount, Spin, SyscallsMode, planner_form, planner_mode,
};
pub use names::{DAEMON_GROUP, Names, UnknownName, host_name, key_file_group};
pub use network::{HostPort, Network, NetworkError};
pub use node_key::{KEY_BYTES, NoPublicKey, NodeKey, PublicKey};
pub use preflight::{Look, MADE_BY_UNIT, Preflight, User, as_user, preflight};
pub use quantity::{Bytes, MemoryLimit, Period, QuantityError};
pub use regular::read_text;
pub use schema::{
    Access, Admin, Client, Config, Export, Io, Listen, Log, Metrics, Node, Peer, Planner, Sandbox,
    Security, Shards,
};
pub use secret_file::{KEY_FILE_OPEN_MODE, KeyFileError};
pub use validate::{Fault, PEERS_MAX, check_node_name, check_planner_mode};
