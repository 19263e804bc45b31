//! Tests of which layer wins, and of messages about mistakes.

use std::fs;
use std::path::PathBuf;

use piped_config::{Bytes, ConfigError, Input, KEY_BYTES, NodeKey, Sources, load, parse};
use piped_core::modes::{PlannerMode, Profile};
use tempfile::TempDir;

struct Etc {
    directory: TempDir,
}

impl Etc {
    fn new(main: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("piped.toml"), main).expect("write");
        Self { directory }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("piped.toml")
    }

    fn drop_in(self, name: &str, text: &str) -> Self {
        let conf_d = self.directory.path().join("conf.d");
        fs::create_dir_all(&conf_d).expect("create");
        fs::write(conf_d.join(name), text).expect("write");
        self
    }

    fn sources(&self) -> Sources {
        Sources { file: Some(self.file()), ..Sources::default() }
    }

    /// The message, with the directory left out.
    fn refusal(&self) -> String {
        let error = load(&self.sources()).expect_err("refused").to_string();
        error.replace(&format!("{}/", self.directory.path().display()), "")
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn later_layers_win_key_by_key() {
    let etc = Etc::new(
        "[client]\nqueues_max = 2\nentries_max = 2\n[shards]\ncount = 2\n[limits.global]\nsessions \
         = 2",
    )
    .drop_in("20-b.toml", "client.queues_max = 4")
    .drop_in("10-a.toml", "client.queues_max = 3\nclient.entries_max = 4\nshards.count = 3")
    .drop_in("ignored.bak", "nonsense")
    .drop_in(".hidden.toml", "nonsense");
    let mut sources = etc.sources();
    sources.env =
        pairs(&[("PIPED_SHARDS__COUNT", "4"), ("PIPED_PROFILE", "latency"), ("HOME", "/")]);
    sources.overrides = vec!["shards.count=5".to_owned()];
    let loaded = load(&sources).expect("valid");
    let config = loaded.config;
    assert_eq!(config.limits.global.sessions, 2, "file");
    assert_eq!(config.client.queues_max, 4, "the drop-in that sorts last");
    assert_eq!(config.client.entries_max, 4, "a drop-in");
    assert_eq!(config.profile, Profile::Latency, "environment");
    assert_eq!(config.shards.count, 5.into(), "command line");
    assert_eq!(config.client.arena_bytes_max, Bytes::gib(1), "default");
    assert_eq!(loaded.files.len(), 3);
}

#[test]
fn settings_need_no_quotes_and_names_may_look_like_numbers() {
    let mut sources = Etc::new("").sources();
    sources.file = None;
    sources.overrides = [
        "node.name=7",
        "limits.global.staging=128MiB",
        "client.arena_bytes_max=1048576",
        "planner.mode=fixed:64KiB",
        "listen.address=127.0.0.1:7440",
        "peers.beta.address=127.0.0.1:7441",
        "exports.data.path=/srv/data",
        "exports.data.users=[\"web\", 7]",
        "io.disable_features=[\"ring_fd\"]",
        "shards.pin=false",
        "client.socket=/tmp/with space \"quoted\".sock",
    ]
    .map(str::to_owned)
    .to_vec();
    let config = load(&sources).expect("valid").config;
    assert_eq!(config.node.name, "7");
    assert_eq!(config.limits.global.staging, Bytes::mib(128));
    assert_eq!(config.planner.mode, PlannerMode::Fixed(64 << 10));
    assert_eq!(config.peers["beta"].address.as_str(), "127.0.0.1:7441");
    assert_eq!(config.exports["data"].users.len(), 2);
    assert_eq!(config.client.socket, PathBuf::from("/tmp/with space \"quoted\".sock"));
    assert!(!config.shards.pin);
}

#[test]
fn variables_for_other_programs_are_left_alone() {
    let sources = Sources {
        env: pairs(&[
            ("PIPED_ADMIN_SOCKET", "/tmp/a"),
            ("PIPED_CONFIG", "x"),
            ("PIPED_LAB_NODE", "n1"),
            ("PIPEDREAM", "1"),
        ]),
        ..Sources::default()
    };
    assert!(load(&sources).is_ok());
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_nearest_key() {
    let etc = Etc::new("profile = \"latency\"\n\n[client]\nsokcet = \"/x\"\n");
    assert_eq!(
        etc.refusal(),
        "piped.toml:4: there is no key `client.sokcet`; did you mean `client.socket`?"
    );
    let etc = Etc::new("").drop_in("a.toml", "[exports.data]\npath = \"/d\"\nwriteable = true");
    let refusal = etc.refusal();
    let expected = "conf.d/a.toml:3: there is no key `exports.data.writeable`; did you mean \
        `exports.data.write`?";
    assert_eq!(refusal, expected);
}

#[test]
fn a_bad_value_is_refused_with_its_line_and_key() {
    for (text, place, problem) in [
        (
            "\n[limits.global]\nstaging = \"64MB\"",
            "piped.toml:3: bad value for `limits.global.staging`",
            "64MiB",
        ),
        ("client.queues_max = -1", "piped.toml:1: bad value for `client.queues_max`", "-1"),
        ("[client]\n# x\ndeadline_default = 30", "piped.toml:3: bad value for `client.", "\"30s\""),
        ("profile = \"fast\"", "piped.toml:1: bad value for `profile`", "balanced"),
        ("client = 3", "piped.toml:1: bad value for `client`", "integer"),
        (
            "[listen]\naddress = \"here\"",
            "piped.toml:2: bad value for `listen.address`",
            "10.9.0.1",
        ),
        (
            "io.disable_features = [\"ring_fd\",\n \"warp\"]",
            "piped.toml:1: bad value for `io.",
            "warp",
        ),
        (
            "[peers.beta]\naddress = \"beta\"",
            "piped.toml:2: bad value for `peers.beta.",
            "host:port",
        ),
        ("a = \n", "piped.toml:1: ", "value"),
    ] {
        let refusal = Etc::new(text).refusal();
        assert!(refusal.starts_with(place) && refusal.contains(problem), "{text}: {refusal}");
    }
}

#[test]
fn values_that_cannot_work_are_refused_where_they_were_set() {
    for (text, place, problem) in [
        ("client.entries_max = 100", "piped.toml:1: `client.entries_max`", "power of two"),
        (
            "[client]\nsocket = \"/s\"\n[admin]\nsocket = \"/s\"",
            "piped.toml:4: `admin.socket`",
            "two paths",
        ),
        ("\n[exports.data]\nread = true", "piped.toml:3: `exports.data.path`", "absolute path"),
        ("[exports.data]\npath = \"data\"", "piped.toml:2: `exports.data.path`", "absolute path"),
        ("peers.b.address = \"10.9.0.2:1\"", "piped.toml:1: `peers.b.address`", "allow_plain"),
        (
            "[peers.b]\naddress = \"localhost:1\"\nsecond_address = \"10.9.0.2:1\"",
            "piped.toml:3: `peers.b.second_address`",
            "allow_plain",
        ),
        (
            "[peers.b]\naddress = \"localhost:1\"\nsecond_address = \"localhost:1\"",
            "piped.toml:3: `peers.b.second_address`",
            "another link",
        ),
        (
            "node.name = \"b\"\npeers.b.address = \"localhost:1\"",
            "piped.toml:2: `peers.b`",
            "own name",
        ),
        ("node.name = \"two words\"", "piped.toml:1: `node.name`", "letters"),
        ("shards.cpus = [1, 1]\nshards.count = 2", "piped.toml:1: `shards.cpus`", "different CPUs"),
        ("planner.mode = \"fixed:1\"", "piped.toml:1: `planner.mode`", "4KiB"),
        ("limits.global.staging = 1048577", "piped.toml:1: `limits.global.staging`", "4MiB"),
        (
            "limits.global.staging = \"4MiB\"\nshards.count = 2",
            "piped.toml:1: `limits.global.staging`",
            "8MiB",
        ),
        ("log.level = \"piped=loud\"", "piped.toml:1: `log.level`", "info"),
    ] {
        let refusal = Etc::new(text).refusal();
        assert!(refusal.starts_with(place) && refusal.contains(problem), "{text}: {refusal}");
    }
}

/// The files do not say which keys exist: the daemon, and `pipectl config check`, look for them.
#[test]
fn an_open_listener_and_peers_with_keys_need_a_key_of_this_node() {
    let load = |text: &str| load(&Etc::new(text).sources()).expect("valid").config;
    let key = |node: u8| NodeKey::of_private([node; KEY_BYTES].into()).public();
    let everywhere = load("[listen]\naddress = \"0.0.0.0:1\"");
    let fault = everywhere.check_own_key(None).expect_err("open");
    assert_eq!(fault.key, "listen.address");
    assert!(fault.problem.contains("keys generate") && fault.problem.contains("allow_plain"));
    assert_eq!(everywhere.check_own_key(Some(key(1))), Ok(()));
    let told = load("[listen]\naddress = \"0.0.0.0:1\"\nallow_plain = [\"10.9.0.0/24\"]");
    assert_eq!(told.check_own_key(None), Ok(()));
    let trusts = load(&format!("[peers.beta]\nkey = \"{}\"", key(2)));
    assert_eq!(trusts.check_own_key(None).expect_err("no key").key, "peers.beta.key");
    assert_eq!(trusts.check_own_key(Some(key(1))), Ok(()));
    assert!(trusts.check_own_key(Some(key(2))).expect_err("its own").problem.contains("own"));
}

#[test]
fn a_node_knows_more_peers_than_it_dials() {
    let key = |number: u16| {
        let mut secret = [7; KEY_BYTES];
        secret[8..10].copy_from_slice(&number.to_le_bytes());
        NodeKey::of_private(secret.into()).public()
    };
    let found = |count: u16| {
        let head = "[discovery]\nfiles = \"/etc/piped/nodes\"\nconnect = \"always\"\n".to_owned();
        let peer = |number| format!("[peers.p{number}]\nkey = \"{}\"\n", key(number));
        Etc::new(&(0..count).map(peer).fold(head, |text, peer| text + &peer))
    };
    let written = |count: u16| {
        let peer = |number| format!("[peers.p{number}]\naddress = \"localhost:{}\"\n", number + 1);
        Etc::new(&(0..count).map(peer).collect::<String>())
    };
    for etc in [found(1024), written(256)] {
        load(&etc.sources()).unwrap_or_else(|error| panic!("{error}"));
    }
    for (etc, problem) in [
        (found(1025), "are 1025: a node asks at most 1024 others"),
        (written(257), "are 257 with an address: a node keeps connections to at most 256"),
    ] {
        let refusal = etc.refusal();
        assert!(refusal.contains(problem), "{refusal}");
    }
}

#[test]
fn networks_named_in_allow_plain_may_be_listened_on_and_dialled() {
    let etc = Etc::new(
        "[listen]\naddress = \"10.9.0.1:7440\"\nallow_plain = [\"10.9.0.0/24\"]\n[peers.beta]\n\
         address = \"10.9.0.2:7440\"",
    );
    let config = load(&etc.sources()).expect("valid").config;
    // The node's own key matters on loopback alone.
    for (address, without, with) in [
        ("10.9.0.77", true, true),
        ("10.9.1.1", false, false),
        ("::1", true, false),
        ("127.0.0.1", true, false),
        ("::ffff:127.0.0.1", true, false),
    ] {
        let address = address.parse().expect("an address");
        assert_eq!(config.listen.admits_plain(address, false), without, "{address}");
        assert_eq!(config.listen.admits_plain(address, true), with, "{address}");
    }
    let etc = Etc::new("[listen]\nallow_plain = [\"127.0.0.0/8\"]");
    let told = load(&etc.sources()).expect("valid").config;
    assert!(told.listen.admits_plain("127.0.0.1".parse().expect("an address"), true));
}

#[test]
fn mistakes_outside_files_name_the_variable_or_the_option() {
    let refusal = |env: &[(&str, &str)], overrides: &[&str]| {
        let overrides = overrides.iter().map(|s| (*s).to_owned()).collect();
        let sources = Sources { file: None, env: pairs(env), overrides };
        load(&sources).expect_err("refused").to_string()
    };
    let message = refusal(&[("PIPED_SHARDS__CONUT", "2")], &[]);
    assert_eq!(
        message,
        "PIPED_SHARDS__CONUT: there is no key `shards.conut`; did you mean `shards.count`?"
    );
    let message = refusal(&[], &["shards.count=two"]);
    assert!(message.starts_with("--set shards.count: bad value for `shards.count`"), "{message}");
    assert!(refusal(&[], &["shards.count"]).contains("write key=value"));
    assert!(refusal(&[], &["=2"]).starts_with("--set : `` is not a key"));
}

#[test]
fn a_named_file_must_exist_and_the_default_file_need_not() {
    let missing = PathBuf::from("/nonexistent/piped.toml");
    let sources = Sources { file: Some(missing), ..Sources::default() };
    let error = load(&sources).expect_err("missing");
    assert!(matches!(error.all(), [ConfigError::Read { .. }]), "{error}");
    assert!(error.to_string().contains("/nonexistent/piped.toml"), "{error}");
}

#[test]
fn names_keep_their_case_and_their_dots() {
    let text =
        "[peers.\"Beta-2.example\"]\naddress = \"localhost:1\"\n[exports.Data]\npath = \"/d\"";
    let config = load(&Etc::new(text).sources()).expect("valid").config;
    assert!(config.peers.contains_key("Beta-2.example"), "{:?}", config.peers);
    assert!(config.exports.contains_key("Data"), "{:?}", config.exports);
}

#[test]
fn every_mistake_of_every_layer_is_told_at_once() {
    let etc = Etc::new("profile = \"fast\"\n[client]\nsokcet = \"/x\"\nqueues_max = \"many\"\n")
        .drop_in("a.toml", "[shards]\ncount = true\n[nodes]\nname = \"x\"\n")
        .drop_in("b.toml", "a = ");
    let mut sources = etc.sources();
    sources.env = pairs(&[("PIPED_LOG__LEVLE", "info"), ("PIPED_LIMITS__GLOBAL__STAGING", "64MB")]);
    sources.overrides =
        ["io.sqpoll=maybe", "node", "planner.mood=auto"].map(str::to_owned).to_vec();
    let findings = load(&sources).expect_err("refused");
    let text = findings.to_string().replace(&format!("{}/", etc.directory.path().display()), "");
    let begins = [
        "--set node: write key=value",
        "piped.toml:1: bad value for `profile`",
        "piped.toml:3: there is no key `client.sokcet`",
        "piped.toml:4: bad value for `client.queues_max`",
        "conf.d/a.toml:2: bad value for `shards.count`",
        "conf.d/a.toml:3: there is no key `nodes`; did you mean `node`?",
        "conf.d/b.toml:1: ",
        "PIPED_LOG__LEVLE: there is no key `log.levle`; did you mean `log.level`?",
        "PIPED_LIMITS__GLOBAL__STAGING: bad value for `limits.global.staging`",
        "--set io.sqpoll: bad value for `io.sqpoll`",
        "--set planner.mood: there is no key `planner.mood`; did you mean `planner.mode`?",
    ];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), findings.all().len(), "one line each:\n{text}");
    for (line, begin) in lines.iter().zip(begins) {
        assert!(line.starts_with(begin), "{line}\nis not\n{begin}");
    }
    assert_eq!(lines.len(), begins.len(), "{text}");
}

#[test]
fn everything_that_cannot_work_is_told_at_once() {
    let text = "client.queues_max = 0\nlimits.global.sessions = 0\n[exports.x]\npath = \"d\"\nread \
        = false\n";
    let etc = Etc::new(text);
    let refusal = etc.refusal();
    let keys: Vec<&str> = refusal.lines().filter_map(|line| line.split('`').nth(1)).collect();
    let expected =
        ["client.queues_max", "limits.global.sessions", "exports.x.path", "exports.x.read"];
    assert_eq!(keys, expected, "{refusal}");
}

#[test]
fn each_key_knows_where_it_was_set() {
    let etc = Etc::new("\nclient.queues_max = 2\n[shards]\ncount = 2\npin = false")
        .drop_in("a.toml", "# x\n[shards]\ncount = 3\n\n[peers.beta]\naddress = \"localhost:1\"");
    let mut sources = etc.sources();
    sources.env = pairs(&[("PIPED_PROFILE", "latency"), ("PIPED_LOG__LEVEL", "warn")]);
    sources.overrides = vec!["log.level=debug".to_owned()];
    let loaded = load(&sources).expect("valid");
    let directory = format!("{}/", etc.directory.path().display());
    let origin = |wanted: &str| {
        assert!(loaded.config.keys().any(|(key, _)| key == wanted), "no {wanted}");
        let place = loaded.origins.get(wanted)?;
        Some(place.to_string().replace(&directory, ""))
    };
    for (key, place) in [
        ("client.queues_max", Some("piped.toml:2")),
        ("shards.count", Some("conf.d/a.toml:3")),
        ("shards.pin", Some("piped.toml:5")),
        ("peers.beta.address", Some("conf.d/a.toml:6")),
        ("profile", Some("PIPED_PROFILE")),
        ("log.level", Some("--set log.level")),
        ("limits.global.staging", None),
    ] {
        assert_eq!(origin(key).as_deref(), place, "{key}");
    }
    let staging =
        loaded.config.keys().find(|(key, ..)| key == "limits.global.staging").expect("a key");
    assert_eq!(staging.1, serde_json::json!("64MiB"));
}

#[test]
fn texts_are_parsed_without_files_or_environment() {
    let file = |text: &str| Input::File { path: "x.toml".into(), text: text.to_owned() };
    let set = |setting: &str| Input::Setting(setting.to_owned());
    let variable = Input::Variable { name: "PIPED_NODE__NAME".into(), value: "alpha".into() };
    let loaded = parse(&[file("shards.count = 2"), variable, set("profile=latency")]);
    let config = loaded.expect("valid").config;
    assert_eq!((config.shards.count, config.profile), (2.into(), Profile::Latency));
    assert_eq!(config.node.name, "alpha");
    assert!(parse(&[]).is_ok_and(|loaded| loaded.config == piped_config::Config::default()));
    for odd in
        ["\u{feff}", "[[client]]", "client = {}", "peers = []", "peers = {\"\" = {}}", "\"\" = 1"]
    {
        // Refused or not, parsing ends with an answer.
        let _ = parse(&[file(odd), set(odd)]);
    }
}

#[test]
fn auto_is_one_shard_for_each_four_cpus_as_far_as_limits_and_cpus_go() {
    let of = |text: &str, cpus| {
        let loaded = parse(&[Input::File { path: "x.toml".into(), text: text.to_owned() }]);
        let config = loaded.expect("allowed").config;
        config.shard_count(cpus)
    };
    for (cpus, shards) in [(0, 1), (1, 1), (2, 1), (7, 1), (8, 2), (12, 3)] {
        assert_eq!(of("", cpus), shards, "{cpus} CPUs");
    }
    assert_eq!(of("", 1000), 4, "each has 16 MiB of staging");
    assert_eq!(of("limits.global.staging = \"4GiB\"", 1000), 64, "as many as names know");
    assert_eq!(of("shards.count = \"auto\"\nshards.cpus = [1, 2, 3]", 2), 3);
    assert_eq!(of("shards.count = 5", 2), 5);
    assert_eq!(of("shards.count = \"5\"", 2), 5);
}
