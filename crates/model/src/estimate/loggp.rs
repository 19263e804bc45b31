//! The LogGP parameters behind measured bursts: the signature of `piped-theory` backward.
//!
//! | what | from |
//! | --- | --- |
//! | `o_s` | bursts of one message |
//! | `o_s + o_r` | the slope of time over burst size, less `D`, where `D` raises it |
//! | `g` | that slope at the smallest `D`, if neither the overheads nor the window explain it |
//! | `L` | half a round trip, less `o_s + o_r` |
//! | `G` | the rise of that slope with the messages' size, where it rises |
//!
//! What the measurements cannot show is said, not guessed: see [`Gap`] and [`Missing`].

use core::fmt;
use core::num::NonZeroU32;

#[cfg(feature = "serde")]
use serde::Serialize;

use super::figure::Figure;
use super::line::{Options, bisquare};
use super::location;
use super::screen::{self, Shape};
use super::segments::{self, Outlier, PIECES_MAX};

/// A measured burst of messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Burst {
    /// `M`: messages, at least 1.
    pub messages: u64,
    /// `D`: computation between messages, in seconds.
    pub delay: f64,
    /// Bytes of each message.
    pub bytes: u64,
    /// Time from the start to the issue of the last message, in seconds.
    pub seconds: f64,
}

/// How measurements are read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadOptions {
    /// How lines are fitted.
    pub fit: Options,
    /// The window, if it is known.
    pub window: Option<NonZeroU32>,
    /// The confidence at which two slopes differ.
    pub confidence: f64,
    /// Every burst of more than one message is longer than what the window lets through at once, so
    /// all lie on one line; otherwise the line begins where a bend is seen, or where noise looks
    /// like one.
    pub all_steady: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { fit: Options::default(), window: None, confidence: 0.99, all_steady: false }
    }
}

/// What is known of `g`, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize), serde(tag = "seen", rename_all = "kebab-case"))]
pub enum Gap {
    /// The gap limits bursts without delay. Without a known window this is the effective gap, which
    /// a window may have raised.
    Yes {
        /// `g`, in seconds a message.
        gap: Figure,
    },
    /// The processor takes at least as long: only a bound is known.
    BehindOverhead {
        /// `g` is not above this.
        at_most: Figure,
    },
    /// The window takes as long: only a bound is known.
    BehindWindow {
        /// `g` is not above this.
        at_most: Figure,
    },
    /// The overheads are missing (see [`Parameters::missing`]), so the cause of this cannot be
    /// told.
    Unknown {
        /// The steady interval without delay, if there is one.
        at_most: Option<Figure>,
    },
}

/// The steady interval at one delay and size.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Steady {
    /// `D`, the computation between messages, in seconds.
    pub delay: f64,
    /// Bytes of each message.
    pub bytes: u64,
    /// The slope of the burst's time over its messages, in seconds.
    pub interval: Figure,
}

/// What measurements do not show, and what would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize), serde(rename_all = "kebab-case"))]
pub enum Missing {
    /// No burst of one message.
    Send,
    /// No delay raises the slope above the one without.
    Overhead,
    /// No slope without delay.
    Interval,
    /// No round trips, or no overhead.
    Latency,
    /// Fewer than two sizes of messages at which the slope rises.
    PerByte,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "o_s is not shown: measure bursts of 1 message",
            Self::Overhead => {
                "o_s + o_r is not shown: measure bursts with a delay long enough to raise their \
                 slope, of two or more lengths"
            }
            Self::Interval => {
                "no slope without delay: measure bursts of two or more lengths with delay 0"
            }
            Self::Latency => "L is not shown: it takes round trips, and o_s + o_r",
            Self::PerByte => {
                "G is not shown: measure bursts without delay, of two or more lengths, of at least \
                 two sizes of larger messages"
            }
        })
    }
}

/// The parameters behind measurements; seconds, and seconds per byte.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Parameters {
    /// `o_s`, the send overhead, in seconds.
    pub send: Option<Figure>,
    /// `o_r`, the receive overhead, in seconds.
    pub receive: Option<Figure>,
    /// `o_s + o_r`, both overheads, in seconds.
    pub overhead: Option<Figure>,
    /// `g`, as far as it shows.
    pub gap: Gap,
    /// `L`, the latency, in seconds.
    pub latency: Option<Figure>,
    /// `G`, in seconds per byte.
    pub per_byte: Option<Figure>,
    /// All slopes, by size and delay.
    pub steady: Vec<Steady>,
    /// What is not known, and what would show it.
    pub missing: Vec<Missing>,
    /// Bursts that the others of their size and delay contradict.
    pub burst_outliers: Vec<Outlier>,
    /// Round trips that the others contradict.
    pub round_trip_outliers: Vec<Outlier>,
}

/// A measurement that is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReadFault {
    /// There are no measurements.
    Empty,
    /// A burst without messages, or with a time or delay that no clock gives.
    Burst(usize),
    /// A round trip with a time that no clock gives.
    RoundTrip(usize),
}

impl fmt::Display for ReadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "there are no measurements"),
            Self::Burst(index) => write!(
                f,
                "burst {index}: give at least 1 message, a delay not below 0 and a time above 0"
            ),
            Self::RoundTrip(index) => write!(f, "round trip {index}: give a finite time above 0"),
        }
    }
}

impl std::error::Error for ReadFault {}

/// Two slopes closer than this part of them are the same.
const SAME: f64 = 1e-3;

/// The parameters that measured bursts and round trips (in seconds) show.
///
/// # Errors
/// If there is no measurement, or one that no clock gives. What good measurements do not show is no
/// error: see [`Parameters::missing`].
pub fn read(
    bursts: &[Burst],
    round_trips: &[f64],
    options: &ReadOptions,
) -> Result<Parameters, ReadFault> {
    check(bursts, round_trips)?;
    let short = bursts.iter().map(|it| it.bytes).min().unwrap_or(0);
    let (steady, mut burst_outliers) = slopes(bursts, options);
    let of_short: Vec<&Steady> = steady.iter().filter(|it| it.bytes == short).collect();
    let ones = bursts.iter().enumerate().filter(|it| it.1.messages == 1 && it.1.bytes == short);
    let ones: Vec<(usize, f64)> = ones.map(|it| (it.0, it.1.seconds)).collect();
    let (send, of_ones) = typical(&ones, options);
    burst_outliers.extend(of_ones);
    burst_outliers.sort_by_key(|it| it.index);
    let plain = of_short.first().filter(|it| it.delay == 0.0).map(|it| it.interval);
    let overhead = overhead(&of_short, options);
    let trips: Vec<(usize, f64)> = round_trips.iter().copied().enumerate().collect();
    let (trip, round_trip_outliers) = typical(&trips, options);
    let half = trip.map(|it| it.times(0.5));
    let latency = half.zip(overhead).map(|(half, overhead)| half.minus(overhead));
    let per_byte = per_byte(&steady, options);
    let receive = overhead.zip(send).map(|(both, send)| both.minus(send));
    let missing = [
        (send.is_none(), Missing::Send),
        (overhead.is_none(), Missing::Overhead),
        (plain.is_none(), Missing::Interval),
        (latency.is_none(), Missing::Latency),
        (per_byte.is_none(), Missing::PerByte),
    ];
    Ok(Parameters {
        send,
        receive,
        overhead,
        gap: gap(plain, overhead, half, options),
        latency,
        per_byte,
        missing: missing.into_iter().filter(|it| it.0).map(|it| it.1).collect(),
        steady,
        burst_outliers,
        round_trip_outliers,
    })
}

fn check(bursts: &[Burst], round_trips: &[f64]) -> Result<(), ReadFault> {
    if bursts.is_empty() && round_trips.is_empty() {
        return Err(ReadFault::Empty);
    }
    let time = |seconds: f64| seconds.is_finite() && seconds > 0.0;
    let bad = |it: &Burst| {
        it.messages == 0 || !time(it.seconds) || !(it.delay.is_finite() && it.delay >= 0.0)
    };
    if let Some(index) = bursts.iter().position(bad) {
        return Err(ReadFault::Burst(index));
    }
    round_trips.iter().position(|it| !time(*it)).map_or(Ok(()), |at| Err(ReadFault::RoundTrip(at)))
}

/// The steady interval of every size and delay: the slope of the last straight piece of time over
/// messages. The first piece is the burst before acknowledgements come. And the bursts that the
/// others of their series contradict.
fn slopes(bursts: &[Burst], options: &ReadOptions) -> (Vec<Steady>, Vec<Outlier>) {
    // A burst of one is never steady.
    let long = bursts.iter().enumerate().filter(|it| it.1.messages > 1);
    let mut sorted: Vec<(usize, &Burst)> = long.collect();
    sorted.sort_by(|(_, a), (_, b)| a.bytes.cmp(&b.bytes).then(a.delay.total_cmp(&b.delay)));
    let most = if options.all_steady { 1 } else { PIECES_MAX };
    let (mut steady, mut outliers) = (Vec::new(), Vec::new());
    for series in sorted.chunk_by(|(_, a), (_, b)| a.bytes == b.bytes && a.delay == b.delay) {
        let points: Vec<(f64, f64)> =
            series.iter().map(|(_, it)| (it.messages as f64, it.seconds)).collect();
        let (lines, far) = segments::convex(&points, most, Shape::Rising, options.fit);
        let Some(line) = lines.last() else { continue };
        let Burst { delay, bytes, .. } = *series[0].1;
        steady.push(Steady { delay, bytes, interval: line.slope });
        let whole = |it: Outlier| Outlier { index: series[it.index].0, ..it };
        outliers.extend(far.into_iter().map(whole));
    }
    (steady, outliers)
}

/// What most times are near, or their mean, and the times that are not near it.
fn typical(times: &[(usize, f64)], options: &ReadOptions) -> (Option<Figure>, Vec<Outlier>) {
    let values: Vec<f64> = times.iter().map(|it| it.1).collect();
    let Some((middle, deviation)) = location::typical(&values) else { return (None, Vec::new()) };
    let far = times.iter().filter(|it| {
        bisquare((it.1 - middle.value) / deviation) == 0.0 && screen::is_gross(it.1, middle.value)
    });
    let outliers = far.map(|it| Outlier { index: it.0, times: it.1 / middle.value }).collect();
    let figure = if options.fit.robust { Some(middle) } else { Figure::mean(&values) };
    (figure, outliers)
}

/// `o_s + o_r` from the delays at which the processor is certainly the slowest: the slope is above
/// the one at the smallest delay, and so it is `o_s + o_r + D`.
fn overhead(short: &[&Steady], options: &ReadOptions) -> Option<Figure> {
    let (first, others) = short.split_first()?;
    let raised = others.iter().filter(|it| above(it.interval, first.interval, options));
    let mut sum: Option<(Figure, f64)> = None;
    for it in raised {
        let own = it.interval.plus(Figure::exact(-it.delay));
        sum = Some(sum.map_or((own, 1.0), |(sum, count)| (sum.plus(own), count + 1.0)));
    }
    sum.map(|(sum, count)| sum.times(1.0 / count))
}

/// Whether a figure is above another beyond doubt.
fn above(high: Figure, low: Figure, options: &ReadOptions) -> bool {
    let apart = high.minus(low);
    apart.value - apart.half_width(options.confidence) > SAME * high.value.abs()
}

fn gap(
    plain: Option<Figure>,
    overhead: Option<Figure>,
    half_trip: Option<Figure>,
    options: &ReadOptions,
) -> Gap {
    let (Some(plain), Some(overhead)) = (plain, overhead) else {
        return Gap::Unknown { at_most: plain };
    };
    if !above(plain, overhead, options) {
        return Gap::BehindOverhead { at_most: plain };
    }
    // (o_s + L + o_r) / w: half a round trip shared by the window.
    let held = options.window.zip(half_trip);
    let held = held.map(|(window, half)| half.times(1.0 / f64::from(window.get())));
    match held {
        Some(held) if !above(plain, held, options) => Gap::BehindWindow { at_most: plain },
        _ => Gap::Yes { gap: plain },
    }
}

/// `G`: how the interval without delay rises over the largest messages.
fn per_byte(steady: &[Steady], options: &ReadOptions) -> Option<Figure> {
    let plain: Vec<&Steady> = steady.iter().filter(|it| it.delay == 0.0).collect();
    let points: Vec<(f64, f64)> =
        plain.iter().map(|it| (it.bytes as f64, it.interval.value)).collect();
    let fit = Options { robust: false, ..options.fit };
    let (lines, _) = segments::convex(&points, PIECES_MAX, Shape::Rising, fit);
    let last = lines.last()?;
    let rises = |figure: Figure| (figure.value > 0.0).then_some(figure);
    if last.samples > 2 {
        return rises(last.slope);
    }
    // Two sizes: the line's own error is unknown, but those of its ends are not.
    let [.., a, b] = plain.as_slice() else { return None };
    if !above(b.interval, a.interval, options) {
        return None;
    }
    rises(b.interval.minus(a.interval).times(1.0 / (b.bytes - a.bytes) as f64))
}
