//! Two real daemons with two wires between them: what goes over both, and over one when the other
//! is cut.
#![forbid(unsafe_code)]

use std::fs;

use piped_client::{Client, OpenOptions};
use system_tests::keys::Key;
use system_tests::process::{BLOCKS_BYTES, Daemon, Programs, eventually, free_address, pattern};
use system_tests::proxy::Proxy;

#[test]
fn a_long_read_goes_over_both_wires_and_over_one_when_the_other_is_cut() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let (path, address) = (directory.path(), free_address());
    fs::create_dir(path.join("root")).expect("made");
    fs::write(path.join("root/blocks"), pattern(BLOCKS_BYTES)).expect("written");
    let wires = [Proxy::start(address), Proxy::start(address)];
    let keys = ["alpha", "beta"].map(|name| Key::make(&programs, path, name));
    // With several shards each node is on one of them, whatever it is called by.
    let beta = keys[1].security("integrity")
        + &keys[0].peer("alpha", None)
        + &format!(
            "[listen]\naddress = \"{address}\"\n[shards]\ncount = 2\npin = false\n[exports.data]\n\
             path = \"{}\"\n",
            path.join("root").display()
        );
    let alpha = keys[0].security("integrity")
        + &keys[1].peer("beta", Some(wires[0].address()))
        + &format!("second_address = \"{}\"\n", wires[1].address());
    let _beta = Daemon::start(&programs, path, "beta", &beta);
    let alpha = Daemon::start(&programs, path, "alpha", &alpha);
    alpha.await_lanes();
    let second = || {
        let peers = alpha.json(&["peers"]);
        let lanes = peers["peers"][0]["lanes"].as_array().cloned().unwrap_or_default();
        lanes.into_iter().find(|lane| lane["class"] == "second" && lane["up"] == true)
    };
    eventually("the second lane is up", second);

    let client = Client::connect(alpha.client_socket()).expect("it serves");
    let open = || client.open_export(Some("beta"), "data", "blocks", OpenOptions::read()).ok();
    let file = eventually("it is open", open);
    let mut queue = client.queue().expect("a queue");
    let mut buffer = Some(client.allocate(BLOCKS_BYTES).expect("memory"));
    let mut read = || {
        let memory = buffer.take().expect("it came back");
        let (memory, bytes) = queue.read(&file, 0, memory).expect("read");
        assert_eq!(bytes, BLOCKS_BYTES);
        assert!(memory.as_slice() == pattern(BLOCKS_BYTES), "the bytes of the file");
        buffer = Some(memory);
    };
    // The first goes whole, the next one both ways, and the others as that turned out.
    (0..8).for_each(|_| read());
    let came = |wire: &Proxy| wire.bytes()[1];
    assert!(came(&wires[1]) > BLOCKS_BYTES as u64 / 4, "{}", came(&wires[1]));

    for _ in 0..4 {
        wires[1].cut();
        read();
        read();
    }
    wires[1].pause(true);
    wires[1].cut();
    read();
    let before = came(&wires[0]);
    read();
    assert!(came(&wires[0]) - before > BLOCKS_BYTES as u64, "all of it, over the first");
}
