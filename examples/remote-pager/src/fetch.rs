//! Pages that come: gets of one page that a thread waits for, and of strips ahead of threads that
//! read in order.
//!
//! A page that is waited for is a get of its own, of the latency class: 4 KiB on the connection
//! where bulk does not stand in its way. The pages ahead of it follow as strips of the bulk class.
//! *Not taken*: one get of the whole neighbourhood with the page first. It would fetch sixteen
//! pages for each fault of a thread that looks here and there, and a thread that reads in order
//! waits for the first page of a stream only.

use std::io;
use std::ops::Range;
use std::time::Instant;

use piped_client::{Buffer, Cause, Class, Request, SubmitError, SubmitFault};

use crate::clock;
use crate::counters::add;
use crate::error::{Moved, PageError, is_passing};
use crate::limits::PAUSE;
use crate::mapping::{Fault, PAGE};
use crate::pages::Page;
use crate::serve::{Kind, Server, byte_of, place};
use crate::stream::StreamId;

/// Neighbouring pages that were asked for together.
#[derive(Debug)]
pub(crate) struct Fetch {
    pages: Range<u32>,
    kind: Kind,
    state: State,
    /// Threads wait for these.
    waiters: Vec<Fault>,
    /// Ahead of which stream; none once the stream is gone.
    stream: Option<StreamId>,
    /// Whether its bytes are from before a refresh.
    stale: bool,
    /// After that it is given up.
    until: Instant,
}

#[derive(Debug)]
enum State {
    Asked,
    Landed(Buffer),
    /// The get failed, and is submitted again at that time.
    Again(Instant, Option<Buffer>),
}

impl Fetch {
    pub(crate) fn next_try(&self) -> Option<Instant> {
        match self.state {
            State::Again(at, _) => Some(at),
            // A landed fetch with waiters is one that found no room.
            State::Landed(_) if !self.waiters.is_empty() => Some(self.until),
            State::Asked | State::Landed(_) => None,
        }
    }

    /// Nobody came to it yet.
    fn is_ahead_of(&self, stream: StreamId) -> bool {
        self.stream == Some(stream) && self.waiters.is_empty()
    }
}

impl Server {
    /// A fault on a page nobody asked for.
    pub(crate) fn demand(&mut self, fault: Fault) -> io::Result<()> {
        let pages = fault.page..fault.page + 1;
        self.pages.handle_asked(pages.clone());
        let now = clock::now();
        let fetch = Fetch {
            pages,
            kind: Kind::PageGet,
            state: State::Again(now + PAUSE, None),
            waiters: vec![fault],
            stream: None,
            stale: false,
            until: now + self.options.patience,
        };
        let index = place(&mut self.fetches, fetch);
        // With as many under way as may be, it waits until one of them ends.
        if let Some(buffer) = self.page_buffers.take() {
            self.ask(index, buffer)?;
        }
        let (stream, ended) = self.streams.handle_fault(fault.page);
        if let Some(ended) = ended {
            self.drop_ahead(|stream| stream == ended);
        }
        self.moved.extend(stream);
        Ok(())
    }

    /// A fault on a page that was asked for: of a strip, or for another thread.
    pub(crate) fn join(&mut self, fault: Fault) -> io::Result<()> {
        let of_page = |fetch: &Option<Fetch>| {
            fetch.as_ref().is_some_and(|fetch| fetch.pages.contains(&fault.page))
        };
        let index = self.fetches.iter().position(of_page).expect("a page that comes has a fetch");
        let fetch = self.fetches[index].as_mut().expect("just found");
        let landed = matches!(fetch.state, State::Landed(_));
        if let Some(stream) = fetch.stream.filter(|_| fetch.waiters.is_empty()) {
            self.streams.handle_touch(stream, !landed);
            self.moved.push(stream);
            if !landed {
                add(&self.shared.counters.late, fetch.pages.len());
            }
        }
        if fetch.waiters.is_empty() {
            // A strip has had time to come; now somebody waits.
            fetch.until = clock::now() + self.options.patience;
        }
        fetch.waiters.push(fault);
        if landed { self.install(index) } else { Ok(()) }
    }

    /// Asks for more ahead of the streams that moved.
    pub(crate) fn fetch_ahead(&mut self) {
        for stream in std::mem::take(&mut self.moved) {
            while self.fetch_strip(stream) {}
        }
    }

    fn fetch_strip(&mut self, stream: StreamId) -> bool {
        let ahead = |fetch: &&Fetch| fetch.is_ahead_of(stream);
        let ahead = self.fetches.iter().flatten().filter(ahead).count();
        let Some(buffers) = &mut self.strip_buffers else { return false };
        let buffer = match buffers.take() {
            Some(buffer) => buffer,
            None => {
                // Pages ahead of a thread that went elsewhere are worth less.
                let has = |id| self.fetches.iter().flatten().any(|fetch| fetch.is_ahead_of(id));
                let Some(oldest) = self.streams.oldest(stream, has) else { return false };
                self.drop_ahead(|other| other == oldest);
                let buffers = self.strip_buffers.as_mut();
                let Some(buffer) = buffers.and_then(|buffers| buffers.take()) else { return false };
                buffer
            }
        };
        let pages = &self.pages;
        let strip = self.streams.poll_strip(stream, ahead, |page| pages.get(page) == Page::Absent);
        let Some(strip) = strip else {
            self.give(Kind::StripGet, buffer);
            return false;
        };
        self.pages.handle_asked(strip.clone());
        let fetch = Fetch {
            pages: strip,
            kind: Kind::StripGet,
            state: State::Asked,
            waiters: Vec::new(),
            stream: Some(stream),
            stale: false,
            until: clock::now() + self.options.patience,
        };
        let index = place(&mut self.fetches, fetch);
        // A get of nobody's that cannot be asked for is dropped.
        self.ask(index, buffer).is_ok()
    }

    /// Submits the get of a fetch.
    fn ask(&mut self, index: usize, buffer: Buffer) -> io::Result<()> {
        let fetch = self.fetches[index].as_mut().expect("a fetch that is asked for is there");
        fetch.state = State::Asked;
        let (first, bytes) = (byte_of(fetch.pages.start), fetch.pages.len() * PAGE);
        let class = match fetch.kind {
            Kind::PageGet => Class::Latency,
            _ => Class::Bulk,
        };
        let request = Request::read(&self.handle, first, buffer)
            .piece(0..bytes.min((self.length - first) as usize))
            .class(class)
            .deadline(fetch.until.saturating_duration_since(clock::now()))
            .resubmit()
            .tag(fetch.kind.tag(index));
        add(&self.shared.counters.gets, 1);
        match self.queue.submit_detached(request) {
            Ok(_) => Ok(()),
            Err(SubmitError { fault, buffer }) => {
                self.handle_fetched(index, Some(Cause::NotSubmitted(fault)), 0, Some(buffer))
            }
        }
    }

    /// Takes the end of a get.
    pub(crate) fn handle_fetched(
        &mut self,
        index: usize,
        cause: Option<Cause>,
        bytes: u64,
        buffer: Option<Buffer>,
    ) -> io::Result<()> {
        let fetch = self.fetches[index].as_mut().expect("its get was under way");
        match (cause, buffer) {
            (None, Some(buffer)) if fetch.stale && !fetch.waiters.is_empty() => {
                fetch.stale = false;
                self.ask(index, buffer)
            }
            (None, Some(mut buffer)) => {
                // Behind the end there are zeros: of a last page, or of a file that became shorter.
                let wanted = fetch.pages.len() * PAGE;
                let got = usize::try_from(bytes).map_or(wanted, |bytes| bytes.min(wanted));
                buffer.as_mut_slice()[got..wanted].fill(0);
                fetch.state = State::Landed(buffer);
                // A strip stays where it is until somebody comes.
                match (fetch.waiters.is_empty(), fetch.stream) {
                    (true, Some(_)) => Ok(()),
                    (true, None) => {
                        self.drop_fetch(index);
                        Ok(())
                    }
                    (false, _) => self.install(index),
                }
            }
            (cause, buffer) => {
                let cause = cause.unwrap_or(Cause::Broken);
                let passing = is_passing(cause) || cause == Cause::Disconnected && self.reconnects;
                let again = clock::now() + PAUSE;
                fetch.state = State::Again(again, buffer);
                if fetch.waiters.is_empty() {
                    self.drop_fetch(index);
                    Ok(())
                } else if passing && again < fetch.until {
                    add(&self.shared.counters.retries, 1);
                    Ok(())
                } else {
                    self.lose(index, cause)
                }
            }
        }
    }

    /// Makes the fetched pages appear in the mapping, and waiting threads go on.
    fn install(&mut self, index: usize) -> io::Result<()> {
        let fetch = self.fetches[index].as_ref().expect("a fetch that is installed is there");
        let pages = fetch.pages.clone();
        if !self.make_room(pages.len())? {
            if !self.starved.contains(&index) {
                self.starved.push(index);
            }
            return Ok(());
        }
        let Some(Fetch { state: State::Landed(buffer), waiters, kind, .. }) =
            self.fetches[index].take()
        else {
            unreachable!("only what has landed is installed")
        };
        // It may have waited for room, and another fault found some.
        self.starved.retain(|it| *it != index);
        // Counted before waiting threads go on, and may look.
        add(&self.shared.counters.installed, pages.len());
        if kind == Kind::StripGet {
            add(&self.shared.counters.ahead, pages.len());
        }
        let mapping = &self.shared.mapping;
        let written = |page: u32| waiters.iter().any(|it| it.page == page && it.write);
        let mut first = pages.start;
        // As few calls as there are runs of pages that are to be written at once, and others.
        while first < pages.end {
            let write = written(first);
            let end = (first..pages.end).find(|page| written(*page) != write).unwrap_or(pages.end);
            let place = |page: u32| (page - pages.start) as usize * PAGE;
            let bytes = &buffer.as_slice()[place(first)..place(end)];
            mapping.install(first, bytes, self.options.writable && !write)?;
            first = end;
        }
        self.pages.handle_installed(pages.clone());
        pages.filter(|page| written(*page)).for_each(|page| self.pages.handle_written(page));
        self.give(kind, buffer);
        Ok(())
    }

    /// Tries what found no room.
    pub(crate) fn feed_starved(&mut self) -> io::Result<()> {
        for index in std::mem::take(&mut self.starved) {
            let now = clock::now();
            let fetch = self.fetches[index].as_ref().expect("it waits for room");
            let expired = now >= fetch.until;
            match &self.save_trouble {
                // What is here cannot be saved, so nothing can go.
                Some(it) if expired || it.is_hopeless() && self.pages.has_only_dirty() => {
                    self.lose(index, it.cause)?;
                }
                None if expired => self.lose(index, SubmitFault::NoRoom.into())?,
                _ => self.install(index)?,
            }
        }
        Ok(())
    }

    /// Asks again for what failed.
    pub(crate) fn retry(&mut self) -> io::Result<()> {
        let now = clock::now();
        for index in 0..self.fetches.len() {
            let Some(fetch) = &mut self.fetches[index] else { continue };
            let (kind, until) = (fetch.kind, fetch.until);
            let State::Again(at, buffer) = &mut fetch.state else { continue };
            let found = kind == Kind::PageGet && buffer.is_none() && self.page_buffers.has_free();
            if *at > now && !found {
                continue;
            }
            let buffer = buffer.take();
            let buffer = match (buffer, kind) {
                (None, Kind::PageGet) => self.page_buffers.take(),
                (None, _) => self.strip_buffers.as_mut().and_then(|buffers| buffers.take()),
                (buffer, _) => buffer,
            };
            match buffer {
                Some(buffer) => self.ask(index, buffer)?,
                None if now < until => {
                    let fetch = self.fetches[index].as_mut().expect("looked at above");
                    fetch.state = State::Again(now + PAUSE, None);
                }
                None => self.lose(index, SubmitFault::NoRoom.into())?,
            }
        }
        Ok(())
    }

    /// Gives the pages up. Threads that wait for them get a signal; the others were only ahead.
    fn lose(&mut self, index: usize, cause: Cause) -> io::Result<()> {
        let fetch = self.fetches[index].as_ref().expect("it is given up");
        let mut lost: Vec<u32> = fetch.waiters.iter().map(|fault| fault.page).collect();
        lost.dedup();
        self.drop_fetch(index);
        for page in lost {
            if self.pages.get(page) == Page::Lost {
                continue;
            }
            let error = PageError { page, what: Moved::Fetched, cause };
            add(&self.shared.counters.lost, 1);
            self.note(error);
            self.pages.handle_lost(page);
            if let Some(on_loss) = self.options.on_loss {
                on_loss(&error);
            }
            self.shared.mapping.poison(page)?;
        }
        Ok(())
    }

    /// Drops a fetch: its pages are nowhere again.
    fn drop_fetch(&mut self, index: usize) {
        let Some(fetch) = self.fetches[index].take() else { return };
        if fetch.kind == Kind::StripGet && fetch.waiters.is_empty() {
            add(&self.shared.counters.unused, fetch.pages.len());
        }
        self.pages.handle_dropped(fetch.pages);
        if let State::Landed(buffer) | State::Again(_, Some(buffer)) = fetch.state {
            self.give(fetch.kind, buffer);
        }
    }

    /// Forgets which reader each fetch is ahead of.
    pub(crate) fn disown_all(&mut self) {
        self.fetches.iter_mut().flatten().for_each(|fetch| fetch.stale = true);
        self.drop_ahead(|_| true);
    }

    /// Gives up what is ahead of some streams: at once what has landed, the rest when it does.
    pub(crate) fn drop_ahead(&mut self, of: impl Fn(StreamId) -> bool) {
        for index in 0..self.fetches.len() {
            let Some(fetch) = &mut self.fetches[index] else { continue };
            if fetch.stream.is_none_or(|stream| !of(stream)) || !fetch.waiters.is_empty() {
                continue;
            }
            fetch.stream = None;
            if !matches!(fetch.state, State::Asked) {
                self.drop_fetch(index);
            }
        }
    }
}
