//! Read a local file block by block: `read_file SOCKET FILE`.
//!
//! The whole of a program that uses piped: connect, open, take a queue, lend a buffer to each read.

use std::error::Error;
use std::path::Path;

use piped_client::{Client, OpenOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let [socket, file] = arguments()?;
    let bytes = run(socket.as_ref(), file.as_ref())?;
    println!("{bytes} bytes");
    Ok(())
}

/// Returns how many bytes the file has.
pub fn run(socket: &Path, file: &Path) -> Result<u64, Box<dyn Error>> {
    let client = Client::connect(socket)?;
    let file = client.open_file(file, OpenOptions::read())?;
    let mut queue = client.queue()?;
    let mut buffer = client.allocate(64 * 1024)?;
    let mut offset = 0;
    loop {
        let (filled, bytes) = queue.read(&file, offset, buffer)?;
        if bytes == 0 {
            return Ok(offset);
        }
        // `filled.as_slice()[..bytes]` is the data, in place.
        offset += bytes as u64;
        buffer = filled;
    }
}

fn arguments<const N: usize>() -> Result<[String; N], Box<dyn Error>> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    given.try_into().map_err(|_| "usage: read_file SOCKET FILE".into())
}
