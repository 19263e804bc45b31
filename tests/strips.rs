//! Loops over strips of another node's memory and files, with real daemons: what they bring and
//! leave, what the daemon says of their path, and how they end when the other side does.
#![forbid(unsafe_code)]

use std::time::Duration;

use piped_client::{
    Access, Buffer, Client, ClientBuilder, Handle, OpenOptions, RegionExport, Status, StripError,
    StripPolicy, StripReader, StripWriter, Strips,
};
use rustix::process::Signal;
use system_tests::process::{BLOCKS_BYTES, Daemon, Pair, Programs, eventually, pattern};

// An example is a program; its `main` is not called here.
#[path = "../client-lib/examples/strip_reduction.rs"]
#[allow(dead_code, unreachable_pub)]
mod strip_reduction;
#[path = "../client-lib/examples/strip_vector.rs"]
#[allow(dead_code, unreachable_pub)]
mod strip_vector;

const REGION: usize = 1 << 20;

struct World {
    pair: Pair,
    client: Client,
    _directory: tempfile::TempDir,
}

fn world() -> Option<World> {
    let programs = Programs::find()?;
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    pair.alpha.await_lanes();
    let client = connect(&pair.alpha);
    Some(World { pair, client, _directory: directory })
}

fn connect(daemon: &Daemon) -> Client {
    let builder = ClientBuilder::new().arena_bytes(32 << 20);
    builder.connect(daemon.client_socket()).expect("it serves")
}

/// Memory of a client of that node, for others to read.
fn offered(owner: &Client, name: &str, bytes: &[u8]) -> RegionExport {
    let mut buffer: Buffer = owner.allocate(bytes.len()).expect("memory");
    buffer.as_mut_slice().copy_from_slice(bytes);
    owner.export_region(name, buffer, Access::READ_WRITE).expect("a fresh name")
}

fn region(client: &Client, name: &str) -> Handle {
    client.open_region(Some("beta"), name, Access::READ_WRITE).expect("it is offered")
}

#[test]
fn strips_of_other_nodes_are_their_bytes_and_what_is_written_gets_there() {
    let Some(world) = world() else { return };
    let World { pair, client, .. } = &world;
    let bytes = pattern(REGION);
    let owner = connect(&pair.beta);
    let export = offered(&owner, "strips", &bytes);
    let (there, mut queue) = (region(client, "strips"), client.queue().expect("a queue"));
    let file = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    let file = file.expect("it is there");
    let blocks = pattern(BLOCKS_BYTES);
    for policy in [StripPolicy::Auto, StripPolicy::Fixed(50_000)] {
        let strips = Strips::new().policy(policy);
        for (handle, wanted) in [(&there, &bytes), (&file, &blocks)] {
            let mut got = Vec::new();
            let opened = StripReader::open(client, handle, 0..wanted.len() as u64, strips);
            let mut reader = opened.expect("a range");
            while let Some(strip) = reader.next(&mut queue).expect("no faults") {
                assert_eq!(strip.offset(), got.len() as u64);
                got.extend_from_slice(&strip);
            }
            assert!(got == *wanted, "{policy:?}");
        }
        let mut writer =
            StripWriter::open(client, &there, 0..REGION as u64, strips).expect("a range");
        while let Some(mut strip) = writer.next(&mut queue).expect("no faults") {
            let at = strip.offset() as usize;
            let length = strip.len();
            strip.copy_from_slice(&bytes[at..at + length]);
            strip.iter_mut().for_each(|byte| *byte = !*byte);
        }
        assert_eq!(writer.finish(&mut queue).expect("no faults"), REGION as u64);
        let mut seen = vec![0; REGION];
        export.read_at(0, &mut seen).expect("inside");
        assert!(seen.iter().zip(&bytes).all(|(seen, byte)| *seen == !byte), "{policy:?}");
        export.write_at(0, &bytes).expect("inside");
    }
}

#[test]
fn the_daemon_says_what_a_path_costs_once_it_has_measured_it() {
    let Some(world) = world() else { return };
    let World { pair, client, .. } = &world;
    let owner = connect(&pair.beta);
    let _export = offered(&owner, "strips", &pattern(REGION));
    let there = region(client, "strips");
    let mut queue = client.queue().expect("a queue");
    let mut buffer = client.allocate(64 << 10).expect("memory");
    let costs = eventually("gets have shown what the lane costs", || {
        for _ in 0..20 {
            let spare = client.allocate(64 << 10).expect("memory");
            let asked = std::mem::replace(&mut buffer, spare);
            buffer = queue.read(&there, 0, asked).expect("it is there").0;
        }
        there.read_costs().expect("it answers")
    });
    assert!(costs.confidence > 0.0 && costs.confidence <= 1.0, "{costs:?}");
    // A byte takes less than a microsecond and a get less than a second on any machine that runs
    // this.
    assert!(costs.per_byte_seconds < 1e-6 && costs.latency_seconds < 1.0, "{costs:?}");
    assert!(costs.overhead_seconds >= 0.0 && costs.latency_seconds >= 0.0, "{costs:?}");
    // What a peer's disk takes to read is the peer's to know.
    let file = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    assert_eq!(file.expect("it is there").read_costs().expect("it answers"), None);
    let mail = client.offer_channel("mail").expect("a fresh name");
    let refused = mail.read_costs().expect_err("messages have no place");
    assert!(matches!(
        refused,
        piped_client::SessionError::Refused { status: Status::BadHandle, .. }
    ));
}

#[test]
fn a_region_that_is_withdrawn_ends_its_strips_at_once() {
    let Some(world) = world() else { return };
    let World { pair, client, .. } = &world;
    let owner = connect(&pair.beta);
    let export = offered(&owner, "strips", &pattern(REGION));
    let there = region(client, "strips");
    let mut queue = client.queue().expect("a queue");
    let strips = Strips::new().policy(StripPolicy::Fixed(4096)).unroll(1);
    let mut reader = StripReader::open(client, &there, 0..REGION as u64, strips).expect("a range");
    assert!(reader.next(&mut queue).expect("it is there").is_some());
    drop(export);
    let mut strips_left = 0;
    let error = loop {
        match reader.next(&mut queue) {
            Ok(Some(_)) => strips_left += 1,
            Ok(None) => panic!("all of it was read out of a region that is gone"),
            Err(error) => break error,
        }
    };
    assert!(strips_left <= 2, "those that were on their way");
    assert!(matches!(error.status(), Some(Status::Gone | Status::BadHandle)), "{error}");
    assert!(reader.next(&mut queue).expect("over").is_none());
}

#[test]
fn a_peer_that_is_killed_in_the_middle_ends_the_strips_with_an_error_in_time() {
    let Some(world) = world() else { return };
    let World { pair, client, .. } = &world;
    let owner = connect(&pair.beta);
    let _export = offered(&owner, "strips", &pattern(REGION));
    let there = region(client, "strips");
    let mut queue = client.queue().expect("a queue");
    let strips = Strips::new().policy(StripPolicy::Fixed(8192)).deadline(Duration::from_secs(3));
    let mut reader = StripReader::open(client, &there, 0..REGION as u64, strips).expect("a range");
    assert!(reader.next(&mut queue).expect("it is there").is_some());
    pair.beta.process.signal(Signal::KILL);
    let error = loop {
        match reader.next(&mut queue) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("all of it was read out of a node that is gone"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StripError::Request { .. }), "{error}");
    assert!(error.status().is_some(), "its own daemon is there and says why: {error}");
    assert!(reader.next(&mut queue).expect("over").is_none());
    // The client goes on with others.
    queue.nop().expect("its daemon lives");
    drop(reader);
    eventually("everything came back", || {
        let _ = queue.poll();
        client.allocate(31 << 20).ok()
    });
}

#[test]
fn the_examples_compute_what_they_say() {
    let Some(world) = world() else { return };
    let World { pair, .. } = &world;
    let owner = connect(&pair.beta);
    let numbers: Vec<u64> = (0..50_000).map(|number| number * 0x1234_5678_9abc).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let _numbers = offered(&owner, "numbers", &bytes);
    let socket = pair.alpha.client_socket();
    let sum = strip_reduction::run(&socket, Some("beta"), "numbers").expect("no errors");
    assert_eq!(sum, numbers.iter().fold(0, |sum, number| u64::wrapping_add(sum, *number)));

    let floats = |of: fn(f64) -> f64| -> Vec<u8> {
        (0..40_000).flat_map(|number| of(f64::from(number)).to_le_bytes()).collect()
    };
    let _x = offered(&owner, "x", &floats(|number| number / 8.0));
    let client = &world.client;
    let options = OpenOptions::read_write().create(true);
    let y = client.open_export(Some("beta"), "data", "y", options).expect("made");
    let mut queue = client.queue().expect("a queue");
    let mut buffer = client.allocate(320_000).expect("memory");
    buffer.as_mut_slice().copy_from_slice(&floats(|number| number));
    let (_, written) = queue.write(&y, 0, buffer).expect("there is room");
    assert_eq!(written, 320_000);
    let run = strip_vector::run(&socket, Some("beta"), "x", ("data", "y"), 4.0);
    assert_eq!(run.expect("no errors"), 320_000);
    let (buffer, _) =
        queue.read(&y, 0, client.allocate(320_000).expect("memory")).expect("it is there");
    // All of them are exact in binary.
    assert!(buffer.as_slice() == floats(|number| 1.5 * number));
}
