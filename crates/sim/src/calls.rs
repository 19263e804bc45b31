//! Calls of files and directories: what they cost, and what they do to content. What they do to
//! names is in [`directory`].

mod directory;

use piped_core::call::{Call, Digest, Extent, ExtentKind, Lock, Range, Space};
use piped_core::ids::FileId;
use piped_core::io::Span;

use super::disk::{DeviceCosts, EDEADLK, EINVAL, EIO, InodeId, REFUSAL};
use super::kernel::SimKernel;
use super::locks;
use super::memory::OpKey;
use super::net::NodeId;
use super::pending::{Carry, InFlight};
use super::stage::Cost;

/// No room for an answer.
const EMSGSIZE: i32 = -90;

pub(super) fn begin(kernel: &mut SimKernel, node: NodeId, key: OpKey, file: FileId, call: Span) {
    let inode = kernel.file(node, file, "call").inode;
    let bytes = kernel.bytes(node, call).to_vec();
    let Ok(parsed) = Call::parse(&bytes) else {
        return kernel.settle(key, EINVAL, kernel.now + REFUSAL);
    };
    let costs = kernel.disk.costs(inode);
    let is_directory = kernel.names(node).is_directory(inode);
    let (cost, moved) = match parsed {
        _ if is_directory => (directory::cost_of(&costs, &parsed), 0),
        Call::Sync { .. } => (costs.sync, kernel.disk.unstable_bytes(inode)),
        Call::Digest { range } => (costs.read, kernel.disk.clipped(inode, range).length),
        _ => cost_of(&costs, &parsed),
    };
    let device = kernel.disk.device_of(inode);
    let visit = kernel.disk.server(device).visit(kernel.now, moved, &cost);
    let (is_sync, syncs) = match parsed {
        Call::Sync { .. } => (true, true),
        Call::Rename { durable, .. } | Call::Copy { durable, .. } => (false, durable),
        _ => (false, false),
    };
    let fault = if is_sync { kernel.faults.sync_error } else { kernel.faults.disk_error };
    let result = if kernel.random.chance(fault) { EIO } else { 0 };
    let sync_fails = syncs && !is_sync && kernel.random.chance(kernel.faults.sync_error);
    let carry = match is_sync {
        // What changes after it began may be missing.
        true if is_directory => Carry::Names(kernel.names(node).changes_made()),
        true => Carry::Flush(kernel.disk.begin_flush(inode)),
        false if sync_fails => Carry::Unsynced(bytes),
        false => Carry::Bytes(bytes),
    };
    let op = kernel.ops.get_mut(&key).expect("begun above");
    (op.start, op.carry) = (visit.start, carry);
    let at = visit.depart + kernel.spike();
    kernel.settle(key, result, at);
}

/// Carries a call out whose time has come, and returns the length of its answer or an errno.
pub(super) fn end(kernel: &mut SimKernel, op: &InFlight, file: FileId, answer: Span) -> i32 {
    let inode = kernel.inode(op.node, file);
    let (bytes, sync_fails) = match &op.carry {
        Carry::Flush(flush) => {
            kernel.disk.end_flush(inode, flush);
            return 0;
        }
        &Carry::Names(before) => {
            kernel.names_mut(op.node).sync(&[inode], before);
            return 0;
        }
        Carry::Bytes(bytes) => (bytes, false),
        Carry::Unsynced(bytes) => (bytes, true),
        Carry::Nothing => return EINVAL,
    };
    let Ok(call) = Call::parse(bytes) else { return EINVAL };
    let room = answer.length as usize;
    let done = match kernel.names(op.node).is_directory(inode) {
        true => directory::carry_out(kernel, (op.node, inode), &call, (room, sync_fails)),
        false => match call {
            Call::Lock { range, lock } => set_lock(kernel, (op.node, file), range, lock),
            _ => carry_out(kernel, (op.node, inode), &call),
        },
    };
    let said = match done {
        Ok(said) => said,
        Err(errno) => return errno,
    };
    // Of extents as many as there is room for.
    let fits = match call {
        Call::Extents { .. } => said.len().min(room / Extent::BYTES * Extent::BYTES),
        _ => said.len(),
    };
    if fits > room {
        return EMSGSIZE;
    }
    if fits > 0 {
        kernel.bytes_mut(op.node, answer.part(0, fits as u32)).copy_from_slice(&said[..fits]);
    }
    fits as i32
}

/// Carries out a call of a file.
fn carry_out(
    kernel: &mut SimKernel,
    (node, inode): (NodeId, InodeId),
    call: &Call<'_>,
) -> Result<Vec<u8>, i32> {
    let length = kernel.disk.content(inode).len() as u64;
    let end_of = |range: Range| range.end().ok_or(EINVAL);
    match *call {
        Call::Stat { path: b"" } => {
            return Ok(directory::stat_of(kernel, node, inode).to_bytes().to_vec());
        }
        Call::Space => return Ok(space_of(kernel, inode).to_bytes().to_vec()),
        Call::Extents { range } => {
            let Range { offset, length } = kernel.disk.clipped(inode, range);
            let extent = Extent { offset, length, kind: ExtentKind::Data };
            return Ok(if length > 0 { extent.to_bytes().to_vec() } else { Vec::new() });
        }
        Call::Digest { range } => {
            if end_of(range)? > length {
                return Err(EINVAL);
            }
            let bytes = kernel.disk.read(inode, range.offset, range.length);
            return Ok(Digest(*blake3::hash(&bytes).as_bytes()).0.to_vec());
        }
        Call::Truncate { length } => kernel.disk.set_length(inode, length)?,
        Call::Allocate { range, keep_length } => {
            let end = end_of(range)?;
            if !keep_length {
                kernel.disk.set_length(inode, end.max(length))?;
            }
        }
        Call::Zero { range, .. } => {
            end_of(range)?;
            kernel.disk.zero(inode, range)?;
        }
        Call::Trim { range } => {
            end_of(range)?;
            kernel.disk.zero(inode, kernel.disk.clipped(inode, range))?;
        }
        Call::Advise { .. } => {}
        _ => return Err(EINVAL),
    }
    Ok(Vec::new())
}

/// Gives a range of an open file that lock, unless others of the same file have it.
fn set_lock(
    kernel: &mut SimKernel,
    (node, file): (NodeId, FileId),
    range: Range,
    lock: Lock,
) -> Result<Vec<u8>, i32> {
    range.end().ok_or(EINVAL)?;
    let (bytes, inode) = (locks::bytes_of(range), kernel.inode(node, file));
    let files = &mut kernel.nodes[node.0 as usize].files;
    let mut others = files.iter_mut().filter(|(id, it)| **id != file && it.inode == inode);
    if others.any(|(_, it)| it.locks().refuse(&bytes, lock)) {
        return Err(EDEADLK);
    }
    if let Some(file) = files.get_mut(&file).filter(|file| !file.closed) {
        file.locks().set(bytes, lock);
    }
    Ok(Vec::new())
}

/// Room on the device of a file or directory.
fn space_of(kernel: &SimKernel, inode: InodeId) -> Space {
    let (used, costs) = (kernel.disk.used(inode), kernel.disk.costs(inode));
    let free = costs.capacity - used;
    Space { total: costs.capacity, free, available: free, ..Space::default() }
}

/// What a call costs that moves no bytes.
fn cost_of(costs: &DeviceCosts, call: &Call<'_>) -> (Cost, u64) {
    (if call.writes() { costs.write } else { costs.read }, 0)
}

#[cfg(test)]
mod tests {
    use piped_core::access::Alignment;
    use piped_core::call::{CALL_BYTES_MAX, Entries, ExtentKind, FileKind, Over, Removed, Stat};
    use piped_core::ids::{DeviceId, SegmentId};
    use piped_core::io::{Io, Op, Resource, Token};
    use piped_core::spread::LatencySpread;
    use piped_core::units::Nanos;

    use super::*;
    use crate::{Faults, Notice};

    struct World {
        kernel: SimKernel,
        node: NodeId,
        segment: SegmentId,
        file: FileId,
        inode: InodeId,
        token: u64,
    }

    const LENGTH: usize = 10_000;

    impl World {
        fn new(faults: Faults) -> Self {
            let mut kernel = SimKernel::new(7, faults);
            let node = kernel.add_node(8);
            let segment = kernel.add_segment(node, 1 << 20);
            let cost = Cost { latency: Nanos(1_000), overhead: Nanos(100), nanos_per_byte: 1.0 };
            let device = kernel.add_device(DeviceCosts {
                read: cost,
                write: cost,
                sync: cost,
                window: None,
                cached: None,
                capacity: 20_000,
                alignment: Alignment { offset: 512, memory: 4 },
                spread: LatencySpread::NONE,
                tells_at_the_end: false,
            });
            let inode = kernel.create_file(node, device, vec![7; LENGTH]);
            let file = kernel.open_file(node, inode, false);
            Self { kernel, node, segment, file, inode, token: 0 }
        }

        /// Carries a call out: its result, and its answer.
        fn call(&mut self, call: Call<'_>, room: u32) -> (i32, Vec<u8>) {
            let mut bytes = [0; CALL_BYTES_MAX];
            let length = call.encode(&mut bytes).expect("room") as u32;
            let span = |offset, length| Span { segment: self.segment, offset, length };
            let (asked, answer) = (span(0, length), span(8192, room));
            let mut io = self.kernel.io(self.node);
            io.store(&bytes[..length as usize], asked);
            self.token += 1;
            let op = Op::Call { file: self.file, call: asked, answer };
            assert!(io.push(Token(self.token), op));
            let until = self.kernel.now() + Nanos::from_millis(1_000);
            self.kernel.advance(until);
            let done = self.kernel.poll_done(self.node).expect("it ends");
            let bytes = self.kernel.bytes(self.node, answer.part(0, done.result.max(0) as u32));
            (done.result, bytes.to_vec())
        }

        fn content(&self) -> &[u8] {
            self.kernel.file_content(self.inode)
        }
    }

    #[test]
    fn calls_tell_of_a_file_and_change_it() {
        let mut world = World::new(Faults::none());
        let stat = |world: &mut World| {
            let (result, answer) = world.call(Call::Stat { path: b"" }, 4096);
            assert_eq!(result, Stat::BYTES as i32);
            Stat::parse(&answer).expect("a stat")
        };
        assert_eq!(stat(&mut world).length, LENGTH as u64);
        assert_eq!(world.call(Call::Truncate { length: 5_000 }, 0).0, 0);
        assert_eq!(stat(&mut world).length, 5_000);
        let range = Range { offset: 1_000, length: 2_000 };
        assert_eq!(world.call(Call::Trim { range }, 0).0, 0);
        assert!(world.content()[1_000..3_000].iter().all(|&byte| byte == 0));
        assert_eq!((world.content()[999], world.content()[3_000]), (7, 7));
        let range = Range { offset: 4_000, length: 2_000 };
        assert_eq!(world.call(Call::Zero { range, release: true }, 0).0, 0);
        assert_eq!(world.content().len(), 6_000, "as long as the range needs");
        let range = Range { offset: 0, length: 9_000 };
        assert_eq!(world.call(Call::Allocate { range, keep_length: true }, 0).0, 0);
        assert_eq!(world.content().len(), 6_000);
        assert_eq!(world.call(Call::Allocate { range, keep_length: false }, 0).0, 0);
        assert_eq!(world.content().len(), 9_000);
        let range = Range { offset: 0, length: 9_000 };
        let (_, digest) = world.call(Call::Digest { range }, 32);
        assert_eq!(digest, blake3::hash(world.content()).as_bytes());
        let (_, extents) = world.call(Call::Extents { range }, 100);
        let whole = Extent { offset: 0, length: 9_000, kind: ExtentKind::Data };
        assert_eq!(Extent::parse(&extents), Ok(whole));
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let mut world = World::new(Faults::none());
        let beyond = Range { offset: 0, length: LENGTH as u64 + 1 };
        assert_eq!(world.call(Call::Digest { range: beyond }, 32).0, EINVAL);
        assert_eq!(world.call(Call::Stat { path: b"" }, 10).0, EMSGSIZE);
        assert_eq!(world.call(Call::Truncate { length: 30_000 }, 0).0, -28, "ENOSPC");
        let list = Call::List { path: b"", cookie: 0, stats: false };
        assert_eq!(world.call(list, 4096).0, EINVAL);
        assert_eq!(world.content(), [7; LENGTH]);
    }

    #[test]
    fn what_is_synced_survives_and_a_cut_is_not_undone() {
        let mut world = World::new(Faults::none());
        assert_eq!(world.call(Call::Truncate { length: 100 }, 0).0, 0);
        let zeros = Range { offset: 0, length: 8_192 };
        assert_eq!(world.call(Call::Zero { range: zeros, release: false }, 0).0, 0);
        let all = Range::default();
        assert_eq!(world.call(Call::Sync { range: all, data_only: true }, 0).0, 0);
        world.kernel.crash(world.node, Notice::Silent);
        assert_eq!(world.kernel.file_content(world.inode), [0; 8_192]);
    }

    /// A directory with two files and a directory with one.
    fn with_names(faults: Faults) -> (World, InodeId) {
        let mut world = World::new(faults);
        let (node, device) = (world.node, DeviceId(0));
        let [top, sub] = [(); 2].map(|()| world.kernel.create_directory(node, device));
        let other = world.kernel.create_file(node, device, vec![1; 10]);
        world.kernel.add_name(node, top, b"file", world.inode);
        world.kernel.add_name(node, top, b"other", other);
        world.kernel.add_name(node, top, b"sub", sub);
        world.kernel.add_name(node, sub, b"keep", other);
        world.file = world.kernel.open_file(node, top, false);
        (world, top)
    }

    fn names(world: &World, directory: InodeId) -> Vec<String> {
        let all = world.kernel.names_in(world.node, directory).into_iter();
        all.map(|(name, ..)| String::from_utf8_lossy(name).into_owned()).collect()
    }

    fn rename<'a>(from: &'a str, to: &'a str, durable: bool) -> Call<'a> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        Call::Rename { from, to, over: Over::Replace, durable }
    }

    #[test]
    fn calls_tell_of_names_and_change_them() {
        let (mut world, top) = with_names(Faults::none());
        let (_, stat) = world.call(Call::Stat { path: b"sub/keep" }, 4096);
        let stat = Stat::parse(&stat).expect("a stat");
        assert_eq!((stat.kind, stat.length, stat.links), (FileKind::File, 10, 2));
        let (_, stat) = world.call(Call::Stat { path: b"sub" }, 4096);
        assert_eq!(Stat::parse(&stat).expect("a stat").kind, FileKind::Directory);
        assert_eq!(world.call(rename("file", "sub/moved", false), 0).0, 0);
        let made = Call::MakeDirectory { path: b"a/b", mode: 0o700, parents: true };
        assert_eq!((world.call(made, 0).0, world.call(made, 0).0), (0, 0));
        let alone = Call::MakeDirectory { path: b"a", mode: 0o700, parents: false };
        assert_eq!(world.call(alone, 0).0, -17, "EEXIST");
        assert_eq!(world.call(Call::Link { from: b"sub/moved", to: b"a/b/c" }, 0).0, 0);
        let remove = |path, kind| Call::Remove { path, kind };
        assert_eq!(world.call(remove(b"a", Removed::Any), 0).0, -39, "ENOTEMPTY");
        assert_eq!(world.call(remove(b"a/b/c", Removed::Any), 0).0, 0);
        assert_eq!(world.call(remove(b"a/b", Removed::Directory), 0).0, 0);
        assert_eq!(world.call(remove(b"other", Removed::File), 0).0, 0);
        assert_eq!(names(&world, top), ["sub", "a"]);
    }

    #[test]
    fn a_listing_goes_on_where_its_last_part_ended() {
        let (mut world, _) = with_names(Faults::none());
        let (mut cookie, mut seen, mut parts) = (Some(0), Vec::new(), 0);
        while let Some(at) = cookie {
            let list = Call::List { path: b"", cookie: at, stats: parts == 0 };
            let (_, answer) = world.call(list, 8 + 4 + 5 + Stat::BYTES as u32);
            let entries = Entries::parse(&answer).expect("names");
            seen.extend(entries.iter().map(|it| (it.name.to_vec(), it.kind, it.stat.is_some())));
            (cookie, parts) = (entries.next(), parts + 1);
        }
        let (file, directory) = (FileKind::File, FileKind::Directory);
        let all = [(&b"file"[..], file, true), (b"other", file, false), (b"sub", directory, false)];
        assert!(parts > 1);
        assert_eq!(seen, all.map(|(name, kind, stat)| (name.to_vec(), kind, stat)));
        let list = Call::List { path: b"", cookie: 0, stats: false };
        assert_eq!(world.call(list, 8 + 4 + 3).0, EMSGSIZE);
    }

    #[test]
    fn a_durable_rename_and_a_sync_of_a_directory_hold() {
        for round in 0..20 {
            let (mut world, top) = with_names(Faults::none());
            // Each round has other chances of what is left.
            for _ in 0..round {
                world.kernel.random.bits();
            }
            assert_eq!(world.call(rename("file", "durable", true), 0).0, 0);
            let made = Call::MakeDirectory { path: b"made", mode: 0o700, parents: false };
            assert_eq!(world.call(made, 0).0, 0);
            let sync = Call::Sync { range: Range::default(), data_only: false };
            assert_eq!(world.call(sync, 0).0, 0);
            assert_eq!(world.call(rename("other", "lost", false), 0).0, 0);
            world.kernel.crash(world.node, Notice::Silent);
            let left = names(&world, top);
            assert!(left.contains(&"durable".into()) && left.contains(&"made".into()), "{left:?}");
            assert!(left.contains(&"other".into()) != left.contains(&"lost".into()), "{left:?}");
        }
    }

    #[test]
    fn a_rename_whose_sync_fails_may_be_lost() {
        let left = (0..40).map(|round| {
            let (mut world, top) = with_names(Faults { sync_error: 1.0, ..Faults::none() });
            for _ in 0..round {
                world.kernel.random.bits();
            }
            assert_eq!(world.call(rename("file", "new", true), 0).0, EIO);
            assert!(names(&world, top).contains(&"new".into()), "until then it is there");
            world.kernel.crash(world.node, Notice::Silent);
            names(&world, top).contains(&"new".into())
        });
        let left: Vec<bool> = left.collect();
        assert!(left.contains(&true) && left.contains(&false));
    }

    #[test]
    fn a_call_may_fail() {
        let mut world = World::new(Faults { disk_error: 1.0, ..Faults::none() });
        assert_eq!(world.call(Call::Truncate { length: 1 }, 0).0, EIO);
        assert_eq!(world.content().len(), LENGTH);
    }

    #[test]
    fn a_lock_is_its_open_files_until_that_is_closed() {
        let mut world = World::new(Faults::none());
        let first = world.file;
        let range = Range { offset: 0, length: 10 };
        let take = Call::Lock { range, lock: Lock::Exclusive };
        assert_eq!(world.call(take, 0).0, 0);
        world.file = world.kernel.open_file(world.node, world.inode, false);
        assert_eq!(world.call(take, 0).0, EDEADLK);
        world.kernel.io(world.node).release(Resource::File(first));
        assert_eq!(world.call(take, 0).0, 0);
    }
}
