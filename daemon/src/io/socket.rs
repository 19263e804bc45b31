//! What is asked of sockets beyond sending and receiving, where the safe wrappers stop: who is on
//! the other end of a unix socket, how much unsent data a TCP socket calls writable, and waiting for
//! a socket in the control thread's runtime.
//!
//! The kernel notes both credentials and groups when the other side connects, so nothing here can be
//! outrun by a process that ends and whose number another takes.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

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

/// Reads a socket option; how many `T`s it is.
fn get<T: Plain>(socket: &impl AsFd, option: libc::c_int, into: &mut [T]) -> io::Result<usize> {
    let mut length = size_of_val(into) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is what `into` has, and any bytes are
    // a valid `T` (`Plain`).
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
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
// SAFETY: three integers of 32 bits, without padding.
unsafe impl Plain for libc::ucred {}

/// Keep at most `bytes` unsent in a TCP socket (`TCP_NOTSENT_LOWAT`), so that an urgent frame does
/// not queue behind a socket buffer full of others.
///
/// # Errors
/// What the kernel says: not a TCP socket.
pub fn set_unsent_limit(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    // SAFETY: the kernel reads one `u32` of the size given and keeps no pointer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            ptr::from_ref(&bytes).cast(),
            size_of::<u32>() as libc::socklen_t,
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

    use super::{peer_credentials, set_unsent_limit};

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
    fn only_tcp_sockets_have_an_unsent_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        set_unsent_limit(&stream, 128 * 1024).expect("a TCP socket");
        let (near, _far) = UnixStream::pair().expect("a pair");
        assert!(set_unsent_limit(&near, 1).is_err());
    }
}
