//! Two shards on two CPUs against one: clients that read this node's disk, and clients that send
//! each other messages, across the shards where there are two.
//!
//! Clients have the same two CPUs. So what a second shard gains is what the first one left of its
//! CPU, and a machine with two CPUs has little of that.

use std::thread;
use std::time::Duration;

use piped_client::{Buffer, Client, ClientBuilder, Handle, OpenOptions, Queue, Request, Tag};
use piped_core::modes::Profile;

use super::{Bench, Entry, Group, KIB, MOMENT};
use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nodes::{Node, profile_name, program};
use crate::report::{Row, Unit};
use crate::stats::Bar;
use crate::{clock, machine};

const PROFILE: Profile = Profile::Throughput;

/// Least gain of the second shard.
const GAIN: f64 = 1.6;

const CLIENTS: usize = 4;
const DEPTH: usize = 32;
const BLOCK: usize = 4 * KIB;
const ARENA: u64 = 8 << 20;
/// What tells an end's sends from its receives.
const SEND: u64 = 1;
const RECEIVE: u64 = 2;
/// No message takes this long; it is lost.
const LOST_AFTER: Duration = Duration::from_secs(15);
/// Time of an arm: threads start in it.
const TIME: Duration = Duration::from_millis(4 * MOMENT.as_millis() as u64);

/// Rows of two shards.
pub(crate) static SHARDS: Group =
    Group { name: "shards", rows_stand_alone: true, entries: &ENTRIES };

const ENTRIES: [Entry; 2] = [("shards-read-4k", reads), ("shards-messages-4k", messages)];

/// A node with one shard, and one with two; both rest while they are not asked.
struct Both {
    one: Node,
    two: Node,
    _directory: tempfile::TempDir,
}

impl Both {
    fn start(bench: &Bench) -> Result<Self, Failure> {
        let piped = program("piped")?;
        let directory = tempfile::Builder::new().prefix("piped-bench-").tempdir()?;
        let start = |name: &str, cpus: &[usize]| {
            let place = (directory.path().join(name), None);
            let rest = format!("[node]\nname = \"bench-{name}\"\n");
            Node::start_on(&piped, place, PROFILE, cpus, &rest)
        };
        let (first, second) = (bench.cpus.first, bench.cpus.second);
        let (one, two) = (start("one", &[first])?, start("two", &[first, second])?);
        Ok(Self { one, two, _directory: directory })
    }
}

/// CPU of a client by its number: in pairs, as sessions go to the two shards by turns.
fn cpu_of(bench: &Bench, client: usize) -> usize {
    if client % 4 < 2 { bench.cpus.second } else { bench.cpus.first }
}

fn reads(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let file = bench.file()?;
    let both = Both::start(bench)?;
    let open = |node: &Node| -> Result<Vec<(Asker, Handle)>, Failure> {
        let open = |client| {
            let place = Place::Usual(cpu_of(bench, client));
            let asker = Asker::connect(node, place, ARENA)?;
            let handle = asker.client.open_file(&file, OpenOptions::read()).doing("open")?;
            Ok((asker, handle))
        };
        (0..CLIENTS).map(open).collect()
    };
    let (mut one, mut two) = (open(&both.one)?, open(&both.two)?);
    let mut arms = [
        Arm::variant("one shard".to_owned(), || read_all(&mut one)),
        Arm::variant("two shards".to_owned(), || read_all(&mut two)),
    ];
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    judged(name, &rounds, "reads a second of this node's disk, 4 clients with 32 at once")
}

/// Reads of all clients together in a second.
fn read_all(clients: &mut [(Asker, Handle)]) -> Result<f64, Failure> {
    thread::scope(|scope| {
        let read = |(asker, handle): &mut (Asker, Handle)| {
            let ask = Ask { handle, block: BLOCK, depth: DEPTH };
            Ok::<_, Failure>(asker.reads(ask, TIME)?.rate())
        };
        let threads: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || read(client))).collect();
        let rate = |thread: thread::ScopedJoinHandle<'_, Result<f64, Failure>>| {
            thread.join().map_err(|_| Failure::new("a client broke off"))?
        };
        threads.into_iter().map(rate).sum()
    })
}

/// One end of a pair that sends each other messages.
struct End {
    client: Client,
    queue: Queue,
    mail: Handle,
    to: Option<Handle>,
    cpu: usize,
}

fn messages(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let both = Both::start(bench)?;
    let open = |node: &Node| -> Result<Vec<End>, Failure> {
        // The first two sessions are of two shards where there are two.
        let cpus = [bench.cpus.second, bench.cpus.first];
        let end = |(number, cpu): (usize, usize)| {
            let builder = ClientBuilder::new().arena_bytes(ARENA);
            let client = builder.connect(&node.client_socket).doing("connect")?;
            let queue = client.queue().doing("queue")?;
            let mail = client.offer_channel(&format!("mail-{number}")).doing("offer")?;
            Ok(End { client, queue, mail, to: None, cpu })
        };
        let ends = cpus.into_iter().enumerate().map(end);
        let mut ends = ends.collect::<Result<Vec<_>, Failure>>()?;
        for (number, end) in ends.iter_mut().enumerate() {
            let other = format!("mail-{}", 1 - number);
            end.to = Some(end.client.open_channel(None, &other).doing("open")?);
        }
        Ok(ends)
    };
    let (mut one, mut two) = (open(&both.one)?, open(&both.two)?);
    let mut arms = [
        Arm::variant("one shard".to_owned(), || exchange(&mut one)),
        Arm::variant("two shards".to_owned(), || exchange(&mut two)),
    ];
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    judged(name, &rounds, "messages a second between two clients, 32 under way each way")
}

/// Messages in a second that two clients send each other, each a thread that does both. All come,
/// once and in order.
fn exchange(ends: &mut [End]) -> Result<f64, Failure> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            ends.iter_mut().map(|end| scope.spawn(move || end.exchange())).collect();
        let rate = |thread: thread::ScopedJoinHandle<'_, Result<f64, Failure>>| {
            thread.join().map_err(|_| Failure::new("a client broke off"))?
        };
        threads.into_iter().map(rate).sum()
    })
}

impl End {
    /// A fixed number, so that both ends know how many come.
    const MESSAGES: u64 = 20_000;

    fn exchange(&mut self) -> Result<f64, Failure> {
        machine::pin(self.cpu)?;
        let begun = clock::now();
        for number in 0..DEPTH as u64 {
            let [into, from] = [(); 2].map(|()| self.client.allocate(BLOCK));
            self.receive(into.doing("allocate")?)?;
            self.send(number, from.doing("allocate")?)?;
        }
        let (mut sent, mut asked, mut received) = (DEPTH as u64, DEPTH as u64, 0);
        let mut left = 2 * Self::MESSAGES;
        while left > 0 {
            let first = self.queue.wait(Some(LOST_AFTER));
            let mut next = Some(first.ok_or_else(|| Failure::new("a message is lost"))?);
            while let Some(completed) = next {
                left -= 1;
                let is_send = completed.tag == SEND;
                let done = completed.result.doing("message")?;
                let buffer = done.payload.ok_or_else(|| Failure::new("a buffer is lost"))?;
                if is_send {
                    if sent < Self::MESSAGES {
                        self.send(sent, buffer)?;
                        sent += 1;
                    }
                } else {
                    if done.value != received {
                        let text = format!("message {} came as number {received}", done.value);
                        return Err(Failure::new(text));
                    }
                    received += 1;
                    if asked < Self::MESSAGES {
                        self.receive(buffer)?;
                        asked += 1;
                    }
                }
                next = self.queue.poll();
            }
        }
        Ok(received as f64 / begun.elapsed().as_secs_f64())
    }

    fn send(&mut self, number: u64, buffer: Buffer) -> Result<(), Failure> {
        let to = self.to.as_ref().ok_or_else(|| Failure::new("the other end is not open"))?;
        let send = Request::send(to, number, buffer).tag(SEND);
        self.queue.submit_detached(send).map(drop).map_err(|error| error.fault).doing("send")
    }

    fn receive(&mut self, buffer: Buffer) -> Result<(), Failure> {
        let receive = Request::receive(&self.mail, Tag::Any, buffer).tag(RECEIVE);
        self.queue.submit_detached(receive).map(drop).map_err(|error| error.fault).doing("receive")
    }
}

fn judged(name: &'static str, rounds: &crate::contest::Rounds, what: &str) -> Result<Row, Failure> {
    let found = rounds.all_ratio(1, 0)?;
    let [one, two] = [0, 1].map(|arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median));
    let note = format!("{what}: {one:.0} by one shard, {two:.0} by two");
    let bar = Bar::AtLeast(GAIN);
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
        .with_arms(rounds, Unit::PerSecond))
}
