//! The disk's floor: O_DIRECT reads with registered memory and file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::clock;
use crate::raw::ring::{Piece, Ring};
use crate::raw::{Timing, Wait};
use crate::stats::Random;

/// Makes a file of `bytes` with blocks that are really on the disk, no two alike.
pub(crate) fn make_file(path: &Path, bytes: u64) -> io::Result<()> {
    const CHUNK: usize = 1 << 20;
    let mut file = File::create(path)?;
    let mut chunk = vec![0u8; CHUNK];
    let mut random = Random::new(bytes);
    for word in chunk.chunks_exact_mut(8) {
        word.copy_from_slice(&random.below(u64::MAX).to_le_bytes());
    }
    for number in 0..bytes / CHUNK as u64 {
        for block in chunk.chunks_exact_mut(4096) {
            block[..8].copy_from_slice(&number.to_le_bytes());
        }
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    // What is measured is the disk.
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// No plan has shorter fragments.
const FRAGMENT_BYTES_MIN: usize = 16 << 10;

/// A file to read.
#[derive(Debug)]
pub(crate) struct Disk {
    file: File,
    bytes: u64,
}

impl Disk {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { file, bytes })
    }

    /// Opens a file that the page cache has from now on, and is read through it.
    pub(crate) fn open_cached(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let bytes = io::copy(&mut file, &mut io::sink())?;
        Ok(Self { file, bytes })
    }

    /// Reads blocks of `block` bytes at random places, `depth` at once, for a while.
    pub(crate) fn read(
        &self,
        block: usize,
        depth: usize,
        wait: Wait,
        duration: Duration,
        random: &mut Random,
    ) -> io::Result<Timing> {
        let mut ring = Ring::new(depth as u32, block * depth, self.file.as_fd(), wait)?;
        let mut begun: Vec<Instant> = vec![clock::now(); depth];
        let mut latencies = Vec::with_capacity(1 << 16);
        let start = clock::now();
        for slot in 0..depth {
            ring.read(piece(slot, block), self.place(block, random), slot as u64)?;
        }
        let mut end = start;
        while ring.in_flight() > 0 {
            ring.submit_and_wait(1)?;
            end = clock::now();
            let goes_on = end - start < duration;
            while let Some((slot, result)) = ring.take() {
                whole(result, block)?;
                let slot = slot as usize;
                latencies.push((end - begun[slot]).as_nanos() as u64);
                if goes_on {
                    begun[slot] = clock::now();
                    ring.read(piece(slot, block), self.place(block, random), slot as u64)?;
                }
            }
        }
        Ok(Timing::new(latencies, end - start))
    }

    /// Reads `request` bytes at random places, one request at a time, each cut into fragments of
    /// which `depth` are under way at once: the disk's part of a pipelined read, alone. The first
    /// is `fragment` bytes long, each of the others `shrink` bytes shorter than the one before.
    pub(crate) fn read_cut(
        &self,
        request: usize,
        (fragment, shrink): (usize, usize),
        depth: usize,
        wait: Wait,
        duration: Duration,
        random: &mut Random,
    ) -> io::Result<Timing> {
        let mut ring = Ring::new(depth as u32, request, self.file.as_fd(), wait)?;
        let mut latencies = Vec::with_capacity(1 << 12);
        let start = clock::now();
        let mut end = start;
        while end - start < duration {
            let begun = clock::now();
            let place = self.place(request, random);
            let mut asked = 0;
            let mut next = fragment;
            loop {
                while asked < request && ring.in_flight() < depth {
                    let length = next.min(request - asked);
                    next = next.saturating_sub(shrink).max(FRAGMENT_BYTES_MIN);
                    ring.read(Piece { start: asked, length }, place + asked as u64, length as u64)?;
                    asked += length;
                }
                if ring.in_flight() == 0 {
                    break;
                }
                ring.submit_and_wait(1)?;
                while let Some((length, result)) = ring.take() {
                    whole(result, length as usize)?;
                }
            }
            end = clock::now();
            latencies.push((end - begun).as_nanos() as u64);
        }
        Ok(Timing::new(latencies, end - start))
    }

    /// Reads the whole file once from its start, `depth` blocks at once. Returns the seconds that
    /// took.
    pub(crate) fn read_whole(&self, block: usize, depth: usize, wait: Wait) -> io::Result<f64> {
        let mut ring = Ring::new(depth as u32, block * depth, self.file.as_fd(), wait)?;
        let begun = clock::now();
        let (mut asked, mut lengths) = (0, vec![0; depth]);
        let mut free: Vec<usize> = (0..depth).collect();
        loop {
            while asked < self.bytes {
                let Some(slot) = free.pop() else { break };
                lengths[slot] = (self.bytes - asked).min(block as u64) as usize;
                // Direct reads are of whole blocks; the last one ends with the file.
                ring.read(piece(slot, block), asked, slot as u64)?;
                asked += lengths[slot] as u64;
            }
            if ring.in_flight() == 0 {
                return Ok(begun.elapsed().as_secs_f64());
            }
            ring.submit_and_wait(1)?;
            while let Some((slot, result)) = ring.take() {
                whole(result, lengths[slot as usize])?;
                free.push(slot as usize);
            }
        }
    }

    fn place(&self, block: usize, random: &mut Random) -> u64 {
        random.below(self.bytes / block as u64) * block as u64
    }
}

fn piece(slot: usize, block: usize) -> Piece {
    Piece { start: slot * block, length: block }
}

fn whole(result: io::Result<usize>, length: usize) -> io::Result<()> {
    if result? == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
