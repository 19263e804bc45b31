//! Devices and files: their content, what of it would survive a crash, and the cost of each
//! operation.

use std::collections::BTreeMap;
use std::ops::Range;

use piped_core::access::Alignment;
use piped_core::call;
use piped_core::ids::{DeviceId, FileId};
use piped_core::io::Cached;
use piped_core::spread::LatencySpread;
use piped_core::units::Nanos;

use super::locks::Locks;
use super::random::Random;
use super::stage::{Cost, Server};

/// A simulated file, whoever has it open. The file outlives a crash of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct InodeId(pub u32);

/// Costs and bounds of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceCosts {
    /// Cost of each read.
    pub read: Cost,
    /// Cost of each write and allocation.
    pub write: Cost,
    /// Cost of each flush, by the bytes that were not yet stable.
    pub sync: Cost,
    /// The most operations in the device at once.
    pub window: Option<u32>,
    /// Cost of each read that the page cache answers, one at a time beside the device; without, it
    /// is a read of the device.
    pub cached: Option<Cost>,
    /// Most bytes that all files of the device may have together.
    pub capacity: u64,
    /// Alignment that a file opened with O_DIRECT demands.
    pub alignment: Alignment,
    /// How much the latency of single reads and writes differs from the mean; none does that the
    /// page cache answers.
    pub spread: LatencySpread,
    /// Whether the device reports completions only when nothing is left to do. A virtual disk may
    /// do so if its host reads the queue until it is empty.
    pub tells_at_the_end: bool,
}

/// Writes reach the disk, and survive crashes, in blocks of this size.
const BLOCK: u64 = 4096;

/// No simulated file grows beyond this (EFBIG): a wild offset must not eat the host's memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

pub(super) const EIO: i32 = -5;
pub(super) const EINVAL: i32 = -22;
/// What a lock gives that somebody else has.
pub(super) const EDEADLK: i32 = -35;
const EFBIG: i32 = -27;
const ENOSPC: i32 = -28;

#[derive(Debug, Default)]
pub(super) struct Disk {
    devices: Vec<Device>,
    inodes: Vec<Inode>,
}

#[derive(Debug)]
struct Device {
    costs: DeviceCosts,
    server: Server,
    /// What the page cache has of it.
    cache: Server,
    used: u64,
}

#[derive(Debug)]
struct Inode {
    device: DeviceId,
    content: Vec<u8>,
    stable: Vec<u8>,
    /// Blocks whose content may differ from the stable one, with the number of their last write.
    dirty: BTreeMap<u64, u64>,
    /// The last write of each block that is stable: flushes may end in another order than they
    /// began.
    flushed: BTreeMap<u64, u64>,
    writes: u64,
    /// The pages that are in the page cache, in order and apart.
    cached: Vec<Range<u64>>,
}

/// A file's open descriptor.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) inode: InodeId,
    pub(super) direct: Option<Alignment>,
    pub(super) closed: bool,
    locks: Locks,
}

impl OpenFile {
    pub(super) fn new(inode: InodeId, direct: Option<Alignment>) -> Self {
        Self { inode, direct, closed: false, locks: Locks::default() }
    }

    /// Locks of ranges that it has.
    pub(super) fn locks(&mut self) -> &mut Locks {
        &mut self.locks
    }
}

/// What a flush will make stable: the content at the time it began.
#[derive(Debug)]
pub(super) struct Flush {
    length: u64,
    blocks: Vec<(u64, u64, Vec<u8>)>,
}

/// Open files of a node.
pub(super) type OpenFiles = BTreeMap<FileId, OpenFile>;

impl Disk {
    pub(super) fn add_device(&mut self, costs: DeviceCosts) -> DeviceId {
        let id = DeviceId(self.devices.len() as u32);
        let (server, cache) = (Server::new(costs.window), Server::new(None));
        self.devices.push(Device { costs, server, cache, used: 0 });
        id
    }

    pub(super) fn create(&mut self, device: DeviceId, content: Vec<u8>) -> InodeId {
        let id = self.next_inode();
        self.device(device).used += content.len() as u64;
        let stable = content.clone();
        let (dirty, flushed) = (BTreeMap::new(), BTreeMap::new());
        self.inodes.push(Inode {
            device,
            content,
            stable,
            dirty,
            flushed,
            writes: 0,
            cached: Vec::new(),
        });
        id
    }

    /// The number of the file that is created next.
    pub(super) fn next_inode(&self) -> InodeId {
        InodeId(self.inodes.len() as u32)
    }

    pub(super) fn content(&self, inode: InodeId) -> &[u8] {
        &self.inodes[inode.0 as usize].content
    }

    /// Puts pages of a range into the page cache, or takes them out.
    pub(super) fn set_cached(&mut self, inode: InodeId, range: Range<u64>, cached: bool) {
        let range = pages_of(range);
        let all = &mut self.inodes[inode.0 as usize].cached;
        let outside = |it: Range<u64>| {
            let before = it.start..it.end.min(range.start);
            let behind = it.start.max(range.end)..it.end;
            [before, behind].into_iter().filter(|it| !it.is_empty())
        };
        let mut rest: Vec<_> = all.drain(..).flat_map(outside).collect();
        rest.extend(cached.then_some(range));
        rest.sort_unstable_by_key(|it| it.start);
        *all = rest;
    }

    /// What the page cache has of a range.
    pub(super) fn cached(&self, inode: InodeId, offset: u64, length: u64) -> Cached {
        let range = pages_of(offset..offset.saturating_add(length));
        let both =
            |it: &Range<u64>| it.end.min(range.end).saturating_sub(it.start.max(range.start));
        let cached = self.inodes[inode.0 as usize].cached.iter().map(both).sum();
        Cached { pages: range.end - range.start, cached }
    }

    /// What a read costs that the page cache answers, if it was asked and has all.
    pub(super) fn by_cache(
        &self,
        inode: InodeId,
        (offset, length): (u64, u64),
        direct: bool,
    ) -> Option<Cost> {
        let cost = self.costs(inode).cached?;
        (!direct && self.cached(inode, offset, length).is_all()).then_some(cost)
    }

    /// The cost of a read, how much its latency differs, and who answers it: the device or its page
    /// cache.
    pub(super) fn reading(
        &mut self,
        inode: InodeId,
        (offset, length): (u64, u64),
        direct: bool,
    ) -> (Cost, LatencySpread, &mut Server) {
        let by_cache = self.by_cache(inode, (offset, length), direct);
        let device = self.device_of(inode);
        let device = self.device(device);
        match by_cache {
            Some(cost) => (cost, LatencySpread::NONE, &mut device.cache),
            None => (device.costs.read, device.costs.spread, &mut device.server),
        }
    }

    /// Sets what reads cost from now on, and those that the page cache answers.
    pub(super) fn set_read_costs(&mut self, device: DeviceId, read: Cost, cached: Cost) {
        let costs = &mut self.device(device).costs;
        (costs.read, costs.cached) = (read, Some(cached));
    }

    pub(super) fn device_of(&self, inode: InodeId) -> DeviceId {
        self.inodes[inode.0 as usize].device
    }

    pub(super) fn costs(&self, inode: InodeId) -> DeviceCosts {
        self.devices[self.device_of(inode).0 as usize].costs
    }

    /// When the device will have nothing left to do, if it reports nothing before that.
    pub(super) fn silent_until(&self, inode: InodeId) -> Option<Nanos> {
        let device = &self.devices[self.device_of(inode).0 as usize];
        device.costs.tells_at_the_end.then(|| device.server.empty_at())
    }

    pub(super) fn server(&mut self, device: DeviceId) -> &mut Server {
        &mut self.device(device).server
    }

    /// The bytes from `offset` on, fewer than `length` at the end of the file.
    pub(super) fn read(&self, inode: InodeId, offset: u64, length: u64) -> Vec<u8> {
        let content = self.content(inode);
        let start = (content.len() as u64).min(offset) as usize;
        let end = (content.len() as u64).min(offset.saturating_add(length)) as usize;
        content[start..end].to_vec()
    }

    /// Writes bytes and returns their number, or a negative errno. If a device has too little room,
    /// it takes as many whole blocks as fit.
    pub(super) fn write(&mut self, inode: InodeId, offset: u64, bytes: &[u8]) -> i32 {
        let end = offset.saturating_add(bytes.len() as u64);
        let (bytes, end) = match self.extend(inode, end) {
            Ok(()) => (bytes, end),
            Err(ENOSPC) => {
                let end = self.room_until(inode) / BLOCK * BLOCK;
                if end <= offset {
                    return ENOSPC;
                }
                self.extend(inode, end).expect("so far there is room");
                (&bytes[..(end - offset) as usize], end)
            }
            Err(errno) => return errno,
        };
        let content = &mut self.inodes[inode.0 as usize].content;
        content[offset as usize..end as usize].copy_from_slice(bytes);
        self.soil(inode, offset, end);
        bytes.len() as i32
    }

    /// The blocks of a range were written.
    fn soil(&mut self, inode: InodeId, start: u64, end: u64) {
        let file = &mut self.inodes[inode.0 as usize];
        file.writes += 1;
        for block in start / BLOCK..end.div_ceil(BLOCK) {
            file.dirty.insert(block, file.writes);
        }
    }

    /// Cuts a file to a length, if it is longer. What was not flushed is lost with the rest.
    pub(super) fn truncate(&mut self, inode: InodeId, length: u64) {
        let file = &mut self.inodes[inode.0 as usize];
        let lost = (file.content.len() as u64).saturating_sub(length);
        file.content.truncate(length as usize);
        file.stable.truncate(length as usize);
        file.dirty.split_off(&length.div_ceil(BLOCK));
        let device = file.device;
        self.device(device).used -= lost;
    }

    /// Allocates a range and returns zero, or a negative errno.
    pub(super) fn allocate(&mut self, inode: InodeId, offset: u64, length: u64) -> i32 {
        match self.extend(inode, offset.saturating_add(length)) {
            Ok(()) => 0,
            Err(errno) => errno,
        }
    }

    /// Cuts a file to a length, or makes it longer by zeros.
    pub(super) fn set_length(&mut self, inode: InodeId, length: u64) -> Result<(), i32> {
        let before = self.content(inode).len() as u64;
        if length <= before {
            self.truncate(inode, length);
            return Ok(());
        }
        self.extend(inode, length)?;
        self.soil(inode, before, length);
        Ok(())
    }

    /// Makes bytes zeros, in a file that becomes as long as they need.
    pub(super) fn zero(&mut self, inode: InodeId, range: call::Range) -> Result<(), i32> {
        let (start, end) = (range.offset, range.offset + range.length);
        self.extend(inode, end)?;
        self.inodes[inode.0 as usize].content[start as usize..end as usize].fill(0);
        self.soil(inode, start, end);
        Ok(())
    }

    /// The part of a range that a file has.
    pub(super) fn clipped(&self, inode: InodeId, range: call::Range) -> call::Range {
        let length = self.content(inode).len() as u64;
        let offset = range.offset.min(length);
        call::Range { offset, length: range.length.min(length - offset) }
    }

    /// What files take of the device of one.
    pub(super) fn used(&self, inode: InodeId) -> u64 {
        self.devices[self.device_of(inode).0 as usize].used
    }

    pub(super) fn begin_flush(&self, inode: InodeId) -> Flush {
        let file = &self.inodes[inode.0 as usize];
        let blocks = file
            .dirty
            .iter()
            .map(|(&block, &write)| (block, write, self.read(inode, block * BLOCK, BLOCK)));
        Flush { length: file.content.len() as u64, blocks: blocks.collect() }
    }

    pub(super) fn end_flush(&mut self, inode: InodeId, flush: &Flush) {
        let file = &mut self.inodes[inode.0 as usize];
        // It may have been cut meanwhile.
        let length = file.content.len().min(flush.length as usize);
        if file.stable.len() < length {
            file.stable.resize(length, 0);
        }
        for (block, write, bytes) in &flush.blocks {
            if file.flushed.get(block).is_some_and(|later| later > write) {
                continue;
            }
            file.flushed.insert(*block, *write);
            let start = (block * BLOCK) as usize;
            let bytes = &bytes[..bytes.len().min(length.saturating_sub(start))];
            let start = start.min(length);
            file.stable[start..start + bytes.len()].copy_from_slice(bytes);
            if file.dirty.get(block) == Some(write) {
                file.dirty.remove(block);
            }
        }
    }

    pub(super) fn unstable_bytes(&self, inode: InodeId) -> u64 {
        self.inodes[inode.0 as usize].dirty.len() as u64 * BLOCK
    }

    /// Simulates a loss of power: each block that was not flushed survives or is lost at random.
    pub(super) fn crash(&mut self, inode: InodeId, random: &mut Random) {
        let file = &mut self.inodes[inode.0 as usize];
        for block in std::mem::take(&mut file.dirty).into_keys() {
            let start = (block * BLOCK) as usize;
            let end = (start + BLOCK as usize).min(file.content.len());
            if random.chance(0.5) && start < end {
                if file.stable.len() < end {
                    file.stable.resize(end, 0);
                }
                file.stable[start..end].copy_from_slice(&file.content[start..end]);
            }
        }
        let device = file.device;
        let lost = file.content.len() as u64 - file.stable.len() as u64;
        file.content.clone_from(&file.stable);
        self.device(device).used -= lost;
    }

    /// The length that the file may grow to on its device.
    fn room_until(&self, inode: InodeId) -> u64 {
        let place = &self.devices[self.device_of(inode).0 as usize];
        self.content(inode).len() as u64 + (place.costs.capacity - place.used)
    }

    fn extend(&mut self, inode: InodeId, end: u64) -> Result<(), i32> {
        if end > FILE_BYTES_MAX {
            return Err(EFBIG);
        }
        let file = &self.inodes[inode.0 as usize];
        let device = file.device;
        let more = end.saturating_sub(file.content.len() as u64);
        let place = self.device(device);
        if place.used + more > place.costs.capacity {
            return Err(ENOSPC);
        }
        place.used += more;
        let file = &mut self.inodes[inode.0 as usize];
        if more > 0 {
            file.content.resize(end as usize, 0);
        }
        Ok(())
    }

    fn device(&mut self, device: DeviceId) -> &mut Device {
        &mut self.devices[device.0 as usize]
    }
}

/// The pages with a byte of a range, by number.
fn pages_of(bytes: Range<u64>) -> Range<u64> {
    bytes.start / BLOCK..bytes.end.div_ceil(BLOCK)
}

/// Whether a direct file would refuse this (EINVAL).
pub(super) fn is_misaligned(
    direct: Option<Alignment>,
    offset: u64,
    memory: u64,
    length: u64,
) -> bool {
    direct.is_some_and(|need| {
        let (file, place) = (u64::from(need.offset), u64::from(need.memory));
        !offset.is_multiple_of(file)
            || !length.is_multiple_of(file)
            || !memory.is_multiple_of(place)
    })
}

/// A shorter result that the kernel could give: at least one unit. On a direct file it is mostly
/// whole units, but a file system that a program serves may return any length.
pub(super) fn shortened(random: &mut Random, direct: Option<Alignment>, length: u64) -> u64 {
    let unit = direct.filter(|_| random.chance(0.75)).map_or(1, |need| u64::from(need.offset));
    random.between(1, length.div_ceil(unit)).saturating_mul(unit).min(length)
}

/// Bytes that an allocation costs: none, since it is bookkeeping and blocks no data transfer.
pub(super) const ALLOCATION_BYTES: u64 = 0;

/// How long a device takes to refuse an operation that it does not even try.
pub(super) const REFUSAL: Nanos = Nanos::from_micros(1);
