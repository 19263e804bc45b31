//! Locks of ranges: they end with the handle, with the daemon that gave them, and with a node that
//! stays away.

use piped_core::access::{Access, OpenKind};
use piped_core::call::{Call, Lock, Range};
use piped_core::limits::LOCK_LEASE;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{FileTarget, Target};
use piped_wire::Message;

use crate::calls::{ask, encoded, lose_lane, of_peer, take_call, with_peer};
use crate::channels::wait_end;
use crate::world::{LineId, World, end};

const ALL: Range = Range { offset: 0, length: 0 };
const PART: Range = Range { offset: 4096, length: 100 };
const TAKE: Call<'static> = Call::Lock { range: PART, lock: Lock::Exclusive };
const GIVE_UP: Call<'static> = Call::Lock { range: ALL, lock: Lock::None };
const STAT: Call<'static> = Call::Stat { path: b"" };
/// The run of its daemon that a peer says it is, if nothing else is said.
const RUN: u64 = 9;

/// A call of a peer's file, which the peer has carried out.
fn done_there(
    world: &mut World,
    line: LineId,
    segment: piped_core::ids::SegmentId,
    call: Call<'_>,
    user_data: u64,
) {
    ask(world, segment, user_data, call);
    let (transfer, once, bytes) = take_call(world, line);
    assert_eq!((once, bytes), (None, encoded(call)));
    world.send(line, end(transfer, Status::Ok, 0), &[]);
    assert_eq!(wait_end(world, user_data).0, Status::Ok);
}

#[test]
fn a_handle_at_a_peer_lasts_as_long_as_its_locks() {
    let mut world = World::new();
    let (line, segment) = with_peer(&mut world, OpenKind::File, Access::READ_WRITE);
    done_there(&mut world, line, segment, TAKE, 1);
    // The same daemon has it open under the same number: the lock is there.
    let line = lose_lane(&mut world, line, RUN);
    done_there(&mut world, line, segment, TAKE, 2);
    // Another run of the daemon opens it anew: somebody else may have locked it meanwhile.
    let line = lose_lane(&mut world, line, RUN + 1);
    ask(&mut world, segment, 3, STAT);
    assert_eq!(wait_end(&mut world, 3), (Status::Gone, 0));
    let Message::Close { handle: 3 } = world.next(line) else { panic!("it is not closed there") };
}

#[test]
fn a_handle_that_has_given_up_its_locks_is_opened_again() {
    let mut world = World::new();
    let (line, segment) = with_peer(&mut world, OpenKind::File, Access::READ_WRITE);
    done_there(&mut world, line, segment, TAKE, 1);
    // A part that is given up may leave others.
    done_there(&mut world, line, segment, GIVE_UP, 2);
    let line = lose_lane(&mut world, line, RUN + 1);
    done_there(&mut world, line, segment, TAKE, 3);
    let part = Call::Lock { range: PART, lock: Lock::None };
    done_there(&mut world, line, segment, part, 4);
    lose_lane(&mut world, line, RUN + 2);
    ask(&mut world, segment, 5, STAT);
    assert_eq!(wait_end(&mut world, 5), (Status::Gone, 0));
}

#[test]
fn a_lock_that_was_refused_ties_the_handle_to_nothing() {
    let mut world = World::new();
    let (line, segment) = with_peer(&mut world, OpenKind::File, Access::READ_WRITE);
    ask(&mut world, segment, 1, TAKE);
    let (transfer, ..) = take_call(&mut world, line);
    world.send(line, end(transfer, Status::Locked, 0), &[]);
    assert_eq!(wait_end(&mut world, 1), (Status::Locked, 0));
    let line = lose_lane(&mut world, line, RUN + 1);
    done_there(&mut world, line, segment, TAKE, 2);
}

/// A node with a file of ours open: its lane, and the number of the file.
fn caller(world: &mut World, name: &str, epoch: u32, file: Target) -> (LineId, u32) {
    let line = world.lane(name, LaneClass::Latency, epoch);
    let handle = world.open(line, 1, file);
    (line, handle)
}

/// The file once more, opened for somebody else.
fn again(world: &mut World, file: Target, inode: piped_sim::InodeId) -> Target {
    let Target::File(file) = file else { unreachable!("it is one") };
    let buffered = world.kernel.open_file(world.node, inode, false);
    Target::File(FileTarget { buffered, ..file })
}

fn lock_of_peer(world: &mut World, (line, handle): (LineId, u32), transfer: u64) -> Status {
    world.send(line, of_peer(transfer, handle, None), &encoded(TAKE));
    world.read_end(line, transfer)
}

#[test]
fn a_node_that_stays_away_loses_its_locks() {
    let mut world = World::new();
    let (file, inode) = world.file_and_inode(10_000);
    let other = again(&mut world, file, inode);
    let beta = caller(&mut world, "beta", 1, file);
    let gamma = caller(&mut world, "gamma", 1, other);
    assert_eq!(lock_of_peer(&mut world, beta, 1), Status::Ok);
    assert_eq!(lock_of_peer(&mut world, gamma, 1), Status::Locked);
    let second = Nanos::from_millis(1_000);
    // Away for less than the lease, and back: it has its lock.
    world.hang_up(beta.0);
    world.run_for(LOCK_LEASE - second);
    assert_eq!(lock_of_peer(&mut world, gamma, 2), Status::Locked);
    let line = world.lane("beta", LaneClass::Latency, 2);
    let beta = (line, world.open_again(line, 1, OpenKind::File));
    world.run_for(LOCK_LEASE);
    assert_eq!(lock_of_peer(&mut world, gamma, 3), Status::Locked);
    assert_eq!(lock_of_peer(&mut world, beta, 3), Status::Ok, "it is its own");
    // Away for longer: it is told that it is unknown, and the lock is another's.
    world.hang_up(beta.0);
    world.run_for(LOCK_LEASE + second);
    assert_eq!(lock_of_peer(&mut world, gamma, 4), Status::Ok);
}

#[test]
fn a_node_without_locks_may_stay_away() {
    let mut world = World::new();
    let file = world.file(10_000);
    let (line, handle) = caller(&mut world, "beta", 1, file);
    world.hang_up(line);
    world.run_for(LOCK_LEASE + LOCK_LEASE);
    let line = world.lane("beta", LaneClass::Latency, 2);
    assert_eq!(world.open_again(line, 1, OpenKind::File), handle);
}
