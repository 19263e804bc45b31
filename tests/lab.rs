//! `pipectl lab`, with real daemons: all nodes reach all others, each by its own door; and whatever
//! ends it, nothing stays.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use piped_client::OpenOptions;
use piped_netns::namespace;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use system_tests::process::{Programs, Running, eventually, processes_below, words};
use system_tests::user::Who;

/// A lab in a directory of this test.
struct Scene {
    programs: Programs,
    /// Where it is; made by `up`.
    directory: PathBuf,
    parent: tempfile::TempDir,
}

impl Scene {
    fn new() -> Option<Self> {
        Programs::find().map(Self::of)
    }

    fn of(programs: Programs) -> Self {
        let parent = tempfile::tempdir().expect("a directory");
        Self { programs, directory: parent.path().join("lab"), parent }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.programs.pipectl();
        command.arg("lab").arg("--dir").arg(&self.directory).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str], code: i32) -> Output {
        let output = self.command(arguments).output().expect("pipectl starts");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", words(&output));
        output
    }

    fn json(&self, arguments: &[&str], code: i32) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat(), code);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", words(&output)))
    }

    /// Beginning of the names of its namespaces: a tag that follows from its path.
    fn prefix(&self) -> String {
        let tag = blake3::hash(self.directory.as_os_str().as_encoded_bytes()).to_hex();
        format!("piped-lab-{}-", &tag.as_str()[..8])
    }

    fn namespaces(&self) -> Vec<String> {
        namespace::with_prefix(&self.prefix()).expect("readable")
    }

    fn check_nothing_is_left(&self, when: &str) {
        assert_eq!(processes_below(&self.directory), Vec::<u32>::new(), "daemons: {when}");
        assert_eq!(self.namespaces(), Vec::<String>::new(), "{when}");
        assert!(!self.directory.exists(), "{when}");
        assert_eq!(fs::read_dir(self.parent.path()).expect("there").count(), 0, "{when}");
    }

    /// What a node reads of another one's file.
    fn reads(&self, from: &str, of: &str) -> Output {
        self.command(&["exec", from, "--", "pipectl", "cat", &format!("{of}:data/hello")])
            .output()
            .expect("pipectl starts")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.command(&["down"]).output();
    }
}

const NAMES: [&str; 3] = ["n1", "n2", "n3"];

/// From the first `up` to the last `down`. `trust`: why nodes trust each other, as `cluster status`
/// says it.
fn lives(scene: &Scene, up: &[&str], network: &str, trust: &str) {
    let made = scene.json(up, 0);
    assert_eq!(made["network"], network, "{made:#}");
    for from in NAMES {
        for of in NAMES.iter().filter(|of| **of != from) {
            let read = scene.reads(from, of);
            assert_eq!(words(&read), format!("This is {of}.\n"), "{from} of {of}");
        }
    }
    let status = scene.json(&["status"], 0);
    for node in status["nodes"].as_array().expect("a list") {
        let others = node["view"]["others"].as_array().expect("a list");
        assert_eq!(others.len(), 2, "{node:#}");
        for other in others {
            let said = (&other["contact"], &other["trust"], &other["source"]);
            assert_eq!(said, (&"up".into(), &trust.into(), &"files".into()), "{node:#}");
            assert!(other["heard_seconds_ago"].as_f64().is_some_and(|it| it < 60.0), "{node:#}");
        }
    }
    // Where a node is, a command is, too.
    let link = ["exec", "n2", "--", "readlink", "/proc/self/ns/net"];
    let inside = String::from_utf8(scene.run(&link, 0).stdout).expect("text");
    let outside = fs::read_link("/proc/self/ns/net").expect("a namespace");
    assert_eq!(inside.trim() == outside.to_string_lossy(), network == "loopback");
    let exits = scene.command(&["exec", "n2", "sh", "-c", "exit 9"]).output().expect("started");
    assert_eq!(exits.status.code(), Some(9));
    check_trust(scene, trust);
    a_node_that_stops_is_missed(scene);
    // What is there is said, and nothing else is made of it.
    assert_eq!(scene.json(up, 0)["started"], Value::Array(Vec::new()));
    let other = scene.run(&["up", "-n", "5"], 4);
    assert!(words(&other).contains("3 nodes, not 5"), "{}", words(&other));
    scene.run(&["exec", "n4", "true"], 6);
    let down = words(&scene.run(&["down"], 0));
    assert!(down.contains("Removed: ") && down.contains("n1 (pid "), "{down}");
    scene.check_nothing_is_left("down");
    assert!(words(&scene.run(&["down"], 0)).contains("no lab"));
    scene.run(&["status"], 6);
    scene.check_nothing_is_left("down again");
}

/// What nodes have on the disk and say of it is what their trust is made of.
fn check_trust(scene: &Scene, trust: &str) {
    for node in NAMES {
        let file = |name: &str| scene.directory.join(node).join(name);
        let conf_d =
            fs::read_dir(file("conf.d")).expect("there").map(|it| it.expect("read").path());
        let text: String = conf_d.map(|it| fs::read_to_string(it).expect("text")).collect();
        if trust == "key" {
            assert!(text.contains("[peers.") && !text.contains("cluster"), "{text}");
            assert!(!file("node.certificate").exists() && !file("cluster.key").exists());
            continue;
        }
        assert!(!text.contains("peers"), "{text}");
        assert!(file("node.certificate").exists());
        let key = file("cluster.key").metadata();
        if node == NAMES[0] {
            assert_eq!(key.expect("there").permissions().mode() & 0o777, 0o600);
        } else {
            assert!(key.is_err(), "it is at the first node only");
        }
        let said = scene.command(&["exec", node, "--", "pipectl", "doctor", "--json"]).output();
        let said = said.expect("pipectl starts").stdout;
        let said: Value = serde_json::from_slice(&said).expect("JSON");
        let findings = said["findings"].as_array().expect("a list");
        let mut of_trust: Vec<&Value> = findings.iter().collect();
        of_trust.retain(|it| it["subject"] == "certificate" || it["subject"] == "signing key");
        assert_eq!(of_trust.len(), if node == NAMES[0] { 2 } else { 1 }, "{said:#}");
        assert!(of_trust.iter().all(|it| it["level"] == "ok"), "{of_trust:#?}");
    }
}

fn a_node_that_stops_is_missed(scene: &Scene) {
    assert_eq!(words(&scene.reads("n1", "n2")), "This is n2.\n");
    scene.run(&["stop", "n2"], 0);
    assert!(words(&scene.run(&["status"], 1)).contains("n2 does not run"));
    let asked = ["exec", "n1", "--", "pipectl", "cluster", "status", "--json"];
    // It was used a moment ago, so it is missed.
    let missed = eventually("it is missed", || {
        let output = scene.command(&asked).output().expect("pipectl starts");
        (output.status.code() == Some(1)).then_some(output)
    });
    assert!(words(&missed).contains("in use and not reachable: n2"), "{}", words(&missed));
    let view: Value = serde_json::from_slice(&missed.stdout).expect("JSON");
    let n2 = &view["others"][0];
    assert_eq!((&n2["name"], &n2["contact"]), (&"n2".into(), &"down".into()), "{view:#}");
    assert!(n2["heard_seconds_ago"].is_f64(), "it was heard of before: {view:#}");
    let again = scene.json(&["up"], 0);
    assert_eq!(again["started"][0], "n2", "{again:#}");
    eventually("it is reached again", || {
        (words(&scene.reads("n1", "n2")) == "This is n2.\n").then_some(())
    });
}

#[test]
fn a_lab_in_namespaces_lives_and_leaves_nothing() {
    let Some(scene) = Scene::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: namespaces need root");
    }
    let made = scene.json(&["up"], 0);
    if made["network"] != "namespaces" {
        return eprintln!("skipped: {}", made["note"]);
    }
    assert_eq!(scene.namespaces().len(), NAMES.len() + 1);
    lives(&scene, &["up", "-n", "3"], "namespaces", "certificate");
}

#[test]
fn a_lab_on_loopback_lives_and_leaves_nothing() {
    let Some(scene) = Scene::new() else { return };
    lives(&scene, &["up", "--loopback"], "loopback", "certificate");
}

#[test]
fn nodes_of_a_lab_may_pin_each_others_keys_instead() {
    let Some(scene) = Scene::new() else { return };
    lives(&scene, &["up", "--loopback", "--pinned"], "loopback", "key");
    scene.run(&["up", "--pinned", "-n", "2"], 0);
    let refused = words(&scene.run(&["add"], 4));
    assert!(refused.contains("pin each other's keys"), "{refused}");
    // What is there is taken, and is not made another.
    assert_eq!(scene.json(&["up"], 0)["trust"], "pinned");
    scene.run(&["down"], 0);
    scene.run(&["up", "-n", "1"], 0);
    let refused = words(&scene.run(&["up", "--pinned"], 4));
    assert!(refused.contains("is a cluster") && refused.contains("lab down"), "{refused}");
    scene.run(&["down"], 0);
    scene.check_nothing_is_left("down");
}

#[test]
fn who_may_not_make_networks_has_a_lab_on_loopback_and_is_told_why() {
    let Some(programs) = Programs::find() else { return };
    let live = |scene: &Scene| {
        let made = scene.json(&["up"], 0);
        assert_eq!(made["network"], "loopback", "{made:#}");
        let note = made["note"].as_str().expect("why");
        assert!(note.contains("only root may make network namespaces"), "{note}");
        assert_eq!(words(&scene.reads("n1", "n3")), "This is n3.\n");
        scene.run(&["down"], 0);
        scene.check_nothing_is_left("down");
    };
    if !rustix::process::geteuid().is_root() {
        return live(&Scene::of(programs));
    }
    // Another user may not reach the build of root.
    let copies = tempfile::tempdir().expect("a directory");
    let open = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    };
    open(copies.path());
    let copied = |program: &Path| {
        let copy = copies.path().join(program.file_name().expect("a program"));
        fs::copy(program, &copy).expect("copied");
        open(&copy);
        copy
    };
    let (piped, pipectl) = (copied(&programs.piped), copied(&programs.pipectl));
    let scene = Scene::of(Programs { piped, pipectl });
    let who = Who::user(65534);
    std::os::unix::fs::chown(scene.parent.path(), Some(who.uid), Some(who.gid)).expect("root");
    who.does(|| live(&scene));
}

impl Scene {
    /// A command where a node is, which has to end well; what it prints.
    fn exec(&self, node: &str, arguments: &[&str]) -> String {
        let output = self.run(&[&["exec", node, "--"], arguments].concat(), 0);
        String::from_utf8(output.stdout).expect("text")
    }

    /// Waits until a node reads another one's file.
    fn reads_at_last(&self, from: &str, of: &str) {
        eventually(&format!("{from} reads of {of}"), || {
            (words(&self.reads(from, of)) == format!("This is {of}.\n")).then_some(())
        });
    }

    /// Checks that a node gets nothing of another one. A read would wait for half a minute.
    fn is_refused(&self, from: &str, of: &str) {
        let builder = piped_client::ClientBuilder::new().timeout(Duration::from_secs(1));
        let socket = self.directory.join(from).join("client.sock");
        let client = builder.connect(&socket).expect("it serves");
        let opened = client.open_export(Some(of), "data", "hello", OpenOptions::read());
        assert!(opened.is_err(), "{from} of {of}");
    }

    fn log(&self, node: &str) -> String {
        fs::read_to_string(self.directory.join(node).join("log")).expect("there")
    }
}

fn a_node_joins_and_is_revoked(scene: &Scene) {
    let added = scene.json(&["add"], 0);
    assert_eq!(added["added"], "n4", "{added:#}");
    let all = [NAMES.as_slice(), &["n4"]].concat();
    let neither = || {
        for other in NAMES {
            scene.is_refused("n4", other);
            scene.is_refused(other, "n4");
        }
    };
    // Nobody has signed its key; then a cluster of its own has.
    neither();
    scene.exec("n4", &["pipectl", "cluster", "init"]);
    scene.exec("n4", &["pipectl", "config", "reload"]);
    neither();
    let log = scene.log("n1");
    assert!(log.contains("no key of [cluster] signed it"), "{log}");
    let join = scene.exec("n1", &["pipectl", "cluster", "token", "create"]);
    let join: Vec<&str> = join.split_whitespace().collect();
    assert_eq!(join[..2], ["piped", "join"], "{join:?}");
    scene.exec("n4", &join);
    scene.exec("n4", &["pipectl", "config", "reload"]);
    for other in NAMES {
        scene.reads_at_last("n4", other);
        scene.reads_at_last(other, "n4");
    }
    // It is one of the lab.
    scene.run(&["stop", "n4", "n1"], 0);
    assert!(words(&scene.run(&["status"], 1)).contains("n4 does not run"));
    assert_eq!(scene.json(&["up"], 0)["started"].as_array().map(Vec::len), Some(2));
    let status = scene.json(&["status"], 0);
    let nodes = status["nodes"].as_array().expect("a list");
    assert_eq!(nodes.iter().map(|it| &it["name"]).collect::<Vec<_>>(), all);
    scene.reads_at_last("n4", "n1");
    let list = scene.exec("n1", &["pipectl", "cluster", "revoke", "n4"]);
    scene.is_refused("n4", "n1");
    scene.is_refused("n1", "n4");
    fs::write(scene.directory.join("nodes/revoked"), list).expect("written");
    eventually("all have heard of it", || {
        let heard = |node: &&str| scene.log(node).contains("a list of revoked keys was taken");
        ["n2", "n3"].iter().all(heard).then_some(())
    });
    neither();
    assert_eq!(words(&scene.reads("n2", "n3")), "This is n3.\n");
}

#[test]
fn a_node_that_was_added_joins_by_a_token_and_is_revoked() {
    let Some(scene) = Scene::new() else { return };
    for up in [&["up"][..], &["up", "--loopback"]] {
        scene.run(up, 0);
        a_node_joins_and_is_revoked(&scene);
        scene.run(&["down"], 0);
        scene.check_nothing_is_left("down");
    }
}

#[test]
fn a_node_of_a_lab_renews_its_certificate_at_the_first_one() {
    let Some(scene) = Scene::new() else { return };
    scene.run(&["up", "-n", "2"], 0);
    let until = || {
        let shown = scene.exec("n2", &["pipectl", "cluster", "show", "--json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        (shown["own"]["until"].as_u64().expect("a time"), shown["now"].as_u64().expect("a time"))
    };
    let key = scene.exec("n2", &["pipectl", "keys", "show"]);
    let sign = ["pipectl", "cluster", "sign", "n2", key.trim(), "--for", "15s"];
    let (first, short) = (until().0, scene.exec("n1", &sign));
    // A daemon that runs would keep the longer one, if both were signed in one second.
    scene.run(&["stop", "n2"], 0);
    fs::write(scene.directory.join("n2/node.certificate"), short).expect("written");
    scene.run(&["up"], 0);
    let (short, now) = until();
    assert!(short < first && short > now, "{short} of {first}, at {now}");
    let renewed = eventually("it is renewed", || Some(until().0).filter(|it| *it > short));
    assert!(renewed > now + 24 * 3600, "{renewed}, at {now}");
    // What it renewed is kept where it is, and counts after a start.
    let kept = scene.directory.join("n2/state/node.certificate");
    eventually("it is kept", || kept.exists().then_some(()));
    scene.run(&["stop", "n2"], 0);
    scene.run(&["up"], 0);
    assert_eq!(until().0, renewed);
    assert_eq!(words(&scene.reads("n2", "n1")), "This is n1.\n");
    scene.run(&["down"], 0);
    scene.check_nothing_is_left("down");
}

#[test]
fn what_a_killed_add_has_left_goes_with_the_next_one() {
    let Some(scene) = Scene::new() else { return };
    for moment in ["n2/node.key", "n2/log", "n2/admin.sock"] {
        scene.run(&["up", "-n", "1"], 0);
        cut_short(&scene, &["add"], moment, Signal::KILL);
        let nodes = scene.json(&["status"], 0)["nodes"].as_array().map(Vec::len);
        if nodes == Some(1) {
            assert_eq!(scene.json(&["add"], 0)["added"], "n2", "{moment}");
        }
        assert_eq!(scene.json(&["up"], 0)["nodes"].as_array().map(Vec::len), Some(2), "{moment}");
        assert_eq!(processes_below(&scene.directory.join("n2")).len(), 1, "{moment}");
        scene.run(&["down"], 0);
        scene.check_nothing_is_left(moment);
        // Ctrl-C undoes it.
        scene.run(&["up", "-n", "1"], 0);
        match cut_short(&scene, &["add"], moment, Signal::INT) {
            Some(130) => {
                assert!(!scene.directory.join("n2").exists(), "{moment}");
                assert!(!scene.directory.join("nodes/n2.toml").exists(), "{moment}");
                assert_eq!(scene.namespaces().iter().filter(|it| it.ends_with("n2")).count(), 0);
            }
            // It was ready before it heard of it.
            Some(0) => {}
            other => panic!("{moment}: {other:?}"),
        }
        scene.run(&["down"], 0);
        scene.check_nothing_is_left(moment);
    }
}

/// Moments of `up`: each is over when something is there.
const MOMENTS: [&str; 5] = ["lab.lock", "n1/node.key", "n1/cluster.key", "n1/log", "n3/admin.sock"];

/// Starts a command, and sends a signal when it has come so far; its exit code.
fn cut_short(scene: &Scene, command: &[&str], moment: &str, signal: Signal) -> Option<i32> {
    let mut up = scene.command(command);
    // A group of its own, as a shell gives it: what it starts for itself hears the signal, too.
    let mut up = Running(up.process_group(0).spawn().expect("started"));
    eventually(moment, || {
        let has_ended = up.0.try_wait().expect("ours").is_some();
        (has_ended || scene.directory.join(moment).exists()).then_some(())
    });
    let group = Pid::from_child(&up.0);
    // It may be over by now.
    let _ = kill_process_group(group, signal);
    let code = up.exit().code();
    // Programs that it started to make namespaces do not die with it.
    let helpers = || processes_below(Path::new(&scene.prefix()));
    eventually("its helpers end", || helpers().is_empty().then_some(()));
    code
}

#[test]
fn ctrl_c_in_the_middle_of_up_leaves_nothing() {
    let Some(scene) = Scene::new() else { return };
    for moment in MOMENTS {
        match cut_short(&scene, &["up"], moment, Signal::INT) {
            Some(130) => {}
            // It was ready before it heard of it.
            Some(0) => drop(scene.run(&["down"], 0)),
            other => panic!("{moment}: {other:?}"),
        }
        scene.check_nothing_is_left(moment);
    }
}

#[test]
fn what_a_killed_up_has_left_is_named_and_removed() {
    let Some(scene) = Scene::new() else { return };
    for moment in MOMENTS {
        cut_short(&scene, &["up"], moment, Signal::KILL);
        if !scene.directory.join("lab.json").exists() {
            let left = !scene.namespaces().is_empty() || scene.directory.join("n1").exists();
            let refused = scene.command(&["up"]).output().expect("pipectl starts");
            let said = words(&refused);
            assert_eq!(refused.status.success(), !left, "{moment}: {said}");
            let place = scene.directory.to_string_lossy();
            let names = said.contains("lab down") && said.contains(&*place);
            assert!(!left || names, "{moment}: {said}");
        } else {
            // All of it was written: what does not run is started.
            scene.run(&["up"], 0);
            assert_eq!(words(&scene.reads("n3", "n1")), "This is n1.\n", "{moment}");
        }
        scene.run(&["down"], 0);
        scene.check_nothing_is_left(moment);
    }
}

#[test]
fn a_lab_whose_directory_is_gone_is_found_by_its_path() {
    let Some(scene) = Scene::new() else { return };
    scene.run(&["up"], 0);
    fs::remove_dir_all(&scene.directory).expect("ours");
    let status = words(&scene.run(&["status"], 1));
    assert!(status.contains("n2 (pid ") && status.contains("lab down"), "{status}");
    scene.run(&["down"], 0);
    scene.check_nothing_is_left("down");
}

#[test]
fn a_lab_whose_networks_are_gone_is_no_lab_any_more() {
    let Some(scene) = Scene::new() else { return };
    let made = scene.json(&["up"], 0);
    if made["network"] != "namespaces" {
        return eprintln!("skipped: {}", made["note"]);
    }
    // What the start of a machine leaves of it.
    scene.run(&["stop", "n1", "n2", "n3"], 0);
    for name in scene.namespaces() {
        namespace::remove(&name).expect("root may");
    }
    let refused = words(&scene.run(&["up"], 1));
    assert!(refused.contains("network of n1 is gone") && refused.contains("lab down"), "{refused}");
    scene.run(&["down"], 0);
    scene.check_nothing_is_left("down");
}

#[test]
fn a_directory_that_is_somebodys_is_left_alone() {
    let Some(scene) = Scene::new() else { return };
    fs::create_dir(&scene.directory).expect("made");
    let file = scene.directory.join("mine");
    fs::write(&file, b"x").expect("written");
    let refused = words(&scene.run(&["up"], 4));
    assert!(refused.contains("neither empty nor a lab"), "{refused}");
    scene.run(&["down"], 0);
    assert!(file.exists());
    // An empty one is used, and given back as it was.
    fs::remove_file(&file).expect("ours");
    scene.run(&["up", "-n", "1"], 0);
    scene.run(&["down"], 0);
    assert!(fs::read_dir(&scene.directory).expect("it stays").next().is_none());
    fs::remove_dir(&scene.directory).expect("empty");
    let long = scene.parent.path().join("x".repeat(100));
    let mut command = scene.programs.pipectl();
    let output = command.args(["lab", "up", "--dir"]).arg(long).output().expect("pipectl starts");
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    scene.check_nothing_is_left("all of that");
}
