//! Calls that wait for the daemon while Ctrl-C is heard.
//!
//! The daemon may not answer for as long as the client's `timeout`, and a call that waits in the
//! kernel is not interrupted. So the call is made on a thread of its own, and this one looks at
//! signals. Not on Python's thread with signals alone: nobody says cheaply which thread that is,
//! and a thread costs little beside an answer of the daemon.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use pyo3::prelude::*;

use crate::clock::SLICE;
use crate::fault::Fault;

/// Makes a call on another thread. At Ctrl-C the call goes on, and what it brings is dropped: what
/// it opened is closed.
pub(crate) fn hear<T, E>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<T>
where
    T: Send + 'static,
    E: Send + 'static,
    Fault: From<E>,
{
    let (sender, mut receiver) = mpsc::sync_channel(1);
    let calling = thread::Builder::new().name("piped-call".to_owned());
    // Nobody is there to take the answer after an interruption.
    calling.spawn(move || drop(sender.send(call()))).map_err(<Fault as From<io::Error>>::from)?;
    loop {
        let heard = py.detach(move || {
            let answer = receiver.recv_timeout(SLICE);
            (answer, receiver)
        });
        receiver = heard.1;
        match heard.0 {
            Ok(answer) => return Ok(answer.map_err(Fault::from)?),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(Fault::panicked().into()),
        }
    }
}
