//! Nodes join with tokens, have what their groups may have, and are revoked.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use system_tests::process::{eventually, words};

use crate::scene::{Site, addresses, is_refused, logged, peer, reads, reload, restart, token};

#[test]
fn nodes_join_and_have_what_their_groups_may_have_until_they_are_revoked() {
    let Some(site) = Site::new() else { return };
    site.init("alpha");
    let [a, b, c] = addresses();
    let alpha = site.start("alpha", a, "peers = [\"@disks\", \"gamma\"]\n", "");
    site.join_at("beta", &alpha, &["--group", "disks"]);
    site.join_at("gamma", &alpha, &["--name", "gamma"]);
    site.join_at("delta", &alpha, &["--group", "others"]);
    let beta = site.start("beta", b, "", &peer("alpha", a));
    let gamma = site.start("gamma", c, "", &(peer("alpha", a) + &peer("beta", b)));
    let delta = site.start("delta", addresses::<1>()[0], "", &peer("alpha", a));
    reads(&beta, "alpha");
    reads(&gamma, "alpha");
    reads(&gamma, "beta");
    assert!(is_refused(&delta, "alpha").contains("no export"), "of another group");
    let shown = alpha.json(&["cluster", "show"]);
    let names = shown["members"].as_array().expect("a list").iter().map(|it| &it["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["beta", "delta", "gamma"]);
    // All of the cluster hear of it; here by a file, for there is no etcd.
    let revoked = alpha.pipectl(["cluster", "revoke", "beta"]).output().expect("it starts");
    assert!(revoked.status.success(), "{}", words(&revoked));
    logged(&alpha, "its certificate counts no more");
    eventually("beta is turned away", || {
        (alpha.json(&["status"])["greetings"]["untrusted"] != 0).then_some(())
    });
    reads(&gamma, "beta");
    let folder = site.folder("found");
    fs::write(folder.join("revoked"), &revoked.stdout).expect("written");
    let files = format!("[discovery]\nfiles = \"{}\"\n", folder.display());
    let more = peer("alpha", a) + &peer("beta", b) + &files;
    let mut gamma = gamma;
    restart(&mut gamma, &site.text("gamma", c, "", &more));
    reads(&gamma, "alpha");
    is_refused(&gamma, "beta");
    // After a restart of the node that signs, too.
    let mut alpha = alpha;
    restart(&mut alpha, &site.text("alpha", a, "", ""));
    is_refused(&beta, "alpha");
}

#[test]
fn a_token_is_for_so_many_nodes_of_names_that_are_free() {
    let Some(site) = Site::new() else { return };
    let key = site.init("alpha");
    let again = site.cluster("alpha", &["init"]);
    assert!(words(&again).contains("in a cluster already"), "{}", words(&again));
    let [a] = addresses();
    let alpha = site.start("alpha", a, "", "");
    let target = token(&alpha, &[]);
    let refused = |node: &str, name: &str, target: &str, why: &str| {
        let done = site.join(node, name, target);
        assert!(!done.status.success() && words(&done).contains(why), "{}", words(&done));
        assert!(!site.folder(node).join("node.certificate").exists(), "nothing is left");
    };
    refused("beta", "../beta", &target, "letters, digits");
    refused("beta", "alpha", &target, "belongs to another key");
    let done = site.join("beta", "beta", &target);
    assert!(done.status.success(), "{}", words(&done));
    refused("gamma", "gamma", &target, "used up");
    let more = token(&alpha, &["--uses", "5", "--name", "beta"]);
    refused("gamma", "gamma", &more, "another name");
    refused("gamma", "beta", &more, "belongs to another key");
    // The same node may have its certificate again.
    assert!(site.join("beta", "beta", &more).status.success());
    let listed = alpha.json(&["cluster", "token", "list"]);
    assert_eq!(listed["tokens"][0]["uses"], 4);
    let number = listed["tokens"][0]["token"].to_string();
    let end = alpha.pipectl(["cluster", "token", "end", &number]).output().expect("it starts");
    assert!(end.status.success(), "{}", words(&end));
    refused("gamma", "beta", &more, "used up");
    // Neither another node nor a stranger has the key that the token names.
    let (secret, _) = target.split_once('@').expect("both");
    let [nowhere] = addresses();
    refused("gamma", "gamma", &format!("{secret}@{nowhere}"), "cannot be reached");
    let other = Site::new().expect("as before");
    assert_ne!(other.init("alpha"), key);
    let [b] = addresses();
    let _other = other.start("alpha", b, "", "");
    refused("gamma", "gamma", &format!("{secret}@{b}"), "hung up");
    for text in [secret, "x@host:1", "TOKEN@HOST:PORT"] {
        let done = site.join("gamma", "gamma", text);
        assert!(!done.status.success() && !words(&done).contains("panicked"), "{}", words(&done));
        assert!(!words(&done).contains(secret), "{}", words(&done));
    }
    let private = fs::metadata(site.folder("alpha").join("cluster.key")).expect("there");
    assert_eq!(private.permissions().mode() & 0o037, 0);
    assert!(!alpha.log().contains(secret));
}

#[test]
fn who_was_signed_by_another_cluster_or_is_pinned_to_another_key_is_nobody() {
    let (Some(site), Some(other)) = (Site::new(), Site::new()) else { return };
    let [a, b, c] = addresses();
    site.init("alpha");
    let alpha = site.start("alpha", a, "", &peer("beta", c));
    site.join_at("beta", &alpha, &[]);
    let beta = site.start("beta", b, "", &peer("alpha", a));
    reads(&beta, "alpha");
    // Mallory has a cluster of its own, in which it is beta.
    other.init("mallory");
    let done = other
        .programs
        .pipectl()
        .args(["cluster", "sign", "beta"])
        .arg(key_of(&other))
        .arg("--config")
        .arg(other.folder("mallory").join("mallory.toml"))
        .output()
        .expect("it starts");
    assert!(done.status.success(), "{}", words(&done));
    fs::write(other.folder("mallory").join("node.certificate"), &done.stdout).expect("written");
    let mallory = other.start("mallory", c, "", &peer("alpha", a));
    is_refused(&mallory, "alpha");
    logged(&alpha, "no key of [cluster] signed it");
    // Alpha asks who is at the address of beta.
    is_refused(&alpha, "beta");
    logged(&alpha, "not connected");
    // With the certificate of beta, which anybody may have, and without its key.
    let stolen = fs::read(site.folder("beta").join("node.certificate")).expect("there");
    fs::write(other.folder("mallory").join("node.certificate"), stolen).expect("written");
    reload(&mallory);
    logged(&mallory, "it is for another key");
    is_refused(&mallory, "alpha");
    is_refused(&alpha, "beta");
    // A pinned key goes before a certificate.
    let pinned = format!("[peers.beta]\nkey = \"{}\"\n", key_of(&other));
    let mut alpha = alpha;
    restart(&mut alpha, &site.text("alpha", a, "", &pinned));
    is_refused(&beta, "alpha");
    logged(&alpha, "pins to another key");
}

fn key_of(site: &Site) -> String {
    let file = site.folder("mallory").join("node.key");
    let done = site.programs.pipectl().args(["keys", "show", "--file"]).arg(file).output();
    String::from_utf8(done.expect("it starts").stdout).expect("text").trim().to_owned()
}
