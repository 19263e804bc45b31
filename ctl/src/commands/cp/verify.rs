//! Checks the bytes on both disks: BLAKE3 of all of it, or samples of an earlier run's part.
//!
//! The daemons write past the page cache, and read past it what it does not have. So the check
//! covers the device's bytes, not the written ones. A thread for each end reads and hashes; it
//! hashes a piece while the next ones come. Of an end at a peer the peer is asked for the digest of
//! each range, so that the file does not cross the wire again; the other end is read, and hashed by
//! ranges and as a whole.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use blake3::{Hash, Hasher};
use piped_client::call::{CALL_BYTES_MAX, Call, DIGEST_BYTES_MAX, Range};
use piped_client::{Buffer, Client, Handle, Pending, Queue, Request, Waited};

use super::CpArgs;
use super::ends::Ends;
use super::meter::Meter;
use super::moving::DEADLINE;
use super::pace::Pace;
use super::stop::Stop;
use super::waiting::{Patience, Waiting};
use crate::client;
use crate::failure::{Exit, Failure};
use crate::place::Place;
use crate::random;
use crate::units;

/// Most bytes of one read, and reads under way.
const PIECE: u64 = 1 << 20;
const DEPTH: usize = 6;

/// Most offsets at which both hashes are compared, so that a difference can be located; there are
/// more of files beyond 256 GiB, where ranges would be longer than a slow disk of a peer hashes
/// before it is given up (--timeout).
const MARKS_MAX: u64 = 4096;
const MARK_MAX: u64 = 64 << 20;
const _: () = assert!(MARK_MAX <= DIGEST_BYTES_MAX, "a peer hashes that much at once");

/// Number of samples of an earlier run's part, beside its last piece.
const SAMPLES: u64 = 16;
const SAMPLE: u64 = 64 << 10;

const STEP: Duration = Duration::from_millis(50);

/// BLAKE3 of a file, as far as it is known, and of its ranges or its beginnings.
struct Hashes {
    marks: Vec<Hash>,
    whole: Option<Hash>,
}

/// How the hashes of an end are come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Read, and hashed from the beginning to each mark.
    Beginnings,
    /// Read, and hashed from mark to mark.
    Ranges,
    /// The peer hashes from mark to mark.
    Asked,
}

/// The ways for source and destination: one of them at most is asked for.
fn ways(source: &Place, destination: &Place) -> [Way; 2] {
    let is_away = |place: &Place| matches!(place, Place::Remote { peer, .. } if !peer.is_empty());
    match (is_away(source), is_away(destination)) {
        (_, true) => [Way::Ranges, Way::Asked],
        (true, false) => [Way::Asked, Way::Ranges],
        (false, false) => [Way::Beginnings; 2],
    }
}

/// State that the two readers share with the waiting thread.
struct Shared<'a> {
    /// Bytes that each reader has hashed.
    landed: [AtomicU64; 2],
    /// Whether one has failed, or is no longer waited for: neither need go on.
    over: AtomicBool,
    stop: &'a Stop,
}

/// Shows progress to the user, and hears signals.
pub(super) struct Watch<'a> {
    pub(super) meter: &'a mut Meter,
    pub(super) stop: &'a Stop,
    pub(super) waiting: Waiting,
}

/// Hash of both ends, if they are equal.
pub(super) fn compare(
    args: &CpArgs,
    client: &Client,
    ends: &Ends,
    watch: Watch<'_>,
) -> Result<String, Failure> {
    let Watch { meter, stop, mut waiting } = watch;
    meter.begin("verified", 0);
    let (from, to) = ends.open_to_read(client)?;
    if from.len() != ends.length {
        return Err(ends.changed());
    }
    if to.len() != ends.length {
        let has = units::bytes(to.len());
        return Err(Failure::failed(format!(
            "{} has {has} now: somebody else writes it; copy it again with --overwrite when nobody \
             does",
            ends.destination
        ))
        .spoilt());
    }
    let timeout = args.timeout();
    let landed = [const { AtomicU64::new(0) }; 2];
    let shared = Shared { landed, over: AtomicBool::new(false), stop };
    let ways = ways(&ends.source, &ends.destination);
    let queue = || client.queue().map_err(|error| client::queue(&error));
    let (source, destination) = (queue()?, queue()?);
    let mut stalled = None;
    let (source, destination) = thread::scope(|scope| {
        let hash = |number: usize, queue, handle, place| {
            let (shared, length) = (&shared, ends.length);
            let landed = &shared.landed[number];
            scope.spawn(move || {
                let pace = Pace::new(PIECE, timeout);
                let reader = Reader { client, queue, handle, place, pace, landed };
                let hashes = match ways[number] {
                    Way::Asked => reader.ask_all(length, shared),
                    way => reader.hash(length, way, shared),
                };
                // Relaxed: the flag guards nothing but itself.
                shared.over.fetch_or(hashes.is_err(), Ordering::Relaxed);
                hashes
            })
        };
        let readers =
            [hash(0, source, &from, &ends.source), hash(1, destination, &to, &ends.destination)];
        let mut patience = [Patience::new(timeout, crate::clock::now()); 2];
        while readers.iter().any(|reader| !reader.is_finished()) {
            let now = crate::clock::now();
            // Verified are the bytes read of both.
            let mut verified = u64::MAX;
            let mut slowest = None;
            for ((reader, landed), patience) in
                readers.iter().zip(&shared.landed).zip(&mut patience)
            {
                let landed = landed.load(Ordering::Relaxed);
                patience.handle(landed, now);
                verified = verified.min(landed);
                if !reader.is_finished() && patience.is_told(now) {
                    slowest = Some(*patience);
                }
            }
            match slowest {
                Some(patience) if patience.is_over(now) => {
                    let what = format_args!("{} and {}", ends.source, ends.destination);
                    stalled.get_or_insert_with(|| waiting.over(what));
                    shared.over.store(true, Ordering::Relaxed);
                }
                Some(patience) => {
                    meter.wait(verified, &waiting.text(client.session(), &patience, now));
                }
                None => {
                    waiting.forget();
                    meter.set(verified);
                }
            }
            crate::clock::pause(Duration::from_millis(5));
        }
        let [source, destination] = readers;
        (source.join(), destination.join())
    });
    if let Some(stalled) = stalled {
        return Err(stalled);
    }
    let broke = |_| Err(Some(Failure::failed("the verification itself broke: please report it")));
    let (source, destination) =
        match (source.unwrap_or_else(broke), destination.unwrap_or_else(broke)) {
            (Ok(source), Ok(destination)) => (source, destination),
            (Err(Some(why)), _) | (_, Err(Some(why))) => return Err(why),
            // Each reader gives up without a reason only because the other has failed.
            (Err(None), _) | (_, Err(None)) => return Err(Failure::failed("not verified")),
        };
    let whole = source.whole.or(destination.whole);
    match whole.filter(|_| source.marks == destination.marks) {
        Some(whole) => Ok(whole.to_hex().to_string()),
        None => Err(differ(ends, &source, &destination)),
    }
}

fn differ(ends: &Ends, source: &Hashes, destination: &Hashes) -> Failure {
    let pairs = source.marks.iter().zip(&destination.marks);
    let same = pairs.take_while(|(one, other)| one == other).count();
    let step = mark_bytes(ends.length);
    let (begin, end) = (same as u64 * step, ((same as u64 + 1) * step).min(ends.length));
    let hash = |of: &Hashes| of.marks.get(same).map_or_else(String::new, |it| it.to_string());
    let node = |place: &Place| match place {
        Place::Remote { peer, .. } if !peer.is_empty() => peer.clone(),
        _ => "this node".to_owned(),
    };
    Failure::failed(format!(
        "{} is not what {} is: they differ first between bytes {begin} and {end} (BLAKE3 {} and \
         {}). Either the source was written meanwhile, or a disk or memory is faulty: look at the \
         kernel's log (dmesg) of {} and of {}, and copy again with --overwrite",
        ends.destination,
        ends.source,
        hash(destination),
        hash(source),
        node(&ends.destination),
        node(&ends.source),
    ))
    .spoilt()
}

/// Whether an earlier run's part equals the source, by its end and by pieces anywhere in it.
pub(super) fn samples(
    args: &CpArgs,
    client: &Client,
    ends: &Ends,
    length: u64,
) -> Result<(), Failure> {
    if length == 0 {
        return Ok(());
    }
    let (from, to) = ends.open_to_read(client)?;
    let mut queue = client.queue().map_err(|error| client::queue(&error))?;
    let size = SAMPLE.min(length);
    let last = (length - size, size);
    let anywhere = (0..SAMPLES).map(|number| (random::offset(number, size, length), size));
    for (offset, size) in std::iter::once(last).chain(anywhere) {
        let mut read = |handle: &Handle, place: &Place| {
            let buffer = client::allocate(client, size)?;
            let read = Request::read(handle, offset, buffer).deadline(args.timeout());
            let read = queue.run(read).map_err(|error| client::request(place, &error))?;
            Ok::<_, Failure>(read.payload.as_slice()[..read.bytes as usize].to_vec())
        };
        if read(&from, &ends.source)? != read(&to, &ends.destination)? {
            return Err(Failure::new(
                Exit::Refused,
                format!(
                    "{} is not what {} is at byte {offset}: one of them was changed since the copy \
                     was interrupted; begin anew with --overwrite",
                    ends.destination, ends.source
                ),
            ));
        }
    }
    Ok(())
}

/// Reader of one end.
struct Reader<'a> {
    client: &'a Client,
    queue: Queue,
    handle: &'a Handle,
    place: &'a Place,
    pace: Pace,
    landed: &'a AtomicU64,
}

/// A read that is under way.
struct Read {
    pending: Pending<Buffer>,
    begun: Instant,
}

impl Reader<'_> {
    /// Hashes all bytes. An error without a reason means that the other reader failed.
    fn hash(
        mut self,
        length: u64,
        way: Way,
        shared: &Shared<'_>,
    ) -> Result<Hashes, Option<Failure>> {
        let (mut whole, mut range) = (Hasher::new(), Hasher::new());
        let (step, mut marks) = (mark_bytes(length), Vec::new());
        let mut free = Vec::with_capacity(DEPTH);
        for _ in 0..DEPTH.min(length.div_ceil(PIECE) as usize) {
            free.push(client::allocate(self.client, PIECE.min(length))?);
        }
        let mut underway: VecDeque<Read> = VecDeque::with_capacity(DEPTH);
        let (mut asked, mut done) = (0, 0);
        while done < length {
            while asked < length
                && let Some(buffer) = free.pop()
            {
                asked += self.ask(buffer, asked, length, &mut underway)?;
            }
            let Some(oldest) = underway.pop_front() else { break };
            let (buffer, bytes) = self.end_of(oldest, done, &underway, shared)?;
            let piece = &buffer.as_slice()[..bytes as usize];
            whole.update(piece);
            if way == Way::Ranges {
                range.update(piece);
            }
            done += bytes;
            self.landed.store(done, Ordering::Relaxed);
            // Pieces divide the distance of marks, so no mark is skipped.
            if done.is_multiple_of(step) || done == length {
                marks.push(if way == Way::Ranges { &range } else { &whole }.finalize());
                range.reset();
            }
            free.push(buffer);
        }
        Ok(Hashes { marks, whole: Some(whole.finalize()) })
    }

    /// Has the peer hash all ranges. An error without a reason means that the other reader failed.
    fn ask_all(mut self, length: u64, shared: &Shared<'_>) -> Result<Hashes, Option<Failure>> {
        let (step, mut marks) = (mark_bytes(length), Vec::new());
        let mut free = Vec::with_capacity(DEPTH);
        for _ in 0..DEPTH.min(length.div_ceil(step) as usize) {
            free.push(client::allocate(self.client, CALL_BYTES_MAX as u64)?);
        }
        let mut underway: VecDeque<Pending<Buffer>> = VecDeque::with_capacity(DEPTH);
        let (mut asked, mut done) = (0, 0);
        while done < length {
            while asked < length
                && let Some(mut buffer) = free.pop()
            {
                let range = Range { offset: asked, length: step.min(length - asked) };
                let call = Call::Digest { range }.encode(buffer.as_mut_slice());
                let bytes = call.map_err(|error| Failure::failed(error.to_string()))?;
                let request = Request::call(self.handle, buffer, bytes).deadline(DEADLINE);
                let pending = self.queue.submit(request);
                let pending = pending.map_err(|error| client::submit(self.place, error.fault))?;
                underway.push_back(pending);
                asked += range.length;
            }
            let Some(oldest) = underway.pop_front() else { break };
            let (buffer, bytes) = self.answer_of(oldest, shared)?;
            let answer = buffer.as_slice().get(..bytes as usize);
            let digest = answer.and_then(|it| it.try_into().ok()).map(Hash::from_bytes);
            let broken = || Failure::failed(format!("{}: the digest cannot be read", self.place));
            marks.push(digest.ok_or_else(broken)?);
            done += step.min(length - done);
            self.landed.store(done, Ordering::Relaxed);
            free.push(buffer);
        }
        Ok(Hashes { marks, whole: None })
    }

    /// Buffer and length of a call's answer.
    fn answer_of(
        &mut self,
        mut pending: Pending<Buffer>,
        shared: &Shared<'_>,
    ) -> Result<(Buffer, u64), Option<Failure>> {
        loop {
            shared.stop.check()?;
            if shared.over.load(Ordering::Relaxed) {
                return Err(None);
            }
            match pending.wait_for(&mut self.queue, STEP) {
                Waited::Underway(again) => pending = again,
                Waited::Ended(Err(error)) => return Err(Some(client::request(self.place, &error))),
                Waited::Ended(Ok(ended)) => return Ok((ended.payload, ended.bytes)),
            }
        }
    }

    /// Asks for the next piece; returns its length.
    fn ask(
        &mut self,
        mut buffer: Buffer,
        offset: u64,
        length: u64,
        underway: &mut VecDeque<Read>,
    ) -> Result<u64, Failure> {
        let bytes = self.pace.end(offset, length) - offset;
        buffer.set_len(bytes as usize).map_err(|error| Failure::failed(error.to_string()))?;
        let read = Request::read(self.handle, offset, buffer).deadline(DEADLINE);
        let pending = self.queue.submit(read);
        let pending = pending.map_err(|error| client::submit(self.place, error.fault))?;
        underway.push_back(Read { pending, begun: crate::clock::now() });
        Ok(bytes)
    }

    /// Bytes of the oldest read; `done` are those before it.
    fn end_of(
        &mut self,
        read: Read,
        done: u64,
        behind: &VecDeque<Read>,
        shared: &Shared<'_>,
    ) -> Result<(Buffer, u64), Option<Failure>> {
        let Read { mut pending, begun } = read;
        loop {
            shared.stop.check()?;
            if shared.over.load(Ordering::Relaxed) {
                return Err(None);
            }
            let all = std::iter::once(&pending).chain(behind.iter().map(|read| &read.pending));
            let landed: u64 = all.map(|pending| self.queue.progress(pending)).sum();
            self.landed.store(done + landed, Ordering::Relaxed);
            match pending.wait_for(&mut self.queue, STEP) {
                Waited::Underway(again) => pending = again,
                Waited::Ended(Err(error)) => return Err(Some(client::request(self.place, &error))),
                Waited::Ended(Ok(ended)) if ended.bytes == ended.payload.len() as u64 => {
                    self.pace.handle_end(ended.bytes, begun.elapsed());
                    return Ok((ended.payload, ended.bytes));
                }
                Waited::Ended(Ok(_)) => {
                    let place = self.place;
                    let why = format!("{place} became shorter while it was verified");
                    return Err(Some(Failure::failed(why)));
                }
            }
        }
    }
}

/// Distance between two marks: a multiple of one read.
fn mark_bytes(length: u64) -> u64 {
    length.div_ceil(MARKS_MAX).next_multiple_of(PIECE).clamp(PIECE, MARK_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_at_ends_of_pieces_and_not_too_many() {
        for length in [1, PIECE, PIECE + 1, MARKS_MAX * PIECE + 1, MARKS_MAX * MARK_MAX, 1 << 50] {
            let step = mark_bytes(length);
            // Six at once are 384 MiB: a disk of 6.4 MB/s has hashed one within 60 s.
            assert!(step.is_multiple_of(PIECE) && step <= 64 << 20, "{length}");
            let is_few = length.div_ceil(step) <= MARKS_MAX;
            assert!(is_few || step == MARK_MAX, "{length}");
        }
    }

    #[test]
    fn one_end_is_read_and_a_peer_hashes_the_other() {
        let [here, own, away] = ["/f", ":own/f", "b:data/f"].map(|it| it.parse().expect(it));
        assert_eq!(ways(&here, &own), [Way::Beginnings; 2]);
        assert_eq!(ways(&here, &away), [Way::Ranges, Way::Asked]);
        assert_eq!(ways(&away, &own), [Way::Asked, Way::Ranges]);
        assert_eq!(ways(&away, &away), [Way::Ranges, Way::Asked]);
    }
}
