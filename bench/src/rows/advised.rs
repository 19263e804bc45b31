//! Bursts of messages that come twice as fast as they are received: with the advised
//! unexpected-message buffer, with a far larger one, and with a fifth less.
//!
//! A dial makes a message leave the sender every millisecond (lambda). Another one makes its copy
//! take a millisecond (mu). The receiver works for one before it asks for the next (alpha). So the
//! paper's case comes out at this machine's scale, and neither socket nor scheduler decides the
//! result.

use std::cell::RefCell;
use std::time::Duration;

use piped_client::{Buffer, Client, ClientBuilder, Handle, Pending, Queue, Request, WaitPolicy};
use piped_core::modes::Profile;

use crate::contest::{Arm, Rounds};
use crate::failure::{Doing as _, Failure};
use crate::nodes::{PEER, Pair, Sites, counter, free_address, profile_name};
use crate::report::{Row, Unit};
use crate::rows::{Bench, KIB};
use crate::stats::{Bar, median};
use crate::{clock, machine};

const PROFILE: Profile = Profile::Balanced;
const MESSAGES: usize = 64;
const LENGTH: usize = 64 * KIB;
/// Time of one message, at the sender's socket and at its copy.
const ARRIVAL_SECONDS: f64 = 1e-3;
const COPY_SECONDS: f64 = 1e-3;
/// Work of the receiver on each message.
const STARTUP: Duration = Duration::from_millis(1);

/// The large buffer to compare with; staging is so large that all of it can be used.
const WIDE_BYTES: u64 = 64 << 20;
const WIDE_STAGING: &str = "global.staging=256MiB";
/// Bursts from which advice is taken.
const BURSTS: usize = 8;
/// Part that is taken away to see whether it was needed.
const LESS: f64 = 0.2;

/// Largest ratio of times.
const TIME_BAR: f64 = 1.03;
/// Least ratio of memory.
const MEMORY_BAR: f64 = 10.0;

/// Two daemons with the dials, and a client of each.
struct Bursts {
    pair: Pair,
    sender: (Client, Queue, Handle),
    receiver: (Queue, Handle),
    cpu: usize,
    buffers: Vec<Buffer>,
    into: Option<Buffer>,
}

impl Bursts {
    fn open(bench: &mut Bench) -> Result<Self, Failure> {
        let data = bench.data()?;
        // Other daemons would be in the way.
        bench.pair = None;
        let settings = String::from("[planner]\nallow_dials = true\neager = \"256KiB\"\n");
        let sites = Sites { listen: free_address()?, settings, ..Sites::default() };
        let pair = Pair::start_at(&sites, PROFILE, bench.cpus, &data)?;
        let per_byte = |seconds: f64| seconds / LENGTH as f64;
        pair.a.admin.set_dial(&format!("send:{PEER}"), 0.0, per_byte(ARRIVAL_SECONDS))?;
        pair.b.admin.set_dial("copy", 0.0, per_byte(COPY_SECONDS))?;
        pair.b.admin.set_limits(&[WIDE_STAGING])?;
        let connect = |socket| -> Result<(Client, Queue), Failure> {
            let builder = ClientBuilder::new().arena_bytes(16 << 20);
            let client = builder.wait(WaitPolicy::Throughput).connect(socket).doing("connect")?;
            let queue = client.queue().doing("queue")?;
            Ok((client, queue))
        };
        let (receiver, inbox) = connect(&pair.b.client_socket)?;
        let (sender, outbox) = connect(&pair.a.client_socket)?;
        let mail = receiver.offer_channel("bursts").doing("offer")?;
        let to = sender.open_channel(Some(PEER), "bursts").doing("open")?;
        let allocated = (0..MESSAGES).map(|_| sender.allocate(LENGTH)).collect::<Result<_, _>>();
        let buffers = allocated.doing("allocate")?;
        let into = Some(receiver.allocate(LENGTH).doing("allocate")?);
        let cpu = bench.cpus.second;
        let (sender, receiver) = ((sender, outbox, to), (inbox, mail));
        Ok(Self { pair, sender, receiver, cpu, buffers, into })
    }

    /// Sets the unexpected-message buffer from now on, in bytes.
    fn allow(&self, bytes: u64) -> Result<(), Failure> {
        let set = ["global", "client"].map(|scope| format!("{scope}.early_arrival={bytes}B"));
        self.pair.b.admin.set_limits(&set.each_ref().map(String::as_str))
    }

    /// Sends all messages at once, and receives them one by one. Returns the time from the first
    /// send to the end of the last one's work, in seconds.
    fn burst(&mut self) -> Result<f64, Failure> {
        machine::pin(self.cpu)?;
        let begun = clock::now();
        let (_, queue, to) = &mut self.sender;
        let send = |buffer| queue.submit(Request::send(to, 0, buffer)).doing("send");
        let sends: Vec<Pending<_>> = self.buffers.drain(..).map(send).collect::<Result<_, _>>()?;
        queue.flush();
        for _ in 0..MESSAGES {
            let into = self.into.take().expect("it is here between messages");
            let receive = Request::receive(&self.receiver.1, 0, into);
            self.into = Some(self.receiver.0.run(receive).doing("receive")?.payload);
            clock::pause(STARTUP);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let back = sends.into_iter().map(|send| send.wait(queue).map(|done| done.payload));
        self.buffers = back.collect::<Result<_, _>>().doing("send")?;
        Ok(seconds)
    }

    /// Advised bytes after some bursts with room for all.
    fn advised(&mut self) -> Result<u64, Failure> {
        self.allow(WIDE_BYTES)?;
        for _ in 0..BURSTS {
            self.burst()?;
        }
        let advice = self.pair.b.admin.advice()?;
        let most = advice.limits.iter().filter_map(|limit| limit.required_bytes).max();
        most.ok_or_else(|| Failure::new("no messages were seen"))
    }

    /// Messages that found no buffer, since the start.
    fn stalled(&self) -> Result<u64, Failure> {
        Ok(counter(&self.pair.b.admin, &["limits", "stalled"])?.unwrap_or(0))
    }
}

/// Buffer of a burst.
#[derive(Debug, Clone, Copy)]
enum Allowed {
    Wide,
    /// Part of the advised size, which is asked for anew.
    Advised(f64),
    None,
}

/// Outcome of a burst.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    bytes: u64,
    seconds: f64,
    stalled: u64,
}

impl Bursts {
    fn try_with(&mut self, allowed: Allowed) -> Result<Outcome, Failure> {
        let bytes = match allowed {
            Allowed::Wide => WIDE_BYTES,
            Allowed::Advised(part) => (self.advised()? as f64 * part) as u64,
            Allowed::None => 0,
        };
        self.allow(bytes)?;
        let before = self.stalled()?;
        let seconds = self.burst()?;
        Ok(Outcome { bytes, seconds, stalled: self.stalled()? - before })
    }
}

/// Rounds in which each of these is tried, with all outcomes.
fn rounds(
    bench: &mut Bench,
    tried: &[(&str, Allowed)],
    of: fn(Outcome) -> f64,
) -> Result<(Rounds, Vec<Vec<Outcome>>), Failure> {
    let bursts = RefCell::new(Bursts::open(bench)?);
    let outcomes = RefCell::new(vec![Vec::new(); tried.len()]);
    let arm = |(place, &(name, allowed)): (usize, &(&str, Allowed))| {
        let (bursts, outcomes) = (&bursts, &outcomes);
        Arm::variant(name.to_owned(), move || {
            let outcome = bursts.borrow_mut().try_with(allowed)?;
            outcomes.borrow_mut()[place].push(outcome);
            Ok(of(outcome))
        })
    };
    let mut arms: Vec<Arm<'_>> = tried.iter().enumerate().map(arm).collect();
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    Ok((rounds, outcomes.into_inner()))
}

/// Median buffer in KiB, and the number of bursts in which any message stalled.
fn told(outcomes: &[Outcome]) -> (f64, usize) {
    let kib: Vec<f64> = outcomes.iter().map(|it| it.bytes as f64 / 1024.0).collect();
    let stalled = outcomes.iter().filter(|it| it.stalled > 0).count();
    (median(&kib).unwrap_or(f64::NAN), stalled)
}

/// Time of a burst with the advised buffer, against a far larger one.
pub(super) fn time(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let tried =
        [("64 MiB", Allowed::Wide), ("advised", Allowed::Advised(1.0)), ("none", Allowed::None)];
    let (rounds, outcomes) = rounds(bench, &tried, |it| it.seconds)?;
    let found = rounds.all_ratio(1, 0)?;
    let millis = |arm| rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e3);
    let (kib, stalled) = told(&outcomes[1]);
    let note = format!(
        "64 messages of 64 KiB, one a millisecond, received in two: {:.1} ms with 64 MiB, {:.1} ms \
         with the {kib:.0} KiB that are advised, {:.1} ms with none; in {stalled} of {} bursts \
         with what is advised some stalled",
        millis(0),
        millis(1),
        millis(2),
        outcomes[1].len()
    );
    let bar = Bar::AtMost(TIME_BAR);
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
        .with_arms(&rounds, Unit::Seconds))
}

/// Ratio of 64 MiB to the advised size.
pub(super) fn memory(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let tried = [("advised", Allowed::Advised(1.0))];
    let (rounds, outcomes) = rounds(bench, &tried, |it| WIDE_BYTES as f64 / it.bytes as f64)?;
    let found = rounds.all(|round| round.values[0])?;
    let (kib, _) = told(&outcomes[0]);
    let note = format!("64 MiB over what is advised for such bursts, {kib:.0} KiB");
    let bar = Bar::AtLeast(MEMORY_BAR);
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note))
}

/// Messages of a burst that find no buffer where there is a fifth less than advised.
pub(super) fn stalls(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let tried =
        [("advised", Allowed::Advised(1.0)), ("a fifth less", Allowed::Advised(1.0 - LESS))];
    let (rounds, outcomes) = rounds(bench, &tried, |it| it.stalled as f64)?;
    let found = rounds.all(|round| round.values[1])?;
    let [(whole, in_whole), (less, in_less)] = [0, 1].map(|arm| told(&outcomes[arm]));
    let note = format!(
        "of the 64 messages of a burst, with {less:.0} KiB; some stalled in {in_less} of {} \
         bursts, and in {in_whole} of {} with the {whole:.0} KiB that are advised",
        outcomes[1].len(),
        outcomes[0].len()
    );
    let bar = Bar::AtLeast(1.0);
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Count, found, bar, note)
        .with_arms(&rounds, Unit::Count))
}
