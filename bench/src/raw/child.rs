//! This program again as the other process of a floor: it listens on loopback and says where.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::outside::Running;

/// A process that listens; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Listening {
    _process: Running,
    port: u16,
}

impl Listening {
    /// Starts this program with these arguments, and waits until it listens.
    pub(super) fn start<S: AsRef<OsStr>>(arguments: &[S]) -> io::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().expect("its output was asked for");
        // Owned from here on, so that it ends even if its answer makes no sense.
        let process = Running(process);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let silent = || io::Error::other("the other process of a floor did not start");
        let port = line.trim().parse().map_err(|_| silent())?;
        Ok(Self { _process: process, port })
    }

    /// The port of loopback that it listens on.
    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

/// Listens as such a process does, and ends with its parent.
pub(super) fn listen() -> io::Result<TcpListener> {
    end_with_parent()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    Ok(listener)
}

/// Has this process end when its parent does.
pub(crate) fn end_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
}
