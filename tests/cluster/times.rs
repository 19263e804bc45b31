//! Certificates end, and are renewed before they do.

use std::fs;

use system_tests::process::{Daemon, eventually, words};

use crate::scene::{Site, addresses, logged, peer, reads, reload, restart};

/// Gives a node a certificate for so long.
fn sign(site: &Site, node: &str, time: &str) {
    let key = site
        .programs
        .pipectl()
        .args(["keys", "show", "--file"])
        .arg(site.folder(node).join("node.key"))
        .output()
        .expect("it starts");
    let key = String::from_utf8(key.stdout).expect("text");
    let done = site.cluster("alpha", &["sign", node, key.trim(), "--for", time]);
    assert!(done.status.success(), "{}", words(&done));
    fs::write(site.folder(node).join("node.certificate"), &done.stdout).expect("written");
}

fn until(node: &Daemon) -> u64 {
    node.json(&["cluster", "show"])["own"]["until"].as_u64().unwrap_or_default()
}

#[test]
fn a_certificate_is_renewed_where_the_node_joined_and_a_node_leaves_whose_own_ended() {
    let Some(site) = Site::new() else { return };
    site.init("alpha");
    let [a, b, c] = addresses();
    let alpha = site.start("alpha", a, "", "");
    site.join_at("beta", &alpha, &["--group", "disks"]);
    site.join_at("gamma", &alpha, &[]);
    sign(&site, "beta", "12s");
    let beta = site.start("beta", b, "", &peer("alpha", a));
    reads(&beta, "alpha");
    let first = until(&beta);
    // Nobody renews that of gamma.
    let drop_in = site.folder("gamma").join("conf.d/40-cluster.toml");
    let text = fs::read_to_string(&drop_in).expect("there");
    let alone = text.lines().filter(|line| !line.starts_with("issuer"));
    fs::write(&drop_in, alone.collect::<Vec<_>>().join("\n")).expect("written");
    sign(&site, "gamma", "6s");
    let gamma = site.start("gamma", c, "", &peer("alpha", a));
    reads(&gamma, "alpha");
    logged(&alpha, "node=\"gamma\"");
    let left = eventually("gamma has left", || {
        alpha.log().lines().find(|line| line.contains("counts no more")).map(str::to_owned)
    });
    assert!(left.contains("gamma"), "{left}");
    sign(&site, "gamma", "1h");
    reload(&gamma);
    reads(&gamma, "alpha");
    eventually("beta has another one", || (until(&beta) > first).then_some(()));
    logged(&beta, "was renewed");
    // Beyond the end of the first one: alpha has seen the other.
    let now = || beta.json(&["cluster", "show"])["now"].as_u64().unwrap_or_default();
    eventually("the first one has ended", || (now() > first + 1).then_some(()));
    let left = alpha.log();
    let left: Vec<&str> = left.lines().filter(|it| it.contains("counts no more")).collect();
    assert!(left.iter().all(|line| !line.contains("beta")), "it never left: {left:?}");
    reads(&beta, "alpha");
    // After a restart, too: what it renewed is kept.
    let renewed = until(&beta);
    let mut beta = beta;
    restart(&mut beta, &site.text("beta", b, "", &peer("alpha", a)));
    assert!(until(&beta) >= renewed);
    reads(&beta, "alpha");
}
