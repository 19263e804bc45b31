//! Two real nodes, a region of beta's, and a client of alpha's.

#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "each file uses a part"
)]

use std::time::Duration;

use piped_client::{Access, Client, ClientBuilder, Handle, RegionExport, Request};
use system_tests::process::{Pair, Programs, pattern};

pub const NAME: &str = "records";

pub struct Scene {
    pub pair: Pair,
    /// Beta's client, and its region: gone when dropped.
    pub owner: Option<(Client, RegionExport)>,
    pub client: Client,
    pub region: Handle,
    pub directory: tempfile::TempDir,
}

/// `None`, with the reason printed, where programs or rights are missing.
pub fn scene(bytes: &[u8]) -> Option<Scene> {
    let programs = Programs::find()?;
    if let Err(error) = remote_pager::probe(true) {
        eprintln!("skipped: {error}");
        return None;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let pair = Pair::start(&programs, directory.path());
    let owner = offer(&pair, bytes);
    let builder = ClientBuilder::new().reconnect(Duration::from_secs(30));
    let client = builder.connect(pair.alpha.client_socket()).expect("it serves");
    let region = client.open_region(Some("beta"), NAME, Access::READ_WRITE).expect("offered");
    Some(Scene { pair, owner: Some(owner), client, region, directory })
}

pub fn offer(pair: &Pair, bytes: &[u8]) -> (Client, RegionExport) {
    let builder = ClientBuilder::new().arena_bytes(bytes.len() as u64);
    let owner = builder.connect(pair.beta.client_socket()).expect("it serves");
    let mut buffer = owner.allocate(bytes.len()).expect("memory");
    buffer.as_mut_slice().copy_from_slice(bytes);
    let region = owner.export_region(NAME, buffer, Access::READ_WRITE).expect("offered");
    (owner, region)
}

impl Scene {
    /// The bytes that beta has, by plain gets.
    pub fn there(&self) -> Vec<u8> {
        let length = self.region.len() as usize;
        let mut queue = self.client.queue().expect("a queue");
        let mut there = Vec::with_capacity(length);
        let mut buffer = self.client.allocate(1 << 20).expect("memory");
        while there.len() < length {
            let piece = 0..buffer.len().min(length - there.len());
            let request = Request::read(&self.region, there.len() as u64, buffer);
            let done = queue.run(request.piece(piece)).expect("got");
            there.extend_from_slice(&done.payload.as_slice()[..done.bytes as usize]);
            buffer = done.payload;
        }
        there
    }
}

/// Numbers of which no two neighbours are in order for long, and hardly two alike.
pub fn random(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..bytes / 8).flat_map(|_| next().to_le_bytes()).chain(pattern(bytes % 8)).collect()
}

/// The bytes as sorted elsewhere.
pub fn sorted(bytes: &[u8]) -> Vec<u8> {
    let (records, rest) = bytes.as_chunks::<8>();
    let mut numbers: Vec<u64> = records.iter().map(|it| u64::from_le_bytes(*it)).collect();
    numbers.sort_unstable();
    numbers.into_iter().flat_map(u64::to_le_bytes).chain(rest.iter().copied()).collect()
}
