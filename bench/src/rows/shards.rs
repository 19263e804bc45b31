//! Two shards on two CPUs against one: clients that read this node's disk or what its page cache
//! has, and clients that send each other messages, across the shards where there are two.
//!
//! Clients have the same two CPUs. So what a second shard gains in a second is what the first one
//! left of its CPU, and a machine with two CPUs has little of that. Rows of CPU time tell what two
//! shards would do with CPUs of their own. The bar of a disk is for one that gives two CPUs more
//! than one, so what raw io_uring gains by a second CPU is measured in the same rounds.

use std::thread;
use std::time::Duration;

use piped_client::{Buffer, Client, ClientBuilder, Handle, OpenOptions, Queue, Request, Tag};
use piped_core::modes::Profile;

use super::{Bench, Entry, Group, KIB, MOMENT};
use crate::contest::{Arm, Rounds};
use crate::failure::{Doing as _, Failure, joined};
use crate::load::{Ask, Asker, Place};
use crate::nodes::{Node, profile_name, program};
use crate::raw::disk::{Disk, make_file};
use crate::raw::{Timing, Wait, process_cpu_time};
use crate::report::{Row, Unit};
use crate::stats::{Bar, Interval, Random, Verdict};
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

const ENTRIES: [Entry; 5] = [
    ("shards-read-4k", reads),
    ("shards-cached-4k", reads),
    ("shards-cached-4k-cpu", reads),
    ("shards-messages-4k", messages),
    ("shards-messages-4k-cpu", messages),
];

/// Length of a file that the page cache keeps.
const CACHED_BYTES: u64 = 64 << 20;

/// Requests that ended, and how many did in a second.
#[derive(Debug, Clone, Copy, Default)]
struct Ended {
    count: f64,
    rate: f64,
}

/// What a row tells of a node's shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// Requests in a second.
    Rate,
    /// Requests for which all shards together have CPU time in a second, if each has a CPU.
    CpuTime,
}

impl Figure {
    fn of(name: &str) -> Self {
        if name.ends_with("-cpu") { Self::CpuTime } else { Self::Rate }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Rate => "a second",
            Self::CpuTime => "that the CPU time of a second for each shard is enough for",
        }
    }

    /// The figure of a node with so many shards, which serves what ends.
    fn measure(
        self,
        node: &Node,
        shards: f64,
        load: impl FnOnce() -> Result<Ended, Failure>,
    ) -> Result<f64, Failure> {
        if self == Self::Rate {
            return Ok(load()?.rate);
        }
        let gone = || Failure::new("a daemon is gone");
        let time = || process_cpu_time(node.pid()).ok_or_else(gone);
        let before = time()?;
        let ended = load()?;
        Ok(shards * ended.count / (time()? - before).as_secs_f64())
    }
}

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

    /// The two nodes, each with its load.
    fn arms<'a>(
        &'a self,
        figure: Figure,
        mut one: impl FnMut() -> Result<Ended, Failure> + 'a,
        mut two: impl FnMut() -> Result<Ended, Failure> + 'a,
    ) -> Vec<Arm<'a>> {
        vec![
            Arm::variant("one shard".to_owned(), move || figure.measure(&self.one, 1.0, &mut one)),
            Arm::variant("two shards".to_owned(), move || figure.measure(&self.two, 2.0, &mut two)),
        ]
    }
}

impl From<&Timing> for Ended {
    fn from(timing: &Timing) -> Self {
        Self { count: timing.count() as f64, rate: timing.rate() }
    }
}

/// CPU of a client by its number: in pairs, as sessions go to the two shards by turns.
fn cpu_of(bench: &Bench, client: usize) -> usize {
    if client % 4 < 2 { bench.cpus.second } else { bench.cpus.first }
}

fn reads(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (file, disk, from) = if name.contains("cached") {
        let file = bench.data()?.join("cached");
        make_file(&file, CACHED_BYTES).doing(file.display())?;
        let disk = Disk::open_cached(&file).doing(file.display())?;
        (file, disk, "the page cache")
    } else {
        (bench.file()?, bench.disk()?, "this node's disk")
    };
    let (both, figure) = (Both::start(bench)?, Figure::of(name));
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
    let cpus = [bench.cpus.first, bench.cpus.second];
    let mut arms = both.arms(figure, || read_all(&mut one), || read_all(&mut two));
    if figure == Figure::Rate {
        let raw = |cpus: &[usize]| Ok(read_raw(&disk, cpus)?.rate);
        arms.push(Arm::variant("raw, one CPU".to_owned(), move || raw(&cpus[..1])));
        arms.push(Arm::variant("raw, two CPUs".to_owned(), move || raw(&cpus)));
    }
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    let what = format!("reads of {from} {}, 4 clients with 32 at once", figure.name());
    let mut row = judged(name, &rounds, &what)?;
    if figure == Figure::Rate {
        let allowed = rounds.all_ratio(3, 2)?;
        let [one, two] = medians(&rounds, [2, 3]);
        let Interval { median, low, high } = allowed;
        let raw = format!("{one:.0} by one CPU, {two:.0} by two: {median:.2} x");
        row.note += &format!("; raw io_uring {raw} ({low:.2} x .. {high:.2} x)");
        row.verdict = where_allowed(row.verdict, allowed);
    }
    Ok(row)
}

/// The verdict on a gain by a second CPU, beside what the device gives to a second one: the bar is
/// for where that is enough.
fn where_allowed(verdict: Verdict, allowed: Interval) -> Verdict {
    if verdict == Verdict::Fails && allowed.high < GAIN { Verdict::Undecided } else { verdict }
}

/// Reads of all clients together.
fn read_all(clients: &mut [(Asker, Handle)]) -> Result<Ended, Failure> {
    all_of(clients.iter_mut().map(|(asker, handle)| {
        let ask = Ask { handle, block: BLOCK, depth: DEPTH };
        move || Ok(Ended::from(&asker.reads(ask, TIME)?))
    }))
}

/// Reads by raw io_uring: as many at once as all clients have together, by a thread on each of
/// these CPUs.
fn read_raw(disk: &Disk, cpus: &[usize]) -> Result<Ended, Failure> {
    let depth = CLIENTS * DEPTH / cpus.len();
    let read = |cpu: usize| {
        machine::pin(cpu)?;
        let mut random = Random::new(cpu as u64);
        Ok(Ended::from(&disk.read(BLOCK, depth, Wait::Block, TIME, &mut random)?))
    };
    all_of(cpus.iter().map(|cpu| move || read(*cpu)))
}

/// What threads at the same time end together.
fn all_of(
    loads: impl Iterator<Item = impl FnOnce() -> Result<Ended, Failure> + Send>,
) -> Result<Ended, Failure> {
    thread::scope(|scope| {
        let threads: Vec<_> = loads.map(|load| scope.spawn(load)).collect();
        threads.into_iter().try_fold(Ended::default(), |all, thread| {
            let ended = joined(thread.join(), "a thread")?;
            Ok(Ended { count: all.count + ended.count, rate: all.rate + ended.rate })
        })
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
    let figure = Figure::of(name);
    let mut arms = both.arms(figure, || exchange(&mut one), || exchange(&mut two));
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    let what = format!("messages {} between two clients, 32 under way each way", figure.name());
    judged(name, &rounds, &what)
}

/// Messages that two clients send each other, each a thread that does both. All come, once and in
/// order.
fn exchange(ends: &mut [End]) -> Result<Ended, Failure> {
    all_of(ends.iter_mut().map(|end| || end.exchange()))
}

impl End {
    /// A fixed number, so that both ends know how many come.
    const MESSAGES: u64 = 20_000;

    fn exchange(&mut self) -> Result<Ended, Failure> {
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
        let count = received as f64;
        Ok(Ended { count, rate: count / begun.elapsed().as_secs_f64() })
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

fn medians(rounds: &Rounds, arms: [usize; 2]) -> [f64; 2] {
    arms.map(|arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median))
}

fn judged(name: &'static str, rounds: &Rounds, what: &str) -> Result<Row, Failure> {
    let found = rounds.all_ratio(1, 0)?;
    let [one, two] = medians(rounds, [0, 1]);
    let note = format!("{what}: {one:.0} by one shard, {two:.0} by two");
    let bar = Bar::AtLeast(GAIN);
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
        .with_arms(rounds, Unit::PerSecond))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_that_no_device_gives_says_nothing_and_a_gain_that_one_gives_is_judged() {
        let allowed = |low, high| Interval { low, median: f64::midpoint(low, high), high };
        for (verdict, allowed, judged) in [
            (Verdict::Fails, allowed(0.9, 1.1), Verdict::Undecided),
            (Verdict::Fails, allowed(1.5, 1.7), Verdict::Fails),
            (Verdict::Fails, allowed(f64::NAN, f64::NAN), Verdict::Fails),
            (Verdict::Holds, allowed(0.9, 1.1), Verdict::Holds),
        ] {
            assert_eq!(where_allowed(verdict, allowed), judged, "{verdict:?}, {allowed:?}");
        }
    }
}
