//! Nodes write into an etcd where they are, and so does everybody else who may.

use std::net::SocketAddr;
use std::path::Path;

use piped_client::OpenOptions;
use system_tests::process::{BLOCKS_BYTES, Daemon, eventually, pattern};
use system_tests::proxy::Proxy;
use system_tests::servers::{Etcd, PREFIX};

use crate::scene::{Scene, is_served_by, read};

/// A table `[discovery.etcd]` with these lines.
fn table(url: &str, more: &str) -> String {
    format!("[discovery.etcd]\nendpoints = [\"{url}\"]\nlease = \"5s\"\n{more}")
}

/// A scene around an etcd, from which alpha is as far as it is from there.
fn start(directory: &Path) -> Option<(Scene, Etcd)> {
    let etcd = Etcd::start(directory, false)?;
    let scene = Scene::start(|_| [table(&etcd.url(), ""), table(&etcd.url(), "")])?;
    Some((scene, etcd))
}

#[test]
fn nodes_publish_themselves_and_find_each_other_while_the_etcd_comes_and_goes() {
    let directory = tempfile::tempdir().expect("a folder");
    let Some((mut scene, mut etcd)) = start(directory.path()) else { return };
    let client = scene.client();
    let file = scene.open(&client);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    let entry = etcd.entry("beta");
    for said in [&scene.keys[1].public, "\"data\"", env!("CARGO_PKG_VERSION"), "load_percent"] {
        assert!(entry.contains(said), "{said} in {entry}");
    }
    assert_eq!(etcd.entry("alpha"), "", "nobody can connect to it");
    // It moves, and says so itself.
    scene.move_beta();
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
    // The etcd dies, and beta moves before it is back.
    etcd.kill();
    scene.logged("discovery.etcd: the last known addresses stay");
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    scene.move_beta();
    etcd.run();
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
    // Somebody takes its lease away, with the entry.
    let leases = etcd.ctl(&["lease", "list"]);
    for lease in leases.lines().filter(|line| line.len() == 16) {
        etcd.ctl(&["lease", "revoke", lease]);
    }
    eventually("it is written again", || (!etcd.entry("beta").is_empty()).then_some(()));
    // It dies: others hear of it when the lease is over, and what they knew stays.
    scene.others[0].process.signal(rustix::process::Signal::KILL);
    eventually("it is named no more", || etcd.entry("beta").is_empty().then_some(()));
    eventually("it is heard of no more", || scene.heard().is_none().then_some(()));
    scene.move_beta();
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
}

#[test]
fn whoever_writes_the_etcd_moves_addresses_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a folder");
    let Some((scene, etcd)) = start(directory.path()) else { return };
    let client = scene.client();
    let file = scene.open(&client);
    let [beta, mallory] = scene.addresses;
    // Beta writes its entry again where another one overwrote it.
    etcd.say("beta", mallory);
    eventually("it is put right", || etcd.entry("beta").contains(&beta.to_string()).then_some(()));
    let said = || scene.others[0].log().contains("this node's entry is not what it wrote");
    eventually("beta says so", || said().then_some(()));
    // Entries that are no nodes harm nobody, and are named.
    for (name, text) in [
        ("broken", "{"),
        ("list", "[]"),
        ("none", "{}"),
        ("..", "{\"address\": \"h:1\"}"),
        ("key", "{\"address\": \"h:1\", \"key\": \"x\"}"),
    ] {
        etcd.ctl(&["put", &format!("{PREFIX}{name}"), text]);
        scene.logged(&format!("discovery.etcd: {name}: "));
    }
    etcd.ctl(&["put", "/piped/nodes", "{"]);
    etcd.ctl(&["put", &format!("{PREFIX}mallory"), &format!("{{\"address\": \"{mallory}\"}}")]);
    assert!(client.open_export(Some("mallory"), "data", "blocks", OpenOptions::read()).is_err());
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    // Without beta to put it right: nobody is served by mallory, whatever is written.
    scene.others[0].process.freeze();
    for text in [
        format!("{{\"address\": \"{mallory}\"}}"),
        format!("{{\"address\": \"{mallory}\", \"key\": \"{}\"}}", scene.keys[1].public),
        format!("{{\"address\": \"{mallory}\", \"key\": \"{}\"}}", scene.keys[2].public),
    ] {
        etcd.ctl(&["put", &format!("{PREFIX}beta"), &text]);
        scene.await_heard(mallory);
    }
    let open = || client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    assert!(open().is_err(), "nobody there has the key");
    scene.logged("not connected");
    assert!(!is_served_by(&scene.others[1]));
    scene.others[0].process.signal(rustix::process::Signal::CONT);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
}

#[test]
fn a_node_that_falls_behind_or_is_cut_off_catches_up() {
    let directory = tempfile::tempdir().expect("a folder");
    let Some(etcd) = Etcd::start(directory.path(), false) else { return };
    let wire = Proxy::start(etcd.address());
    let far = format!("http://{}", wire.address());
    let scene = Scene::start(|_| [table(&far, ""), table(&etcd.url(), "")]);
    let Some(mut scene) = scene else { return };
    let client = scene.client();
    let file = scene.open(&client);
    // Cut off, and beta moves meanwhile.
    wire.pause(true);
    scene.move_beta();
    scene.logged("discovery.etcd: the last known addresses stay");
    wire.pause(false);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
    // Alpha stands still while more is written than the etcd keeps for it, and that is compacted.
    scene.alpha.process.freeze();
    let long = "x".repeat(60_000);
    for number in 0..400 {
        etcd.ctl(&["put", &format!("{PREFIX}flood{}", number % 7), &long]);
    }
    let status = etcd.ctl(&["put", &format!("{PREFIX}last"), "{}", "-w", "json"]);
    let revision = serde_json::from_str::<serde_json::Value>(&status).expect("JSON");
    etcd.ctl(&["compact", &revision["header"]["revision"].to_string()]);
    scene.move_beta();
    scene.alpha.process.signal(rustix::process::Signal::CONT);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
    scene.await_heard(scene.addresses[0]);
}

#[test]
fn an_etcd_with_certificates_and_users_is_asked_as_it_wants() {
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path();
    let Some(etcd) = Etcd::start(path, true) else { return };
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "piped:pipe dream"],
        &["role", "add", "piped"],
        &["role", "grant-permission", "piped", "--prefix=true", "readwrite", PREFIX],
        &["user", "grant-role", "piped", "piped"],
        &["auth", "enable"],
    ] {
        etcd.ctl(arguments);
    }
    std::fs::write(path.join("password"), "pipe dream\n").expect("written");
    let at = |name: &str| path.join(name).display().to_string();
    let more = format!(
        "user = \"piped\"\npassword_file = \"{}\"\nca_file = \"{}\"\ncertificate_file = \"{}\"\n\
         key_file = \"{}\"\n",
        at("password"),
        at("tls.ca"),
        at("tls.pem"),
        at("tls.key")
    );
    let table = table(&etcd.url(), &more);
    let Some(scene) = Scene::start(|_| [table.clone(), table]) else { return };
    let client = scene.client();
    let file = scene.open(&client);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
}

#[test]
fn what_is_wrong_with_an_etcd_is_said() {
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path();
    let at = |name: &str| path.join(name).display().to_string();
    let nobody = system_tests::process::free_address();
    let files = format!("ca_file = \"{}\"\n", at("none.pem"));
    let said = |url: &str, more: &str, words: &str| {
        let Some(scene) = Scene::start(|_| [table(url, more), String::new()]) else { return };
        scene.logged(words);
        let report = scene.alpha.json(&["nodes"]);
        let away = report["sources"][0]["away"].as_str().unwrap_or_default();
        assert!(away.contains(words), "{report}");
    };
    said(&format!("http://{nobody}"), "", "Connection refused");
    said(&format!("https://{nobody}"), &files, "none.pem cannot be used");
    // A server, and not an etcd: the metrics of a daemon would do as well.
    let Some(programs) = system_tests::process::Programs::find() else { return };
    let metrics: SocketAddr = system_tests::process::free_address();
    let other = format!("[metrics]\naddress = \"{metrics}\"\n");
    let _other = Daemon::start(&programs, path, "other", &other);
    said(&format!("http://{metrics}"), "", "refuses");
}
