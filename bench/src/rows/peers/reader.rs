//! Regions of the second node, and clients of the first that read them as an application would:
//! they wait as the daemon recommends, on whatever CPU they are.

use std::time::Duration;

use piped_client::{Access, Buffer, ClientBuilder, Handle, Queue, RegionExport, Request};

use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::load::{Asker, Place};
use crate::machine;
use crate::nodes::{PEER, Pair};
use crate::raw::{REGION_BYTES, Timing};
use crate::rows::region::NAME;
use crate::stats::Random;

/// Exports a region at B for requests of up to `block` bytes.
pub(super) fn export(pair: &Pair, access: Access, block: usize) -> Result<RegionExport, Failure> {
    let bytes = REGION_BYTES.max(block);
    let owner = Asker::connect(&pair.b, Place::BesideShard, bytes as u64)?;
    let mut buffer = owner.client.allocate(bytes).doing("allocate")?;
    buffer.as_mut_slice().fill(0x5a);
    owner.client.export_region(NAME, buffer, access).doing("export")
}

/// Connects a client of A that sleeps beside its shard, and opens the region.
pub(super) fn beside_shard(
    pair: &Pair,
    access: Access,
    arena_bytes: usize,
) -> Result<(Asker, Handle), Failure> {
    let asker = Asker::connect(&pair.a, Place::BesideShard, arena_bytes as u64)?;
    let handle = asker.client.open_region(Some(PEER), NAME, access).doing("open")?;
    Ok((asker, handle))
}

/// A client of A that waits as its daemon recommends.
pub(super) struct Reader {
    queue: Queue,
    handle: Handle,
    block: usize,
    /// Buffer of the next get, while none is under way.
    buffer: Option<Buffer>,
    cpu: usize,
    random: Random,
}

impl Reader {
    /// Connects a client that stays on this CPU, and opens the region.
    pub(super) fn open(pair: &Pair, cpu: usize, block: usize) -> Result<Self, Failure> {
        let builder = ClientBuilder::new().arena_bytes(1 << 20);
        let client = builder.connect(&pair.a.client_socket).doing("connect")?;
        let handle = client.open_region(Some(PEER), NAME, Access::READ).doing("open")?;
        let queue = client.queue().doing("queue")?;
        let buffer = Some(client.allocate(block).doing("allocate")?);
        Ok(Self { queue, handle, block, buffer, cpu, random: Random::new(1) })
    }

    /// Gets a block at a random place. Returns how long that took.
    fn get(&mut self) -> Result<Duration, Failure> {
        let blocks = (self.handle.len() / self.block as u64).max(1);
        let offset = self.random.below(blocks) * self.block as u64;
        let buffer = self.buffer.take().expect("it is here between gets");
        let begun = clock::now();
        let done = self.queue.run(Request::read(&self.handle, offset, buffer)).doing("get")?;
        let took = begun.elapsed();
        if done.bytes != self.block as u64 {
            return Err(Failure::new(format!("get: {} bytes of {}", done.bytes, self.block)));
        }
        self.buffer = Some(done.payload);
        Ok(took)
    }

    /// Times of gets, one after the other, for a while.
    pub(super) fn gets(&mut self, duration: Duration) -> Result<Timing, Failure> {
        machine::pin(self.cpu)?;
        let begun = clock::now();
        let mut latencies_ns = Vec::with_capacity(1 << 14);
        while begun.elapsed() < duration {
            latencies_ns.push(self.get()?.as_nanos() as u64);
        }
        Ok(Timing::new(latencies_ns, begun.elapsed()))
    }

    /// Times of so many gets, each after a pause.
    pub(super) fn gets_after(&mut self, pause: Duration, count: usize) -> Result<Timing, Failure> {
        machine::pin(self.cpu)?;
        let begun = clock::now();
        let mut latencies_ns = Vec::with_capacity(count);
        for _ in 0..count {
            clock::pause(pause);
            latencies_ns.push(self.get()?.as_nanos() as u64);
        }
        Ok(Timing::new(latencies_ns, begun.elapsed()))
    }
}
