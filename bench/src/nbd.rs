//! Servers of the NBD protocol, and a client that reads from them: one request at a time, simple
//! replies.
//!
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>: newstyle with fixed
//! handshake, `NBD_OPT_EXPORT_NAME`, `NBD_CMD_READ`.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::{Doing as _, Failure};
use crate::outside::{Running, await_listener, free_port};

const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// Fixed newstyle, and no zeroes after the handshake: the server's flags and the client's.
const FLAGS: u16 = 0b11;
const OPTION_EXPORT_NAME: u32 = 1;
const COMMAND_READ: u32 = 0;

/// Export of the servers started here.
const EXPORT: &str = "data";

/// How a server reads the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// From the device, around the page cache or without leaving anything there.
    Cold,
    /// From the page cache.
    Cached,
}

/// A connection, and the server that it is to.
#[derive(Debug)]
pub(crate) struct Nbd {
    stream: TcpStream,
    number: u64,
    _server: Running,
}

impl Nbd {
    /// Starts nbdkit with its file plugin on a CPU. It has no direct I/O; cold, it takes what it
    /// has read out of the page cache.
    pub(crate) fn nbdkit(file: &Path, caching: Caching, cpu: usize) -> Result<Self, Failure> {
        let port = free_port()?.to_string();
        Self::connect(nbdkit(file, caching, cpu, &port), &port).doing("nbdkit")
    }

    /// Starts qemu-storage-daemon on a CPU.
    pub(crate) fn qemu(file: &Path, caching: Caching, cpu: usize) -> Result<Self, Failure> {
        let port = free_port()?.to_string();
        let direct = if caching == Caching::Cold { "on" } else { "off" };
        // A comma in an option's value is written twice.
        let file = file.display().to_string().replace(',', ",,");
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "qemu-storage-daemon", "--blockdev"]);
        command.arg(format!(
            "driver=file,node-name=f,read-only=on,aio=io_uring,cache.direct={direct},\
             filename={file}"
        ));
        command
            .arg("--nbd-server")
            .arg(format!("addr.type=inet,addr.host=127.0.0.1,addr.port={port}"));
        command.arg("--export").arg(format!("type=nbd,id=e,node-name=f,name={EXPORT}"));
        Self::connect(command, &port).doing("qemu-storage-daemon")
    }

    fn connect(command: Command, port: &str) -> Result<Self, Failure> {
        let server = start(command, port)?;
        let number: u16 = port.parse().doing("port")?;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, number))?;
        stream.set_nodelay(true)?;
        shake_hands(&mut stream)?;
        Ok(Self { stream, number: 0, _server: server })
    }

    /// Fills `bytes` from that offset of the file.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.number += 1;
        read(&mut self.stream, self.number, offset, bytes)
    }
}

fn nbdkit(file: &Path, caching: Caching, cpu: usize, port: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), "nbdkit", "--foreground", "--readonly"]);
    command.args(["--exit-with-parent", "--ipaddr", "127.0.0.1", "--port", port]);
    command.args(["--exportname", EXPORT, "file"]).arg(file);
    if caching == Caching::Cold {
        command.args(["cache=none", "fadvise=random"]);
    }
    command
}

fn start(mut command: Command, port: &str) -> Result<Running, Failure> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let server = Running(command.spawn()?);
    await_listener(port)?;
    Ok(server)
}

/// Starts nbdkit for clients other than [`Nbd`]. Returns it with the address of its export.
pub(crate) fn serve(
    file: &Path,
    caching: Caching,
    cpu: usize,
) -> Result<(Running, String), Failure> {
    let port = free_port()?.to_string();
    let server = start(nbdkit(file, caching, cpu, &port), &port).doing("nbdkit")?;
    Ok((server, format!("nbd://127.0.0.1:{port}/{EXPORT}")))
}

fn array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("NBD: {what}"))
}

/// Chooses the export. Returns its length in bytes.
fn shake_hands(stream: &mut (impl Read + Write)) -> io::Result<u64> {
    let magic = [u64::from_be_bytes(array(stream)?), u64::from_be_bytes(array(stream)?)];
    let flags = u16::from_be_bytes(array(stream)?);
    if magic != [MAGIC, OPTION_MAGIC] || flags & FLAGS != FLAGS {
        return Err(wrong("the server speaks another dialect"));
    }
    let mut words = u32::from(FLAGS).to_be_bytes().to_vec();
    words.extend(OPTION_MAGIC.to_be_bytes());
    words.extend(OPTION_EXPORT_NAME.to_be_bytes());
    words.extend((EXPORT.len() as u32).to_be_bytes());
    words.extend(EXPORT.as_bytes());
    stream.write_all(&words)?;
    let length = u64::from_be_bytes(array(stream)?);
    let _flags: [u8; 2] = array(stream)?;
    Ok(length)
}

fn read(
    stream: &mut (impl Read + Write),
    number: u64,
    offset: u64,
    bytes: &mut [u8],
) -> io::Result<()> {
    let mut request = [0; 28];
    request[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    request[4..8].copy_from_slice(&COMMAND_READ.to_be_bytes());
    request[8..16].copy_from_slice(&number.to_be_bytes());
    request[16..24].copy_from_slice(&offset.to_be_bytes());
    request[24..].copy_from_slice(&(bytes.len() as u32).to_be_bytes());
    stream.write_all(&request)?;
    let magic = u32::from_be_bytes(array(stream)?);
    let error = u32::from_be_bytes(array(stream)?);
    let answered = u64::from_be_bytes(array(stream)?);
    if magic != REPLY_MAGIC || answered != number {
        return Err(wrong("no reply to this request"));
    }
    if error != 0 {
        return Err(wrong(&format!("the server has error {error}")));
    }
    stream.read_exact(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// What a server says, and what it was told.
    struct Server {
        says: Cursor<Vec<u8>>,
        told: Vec<u8>,
    }

    impl Server {
        fn saying(parts: &[&[u8]]) -> Self {
            Self { says: Cursor::new(parts.concat()), told: Vec::new() }
        }
    }

    impl Read for Server {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.says.read(bytes)
        }
    }

    impl Write for Server {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.told.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_handshake_names_the_export_and_has_its_length() {
        let length = 512u64 << 20;
        let mut server =
            Server::saying(&[b"NBDMAGICIHAVEOPT", &[0, 3], &length.to_be_bytes(), &[0, 3]]);
        assert_eq!(shake_hands(&mut server).expect("a server"), length);
        assert_eq!(server.told, b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04data");
        let mut old = Server::saying(&[b"NBDMAGIC", &[0; 10]]);
        assert!(shake_hands(&mut old).is_err(), "oldstyle");
        let mut unfixed = Server::saying(&[b"NBDMAGICIHAVEOPT", &[0, 0]]);
        assert!(shake_hands(&mut unfixed).is_err(), "no fixed handshake");
    }

    #[test]
    fn a_read_has_the_replys_bytes_or_its_error() {
        let reply = |error: u8, number: u8| {
            [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, error][..], &[0, 0, 0, 0, 0, 0, 0, number]].concat()
        };
        let mut bytes = [0; 4];
        let mut server = Server::saying(&[&reply(0, 7), b"abcd"]);
        read(&mut server, 7, 0x1000, &mut bytes).expect("a reply");
        assert_eq!(&bytes, b"abcd");
        assert_eq!(server.told[..8], [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0]);
        assert_eq!(server.told[14..], [0, 7, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 4]);
        for (error, number, text) in [(5, 7, "error 5"), (0, 8, "no reply")] {
            let mut server = Server::saying(&[&reply(error, number), b"abcd"]);
            let found = read(&mut server, 7, 0, &mut bytes).expect_err("refused");
            assert!(found.to_string().contains(text), "{found}");
        }
    }
}
