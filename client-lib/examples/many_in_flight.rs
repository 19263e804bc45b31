//! Keep a number of reads under way: `many_in_flight SOCKET FILE DEPTH`.
//!
//! Detached requests come back in the order they end; each buffer goes straight into the next
//! request. In the steady state this makes no system call and no allocation.

use std::error::Error;
use std::path::Path;

use piped_client::{ClientBuilder, OpenOptions, Request};

const BLOCK_BYTES: usize = 16 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let [socket, file, depth] = given.as_slice() else {
        return Err("usage: many_in_flight SOCKET FILE DEPTH".into());
    };
    let bytes = run(socket.as_ref(), file.as_ref(), depth.parse()?)?;
    println!("{bytes} bytes");
    Ok(())
}

/// Returns how many bytes were read.
pub fn run(socket: &Path, file: &Path, depth: u32) -> Result<u64, Box<dyn Error>> {
    let client = ClientBuilder::new().depth(depth).connect(socket)?;
    let file = client.open_file(file, OpenOptions::read())?;
    let mut queue = client.queue()?;
    let blocks = file.len().div_ceil(BLOCK_BYTES as u64);
    let mut next = 0..blocks;
    for block in next.by_ref().take(depth as usize) {
        let buffer = client.allocate(BLOCK_BYTES)?;
        queue
            .submit_detached(Request::read(&file, block * BLOCK_BYTES as u64, buffer).tag(block))?;
    }
    let mut total = 0;
    while let Some(completed) = queue.wait(None) {
        let done = completed.result?;
        // Block number `completed.tag` is in `done.payload`.
        total += done.bytes;
        if let (Some(buffer), Some(block)) = (done.payload, next.next()) {
            let request = Request::read(&file, block * BLOCK_BYTES as u64, buffer);
            queue.submit_detached(request.tag(block))?;
        }
    }
    Ok(total)
}
