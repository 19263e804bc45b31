//! Checks of this node's certificate of a cluster, and of the key with which a node signs.

use piped_config::admin::cluster::ClusterReport;
use piped_config::{CertificateFault, Config, KEY_FILE_OPEN_MODE, NodeCertificate, UnixTime};

use super::exports::rights;
use crate::commands::doctor::facts::{ClusterFacts, Facts, Paper};
use crate::commands::doctor::finding::Finding;
use crate::units;

const SUBJECT: &str = "certificate";

/// What happens to a node that cannot show a certificate that counts.
const TURNED_AWAY: &str = "nodes of the cluster that do not pin its key in [peers] turn it away";

pub(super) fn certificate(facts: &Facts) -> Vec<Finding> {
    let (Some(cluster), Some(config)) = (&facts.cluster, &facts.config) else { return Vec::new() };
    let renewal = Renewal::of(cluster, config);
    let certificate = match &cluster.paper {
        Paper::There(certificate) => certificate,
        missing => return vec![without(missing, cluster, &renewal)],
    };
    let faults = [
        stranger(certificate, config),
        other_key(certificate, cluster, &renewal),
        time(certificate, cluster, &renewal),
        other_name(certificate, cluster),
    ];
    let faults: Vec<Finding> = faults.into_iter().flatten().collect();
    match faults.is_empty() {
        true => {
            let left = left(certificate.subject().until, cluster.now);
            let name = &certificate.subject().name;
            vec![Finding::ok(SUBJECT, format!("it is for {name}, and counts for {left} more"))]
        }
        false => faults,
    }
}

/// A node without a certificate that can be looked at.
fn without(paper: &Paper, cluster: &ClusterFacts, renewal: &Renewal) -> Finding {
    let own = cluster.report.as_ref().and_then(|report| report.own.as_ref());
    if let Some(own) = own {
        let left = left(own.until, cluster.now);
        return Finding::ok(SUBJECT, format!("the daemon has one that counts for {left} more"));
    }
    let path = cluster.path.as_ref().map_or_else(String::new, |path| path.display().to_string());
    match paper {
        Paper::Closed => Finding::unknown(SUBJECT, format!("{path} is closed to this user"))
            .fix("sudo pipectl doctor"),
        Paper::Unreadable(why) => {
            let what = format!("{path} cannot be read: what it holds {why}");
            renewal.anew(Finding::error(SUBJECT, what).why(TURNED_AWAY), cluster)
        }
        _ => {
            let what = "this node has none, and its configuration names a cluster";
            renewal.anew(Finding::error(SUBJECT, what).why(TURNED_AWAY), cluster)
        }
    }
}

/// A certificate that no key of the configuration signed.
fn stranger(certificate: &NodeCertificate, config: &Config) -> Option<Finding> {
    // At a time at which it counts, only the signature is left to be wrong.
    let signed = certificate.check(&config.cluster.keys, certificate.subject().from);
    matches!(signed, Err(CertificateFault::Stranger)).then(|| {
        Finding::error(SUBJECT, "no key of [cluster] signed it: it is of another cluster")
            .why(TURNED_AWAY)
            .fix("pipectl cluster show   # on a node that signs: compare with `keys` in [cluster]")
            .fix("piped join TOKEN@HOST:PORT   # if the certificate is the wrong one")
    })
}

/// A certificate for another key than this node's.
fn other_key(
    certificate: &NodeCertificate,
    cluster: &ClusterFacts,
    renewal: &Renewal,
) -> Option<Finding> {
    let key = cluster.key.filter(|key| *key != certificate.subject().key)?;
    let finding = Finding::error(SUBJECT, "it is for another key than this node's")
        .why(format!("this node proves {key}, so {TURNED_AWAY}"));
    Some(renewal.anew(finding, cluster))
}

/// A certificate for another name than this node's.
fn other_name(certificate: &NodeCertificate, cluster: &ClusterFacts) -> Option<Finding> {
    let name = &certificate.subject().name;
    (*name != cluster.name).then(|| {
        Finding::warning(SUBJECT, format!("it is for {name}, and this node is {}", cluster.name))
            .why("nodes of the cluster know this node by the name in its certificate")
            .fix(format!("name = {name:?} in [node] of the configuration, then restart the daemon"))
    })
}

/// A certificate that does not count yet, no more, or not for long.
fn time(
    certificate: &NodeCertificate,
    cluster: &ClusterFacts,
    renewal: &Renewal,
) -> Option<Finding> {
    let subject = certificate.subject();
    match certificate.check_time(cluster.now) {
        Err(CertificateFault::Early(seconds)) => Some(
            Finding::error(SUBJECT, format!("it counts in {} only", units::uptime(seconds as f64)))
                .why(format!("the clock of this machine is before its begin, and {TURNED_AWAY}"))
                .fix("timedatectl   # is the clock right, and kept right (NTP service)?")
                .fix("timedatectl   # on the node that signed it: it may be ahead"),
        ),
        Err(CertificateFault::Late(seconds)) => {
            let what = format!("it expired {} ago", units::uptime(seconds as f64));
            let why = match &renewal.trouble {
                Some(trouble) => format!("{TURNED_AWAY}; it was not renewed: {trouble}"),
                None => TURNED_AWAY.to_owned(),
            };
            Some(renewal.anew(Finding::error(SUBJECT, what).why(why), cluster))
        }
        _ if subject.is_in_last_third(cluster.now) => {
            let why = renewal.why_not()?;
            let what = format!("it ends in {}", left(subject.until, cluster.now));
            Some(renewal.again(Finding::warning(SUBJECT, what).why(why), cluster))
        }
        _ => None,
    }
}

fn left(until: UnixTime, now: UnixTime) -> String {
    units::uptime(until.since(now) as f64)
}

/// Ways in which the certificate of this node is renewed.
struct Renewal {
    signs: bool,
    issuer: Option<String>,
    trouble: Option<String>,
}

impl Renewal {
    fn of(cluster: &ClusterFacts, config: &Config) -> Self {
        let issuer = config.cluster.issuer.as_str();
        let trouble = |report: &ClusterReport| report.trouble.clone();
        Self {
            signs: cluster.signing_key.is_some(),
            issuer: (!issuer.is_empty()).then(|| issuer.to_owned()),
            trouble: cluster.report.as_ref().and_then(trouble),
        }
    }

    /// Why the certificate will end, as far as that is known; none if it will be renewed.
    fn why_not(&self) -> Option<String> {
        match (&self.trouble, &self.issuer) {
            (Some(trouble), _) => Some(format!("it was to be renewed, and was not: {trouble}")),
            (None, None) if !self.signs => Some(
                "nobody renews it: this node does not sign, and [cluster] issuer is not set"
                    .to_owned(),
            ),
            _ => None,
        }
    }

    /// The fix of a certificate that is to be had from the beginning.
    fn anew(&self, finding: Finding, cluster: &ClusterFacts) -> Finding {
        if self.signs {
            return self.by_hand(finding, cluster);
        }
        finding
            .fix("pipectl cluster token create   # on a node that signs")
            .fix("piped join TOKEN@HOST:PORT   # here")
    }

    /// The fix of a certificate that is to be renewed.
    fn again(&self, finding: Finding, cluster: &ClusterFacts) -> Finding {
        match &self.issuer {
            Some(at) if !self.signs => {
                finding.fix(format!("pipectl doctor   # on the node at {at}, which signs"))
            }
            _ if self.signs => finding.fix("journalctl -u piped   # why it was not renewed"),
            _ => self
                .by_hand(finding, cluster)
                .fix("issuer = \"HOST:PORT\" and issuer_key in [cluster]: then it renews itself"),
        }
    }

    /// The fix by the command that signs, which prints what goes into the file.
    fn by_hand(&self, finding: Finding, cluster: &ClusterFacts) -> Finding {
        let key = cluster.key.map_or_else(|| "KEY".to_owned(), |key| key.to_string());
        let to = cluster.path.as_ref().map(|path| format!("   # into {} here", path.display()));
        let sign = format!("pipectl cluster sign {} {key}", cluster.name);
        let at = if self.signs { "" } else { ", on a node that signs" };
        finding.fix(format!("{sign}{}{at}", to.unwrap_or_default()))
    }
}

pub(super) fn signing_key(facts: &Facts) -> Vec<Finding> {
    let subject = "signing key";
    let Some(key) = facts.cluster.as_ref().and_then(|it| it.signing_key.as_ref()) else {
        return Vec::new();
    };
    let path = key.path.display();
    let Some(node) = &key.node else {
        return vec![match key.is_missing {
            true => Finding::error(subject, format!("{path} is not there"))
                .why("this node is to sign for the cluster, and cannot: nobody joins here")
                .fix(format!("cp COPY {path}   # the copy that was kept where no node is"))
                .fix("signing_key_file = \"\" in [cluster], if another node signs"),
            false => Finding::unknown(subject, format!("{path} cannot be looked at by this user"))
                .fix("sudo pipectl doctor"),
        }];
    };
    if node.mode & KEY_FILE_OPEN_MODE != 0 {
        return vec![
            Finding::error(subject, format!("{path} has mode {:04o}", node.mode & 0o7777))
                .why("everybody that can read it can make nodes of the cluster")
                .fix(format!("chmod 0640 {path}"))
                .fix("docs/operations.md   # if others have read it: another key for the cluster"),
        ];
    }
    if let Some(user) = &facts.process.user
        && rights(node, user) & 4 == 0
    {
        return vec![
            Finding::error(subject, format!("{} may not read {path}", user.name))
                .why("this node is to sign for the cluster, and cannot: nobody joins here")
                .fix(format!("chgrp {} {path} && chmod 0640 {path}", user.name)),
        ];
    }
    vec![Finding::ok(subject, format!("{path} is for the daemon alone"))]
}

#[cfg(test)]
mod tests;
