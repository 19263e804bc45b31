//! The inputs that the fuzzer found worth keeping, and those it began with, at every door again.

use std::path::PathBuf;
use std::{env, fs};

use doors::{DOORS, Door, Seed};

fn door(name: &str) -> &'static Door {
    DOORS.iter().find(|door| door.name == name).expect("a door of that name")
}

fn corpus(door: &Door) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../corpus")).join(door.name)
}

/// The files of a door's corpus, in order.
fn inputs(door: &Door) -> Vec<Seed> {
    let directory = corpus(door);
    let read = |error| panic!("{}: {error}", directory.display());
    let mut inputs: Vec<Seed> = fs::read_dir(&directory)
        .unwrap_or_else(read)
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(path).expect("a file"))
        })
        .collect();
    inputs.sort();
    inputs
}

fn replay(name: &str) {
    let door = door(name);
    let inputs = inputs(door);
    assert!(!inputs.is_empty(), "{} is empty", corpus(door).display());
    for (input, bytes) in inputs.iter().chain(&(door.seeds)()) {
        // Shown with the panic.
        println!("{name}: {input}");
        (door.check)(bytes);
    }
    // No input at all, and one that says nothing.
    (door.check)(&[]);
    (door.check)(&[0; 300]);
}

#[test]
fn requests_of_operators() {
    replay("admin");
}

#[test]
fn configurations_of_operators() {
    replay("configuration");
}

#[test]
fn descriptors_of_clients() {
    replay("descriptor");
}

#[test]
fn control_messages_of_clients() {
    replay("handshake");
}

#[test]
fn handshakes_of_nodes() {
    replay("greeting");
}

#[test]
fn frames_of_peers() {
    replay("frame");
}

#[test]
fn lanes_of_peers() {
    replay("lane");
}

#[test]
fn figures_of_stages() {
    replay("estimate");
}

#[test]
fn what_stages_cost_before() {
    replay("kept");
}

#[test]
fn queues_of_clients() {
    replay("ring");
}

/// Writes the seeds of every door, for the fuzzer: `PIPED_FUZZ_SEEDS=DIRECTORY cargo test -p
/// fuzz-doors seeds`.
#[test]
fn seeds_are_values_with_names() {
    for door in DOORS {
        let mut seeds = (door.seeds)();
        assert!(seeds.len() > 5, "{}", door.name);
        if let Some(directory) = env::var_os("PIPED_FUZZ_SEEDS") {
            let directory = PathBuf::from(directory).join(door.name);
            fs::create_dir_all(&directory).expect("a directory");
            for (name, bytes) in &seeds {
                fs::write(directory.join(name), bytes).expect("written");
            }
        }
        seeds.sort();
        seeds.dedup_by(|a, b| a.0 == b.0);
        assert_eq!(seeds.len(), (door.seeds)().len(), "{}: names are unique", door.name);
    }
}

/// Every directory is somebody's.
#[test]
fn there_is_no_corpus_without_a_door() {
    let corpora = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../corpus")).expect("there");
    for entry in corpora {
        let name = entry.expect("an entry").file_name();
        assert!(DOORS.iter().any(|door| *door.name == *name), "{}", name.display());
    }
}
