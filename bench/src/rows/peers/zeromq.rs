//! Requests and replies of ZeroMQ, by a small program in C that is compiled where the library is.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::failure::{Doing as _, Failure};
use crate::machine::Cpus;
use crate::outside::{Running, await_listener, free_port, output};

/// Two processes of the program, one of which is told how long to ask.
pub(super) struct ZeroMq {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _asks: Running,
    _answers: Running,
    _directory: tempfile::TempDir,
}

impl ZeroMq {
    /// Compiles and starts both sides, each on a CPU of its own.
    ///
    /// # Errors
    /// There is no compiler or no library.
    pub(super) fn start(bytes: usize, cpus: Cpus) -> Result<Self, Failure> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rows/peers/zeromq.c");
        let directory = tempfile::tempdir()?;
        let program = directory.path().join("zeromq");
        let mut compile = Command::new("cc");
        compile.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-o"]).arg(&program);
        output(compile.arg(source).arg("-lzmq")).doing("compile the program in C")?;
        let port = free_port()?.to_string();
        let at = |cpu: usize, role: &str| {
            let mut command = Command::new("taskset");
            command.args(["-c", &cpu.to_string()]).arg(&program).args([role, &port]);
            command
        };
        let mut answers = at(cpus.second, "answer");
        answers.stdin(Stdio::null()).stdout(Stdio::null());
        let answers = Running(answers.spawn().doing("taskset")?);
        await_listener(&port)?;
        let mut asks = at(cpus.first, "ask");
        asks.arg(bytes.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = asks.spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.expect("both are piped");
        Ok(Self {
            input,
            output: BufReader::new(output),
            _asks: Running(process),
            _answers: answers,
            _directory: directory,
        })
    }

    /// Median time there and back in seconds, over a while.
    pub(super) fn p50(&mut self, duration: Duration) -> Result<f64, Failure> {
        writeln!(self.input, "{}", duration.as_nanos()).doing("ask the program in C")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let median: u64 = line.trim().parse().map_err(|_| Failure::new("the program ended"))?;
        Ok(median as f64 / 1e9)
    }
}
