//! The copy itself. Some pieces are under way, each a request that the daemons carry out. The
//! contiguous part is made durable now and then. A lost peer or daemon is connected again.
//!
//! The copy gives up when nothing moves for a time: bytes that land, of whatever piece, start the
//! time anew. A single piece may take as long as it needs, so requests have the longest deadline
//! there is. A piece that ends early keeps the bytes that have landed.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use piped_client::{
    Buffer, Cause, Class, Client, ClientBuilder, Completed, Done, Handle, Queue, Request,
    RequestError, RequestId, Status, SubmitFault,
};

use super::CpArgs;
use super::beside::Beside;
use super::ends::Ends;
use super::journal::Journal;
use super::meter::Meter;
use super::pace::{self, Pace};
use super::ranges::Copied;
use super::stop::Stop;
use super::waiting::{Patience, Waiting};
use crate::client;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::units;

/// Requests under way: as many as the daemon's share of staging for copies holds.
const DEPTH: usize = 4;
/// Most bytes copied beyond a gap.
const AHEAD: u64 = 4 * DEPTH as u64 * pace::MOST;
/// Requests that were given up and have not ended yet, beside those under way and a sync.
const LEFTOVERS: usize = 3 * DEPTH;

/// Deadline of a request: the longest that a daemon allows. A request goes on as long as something
/// moves, and this program watches that.
pub(super) const DEADLINE: Duration = Duration::from_secs(3600);

/// Time between two looks at signals and at progress.
const STEP: Duration = Duration::from_millis(50);
/// Time for cancelled requests to end, and for the last checkpoint of an interrupted copy.
const GRACE: Duration = Duration::from_secs(2);
/// Time before a lost peer or daemon is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// Tag of the sync; pieces have their offsets as tags.
const SYNC: u64 = u64::MAX;

/// Session for copies. They need no memory of this client; reading back grows the arena.
pub(super) fn connect(args: &CpArgs) -> Result<Client, Failure> {
    let builder = ClientBuilder::new()
        .arena_bytes(1)
        .depth((DEPTH + LEFTOVERS) as u32 + 1)
        .class(Class::Bulk)
        .timeout(args.timeout().min(Duration::from_secs(30)));
    client::connect(builder, &args.door.socket)
}

/// Outcome of an attempt that failed.
enum Trouble {
    /// A failure that another attempt cannot mend.
    Final(Failure),
    /// A failure of a peer or daemon that may come back.
    Passing(Failure),
}

/// Moves all bytes of a copy.
pub(super) struct Mover<'a> {
    args: &'a CpArgs,
    ends: &'a Ends,
    journal: &'a mut Journal,
    stop: &'a Stop,
    client: Option<Client>,
    /// Bytes that are acknowledged.
    copied: Copied,
    /// Contiguous bytes that a sync has covered.
    durable: u64,
    pace: Pace,
    waiting: Waiting,
    /// Whether anything has landed so far.
    has_copied: bool,
    pub(super) reconnects: u32,
}

/// Requests of one session.
struct Attempt<'a> {
    client: Client,
    queue: Queue,
    session: u32,
    from: Handle,
    to: Handle,
    /// Set if the node with both ends copies by itself.
    beside: Option<Beside<'a>>,
    /// Pieces under way, by offset.
    pieces: BTreeMap<u64, Piece>,
    /// The sync under way, with the bytes that it will cover.
    sync: Option<(RequestId, u64)>,
    checkpoint: Instant,
    patience: Patience,
}

struct Piece {
    id: RequestId,
    length: u64,
    begun: Instant,
    /// Whether it was given up as too long for a path that has become slow.
    given_up: bool,
}

impl<'a> Mover<'a> {
    pub(super) fn new(
        args: &'a CpArgs,
        admin: &Path,
        ends: &'a Ends,
        journal: &'a mut Journal,
        from: u64,
        stop: &'a Stop,
    ) -> Self {
        let timeout = args.timeout();
        Self {
            args,
            ends,
            journal,
            stop,
            client: None,
            copied: Copied::up_to(from),
            durable: from,
            pace: Pace::new(pace::MOST, timeout),
            waiting: Waiting::new(admin, [&ends.source, &ends.destination], timeout),
            has_copied: from > 0,
            reconnects: 0,
        }
    }

    /// Bytes that are certainly there.
    pub(super) fn certain(&self) -> u64 {
        self.durable
    }

    /// Whether anything has been copied.
    pub(super) fn has_copied(&self) -> bool {
        self.has_copied
    }

    /// Takes the session that was used last.
    pub(super) fn take_client(&mut self) -> Option<Client> {
        self.client.take()
    }

    /// Copies the missing bytes, and makes them durable if that is wanted.
    pub(super) fn run(&mut self, client: Client, meter: &mut Meter) -> Result<(), Failure> {
        self.client = Some(client);
        let (mut furthest, mut since) = (self.copied.bytes(), clock::now());
        loop {
            let failure = match self.attempt(meter) {
                Ok(()) => return Ok(()),
                Err(Trouble::Final(failure)) => return Err(failure),
                Err(Trouble::Passing(failure)) => failure,
            };
            if self.copied.bytes() > furthest {
                (furthest, since) = (self.copied.bytes(), clock::now());
            }
            if since.elapsed() > self.args.timeout() {
                return Err(self.given_up(failure));
            }
            // Bytes that a peer took and did not sync may be lost with it.
            if !self.ends.is_kept_here() {
                self.copied = Copied::up_to(self.durable);
            }
            meter.note(&format!("{failure}; trying again"));
            self.come_back()?;
        }
    }

    /// Connects to a daemon that may have to be started first.
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
                Err(failure) if begun.elapsed() > self.args.timeout() => {
                    return Err(self.given_up(failure));
                }
                Err(_) => {}
            }
        }
    }

    /// Failure of the last attempt.
    fn given_up(&self, failure: Failure) -> Failure {
        let timeout = units::seconds(self.args.timeout);
        failure.and(format_args!("nothing has moved for {timeout} (--timeout)"))
    }

    /// Copies with the present session, until all is copied or something fails.
    fn attempt(&mut self, meter: &mut Meter) -> Result<(), Trouble> {
        let client = self.client.clone().expect("set before the first attempt");
        let (from, to) = self.ends.open(&client).map_err(opening)?;
        if from.len() != self.ends.length {
            return Err(Trouble::Final(self.ends.changed()));
        }
        let mut queue = client.queue().map_err(|error| opening(client::queue(&error)))?;
        let beside = Beside::find(&client, &mut queue, self.ends);
        let now = clock::now();
        let mut attempt = Attempt {
            client: client.clone(),
            queue,
            session: client.session(),
            from,
            to,
            beside,
            pieces: BTreeMap::new(),
            sync: None,
            checkpoint: now,
            patience: Patience::new(self.args.timeout(), now),
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

    fn move_all(&mut self, attempt: &mut Attempt<'_>, meter: &mut Meter) -> Result<(), Trouble> {
        while self.copied.contiguous() < self.ends.length {
            self.check_stop()?;
            self.submit_pieces(attempt)?;
            self.submit_checkpoint(attempt)?;
            self.wait(attempt)?;
            self.watch(attempt, meter)?;
        }
        self.finish_sync(attempt, meter)?;
        self.ends.cut().map_err(Trouble::Final)?;
        if !self.args.no_sync {
            self.submit_sync(attempt)?;
            self.finish_sync(attempt, meter)?;
            self.ends.sync_name().map_err(Trouble::Final)?;
        }
        Ok(())
    }

    /// Waits for the sync with a time of its own, since nothing lands meanwhile.
    fn finish_sync(&mut self, attempt: &mut Attempt<'_>, meter: &mut Meter) -> Result<(), Trouble> {
        attempt.patience.renew(clock::now());
        while attempt.sync.is_some() {
            self.check_stop()?;
            self.wait(attempt)?;
            self.watch(attempt, meter)?;
        }
        Ok(())
    }

    /// Shows the bytes that have landed. If nothing has landed for long: names the party that is
    /// waited for, asks for less at a time, and gives up in the end.
    fn watch(&mut self, attempt: &mut Attempt<'_>, meter: &mut Meter) -> Result<(), Trouble> {
        let now = clock::now();
        let landed = self.copied.bytes() + attempt.landed();
        attempt.patience.handle(landed, now);
        self.has_copied |= landed > 0;
        let patience = &attempt.patience;
        if patience.is_over(now) {
            let (source, destination) = (&self.ends.source, &self.ends.destination);
            let what = format_args!("{source} to {destination}");
            return Err(Trouble::Final(self.waiting.over(what)));
        }
        if !patience.is_told(now) {
            self.waiting.forget();
            meter.set(landed);
            return Ok(());
        }
        meter.wait(landed, &self.waiting.text(attempt.session, patience, now));
        if patience.is_short(now) && !attempt.pieces.is_empty() && self.pace.handle_stall() {
            // Several pieces share what is left of the path, and none of them may end in time.
            attempt.give_up_pieces();
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Trouble> {
        self.stop.check().map_err(Trouble::Final)
    }

    fn submit_pieces(&self, attempt: &mut Attempt<'_>) -> Result<(), Trouble> {
        let until = self.ends.length.min(self.copied.contiguous() + AHEAD);
        while attempt.pieces.len() < DEPTH {
            let (start, next) = self.gap(attempt);
            if start >= until {
                break;
            }
            let end = self.pace.end(start, next.unwrap_or(self.ends.length));
            let length = end - start;
            let id = attempt.submit(start, length)?;
            let piece = Piece { id, length, begun: clock::now(), given_up: false };
            attempt.pieces.insert(start, piece);
        }
        Ok(())
    }

    /// The first gap that is neither copied nor asked for: its start, and its end if other bytes
    /// follow.
    fn gap(&self, attempt: &Attempt<'_>) -> (u64, Option<u64>) {
        let mut at = 0;
        loop {
            let (start, copied) = self.copied.gap(at);
            match attempt.pieces.get(&start) {
                Some(piece) => at = start + piece.length,
                None => {
                    let asked = attempt.pieces.range(start..).next().map(|(&start, _)| start);
                    return (start, copied.into_iter().chain(asked).min());
                }
            }
        }
    }

    /// Makes copied bytes durable while the copy goes on.
    fn submit_checkpoint(&self, attempt: &mut Attempt<'_>) -> Result<(), Trouble> {
        let due = attempt.checkpoint.elapsed().as_secs_f64() >= self.args.checkpoint;
        if due && attempt.sync.is_none() && self.copied.contiguous() > self.durable {
            self.submit_sync(attempt)?;
        }
        Ok(())
    }

    fn submit_sync(&self, attempt: &mut Attempt<'_>) -> Result<(), Trouble> {
        let request = Request::sync(&attempt.to).deadline(DEADLINE).tag(SYNC);
        let submitted = attempt.queue.submit_detached(request);
        let id = submitted.map_err(|error| submitting(error.fault))?;
        attempt.sync = Some((id, self.copied.contiguous()));
        Ok(())
    }

    /// Waits for the next end, for a moment at most.
    fn wait(&mut self, attempt: &mut Attempt<'_>) -> Result<(), Trouble> {
        let Some(completed) = attempt.queue.wait(Some(STEP)) else { return Ok(()) };
        self.take(attempt, completed)?;
        while let Some(completed) = attempt.queue.poll() {
            self.take(attempt, completed)?;
        }
        Ok(())
    }

    fn take(&mut self, attempt: &mut Attempt<'_>, completed: Completed) -> Result<(), Trouble> {
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
        let Some(piece) = attempt.pieces.remove(&tag) else { return Ok(()) };
        let result = result.map(|done| attempt.copied(done));
        let bytes = result.as_ref().map_or_else(|error| error.bytes, |copied| *copied);
        let bytes = bytes.min(piece.length);
        self.copied.insert(tag, bytes);
        self.has_copied |= bytes > 0;
        match result {
            Ok(_) if bytes < piece.length => Err(Trouble::Final(self.ends.changed())),
            Ok(_) => {
                self.pace.handle_end(bytes, piece.begun.elapsed());
                Ok(())
            }
            Err(_) if piece.given_up => Ok(()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn failed(&self, error: &RequestError) -> Trouble {
        let (source, destination) = (&self.ends.source, &self.ends.destination);
        let what = match error.status() {
            Some(Status::NoSpace) => format!("the file system of {destination} is full"),
            _ => format!("{source} to {destination}"),
        };
        // Its count of bytes is that of one piece, which helps nobody.
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

    /// Cancels requests under way, then makes the contiguous part durable and notes it, if
    /// possible.
    fn end(&mut self, attempt: &mut Attempt<'_>) {
        attempt.give_up_pieces();
        let until = clock::now() + GRACE;
        self.collect(attempt, until);
        if self.copied.contiguous() > self.durable && self.submit_sync(attempt).is_ok() {
            self.collect(attempt, until);
        }
    }

    /// Collects ends until then; errors of cancelled or failed requests are ignored.
    fn collect(&mut self, attempt: &mut Attempt<'_>, until: Instant) {
        while !attempt.pieces.is_empty() || attempt.sync.is_some() {
            let left = until.saturating_duration_since(clock::now());
            let Some(completed) = attempt.queue.wait(Some(left)) else { return };
            let _ = self.take(attempt, completed);
        }
    }
}

impl Attempt<'_> {
    /// Asks for a piece.
    fn submit(&mut self, start: u64, length: u64) -> Result<RequestId, Trouble> {
        let submitted = match &mut self.beside {
            Some(beside) => {
                let request = beside.request(&self.client, start, length)?;
                let submitted = self.queue.submit_detached(request.deadline(DEADLINE).tag(start));
                submitted.map_err(|error| error.fault)
            }
            None => {
                let request = Request::copy(&self.from, start, &self.to, start, length);
                let submitted = self.queue.submit_detached(request.deadline(DEADLINE).tag(start));
                submitted.map_err(|error| error.fault)
            }
        };
        submitted.map_err(submitting)
    }

    /// Bytes that a piece has copied.
    fn copied(&mut self, done: Done<Option<Buffer>>) -> u64 {
        match &mut self.beside {
            Some(beside) => beside.copied(done),
            None => done.bytes,
        }
    }

    /// Bytes landed by the pieces under way.
    fn landed(&self) -> u64 {
        self.pieces.values().map(|piece| self.queue.progress(piece.id)).sum()
    }

    /// Ends all pieces with what they have by now.
    fn give_up_pieces(&mut self) {
        for piece in self.pieces.values_mut() {
            piece.given_up = true;
            self.queue.cancel(piece.id);
        }
    }
}

/// A peer or daemon without an answer may come back; a refusal stays.
fn opening(failure: Failure) -> Trouble {
    match failure.exit() {
        Exit::Unreachable | Exit::Timeout => Trouble::Passing(failure),
        _ => Trouble::Final(failure),
    }
}

fn submitting(fault: SubmitFault) -> Trouble {
    opening(client::submit("copy", fault))
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Final(failure)
    }
}
