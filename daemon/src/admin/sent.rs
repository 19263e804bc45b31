//! Why connections to the doors for questions were sent away: the words of metrics.

/// A door for questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The operators'.
    Admin,
    /// `[metrics] address`.
    Metrics,
}

impl Door {
    /// Both, each at the place of its number.
    pub(crate) const ALL: [Self; 2] = [Self::Admin, Self::Metrics];

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }
}

/// Why somebody was sent away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All places are taken by such that are served.
    Busy,
    /// It may ask for nothing.
    Stranger,
    /// It was silent when another one needed its place.
    Displaced,
    /// It asked nothing in time.
    Silent,
    /// It did not take its answer in time.
    Unread,
}

impl Sent {
    /// All of them, each at the place of its number.
    pub(crate) const ALL: [Self; 5] =
        [Self::Busy, Self::Stranger, Self::Displaced, Self::Silent, Self::Unread];

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Stranger => "stranger",
            Self::Displaced => "displaced",
            Self::Silent => "silent",
            Self::Unread => "unread",
        }
    }
}

/// Connections sent away, by [`Door`] and [`Sent`].
pub(crate) type SentAway = [[u64; Sent::ALL.len()]; Door::ALL.len()];
