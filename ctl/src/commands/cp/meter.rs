//! How far it is: a bar on a terminal, now and then a line elsewhere, or nothing. On stderr, so that stdout has the
//! result alone.

use std::io::Write as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::clock;
use crate::units;

/// Between two lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Narrower terminals have no room for a bar beside the figures.
const BAR_COLUMNS: u16 = 70;

/// See the module.
#[derive(Debug)]
pub(super) enum Meter {
    Bar(ProgressBar),
    Lines(Lines),
    Silent,
}

#[derive(Debug)]
pub(super) struct Lines {
    what: &'static str,
    total: u64,
    from: u64,
    begun: Instant,
    next: Instant,
}

impl Meter {
    /// For `total` bytes, of which the first `from` are there.
    pub(super) fn new(quiet: bool, total: u64, from: u64) -> Self {
        let mut meter = if quiet {
            Self::Silent
        } else {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            if bar.is_hidden() {
                let now = clock::now();
                Self::Lines(Lines { what: "", total, from, begun: now, next: now })
            } else {
                bar.set_style(style());
                Self::Bar(bar)
            }
        };
        meter.begin("copied", from);
        meter
    }

    /// Something is counted from `from` on.
    pub(super) fn begin(&mut self, what: &'static str, from: u64) {
        match self {
            Self::Bar(bar) => {
                bar.set_message(what);
                bar.set_position(from);
                bar.reset_eta();
                bar.reset_elapsed();
            }
            Self::Lines(lines) => {
                let now = clock::now();
                *lines = Lines { what, from, begun: now, next: now + LINE_EVERY, ..*lines };
            }
            Self::Silent => {}
        }
    }

    /// It is so far.
    pub(super) fn set(&mut self, done: u64) {
        match self {
            Self::Bar(bar) => bar.set_position(done),
            Self::Lines(lines) => lines.set(done),
            Self::Silent => {}
        }
    }

    /// Something that is no failure yet.
    pub(super) fn note(&self, text: &str) {
        let write = || {
            let _ = writeln!(std::io::stderr(), "pipectl: {text}");
        };
        match self {
            Self::Bar(bar) => bar.suspend(write),
            Self::Lines(_) => write(),
            Self::Silent => {}
        }
    }

    /// Leaves no trace.
    pub(super) fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Lines {
    fn set(&mut self, done: u64) {
        let now = clock::now();
        if now < self.next {
            return;
        }
        self.next = now + LINE_EVERY;
        let rate = done.saturating_sub(self.from) as f64 / (now - self.begun).as_secs_f64();
        // A reader that is gone is no reason to stop the work.
        let _ = writeln!(
            std::io::stderr(),
            "{} {} of {}, {}, {} left",
            self.what,
            units::bytes(done),
            units::bytes(self.total),
            units::rate(rate),
            units::seconds(self.total.saturating_sub(done) as f64 / rate)
        );
    }
}

fn style() -> ProgressStyle {
    let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(80, |size| size.ws_col);
    let template = if columns >= BAR_COLUMNS {
        "{msg} {percent:>3} % [{wide_bar}] {done} of {all}, {rate}, {left} left"
    } else {
        "{percent:>3} %, {rate}, {left} left"
    };
    type Write<'a> = &'a mut dyn std::fmt::Write;
    let style = ProgressStyle::with_template(template).expect("the templates are constants");
    style
        .progress_chars("=> ")
        .with_key("done", |state: &ProgressState, to: Write<'_>| {
            let _ = write!(to, "{}", units::bytes(state.pos()));
        })
        .with_key("all", |state: &ProgressState, to: Write<'_>| {
            let _ = write!(to, "{}", units::bytes(state.len().unwrap_or(0)));
        })
        .with_key("rate", |state: &ProgressState, to: Write<'_>| {
            let _ = write!(to, "{}", units::rate(state.per_sec()));
        })
        .with_key("left", |state: &ProgressState, to: Write<'_>| {
            let _ = write!(to, "{}", units::uptime(state.eta().as_secs_f64()));
        })
}
