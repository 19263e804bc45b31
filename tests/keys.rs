//! Nodes with keys: what they say to each other is theirs, and nobody else gets anywhere.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use piped::peer::noise::{ANSWER_BYTES, Dialled};
use piped_client::{Access, Client, OpenOptions, Tag};
use piped_config::NodeKey;
use piped_core::link::Protection;
use serde_json::Value;
use system_tests::cable::Cable;
use system_tests::keys::Key;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, Programs, eventually, free_address, pattern, words,
};
use system_tests::proxy::Proxy;

fn peer(name: &str, key: &Key, address: Option<SocketAddr>) -> String {
    key.peer(name, address)
}

/// Alpha asks beta through a wire that the test holds; both have keys.
struct Scene {
    alpha: Daemon,
    beta: Daemon,
    wire: Proxy,
    /// Where beta listens.
    address: SocketAddr,
    keys: [Key; 2],
    directory: tempfile::TempDir,
    programs: Programs,
}

impl Scene {
    fn start(modes: [&str; 2]) -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a folder");
        let (path, address) = (directory.path(), free_address());
        fs::create_dir(path.join("root")).expect("made");
        fs::write(path.join("root/blocks"), pattern(BLOCKS_BYTES)).expect("written");
        let wire = Proxy::start(address);
        let keys = ["alpha", "beta"].map(|name| Key::make(&programs, path, name));
        let settings = [
            keys[0].security(modes[0]) + &peer("beta", &keys[1], Some(wire.address())),
            keys[1].security(modes[1])
                + &peer("alpha", &keys[0], None)
                + &format!(
                    "[listen]\naddress = \"{address}\"\n[exports.data]\npath = \"{}\"\nwrite = true\npeers = \
                     [\"alpha\"]\n",
                    path.join("root").display()
                ),
        ];
        let beta = Daemon::start(&programs, path, "beta", &settings[1]);
        let alpha = Daemon::start(&programs, path, "alpha", &settings[0]);
        Some(Self { alpha, beta, wire, address, keys, directory, programs })
    }

    fn up(self) -> Self {
        self.alpha.await_lanes();
        self
    }

    /// What the lanes are sealed with, as both nodes say.
    fn sealed(&self) -> Vec<Value> {
        let of = |node: &Daemon| {
            let peers = node.json(&["peers"]);
            let lanes = peers["peers"][0]["lanes"].as_array().cloned().unwrap_or_default();
            lanes.into_iter().map(|lane| lane["protection"].clone())
        };
        of(&self.alpha).chain(of(&self.beta)).collect()
    }

    fn client(&self) -> Client {
        Client::connect(self.alpha.client_socket()).expect("it serves")
    }

    /// Reads all of beta's file.
    fn read(&self) -> Vec<u8> {
        let client = self.client();
        let open = || client.open_export(Some("beta"), "data", "blocks", OpenOptions::read()).ok();
        let file = eventually("it is open", open);
        let buffer = client.allocate(BLOCKS_BYTES).expect("memory");
        let read = client.queue().expect("a queue").read(&file, 0, buffer);
        let (buffer, bytes) = read.expect("read");
        assert_eq!(bytes, BLOCKS_BYTES);
        buffer.as_slice().to_vec()
    }

    /// Changes a node's file, which it takes while it runs, and says what of.
    fn change(&self, node: usize, from: &str, to: &str) -> String {
        let (daemon, name) = ([&self.alpha, &self.beta][node], ["alpha", "beta"][node]);
        let path = self.directory.path().join(format!("{name}.toml"));
        let text = fs::read_to_string(&path).expect("there");
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).expect("written");
        let reloaded = daemon.pipectl(["config", "reload"]).output().expect("starts");
        assert!(reloaded.status.success(), "{}", words(&reloaded));
        words(&reloaded)
    }

    /// How often beta greeted somebody with this outcome.
    fn greeted(&self, outcome: &str) -> u64 {
        self.beta.status()["greeted"][outcome].as_u64().unwrap_or(0)
    }

    fn greeted_at_last(&self, outcome: &str) {
        eventually(outcome, || (self.greeted(outcome) > 0).then_some(()));
    }

    fn lanes_lost(&self) -> u64 {
        self.beta.number("lanes_lost")
    }
}

fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn everything_goes_over_sealed_lanes_and_the_stronger_wish_counts() {
    for (modes, agreed) in [
        (["integrity", "integrity"], "integrity"),
        (["integrity", "encrypted"], "encrypted"),
        (["encrypted", "integrity"], "encrypted"),
    ] {
        let Some(scene) = Scene::start(modes).map(Scene::up) else { return };
        assert_eq!(scene.sealed(), [agreed; 4], "{modes:?}");
        assert!(scene.read() == pattern(BLOCKS_BYTES), "the bytes of the file");
        // A write, and what stands on the disk.
        let (client, written) = (scene.client(), pattern(300_000));
        let make = OpenOptions::read_write().create(true);
        let file = client.open_export(Some("beta"), "data", "new", make).expect("made");
        let mut queue = client.queue().expect("a queue");
        let mut buffer = client.allocate(written.len()).expect("memory");
        buffer.as_mut_slice().copy_from_slice(&written);
        let buffer = queue.write(&file, 0, buffer).expect("written").0;
        assert!(fs::read(scene.directory.path().join("root/new")).expect("there") == written);
        // A put, a get, a message.
        let owner = Client::connect(scene.beta.client_socket()).expect("it serves");
        let memory = owner.allocate(1 << 20).expect("memory");
        let _region = owner.export_region("halo", memory, Access::READ_WRITE).expect("offered");
        let halo = client.open_region(Some("beta"), "halo", Access::READ_WRITE).expect("open");
        let (buffer, _) = queue.write(&halo, 4096, buffer).expect("put");
        let mut other = client.allocate(written.len()).expect("memory");
        other.as_mut_slice().fill(0);
        let (other, _) = queue.read(&halo, 4096, other).expect("got");
        assert!(other.as_slice() == written, "what was put");
        let inbox = owner.offer_channel("mail").expect("offered");
        let outbox = client.open_channel(Some("beta"), "mail").expect("open");
        let pending = std::thread::scope(|scope| {
            let sent = scope.spawn(|| queue.send(&outbox, 7, buffer).expect("sent"));
            let room = owner.allocate(1 << 20).expect("memory");
            let got = owner.queue().expect("a queue").receive(&inbox, Tag::Any, room);
            sent.join().expect("sent");
            got.expect("received")
        });
        assert!(pending.0.as_slice()[..pending.1] == written, "the message");
        // Somebody on the wire reads what is only authenticated, and nothing of what is encrypted.
        let [there, back] = scene.wire.passed();
        let piece = &pattern(BLOCKS_BYTES)[1 << 20..(1 << 20) + 64];
        assert_eq!(holds(&back, piece), agreed == "integrity", "{agreed}");
        assert_eq!(holds(&there, b"blocks"), agreed == "integrity", "{agreed}");
        for key in &scene.keys {
            let secret = fs::read_to_string(&key.file).expect("ours");
            let secret = secret.lines().last().expect("the key").to_owned();
            for node in [&scene.alpha, &scene.beta] {
                let shown =
                    format!("{}{}{}", node.log(), node.status(), node.json(&["config", "show"]));
                assert!(!shown.contains(&secret), "a private key is shown");
            }
            let raw = NodeKey::read(&key.file).expect("ours");
            assert!(!holds(&there, raw.private()) && !holds(&back, raw.private()));
        }
    }
}

#[test]
fn what_is_changed_on_the_way_never_reaches_a_client() {
    for mode in ["integrity", "encrypted"] {
        let Some(scene) = Scene::start([mode; 2]).map(Scene::up) else { return };
        for _ in 0..5 {
            scene.wire.bend();
            assert!(scene.read() == pattern(BLOCKS_BYTES), "{mode}");
        }
        let corrupt = scene.alpha.number("corrupt_frames");
        assert!(corrupt + scene.alpha.number("lanes_lost") >= 1, "{mode}: nothing was changed");
    }
}

#[test]
fn a_cut_wire_is_greeted_anew() {
    let Some(scene) = Scene::start(["integrity"; 2]).map(Scene::up) else { return };
    for _ in 0..3 {
        scene.wire.cut();
        assert!(scene.read() == pattern(BLOCKS_BYTES));
    }
    assert!(scene.greeted("proven") >= 4);
}

#[test]
fn who_has_no_key_or_another_one_gets_no_lane() {
    let Some(scene) = Scene::start(["integrity"; 2]).map(Scene::up) else { return };
    let lost = scene.lanes_lost();
    let path = scene.directory.path();
    // A key that nobody here knows.
    let mallory = Key::make(&scene.programs, path, "mallory");
    let to_beta =
        |key: &Key| mallory.security("integrity") + &peer("beta", key, Some(scene.address));
    let node = Daemon::start(&scene.programs, path, "mallory", &to_beta(&scene.keys[1]));
    scene.greeted_at_last("untrusted");
    drop(node);
    // One that takes beta for another.
    let node = Daemon::start(&scene.programs, path, "lost", &to_beta(&scene.keys[0]));
    scene.greeted_at_last("ticket");
    drop(node);
    assert_eq!(scene.lanes_lost(), lost, "a shard heard of them");
    let log = scene.beta.log();
    assert!(log.contains(&format!("pipectl keys trust NAME {}", mallory.public)), "{log}");
    // One without a key, from this machine: where keys are asked for, loopback is no exception ...
    let plain = format!("[peers.beta]\naddress = \"{}\"\n", scene.address);
    let gamma = Daemon::start(&scene.programs, path, "gamma", &plain);
    scene.greeted_at_last("plain");
    assert!(scene.beta.log().contains("loopback is no exception"), "{}", scene.beta.log());
    // ... unless it is named, and then not under a name that has a key.
    scene.change(1, "[listen]\n", "[listen]\nallow_plain = [\"127.0.0.0/8\"]\n");
    gamma.await_lanes();
    drop(gamma);
    // The same, and calls itself alpha.
    let folder = path.join("elsewhere");
    fs::create_dir(&folder).expect("made");
    let impostor = Daemon::start(&scene.programs, &folder, "alpha", &plain);
    eventually("it is refused", || scene.beta.log().contains("did not prove it").then_some(()));
    drop(impostor);
    assert!(scene.read() == pattern(BLOCKS_BYTES), "alpha is served all the while");
}

#[test]
fn a_node_under_another_name_than_its_keys_is_refused() {
    let Some(scene) = Scene::start(["integrity"; 2]).map(Scene::up) else { return };
    let eve =
        scene.keys[0].security("integrity") + &peer("beta", &scene.keys[1], Some(scene.address));
    let folder = scene.directory.path().join("eve");
    fs::create_dir(&folder).expect("made");
    let _eve = Daemon::start(&scene.programs, &folder, "eve", &eve);
    eventually("it is refused", || {
        scene.beta.log().contains("its key is that of another name").then_some(())
    });
}

#[test]
fn strangers_are_counted_bounded_and_heard_by_nobody_else() {
    let Some(scene) = Scene::start(["integrity"; 2]).map(Scene::up) else { return };
    let lost = scene.lanes_lost();
    let [there, _] = scene.wire.passed();
    // The first word of a handshake that was seen, and then something.
    let say = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(scene.address).expect("it listens");
        // It may have closed already.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer.len()
    };
    assert_eq!(say(&[&there[..120], &[0; 16]].concat()), 49, "an answer, and no more");
    scene.greeted_at_last("repeated");
    let mut forged = there[..120].to_vec();
    forged[100] ^= 1;
    assert_eq!(say(&forged), 0);
    scene.greeted_at_last("ticket");
    assert_eq!(say(&[b"pipedK\x09\x01".as_slice(), &[0; 200]].concat()), 0);
    scene.greeted_at_last("version");
    // Those that failed count for their address until it has no attempt left. (The wire's is the
    // same.)
    for _ in 0..400 {
        say(&forged);
    }
    assert!(scene.greeted("busy") >= 200, "{}", scene.beta.status());
    assert_eq!(scene.lanes_lost(), lost, "a shard heard of them");
    assert!(scene.beta.log().lines().filter(|line| line.contains("turned away")).count() <= 40);
    assert!(scene.read() == pattern(BLOCKS_BYTES), "alpha is served all the while");
    // Attempts grow back, so its lanes do, too.
    scene.wire.cut();
    assert!(scene.read() == pattern(BLOCKS_BYTES));
}

#[test]
fn trust_is_taken_and_given_while_running() {
    let Some(scene) = Scene::start(["integrity"; 2]).map(Scene::up) else { return };
    let gone = |node: &Daemon| {
        let peers = node.json(&["peers"]);
        let lanes = peers["peers"][0]["lanes"].as_array().cloned().unwrap_or_default();
        lanes.iter().all(|lane| lane["up"] == false).then_some(())
    };
    let stranger = Key::make(&scene.programs, scene.directory.path(), "stranger");
    scene.change(1, &scene.keys[0].public, &stranger.public);
    eventually("alpha's lanes close", || gone(&scene.beta));
    scene.greeted_at_last("untrusted");
    scene.change(1, &stranger.public, &scene.keys[0].public);
    assert!(scene.read() == pattern(BLOCKS_BYTES), "it is trusted again");
    // A stronger mode needs no restart either.
    scene.change(1, "\"integrity\"", "\"encrypted\"");
    eventually("lanes are encrypted", || (scene.sealed() == ["encrypted"; 4]).then_some(()));
    assert!(scene.read() == pattern(BLOCKS_BYTES));
    // A key file that is not a secret any more is refused, and all stays as it is.
    let file = &scene.keys[1].file;
    fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("ours");
    let refused = scene.beta.pipectl(["config", "reload"]).output().expect("starts");
    assert!(
        !refused.status.success() && words(&refused).contains("security.key_file"),
        "{}",
        words(&refused)
    );
    assert!(scene.read() == pattern(BLOCKS_BYTES));
}

/// A client that reads all the time, with one handle.
struct Reader {
    ends: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn start(client: Client) -> Self {
        let (ends, reads) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (is_over, done) = (Arc::clone(&ends), Arc::clone(&reads));
        let thread = thread::spawn(move || {
            let file = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
            let (file, mut queue) = (file.expect("it is there"), client.queue().expect("a queue"));
            let mut buffer = client.allocate(BLOCKS_BYTES).expect("memory");
            while !is_over.load(Ordering::Relaxed) {
                let read = queue.read(&file, 0, buffer);
                buffer = read.expect("lanes come and go, requests go on").0;
                assert!(buffer.as_slice() == pattern(BLOCKS_BYTES));
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { ends, reads, thread }
    }

    /// Waits until it has read something that it asked for after this.
    fn goes_on(&self) {
        let before = self.reads.load(Ordering::Relaxed);
        eventually("it reads", || {
            assert!(!self.thread.is_finished(), "a read failed");
            (self.reads.load(Ordering::Relaxed) > before + 1).then_some(())
        });
    }

    fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("no read failed");
    }
}

#[test]
fn a_key_is_replaced_while_requests_go_on() {
    let Some(scene) = Scene::start(["integrity"; 2]).map(Scene::up) else { return };
    let reader = Reader::start(scene.client());
    reader.goes_on();
    // Of the node that is dialled, then of the one that dials.
    for node in [1, 0] {
        let (old, other) = (&scene.keys[node], 1 - node);
        let new = Key::make(&scene.programs, scene.directory.path(), &format!("new-{node}"));
        let trusts = |key: &Key| format!("key = \"{}\"", key.public);
        let both = format!("{}\nnext_{}", trusts(old), trusts(&new));
        let lost = scene.lanes_lost();
        scene.change(other, &trusts(old), &both);
        reader.goes_on();
        assert_eq!(scene.lanes_lost(), lost, "more trust closes no lane");
        fs::rename(&new.file, &old.file).expect("moved");
        let said = scene.change(node, "", "");
        assert!(said.contains("public_key") && said.contains(&new.public), "{said}");
        eventually("lanes are made anew", || (scene.lanes_lost() > lost).then_some(()));
        reader.goes_on();
        // Now the new one alone is good.
        scene.change(other, &both, &trusts(&new));
        reader.goes_on();
    }
    reader.end();
    eventually("all are sealed", || (scene.sealed() == ["integrity"; 4]).then_some(()));
}

/// Needs root and `ip`; skips where it has not.
#[test]
fn a_network_that_is_not_for_plain_lanes_any_more_keeps_none() {
    let Some(programs) = Programs::find() else { return };
    let Some(cable) = Cable::up("plain") else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path();
    fs::create_dir(path.join("root")).expect("made");
    fs::write(path.join("root/blocks"), pattern(BLOCKS_BYTES)).expect("written");
    let plain = "allow_plain = [\"10.77.0.0/24\"]\n";
    let export = format!("[exports.data]\npath = \"{}\"\n", path.join("root").display());
    let beta = Key::make(&programs, path, "beta").security("integrity")
        + &format!("[listen]\naddress = \"10.77.0.2:7411\"\n{plain}{export}");
    let beta = cable.daemon(1, &programs, path, "beta", &beta);
    let alpha = format!("[listen]\n{plain}[peers.beta]\naddress = \"10.77.0.2:7411\"\n");
    let alpha = cable.daemon(0, &programs, path, "alpha", &alpha);
    alpha.await_lanes();
    let client = Client::connect(alpha.client_socket()).expect("it serves");
    let read = || {
        let open = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
        let buffer = client.allocate(BLOCKS_BYTES).expect("memory");
        let read = client.queue().expect("a queue").read(&open.ok()?, 0, buffer);
        read.is_ok_and(|(buffer, _)| buffer.as_slice() == pattern(BLOCKS_BYTES)).then_some(())
    };
    eventually("it is read", read);
    let file = path.join("beta.toml");
    let with = fs::read_to_string(&file).expect("there");
    let reload = |text: &str| {
        fs::write(&file, text).expect("written");
        let reloaded = beta.pipectl(["config", "reload"]).output().expect("starts");
        assert!(reloaded.status.success(), "{}", words(&reloaded));
    };
    // Another network more takes nothing from anybody.
    let lost = beta.number("lanes_lost");
    reload(&with.replace(plain, "allow_plain = [\"10.77.0.0/24\", \"10.88.0.0/24\"]\n"));
    assert_eq!((read(), beta.number("lanes_lost")), (Some(()), lost));
    reload(&with.replace(plain, ""));
    eventually("alpha is turned away", || {
        let outcome = &beta.status()["greeted"]["plain"];
        let lanes = beta.json(&["peers"])["peers"][0]["lanes"].as_array().cloned();
        let down = lanes.unwrap_or_default().iter().all(|lane| lane["up"] == false);
        (down && outcome.as_u64() > Some(0)).then_some(())
    });
    reload(&with);
    eventually("it is read again", read);
    // Who dials looks again as well.
    let lost = alpha.number("lanes_lost");
    let file = path.join("alpha.toml");
    let text = fs::read_to_string(&file).expect("there");
    fs::write(&file, text.replace(plain, "allow_plain = [\"10.77.0.2/32\"]\n")).expect("written");
    assert!(alpha.pipectl(["config", "reload"]).output().expect("starts").status.success());
    eventually("it dials anew", || (alpha.number("lanes_lost") >= lost + 2).then_some(()));
    eventually("it is read again", read);
}

#[test]
fn a_handshake_that_began_before_a_reload_counts_for_nothing() {
    let Some(scene) = Scene::start(["integrity"; 2]).map(Scene::up) else { return };
    let alpha = NodeKey::read(&scene.keys[0].file).expect("a key");
    let beta = scene.keys[1].public.parse().expect("a key");
    let begin = || {
        let (dialled, first) = Dialled::begin(&alpha, beta, Protection::Integrity, 0, &[]);
        let mut stream = TcpStream::connect(scene.address).expect("it listens");
        stream.write_all(&first).expect("sent");
        let mut answer = [0; ANSWER_BYTES];
        stream.read_exact(&mut answer).expect("alpha is trusted");
        (stream, dialled.finish(&answer).expect("it is beta").1)
    };
    // It would be a lane, if nothing happened.
    let (mut stream, confirmation) = begin();
    let proven = scene.greeted("proven");
    stream.write_all(&confirmation).expect("sent");
    eventually("it is a lane", || (scene.greeted("proven") > proven).then_some(()));
    let (mut stream, confirmation) = begin();
    let stranger = Key::make(&scene.programs, scene.directory.path(), "stranger");
    scene.change(1, &scene.keys[0].public, &stranger.public);
    let proven = scene.greeted("proven");
    stream.write_all(&confirmation).expect("sent");
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert!(scene.beta.log().contains("loaded again meanwhile"), "{}", scene.beta.log());
    assert_eq!(scene.greeted("proven"), proven);
}

#[test]
fn a_daemon_does_not_start_open_to_the_world() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path();
    let (alpha, beta) = (Key::make(&programs, path, "alpha"), Key::make(&programs, path, "beta"));
    let refused = |settings: &str, part: &str| {
        let file = path.join("refused.toml");
        let doors = format!(
            "[client]\nsocket = \"{0}/c\"\n[admin]\nsocket = \"{0}/a\"\n[limits.global]\nstaging = \"4MiB\"\n",
            path.display()
        );
        fs::write(&file, doors + settings).expect("written");
        let mut daemon = programs.piped();
        let output = daemon.arg("--config").arg(&file).output().expect("starts");
        assert!(!output.status.success(), "{settings}");
        assert!(words(&output).contains(part), "{part}: {}", words(&output));
        let output = programs.pipectl().args(["config", "check"]).arg(&file).output();
        let output = output.expect("pipectl starts");
        assert!(!output.status.success() && words(&output).contains(part), "{}", words(&output));
    };
    refused("[listen]\naddress = \"0.0.0.0:7440\"\n", "pipectl keys generate");
    refused(&peer("beta", &beta, None), "this node has no key of its own");
    refused(&(alpha.security("integrity") + &peer("beta", &alpha, None)), "this node's own");
    refused("[peers.beta]\naddress = \"192.0.2.1:7440\"\n", "pipectl keys trust beta");
    refused("[security]\nkey_file = \"/nowhere/node.key\"\n", "/nowhere/node.key");
    let two = peer("beta", &beta, None) + &peer("gamma", &beta, None);
    refused(&(alpha.security("integrity") + &two), "is also that of `beta`");
    let next = |key: &Key| format!("next_key = \"{}\"\n", key.public);
    let twice = peer("beta", &beta, None) + &next(&beta);
    refused(&(alpha.security("integrity") + &twice), "is the same as `key`");
    let own = peer("beta", &beta, None) + &next(&alpha);
    refused(&(alpha.security("integrity") + &own), "this node's own");
    let alone = format!("[peers.beta]\naddress = \"127.0.0.1:1\"\n{}", next(&beta));
    refused(&(alpha.security("integrity") + &alone), "is set without `key`");
}

fn keys(programs: &Programs, config: &Path, arguments: &[&str]) -> Output {
    let mut command: Command = programs.pipectl();
    command.arg("keys").args(arguments).arg("--config").arg(config);
    command.env("PIPED_ADMIN_SOCKET", config.with_file_name("no.sock"));
    command.output().expect("pipectl starts")
}

#[test]
fn keys_are_made_shown_and_trusted_from_the_command_line() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let config = directory.path().join("piped.toml");
    fs::write(&config, "# nothing yet\n").expect("written");
    let run = |arguments: &[&str]| keys(&programs, &config, arguments);
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let none = run(&["show"]);
    assert!(
        !none.status.success() && words(&none).contains("pipectl keys generate"),
        "{}",
        words(&none)
    );
    let made = run(&["generate"]);
    assert!(made.status.success(), "{}", words(&made));
    let file = directory.path().join("node.key");
    assert_eq!(fs::metadata(&file).expect("made").permissions().mode() & 0o037, 0);
    assert_eq!(said(&run(&["show"])), said(&made), "beside the main file");
    let again = run(&["generate"]);
    assert!(
        !again.status.success() && words(&again).contains("there already"),
        "{}",
        words(&again)
    );
    assert_eq!(said(&run(&["show"])), said(&made), "it is as it was");
    let other = Key::make(&programs, directory.path(), "other");
    for (name, key) in [("../up", &*other.public), ("beta", "short"), ("", &other.public)] {
        assert!(!run(&["trust", name, key]).status.success(), "{name} {key}");
    }
    assert!(!directory.path().join("conf.d").exists(), "nothing was written");
    let trusted = run(&["trust", "beta", &other.public, "--address", "192.0.2.1:7440"]);
    assert!(trusted.status.success(), "{}", words(&trusted));
    let list: Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).expect("JSON");
    assert_eq!(
        (&list["trusted"][0]["name"], &list["trusted"][0]["key"]),
        (&"beta".into(), &other.public.clone().into())
    );
    // Another key leaves the address.
    let newer = Key::make(&programs, directory.path(), "newer");
    assert!(run(&["trust", "beta", &newer.public]).status.success());
    let list: Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).expect("JSON");
    assert_eq!(list["trusted"][0]["address"], "192.0.2.1:7440");
    // One to come is trusted beside it, until it is the one.
    let coming = Key::make(&programs, directory.path(), "coming");
    let listed = || {
        let list: Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).expect("JSON");
        ["key", "next_key"].map(|place| list["trusted"][0][place].clone())
    };
    assert!(run(&["trust", "beta", &coming.public, "--next"]).status.success());
    assert_eq!(listed(), [Value::from(newer.public.as_str()), coming.public.as_str().into()]);
    assert!(words(&run(&["list"])).contains("next"));
    // What is under way is not forgotten: not for another one to come, not by what changes an
    // address only.
    let third = Key::make(&programs, directory.path(), "third");
    let early = run(&["trust", "beta", &third.public, "--next"]);
    assert!(!early.status.success() && words(&early).contains("first"), "{}", words(&early));
    assert!(run(&["trust", "beta", &newer.public, "--address", "192.0.2.2:7440"]).status.success());
    assert_eq!(listed(), [Value::from(newer.public.as_str()), coming.public.as_str().into()]);
    assert!(run(&["trust", "beta", &coming.public]).status.success());
    assert_eq!(listed(), [coming.public.as_str().into(), Value::Null]);
    // A file that counts more is not passed over in silence.
    let above = directory.path().join("conf.d/90-site.toml");
    fs::write(&above, format!("[peers.beta]\nkey = \"{}\"\n", coming.public)).expect("written");
    let beaten = run(&["trust", "beta", &third.public]);
    assert!(
        !beaten.status.success() && words(&beaten).contains("90-site.toml"),
        "{}",
        words(&beaten)
    );
    assert_eq!(listed()[0], coming.public.as_str());
    fs::remove_file(above).expect("ours");
    let alone = run(&["trust", "gamma", &newer.public, "--next"]);
    assert!(
        !alone.status.success() && words(&alone).contains("nothing was changed"),
        "{}",
        words(&alone)
    );
    assert_eq!(list["trusted"][0]["key"], *newer.public);
    assert!(run(&["trust", "beta", &other.public]).status.success());
    // What a daemon would refuse leaves all as it was.
    let twice = run(&["trust", "gamma", &other.public]);
    assert!(!twice.status.success() && words(&twice).contains("also that of"), "{}", words(&twice));
    let check = programs.pipectl().args(["config", "check"]).arg(&config).output();
    assert!(check.expect("pipectl starts").status.success());
    assert!(run(&["distrust", "beta"]).status.success());
    let list: Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).expect("JSON");
    assert_eq!(list["trusted"], Value::Array(Vec::new()));
    assert_eq!(run(&["distrust", "beta"]).status.code(), Some(6));
    // A key that the rest of the configuration needs is not taken away under it.
    assert!(run(&["trust", "gamma", &other.public]).status.success());
    fs::write(&config, "[peers.gamma]\naddress = \"192.0.2.7:7440\"\n").expect("written");
    let still = run(&["distrust", "gamma"]);
    assert!(
        !still.status.success() && words(&still).contains("TRUSTED STILL"),
        "{}",
        words(&still)
    );
    let list: Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).expect("JSON");
    assert_eq!(list["trusted"][0]["name"], "gamma");
}
