//! Invented nodes of a cluster with the findings expected of them. Each row changes one thing of a
//! node where all is well.

use piped_config::admin::cluster::MemberReport;
use piped_config::{Period, PublicKey, SigningKey, Subject};

use super::*;
use crate::commands::doctor::facts::{DaemonUser, KeyFacts, Node, Process};
use crate::commands::doctor::finding::Level::{self, Error, Ok, Unknown, Warning};

/// Time of all nodes, and how long certificates count here, in seconds.
const NOW: u64 = 1_000_000;
const VALIDITY: u64 = 90_000;

fn key(of: u8) -> PublicKey {
    PublicKey::new([of; 32])
}

fn paper(signed: u64, name: &str, of: PublicKey, by: &SigningKey) -> Paper {
    let subject = Subject::new((of, name), Vec::new(), UnixTime(signed), Period::seconds(VALIDITY));
    Paper::There(Box::new(NodeCertificate::issue(subject, by).expect("a certificate")))
}

fn file(path: &str, mode: u32, uid: u32, gid: u32) -> KeyFacts {
    let node = Some(Node { path: path.into(), mode, uid, gid });
    KeyFacts { path: path.into(), node, is_missing: false }
}

/// A node that another one renews, whose certificate is new; and the key of its cluster.
fn healthy() -> (Facts, SigningKey) {
    let by = SigningKey::generate().expect("random");
    let mut config = Config::default();
    config.cluster.keys = vec![by.public()];
    config.cluster.issuer = "alpha:7440".parse().expect("an address");
    let cluster = ClusterFacts {
        now: UnixTime(NOW),
        name: "beta".to_owned(),
        key: Some(key(1)),
        paper: paper(NOW - 10, "beta", key(1), &by),
        path: Some("/etc/piped/node.certificate".into()),
        signing_key: None,
        report: Some(ClusterReport::default()),
    };
    let user = Some(DaemonUser { name: "piped".to_owned(), uid: 990, groups: vec![990] });
    let process = Process { user, ..Process::default() };
    let facts = Facts { config: Some(config), cluster: Some(cluster), process, ..Facts::default() };
    (facts, by)
}

fn cluster(facts: &mut Facts) -> &mut ClusterFacts {
    facts.cluster.as_mut().expect("a healthy node is in one")
}

fn issuer(facts: &mut Facts, none: bool) {
    if none {
        facts.config.as_mut().expect("there is one").cluster.issuer = Default::default();
    }
}

fn judge(facts: &Facts) -> Vec<Finding> {
    [certificate(facts), signing_key(facts)].concat()
}

/// A change, and the expected finding: level, subject, a part of the text, a part of the fix.
type Row = (fn(&mut Facts, &SigningKey), Level, &'static str, &'static str, &'static str);

static TABLE: &[Row] = &[
    (|_, _| (), Ok, SUBJECT, "it is for beta, and counts for", ""),
    (
        |it, _| cluster(it).paper = Paper::Missing,
        Error,
        SUBJECT,
        "this node has none",
        "piped join TOKEN@HOST:PORT",
    ),
    (
        |it, _| {
            cluster(it).paper = Paper::Missing;
            cluster(it).signing_key = Some(file("/c.key", 0o100_640, 0, 990));
        },
        Error,
        SUBJECT,
        "this node has none",
        "pipectl cluster sign beta AQEB",
    ),
    (|it, _| cluster(it).paper = Paper::Closed, Unknown, SUBJECT, "is closed", "sudo"),
    (
        |it, _| cluster(it).paper = Paper::Unreadable("is no certificate".to_owned()),
        Error,
        SUBJECT,
        "/etc/piped/node.certificate cannot be read: what it holds is no certificate",
        "piped join",
    ),
    // The daemon has it where this user cannot look.
    (
        |it, _| {
            let own = MemberReport {
                name: "beta".to_owned(),
                key: key(1),
                groups: Vec::new(),
                until: UnixTime(NOW + 60),
            };
            cluster(it).paper = Paper::Closed;
            cluster(it).report = Some(ClusterReport { own: Some(own), ..Default::default() });
        },
        Ok,
        SUBJECT,
        "the daemon has one",
        "",
    ),
    // Times
    (
        |it, by| cluster(it).paper = paper(NOW - VALIDITY - 5, "beta", key(1), by),
        Error,
        SUBJECT,
        "it expired",
        "piped join TOKEN@HOST:PORT",
    ),
    (
        |it, by| {
            cluster(it).paper = paper(NOW - VALIDITY - 5, "beta", key(1), by);
            cluster(it).signing_key = Some(file("/c.key", 0o100_640, 0, 990));
        },
        Error,
        SUBJECT,
        "it expired",
        "pipectl cluster sign beta AQEB",
    ),
    (
        |it, by| cluster(it).paper = paper(NOW + 4000, "beta", key(1), by),
        Error,
        SUBJECT,
        "it counts in",
        "timedatectl",
    ),
    (
        |it, by| {
            cluster(it).paper = paper(NOW - VALIDITY * 3 / 4, "beta", key(1), by);
            issuer(it, true);
        },
        Warning,
        SUBJECT,
        "it ends in",
        "pipectl cluster sign beta AQEB",
    ),
    (
        |it, by| {
            cluster(it).paper = paper(NOW - VALIDITY * 3 / 4, "beta", key(1), by);
            let trouble = Some("alpha:7440 did not answer in time".to_owned());
            cluster(it).report = Some(ClusterReport { trouble, ..Default::default() });
        },
        Warning,
        SUBJECT,
        "it ends in",
        "on the node at alpha:7440",
    ),
    // In its last third, and somebody renews it.
    (
        |it, by| cluster(it).paper = paper(NOW - VALIDITY * 3 / 4, "beta", key(1), by),
        Ok,
        SUBJECT,
        "it is for beta",
        "",
    ),
    (
        |it, by| {
            cluster(it).paper = paper(NOW - VALIDITY * 3 / 4, "beta", key(1), by);
            cluster(it).signing_key = Some(file("/c.key", 0o100_640, 0, 990));
            issuer(it, true);
        },
        Ok,
        SUBJECT,
        "it is for beta",
        "",
    ),
    // Nobody renews it, but that is not due.
    (|it, _| issuer(it, true), Ok, SUBJECT, "it is for beta", ""),
    // Who it is for
    (
        |it, by| cluster(it).paper = paper(NOW - 10, "gamma", key(1), by),
        Warning,
        SUBJECT,
        "it is for gamma, and this node is beta",
        "name = \"gamma\" in [node]",
    ),
    (
        |it, by| cluster(it).paper = paper(NOW - 10, "beta", key(2), by),
        Error,
        SUBJECT,
        "it is for another key",
        "piped join",
    ),
    (
        |it, _| {
            let other = SigningKey::generate().expect("random");
            cluster(it).paper = paper(NOW - 10, "beta", key(1), &other);
        },
        Error,
        SUBJECT,
        "it is of another cluster",
        "pipectl cluster show",
    ),
    // The key of the cluster
    (
        |it, _| cluster(it).signing_key = Some(file("/c.key", 0o100_640, 0, 990)),
        Ok,
        "signing key",
        "/c.key is for the daemon alone",
        "",
    ),
    (
        |it, _| cluster(it).signing_key = Some(file("/c.key", 0o100_644, 0, 990)),
        Error,
        "signing key",
        "/c.key has mode 0644",
        "chmod 0640 /c.key",
    ),
    (
        |it, _| cluster(it).signing_key = Some(file("/c.key", 0o100_600, 0, 0)),
        Error,
        "signing key",
        "piped may not read",
        "chgrp piped",
    ),
    (
        |it, _| {
            let missing = KeyFacts { is_missing: true, ..KeyFacts::default() };
            cluster(it).signing_key = Some(missing);
        },
        Error,
        "signing key",
        "is not there",
        "signing_key_file",
    ),
    (
        |it, _| cluster(it).signing_key = Some(KeyFacts::default()),
        Unknown,
        "signing key",
        "cannot be looked at",
        "sudo",
    ),
];

#[test]
fn each_fault_is_found_alone_and_has_cause_and_cure() {
    for (change, level, subject, what, fix) in TABLE {
        let (mut facts, by) = healthy();
        change(&mut facts, &by);
        let findings = judge(&facts);
        let found = |it: &Finding| it.level == *level && it.subject == *subject;
        let finding = findings.iter().find(|it| found(it) && it.what.contains(what));
        let finding = finding.unwrap_or_else(|| panic!("{what} is not in {findings:#?}"));
        let has = finding.fix.iter().any(|line| line.contains(fix));
        assert!(fix.is_empty() || has, "{fix} is not in {finding:#?}");
        assert_eq!(finding.why.is_empty(), matches!(level, Ok | Unknown), "{finding:#?}");
        let others = findings.iter().filter(|it| it.level > Ok && !found(it));
        assert_eq!(others.count(), 0, "{subject}: {what}\n{findings:#?}");
    }
}

#[test]
fn without_a_cluster_nothing_is_said() {
    let (mut facts, _) = healthy();
    facts.cluster = None;
    assert!(judge(&facts).is_empty());
}
