//! Closed loops of requests to a daemon, through client-lib.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use piped_client::{
    Buffer, Call, Class, Client, ClientBuilder, Completed, Handle, Queue, Request, WaitPolicy,
};
use piped_ring::allocations;

use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::machine;
use crate::nodes::Node;
use crate::raw::Timing;
use crate::stats::Random;

/// No measured request takes this long; it is lost.
const LOST_AFTER: Duration = Duration::from_secs(15);

/// How and where the client waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Spins on this CPU, which is not its shard's.
    Spin(usize),
    /// Sleeps on its shard's CPU.
    BesideShard,
    /// Waits as the daemon recommends, on this CPU.
    Usual(usize),
}

/// Direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

/// A session with its one queue.
#[derive(Debug)]
pub(crate) struct Asker {
    pub(crate) client: Client,
    queue: Queue,
    pub(crate) cpu: usize,
    buffers: Vec<Buffer>,
    random: Random,
}

/// Request that a loop repeats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) handle: &'a Handle,
    pub(crate) block: usize,
    pub(crate) depth: usize,
}

impl Asker {
    pub(crate) fn connect(node: &Node, place: Place, arena_bytes: u64) -> Result<Self, Failure> {
        Self::connect_as(Class::Session, node, place, arena_bytes)
    }

    pub(crate) fn connect_as(
        class: Class,
        node: &Node,
        place: Place,
        arena_bytes: u64,
    ) -> Result<Self, Failure> {
        let policy = match place {
            Place::Spin(_) => Some(WaitPolicy::Latency),
            Place::BesideShard => Some(WaitPolicy::Custom { spin: Duration::ZERO }),
            Place::Usual(_) => None,
        };
        let builder = ClientBuilder::new().class(class).arena_bytes(arena_bytes);
        let builder = policy.into_iter().fold(builder, ClientBuilder::wait);
        let client = builder.connect(&node.client_socket).doing("connect")?;
        let mut queue = client.queue().doing("queue")?;
        let cpu = match place {
            Place::Spin(cpu) | Place::Usual(cpu) => cpu,
            Place::BesideShard => {
                let cpu = client.shard_cpu().ok_or_else(|| Failure::new("the shard is not pinned"));
                queue.pin_to_shard().doing("pin")?;
                cpu? as usize
            }
        };
        Ok(Self { client, queue, cpu, buffers: Vec::new(), random: Random::new(1) })
    }

    /// Has the next reads of its length, one at a time, fill this buffer.
    pub(crate) fn use_buffer(&mut self, buffer: Buffer) {
        self.buffers = vec![buffer];
    }

    /// Measures empty requests, one at a time.
    pub(crate) fn nops(&mut self, duration: Duration) -> Result<Timing, Failure> {
        machine::pin(self.cpu)?;
        let mut latencies = Vec::with_capacity(1 << 18);
        let start = clock::now();
        let mut begun = start;
        while begun - start < duration {
            self.queue.nop().doing("nop")?;
            let ended = clock::now();
            latencies.push((ended - begun).as_nanos() as u64);
            begun = ended;
        }
        Ok(Timing::new(latencies, begun - start))
    }

    /// System calls of its queue so far, two for a sleep, which may have been one.
    pub(crate) fn calls(&self) -> u64 {
        let counters = self.queue.counters();
        counters.doorbells + 2 * counters.sleeps
    }

    /// Measures empty requests, `depth` at once. Returns requests per second, the requests, and the
    /// calling thread's heap allocations meanwhile.
    pub(crate) fn nops_deep(
        &mut self,
        depth: usize,
        duration: Duration,
    ) -> Result<(f64, u64, u64), Failure> {
        let done = AtomicU64::new(0);
        let allocated = allocations::of_this_thread();
        let start = clock::now();
        self.nops_while(depth, &done, || start.elapsed() < duration)?;
        let count = done.into_inner();
        let rate = count as f64 / start.elapsed().as_secs_f64();
        Ok((rate, count, allocations::of_this_thread() - allocated))
    }

    /// Makes empty requests, `depth` at once, as long as `goes_on`. `done` is kept up to date.
    pub(crate) fn nops_while(
        &mut self,
        depth: usize,
        done: &AtomicU64,
        goes_on: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        machine::pin(self.cpu)?;
        for _ in 0..depth {
            self.nop()?;
        }
        let mut count = 0u64;
        let mut underway = depth;
        while underway > 0 {
            let completed = self.queue.wait(Some(LOST_AFTER));
            let mut next = Some(completed.ok_or_else(|| lost("nop"))?);
            let goes_on = goes_on();
            while let Some(completed) = next {
                completed.result.doing("nop")?;
                count += 1;
                if goes_on {
                    self.nop()?;
                } else {
                    underway -= 1;
                }
                next = self.queue.poll();
            }
            done.store(count, Ordering::Relaxed);
        }
        Ok(())
    }

    fn nop(&mut self) -> Result<(), Failure> {
        self.queue.submit_detached(Request::nop()).map(drop).doing("nop")
    }

    /// Measures reads at random places for a while.
    pub(crate) fn reads(&mut self, ask: Ask<'_>, duration: Duration) -> Result<Timing, Failure> {
        let mut latencies = Vec::with_capacity(1 << 18);
        let start = clock::now();
        let mut end = start;
        self.reads_while(ask, |begun, ended| {
            end = ended;
            if latencies.len() < latencies.capacity() {
                latencies.push((ended - begun).as_nanos() as u64);
            }
            ended - start < duration
        })?;
        Ok(Timing::new(latencies, end - start))
    }

    /// Reads at random places as long as `goes_on`, which is given the begin and end of each.
    pub(crate) fn reads_while(
        &mut self,
        ask: Ask<'_>,
        mut goes_on: impl FnMut(Instant, Instant) -> bool,
    ) -> Result<(), Failure> {
        machine::pin(self.cpu)?;
        self.buffers.retain(|buffer| buffer.len() == ask.block);
        while self.buffers.len() < ask.depth {
            self.buffers.push(self.client.allocate(ask.block).doing("allocate")?);
        }
        let mut begun = vec![clock::now(); ask.depth];
        for (slot, begun) in begun.iter_mut().enumerate() {
            let buffer = self.buffers.pop().expect("as many as the depth");
            *begun = self.read(ask, buffer, slot)?;
        }
        let mut underway = ask.depth;
        while underway > 0 {
            let completed = self.queue.wait(Some(LOST_AFTER));
            let mut next = Some(completed.ok_or_else(|| lost("read"))?);
            while let Some(completed) = next {
                let (slot, buffer) = whole(completed, ask.block)?;
                if goes_on(begun[slot], clock::now()) {
                    begun[slot] = self.read(ask, buffer, slot)?;
                } else {
                    self.buffers.push(buffer);
                    underway -= 1;
                }
                next = self.queue.poll();
            }
        }
        Ok(())
    }

    /// Time of one transfer at a random place. Bytes to write are those left in the buffer.
    pub(crate) fn one(
        &mut self,
        way: Way,
        handle: &Handle,
        block: usize,
    ) -> Result<Duration, Failure> {
        machine::pin(self.cpu)?;
        self.buffers.retain(|buffer| buffer.len() == block);
        let buffer = match self.buffers.pop() {
            Some(buffer) => buffer,
            None => self.client.allocate(block).doing("allocate")?,
        };
        let blocks = (handle.len() / block as u64).max(1);
        let offset = self.random.below(blocks) * block as u64;
        let request = match way {
            Way::Read => Request::read(handle, offset, buffer),
            Way::Write => Request::write(handle, offset, buffer),
        };
        let begun = clock::now();
        self.queue.submit_detached(request).map_err(|error| error.fault).doing("submit")?;
        self.queue.flush();
        let completed = self.queue.wait(Some(LOST_AFTER)).ok_or_else(|| lost("transfer"))?;
        let took = begun.elapsed();
        let (_, buffer) = whole(completed, block)?;
        self.buffers.push(buffer);
        Ok(took)
    }

    /// Time of a copy between two handles from their starts.
    pub(crate) fn copy(
        &mut self,
        from: &Handle,
        to: &Handle,
        bytes: u64,
    ) -> Result<Duration, Failure> {
        machine::pin(self.cpu)?;
        let begun = clock::now();
        let copied = self.queue.copy((from, 0), (to, 0), bytes).doing("copy")?;
        let took = begun.elapsed();
        if copied != bytes {
            return Err(Failure::new(format!("copy: {copied} bytes of {bytes}")));
        }
        Ok(took)
    }

    /// One call of a file or directory: the buffer and the bytes of the answer.
    pub(crate) fn call(
        &mut self,
        of: &Handle,
        call: &Call<'_>,
        buffer: Buffer,
    ) -> Result<(Buffer, usize), Failure> {
        self.queue.call(of, call, buffer).doing("call")
    }

    fn read(&mut self, ask: Ask<'_>, buffer: Buffer, slot: usize) -> Result<Instant, Failure> {
        let blocks = (ask.handle.len() / ask.block as u64).max(1);
        let offset = self.random.below(blocks) * ask.block as u64;
        let begun = clock::now();
        let request = Request::read(ask.handle, offset, buffer).tag(slot as u64);
        self.queue.submit_detached(request).map_err(|error| error.fault).doing("read")?;
        self.queue.flush();
        Ok(begun)
    }
}

fn whole(completed: Completed, block: usize) -> Result<(usize, Buffer), Failure> {
    let slot = completed.tag as usize;
    let done = completed.result.doing("read")?;
    if done.bytes != block as u64 {
        return Err(Failure::new(format!("read: {} bytes of {block}", done.bytes)));
    }
    Ok((slot, done.payload.expect("a read has a buffer")))
}

fn lost(what: &str) -> Failure {
    Failure::new(format!("{what}: no completion within {} s", LOST_AFTER.as_secs()))
}
