//! Verbs of a queue in one call each: a request made and submitted, or run to its end. The queue is
//! a descriptor here, too.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use piped_core::call::Call;

use super::Queue;
use crate::buffer::Buffer;
use crate::error::{BufferState, RequestError, SubmitError, SubmitFault};
use crate::handle::Handle;
use crate::pending::Pending;
use crate::request::{Request, Tag};

impl Queue {
    /// Make and submit a [`Request::read`].
    ///
    /// # Errors
    /// See [`crate::SubmitFault`]; the buffer comes back.
    pub fn submit_read(
        &mut self,
        from: &Handle,
        offset: u64,
        buffer: Buffer,
    ) -> Result<Pending<Buffer>, SubmitError<Buffer>> {
        self.submit(Request::read(from, offset, buffer))
    }

    /// Make and submit a [`Request::write`].
    ///
    /// # Errors
    /// See [`crate::SubmitFault`]; the buffer comes back.
    pub fn submit_write(
        &mut self,
        to: &Handle,
        offset: u64,
        buffer: Buffer,
    ) -> Result<Pending<Buffer>, SubmitError<Buffer>> {
        self.submit(Request::write(to, offset, buffer))
    }

    /// Make and submit a [`Request::copy`].
    ///
    /// # Errors
    /// See [`crate::SubmitFault`].
    pub fn submit_copy(
        &mut self,
        from: (&Handle, u64),
        to: (&Handle, u64),
        length: u64,
    ) -> Result<Pending<()>, SubmitError<()>> {
        self.submit(Request::copy(from.0, from.1, to.0, to.1, length))
    }

    /// Make and submit a [`Request::sync`].
    ///
    /// # Errors
    /// See [`crate::SubmitFault`].
    pub fn submit_sync(&mut self, handle: &Handle) -> Result<Pending<()>, SubmitError<()>> {
        self.submit(Request::sync(handle))
    }

    /// Make and submit a [`Request::nop`].
    ///
    /// # Errors
    /// See [`crate::SubmitFault`].
    pub fn submit_nop(&mut self) -> Result<Pending<()>, SubmitError<()>> {
        self.submit(Request::nop())
    }

    /// Read, and wait for it: the buffer and how many bytes of it were filled.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn read(
        &mut self,
        from: &Handle,
        offset: u64,
        buffer: Buffer,
    ) -> Result<(Buffer, usize), RequestError> {
        let done = self.run(Request::read(from, offset, buffer))?;
        Ok((done.payload, done.bytes as usize))
    }

    /// Write, and wait for it: the buffer and how many bytes of it were written.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn write(
        &mut self,
        to: &Handle,
        offset: u64,
        buffer: Buffer,
    ) -> Result<(Buffer, usize), RequestError> {
        let done = self.run(Request::write(to, offset, buffer))?;
        Ok((done.payload, done.bytes as usize))
    }

    /// Make a call, and wait for it: the buffer and how many bytes of it are the answer. The buffer
    /// is as long as the answer may be, and as the call is.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use piped_client::{Call, Client, OpenOptions, Stat};
    /// let client = Client::connect("/run/piped/client.sock")?;
    /// let file = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read())?;
    /// let buffer = client.allocate(4096)?;
    /// let (buffer, bytes) = client.queue()?.call(&file, &Call::Stat { path: b"" }, buffer)?;
    /// println!("{} bytes now", Stat::parse(&buffer.as_slice()[..bytes])?.length);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn call(
        &mut self,
        of: &Handle,
        call: &Call<'_>,
        mut buffer: Buffer,
    ) -> Result<(Buffer, usize), RequestError> {
        let Ok(bytes) = call.encode(buffer.as_mut_slice()) else {
            let (cause, buffer) = (SubmitFault::Call.into(), BufferState::Returned(buffer));
            return Err(RequestError { cause, bytes: 0, buffer });
        };
        let done = self.run(Request::call(of, buffer, bytes))?;
        Ok((done.payload, done.bytes as usize))
    }

    /// Send a message to a channel, and wait until it is taken in.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn send(&mut self, to: &Handle, tag: u64, buffer: Buffer) -> Result<Buffer, RequestError> {
        Ok(self.run(Request::send(to, tag, buffer))?.payload)
    }

    /// Receive a message of a channel, and wait for it: the buffer, how many bytes of it are the
    /// message, and its tag.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use piped_client::{Client, Tag};
    /// let client = Client::connect("/run/piped/client.sock")?;
    /// let mail = client.offer_channel("mail")?;
    /// let mut queue = client.queue()?;
    /// let (buffer, bytes, tag) = queue.receive(&mail, Tag::Any, client.allocate(64 << 10)?)?;
    /// println!("{tag}: {:?}", &buffer.as_slice()[..bytes]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn receive(
        &mut self,
        from: &Handle,
        tag: impl Into<Tag>,
        buffer: Buffer,
    ) -> Result<(Buffer, usize, u64), RequestError> {
        let done = self.run(Request::receive(from, tag, buffer))?;
        Ok((done.payload, done.bytes as usize, done.value))
    }

    /// Copy, and wait for it: bytes copied.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn copy(
        &mut self,
        from: (&Handle, u64),
        to: (&Handle, u64),
        length: u64,
    ) -> Result<u64, RequestError> {
        Ok(self.run(Request::copy(from.0, from.1, to.0, to.1, length))?.bytes)
    }

    /// Bring completed writes to stable storage, and wait for it.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn sync(&mut self, handle: &Handle) -> Result<(), RequestError> {
        self.run(Request::sync(handle)).map(|_| ())
    }

    /// Go to the daemon and back, and do nothing.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn nop(&mut self) -> Result<(), RequestError> {
        self.run(Request::nop()).map(|_| ())
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.completion_fd()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.completion_fd().as_raw_fd()
    }
}
