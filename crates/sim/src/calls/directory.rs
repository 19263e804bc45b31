//! Calls of directories: names that are listed, made, changed and taken away.

use piped_core::call::{
    COPY_BYTES_MAX, Call, Copied, Entries, Entry, EntryWriter, FileKind, Range, Removed, Stat,
};

use super::EMSGSIZE;
use crate::disk::{DeviceCosts, EINVAL, EIO, InodeId};
use crate::kernel::SimKernel;
use crate::names::{EISDIR, ENOENT};
use crate::net::NodeId;
use crate::stage::Cost;

/// Permissions that a new directory can have.
const MODES: u32 = 0o1777;

/// What a call of a directory costs: as the device's read, write, or flush.
pub(super) const fn cost_of(costs: &DeviceCosts, call: &Call<'_>) -> Cost {
    match call {
        Call::Sync { .. }
        | Call::Rename { durable: true, .. }
        | Call::Copy { durable: true, .. } => costs.sync,
        _ if call.changes_names() || call.writes() => costs.write,
        _ => costs.read,
    }
}

/// Carries out a call of a directory. `sync_fails`: names change, and are not made stable.
pub(super) fn carry_out(
    kernel: &mut SimKernel,
    (node, directory): (NodeId, InodeId),
    call: &Call<'_>,
    (room, sync_fails): (usize, bool),
) -> Result<Vec<u8>, i32> {
    match *call {
        Call::Stat { path } => {
            let inode = kernel.names(node).find(directory, path)?;
            return Ok(stat_of(kernel, node, inode).to_bytes().to_vec());
        }
        Call::List { path, cookie, stats } => {
            return list(kernel, node, (directory, path), (cookie, stats), room);
        }
        Call::Space => return Ok(super::space_of(kernel, directory).to_bytes().to_vec()),
        Call::MakeDirectory { path, mode, parents } => {
            if mode & !MODES != 0 {
                return Err(EINVAL);
            }
            match parents {
                true => make_directories(kernel, node, directory, path)?,
                false => make_directory(kernel, node, directory, path)?,
            }
        }
        Call::Remove { path, kind } => {
            let names = kernel.names_mut(node);
            let spot = names.spot(directory, path)?;
            let is_directory = spot.inode().is_some_and(|inode| names.is_directory(inode));
            let as_directory = match kind {
                Removed::File => false,
                Removed::Directory => true,
                Removed::Any => is_directory,
            };
            names.remove(spot, as_directory)?;
        }
        Call::Rename { from, to, over, durable } => {
            let names = kernel.names_mut(node);
            let (from, to) = (names.spot(directory, from)?, names.spot(directory, to)?);
            names.rename(from, to, over)?;
            if durable && sync_fails {
                return Err(EIO);
            }
            if durable {
                let made = names.changes_made();
                names.sync(&[from.directory(), to.directory()], made);
            }
        }
        Call::Link { from, to } => {
            let names = kernel.names_mut(node);
            let (from, to) = (names.spot(directory, from)?, names.spot(directory, to)?);
            names.link(from, to)?;
        }
        Call::Copy { from, to, range, durable } => {
            let files = [from, to].map(|path| file_at(kernel, node, directory, path));
            let [from, to] = files;
            let (from, to) = (from?, to?);
            let copied = copy(kernel, (from, to), range)?;
            if durable && sync_fails {
                return Err(EIO);
            }
            if durable {
                let flush = kernel.disk.begin_flush(to);
                kernel.disk.end_flush(to, &flush);
            }
            return Ok(Copied(copied).to_bytes().to_vec());
        }
        _ => return Err(EINVAL),
    }
    Ok(Vec::new())
}

/// The file that a path leads to.
fn file_at(
    kernel: &SimKernel,
    node: NodeId,
    directory: InodeId,
    path: &[u8],
) -> Result<InodeId, i32> {
    let names = kernel.names(node);
    let inode = names.find(directory, path)?;
    if names.is_directory(inode) { Err(EISDIR) } else { Ok(inode) }
}

/// Copies what a file has of a range to another, and returns how much that is.
fn copy(kernel: &mut SimKernel, (from, to): (InodeId, InodeId), range: Range) -> Result<u64, i32> {
    if range.end().is_none() || range.length > COPY_BYTES_MAX || from == to {
        return Err(EINVAL);
    }
    let there = kernel.disk.clipped(from, range);
    let bytes = kernel.disk.read(from, there.offset, there.length);
    match kernel.disk.write(to, there.offset, &bytes) {
        written @ 0.. => Ok(written as u64),
        errno => Err(errno),
    }
}

fn make_directory(
    kernel: &mut SimKernel,
    node: NodeId,
    directory: InodeId,
    path: &[u8],
) -> Result<(), i32> {
    let device = kernel.disk.device_of(directory);
    let inode = kernel.disk.next_inode();
    let names = kernel.names_mut(node);
    let spot = names.spot(directory, path)?;
    names.make_directory(spot, inode)?;
    let made = kernel.create_file(node, device, Vec::new());
    assert_eq!(made, inode, "numbers are given in turn");
    Ok(())
}

/// Makes the directories of a path that are not there yet.
fn make_directories(
    kernel: &mut SimKernel,
    node: NodeId,
    directory: InodeId,
    path: &[u8],
) -> Result<(), i32> {
    let ends = (0..=path.len()).filter(|&at| path.get(at).is_none_or(|&byte| byte == b'/'));
    for end in ends.filter(|&end| end > 0) {
        match kernel.names(node).find(directory, &path[..end]) {
            Ok(_) => {}
            Err(ENOENT) => make_directory(kernel, node, directory, &path[..end])?,
            Err(errno) => return Err(errno),
        }
    }
    let last = kernel.names(node).find(directory, path)?;
    if kernel.names(node).is_directory(last) { Ok(()) } else { Err(crate::names::EEXIST) }
}

fn list(
    kernel: &SimKernel,
    node: NodeId,
    (directory, path): (InodeId, &[u8]),
    (cookie, stats): (u64, bool),
    room: usize,
) -> Result<Vec<u8>, i32> {
    let names = kernel.names(node);
    let listed = names.find(directory, path)?;
    if !names.is_directory(listed) {
        return Err(crate::names::ENOTDIR);
    }
    let mut bytes = vec![0; room];
    let mut writer = EntryWriter::new(&mut bytes).ok_or(EMSGSIZE)?;
    let (mut next, mut all) = (cookie, true);
    for (name, entry) in names.behind(listed, cookie) {
        let stat = stat_of(kernel, node, entry.inode());
        let entry_of = Entry { name, kind: stat.kind, stat: stats.then_some(stat) };
        if !writer.push(entry_of) {
            all = false;
            break;
        }
        next = entry.place();
    }
    if !all && writer.is_empty() {
        return Err(EMSGSIZE);
    }
    let length = writer.finish(if all { Entries::END } else { next });
    bytes.truncate(length);
    Ok(bytes)
}

/// What is known of a file or directory of a node.
pub(super) fn stat_of(kernel: &SimKernel, node: NodeId, inode: InodeId) -> Stat {
    let (costs, names) = (kernel.disk.costs(inode), kernel.names(node));
    let length = kernel.disk.content(inode).len() as u64;
    let stat = Stat {
        mode: 0o640,
        length,
        allocated: length,
        inode: u64::from(inode.0),
        ..Stat::default()
    };
    match names.is_directory(inode) {
        true => Stat { kind: FileKind::Directory, mode: 0o750, links: 1, ..stat },
        false => Stat {
            kind: FileKind::File,
            links: names.links(inode).max(1),
            direct_offset: costs.alignment.offset,
            direct_memory: costs.alignment.memory,
            ..stat
        },
    }
}
