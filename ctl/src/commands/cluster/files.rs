//! Keys and certificates of a cluster in files, without a daemon.

use piped_config::{
    Cluster, ClusterKey, NodeCertificate, NodeKey, Period, PublicKey, SigningKey, host_name,
    key_file_group, load,
};
use serde::Serialize;

use super::making::{self, Wanted};
use crate::commands::keys;
use crate::failure::Failure;
use crate::node::Node;
use crate::output::{self, Output};

/// JSON that `--json` prints of what was made.
#[derive(Debug, Serialize)]
struct Made {
    cluster_key: ClusterKey,
    public_key: PublicKey,
    certificate: NodeCertificate,
}

pub(super) fn init(
    node: &Node,
    name: Option<&str>,
    groups: &[String],
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    let sources = &node.sources;
    // Settings that are there may be wrong yet for want of a key; those of files that cannot be
    // read are no reason to begin.
    let config = load(sources).map(|loaded| loaded.config).unwrap_or_default();
    if config.cluster.is_on() {
        return Err(Failure::failed(
            "this node is in a cluster already: `pipectl cluster show`; a second node that signs \
             has a copy of the cluster's key, and signing_key_file in its [cluster]",
        ));
    }
    let at = config.security.key_place(sources.main_file());
    let (own, is_new) = NodeKey::read_or_make(&at, key_file_group()).map_err(keys::refused)?;
    if is_new {
        keys::say(format_args!("{}: written", output::path(&at)));
    }
    let name = match name {
        Some(name) => name.to_owned(),
        None => config.node.name_or(&host_name()).to_owned(),
    };
    let first = Wanted::new((own.public(), &name), groups, config.cluster.validity);
    let named = (config.node.name != name).then_some(name.as_str());
    let begun = making::begin(sources, first, named, key_file_group())?;
    for made in begun.written() {
        keys::say(format_args!("{}: written", output::path(made)));
    }
    keys::say(format_args!(
        "{name} signs for the cluster. Keep a copy of {} where no node is.",
        output::path(&begun.written()[0])
    ));
    keys::say(
        "a running daemon takes it with: pipectl config reload\nthen, for each node that joins: \
         pipectl cluster token create",
    );
    if json {
        let (cluster_key, public_key) = (begun.key().public(), own.public());
        let certificate = begun.certificate().clone();
        return output::json(Made { cluster_key, public_key, certificate });
    }
    output.line(begun.key().public())
}

pub(super) fn sign(
    node: &Node,
    (name, key): (&str, &str),
    groups: &[String],
    validity: Option<Period>,
    output: &Output,
    json: bool,
) -> Result<(), Failure> {
    let public_key: PublicKey =
        key.parse().map_err(|error| Failure::usage(format!("`{key}` {error}")))?;
    let sources = &node.sources;
    let loaded = load(sources).map_err(|findings| Failure::failed(findings.to_string()))?;
    let cluster = &loaded.config.cluster;
    let place = cluster.signing_key_path(Some(sources.main_file())).ok_or_else(|| {
        Failure::failed("this node does not sign: signing_key_file in [cluster] is not set")
    })?;
    let by = SigningKey::read(&place).map_err(keys::refused)?;
    let validity = validity.unwrap_or(cluster.validity);
    if validity > Cluster::VALIDITY_MAX {
        let most = Cluster::VALIDITY_MAX;
        return Err(Failure::usage(format!(
            "--for {validity}: a certificate counts {most} at most"
        )));
    }
    let certificate = Wanted::new((public_key, name), groups, validity).signed(&by)?;
    if json {
        return output::json(Made { cluster_key: by.public(), public_key, certificate });
    }
    keys::say(format_args!(
        "for {} of {name}; and in its [cluster]: keys = [\"{}\"]",
        Cluster::CERTIFICATE_FILE,
        by.public()
    ));
    output.line(certificate)
}
