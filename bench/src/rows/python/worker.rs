//! The program in Python that does what rows ask for, one line a command, and says how long it
//! took.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

use super::Environment;
use crate::failure::{Doing as _, Failure};
use crate::outside::Running;

/// A worker that runs; it ends when it is dropped, or with this program.
#[derive(Debug)]
pub(super) struct Worker {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _process: Running,
}

/// A line of the worker: `{"figure": 0.5}` or `{"error": "FileNotFoundError: …"}`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Figure(f64),
    Error(String),
}

impl Worker {
    /// Starts a worker on these CPUs.
    pub(super) fn start(environment: &Environment, cpus: &[usize]) -> Result<Self, Failure> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rows/python/worker.py");
        let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
        let mut command = Command::new("taskset");
        command.args(["-c", &cpus.join(",")]).arg(environment.python());
        // No directory and no variable of who runs this adds packages. The source is this tree's.
        command.args(["-I", "-B"]).arg(source);
        Self::of(&mut command)
    }

    fn of(command: &mut Command) -> Result<Self, Failure> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().doing("the worker")?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.expect("both are piped");
        Ok(Self { input, output: BufReader::new(output), _process: Running(process) })
    }

    /// Has a command done: an array with its name and arguments. Returns its figure: seconds,
    /// where the command gives no other.
    pub(super) fn ask(&mut self, command: &Value) -> Result<f64, Failure> {
        writeln!(self.input, "{command}").doing("ask the worker")?;
        let mut line = String::new();
        self.output.read_line(&mut line).doing("the worker's answer")?;
        figure(&line)
    }
}

fn figure(line: &str) -> Result<f64, Failure> {
    if !line.ends_with('\n') {
        return Err(Failure::new("the worker ended; its standard error says why"));
    }
    match serde_json::from_str(line).doing("the worker's answer")? {
        Answer::Figure(figure) if figure > 0.0 => Ok(figure),
        Answer::Figure(figure) => Err(Failure::new(format!("the worker's figure is {figure}"))),
        Answer::Error(text) => Err(Failure::new(text)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_a_figure_or_an_error() {
        assert_eq!(figure("{\"figure\": 2.5e-3}\n"), Ok(2.5e-3));
        assert_eq!(figure("{\"figure\": 2}\n"), Ok(2.0));
        let failed = |line: &str| figure(line).expect_err(line).to_string();
        assert_eq!(failed("{\"error\": \"load: ValueError: no\"}\n"), "load: ValueError: no");
        assert_eq!(failed("{\"figure\": 0}\n"), "the worker's figure is 0");
        assert_eq!(failed("{\"figure\": -1}\n"), "the worker's figure is -1");
    }

    #[test]
    fn what_is_no_answer_is_none() {
        for line in ["{\"figure\": NaN}\n", "{\"figure\": null}\n", "{}\n", "2.5\n", "\n"] {
            let failure = figure(line).expect_err(line).to_string();
            assert!(failure.starts_with("the worker's answer: "), "{line}: {failure}");
        }
        for line in ["", "{\"figure\": 2.5}"] {
            let failure = figure(line).expect_err("the end of the line is missing").to_string();
            assert!(failure.starts_with("the worker ended"), "{failure}");
        }
    }

    #[test]
    fn a_worker_is_asked_line_by_line_and_its_end_is_known() {
        let script = "read -r line; echo \"{\\\"error\\\": \\\"${line%%,*}\\\"}\" | tr '[' ' '";
        let script = script.replace("${line%%,*}", "asked");
        let mut worker = Worker::of(Command::new("sh").args(["-c", &script])).expect("a shell");
        let first = worker.ask(&json!(["get", 1])).expect_err("it answers so");
        assert_eq!(first.to_string(), "asked");
        // The shell has ended, or ends now: the question or the answer fails.
        worker.ask(&json!(["get", 1])).expect_err("nobody is there");
    }
}
