//! Nodes of a cluster find each other in an etcd that everybody may write.

use std::fs;

use system_tests::process::{eventually, words};
use system_tests::servers::{Etcd, PREFIX};

use crate::scene::{Site, addresses, is_refused, logged, reads, restart};

#[test]
fn whoever_writes_the_etcd_of_a_cluster_moves_addresses_and_nothing_else() {
    let (Some(site), Some(other)) = (Site::new(), Site::new()) else { return };
    let Some(etcd) = Etcd::start(site.path(), false) else { return };
    let table = format!("[discovery.etcd]\nendpoints = [\"{}\"]\nlease = \"5s\"\n", etcd.url());
    let [a, b, c, m] = addresses();
    site.init("alpha");
    let alpha = site.start("alpha", a, "", &table);
    site.join_at("beta", &alpha, &[]);
    site.join_at("gamma", &alpha, &[]);
    let mut beta = site.start("beta", b, "", &table);
    let gamma = site.start("gamma", c, "", &table);
    // Nobody was told of anybody.
    for (node, peers) in [(&alpha, ["beta", "gamma"]), (&gamma, ["alpha", "beta"])] {
        peers.iter().for_each(|peer| reads(node, peer));
    }
    let [moved] = addresses();
    restart(&mut beta, &site.text("beta", moved, "", &table));
    reads(&alpha, "beta");
    // Mallory is signed by another cluster, as beta and as itself, and knows what beta shows.
    other.init("mallory");
    let foreign = fs::read_to_string(other.folder("mallory").join("node.certificate"));
    let foreign = foreign.expect("there").trim().to_owned();
    let shown = fs::read_to_string(site.folder("beta").join("node.certificate")).expect("there");
    let mallory = other.start("mallory", m, "", &table);
    beta.process.freeze();
    let put = |name: &str, certificate: &str| {
        let certificate = format!(", \"certificate\": \"{certificate}\"");
        let certificate = if certificate.contains("\"\"") { String::new() } else { certificate };
        let text = format!("{{\"address\": \"{m}\"{certificate}}}");
        etcd.ctl(&["put", &format!("{PREFIX}{name}"), &text]);
    };
    for certificate in [shown.trim(), &foreign, ""] {
        put("beta", certificate);
        put("delta", certificate);
        eventually("it is heard", || {
            let nodes = alpha.json(&["nodes"]);
            let mut nodes = nodes["nodes"].as_array().expect("a list").iter();
            nodes.any(|it| it["node"] == "delta").then_some(())
        });
        is_refused(&alpha, "delta");
        is_refused(&alpha, "mallory");
        is_refused(&alpha, "beta");
    }
    logged(&alpha, "not connected");
    assert_eq!(mallory.json(&["peers"])["peers"].as_array().map(Vec::len), Some(0));
    etcd.ctl(&["put", &format!("{PREFIX}@revoked"), "rubbish"]);
    beta.process.signal(rustix::process::Signal::CONT);
    reads(&alpha, "beta");
    // What the cluster revokes all of it hear, and whoever takes it away is overwritten.
    let done = alpha.pipectl(["cluster", "revoke", "beta"]).output().expect("it starts");
    assert!(done.status.success(), "{}", words(&done));
    logged(&gamma, "a list of revoked keys was taken");
    etcd.ctl(&["del", &format!("{PREFIX}@revoked")]);
    let list = String::from_utf8(done.stdout).expect("text");
    eventually("it is written again", || {
        (etcd.entry("@revoked").trim() == list.trim()).then_some(())
    });
    for node in [&alpha, &gamma] {
        is_refused(node, "beta");
    }
    reads(&gamma, "alpha");
}
