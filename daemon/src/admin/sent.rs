//! Reasons for which connections with questions were sent away, in the words of metrics.

/// Sockets that take questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// Socket of the operators.
    Admin,
    /// Port at `[metrics] address`.
    Metrics,
}

impl Door {
    /// Both sockets, each at the place of its number.
    pub(crate) const ALL: [Self; 2] = [Self::Admin, Self::Metrics];

    /// Name of the socket.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }
}

/// Reason why a connection was sent away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All places are taken by connections that are served.
    Busy,
    /// The user may ask for nothing.
    Stranger,
    /// The connection was silent when another one needed its place.
    Displaced,
    /// The connection asked nothing in time.
    Silent,
    /// The connection did not take its answer in time.
    Unread,
}

impl Sent {
    /// All reasons, each at the place of its number.
    pub(crate) const ALL: [Self; 5] =
        [Self::Busy, Self::Stranger, Self::Displaced, Self::Silent, Self::Unread];

    /// Name of the reason.
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
