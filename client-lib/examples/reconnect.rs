//! Go on after the daemon was restarted: `reconnect SOCKET FILE`.
//!
//! The client is told to reconnect, and each read to outlive the daemon: the same handle, queue and
//! buffer serve as long as some daemon comes back in time.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use piped_client::{ClientBuilder, OpenOptions, Request};

/// How long the daemon may be away.
const AWAY: Duration = Duration::from_secs(10);

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
    let client = ClientBuilder::new().reconnect(AWAY).connect(socket)?;
    let handle = client.open_file(file, OpenOptions::read())?;
    let mut queue = client.queue()?;
    let buffer = client.allocate(4096)?;
    let buffer = queue.run(Request::read(&handle, 0, buffer).resubmit())?.payload;
    between();
    let done = queue.run(Request::read(&handle, 0, buffer).resubmit())?;
    Ok(done.bytes as usize)
}
