//! An arm as a process of its own: started, asked, watched and ended.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use piped_core::modes::Profile;

use super::Turn;
use super::counts::Watch;
use super::protocol::{Answer, Hello, Measured, Question, VERSION};
use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::nodes::under_parent;

/// Processes of a [`Turn`], in order: the client, the daemon it asks, and the daemon with the data.
pub(crate) const PROCESSES: [&str; 3] = ["client", "asked", "serving"];

/// The binaries of a build.
const PROGRAMS: [&str; 3] = ["bench", "piped", "pipectl"];

/// Longest time for an arm to end its daemons.
const END_LIMIT: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Arm {
    pub(crate) name: &'static str,
    process: Child,
    /// None once no more is asked.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    daemons: [u32; 2],
}

impl Arm {
    /// Starts the arm of a build, and its daemons.
    pub(crate) fn start(
        name: &'static str,
        build: &Path,
        profile: Profile,
        data: &Path,
    ) -> Result<Self, Failure> {
        if let Some(missing) = PROGRAMS.iter().find(|program| !build.join(program).is_file()) {
            return Err(Failure::new(format!(
                "{} has no `{missing}`: name the directory with the release binaries of a build, \
                 made by `cargo build --release -p piped -p pipectl -p bench`",
                build.display()
            )));
        }
        let mut command = under_parent(&build.canonicalize()?.join("bench"), None)?;
        command
            .args(["ab-arm", "--profile", &profile.to_string(), "--data"])
            .arg(data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for this program, which ends the arm.
            .process_group(0);
        let mut process = command.spawn()?;
        let questions = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("it was asked for"));
        let mut arm = Self { name, process, questions, answers, daemons: [0; 2] };
        let hello: Hello = arm.hear().map_err(|failure| {
            failure.within(
                "it cannot be compared (builds before `bench ab` cannot; else its reason is above)",
            )
        })?;
        if hello.version != VERSION {
            return Err(Failure::new(format!(
                "it measures by version {} of the tasks, and this program by {VERSION}: run the \
                 `bench ab` of a build between them",
                hello.version
            )));
        }
        arm.daemons = hello.daemons;
        Ok(arm)
    }

    /// Makes the arm do a task for a while, and watches its processes.
    pub(crate) fn turn(
        &mut self,
        task: &str,
        seconds: f64,
        with_hardware: bool,
    ) -> Result<Turn, Failure> {
        let [client, asked, serving] =
            self.processes().map(|process| Watch::begin(process, with_hardware));
        let watches = [client?, asked?, serving?];
        let measured = self.ask(task, seconds)?;
        let [client, asked, serving] = watches.map(Watch::end);
        Ok(Turn { measured, counts: [client?, asked?, serving?] })
    }

    /// Process numbers in the order of [`PROCESSES`].
    pub(crate) fn processes(&self) -> [u32; PROCESSES.len()] {
        let [asked, serving] = self.daemons;
        [self.process.id(), asked, serving]
    }

    /// Makes the arm do a task for a while, but once at least.
    pub(crate) fn ask(&mut self, task: &str, seconds: f64) -> Result<Measured, Failure> {
        let question = Question { task: task.to_owned(), seconds };
        let mut line = serde_json::to_vec(&question).doing("a question")?;
        line.push(b'\n');
        let questions = self.questions.as_mut().expect("it is open until the arm is dropped");
        questions.write_all(&line).doing("its questions")?;
        match self.hear()? {
            Answer::Measured(measured) => Ok(measured),
            Answer::Failed { reason } => Err(Failure::new(reason)),
        }
    }

    fn hear<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, Failure> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(Failure::new("it ended"));
        }
        serde_json::from_str(&line).doing("what it says")
    }
}

impl Drop for Arm {
    fn drop(&mut self) {
        // The arm ends its daemons and removes their directory.
        self.questions = None;
        let ended =
            clock::poll(END_LIMIT, || (!matches!(self.process.try_wait(), Ok(None))).then_some(()));
        if ended.is_none() {
            eprintln!("bench: the {} arm did not end in 15 s and is killed", self.name);
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
