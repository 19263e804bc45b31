//! What an operator does with the packages, on a machine with a real systemd: installs, configures,
//! starts, reloads, kills, upgrades, stops, removes, purges. Clients are programs in C, built there
//! with the packaged library, of users who are in the configured group or are not.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use system_tests::container::Container;
use system_tests::documents::page::Page;
use system_tests::packages::{MAINTAINER, Packages};
use system_tests::process::{eventually, words};

/// Tenths of it: `systemd-analyze security` gives 0 (safe) to 10.
const EXPOSURE_MAX: &str = "20";
const SERVICE: &str = "/usr/lib/systemd/system/piped.service";
const SOCKET: &str = "/usr/lib/systemd/system/piped.socket";
/// What no package may leave or lack, beside errors: all but that the first package of a program
/// closes no request for it.
const LINTIAN: [&str; 5] = [
    "--fail-on=error,warning",
    "--suppress-tags",
    "initial-upload-closes-no-bugs",
    "--allow-root",
    "--",
];

#[test]
fn an_operators_day() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(packages) = Packages::make(directory.path()) else { return };
    are_what_debian_expects(&packages);
    have_documents_that_lead_somewhere(&packages, directory.path());
    let newer = newer(&packages.piped, directory.path());
    let other = another_pipectl(directory.path());
    let Some(machine) = Container::boot() else { return };
    let machine = Machine(machine);
    let before = machine.files();
    machine.has_another_pipectl(&packages.piped, &other);
    machine.installs(&packages);
    machine.is_hardened();
    machine.starts();
    machine.has_a_key();
    machine.admits_members_only();
    machine.writes_where_it_may();
    machine.reloads();
    machine.is_killed_and_comes_back();
    machine.hangs_and_comes_back();
    machine.starts_when_somebody_connects();
    machine.upgrades(&newer);
    machine.stops();
    machine.is_removed_and_purged(&packages, &before);
    machine.0.end();
}

fn are_what_debian_expects(packages: &Packages) {
    let field = |package: &Path, field: &str| {
        let mut show = Command::new("dpkg-deb");
        let output = show.arg("--field").arg(package).arg(field).output().expect("dpkg-deb starts");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    assert_eq!(field(&packages.piped, "Conflicts"), "pipectl", "another program has its name");
    let version = field(&packages.library, "Version");
    let depends = field(&packages.development, "Depends");
    assert_eq!(depends, format!("libpiped1 (= {version})"), "see c-api/Cargo.toml");
    for package in packages.all() {
        // An address that is somebody's would have to be of whoever hands the packages out.
        let maintainer = field(package, "Maintainer");
        let made_here = std::env::var_os("PIPED_PACKAGES").is_none();
        assert!(!made_here || maintainer == MAINTAINER, "{maintainer}");
        assert!(!maintainer.contains("debian.org"), "{maintainer}");
    }
    match Command::new("lintian").args(LINTIAN).args(packages.all()).output() {
        Ok(output) => assert!(output.status.success(), "{}", words(&output)),
        Err(error) => eprintln!("skipped: lintian cannot be run ({error})"),
    }
}

/// All three side by side, as on a machine that has them: links between documents, pictures, what
/// help and documents say is there, and what the licences of others ask for.
fn have_documents_that_lead_somewhere(packages: &Packages, directory: &Path) {
    let root = directory.join("documents");
    for package in packages.all() {
        dpkg_deb(&["--extract".as_ref(), package, &root]);
    }
    let documents = root.join("usr/share/doc");
    let mut pages = Vec::new();
    for package in ["piped", "libpiped-dev"] {
        for entry in fs::read_dir(documents.join(package)).expect("packaged") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).expect("text");
                pages.push((path.clone(), Page::read(&path.display().to_string(), &text)));
            }
        }
    }
    assert!(pages.len() > 12, "{:?}", pages.iter().map(|(path, _)| path).collect::<Vec<_>>());
    let mut followed = 0;
    for (path, page) in &pages {
        for (line, link) in page.links.iter().filter(|(_, link)| !link.contains("://")) {
            let place = format!("{}, line {line}: {link}", path.display());
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.with_file_name(file) };
            let target = target.canonicalize().unwrap_or_else(|error| panic!("{place}: {error}"));
            assert!(target.starts_with(root.canonicalize().expect("there")), "{place}");
            if !anchor.is_empty() {
                let of = |it: &&(PathBuf, Page)| it.0.canonicalize().is_ok_and(|it| it == target);
                let (_, to) =
                    pages.iter().find(of).unwrap_or_else(|| panic!("{place}: no document"));
                assert!(to.anchors.contains(anchor), "{place}: there are {:?}", to.anchors);
            }
            followed += 1;
        }
    }
    assert!(followed > 40, "{followed} links");
    // What documents and help name beside links.
    for name in [
        "scenarios/paper.toml",
        "examples/client-lib/messages.rs",
        "examples/python/checkpoint.py",
        "examples/remote-pager/src/lib.rs",
        "../../piped/container/Containerfile",
        "../../piped/container/seccomp.json",
        "../../piped/kubernetes/attend",
        "../../piped/kubernetes/base/kustomization.yaml",
        "../../piped/kubernetes/chart/templates/daemonset.yaml",
        "../../piped/kubernetes/components/podmonitor/podmonitor.yaml",
    ] {
        assert!(documents.join("piped").join(name).is_file(), "{name}");
    }
    let simulate = fs::read_to_string(documents.join("piped/simulate.md")).expect("packaged");
    assert!(simulate.contains(" /usr/share/doc/piped/scenarios/paper.toml"), "{simulate}");
    for (package, manifest) in [
        ("piped", "daemon"),
        ("piped", "ctl"),
        ("libpiped1", "client-lib"),
        ("libpiped-dev", "client-lib"),
    ] {
        has_notices_of_others(&documents.join(package).join("third-party-notices.gz"), manifest);
    }
}

/// Each crate of others that `manifest` depends on is listed, with a licence and its text.
fn has_notices_of_others(file: &Path, manifest: &str) {
    let output = Command::new("gzip").arg("-dc").arg(file).output().expect("gzip starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let manifest =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(manifest).join("Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("there");
    let dependencies = manifest.split("\n[dependencies]\n").nth(1).expect("some");
    let dependencies = dependencies.lines().take_while(|line| !line.starts_with('['));
    // What a feature brings that the libraries have not is not linked.
    let linked = dependencies.filter(|line| !line.contains("optional = true"));
    let names = linked.filter_map(|line| Some(line.split_once(['.', ' '])?.0));
    let mut found = 0;
    for name in names.filter(|name| !name.starts_with("piped")) {
        let row = text.lines().find(|line| line.starts_with(&format!("  {name} ")));
        let row = row.unwrap_or_else(|| panic!("{}: {name} is missing", file.display()));
        assert!(row.contains("MIT") || row.contains("Apache") || row.contains("BSD"), "{row}");
        found += 1;
    }
    assert!(found > 1, "{found} dependencies");
    for words in ["Permission is hereby granted, free of charge", "Apache License"] {
        assert!(text.contains(words), "{}: {words}", file.display());
    }
}

/// The same package, as the next version with another shipped configuration.
fn newer(package: &Path, directory: &Path) -> PathBuf {
    let (tree, file) = (directory.join("newer"), directory.join("newer.deb"));
    dpkg_deb(&["--raw-extract".as_ref(), package, &tree]);
    let change = |path: &str, from: &str, to: &str| {
        let path = tree.join(path);
        let text = fs::read_to_string(&path).expect("packaged");
        assert!(text.contains(from), "{}: {text}", path.display());
        fs::write(path, text.replacen(from, to, 1)).expect("written");
    };
    change("DEBIAN/control", "\nVersion: ", "\nVersion: 9:");
    change("etc/piped/piped.toml", "# piped:", "# Of the next version.\n# piped:");
    dpkg_deb(&["-z1".as_ref(), "--root-owner-group".as_ref(), "--build".as_ref(), &tree, &file]);
    file
}

/// A package with the name and the program of Debian's, which is another one's.
fn another_pipectl(directory: &Path) -> PathBuf {
    let (tree, file) = (directory.join("other"), directory.join("other.deb"));
    let write = |path: &str, text: &str| {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().expect("below it")).expect("made");
        fs::write(path, text).expect("written");
    };
    let control = "Package: pipectl\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: another\n";
    write("DEBIAN/control", control);
    write("usr/bin/pipectl", "#!/bin/sh\n");
    dpkg_deb(&["--root-owner-group".as_ref(), "--build".as_ref(), &tree, &file]);
    file
}

fn dpkg_deb(arguments: &[&Path]) {
    let output = Command::new("dpkg-deb").args(arguments).output().expect("dpkg-deb starts");
    assert!(output.status.success(), "{}", words(&output));
}

struct Machine(Container);

impl Machine {
    /// Where another package has the program `pipectl`, it keeps it, and no half of ours is there.
    fn has_another_pipectl(&self, ours: &Path, other: &Path) {
        for (from, to) in [(ours, "/tmp/ours.deb"), (other, "/tmp/other.deb")] {
            self.0.copy_in(from, to);
        }
        self.0.succeed(&["dpkg", "--install", "/tmp/other.deb"]);
        let refused = self.0.run("root", &["dpkg", "--install", "/tmp/ours.deb"]);
        let said = words(&refused);
        assert!(!refused.status.success() && said.contains("conflicting packages"), "{said}");
        assert!(!self.0.path("/usr/bin/piped").exists(), "{said}");
        assert_eq!(self.0.succeed(&["cat", "/usr/bin/pipectl"]), "#!/bin/sh\n", "it keeps it");
        self.0.succeed(&["dpkg", "--purge", "pipectl"]);
    }

    fn installs(&self, packages: &Packages) {
        let to: Vec<String> = packages
            .all()
            .into_iter()
            .map(|from| format!("/tmp/{}", from.file_name().unwrap().display()))
            .collect();
        for (from, to) in packages.all().iter().zip(&to) {
            self.0.copy_in(from, to);
        }
        let mut install = vec!["dpkg", "--install"];
        install.extend(to.iter().map(String::as_str));
        self.0.succeed(&install);
        if packages.plugin.is_some() {
            let told = self.0.succeed(&["nbdkit", "piped", "--dump-plugin"]);
            assert!(told.contains("piped_version="), "{told}");
            self.0.succeed(&["man", "--where", "nbdkit-piped-plugin"]);
        }
        assert_eq!(
            self.unit("piped.service", "UnitFileState"),
            "disabled",
            "the operator's decision"
        );
        assert_eq!(self.unit("piped.service", "ActiveState"), "inactive");
        assert_eq!(
            self.0.succeed(&["stat", "-c", "%U:%G %a", "/etc/piped/conf.d"]),
            "root:piped 775\n"
        );
        for page in ["piped", "pipectl", "pipectl-config-reload", "piped.toml"] {
            self.0.succeed(&["man", "--where", page]);
        }
        // As users build programs.
        self.0.shell(
            "cd /usr/local/bin; for program in read_file reconnect; do \
             cc -o $program /usr/share/doc/libpiped-dev/examples/$program.c $(pkg-config --cflags --libs piped); done",
        );
    }

    fn is_hardened(&self) {
        let output = self.0.run("root", &["systemd-analyze", "verify", SERVICE, SOCKET]);
        assert!(output.status.success() && words(&output).is_empty(), "{}", words(&output));
        let threshold = format!("--threshold={EXPOSURE_MAX}");
        let security = ["systemd-analyze", "security", "--offline=yes", "--no-pager", &threshold];
        self.0.succeed(&[&security[..], &[SERVICE]].concat());
        let strict = ["systemd-analyze", "security", "--offline=yes", "--threshold=1", SERVICE];
        assert!(!self.0.run("root", &strict).status.success(), "the threshold is one");
        for (unit, section) in [(SERVICE, "[Service]"), (SOCKET, "[Socket]")] {
            let text = fs::read_to_string(self.0.path(unit)).expect("installed");
            let lines = text.lines().skip_while(|line| *line != section).skip(1);
            let lines: Vec<&str> = lines.take_while(|line| !line.starts_with('[')).collect();
            for pair in lines.windows(2) {
                let is_setting = !pair[1].is_empty() && !pair[1].starts_with('#');
                assert!(
                    !is_setting || pair[0].starts_with('#'),
                    "no comment says why: {}",
                    pair[1]
                );
            }
        }
    }

    /// With a configuration of the operator's, in the file that the package brought.
    fn starts(&self) {
        self.0.shell(
            "groupadd movers; useradd --create-home --groups movers member; useradd --create-home stranger; \
             install -d -o piped -g piped -m 0755 /srv/data; \
             printf 'from the export' >/srv/data/offered; chmod 0644 /srv/data/offered; \
             head -c 4096 /dev/zero | tr '\\0' '*' >/home/member/file; chown member: /home/member/file",
        );
        let file = "/etc/piped/piped.toml";
        let shipped = fs::read_to_string(self.0.path(file)).expect("installed");
        let (before, access) = shipped.split_once("\n[access]\n").expect("a section");
        let own = access.replacen("\ngroups = []", "\ngroups = [\"movers\"]", 1);
        assert_ne!(own, access);
        let export = "[exports.data]\npath = \"/srv/data\"\nwrite = true\n";
        self.0.write(file, &format!("{before}\n[access]\n{own}\n{export}"));
        self.0.succeed(&["systemctl", "enable", "--now", "--quiet", "piped"]);
        for unit in ["piped.service", "piped.socket"] {
            assert_eq!(self.unit(unit, "ActiveState"), "active");
            assert_eq!(self.unit(unit, "UnitFileState"), "enabled");
        }
        self.logged("listening on the service manager's socket");
        let status = fs::read_to_string(self.0.path(&format!("/proc/{}/status", self.main())));
        let status = status.expect("it runs");
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(line(set), "0000000000000000", "{set}");
        }
        assert_eq!((line("NoNewPrivs:"), line("Seccomp:")), ("1", "2"));
        self.0.succeed(&["pipectl", "status"]);
    }

    /// Root makes it, the daemon's group reads it, and purge removes it.
    fn has_a_key(&self) {
        self.0.succeed(&["pipectl", "keys", "generate"]);
        let facts = self.0.succeed(&["stat", "-c", "%U:%G %a", "/etc/piped/node.key"]);
        assert_eq!(facts, "root:piped 640\n");
        self.0.succeed(&["systemctl", "restart", "piped"]);
    }

    fn admits_members_only(&self) {
        let sum = 4096 * u64::from(b'*');
        let member = self.read("member");
        assert!(words(&member).contains(&format!("4096 bytes, sum {sum}")), "{}", words(&member));
        let stranger = self.read("stranger");
        assert!(!stranger.status.success(), "{}", words(&stranger));
        assert!(words(&stranger).contains("[access]"), "{}", words(&stranger));
        let status = self.0.run("member", &["pipectl", "status"]);
        assert!(status.status.success(), "{}", words(&status));
    }

    /// The rest of the file system is read-only to it, whatever the export says, until the operator
    /// says otherwise.
    fn writes_where_it_may(&self) {
        let copy = |from: &str, to: &str| self.0.run("member", &["pipectl", "cp", from, to]);
        let output = copy(":data/offered", "/home/member/got");
        assert!(output.status.success(), "{}", words(&output));
        assert_eq!(self.0.succeed(&["cat", "/home/member/got"]), "from the export");
        let refused = copy("/home/member/file", ":data/new");
        assert!(!refused.status.success(), "{}", words(&refused));
        self.drop_in("[Service]\nReadWritePaths=/srv/data\n");
        self.0.succeed(&["systemctl", "restart", "piped"]);
        let output = copy("/home/member/file", ":data/new");
        assert!(output.status.success(), "{}", words(&output));
        assert_eq!(
            self.0.succeed(&["stat", "-c", "%U %a %s", "/srv/data/new"]),
            "piped 640 4096\n"
        );
        // Limits that are to be kept are written beside the configuration, and by nobody but the
        // daemon and root.
        self.0.succeed(&["pipectl", "limits", "set", "client.rate=1GiB", "--persist"]);
        let kept = self.0.shell("cat /etc/piped/conf.d/*.toml");
        assert!(kept.contains("rate"), "{kept}");
    }

    fn reloads(&self) {
        let main = self.main();
        self.0.write("/etc/piped/conf.d/log.toml", "[log]\nlevel = \"debug\"\n");
        self.0.succeed(&["systemctl", "reload", "piped"]);
        let is_debug = || {
            let keys = self.0.succeed(&["pipectl", "config", "show"]);
            let level = keys.lines().find(|line| line.starts_with("log.level ")).expect("a key");
            level.contains("\"debug\"")
        };
        assert!(is_debug());
        self.0.write("/etc/piped/conf.d/log.toml", "[log]\nlevle = \"info\"\n");
        let refused = self.0.run("root", &["systemctl", "reload", "piped"]);
        assert!(!refused.status.success(), "{}", words(&refused));
        self.logged("log.toml:2: there is no key `log.levle`");
        assert!(is_debug(), "the configuration before goes on");
        assert_eq!(self.main(), main, "by the same process");
        fs::remove_file(self.0.path("/etc/piped/conf.d/log.toml")).expect("there");
        self.0.succeed(&["systemctl", "reload", "piped"]);
    }

    /// A client that was told to reconnect reads on with the handle and the buffer it had.
    fn is_killed_and_comes_back(&self) {
        let program = ["reconnect", "/run/piped/client.sock", "/home/member/file"];
        let mut client = self.0.spawn("member", &program);
        let mut lines = BufReader::new(client.0.stdout.take().expect("ours"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("it says something");
        assert_eq!(line, "4096 bytes, the first is 42\n");
        let (main, socket) = (self.main(), self.socket());
        self.0.succeed(&["kill", "-KILL", &main]);
        self.comes_back_after(&main);
        assert_eq!(self.socket(), socket, "the door stays");
        client.0.stdin.take().expect("ours").write_all(b"\n").expect("it waits for that");
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("it goes on");
        assert_eq!(rest, "4096 bytes, the first is 42\n");
        assert!(client.exit().success());
        assert_eq!(self.unit("piped.service", "NRestarts"), "1");
    }

    /// systemd hears nothing, ends it, and starts another.
    fn hangs_and_comes_back(&self) {
        self.drop_in("[Service]\nReadWritePaths=/srv/data\nWatchdogSec=3\n");
        self.0.succeed(&["systemctl", "restart", "piped"]);
        let main = self.main();
        self.0.succeed(&["kill", "-STOP", &main]);
        self.comes_back_after(&main);
        let log = self.0.succeed(&["journalctl", "--no-pager", "-u", "piped"]);
        assert!(log.contains("Watchdog timeout"), "{log}");
        self.drop_in("[Service]\nReadWritePaths=/srv/data\n");
        self.0.succeed(&["systemctl", "restart", "piped"]);
    }

    fn starts_when_somebody_connects(&self) {
        let socket = self.socket();
        self.0.succeed(&["systemctl", "stop", "--quiet", "piped.service"]);
        assert_eq!(self.socket(), socket, "the daemon does not remove what is systemd's");
        assert_eq!(self.unit("piped.service", "ActiveState"), "inactive");
        let member = self.read("member");
        assert!(member.status.success(), "it waited for the daemon: {}", words(&member));
        assert_eq!(self.unit("piped.service", "ActiveState"), "active");
    }

    fn upgrades(&self, newer: &Path) {
        let file = "/etc/piped/piped.toml";
        let (own, main, socket) = (self.0.succeed(&["cat", file]), self.main(), self.socket());
        self.0.copy_in(newer, "/tmp/newer.deb");
        // As unattended upgrades do it: what the operator has changed is kept, without a question.
        self.0.succeed(&[
            "dpkg",
            "--force-confdef",
            "--force-confold",
            "--install",
            "/tmp/newer.deb",
        ]);
        assert_eq!(self.0.succeed(&["cat", file]), own, "the operator's");
        let shipped = self.0.succeed(&["cat", "/etc/piped/piped.toml.dpkg-dist"]);
        assert!(shipped.starts_with("# Of the next version.\n"), "{shipped}");
        assert_ne!(self.main(), main, "the new program runs");
        assert_eq!(self.unit("piped.service", "ActiveState"), "active");
        assert_eq!(self.unit("piped.service", "UnitFileState"), "enabled");
        assert_eq!(self.socket(), socket, "who connected meanwhile has waited");
        assert!(self.read("member").status.success());
    }

    fn stops(&self) {
        self.0.succeed(&["systemctl", "stop", "--quiet", "piped.socket", "piped.service"]);
        assert_eq!(self.unit("piped.service", "Result"), "success");
        assert_eq!(self.0.shell("ls -A /run/piped"), "", "neither socket is there");
        assert_eq!(self.0.shell("ps -u piped -o pid= || true"), "", "nothing runs");
    }

    fn is_removed_and_purged(&self, packages: &Packages, before: &str) {
        let mut names = vec!["piped", "libpiped-dev", "libpiped1"];
        names.extend(packages.plugin.is_some().then_some("nbdkit-piped-plugin"));
        self.0.succeed(&["systemctl", "start", "piped"]);
        self.0.succeed(&[&["dpkg", "--remove"][..], &names].concat());
        assert_eq!(self.unit("piped.service", "ActiveState"), "inactive");
        assert_eq!(self.0.shell("ps -u piped -o pid= || true"), "", "nothing runs");
        assert!(!self.0.path("/run/piped").exists());
        assert!(self.0.path("/etc/piped/piped.toml").exists(), "configuration stays until purge");
        assert!(self.0.path("/var/lib/piped").exists(), "and so does what was measured");
        self.0.succeed(&[&["dpkg", "--purge"][..], &names].concat());
        self.0.succeed(&["systemctl", "daemon-reload"]);
        assert_eq!(self.unit("piped.service", "LoadState"), "not-found");
        // What is the operator's is the operator's to remove; and the user stays, see
        // packaging/piped/postrm.
        self.0.shell("rm -r /etc/systemd/system/piped.service.d; id piped >/dev/null");
        assert_eq!(self.files(), before);
    }

    /// All that is called by a name of ours.
    fn files(&self) -> String {
        self.0.shell("find /etc /run /usr /var -path /usr/local -prune -o -path /var/cache/man -prune -o -name '*pipe[dc]*' -print | grep -v '/sys/fs' | sort")
    }

    fn read(&self, user: &str) -> Output {
        self.0.run(user, &["read_file", "/run/piped/client.sock", "/home/member/file"])
    }

    fn drop_in(&self, text: &str) {
        fs::create_dir_all(self.0.path("/etc/systemd/system/piped.service.d")).expect("made");
        self.0.write("/etc/systemd/system/piped.service.d/local.conf", text);
        self.0.succeed(&["systemctl", "daemon-reload"]);
    }

    fn unit(&self, unit: &str, property: &str) -> String {
        let show = ["systemctl", "show", "--value", "--property", property, unit];
        self.0.succeed(&show).trim().to_owned()
    }

    fn main(&self) -> String {
        self.unit("piped.service", "MainPID")
    }

    /// Which file the clients' door is.
    fn socket(&self) -> String {
        self.0.succeed(&["stat", "-c", "%i %F", "/run/piped/client.sock"])
    }

    fn comes_back_after(&self, main: &str) {
        eventually("systemd has started another one", || {
            let now = self.main();
            let is_there = now != "0" && now != main;
            (is_there && self.unit("piped.service", "ActiveState") == "active").then_some(())
        });
    }

    fn logged(&self, what: &str) {
        eventually(what, || {
            let log = self.0.succeed(&["journalctl", "--no-pager", "-u", "piped"]);
            log.contains(what).then_some(())
        });
    }
}
