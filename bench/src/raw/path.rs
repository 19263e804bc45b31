//! The bare path of a get: a client, a process A that it asks through shared memory, and a process
//! B that A asks over TCP. Three processes, as piped has, and nothing else.
//!
//! A and B spin, each on a CPU of its own, and the client sleeps beside A. B is the server of
//! [`super::net`]; A is this program again ([`serve`]), which waits for an [`Order`] on a socket
//! between measurements, because it must not spin while another arm is measured. That socket is
//! also the bell by which A wakes the client, where it is not done by a futex.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};
use rustix::fs::MemfdFlags;
use rustix::thread::futex;

use crate::clock;
use crate::machine::{self, Cpus};
use crate::raw::frames::{self, Calls, HEADER_BYTES, Side};
use crate::raw::net::{self, Server, Shape, Way};
use crate::raw::ring::Ring;
use crate::raw::{REGION_BYTES, Timing, Wait, child};
use crate::stats::Random;

/// Longest get of the path.
const GET_BYTES_MAX: usize = 1 << 20;

/// Where A's memory begins in the shared file, after [`Control`].
const ARENA_START: usize = 4096;
const FILE_BYTES: usize = ARENA_START + frames::memory_bytes(GET_BYTES_MAX);

/// A client that has not been woken for this long has lost its A.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// Bytes that A sends: it is ready, or the measurement is over; and a bell.
const READY: u8 = 1;
const BELL: u8 = 0;

/// How A wakes the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A byte on a Unix socket.
    Socket,
    /// A futex in the shared memory.
    Futex,
}

impl Wake {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Socket => "Unix socket",
            Self::Futex => "futex",
        }
    }
}

/// A way to build the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choices {
    pub(crate) calls: Calls,
    pub(crate) wake: Wake,
    /// Most payload bytes of a frame.
    pub(crate) chunk: usize,
}

/// Words that the client and A share, each side's on a cache line of its own.
#[repr(C, align(64))]
struct Control {
    /// Number of the last get that was asked for, and its offset.
    asked: AtomicU64,
    offset: AtomicU64,
    stop: AtomicU32,
    sleeping: AtomicU32,
    _apart: [u64; 5],
    /// Number of the last get that is there.
    done: AtomicU64,
    word: AtomicU32,
}

/// The shared file as a process sees it.
struct Shared {
    mapping: MmapRaw,
}

impl Shared {
    fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() < FILE_BYTES as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { mapping: MmapOptions::new().len(FILE_BYTES).map_raw(file)? })
    }

    fn control(&self) -> &Control {
        // SAFETY: the mapping is longer than a `Control` (`map` asked for `FILE_BYTES`, and no
        // process of this program shortens the file), begins at a page, and lives as long as
        // `self`. All of its fields are atomics, for which any bytes are values.
        unsafe { &*self.mapping.as_ptr().cast::<Control>() }
    }

    /// First word of the bytes that a get brought.
    fn first_word(&self) -> u64 {
        let place = self.mapping.as_ptr().wrapping_add(ARENA_START + frames::memory_bytes(0));
        // SAFETY: inside the mapping, by the constants, and at a multiple of a page; others see it
        // as bytes that they write whole before `done` changes, and this reads it once.
        let word = unsafe { &*place.cast::<AtomicU64>() };
        u64::from_le(word.load(Ordering::Relaxed))
    }
}

/// What A is told before a measurement: little-endian words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    port: u16,
    length: usize,
    choices: Choices,
    cpus: Cpus,
}

impl Order {
    const WORDS: usize = 7;
    const BYTES: usize = 8 * Self::WORDS;

    fn encode(self) -> [u8; Self::BYTES] {
        let Choices { calls, wake, chunk } = self.choices;
        let calls = Calls::ALL.iter().position(|it| *it == calls).unwrap_or_default();
        let words: [usize; Self::WORDS] = [
            self.port.into(),
            self.length,
            chunk,
            calls,
            usize::from(wake == Wake::Futex),
            self.cpus.first,
            self.cpus.second,
        ];
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&(word as u64).to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; Self::BYTES]) -> io::Result<Self> {
        let word = |number: usize| {
            let bytes = bytes[number * 8..][..8].try_into().expect("eight of them all");
            u64::from_le_bytes(bytes) as usize
        };
        let (length, chunk) = (word(1), word(2));
        let calls = Calls::ALL.get(word(3)).copied();
        let wake = if word(4) == 1 { Wake::Futex } else { Wake::Socket };
        let port = u16::try_from(word(0)).ok();
        match (port, calls) {
            (Some(port), Some(calls)) if chunk > 0 && length <= GET_BYTES_MAX => Ok(Self {
                port,
                length,
                choices: Choices { calls, wake, chunk },
                cpus: Cpus { first: word(5), second: word(6) },
            }),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The client's side of the path. Its A ends with it.
pub(crate) struct Asker<'a> {
    server: &'a Server,
    shared: Shared,
    socket: UnixStream,
    process: Child,
    random: Random,
}

impl std::fmt::Debug for Asker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Asker of process {}", self.process.id())
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl<'a> Asker<'a> {
    /// Starts A. B is `server`.
    pub(crate) fn start(server: &'a Server) -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("raw-path", MemfdFlags::CLOEXEC)?);
        file.set_len(FILE_BYTES as u64)?;
        let shared = Shared::map(&file)?;
        let (socket, other) = UnixStream::pair()?;
        socket.set_read_timeout(Some(LOST_AFTER))?;
        let process = Command::new(std::env::current_exe()?)
            .arg("raw-asked")
            .arg(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
            .stdin(Stdio::from(OwnedFd::from(other)))
            .spawn()?;
        let mut asker = Self { server, shared, socket, process, random: Random::new(3) };
        // The file may be closed here once it is mapped there.
        asker.await_ready()?;
        Ok(asker)
    }

    /// Gets `length` bytes at random places, one get at a time, for a while.
    pub(crate) fn gets(
        &mut self,
        length: usize,
        choices: Choices,
        cpus: Cpus,
        duration: Duration,
    ) -> io::Result<Timing> {
        let control = self.shared.control();
        for word in [&control.asked, &control.done] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&control.stop, &control.sleeping, &control.word] {
            word.store(0, Ordering::Relaxed);
        }
        let order = Order { port: self.server.port(), length, choices, cpus };
        self.socket.write_all(&order.encode())?;
        self.await_ready()?;
        machine::pin(cpus.first)?;
        let control = self.shared.control();
        let blocks = (REGION_BYTES / length) as u64;
        let mut latencies = Vec::with_capacity(1 << 16);
        let start = clock::now();
        let mut end = start;
        let mut number = 0;
        while end - start < duration {
            let offset = self.random.below(blocks) * length as u64;
            number += 1;
            let begun = clock::now();
            control.offset.store(offset, Ordering::Relaxed);
            control.asked.store(number, Ordering::Release);
            self.sleep_until(number, choices.wake)?;
            end = clock::now();
            if self.shared.first_word() != offset {
                return Err(io::Error::other("the path brought other bytes than asked for"));
            }
            latencies.push((end - begun).as_nanos() as u64);
        }
        control.stop.store(1, Ordering::Release);
        self.await_ready()?;
        Ok(Timing::new(latencies, end - start))
    }

    /// Sleeps until that get is there.
    fn sleep_until(&self, number: u64, wake: Wake) -> io::Result<()> {
        let control = self.shared.control();
        while control.done.load(Ordering::Acquire) != number {
            let word = control.word.load(Ordering::Relaxed);
            control.sleeping.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if control.done.load(Ordering::Acquire) != number {
                match wake {
                    Wake::Socket => (&self.socket).read_exact(&mut [BELL])?,
                    Wake::Futex => {
                        let limit = LOST_AFTER.try_into().map_err(io::Error::other)?;
                        let flags = futex::Flags::empty();
                        match futex::wait(&control.word, flags, word, Some(&limit)) {
                            Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                            Err(error) => return Err(error.into()),
                        }
                    }
                }
            }
            control.sleeping.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until A says that it is ready; bells from before are left.
    fn await_ready(&mut self) -> io::Result<()> {
        let mut byte = [BELL];
        while byte != [READY] {
            self.socket.read_exact(&mut byte)?;
        }
        Ok(())
    }
}

/// Main function of A: one order after the other, until its client ends.
pub(crate) fn serve(memory: &Path) -> io::Result<()> {
    child::end_with_parent()?;
    let file = OpenOptions::new().read(true).write(true).open(memory)?;
    let shared = Shared::map(&file)?;
    let mut socket = UnixStream::from(rustix::io::dup(std::io::stdin())?);
    socket.write_all(&[READY])?;
    let mut order = [0; Order::BYTES];
    while socket.read_exact(&mut order).is_ok() {
        ask(&file, &shared, &socket, Order::decode(order)?)?;
        socket.write_all(&[READY])?;
    }
    Ok(())
}

/// Serves the gets of one order until its client says stop.
fn ask(file: &File, shared: &Shared, mut socket: &UnixStream, order: Order) -> io::Result<()> {
    let Order { port, length, choices: Choices { calls, wake, chunk }, cpus } = order;
    let shape = Shape { request: HEADER_BYTES, response: length, chunk, depth: 1 };
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let way = Way::Frames(calls);
    let stream = net::connect(address, shape, way, (cpus.second, Wait::Spin))?;
    machine::pin(cpus.first)?;
    let arena = map_arena(file)?;
    let bytes = arena.len();
    let ring = Ring::over(4, (arena, 0, bytes), stream.as_fd(), Wait::Spin)?;
    let mut side = Side::over(ring, &stream, calls);
    let control = shared.control();
    socket.write_all(&[READY])?;
    let mut seen = 0;
    loop {
        let asked = control.asked.load(Ordering::Acquire);
        if asked == seen {
            if control.stop.load(Ordering::Acquire) == 1 {
                return Ok(());
            }
            std::hint::spin_loop();
            continue;
        }
        seen = asked;
        side.get(seen, control.offset.load(Ordering::Relaxed), (length, chunk))?;
        control.done.store(seen, Ordering::Release);
        fence(Ordering::SeqCst);
        if control.sleeping.load(Ordering::Relaxed) == 1 {
            match wake {
                Wake::Socket => socket.write_all(&[BELL])?,
                Wake::Futex => {
                    control.word.store(seen as u32, Ordering::Relaxed);
                    futex::wake(&control.word, futex::Flags::empty(), 1)?;
                }
            }
        }
    }
}

/// A's memory in the shared file, in huge pages where the system allows them.
fn map_arena(file: &File) -> io::Result<MmapMut> {
    let mut options = MmapOptions::new();
    options.offset(ARENA_START as u64).len(FILE_BYTES - ARENA_START);
    // SAFETY: no process of this program shortens the file (it has no seal only because nobody else
    // has it), and the client looks at these bytes by atomic loads alone (`Shared::first_word`).
    let arena = unsafe { options.map_mut(file)? };
    // Refused where they are switched off: then small pages are used.
    let _ = arena.advise(Advice::HugePage);
    arena.advise(Advice::PopulateWrite)?;
    Ok(arena)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_the_socket_and_nonsense_is_refused() {
        for (calls, wake) in Calls::ALL.into_iter().zip([Wake::Futex, Wake::Socket].repeat(2)) {
            let choices = Choices { calls, wake, chunk: 4096 };
            let cpus = Cpus { first: 3, second: 5 };
            let order = Order { port: 40_000, length: 1 << 20, choices, cpus };
            assert_eq!(Order::decode(order.encode()).expect("just encoded"), order);
        }
        assert!(Order::decode([0; Order::BYTES]).is_err());
        assert!(Order::decode([0xff; Order::BYTES]).is_err());
    }
}
