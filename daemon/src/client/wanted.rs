//! Checks a Hello against the limits. Pure: no memory is made here.

use piped_control::fault::OpenFault;
use piped_core::request::Class;
use piped_core::status::Status;
use piped_ring::handshake::{FEATURE_SPREAD, Hello, WELCOME_QUEUES_MAX};

use super::request;

const PAGE: u64 = 4096;

/// Requested sizes, within the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes of the first segment, whole pages; 0 if there is none yet.
    pub arena_bytes: u64,
    /// Entries of each queue, a power of two.
    pub entries: u32,
    /// Number of queues, at least one.
    pub queues: u32,
    /// Class of requests that name none.
    pub class: Class,
    /// Share beside other sessions of a class.
    pub weight: u8,
}

/// Checks a Hello against the configured limits.
///
/// # Errors
/// The largest values that are allowed.
pub fn check(hello: &Hello, limits: &piped_config::Client) -> Result<Wanted, OpenFault> {
    let arena_bytes = check_arena(hello.arena_bytes, 0, limits)?;
    if !hello.entries.is_power_of_two() || hello.entries > limits.entries_max {
        return Err(invalid(format!(
            "{} entries: take a power of two up to client.entries_max = {}",
            hello.entries, limits.entries_max
        )));
    }
    let queues_max = limits.queues_max.min(WELCOME_QUEUES_MAX);
    if !(1..=queues_max).contains(&hello.queues) {
        return Err(invalid(format!("{} queues: ask for 1 to {queues_max}", hello.queues)));
    }
    // A client is taken to wait for its answers unless it says otherwise.
    let class = request::class_of(hello.class, Class::Latency)
        .ok_or_else(|| invalid(format!("there is no class {}", hello.class)))?;
    // A missing weight counts as one.
    let weight = u8::try_from(hello.weight.max(1))
        .map_err(|_| invalid(format!("weight {}: ask for 1 to {}", hello.weight, u8::MAX)))?;
    Ok(Wanted { arena_bytes, entries: hello.entries, queues: hello.queues, class, weight })
}

/// How many shards are to serve a client: one, or as many as its queues can use.
#[must_use]
pub fn shards_wanted(hello: &Hello, limits: &piped_config::Client) -> usize {
    if hello.features & FEATURE_SPREAD == 0 { 1 } else { limits.queues_max as usize }
}

/// Length of another segment for an arena of `used` bytes, in whole pages.
///
/// # Errors
/// The limit, if it would be exceeded.
pub fn check_arena(bytes: u64, used: u64, limits: &piped_config::Client) -> Result<u64, OpenFault> {
    let max = limits.arena_bytes_max.0;
    let room = max.saturating_sub(used);
    bytes.checked_next_multiple_of(PAGE).filter(|&whole| whole <= room).ok_or_else(|| {
        let text = format!(
            "{bytes} bytes more than the {used} there are: client.arena_bytes_max is {max}"
        );
        OpenFault::new(Status::WouldBlock, text)
    })
}

fn invalid(text: String) -> OpenFault {
    OpenFault::new(Status::Invalid, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> piped_config::Client {
        piped_config::Client {
            arena_bytes_max: piped_config::Bytes(1 << 20),
            queues_max: 4,
            entries_max: 256,
            ..piped_config::Client::default()
        }
    }

    const HELLO: Hello =
        Hello { features: 0, arena_bytes: 4096, entries: 64, queues: 1, weight: 0, class: 0 };

    #[test]
    fn what_is_within_the_limits_is_granted_in_whole_pages() {
        let wanted = check(&Hello { arena_bytes: 4097, ..HELLO }, &limits()).expect("granted");
        assert_eq!((wanted.arena_bytes, wanted.class), (8192, Class::Latency));
        let bulk = check(&Hello { class: 2, arena_bytes: 0, ..HELLO }, &limits()).expect("granted");
        assert_eq!((bulk.arena_bytes, bulk.class, bulk.weight), (0, Class::Bulk, 1));
    }

    #[test]
    fn what_is_beyond_the_limits_is_refused_with_its_key() {
        let status = |hello| check(&hello, &limits()).map_err(|fault| fault.status);
        for entries in [0, 3, 512, u32::MAX] {
            assert_eq!(status(Hello { entries, ..HELLO }), Err(Status::Invalid), "{entries}");
        }
        for queues in [0, 5, u32::MAX] {
            assert_eq!(status(Hello { queues, ..HELLO }), Err(Status::Invalid), "{queues}");
        }
        assert_eq!(status(Hello { class: 3, ..HELLO }), Err(Status::Invalid));
        assert_eq!(status(Hello { weight: 256, ..HELLO }), Err(Status::Invalid));
        for arena_bytes in [(1 << 20) + 1, u64::MAX] {
            let fault = check(&Hello { arena_bytes, ..HELLO }, &limits()).expect_err("too much");
            assert_eq!(fault.status, Status::WouldBlock);
            assert!(fault.text.contains("client.arena_bytes_max"), "{}", fault.text);
        }
    }

    #[test]
    fn a_client_is_on_one_shard_unless_it_says_otherwise() {
        assert_eq!(shards_wanted(&HELLO, &limits()), 1);
        assert_eq!(shards_wanted(&Hello { features: FEATURE_SPREAD, ..HELLO }, &limits()), 4);
    }

    #[test]
    fn an_arena_grows_to_its_limit_and_not_beyond() {
        let limits = limits();
        assert_eq!(check_arena(4096, (1 << 20) - 4096, &limits), Ok(4096));
        assert!(check_arena(4097, (1 << 20) - 4096, &limits).is_err());
        assert!(check_arena(1, 1 << 20, &limits).is_err());
    }
}
