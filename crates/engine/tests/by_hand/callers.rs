//! Who may be behind a connection: names that are not for the asking, and nodes that are not
//! trusted any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use piped_core::limits::STRANGERS_MAX;
use piped_core::link::{LaneClass, Protection};
use piped_core::status::Status;
use piped_engine::command::{Caller, Command, Expelled, Origin};
use piped_wire::{FrameKey, LaneKeys, Message};

use crate::world::{World, read};

fn reserved(names: &[&str]) -> Caller {
    let reserved: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let origin = Origin::Site([192, 0, 2, 7].into());
    Caller::Unproven { reserved: Arc::new(reserved), origin }
}

fn proven(node: &str) -> Caller {
    proven_shard(node, 0)
}

fn proven_shard(node: &str, shard: usize) -> Caller {
    Caller::Proven { node: node.to_owned(), shard }
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
    world.command(Command::ExpelPeers { names: vec!["beta".to_owned()], plain: Expelled::Nobody });
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
    world.command(Command::ExpelPeers { names: Vec::new(), plain: Expelled::Everybody });
    world.settle();
    let up = [plain, silent, shown, greeting].map(|line| world.is_up(line));
    assert_eq!(up, [false, false, true, true]);
}

fn of_user(uid: u32) -> Caller {
    Caller::Unproven { reserved: Arc::default(), origin: Origin::User(uid) }
}

#[test]
fn lanes_of_users_close_where_users_are_not_admitted_as_they_were() {
    let mut world = World::new();
    let far = world.lane("gamma", LaneClass::Latency, 1);
    let [named, silent] = [1000, 1001].map(|uid| world.dial_as(of_user(uid), None));
    world.hello(named, "delta", LaneClass::Latency, 1);
    world.settle();
    world.command(Command::ExpelPeers { names: Vec::new(), plain: Expelled::Users });
    world.settle();
    assert_eq!([far, named, silent].map(|line| world.is_up(line)), [true, false, false]);
}

#[test]
fn what_a_user_opened_is_not_had_by_another_under_the_same_name() {
    let mut world = World::new();
    let mine = world.dial_as(of_user(1000), None);
    world.hello(mine, "delta", LaneClass::Latency, 1);
    world.next(mine);
    let file = world.file(4096);
    let handle = world.open(mine, 9, file);
    // Everything is as on the first one, and it is later: the same node would take its own lane's
    // place.
    for caller in [of_user(1001), Caller::anybody(), proven("delta")] {
        let theirs = world.dial_as(caller, None);
        world.hello(theirs, "delta", LaneClass::Latency, 2);
        world.settle();
        assert!(world.is_up(mine) && world.is_up(theirs));
        world.next(theirs);
        world.send(theirs, read(1, handle, 4096), &[]);
        assert_eq!(world.read_end(theirs, 1), Status::BadHandle);
    }
    let again = world.dial_as(of_user(1000), None);
    world.hello(again, "delta", LaneClass::Latency, 2);
    world.settle();
    assert!(!world.is_up(mine) && world.is_up(again), "its own lane takes the place of the first");
    world.next(again);
    world.send(again, read(1, handle, 4096), &[]);
    assert_eq!(world.read_end(again, 1), Status::Ok);
}

#[test]
fn a_node_has_no_more_names_than_it_can_have_shards() {
    let mut world = World::new();
    // Without a seal on its frames, to see what the name alone does.
    for (name, shard, good) in [
        ("beta", 0, true),
        ("beta#63", 63, true),
        ("beta#64", 64, false),
        ("beta#01", 1, false),
        ("beta#0", 0, false),
        ("beta#x", 0, false),
    ] {
        let line = world.dial_as(proven_shard("beta", shard), None);
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
fn a_shard_has_no_name_but_that_of_its_handshake() {
    let mut world = World::new();
    let first = world.dial_as(proven("beta"), None);
    world.hello(first, "beta", LaneClass::Latency, 1);
    let third = world.dial_as(proven_shard("beta", 2), None);
    world.hello(third, "beta#2", LaneClass::Latency, 1);
    world.settle();
    // Lanes of these names may be at other shards of this node, or a later lane of theirs.
    for (shard, name) in [(0, "beta#2"), (1, "beta#2"), (2, "beta"), (2, "beta#1"), (20, "beta#2")]
    {
        for class in [LaneClass::Latency, LaneClass::Bulk] {
            let line = world.dial_as(proven_shard("beta", shard), None);
            world.hello(line, name, class, 2);
            world.settle();
            assert!(!world.is_up(line), "shard {shard} as {name}");
        }
    }
    let reason = "it gives itself the name of another shard than in its handshake; install the \
                  same release on both nodes";
    assert_eq!(world.reasons(), [reason; 10]);
    // Nobody's place was taken.
    assert!(world.is_up(first) && world.is_up(third));
    let bulk = world.dial_as(proven_shard("beta", 2), None);
    world.hello(bulk, "beta#2", LaneClass::Bulk, 1);
    world.settle();
    assert!(world.is_up(bulk));
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
