//! Messages between clients: one process receives, others send, on this node or another.
//!
//! ```sh
//! cargo run --release -p piped-client --example messages -- SOCKET receive mail
//! cargo run --release -p piped-client --example messages -- SOCKET send mail "hello" [PEER]
//! ```

use std::error::Error;

use piped_client::{Client, Tag};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [socket, "receive", name] => receive(socket, name),
        [socket, "send", name, text] => send(socket, None, name, text),
        [socket, "send", name, text, peer] => send(socket, Some(peer), name, text),
        _ => {
            Err("usage: messages SOCKET receive NAME | messages SOCKET send NAME TEXT [PEER]"
                .into())
        }
    }
}

/// Receives one message and prints it.
fn receive(socket: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(socket)?;
    let mail = client.offer_channel(name)?;
    let mut queue = client.queue()?;
    let (buffer, bytes, tag) = queue.receive(&mail, Tag::Any, client.allocate(64 << 10)?)?;
    println!("{tag}: {}", String::from_utf8_lossy(&buffer.as_slice()[..bytes]));
    Ok(())
}

/// Sends one, and waits until it is taken in.
fn send(socket: &str, peer: Option<&str>, name: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(socket)?;
    let mail = client.open_channel(peer, name)?;
    let mut buffer = client.allocate(text.len())?;
    buffer.as_mut_slice().copy_from_slice(text.as_bytes());
    client.queue()?.send(&mail, 7, buffer)?;
    Ok(())
}
