//! Sockets of clients and operators, addresses of peers and scrapers.
//!
//! A socket or address in use fails no check, because the check may well run beside a daemon that
//! has them. If no daemon runs, the use is reported.

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::fs::Access;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with, sockopt,
};

use super::paths::may;
use super::{Grade, Round};

impl Round<'_> {
    pub(super) fn sockets(&mut self) {
        let loaded = self.loaded;
        let config = &loaded.config;
        for (key, path) in
            [("client.socket", &config.client.socket), ("admin.socket", &config.admin.socket)]
        {
            if !self.look.sockets.contains(path) {
                self.socket(key, path);
            }
        }
    }

    fn socket(&mut self, key: &str, path: &Path) {
        let (shown, user) = (path.display(), self.look.user);
        let folder = path.parent().unwrap_or(path);
        let place = folder.display();
        match std::fs::metadata(folder) {
            Ok(found) if !found.is_dir() => {
                let text = format!("is {shown}, and {place} is no directory: correct the key");
                return self.note(Grade::Refused, key, text);
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if !self.look.made.iter().any(|made| made == folder) {
                    let text = format!(
                        "is {shown}, and {place} is not there: install -d -o {user} -m 0755 \
                         {place}, or correct the key"
                    );
                    self.note(Grade::Refused, key, text);
                }
                return;
            }
            Err(error) => {
                let grade = self.denied(Grade::Refused);
                return self.note(
                    grade,
                    key,
                    format!("is {shown}, and {place} cannot be looked at ({error})"),
                );
            }
        }
        match std::fs::symlink_metadata(path) {
            // A stale socket is replaced; a socket in use may be the daemon's own.
            Ok(found) if found.file_type().is_socket() => return,
            Ok(_) => {
                let text = format!(
                    "is {shown}, which is there and no socket: move it away, or correct the key"
                );
                return self.note(Grade::Refused, key, text);
            }
            Err(_) => {}
        }
        if let Err(error) = may(folder, Access::WRITE_OK | Access::EXEC_OK) {
            let grade = match error {
                Errno::ACCESS | Errno::ROFS => self.denied(Grade::Refused),
                // The check itself was refused (a filter of system calls), not the socket.
                _ => Grade::Unseen,
            };
            let text = format!(
                "is {shown}, and {user} can make nothing in {place} ({error}): chown {user} \
                 {place}, or correct the key"
            );
            self.note(grade, key, text);
        }
    }

    pub(super) fn addresses(&mut self) {
        let config = &self.loaded.config;
        for (key, address) in
            [("listen.address", config.listen.address), ("metrics.address", config.metrics.address)]
        {
            let Some(address) = address else { continue };
            if self.look.addresses.contains(&address) {
                continue;
            }
            if !is_of_this_machine(address) {
                let text = format!(
                    "is {address}, and no interface of this machine has the address {}: `ip \
                     address` shows those it has; 0.0.0.0 is all of them",
                    address.ip()
                );
                self.note(Grade::Refused, key, text);
            } else if is_taken(address) && !is_served(&config.admin.socket) {
                let text = format!(
                    "is {address}, and another program listens there: `ss -ltnp` shows which; end \
                     it, or choose another port"
                );
                self.note(Grade::Warned, key, text);
            }
        }
    }
}

/// Whether an address is in use, tested with a socket that is bound and closed again.
fn is_taken(address: SocketAddr) -> bool {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let tried =
        socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).and_then(|it| {
            // The daemon does the same: connections that have ended block nothing.
            sockopt::set_socket_reuseaddr(&it, true)?;
            bind(&it, &address)
        });
    tried == Err(Errno::ADDRINUSE)
}

/// Whether a daemon may run with this admin socket: it accepts connections, or this user may not
/// know.
fn is_served(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let tried = SocketAddrUnix::new(path).and_then(|address| {
        let it = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&it, &address)
    });
    !matches!(tried, Err(Errno::CONNREFUSED | Errno::NOENT | Errno::NOTDIR))
}

/// Whether a socket can be bound to the address, whatever the port. The test uses UDP: nobody can
/// connect to it meanwhile, and the daemon's sandbox only restricts TCP ports.
fn is_of_this_machine(address: SocketAddr) -> bool {
    match UdpSocket::bind(SocketAddr::new(address.ip(), 0)) {
        Err(error) => error.kind() != std::io::ErrorKind::AddrNotAvailable,
        Ok(_) => true,
    }
}
