//! Go on after the daemon was restarted: `reconnect SOCKET FILE`.
//!
//! The end of the daemon ends every request with `Cause::Disconnected`. Handles and buffers belong
//! to the session and go with it, so what connects, opens and allocates is one function, called
//! again.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use piped_client::{Cause, Client, ConnectError, Handle, OpenOptions, Queue, RequestError};

/// How often to try before giving up.
const ATTEMPTS: u32 = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let [socket, file] = given.as_slice() else {
        return Err("usage: reconnect SOCKET FILE".into());
    };
    println!("{} bytes", run(socket.as_ref(), file.as_ref(), || {})?);
    Ok(())
}

/// Reads the file's beginning twice and calls `between`. Returns the bytes of the second read.
pub fn run(socket: &Path, file: &Path, between: impl FnOnce()) -> Result<usize, Box<dyn Error>> {
    let mut session = open(socket, file)?;
    read(&mut session)?;
    between();
    for _ in 0..ATTEMPTS {
        match read(&mut session) {
            Ok(bytes) => return Ok(bytes),
            Err(error) if is_disconnected(error.as_ref()) => session = open(socket, file)?,
            Err(error) => return Err(error),
        }
    }
    Err("the daemon keeps ending".into())
}

fn read((client, handle, queue): &mut (Client, Handle, Queue)) -> Result<usize, Box<dyn Error>> {
    let (_, bytes) = queue.read(handle, 0, client.allocate(4096)?)?;
    Ok(bytes)
}

fn open(socket: &Path, file: &Path) -> Result<(Client, Handle, Queue), Box<dyn Error>> {
    let mut attempt = 0;
    let client = loop {
        match Client::connect(socket) {
            Err(ConnectError::Socket { .. }) if attempt < ATTEMPTS => pause(),
            other => break other?,
        }
        attempt += 1;
    };
    let handle = client.open_file(file, OpenOptions::read())?;
    let queue = client.queue()?;
    Ok((client, handle, queue))
}

/// A request can be on its way when the daemon ends, or be submitted after it did.
fn is_disconnected(error: &(dyn Error + 'static)) -> bool {
    let cause = error.downcast_ref::<RequestError>().map(|error| error.cause);
    matches!(
        cause,
        Some(Cause::Disconnected | Cause::NotSubmitted(piped_client::SubmitFault::Disconnected))
    )
}

#[expect(clippy::disallowed_methods, reason = "an application's thread may sleep")]
fn pause() {
    std::thread::sleep(Duration::from_millis(100));
}
