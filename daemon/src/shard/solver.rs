//! Plans that take longer than a turn: a thread beside each shard's solves the questions that it
//! puts out.
//!
//! A bounded channel with room for all open questions of a shard leads there. If it were full all
//! the same, the question would be declined, never waited for. The thread gives way to all others:
//! a late answer costs a few transfers with an older plan, but a shard without its CPU delays all
//! of them.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use piped_core::limits::QUESTIONS_MAX;
use piped_engine::command::Command;
use piped_planner::solve::{PlanAnswer, PlanRequest, solve};

use super::message::{FaintMailbox, Message};
use crate::io::niceness;

/// Access of a shard to its solver. Dropping it ends the thread.
pub(super) struct Solver {
    questions: SyncSender<Box<PlanRequest>>,
}

impl Solver {
    /// Starts the thread; answers go to the mailbox.
    pub(super) fn start(index: usize, answers: FaintMailbox) -> io::Result<Self> {
        let (questions, asked) = sync_channel(QUESTIONS_MAX);
        std::thread::Builder::new()
            .name(format!("piped-solver-{index}"))
            .spawn(move || run(&asked, &answers))?;
        Ok(Self { questions })
    }

    /// Hands a question over, or returns the answer that there is none.
    pub(super) fn ask(&self, question: Box<PlanRequest>) -> Result<(), PlanAnswer> {
        let asked = self.questions.try_send(question);
        asked.map_err(|error| {
            use std::sync::mpsc::TrySendError::{Disconnected, Full};
            let (Full(question) | Disconnected(question)) = error;
            question.declined()
        })
    }
}

fn run(asked: &Receiver<Box<PlanRequest>>, answers: &FaintMailbox) {
    niceness::give_way();
    while let Ok(question) = asked.recv() {
        let answer = Box::new(solve(&question));
        if answers.send(Message::Engine(Command::Planned(answer))).is_err() {
            return;
        }
    }
}
