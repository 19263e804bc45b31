//! What real daemons deny themselves, and what goes on working.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use piped_client::{Client, OpenOptions};
use rustix::process::Signal;
use serde_json::Value;
use system_tests::process::{Daemon, Pair, Programs, command, pattern, words};
use system_tests::user::Who;

/// Whether this kernel has Landlock; if not, the reason is printed.
fn is_sandboxed(daemon: &Daemon) -> bool {
    let status = daemon.status();
    let abi = status["sandbox"]["landlock_abi"].as_u64().expect("a number");
    if abi == 0 {
        eprintln!("skipped: {}", status["degraded"]);
    }
    abi > 0
}

/// `pipectl config reload`: whether it was taken, and what it said.
fn reload(daemon: &Daemon) -> (bool, String) {
    let output = daemon.pipectl(["config", "reload"]).output().expect("pipectl starts");
    (output.status.success(), words(&output))
}

fn append(file: &Path, text: &str) {
    let before = fs::read_to_string(file).expect("there");
    fs::write(file, format!("{before}{text}")).expect("written");
}

fn opens(daemon: &Daemon, export: &str, options: OpenOptions) -> bool {
    let client = Client::connect(daemon.client_socket()).expect("it serves");
    client.open_export(None, export, "file", options).is_ok()
}

/// A directory with a file.
fn offered(directory: &Path, name: &str) -> String {
    let path = directory.join(name);
    fs::create_dir(&path).expect("made");
    fs::write(path.join("file"), name).expect("written");
    path.display().to_string()
}

#[test]
fn every_thread_is_in_it_and_the_status_says_what_it_is() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    if !is_sandboxed(&pair.beta) {
        return;
    }
    // Openers and closers among them.
    let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
    let options = OpenOptions::read();
    let _file = client.open_export(Some("beta"), "data", "blocks", options).expect("there");
    for daemon in [&pair.alpha, &pair.beta] {
        let threads = format!("/proc/{}/task", daemon.process.0.id());
        let mut count = 0;
        for thread in fs::read_dir(threads).expect("it lives") {
            let status = thread.expect("an entry").path().join("status");
            let Ok(status) = fs::read_to_string(status) else { continue };
            // Set with it, on the thread that all others come from.
            assert!(status.contains("NoNewPrivs:\t1"), "{status}");
            count += 1;
        }
        assert!(count > 2, "{count} are not all threads");
        let report = &daemon.status()["sandbox"];
        assert_eq!(report["landlock"][0], "files", "{report}");
        assert!(daemon.log().contains("sandboxed"), "{}", daemon.log());
    }
    let shown = words(&pair.alpha.pipectl(["status"]).output().expect("pipectl starts"));
    assert!(shown.contains("sandbox: Landlock"), "{shown}");
}

/// The kernel's word on each thread; whose filter it is, the daemon says.
#[test]
fn the_daemon_filters_its_calls_unless_somebody_does() {
    let Some(programs) = Programs::find() else { return };
    let ours = fs::read_to_string("/proc/thread-self/status").expect("readable");
    let is_filtered = |status: &str| status.contains("Seccomp:\t2");
    let given = is_filtered(&ours);
    for (mode, own) in [("auto", !given), ("on", true), ("off", false)] {
        let directory = tempfile::tempdir().expect("a directory");
        let more = format!("[sandbox]\nsyscalls = \"{mode}\"\n");
        let alpha = Daemon::start(&programs, directory.path(), "alpha", &more);
        // With a session, so that there are openers.
        let _client = Client::connect(alpha.client_socket()).expect("it serves");
        let threads = format!("/proc/{}/task", alpha.process.0.id());
        for thread in fs::read_dir(threads).expect("it lives") {
            let status = thread.expect("an entry").path().join("status");
            let Ok(status) = fs::read_to_string(status) else { continue };
            assert_eq!(is_filtered(&status), own || given, "{mode}: {status}");
        }
        let report = alpha.status();
        let expected = match (own, given) {
            (true, _) => "own",
            (false, true) => "given",
            (false, false) => "none",
        };
        assert_eq!(report["sandbox"]["syscalls"], expected, "{mode}");
        let is_degraded = report["degraded"].to_string().contains("system calls: switched off");
        assert_eq!(is_degraded, expected == "none", "{report}");
        let shown = words(&alpha.pipectl(["status"]).output().expect("pipectl starts"));
        assert!(shown.contains("system calls"), "{shown}");
    }
}

/// A daemon reads drop-ins again when it is told to, by name. A name that leads outside leads
/// nowhere: what is refused is a file that its user, root here, may read.
#[test]
fn a_daemon_cannot_read_what_it_was_not_meant_to() {
    let Some(programs) = Programs::find() else { return };
    let (directory, outside) =
        (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    let target = outside.path().join("more.toml");
    fs::write(&target, "[log]\nlevel = \"debug\"\n").expect("written");
    let conf_d = directory.path().join("conf.d");
    fs::create_dir(&conf_d).expect("made");
    for (landlock, reads) in [("off", true), ("auto", false)] {
        let more = format!("[sandbox]\nlandlock = \"{landlock}\"\n");
        let alpha = Daemon::start(&programs, directory.path(), "alpha", &more);
        if !reads && !is_sandboxed(&alpha) {
            return;
        }
        symlink(&target, conf_d.join("50-more.toml")).expect("linked");
        let (taken, text) = reload(&alpha);
        assert_eq!(taken, reads, "{landlock}: {text}");
        if !reads {
            assert!(text.contains("50-more.toml") && text.contains("ermission denied"), "{text}");
        }
        fs::remove_file(conf_d.join("50-more.toml")).expect("linked");
        // What lies where configuration lies is read as before.
        fs::write(conf_d.join("60-more.toml"), "[log]\nlevel = \"warn\"\n").expect("written");
        let (taken, text) = reload(&alpha);
        assert!(taken, "{text}");
        fs::remove_file(conf_d.join("60-more.toml")).expect("written");
    }
}

#[test]
fn files_that_clients_pass_are_theirs_wherever_they_lie() {
    let Some(programs) = Programs::find() else { return };
    let (directory, outside) =
        (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    let more = "[sandbox]\nlandlock = \"auto\"\n";
    let alpha = Daemon::start(&programs, directory.path(), "alpha", more);
    let path = outside.path().join("file");
    let bytes = pattern(1 << 20);
    fs::write(&path, &bytes).expect("written");
    let client = Client::connect(alpha.client_socket()).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let file = client.open_file(&path, OpenOptions::read_write()).expect("it is there");
    let buffer = client.allocate(bytes.len()).expect("memory");
    let (mut buffer, read) = queue.read(&file, 0, buffer).expect("read");
    assert_eq!(&buffer.as_slice()[..read], &bytes);
    buffer.as_mut_slice().reverse();
    queue.write(&file, 0, buffer).expect("written");
    // Beyond its end: space is allocated.
    let buffer = client.allocate(1 << 20).expect("memory");
    queue.write(&file, 3 << 20, buffer).expect("written");
    queue.sync(&file).expect("synced");
    let found = fs::read(&path).expect("there");
    assert!(found[..1 << 20].iter().eq(bytes.iter().rev()) && found.len() == 4 << 20);
    // And so do programs that use it.
    let copy = outside.path().join("copy");
    let output = alpha.pipectl([Path::new("cp"), &path, &copy]).output().expect("pipectl starts");
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(fs::read(&copy).expect("made"), found);
}

fn keys(state: &Value) -> Vec<String> {
    let waiting = state["restart_needed"].as_array().expect("a list").iter();
    waiting.map(|change| change["key"].as_str().expect("a key").to_owned()).collect()
}

#[test]
fn what_lies_outside_waits_for_a_restart_and_says_so() {
    let Some(programs) = Programs::find() else { return };
    let (directory, outside) =
        (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    fs::create_dir(directory.path().join("conf.d")).expect("made");
    let [one, other] = ["one", "other"].map(|name| offered(outside.path(), name));
    let more = format!("[exports.one]\npath = \"{one}\"\n");
    let mut alpha = Daemon::start(&programs, directory.path(), "alpha", &more);
    if !is_sandboxed(&alpha) {
        return;
    }
    assert!(opens(&alpha, "one", OpenOptions::read()));
    let file = directory.path().join("alpha.toml");
    append(
        &file,
        &format!(
            "write = true\n[exports.other]\npath = \"{other}\"\n[planner]\nmode = \"whole\"\n"
        ),
    );
    let (taken, text) = reload(&alpha);
    assert!(taken, "{text}");
    let status = alpha.status();
    let waiting = keys(&status["config"]);
    for key in ["exports.one.write", "exports.other.path"] {
        assert!(waiting.iter().any(|it| it == key), "{key}: {waiting:?}");
    }
    assert!(text.contains("exports.other.path") && text.contains("restart"), "{text}");
    assert!(alpha.log().contains("exports.other waits for a restart"), "{}", alpha.log());
    assert_eq!(status["shards"][0]["planner"], "whole", "the rest is in effect");
    assert!(opens(&alpha, "one", OpenOptions::read()), "as before");
    assert!(!opens(&alpha, "one", OpenOptions::write()));
    assert!(!opens(&alpha, "other", OpenOptions::read()));
    // Below what is admitted another export is fine at once.
    fs::create_dir(Path::new(&one).join("below")).expect("made");
    fs::write(Path::new(&one).join("below/file"), "below").expect("written");
    append(&file, "[exports.below]\n");
    append(&file, &format!("path = \"{one}/below\"\n"));
    let (taken, text) = reload(&alpha);
    assert!(taken, "{text}");
    assert!(opens(&alpha, "below", OpenOptions::read()));
    // A restart admits all of it.
    alpha.process.signal(Signal::TERM);
    let text = fs::read_to_string(&file).expect("there");
    let more = text.split_once("pin = false\n").expect("its last key").1.to_owned();
    alpha.restart(&more);
    assert_eq!(keys(&alpha.status()["config"]), Vec::<String>::new());
    assert!(opens(&alpha, "one", OpenOptions::write()));
    assert!(opens(&alpha, "other", OpenOptions::read()));
}

#[test]
fn limits_are_kept_and_reloads_go_on() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("conf.d")).expect("made");
    let alpha = Daemon::start(&programs, directory.path(), "alpha", "");
    let output = alpha.pipectl(["limits", "set", "user.handles=7", "--persist"]).output();
    let output = output.expect("pipectl starts");
    assert!(output.status.success(), "{}", words(&output));
    let kept = fs::read_to_string(directory.path().join("conf.d/90-limits.toml")).expect("made");
    assert!(kept.contains("[limits.user]") && kept.contains("handles = 7"), "{kept}");
    // As editors do it: another file under the same name.
    let (file, new) = (directory.path().join("alpha.toml"), directory.path().join("new"));
    let text = fs::read_to_string(&file).expect("there");
    fs::write(&new, format!("{text}[planner]\nmode = \"whole\"\n")).expect("written");
    fs::rename(&new, &file).expect("replaced");
    let (taken, text) = reload(&alpha);
    assert!(taken, "{text}");
    assert_eq!(alpha.status()["shards"][0]["planner"], "whole");
}

/// The memory of a daemon, and with it its keys, is not its user's: another program of the same
/// user cannot look into it, and a crash writes none of it.
#[test]
fn programs_of_the_daemons_own_user_cannot_look_into_it() {
    const USER: u32 = 4001;
    let Some(programs) = Programs::find() else { return };
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: only root can start a daemon as another user");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    chown(directory.path(), Some(USER), Some(USER)).expect("root");
    // Where programs are may be closed to others.
    let copy = directory.path().join("piped");
    fs::copy(&programs.piped, &copy).expect("copied");
    let mut piped = command(&copy);
    piped.uid(USER).gid(USER).current_dir("/");
    let data = offered(directory.path(), "data");
    let more = format!("[exports.data]\npath = \"{data}\"\n");
    let alpha = Daemon::start_by(piped, &programs, directory.path(), "alpha", &more);
    let proc = format!("/proc/{}", alpha.process.0.id());
    let owner = |what: &str| fs::metadata(format!("{proc}/{what}")).expect("it lives").uid();
    assert_eq!(owner("fd"), 0, "only root may look: PR_SET_DUMPABLE");
    let looked = Who::user(USER).does(|| {
        ["mem", "environ", "maps"].map(|what| {
            let opened = fs::File::open(format!("{proc}/{what}"));
            (what, opened.and_then(|mut file| file.read(&mut [0; 1])).map_err(|it| it.kind()))
        })
    });
    for (what, outcome) in looked.into_iter().flatten() {
        assert_eq!(outcome, Err(ErrorKind::PermissionDenied), "{what}");
    }
    // What it looks at in its own /proc stays there for it.
    let opened = Who::user(USER).does(|| opens(&alpha, "data", OpenOptions::read()));
    assert_eq!(opened, Some(true), "{}", alpha.log());
}
