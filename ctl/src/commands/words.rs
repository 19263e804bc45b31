//! Words that several commands use.

use piped_core::request::Class;
use piped_core::status::Status;

pub(crate) const fn class(class: Class) -> &'static str {
    match class {
        Class::Latency => "latency",
        Class::Bulk => "bulk",
    }
}

/// A status as people read it: `deadline exceeded`.
pub(crate) fn status(status: Status) -> String {
    status.name().replace('_', " ")
}

/// Role of this node on a peer's lanes.
pub(crate) const fn role(inbound: bool) -> &'static str {
    if inbound { "asks us" } else { "we ask" }
}

/// Names as one word; `empty` for none.
pub(crate) fn list(names: &[String], empty: &str) -> String {
    if names.is_empty() { empty.to_owned() } else { names.join(", ") }
}
