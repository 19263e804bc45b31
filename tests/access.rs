//! Who may do what, asked of real daemons by other users: clients, operators, exports.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use piped::admin::parse::Endpoint;
use piped_client::{Client, OpenOptions};
use system_tests::keys::Key;
use system_tests::process::{Daemon, PATIENCE, Programs, eventually, free_address, words};
use system_tests::user::Who;

/// A directory that others can go through, too.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory.path(), open).expect("ours");
    directory
}

fn connects(daemon: &Daemon) -> Result<Client, String> {
    Client::connect(daemon.client_socket()).map_err(|error| error.to_string())
}

#[test]
fn clients_are_whom_the_lists_name_by_user_or_any_group() {
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let lists = "users = [4001]\ngroups = [5001, 5002]\n";
    let more = format!("[access]\n{lists}");
    let alpha = Daemon::start(&programs, directory.path(), "alpha", &more);
    let people = [
        (Who::user(4001), true, false),
        (Who { uid: 4002, gid: 5001, groups: &[] }, true, false),
        (Who { uid: 4002, gid: 4002, groups: &[5002] }, true, true),
        (Who { uid: 4002, gid: 4002, groups: &[7, 8, 5001, 9] }, true, false),
        (Who { uid: 4002, gid: 4002, groups: &[7, 8] }, false, false),
        // A number is a user or a group, never either.
        (Who::user(5001), true, false),
        (Who { uid: 5001, gid: 1, groups: &[4001] }, false, false),
        (Who { uid: 4002, gid: 4002, groups: &[0] }, false, false),
        (Who::user(4003), false, true),
    ];
    let check = |right: fn(&(Who, bool, bool)) -> bool| {
        for person in &people {
            let Some(outcome) = person.0.does(|| connects(&alpha).map(drop)) else { return };
            assert_eq!(outcome.is_ok(), right(person), "{:?}: {outcome:?}", person.0);
            if let Err(text) = outcome {
                assert!(text.contains("[access] users or groups"), "{text}");
            }
        }
    };
    check(|person| person.1);
    // Whoever the lists name: root and the daemon's own user always may.
    connects(&alpha).expect("root, or the daemon's own user");
    let Some(before) = Who::user(4001).does(|| connects(&alpha).expect("listed")) else { return };
    alpha.reload(lists, "users = [4003]\ngroups = [5002]\n");
    check(|person| person.2);
    eventually("who was let in is out again", || {
        before.queue().map_or(true, |mut it| it.nop().is_err()).then_some(())
    });
}

#[test]
fn a_door_is_open_to_all_only_where_somebody_is_named() {
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    for (settings, client, admin) in [
        (&[][..], 0o600, 0o600),
        (&["access.groups=[5001]"], 0o666, 0o666),
        (&["admin.groups=[5001]"], 0o600, 0o666),
        (&["admin.status_users=[4001]"], 0o600, 0o666),
    ] {
        let mut command = programs.piped();
        for setting in settings {
            command.args(["--set", setting]);
        }
        let alpha = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
        let mode = |path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(alpha.client_socket()), client, "{settings:?}");
        assert_eq!(mode(alpha.admin_socket()), admin, "{settings:?}");
    }
}

/// What an endpoint is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum For {
    Looking,
    Changing,
}

/// Every endpoint there is. A new one is put here with a thought on who may.
const ENDPOINTS: [(&str, &str, For); 34] = [
    ("GET", "/", For::Looking),
    ("GET", "/v1/status", For::Looking),
    ("GET", "/v1/stages", For::Looking),
    ("GET", "/v1/clients", For::Looking),
    ("GET", "/metrics", For::Looking),
    ("GET", "/v1/stat", For::Looking),
    ("GET", "/v1/peers", For::Looking),
    ("GET", "/v1/transfers", For::Looking),
    ("GET", "/v1/transfers/ended", For::Looking),
    ("GET", "/v1/exports", For::Looking),
    // Addresses of nodes, as `peers` has them.
    ("GET", "/v1/nodes", For::Looking),
    // Certificates and keys of nodes, which are no secrets; tokens without theirs.
    ("GET", "/v1/cluster", For::Looking),
    ("POST", "/v1/cluster/tokens", For::Changing),
    ("PUT", "/v1/cluster/tokens/end", For::Changing),
    ("POST", "/v1/cluster/revoke", For::Changing),
    ("GET", "/v1/explain/", For::Looking),
    ("GET", "/v1/config", For::Looking),
    ("POST", "/v1/config/reload", For::Changing),
    ("PUT", "/v1/planner", For::Changing),
    ("POST", "/v1/plan", For::Looking),
    ("GET", "/v1/limits/advice", For::Looking),
    ("GET", "/v1/limits", For::Looking),
    ("PUT", "/v1/limits", For::Changing),
    ("GET", "/v1/trace", For::Looking),
    ("PUT", "/v1/trace", For::Changing),
    ("GET", "/v1/dials", For::Looking),
    ("PUT", "/v1/dials", For::Changing),
    ("PUT", "/v1/dials/clear", For::Changing),
    ("PUT", "/v1/calibrate", For::Changing),
    ("PUT", "/v1/calibration", For::Changing),
    // It names files and who uses them.
    ("GET", "/v1/handles", For::Changing),
    ("PUT", "/v1/handles/end", For::Changing),
    ("PUT", "/v1/clients/end", For::Changing),
    ("PUT", "/v1/peers/end", For::Changing),
];

/// The status of an answer, and the answer.
fn http(daemon: &Daemon, method: &str, path: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(daemon.admin_socket()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    // What may change something is asked with what changes nothing: a body that cannot be read.
    let body = "{";
    let length = body.len();
    // At once: who may not is answered, and hung up on, at the head.
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: piped\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer}")), answer)
}

#[test]
fn every_endpoint_is_for_whom_it_is_meant() {
    let there: BTreeSet<(&str, &str)> =
        Endpoint::all().map(|(method, path)| (method.as_str(), path)).collect();
    let known = ENDPOINTS.iter().map(|(method, path, _)| (*method, *path)).collect();
    assert_eq!(there, known, "each endpoint is in the list above, with whom it is for");
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let (nobody, client) = (Who::user(4009), Who::user(4001));
    let onlooker = Who { uid: 4002, gid: 4002, groups: &[5003] };
    let (admin, member) = (Who::user(4004), Who { uid: 4005, gid: 4005, groups: &[6, 5005] });
    let root = Who { uid: 0, gid: 0, groups: &[] };
    for (listed, people) in [
        (
            &[][..],
            [
                (nobody, None),
                (client, Some(For::Looking)),
                (onlooker, None),
                (admin, Some(For::Changing)),
                (member, Some(For::Changing)),
                (root, Some(For::Changing)),
            ],
        ),
        (
            &["admin.status_groups=[5003]"],
            [
                (nobody, None),
                // Who may look is listed now, and it is not.
                (client, None),
                (onlooker, Some(For::Looking)),
                (admin, Some(For::Changing)),
                (member, Some(For::Changing)),
                (root, Some(For::Changing)),
            ],
        ),
    ] {
        let mut command = programs.piped();
        let settings = ["access.users=[4001]", "admin.users=[4004]", "admin.groups=[5005]"];
        for setting in settings.iter().chain(listed) {
            command.args(["--set", setting]);
        }
        let alpha = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
        for (who, may) in people {
            let all = who.does(|| {
                ENDPOINTS.map(|(method, path, _)| {
                    let word = if path == "/v1/explain/" { "last" } else { "" };
                    http(&alpha, method, &format!("{path}{word}"))
                })
            });
            let Some(all) = all else { return };
            for ((status, answer), (method, path, what)) in all.iter().zip(ENDPOINTS) {
                let admitted = may.is_some_and(|may| what <= may);
                assert_eq!(*status != 403, admitted, "{who:?}: {method} {path}: {answer}");
                if !admitted {
                    let lists = match what {
                        For::Looking => "[admin] status_users or status_groups",
                        For::Changing => "[admin] users or groups",
                    };
                    assert!(answer.contains(lists), "{answer}");
                }
            }
        }
        let status = alpha.status();
        assert_eq!(status["shards"][0]["planner"], "auto", "nothing was changed");
    }
}

#[test]
fn curl_is_enough_for_whoever_may() {
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let mut command = programs.piped();
    command.args(["--set", "admin.users=[4004]", "--set", "access.users=[4001]"]);
    let alpha = Daemon::start_by(command, &programs, directory.path(), "alpha", "");
    let curl = |uid: u32, arguments: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "30", "--unix-socket"]).arg(alpha.admin_socket());
        curl.args(arguments).uid(uid).gid(uid).current_dir("/");
        match curl.output() {
            Ok(output) => Some(words(&output)),
            Err(error) => {
                eprintln!("skipped: no curl as user {uid} ({error})");
                None
            }
        }
    };
    let set = ["-X", "PUT", "-d", r#"{"mode":"whole"}"#, "http://piped/v1/planner"];
    let look = ["http://piped/v1/status"];
    let Some(text) = curl(4001, &set) else { return };
    assert!(text.contains("user 4001 may not change anything"), "{text}");
    for (uid, arguments, part) in [
        (4001, &look[..], "\"node\":\"alpha\""),
        (4004, &look, "\"node\":\"alpha\""),
        (4004, &set, "\"mode\":\"whole\""),
        (4009, &look, "user 4009 may not look here"),
    ] {
        let text = curl(uid, arguments).unwrap_or_default();
        assert!(text.contains(part), "{uid} {arguments:?}: {text}");
    }
    assert_eq!(alpha.status()["shards"][0]["planner"], "whole");
}

/// Opens of an export: for reading, for writing, and whether it can be made there.
fn opens(daemon: &Daemon, peer: Option<&str>, export: &str) -> [Result<(), String>; 2] {
    let client = connects(daemon).expect("it serves");
    let open = |options| {
        let opened = client.open_export(peer, export, "file", options);
        opened.map(drop).map_err(|error| error.to_string())
    };
    [open(OpenOptions::read()), open(OpenOptions::write())]
}

#[test]
fn an_export_is_for_the_users_groups_and_peers_that_it_names() {
    let Some(programs) = Programs::find() else { return };
    let directory = directory();
    let root = directory.path().join("root");
    fs::create_dir(&root).expect("made");
    fs::write(root.join("file"), b"bytes").expect("written");
    let address = free_address();
    let path = root.display();
    // Both users and groups name nobody: everybody here. The same of peers.
    let mut served = format!("[listen]\naddress = \"{address}\"\n[access]\ngroups = [5000]\n");
    // Nodes that have proved who they are: of others of this machine it would be asked whose they
    // are.
    let [one, two, three] =
        ["alpha", "beta", "gamma"].map(|name| Key::make(&programs, directory.path(), name));
    served += &two.security("integrity");
    served += &(one.peer("alpha", None) + &three.peer("gamma", None));
    let exports = [
        ("all", "write = true"),
        ("read", ""),
        ("write", "read = false\nwrite = true"),
        ("user", "users = [4001]"),
        ("group", "groups = [5001]"),
        ("either", "users = [4002]\ngroups = [5001]"),
        ("alpha", "peers = [\"alpha\"]\nwrite = true"),
        ("gamma", "peers = [\"gamma\"]\nusers = [4001]"),
        ("nobody", "peers = [\"nobody\"]\nusers = [1]"),
    ];
    for (name, more) in exports {
        served.push_str(&format!("[exports.{name}]\npath = \"{path}\"\n{more}\n"));
    }
    let beta = Daemon::start(&programs, directory.path(), "beta", &served);
    let asks = |key: &Key| {
        key.security("integrity") + &two.peer("beta", Some(address)) + "[access]\ngroups = [5000]\n"
    };
    let (alphas, gammas) = (asks(&one), asks(&three));
    // Its shards are nodes of their own to the other side, and one node in its configuration.
    let mut command = programs.piped();
    command.args(["--set", "shards.count=2", "--set", "limits.global.staging=8MiB"]);
    let alpha = Daemon::start_by(command, &programs, directory.path(), "alpha", &alphas);
    let gamma = Daemon::start(&programs, directory.path(), "gamma", &gammas);
    alpha.await_lanes();
    gamma.await_lanes();
    let one = Who { uid: 4001, gid: 4001, groups: &[5000] };
    let two = Who { uid: 4002, gid: 5000, groups: &[] };
    let three = Who { uid: 4003, gid: 5001, groups: &[5000] };
    let four = Who { uid: 4003, gid: 1, groups: &[5000, 5001] };
    // By export: local users one, two, three and four; then the nodes alpha and gamma. r: read, w:
    // write.
    let expected = [
        ("all", ["rw", "rw", "rw", "rw"], ["rw", "rw"]),
        ("read", ["r", "r", "r", "r"], ["r", "r"]),
        ("write", ["w", "w", "w", "w"], ["w", "w"]),
        ("user", ["r", "", "", ""], ["r", "r"]),
        ("group", ["", "", "r", "r"], ["r", "r"]),
        ("either", ["", "r", "r", "r"], ["r", "r"]),
        ("alpha", ["rw", "rw", "rw", "rw"], ["rw", ""]),
        ("gamma", ["r", "", "", ""], ["", "r"]),
        ("nobody", ["", "", "", ""], ["", ""]),
    ];
    let word = |[read, write]: [Result<(), String>; 2]| {
        format!("{}{}", if read.is_ok() { "r" } else { "" }, if write.is_ok() { "w" } else { "" })
    };
    for (export, users, nodes) in expected {
        for (who, may) in [one, two, three, four].into_iter().zip(users) {
            let Some(opened) = who.does(|| opens(&beta, None, export)) else { return };
            let texts = format!("{opened:?}");
            assert_eq!(word(opened), may, "{export} for {who:?}: {texts}");
        }
        for (node, may) in [&alpha, &gamma].into_iter().zip(nodes) {
            // Two sessions at once are on the two shards of the node that has two.
            let both = two.does(|| {
                let _other = connects(node).expect("it serves");
                [opens(node, Some("beta"), export), {
                    let _third = connects(node).expect("it serves");
                    opens(node, Some("beta"), export)
                }]
            });
            for opened in both.expect("as before") {
                let texts = format!("{opened:?}");
                assert_eq!(word(opened), may, "{export} for a node: {texts}");
            }
        }
    }
    let shards = alpha.status()["shards"].as_array().expect("a list").clone();
    let asked = shards.iter().filter(|shard| {
        let lanes = shard["peers"][0]["lanes"].as_array();
        lanes.is_some_and(|lanes| lanes.iter().any(|lane| lane["frames_sent"].as_u64() > Some(1)))
    });
    assert_eq!(asked.count(), 2, "both shards asked");
    // It says whom they are for.
    let listed = beta.json(&["exports"]);
    let either =
        listed["exports"].as_array().expect("a list").iter().find(|it| it["name"] == "either");
    assert_eq!(either.expect("listed")["groups"][0], "5001");
}
