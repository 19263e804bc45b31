//! Read from another node's disk, and use what landed before all of it did:
//! `remote_read SOCKET PEER EXPORT PATH BYTES`.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use piped_client::{Class, Client, OpenOptions, Request, Waited};

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let [socket, peer, export, path, bytes] = given.as_slice() else {
        return Err("usage: remote_read SOCKET PEER EXPORT PATH BYTES".into());
    };
    let data = run(socket.as_ref(), peer, (export, path), bytes.parse()?)?;
    println!("{} bytes", data.len());
    Ok(())
}

/// Returns the file's first `bytes` bytes.
pub fn run(
    socket: &Path,
    peer: &str,
    (export, path): (&str, &str),
    bytes: usize,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let client = Client::connect(socket)?;
    let file = client.open_export(Some(peer), export, path, OpenOptions::read())?;
    let mut queue = client.queue()?;
    let request = Request::read(&file, 0, client.allocate(bytes)?)
        .class(Class::Latency)
        .deadline(Duration::from_secs(10));
    let mut pending = queue.submit(request)?;
    let mut head = [0; 512];
    loop {
        match pending.wait_for(&mut queue, Duration::from_millis(1)) {
            Waited::Ended(result) => {
                let done = result?;
                return Ok(done.payload.as_slice()[..done.bytes as usize].to_vec());
            }
            Waited::Underway(still) => {
                // What is in place stays as it is: a reader can start on it.
                let landed = queue.copy_landed(&still, 0, &mut head);
                println!("{} bytes are here, {landed} of the head", queue.progress(&still));
                pending = still;
            }
        }
    }
}
