//! Why a call failed: a number for programs and a text for people.

use std::borrow::Cow;

use crate::status::piped_status;

/// The reason why a call failed.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) status: piped_status,
    pub(crate) text: Cow<'static, str>,
}

impl Fault {
    /// A fault with the text that belongs to its number.
    pub(crate) fn fixed(status: piped_status) -> Self {
        Self { status, text: Cow::Borrowed(status.text().to_str().unwrap_or_default()) }
    }

    /// A fault with a text for this occasion.
    pub(crate) fn told(status: piped_status, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }

    /// The fault of a request that ended; its message is there already.
    pub(crate) fn of_result(status: piped_status) -> Self {
        Self { status, text: Cow::Borrowed("") }
    }

    /// An argument makes no sense.
    pub(crate) fn argument(text: &'static str) -> Self {
        Self::told(piped_status::PIPED_ARGUMENT, text)
    }
}
