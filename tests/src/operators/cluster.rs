//! What a cluster signs for its nodes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use piped_config::{
    ClusterKey, NodeCertificate, PublicKey, Revocations, SigningKey, Subject, UnixTime,
};
use zeroize::Zeroizing;

use super::{KEYS, NAMES, Scene};

/// How long a certificate counts.
const VALIDITY: u64 = 300;

/// The keys of the cluster, and of another one, which nobody trusts.
static SIGNING: LazyLock<[SigningKey; 2]> =
    LazyLock::new(|| [71, 72].map(|byte| SigningKey::of_seed(Zeroizing::new([byte; 32]))));

/// The public key of the cluster.
pub(super) fn public() -> ClusterKey {
    SIGNING[0].public()
}

/// A certificate of a node for a key of all ([`KEYS`]), which counts from that time. `foreign`: of
/// another cluster.
pub(super) fn certificate(
    node: usize,
    key: usize,
    from: UnixTime,
    foreign: bool,
) -> NodeCertificate {
    let (key, name) = (KEYS[key].public(), NAMES[node].to_owned());
    let until = UnixTime(from.0 + VALIDITY);
    let subject = Subject { key, name, groups: Vec::new(), from, until };
    NodeCertificate::issue(subject, &SIGNING[usize::from(foreign)]).expect("sound")
}

/// A certificate again, from that time.
fn renewed(certificate: &NodeCertificate, from: UnixTime) -> NodeCertificate {
    let until = UnixTime(from.0 + VALIDITY);
    let subject = Subject { from, until, ..certificate.subject().clone() };
    NodeCertificate::issue(subject, &SIGNING[0]).expect("sound")
}

/// A list of revoked keys. `foreign`: of another cluster.
pub(super) fn revocations(number: u64, keys: &[PublicKey], foreign: bool) -> Revocations {
    let keys: BTreeMap<PublicKey, UnixTime> =
        keys.iter().map(|key| (*key, UnixTime(u64::MAX))).collect();
    Revocations::issue(number, keys, &SIGNING[usize::from(foreign)]).expect("few")
}

/// Whether a key is one that the cluster signs for that node.
pub(super) fn is_of(node: usize, key: &PublicKey) -> bool {
    KEYS.iter().skip(node).step_by(NAMES.len()).any(|it| it.public() == *key)
}

/// A node of a cluster has its certificate renewed, if a third of its time is left or less.
pub(super) fn renew(scene: &mut Scene<'_>, node: usize) {
    let now = scene.controls.times_of(node, scene.kernel).calendar;
    let setup = &mut scene.controls.nodes[node].setup;
    let Some(certificate) = &setup.certificate else { return };
    let subject = certificate.subject();
    if subject.until.since(now) > subject.until.since(subject.from) / 3 {
        return;
    }
    let renewed = renewed(certificate, now);
    setup.certificate = Some(renewed.clone());
    if let Some(control) = scene.controls.control_mut(node) {
        control.certify_self(renewed);
    }
    *scene.controls.seen.entry("certificate renewed").or_default() += 1;
}
