//! Messages there and back, against other programs that send messages.
//!
//! A client of each node: one sends, the other answers with as many bytes as soon as it has the
//! message. Both sleep, each beside its node's shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use piped_client::{Buffer, Client, ClientBuilder, Handle, Queue, Request, WaitPolicy};
use piped_core::modes::Profile;

use crate::clock;
use crate::contest::Arm;
use crate::failure::{Doing as _, Failure, joined};
use crate::machine::{self, Cpus};
use crate::nodes::{CALLER, Node, PEER, Pair, Sites, free_address, profile_name};
use crate::outside::Sides;
use crate::raw::net::{Placement, Shape, Way};
use crate::raw::{Timing, Wait};
use crate::report::{Row, Unit};
use crate::rows::peers::ucx::PACKAGE;
use crate::rows::peers::zeromq::ZeroMq;
use crate::rows::peers::{UCX_ROUNDS, in_words, missing};
use crate::rows::{Bench, KIB, MIB, MOMENT};
use crate::stats::Bar;
use crate::ucx::{TOOL, Test, Ucx};

/// Profile of the daemons: their shards spin.
const PROFILE: Profile = Profile::Latency;

/// Channels there and back.
const THERE: &str = "bench-there";
const BACK: &str = "bench-back";

/// Time between two looks whether the answering client is still wanted.
const LOOK: Duration = Duration::from_millis(20);

/// A message is lost that takes longer.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// A client, its queue, and the channels by which it receives and sends.
struct End {
    queue: Queue,
    inbox: Handle,
    outbox: Handle,
    /// Buffers to send and to receive, while no message is under way.
    buffers: Option<(Buffer, Buffer)>,
    cpu: usize,
    client: Client,
}

impl End {
    /// Connects and offers its channel; the other's has to be offered before it can be opened.
    fn offer(node: &Node, name: &str, cpu: usize) -> Result<(Client, Handle, usize), Failure> {
        let wait = WaitPolicy::Custom { spin: Duration::ZERO };
        let builder = ClientBuilder::new().arena_bytes(8 << 20).wait(wait);
        let client = builder.connect(&node.client_socket).doing("connect")?;
        let inbox = client.offer_channel(name).doing("offer")?;
        Ok((client, inbox, cpu))
    }

    fn open(
        (client, inbox, cpu): (Client, Handle, usize),
        (peer, name): (&str, &str),
        length: usize,
    ) -> Result<Self, Failure> {
        let outbox = client.open_channel(Some(peer), name).doing("open")?;
        let queue = client.queue().doing("queue")?;
        let buffer = || client.allocate(length).doing("allocate");
        let buffers = Some((buffer()?, buffer()?));
        Ok(Self { queue, inbox, outbox, buffers, cpu, client })
    }

    /// Sends a message and waits for the answer.
    fn there_and_back(&mut self) -> Result<Duration, Failure> {
        let (out, into) = self.buffers.take().expect("both are here between messages");
        let begun = clock::now();
        let receive = Request::receive(&self.inbox, 0, into);
        let receive = self.queue.submit(receive).doing("receive")?;
        let send = self.queue.submit(Request::send(&self.outbox, 0, out)).doing("send")?;
        self.queue.flush();
        let received = receive.wait(&mut self.queue).doing("receive")?;
        let took = begun.elapsed();
        let sent = send.wait(&mut self.queue).doing("send")?;
        self.buffers = Some((sent.payload, received.payload));
        Ok(took)
    }

    /// Answers messages until nobody wants that any more.
    fn answer(mut self, stop: &AtomicBool) -> Result<(), Failure> {
        machine::pin(self.cpu)?;
        let (mut out, into) = self.buffers.take().expect("both are here at first");
        self.receive(into)?;
        while !stop.load(Ordering::Relaxed) {
            let Some(received) = self.queue.wait(Some(LOOK)) else { continue };
            let into = received.result.doing("receive")?.payload.expect("it had a buffer");
            let send = self.queue.submit(Request::send(&self.outbox, 0, out)).doing("send")?;
            self.receive(into)?;
            out = send.wait(&mut self.queue).doing("send")?.payload;
        }
        // The buffer of the last receive is the client's, which ends here.
        drop(self.client);
        Ok(())
    }

    fn receive(&mut self, into: Buffer) -> Result<(), Failure> {
        let receive = Request::receive(&self.inbox, 0, into);
        self.queue.submit_detached(receive).map_err(|error| error.fault).doing("receive")?;
        self.queue.flush();
        Ok(())
    }
}

/// Two daemons that know each other, a client that asks and one that answers.
struct Post {
    asks: End,
    stop: Arc<AtomicBool>,
    answers: Option<JoinHandle<Result<(), Failure>>>,
    /// Last, so that it is dropped after the clients.
    _pair: Pair,
}

impl Post {
    fn start(bench: &mut Bench, length: usize) -> Result<Self, Failure> {
        let data = bench.data()?;
        // No other daemons may spin on these CPUs.
        bench.pair = None;
        let sites =
            Sites { listen: free_address()?, call_back: Some(free_address()?), ..Sites::default() };
        let Cpus { first, second } = bench.cpus;
        let pair = Pair::start_at(&sites, PROFILE, bench.cpus, &data)?;
        let asks = End::offer(&pair.a, BACK, first)?;
        let answers = End::offer(&pair.b, THERE, second)?;
        let asks = End::open(asks, (PEER, THERE), length)?;
        let answers = End::open(answers, (CALLER, BACK), length)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let answers = thread::spawn(move || answers.answer(&stopped));
        Ok(Self { asks, stop, answers: Some(answers), _pair: pair })
    }

    /// Times of messages there and back, one after the other, for a moment.
    fn timing(&mut self) -> Result<Timing, Failure> {
        machine::pin(self.asks.cpu)?;
        let begun = clock::now();
        let mut latencies_ns = Vec::new();
        while begun.elapsed() < MOMENT {
            let took = self.asks.there_and_back()?;
            if took > LOST_AFTER {
                return Err(Failure::new("a message took seconds"));
            }
            latencies_ns.push(took.as_nanos() as u64);
        }
        Ok(Timing::new(latencies_ns, begun.elapsed()))
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.answers.take()
            && let Err(failure) = joined(thread.join(), "the answering client")
        {
            eprintln!("bench: {failure}");
        }
    }
}

/// Against tagged messages of UCX, which spins.
pub(super) fn ucx(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let bytes = if name.ends_with("64") { 64 } else { 4 * KIB };
    let bar = Bar::AtMost(2.0);
    let Some(ucx) = Ucx::find() else {
        return Ok(missing(name, PROFILE, bar, TOOL, PACKAGE));
    };
    let Cpus { first, second } = bench.cpus;
    let sides = Sides { client_cpu: first, server_cpu: second, spin: true };
    let other = Arm::variant(format!("UCX {} spinning", ucx.version()), move || {
        ucx.time(Test::Message, bytes, sides, 4000)
    });
    compare(bench, name, (bytes, bar), UCX_ROUNDS, other)
}

/// Against plain sockets, a process on each CPU, where both sleep in the kernel.
pub(super) fn sockets(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let bytes = if name.ends_with("64") { 64 } else { 4 * KIB };
    let bar = Bar::AtMost(0.6);
    bench.need_server()?;
    let server = bench.server.take().expect("needed above");
    let Cpus { first, second } = bench.cpus;
    let placement = Placement { client_cpu: first, server_cpu: second, wait: Wait::Block };
    let shape = Shape { request: bytes, response: bytes, chunk: bytes, depth: 1 };
    let other = Arm::variant("sockets asleep".to_owned(), || {
        Ok(server.exchange(shape, Way::Sockets, placement, MOMENT)?.p50())
    });
    let rounds = bench.options.rounds;
    let row = compare(bench, name, (bytes, bar), rounds, other);
    bench.server = Some(server);
    row
}

/// Against a request and its reply of ZeroMQ.
pub(super) fn zeromq(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let bytes = MIB;
    let bar = Bar::AtMost(0.9);
    let mut zeromq = match ZeroMq::start(bytes, bench.cpus) {
        Ok(zeromq) => zeromq,
        Err(failure) => {
            let tool = format!("libzmq or cc, {failure}");
            return Ok(missing(name, PROFILE, bar, &tool, "gcc libzmq3-dev"));
        }
    };
    let other = Arm::variant("ZeroMQ".to_owned(), move || zeromq.p50(MOMENT));
    let rounds = bench.options.rounds;
    compare(bench, name, (bytes, bar), rounds, other)
}

/// Compares messages of `bytes` there and back.
fn compare(
    bench: &mut Bench,
    name: &'static str,
    (bytes, bar): (usize, Bar),
    rounds: u32,
    other: Arm<'_>,
) -> Result<Row, Failure> {
    let mut post = Post::start(bench, bytes)?;
    let ours = Arm::variant("piped".to_owned(), move || Ok(post.timing()?.p50()));
    let mut arms = [other, ours];
    let rounds = bench.chosen(bench.rounds_at_most(rounds), &mut arms)?;
    let found = rounds.all_ratio(1, 0)?;
    let note = format!("p50 there and back: {}", in_words(&rounds));
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
        .with_arms(&rounds, Unit::Seconds))
}
