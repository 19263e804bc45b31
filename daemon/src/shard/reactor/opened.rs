//! What was opened becomes a handle of a client, or something that a peer may use.

use piped_control::channels::ChannelSource;
use piped_core::ids::{HandleId, SessionId};
use piped_engine::command::{
    ChannelTarget, Command, DirectoryTarget, FileTarget, RegionTarget, Target,
};

use super::super::message::{Notice, Refusal};
use super::Reactor;
use crate::io::{UringError, UringIo};
use crate::open::Source;
use crate::open::directory::OpenedDirectory;
use crate::open::file::OpenedFile;

/// Makes a handle of what was opened for a client.
pub(super) fn install(
    reactor: &mut Reactor,
    (session, handle): (SessionId, HandleId),
    source: Source,
) -> Result<(), Refusal> {
    if !reactor.sessions.is_open(session) {
        refuse(reactor, source);
        return Err(Refusal::Gone);
    }
    let target = target(reactor, source)?;
    reactor.engine(Command::InstallHandle { session, handle, target });
    Ok(())
}

/// Gives an opened thing to the driver.
pub(super) fn target(reactor: &mut Reactor, source: Source) -> Result<Target, Refusal> {
    match source {
        Source::File(file) => Ok(Target::File(add_file(&mut reactor.io, file)?)),
        Source::Directory(it) => Ok(Target::Directory(add_directory(&mut reactor.io, it)?)),
        Source::Region(source) => {
            let segment = reactor.sessions.segment_of(&source, reactor.index, &mut reactor.io);
            let segment = match segment {
                Ok(segment) => segment,
                Err(refusal) => {
                    refuse(reactor, Source::Region(source));
                    return Err(refusal);
                }
            };
            Ok(Target::Region(RegionTarget {
                region: source.region,
                segment,
                offset: source.offset,
                length: source.length,
                access: source.access,
                home: source.home as u16,
            }))
        }
        Source::Channel(ChannelSource { channel, receives, home, owner }) => {
            let home = home as u16;
            Ok(Target::Channel(ChannelTarget { channel, receives, home, owner }))
        }
    }
}

/// Gives back a source that is not installed. The memory of a region may belong to an owner that
/// has left meanwhile.
fn refuse(reactor: &Reactor, source: Source) {
    if let Source::Region(region) = source {
        reactor.tell(Notice::Retired(region.memory));
    }
}

/// Gives a file to the driver.
fn add_file(io: &mut UringIo, file: OpenedFile) -> Result<FileTarget, UringError> {
    let OpenedFile { direct, buffered, device, length, access, foreign, .. } = file;
    let mut add = |file| match foreign {
        true => io.add_foreign_file(file),
        false => io.add_file(file),
    };
    let buffered = add(buffered)?;
    // Without room for the second descriptor the file is served through the page cache.
    let direct = direct.and_then(|(fd, alignment)| Some((add(fd).ok()?, alignment)));
    Ok(FileTarget { direct, buffered, device, length, access, foreign, cached: false })
}

/// Gives a directory to the driver.
fn add_directory(
    io: &mut UringIo,
    directory: OpenedDirectory,
) -> Result<DirectoryTarget, UringError> {
    let OpenedDirectory { fd, device, access, foreign } = directory;
    let directory = io.add_directory(fd, foreign)?;
    Ok(DirectoryTarget { directory, device, access, foreign })
}
