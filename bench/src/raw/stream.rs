//! The wire's floor for bulk: bytes of one TCP connection on loopback, from one thread to another.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use crate::clock;
use crate::machine;

/// Seconds that `bytes` take from a thread on one CPU to a thread on another, in calls of at most
/// `piece` bytes.
pub(crate) fn seconds(bytes: u64, piece: usize, [from, to]: [usize; 2]) -> io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    let send = move || {
        machine::pin(from)?;
        let memory = vec![0x5a; piece];
        let mut left = bytes;
        while left > 0 {
            let next = left.min(piece as u64);
            sender.write_all(&memory[..next as usize])?;
            left -= next;
        }
        Ok(())
    };
    let receive = move || {
        machine::pin(to)?;
        let (mut memory, mut count) = (vec![0; piece], 0);
        loop {
            match receiver.read(&mut memory)? {
                0 if count == bytes => return Ok(()),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => count += more as u64,
            }
        }
    };
    let begun = clock::now();
    let ended: [thread::Result<io::Result<()>>; 2] = thread::scope(|scope| {
        let (send, receive) = (scope.spawn(send), scope.spawn(receive));
        [send.join(), receive.join()]
    });
    for side in ended {
        side.unwrap_or_else(|_| Err(io::Error::other("a thread of the wire's floor broke off")))?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_also_those_of_a_last_short_piece() {
        let cpu = machine::Cpus::here().first;
        assert!(seconds((3 << 20) + 5, 1 << 20, [cpu; 2]).expect("loopback") > 0.0);
        assert!(seconds(1, 1 << 20, [usize::MAX, cpu]).is_err(), "there is no such CPU");
    }
}
