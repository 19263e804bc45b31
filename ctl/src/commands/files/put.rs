//! `pipectl put`: the bytes of a file or of a pipe become a file below an export, whole or not at
//! all.
//!
//! They go to a file of a name of its own in the same directory, which is synced and then gets the
//! name, in one step. Whatever ends the command before leaves what was there before.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueHint};
use piped_client::call::{FileKind, Over, Removed};
use piped_client::{Buffer, Handle, OpenOptions, Pending, Queue, Request, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::found::plain_place;
use super::mode;
use super::tree::{Fault, Tree};
use crate::args::ClientDoor;
use crate::below::Below;
use crate::client;
use crate::clock;
use crate::commands::cp::stop::Stop;
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};
use crate::units;

/// Bytes of a write, and writes under way.
const PIECE: usize = 1 << 20;
const DEPTH: usize = 4;

/// Names that are tried for the file beside: others' may be left from killed commands.
const NAMES: u32 = 1000;

/// How long a pipe is waited for before signals are looked at.
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Arguments of `pipectl put`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = "\
The bytes are written beside (.piped-put-*), synced, and renamed: others see
the old file or the new one, and never half of it. The export needs `write` and
`names`; `pipectl cp` writes in place, goes on after interruptions, and needs
`write` alone.")]
pub(crate) struct PutArgs {
    /// From: PATH, or - for what comes in
    #[arg(value_name = "SRC", value_hint = ValueHint::FilePath)]
    source: PathBuf,

    /// To: PEER:EXPORT/PATH, or :EXPORT/PATH for an export of this node; with a slash at its end
    /// it takes the source's name
    #[arg(value_name = "DST", value_hint = ValueHint::Url)]
    destination: Below,

    /// Permission bits in octal, less the daemon's umask (default: 640)
    #[arg(short, long, value_name = "MODE", value_parser = |text: &str| mode(text, 0o777))]
    mode: Option<u32>,

    /// Fail if something has the name
    #[arg(short, long)]
    no_clobber: bool,

    /// Do not wait for stable storage
    #[arg(long)]
    no_sync: bool,

    #[command(flatten)]
    door: ClientDoor,
}

#[derive(Debug, Serialize)]
struct Report {
    destination: String,
    bytes: u64,
    seconds: f64,
    durable: bool,
}

pub(crate) fn run(args: &PutArgs, output: &Output, json: bool) -> Result<(), Failure> {
    // Before signals are caught: a pipe is open when somebody writes it, and Ctrl-C ends the wait.
    let source = open(&args.source)?;
    let stop = Stop::listen()?;
    let begin = clock::now();
    let mut tree = Tree::connect(&args.door)?;
    let place = target(args, &mut tree)?;
    let (beside, handle) = make(&mut tree, &place, args.mode)?;
    let bytes = fill(args, &mut tree, &source, (&beside, &handle), &stop)
        .and_then(|bytes| name(args, &mut tree, &beside, &place).map(|()| bytes))
        .map_err(|failure| match tree.remove(&beside, Removed::File) {
            Err(fault) if !fault.is_missing() => failure.and(format_args!("{beside} is left")),
            _ => failure,
        })?;
    let report = Report {
        destination: String::from_utf8_lossy(&place.bytes()).into_owned(),
        bytes,
        seconds: begin.elapsed().as_secs_f64(),
        durable: !args.no_sync,
    };
    if json {
        return output::json(report);
    }
    let durable = if report.durable { "on stable storage" } else { "not synced" };
    let (bytes, seconds) = (units::bytes(bytes), units::seconds(report.seconds));
    output.line(format_args!("{place}: {bytes} in {seconds}, {durable}"))
}

fn open(path: &Path) -> Result<File, Failure> {
    let opened = match path.as_os_str().as_bytes() {
        b"-" => io::stdin().as_fd().try_clone_to_owned().map(File::from),
        _ => File::open(path),
    };
    opened.map_err(|error| Failure::io(output::path(path), &error))
}

/// The place that gets the bytes, which must be free or a file.
fn target(args: &PutArgs, tree: &mut Tree) -> Result<Below, Failure> {
    let mut place = plain_place(&args.destination)?;
    if place.is_marked() || place.is_export() {
        let name = args.source.file_name().filter(|_| args.source.as_os_str() != "-");
        let named = name.map(|name| place.child(name.as_bytes()));
        place = named.ok_or_else(|| {
            let named = place.child(b"NAME");
            Failure::usage(format!("{place} is a directory: name the file in it, as {named}"))
        })?;
    }
    tree.check_names(&place).map_err(|fault| match fault.status() {
        Some(Status::Denied) => {
            fault.of(&place).and("`pipectl cp` writes in place, and needs `write` alone")
        }
        _ => fault.of(&place),
    })?;
    match tree.find(&place) {
        Ok(Some(stat)) if stat.kind == FileKind::Directory => {
            let why = format!("{place} is a directory: write {place}/ to put the source into it");
            Err(Failure::new(Exit::Refused, why))
        }
        Ok(Some(_)) if args.no_clobber => Err(Fault::of_status(Status::Exists).of(&place)),
        // Who may not look learns of it when the name is given.
        Err(fault) if fault.status() != Some(Status::Denied) => Err(fault.of(&place)),
        _ => Ok(place),
    }
}

/// A new file in the directory of the place.
fn make(tree: &mut Tree, place: &Below, mode: Option<u32>) -> Result<(Below, Handle), Failure> {
    let mut options = OpenOptions::write().create_new(true);
    if let Some(mode) = mode {
        options = options.mode(mode);
    }
    let process = std::process::id();
    for number in 0..NAMES {
        let name = format!(".piped-put-{process}-{number}");
        let beside = place.parent().child(name.as_bytes());
        match tree.open_file(&beside, options) {
            Ok(handle) => return Ok((beside, handle)),
            Err(fault) if fault.status() == Some(Status::Exists) => {}
            Err(fault) => return Err(fault.of(place)),
        }
    }
    let why = format!("{}: remove .piped-put-* there, left by killed commands", place.parent());
    Err(Failure::failed(why))
}

/// Moves all bytes, and brings them to stable storage; returns how many there were.
fn fill(
    args: &PutArgs,
    tree: &mut Tree,
    mut source: &File,
    (beside, handle): (&Below, &Handle),
    stop: &Stop,
) -> Result<u64, Failure> {
    let (client, queue) = tree.client_and_queue();
    let mut free = Vec::with_capacity(DEPTH);
    for _ in 0..DEPTH {
        free.push(client::allocate(client, PIECE as u64)?);
    }
    let mut underway: VecDeque<(Pending<Buffer>, usize)> = VecDeque::with_capacity(DEPTH);
    let fail = |error| Failure::io(output::path(&args.source), &error);
    let mut offset = 0;
    loop {
        let mut buffer = match free.pop() {
            Some(buffer) => buffer,
            None => end(queue, underway.pop_front(), beside)?,
        };
        buffer.set_len(PIECE).map_err(|error| Failure::failed(error.to_string()))?;
        let bytes = read(&mut source, buffer.as_mut_slice(), stop, &fail)?;
        if bytes == 0 {
            break;
        }
        buffer.set_len(bytes).map_err(|error| Failure::failed(error.to_string()))?;
        let submitted = queue.submit(Request::write(handle, offset, buffer));
        let pending = submitted.map_err(|error| client::submit(beside, error.fault))?;
        queue.flush();
        underway.push_back((pending, bytes));
        offset += bytes as u64;
    }
    while let Some(last) = underway.pop_front() {
        end(queue, Some(last), beside)?;
    }
    if !args.no_sync {
        queue.run(Request::sync(handle)).map_err(|error| client::request(beside, &error))?;
    }
    Ok(offset)
}

/// Waits for a write, and has its buffer back.
fn end(
    queue: &mut Queue,
    write: Option<(Pending<Buffer>, usize)>,
    beside: &Below,
) -> Result<Buffer, Failure> {
    let (pending, bytes) = write.ok_or_else(|| Failure::failed("no buffer is under way"))?;
    let done = pending.wait(queue).map_err(|error| client::request(beside, &error))?;
    if done.bytes != bytes as u64 {
        return Err(Failure::failed(format!("{beside}: {} of {bytes} bytes written", done.bytes)));
    }
    Ok(done.payload)
}

/// Fills the memory, or as much of it as there is; signals end the wait for a pipe.
fn read(
    source: &mut &File,
    memory: &mut [u8],
    stop: &Stop,
    fail: &dyn Fn(io::Error) -> Failure,
) -> Result<usize, Failure> {
    let mut length = 0;
    while length < memory.len() {
        stop.check()?;
        let mut ready = [PollFd::new(*source, PollFlags::IN)];
        match poll(&mut ready, Some(&STEP)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(fail(error.into())),
        }
        match source.read(&mut memory[length..]) {
            Ok(0) => break,
            Ok(bytes) => length += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(fail(error)),
        }
    }
    stop.check()?;
    Ok(length)
}

/// Gives the file its name.
fn name(args: &PutArgs, tree: &mut Tree, beside: &Below, place: &Below) -> Result<(), Failure> {
    let over = if args.no_clobber { Over::Keep } else { Over::Replace };
    tree.rename(beside, place, over, !args.no_sync).map_err(|fault| fault.of(place))
}
