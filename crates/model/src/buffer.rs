//! How much early-arrival buffer messages need that come faster than they are copied out.
//!
//! Li and Taylor's model ("System Buffer Size Requirements", section 3.1): message `i` arrives
//! evenly over `[s_i, s_i + L/lambda]`, its first byte at `s_i`; one consumer takes the messages in
//! the order of their first bytes. Before **every** message it spends a start-up `alpha`, from the
//! end of the previous copy or the arrival of the first byte, whichever is later; then it copies at
//! `mu`. The buffer must hold the largest difference between what has arrived and what has been
//! copied:
//!
//! ```text
//! c_i = max(e_{i-1}, s_i) + alpha                 start of the copy
//! e_i = c_i + L/mu                                its end, in the paper
//! e_i = max(c_i + L/mu, s_i + L/lambda)           its end, if no byte is copied early
//! required = max over t of  arrived(t) - copied(t)
//! ```
//!
//! Corrections to the paper. Its copy may run ahead of the arrival ([`Mode::Paper`]): where
//! `mu > lambda` the consumer has then "copied" bytes that are still on their way, and the
//! requirement comes out too small (10109 bytes with `mu` doubled). [`Mode::Causal`] is what a real
//! consumer needs, never less; it is what an adviser should use. The 11751 bytes of the paper's
//! summary are 11571 (digits transposed), and its 75 KB for five processors are 12288 + 5·10923 =
//! 66 903 bytes. With `lambda` doubled, the paper's `c = L/lambda` is that of the new `lambda`.
//!
//! The paper has `n` messages of one size at equal distances ([`burst`]). Nothing in the model
//! needs that, so [`required`] takes any list of arrivals, each with its own size and bandwidth:
//! several senders are several lists joined.
//!
//! And it has one consumer, always alike. What was measured is not: [`replay`] takes each message
//! with the start-up and the copy rate that it had, and [`advise`] says from there what memory to
//! allow.
//!
//! Units: bytes, seconds, bytes per second.

pub mod advise;

use core::fmt;

/// Whether a byte can be copied before it has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Bytes can be copied early, as in the paper: a copy takes `L/mu` whatever has arrived.
    Paper,
    /// No byte is copied early: a copy that has caught up goes on at the speed of the arrival.
    Causal,
}

/// A message on its way into the buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// The time at which the message's first byte arrives, in seconds.
    pub seconds: f64,
    /// `L`: its length in bytes, positive.
    pub bytes: f64,
    /// `lambda`: how fast it arrives, in bytes per second, positive.
    pub bytes_per_second: f64,
}

impl Arrival {
    fn end(&self) -> f64 {
        self.seconds + self.bytes / self.bytes_per_second
    }
}

/// The thread that copies messages out of the buffer, one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Consumer {
    /// `alpha`: time that the thread spends before every message, in seconds.
    pub startup_seconds: f64,
    /// `mu`: how fast the thread copies, in bytes per second, positive.
    pub bytes_per_second: f64,
}

/// The buffer that messages need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Requirement {
    /// The most bytes that have arrived and are not copied yet.
    pub bytes: f64,
    /// The time of the largest need, in seconds; the first such time if there are several.
    pub peak_seconds: f64,
    /// When the last message is copied, in seconds.
    pub end_seconds: f64,
}

/// A parameter that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BufferFault {
    /// The name of the parameter.
    pub parameter: &'static str,
    /// The value it was given.
    pub value: f64,
    wanted: &'static str,
}

impl fmt::Display for BufferFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} is {}: give {}", self.parameter, self.value, self.wanted)
    }
}

impl std::error::Error for BufferFault {}

/// `messages` messages of `bytes` each, the first byte of each `delay` seconds behind that of the
/// one before: the paper's case.
///
/// ```
/// use piped_model::buffer::{burst, required, Consumer, Mode};
/// // 4 messages of 4000 bytes at 105 MB/s, one every eighth of a message's time; 91 MB/s and
/// // 9 us to copy.
/// let arrivals = burst(4, 4000.0, 105e6, 4000.0 / 105e6 / 8.0);
/// let consumer = Consumer { startup_seconds: 9e-6, bytes_per_second: 91e6 };
/// let need = required(&arrivals, consumer, Mode::Paper)?;
/// assert_eq!(need.bytes.round(), 12052.0);
/// # Ok::<(), piped_model::buffer::BufferFault>(())
/// ```
#[must_use]
pub fn burst(messages: usize, bytes: f64, bytes_per_second: f64, delay: f64) -> Vec<Arrival> {
    let at = |index| index as f64 * delay;
    (0..messages).map(|index| Arrival { seconds: at(index), bytes, bytes_per_second }).collect()
}

/// The buffer that `arrivals` need if `consumer` copies them out in the order of their first bytes
/// (those that come together in the order of the list). Nothing for no messages.
///
/// # Errors
/// If a time is negative or not a number, or a size or bandwidth is not positive.
///
/// ```
/// use piped_model::buffer::{required, Arrival, Consumer, Mode};
/// let consumer = Consumer { startup_seconds: 0.0, bytes_per_second: 2e6 };
/// let slow = Arrival { seconds: 0.0, bytes: 1000.0, bytes_per_second: 1e6 };
/// // Copied as it comes, there is nothing to hold.
/// assert_eq!(required(&[slow], consumer, Mode::Causal)?.bytes, 0.0);
/// let both = [slow, Arrival { seconds: 0.0, bytes: 500.0, bytes_per_second: 1e6 }];
/// assert_eq!(required(&both, consumer, Mode::Causal)?.bytes, 500.0);
/// # Ok::<(), piped_model::buffer::BufferFault>(())
/// ```
pub fn required(
    arrivals: &[Arrival],
    consumer: Consumer,
    mode: Mode,
) -> Result<Requirement, BufferFault> {
    let levels = levels(arrivals, consumer, mode)?;
    let none = Requirement { bytes: 0.0, peak_seconds: 0.0, end_seconds: 0.0 };
    Ok(levels.into_iter().fold(none, |most, level| Requirement {
        end_seconds: level.seconds,
        ..if level.bytes > most.bytes {
            Requirement { bytes: level.bytes, peak_seconds: level.seconds, ..most }
        } else {
            most
        }
    }))
}

/// What a buffer holds at some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fill {
    /// The time of the event, in seconds.
    pub seconds: f64,
    /// Arrived less copied, in bytes. In [`Mode::Paper`] it may be negative.
    pub bytes: f64,
}

/// What the buffer holds wherever the slope changes, in order of time: straight lines between these
/// are the paper's figure 1.
///
/// # Errors
/// As [`required`].
pub fn levels(
    arrivals: &[Arrival],
    consumer: Consumer,
    mode: Mode,
) -> Result<Vec<Fill>, BufferFault> {
    check(&[], consumer)?;
    let mut order: Vec<(Arrival, Consumer)> = arrivals.iter().map(|&it| (it, consumer)).collect();
    order.sort_by(|(a, _), (b, _)| a.seconds.total_cmp(&b.seconds));
    replay(&order, mode)
}

/// The buffer for messages in the order in which they are taken, each with a start-up and a copy
/// rate of its own.
///
/// # Errors
/// As [`required`].
pub fn replay(messages: &[(Arrival, Consumer)], mode: Mode) -> Result<Vec<Fill>, BufferFault> {
    let mut bends = Vec::with_capacity(6 * messages.len());
    let mut free = 0.0_f64;
    for (message, consumer) in messages {
        check(&[*message], *consumer)?;
        let lambda = message.bytes_per_second;
        bends.push(Bend { seconds: message.seconds, slope: lambda, flows: 1 });
        bends.push(Bend { seconds: message.end(), slope: -lambda, flows: -1 });
        let start = free.max(message.seconds) + consumer.startup_seconds;
        free = copy(message, start, consumer.bytes_per_second, mode, &mut bends);
    }
    bends.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(integrate(&bends))
}

/// A change of the slope of arrived − copied.
#[derive(Debug, Clone, Copy)]
struct Bend {
    seconds: f64,
    slope: f64,
    /// Whether a flow begins or ends with it.
    flows: i32,
}

/// The copy of one message from `start`: its bends, and its end.
fn copy(message: &Arrival, start: f64, mu: f64, mode: Mode, bends: &mut Vec<Bend>) -> f64 {
    let lambda = message.bytes_per_second;
    let end = start + message.bytes / mu;
    bends.push(Bend { seconds: start, slope: -mu, flows: 1 });
    if mode == Mode::Paper || end >= message.end() {
        // What is there is enough all the time: lambda and mu are constant, and it is so at both
        // ends.
        bends.push(Bend { seconds: end, slope: mu, flows: -1 });
        return end;
    }
    // It catches up with the arrival, and goes on with it.
    let caught = start + (start - message.seconds) * lambda / (mu - lambda);
    bends.push(Bend { seconds: caught, slope: mu - lambda, flows: 0 });
    bends.push(Bend { seconds: message.end(), slope: lambda, flows: -1 });
    message.end()
}

fn integrate(bends: &[Bend]) -> Vec<Fill> {
    let mut fills: Vec<Fill> = Vec::with_capacity(bends.len());
    let (mut bytes, mut slope, mut flows) = (0.0, 0.0, 0);
    for bend in bends {
        if let Some(last) = fills.last() {
            bytes += slope * (bend.seconds - last.seconds);
        }
        flows += bend.flows;
        // Additions leave dust; where nothing flows the slope is exactly 0.
        slope = if flows == 0 { 0.0 } else { slope + bend.slope };
        match fills.last_mut() {
            Some(last) if last.seconds == bend.seconds => last.bytes = bytes,
            _ => fills.push(Fill { seconds: bend.seconds, bytes }),
        }
    }
    fills
}

fn check(arrivals: &[Arrival], consumer: Consumer) -> Result<(), BufferFault> {
    let positive = "a finite number above 0";
    let time = "a finite number that is not negative";
    let fault = |parameter, value, wanted| Err(BufferFault { parameter, value, wanted });
    let rates = arrivals.iter().map(|message| ("arrival rate (lambda)", message.bytes_per_second));
    let sizes = arrivals.iter().map(|message| ("message size", message.bytes));
    let copying = [("copy rate (mu)", consumer.bytes_per_second)];
    for (parameter, value) in rates.chain(sizes).chain(copying) {
        if !(value.is_finite() && value > 0.0) {
            return fault(parameter, value, positive);
        }
    }
    let times = arrivals.iter().map(|message| ("time of an arrival", message.seconds));
    for (parameter, value) in times.chain([("start-up (alpha)", consumer.startup_seconds)]) {
        if !(value.is_finite() && value >= 0.0) {
            return fault(parameter, value, time);
        }
    }
    Ok(())
}
