//! Another configuration while the daemon runs: all of it, or nothing and why.

mod support;

use std::os::unix::fs::PermissionsExt as _;

use piped_core::access::{Access, Creation};
use piped_core::status::Status;
use piped_ring::handshake::{Reply, Request};
use piped_ring::{Descriptor, Opcode};
use serde_json::{Value, json};
use support::{HELLO, World, eventually};

const NODE: &str = "[node]\nname = \"alpha\"\n";

fn reload(world: &World) -> (u16, Value) {
    world.http("POST", "/v1/config/reload", "")
}

/// Reloads a text that is good.
fn take(world: &World, text: &str) -> Value {
    world.rewrite(&format!("{NODE}{text}"));
    let (status, body) = reload(world);
    assert_eq!(status, 200, "{text}: {body}");
    body
}

#[test]
fn a_pipe_among_the_files_ends_one_reload_and_no_other() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let world = World::from_file(NODE);
    let pipe = world.path("conf.d").join("10-pipe.toml");
    std::fs::create_dir(world.path("conf.d")).expect("made");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
    let (status, body) = reload(&world);
    assert_eq!(status, 422, "{body}");
    let error = body["error"].as_str().expect("text");
    assert!(error.contains("10-pipe.toml") && error.contains("no regular file"), "{error}");
    std::fs::remove_file(&pipe).expect("there");
    take(&world, "[planner]\nmode = \"whole\"\n");
}

fn config(world: &World) -> Value {
    let (status, body) = world.http("GET", "/v1/config", "");
    assert_eq!(status, 200);
    body
}

fn key(world: &World, wanted: &str) -> (Value, String) {
    let body = config(world);
    let keys = body["keys"].as_array().expect("a list").clone();
    let found = keys.into_iter().find(|key| key["key"] == wanted);
    let found = found.unwrap_or_else(|| panic!("no {wanted}"));
    (found["value"].clone(), found["origin"].as_str().expect("text").to_owned())
}

fn shard(world: &World) -> Value {
    world.http("GET", "/v1/status", "").1["shards"][0].clone()
}

fn keys_of(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().filter_map(|change| change["key"].as_str()).collect()
}

fn export(export: &str, peer: &str) -> Request {
    let (peer, export, path) = (peer.to_owned(), export.to_owned(), "data".into());
    Request::OpenExport { peer, export, path, access: Access::READ, create: Creation::No }
}

#[test]
fn a_refused_reload_changes_nothing_and_says_all_of_why() {
    let world = World::from_file(NODE);
    let before = config(&world)["keys"].clone();
    // Each is wrong in one thing and would change another.
    let good = format!("planner.mode = \"whole\"\n{NODE}");
    for (wrong, reasons) in [
        ("[client]\nsokcet = \"/x\"", &["piped.toml:5: ", "`client.socket`?"][..]),
        ("[client]\nqueues_max = \"many\"\n[log]\nlevle = \"info\"", &["toml:5: ", "toml:7: "]),
        ("[client]\nqueues_max = 0", &["toml:5: `client.queues_max`", "1 to 64"]),
        ("[exports.data]\npath = \"/no/such\"", &["toml:5: `exports.data.path`", "/no/such"]),
        ("[metrics]\naddress = \"192.0.2.1:1\"", &["toml:5: `metrics.address`", "no interface"]),
        ("[log]\nlevel = \"warning\"", &["toml:5: `log.level`", "did you mean `warn`?"]),
        (
            "[access]\nusers = [\"nobody-of-that-name\"]",
            &["toml:5: `access.users`", "nobody-of-that-name"],
        ),
        ("[exports.x]\npath = \"/\"\nusers = [\"no-such-user\"]", &["exports.x.users"]),
        ("[client", &["toml:4: "]),
    ] {
        world.rewrite(&format!("{good}{wrong}"));
        let (status, body) = reload(&world);
        let error = body["error"].as_str().unwrap_or_default().to_owned();
        assert_eq!(status, 422, "{wrong}: {body}");
        for reason in reasons {
            assert!(error.contains(reason), "{wrong}: {error}");
        }
        let state = config(&world);
        assert_eq!(state["keys"], before, "{wrong}");
        assert_eq!(state["refused_reload"]["error"], error.as_str(), "{wrong}");
        assert_eq!(shard(&world)["planner"], "auto", "{wrong}");
        assert_eq!(
            world.http("GET", "/v1/status", "").1["config"]["refused_reload"]["error"],
            error
        );
    }
    std::fs::remove_file(world.path("piped.toml")).expect("there");
    assert_eq!(reload(&world).0, 422, "a file that is gone");
    let body = take(&world, "");
    assert_eq!((&body["changed"], &body["refused_reload"]), (&json!([]), &Value::Null));
    assert_eq!(config(&world)["refused_reload"], Value::Null, "the last one was good");
}

#[test]
fn what_runs_and_what_comes_must_fit_also_where_a_restart_is_needed() {
    let trusted = "listen.allow_plain = [\"10.9.0.0/24\"]\nlisten.address = \"0.0.0.0:0\"\n";
    let world = World::from_file(&format!("{trusted}{NODE}"));
    // Good alone; but the listener of before stays, for which nobody is trusted any more.
    world.rewrite(NODE);
    let (status, body) = reload(&world);
    assert_eq!(status, 422, "{body}");
    let error = body["error"].as_str().expect("text");
    assert!(error.contains("listen.address") && error.contains("restart"), "{error}");
}

#[test]
fn keys_of_a_restart_are_listed_until_they_are_as_before() {
    let world = World::from_file(NODE);
    let text = "[io]\nentries = 64\n[planner]\nmode = \"whole\"\n";
    let body = take(&world, text);
    assert_eq!(keys_of(&body["changed"]), ["planner.mode"]);
    let waiting = json!([{"key": "io.entries", "from": 1024, "to": 64}]);
    assert_eq!(body["restart_needed"], waiting);
    assert_eq!(key(&world, "io.entries").0, 1024, "what runs");
    assert_eq!(world.http("GET", "/v1/status", "").1["config"]["restart_needed"], waiting);
    // Reloaded once more it still waits.
    assert_eq!(take(&world, text)["restart_needed"], waiting);
    assert_eq!(take(&world, "")["restart_needed"], json!([]));
}

#[test]
fn plans_and_limits_of_clients_follow() {
    let world = World::from_file(NODE);
    let text = "[planner]\nmode = \"fixed:64KiB\"\ncalibration = \"frozen\"\n[client]\n\
                arena_bytes_max = \"64KiB\"\ndeadline_default = \"7s\"\n";
    let body = take(&world, text);
    let expected = [
        "client.arena_bytes_max",
        "client.deadline_default",
        "planner.calibration",
        "planner.mode",
    ];
    assert_eq!(keys_of(&body["changed"]), expected);
    assert_eq!(shard(&world)["planner"], json!({"fixed": 65536}));
    assert_eq!(shard(&world)["calibration"], "frozen");
    let (reply, _) = world.connect().ask(&Request::Hello(HELLO), &[]);
    assert!(
        matches!(&reply, Reply::Refused { message, .. } if message.contains("65536")),
        "{reply:?}"
    );
    let client = world.client(piped_ring::handshake::Hello { arena_bytes: 4096, ..HELLO });
    assert_eq!(client.welcome.deadline_default_ns, 7_000_000_000);
    let origin = key(&world, "planner.mode").1;
    assert!(origin.ends_with("piped.toml:4"), "{origin}");
}

#[test]
fn what_pipectl_changed_stays_unless_the_files_change_it() {
    let world = World::from_file(NODE);
    assert_eq!(world.http("PUT", "/v1/planner", r#"{"mode":"whole"}"#).0, 200);
    assert_eq!(key(&world, "planner.mode"), (json!("whole"), "runtime".to_owned()));
    take(&world, "[log]\nlevel = \"warn\"\n");
    assert_eq!(shard(&world)["planner"], "whole", "the files say nothing new about it");
    assert_eq!(key(&world, "planner.mode").1, "runtime");
    take(&world, "[planner]\nmode = \"fixed:32KiB\"\n");
    assert_eq!(shard(&world)["planner"], json!({"fixed": 32768}));
    let (value, origin) = key(&world, "planner.mode");
    assert_eq!(value, json!({"fixed": 32768}));
    assert!(origin.contains("piped.toml"), "{origin}");
}

#[test]
fn limits_follow_the_files_and_keep_what_was_set_by_hand() {
    let world = World::from_file(NODE);
    let limit = |name: &str| {
        let (_, body) = world.http("GET", "/v1/limits", "");
        let rows = body["limits"].as_array().expect("a list").clone();
        let row = rows.into_iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no {name} in {body}"))["limit"].clone()
    };
    let set = r#"{"set":{"client.requests":9}}"#;
    let (status, body) = world.http("PUT", "/v1/limits", set);
    assert_eq!(status, 200, "{body}");
    assert_eq!(key(&world, "limits.client.requests"), (json!(9), "runtime".to_owned()));
    let body = take(&world, "[limits.user]\nsessions = 1\n");
    assert_eq!(keys_of(&body["changed"]), ["limits.user.sessions"]);
    assert_eq!((limit("user.sessions"), limit("client.requests")), (json!(1), json!(9)));
    let _one = world.client(HELLO);
    let (reply, _) = world.connect().ask(&Request::Hello(HELLO), &[]);
    assert!(matches!(reply, Reply::Refused { .. }), "{reply:?}");
    take(&world, "[limits.client]\nrequests = 11\n");
    assert_eq!(limit("client.requests"), 11);
    // A limit that cannot be is no reload at all.
    world.rewrite(&format!("{NODE}[limits.global]\nrequests = 0\n[planner]\nmode = \"whole\"\n"));
    assert_eq!(reload(&world).0, 422);
    assert_eq!(shard(&world)["planner"], "auto");
}

#[test]
fn who_may_connect_follows() {
    let world = World::from_file(NODE);
    let mut before = world.client(HELLO);
    let mode = |world: &World| {
        [&world.config.client.socket, &world.config.admin.socket]
            .map(|path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777)
    };
    assert_eq!(mode(&world), [0o600; 2]);
    let hello = || world.as_stranger(|| world.connect().ask(&Request::Hello(HELLO), &[]).0);
    take(&world, "[access]\nusers = [12345]\n");
    assert_eq!(mode(&world), [0o666; 2], "others come to the door, and are told");
    if let Some(reply) = hello() {
        assert!(matches!(reply, Reply::Refused { status: Status::Denied, .. }), "{reply:?}");
    }
    before.run(Descriptor::new(Opcode::Nop, 1));
    world.client(HELLO).run(Descriptor::new(Opcode::Nop, 1));
    take(&world, "[access]\nusers = [4000000]\n");
    if let Some(reply) = hello() {
        assert!(matches!(reply, Reply::Welcome(_)), "{reply:?}");
    }
    take(&world, "");
    assert_eq!(mode(&world), [0o600; 2]);
}

#[test]
fn exports_come_and_go_and_so_does_what_is_open() {
    let world = World::from_file(NODE);
    let root = world.path("root");
    std::fs::create_dir(&root).expect("made");
    std::fs::write(root.join("data"), [7; 4096]).expect("written");
    let mut client = world.client(HELLO);
    assert_eq!(client.refused(&export("data", "")).0, Status::NoExport);
    take(&world, &format!("[exports.data]\npath = \"{}\"\n", root.display()));
    let handle = client.open(&export("data", ""), &[]);
    let read = Descriptor { handle_a: handle, length: 4096, ..Descriptor::new(Opcode::Read, 1) };
    assert_eq!(client.run(read).bytes, 4096);
    // What concerns another export leaves it alone.
    let other = format!("[exports.more]\npath = \"{}\"\n", root.display());
    let body = take(&world, &format!("[exports.data]\npath = \"{}\"\n{other}", root.display()));
    assert_eq!(body["ended_handles"], 0);
    assert_eq!(client.run(read).bytes, 4096);
    let body = take(&world, &other);
    assert_eq!((&body["ended_sessions"], &body["ended_handles"]), (&json!(0), &json!(1)));
    assert_eq!(client.refused(&export("data", "")).0, Status::NoExport);
    assert_eq!(client.run(read).status, Status::Gone as u16);
    // The name alone is not what was opened.
    let handle = client.open(&export("more", ""), &[]);
    let moved = world.path("moved");
    std::fs::create_dir(&moved).expect("made");
    take(&world, &format!("[exports.more]\npath = \"{}\"\n", moved.display()));
    assert_eq!(client.run(Descriptor { handle_a: handle, ..read }).status, Status::Gone as u16);
}

#[test]
fn peers_come_move_and_go() {
    let beta = |text: &str| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        drop(listener);
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("data"), text).expect("written");
        let path = dir.path().display();
        let text = format!(
            "node.name = \"beta\"\nlisten.address = \"{address}\"\nexports.data.path = \"{path}\"\n"
        );
        (World::from_file(&text), address, dir)
    };
    let (_one, first, _dir) = beta("first");
    let (_two, second, _other) = beta("second");
    let world = World::from_file(NODE);
    let mut client = world.client(HELLO);
    assert_eq!(client.refused(&export("data", "beta")).0, Status::NotFound);
    let mut read = |world: &World, address| {
        take(world, &format!("[peers.beta]\naddress = \"{address}\"\n"));
        let handle = client.open(&export("data", "beta"), &[]);
        let read = Descriptor { handle_a: handle, length: 64, ..Descriptor::new(Opcode::Read, 1) };
        client.run(read).bytes
    };
    assert_eq!(read(&world, first), 5);
    eventually("it is asked where it moved", || (read(&world, second) == 6).then_some(()));
    assert_eq!(client.refused(&export("data", "bata")).1.matches("`beta`").count(), 1);
    let body = take(&world, "");
    assert_eq!(
        keys_of(&body["changed"]),
        [
            "peers.beta.address",
            "peers.beta.checksum",
            "peers.beta.key",
            "peers.beta.next_key",
            "peers.beta.second_address"
        ]
    );
    assert_eq!(client.refused(&export("data", "beta")).0, Status::NotFound);
    assert_eq!(shard(&world)["peers"], json!([]));
    // It comes back on lanes that it still knows the older ones of.
    let mut client = world.client(HELLO);
    take(&world, &format!("[peers.beta]\naddress = \"{second}\"\n"));
    let handle = client.open(&export("data", "beta"), &[]);
    let read = Descriptor { handle_a: handle, length: 64, ..Descriptor::new(Opcode::Read, 1) };
    assert_eq!(client.run(read).bytes, 6);
}

#[test]
fn a_daemon_without_files_says_so() {
    let world = World::start(|_, _| {});
    let (status, body) = reload(&world);
    assert_eq!(status, 422);
    assert!(body["error"].as_str().is_some_and(|text| text.contains("without files")), "{body}");
}
