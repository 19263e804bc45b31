//! The operator door of a real daemon, and its start and end.

mod support;

use piped::{Daemon, DaemonError};
use piped_ring::{Descriptor, Opcode};
use support::{HELLO, World, config_in, eventually};

#[test]
fn status_stages_and_clients_answer_with_their_schema() {
    let world = World::start(|_, _| {});
    let mut client = world.client(HELLO);
    client.run(Descriptor::new(Opcode::Nop, 1));
    let (status, body) = world.http("GET", "/v1/status", "");
    assert_eq!((status, &body["schema_version"]), (200, &1.into()));
    assert_eq!(body["node"], "alpha");
    assert_eq!(body["pid"], std::process::id());
    assert_eq!(body["shards"].as_array().expect("a list").len(), 1);
    assert!(!body["tier"].as_array().expect("a list").is_empty());
    let shard = &body["shards"][0];
    assert_eq!((&shard["sessions"], &shard["reactor"]["taken"]), (&1.into(), &1.into()));
    // The schema is the engine's own type.
    serde_json::from_value::<piped_report::shard::ShardReport>(shard.clone()).expect("a report");
    let (status, body) = world.http("GET", "/v1/stages", "");
    assert_eq!(status, 200);
    assert!(body["stages"].is_array());
    let (status, body) = world.http("GET", "/v1/clients", "");
    assert_eq!(status, 200);
    let entry = &body["clients"][0];
    assert_eq!((&entry["queues"], &entry["arena_bytes"]), (&1.into(), &HELLO.arena_bytes.into()));
    assert_eq!(entry["pid"], std::process::id());
}

#[test]
fn the_planner_and_the_calibration_change_while_running() {
    let world = World::start(|_, _| {});
    for (path, body, key, expected) in [
        ("/v1/planner", r#"{"mode":"whole"}"#, "planner", serde_json::json!("whole")),
        (
            "/v1/planner",
            r#"{"mode":{"fixed":65536}}"#,
            "planner",
            serde_json::json!({"fixed":65536}),
        ),
        ("/v1/calibration", r#"{"mode":"frozen"}"#, "calibration", serde_json::json!("frozen")),
    ] {
        let (status, answer) = world.http("PUT", path, body);
        assert_eq!(status, 200, "{answer}");
        let (_, now) = world.http("GET", "/v1/status", "");
        assert_eq!(now["shards"][0][key], expected);
    }
}

#[test]
fn what_cannot_be_answered_says_why() {
    let world = World::start(|_, _| {});
    for (method, path, body, expected) in [
        ("GET", "/v1/explain/last", "", 404),
        ("GET", "/v1/explain/17", "", 404),
        ("GET", "/v1/explain/x", "", 400),
        ("GET", "/v1/nothing", "", 404),
        ("PUT", "/v1/status", "", 405),
        ("DELETE", "/v1/planner", "", 405),
        ("PUT", "/v1/planner", r#"{"mode":"best"}"#, 400),
        ("PUT", "/v1/planner", r#"{"mode":{"fixed":1}}"#, 400),
        ("PUT", "/v1/planner", "{", 400),
        ("PUT", "/v1/planner", r#"{"schema_version":9,"mode":"auto"}"#, 400),
    ] {
        let (status, answer) = world.http(method, path, body);
        assert_eq!(status, expected, "{method} {path} {body}: {answer}");
        assert_eq!(answer["schema_version"], 1);
        assert!(answer["error"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
    }
    let long = format!("{{\"mode\":\"{}\"}}", "x".repeat(20_000));
    assert_eq!(world.http("PUT", "/v1/planner", &long).0, 400);
}

#[test]
fn two_daemons_do_not_share_a_socket_and_a_stop_removes_it() {
    let world = World::start(|_, _| {});
    let second = Daemon::new(world.config.clone()).run().expect_err("the sockets are taken");
    assert!(matches!(second, DaemonError::Socket(_)), "{second}");
    assert!(second.to_string().contains("client.socket"), "{second}");
    assert_eq!(world.http("GET", "/v1/status", "").0, 200, "the first one lives");
    let paths = [world.config.client.socket.clone(), world.config.admin.socket.clone()];
    let _client = world.client(HELLO);
    world.stop().expect("a clean end, also with a client");
    assert!(paths.iter().all(|path| !path.exists()));
}

#[test]
fn a_configuration_that_cannot_work_is_refused_by_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = |change: &dyn Fn(&mut piped_config::Config)| {
        let mut config = config_in(dir.path());
        change(&mut config);
        Daemon::new(config).run().expect_err("it cannot work").to_string()
    };
    let text = refused(&|config| {
        config.access.users = vec![piped_config::Principal::Name("nobody-of-that-name".into())];
    });
    assert!(text.contains("`access.users`") && text.contains("nobody-of-that-name"), "{text}");
    let text = refused(&|config| {
        let export = piped_config::Export { path: "/no/such".into(), ..Default::default() };
        config.exports.insert("data".to_owned(), export);
    });
    assert!(text.contains("exports.data.path"), "{text}");
    let text = refused(&|config| config.client.socket = dir.path().join("no/such/socket"));
    assert!(text.contains("client.socket"), "{text}");
    let text = refused(&|config| {
        config.listen.address = Some("192.0.2.1:7440".parse().expect("an address"));
    });
    assert!(text.contains("listen.allow_plain"), "{text}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("there").collect();
    assert!(left.is_empty(), "a refused start leaves nothing behind: {left:?}");
}

#[test]
fn an_idle_daemon_sleeps() {
    let world = World::start(|_, _| {});
    let mut client = world.client(HELLO);
    client.run(Descriptor::new(Opcode::Nop, 1));
    // Asking is work; between two answers nothing turns but for the asking itself.
    let turns = || {
        let (_, body) = world.http("GET", "/v1/status", "");
        body["shards"][0]["reactor"]["turns"].as_u64().expect("a count")
    };
    eventually("two answers with few turns between them", || {
        let before = turns();
        (turns() - before < 10).then_some(())
    });
}
