use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use super::*;
use crate::load::{Input, parse};

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("ours");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Loads a configuration in which `DIR` stands for the folder, with usable sockets.
    fn loaded(&self, text: &str) -> Loaded {
        let folder = self.folder.path().display().to_string();
        let path = self.path("piped.toml");
        let mut text = text.replace("DIR", &folder);
        for door in ["client", "admin"] {
            if !text.contains(&format!("[{door}]\nsocket")) {
                text.push_str(&format!("\n[{door}]\nsocket = \"{folder}/{door}.sock\"\n"));
            }
        }
        parse(&[Input::File { path, text }]).expect("valid")
    }

    fn look<'a>(&self, main_file: &'a Path) -> Look<'a> {
        Look { main_file: Some(main_file), user: "piped", is_user: true, ..Look::default() }
    }

    fn preflight(&self, text: &str) -> Preflight {
        let main_file = self.path("piped.toml");
        let names = Names::parse("web:x:33:33::/:\n", "staff:x:50:\n");
        preflight(&self.loaded(text), &names, &self.look(&main_file))
    }

    /// The only reason for which a start is refused.
    fn refused(&self, text: &str) -> String {
        let found = self.preflight(text);
        let [one] = &found.refused[..] else { panic!("{text}: {found:?}") };
        one.to_string()
    }

    fn warned(&self, text: &str) -> String {
        let found = self.preflight(text);
        assert!(found.refused.is_empty(), "{text}: {found:?}");
        let [one] = &found.warned[..] else { panic!("{text}: {found:?}") };
        one.to_string()
    }
}

#[test]
fn what_can_start_is_found_good() {
    let place = Place::new();
    std::fs::create_dir(place.path("data")).expect("made");
    let found = place.preflight(
        "[exports.data]\npath = \"DIR/data\"\nwrite = true\nusers = [\"web\", 7]\n[access]\ngroups \
         = [\"staff\"]\n[listen]\naddress = \"127.0.0.1:0\"\n[metrics]\naddress = \"[::]:9741\"\n\
         [shards]\ncpus = [0]\n",
    );
    let Preflight { refused, warned, unseen } = &found;
    assert!(refused.is_empty() && warned.is_empty() && unseen.is_empty(), "{found:?}");
}

#[test]
fn each_thing_that_a_start_would_meet_is_found_with_its_line_and_its_cure() {
    let place = Place::new();
    std::fs::write(place.path("file"), b"").expect("written");
    std::fs::write(place.path("bad.key"), b"#\nshort\n").expect("written");
    std::fs::set_permissions(place.path("bad.key"), std::fs::Permissions::from_mode(0o600))
        .expect("ours");
    for (text, parts) in [
        (
            "[exports.data]\npath = \"DIR/none\"",
            &["piped.toml:2: `exports.data.path`", "install -d -o piped"][..],
        ),
        (
            "[exports.data]\npath = \"DIR/file\"",
            &["piped.toml:2: `exports.data.path`", "no directory"],
        ),
        ("[access]\nusers = [\"wbe\"]", &["piped.toml:2: `access.users`", "no user `wbe`"]),
        ("[access]\ngroups = [\"web\"]", &["piped.toml:2: `access.groups`", "no group `web`"]),
        (
            "[admin]\nsocket = \"DIR/a\"\nstatus_users = [\"x\"]",
            &["piped.toml:3: `admin.status_users`"],
        ),
        ("[exports.e]\npath = \"DIR\"\ngroups = [\"x\"]", &["piped.toml:3: `exports.e.groups`"]),
        (
            "[client]\nsocket = \"DIR/no/c\"",
            &["piped.toml:2: `client.socket`", "/no is not there", "install -d"],
        ),
        ("[client]\nsocket = \"DIR/file/c\"", &["piped.toml:2: `client.socket`", "no directory"]),
        ("[admin]\nsocket = \"DIR/file\"", &["piped.toml:2: `admin.socket`", "no socket"]),
        (
            "[listen]\naddress = \"192.0.2.1:7440\"\nallow_plain = [\"192.0.2.0/24\"]",
            &["piped.toml:2: `listen.address`", "no interface"],
        ),
        (
            "[metrics]\naddress = \"192.0.2.1:1\"",
            &["piped.toml:2: `metrics.address`", "no interface"],
        ),
        (
            "[shards]\ncpus = [99999]",
            &["piped.toml:2: `shards.cpus`", "CPU 99999", "this machine has 0"],
        ),
        (
            "[security]\nkey_file = \"DIR/none.key\"",
            &["piped.toml:2: `security.key_file`", "none.key", "keys generate"],
        ),
        (
            "[security]\nkey_file = \"DIR/bad.key\"",
            &["piped.toml:2: `security.key_file`", "bad.key:2 holds no private key"],
        ),
        ("[security]\nmode = \"encrypted\"", &["piped.toml:2: `security.mode`", "keys generate"]),
        ("[listen]\naddress = \"0.0.0.0:0\"", &["piped.toml:2: `listen.address`", "keys generate"]),
    ] {
        let refused = place.refused(text);
        for part in parts {
            assert!(refused.contains(part), "{text}: no `{part}` in {refused}");
        }
    }
    // Problems that do not prevent a start.
    let warned = place.warned("[limits.global]\nstaging = \"7MiB\"");
    assert!(
        warned.contains("piped.toml:2: `limits.global.staging`")
            && warned.contains("4MiB are given"),
        "{warned}"
    );
    let warned = place.warned("[node]\nstate_dir = \"DIR/no/state\"");
    assert!(warned.contains("piped.toml:2: `node.state_dir`"), "{warned}");
    let warned = place.warned("[node]\nstate_dir = \"DIR/file\"");
    assert!(
        warned.contains("piped.toml:2: `node.state_dir`") && warned.contains("no directory"),
        "{warned}"
    );
    // Several problems at once.
    let found = place.preflight(
        "[exports.a]\npath = \"/none\"\n[exports.b]\npath = \"/none\"\n[shards]\ncpus = [99998]",
    );
    assert_eq!(found.refused.len(), 3, "{found:?}");
}

#[test]
fn staging_beyond_the_machine_is_refused_before_it_is_touched() {
    let place = Place::new();
    let mut loaded = place.loaded("[limits.global]\nstaging = \"1GiB\"");
    // This is more than a configuration may ask for, on a machine that has so much.
    loaded.config.limits.global.staging = crate::quantity::Bytes::gib(1 << 20);
    let main_file = place.path("piped.toml");
    let found = preflight(&loaded, &Names::default(), &place.look(&main_file));
    let texts: Vec<String> = found.refused.iter().map(ToString::to_string).collect();
    assert!(
        texts.iter().any(|it| it.contains("piped.toml:2: `limits.global.staging`")),
        "{texts:?}"
    );
}

#[test]
fn doors_that_are_held_are_not_looked_at_and_one_left_behind_is_no_fault() {
    let place = Place::new();
    let main_file = place.path("piped.toml");
    let loaded =
        place.loaded("[client]\nsocket = \"DIR/none/c\"\n[metrics]\naddress = \"192.0.2.1:1\"");
    let look = Look {
        sockets: vec![place.path("none/c")],
        addresses: vec!["192.0.2.1:1".parse().expect("an address")],
        ..place.look(&main_file)
    };
    let found = preflight(&loaded, &Names::default(), &look);
    assert!(found.refused.is_empty(), "{found:?}");
    let look = Look {
        made: vec![place.path("none")],
        addresses: vec!["192.0.2.1:1".parse().expect("an address")],
        ..place.look(&main_file)
    };
    assert!(preflight(&loaded, &Names::default(), &look).refused.is_empty(), "the unit makes it");
    drop(UnixListener::bind(place.path("admin.sock")).expect("made"));
    assert!(place.path("admin.sock").exists());
    assert!(place.preflight("").refused.is_empty());
}

#[test]
fn an_address_that_another_program_has_is_told_unless_a_daemon_runs_beside() {
    let place = Place::new();
    for (host, key) in
        [("127.0.0.1:0", "metrics"), ("[::1]:0", "metrics"), ("127.0.0.1:0", "listen")]
    {
        let Ok(taker) = std::net::TcpListener::bind(host) else {
            eprintln!("skipped: this machine has no {host}");
            continue;
        };
        let address = taker.local_addr().expect("bound");
        let text = format!("[{key}]\naddress = \"{address}\"");
        let warned = place.warned(&text);
        let said = format!("piped.toml:2: `{key}.address`");
        assert!(warned.contains(&said) && warned.contains("another program"), "{warned}");
        // The process behind the admin socket may be the one that listens there.
        let daemon = UnixListener::bind(place.path("admin.sock")).expect("made");
        let found = place.preflight(&text);
        assert!(found.warned.is_empty() && found.refused.is_empty(), "{found:?}");
        drop((daemon, taker));
        // A stale socket belongs to nobody.
        assert!(place.preflight(&text).warned.is_empty());
        std::fs::remove_file(place.path("admin.sock")).expect("there");
    }
}

#[test]
fn what_is_closed_to_the_daemons_user_is_found_by_its_rights_and_not_by_ours() {
    let place = Place::new();
    for name in ["closed", "closed/below", "readable", "own"] {
        std::fs::create_dir(place.path(name)).expect("made");
    }
    let mode = |name: &str, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.path(name), mode).expect("ours");
    };
    mode("closed", 0o700);
    mode("readable", 0o755);
    let text = "[exports.a]\npath = \"DIR/closed/below\"\n[exports.b]\npath = \"DIR/readable\"\n\
        write = true\n[exports.c]\npath = \"DIR/closed\"\n[exports.d]\npath = \"DIR/readable\"\n";
    let user = User { uid: 4_000_001, groups: vec![4_000_001] };
    let Ok(found) = as_user(&user, || place.preflight(text)) else {
        eprintln!("skipped: only root can be another user");
        return;
    };
    let keys = |found: &[ConfigError]| -> BTreeMap<String, String> {
        found.iter().map(|it| (it.key().expect("a key").to_owned(), it.to_string())).collect()
    };
    let (refused, warned) = (keys(&found.refused), keys(&found.warned));
    let sockets = ["admin.socket", "client.socket"];
    assert_eq!(
        refused.keys().collect::<Vec<_>>(),
        ["admin.socket", "client.socket", "exports.a.path"],
        "{refused:?}"
    );
    for key in sockets {
        assert!(refused[key].contains("piped can make nothing in"), "{}", refused[key]);
    }
    assert!(refused["exports.a.path"].contains("setfacl"), "{refused:?}");
    assert_eq!(
        warned.keys().collect::<Vec<_>>(),
        ["exports.b.path", "exports.c.path"],
        "{warned:?}"
    );
    assert!(warned["exports.b.path"].contains("may make no files"), "{warned:?}");
    // Another user's view proves nothing.
    let main_file = place.path("piped.toml");
    let look = || Look { is_user: false, ..place.look(&main_file) };
    let found = as_user(&user, || preflight(&place.loaded(text), &Names::default(), &look()));
    let found = found.expect("as before");
    assert!(found.refused.is_empty() && found.warned.is_empty(), "{found:?}");
    assert_eq!(found.unseen.len(), 3, "{found:?}");
    // The owner sees no fault.
    let found = place.preflight(text);
    assert!(found.refused.is_empty(), "{found:?}");
}

#[test]
fn ranges_of_cpus_are_read_as_the_kernel_writes_them() {
    assert_eq!(parse_ranges("0-3,8\n"), Some(vec![(0, 3), (8, 8)]));
    assert_eq!(parse_ranges("0\n"), Some(vec![(0, 0)]));
    assert_eq!(parse_ranges(""), None);
}
