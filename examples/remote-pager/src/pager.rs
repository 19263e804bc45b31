//! The application's side.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use piped_client::{Client, Handle};
use rustix::event::EventfdFlags;

use crate::counters::{Counters, Counts};
use crate::error::{MapError, PageError, SyncError};
use crate::mapping::{Features, Mapping, View};
use crate::options::Options;
use crate::serve::{Command, Server, Shared};

/// A region or file of another node as memory of this process; see the crate.
///
/// It has a thread and a queue of its own. Dropping it saves what is dirty and waits for that,
/// within the patience of its options; [`Self::close`] also says how it went.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Client, OpenOptions};
/// use remote_pager::{Options, Pager};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let file = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read())?;
/// let pager = Pager::map(&client, &file, Options::new())?;
/// let zeros = pager.bytes().iter().filter(|byte| **byte == 0).count();
/// println!("{zeros} zeros, {} faults", pager.counts().faults);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Pager {
    view: View,
    shared: Arc<Shared>,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

impl Pager {
    /// Map all of a region or file. No byte of it moves before it is touched.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(client: &Client, handle: &Handle, options: Options) -> Result<Self, MapError> {
        options.check(handle.len())?;
        let length = usize::try_from(handle.len());
        let length = length.map_err(|_| MapError::Options("longer than the address space"))?;
        let (mapping, view) = Mapping::new(length, options.writable, options.user_mode_only)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(std::io::Error::from)?;
        let (counters, failure) = (Counters::default(), Mutex::new(None));
        let shared = Arc::new(Shared { mapping, counters, failure, bell });
        let (commands, receiver) = channel();
        let server = Server::new(Arc::clone(&shared), client, handle, options, receiver)?;
        let thread = std::thread::Builder::new().name("pager".to_owned());
        let thread = Some(thread.spawn(move || server.run())?);
        Ok(Self { view, shared, commands, thread })
    }

    /// The bytes. A read of one waits for its page if that is not there.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.view.bytes()
    }

    /// The bytes, to be changed too. `None` without [`Options::writable`].
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.view.bytes_mut()
    }

    /// Have everything at the other node that was written before this call.
    ///
    /// # Errors
    /// See [`SyncError`]; what is not saved is still in the mapping.
    pub fn sync(&self) -> Result<(), SyncError> {
        let (reply, answer) = channel();
        self.tell(Command::Sync(reply))?;
        answer.recv().map_err(|_| SyncError::Ended)?
    }

    /// See from here on what others wrote, where they synced it before this call: syncs, and lets
    /// go of every page.
    ///
    /// # Errors
    /// See [`SyncError`]; nothing was let go of.
    pub fn refresh(&mut self) -> Result<(), SyncError> {
        self.sync()?;
        let (reply, answer) = channel();
        self.tell(Command::Refresh(reply))?;
        answer.recv().map_err(|_| SyncError::Ended)
    }

    /// Save everything and end.
    ///
    /// # Errors
    /// See [`SyncError`]; what could not be saved is lost.
    pub fn close(mut self) -> Result<Counts, SyncError> {
        let synced = self.sync();
        self.end();
        synced.map(|()| self.counts())
    }

    /// Counters of the pager since it was made.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    /// The first page that could not be had or saved, if there is one.
    #[must_use]
    pub fn failure(&self) -> Option<PageError> {
        *self.shared.failure.lock().unwrap_or_else(|it| it.into_inner())
    }

    /// Features that the kernel has for this mapping.
    #[must_use]
    pub fn features(&self) -> Features {
        self.shared.mapping.features()
    }

    fn tell(&self, command: Command) -> Result<(), SyncError> {
        self.commands.send(command).map_err(|_| SyncError::Ended)?;
        // Full means that it was rung 2^64 times and not heard: it will be.
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
        Ok(())
    }

    fn end(&mut self) {
        let _ = self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // It panicked: its message is printed, and the mapping a signal.
            let _ = thread.join();
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        // After `close` there is nobody to save anything.
        if self.thread.is_some() {
            let _ = self.sync();
            self.end();
        }
    }
}
