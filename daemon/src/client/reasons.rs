//! Reasons for which clients are turned away or evicted, in the words of logs, metrics and the
//! admin API.

use piped_ring::ClientFault;
use piped_ring::handshake::HandshakeFault;
use piped_ring::handshake::fds::ReceiveFault;

/// Reason why the daemon ended a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// The submission ring's index is not possible.
    SubmissionRing,
    /// The completion ring's index is not possible.
    CompletionRing,
    /// A completion found no room that was reserved for it.
    CompletionsLost,
    /// A message on the control socket breaks the rules.
    Message,
    /// A message has a number of file descriptors that it does not take.
    Descriptors,
    /// The client does not take its replies.
    Deaf,
}

impl Eviction {
    /// All reasons, each at the place of its number.
    pub const ALL: [Self; 6] = [
        Self::SubmissionRing,
        Self::CompletionRing,
        Self::CompletionsLost,
        Self::Message,
        Self::Descriptors,
        Self::Deaf,
    ];

    /// Name of the reason.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SubmissionRing => "submission_ring",
            Self::CompletionRing => "completion_ring",
            Self::CompletionsLost => "completions_lost",
            Self::Message => "message",
            Self::Descriptors => "descriptors",
            Self::Deaf => "deaf",
        }
    }
}

impl From<&ReceiveFault> for Eviction {
    fn from(fault: &ReceiveFault) -> Self {
        match fault {
            ReceiveFault::TooManyFds => Self::Descriptors,
            // A client that hung up is not evicted.
            ReceiveFault::TooLong | ReceiveFault::Closed | ReceiveFault::System(_) => Self::Message,
        }
    }
}

impl From<&HandshakeFault> for Eviction {
    fn from(fault: &HandshakeFault) -> Self {
        match fault {
            HandshakeFault::FdCount { .. } => Self::Descriptors,
            _ => Self::Message,
        }
    }
}

impl From<&ClientFault> for Eviction {
    fn from(fault: &ClientFault) -> Self {
        match fault {
            ClientFault::SubmissionIndex(_) => Self::SubmissionRing,
            ClientFault::CompletionIndex(_) => Self::CompletionRing,
        }
    }
}

/// Reason why a client that connected got no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeRefusal {
    /// Too many clients have connected and not said Hello.
    Busy,
    /// `[access]` does not name its user.
    Stranger,
    /// The client was silent when another one needed its place.
    Displaced,
    /// The client said no Hello in time, or left before.
    NoHello,
    /// The first message was not a Hello.
    Malformed,
    /// The number of sessions is at its limit.
    Sessions,
    /// The Hello asked for more than the limits allow.
    Limits,
    /// The daemon has no memory, descriptors or places for it, or the client did not take its
    /// Welcome.
    Resources,
}

impl HandshakeRefusal {
    /// All reasons, each at the place of its number.
    pub const ALL: [Self; 8] = [
        Self::Busy,
        Self::Stranger,
        Self::Displaced,
        Self::NoHello,
        Self::Malformed,
        Self::Sessions,
        Self::Limits,
        Self::Resources,
    ];

    /// Name of the reason.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Stranger => "stranger",
            Self::Displaced => "displaced",
            Self::NoHello => "no_hello",
            Self::Malformed => "malformed",
            Self::Sessions => "sessions",
            Self::Limits => "limits",
            Self::Resources => "resources",
        }
    }
}

/// Numbers of evictions by [`Eviction`].
pub type Evictions = [u64; Eviction::ALL.len()];

/// Numbers of refused handshakes by [`HandshakeRefusal`].
pub type Refusals = [u64; HandshakeRefusal::ALL.len()];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_place() {
        assert!(Eviction::ALL.iter().enumerate().all(|(at, &it)| it as usize == at));
        assert!(HandshakeRefusal::ALL.iter().enumerate().all(|(at, &it)| it as usize == at));
    }
}
