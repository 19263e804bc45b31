//! The measured paths, and how they are read.

use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use piped_client::{Access, Client, Handle, OpenOptions};
use piped_config::admin::calibrate::ECHO_REGION;
use piped_config::admin::watch::{PEERS, Peers};
use piped_report::shard::{LaneReport, StageReport};

use super::CalibrateArgs;
use crate::admin::Admin;
use crate::failure::{Exit, Failure};
use crate::regular::{self, Links};
use crate::{client, page_cache, random};

/// One path to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Memory of a peer. `sums`: payloads from there have checksums or tags.
    Memory { peer: String, sums: bool },
    /// A file of a peer: its disk and the way from there.
    Remote { peer: String, sums: bool, export: String, path: String },
    /// A device of this node.
    Device { major: u32, minor: u32 },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { peer, .. } => write!(f, "peer {peer}, memory"),
            Self::Remote { peer, export, path, .. } => write!(f, "peer {peer}, {export}/{path}"),
            Self::Device { major, minor } => write!(f, "device {major}:{minor}, reads"),
        }
    }
}

/// Something open to be read.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) handle: Handle,
    pub(super) bytes: u64,
    pub(super) name: String,
}

impl Opened {
    /// The largest request that leaves room for others of its kind.
    pub(super) fn largest(&self) -> u64 {
        self.bytes.min(1 << 20)
    }
}

/// Size of the scratch file. Its pages are in no cache, and a device that compresses finds nothing
/// to compress.
const SCRATCH_BYTES: u64 = 64 << 20;

/// Reads a device as people write it.
pub(super) fn device(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.ok_or_else(|| {
        "write MAJOR:MINOR, as `pipectl stages` and `stat -c %Hd:%Ld FILE` do".to_owned()
    })
}

/// The paths asked for; without any argument, all that exist.
pub(super) fn choose(admin: &Admin, args: &CalibrateArgs) -> Result<Vec<Target>, Failure> {
    paths(&admin.get(PEERS)?, args)
}

/// The paths asked for, among the peers that the daemon reports.
fn paths(known: &Peers<LaneReport>, args: &CalibrateArgs) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    for peer in peers(known, args)? {
        let sums = has_sums(known, &peer);
        targets.push(Target::Memory { peer: peer.clone(), sums });
        if let Some(file) = args.file.as_ref().filter(|_| !args.peers.is_empty()) {
            let place = file.split_once('/').filter(|(a, b)| !a.is_empty() && !b.is_empty());
            let (export, path) = place.ok_or_else(|| {
                Failure::usage(format!("--file {file}: of a peer it is EXPORT/PATH"))
            })?;
            targets.push(Target::Remote { peer, sums, export: export.into(), path: path.into() });
        }
    }
    let devices = devices(args)?;
    targets.extend(devices.into_iter().map(|(major, minor)| Target::Device { major, minor }));
    if targets.is_empty() {
        return Err(Failure::new(
            Exit::NotFound,
            format!(
                "nothing to measure: no peer is connected, and {} is no directory; name one with \
                 --dir, or what to measure with --peer or --device",
                args.dir.display()
            ),
        ));
    }
    Ok(targets)
}

/// Whether nothing is named, so that all paths are meant.
fn is_everything(args: &CalibrateArgs) -> bool {
    args.peers.is_empty() && args.devices.is_empty() && args.file.is_none()
}

fn peers(known: &Peers<LaneReport>, args: &CalibrateArgs) -> Result<Vec<String>, Failure> {
    let mut all: Vec<&str> =
        known.peers.iter().filter(|it| !it.inbound).map(|it| it.name.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    if is_everything(args) {
        return Ok(all.into_iter().filter(|name| is_up(known, name)).map(str::to_owned).collect());
    }
    for peer in &args.peers {
        if !all.contains(&peer.as_str()) {
            let there = if all.is_empty() { "there are none".to_owned() } else { all.join(", ") };
            let text = format!("there is no peer `{peer}` in the configuration: {there}");
            return Err(Failure::new(Exit::NotFound, text));
        }
        // Requests to it would wait until their deadlines.
        if !is_up(known, peer) {
            let text = format!(
                "peer `{peer}` is not connected: none of its lanes is up; see that piped runs \
                 there and can be reached (`pipectl peers` says why a lane was lost), then \
                 calibrate again"
            );
            return Err(Failure::new(Exit::Unreachable, text));
        }
    }
    Ok(args.peers.clone())
}

fn is_up(known: &Peers<LaneReport>, name: &str) -> bool {
    let asked = known.peers.iter().filter(|peer| !peer.inbound && peer.name == name);
    asked.flat_map(|peer| &peer.lanes).any(|lane| lane.up)
}

/// Whether payloads that come from a peer have checksums or tags.
fn has_sums(known: &Peers<LaneReport>, name: &str) -> bool {
    let asked = known.peers.iter().filter(|peer| !peer.inbound && peer.name == name);
    !asked.flat_map(|peer| &peer.lanes).any(|lane| lane.sums == Some(false))
}

fn devices(args: &CalibrateArgs) -> Result<Vec<(u32, u32)>, Failure> {
    if !args.devices.is_empty() || !args.peers.is_empty() {
        return Ok(args.devices.clone());
    }
    match &args.file {
        // A file stands for the device that it is on.
        Some(file) => Ok(vec![device_of(Path::new(file))?]),
        None if args.dir.is_dir() => Ok(device_of(&args.dir).into_iter().collect()),
        None => Ok(Vec::new()),
    }
}

fn device_of(path: &Path) -> Result<(u32, u32), Failure> {
    let metadata = fs::metadata(path).map_err(|error| Failure::io(path.display(), &error))?;
    let device = metadata.dev();
    Ok((rustix::fs::major(device), rustix::fs::minor(device)))
}

impl Target {
    pub(super) fn open(&self, client: &Client, args: &CalibrateArgs) -> Result<Opened, Failure> {
        let handle = match self {
            Self::Memory { peer, .. } => {
                let opened = client.open_region(Some(peer), ECHO_REGION, Access::READ);
                opened.map_err(|error| {
                    let failure = client::open(self, &error);
                    match failure.exit() {
                        Exit::NotFound => failure.and(
                            "that node's piped has no memory for calibrations: install the release \
                             of this one there",
                        ),
                        _ => failure,
                    }
                })?
            }
            Self::Remote { peer, export, path, .. } => client
                .open_export(Some(peer), export, path, OpenOptions::read())
                .map_err(|error| client::open(self, &error))?,
            Self::Device { major, minor } => self.open_device(client, args, (*major, *minor))?,
        };
        let bytes = handle.len();
        let name = self.to_string();
        if bytes < 64 << 10 {
            return Err(Failure::usage(format!(
                "{name}: {bytes} bytes are too few; 64 KiB at least"
            )));
        }
        Ok(Opened { handle, bytes, name })
    }

    fn open_device(
        &self,
        client: &Client,
        args: &CalibrateArgs,
        device: (u32, u32),
    ) -> Result<Handle, Failure> {
        let named = args.file.as_ref().filter(|_| args.peers.is_empty());
        let place = named.map_or(args.dir.as_path(), Path::new);
        let there = device_of(place)?;
        if there != device {
            let fix = match named {
                Some(_) => "name a file on that device with --file",
                None => "name a directory there with --dir, or a file with --file",
            };
            return Err(Failure::usage(format!(
                "{} is on device {}:{}, not on {}:{}: {fix}",
                place.display(),
                there.0,
                there.1,
                device.0,
                device.1
            )));
        }
        let handle = match named {
            Some(file) => {
                // If it cannot be opened here, the next line says why.
                let found = regular::open(place, File::options().read(true), Links::Followed);
                let _ = found.map(|(file, _)| page_cache::forget(&file));
                client.open_file(file, OpenOptions::read())
            }
            None => client.open_fd(scratch(&args.dir)?, Access::READ),
        }
        .map_err(|error| client::open(self, &error))?;
        if handle.direct_alignment() == 0 {
            return Err(Failure::new(
                Exit::Refused,
                format!(
                    "{self}: its file system has no direct reads (O_DIRECT), so what would be \
                     measured is the page cache; name a place on another one"
                ),
            ));
        }
        Ok(handle)
    }

    /// The daemon's stages of this path, in order. With several shards those that have measured
    /// most since.
    pub(super) fn path(&self, stages: &[StageReport], after: &[StageReport]) -> Vec<StageReport> {
        let samples = |name: &str| {
            let of = |all: &[StageReport]| {
                let found = all.iter().find(|stage| stage.name == name);
                found.map_or(0, |stage| stage.samples_alone + stage.samples_backlogged)
            };
            of(after)
        };
        let wanted = self.stage_names();
        let found = wanted.iter().filter_map(|wanted| {
            let same = stages.iter().filter(|stage| plain(&stage.name) == wanted);
            same.max_by_key(|stage| samples(&stage.name)).cloned()
        });
        found.collect()
    }

    fn stage_names(&self) -> Vec<String> {
        match self {
            Self::Memory { peer, sums } | Self::Remote { peer, sums, .. } => {
                // The peer's checksum is taken to cost as much as the one here.
                let check = sums.then(|| "check".to_owned());
                let wire = [
                    format!("net {peer} bulk asked in"),
                    format!("dial net:{peer}"),
                    format!("dial receive:{peer} host"),
                    format!("dial receive:{peer}"),
                ];
                check.clone().into_iter().chain(wire).chain(check).collect()
            }
            Self::Device { major, minor } => vec![
                format!("disk {major}:{minor} read"),
                format!("dial disk:{major}:{minor}:read host"),
                format!("dial disk:{major}:{minor}:read"),
            ],
        }
    }
}

/// A stage's name without its shard's number.
fn plain(name: &str) -> &str {
    match name.strip_prefix("shard ").and_then(|rest| rest.split_once(": ")) {
        Some((_, name)) => name,
        None => name,
    }
}

/// Makes a file of random bytes on stable storage, without a name, so that it is gone with this
/// program.
fn scratch(directory: &Path) -> Result<File, Failure> {
    let fail = |error| {
        let what = format!("cannot make a scratch file of 64 MiB in {}", directory.display());
        Failure::io(what, &error)
            .and("name a directory on that device with --dir, or a file to read with --file")
    };
    let mut file = tempfile::tempfile_in(directory).map_err(fail)?;
    let mut block = vec![0_u8; 1 << 20];
    for start in (0..SCRATCH_BYTES).step_by(block.len()) {
        for (place, word) in block.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&random::mixed(start / 8 + place as u64).to_le_bytes());
        }
        file.write_all(&block).map_err(fail)?;
    }
    file.sync_all().map_err(fail)?;
    page_cache::forget(&file);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use piped_config::admin::watch::PeerEntry;
    use piped_core::link::LaneClass;

    use super::*;
    use crate::args::{Args, Command};

    fn arguments(words: &[&str]) -> CalibrateArgs {
        let all = ["pipectl", "calibrate"].iter().chain(words);
        match Args::try_parse_from(all).expect("arguments").command {
            Command::Calibrate(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn peer(name: &str, up: bool) -> PeerEntry<LaneReport> {
        let lane = |class| LaneReport {
            class,
            up,
            epoch: 1,
            frames_sent: 0,
            frames_received: 0,
            requests: 0,
            last_loss: None,
            pace: None,
            protection: None,
            sums: None,
            zero_copy: None,
            messages: None,
        };
        let lanes = vec![lane(LaneClass::Latency), lane(LaneClass::Bulk)];
        PeerEntry {
            shard: 0,
            name: name.to_owned(),
            inbound: false,
            address: None,
            heard_seconds_ago: None,
            lanes,
        }
    }

    fn memory(peer: &str) -> Target {
        Target::Memory { peer: peer.to_owned(), sums: true }
    }

    #[test]
    fn a_peer_that_is_down_is_refused_at_once_and_left_out_of_all() {
        let known = Peers { peers: vec![peer("up", true), peer("down", false)] };
        let none = arguments(&["--dir", "/none"]);
        assert_eq!(paths(&known, &none).expect("one is up"), [memory("up")]);
        assert_eq!(paths(&known, &arguments(&["--peer", "up"])).expect("it is up"), [memory("up")]);
        let error = paths(&known, &arguments(&["--peer", "up", "--peer", "down"]));
        let error = error.expect_err("down");
        assert_eq!(error.exit(), Exit::Unreachable);
        assert!(error.to_string().contains("peer `down` is not connected"), "{error}");
        assert!(error.to_string().contains("pipectl peers"), "{error}");
    }

    #[test]
    fn a_file_alone_means_its_device() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_str().expect("UTF-8");
        let (major, minor) = device_of(file.path()).expect("there");
        let known = Peers { peers: vec![peer("up", true)] };
        let alone = paths(&known, &arguments(&["--file", path])).expect("it is there");
        assert_eq!(alone, [Target::Device { major, minor }]);
        let error = paths(&known, &arguments(&["--file", "/none"])).expect_err("none");
        assert_eq!(error.exit(), Exit::NotFound);
        // With a peer the file is one there; with a device it is on that device.
        let both = paths(&known, &arguments(&["--peer", "up", "--file", "data/x"])).expect("up");
        assert_eq!(both.len(), 2);
        let named = paths(&known, &arguments(&["--device", "9:9", "--file", path])).expect("two");
        assert_eq!(named, [Target::Device { major: 9, minor: 9 }]);
    }

    #[test]
    fn devices_are_numbers() {
        assert_eq!(device("254:0"), Ok((254, 0)));
        for wrong in ["254", "a:b", "1:2:3", "", "sda"] {
            assert!(device(wrong).expect_err(wrong).contains("MAJOR:MINOR"), "{wrong}");
        }
    }

    #[test]
    fn a_scratch_file_has_its_bytes_and_no_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = scratch(directory.path()).expect("made");
        assert_eq!(file.metadata().expect("there").len(), SCRATCH_BYTES);
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 0);
        let error = scratch(&directory.path().join("none")).expect_err("no such directory");
        assert!(error.to_string().contains("--dir"), "{error}");
    }

    #[test]
    fn a_shards_number_is_no_part_of_a_name() {
        assert_eq!(plain("shard 1: check"), "check");
        assert_eq!(plain("net shard 1 bulk"), "net shard 1 bulk");
    }
}
