//! `pipectl model buffer`: what early messages need until they are copied out.

use clap::{Args as ClapArgs, ValueEnum};
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_config::measured::{self, KbArgs, Size};
use piped_config::units;
use piped_model::buffer::{self, Consumer, Mode};
use serde::Serialize;

use super::micros;

const AFTER_HELP: &str = "\
Example, the IBM SP2 of the paper: four messages of 4000 bytes, one every 4.76 us
  pipectl model buffer --messages 4 --bytes 4000 --lambda 105MB/s --mu 91MB/s --alpha 9us \\
    --delay 4.76us";

/// Arguments of `pipectl model buffer`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP, allow_negative_numbers = true)]
pub(crate) struct BufferArgs {
    /// How many messages come
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,

    /// Bytes of each message
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    bytes: Size,

    /// How fast a message arrives [bytes per us, or as in 105MB/s]
    #[arg(long, value_name = "BANDWIDTH", value_parser = measured::rate)]
    lambda: f64,

    /// How fast a message is copied out [bytes per us, or as in 91MB/s]
    #[arg(long, value_name = "BANDWIDTH", value_parser = measured::rate)]
    mu: f64,

    /// What is spent before each copy (us)
    #[arg(long, value_name = "TIME", value_parser = measured::time)]
    alpha: f64,

    /// From the first byte of a message to that of the next (us)
    #[arg(long, value_name = "TIME", value_parser = measured::time)]
    delay: f64,

    /// Whether a byte can be copied before it has arrived
    #[arg(long, value_enum, default_value_t = ModeWord::Causal)]
    mode: ModeWord,

    #[command(flatten)]
    kb: KbArgs,
}

/// [`Mode`] as words of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ModeWord {
    /// Bytes are copied early, as in the paper: too small where copying is faster than arrival
    Paper,
    /// Bytes are copied after they have arrived: what a real consumer needs
    Causal,
}

impl From<ModeWord> for Mode {
    fn from(word: ModeWord) -> Self {
        match word {
            ModeWord::Paper => Self::Paper,
            ModeWord::Causal => Self::Causal,
        }
    }
}

/// The answer as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    required_bytes: f64,
    mode: ModeWord,
    /// Bytes of all messages together.
    total_bytes: u64,
    /// When the buffer is fullest.
    peak_us: f64,
    /// When the last message is copied out.
    end_us: f64,
}

pub(crate) fn run(args: &BufferArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let bytes = args.bytes.whole_bytes(args.kb.kb);
    let bytes = bytes.map_err(|error| Failure::usage(format!("--bytes: {error}")))?;
    let total_bytes = u64::from(args.messages).checked_mul(bytes).ok_or_else(|| {
        Failure::usage("--messages times --bytes are more bytes than can be counted: give fewer")
    })?;
    let arrivals = buffer::burst(args.messages as usize, bytes as f64, args.lambda, args.delay);
    let consumer = Consumer { startup_seconds: args.alpha, bytes_per_second: args.mu };
    let required = |mode: ModeWord| {
        buffer::required(&arrivals, consumer, mode.into())
            .map_err(|error| Failure::usage(error.to_string()))
    };
    let need = required(args.mode)?;
    if json {
        return output::json(Report {
            required_bytes: need.bytes,
            mode: args.mode,
            total_bytes,
            peak_us: micros(need.peak_seconds),
            end_us: micros(need.end_seconds),
        });
    }
    let exact = format!("{:.0} bytes ({})", whole(need.bytes), share(need.bytes, total_bytes));
    output.field("required", &exact)?;
    output.field("peak", &format!("after {}", units::seconds(need.peak_seconds)))?;
    output.field("end", &format!("after {}", units::seconds(need.end_seconds)))?;
    let causal = required(ModeWord::Causal)?.bytes;
    if causal > need.bytes + 0.5 {
        output.prose(
            &format!(
                "In this mode bytes are copied before they have arrived; a real consumer needs \
                 {:.0} bytes (--mode causal).",
                whole(causal)
            ),
            0,
        )?;
    }
    Ok(())
}

/// Bytes that are enough; not one more for the last place of a sum.
fn whole(bytes: f64) -> f64 {
    (bytes * (1.0 - 1e-12)).ceil()
}

fn share(part: f64, whole: u64) -> String {
    format!("{:.1} % of {}", 100.0 * part / whole as f64, units::bytes(whole))
}
