//! Sessions: connect, reconnect, and what a session says of itself.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::time::Duration;

use client_lib::{Class, Client, ClientBuilder, WaitPolicy};
use zerocopy::{FromBytes, IntoBytes};

use crate::border::{self, call, put, wanted};
use crate::fault::Fault;
use crate::status::{self, piped_status};
use crate::table::{Kind, Table};

/// A session with the daemon of this node: memory, handles, queues. For all threads. The session
/// ends when the client and everything made with it has been freed.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_client {
    _name: [u8; 0],
}

pub(crate) static CLIENTS: Table<Client> = Table::new(Kind::Client);

/// How urgent requests are.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_class {
    /// The class that the session named when it connected, or else the daemon's default.
    PIPED_CLASS_DEFAULT = 0,
    /// Somebody is blocked on it: goes first.
    PIPED_CLASS_LATENCY = 1,
    /// Throughput matters more than latency.
    PIPED_CLASS_BULK = 2,
}

/// How a queue waits: how long it looks for completions before it sleeps. On the CPU of
/// piped_shard_cpu no policy spins: there a spin only keeps the shard from what is waited for.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_wait_policy {
    /// Wait as the daemon recommends.
    PIPED_WAIT_DEFAULT = 0,
    /// Spin briefly where a CPU is to spare.
    PIPED_WAIT_BALANCED = 1,
    /// Spin long before sleeping.
    PIPED_WAIT_LATENCY = 2,
    /// Sleep at once, and never spin.
    PIPED_WAIT_THROUGHPUT = 3,
    /// Spin as long as spin_ns says at most.
    PIPED_WAIT_CUSTOM = 4,
}

/// How to connect. Set size to sizeof, and what shall differ from the defaults; 0 is always the
/// default.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct piped_connect_options {
    /// Set to sizeof(struct piped_connect_options).
    pub size: u32,
    /// Requests each queue can have under way. Default: 255.
    pub depth: u32,
    /// Bytes of the arena's first segment, and the least it grows by later. Default: 16 MiB.
    pub arena_bytes: u64,
    /// How long opening, growing and connecting may take, in nanoseconds. Default: 30 s.
    pub timeout_ns: u64,
    /// Not 0: go on with the next daemon when this one ends, and let that take so long, in
    /// nanoseconds; see piped_reconnect.
    pub reconnect_ns: u64,
    /// With PIPED_WAIT_CUSTOM, the longest spin in nanoseconds; 0 sleeps at once.
    pub spin_ns: u64,
    /// The class (piped_class) of requests that name none.
    pub request_class: u32,
    /// The share of bytes among clients of the same class, 1 to 255. Default: 1.
    pub weight: u32,
    /// How queues wait (piped_wait_policy).
    pub wait_policy: u32,
    /// 1: all shards of the daemon serve the client's queues, each queue one, by turns, instead
    /// of one shard: for programs with a queue for each of several threads. Things of other nodes,
    /// receives and waits still pass by one. Default: 0.
    pub spread: u32,
}

/// Class by its number.
pub(crate) fn class(number: u32) -> Result<Class, Fault> {
    const DEFAULT: u32 = piped_class::PIPED_CLASS_DEFAULT as u32;
    const LATENCY: u32 = piped_class::PIPED_CLASS_LATENCY as u32;
    const BULK: u32 = piped_class::PIPED_CLASS_BULK as u32;
    match number {
        DEFAULT => Ok(Class::Session),
        LATENCY => Ok(Class::Latency),
        BULK => Ok(Class::Bulk),
        _ => Err(Fault::argument("request_class is none of piped_class")),
    }
}

/// Policy by its number; none is the daemon's.
pub(crate) fn wait_policy(number: u32, spin_ns: u64) -> Result<Option<WaitPolicy>, Fault> {
    const DEFAULT: u32 = piped_wait_policy::PIPED_WAIT_DEFAULT as u32;
    const BALANCED: u32 = piped_wait_policy::PIPED_WAIT_BALANCED as u32;
    const LATENCY: u32 = piped_wait_policy::PIPED_WAIT_LATENCY as u32;
    const THROUGHPUT: u32 = piped_wait_policy::PIPED_WAIT_THROUGHPUT as u32;
    const CUSTOM: u32 = piped_wait_policy::PIPED_WAIT_CUSTOM as u32;
    match number {
        DEFAULT => Ok(None),
        BALANCED => Ok(Some(WaitPolicy::Balanced)),
        LATENCY => Ok(Some(WaitPolicy::Latency)),
        THROUGHPUT => Ok(Some(WaitPolicy::Throughput)),
        CUSTOM => Ok(Some(WaitPolicy::Custom { spin: Duration::from_nanos(spin_ns) })),
        _ => Err(Fault::argument("wait_policy is none of piped_wait_policy")),
    }
}

fn builder(options: &piped_connect_options) -> Result<ClientBuilder, Fault> {
    let mut builder = ClientBuilder::new().class(class(options.request_class)?);
    if options.spread > 1 {
        return Err(Fault::argument("spread is neither 0 nor 1"));
    }
    if options.weight > u32::from(u8::MAX) {
        return Err(Fault::argument("weight is more than 255"));
    }
    if options.depth > 0 {
        builder = builder.depth(options.depth);
    }
    if options.arena_bytes > 0 {
        builder = builder.arena_bytes(options.arena_bytes);
    }
    if options.timeout_ns > 0 {
        builder = builder.timeout(Duration::from_nanos(options.timeout_ns));
    }
    if options.reconnect_ns > 0 {
        builder = builder.reconnect(Duration::from_nanos(options.reconnect_ns));
    }
    if let Some(policy) = wait_policy(options.wait_policy, options.spin_ns)? {
        builder = builder.wait(policy);
    }
    Ok(builder.weight(options.weight).spread(options.spread == 1))
}

/// The library's version: major << 16 | minor << 8 | patch.
#[unsafe(no_mangle)]
pub extern "C" fn piped_version() -> u32 {
    const fn part(text: &str) -> u32 {
        let (mut value, mut at) = (0, 0);
        while at < text.len() {
            value = value * 10 + (text.as_bytes()[at] - b'0') as u32;
            at += 1;
        }
        value
    }
    const VERSION: u32 = part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | part(env!("CARGO_PKG_VERSION_PATCH"));
    VERSION
}

/// Why the last call of this thread that failed did so: cause and, if there is one, the fix. Empty
/// if none did. Never NULL. The text is the thread's, and changes with its next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn piped_last_message() -> *const c_char {
    border::last_message()
}

/// The meaning of a piped_status. Never NULL; static.
#[unsafe(no_mangle)]
pub extern "C" fn piped_status_text(status: i32) -> *const c_char {
    status::of_number(status).map_or(c"no status of this library", piped_status::text).as_ptr()
}

/// Connect to the daemon that listens on the unix socket `path`. NULL: the one that the environment
/// variable PIPED_CLIENT_SOCKET names, or else /run/piped/client.sock. `options` may be NULL. Free
/// the client with piped_client_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_connect(
    path: *const c_char,
    options: *const piped_connect_options,
    client: Option<&mut MaybeUninit<*mut piped_client>>,
) -> piped_status {
    call(|| {
        wanted(&client)?;
        let builder = builder(&border::sized(options)?)?;
        let made = match path.is_null() {
            true => builder.connect_default(),
            false => builder.connect(border::path(path)?),
        }?;
        put(client, CLIENTS.insert(made)?)
    })
}

/// Free a client. What was made with it stays until it is freed itself. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_client_free(client: *mut piped_client) -> piped_status {
    call(|| {
        if client.is_null() {
            return Ok(());
        }
        CLIENTS.remove(client, |_| Ok::<_, Fault>(())).map(drop)
    })
}

/// Go on with the next daemon after the end of the one before: wait for it as long as reconnect_ns
/// allows, make a new session and open everything again. At once if the connection stands. Any
/// thread may call it.
///
/// Handles are open again; `opened` and `lost`, which may be NULL, count them. Queues carry on,
/// with another descriptor from piped_queue_fd. Requests that were under way have ended with
/// PIPED_DISCONNECTED, but for those with PIPED_RESUBMIT. Buffers keep their bytes; the first
/// request that takes one moves it, so ask piped_buffer_data again after that. Exported regions are
/// not offered again.
#[unsafe(no_mangle)]
pub extern "C" fn piped_reconnect(
    client: *mut piped_client,
    opened: Option<&mut MaybeUninit<u64>>,
    lost: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let found = CLIENTS.get(client)?.reconnect()?;
        for (out, count) in [(opened, found.opened), (lost, found.lost)] {
            if out.is_some() {
                put(out, count as u64)?;
            }
        }
        Ok(())
    })
}

/// Whether the daemon holds the session open.
#[unsafe(no_mangle)]
pub extern "C" fn piped_is_connected(
    client: *mut piped_client,
    connected: Option<&mut MaybeUninit<bool>>,
) -> piped_status {
    call(|| put(connected, CLIENTS.get(client)?.is_connected()))
}

/// The session's number, as `pipectl clients` shows it.
#[unsafe(no_mangle)]
pub extern "C" fn piped_session(
    client: *mut piped_client,
    session: Option<&mut MaybeUninit<u32>>,
) -> piped_status {
    call(|| put(session, CLIENTS.get(client)?.session()))
}

/// Counts the daemons that the client was connected to; 1 is the first. What one wrote and did not
/// sync may be lost with a peer that has restarted, too: the next does not know of it.
#[unsafe(no_mangle)]
pub extern "C" fn piped_generation(
    client: *mut piped_client,
    generation: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| put(generation, CLIENTS.get(client)?.generation().into()))
}

/// The time that requests get which name none, in nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn piped_deadline_default(
    client: *mut piped_client,
    deadline_ns: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let deadline = CLIENTS.get(client)?.deadline_default();
        put(deadline_ns, u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX))
    })
}

/// The CPU of the shard that serves this session; -1 if it has none of its own.
#[unsafe(no_mangle)]
pub extern "C" fn piped_shard_cpu(
    client: *mut piped_client,
    cpu: Option<&mut MaybeUninit<i32>>,
) -> piped_status {
    call(|| {
        let found = CLIENTS.get(client)?.shard_cpu();
        put(cpu, found.and_then(|cpu| i32::try_from(cpu).ok()).unwrap_or(-1))
    })
}

/// Move the calling thread to the CPU of piped_shard_cpu, where it is woken fastest, and where no
/// wait spins. `moved`, which may be NULL, is false if the shard has no CPU of its own.
#[unsafe(no_mangle)]
pub extern "C" fn piped_pin_thread_to_shard(
    client: *mut piped_client,
    moved: Option<&mut MaybeUninit<bool>>,
) -> piped_status {
    call(|| {
        let done = CLIENTS.get(client)?.pin_current_thread_to_shard()?;
        if moved.is_some() { put(moved, done) } else { Ok(()) }
    })
}
