//! Files of exports on the command line (`pipectl ls`, `stat`, `rm`, `mv`, `mkdir`, `df`, `du`,
//! `cat`, `put`, and the completion of places), with real daemons: here and at a peer, good and bad.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use system_tests::process::{Daemon, Programs, Running, eventually, free_address, pattern, words};

const NOT_REACHABLE: i32 = 3;
const REFUSED: i32 = 4;
const NOT_FOUND: i32 = 6;

/// `alpha`, which is asked, has the export `own`; `beta`, its peer, has one directory as `data`,
/// as `fixed` (read only) and as `box` (not to be read).
struct World {
    alpha: Daemon,
    beta: Daemon,
    directory: tempfile::TempDir,
    /// What alpha's configuration says beside its sockets.
    settings: String,
}

impl World {
    fn new() -> Option<Self> {
        Self::with_beta(|programs, _| Some(programs.piped()))
    }

    /// `beta` makes the command that runs beta's daemon, or says that it cannot.
    fn with_beta(beta: impl FnOnce(&Programs, &Path) -> Option<Command>) -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a directory");
        let root = |name: &str| {
            let root = directory.path().join(name);
            fs::create_dir(&root).expect("made");
            root
        };
        let (own, data) = (root("own"), root("data"));
        let command = beta(&programs, &data)?;
        let address = free_address();
        let export = |name: &str, path: &Path, rights: &str| {
            format!("[exports.{name}]\npath = \"{}\"\n{rights}\n", path.display())
        };
        let all = "write = true\nnames = true";
        let settings =
            format!("[peers.beta]\naddress = \"{address}\"\n{}", export("own", &own, all));
        let there = format!(
            "[listen]\naddress = \"{address}\"\n{}{}{}",
            export("data", &data, all),
            export("fixed", &data, ""),
            export("box", &data, "read = false\nwrite = true")
        );
        let beta = Daemon::start_by(command, &programs, directory.path(), "beta", &there);
        let alpha = Daemon::start(&programs, directory.path(), "alpha", &settings);
        alpha.await_lanes();
        Some(Self { alpha, beta, directory, settings })
    }

    /// Where something below `own` or `data` lies.
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("below")).expect("made");
        fs::write(path, bytes).expect("written");
    }

    fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        self.alpha.pipectl(arguments)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("pipectl starts")
    }

    /// What it prints when it does well.
    fn told(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let log = || self.beta.log();
        assert!(output.status.success(), "{arguments:?}: {}\n{}", words(&output), log());
        assert!(output.stderr.is_empty(), "{arguments:?}: {}", words(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    fn lines(&self, arguments: &[&str]) -> Vec<String> {
        self.told(arguments).lines().map(str::to_owned).collect()
    }

    /// How it fails; what it prints of what it could do.
    fn fails(&self, arguments: &[&str], code: i32, word: &str) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", words(&output));
        assert!(stderr.contains(word), "{arguments:?}: {word} is not in {stderr}");
        assert!(stderr.starts_with("pipectl: ") || stderr.starts_with("error: "), "{stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What it prints on a terminal; none where no terminal can be made.
    fn on_terminal(&self, arguments: &str, columns: Option<usize>) -> Option<String> {
        let program = self.command([""; 0]).get_program().to_owned();
        let line = format!("{} {arguments}", Path::new(&program).display());
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
        command.env("PIPED_CLIENT_SOCKET", self.alpha.client_socket()).env_remove("COLUMNS");
        command.envs(columns.map(|columns| ("COLUMNS", columns.to_string())));
        match command.output() {
            Ok(output) => Some(String::from_utf8_lossy(&output.stdout).replace('\r', "")),
            Err(error) => {
                eprintln!("skipped: no terminal can be made ({error})");
                None
            }
        }
    }

    /// Names in a directory of the world.
    fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).expect("there");
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = entries.map(|entry| name(entry.expect("read"))).collect();
        names.sort();
        names
    }
}

#[test]
fn ls_shows_names_sorted_marked_and_escaped() {
    let Some(world) = World::new() else { return };
    for (name, length) in [("b.log", 3), ("a.log", 2048), (".hidden", 1), ("sub/deep/c.log", 7)] {
        world.write(&format!("data/{name}"), &pattern(length));
    }
    symlink("a.log", world.path("data/link")).expect("linked");
    assert_eq!(world.lines(&["ls", "beta:data"]), ["a.log", "b.log", "link", "sub/"]);
    assert_eq!(world.lines(&["ls", "-a", "beta:data/"])[0], ".hidden");
    assert_eq!(world.lines(&["ls", "beta:data/a.log"]), ["beta:data/a.log"]);
    assert_eq!(world.lines(&["ls", "beta:data/link"]), ["beta:data/link"]);
    assert_eq!(world.lines(&["ls", "beta:data/sub//deep/"]), ["c.log"]);
    let several = world.lines(&["ls", "beta:data/sub", ":own", "beta:data/b.log"]);
    assert_eq!(
        several,
        ["beta:data/b.log", "", "beta:data/sub:", "deep/", "", ":own/:"],
        "files first"
    );
    let tree = world.lines(&["ls", "-R", "beta:data"]);
    let headings: Vec<&String> = tree.iter().filter(|line| line.ends_with(':')).collect();
    assert_eq!(headings, ["beta:data/:", "beta:data/sub:", "beta:data/sub/deep:"]);
    assert_eq!(tree.last().map(String::as_str), Some("c.log"));

    let permissions = fs::Permissions::from_mode(0o644);
    fs::set_permissions(world.path("data/a.log"), permissions).expect("ours");
    let long = world.lines(&["ls", "-l", "beta:data"]);
    let mtime = fs::metadata(world.path("data/a.log")).expect("there").mtime();
    assert!(long[0].starts_with("-rw-r--r--  2.0K ") && long[0].ends_with(" a.log"), "{long:?}");
    assert!(long[2].starts_with('l') && long[3].starts_with('d'), "{long:?}");
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%d %H:%M", "-d", &format!("@{mtime}")]);
    let date = String::from_utf8(date.output().expect("it is part of every system").stdout);
    let date = date.expect("text");
    assert!(long[0].contains(&format!(" {} ", date.trim())), "{date} is not in {long:?}");

    // Names that a terminal would obey, and names that are no text.
    for name in [&b"two\nlines"[..], b"clear\x1b[2J", b"latin-\xe9"] {
        File::create(world.path("data/sub").join(OsStr::from_bytes(name))).expect("made");
    }
    let escaped = ["clear\\u{1b}[2J", "deep/", "latin-\\xe9", "two\\nlines"];
    assert_eq!(world.lines(&["ls", "beta:data/sub"]), escaped);
    let json = world.alpha.json(&["ls", "beta:data/sub"]);
    let entries = json["entries"].as_array().expect("a list");
    assert_eq!(entries[0]["name"], "clear\u{1b}[2J");
    assert_eq!(entries[2]["name_bytes"], "6c6174696e2de9");
    assert_eq!(
        (&entries[1]["kind"], &entries[1]["name_bytes"]),
        (&"directory".into(), &Value::Null)
    );
    assert_eq!(entries[3]["bytes"], 0);
    // A pattern leads to them, too.
    assert_eq!(world.lines(&["ls", "beta:data/sub/lat*"]), ["beta:data/sub/latin-\\xe9"]);
    // They can be removed by whoever wants to be rid of them, and none is made.
    let removed = world.alpha.json(&["rm", "-r", "beta:data/sub"]);
    assert_eq!(removed["removed_files"], 4, "{removed}");
    world.fails(&["mkdir", "beta:data/two\nlines"], REFUSED, "two\\nlines");
}

#[test]
fn ls_without_an_export_says_what_there_is() {
    let Some(world) = World::new() else { return };
    let listed = world.command(["ls"]).env("COLUMNS", "80").output().expect("ran");
    assert_eq!(listed.stdout, b":own/\nbeta:\n");
    assert_eq!(world.lines(&["ls", ":"]), [":own/"]);
    let json = world.alpha.json(&["ls"]);
    assert_eq!((&json["exports"][0], &json["peers"][0]), (&"own".into(), &"beta".into()));
    world.fails(&["ls", "beta:"], 2, "`pipectl exports` on beta");
    world.fails(&["rm", "beta:"], 2, "names no export");
    for words in [&["ls", "beta:data", ":"][..], &["ls", ":", "beta:data"]] {
        assert_eq!(world.fails(words, 2, ": names no export"), "");
    }
    world.fails(&["stat", "beta:data/x", "1"], 2, "places, or numbers");
}

#[test]
fn ten_thousand_names_in_columns_and_as_json() {
    let Some(world) = World::new() else { return };
    for number in 0..10_000 {
        File::create(world.path(&format!("own/name-{number:05}"))).expect("made");
    }
    fs::create_dir(world.path("data/many")).expect("made");
    for number in 0..10_000 {
        File::create(world.path(&format!("data/many/name-{number:05}"))).expect("made");
    }
    for place in [":own", "beta:data/many"] {
        let lines = world.lines(&["ls", place]);
        let expected: Vec<String> = (0..10_000).map(|number| format!("name-{number:05}")).collect();
        assert_eq!(lines, expected, "{place}");
        for (width, columns) in [(40, 3), (120, 10)] {
            // A pipe has none, whatever width the shell exports.
            let mut command = world.command(["ls", place]);
            let output = command.env("COLUMNS", width.to_string()).output().expect("ran");
            let text = String::from_utf8(output.stdout).expect("text");
            assert!(text.lines().eq(&expected), "{place}");
            let terminal = |arguments: &str| world.on_terminal(arguments, Some(width));
            let Some(text) = terminal(&format!("ls {place}")) else { continue };
            let first = text.lines().next().expect("a line");
            assert_eq!(first.split_whitespace().count(), columns, "{width}: {first}");
            assert!(text.lines().all(|line| line.len() <= width), "{width}");
            assert_eq!(text.split_whitespace().count(), 10_000);
            let one = terminal(&format!("ls -1 {place}")).expect("as before");
            assert_eq!(one.lines().count(), 10_000);
        }
        let json = world.alpha.json(&["ls", place]);
        let entries = json["entries"].as_array().expect("a list");
        assert_eq!(entries.len(), 10_000);
        assert!(entries.iter().all(|it| it["kind"] == "file" && it["bytes"] == 0));
    }
    assert_eq!(world.lines(&["ls", "beta:data/many/*-0999?"]).len(), 10);
    world.told(&["rm", "beta:data/many/*"]);
    assert_eq!(world.names("data/many"), [""; 0]);
    let du = world.alpha.json(&["du", "-s", ":own"]);
    assert_eq!(du["places"][0]["files"], 10_000);
}

#[test]
fn stat_says_what_the_kernel_says() {
    let Some(world) = World::new() else { return };
    world.write("data/file", &pattern(5000));
    let permissions = fs::Permissions::from_mode(0o640);
    fs::set_permissions(world.path("data/file"), permissions).expect("ours");
    fs::hard_link(world.path("data/file"), world.path("data/again")).expect("linked");
    let facts = fs::metadata(world.path("data/file")).expect("there");
    let json = world.alpha.json(&["stat", "beta:data/file", "beta:data/"]);
    let file = &json["files"][0];
    for (field, value) in [
        ("bytes", facts.len()),
        ("allocated_bytes", facts.blocks() * 512),
        ("links", 2),
        ("inode", facts.ino()),
        ("user", facts.uid().into()),
        ("group", facts.gid().into()),
    ] {
        assert_eq!(file[field], value, "{field} of {file}");
    }
    assert_eq!((&file["mode"], &file["kind"]), (&"0640".into(), &"file".into()));
    assert_eq!(file["modified"]["seconds_since_1970"], facts.mtime());
    assert_eq!(file["modified"]["nanoseconds"], facts.mtime_nsec());
    assert_eq!(json["files"][1]["kind"], "directory");
    let text = world.told(&["stat", "beta:data/file"]);
    for line in ["place      beta:data/file", "mode       0640 (-rw-r-----)", "links      2"] {
        assert!(text.contains(&format!("{line}\n")), "{line} is not in {text}");
    }
    assert!(text.contains("4.88 KiB (5 000 bytes)"), "{text}");
    // What it was before goes on.
    assert_eq!(world.alpha.json(&["stat"])["since_start"], true);
    assert_eq!(world.lines(&["stat", "0.01", "2"]).len(), 4);
}

#[test]
fn names_are_made_changed_and_removed() {
    let Some(world) = World::new() else { return };
    for (root, at) in [("data", "beta:data"), ("own", ":own")] {
        let place = |name: &str| format!("{at}/{name}");
        world.told(&["mkdir", "-m", "711", &place("one"), &place("two")]);
        let mode = fs::metadata(world.path(&format!("{root}/one"))).expect("made").mode();
        assert_eq!(mode & 0o777 & !0o711, 0, "less the umask: {mode:o}");
        world.fails(&["mkdir", &place("one")], REFUSED, "already");
        world.fails(&["mkdir", &place("a/b/c")], NOT_FOUND, "a/b/c");
        world.told(&["mkdir", "-p", &place("a/b/c"), &place("one")]);
        for (name, bytes) in [("x", b"x"), ("y", b"y")] {
            world.write(&format!("{root}/{name}"), bytes);
        }
        let read = |name: &str| fs::read(world.path(&format!("{root}/{name}"))).expect(name);
        world.fails(&["mv", "-n", &place("x"), &place("y")], REFUSED, "already");
        world.told(&["mv", "--exchange", &place("x"), &place("y")]);
        assert_eq!((read("x"), read("y")), (b"y".to_vec(), b"x".to_vec()));
        world.told(&["mv", "--no-sync", &place("x"), &place("y")]);
        assert_eq!(read("y"), b"y");
        world.told(&["mv", &place("y"), &place("two"), &place("a/b")]);
        assert_eq!(world.names(&format!("{root}/a/b")), ["c", "two", "y"]);
        world.fails(&["mv", &place("one"), &place("a"), &place("z")], 2, "no directory");
        world.fails(&["mv", &place("gone"), &place("z")], NOT_FOUND, "gone");

        world.fails(&["rm", &place("a")], REFUSED, "pipectl rm -r");
        world.fails(&["rm", &place("gone")], NOT_FOUND, "no such file or directory");
        world.told(&["rm", "-f", &place("gone"), &place("no*ne")]);
        world.fails(&["rm", "-r", &place("")], REFUSED, "is an export");
        // What a link leads to stays.
        world.write("kept/file", b"kept");
        symlink(world.path("kept"), world.path(&format!("{root}/a/link"))).expect("linked");
        let removed = world.alpha.json(&["rm", "-r", &place("a")]);
        assert_eq!(
            (&removed["removed_files"], &removed["removed_directories"]),
            (&2.into(), &4.into())
        );
        assert_eq!(world.names("kept"), ["file"]);
        assert_eq!(world.names(root), ["one"]);
        // One failure does not keep others from being removed.
        world.write(&format!("{root}/last"), b"");
        world.fails(&["rm", &place("gone"), &place("one"), &place("last")], REFUSED, "gone");
        assert_eq!(world.names(root), ["one"]);
    }
    world.write("data/f", b"");
    world.fails(&["mv", "beta:data/f", ":own/f"], REFUSED, "pipectl cp");
    world.fails(&["mv", "beta:data", "beta:data/f"], REFUSED, "is an export");
}

#[test]
fn patterns_stand_for_what_has_them() {
    let Some(world) = World::new() else { return };
    for name in ["a1.log", "a2.log", "b1.log", "a[1].txt", ".a3.log", "d1/x.log", "d2/y", "d3"] {
        world.write(&format!("data/{name}"), b"");
    }
    let found = |operand: &str| world.lines(&["ls", operand]);
    assert_eq!(found("beta:data/a?.log"), ["beta:data/a1.log", "beta:data/a2.log"]);
    assert_eq!(found("beta:data/[!a]1.log"), ["beta:data/b1.log"]);
    assert_eq!(found("beta:data/d*/*.log"), ["beta:data/d1/x.log"]);
    assert_eq!(found("beta:data/d*/y"), ["beta:data/d2/y"]);
    assert_eq!(found("beta:data/.a*"), ["beta:data/.a3.log"]);
    assert_eq!(found("beta:data/a\\[1\\].txt"), ["beta:data/a[1].txt"]);
    // One that nothing has is a name.
    assert_eq!(found("beta:data/a[1].txt"), ["beta:data/a[1].txt"]);
    world.fails(&["ls", "beta:data/*.none"], NOT_FOUND, "*.none");
    world.fails(&["mkdir", "beta:data/*"], 2, "pattern");
    world.told(&["rm", "beta:data/a*"]);
    assert_eq!(world.names("data"), [".a3.log", "b1.log", "d1", "d2", "d3"]);

    // With a slash at its end it stands for directories, and for links to them.
    symlink("d1", world.path("data/d4")).expect("linked");
    symlink("d3", world.path("data/d5")).expect("linked");
    symlink("/etc", world.path("data/d6")).expect("linked");
    fs::create_dir(world.path("data/e1")).expect("made");
    world.write("data/d1/y", b"");
    let directories = ["beta:data/d1:", "x.log", "y", "", "beta:data/d2:", "y", ""];
    assert_eq!(found("beta:data/d*/")[..7], directories);
    assert_eq!(found("beta:data/d*/")[7..], ["beta:data/d4:", "x.log", "y"]);
    assert_eq!(found("beta:data/*/y").len(), 3, "a file is in them");
    world.fails(&["ls", "beta:data/*/y/"], NOT_FOUND, "*/y");
    world.fails(&["mv", "beta:data/b1.log", "beta:data/d3*/"], NOT_FOUND, "d3*");
    world.told(&["mv", "beta:data/b1.log", "beta:data/e*/"]);
    assert_eq!(world.names("data/e1"), ["b1.log"]);
    world.fails(&["rm", "beta:data/d3/"], REFUSED, "d3 is no directory");
    world.fails(&["rm", "-r", "beta:data/d*/"], REFUSED, "d4 is no directory");
    world.told(&["rm", "-f", "beta:data/d1/", "beta:data/none/"]);
    assert_eq!(world.names("data"), [".a3.log", "d3", "d4", "d5", "d6", "e1"]);
}

#[test]
fn mv_leads_through_links_and_names_what_is_wrong() {
    let Some(world) = World::new() else { return };
    for (root, at) in [("data", "beta:data"), ("own", ":own")] {
        let place = |name: &str| format!("{at}/{name}");
        for name in ["x", "y", "z", "sub/deep/file"] {
            world.write(&format!("{root}/{name}"), name.as_bytes());
        }
        let links =
            [("sub/deep", "inner"), ("nothing", "dangling"), ("/etc", "out"), ("y", "to-y")];
        for (to, name) in links {
            symlink(to, world.path(&format!("{root}/{name}"))).expect("linked");
        }
        world.told(&["mv", &place("x"), &place("inner")]);
        assert_eq!(world.names(&format!("{root}/sub/deep")), ["file", "x"]);
        assert!(world.path(&format!("{root}/inner")).is_symlink());
        // Whether one that leads out is a directory cannot be known.
        world.fails(&["mv", &place("y"), &place("out")], REFUSED, &place("out"));
        world.told(&["mv", &place("z"), &place("dangling")]);
        world.told(&["mv", &place("dangling"), &place("to-y")]);
        assert_eq!(fs::read(world.path(&format!("{root}/to-y"))).expect("there"), b"z");
        assert_eq!(world.names(root), ["inner", "out", "sub", "to-y", "y"]);

        let fails = |from: &str, to: &str, code, words: &[&str]| {
            for word in words {
                world.fails(&["mv", &place(from), &place(to)], code, word);
            }
        };
        fails("y", "new/y", NOT_FOUND, &[&format!("pipectl: {}: no such", place("new"))]);
        fails("y", "to-y/", REFUSED, &[&format!("pipectl: {}: a part", place("to-y"))]);
        fails("gone", "new/y", NOT_FOUND, &[&format!("pipectl: {}: no such", place("gone"))]);
        fails("sub", "sub/deep/sub", REFUSED, &["sub and ", "/sub/deep/sub: ", "below itself"]);
        let long = "n".repeat(300);
        fails(&long, "new", REFUSED, &[&format!("{long} and "), "/new: ", "too long"]);
    }
}

#[test]
fn a_daemon_that_goes_leaves_the_rest_of_a_tree() {
    let Some(mut world) = World::new() else { return };
    // What is said of all of them fills a pipe several times.
    for number in 0..3000 {
        fs::create_dir_all(world.path(&format!("own/many/{number:0100}"))).expect("made");
    }
    let begin = |world: &World, arguments: &[&str]| {
        let mut command = world.command(arguments);
        let errors = File::create(world.path("errors")).expect("made");
        Running(command.stderr(errors).spawn().expect("started"))
    };
    let ends = |world: &mut World, mut running: Running, arguments: &[&str]| {
        world.alpha.process.signal(Signal::KILL);
        std::io::read_to_string(running.0.stdout.take().expect("a pipe")).expect("text");
        assert_eq!(running.exit().code(), Some(NOT_REACHABLE), "{arguments:?}");
        let errors = fs::read_to_string(world.path("errors")).expect("text");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        let settings = world.settings.clone();
        world.alpha.restart(&settings);
    };
    for arguments in [&["du", ":own/many"][..], &["ls", "-R", ":own/many"]] {
        let mut running = begin(&world, arguments);
        // It cannot end before the daemon does: nobody reads more of it until then.
        let stdout = running.0.stdout.as_mut().expect("a pipe");
        stdout.read_exact(&mut [0; 100]).expect("some of it");
        ends(&mut world, running, arguments);
    }
    let arguments = ["rm", "-r", ":own/files"];
    // Until the daemon is stopped in the middle.
    let running = loop {
        for number in 0..20_000 {
            world.write(&format!("own/files/{number:05}"), b"");
        }
        let mut running = begin(&world, &arguments);
        let first = world.path("own/files/00000");
        eventually("it removes", || (!first.exists()).then_some(()));
        world.alpha.process.freeze();
        if world.path("own/files").exists() && world.names("own/files").len() > 100 {
            break running;
        }
        world.alpha.process.signal(Signal::CONT);
        running.exit();
    };
    ends(&mut world, running, &arguments);
}

#[test]
fn df_and_du_count_as_the_kernel_does() {
    let Some(world) = World::new() else { return };
    world.write("data/top", &pattern(10_000));
    world.write("data/sub/one", &pattern(100_000));
    world.write("data/sub/deep/two", &pattern(5));
    fs::hard_link(world.path("data/top"), world.path("data/sub/top")).expect("linked");
    let hole = File::create(world.path("data/hole")).expect("made");
    hole.set_len(1 << 30).expect("longer");
    let blocks = |names: &[&str]| -> u64 {
        let of = |name: &&str| fs::metadata(world.path(name)).expect("there").blocks() * 512;
        names.iter().map(of).sum()
    };
    let deep = blocks(&["data/sub/deep", "data/sub/deep/two"]);
    let sub = deep + blocks(&["data/sub", "data/sub/one", "data/top"]);
    let all = sub + blocks(&["data", "data/hole"]);
    let json = world.alpha.json(&["du", "beta:data"]);
    let rows = json["places"].as_array().expect("a list");
    let row =
        |number: usize| (rows[number]["place"].as_str(), rows[number]["allocated_bytes"].as_u64());
    assert_eq!(row(0), (Some("beta:data/sub/deep"), Some(deep)));
    assert_eq!(row(2), (Some("beta:data/"), Some(all)), "a file with two names counts once");
    assert_eq!(rows[2]["files"], 4);
    assert_eq!(world.lines(&["du", "-s", "beta:data"]).len(), 1);
    assert_eq!(world.lines(&["du", "-d", "1", "beta:data"]).len(), 2);
    assert_eq!(world.lines(&["du", "beta:data/*"]).len(), 4, "each operand, and deep");

    let space = rustix::fs::statvfs(world.path("data")).expect("a file system");
    let json = world.alpha.json(&["df", "beta:data", "beta:box", "beta:data/sub/one"]);
    for place in json["places"].as_array().expect("a list") {
        assert_eq!(place["total_bytes"], space.f_blocks * space.f_frsize, "{place}");
    }
    assert_eq!(world.alpha.json(&["df"])["places"][0]["place"], ":own/");
    let table = |width: &str| {
        let mut command = world.command(["df", "beta:data"]);
        let output = command.env("COLUMNS", width).output().expect("ran");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(table("120").lines().count(), 2, "{}", table("120"));
    assert!(table("40").lines().all(|line| line.chars().count() <= 40), "{}", table("40"));
    let latin = OsStr::from_bytes(b"latin-\xe9");
    fs::create_dir(world.path("data").join(latin)).expect("made");
    let lines = world.lines(&["df", "beta:data/latin*"]);
    assert!(lines[1].starts_with("beta:data/latin-\\xe9 "), "as every command shows it: {lines:?}");
}

#[test]
fn cat_gives_the_bytes_and_terminals_obey_none_of_them() {
    let Some(world) = World::new() else { return };
    let long = pattern(3 * (1 << 20) + 17);
    for at in ["own", "data"] {
        world.write(&format!("{at}/long"), &long);
        world.write(&format!("{at}/text"), b"one \x1b[2J\ntwo\n");
        world.write(&format!("{at}/empty"), b"");
    }
    for at in [":own", "beta:data"] {
        let cat = |arguments: &[&str]| {
            let output = world.run(&[&["cat"], arguments].concat());
            assert!(output.status.success(), "{}", words(&output));
            output.stdout
        };
        let (long_place, text) = (format!("{at}/long"), format!("{at}/text"));
        assert!(cat(&[&long_place]) == long);
        let part = &["--offset", "1MiB", "--length", "4097", &long_place];
        assert!(cat(part) == long[1 << 20..][..4097]);
        assert!(cat(&["--offset", "1GiB", &long_place]).is_empty());
        assert_eq!(cat(&[&text, &format!("{at}/empty"), &text]).len(), 26);
        world.fails(&["cat", &format!("{at}/none"), &text], NOT_FOUND, "none");
        world.fails(&["cat", at], REFUSED, "");
        world.fails(&["cat", "--json", &text], 2, "--json");
    }
    if let Some(text) = world.on_terminal("cat beta:data/text", None) {
        assert_eq!(text, "one \\u{1b}[2J\ntwo\n");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let Some(world) = World::new() else { return };
    world.write("data/long", &pattern(32 << 20));
    for number in 0..20_000 {
        File::create(world.path(&format!("own/a-name-that-is-long-{number}"))).expect("made");
    }
    for arguments in [&["cat", "beta:data/long"][..], &["ls", ":own"], &["ls", "-l", ":own"]] {
        let mut running = Running(world.command(arguments).spawn().expect("started"));
        let mut stdout = running.0.stdout.take().expect("a pipe");
        stdout.read_exact(&mut [0; 100]).expect("some of it");
        drop(stdout);
        let status = running.exit();
        let stderr = std::io::read_to_string(running.0.stderr.take().expect("a pipe"));
        assert!(status.success(), "{arguments:?}: {status}");
        assert_eq!(stderr.expect("text"), "", "{arguments:?}");
    }
}

#[test]
fn put_is_whole_or_nothing() {
    let Some(world) = World::new() else { return };
    let long = pattern(5 * (1 << 20) + 3);
    world.write("source", &long);
    let source = world.path("source").display().to_string();
    for (root, at) in [("data", "beta:data"), ("own", ":own")] {
        let place = |name: &str| format!("{at}/{name}");
        let file = |name: &str| world.path(&format!("{root}/{name}"));
        let put = |place: &str, input: &[u8], more: &[&str]| {
            let mut command = world.command([&["put", "-", place], more].concat());
            let mut running = Running(command.stdin(Stdio::piped()).spawn().expect("started"));
            match running.0.stdin.take().expect("a pipe").write_all(input) {
                // One that is refused need not read.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                written => written.expect("it reads"),
            }
            running.exit()
        };
        assert!(put(&place("new"), &long, &["--mode", "600"]).success());
        assert!(fs::read(file("new")).expect("made") == long);
        assert_eq!(fs::metadata(file("new")).expect("made").mode() & 0o777, 0o600);
        assert!(put(&place("new"), b"short", &[]).success());
        assert_eq!(fs::read(file("new")).expect("there"), b"short", "nothing of the old one");
        assert_eq!(put(&place("new"), b"other", &["-n"]).code(), Some(REFUSED));
        assert!(put(&place("empty"), b"", &["--no-sync"]).success());
        assert_eq!(fs::read(file("empty")).expect("made"), b"");
        fs::create_dir(file("sub")).expect("made");
        let report = world.alpha.json(&["put", &source, &place("sub/")]);
        assert_eq!((&report["bytes"], &report["durable"]), (&long.len().into(), &true.into()));
        assert!(fs::read(file("sub/source")).expect("made") == long);
        world.fails(&["put", &source, &place("sub")], REFUSED, "sub/");
        world.fails(&["put", "-", &place("sub/")], 2, &place("sub/NAME"));
        world.fails(&["put", "-", at], 2, &place("NAME"));
        world.fails(&["put", &source, &place("none/f")], NOT_FOUND, "none/f");
        world.fails(&["put", "/nonexistent", &place("f")], NOT_FOUND, "/nonexistent");
        // A source that fails in the middle leaves what was there.
        let directory = world.path(root).display().to_string();
        world.fails(&["put", &directory, &place("new")], 1, "directory");
        assert_eq!(fs::read(file("new")).expect("there"), b"short");
        // So does a signal, and the file beside goes.
        let mut command = world.command(["put", "-", &place("new")]);
        let mut running = Running(command.stdin(Stdio::piped()).spawn().expect("started"));
        let mut input = running.0.stdin.take().expect("a pipe");
        input.write_all(&long).expect("it reads");
        eventually("it writes", || {
            let names = world.names(root);
            names.iter().any(|name| name.starts_with(".piped-put-")).then_some(())
        });
        running.signal(Signal::INT);
        assert_eq!(running.exit().code(), Some(130));
        drop(input);
        assert_eq!(fs::read(file("new")).expect("there"), b"short");
        assert_eq!(world.names(root), ["empty", "new", "sub"]);
    }
    // One also ends the wait for a pipe that nobody writes, before any is caught.
    let pipe = world.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("it is part of every system");
    assert!(made.success());
    let pipe = pipe.display().to_string();
    let mut running =
        Running(world.command(["put", &pipe, ":own/piped"]).spawn().expect("started"));
    let stat = format!("/proc/{}/stat", running.0.id());
    eventually("it sleeps", || {
        let stat = fs::read_to_string(&stat).expect("it lives");
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S')).then_some(())
    });
    // A shell has what it starts in the background ignore Ctrl-C, and so it may be here.
    running.signal(Signal::TERM);
    assert_eq!(running.exit().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn what_is_not_there_or_not_allowed_is_told_apart() {
    let Some(world) = World::new() else { return };
    world.write("data/file", b"");
    let all: [&[&str]; 9] = [
        &["ls", "PLACE"],
        &["stat", "PLACE"],
        &["rm", "PLACE"],
        &["mv", "PLACE", "PLACE2"],
        &["mkdir", "PLACE"],
        &["df", "PLACE"],
        &["du", "PLACE"],
        &["cat", "PLACE"],
        &["put", "/dev/null", "PLACE"],
    ];
    let at = |arguments: &[&str], place: &str| -> Vec<String> {
        arguments.iter().map(|word| word.replace("PLACE", place)).collect()
    };
    let fails = |arguments: &[String], code, word: &str| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        world.fails(&arguments, code, word);
    };
    for arguments in all {
        fails(&at(arguments, "beta:none/file"), NOT_FOUND, "no export `none`");
        fails(&at(arguments, ":none/file"), NOT_FOUND, "no export `none`");
        fails(&at(arguments, "nobody:data/file"), NOT_FOUND, "nobody");
        fails(&at(arguments, "/tmp/file"), 2, "PEER:EXPORT/PATH");
        let changes = ["rm", "mv", "mkdir", "put"].contains(&arguments[0]);
        let (code, word) = if changes { (REFUSED, "names") } else { (NOT_FOUND, "no such") };
        fails(&at(arguments, "beta:fixed/gone"), code, word);
        if arguments[0] != "df" {
            fails(&at(arguments, "beta:box/file"), REFUSED, "box");
            fails(&at(arguments, "beta:data/../own/file"), REFUSED, "own/file");
        }
    }
    // A link that leads out is a name, and nothing more.
    symlink("/etc", world.path("data/out")).expect("linked");
    assert_eq!(world.alpha.json(&["stat", "beta:data/out"])["files"][0]["kind"], "link");
    world.fails(&["ls", "beta:data/out/"], REFUSED, "out");
    world.fails(&["cat", "beta:data/out/passwd"], REFUSED, "out");
    world.fails(&["ls", "beta:data/file/"], REFUSED, "no directory");
    let longer = format!("beta:data/{}", "d/".repeat(600));
    world.fails(&["stat", &longer], REFUSED, "1024");
    world.fails(&["stat", &format!("beta:data/{}", "n".repeat(300))], REFUSED, "too long");

    let mut away = world.command(["ls", "beta:data"]);
    let output = away.env("PIPED_CLIENT_SOCKET", world.path("none")).output().expect("ran");
    assert_eq!(output.status.code(), Some(NOT_REACHABLE), "{}", words(&output));
    assert!(words(&output).contains("systemctl start piped"), "{}", words(&output));
}

#[test]
fn directories_of_other_mounts_are_shown_too() {
    let mounted = |programs: &Programs, data: &Path| {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: a mount needs root");
            return None;
        }
        let at = data.join("mounted");
        fs::create_dir(&at).expect("made");
        let script = "mount -t tmpfs tmpfs \"$1\" && mkdir -p \"$1/a/b\" && echo there >\"$1/a/f\" \
                      && shift && exec \"$@\"";
        let mut command = programs.piped();
        let piped = command.get_program().to_owned();
        command = system_tests::process::command(Path::new("unshare"));
        command.args(["-m", "sh", "-c", script, "sh"]).arg(at).arg(piped);
        Some(command)
    };
    let Some(world) = World::with_beta(mounted) else { return };
    assert_eq!(world.lines(&["ls", "beta:data"]), ["mounted/"]);
    assert_eq!(world.lines(&["ls", "beta:data/mounted/a"]), ["b/", "f"]);
    assert_eq!(world.told(&["cat", "beta:data/mounted/*/f"]), "there\n");
    let json = world.alpha.json(&["ls", "beta:data"]);
    assert_eq!(json["entries"][0]["kind"], "directory");
    assert!(json["entries"][0]["inode"].is_u64(), "of the mount: {json}");
    assert_eq!(world.alpha.json(&["stat", "beta:data/mounted/a/f"])["files"][0]["bytes"], 6);
    world.told(&["mv", "beta:data/mounted/a/f", "beta:data/mounted/a/b/g"]);
    assert_eq!(world.alpha.json(&["du", "-s", "beta:data"])["places"][0]["files"], 1);
    let removed = world.alpha.json(&["rm", "-r", "beta:data/mounted/a"]);
    assert_eq!(
        (&removed["removed_files"], &removed["removed_directories"]),
        (&1.into(), &2.into())
    );
    world.fails(&["rm", "-r", "beta:data/mounted"], REFUSED, "mounted");
}

#[test]
fn places_are_completed_quickly_quietly_and_safely() {
    let Some(world) = World::new() else { return };
    for name in ["alpha.log", "album/x", "b c", "b`id`", "b\u{1b}[2J", ".hidden", "données"] {
        world.write(&format!("data/{name}"), b"");
    }
    let words_of = |word: &str| world.lines(&["complete", "--", word]);
    // On a busy machine it may take longer than a shell waits.
    let some_of =
        |word: &str| eventually(word, || Some(words_of(word)).filter(|words| !words.is_empty()));
    assert_eq!(some_of(""), [":own/", "beta:"]);
    assert_eq!(some_of("be"), ["beta:"]);
    assert_eq!(some_of("beta:data/al"), ["beta:data/album/", "beta:data/alpha.log"]);
    assert_eq!(words_of("beta:data/b"), [""; 0], "a shell would take them apart, or obey");
    assert_eq!(
        some_of("beta:data/"),
        ["beta:data/album/", "beta:data/alpha.log", "beta:data/données"]
    );
    assert_eq!(some_of("beta:data/.h"), ["beta:data/.hidden"]);
    for word in ["beta:none/a", "nobody:x/y", "beta:", "$(id)", "-x", "/tmp/", "beta:data/none/"] {
        assert_eq!(words_of(word), [""; 0], "{word}");
    }

    // As bash has it: words are taken apart at colons.
    let script = world.told(&["completions", "bash"]);
    fs::write(world.path("script"), script).expect("written");
    let typed = |line: &str, words: &[&str]| -> Vec<String> {
        let program = world.command([""; 0]).get_program().to_owned();
        let mut bash = Command::new("bash");
        let run = "source \"$SCRIPT\"; COMP_POINT=${#COMP_LINE}; COMP_WORDS=(\"$@\"); \
                   COMP_CWORD=$(($# - 1)); _pipectl_places pipectl \"${@: -1}\" \"${@: -2:1}\"; \
                   printf '%s\\n' \"${COMPREPLY[@]}\"";
        bash.args(["-c", run, "bash"]).args(words).env("COMP_LINE", line);
        bash.env("SCRIPT", world.path("script"));
        let folder = Path::new(&program).parent().expect("in a directory").to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path =
            std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&path)));
        bash.env("PATH", path.expect("a path"));
        bash.env("PIPED_CLIENT_SOCKET", world.alpha.client_socket());
        bash.env("PIPED_ADMIN_SOCKET", world.alpha.admin_socket());
        let output = bash.output().expect("bash runs");
        assert!(output.stderr.is_empty(), "{}", system_tests::process::words(&output));
        String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
    };
    let words = ["pipectl", "--json", "ls", "beta", ":", "data/al"];
    let some_typed = |line: &str, words: &[&str]| {
        eventually(line, || Some(typed(line, words)).filter(|words| !words[0].is_empty()))
    };
    let json = some_typed("pipectl --json ls beta:data/al", &words);
    assert_eq!(json, ["data/album/", "data/alpha.log"]);
    assert_eq!(some_typed("pipectl cp be", &["pipectl", "cp", "be"]), ["beta:"]);
    assert!(typed("pipectl stat", &["pipectl", "stat"]).contains(&"stat".to_owned()));
    assert!(typed("pipectl rm --f", &["pipectl", "rm", "--f"]).contains(&"--force".to_owned()));

    // Daemons that stand still, or are gone, hold up no shell.
    world.beta.process.freeze();
    assert_eq!(words_of("beta:data/al"), [""; 0]);
    world.beta.process.signal(Signal::CONT);
    world.alpha.process.freeze();
    assert_eq!(words_of("beta:data/al"), [""; 0]);
    assert_eq!(words_of("be"), [""; 0]);
    world.alpha.process.signal(Signal::CONT);
    let mut away = world.command(["complete", "--", "beta:data/al"]);
    let output = away.env("PIPED_CLIENT_SOCKET", world.path("none")).output().expect("ran");
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
}
