//! Gets of another node's memory by a program in C against the same by client-lib.
//!
//! The program is a real one, compiled and linked to the shared library as an application is.
//! Calling the C functions from here would be simpler but would measure less: not the calls through
//! the library's table, and code that the compiler of this side might have seen through.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use piped_core::modes::Profile;

use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::Ask;
use crate::nodes::{PEER, Pair, profile_name, program};
use crate::outside::{Running, output};
use crate::report::{Row, Unit};
use crate::rows::region::{NAME, Region};
use crate::rows::{Bench, KIB, MOMENT};
use crate::stats::Bar;

/// Largest ratio for the C interface.
const BAR: f64 = 1.03;

const BLOCK: usize = 4 * KIB;

/// A program in C that is told how long to ask.
struct Program {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _process: Running,
    _directory: tempfile::TempDir,
}

impl Program {
    /// Compiles, links and starts it.
    fn start(pair: &Pair) -> Result<Self, Failure> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let c_api = here.join("../c-api");
        let directory = tempfile::tempdir()?;
        let archive = program("libpiped.a")?;
        output(Command::new(c_api.join("link")).arg(archive).arg(directory.path()))
            .doing("link the shared library")?;
        let gets = directory.path().join("gets");
        let mut compile = Command::new("cc");
        compile.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-o"]).arg(&gets);
        compile.arg(here.join("src/rows/c_client.c")).arg("-I").arg(c_api.join("include"));
        compile.arg("-L").arg(directory.path()).arg("-lpiped");
        output(&mut compile).doing("compile the program in C")?;
        let mut process = Command::new(gets)
            .arg(&pair.a.client_socket)
            .args([PEER, NAME, &BLOCK.to_string()])
            .env("LD_LIBRARY_PATH", directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.expect("both are piped");
        let output = BufReader::new(output);
        Ok(Self { input, output, _process: Running(process), _directory: directory })
    }

    /// Median time of its gets, in seconds.
    fn p50(&mut self) -> Result<f64, Failure> {
        writeln!(self.input, "{}", MOMENT.as_nanos()).doing("ask the program in C")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let median: u64 = line.trim().parse().map_err(|_| Failure::new("the program ended"))?;
        Ok(median as f64 / 1e9)
    }
}

pub(super) fn get(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = Profile::Balanced;
    bench.with_pair(profile, |bench, pair| {
        let mut region = Region::open(pair)?;
        let mut program = Program::start(pair)?;
        let ask = Ask { handle: &region.handle, block: BLOCK, depth: 1 };
        let asker = &mut region.asker;
        let mut arms = [
            Arm::variant("rust".to_owned(), move || Ok(asker.reads(ask, MOMENT)?.p50())),
            Arm::variant("c".to_owned(), move || program.p50()),
        ];
        let rounds = bench.rounds(&mut arms)?;
        let found = rounds.all_ratio(1, 0)?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |value| value.median * 1e6);
        let note = format!("Rust {:.2} us, C {:.2} us", told(0), told(1));
        let bar = Bar::AtMost(BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}
