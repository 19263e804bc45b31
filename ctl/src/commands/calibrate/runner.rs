//! Sends the requests of the procedure and reads the clock: one thread, one queue, like an
//! application.

use std::time::{Duration, Instant};

use piped_client::{Buffer, Client, Completed, Queue, Request};
use piped_core::units::Nanos;
use piped_model::estimate::active::{Procedure, Run, Step};

use super::LOOK;
use super::leave::Watch;
use super::target::Opened;
use crate::failure::{Exit, Failure};
use crate::{client, clock, random};

/// The daemon ends requests at their deadlines; a later end is not waited for.
const LATE: Duration = Duration::from_secs(1);
/// Advice for a path that does not answer.
const WHERE: &str =
    "see `pipectl transfers` and `pipectl peers`, and calibrate again when it answers";

/// Client that runs the procedure.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    client: &'a Client,
    queue: Queue,
    opened: Opened,
    watch: Watch<'a>,
    /// Deadline of each request.
    deadline: Duration,
    began: Instant,
    made: u64,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        client: &'a Client,
        opened: Opened,
        watch: Watch<'a>,
        deadline: Duration,
    ) -> Result<Self, Failure> {
        let queue = client.queue().map_err(|error| client::queue(&error))?;
        Ok(Self { client, queue, opened, watch, deadline, began: clock::now(), made: 0 })
    }

    pub(super) fn now(&self) -> Nanos {
        let elapsed = clock::now().saturating_duration_since(self.began);
        Nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Number of requests made on the path.
    pub(super) fn requests(&self) -> u64 {
        self.made
    }

    /// Runs the whole procedure, or until a signal comes or a request fails.
    pub(super) fn drive(
        &mut self,
        procedure: &mut Procedure,
        mut tell: impl FnMut(f64, &str),
    ) -> Result<(), Failure> {
        loop {
            self.watch.look()?;
            match procedure.poll(self.now()) {
                Step::Over => return Ok(()),
                Step::Pause(until) => {
                    let left = Duration::from_nanos(until.since(self.now()).0);
                    clock::pause(left.min(LOOK));
                }
                Step::Run(run) => {
                    let began = self.now();
                    let (part, at) = procedure.progress(began);
                    tell(part, at);
                    let seconds = self.run(run)?;
                    procedure.handle(&seconds, began, self.now());
                }
            }
        }
    }

    fn run(&mut self, run: Run) -> Result<Vec<f64>, Failure> {
        match run {
            Run::Ring { count } => self.ring(count),
            Run::Alone { bytes, count } => self.alone(bytes, count),
            Run::Backlogged { bytes, count, depth } => self.backlogged(bytes, count, depth),
            Run::Burst { bytes, messages, delay, window } => {
                let seconds =
                    self.burst(bytes, (messages, window), Duration::from_secs_f64(delay))?;
                Ok(vec![seconds])
            }
        }
    }

    fn ring(&mut self, count: u32) -> Result<Vec<f64>, Failure> {
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let began = clock::now();
            let submitted = self.queue.submit_detached(Request::nop());
            submitted
                .map_err(|error| client::submit("a request that does nothing", error.fault))?;
            self.take()?;
            times.push(since(began));
        }
        Ok(times)
    }

    fn alone(&mut self, bytes: u64, count: u32) -> Result<Vec<f64>, Failure> {
        let mut buffer = client::allocate(self.client, bytes)?;
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let began = clock::now();
            self.submit(buffer)?;
            buffer = self.take_buffer()?;
            times.push(since(began));
        }
        Ok(times)
    }

    fn backlogged(&mut self, bytes: u64, count: u32, depth: u32) -> Result<Vec<f64>, Failure> {
        let mut spare = self.buffers(bytes, depth.min(count))?;
        let mut ends = Vec::with_capacity(count as usize);
        let began = clock::now();
        for _ in 0..count {
            let buffer = match spare.pop() {
                Some(buffer) => buffer,
                None => {
                    let buffer = self.take_buffer()?;
                    ends.push(since(began));
                    buffer
                }
            };
            self.submit(buffer)?;
        }
        while ends.len() < count as usize {
            self.take()?;
            ends.push(since(began));
        }
        Ok(ends)
    }

    /// Sends a burst. Looks for ended requests once before each message, and waits where no buffer
    /// is left: the window.
    fn burst(
        &mut self,
        bytes: u64,
        (messages, window): (u32, u32),
        delay: Duration,
    ) -> Result<f64, Failure> {
        let window = window.min(messages) as usize;
        let mut spare = self.buffers(bytes, window as u32)?;
        let mut under_way = 0;
        let began = clock::now();
        for message in 0..messages {
            if message > 0 {
                compute(delay);
                if under_way > 0
                    && let Some(completed) = self.queue.poll()
                {
                    spare.extend(self.buffer_of(completed)?);
                    under_way -= 1;
                }
            }
            let buffer = match spare.pop() {
                Some(buffer) => buffer,
                None => {
                    under_way -= 1;
                    self.take_buffer()?
                }
            };
            self.submit(buffer)?;
            // Send it now, not with the next poll.
            self.queue.flush();
            under_way += 1;
        }
        let issued = since(began);
        for _ in 0..under_way {
            self.take()?;
        }
        Ok(issued)
    }

    fn buffers(&self, bytes: u64, count: u32) -> Result<Vec<Buffer>, Failure> {
        (0..count).map(|_| client::allocate(self.client, bytes)).collect()
    }

    fn submit(&mut self, buffer: Buffer) -> Result<(), Failure> {
        let offset = random::offset(self.made, buffer.len() as u64, self.opened.bytes);
        self.made += 1;
        let request = Request::read(&self.opened.handle, offset, buffer).deadline(self.deadline);
        let submitted = self.queue.submit_detached(request);
        submitted.map(drop).map_err(|error| client::submit(&self.opened.name, error.fault))
    }

    fn take_buffer(&mut self) -> Result<Buffer, Failure> {
        let buffer = self.take()?;
        let name = &self.opened.name;
        buffer.ok_or_else(|| {
            Failure::failed(format!("{name}: a buffer went missing: please report this"))
        })
    }

    /// Takes the next request that ends.
    fn take(&mut self) -> Result<Option<Buffer>, Failure> {
        let completed = match self.queue.wait(Some(LOOK)) {
            Some(completed) => completed,
            None => self.take_late()?,
        };
        // A run of many slow requests is long too, even if none is very slow.
        self.watch.stop.check()?;
        self.buffer_of(completed)
    }

    /// Takes the next end on a slow or silent path, while signals are heard.
    #[cold]
    fn take_late(&mut self) -> Result<Completed, Failure> {
        let began = clock::now();
        let patience = self.deadline + LATE;
        while clock::now().saturating_duration_since(began) < patience {
            self.watch.look()?;
            if let Some(completed) = self.queue.wait(Some(LOOK)) {
                return Ok(completed);
            }
        }
        let text = format!("{}: no answer within {} s", self.opened.name, patience.as_secs());
        let failure = Failure::new(Exit::Timeout, text);
        Err(failure.and(WHERE))
    }

    fn buffer_of(&self, completed: Completed) -> Result<Option<Buffer>, Failure> {
        let done = completed.result.map_err(|error| {
            let failure = client::request(&self.opened.name, &error);
            match failure.exit() {
                Exit::Timeout | Exit::Unreachable => failure.and(WHERE),
                _ => failure,
            }
        })?;
        Ok(done.payload)
    }
}

fn since(began: Instant) -> f64 {
    clock::now().saturating_duration_since(began).as_secs_f64()
}

/// Keeps the processor busy: a sleeping client takes no messages, although its processor could.
fn compute(time: Duration) {
    let began = clock::now();
    while clock::now().saturating_duration_since(began) < time {
        std::hint::spin_loop();
    }
}
