//! Li and Taylor, "System buffer size requirements": figures 3 to 9.
//!
//! All of them show the buffer that messages need against the size of a message, and vary one
//! parameter of an IBM SP2.

use piped_model::buffer::{Consumer, Mode, burst, required};

use super::chart::{Axis, Content, Figure, Mark, Series, linear};

/// What the paper measured (table 1), and its usual burst.
#[derive(Debug, Clone, Copy)]
struct Setting {
    messages: usize,
    /// `lambda`: bandwidth of the network, in bytes per us.
    arrival: f64,
    /// `mu`: rate of copies out of the buffer, in bytes per us.
    copy: f64,
    /// `alpha`: start-up of a copy, in us.
    startup: f64,
    /// The delay between two messages, as a multiple of the time `c` in which one arrives.
    delay: f64,
    mode: Mode,
}

const SP2: Setting = Setting {
    messages: 4,
    arrival: 105.0,
    copy: 91.0,
    startup: 9.0,
    delay: 1.0 / 8.0,
    mode: Mode::Paper,
};

const MICRO: f64 = 1e-6;

impl Setting {
    /// The requirement in bytes for messages of so many bytes.
    fn required(&self, bytes: f64) -> Option<f64> {
        let rate = self.arrival / MICRO;
        let arrivals = burst(self.messages, bytes, rate, self.delay * bytes / rate);
        let consumer =
            Consumer { startup_seconds: self.startup * MICRO, bytes_per_second: self.copy / MICRO };
        Some(required(&arrivals, consumer, self.mode).ok()?.bytes)
    }

    fn series(self, name: &str, mark: Mark) -> Series {
        Series::of(name, mark, linear(20.0, 4000.0, 199), move |bytes| self.required(bytes))
    }
}

/// All figures of this paper.
pub(crate) fn figures() -> Vec<Figure> {
    vec![
        delays(),
        startups(),
        arrivals_close(),
        arrivals_far(),
        copies(),
        counts_close(),
        counts_far(),
    ]
}

/// `what` is what all curves have in common besides the machine.
fn figure(
    name: &'static str,
    title: &str,
    source: &'static str,
    what: &str,
    caption: &str,
    series: Vec<Series>,
) -> Figure {
    let Setting { arrival, copy, startup, .. } = SP2;
    Figure {
        name,
        title: title.to_owned(),
        source,
        parameters: format!(
            "λ = {arrival} MB/s, µ = {copy} MB/s, α = {startup} µs; {what}; c = bytes/λ"
        ),
        caption: caption.to_owned(),
        content: Content::Curves {
            x: Axis::from_zero("message size (bytes)"),
            y: Axis::from_zero("buffer (bytes)"),
            series,
        },
    }
}

fn delays() -> Figure {
    let at = |name, delay| Setting { delay, ..SP2 }.series(name, Mark::Line);
    figure(
        "buffers-03",
        "Buffer against the delay between messages",
        "Li and Taylor, figure 3",
        "4 messages",
        "The delay in times c that one message takes to arrive (λ 105 MB/s, µ 91 MB/s, alpha \
         9 µs). At 4000 bytes 12052 bytes are needed with c/8, 8971 with c/2, and 11571 with c/4: \
         the paper prints 11751, two digits transposed. Below c/2 the requirement does change, \
         though little; the paper says it does not.",
        vec![
            at("c/8", 1.0 / 8.0),
            at("c/4", 1.0 / 4.0),
            at("c/2", 1.0 / 2.0),
            at("c", 1.0),
            at("2c", 2.0),
        ],
    )
}

fn startups() -> Figure {
    let at = |name, startup| Setting { startup, ..SP2 }.series(name, Mark::Line);
    figure(
        "buffers-04",
        "Buffer against the receive latency",
        "Li and Taylor, figure 4",
        "4 messages, delay c/8",
        "The start-up α is spent before every message. At 4000 bytes its 9 µs cost 819 bytes \
         (12052 against 11233).",
        vec![at("α = 18 µs", 18.0), at("α = 9 µs", 9.0), at("α = 0", 0.0)],
    )
}

fn arrivals_at(delay: f64) -> Vec<Series> {
    let at = |name, arrival| Setting { arrival, delay, ..SP2 }.series(name, Mark::Line);
    vec![at("2λ", 210.0), at("λ", 105.0)]
}

fn arrivals_close() -> Figure {
    figure(
        "buffers-05",
        "Buffer against the network's bandwidth, short delay",
        "Li and Taylor, figure 5",
        "4 messages, delay c/8",
        "c is the time one message takes at the bandwidth drawn, so the delay halves when λ \
         doubles. At 4000 bytes: 14436 against 12052 bytes, a factor of 1.2.",
        arrivals_at(1.0 / 8.0),
    )
}

fn arrivals_far() -> Figure {
    figure(
        "buffers-06",
        "Buffer against the network's bandwidth, long delay",
        "Li and Taylor, figure 6",
        "4 messages, delay 2c",
        "With a delay of 2c the receiver keeps up at 105 MB/s and does not at 210. At 4000 bytes: \
         6324 against 1352 bytes, a factor of 4.7.",
        arrivals_at(2.0),
    )
}

fn copies() -> Figure {
    let at = |name, copy, mode, mark| Setting { copy, mode, ..SP2 }.series(name, mark);
    figure(
        "buffers-07",
        "Buffer against the receiver's copy rate",
        "Li and Taylor, figure 7",
        "4 messages, delay c/8",
        "Doubling µ takes the requirement at 4000 bytes from 12052 to 10109 bytes in the paper's \
         model, which lets a copy at 182 MB/s run ahead of an arrival at 105 MB/s: it copies bytes \
         that are not there yet. The causal model does not; it needs more. With µ below λ \
         both are the same.",
        vec![
            at("µ, both models", 91.0, Mode::Causal, Mark::Line),
            at("2µ, causal", 182.0, Mode::Causal, Mark::Line),
            at("2µ, paper", 182.0, Mode::Paper, Mark::Dashed),
        ],
    )
}

fn counts_at(delay: f64) -> Vec<Series> {
    let at = |name, messages, mark| Setting { messages, delay, ..SP2 }.series(name, mark);
    vec![at("6 messages", 6, Mark::Line), at("4 messages", 4, Mark::Dashed)]
}

fn counts_close() -> Figure {
    figure(
        "buffers-08",
        "Buffer against the number of messages, short delay",
        "Li and Taylor, figure 8",
        "delay c/8",
        "Messages that come almost together all lie in the buffer: at 4000 bytes 20000 bytes for \
         six, 12052 for four, a factor of 1.65.",
        counts_at(1.0 / 8.0),
    )
}

fn counts_far() -> Figure {
    figure(
        "buffers-09",
        "Buffer against the number of messages, long delay",
        "Li and Taylor, figure 9",
        "delay 2c",
        "With a delay of 2c a message of more than about 1200 bytes is gone before the next one \
         comes, and their number does not matter.",
        counts_at(2.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/theory.md §15: all rows within a byte.
    #[test]
    fn the_papers_rows_are_read_off_the_figures() {
        for (figure, series, bytes) in [
            (delays(), "c/8", 12052.0),
            (delays(), "c/4", 11571.0),
            (delays(), "c/2", 8971.0),
            (delays(), "2c", 1352.0),
            (startups(), "α = 0", 11233.0),
            (startups(), "α = 9 µs", 12052.0),
            (arrivals_close(), "2λ", 14436.0),
            (arrivals_far(), "λ", 1352.0),
            (arrivals_far(), "2λ", 6324.0),
            (copies(), "2µ, paper", 10109.0),
            (copies(), "µ, both models", 12052.0),
            (counts_close(), "6 messages", 20000.0),
        ] {
            let found = figure.value(series, 4000.0);
            assert!((found - bytes).abs() < 1.0, "{} {series}: {found}", figure.name);
        }
    }

    #[test]
    fn a_causal_consumer_needs_more_only_where_copies_would_run_ahead() {
        let figure = copies();
        let (paper, causal) = (figure.points("2µ, paper"), figure.points("2µ, causal"));
        assert!(paper.iter().zip(causal).all(|(paper, causal)| causal.1 >= paper.1 - 1e-6));
        assert!(figure.value("2µ, causal", 4000.0) > 10110.0);
        for bytes in [400.0, 4000.0] {
            assert_eq!(SP2.required(bytes), Setting { mode: Mode::Causal, ..SP2 }.required(bytes));
        }
    }

    #[test]
    fn far_messages_need_the_same_whatever_their_number() {
        let figure = counts_far();
        for (six, four) in figure.points("6 messages").iter().zip(figure.points("4 messages")) {
            assert!(six.0 < 1300.0 || (six.1 - four.1).abs() < 1e-6, "{six:?} {four:?}");
        }
    }
}
