//! Calls of files: what they cost, and what they do to content.
//!
//! Directories are not simulated: a call that names one ends with ENOSYS, as does one with a path.

use piped_core::call::{Call, Digest, Extent, ExtentKind, FileKind, Range, Space, Stat};
use piped_core::ids::FileId;
use piped_core::io::Span;

use super::disk::{DeviceCosts, EINVAL, EIO, ENOSYS, InodeId, REFUSAL};
use super::kernel::SimKernel;
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
    let is_sync = matches!(parsed, Call::Sync { .. });
    let (cost, moved) = match parsed {
        Call::Sync { .. } => (costs.sync, kernel.disk.unstable_bytes(inode)),
        Call::Digest { range } => (costs.read, kernel.disk.clipped(inode, range).length),
        _ => cost_of(&costs, &parsed),
    };
    let device = kernel.disk.device_of(inode);
    let visit = kernel.disk.server(device).visit(kernel.now, moved, &cost);
    let fault = if is_sync { kernel.faults.sync_error } else { kernel.faults.disk_error };
    let result = if kernel.random.chance(fault) { EIO } else { 0 };
    let carry = match is_sync {
        // What is written after it began may be missing.
        true => Carry::Flush(kernel.disk.begin_flush(inode)),
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
    let bytes = match &op.carry {
        Carry::Flush(flush) => {
            kernel.disk.end_flush(inode, flush);
            return 0;
        }
        Carry::Bytes(bytes) => bytes,
        Carry::Nothing => return EINVAL,
    };
    let Ok(call) = Call::parse(bytes) else { return EINVAL };
    let done = carry_out(kernel, inode, &call);
    let said = match done {
        Ok(said) => said,
        Err(errno) => return errno,
    };
    let room = answer.length as usize;
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

fn carry_out(kernel: &mut SimKernel, inode: InodeId, call: &Call<'_>) -> Result<Vec<u8>, i32> {
    let length = kernel.disk.content(inode).len() as u64;
    let end_of = |range: Range| range.end().ok_or(EINVAL);
    match *call {
        Call::Stat { path: b"" } => {
            let costs = kernel.disk.costs(inode);
            let stat = Stat {
                kind: FileKind::File,
                mode: 0o640,
                links: 1,
                length,
                allocated: length,
                inode: u64::from(inode.0),
                direct_offset: costs.alignment.offset,
                direct_memory: costs.alignment.memory,
                ..Stat::default()
            };
            return Ok(stat.to_bytes().to_vec());
        }
        Call::Space => {
            let (used, costs) = (kernel.disk.used(inode), kernel.disk.costs(inode));
            let free = costs.capacity - used;
            let space = Space { total: costs.capacity, free, available: free, ..Space::default() };
            return Ok(space.to_bytes().to_vec());
        }
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
        _ => return Err(ENOSYS),
    }
    Ok(Vec::new())
}

/// What a call costs that moves no bytes.
fn cost_of(costs: &DeviceCosts, call: &Call<'_>) -> (Cost, u64) {
    (if call.writes() { costs.write } else { costs.read }, 0)
}

#[cfg(test)]
mod tests {
    use piped_core::access::Alignment;
    use piped_core::call::CALL_BYTES_MAX;
    use piped_core::ids::SegmentId;
    use piped_core::io::{Io, Op, Token};
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
        assert_eq!(world.call(list, 4096).0, ENOSYS);
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

    #[test]
    fn a_call_may_fail() {
        let mut world = World::new(Faults { disk_error: 1.0, ..Faults::none() });
        assert_eq!(world.call(Call::Truncate { length: 1 }, 0).0, EIO);
        assert_eq!(world.content().len(), LENGTH);
    }
}
