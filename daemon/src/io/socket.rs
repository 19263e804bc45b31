//! What is asked of sockets beyond sending and receiving, where the safe wrappers stop: who is on
//! the other end of a unix socket, how much unsent data a TCP socket calls writable, and waiting for
//! a socket in the control thread's runtime.
//!
//! The kernel notes both credentials and groups when the other side connects, so nothing here can be
//! outrun by a process that ends and whose number another takes.

use std::os::fd::{AsFd, AsRawFd};
use std::{io, ptr};

use piped_core::io::WireState;
use piped_core::units::Nanos;
use tokio::io::unix::AsyncFd;

use crate::closing::HeldFile;

/// The most supplementary groups asked for; the kernel's own limit is 65536.
const GROUPS_MAX: usize = 65_536;

/// The process at the other end of a unix socket, as it was when it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its number, 0 if it lives in a namespace that has none for us.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// A user with one group, for tests.
    #[must_use]
    pub const fn of(uid: u32, gid: u32) -> Self {
        Self { pid: 0, uid, gid, groups: Vec::new() }
    }
}

/// Who connected.
///
/// # Errors
/// What the kernel says: not a connected unix socket.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut who = [libc::ucred { pid: 0, uid: 0, gid: 0 }];
    get(&socket, libc::SO_PEERCRED, &mut who)?;
    let [who] = who;
    let pid = u32::try_from(who.pid).unwrap_or(0);
    Ok(Credentials { pid, uid: who.uid, gid: who.gid, groups: peer_groups(&socket)? })
}

fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        match get(socket, libc::SO_PEERGROUPS, &mut groups) {
            Ok(count) => {
                groups.truncate(count);
                return Ok(groups);
            }
            Err(error)
                if error.raw_os_error() == Some(libc::ERANGE) && groups.len() < GROUPS_MAX =>
            {
                groups.resize(groups.len() * 4, 0);
            }
            // Kernels before 4.13 do not know the question: then only the first group counts.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    }
}

/// Reads a socket option of the socket itself; how many `T`s it is.
fn get<T: Plain>(socket: &impl AsFd, option: libc::c_int, into: &mut [T]) -> io::Result<usize> {
    get_of(socket, (libc::SOL_SOCKET, option), into)
}

fn get_of<T: Plain>(
    socket: &impl AsFd,
    (level, option): (libc::c_int, libc::c_int),
    into: &mut [T],
) -> io::Result<usize> {
    let mut length = size_of_val(into) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is what `into` has, and any bytes are
    // a valid `T` (`Plain`).
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            into.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result == 0 { Ok(length as usize / size_of::<T>()) } else { Err(io::Error::last_os_error()) }
}

/// Any bytes of the right number are a value.
///
/// # Safety
/// Only for integers, and structs of nothing else.
unsafe trait Plain {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: three integers of 32 bits, without padding.
unsafe impl Plain for libc::ucred {}

/// Keep at most `bytes` unsent in a TCP socket (`TCP_NOTSENT_LOWAT`), so that an urgent frame does
/// not queue behind a socket buffer full of others.
///
/// # Errors
/// What the kernel says: not a TCP socket.
pub fn set_unsent_limit(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(&socket, (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), bytes)
}

/// Have a TCP socket hand at most so many bytes per second to the network (`SO_MAX_PACING_RATE`); as many as it
/// likes without.
///
/// # Errors
/// What the kernel says.
pub fn set_pace(socket: impl AsFd, bytes_per_second: Option<u64>) -> io::Result<()> {
    set(&socket, (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE), bytes_per_second.unwrap_or(u64::MAX))
}

/// Whether others may pass descriptors over a unix socket (`SO_PASSRIGHTS`, Linux 6.16). Connections begin with what was
/// said of their listener, before anybody accepts them.
///
/// # Errors
/// What the kernel says: most of all, that it is older.
pub fn let_pass_descriptors(socket: impl AsFd, may: bool) -> io::Result<()> {
    const SO_PASSRIGHTS: libc::c_int = 83;
    set(&socket, (libc::SOL_SOCKET, SO_PASSRIGHTS), u32::from(may))
}

/// What the kernel knows of a TCP socket's way to the other side (`TCP_INFO`).
///
/// # Errors
/// What the kernel says: not a TCP socket, or (`Unsupported`) a kernel before 4.6, which does not say it all.
pub fn wire_state(socket: impl AsFd) -> io::Result<WireState> {
    // `struct tcp_info`, of which the first 8 bytes are 8 small fields, in words: only grown at its end.
    const RTT: usize = 17;
    const BYTES_ACKED: usize = 30;
    const NOTSENT_BYTES: usize = 36;
    const MIN_RTT: usize = 37;
    let mut info = [0_u32; MIN_RTT + 1];
    let known = get_of(&socket, (libc::IPPROTO_TCP, libc::TCP_INFO), &mut info)?;
    if known <= MIN_RTT {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let [first, second] = [info[BYTES_ACKED], info[BYTES_ACKED + 1]].map(u32::to_ne_bytes);
    let [a, b, c, d] = first;
    let [e, f, g, h] = second;
    Ok(WireState {
        round_trip: Nanos::from_micros(info[RTT].into()),
        round_trip_min: Nanos::from_micros(info[MIN_RTT].into()),
        acknowledged: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        unsent: info[NOTSENT_BYTES],
    })
}

fn set<T: Plain>(
    socket: &impl AsFd,
    (level, option): (libc::c_int, libc::c_int),
    value: T,
) -> io::Result<()> {
    // SAFETY: the kernel reads one `T` of the size given and keeps no pointer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            ptr::from_ref(&value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A socket in the control thread's runtime, whose thread must call this.
///
/// # Errors
/// What the kernel says: not something that can be waited for.
pub fn asynchronous(socket: HeldFile) -> io::Result<AsyncFd<HeldFile>> {
    // SAFETY: a `HeldFile` keeps its one open descriptor until it is dropped, and gives the same
    // number each time; whoever gets it by `AsyncFd::get_mut` can change only who answers for it.
    unsafe { AsyncFd::register(socket) }.map_err(|error| error.into_parts().1)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use std::io::Write as _;

    use super::{peer_credentials, set_pace, set_unsent_limit, wire_state};

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (near, _far) = UnixStream::pair().expect("a pair");
        let who = peer_credentials(&near).expect("credentials");
        assert_eq!(who.pid, std::process::id());
        assert_eq!(who.uid, rustix::process::geteuid().as_raw());
        assert_eq!(who.gid, rustix::process::getegid().as_raw());
        let mut mine: Vec<u32> =
            rustix::process::getgroups().expect("groups").iter().map(|gid| gid.as_raw()).collect();
        let mut theirs = who.groups;
        mine.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(mine, theirs);
    }

    #[test]
    fn a_tcp_socket_knows_its_wire_and_can_be_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let mut stream =
            TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let before = wire_state(&stream).expect("a TCP socket");
        assert!(before.round_trip_min <= before.round_trip);
        stream.write_all(&[0; 1000]).expect("there is room");
        let acknowledged = |at_least| loop {
            let state = wire_state(&stream).expect("a TCP socket");
            if state.acknowledged >= at_least {
                return state;
            }
            std::thread::yield_now();
        };
        assert_eq!(acknowledged(before.acknowledged + 1000).unsent, 0);
        set_pace(&stream, Some(1_000_000)).expect("a socket");
        set_pace(&stream, None).expect("a socket");
        let (near, _far) = UnixStream::pair().expect("a pair");
        assert!(wire_state(&near).is_err());
    }

    #[test]
    fn only_tcp_sockets_have_an_unsent_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        set_unsent_limit(&stream, 128 * 1024).expect("a TCP socket");
        let (near, _far) = UnixStream::pair().expect("a pair");
        assert!(set_unsent_limit(&near, 1).is_err());
    }
}
