//! Keeps `depth` requests outstanding and reads the clock once for each that ends.

use std::time::{Duration, Instant};

use piped_client::{Buffer, Client, Completed, Queue, Request};

use super::cpu;
use super::report::{Counts, Cpu};
use super::target::{Target, Work};
use crate::args::{Load, Pattern};
use crate::client;
use crate::clock;
use crate::failure::Failure;
use crate::random;

/// Part of the measured time that runs before it, until connections, caches and plans settle.
const WARM_UP: f64 = 0.1;

/// A queue with its load.
#[derive(Debug)]
pub(super) struct Driver {
    queue: Queue,
    target: Target,
    size: u64,
    pattern: Pattern,
    /// Times of submission, by tag.
    submitted: Vec<Instant>,
    /// Number of requests made, for the next offset.
    made: u64,
}

/// Result of a measurement.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) counts: Counts,
    pub(super) time: Duration,
    pub(super) cpu: Cpu,
}

impl Driver {
    /// Submits all requests; from here on one goes out for each that comes back.
    pub(super) fn new(client: &Client, target: Target, load: &Load) -> Result<Self, Failure> {
        let queue = client.queue().map_err(|error| client::queue(&error))?;
        let mut driver = Self {
            queue,
            target,
            size: load.size.0,
            pattern: load.pattern,
            submitted: Vec::new(),
            made: 0,
        };
        for tag in 0..load.depth {
            let buffer = match driver.target.work {
                Work::Read(_) | Work::Write { .. } => Some(client::allocate(client, load.size.0)?),
                Work::Nop | Work::Copy { .. } => None,
            };
            let now = clock::now();
            driver.submitted.push(now);
            driver.submit(u64::from(tag), buffer, now)?;
        }
        Ok(driver)
    }

    /// Runs for `time` after a warm-up.
    pub(super) fn run(
        &mut self,
        time: Duration,
        daemon: Option<&str>,
    ) -> Result<Measured, Failure> {
        let mut counts = Counts::new();
        let begin = clock::now();
        self.until(begin + time.mul_f64(WARM_UP), &mut counts)?;
        counts.reset();
        let cpu = || Cpu { client: cpu::seconds("self"), daemon: daemon.and_then(cpu::seconds) };
        let before = cpu();
        let begin = clock::now();
        let end = self.until(begin + time, &mut counts)?;
        let after = cpu();
        self.drain()?;
        let spent = |after: Option<f64>, before: Option<f64>| Some(after? - before?);
        let cpu = Cpu {
            client: spent(after.client, before.client),
            daemon: spent(after.daemon, before.daemon),
        };
        Ok(Measured { counts, time: end.saturating_duration_since(begin), cpu })
    }

    /// Runs until the first completion after `end`, and returns its time.
    fn until(&mut self, end: Instant, counts: &mut Counts) -> Result<Instant, Failure> {
        loop {
            let completed = self.queue.wait(None).ok_or_else(|| self.lost())?;
            let now = clock::now();
            let (tag, bytes, buffer) = self.ended(completed)?;
            let place = usize::try_from(tag).expect("tags are places of `submitted`");
            counts.add(now.saturating_duration_since(self.submitted[place]), bytes);
            self.submit(tag, buffer, now)?;
            if now >= end {
                return Ok(now);
            }
        }
    }

    /// Awaits outstanding requests, so that buffers and files are free afterwards.
    fn drain(&mut self) -> Result<(), Failure> {
        while let Some(completed) = self.queue.wait(None) {
            self.ended(completed)?;
        }
        Ok(())
    }

    fn ended(&self, completed: Completed) -> Result<(u64, u64, Option<Buffer>), Failure> {
        let done = completed.result.map_err(|error| client::request(&self.target.name, &error))?;
        Ok((completed.tag, done.bytes, done.payload))
    }

    fn submit(&mut self, tag: u64, buffer: Option<Buffer>, now: Instant) -> Result<(), Failure> {
        let offset = self.next_offset();
        let place = usize::try_from(tag).expect("tags are places of `submitted`");
        self.submitted[place] = now;
        let queue = &mut self.queue;
        let submitted = match (&self.target.work, buffer) {
            (Work::Read(from), Some(buffer)) => {
                let request = Request::read(from, offset, buffer).tag(tag);
                queue.submit_detached(request).map_err(|error| error.fault)
            }
            (Work::Write { to, durable }, Some(buffer)) => {
                let request = Request::write(to, offset, buffer).tag(tag);
                let request = if *durable { request.durable() } else { request };
                queue.submit_detached(request).map_err(|error| error.fault)
            }
            (Work::Copy { from, to }, _) => {
                let request = Request::copy(from, offset, to, offset, self.size).tag(tag);
                queue.submit_detached(request).map_err(|error| error.fault)
            }
            _ => queue.submit_detached(Request::nop().tag(tag)).map_err(|error| error.fault),
        };
        submitted.map(drop).map_err(|fault| client::submit(&self.target.name, fault))
    }

    fn next_offset(&mut self) -> u64 {
        let number = self.made;
        self.made += 1;
        match self.pattern {
            Pattern::Random => random::offset(number, self.size, self.target.span),
            Pattern::Sequential => number % (self.target.span / self.size) * self.size,
        }
    }

    fn lost(&self) -> Failure {
        Failure::failed(format!("{}: requests went missing: please report this", self.target.name))
    }
}
