//! Invented facts with the findings expected of them. Each row changes one thing of a machine where
//! all is well.

use std::collections::BTreeMap;

use piped_config::admin::nodes::SourceReport;
use piped_config::admin::{Change, ConfigState, RefusedReload, Status};
use piped_config::{Bytes, Config, Export, MemoryLimit, Peer, PublicKey};
use piped_core::modes::Profile;

use super::judge;
use crate::commands::doctor::facts::{
    DaemonUser, Directory, ExportFacts, Facts, KeyFacts, Machine, Node, PeerFacts, PrincipalFacts,
    Process, Ring, Seen, SocketFacts,
};
use crate::commands::doctor::finding::{Finding, Level};

fn node(path: &str, mode: u32, uid: u32, gid: u32) -> Node {
    Node { path: path.into(), mode, uid, gid }
}

fn status() -> Status {
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: "alpha".to_owned(),
        incarnation: 1,
        pid: 7,
        uptime_seconds: 1.0,
        profile: Profile::Balanced,
        tier: vec!["defer_taskrun".to_owned()],
        degraded: Vec::new(),
        evicted: BTreeMap::new(),
        refused: BTreeMap::new(),
        greeted: Default::default(),
        discovery: Vec::new(),
        public_key: None,
        sandbox: Default::default(),
        config: ConfigState::default(),
        shards: Vec::new(),
    }
}

fn source(left_out: u64, away: Option<&str>) -> SourceReport {
    SourceReport {
        source: "etcd".to_owned(),
        nodes: 3,
        left_out,
        heard_seconds_ago: 0.5,
        away: away.map(str::to_owned),
    }
}

fn healthy() -> Facts {
    let mut config = Config::default();
    config.exports.insert(
        "data".to_owned(),
        Export { path: "/srv/data".into(), write: true, ..Export::default() },
    );
    let sysctls = [
        ("kernel/io_uring_disabled", "0"),
        ("kernel/io_uring_group", "-1"),
        ("net/ipv4/tcp_slow_start_after_idle", "0"),
        ("net/ipv4/tcp_rmem", "4096 131072 16777216"),
        ("net/ipv4/tcp_wmem", "4096 131072 16777216"),
    ];
    let socket = |key: &str| SocketFacts {
        key: key.to_owned(),
        path: "/run/piped/x.sock".into(),
        there: Some((true, 0o666)),
        has_directory: true,
        connects: None,
    };
    Facts {
        machine: Machine {
            kernel: "6.18.0".to_owned(),
            cpus: 8,
            memory_bytes: Some(32 << 30),
            sysctls: sysctls.map(|(name, value)| (name, value.to_owned())).into(),
            clock: Some("tsc".to_owned()),
            clocks: vec!["tsc".to_owned(), "hpet".to_owned()],
            container: None,
            is_root: true,
        },
        ring: Ring::Made(vec![("defer_taskrun".to_owned(), true)]),
        process: Process {
            pid: Some(7),
            user: Some(DaemonUser { name: "piped".to_owned(), uid: 990, groups: vec![990, 44] }),
            memlock_bytes: None,
            files: Some(262_144),
            readable: true,
            ..Process::default()
        },
        files: vec!["/etc/piped/piped.toml".into()],
        mistakes: Vec::new(),
        unfit: Vec::new(),
        config: Some(config),
        exports: vec![ExportFacts {
            name: "data".to_owned(),
            path: "/srv/data".into(),
            write: true,
            directory: Directory::There,
            chain: vec![node("/", 0o755, 0, 0), node("/srv/data", 0o750, 990, 990)],
            direct: Some(true),
            space: Some((50, 100)),
            in_daemon: Some(Seen::Whole),
        }],
        principals: vec![PrincipalFacts {
            key: "access.users".to_owned(),
            name: "web".to_owned(),
            is_group: false,
            is_known: true,
        }],
        sockets: vec![socket("client.socket"), socket("admin.socket")],
        peers: vec![PeerFacts {
            name: "beta".to_owned(),
            address: "10.9.0.2:7440".to_owned(),
            failure: String::new(),
            lanes: Some((2, 2)),
            is_loopback: false,
        }],
        key: Some(KeyFacts {
            path: "/etc/piped/node.key".into(),
            node: Some(node("/etc/piped/node.key", 0o100_640, 0, 990)),
            is_missing: false,
        }),
        cluster: None,
        daemon: Some(status()),
        unreachable: None,
    }
}

fn config(facts: &mut Facts) -> &mut Config {
    facts.config.as_mut().expect("a healthy machine has one")
}

fn daemon(facts: &mut Facts) -> &mut Status {
    facts.daemon.as_mut().expect("a healthy machine has one")
}

#[test]
fn where_all_is_well_nothing_is_found() {
    let findings = judge(&healthy());
    assert!(findings.iter().all(|it| it.level == Level::Ok), "{findings:#?}");
    assert!(findings.iter().all(|it| it.why.is_empty() && it.fix.is_empty()), "{findings:#?}");
    assert!(findings.len() >= 12, "{findings:#?}");
}

/// A change, and the expected finding: level, subject, a part of the text, a part of the fix.
type Row = (fn(&mut Facts), Level, &'static str, &'static str, &'static str);

use Level::{Error, Unknown, Warning};

static TABLE: &[Row] = &[
    // io_uring
    (
        |it| {
            it.ring = Ring::Refused(1);
            it.machine.sysctls.insert("kernel/io_uring_disabled", "2".to_owned());
        },
        Error,
        "io_uring",
        "kernel.io_uring_disabled is 2",
        "sysctl -w kernel.io_uring_disabled=0",
    ),
    (
        |it| {
            it.machine.sysctls.insert("kernel/io_uring_disabled", "1".to_owned());
            it.machine.sysctls.insert("kernel/io_uring_group", "7".to_owned());
        },
        Error,
        "io_uring",
        "for group 7 only",
        "kernel.io_uring_group=$(id -g piped)",
    ),
    (
        |it| {
            it.ring = Ring::Refused(1);
            it.machine.container = Some("docker".to_owned());
        },
        Error,
        "io_uring",
        "in docker (EPERM)",
        "docker run --security-opt seccomp=/usr/share/piped/container/seccomp.json",
    ),
    (
        |it| {
            it.ring = Ring::Refused(38);
            it.machine.container = Some("podman".to_owned());
        },
        Error,
        "io_uring",
        "ENOSYS",
        "podman run --security-opt",
    ),
    (
        |it| {
            it.ring = Ring::Refused(1);
            it.machine.container = Some("kubernetes".to_owned());
        },
        Error,
        "io_uring",
        "in kubernetes (EPERM)",
        "the profile /usr/share/piped/container/seccomp.json",
    ),
    (
        |it| {
            it.ring = Ring::Refused(1);
            it.machine.container = Some("systemd-nspawn".to_owned());
        },
        Error,
        "io_uring",
        "systemd-nspawn",
        "--system-call-filter=\"io_uring_setup",
    ),
    (
        |it| it.ring = Ring::Refused(1),
        Error,
        "io_uring",
        "EPERM",
        "SystemCallFilter=io_uring_setup",
    ),
    (|it| it.ring = Ring::Refused(38), Error, "io_uring", "built without", "CONFIG_IO_URING=y"),
    (|it| it.ring = Ring::Refused(12), Error, "io_uring", "locked memory", "LimitMEMLOCK=infinity"),
    (|it| it.ring = Ring::Refused(5), Error, "io_uring", "error 5", "dmesg"),
    (
        |it| {
            it.daemon = None;
            it.ring = Ring::Made(vec![("send_zero_copy".to_owned(), false)]);
        },
        Warning,
        "tier",
        "6.18.0 has no send_zero_copy",
        "6.6",
    ),
    (
        |it| daemon(it).degraded = vec!["ring_fd: switched off".to_owned()],
        Warning,
        "daemon",
        "ring_fd: switched off",
        "",
    ),
    // The clock
    (
        |it| it.machine.clock = Some("hpet".to_owned()),
        Warning,
        "clock",
        "hpet",
        "echo tsc > /sys/devices",
    ),
    (
        |it| (it.machine.clock, it.machine.clocks) = (Some("hpet".to_owned()), Vec::new()),
        Warning,
        "clock",
        "hpet",
        "dmesg",
    ),
    (|it| it.machine.clock = None, Unknown, "clock", "cannot be read", ""),
    // Locked memory: staging is 64 MiB, an arena 1 GiB.
    (
        |it| it.process.memlock_bytes = Some(8 << 20),
        Error,
        "memlock",
        "8 MiB; staging and rings take 66 MiB",
        "LimitMEMLOCK=infinity",
    ),
    (
        |it| (it.process.memlock_bytes, it.process.pid) = (Some(8 << 20), None),
        Warning,
        "memlock",
        "this shell's",
        "LimitMEMLOCK=infinity",
    ),
    (
        |it| it.process.memlock_bytes = Some(128 << 20),
        Warning,
        "memlock",
        "one client may have 1 GiB",
        "LimitMEMLOCK=infinity",
    ),
    (|it| it.process.readable = false, Unknown, "memlock", "cannot be read", "sudo pipectl doctor"),
    (|it| it.process.files = Some(1024), Warning, "open files", "are 1024", "LimitNOFILE=262144"),
    // The control group
    (
        |it| it.process.memory_max_bytes = Some(100 << 20),
        Error,
        "memory",
        "take 128 MiB",
        "MemoryMax=",
    ),
    (
        |it| it.process.memory_max_bytes = Some(512 << 20),
        Warning,
        "memory",
        "the arena of one client",
        "MemoryMax=",
    ),
    (
        |it| {
            it.process.memory_max_bytes = Some(4 << 30);
            config(it).limits.global.arena = MemoryLimit::UpTo(Bytes::gib(4));
        },
        Warning,
        "memory",
        "limits.global.arena",
        "pipectl limits set global.arena=auto",
    ),
    (
        |it| config(it).limits.global.staging = Bytes::gib(20),
        Warning,
        "memory",
        "staging takes 20 GiB",
        "pipectl limits set",
    ),
    (|it| it.process.cpus_max = Some(0.5), Warning, "CPU", "0.5 CPUs", "CPUQuota="),
    (
        |it| {
            let reactor = serde_json::json!({ "files": 31_000, "files_limit": 32_768 });
            daemon(it).shards = vec![serde_json::json!({ "reactor": reactor })];
        },
        Warning,
        "files of shards",
        "shard 0 has 31000 of 32768",
        "pipectl handles",
    ),
    (|it| config(it).shards.count = 9.into(), Warning, "shards", "9 on 8 CPUs", "shards.count = 8"),
    (
        |it| (config(it).profile, it.machine.cpus) = (Profile::Latency, 1),
        Warning,
        "shards",
        "profile latency",
        "balanced",
    ),
    // The configuration and the daemon
    (
        |it| {
            it.mistakes = vec!["piped.toml:3: no".to_owned()];
            it.config = None;
        },
        Error,
        "configuration",
        "piped.toml:3",
        "pipectl config check",
    ),
    (
        |it| {
            let text = "piped.toml:3: `shards.cpus` names CPU 99".to_owned();
            it.unfit = vec![("shards.cpus".to_owned(), text)];
        },
        Error,
        "shards.cpus",
        "piped.toml:3",
        "pipectl config check",
    ),
    (
        |it| (it.daemon, it.unreachable) = (None, Some("no daemon".to_owned())),
        Unknown,
        "daemon",
        "no answer: no daemon",
        "systemctl start piped",
    ),
    (
        |it| daemon(it).version = "0.0.1".to_owned(),
        Warning,
        "daemon",
        "runs piped 0.0.1",
        "systemctl restart piped",
    ),
    (
        |it| {
            let error = "piped.toml:9: no".to_owned();
            daemon(it).config.refused_reload = Some(RefusedReload { seconds_ago: 1.0, error });
        },
        Error,
        "daemon",
        "piped.toml:9",
        "pipectl config reload",
    ),
    (
        |it| {
            let key = "shards.count".to_owned();
            let change = Change { key, from: 1.into(), to: 2.into() };
            daemon(it).config.restart_needed = vec![change];
        },
        Warning,
        "daemon",
        "shards.count",
        "systemctl restart piped",
    ),
    (
        |it| it.principals[0].is_known = false,
        Error,
        "access",
        "there is no user `web`",
        "useradd web",
    ),
    (
        |it| (it.principals[0].is_known, it.principals[0].is_group) = (false, true),
        Error,
        "access",
        "there is no group `web`",
        "groupadd web",
    ),
    (
        |it| config(it).listen.allow_plain = vec!["10.9.0.0/24".parse().expect("a network")],
        Warning,
        "listen.allow_plain",
        "10.9.0.0/24",
        "pipectl config reload",
    ),
    (
        |it| daemon(it).greeted = BTreeMap::from([("share".to_owned(), 2), ("full".to_owned(), 1)]),
        Warning,
        "peers' door",
        "3 lanes found no place",
        "pipectl keys generate",
    ),
    (
        |it| daemon(it).discovery = vec![source(0, Some("etcd is gone"))],
        Warning,
        "discovery etcd",
        "etcd is gone",
        "pipectl nodes",
    ),
    (
        |it| daemon(it).discovery = vec![source(7, None)],
        Warning,
        "discovery etcd",
        "7 nodes more than the limit",
        "pipectl nodes",
    ),
    (
        |it| {
            daemon(it).greeted = BTreeMap::from([("user".to_owned(), 4), ("proven".to_owned(), 9)])
        },
        Warning,
        "peers' door",
        "4 connections were turned away",
        "journalctl -u piped -g 'turned away'",
    ),
    (
        |it| config(it).metrics.address = Some(([10, 9, 0, 1], 9741).into()),
        Warning,
        "metrics.address",
        "not loopback",
        "127.0.0.1",
    ),
    (
        |it| {
            let next = PublicKey::new([7; 32]);
            let peer = Peer {
                key: Some(PublicKey::new([9; 32])),
                next_key: Some(next),
                ..Peer::default()
            };
            config(it).peers.insert("beta".to_owned(), peer);
        },
        Warning,
        "peers.beta.next_key",
        "is set",
        "pipectl keys trust beta",
    ),
    (
        |it| config(it).planner.allow_dials = true,
        Warning,
        "planner.allow_dials",
        "is on",
        "allow_dials = false",
    ),
    // The doors
    (|it| it.sockets[0].there = None, Error, "client.socket", "is not there, although", "restart"),
    (
        |it| it.sockets[1].there = Some((false, 0o644)),
        Error,
        "admin.socket",
        "something else",
        "mv /run/piped/x.sock",
    ),
    (
        |it| (it.sockets[0].there, it.sockets[0].has_directory, it.daemon) = (None, false, None),
        Warning,
        "client.socket",
        "/run/piped is not there",
        "install -d",
    ),
    (
        |it| (it.sockets[0].connects, it.daemon) = (Some("refused".to_owned()), None),
        Warning,
        "client.socket",
        "nobody answers (refused)",
        "systemctl start piped",
    ),
    (
        |it| it.sockets[0].connects = Some("denied".to_owned()),
        Warning,
        "client.socket",
        "does not let this user in",
        "sudo",
    ),
    // Exports
    (
        |it| it.exports[0].directory = Directory::Missing,
        Error,
        "export data",
        "is not there",
        "install -d -o piped /srv/data",
    ),
    (
        |it| it.exports[0].directory = Directory::Other,
        Error,
        "export data",
        "no directory",
        "exports.data.path",
    ),
    (
        |it| it.exports[0].directory = Directory::Closed,
        Unknown,
        "export data",
        "cannot be looked at",
        "sudo",
    ),
    (
        |it| it.exports[0].in_daemon = Some(Seen::Hidden),
        Error,
        "export data",
        "hidden",
        "BindPaths=/srv/data",
    ),
    (
        |it| it.exports[0].in_daemon = Some(Seen::ReadOnly),
        Error,
        "export data",
        "read-only",
        "ReadWritePaths=/srv/data",
    ),
    (
        |it| it.exports[0].chain[1].uid = 0,
        Warning,
        "export data",
        "may not read and write /srv/data",
        "setfacl -m u:piped:rwx /srv/data",
    ),
    (
        |it| it.exports[0].chain[0].mode = 0o700,
        Warning,
        "export data",
        "may not enter /",
        "setfacl -m u:piped:x /",
    ),
    (|it| it.exports[0].direct = Some(false), Warning, "export data", "no direct I/O", "ext4"),
    (|it| it.exports[0].direct = None, Unknown, "export data", "direct I/O", ""),
    (
        |it| it.exports[0].space = Some((4 << 20, 100 << 20)),
        Warning,
        "export data",
        "4 MiB of 100 MiB",
        "du -xsh /srv/data",
    ),
    // The key
    (|it| it.key = None, Warning, "key", "this node has none", "pipectl keys generate"),
    (
        |it| it.key = Some(KeyFacts { is_missing: true, ..KeyFacts::default() }),
        Error,
        "key",
        "is not there",
        "pipectl keys generate",
    ),
    (|it| it.key = Some(KeyFacts::default()), Unknown, "key", "cannot be looked at", "sudo"),
    (
        |it| it.key.iter_mut().for_each(|key| key.node = Some(node("/k", 0o100_644, 0, 990))),
        Error,
        "key",
        "has mode 0644",
        "chmod 0640",
    ),
    (
        |it| it.key.iter_mut().for_each(|key| key.node = Some(node("/k", 0o100_600, 0, 0))),
        Error,
        "key",
        "piped may not read",
        "chgrp piped",
    ),
    // Peers and TCP
    (
        |it| it.peers[0].failure = "Connection refused".to_owned(),
        Error,
        "peer beta",
        "Connection refused",
        "ping -c 3 10.9.0.2",
    ),
    (|it| it.peers[0].lanes = Some((1, 2)), Warning, "peer beta", "1 of 2 lanes", "pipectl peers"),
    (
        |it| {
            it.machine.sysctls.insert("net/ipv4/tcp_slow_start_after_idle", "1".to_owned());
        },
        Warning,
        "tcp",
        "slow_start_after_idle is 1",
        "sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
    ),
    (
        |it| {
            it.machine.sysctls.insert("net/ipv4/tcp_wmem", "4096 16384 1048576".to_owned());
        },
        Warning,
        "tcp",
        "tcp_wmem ends at 1048576",
        "sysctl -w net.ipv4.tcp_wmem=\"4096 16384 16777216\"",
    ),
];

#[test]
fn each_fault_is_found_alone_with_its_fix() {
    for (change, level, subject, what, fix) in TABLE {
        let mut facts = healthy();
        change(&mut facts);
        let findings = judge(&facts);
        let found =
            |it: &&Finding| it.level == *level && it.subject == *subject && it.what.contains(what);
        let Some(finding) = findings.iter().find(found) else {
            panic!("{level:?} {subject}: {what} is not in\n{findings:#?}");
        };
        let has = finding.fix.iter().any(|line| line.contains(fix));
        assert!(fix.is_empty() || has, "{fix} is not in {finding:#?}");
        assert!(finding.level == Unknown || !finding.why.is_empty(), "why? {finding:#?}");
        // Facts that depend on it (no daemon, no limits to be read) are unknown, but not bad.
        let others = findings.iter().filter(|it| it.level >= Warning && !found(it));
        assert_eq!(others.count(), 0, "{subject}: {what}\n{findings:#?}");
    }
}

#[test]
fn a_cure_names_a_reload_only_where_a_daemon_runs() {
    let cures = |change: fn(&mut Facts), runs: bool| {
        let mut facts = healthy();
        change(&mut facts);
        if !runs {
            (facts.daemon, facts.unreachable) = (None, Some("no daemon".to_owned()));
        }
        judge(&facts).into_iter().flat_map(|it| it.fix).collect::<Vec<_>>().join("\n")
    };
    let faults: [fn(&mut Facts); 4] = [
        |it| it.exports[0].directory = Directory::Missing,
        |it| it.exports[0].directory = Directory::Other,
        |it| config(it).listen.allow_plain = vec!["10.9.0.0/24".parse().expect("a network")],
        |it| config(it).planner.allow_dials = true,
    ];
    for fault in faults {
        let (with, without) = (cures(fault, true), cures(fault, false));
        assert!(with.contains("pipectl config reload"), "{with}");
        assert!(!without.contains("reload") && !without.is_empty(), "{without}");
    }
}

#[test]
fn what_is_right_in_other_ways_is_no_fault() {
    let rights: [fn(&mut Facts); 6] = [
        // By a group.
        |it| it.exports[0].chain[1] = node("/srv/data", 0o770, 0, 44),
        // By everybody's right.
        |it| it.exports[0].chain[1] = node("/srv/data", 0o777, 0, 0),
        // A read-only export of a read-only mount.
        |it| (it.exports[0].write, it.exports[0].in_daemon) = (false, Some(Seen::ReadOnly)),
        // Not counted.
        |it| (it.process.may_lock, it.process.memlock_bytes) = (true, Some(0)),
        // In the group that may.
        |it| {
            it.machine.sysctls.insert("kernel/io_uring_disabled", "1".to_owned());
            it.machine.sysctls.insert("kernel/io_uring_group", "44".to_owned());
        },
        // Without a network its settings do not matter.
        |it| {
            it.machine.sysctls.insert("net/ipv4/tcp_slow_start_after_idle", "1".to_owned());
            it.peers[0].is_loopback = true;
        },
    ];
    for (place, change) in rights.into_iter().enumerate() {
        let mut facts = healthy();
        change(&mut facts);
        let findings = judge(&facts);
        assert!(findings.iter().all(|it| it.level == Level::Ok), "{place}: {findings:#?}");
    }
}
