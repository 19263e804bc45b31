//! How a lane's socket is set up, for both directions.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::sockopt;

use crate::io::socket::set_unsent_limit;
use crate::limits::{LANE_KEEPALIVE, LANE_TIMEOUT, LANE_UNSENT_BYTES};

/// Congestion control of lanes that do not leave the machine.
const LOOPBACK_CONGESTION: &str = "reno";

/// Makes a connected stream a lane's socket.
///
/// # Errors
/// The error of the kernel: the connection is gone already.
pub(super) fn lane_socket(stream: tokio::net::TcpStream) -> io::Result<OwnedFd> {
    let stream = stream.into_std()?;
    let inside = stream.peer_addr()?.ip().is_loopback();
    // io_uring gives EAGAIN back for a non-blocking socket instead of waiting for it.
    stream.set_nonblocking(false)?;
    let socket = OwnedFd::from(stream);
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, LANE_KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(&socket, LANE_KEEPALIVE)?;
    // With USER_TIMEOUT this is also the end of the keep-alive's patience.
    let timeout_ms = u32::try_from(LANE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(&socket, timeout_ms)?;
    set_unsent_limit(&socket, LANE_UNSENT_BYTES)?;
    if inside {
        // No link to share and no queue to fill: what paces (BBR) or probes only costs. Everywhere
        // else the system's choice stands. Every kernel has Reno and lets everybody choose it.
        let _ = sockopt::set_tcp_congestion(&socket, LOOPBACK_CONGESTION);
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lanes_socket_blocks_and_does_not_delay() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("bound");
        let stream = tokio::net::TcpStream::connect(address).await.expect("connected");
        let socket = lane_socket(stream).expect("a TCP socket");
        let flags = rustix::fs::fcntl_getfl(&socket).expect("flags");
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        assert!(sockopt::tcp_nodelay(&socket).expect("an option"));
        assert!(sockopt::socket_keepalive(&socket).expect("an option"));
        assert_eq!(sockopt::tcp_keepidle(&socket).expect("an option"), LANE_KEEPALIVE);
        assert_eq!(sockopt::tcp_keepintvl(&socket).expect("an option"), LANE_KEEPALIVE);
        let timeout = sockopt::tcp_user_timeout(&socket).expect("an option");
        assert_eq!(u128::from(timeout), LANE_TIMEOUT.as_millis());
        let congestion = sockopt::tcp_congestion(&socket).expect("an option");
        assert_eq!(congestion, LOOPBACK_CONGESTION);
    }
}
