//! The copy itself: some pieces under way, each a request that the daemons carry out; what is contiguous is made
//! durable now and then; a lost peer or daemon is come back to.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use piped_client::{
    Cause, Class, Client, ClientBuilder, Completed, Handle, Queue, Request, RequestError,
    RequestId, Status,
};

use super::CpArgs;
use super::ends::Ends;
use super::journal::Journal;
use super::meter::Meter;
use super::stop::Stop;
use crate::client;
use crate::clock;
use crate::failure::{Exit, Failure};

/// Bytes of one request. Long against the daemon's fragments, so that what a request costs does not show; short
/// enough that its end is a step of a slow copy.
const PIECE: u64 = 8 << 20;
/// Requests under way: the daemon's share of staging for copies holds as much as that.
const DEPTH: usize = 4;
/// Pieces that may have ended behind one that has not.
const AHEAD: usize = 4 * DEPTH;

/// Between two looks at signals and at the progress of what is under way.
const STEP: Duration = Duration::from_millis(50);
/// For cancelled requests to end, and for the last checkpoint of an interrupted copy.
const GRACE: Duration = Duration::from_secs(2);
/// Before a lost peer or daemon is asked again.
const AGAIN: Duration = Duration::from_millis(200);

/// Marks the sync among the pieces, which are marked with their offsets.
const SYNC: u64 = u64::MAX;

/// A session for copies. They need no memory of ours; what reads grows the arena.
pub(super) fn connect(args: &CpArgs) -> Result<Client, Failure> {
    let builder = ClientBuilder::new()
        .arena_bytes(1)
        .depth(AHEAD as u32 + 1)
        .class(Class::Bulk)
        .timeout(args.timeout().min(Duration::from_secs(30)));
    client::connect(builder, &args.door.socket)
}

/// How an attempt ended.
enum Trouble {
    /// Not to be mended by trying again.
    Final(Failure),
    /// A peer or daemon that may come back.
    Passing(Failure),
}

/// See the module.
pub(super) struct Mover<'a> {
    args: &'a CpArgs,
    ends: &'a Ends,
    journal: &'a mut Journal,
    stop: &'a Stop,
    client: Option<Client>,
    /// Contiguous bytes that are acknowledged.
    done: u64,
    /// Of those, what a sync covered.
    durable: u64,
    pub(super) reconnects: u32,
}

/// One session's requests.
struct Attempt {
    queue: Queue,
    from: Handle,
    to: Handle,
    /// By offset.
    pieces: BTreeMap<u64, Piece>,
    underway: usize,
    /// Bytes for which a piece was submitted.
    next: u64,
    /// What the sync under way will cover.
    sync: Option<(RequestId, u64)>,
    checkpoint: Instant,
}

struct Piece {
    id: RequestId,
    length: u64,
    ended: bool,
}

impl<'a> Mover<'a> {
    pub(super) fn new(
        args: &'a CpArgs,
        ends: &'a Ends,
        journal: &'a mut Journal,
        from: u64,
        stop: &'a Stop,
    ) -> Self {
        Self { args, ends, journal, stop, client: None, done: from, durable: from, reconnects: 0 }
    }

    /// What is certainly there.
    pub(super) fn certain(&self) -> u64 {
        self.durable
    }

    /// The session that was used last.
    pub(super) fn take_client(&mut self) -> Option<Client> {
        self.client.take()
    }

    /// Copies what is missing, and makes it durable if that is wanted.
    pub(super) fn run(&mut self, client: Client, meter: &mut Meter) -> Result<(), Failure> {
        self.client = Some(client);
        let (mut furthest, mut since) = (self.done, clock::now());
        loop {
            let failure = match self.attempt(meter) {
                Ok(()) => return Ok(()),
                Err(Trouble::Final(failure)) => return Err(failure),
                Err(Trouble::Passing(failure)) => failure,
            };
            if self.done > furthest {
                (furthest, since) = (self.done, clock::now());
            }
            if since.elapsed() > self.args.timeout() {
                return Err(failure);
            }
            // What a peer took and did not sync may be lost with it.
            if !self.ends.is_kept_here() {
                self.done = self.durable;
            }
            meter.note(&format!("{failure}; trying again"));
            self.come_back()?;
        }
    }

    /// A session with a daemon that may have to be started first.
    fn come_back(&mut self) -> Result<(), Failure> {
        self.reconnects += 1;
        let begun = clock::now();
        loop {
            clock::pause(AGAIN);
            self.stop.check()?;
            if self.client.as_ref().is_some_and(Client::is_connected) {
                return Ok(());
            }
            match connect(self.args) {
                Ok(client) => self.client = Some(client),
                Err(failure) if begun.elapsed() > self.args.timeout() => return Err(failure),
                Err(_) => {}
            }
        }
    }

    /// With the present session, until all is copied or something is in the way.
    fn attempt(&mut self, meter: &mut Meter) -> Result<(), Trouble> {
        let client = self.client.clone().expect("set before the first attempt");
        let (from, to) = self.ends.open(&client).map_err(opening)?;
        if from.len() != self.ends.length {
            return Err(Trouble::Final(self.ends.changed()));
        }
        let queue = client.queue().map_err(|error| opening(client::queue(&error)))?;
        let mut attempt = Attempt {
            queue,
            from,
            to,
            pieces: BTreeMap::new(),
            underway: 0,
            next: self.done,
            sync: None,
            checkpoint: clock::now(),
        };
        let result = self.move_all(&mut attempt, meter);
        if result.is_err() {
            self.end(&mut attempt);
        }
        result?;
        self.ends.check_source(&client).map_err(|failure| match failure.exit() {
            Exit::Failed => Trouble::Final(failure),
            _ => opening(failure),
        })
    }

    fn move_all(&mut self, attempt: &mut Attempt, meter: &mut Meter) -> Result<(), Trouble> {
        while self.done < self.ends.length {
            self.check_stop()?;
            self.submit_pieces(attempt)?;
            self.submit_checkpoint(attempt)?;
            self.wait(attempt)?;
            meter.set(self.done + attempt.first_progress());
        }
        while attempt.sync.is_some() {
            self.check_stop()?;
            self.wait(attempt)?;
        }
        self.ends.cut().map_err(Trouble::Final)?;
        if !self.args.no_sync {
            self.submit_sync(attempt)?;
            while attempt.sync.is_some() {
                self.check_stop()?;
                self.wait(attempt)?;
            }
            self.ends.sync_name().map_err(Trouble::Final)?;
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Trouble> {
        self.stop.check().map_err(Trouble::Final)
    }

    fn submit_pieces(&self, attempt: &mut Attempt) -> Result<(), Trouble> {
        while attempt.next < self.ends.length
            && attempt.underway < DEPTH
            && attempt.pieces.len() < AHEAD
        {
            let start = attempt.next;
            // Pieces end at multiples of their length, also after one that ended early.
            let end = ((start / PIECE + 1) * PIECE).min(self.ends.length);
            let length = end - start;
            let request = Request::copy(&attempt.from, start, &attempt.to, start, length);
            let request = request.deadline(self.args.timeout()).tag(start);
            let id = attempt.queue.submit_detached(request).map_err(submitting)?;
            attempt.pieces.insert(start, Piece { id, length, ended: false });
            attempt.underway += 1;
            attempt.next = end;
        }
        Ok(())
    }

    /// What is copied becomes durable while the copy goes on.
    fn submit_checkpoint(&self, attempt: &mut Attempt) -> Result<(), Trouble> {
        let due = attempt.checkpoint.elapsed().as_secs_f64() >= self.args.checkpoint;
        if due && attempt.sync.is_none() && self.done > self.durable {
            self.submit_sync(attempt)?;
        }
        Ok(())
    }

    fn submit_sync(&self, attempt: &mut Attempt) -> Result<(), Trouble> {
        let request = Request::sync(&attempt.to).deadline(self.args.timeout()).tag(SYNC);
        let id = attempt.queue.submit_detached(request).map_err(submitting)?;
        attempt.sync = Some((id, self.done));
        Ok(())
    }

    /// For the next end, a moment at most.
    fn wait(&mut self, attempt: &mut Attempt) -> Result<(), Trouble> {
        let Some(completed) = attempt.queue.wait(Some(STEP)) else { return Ok(()) };
        self.take(attempt, completed)?;
        while let Some(completed) = attempt.queue.poll() {
            self.take(attempt, completed)?;
        }
        Ok(())
    }

    fn take(&mut self, attempt: &mut Attempt, completed: Completed) -> Result<(), Trouble> {
        let Completed { tag, result, .. } = completed;
        if tag == SYNC {
            let sync = attempt.sync.take();
            attempt.checkpoint = clock::now();
            result.map_err(|error| self.failed(&error))?;
            self.durable = sync.map_or(self.durable, |(_, covered)| covered);
            // At the end it would only be written to be removed.
            if self.durable < self.ends.length || self.args.verify {
                self.journal.save(self.durable);
            }
            return Ok(());
        }
        attempt.underway -= 1;
        let Some(piece) = attempt.pieces.get_mut(&tag) else { return Ok(()) };
        let bytes = result.as_ref().map_or_else(|error| error.bytes, |done| done.bytes);
        piece.ended = bytes == piece.length;
        let short = !piece.ended;
        // One that is short stays in the way of what lies behind it: its bytes are no end of a piece.
        while let Some(first) = attempt.pieces.first_entry().filter(|first| first.get().ended) {
            self.done += first.remove().length;
        }
        if short && tag == self.done {
            self.done += bytes;
        }
        match result {
            Ok(_) if short => Err(Trouble::Final(self.ends.changed())),
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn failed(&self, error: &RequestError) -> Trouble {
        let (source, destination) = (&self.ends.source, &self.ends.destination);
        let what = match error.status() {
            Some(Status::NoSpace) => format!("the file system of {destination} is full"),
            _ => format!("{source} to {destination}"),
        };
        // Its count of bytes is of one piece, which tells nobody anything.
        let cause = error.cause;
        let failure = Failure::new(client::request("", error).exit(), format!("{what}: {cause}"));
        let passes = match cause {
            Cause::Status(status) => matches!(
                status,
                Status::PeerLost
                    | Status::DeadlineExceeded
                    | Status::WouldBlock
                    | Status::Closed
                    | Status::OutcomeUnknown
            ),
            Cause::Disconnected => true,
            _ => false,
        };
        if passes { Trouble::Passing(failure) } else { Trouble::Final(failure) }
    }

    /// Ends what is under way. What is contiguous then is made durable, if that can be, and noted.
    fn end(&mut self, attempt: &mut Attempt) {
        let ids: Vec<RequestId> = attempt.pieces.values().map(|piece| piece.id).collect();
        for id in ids {
            attempt.queue.cancel(id);
        }
        let until = clock::now() + GRACE;
        self.collect(attempt, until);
        if self.done > self.durable && self.submit_sync(attempt).is_ok() {
            self.collect(attempt, until);
        }
    }

    /// What ends until then; errors are those of what was cancelled or is known to have failed.
    fn collect(&mut self, attempt: &mut Attempt, until: Instant) {
        while attempt.underway > 0 || attempt.sync.is_some() {
            let left = until.saturating_duration_since(clock::now());
            let Some(completed) = attempt.queue.wait(Some(left)) else { return };
            let _ = self.take(attempt, completed);
        }
    }
}

impl Attempt {
    /// Bytes in place of the piece that all wait for.
    fn first_progress(&self) -> u64 {
        self.pieces.first_key_value().map_or(0, |(_, piece)| self.queue.progress(piece.id))
    }
}

/// A peer or daemon that does not answer may come back; what it refuses stays refused.
fn opening(failure: Failure) -> Trouble {
    match failure.exit() {
        Exit::Unreachable | Exit::Timeout => Trouble::Passing(failure),
        _ => Trouble::Final(failure),
    }
}

fn submitting(error: piped_client::SubmitError<()>) -> Trouble {
    opening(client::submit("copy", error.fault))
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Final(failure)
    }
}
