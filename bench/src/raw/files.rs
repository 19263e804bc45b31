//! A bare server of a file over TCP: reads and sends, without a protocol to speak of.
//!
//! The other process is this program again ([`serve`]), with a thread for each connection. A
//! connection begins with how to read ([`How`]) and on which CPU; each request is an offset and a
//! length.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use memmap2::MmapMut;

use crate::machine;
use crate::raw::child::{self, Listening};

/// Most bytes of a request.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// How the server reads the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Around the page cache, in chunks that are sent as soon as they are read.
    Direct { chunk: usize },
    /// Through the page cache, in chunks.
    Cached { chunk: usize },
    /// Out of the page cache by `sendfile`.
    SendFile,
}

impl How {
    /// Name for a row's arms.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Direct { chunk } | Self::Cached { chunk } if chunk >= REQUEST_BYTES_MAX => {
                "sockets, whole".to_owned()
            }
            Self::Direct { chunk } | Self::Cached { chunk } => {
                format!("sockets, {} KiB", chunk >> 10)
            }
            Self::SendFile => "sendfile".to_owned(),
        }
    }

    /// Chunks as long as a request can be.
    pub(crate) const WHOLE: usize = REQUEST_BYTES_MAX;

    fn encode(self, cpu: usize) -> [u8; 24] {
        let (way, chunk) = match self {
            Self::Direct { chunk } => (0, chunk),
            Self::Cached { chunk } => (1, chunk),
            Self::SendFile => (2, 0),
        };
        let mut bytes = [0; 24];
        for (place, word) in bytes.chunks_exact_mut(8).zip([way, chunk, cpu]) {
            place.copy_from_slice(&(word as u64).to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; 24]) -> io::Result<(Self, usize)> {
        let [way, chunk, cpu] = [0, 8, 16].map(|start| word(&bytes[start..]) as usize);
        let how = match way {
            0 => Self::Direct { chunk },
            1 => Self::Cached { chunk },
            2 => return Ok((Self::SendFile, cpu)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let sane = (1..=REQUEST_BYTES_MAX).contains(&chunk);
        if sane { Ok((how, cpu)) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight of them"))
}

/// The other process, which is ended when dropped.
#[derive(Debug)]
pub(crate) struct Server(Listening);

impl Server {
    /// Starts this program again as a server of `file`.
    pub(crate) fn start(file: &Path) -> io::Result<Self> {
        Listening::start(&["raw-files".as_ref(), file.as_os_str()]).map(Self)
    }

    /// Opens a connection with a thread of the server on that CPU.
    pub(crate) fn open(&self, how: How, cpu: usize) -> io::Result<Link> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.0.port()))?;
        stream.set_nodelay(true)?;
        stream.write_all(&how.encode(cpu))?;
        Ok(Link(stream))
    }
}

/// A connection to the server.
#[derive(Debug)]
pub(crate) struct Link(TcpStream);

impl Link {
    /// Fills `bytes` from that offset of the file.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut request = [0; 16];
        request[..8].copy_from_slice(&offset.to_le_bytes());
        request[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.0.write_all(&request)?;
        self.0.read_exact(bytes)
    }
}

/// Main function of the other process: until its parent ends.
pub(crate) fn serve(file: &Path) -> io::Result<()> {
    let listener = child::listen()?;
    loop {
        let (stream, _) = listener.accept()?;
        let file: PathBuf = file.to_owned();
        std::thread::spawn(move || {
            if let Err(error) = answer(stream, &file) {
                eprintln!("raw files: {error}");
            }
        });
    }
}

fn answer(mut stream: TcpStream, path: &Path) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; 24];
    stream.read_exact(&mut bytes)?;
    let (how, cpu) = How::decode(bytes)?;
    machine::pin(cpu)?;
    let mut options = OpenOptions::new();
    if matches!(how, How::Direct { .. }) {
        options.custom_flags(libc::O_DIRECT);
    }
    let file = options.read(true).open(path)?;
    // A mapping begins at a page, as direct reads want it.
    let mut memory = MmapMut::map_anon(REQUEST_BYTES_MAX)?;
    memory.fill(1);
    let mut request = [0; 16];
    while stream.read_exact(&mut request).is_ok() {
        let (offset, length) = (word(&request), word(&request[8..]) as usize);
        if length > REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match how {
            How::SendFile => send_file(&stream, &file, offset, length)?,
            How::Direct { chunk } | How::Cached { chunk } => {
                for start in (0..length).step_by(chunk) {
                    let piece = &mut memory[..chunk.min(length - start)];
                    file.read_exact_at(piece, offset + start as u64)?;
                    stream.write_all(piece)?;
                }
            }
        }
    }
    Ok(())
}

fn send_file(stream: &TcpStream, file: &File, offset: u64, length: usize) -> io::Result<()> {
    let mut place = offset;
    let end = offset + length as u64;
    while place < end {
        let left = (end - place) as usize;
        if rustix::fs::sendfile(stream, file, Some(&mut place), left)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_way_survives_the_wire_and_nonsense_is_refused() {
        for how in [How::Direct { chunk: 4096 }, How::Cached { chunk: How::WHOLE }, How::SendFile] {
            assert_eq!(How::decode(how.encode(3)).expect("just encoded"), (how, 3));
        }
        assert!(How::decode([0; 24]).is_err(), "no chunk");
        assert!(How::decode([0xff; 24]).is_err());
    }

    #[test]
    fn the_files_bytes_come_in_every_way() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let bytes: Vec<u8> = (0..300_000u32).map(|byte| (byte % 251) as u8).collect();
        std::fs::write(&path, &bytes).expect("written");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let address = listener.local_addr().expect("bound");
        let cpu = machine::Cpus::here().first;
        for how in [How::Cached { chunk: 70_000 }, How::Cached { chunk: How::WHOLE }, How::SendFile]
        {
            std::thread::scope(|scope| {
                let serving = scope.spawn(|| answer(listener.accept().expect("one").0, &path));
                let mut stream = TcpStream::connect(address).expect("it listens");
                stream.write_all(&how.encode(cpu)).expect("sent");
                let mut link = Link(stream);
                let mut found = vec![0; 200_000];
                link.read(1000, &mut found).expect("answered");
                assert!(found == bytes[1000..201_000], "{how:?}");
                drop(link);
                serving.join().expect("no panic").expect("ended by the client's end");
            });
        }
    }
}
