//! Other users of this machine at the peers' door: a node of their own gets them nothing that they
//! would not have as clients, whatever address they call from.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use piped_client::{Access, Client, OpenOptions, RegionExport, RegionOptions};
use piped_core::link::{Checksum, LaneClass};
use piped_ring::Segment;
use piped_wire::{Frame, Message};
use system_tests::cable::Cable;
use system_tests::keys::Key;
use system_tests::process::{Daemon, Programs, command, eventually, free_address, words};

/// A user that `[access]` names, and one that it does not.
const LISTED: u32 = 4001;
const SOMEBODY: u32 = 65_534;

const SECRET: &[u8] = b"for root alone";

/// A directory in which others can run a daemon, with a copy of it, and a file to be had below
/// `root`.
fn directory(programs: &Programs) -> Option<(tempfile::TempDir, Programs)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be other users");
        return None;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("ours");
    fs::create_dir(path.join("root")).expect("made");
    fs::write(path.join("root/file"), SECRET).expect("written");
    let piped = path.join("piped");
    fs::copy(&programs.piped, &piped).expect("copied");
    Some((directory, Programs { piped, ..programs.clone() }))
}

/// What beta offers: by whom an export may be used says its name.
fn exports(directory: &Path) -> String {
    let path = directory.join("root");
    let export = |(name, more): (&str, String)| {
        format!("[exports.{name}]\npath = \"{}\"\nwrite = true\n{more}\n", path.display())
    };
    [
        ("anybody", String::new()),
        ("root", "users = [0]".to_owned()),
        ("listed", format!("users = [{LISTED}]")),
        ("group", "groups = [0]".to_owned()),
        ("named", "users = [0]\npeers = [\"delta\"]".to_owned()),
    ]
    .map(export)
    .concat()
}

/// A node without a key that calls beta there, as this user.
fn node(uid: u32, name: &str, beta: SocketAddr, programs: &Programs, directory: &Path) -> Daemon {
    let mut piped = programs.piped();
    piped.uid(uid).gid(uid);
    let more = format!(
        "[listen]\nallow_plain = [\"10.77.0.0/24\"]\n[peers.beta]\naddress = \"{beta}\"\n[access]\nusers = [0]\n"
    );
    Daemon::start_by(piped, programs, directory, name, &more)
}

/// Memory of a client of root on beta: for root alone, and for whoever gets in.
fn regions(beta: &Daemon) -> (Client, [RegionExport; 2]) {
    let owner = Client::connect(beta.client_socket()).expect("root may");
    let regions = [
        ("memory-of-root", RegionOptions::new(Access::READ_WRITE).users([0])),
        ("memory", RegionOptions::new(Access::READ_WRITE)),
    ]
    .map(|(name, options)| {
        let buffer = owner.allocate(4096).expect("memory");
        owner.export_region(name, buffer, options).expect("offered")
    });
    (owner, regions)
}

/// What clients of a node get at beta.
fn had(node: &Daemon) -> Vec<&'static str> {
    let client = Client::connect(node.client_socket()).expect("root may");
    let export = |name: &&&str| {
        let opened = client.open_export(Some("beta"), name, "file", OpenOptions::read_write());
        opened.is_ok()
    };
    let region = |name: &&&str| client.open_region(Some("beta"), name, Access::READ_WRITE).is_ok();
    let exports = ["anybody", "root", "listed", "group", "named"];
    let regions = ["memory-of-root", "memory"];
    exports.iter().filter(export).chain(regions.iter().filter(region)).copied().collect()
}

/// Writes through an export of beta.
fn overwrite(node: &Daemon, export: &str, bytes: &[u8]) {
    let client = Client::connect(node.client_socket()).expect("root may");
    let options = OpenOptions::read_write();
    let file = client.open_export(Some("beta"), export, "file", options).expect("it may");
    let mut buffer = client.allocate(bytes.len()).expect("memory");
    buffer.as_mut_slice().copy_from_slice(bytes);
    client.queue().expect("a queue").write(&file, 0, buffer).expect("written");
}

fn greeted(beta: &Daemon, outcome: &str) -> u64 {
    beta.status()["greeted"][outcome].as_u64().unwrap_or(0)
}

fn awaits(beta: &Daemon, outcome: &str) {
    eventually(outcome, || (greeted(beta, outcome) > 0).then_some(()));
}

#[test]
fn a_node_of_another_user_gets_what_that_user_would_get_as_a_client() {
    let Some(programs) = Programs::find() else { return };
    let Some((directory, theirs)) = directory(&programs) else { return };
    let (path, address) = (directory.path(), free_address());
    let listed = format!("users = [0, {LISTED}]");
    let served =
        format!("[listen]\naddress = \"{address}\"\n[access]\n{listed}\n{}", exports(path));
    let beta = Daemon::start(&programs, path, "beta", &served);
    let _owner = regions(&beta);

    let stranger = node(SOMEBODY, "stranger", address, &theirs, path);
    awaits(&beta, "user");
    assert!(beta.log().contains("user 65534 of this machine"), "{}", beta.log());
    assert_eq!(beta.number("lanes_lost"), 0, "no shard heard of it");
    drop(stranger);

    let member = node(LISTED, "member", address, &theirs, path);
    member.await_lanes();
    assert_eq!(had(&member), ["anybody", "listed", "memory"]);
    // The contrast: what is for root is there, and root's node has it.
    let own = node(0, "own", address, &theirs, path);
    own.await_lanes();
    assert_eq!(had(&own), ["anybody", "root", "group", "memory-of-root", "memory"]);
    // Whose name is on the list has to be on both.
    let named = node(0, "delta", address, &theirs, path);
    named.await_lanes();
    assert!(had(&named).contains(&"named"));
    assert_eq!(fs::read(path.join("root/file")).expect("there"), SECRET);
    overwrite(&own, "root", b"by root, who may");
    assert_eq!(fs::read(path.join("root/file")).expect("there"), b"by root, who may");

    // Who is not admitted any more has no lane any more, and others keep theirs.
    let file = path.join("beta.toml");
    let text = fs::read_to_string(&file).expect("there").replace(&listed, "users = [0]");
    fs::write(&file, text).expect("written");
    let before = greeted(&beta, "user");
    assert!(beta.pipectl(["config", "reload"]).output().expect("starts").status.success());
    eventually("it is turned away", || (greeted(&beta, "user") > before).then_some(()));
    own.await_lanes();
    assert!(had(&own).contains(&"root"));
}

#[test]
fn a_node_with_a_key_asks_its_neighbours_for_theirs() {
    let Some(programs) = Programs::find() else { return };
    let Some((directory, theirs)) = directory(&programs) else { return };
    let (path, address) = (directory.path(), free_address());
    let key = Key::make(&programs, path, "beta");
    let served = key.security("encrypted")
        + &format!("[listen]\naddress = \"{address}\"\n{}", exports(path));
    let beta = Daemon::start(&programs, path, "beta", &served);
    let stranger = node(SOMEBODY, "stranger", address, &theirs, path);
    awaits(&beta, "plain");
    // Not even root's.
    let before = greeted(&beta, "plain");
    drop(stranger);
    let own = node(0, "own", address, &theirs, path);
    eventually("it is turned away", || (greeted(&beta, "plain") > before + 2).then_some(()));
    // With loopback named, it is asked whose they are.
    let file = path.join("beta.toml");
    let text = fs::read_to_string(&file).expect("there");
    let named = text.replace("[listen]\n", "[listen]\nallow_plain = [\"127.0.0.0/8\"]\n");
    fs::write(&file, named).expect("written");
    assert!(beta.pipectl(["config", "reload"]).output().expect("starts").status.success());
    own.await_lanes();
    assert_eq!(had(&own), ["anybody", "root", "group"]);
    let _stranger = node(SOMEBODY, "stranger", address, &theirs, path);
    awaits(&beta, "user");
    assert_eq!(fs::read(path.join("root/file")).expect("there"), SECRET);
}

#[test]
fn an_address_of_this_machine_is_no_other_machine() {
    let Some(programs) = Programs::find() else { return };
    let Some((directory, theirs)) = directory(&programs) else { return };
    let Some(net) = Cable::up("neighbours") else { return };
    let path = directory.path();
    let address = "10.77.0.1:7413".parse().expect("an address");
    let trusted = "allow_plain = [\"10.77.0.0/24\"]";
    let served = format!(
        "[listen]\naddress = \"0.0.0.0:7413\"\n{trusted}\n[access]\nusers = [0]\n{}",
        exports(path)
    );
    let beta = net.daemon(0, &programs, path, "beta", &served);
    let _owner = regions(&beta);
    let calls = |end: usize, name: &str, uid: u32, to: SocketAddr| {
        let mut inside = net.inside(end, Path::new("setpriv"));
        inside.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
        inside.arg("--clear-groups").arg(&theirs.piped);
        let more = format!(
            "[listen]\n{trusted}\n[peers.beta]\naddress = \"{to}\"\n[access]\nusers = [0]\n"
        );
        Daemon::start_by(inside, &theirs, path, name, &more)
    };
    if command(Path::new("setpriv")).arg("--version").output().is_err() {
        return eprintln!("skipped: no setpriv");
    }
    // From 10.77.0.1 to 10.77.0.1, which is in the network, and from 127.0.0.1.
    for to in [address, "127.0.0.1:7413".parse().expect("an address")] {
        let before = greeted(&beta, "user");
        let _stranger = calls(0, "stranger", SOMEBODY, to);
        eventually("it is turned away", || (greeted(&beta, "user") > before).then_some(()));
    }
    let own = calls(0, "own", 0, address);
    own.await_lanes();
    assert_eq!(had(&own), ["anybody", "root", "group", "memory-of-root", "memory"]);
    // Another machine: nobody knows its users, so what is for users is not for it, unless its name
    // is.
    let far = calls(1, "far", SOMEBODY, address);
    far.await_lanes();
    assert_eq!(had(&far), ["anybody", "memory"]);
    let named = calls(1, "delta", SOMEBODY, address);
    named.await_lanes();
    assert_eq!(had(&named), ["anybody", "named", "memory"]);
    assert_eq!(fs::read(path.join("root/file")).expect("there"), SECRET);
}

/// A plain lane under a name, of which no more is heard.
fn silent(beta: SocketAddr, number: u32) -> std::io::Result<TcpStream> {
    let name = format!("silent-{number}");
    let memory = Segment::create(4096).expect("memory");
    memory.store(0, name.as_bytes()).expect("inside");
    let payload_crc = memory.crc32c(0, name.len() as u64).expect("inside");
    let message = Message::Hello {
        incarnation: u64::from(number) + 1,
        lane: LaneClass::Latency,
        checksum: Checksum::Payload,
    };
    let frame =
        Frame { epoch: 1, message, payload: name.len() as u32, payload_crc, followed: false };
    let mut stream = TcpStream::connect(beta)?;
    stream.write_all(&[&frame.encode(), name.as_bytes()].concat())?;
    Ok(stream)
}

#[test]
fn very_many_silent_neighbours_stop_nobody() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (path, address) = (directory.path(), free_address());
    fs::create_dir(path.join("root")).expect("made");
    fs::write(path.join("root/file"), SECRET).expect("written");
    let [alphas, betas] = ["alpha", "beta"].map(|name| Key::make(&programs, path, name));
    let root = path.join("root");
    let served = betas.security("encrypted")
        + &alphas.peer("alpha", None)
        + &format!(
            "[listen]\naddress = \"{address}\"\nallow_plain = [\"127.0.0.0/8\"]\n[exports.data]\npath = \"{}\"\n",
            root.display()
        );
    let beta = Daemon::start(&programs, path, "beta", &served);
    let asks = alphas.security("encrypted") + &betas.peer("beta", Some(address));
    let mut alpha = Daemon::start(&programs, path, "alpha", &asks);
    alpha.await_lanes();
    let reads = |alpha: &Daemon| {
        let client = Client::connect(alpha.client_socket()).expect("it serves");
        let file = client.open_export(Some("beta"), "data", "file", OpenOptions::read());
        let file = file.expect("beta serves");
        let buffer = client.allocate(SECRET.len()).expect("memory");
        let (buffer, bytes) =
            client.queue().expect("a queue").read(&file, 0, buffer).expect("read");
        assert_eq!(&buffer.as_slice()[..bytes], SECRET);
    };
    reads(&alpha);
    let mut lines = Vec::new();
    for number in 0..303 {
        lines.push(silent(address, number).expect("it listens"));
        if number % 100 == 0 {
            reads(&alpha);
        }
    }
    awaits(&beta, "displaced");
    reads(&alpha);
    // It goes and comes back, and has both of its lanes.
    alpha.process.signal(rustix::process::Signal::TERM);
    alpha.restart(&asks);
    alpha.await_lanes();
    reads(&alpha);
    assert!(beta.log().contains("a lane has no place"), "{}", beta.log());
    let doctor = beta.pipectl(["doctor"]).output().expect("pipectl starts");
    assert!(words(&doctor).contains("found no place"), "{}", words(&doctor));
    drop(lines);
}
