//! HTTP as short as it gets: a request, and head and body of the answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::process::PATIENCE;

/// One exchange: head and body.
///
/// # Panics
/// If there is no answer.
pub fn exchange(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

/// [`exchange`] by TCP.
///
/// # Panics
/// If nobody listens, or answers.
#[must_use]
pub fn over_tcp(address: SocketAddr, request: &str) -> (String, String) {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    exchange(stream, request)
}

/// [`exchange`] over a unix socket.
///
/// # Panics
/// If nobody listens, or answers.
#[must_use]
pub fn over_unix(socket: &Path, request: &str) -> (String, String) {
    exchange(UnixStream::connect(socket).expect("it listens"), request)
}

/// A request of one line that ends the connection.
#[must_use]
pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: piped\r\nConnection: close\r\n\r\n")
}
