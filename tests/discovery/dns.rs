//! SRV records of a name server say where beta is.

use system_tests::process::{BLOCKS_BYTES, eventually, pattern};
use system_tests::proxy::Proxy;
use system_tests::servers::{NameServer, RECORDS};

use crate::scene::{Scene, is_served_by, read};

#[test]
fn records_are_followed_and_the_last_ones_stay() {
    let Some(mut server) = NameServer::new() else { return };
    let table =
        format!("[discovery]\ndns = \"{RECORDS}\"\ndns_servers = [\"{}\"]\n", server.address());
    let Some(scene) = Scene::start(|_| [table, String::new()]) else { return };
    scene.logged("discovery.dns: the last known addresses stay");
    let [first, second] = [(); 2].map(|()| Proxy::start(scene.addresses[0]));
    let [beta, mallory] = scene.addresses;
    server.run(&[("beta", first.address()), ("gamma", mallory)], 1);
    let client = scene.client();
    let file = scene.open(&client);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    let report = scene.alpha.json(&["nodes"]);
    assert_eq!(report["sources"][0]["nodes"], 2, "{report}");
    // It moves: what was its address leads nowhere.
    server.run(&[("beta", second.address())], 1);
    scene.await_heard(second.address());
    drop(first);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
    // Records without it, and no server at all, change nothing.
    server.run(&[("gamma", beta)], 1);
    eventually("it is named no more", || scene.heard().is_none().then_some(()));
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    server.kill();
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    // A record that leads to somebody else leads to nobody.
    server.run(&[("beta", mallory)], 1);
    scene.await_heard(mallory);
    scene.logged("not connected");
    assert!(!is_served_by(&scene.others[1]));
    server.run(&[("beta", beta)], 1);
    scene.await_heard(beta);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
}
