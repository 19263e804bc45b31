//! The user of the other end of a TCP connection, if that end is on this machine: the kernel knows
//! it.
//!
//! TCP carries no user. But a connection inside one machine has both of its sockets here, and the
//! one that we do not hold can be looked up by its addresses (`NETLINK_SOCK_DIAG`, [sock_diag(7)]).
//! A result counts only if it is exactly the other end, connected, and held by a process. The
//! look-up also finds sockets that listen, and a closed socket has no file any more and reads as
//! root's.
//!
//! If nothing is found, the address decides. An address of this machine cannot be another
//! machine's, so nobody answers for it. The kernel's routes tell that; they know more than the
//! addresses of its interfaces.
//!
//! [sock_diag(7)]: https://man7.org/linux/man-pages/man7/sock_diag.7.html

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use piped_control::parties::FarEnd;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{netlink, recv, send, socket_with};

/// The user that holds the other end of a connection between these two addresses; `near` is this
/// node's end.
///
/// # Errors
/// The kernel cannot be asked at all.
pub fn far_end(near: SocketAddr, far: SocketAddr) -> io::Result<FarEnd> {
    let (near, far) = (plain(near), plain(far));
    let held = ask(Some(netlink::SOCK_DIAG), &Connection { near, far }.question())?;
    if let Some(user) = held.and_then(|answer| holder(&answer, near, far)) {
        return Ok(FarEnd::User(user));
    }
    let here = far.ip().is_loopback() || near.ip() == far.ip() || is_ours(far.ip())?;
    Ok(if here { FarEnd::Nobody } else { FarEnd::Elsewhere })
}

/// Turns an IPv4 address in IPv6 into one of IPv4: the kernel looks such connections up there,
/// whichever kind their sockets are.
fn plain(address: SocketAddr) -> SocketAddr {
    match (address.ip().to_canonical(), address) {
        (IpAddr::V4(ip), _) => (ip, address.port()).into(),
        (IpAddr::V6(_), address) => address,
    }
}

/// Whether packets to an address stay on this machine.
fn is_ours(address: IpAddr) -> io::Result<bool> {
    const RTN_LOCAL: u8 = 2;
    // `struct rtmsg`: family, lengths of prefixes, tos, table, protocol, scope, type, flags.
    const TYPE_AT: usize = 7;
    let bytes = octets(address);
    let mut body = vec![0; 12];
    body[0] = family(address);
    body[1] = (bytes.len() * 8) as u8;
    // An attribute: its length with this head, RTA_DST, the address.
    body.extend(((4 + bytes.len()) as u16).to_ne_bytes());
    body.extend(1_u16.to_ne_bytes());
    body.extend(bytes);
    let route = ask(None, &Question { kind: 26, body })?;
    Ok(route.is_some_and(|route| route.get(TYPE_AT) == Some(&RTN_LOCAL)))
}

/// A connection with a far end to be found.
struct Connection {
    near: SocketAddr,
    far: SocketAddr,
}

impl Connection {
    /// Builds a `struct inet_diag_req_v2` with the far socket as its source.
    fn question(&self) -> Question {
        const ALL_STATES: u32 = u32::MAX;
        const NO_COOKIE: [u8; 8] = [0xff; 8];
        let mut body = vec![family(self.far.ip()), libc::IPPROTO_TCP as u8, 0, 0];
        body.extend(ALL_STATES.to_ne_bytes());
        body.extend(addresses(self.far, self.near));
        body.extend(interface(self.far).to_ne_bytes());
        body.extend(NO_COOKIE);
        Question { kind: 20, body }
    }
}

/// Builds ports and addresses as `struct inet_diag_sockid` begins with them.
fn addresses(from: SocketAddr, to: SocketAddr) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[..2].copy_from_slice(&from.port().to_be_bytes());
    bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
    for (at, address) in [(4, from), (20, to)] {
        let octets = octets(address.ip());
        bytes[at..at + octets.len()].copy_from_slice(&octets);
    }
    bytes
}

/// Interface of a link-local address, which is looked up on that link.
fn interface(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// User in a `struct inet_diag_msg`, if it is about the far end of this connection, connected and
/// held.
fn holder(answer: &[u8], near: SocketAddr, far: SocketAddr) -> Option<u32> {
    const ESTABLISHED: u8 = 1;
    let number = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let (&family, &state) = (answer.first()?, answer.get(1)?);
    let socket = answer.get(4..40)?;
    // A socket of IPv6 can have a connection of IPv4.
    let mapped = |it: SocketAddr| match it {
        SocketAddr::V4(v4) => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        v6 @ SocketAddr::V6(_) => v6,
    };
    let is_v6 = i32::from(family) == libc::AF_INET6;
    let expected = if is_v6 { (mapped(far), mapped(near)) } else { (far, near) };
    let is_it = socket == addresses(expected.0, expected.1);
    let (user, file) = (number(64)?, number(68)?);
    (is_it && state == ESTABLISHED && file != 0).then_some(user)
}

/// A question to the kernel over netlink.
struct Question {
    kind: u16,
    body: Vec<u8>,
}

/// Bytes of a `struct nlmsghdr`.
const HEAD: usize = 16;

/// Body of the kernel's answer; none if there is no such thing.
fn ask(protocol: Option<Protocol>, question: &Question) -> io::Result<Option<Vec<u8>>> {
    const ERROR: u16 = 2;
    const REQUEST: u16 = 1;
    const SEQUENCE: u32 = 1;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    let length = (HEAD + question.body.len()) as u32;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(question.kind.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend(SEQUENCE.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend(&question.body);
    send(&socket, &message, SendFlags::empty())?;
    // The kernel has answered when that call returns. Nobody else can send to this socket.
    let mut answer = [0_u8; 1024];
    let (received, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    let answer = &answer[..received];
    let body = answer.get(HEAD..).ok_or(io::ErrorKind::InvalidData)?;
    let kind = answer.get(4..6).and_then(|it| it.try_into().ok()).map(u16::from_ne_bytes);
    if kind != Some(ERROR) {
        return Ok(Some(body.to_vec()));
    }
    let error = body.get(..4).and_then(|it| it.try_into().ok()).map_or(0, i32::from_ne_bytes);
    match -error {
        // No such socket, or a kernel without the look-up; no way to such an address.
        0 | libc::ENOENT | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ESRCH => Ok(None),
        other => Err(io::Error::from_raw_os_error(other)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// Makes a connection: the end that accepted, and the one that connected.
    fn pair(listen: &str, dial: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(listen).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let dialled = TcpStream::connect(format!("{dial}:{port}")).expect("it listens");
        (listener.accept().expect("connected").0, dialled)
    }

    fn far_end_of(stream: &TcpStream) -> FarEnd {
        let (near, far) = (stream.local_addr(), stream.peer_addr());
        far_end(near.expect("bound"), far.expect("connected")).expect("the kernel answers")
    }

    #[test]
    fn the_other_end_on_this_machine_has_a_user() {
        let addresses = [
            ("127.0.0.1:0", "127.0.0.1"),
            ("127.9.8.7:0", "127.9.8.7"),
            // Both kinds of sockets for connections of IPv4.
            ("[::]:0", "127.0.0.1"),
            ("127.0.0.1:0", "[::ffff:127.0.0.1]"),
            ("[::1]:0", "[::1]"),
        ];
        for (listen, dial) in addresses {
            if TcpListener::bind(listen).is_err() {
                eprintln!("skipped: no {listen} here");
                continue;
            }
            let (accepted, _dialled) = pair(listen, dial);
            assert_eq!(far_end_of(&accepted), FarEnd::User(own()), "{listen} {dial}");
        }
    }

    #[test]
    fn another_users_end_is_his_whatever_ours_is() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let dialled = std::thread::spawn(move || {
            let somebody = rustix::process::Uid::from_raw(65_534);
            // Only this thread becomes another user.
            rustix::thread::set_thread_res_uid(somebody, somebody, somebody).ok()?;
            Some(TcpStream::connect(address).expect("it listens"))
        });
        let Some(_dialled) = dialled.join().expect("no panic") else {
            return eprintln!("skipped: only root can be another user");
        };
        let (accepted, _) = listener.accept().expect("connected");
        assert_eq!(far_end_of(&accepted), FarEnd::User(65_534));
    }

    #[test]
    fn an_end_that_nobody_holds_proves_nothing() {
        let (mut accepted, dialled) = pair("127.0.0.1:0", "127.0.0.1");
        // As long as one end is open, the kernel keeps the other, and says that it is root's.
        drop(dialled);
        assert_eq!(accepted.read(&mut [0]).expect("the end"), 0);
        assert_eq!(far_end_of(&accepted), FarEnd::Nobody);
        let (accepted, dialled) = pair("127.0.0.1:0", "127.0.0.1");
        dialled.shutdown(Shutdown::Write).expect("open");
        assert_eq!(far_end_of(&accepted), FarEnd::Nobody, "it says nothing any more");
    }

    #[test]
    fn who_listens_there_is_not_who_connected() {
        // Nobody connected from there, but somebody listens: the look-up finds the listener.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let listens = listener.local_addr().expect("bound");
        let near = "127.0.0.1:9".parse().expect("an address");
        assert_eq!(far_end(near, listens).expect("asked"), FarEnd::Nobody);
    }

    #[test]
    fn another_machine_is_elsewhere() {
        let near = "198.51.100.1:7440".parse().expect("an address");
        for far in ["198.51.100.2:40000", "[::ffff:198.51.100.2]:40000"] {
            let far = far.parse().expect("an address");
            assert_eq!(far_end(near, far).expect("asked"), FarEnd::Elsewhere, "{far}");
        }
        let own = "198.51.100.1:40000".parse().expect("an address");
        assert_eq!(far_end(near, own).expect("asked"), FarEnd::Nobody, "the same address");
    }

    #[test]
    fn only_the_connection_itself_counts() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let (near, far) = (at("127.0.0.1:7440"), at("127.0.0.1:5000"));
        let answer = |state: u8, from, to, file: u32| {
            let mut answer = vec![libc::AF_INET as u8, state, 0, 0];
            answer.extend(addresses(from, to));
            answer.extend([0; 24]);
            answer.extend(1000_u32.to_ne_bytes());
            answer.extend(file.to_ne_bytes());
            answer
        };
        assert_eq!(holder(&answer(1, far, near, 7), near, far), Some(1000));
        assert_eq!(holder(&answer(1, far, near, 0), near, far), None, "closed");
        assert_eq!(holder(&answer(10, far, near, 7), near, far), None, "listens");
        assert_eq!(holder(&answer(6, far, near, 7), near, far), None, "TIME_WAIT");
        assert_eq!(holder(&answer(1, near, far, 7), near, far), None, "ours");
        let other = at("127.0.0.1:5001");
        assert_eq!(holder(&answer(1, other, near, 7), near, far), None);
        assert_eq!(holder(&answer(1, far, near, 7)[..70], near, far), None, "cut short");
    }
}
