//! Who may be behind a connection: names that are not for the asking, and nodes that are not trusted any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use piped_engine::command::{Caller, Command, LaneClass};
use piped_engine::limits::STRANGERS_MAX;
use piped_engine::wire::{FrameKey, LaneKeys, Message, Protection};

use crate::world::World;

fn reserved(names: &[&str]) -> Caller {
    let reserved: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Caller::Unproven { reserved: Arc::new(reserved) }
}

fn proven(node: &str) -> Caller {
    Caller::Proven { node: node.to_owned() }
}

fn keys() -> Option<LaneKeys> {
    let key = |byte| FrameKey::new([byte; 16]);
    Some(LaneKeys { protection: Protection::Integrity, send: key(1), receive: key(2) })
}

#[test]
fn a_name_that_has_a_key_is_not_had_for_the_asking() {
    let mut world = World::new();
    for name in ["beta", "beta#1"] {
        let line = world.dial_as(reserved(&["beta"]), None);
        world.hello(line, name, LaneClass::Latency, 1);
        world.settle();
        assert!(!world.is_up(line), "{name}");
    }
    let reason = "it gives itself the name of a node that has a key, and did not prove it";
    assert_eq!(world.reasons(), [reason, reason]);
    let line = world.dial_as(reserved(&["beta"]), None);
    world.hello(line, "gamma", LaneClass::Latency, 1);
    assert!(matches!(world.next(line), Message::HelloAck { .. }));
}

#[test]
fn who_proved_himself_and_then_speaks_in_the_clear_is_somebody_else() {
    let mut world = World::new();
    let line = world.dial_as(proven("beta"), keys());
    world.hello(line, "beta", LaneClass::Latency, 1);
    // A sealed header is longer than a plain one with so short a name.
    world.hello(line, "beta", LaneClass::Latency, 1);
    world.settle();
    assert!(!world.is_up(line));
    assert!(world.reasons()[0].contains("not the peer's"), "{:?}", world.reasons());
}

#[test]
fn lanes_of_nodes_that_are_not_trusted_any_more_close() {
    let mut world = World::new();
    let beta = world.lane("beta", LaneClass::Latency, 1);
    let second = world.lane("beta#1", LaneClass::Bulk, 1);
    let gamma = world.lane("gamma", LaneClass::Latency, 1);
    let silent = world.dial_as(proven("beta"), keys());
    let other = world.dial_as(proven("gamma"), keys());
    world.settle();
    world.command(Command::ExpelPeers { names: vec!["beta".to_owned()], unproven: false });
    world.settle();
    let up = [beta, second, gamma, silent, other].map(|line| world.is_up(line));
    // Who has not said who he is was let in under rules that are over.
    assert_eq!(up, [false, false, true, false, false]);
}

#[test]
fn lanes_of_whoever_proved_nothing_close_where_plain_ones_are_not_wanted_any_more() {
    let mut world = World::new();
    let plain = world.lane("gamma", LaneClass::Latency, 1);
    let silent = world.dial();
    let shown = world.dial_as(proven("beta"), None);
    world.hello(shown, "beta", LaneClass::Latency, 1);
    let greeting = world.dial_as(proven("delta"), keys());
    world.settle();
    world.command(Command::ExpelPeers { names: Vec::new(), unproven: true });
    world.settle();
    let up = [plain, silent, shown, greeting].map(|line| world.is_up(line));
    assert_eq!(up, [false, false, true, true]);
}

#[test]
fn a_node_has_no_more_names_than_it_can_have_shards() {
    let mut world = World::new();
    // Without a seal on its frames, to see what the name alone does.
    for (name, good) in [
        ("beta", true),
        ("beta#63", true),
        ("beta#64", false),
        ("beta#01", false),
        ("beta#x", false),
    ] {
        let line = world.dial_as(proven("beta"), None);
        world.hello(line, name, LaneClass::Latency, 1);
        world.settle();
        assert_eq!(world.is_up(line), good, "{name}");
    }
    assert!(world.reasons().iter().all(|reason| *reason == "no shard has that name"));
    let line = world.dial_as(proven("beta"), None);
    world.hello(line, "gamma", LaneClass::Latency, 1);
    world.settle();
    assert!(!world.is_up(line), "another node's name");
}

#[test]
fn who_proved_himself_is_not_pushed_out_by_those_who_did_not() {
    let mut world = World::new();
    let lines: Vec<_> = (0..STRANGERS_MAX).map(|_| world.dial_as(proven("beta"), keys())).collect();
    world.settle();
    let plain = world.dial();
    world.settle();
    assert!(!world.is_up(plain) && lines.iter().all(|line| world.is_up(*line)));
    // Among themselves one goes.
    world.dial_as(proven("beta"), keys());
    world.settle();
    assert_eq!(lines.iter().filter(|line| world.is_up(**line)).count(), STRANGERS_MAX - 1);
}
