//! Calls of names: which ones clients make, and how they are judged with what is in the kernel.

use piped_core::call::{
    Call as Said, Copied, Entries, FileKind, Over, Range as Bytes, Removed, Stat,
};
use piped_core::status::Status;
use piped_core::units::Nanos;

use super::names::{AskedOfNames, Listed, Names, STAYS};
use super::outcome::{KEPT, NAMES, NameCall, STRANGE, SUB, TOP, Thing, Things};
use super::{Effect, ObjectKind, Options, World};

/// A client's directory on a node, as an object.
///
/// # Panics
/// If clients have none.
#[must_use]
pub fn directory(world: &World, client: usize, node: usize) -> usize {
    let is_it =
        |kind: &ObjectKind| matches!(kind, ObjectKind::Directory { owner, .. } if *owner == client);
    let found = world.objects.iter().position(|it| it.node == node && is_it(&it.kind));
    found.expect("each client has one on each node")
}

/// Gives a client a directory with some files on a node.
pub(super) fn add(world: &mut World, client: usize, node: usize) {
    let (id, device) = (world.nodes[node].id, world.nodes[node].device);
    let [directory, below] = [(); 2].map(|()| world.kernel.create_directory(id, device));
    // They are empty: what a device has room for is others' affair.
    let [one, two, kept] = [(); 3].map(|()| world.kernel.create_file(id, device, Vec::new()));
    world.kernel.add_name(id, directory, SUB.as_bytes(), below);
    world.kernel.add_name(id, below, KEPT.as_bytes(), kept);
    world.kernel.add_name(id, directory, last_part(0), one);
    world.kernel.add_name(id, below, last_part(TOP), two);
    let mut files = [None; NAMES.len()];
    (files[0], files[TOP]) = (Some(one), Some(two));
    let kind = ObjectKind::Directory { owner: client, names: world.names.len(), directory, below };
    world.names.push(Names::new(files));
    world.add_object(node, format!("names-{client}"), kind, vec![0], &[]);
}

pub(super) fn is_directory(world: &World, object: usize) -> bool {
    matches!(world.objects[object].kind, ObjectKind::Directory { .. })
}

/// Whether a directory is another client's, which nobody else opens.
pub(super) fn is_strange(world: &World, client: usize, object: usize) -> bool {
    let kind = world.objects[object].kind;
    matches!(kind, ObjectKind::Directory { owner, .. } if owner != client)
}

pub(super) fn names_of(world: &World, object: usize) -> usize {
    match world.objects[object].kind {
        ObjectKind::Directory { names, .. } => names,
        _ => panic!("{} is no directory", world.objects[object].name),
    }
}

/// What a name stands for in the kernel.
fn thing(world: &World, object: usize, name: usize) -> Thing {
    let ObjectKind::Directory { directory, below, .. } = world.objects[object].kind else {
        return Thing::Nothing;
    };
    let inode = if name < TOP { directory } else { below };
    let wanted = last_part(name);
    let node = world.nodes[world.objects[object].node].id;
    let all = world.kernel.names_in(node, inode);
    match all.into_iter().find(|(name, ..)| *name == wanted) {
        None => Thing::Nothing,
        Some((_, _, true)) => Thing::Directory,
        Some((_, inode, false)) => Thing::File(inode),
    }
}

fn things(world: &World, asked: &AskedOfNames) -> Things {
    asked.names().map(|name| (name, thing(world, asked.object(), name))).collect()
}

/// Names that have rested long enough are what is there.
pub(super) fn settle(world: &mut World, client: usize) {
    for object in 0..world.objects.len() {
        if is_directory(world, object) && !is_strange(world, client, object) {
            let there: Vec<_> = (0..NAMES.len()).map(|it| thing(world, object, it)).collect();
            let names = names_of(world, object);
            let settled = world.names[names].settle(world.kernel.now(), |name| there[name]);
            if let Err(fault) = settled {
                panic!("{} of client {client}: {fault}", world.objects[object].name);
            }
        }
    }
}

pub(super) fn invent(world: &mut World) -> NameCall {
    let random = &mut world.random;
    let mut name = || random.below(NAMES.len() as u64) as usize;
    let (name, other) = (name(), name());
    match random.below(20) {
        0..2 => NameCall::Stat { name },
        2..5 => NameCall::List { below: random.chance(0.3), stats: random.chance(0.5) },
        5..8 => NameCall::Make { name, parents: random.chance(0.5) },
        8..10 => {
            let kinds = [Removed::File, Removed::Directory, Removed::Any];
            NameCall::Remove { name, kind: *random.pick(&kinds) }
        }
        10..15 => {
            let over = *random.pick(&[Over::Replace, Over::Keep, Over::Exchange]);
            NameCall::Rename { from: name, to: other, over, durable: random.chance(0.4) }
        }
        15..17 => NameCall::Link { from: name, to: other },
        17 => NameCall::Copy { from: name, to: other },
        18 => NameCall::Sync,
        _ => NameCall::Strange { number: random.below(STRANGE.len() as u64) as usize },
    }
}

/// A call of names ended, with that answer.
pub(super) fn judge(
    world: &mut World,
    asked: &AskedOfNames,
    status: Status,
    answer: &[u8],
    name: &str,
) {
    world.tally("calls of names", 1);
    let until = rested(world);
    let (there, names) = (things(world, asked), names_of(world, asked.object()));
    let (ok, is_same) = (status == Status::Ok, world.names[names].crashes() == asked.crashes());
    let mut judged = world.names[names].end(asked, status, &there, until);
    match asked.call() {
        NameCall::List { below, .. } if is_same && judged.is_ok() => {
            let told = ok.then(|| listed(below, answer)).transpose();
            let ended = told.and_then(|told| world.names[names].end_list(told));
            world.tally("directories listed", matches!(ended, Ok(true)).into());
            judged = ended.map(drop);
        }
        NameCall::Stat { name } if ok && is_same && judged.is_ok() => {
            judged = judge_stat(&world.names[names], asked, name, answer);
        }
        NameCall::Copy { .. } if ok => {
            let right = Copied::parse(answer) == Ok(Copied(0));
            judged = judged.and(right.then_some(()).ok_or_else(|| format!("it says {answer:?}")));
        }
        _ => {}
    }
    if ok && asked.changes() {
        world.tally("names changed", 1);
    }
    if let Err(fault) = judged {
        panic!("{name}, {:?}, ends with {status:?}: {fault}", asked.call());
    }
}

/// When a call that is given up now is carried out, or never will be: a device stands still for
/// twice the deadline at most.
fn rested(world: &World) -> Nanos {
    let Options { quarantine, deadline, .. } = world.options;
    world.kernel.now() + quarantine + deadline + deadline
}

/// A client is gone with calls under way, which may be carried out yet.
pub(super) fn leave(world: &mut World, client: usize) {
    let until = rested(world);
    for flight in world.clients[client].calls.values().filter(|it| !it.held) {
        if let Effect::Names(asked) = &flight.effect {
            let names = names_of(world, asked.object());
            world.names[names].leave(asked, until);
        }
    }
    for object in &world.objects {
        if let ObjectKind::Directory { owner, names, .. } = object.kind
            && owner == client
        {
            world.names[names].forget_told();
        }
    }
}

/// A node crashed, and its directories have what it left.
pub(super) fn crash(world: &mut World, node: usize) {
    let mut held = 0;
    for object in (0..world.objects.len()).filter(|&it| world.objects[it].node == node) {
        let ObjectKind::Directory { owner, names, .. } = world.objects[object].kind else {
            continue;
        };
        let there: Vec<_> = (0..NAMES.len()).map(|name| thing(world, object, name)).collect();
        let calls = world.clients[owner].calls.values().filter(|it| !it.held);
        let under_way = calls.filter_map(|it| match &it.effect {
            Effect::Names(asked) if asked.object() == object => Some(asked),
            _ => None,
        });
        match world.names[names].crash(|name| there[name], under_way) {
            Ok(stable) => held += stable,
            Err(fault) => panic!("{} of {node}: {fault}", world.objects[object].name),
        }
    }
    world.tally("names made stable before a crash", held);
}

/// What must be in directories at the end is there, and nothing else.
pub(super) fn judge_at_end(world: &World) {
    for (number, object) in world.objects.iter().enumerate() {
        let ObjectKind::Directory { names, directory, below, .. } = object.kind else {
            continue;
        };
        if let Err(fault) = world.names[names].judge(|name| thing(world, number, name)) {
            panic!("{}: {fault}", object.name);
        }
        let node = world.nodes[object.node].id;
        for (inode, below) in [(directory, false), (below, true)] {
            for (name, ..) in world.kernel.names_in(node, inode) {
                let known = number_of(below, name).is_some();
                let text = String::from_utf8_lossy(name);
                assert!(known, "{}: {text} has come from nowhere", object.name);
            }
        }
    }
}

/// The call of names, as it is said.
pub(super) fn said(call: NameCall, cookie: u64) -> Said<'static> {
    let path = |name: usize| NAMES[name].as_bytes();
    match call {
        NameCall::Stat { name } => Said::Stat { path: path(name) },
        NameCall::List { below, stats } => {
            let path = if below { SUB.as_bytes() } else { b"" };
            Said::List { path, cookie, stats }
        }
        NameCall::Make { name, parents } => {
            Said::MakeDirectory { path: path(name), mode: 0o750, parents }
        }
        NameCall::Remove { name, kind } => Said::Remove { path: path(name), kind },
        NameCall::Rename { from, to, over, durable } => {
            Said::Rename { from: path(from), to: path(to), over, durable }
        }
        NameCall::Link { from, to } => Said::Link { from: path(from), to: path(to) },
        NameCall::Copy { from, to } => {
            let range = Bytes { offset: 0, length: 4096 };
            Said::Copy { from: path(from), to: path(to), range, durable: false }
        }
        NameCall::Sync => Said::Sync { range: Bytes::default(), data_only: false },
        NameCall::Strange { number } => {
            let (path, kind, _) = STRANGE[number];
            Said::Remove { path: path.as_bytes(), kind }
        }
    }
}

/// The number of a name in the directory below, or in the directory itself.
fn number_of(below: bool, name: &[u8]) -> Option<usize> {
    let stays = if below { KEPT } else { SUB };
    if name == stays.as_bytes() {
        return Some(STAYS);
    }
    let own = if below { TOP..NAMES.len() } else { 0..TOP };
    let mut own = own.into_iter();
    own.find(|&number| last_part(number) == name)
}

/// A name as it stands in its directory.
fn last_part(name: usize) -> &'static [u8] {
    NAMES[name].rsplit('/').next().expect("a name").as_bytes()
}

/// What a part of a listing tells.
fn listed(below: bool, answer: &[u8]) -> Result<Listed, String> {
    let entries = Entries::parse(answer).map_err(|_| "it is no listing".to_owned())?;
    let names = entries.iter().map(|entry| {
        let number = number_of(below, entry.name).ok_or(format!("it tells of {entry:?}"))?;
        Ok((number, entry.kind, entry.stat.map(|stat| stat.inode)))
    });
    Ok(Listed::new(names.collect::<Result<_, String>>()?, entries.next()))
}

/// What a call tells of a name.
fn judge_stat(
    names: &Names,
    asked: &AskedOfNames,
    name: usize,
    answer: &[u8],
) -> Result<(), String> {
    let stat = Stat::parse(answer).map_err(|_| "it is no stat".to_owned())?;
    let is_right = match names.now(name) {
        Thing::Nothing => false,
        Thing::Directory => stat.kind == FileKind::Directory,
        Thing::File(inode) => {
            let links = names.links(inode, asked);
            stat.kind == FileKind::File
                && stat.inode == u64::from(inode.0)
                && links.is_none_or(|links| links == stat.links)
        }
    };
    if is_right { Ok(()) } else { Err(format!("it tells {stat:?} of {:?}", names.now(name))) }
}
