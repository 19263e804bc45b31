//! Pages that go back: protected, copied out, put, and only then clean.
//!
//! Some are saved while pages are still clean enough that no fault has to wait for a put; all
//! of them when somebody asks for a sync.

use std::io;
use std::ops::Range;
use std::sync::mpsc::Sender;
use std::time::Instant;

use piped_client::{Buffer, Cause, Class, Request, Status, SubmitError};

use crate::clock;
use crate::counters::add;
use crate::error::{Moved, PageError, SyncError, is_passing};
use crate::limits::{PAUSE, PUT_PAGES_MAX};
use crate::mapping::PAGE;
use crate::serve::{Kind, Server, byte_of, place};

/// A put under way.
#[derive(Debug)]
pub(crate) struct Save {
    pages: Range<u32>,
}

/// The trouble while puts fail.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) cause: Cause,
    /// When they are tried again. None: with the next sync, for it would be the same before.
    pub(crate) again: Option<Instant>,
}

impl Trouble {
    pub(crate) fn is_hopeless(&self) -> bool {
        self.again.is_none()
    }
}

/// Somebody waits until all is saved that was dirty when they asked.
#[derive(Debug)]
pub(crate) struct Sync {
    reply: Sender<Result<(), SyncError>>,
    step: Step,
    /// After that, what fails is no longer tried again for it.
    until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Puts from before: what they took may have been written since.
    Before,
    /// Dirty pages from this one on.
    From(u32),
    /// Waits for the last puts.
    After,
    /// Waits for stable storage.
    Durable,
}

impl Server {
    pub(crate) fn begin_sync(&mut self, reply: Sender<Result<(), SyncError>>) {
        match self.sync {
            Some(_) => self.syncs_waiting.push(reply),
            None => {
                // Whatever failed before, now it is tried again.
                self.save_trouble = None;
                let until = clock::now() + self.options.patience;
                self.sync = Some(Sync { reply, step: Step::Before, until });
            }
        }
    }

    /// Saves as much as is wanted and can be under way.
    pub(crate) fn save_some(&mut self) -> io::Result<()> {
        let waits = |it: &Trouble| it.again.is_none_or(|again| clock::now() < again);
        if self.save_trouble.as_ref().is_some_and(waits) {
            return Ok(());
        }
        self.save_trouble = None;
        self.advance_sync()?;
        while self.sync.is_none() && (self.pages.wants_saving() || !self.starved.is_empty()) {
            let Some(buffer) = self.put_buffers.take() else { break };
            match self.pages.poll_save(PUT_PAGES_MAX) {
                Some(pages) => self.save(pages, buffer)?,
                None => {
                    self.give(Kind::Put, buffer);
                    break;
                }
            }
        }
        Ok(())
    }

    fn advance_sync(&mut self) -> io::Result<()> {
        loop {
            let Some(sync) = &mut self.sync else { return Ok(()) };
            let underway = self.saves.iter().flatten().next().is_some();
            match sync.step {
                Step::Before if !underway => sync.step = Step::From(0),
                Step::From(from) => {
                    let Some(buffer) = self.put_buffers.take() else { return Ok(()) };
                    match self.pages.poll_save_behind(from, PUT_PAGES_MAX) {
                        Some(pages) => {
                            sync.step = Step::From(pages.end);
                            self.save(pages, buffer)?;
                        }
                        None => {
                            sync.step = Step::After;
                            self.give(Kind::Put, buffer);
                        }
                    }
                }
                Step::After if !underway && !self.options.durable => self.end_sync(Ok(())),
                Step::After if !underway => {
                    sync.step = Step::Durable;
                    let request = Request::sync(&self.handle)
                        .deadline(self.options.patience)
                        .tag(Kind::Durable.tag(0));
                    if let Err(SubmitError { fault, .. }) = self.queue.submit_detached(request) {
                        self.handle_durable(Some(Cause::NotSubmitted(fault)));
                    }
                }
                Step::Before | Step::After | Step::Durable => return Ok(()),
            }
        }
    }

    pub(crate) fn handle_durable(&mut self, cause: Option<Cause>) {
        self.end_sync(cause.map_or(Ok(()), |cause| Err(SyncError::Durable(cause))));
    }

    fn end_sync(&mut self, result: Result<(), SyncError>) {
        if let Some(sync) = self.sync.take() {
            // The asker may have gone.
            let _ = sync.reply.send(result);
        }
        if let Some(next) = self.syncs_waiting.pop() {
            self.begin_sync(next);
        }
    }

    fn save(&mut self, pages: Range<u32>, mut buffer: Buffer) -> io::Result<()> {
        let mapping = &self.shared.mapping;
        mapping.protect(pages.clone())?;
        let first = byte_of(pages.start);
        let bytes = pages.len() * PAGE;
        mapping.read(pages.start, &mut buffer.as_mut_slice()[..bytes])?;
        let index = place(&mut self.saves, Save { pages });
        let request = Request::write(&self.handle, first, buffer)
            .piece(0..bytes.min((self.length - first) as usize))
            .class(Class::Bulk)
            .deadline(self.options.patience)
            .resubmit()
            .tag(Kind::Put.tag(index));
        add(&self.shared.counters.puts, 1);
        if let Err(SubmitError { fault, buffer }) = self.queue.submit_detached(request) {
            self.handle_put(index, Some(Cause::NotSubmitted(fault)), Some(buffer));
        }
        Ok(())
    }

    /// Takes the end of a put.
    pub(crate) fn handle_put(
        &mut self,
        index: usize,
        cause: Option<Cause>,
        buffer: Option<Buffer>,
    ) {
        let Save { pages } = self.saves[index].take().expect("its put was under way");
        if let Some(buffer) = buffer {
            self.give(Kind::Put, buffer);
        }
        self.pages.handle_saved(pages.clone(), cause.is_none());
        let Some(cause) = cause else {
            add(&self.shared.counters.saved, pages.len());
            self.save_trouble = None;
            return;
        };
        add(&self.shared.counters.retries, 1);
        let now = clock::now();
        let passing = is_passing(cause)
            || cause == Cause::Status(Status::OutcomeUnknown)
            || cause == Cause::Disconnected && self.reconnects;
        self.save_trouble = Some(Trouble { cause, again: passing.then_some(now + PAUSE) });
        match &mut self.sync {
            // It is saved in another pass.
            Some(sync) if passing && now < sync.until => sync.step = Step::Before,
            None if passing => {}
            _ => {
                let error = PageError { page: pages.start, what: Moved::Saved, cause };
                self.note(error);
                self.end_sync(Err(error.into()));
            }
        }
    }
}
