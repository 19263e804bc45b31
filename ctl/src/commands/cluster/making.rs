//! Makes what puts nodes into a cluster: its key, their certificates, and what their configurations
//! say of it. `pipectl cluster init`, `pipectl cluster sign` and `pipectl lab up` do it here.

use std::path::PathBuf;

use piped_config::{
    CLUSTER_DROP_IN, Cluster, NodeCertificate, Period, PublicKey, SigningKey, Sources, Subject,
    UnixTime, cluster_drop_in,
};

use crate::clock;
use crate::commands::keys;
use crate::failure::Failure;

/// What a certificate is to say of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    key: PublicKey,
    name: &'a str,
    groups: &'a [String],
    validity: Period,
}

impl<'a> Wanted<'a> {
    /// For a node that proves `key` and gives itself `name`: that it is in these groups, for so
    /// long from now on.
    pub(crate) const fn new(
        (key, name): (PublicKey, &'a str),
        groups: &'a [String],
        validity: Period,
    ) -> Self {
        Self { key, name, groups, validity }
    }

    /// Signs for the node.
    pub(crate) fn signed(self, by: &SigningKey) -> Result<NodeCertificate, Failure> {
        let now = UnixTime(clock::calendar());
        let node = (self.key, self.name);
        let subject = Subject::new(node, self.groups.to_vec(), now, self.validity);
        NodeCertificate::issue(subject, by).map_err(Failure::usage)
    }
}

/// A cluster that was begun.
#[derive(Debug)]
pub(crate) struct Begun {
    key: SigningKey,
    certificate: NodeCertificate,
    written: [PathBuf; 3],
}

impl Begun {
    /// Key of the cluster, both halves.
    pub(crate) const fn key(&self) -> &SigningKey {
        &self.key
    }

    /// Certificate of the node that has the key.
    pub(crate) const fn certificate(&self) -> &NodeCertificate {
        &self.certificate
    }

    /// Files that were written: key, certificate, drop-in.
    pub(crate) const fn written(&self) -> &[PathBuf; 3] {
        &self.written
    }
}

/// Begins a cluster with a node: makes the cluster's key, which `readers` may read if that group is
/// given, signs the node's own, and has its configuration say so. `named`: the node's name, if no
/// other file of the configuration says it.
pub(crate) fn begin(
    sources: &Sources,
    first: Wanted<'_>,
    named: Option<&str>,
    readers: Option<u32>,
) -> Result<Begun, Failure> {
    let key = SigningKey::generate().map_err(|error| Failure::io("no key was made", &error))?;
    let certificate = first.signed(&key)?;
    let place = sources.main_file().with_file_name(Cluster::SIGNING_KEY_FILE);
    key.write(&place, readers).map_err(keys::refused)?;
    let drop_in = cluster_drop_in(&[key.public()], named, None);
    let [shown, said] = take_in(sources, &certificate, &drop_in)?;
    Ok(Begun { key, certificate, written: [place, shown, said] })
}

/// Writes what makes a node one of the cluster: its certificate, and what its configuration says of
/// the cluster. The files that were written.
pub(crate) fn take_in(
    sources: &Sources,
    certificate: &NodeCertificate,
    drop_in: &str,
) -> Result<[PathBuf; 2], Failure> {
    let shown = sources.main_file().with_file_name(Cluster::CERTIFICATE_FILE);
    keys::write(&shown, &format!("{certificate}\n"))?;
    let said = sources.drop_ins().join(CLUSTER_DROP_IN);
    keys::write(&said, drop_in)?;
    Ok([shown, said])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use piped_config::{NodeKey, load};

    use super::*;

    #[test]
    fn a_cluster_that_was_begun_is_what_the_configuration_then_says() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("piped.toml");
        std::fs::write(&file, "[security]\nkey_file = \"auto\"\n").expect("written");
        let own = NodeKey::generate().expect("random");
        own.write(&directory.path().join("node.key"), None).expect("written");
        let sources = Sources { file: Some(file), ..Sources::default() };
        let groups = ["disks".to_owned()];
        let validity = Period::seconds(3600);
        let first = Wanted::new((own.public(), "alpha"), &groups, validity);
        let begun = begin(&sources, first, Some("alpha"), None).expect("begun");
        let config = load(&sources).expect("a good configuration").config;
        assert_eq!(config.node.name, "alpha");
        assert_eq!(config.cluster.keys, [begun.key.public()]);
        let place = config.cluster.signing_key_path(sources.file.as_deref()).expect("it signs");
        assert_eq!(place, begun.written[0]);
        let mode = place.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "nobody else reads it");
        let again = SigningKey::read(&place).expect("a key");
        assert_eq!(again.public(), begun.key.public());
        let text = std::fs::read_to_string(&begun.written[1]).expect("there");
        let shown: NodeCertificate = text.parse().expect("a certificate");
        assert_eq!(shown.subject(), begun.certificate.subject());
        assert_eq!(shown.subject().groups, groups);
        // A key that is there is not replaced.
        assert!(begin(&sources, first, None, None).is_err());
    }
}
