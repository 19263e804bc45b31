//! The examples in C, and one misuse after the other, with real daemons: as they are, under
//! valgrind, and with AddressSanitizer.

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Libraries, archive, here, is_there, succeed};
use system_tests::process::{
    BLOCKS_BYTES, Daemon, Pair, Programs, Running, eventually, mutual, pattern,
};

const C: &[&str] = &["cc", "-std=c11"];
const CPP: &[&str] = &["c++", "-std=c++17"];
const ADDRESSES: &[&str] =
    &["cc", "-std=c11", "-fsanitize=address,undefined", "-fno-sanitize-recover"];

/// Errors, and memory that nothing points to any more, are a failure.
const VALGRIND: &[&str] = &[
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,indirect,possible",
];

/// Compiles, starts two daemons, and has `each` program run.
struct Stage {
    libraries: Libraries,
    compiler: &'static [&'static str],
    under: &'static [&'static str],
    pair: Pair,
    file: PathBuf,
    _directory: tempfile::TempDir,
}

impl Stage {
    fn set(compiler: &'static [&'static str], under: &'static [&'static str]) -> Option<Self> {
        let programs = Programs::find()?;
        if !is_there(compiler[0], "compiles the programs") {
            return None;
        }
        if under.first().is_some_and(|tool| !is_there(tool, "looks for errors in memory")) {
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let pair = Pair::start(&programs, directory.path());
        let file = directory.path().join("file");
        fs::write(&file, pattern(300_001)).expect("written");
        let libraries = Libraries::link();
        Some(Self { libraries, compiler, under, pair, file, _directory: directory })
    }

    fn command(&self, source: &str) -> Command {
        self.libraries.command(self.under, &self.libraries.compile(source, self.compiler))
    }

    /// Runs a program; returns its output.
    fn run(&self, source: &str, arguments: &[&dyn AsRef<Path>]) -> String {
        let mut command = self.command(source);
        let output = succeed(command.args(arguments.iter().map(|it| it.as_ref().as_os_str())));
        String::from_utf8(output.stdout).expect("text")
    }

    fn all(&self) {
        let alpha: &dyn AsRef<Path> = &self.pair.alpha.client_socket();
        let sum: u64 = pattern(300_001).iter().map(|byte| u64::from(*byte)).sum();
        let read = self.run("examples/read_file.c", &[alpha, &self.file]);
        assert_eq!(read, format!("300001 bytes, sum {sum}\n"));
        let many = self.run("examples/many_in_flight.c", &[alpha, &self.file, &"7"]);
        assert_eq!(many, "300001 bytes\n");
        let wanted = 3_000_000;
        let sum: u64 = pattern(BLOCKS_BYTES)[..wanted].iter().map(|byte| u64::from(*byte)).sum();
        let remote: &[&dyn AsRef<Path>] = &[alpha, &"beta", &"data", &"blocks", &"3000000"];
        let remote = self.run("examples/remote_read.c", remote);
        assert!(remote.ends_with(&format!("{wanted} bytes, sum {sum}\n")), "{remote}");
        let region = self.run("examples/region_get.c", &[alpha]);
        assert_eq!(region, "the left edge\na new edge...\na new edge...\n");
        let epoll = self.run("examples/epoll_loop.c", &[alpha, &"1000"]);
        assert_eq!(epoll, "1000 requests ended\n");
        let beta: &dyn AsRef<Path> = &self.pair.beta.client_socket();
        for arguments in [&[alpha][..], &[alpha, &"beta", beta]] {
            let one_sided = self.run("examples/one_sided.c", arguments);
            let rows: String = (1..=4).map(|row| format!("row {row} is {}\n", row + 9)).collect();
            let told = "4 tickets, then 100\ncolumn: 10 11 12 13\n0 notifications left\n";
            assert_eq!(one_sided, format!("{told}{rows}"));
        }
        // The sum of the squares of all numbers below 2^17.
        let squares: u64 = (0..1_u64 << 17).map(|number| number * number).sum();
        for arguments in [&[alpha][..], &[alpha, &"beta", beta]] {
            let strips = self.run("examples/strips.c", arguments);
            assert_eq!(strips, format!("1048576 bytes of squares\ntheir sum is {squares}\n"));
        }
        let sum: u64 = pattern(64 << 10).iter().map(|byte| u64::from(*byte)).sum();
        let lent = self.run("examples/lent.c", &[alpha, &self.file]);
        let told = "a child that touches it: faults\nits parent's byte: as it was\n";
        assert_eq!(
            lent,
            format!(
                "sealed: {sum}\na child that lends: 7\nprivate: {sum}\n{told}shared: {sum}\n\
                 cut: bad buffer\n"
            )
        );
        self.scatter();
        self.names();
        self.messages();
        self.tiled_loop();
        assert_eq!(self.run("tests/c/misuse.c", &[alpha, &self.file]), "every misuse was told\n");
    }

    /// The parts of a file, read at once and written in another order.
    fn scatter(&self) {
        let copy = self.file.with_file_name("copy");
        let alpha = self.pair.alpha.client_socket();
        let told = self.run("examples/scatter.c", &[&alpha, &self.file, &copy]);
        let bytes = pattern(12_388);
        let [second, third] = [bytes[100], bytes[8292]];
        let read = format!("read 12388 bytes, {}, {second}, {third}\n", bytes[0]);
        assert_eq!(told, format!("{read}wrote 12388 bytes\n"));
        let turned = [&bytes[8292..], &bytes[100..8292], &bytes[..100]].concat();
        assert!(fs::read(copy).expect("written") == turned, "the parts from the last to the first");
    }

    /// A node whose export lets clients change names.
    fn names(&self) {
        let programs = Programs::find().expect("found before");
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("root");
        fs::create_dir(&root).expect("made");
        let export = format!("[exports.data]\npath = {root:?}\nwrite = true\nnames = true\n");
        let node = Daemon::start(&programs, directory.path(), "gamma", &export);
        let told = self.run("examples/names.c", &[&node.client_socket(), &"data"]);
        let mut lines: Vec<_> = told.lines().collect();
        // A directory's names are in no order.
        lines[..2].sort_unstable();
        let wanted = [
            "report: 21 bytes",
            "today/",
            "1048576 bytes, some of them with data",
            "the digest is another",
            "1048576 bytes are copied",
            "nothing is left",
        ];
        assert_eq!(lines, wanted);
        assert_eq!(fs::read_dir(root).expect("there").count(), 0);
    }

    /// Four processes, two on each node.
    fn tiled_loop(&self) {
        let programs = Programs::find().expect("found before");
        let directory = tempfile::tempdir().expect("a directory");
        let [one, other] = mutual(&programs, directory.path());
        let nodes = [(&one, ["-", "beta"]), (&other, ["alpha", "-"])];
        let places = [0, 1].into_iter().flat_map(|y| [0, 1].map(|x| (x, y)));
        let running: Vec<_> = places
            .map(|(x, y)| {
                let (node, [alpha, beta]) = &nodes[y];
                let mut process = self.command("examples/tiled_loop.c");
                process.arg(node.client_socket()).args(["loop", "2", "2"]);
                process.args([x, y].map(|it: usize| it.to_string()));
                // By rows: those of the first are all on alpha, those of the second on beta.
                process.args([alpha, alpha, beta, beta]);
                ((x, y), process.spawn().expect("started"))
            })
            .collect();
        for ((x, y), process) in running {
            let output = process.wait_with_output().expect("it ends");
            assert!(output.status.success(), "{}", system_tests::process::words(&output));
            let told = String::from_utf8(output.stdout).expect("text");
            assert_eq!(told, format!("({x}, {y}): 3000 rows are right\n"));
        }
    }

    fn messages(&self) {
        let (alpha, beta) = (self.pair.alpha.client_socket(), self.pair.beta.client_socket());
        let mut receive = self.command("examples/messages.c");
        let receiver = receive.arg(&beta).args(["receive", "mail"]).spawn().expect("started");
        eventually("the channel is offered", || {
            let exports = self.pair.beta.json(&["exports"]);
            exports["channels"].as_array().is_some_and(|all| !all.is_empty()).then_some(())
        });
        let send: &[&dyn AsRef<Path>] = &[&alpha, &"send", &"mail", &"hello", &"beta"];
        self.run("examples/messages.c", send);
        let output = receiver.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", system_tests::process::words(&output));
        assert_eq!(output.stdout, b"7: hello\n");
    }
}

#[test]
fn the_examples_do_what_they_say_and_every_misuse_is_told() {
    let Some(stage) = Stage::set(C, &[]) else { return };
    stage.all();
}

#[test]
fn valgrind_finds_no_errors_and_no_leaks() {
    let Some(stage) = Stage::set(C, VALGRIND) else { return };
    stage.all();
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    let Some(stage) = Stage::set(ADDRESSES, &[]) else { return };
    stage.all();
}

#[test]
fn cpp_programs_compile_and_run() {
    let Some(stage) = Stage::set(CPP, &[]) else { return };
    let alpha = stage.pair.alpha.client_socket();
    assert_eq!(stage.run("tests/c/plus.cpp", &[&alpha, &stage.file]), "4096 bytes\n");
}

#[test]
fn a_client_goes_on_with_the_next_daemon() {
    let Some(mut stage) = Stage::set(C, &[]) else { return };
    let alpha = stage.pair.alpha.client_socket();
    let mut command = stage.command("examples/reconnect.c");
    command.arg(&alpha).arg(&stage.file).stdin(Stdio::piped());
    let mut program = Running(command.spawn().expect("started"));
    let mut lines = BufReader::new(program.0.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    let first = next();
    assert_eq!(first, "4096 bytes, the first is 0");
    stage.pair.alpha.process.signal(rustix::process::Signal::KILL);
    let settings = stage.pair.settings[0].clone();
    stage.pair.alpha.restart(&settings);
    program.0.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
    assert_eq!(next(), first);
    assert!(program.exit().success());
}

#[test]
fn an_installed_library_is_found_by_pkg_config_shared_and_static() {
    let Some(stage) = Stage::set(C, &[]) else { return };
    if !is_there("pkg-config", "tells compilers where libraries are") {
        return;
    }
    let prefix = tempfile::tempdir().expect("a directory");
    succeed(Command::new(here().join("install")).arg(prefix.path()).env("ARCHIVE", archive()));
    let ask = |arguments: &[&str]| {
        let mut ask = Command::new("pkg-config");
        ask.args(arguments).arg("piped");
        ask.env("PKG_CONFIG_PATH", prefix.path().join("lib/pkgconfig"));
        String::from_utf8(succeed(&mut ask).stdout).expect("text").trim().to_owned()
    };
    assert_eq!(ask(&["--modversion"]), env!("CARGO_PKG_VERSION"));
    let alpha = stage.pair.alpha.client_socket();
    let source = here().join("examples/many_in_flight.c");
    for (name, how, flags) in [
        ("shared", "", ask(&["--cflags", "--libs"])),
        ("static", "-Wl,-Bstatic", ask(&["--static", "--cflags", "--libs"])),
    ] {
        let program = prefix.path().join(name);
        // Of the libraries only piped's own is to be the static one.
        let flags = match how {
            "" => flags,
            _ => flags.replace("-lpiped", "-Wl,-Bstatic -lpiped -Wl,-Bdynamic"),
        };
        let mut compile = Command::new("cc");
        compile.arg("-o").arg(&program).arg(&source).args(flags.split_whitespace());
        succeed(&mut compile);
        let mut run = system_tests::process::command(&program);
        run.arg(&alpha).arg(&stage.file).arg("3");
        if name == "shared" {
            run.env("LD_LIBRARY_PATH", prefix.path().join("lib"));
        }
        assert_eq!(succeed(&mut run).stdout, b"300001 bytes\n", "{name}");
    }
}
