//! Progress of a copy: a bar on a terminal, now and then a line elsewhere, or nothing. Written to
//! stderr, so that stdout has only the result.

use std::collections::VecDeque;
use std::io::Write as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::clock;
use crate::units;

/// Time between two lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Narrower terminals have no room for a bar beside the figures.
const BAR_COLUMNS: u16 = 70;

/// Shows the progress of a copy.
#[derive(Debug)]
pub(super) struct Meter {
    sink: Sink,
    total: u64,
    what: &'static str,
    rate: Rate,
}

#[derive(Debug)]
enum Sink {
    Bar {
        bar: ProgressBar,
        /// Whether it has columns for a bar.
        wide: bool,
        /// Whether it has made room for words.
        waits: bool,
    },
    /// Lines, with the time of the next one.
    Lines(Instant),
    Silent,
}

impl Meter {
    /// Meter for `total` bytes, of which the first `from` are there.
    pub(super) fn new(quiet: bool, total: u64, from: u64) -> Self {
        let now = clock::now();
        let sink = if quiet {
            Sink::Silent
        } else {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            if bar.is_hidden() {
                Sink::Lines(now + LINE_EVERY)
            } else {
                let window = rustix::termios::tcgetwinsize(std::io::stderr());
                let wide = window.map_or(80, |size| size.ws_col) >= BAR_COLUMNS;
                Sink::Bar { bar, wide, waits: true }
            }
        };
        let mut meter = Self { sink, total, what: "", rate: Rate::default() };
        meter.begin("copied", from);
        meter
    }

    /// Begins to count something from `from` on, at a rate of its own.
    pub(super) fn begin(&mut self, what: &'static str, from: u64) {
        let now = clock::now();
        (self.what, self.rate) = (what, Rate::default());
        if let Sink::Lines(next) = &mut self.sink {
            *next = now + LINE_EVERY;
        }
        self.show(from, now, None);
    }

    /// Shows that `done` bytes are reached.
    pub(super) fn set(&mut self, done: u64) {
        self.show(done, clock::now(), None);
    }

    /// Shows that `done` bytes are reached, and why the copy waits.
    pub(super) fn wait(&mut self, done: u64, why: &str) {
        self.show(done, clock::now(), Some(why));
    }

    fn show(&mut self, done: u64, now: Instant, why: Option<&str>) {
        self.rate.handle(done, now);
        let figures = || {
            let left = self.total.saturating_sub(done);
            why.map_or_else(|| self.rate.words(left), str::to_owned)
        };
        let far = || format!("{} of {}", units::bytes(done), units::bytes(self.total));
        match &mut self.sink {
            Sink::Bar { bar, wide, waits } => {
                if *waits != why.is_some() || bar.message().is_empty() {
                    *waits = why.is_some();
                    bar.set_style(style(*wide, *waits));
                }
                bar.set_prefix(self.what);
                bar.set_message(match (*wide, &why) {
                    (true, None) => format!("{}, {}", far(), figures()),
                    _ => figures(),
                });
                bar.set_position(done);
            }
            Sink::Lines(next) if now >= *next => {
                *next = now + LINE_EVERY;
                // A closed stderr is no reason to stop the work.
                let _ = writeln!(std::io::stderr(), "{} {}, {}", self.what, far(), figures());
            }
            Sink::Lines(_) | Sink::Silent => {}
        }
    }

    /// Shows a note about something that is no failure yet.
    pub(super) fn note(&self, text: &str) {
        let write = || {
            let _ = writeln!(std::io::stderr(), "pipectl: {}", piped_text::shown_lines(text));
        };
        match &self.sink {
            Sink::Bar { bar, .. } => bar.suspend(write),
            Sink::Lines(_) => write(),
            Sink::Silent => {}
        }
    }

    /// Removes the bar or line.
    pub(super) fn finish(&self) {
        if let Sink::Bar { bar, .. } = &self.sink {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Recent rate of a copy.
#[derive(Debug, Default)]
struct Rate {
    /// Progress at recent times, the oldest first.
    marks: VecDeque<(Instant, u64)>,
}

/// Older marks say nothing about the present rate.
const LATELY: Duration = Duration::from_secs(10);

/// A shorter time is not enough to tell a rate.
const ENOUGH: Duration = Duration::from_millis(500);

/// Time between two marks.
const MARK_EVERY: Duration = Duration::from_millis(250);

/// Longest remaining time that is shown; a longer one is unknown.
const FORESEEN: f64 = 30.0 * 86_400.0;

impl Rate {
    fn handle(&mut self, done: u64, now: Instant) {
        if self.marks.back().is_some_and(|&(_, last)| done < last) {
            // Some bytes are copied again: the old count does not apply.
            self.marks.clear();
        }
        while self.marks.get(1).is_some_and(|&(at, _)| now.saturating_duration_since(at) >= LATELY)
        {
            self.marks.pop_front();
        }
        // The newest mark is the present; those before it are some time apart.
        let before = self.marks.len().checked_sub(2).map(|at| self.marks[at].0);
        if before.is_some_and(|before| now.saturating_duration_since(before) < MARK_EVERY) {
            self.marks.pop_back();
        }
        self.marks.push_back((now, done));
    }

    /// Bytes in a second; nothing if that is not known yet, or nothing moves.
    fn per_second(&self) -> Option<f64> {
        let (&(begin, from), &(end, to)) = (self.marks.front()?, self.marks.back()?);
        let time = end.saturating_duration_since(begin);
        (time >= ENOUGH && to > from).then(|| (to - from) as f64 / time.as_secs_f64())
    }

    /// Remaining time in words for this many bytes.
    fn words(&self, left: u64) -> String {
        let Some(rate) = self.per_second() else { return "time left unknown".to_owned() };
        let seconds = left as f64 / rate;
        match seconds {
            0.0..FORESEEN => {
                format!("{}, {} left", units::rate(rate), units::uptime(seconds.ceil()))
            }
            _ => format!("{}, time left unknown", units::rate(rate)),
        }
    }
}

fn style(wide: bool, waits: bool) -> ProgressStyle {
    let template = match (wide, waits) {
        (true, false) => "{prefix} {percent:>3} % [{wide_bar}] {msg}",
        (true, true) => "{prefix} {percent:>3} %, {wide_msg}",
        (false, _) => "{percent:>3} %, {wide_msg}",
    };
    let style = ProgressStyle::with_template(template).expect("the templates are constants");
    style.progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_foretold_before_anything_moved() {
        let (begin, mut rate) = (clock::now(), Rate::default());
        let at = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        // The first bytes of a slow copy: neither "0 s left" nor years.
        for step in 0..40 {
            rate.handle(0, at(f64::from(step) * 0.05));
            assert_eq!(rate.words(5 << 20), "time left unknown", "{step}");
        }
        rate.handle(1 << 20, at(2.0));
        assert_eq!(rate.words(5 << 20), "512 KiB/s, 10 s left");
        assert_eq!(rate.words(0), "512 KiB/s, 0 s left");
        assert_eq!(rate.words(u64::MAX), "512 KiB/s, time left unknown");
    }

    #[test]
    fn the_rate_is_of_lately_and_none_when_nothing_moves() {
        let (begin, mut rate) = (clock::now(), Rate::default());
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        for second in 0..60 {
            rate.handle(second << 20, at(second));
        }
        assert_eq!(rate.per_second(), Some(1_048_576.0));
        for second in 60..80 {
            rate.handle(59 << 20, at(second));
        }
        assert_eq!(rate.per_second(), None);
        assert!(rate.marks.len() < 50);
        // Bytes that are copied again are counted anew.
        rate.handle(30 << 20, at(80));
        rate.handle(31 << 20, at(81));
        assert_eq!(rate.per_second(), Some(1_048_576.0));
    }
}
