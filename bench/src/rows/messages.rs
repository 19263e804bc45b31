//! Messages between clients of two nodes: eager ones against rendezvous, and against gets of as
//! many bytes.

use std::cell::RefCell;
use std::time::Duration;

use piped_client::{Buffer, Client, ClientBuilder, Handle, Queue, Request, WaitPolicy};
use piped_core::modes::Profile;

use crate::contest::Arm;
use crate::failure::{Doing as _, Failure};
use crate::load::Ask;
use crate::nodes::{PEER, Pair, profile_name};
use crate::raw::Timing;
use crate::report::{Row, Unit};
use crate::rows::region::Region;
use crate::rows::{Bench, KIB, MIB, MOMENT};
use crate::stats::Bar;
use crate::{clock, machine};

/// Largest loss of the automatic threshold against the better of the two ways.
const THRESHOLD_BAR: f64 = 1.05;

/// Largest ratio of a message to a get of as many bytes, which goes to the peer and back.
const GET_BAR: f64 = 1.3;

/// Time before a late receive, so that the message has already come.
const LATE: Duration = Duration::from_millis(1);

/// Values of `planner.eager` that are compared.
const WAYS: [&str; 3] = ["256KiB", "0B", "auto"];

/// A client of each node, with one thread for both, so that both are timed by the same clock.
pub(crate) struct Post {
    sender: (Queue, Handle),
    receiver: (Queue, Handle),
    cpu: usize,
    /// Buffers of the sender and the receiver.
    buffers: Option<(Buffer, Buffer)>,
}

impl Post {
    pub(crate) fn open(pair: &Pair, length: usize, cpu: usize) -> Result<Self, Failure> {
        let connect = |socket| -> Result<(Client, Queue), Failure> {
            let builder = ClientBuilder::new().arena_bytes(8 << 20);
            let wait = WaitPolicy::Custom { spin: Duration::ZERO };
            let client = builder.wait(wait).connect(socket).doing("connect")?;
            let queue = client.queue().doing("queue")?;
            Ok((client, queue))
        };
        let (receiver, inbox) = connect(&pair.b.client_socket)?;
        let (sender, outbox) = connect(&pair.a.client_socket)?;
        let mail = receiver.offer_channel("bench").doing("offer")?;
        let to = sender.open_channel(Some(PEER), "bench").doing("open")?;
        let buffer = |client: &Client| client.allocate(length).doing("allocate");
        let buffers = Some((buffer(&sender)?, buffer(&receiver)?));
        Ok(Self { sender: (outbox, to), receiver: (inbox, mail), cpu, buffers })
    }

    /// Time from the send to its end at the receiver, which has asked for it before, in seconds.
    pub(crate) fn expected(&mut self) -> Result<f64, Failure> {
        let (out, into) = self.buffers.take().expect("both are here between messages");
        let receive = Request::receive(&self.receiver.1, 0, into);
        let receive = self.receiver.0.submit(receive).doing("receive")?;
        self.receiver.0.flush();
        let begun = clock::now();
        let send = self.sender.0.submit(Request::send(&self.sender.1, 0, out)).doing("send")?;
        self.sender.0.flush();
        let received = receive.wait(&mut self.receiver.0).doing("receive")?;
        let seconds = begun.elapsed().as_secs_f64();
        let sent = send.wait(&mut self.sender.0).doing("send")?;
        self.buffers = Some((sent.payload, received.payload));
        Ok(seconds)
    }

    /// Time from the receive to its end, for a message that was sent a while before.
    fn late(&mut self) -> Result<f64, Failure> {
        let (out, into) = self.buffers.take().expect("both are here between messages");
        let send = self.sender.0.submit(Request::send(&self.sender.1, 0, out)).doing("send")?;
        self.sender.0.flush();
        clock::pause(LATE);
        let begun = clock::now();
        let receive = Request::receive(&self.receiver.1, 0, into);
        let received = self.receiver.0.run(receive).doing("receive")?;
        let seconds = begun.elapsed().as_secs_f64();
        let sent = send.wait(&mut self.sender.0).doing("send")?;
        self.buffers = Some((sent.payload, received.payload));
        Ok(seconds)
    }

    /// Median of a measurement over a moment, in seconds.
    fn for_a_moment(&mut self, one: fn(&mut Self) -> Result<f64, Failure>) -> Result<f64, Failure> {
        Ok(self.timing(one, MOMENT)?.p50())
    }

    /// Times of messages, one after the other, for a while.
    pub(crate) fn timing(
        &mut self,
        one: fn(&mut Self) -> Result<f64, Failure>,
        duration: Duration,
    ) -> Result<Timing, Failure> {
        machine::pin(self.cpu)?;
        let begun = clock::now();
        let mut latencies_ns = Vec::new();
        while begun.elapsed() < duration {
            latencies_ns.push((one(self)? * 1e9) as u64);
        }
        Ok(Timing::new(latencies_ns, begun.elapsed()))
    }
}

/// A message of 64 bytes against a get of 64.
pub(super) fn against_get(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let cpu = bench.cpus.second;
    let profile = Profile::Balanced;
    bench.with_pair(profile, |bench, pair| {
        let mut post = Post::open(pair, 64, cpu)?;
        let mut region = Region::open(pair)?;
        let mut arms = [
            Arm::variant("get".to_owned(), || {
                let ask = Ask { handle: &region.handle, block: 64, depth: 1 };
                Ok(region.asker.reads(ask, MOMENT)?.p50())
            }),
            Arm::variant("message".to_owned(), || post.for_a_moment(Post::expected)),
        ];
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all_ratio(1, 0)?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
        let note = format!(
            "p50, one at a time: {:.1} us from send to receive, {:.1} us there and back for a get",
            told(1),
            told(0)
        );
        let bar = Bar::AtMost(GET_BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// The automatic threshold against always eager and never, where half of the messages are asked for
/// before they are sent.
pub(super) fn threshold(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let length = match name.strip_prefix("eager-").unwrap_or_default() {
        "256" => 256,
        "1k" => KIB,
        "4k" => 4 * KIB,
        "16k" => 16 * KIB,
        "64k" => 64 * KIB,
        "128k" => 128 * KIB,
        "256k" => 256 * KIB,
        _ => MIB,
    };
    let cpu = bench.cpus.second;
    let profile = Profile::Balanced;
    bench.with_pair(profile, |bench, pair| {
        let post = RefCell::new(Post::open(pair, length, cpu)?);
        let arm = |way: &'static str| {
            let post = &post;
            Arm::variant(way.to_owned(), move || {
                pair.a.set_planner("eager", way)?;
                let post = &mut *post.borrow_mut();
                let (expected, late) =
                    (post.for_a_moment(Post::expected)?, post.for_a_moment(Post::late)?);
                Ok((expected + late) / 2.0)
            })
        };
        let mut arms = WAYS.map(arm);
        let rounds = bench.rounds(&mut arms);
        drop(arms);
        pair.a.set_planner("eager", "auto")?;
        let rounds = rounds?;
        let told = |arm: usize| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
        let best = if told(0) <= told(1) { 0 } else { 1 };
        let found = rounds.all_ratio(2, best)?;
        let note = format!(
            "mean of asked for first and sent first: eager {:.1} us, announced {:.1} us, auto \
             {:.1} us",
            told(0),
            told(1),
            told(2)
        );
        let bar = Bar::AtMost(THRESHOLD_BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}
