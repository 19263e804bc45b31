//! One arm: the client and both daemons of one build, which do what the command asks.
//!
//! An arm is the `bench` of its build. So the comparison covers a whole build with its client
//! library, and the command needs to know only the messages of an old build.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use piped_core::modes::Profile;
use serde::Serialize;

use super::protocol::{Answer, Hello, Measured, Question, VERSION};
use super::tasks::{Site, TASKS, Task};
use crate::failure::{Doing as _, Failure};
use crate::machine::Cpus;
use crate::nodes::Pair;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Profile of both daemons.
    #[arg(long, value_parser = super::profile)]
    profile: Profile,
    /// The directory that the second daemon exports.
    #[arg(long)]
    data: PathBuf,
}

/// Starts the daemons and answers questions until there are no more.
pub(crate) fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { profile, data } = arguments;
    let cpus = Cpus::here();
    let pair = Pair::start(*profile, cpus, data)?;
    say(&Hello { version: VERSION, daemons: [pair.a.pid(), pair.b.pid()] })?;
    let site = Site { pair: &pair, cpus, data };
    let mut open: Option<(String, Task<'_>)> = None;
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?).doing("a question")?;
        let answer = match measure(site, &mut open, &question) {
            Ok(measured) => Answer::Measured(measured),
            Err(failure) => Answer::Failed { reason: failure.to_string() },
        };
        say(&answer)?;
    }
    Ok(())
}

/// Does a task. Everything it needs is opened once, and stays open until another task is asked for.
fn measure<'a>(
    site: Site<'a>,
    open: &mut Option<(String, Task<'a>)>,
    question: &Question,
) -> Result<Measured, Failure> {
    let name = &question.task;
    if open.as_ref().is_none_or(|(open, _)| open != name) {
        // Close the old task first: it may have the name of a region that this one wants.
        *open = None;
        let known = TASKS.iter().find(|(known, _)| known == name);
        let (_, task) = known.ok_or_else(|| Failure::new(format!("no task `{name}`")))?;
        *open = Some((name.clone(), task(site)?));
    }
    let (_, task) = open.as_mut().expect("opened above");
    let duration = Duration::try_from_secs_f64(question.seconds).doing("a duration")?;
    task(duration)
}

fn say(what: &impl Serialize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what).doing("an answer")?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
