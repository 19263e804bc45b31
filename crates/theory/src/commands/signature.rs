//! `pipectl model signature`: a network's LogGP signature from its parameters, or the parameters
//! from bursts.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::{Number, Text};
use piped_config::measured::{self, KbArgs, PerByte, Size};
use piped_config::units;
use piped_model::estimate::Figure;
use piped_model::estimate::loggp::{self, Burst, Gap, Parameters, ReadOptions};
use serde::Serialize;

use super::blackbox::positive;
use super::estimates::{FitArgs, Interval, OutlierRow, print_outliers};
use super::measurements::{self, Columns, Line};
use super::micros;
use crate::signature::{Limit, Network};

const AFTER_HELP: &str = "\
From parameters: how long bursts take until their last message is issued. Example, figure 2.3 of
the thesis:
  pipectl model signature --L 4.7us --o-s 1.8us --o-r 4us --g 12.8us --delays 0,10us
With --csv: the parameters behind measurements. The file has a line for each of them, and names its
columns in the first one:
  measure   burst (if there is no such column) or rtt, a round trip
  messages  how many the burst has
  delay     computation between messages [us; 0 if empty]
  bytes     of each message [bytes; 0 if empty]
  time      from the start to the issue of the last message, or of the round trip [us, or as in 4ms]
Empty lines and lines that begin with # are ignored. o_s takes bursts of 1 message; g bursts of
several lengths without delay; o_s + o_r the same with delays long enough to slow them; L round
trips; G bursts of larger messages. Three lengths of each delay, or several measurements of each
length, give the intervals something to go by.
  measure,messages,delay,bytes,time
  burst,1,0,,1.8
  burst,1,0,,1.9
  burst,32,0,,388
  burst,64,0,,797
  burst,128,0,,1617
  burst,32,40us,,1422
  burst,64,40us,,2887
  burst,128,40us,,5819
  rtt,,,,21.1
  rtt,,,,20.9";

const COLUMNS: Columns =
    Columns { required: &["messages", "time"], optional: &["measure", "delay", "bytes"] };

/// Arguments of `pipectl model signature`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP, allow_negative_numbers = true)]
pub(crate) struct SignatureArgs {
    /// Measurements to find the parameters of, as below; - is stdin
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["latency", "send", "receive", "overhead", "gap", "per_byte",
                                "bursts", "delays", "bytes"])]
    csv: Option<PathBuf>,

    /// Latency of the network (us)
    #[arg(long = "L", id = "latency", value_name = "TIME", value_parser = measured::time)]
    latency: Option<f64>,

    /// Send overhead of the processor (us)
    #[arg(long = "o-s", id = "send", value_name = "TIME", value_parser = measured::time,
          requires = "receive")]
    send: Option<f64>,

    /// Receive overhead of the processor (us)
    #[arg(long = "o-r", id = "receive", value_name = "TIME", value_parser = measured::time,
          requires = "send")]
    receive: Option<f64>,

    /// Both overheads, if they are the same (us)
    #[arg(long = "o", id = "overhead", value_name = "TIME", value_parser = measured::time,
          conflicts_with_all = ["send", "receive"])]
    overhead: Option<f64>,

    /// Gap: the least time between messages (us)
    #[arg(long = "g", id = "gap", value_name = "TIME", value_parser = measured::time)]
    gap: Option<f64>,

    /// What each byte adds to the gap [us/KB, or as in 40MB/s]
    #[arg(long = "G", id = "per_byte", value_name = "TIME/SIZE", value_parser = measured::per_byte)]
    per_byte: Option<PerByte>,

    /// The most messages outstanding; unlimited if it is not given
    #[arg(long, value_name = "N")]
    window: Option<NonZeroU32>,

    /// Lengths of bursts, with commas
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,4,8,16,32,64",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bursts: Vec<u32>,

    /// Computation between messages, with commas (us)
    #[arg(long, value_name = "TIME,TIME", value_delimiter = ',', default_value = "0",
          value_parser = measured::time)]
    delays: Vec<f64>,

    /// Bytes of each message; short ones if it is not given
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    bytes: Option<Size>,

    #[command(flatten)]
    fit: FitArgs,

    #[command(flatten)]
    kb: KbArgs,
}

pub(crate) fn run(args: &SignatureArgs, output: &Output, json: bool) -> Result<(), Failure> {
    match &args.csv {
        Some(path) => backward(path, args, output, json),
        None => forward(args, output, json),
    }
}

/// What `--json` prints of parameters.
#[derive(Debug, Serialize)]
struct Signature {
    round_trip_us: f64,
    curves: Vec<Curve>,
}

/// The bursts with one delay.
#[derive(Debug, Serialize)]
struct Curve {
    delay_us: f64,
    steady_us: f64,
    limit: Limit,
    bursts: Vec<BurstRow>,
}

#[derive(Debug, Serialize)]
struct BurstRow {
    messages: u32,
    total_us: f64,
    per_message_us: f64,
}

fn network(args: &SignatureArgs) -> Result<Network, Failure> {
    let needed = |value: Option<f64>, name: &str| {
        value.ok_or_else(|| {
            Failure::usage(format!("{name} is missing: give it, or measurements by --csv FILE"))
        })
    };
    let network = Network {
        latency: needed(args.latency, "--L")?,
        send: needed(args.send.or(args.overhead), "--o (or --o-s and --o-r)")?,
        receive: needed(args.receive.or(args.overhead), "--o (or --o-s and --o-r)")?,
        gap: needed(args.gap, "--g")?,
        per_byte: args.per_byte.map_or(0.0, |it| it.seconds(args.kb.kb)),
        window: args.window,
    };
    network.checked().map_err(|fault| Failure::usage(fault.to_string()))
}

fn forward(args: &SignatureArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let network = network(args)?;
    let bytes = args.bytes.map_or(Ok(0), |bytes| bytes.whole_bytes(args.kb.kb));
    let bytes = bytes.map_err(|error| Failure::usage(format!("--bytes: {error}")))?;
    let curve = |&delay: &f64| {
        let (steady, limit) = network.steady(bytes, delay);
        let longest = args.bursts.iter().max().copied().unwrap_or(1);
        let times: Vec<f64> = network.bursts(bytes, delay).take(longest as usize).collect();
        let rows = args.bursts.iter().filter_map(|&messages| {
            let total_us = micros(*times.get(messages as usize - 1)?);
            Some(BurstRow { messages, total_us, per_message_us: total_us / f64::from(messages) })
        });
        Curve { delay_us: micros(delay), steady_us: micros(steady), limit, bursts: rows.collect() }
    };
    let signature = Signature {
        round_trip_us: micros(network.round_trip()),
        curves: args.delays.iter().map(curve).collect(),
    };
    if json {
        return output::json(signature);
    }
    let mut rows = Vec::new();
    for curve in &signature.curves {
        let delay = units::seconds(curve.delay_us * 1e-6);
        for row in &curve.bursts {
            let total = format!("{:.3}", row.total_us);
            rows.push(vec![
                delay.clone(),
                row.messages.to_string(),
                total,
                format!("{:.4}", row.per_message_us),
            ]);
        }
        let limit = format!("{:.4} ({})", curve.steady_us, curve.limit);
        rows.push(vec![delay, "many".to_owned(), String::new(), limit]);
    }
    output.line(format_args!("round trip {}", units::seconds(signature.round_trip_us * 1e-6)))?;
    output.table(&[Text("delay"), Number("messages"), Number("us"), Number("us a message")], rows)
}

/// What `--json` prints of measurements; figures that are not shown are `null`.
#[derive(Debug, Serialize)]
struct Found {
    #[serde(rename = "o_s_us")]
    send: Option<Interval>,
    #[serde(rename = "o_r_us")]
    receive: Option<Interval>,
    #[serde(rename = "o_s_plus_o_r_us")]
    overhead: Option<Interval>,
    #[serde(rename = "g_us")]
    gap: Option<Interval>,
    /// yes, behind-overhead, behind-window or unknown.
    g_seen: &'static str,
    /// An upper bound of g where g itself is not seen.
    g_at_most_us: Option<Interval>,
    #[serde(rename = "L_us")]
    latency: Option<Interval>,
    #[serde(rename = "G_us_per_kb")]
    per_byte: Option<Interval>,
    steady: Vec<SteadyRow>,
    notes: Vec<String>,
    bursts: usize,
    round_trips: usize,
    outliers: usize,
    outlier_measurements: Vec<OutlierRow>,
    confidence_percent: f64,
    kb: f64,
}

#[derive(Debug, Serialize)]
struct SteadyRow {
    delay_us: f64,
    bytes: u64,
    interval_us: Interval,
}

/// A line of the file.
enum Measured {
    Burst(Burst),
    RoundTrip(f64),
}

fn backward(path: &Path, args: &SignatureArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let (mut bursts, mut trips) = (Vec::new(), Vec::new());
    // The measurement that each of them is, from 1.
    let mut places = [Vec::new(), Vec::new()];
    let all = measurements::read(path, COLUMNS, |line| measured(line, args))?;
    for (place, measured) in (1..).zip(all) {
        match measured {
            Measured::Burst(burst) => {
                bursts.push(burst);
                places[0].push(place);
            }
            Measured::RoundTrip(seconds) => {
                trips.push(seconds);
                places[1].push(place);
            }
        }
    }
    let options =
        ReadOptions { fit: args.fit.options(), window: args.window, ..ReadOptions::default() };
    let found = loggp::read(&bursts, &trips, &options)
        .map_err(|fault| Failure::usage(format!("{}: {fault}", path.display())))?;
    let outliers = outliers(&found, &bursts, &trips, &places);
    let found = report(&found, args, [bursts.len(), trips.len()], outliers);
    if json { output::json(found) } else { print(&found, args.fit, output) }
}

fn outliers(
    found: &Parameters,
    bursts: &[Burst],
    trips: &[f64],
    places: &[Vec<usize>; 2],
) -> Vec<OutlierRow> {
    let of_bursts = found.burst_outliers.iter().map(|it| {
        let burst = bursts[it.index];
        let delay = units::seconds(burst.delay);
        let what = format!("burst of {}, delay {delay}, {} bytes", burst.messages, burst.bytes);
        OutlierRow::new(places[0][it.index], what, burst.seconds, it.times)
    });
    let of_trips = found.round_trip_outliers.iter().map(|it| {
        OutlierRow::new(places[1][it.index], "round trip".to_owned(), trips[it.index], it.times)
    });
    OutlierRow::in_order(of_bursts.chain(of_trips))
}

fn measured(line: &Line<'_>, args: &SignatureArgs) -> Result<Measured, String> {
    let seconds = line.read("time", positive)?;
    match line.get("measure").unwrap_or("burst") {
        "rtt" => return Ok(Measured::RoundTrip(seconds)),
        "burst" => {}
        other => return Err(format!("measure: `{other}` is neither burst nor rtt")),
    }
    let number = |text: &str| {
        let number = text.parse::<u64>().ok().filter(|it| *it > 0);
        number.ok_or_else(|| format!("`{text}` is no number of messages: write 1 or more"))
    };
    let or_zero = |column| line.get(column).filter(|text| *text != "0").is_some();
    let delay = if or_zero("delay") { line.read("delay", measured::time)? } else { 0.0 };
    let size = |text: &str| measured::size(text)?.whole_bytes(args.kb.kb);
    let bytes = if or_zero("bytes") { line.read("bytes", size)? } else { 0 };
    Ok(Measured::Burst(Burst { messages: line.read("messages", number)?, delay, bytes, seconds }))
}

fn report(
    found: &Parameters,
    args: &SignatureArgs,
    [bursts, round_trips]: [usize; 2],
    outliers: Vec<OutlierRow>,
) -> Found {
    let fit = args.fit;
    let us = |figure: Figure| fit.interval(figure, 1e6);
    let (gap, g_seen, g_at_most) = match found.gap {
        Gap::Yes { gap } => (Some(gap), "yes", None),
        Gap::BehindOverhead { at_most } => (None, "behind-overhead", Some(at_most)),
        Gap::BehindWindow { at_most } => (None, "behind-window", Some(at_most)),
        Gap::Unknown { at_most } => (None, "unknown", at_most),
    };
    let mut notes: Vec<String> = found.missing.iter().map(ToString::to_string).collect();
    notes.extend(match g_seen {
        "behind-overhead" => {
            Some("g is hidden: the processor takes as long as the network, or longer".to_owned())
        }
        "behind-window" => {
            Some("g is hidden: the window takes as long as the network, or longer".to_owned())
        }
        "unknown" => {
            Some("g is not known without o_s + o_r: it may be hidden behind them".to_owned())
        }
        _ if args.window.is_none() => Some(
            "g is the effective gap: if few messages may be outstanding, give --window, for then \
             it may be (L + 2o)/w"
                .to_owned(),
        ),
        _ => None,
    });
    let steady = found.steady.iter().map(|it| SteadyRow {
        delay_us: micros(it.delay),
        bytes: it.bytes,
        interval_us: us(it.interval),
    });
    Found {
        send: found.send.map(us),
        receive: found.receive.map(us),
        overhead: found.overhead.map(us),
        gap: gap.map(us),
        g_seen,
        g_at_most_us: g_at_most.map(us),
        latency: found.latency.map(us),
        per_byte: found.per_byte.map(|it| fit.interval(it, 1e6 * args.kb.kb.bytes())),
        steady: steady.collect(),
        notes,
        bursts,
        round_trips,
        outliers: outliers.len(),
        outlier_measurements: outliers,
        confidence_percent: fit.confidence,
        kb: args.kb.kb.bytes(),
    }
}

fn print(found: &Found, fit: FitArgs, output: &Output) -> Result<(), Failure> {
    output.line(format_args!(
        "{} bursts, {} round trips, {} of them outliers; intervals of {} %",
        found.bursts, found.round_trips, found.outliers, found.confidence_percent
    ))?;
    let figures = [
        ("o_s", "us", &found.send),
        ("o_r", "us", &found.receive),
        ("o_s + o_r", "us", &found.overhead),
        ("g", "us", &found.gap),
        ("g at most", "us", &found.g_at_most_us),
        ("L", "us", &found.latency),
        ("G", "us/KB", &found.per_byte),
    ];
    let shown = figures.iter().filter_map(|(name, unit, figure)| {
        let [value, range] = figure.as_ref()?.cells();
        Some(vec![(*name).to_owned(), value, range, (*unit).to_owned()])
    });
    output
        .table(&[Text("what"), Number("value"), Text("interval"), Text("unit")], shown.collect())?;
    let steady = found.steady.iter().map(|it| {
        let [value, range] = it.interval_us.cells();
        vec![units::seconds(it.delay_us * 1e-6), it.bytes.to_string(), value, range]
    });
    output.heading("Steady intervals")?;
    output.table(
        &[Text("delay"), Number("bytes"), Number("us a message"), Text("interval")],
        steady.collect(),
    )?;
    print_outliers(&found.outlier_measurements, fit, output)?;
    for note in &found.notes {
        output.prose(note, 2)?;
    }
    Ok(())
}
