//! Checks of peers, and of the kernel's settings for their lanes.

use piped_config::admin::nodes::SourceReport;

use crate::commands::doctor::facts::Facts;
use crate::commands::doctor::finding::Finding;

/// A smaller window bounds a lane to what the round trip allows: at 1 ms, 4 MiB are 4 GB/s.
const WINDOW_BYTES: u64 = 4 << 20;

pub(super) fn peers(facts: &Facts) -> Vec<Finding> {
    let look = |peer: &crate::commands::doctor::facts::PeerFacts| {
        let (subject, address) = (format!("peer {}", peer.name), &peer.address);
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        match (peer.failure.as_str(), peer.lanes) {
            ("", Some((up, all))) if up < all => Finding::warning(
                subject,
                format!("{address} answers, but {up} of {all} lanes are up"),
            )
            .why(
                "requests for it wait or fail; what listens there may be no piped, or refuse this \
                 node",
            )
            .fix("pipectl peers   # how the last lane was lost")
            .fix("journalctl -u piped -g lane   # here, and on the peer"),
            ("", Some((up, _))) => {
                Finding::ok(subject, format!("{address} answers, {up} lanes are up"))
            }
            ("", None) => Finding::ok(subject, format!("{address} answers")),
            (failure, _) => {
                Finding::error(subject, format!("{address} cannot be reached: {failure}"))
                    .why("requests for it fail until it can be")
                    .fix(format!("ping -c 3 {host}   # is the node up, is the name right?"))
                    .fix(format!(
                        "ssh {host} systemctl status piped   # does it run, with listen.address?"
                    ))
            }
        }
    };
    facts.peers.iter().map(look).collect()
}

/// Judges what says where nodes are.
pub(super) fn discovery(facts: &Facts) -> Vec<Finding> {
    let look = |source: &SourceReport| {
        let subject = format!("discovery {}", source.source);
        match &source.away {
            Some(why) => Finding::warning(subject, format!("does not answer: {why}"))
                .why("the last known addresses stay; a node that moves now is not found")
                .fix("pipectl nodes   # what it said last, and when"),
            None if source.left_out > 0 => {
                let problem = format!("{} nodes more than the limit are left out", source.left_out);
                Finding::warning(subject, problem)
                    .why("those behind the others in the order of names are not found")
                    .fix("pipectl nodes   # the nodes that it names")
            }
            None => Finding::ok(subject, format!("names {} nodes", source.nodes)),
        }
    };
    facts.daemon.iter().flat_map(|status| status.discovery.iter().map(look)).collect()
}

/// Judges peers that connected and got no lane, or lost it to others, since the daemon started.
pub(super) fn door(facts: &Facts) -> Vec<Finding> {
    let Some(status) = &facts.daemon else { return Vec::new() };
    let count = |outcomes: &[&str]| -> u64 {
        outcomes.iter().filter_map(|outcome| status.greeted.get(*outcome)).sum()
    };
    let crowded = count(&["share", "full", "staging", "displaced"]);
    let strangers = count(&["plain", "user", "nobody", "untrusted", "ticket"]);
    let mut findings = Vec::new();
    if crowded > 0 {
        findings.push(
            Finding::warning(
                "peers' door",
                format!("{crowded} lanes found no place, or lost it to another one"),
            )
            .why(
                "there are more lanes than places or staging: some peers wait, and come and go; \
                 those with keys have places of their own",
            )
            .fix("journalctl -u piped -g 'no place'   # the peers, and which limit it is")
            .fix("pipectl keys generate   # on the peers, and `pipectl keys trust` here")
            .fix("pipectl limits set global.staging=256MiB --persist   # if it was staging"),
        );
    }
    if strangers > 0 {
        findings.push(
            Finding::warning(
                "peers' door",
                format!(
                    "{strangers} connections were turned away, for they may not have a lane here"
                ),
            )
            .why(
                "somebody without a key that is trusted here connects, or a user of this machine \
                 that [access] does not admit",
            )
            .fix("journalctl -u piped -g 'turned away'   # the callers, and what each lacks"),
        );
    }
    findings
}

/// Judges the kernel's settings for TCP that have mattered before, where there is a network.
pub(super) fn sysctls(facts: &Facts) -> Vec<Finding> {
    if !facts.has_network() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if facts.sysctl("net/ipv4/tcp_slow_start_after_idle") == Some("1") {
        findings.push(
            Finding::warning("tcp", "net.ipv4.tcp_slow_start_after_idle is 1")
                .why(
                    "a lane that was quiet for a moment begins slowly again: the first large \
                     transfer after a pause takes round trips more",
                )
                .fix("sysctl -w net.ipv4.tcp_slow_start_after_idle=0")
                .fix("echo net.ipv4.tcp_slow_start_after_idle=0 >> /etc/sysctl.d/60-piped.conf"),
        );
    }
    for (name, key) in
        [("net/ipv4/tcp_rmem", "net.ipv4.tcp_rmem"), ("net/ipv4/tcp_wmem", "net.ipv4.tcp_wmem")]
    {
        let Some(value) = facts.sysctl(name) else { continue };
        let most =
            value.split_whitespace().last().and_then(|text| text.parse().ok()).unwrap_or(0u64);
        if most < WINDOW_BYTES {
            let mut words = value.split_whitespace();
            let (least, middle) =
                (words.next().unwrap_or("4096"), words.next().unwrap_or("131072"));
            let set = format!("{key}=\"{least} {middle} {}\"", 4 * WINDOW_BYTES);
            findings.push(
                Finding::warning("tcp", format!("{key} ends at {most} bytes"))
                    .why(
                        "a lane has no more than that on its way: over a long or fast network this \
                         bounds its bandwidth",
                    )
                    .fix(format!("sysctl -w {set}")),
            );
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            "tcp",
            "windows may grow, and lanes do not begin anew after a pause",
        ));
    }
    findings
}
