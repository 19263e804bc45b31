//! The pager's thread: faults, completions and commands in, gets, puts and pages out.
//!
//! It sleeps in one `poll` on the three descriptors they come by. Waking it, asking, being woken by
//! the daemon and waking the application are four changes of thread; on one CPU each is a few
//! microseconds, across CPUs tens. So it runs beside the daemon's shard and does not spin: a thread
//! that does would hold up the shard that it waits for. And it does first what somebody waits for:
//! a turn answers faults, tells the daemon, and only then looks after what is ahead, what is to go
//! and what is to be saved.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use piped_client::{Buffer, BufferState, Client, Completed, Handle, Queue, ReconnectError};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::clock;
use crate::counters::{Counters, add};
use crate::error::{MapError, PageError, SyncError};
use crate::fetch::Fetch;
use crate::limits::{EVICT_TOGETHER, PAGE_GETS_MAX, PAUSE, PUT_PAGES_MAX, PUTS_MAX};
use crate::mapping::{Fault, Mapping, PAGE};
use crate::options::Options;
use crate::pages::{Page, Pages};
use crate::pool::Pool;
use crate::save::{Save, Sync, Trouble};
use crate::stream::{StreamId, Streams};

/// Commands of the application's threads to the pager's.
#[derive(Debug)]
pub(crate) enum Command {
    /// Save everything, and say how it went.
    Sync(std::sync::mpsc::Sender<Result<(), SyncError>>),
    /// Let go of every page that is not dirty.
    Refresh(std::sync::mpsc::Sender<()>),
    /// End the pager's thread.
    Stop,
}

/// State that the pager's thread shares with the application's side.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) counters: Counters,
    /// The first page that could not be had or, after the last try, saved.
    pub(crate) failure: Mutex<Option<PageError>>,
    /// The bell that is rung for commands.
    pub(crate) bell: OwnedFd,
}

/// Which pool a request's buffer is of, and what ended: the low bits of its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    PageGet,
    StripGet,
    Put,
    Durable,
}

impl Kind {
    pub(crate) fn tag(self, index: usize) -> u64 {
        (index as u64) << 2 | self as u64
    }

    fn of(tag: u64) -> (Self, usize) {
        let kinds = [Self::PageGet, Self::StripGet, Self::Put, Self::Durable];
        (kinds[(tag & 3) as usize], (tag >> 2) as usize)
    }
}

/// The thread of a pager.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Client,
    pub(crate) queue: Queue,
    pub(crate) handle: Handle,
    /// Bytes of the region or file; the last page may reach beyond.
    pub(crate) length: u64,
    pub(crate) options: Options,
    /// The client goes on with another daemon.
    pub(crate) reconnects: bool,
    pub(crate) pages: Pages,
    pub(crate) streams: Streams,
    pub(crate) page_buffers: Pool,
    /// None: nothing is fetched ahead.
    pub(crate) strip_buffers: Option<Pool>,
    pub(crate) put_buffers: Pool,
    pub(crate) fetches: Vec<Option<Fetch>>,
    pub(crate) saves: Vec<Option<Save>>,
    /// Streams that may want more ahead.
    pub(crate) moved: Vec<StreamId>,
    /// Landed fetches that found no room.
    pub(crate) starved: Vec<usize>,
    pub(crate) sync: Option<Sync>,
    pub(crate) syncs_waiting: Vec<std::sync::mpsc::Sender<Result<(), SyncError>>>,
    /// The trouble while puts fail.
    pub(crate) save_trouble: Option<Trouble>,
    commands: Receiver<Command>,
    /// Buffers that are the kernel's still.
    held: usize,
    faults: Vec<Fault>,
}

/// Where threads wait for pages, nobody may be left waiting: if the pager's thread panics, all of
/// the mapping becomes a signal.
struct Fence(Arc<Mapping>);

impl Drop for Fence {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.forbid(self.0.pages());
        }
    }
}

impl Server {
    pub(crate) fn new(
        shared: Arc<Shared>,
        client: &Client,
        handle: &Handle,
        options: Options,
        commands: Receiver<Command>,
    ) -> Result<Self, MapError> {
        let windows = options.windows();
        let count = shared.mapping.pages().end;
        let strip_bytes = windows.strip_pages_max as usize * PAGE;
        let strips = (options.ahead_bytes_max / strip_bytes.max(1)).clamp(2, 1 << 10);
        let strip_buffers = match strip_bytes {
            0 => None,
            bytes => Some(Pool::new(client, bytes, strips)?),
        };
        Ok(Self {
            queue: client.queue()?,
            // At once, for the connection stands.
            reconnects: !matches!(client.reconnect(), Err(ReconnectError::NotAsked)),
            client: client.clone(),
            handle: handle.clone(),
            length: handle.len(),
            options,
            pages: Pages::new(count, options.resident_pages()),
            streams: Streams::new(count, windows),
            page_buffers: Pool::new(client, PAGE, PAGE_GETS_MAX)?,
            strip_buffers,
            put_buffers: Pool::new(client, PUT_PAGES_MAX as usize * PAGE, PUTS_MAX)?,
            fetches: Vec::new(),
            saves: Vec::new(),
            moved: Vec::new(),
            starved: Vec::new(),
            sync: None,
            syncs_waiting: Vec::new(),
            save_trouble: None,
            commands,
            held: 0,
            faults: Vec::new(),
            shared,
        })
    }

    /// Serves until told to stop. If it fails, or panics, the mapping becomes a signal.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _fence = Fence(Arc::clone(&shared.mapping));
        if self.options.beside_shard {
            // Where that is not allowed, it is only slower.
            let _ = self.queue.pin_to_shard();
        }
        if let Err(error) = self.serve() {
            // The kernel refuses what it did before: somebody else unmapped the mapping, say.
            eprintln!("remote_pager: the mapping cannot be served any more: {error}");
            let _ = shared.mapping.forbid(shared.mapping.pages());
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.take_completions()?;
            if self.take_commands()? {
                return Ok(());
            }
            self.shared.mapping.take_faults(&mut self.faults)?;
            for fault in std::mem::take(&mut self.faults) {
                self.handle_fault(fault)?;
            }
            // Waiting threads are served; now the rest.
            self.queue.flush();
            self.look_after()?;
            self.wait()?;
        }
    }

    fn look_after(&mut self) -> io::Result<()> {
        self.retry()?;
        self.fetch_ahead();
        self.save_some()?;
        self.queue.flush();
        self.evict_ahead()
    }

    fn handle_fault(&mut self, fault: Fault) -> io::Result<()> {
        let Fault { page, write } = fault;
        add(&self.shared.counters.faults, 1);
        match self.pages.get(page) {
            // The message is older than what was done for the page.
            Page::Lost => self.shared.mapping.wake(page),
            state if state.is_resident() && write => {
                add(&self.shared.counters.write_faults, 1);
                self.pages.handle_written(page);
                self.shared.mapping.unprotect(page..page + 1)
            }
            state if state.is_resident() => self.shared.mapping.wake(page),
            Page::Coming => self.join(fault),
            _ => self.demand(fault),
        }
    }

    fn take_completions(&mut self) -> io::Result<()> {
        while let Some(Completed { tag, result, .. }) = self.queue.poll() {
            let (kind, index) = Kind::of(tag);
            let (cause, bytes, buffer) = match result {
                Ok(done) => (None, done.bytes, done.payload),
                Err(error) => {
                    let buffer = match error.buffer {
                        BufferState::Returned(buffer) => Some(buffer),
                        BufferState::Held => {
                            self.held += 1;
                            None
                        }
                        BufferState::Lost | BufferState::None => {
                            self.forget(kind);
                            None
                        }
                    };
                    (Some(error.cause), error.bytes, buffer)
                }
            };
            match kind {
                Kind::PageGet | Kind::StripGet => {
                    self.handle_fetched(index, cause, bytes, buffer)?
                }
                Kind::Put => self.handle_put(index, cause, buffer),
                Kind::Durable => self.handle_durable(cause),
            }
        }
        while self.held > 0
            && let Some(released) = self.queue.poll_released()
        {
            self.held -= 1;
            self.give(Kind::of(released.tag).0, released.buffer);
        }
        Ok(())
    }

    /// Takes the commands; returns whether to stop.
    fn take_commands(&mut self) -> io::Result<bool> {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Sync(reply)) => self.begin_sync(reply),
                Ok(Command::Refresh(reply)) => {
                    self.disown_all();
                    self.evict(usize::MAX)?;
                    // Nobody waits for the answer any more: then nobody needs it.
                    let _ = reply.send(());
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(true),
                Err(TryRecvError::Empty) => return Ok(false),
            }
        }
    }

    /// Sleeps until there is something to do.
    fn wait(&mut self) -> io::Result<()> {
        if self.queue.is_disconnected() && self.reconnects {
            return self.reconnect();
        }
        // Without a daemon, and without another to go on with, every request fails at once.
        let connected = !self.queue.is_disconnected();
        if connected && !self.queue.arm() {
            return Ok(());
        }
        let timeout = self.next_try().map(|at| at.saturating_duration_since(clock::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let bell = self.shared.bell.as_fd();
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut polled = [self.shared.mapping.fd(), bell, self.queue.completion_fd()].map(readable);
        let those = if connected { &mut polled[..] } else { &mut polled[..2] };
        match rustix::event::poll(those, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if polled[1].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        if connected {
            self.queue.drain();
        }
        Ok(())
    }

    /// Looks for the next daemon. Requests that outlive theirs wait in the queue meanwhile.
    fn reconnect(&mut self) -> io::Result<()> {
        if self.client.reconnect().is_err() {
            // The loop took its time already; waits that are over end in the queue.
            let pause = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
            let _ = rustix::thread::nanosleep(&pause);
        }
        Ok(())
    }

    /// When something is to be tried again.
    fn next_try(&self) -> Option<Instant> {
        let fetches = self.fetches.iter().flatten().filter_map(Fetch::next_try);
        fetches.chain(self.save_trouble.as_ref().and_then(|trouble| trouble.again)).min()
    }

    /// Makes room for `count` pages, if that many can go at once.
    pub(crate) fn make_room(&mut self, count: usize) -> io::Result<bool> {
        if self.pages.room() < count {
            self.evict((count - self.pages.room()).max(EVICT_TOGETHER))?;
        }
        Ok(self.pages.room() >= count)
    }

    /// Has room before it is needed.
    fn evict_ahead(&mut self) -> io::Result<()> {
        // For the next strip, which somebody waits for when it is installed.
        let strip = self.options.windows().strip_pages_max as usize;
        let slack = strip.max(EVICT_TOGETHER.min(self.options.resident_pages() / 8));
        if self.pages.room() < slack {
            self.evict(slack)?;
        }
        self.feed_starved()
    }

    pub(crate) fn evict(&mut self, count: usize) -> io::Result<()> {
        let mut runs = Vec::new();
        self.pages.poll_evict(count, &mut runs);
        for run in runs {
            add(&self.shared.counters.evicted, run.len());
            self.shared.mapping.forget(run)?;
        }
        Ok(())
    }

    /// The first failure stays.
    pub(crate) fn note(&self, error: PageError) {
        let mut failure = self.shared.failure.lock().unwrap_or_else(|it| it.into_inner());
        failure.get_or_insert(error);
    }

    pub(crate) fn give(&mut self, kind: Kind, buffer: Buffer) {
        if let Some(pool) = self.pool(kind) {
            pool.give(buffer);
        }
    }

    fn forget(&mut self, kind: Kind) {
        if let Some(pool) = self.pool(kind) {
            pool.forget();
        }
    }

    fn pool(&mut self, kind: Kind) -> Option<&mut Pool> {
        match kind {
            Kind::PageGet => Some(&mut self.page_buffers),
            Kind::StripGet => self.strip_buffers.as_mut(),
            Kind::Put => Some(&mut self.put_buffers),
            Kind::Durable => None,
        }
    }
}

/// Puts a value into the first free place.
pub(crate) fn place<T>(places: &mut Vec<Option<T>>, value: T) -> usize {
    let free = places.iter().position(Option::is_none).unwrap_or(places.len());
    if free == places.len() {
        places.push(None);
    }
    places[free] = Some(value);
    free
}

/// Offset of a page in bytes, as the kernel and the daemon count.
pub(crate) fn byte_of(page: u32) -> u64 {
    u64::from(page) * PAGE as u64
}
