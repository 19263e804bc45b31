//! `pipectl lab`, with real daemons: all nodes reach all others, each by its own door; and whatever
//! ends it, nothing stays.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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

/// From the first `up` to the last `down`.
fn lives(scene: &Scene, up: &[&str], network: &str) {
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
            assert_eq!(said, (&"up".into(), &"key".into(), &"files".into()), "{node:#}");
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
    lives(&scene, &["up", "-n", "3"], "namespaces");
}

#[test]
fn a_lab_on_loopback_lives_and_leaves_nothing() {
    let Some(scene) = Scene::new() else { return };
    lives(&scene, &["up", "--loopback"], "loopback");
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

/// Moments of `up`: each is over when something is there.
const MOMENTS: [&str; 4] = ["lab.lock", "n1/node.key", "n1/log", "n3/admin.sock"];

/// Starts `up`, and sends a signal when it has come so far; its exit code.
fn cut_short(scene: &Scene, moment: &str, signal: Signal) -> Option<i32> {
    let mut up = scene.command(&["up"]);
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
        match cut_short(&scene, moment, Signal::INT) {
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
        cut_short(&scene, moment, Signal::KILL);
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
