//! Metrics of real daemons: every one is moved by what it is about, and Prometheus' own tool reads
//! them.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use piped_client::{
    Access, BufferState, Class, Client, ClientBuilder, Handle, Lent, OpenError, OpenOptions,
    Payload, Pending, Queue, Request, RequestError, SessionError, Status, Waited,
};
use piped_ring::handshake::{Hello, MESSAGE_BYTES_MAX, Request as Message, fds};
use piped_ring::{Descriptor, Opcode};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use system_tests::attack::Attacker;
use system_tests::http::{over_tcp, over_unix};
use system_tests::keys::Key;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, PATIENCE, Programs, command, eventually, free_address, pattern, words,
};
use system_tests::proxy::Proxy;

/// What moves each metric. One that is not here fails the test, and so does one that does not move.
const MOVED_BY: &[(&str, Step)] = &[
    ("piped_build_info", Step::Nothing),
    ("process_start_time_seconds", Step::Restart),
    ("piped_sessions", Step::Local),
    ("piped_arena_bytes", Step::Local),
    ("piped_lent_bytes", Step::Local),
    ("piped_arena_limit_bytes", Step::Limited),
    ("piped_lent_limit_bytes", Step::Limited),
    ("piped_handles", Step::Local),
    ("piped_served_handles", Step::Remote),
    ("piped_transfers_running", Step::Still),
    ("piped_dials", Step::Dialled),
    ("piped_serves_running", Step::GivenUp),
    ("piped_requests_total", Step::Local),
    ("piped_requests_ended_at_once_total", Step::Local),
    ("piped_transfers_total", Step::Local),
    ("piped_transfer_bytes_total", Step::Local),
    ("piped_transfer_duration_seconds", Step::Local),
    ("piped_serves_total", Step::Remote),
    ("piped_serve_bytes_total", Step::Remote),
    ("piped_serve_duration_seconds", Step::Remote),
    ("piped_plans_total", Step::Local),
    ("piped_plan_fragment_bytes", Step::Local),
    ("piped_prediction_ratio", Step::Local),
    ("piped_predictions_total", Step::Local),
    ("piped_stage_latency_seconds", Step::Local),
    ("piped_stage_overhead_seconds", Step::Local),
    ("piped_stage_per_byte_seconds", Step::Local),
    ("piped_stage_window", Step::Local),
    ("piped_stage_confidence_ratio", Step::Local),
    ("piped_stage_samples_total", Step::Local),
    ("piped_staging_used_bytes", Step::Still),
    ("piped_staging_lanes_bytes", Step::Still),
    ("piped_staging_limit_bytes", Step::Restart),
    ("piped_staging_bytes", Step::Restart),
    ("piped_early_arrival_used_bytes", Step::Messages),
    ("piped_early_arrival_limit_bytes", Step::Restart),
    ("piped_early_arrival_required_bytes", Step::Messages),
    ("piped_messages_total", Step::Messages),
    ("piped_in_flight_bytes", Step::Still),
    ("piped_in_flight_limit_bytes", Step::Limited),
    ("piped_requests_running", Step::Still),
    ("piped_requests_running_limit", Step::Limited),
    ("piped_limit_waits_total", Step::Limited),
    ("piped_shard_files", Step::Local),
    ("piped_shard_files_limit", Step::Nothing),
    ("piped_registered_bytes", Step::Local),
    ("piped_held_buffers", Step::Still),
    ("piped_buffer_holds_total", Step::Still),
    ("piped_evictions_total", Step::Hostile),
    ("piped_handshakes_refused_total", Step::Hostile),
    ("piped_connections_sent_away_total", Step::Hostile),
    ("piped_peer_handshakes_total", Step::Hostile),
    ("piped_client_stalls_total", Step::Hostile),
    ("piped_rate_waits_total", Step::Limited),
    ("piped_turn_waits_total", Step::Local),
    ("piped_peers_full_total", Step::Crowded),
    ("piped_bounces_total", Step::Local),
    ("piped_retries_total", Step::Corrupt),
    ("piped_lane_up", Step::Killed),
    ("piped_lane_epoch", Step::Restart),
    ("piped_lanes_lost_total", Step::Killed),
    ("piped_frames_total", Step::Remote),
    ("piped_lane_sends_total", Step::Remote),
    ("piped_corrupt_frames_total", Step::Corrupt),
    ("piped_discarded_bytes_total", Step::GivenUp),
    ("piped_shard_turns_total", Step::Local),
    ("piped_shard_sleeps_total", Step::Local),
    ("piped_shard_syscalls_total", Step::Local),
    ("piped_file_operations_total", Step::Local),
];

/// What is done, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It says what does not change while the daemon runs, nor after.
    Nothing,
    /// A client reads and writes a file of its own, also where it is not aligned, and lends memory.
    Local,
    /// It reads and writes a file of the peer's, and gets and puts memory.
    Remote,
    /// A client of the peer's gets messages before it asks for them.
    Messages,
    /// The wire stands still while a write and a copy are under way.
    Still,
    /// It stands still while a peer is to send much, which is given up, and goes on.
    GivenUp,
    /// An operator makes a stage slower.
    Dialled,
    /// A byte is changed on the way.
    Corrupt,
    /// Bytes at the clients' door that no library sends, and a client that does not reap.
    Hostile,
    /// Limits are lowered, and a client asks for more than they allow at once.
    Limited,
    /// Something is opened at a peer more than a node dials: in a world of its own.
    Crowded,
    /// The peer is killed.
    Killed,
    /// It is started again, with more staging.
    Restart,
}

/// Series and their values.
type Samples = BTreeMap<String, f64>;

const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: piped\r\nConnection: close\r\n\r\n";

fn scrape(daemon: &Daemon) -> String {
    let (head, body) = over_unix(&daemon.admin_socket(), SCRAPE);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    body
}

fn samples(text: &str) -> Samples {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            (series.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

fn families(text: &str) -> BTreeSet<String> {
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    names.filter_map(|rest| Some(rest.split_once(' ')?.0.to_owned())).collect()
}

/// Whether a series is one of the family's, the parts of a histogram among them.
fn is_of(series: &str, family: &str) -> bool {
    let name = series.split('{').next().unwrap_or_default();
    let parts = ["", "_bucket", "_sum", "_count"];
    parts.iter().any(|part| name.strip_suffix(part) == Some(family))
}

fn has_moved(family: &str, before: &Samples, after: &Samples) -> bool {
    let of = |samples: &Samples| -> Samples {
        let of = samples.iter().filter(|(series, _)| is_of(series, family));
        of.map(|(series, value)| (series.clone(), *value)).collect()
    };
    of(before) != of(after)
}

/// Two nodes with a wire between them, and the metrics they have shown.
struct World {
    programs: Programs,
    alpha: Daemon,
    beta: Option<Daemon>,
    /// Where beta listens.
    address: SocketAddr,
    beta_settings: String,
    wire: Proxy,
    shown: BTreeSet<String>,
    directory: tempfile::TempDir,
}

impl World {
    fn start(programs: Programs) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("root");
        std::fs::create_dir(&root).expect("made");
        std::fs::write(root.join("blocks"), pattern(BLOCKS_BYTES)).expect("written");
        let address = free_address();
        let key = directory.path().join("beta.key");
        let made = programs.pipectl().args(["keys", "generate", "--file"]).arg(&key).output();
        assert!(made.expect("pipectl starts").status.success());
        let beta_settings = format!(
            "[security]\nkey_file = \"{}\"\n[listen]\naddress = \"{address}\"\nallow_plain = [\"127.0.0.0/8\"]\n[exports.data]\npath = \"{}\"\nwrite = true\n\
             peers = [\"alpha\"]\n",
            key.display(),
            root.display()
        );
        let beta = start_beta(&programs, directory.path(), &beta_settings, "32MiB");
        let wire = Proxy::start(address);
        let peer =
            format!("[peers.beta]\naddress = \"{}\"\nchecksum = \"payload\"\n", wire.address());
        let alpha_settings = format!("{peer}[planner]\nallow_dials = true\n");
        let alpha = Daemon::start(&programs, directory.path(), "alpha", &alpha_settings);
        alpha.await_lanes();
        let (beta, shown) = (Some(beta), BTreeSet::new());
        Self { programs, alpha, beta, address, beta_settings, wire, shown, directory }
    }

    /// What both show; a daemon that is not there shows nothing.
    fn look(&mut self) -> [Samples; 2] {
        [Some(&self.alpha), self.beta.as_ref()].map(|daemon| {
            let text = daemon.map(scrape).unwrap_or_default();
            self.shown.append(&mut families(&text));
            samples(&text)
        })
    }

    /// Does something, and whatever it is to move must have moved. Some of it moves back: `act` may
    /// look in between.
    fn step(&mut self, step: Step, act: impl FnOnce(&mut Self, &mut dyn FnMut(&mut Self))) {
        let names = MOVED_BY.iter().filter(|(_, by)| *by == step).map(|(name, _)| *name);
        let mut still: BTreeSet<&str> = names.collect();
        assert!(!still.is_empty(), "nothing is moved by {step:?}");
        let before = self.look();
        let mut look = |world: &mut Self| {
            let after = world.look();
            let moved = |node: usize, name: &str| has_moved(name, &before[node], &after[node]);
            still.retain(|name| !moved(0, name) && !moved(1, name));
        };
        act(self, &mut look);
        look(self);
        assert!(still.is_empty(), "{step:?} does not move {still:?}");
    }

    fn of_alpha(&self, series: &str) -> f64 {
        samples(&scrape(&self.alpha)).get(series).copied().unwrap_or(0.0)
    }
}

/// A client of alpha's with what it has open.
struct Session {
    client: Client,
    queue: Queue,
    own: Handle,
    /// At beta.
    file: Option<Handle>,
    /// Memory of its own, until the session ends.
    _lent: Lent,
}

fn end<B: Payload>(
    pending: Pending<B>,
    queue: &mut Queue,
) -> Result<piped_client::Done<B>, RequestError> {
    match pending.wait_for(queue, PATIENCE) {
        Waited::Ended(result) => result,
        Waited::Underway(_) => panic!("a request did not end in {PATIENCE:?}"),
    }
}

fn local(world: &World) -> Session {
    let builder = ClientBuilder::new().arena_bytes(64 << 20);
    let client = builder.connect(world.alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let path = world.directory.path().join("own");
    std::fs::write(&path, pattern(BLOCKS_BYTES)).expect("written");
    let own = client.open_file(&path, OpenOptions::read_write()).expect("opened");
    queue.nop().expect("served");
    for (offset, length) in [(0, 4096), (4096, 65_536), (1, 5000), (0, 1 << 20), (8192, 200_000)] {
        for _ in 0..20 {
            let buffer = client.allocate(length).expect("memory");
            let (buffer, _) = queue.read(&own, offset, buffer).expect("read");
            if length.is_multiple_of(4096) {
                queue.write(&own, offset, buffer).expect("written");
            }
        }
    }
    share(&client, &mut queue, &own);
    queue.sync(&own).expect("synced");
    let lent = client.lend_memfd(memfd(1 << 20)).expect("lent");
    Session { client, queue, own, file: None, _lent: lent }
}

/// Memory that nobody can cut.
fn memfd(length: u64) -> OwnedFd {
    let fd = memfd_create(c"own", MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&fd, length).expect("a length");
    fcntl_add_seals(&fd, SealFlags::SHRINK).expect("a seal");
    fd
}

/// More of bulk than the device does in a while, and something urgent.
fn share(client: &Client, queue: &mut Queue, own: &Handle) {
    let mut ask = |class, length: usize| {
        let buffer = client.allocate(length).expect("memory");
        queue.submit_detached(Request::read(own, 0, buffer).class(class)).expect("room");
    };
    ask(Class::Latency, 4096);
    (0..32).for_each(|_| ask(Class::Bulk, 1 << 20));
    queue.flush();
    while queue.underway() > 0 {
        queue.wait(None).expect("a completion").result.expect("read");
    }
}

fn remote(world: &World, session: &mut Session) {
    let Session { client, queue, .. } = session;
    let options = OpenOptions::read_write();
    let file = client.open_export(Some("beta"), "data", "blocks", options).expect("opened");
    let beta = world.beta.as_ref().expect("it runs");
    let owner = Client::connect(beta.client_socket()).expect("it serves");
    let memory = owner.allocate(65_536).expect("memory");
    let region = owner.export_region("halo", memory, Access::READ_WRITE).expect("offered");
    let halo = client.open_region(Some("beta"), "halo", Access::READ_WRITE).expect("opened");
    for target in [&file, &halo] {
        for _ in 0..20 {
            let buffer = client.allocate(65_536).expect("memory");
            let (buffer, _) = queue.read(target, 0, buffer).expect("read");
            queue.write(target, 0, buffer).expect("written");
        }
        queue.sync(target).expect("synced");
    }
    drop(halo);
    region.close().expect("given back");
    session.file = Some(file);
}

fn messages(world: &mut World, session: &mut Session, look: &mut dyn FnMut(&mut World)) {
    let Session { client, queue, .. } = session;
    let beta = world.beta.as_ref().expect("it runs");
    let receiver = Client::connect(beta.client_socket()).expect("it serves");
    let inbox = receiver.offer_channel("mail").expect("offered");
    let outbox = client.open_channel(Some("beta"), "mail").expect("opened");
    queue.send(&outbox, 7, client.allocate(100).expect("memory")).expect("taken in");
    look(world);
    let mut reader = receiver.queue().expect("a queue");
    reader.receive(&inbox, 7, receiver.allocate(100).expect("memory")).expect("received");
}

fn still(world: &mut World, session: &mut Session, look: &mut dyn FnMut(&mut World)) {
    let Session { client, queue, own, file, .. } = session;
    let file = file.as_ref().expect("opened");
    world.wire.pause(true);
    let copy = Request::copy(file, 0, own, 0, BLOCKS_BYTES as u64).deadline(2 * PATIENCE);
    let copy = queue.submit(copy).expect("room");
    // More than the sockets hold: the kernel has begun to send the rest, and reads its buffer.
    let mut buffer = client.allocate(BLOCKS_BYTES).expect("memory");
    buffer.as_mut_slice().copy_from_slice(&pattern(BLOCKS_BYTES));
    let write = Request::write(file, 0, buffer).deadline(Duration::from_millis(100));
    let write = queue.submit(write).expect("room");
    let error = end(write, queue).expect_err("nobody takes it");
    assert_eq!(error.status(), Some(Status::DeadlineExceeded));
    assert!(matches!(error.buffer, BufferState::Held), "nothing holds it");
    assert_eq!(world.of_alpha("piped_held_buffers"), 1.0);
    look(world);
    world.wire.pause(false);
    end(copy, queue).expect("copied");
    eventually("the buffer is released", || {
        let _ = queue.poll_released();
        (world.of_alpha("piped_held_buffers") == 0.0).then_some(())
    });
}

fn given_up(world: &mut World, session: &mut Session, look: &mut dyn FnMut(&mut World)) {
    let Session { client, queue, file, .. } = session;
    let file = file.as_ref().expect("opened");
    // The wire may have stood still when almost all had passed: then nothing comes late.
    eventually("what comes late is discarded", || {
        let ask = |_| {
            let buffer = client.allocate(BLOCKS_BYTES).expect("memory");
            queue.submit(Request::read(file, 0, buffer).deadline(2 * PATIENCE)).expect("room")
        };
        // More than the sockets between the nodes hold.
        let pending: Vec<_> = (0..12).map(ask).collect();
        queue.flush();
        eventually("beta sends, or has sent all", || {
            world.wire.pause(true);
            let beta = world.beta.as_ref().expect("it runs");
            let busy = beta.number("serves") > 0;
            world.wire.pause(busy);
            (busy || world.alpha.number("transfers") == 0).then_some(())
        });
        look(world);
        for pending in pending {
            queue.cancel(&pending);
            // Some got through.
            let _ = end(pending, queue);
        }
        world.wire.pause(false);
        eventually("nothing is under way", || {
            let beta = world.beta.as_ref().expect("it runs");
            let idle = beta.number("serves") == 0 && world.alpha.number("transfers") == 0;
            idle.then_some(())
        });
        (world.of_alpha("piped_discarded_bytes_total") > 0.0).then_some(())
    });
}

fn corrupt(world: &World, session: &mut Session) {
    let Session { client, queue, file, .. } = session;
    let file = file.as_ref().expect("opened");
    // It may hit a header, which ends the lane.
    eventually("a payload is hit", || {
        world.wire.bend();
        let buffer = client.allocate(1 << 20).expect("memory");
        let (buffer, bytes) = queue.read(file, 0, buffer).expect("sent again");
        assert!(bytes == 1 << 20 && buffer.as_slice() == &pattern(BLOCKS_BYTES)[..bytes]);
        (world.of_alpha("piped_corrupt_frames_total") > 0.0).then_some(())
    });
    assert!(world.of_alpha("piped_retries_total{reason=\"corrupt\"}") > 0.0);
}

/// Says something at the clients' door, and waits until the daemon hangs up.
fn say(daemon: &Daemon, messages: &[&[u8]]) {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("a socket");
    let address = SocketAddrUnix::new(daemon.client_socket()).expect("a short path");
    rustix::net::connect(&socket, &address).expect("it listens");
    for message in messages {
        let _ = fds::send(&socket, message, &[]);
    }
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    while fds::receive(&socket, &mut buffer).is_ok() {}
}

fn hostile(world: &World) {
    let hello =
        Hello { features: 0, arena_bytes: 4096, entries: 64, queues: 1, weight: 0, class: 0 };
    let mut message = [0; MESSAGE_BYTES_MAX];
    let length = Message::Hello(hello).encode(1, &mut message).expect("it fits");
    say(&world.alpha, &[&message[..length], b"garbage"]);
    say(&world.alpha, &[b"garbage"]);
    let much = Message::Hello(Hello { entries: 3, ..hello });
    let length = much.encode(1, &mut message).expect("it fits");
    say(&world.alpha, &[&message[..length]]);
    for series in [
        "piped_evictions_total{reason=\"message\"}",
        "piped_handshakes_refused_total{reason=\"malformed\"}",
        "piped_handshakes_refused_total{reason=\"limits\"}",
    ] {
        assert_eq!(world.of_alpha(series), 1.0, "{series}");
    }
    // More than there are places for.
    let operator = || UnixStream::connect(world.alpha.admin_socket()).expect("it listens");
    let silent: Vec<_> = (0..40).map(|_| operator()).collect();
    let displaced = "piped_connections_sent_away_total{door=\"admin\",reason=\"displaced\"}";
    eventually("the oldest make room", || (world.of_alpha(displaced) > 0.0).then_some(()));
    drop(silent);
    let status = world.alpha.status();
    assert_eq!(status["evicted"], serde_json::json!({"message": 1}));
    assert_eq!(status["refused"], serde_json::json!({"malformed": 1, "limits": 1}));
    let mut stranger = TcpStream::connect(world.address).expect("it listens");
    stranger.write_all(&[b"pipedK\x01\x01".as_slice(), &[7; 112]].concat()).expect("sent");
    let _ = stranger.read(&mut [0]);
    let beta = world.beta.as_ref().expect("it runs");
    assert_eq!(beta.status()["greeted"], serde_json::json!({"ticket": 1}));
    let mut greedy = Attacker::connect(&world.alpha);
    eventually("requests of who does not reap are left lying", || {
        greedy.submit((0..64).map(|number| Descriptor::new(Opcode::Nop, number)));
        (world.of_alpha("piped_client_stalls_total{shard=\"0\"}") > 0.0).then_some(())
    });
}

fn limited(world: &World, session: &mut Session) {
    let set = |settings: &[&str]| {
        let settings = ["limits", "set"].iter().chain(settings);
        let set = world.alpha.pipectl(settings).output().expect("pipectl starts");
        assert!(set.status.success(), "{}", words(&set));
    };
    set(&[
        "global.arena=1GiB",
        "global.lent=1GiB",
        "global.in_flight=4MiB",
        "global.requests=1000",
        "client.rate=64MiB",
    ]);
    let Session { client, queue, own, .. } = session;
    let ask = |_| {
        let buffer = client.allocate(BLOCKS_BYTES).expect("memory");
        queue.submit(Request::read(own, 0, buffer)).expect("room")
    };
    let pending: Vec<_> = (0..4).map(ask).collect();
    queue.flush();
    for pending in pending {
        end(pending, queue).expect("read in its turn");
    }
    set(&["client.rate=0B"]);
}

fn killed(world: &mut World) {
    let mut beta = world.beta.take().expect("it runs");
    beta.process.signal(Signal::KILL);
    beta.process.exit();
    let up = "piped_lane_up{shard=\"0\",peer=\"beta\",role=\"asked\",class=\"bulk\"}";
    eventually("the lane is lost", || (world.of_alpha(up) == 0.0).then_some(()));
}

fn restart(world: &mut World) {
    let (programs, directory) = (&world.programs, world.directory.path());
    world.beta = Some(start_beta(programs, directory, &world.beta_settings, "48MiB"));
    world.alpha.await_lanes();
}

/// What it lends a peer is a share of its staging.
fn start_beta(programs: &Programs, directory: &Path, settings: &str, staging: &str) -> Daemon {
    let mut command = programs.piped();
    command.args(["--set", &format!("limits.global.staging=\"{staging}\"")]);
    Daemon::start_by(command, programs, directory, "beta", settings)
}

#[test]
fn every_metric_is_moved_by_what_it_is_about() {
    let Some(programs) = Programs::find() else { return };
    let mut world = World::start(programs);
    // Its start is a line of its own: beta's first answers are kept for it.
    let first = world.look();
    let mut session = None;
    world.step(Step::Local, |world, _| session = Some(local(world)));
    let mut session = session.expect("made");
    world.step(Step::Remote, |world, _| remote(world, &mut session));
    world.step(Step::Messages, |world, look| messages(world, &mut session, look));
    world.step(Step::Still, |world, look| still(world, &mut session, look));
    world.step(Step::Dialled, |world, look| {
        let dial = |world: &World, words: &[&str]| {
            let words = ["dial"].iter().chain(words);
            assert!(world.alpha.pipectl(words).output().expect("it starts").status.success());
        };
        dial(world, &["set", "copy", "--g", "1us"]);
        look(world);
        dial(world, &["clear"]);
    });
    world.step(Step::GivenUp, |world, look| given_up(world, &mut session, look));
    world.step(Step::Corrupt, |world, _| corrupt(world, &mut session));
    world.step(Step::Hostile, |world, _| hostile(world));
    world.step(Step::Limited, |world, _| limited(world, &mut session));
    world.step(Step::Killed, |world, _| killed(world));
    restart(&mut world);
    let last = world.look();
    for (name, _) in MOVED_BY.iter().filter(|(_, by)| *by == Step::Restart) {
        assert!(has_moved(name, &first[1], &last[1]), "a restart does not move {name}");
    }
    let build = format!("piped_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(last[0].get(&build), Some(&1.0));
    let table: BTreeSet<String> = MOVED_BY.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(table.len(), MOVED_BY.len(), "each once");
    assert_eq!(world.shown, table, "what is shown, and what is said here to move it");
    check_by_promtool(&scrape(&world.alpha));
}

#[test]
fn an_open_at_a_peer_more_than_a_node_dials_is_refused_counted_and_told() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let found = directory.path().join("found");
    std::fs::create_dir(&found).expect("made");
    let nowhere = format!("address = \"{}\"\n", free_address());
    std::fs::write(found.join("far.toml"), &nowhere).expect("written");
    let [own, far] = ["alpha", "far"].map(|name| Key::make(&programs, directory.path(), name));
    let settings = own.security("integrity")
        + &format!("[listen]\nallow_plain = [\"127.0.0.0/8\"]\n[discovery]\nfiles = {found:?}\n")
        + &far.peer("far", None)
        + &(0..256).map(|it| format!("[peers.p{it}]\n{nowhere}")).collect::<String>();
    let alpha = Daemon::start(&programs, directory.path(), "alpha", &settings);
    let client = Client::connect(alpha.client_socket()).expect("it serves");
    let before = samples(&scrape(&alpha));
    let text = eventually("the peer is heard of", || {
        let opened = client.open_export(Some("far"), "data", "blocks", OpenOptions::read());
        match opened.expect_err("nobody is there") {
            OpenError::Session(SessionError::Refused { status: Status::NotFound, .. }) => None,
            OpenError::Session(SessionError::Refused { status: Status::WouldBlock, message }) => {
                Some(message)
            }
            error => panic!("{error}"),
        }
    });
    assert!(text.contains("256 peers are in use here"), "{text}");
    let log = alpha.log();
    assert!(log.contains("a peer is not dialled") && log.contains("far"), "{log}");
    let after = samples(&scrape(&alpha));
    for (name, _) in MOVED_BY.iter().filter(|(_, by)| *by == Step::Crowded) {
        assert!(has_moved(name, &before, &after), "{name}");
    }
}

fn check_by_promtool(text: &str) {
    let mut promtool = command(Path::new("promtool"));
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = match promtool.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("skipped: promtool cannot be started ({error}); install prometheus");
            return;
        }
    };
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("taken");
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success() && words(&output).is_empty(), "{}\n{text}", words(&output));
}

#[test]
fn a_scraper_gets_the_metrics_by_tcp_and_nothing_else() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let address = free_address();
    let settings = format!("[metrics]\naddress = \"{address}\"\n");
    let daemon = Daemon::start(&programs, directory.path(), "alpha", &settings);
    let (head, body) = over_tcp(address, SCRAPE);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(families(&body), families(&scrape(&daemon)));
    for (request, status) in [
        (SCRAPE.replace("/metrics", "/v1/status"), 404),
        (SCRAPE.replace("/metrics", "/metrics/"), 404),
        (SCRAPE.replace("GET", "PUT"), 405),
        ("\u{16}\u{3}\u{1}\r\n\r\n".to_owned(), 400),
    ] {
        let (head, _) = over_tcp(address, &request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {head}");
    }
    // Whoever says nothing loses its place: the others wait, and are served.
    let idle: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(address).expect("it listens")).collect();
    let (head, _) = over_tcp(address, SCRAPE);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(daemon.number("sessions"), 0, "operators are served meanwhile");
    drop(idle);
    // A second daemon does not start on the port, and says which key is to be changed.
    let mut second = programs.piped();
    for key in ["client.socket", "admin.socket"] {
        let path = directory.path().join(key);
        second.args(["--set", &format!("{key}={:?}", path.display().to_string())]);
    }
    second.args(["--set", &format!("metrics.address=\"{address}\"")]);
    let output = second.output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(words(&output).contains("metrics.address"), "{}", words(&output));
}
