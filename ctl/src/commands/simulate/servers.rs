//! Tests whether the engine finds stages with one server, in worlds where that is known.

use piped_core::ids::HandleId;
use piped_core::modes::PlannerMode;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::units::Nanos;
use piped_report::shard::ServedWith;

use super::scenario;
use super::world::World;

const PIECE: u64 = 64 << 10;
/// Offset in the arena: bytes of gets lie before it, those of copies and writes behind.
const BEHIND: u64 = 12 << 20;

fn world(text: &str, node: &str, what: &str) -> World {
    let transfers =
        format!("[[transfers]]\nnode = \"{node}\"\nread = \"{what}\"\nbytes = \"16MiB\"\n");
    let scenario = scenario::parse(&format!("{text}\n{transfers}")).expect("a scenario");
    World::new(&scenario).expect("a world")
}

/// Keeps one transfer under way all the time, and another one on and off.
fn pass(
    world: &mut World,
    node: usize,
    always: impl Fn(u64) -> Verb,
    sometimes: impl Fn(u64) -> Verb,
) {
    const SLICE: Nanos = Nanos::from_millis(1);
    let mut under_way: Vec<u64> = (0..2).map(|slot| world.begin_any(node, always(slot))).collect();
    let mut others: Vec<u64> = Vec::new();
    for round in 0..1500_u64 {
        let until = world.now() + SLICE;
        while let Some(place) = world.await_one(node, &under_way, until) {
            under_way[place] = world.begin_any(node, always(place as u64));
        }
        while let Some(place) = world.await_one(node, &others, Nanos::ZERO) {
            others.swap_remove(place);
        }
        if round / 5 % 3 == 0 && others.is_empty() {
            others =
                (0..1 + round % 3).map(|slot| world.begin_any(node, sometimes(slot))).collect();
        }
    }
}

fn with(
    world: &World,
    node: usize,
    stage: impl Fn(&str) -> bool,
    other: &str,
) -> Option<ServedWith> {
    let stages = world.stages(node);
    let found = stages.iter().find(|it| stage(&it.name)).expect("a stage");
    found.with.iter().find(|it| it.name.ends_with(other)).cloned()
}

fn buffer(offset: u64, length: u64) -> ArenaBuffer {
    ArenaBuffer { segment: 0, offset, length }
}

/// Frames arrive over a wire, the thread has a given time of work for each, and copies for others
/// beside.
fn received(per_kb: &str, host: &str) -> Option<ServedWith> {
    let text = format!(
        "[nodes.a]\n[nodes.b]\n[[links]]\nnodes = [\"a\", \"b\"]\nL = \"5us\"\ng = \"1us\"\nG = \
         \"{per_kb}\"\n[[dials]]\nnode = \"a\"\nstage = \"receive:b\"\no = \"{host}\"\n[[dials]]\n\
         node = \"a\"\nstage = \"copy\"\no = \"200us\"\n"
    );
    let mut world = world(&text, "a", "b");
    world.plan(PlannerMode::Fixed(64 << 10), None);
    let node = world.find("a").expect("a node");
    let [there, here]: [HandleId; 2] =
        ["b", "a"].map(|what| world.open(node, what).expect("opened"));
    let get = 4 << 20;
    pass(
        &mut world,
        node,
        |slot| Verb::Read { handle: there, offset: 0, buffer: buffer(slot * get, get), wanted: 0 },
        |slot| Verb::Read {
            handle: here,
            offset: BEHIND,
            buffer: buffer(BEHIND + (slot + 1) * PIECE, PIECE),
            wanted: 0,
        },
    );
    with(&world, node, |name| name == "net b bulk asked in", "thread")
}

#[test]
fn a_wire_is_served_by_the_thread_only_where_the_thread_is_what_it_waits_for() {
    let slow_thread = received("0.1us/KB", "100us").expect("decided");
    assert!(slow_thread.one_server, "{slow_thread:?}");
    let slow_wire = received("5us/KB", "10us").expect("decided");
    assert!(!slow_wire.one_server, "{slow_wire:?}");
}
