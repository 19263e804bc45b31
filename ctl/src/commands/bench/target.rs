//! The opened target of the requests.

use std::path::Path;

use piped_client::{Access, Client, ClientBuilder, Handle, OpenOptions, RegionExport};

use crate::args::{FileTarget, Operation, RegionTarget};
use crate::client;
use crate::failure::{Exit, Failure};
use crate::place::Place;
use crate::units;

/// Length to which a measurement fills an empty file.
const NEW_FILE_BYTES: u64 = 1 << 30;
/// Size of a region that is offered for the measurement.
const SERVED_BYTES: u64 = 64 << 20;

/// Action of one request.
#[derive(Debug)]
pub(super) enum Work {
    Nop,
    Read(Handle),
    Write { to: Handle, durable: bool },
    Copy { from: Handle, to: Handle },
}

/// A target that is open.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) operation: &'static str,
    pub(super) name: String,
    pub(super) work: Work,
    /// Range in bytes that offsets are taken from.
    pub(super) span: u64,
    /// Offered as long as this lives. The export is dropped before its client.
    _served: Option<(RegionExport, Client)>,
}

pub(super) fn open(client: &Client, operation: &Operation) -> Result<Target, Failure> {
    let made = |operation, name, work, natural: u64, load: &crate::args::Load| {
        let span = load.span.map_or(natural, |span| span.0);
        if span < load.size.0 {
            return Err(Failure::usage(format!(
                "{name} has {}, less than one request of {}: choose a smaller --size",
                units::bytes(span),
                units::bytes(load.size.0)
            )));
        }
        Ok(Target { operation, name, work, span, _served: None })
    };
    match operation {
        Operation::Nop(load) => Ok(Target {
            operation: "nop",
            name: "ring".to_owned(),
            work: Work::Nop,
            span: load.size.0,
            _served: None,
        }),
        Operation::Read { target, load } => {
            let place = place(target);
            let handle = open_place(client, &place, OpenOptions::read())?;
            let length = handle.len();
            let span = load.span.map_or(length, |span| span.0.min(length));
            made("read", place.to_string(), Work::Read(handle), span, load)
        }
        Operation::Write { target, overwrite, durable, load } => {
            let place = place(target);
            let to = open_new(client, &place, *overwrite)?;
            let natural = if to.is_empty() { NEW_FILE_BYTES } else { to.len() };
            let work = Work::Write { to, durable: *durable };
            made("write", place.to_string(), work, natural, load)
        }
        Operation::Get { target, load } => {
            let (handle, served) = region(client, target, Access::READ, load)?;
            let length = handle.len();
            let target = made("get", region_name(target), Work::Read(handle), length, load)?;
            Ok(Target { _served: served, ..target })
        }
        Operation::Put { target, load } => {
            let (to, served) = region(client, target, Access::WRITE, load)?;
            let (length, work) = (to.len(), Work::Write { to, durable: false });
            let target = made("put", region_name(target), work, length, load)?;
            Ok(Target { _served: served, ..target })
        }
        Operation::Copy { source, destination, overwrite, load } => {
            let from = open_place(client, source, OpenOptions::read())?;
            let to = open_new(client, destination, *overwrite)?;
            let (length, name) = (from.len(), format!("{source} to {destination}"));
            made("copy", name, Work::Copy { from, to }, length, load)
        }
    }
}

fn place(target: &FileTarget) -> Place {
    match (&target.file, &target.export, &target.path) {
        (Some(file), _, _) => Place::Local(file.clone()),
        (None, export, path) => Place::Remote {
            peer: target.peer.clone().unwrap_or_default(),
            export: export.clone().unwrap_or_default(),
            path: path.clone().unwrap_or_default().into(),
        },
    }
}

fn open_place(client: &Client, place: &Place, options: OpenOptions) -> Result<Handle, Failure> {
    match place {
        Place::Local(path) => client.open_file(path, options),
        Place::Remote { peer, export, path } => {
            let peer = (!peer.is_empty()).then_some(peer.as_str());
            client.open_export(peer, export, path, options)
        }
    }
    .map_err(|error| client::open(place, &error))
}

/// Opens a file for writing; one with content only if overwriting is allowed.
fn open_new(client: &Client, place: &Place, overwrite: bool) -> Result<Handle, Failure> {
    let exists = || {
        Failure::new(
            Exit::Refused,
            format!("{place} exists and would be written over: say --overwrite if that is meant"),
        )
    };
    if let Place::Local(path) = place
        && !overwrite
        && has_something(path)
    {
        return Err(exists());
    }
    let handle = open_place(client, place, OpenOptions::write().create(true))?;
    if handle.is_empty() || overwrite { Ok(handle) } else { Err(exists()) }
}

/// Whether the path leads to content. A device counts too: it has no length here, and more to lose.
fn has_something(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0 || !metadata.is_file())
}

fn region_name(target: &RegionTarget) -> String {
    format!("{}:{}", target.peer.as_deref().unwrap_or_default(), target.region)
}

fn region(
    client: &Client,
    target: &RegionTarget,
    access: Access,
    load: &crate::args::Load,
) -> Result<(Handle, Option<(RegionExport, Client)>), Failure> {
    let served = match &target.serve {
        Some(socket) => Some(serve(socket, target, load)?),
        None => None,
    };
    let handle = client
        .open_region(target.peer.as_deref(), &target.region, access)
        .map_err(|error| client::open(region_name(target), &error))?;
    Ok((handle, served))
}

fn serve(
    socket: &Path,
    target: &RegionTarget,
    load: &crate::args::Load,
) -> Result<(RegionExport, Client), Failure> {
    let bytes = load.span.map_or(SERVED_BYTES, |span| span.0).max(load.size.0);
    let arena = bytes.next_multiple_of(4096);
    let server = client::connect(ClientBuilder::new().arena_bytes(arena), socket)?;
    let buffer = client::allocate(&server, bytes)?;
    let export = server
        .export_region(&target.region, buffer, Access::READ_WRITE)
        .map_err(|error| client::session(format_args!("region {}", target.region), &error.cause))?;
    Ok((export, server))
}
