//! Servers of the NBD protocol, and a client that reads from them, with simple replies.
//!
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>: newstyle with fixed
//! handshake, `NBD_OPT_EXPORT_NAME`, `NBD_CMD_READ`.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::outside::{Running, await_listener, free_port, output};
use crate::raw::Timing;
use crate::stats::Random;

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

/// How many requests nbdkit works on at once: as many as the deepest row has.
pub(crate) const THREADS: &str = "64";

/// The longest that a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A stream to a server.
trait Stream: Read + Write + std::fmt::Debug + Send {}
impl<T: Read + Write + std::fmt::Debug + Send> Stream for T {}

/// A connection, and the server that it is to.
#[derive(Debug)]
pub(crate) struct Nbd {
    stream: Box<dyn Stream>,
    number: u64,
    _server: Option<Running>,
}

/// A server of NBD, from somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// nbdkit with its file plugin. It has no direct I/O; cold, it takes what it has read out of
    /// the page cache.
    Nbdkit,
    /// qemu-storage-daemon, with direct I/O when cold.
    Qemu,
}

impl Server {
    /// Name of the program on the path.
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Nbdkit => "nbdkit",
            Self::Qemu => "qemu-storage-daemon",
        }
    }

    /// Starts it on a CPU. Returns it with its port on loopback.
    fn start(
        self,
        file: &Path,
        caching: Caching,
        cpu: usize,
    ) -> Result<(Running, String), Failure> {
        let port = free_port()?.to_string();
        let mut command = match self {
            Self::Nbdkit => nbdkit(file, caching, cpu, &port),
            Self::Qemu => qemu(file, caching, cpu, &port),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Running(command.spawn().doing(self.program())?);
        await_listener(&port).doing(self.program())?;
        Ok((server, port))
    }

    /// Starts it for clients other than [`Nbd`]. Returns it with the address of its export.
    pub(crate) fn serve(
        self,
        file: &Path,
        caching: Caching,
        cpu: usize,
    ) -> Result<(Running, String), Failure> {
        let (server, port) = self.start(file, caching, cpu)?;
        Ok((server, format!("nbd://127.0.0.1:{port}/{EXPORT}")))
    }

    /// Starts it, with a connection to it.
    pub(crate) fn connect(self, file: &Path, caching: Caching, cpu: usize) -> Result<Nbd, Failure> {
        let (server, port) = self.start(file, caching, cpu)?;
        let number: u16 = port.parse().doing("port")?;
        let nbd = Nbd::dial((Ipv4Addr::LOCALHOST, number).into()).doing(self.program())?;
        Ok(Nbd { _server: Some(server), ..nbd })
    }
}

impl Nbd {
    /// A connection to a server that listens there.
    pub(crate) fn dial(address: SocketAddr) -> Result<Self, Failure> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        shake_hands(&mut stream)?;
        Ok(Self { stream: Box::new(stream), number: 0, _server: None })
    }

    /// A connection to nbdkit with our plugin.
    pub(crate) fn dial_plugin(plugin: &Served) -> Result<Self, Failure> {
        let mut stream = UnixStream::connect(&plugin.socket).doing(plugin.socket.display())?;
        shake_hands(&mut stream)?;
        Ok(Self { stream: Box::new(stream), number: 0, _server: None })
    }

    /// Fills `bytes` from that offset of the file.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.number += 1;
        read(&mut self.stream, self.number, offset, bytes)
    }

    /// Reads blocks at random places for a while, so many at once. The latencies are of single
    /// requests, from before they are sent.
    pub(crate) fn reads(
        &mut self,
        (block, depth): (usize, usize),
        file_bytes: u64,
        duration: Duration,
        random: &mut Random,
    ) -> io::Result<Timing> {
        let mut bytes = vec![0; block];
        let mut sent = vec![clock::now(); depth];
        let begun = clock::now();
        let mut latencies_ns = Vec::with_capacity(1 << 16);
        let blocks = file_bytes / block as u64;
        for (number, at) in sent.iter_mut().enumerate() {
            *at = clock::now();
            let offset = random.below(blocks) * block as u64;
            self.stream.write_all(&request(number as u64, offset, block))?;
        }
        let mut under_way = depth;
        while under_way > 0 {
            let number = answer(&mut self.stream)? as usize;
            self.stream.read_exact(&mut bytes)?;
            let asked = *sent.get(number).ok_or_else(|| wrong("no reply to a request"))?;
            latencies_ns.push(asked.elapsed().as_nanos() as u64);
            if begun.elapsed() >= duration {
                under_way -= 1;
                continue;
            }
            sent[number] = clock::now();
            let offset = random.below(blocks) * block as u64;
            self.stream.write_all(&request(number as u64, offset, block))?;
        }
        Ok(Timing::new(latencies_ns, begun.elapsed()))
    }
}

/// The plugin, as an application finds it.
#[derive(Debug)]
pub(crate) struct Plugin {
    path: PathBuf,
    directory: tempfile::TempDir,
}

impl Plugin {
    /// Compiles it with `libpiped.a`.
    pub(crate) fn build(library: &Path) -> Result<Self, Failure> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("nbdkit-piped-plugin.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nbd/build");
        output(Command::new(source).arg(&path).arg(library))
            .doing("compile the plugin (nbdkit-plugin-dev)")?;
        Ok(Self { path, directory })
    }

    /// Starts nbdkit with it on a CPU, on a unix socket. `parameters`: what it is to serve.
    pub(crate) fn serve(
        &self,
        name: &str,
        cpu: usize,
        parameters: &[String],
    ) -> Result<Served, Failure> {
        let socket = self.directory.path().join(name);
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "nbdkit", "--foreground", "--readonly"]);
        command.args(["--exit-with-parent", "--threads", THREADS, "--exportname", EXPORT]);
        command.arg("--unix").arg(&socket).arg(&self.path).args(parameters);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let server = Running(command.spawn()?);
        clock::poll(START_LIMIT, || socket.exists().then_some(()))
            .ok_or_else(|| Failure::new("nbdkit with the plugin did not start"))?;
        Ok(Served { socket, _server: server })
    }
}

/// nbdkit with the plugin; ended when dropped.
#[derive(Debug)]
pub(crate) struct Served {
    socket: PathBuf,
    _server: Running,
}

impl Served {
    /// Address of the device, for clients other than [`Nbd`].
    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///{EXPORT}?socket={}", self.socket.display())
    }
}

fn nbdkit(file: &Path, caching: Caching, cpu: usize, port: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string()]).args(nbdkit_words("127.0.0.1", port)).arg(file);
    command.args(cold_words(caching));
    command
}

/// nbdkit with its file plugin at an address; the file and [`cold_words`] follow.
pub(crate) fn nbdkit_words<'a>(host: &'a str, port: &'a str) -> [&'a str; 13] {
    [
        "nbdkit",
        "--foreground",
        "--readonly",
        "--exit-with-parent",
        "--threads",
        THREADS,
        "--ipaddr",
        host,
        "--port",
        port,
        "--exportname",
        EXPORT,
        "file",
    ]
}

/// What nbdkit's file plugin takes out of the page cache again.
pub(crate) fn cold_words(caching: Caching) -> &'static [&'static str] {
    match caching {
        Caching::Cold => &["cache=none", "fadvise=random"],
        Caching::Cached => &[],
    }
}

fn qemu(file: &Path, caching: Caching, cpu: usize, port: &str) -> Command {
    let direct = if caching == Caching::Cold { "on" } else { "off" };
    // A comma in an option's value is written twice.
    let file = file.display().to_string().replace(',', ",,");
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), "qemu-storage-daemon", "--blockdev"]);
    command.arg(format!(
        "driver=file,node-name=f,read-only=on,aio=io_uring,cache.direct={direct},filename={file}"
    ));
    let address = format!("addr.type=inet,addr.host=127.0.0.1,addr.port={port}");
    command.arg("--nbd-server").arg(address);
    command.arg("--export").arg(format!("type=nbd,id=e,node-name=f,name={EXPORT}"));
    command
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

fn request(number: u64, offset: u64, length: usize) -> [u8; 28] {
    let mut request = [0; 28];
    request[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    request[4..8].copy_from_slice(&COMMAND_READ.to_be_bytes());
    request[8..16].copy_from_slice(&number.to_be_bytes());
    request[16..24].copy_from_slice(&offset.to_be_bytes());
    request[24..].copy_from_slice(&(length as u32).to_be_bytes());
    request
}

/// The number of the request that was answered; its bytes follow.
fn answer(stream: &mut impl Read) -> io::Result<u64> {
    let reply: [u8; 16] = array(stream)?;
    let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four bytes"));
    if word(0) != REPLY_MAGIC {
        return Err(wrong("no simple reply"));
    }
    match word(4) {
        0 => Ok(u64::from_be_bytes(reply[8..].try_into().expect("eight bytes"))),
        error => Err(wrong(&format!("the server has error {error}"))),
    }
}

fn read(
    stream: &mut (impl Read + Write),
    number: u64,
    offset: u64,
    bytes: &mut [u8],
) -> io::Result<()> {
    stream.write_all(&request(number, offset, bytes.len()))?;
    if answer(stream)? != number {
        return Err(wrong("no reply to this request"));
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
        for (error, number, text) in [(5, 7, "error 5"), (0, 8, "no reply to")] {
            let mut server = Server::saying(&[&reply(error, number), b"abcd"]);
            let found = read(&mut server, 7, 0, &mut bytes).expect_err("refused");
            assert!(found.to_string().contains(text), "{found}");
        }
    }
}
