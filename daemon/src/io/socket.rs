//! Socket calls beyond sending and receiving that the safe wrappers lack. They find the user at the
//! other end of a unix socket. They set the unsent data at which a TCP socket counts as writable.
//! And they wait for a socket in the control thread's runtime.
//!
//! The kernel notes credentials and groups when the other side connects, so no result can change
//! when that process ends and another one takes its number.

use std::os::fd::{AsFd, AsRawFd};
use std::{io, ptr};

use piped_control::parties::Credentials;
use piped_core::io::WireState;
use piped_core::units::Nanos;
use tokio::io::unix::AsyncFd;

use crate::closing::HeldFile;

/// The most supplementary groups asked for, which is the kernel's own limit.
const GROUPS_MAX: usize = 65_536;

/// The process, user and groups at the other end of a unix socket.
///
/// # Errors
/// Errors of the kernel: not a connected unix socket.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut found = [libc::ucred { pid: 0, uid: 0, gid: 0 }];
    get(&socket, libc::SO_PEERCRED, &mut found)?;
    let [found] = found;
    let pid = u32::try_from(found.pid).unwrap_or(0);
    Ok(Credentials { pid, uid: found.uid, gid: found.gid, groups: peer_groups(&socket)? })
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
            // Kernels before 4.13 do not know the option: then only the first group counts.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    }
}

/// Reads an option of the socket itself, and returns the number of `T`s.
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

/// Types for which any bytes are a value.
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

/// Keeps at most `bytes` unsent in a TCP socket (`TCP_NOTSENT_LOWAT`), so that an urgent frame does
/// not queue behind a socket buffer full of others.
///
/// # Errors
/// Errors of the kernel: not a TCP socket.
pub fn set_unsent_limit(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(&socket, (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), bytes)
}

/// Limits a TCP socket to this many bytes per second (`SO_MAX_PACING_RATE`); without a number there
/// is no limit.
///
/// # Errors
/// Errors of the kernel.
pub fn set_pace(socket: impl AsFd, bytes_per_second: Option<u64>) -> io::Result<()> {
    set(&socket, (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE), bytes_per_second.unwrap_or(u64::MAX))
}

/// Allows or forbids others to pass descriptors over a unix socket (`SO_PASSRIGHTS`, Linux 6.16).
/// Connections inherit the setting of their listener.
///
/// # Errors
/// Errors of the kernel, most of all that it is older.
pub fn let_pass_descriptors(socket: impl AsFd, may: bool) -> io::Result<()> {
    const SO_PASSRIGHTS: libc::c_int = 83;
    set(&socket, (libc::SOL_SOCKET, SO_PASSRIGHTS), u32::from(may))
}

/// State of a TCP socket's way to the other side (`TCP_INFO`).
///
/// # Errors
/// Errors of the kernel: not a TCP socket, or (`Unsupported`) a kernel before 4.6, which lacks some
/// of it.
pub fn wire_state(socket: impl AsFd) -> io::Result<WireState> {
    // `struct tcp_info` in words, with the 8 small fields first; the kernel only adds to its end.
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

/// Registers a socket with the control thread's runtime; only that thread may call it.
///
/// # Errors
/// Errors of the kernel: not something that can be waited for.
pub fn asynchronous(socket: HeldFile) -> io::Result<AsyncFd<HeldFile>> {
    // SAFETY: a `HeldFile` keeps its one open descriptor until it is dropped, and gives the same
    // number each time; a caller of `AsyncFd::get_mut` can change only the account that it is
    // charged to.
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
        let found = peer_credentials(&near).expect("credentials");
        assert_eq!(found.pid, std::process::id());
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        assert_eq!(found.gid, rustix::process::getegid().as_raw());
        let mut mine: Vec<u32> =
            rustix::process::getgroups().expect("groups").iter().map(|gid| gid.as_raw()).collect();
        let mut theirs = found.groups;
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
