//! Other programs that copy a file from one node to another over TCP, in the fastest of their
//! sensible forms.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::{Doing as _, Failure};
use crate::nbd::{Caching, Server};
use crate::outside::{Running, await_listener, free_port, output};

/// A tool and the server that it copies from.
#[derive(Debug)]
pub(crate) struct Copier {
    pub(crate) name: &'static str,
    _server: Running,
    /// Command without the destination.
    command: Vec<String>,
    destination: PathBuf,
    /// Whether the tool leaves the destination to the page cache.
    sync: bool,
}

/// Programs of qemu and rsync that [`Copier`] needs.
pub(crate) const TOOLS: [&str; 3] = ["qemu-nbd", "qemu-img", "rsync"];

impl Copier {
    /// Copier with qemu-img, from a qemu-nbd that serves `file`: out of order, 16 requests, around
    /// the page cache on both sides.
    pub(crate) fn qemu(file: &Path, destination: &Path) -> Result<Self, Failure> {
        let port = free_port()?.to_string();
        let mut server = Command::new("qemu-nbd");
        server.args(["--read-only", "--persistent", "--format=raw", "--shared=16"]);
        server.args(["--cache=none", "--aio=native", "--export-name=data"]);
        server.args(["--bind=127.0.0.1", &format!("--port={port}")]).arg(file);
        let server = start(&mut server, &port).doing("qemu-nbd")?;
        let source = format!("nbd://127.0.0.1:{port}/data");
        let command = ["qemu-img", "convert", "-W", "-m", "16", "-t", "none", "-T", "none"];
        let command = command.into_iter().chain(["-f", "raw", "-O", "raw", &source]);
        Ok(Self {
            name: "qemu-img",
            _server: server,
            command: command.map(str::to_owned).collect(),
            destination: destination.to_owned(),
            sync: true,
        })
    }

    /// Copier with rsync, from a daemon of its own that serves the folder of `file`. `scratch` is
    /// for its configuration.
    pub(crate) fn rsync(file: &Path, destination: &Path, scratch: &Path) -> Result<Self, Failure> {
        let port = free_port()?.to_string();
        let folder = file.parent().unwrap_or(Path::new("/"));
        let name = file.file_name().unwrap_or(OsStr::new("")).to_string_lossy();
        let user = rustix::process::getuid().is_root().then_some("uid = 0\ngid = 0\n");
        let configuration = scratch.join("rsyncd.conf");
        let text = format!(
            "use chroot = no\n{}[data]\npath = {}\nread only = yes\n",
            user.unwrap_or_default(),
            folder.display()
        );
        std::fs::write(&configuration, text)?;
        let mut server = Command::new("rsync");
        server.args(["--daemon", "--no-detach", "--address=127.0.0.1", &format!("--port={port}")]);
        server.arg(format!("--config={}", configuration.display()));
        let server = start(&mut server, &port).doing("rsync --daemon")?;
        let source = format!("rsync://127.0.0.1:{port}/data/{name}");
        let command = ["rsync", "--whole-file", "--inplace", "--fsync", &source];
        Ok(Self {
            name: "rsync",
            _server: server,
            command: command.into_iter().map(str::to_owned).collect(),
            destination: destination.to_owned(),
            sync: false,
        })
    }

    /// Copier with nbdcopy, from an nbdkit that serves `file` as it does by default: with the
    /// kernel's reading ahead. The copy is left to the page cache.
    pub(crate) fn nbdcopy(file: &Path, destination: &Path, cpu: usize) -> Result<Self, Failure> {
        let (server, source) = Server::Nbdkit.serve(file, Caching::Cached, cpu)?;
        let command = vec!["nbdcopy".to_owned(), source];
        let destination = destination.to_owned();
        Ok(Self { name: "nbdcopy", _server: server, command, destination, sync: false })
    }

    /// Leaves the copy to the page cache, for a reader that comes at once.
    pub(crate) fn without_sync(mut self) -> Self {
        self.command.retain(|word| word != "--fsync");
        Self { sync: false, ..self }
    }

    /// Copies the file; it is on stable storage afterwards, if it is not left to the page cache.
    pub(crate) fn copy(&self) -> Result<(), Failure> {
        let [program, arguments @ ..] = &self.command[..] else { return Ok(()) };
        output(Command::new(program).args(arguments).arg(&self.destination)).doing(self.name)?;
        if self.sync {
            std::fs::File::open(&self.destination)?.sync_all()?;
        }
        Ok(())
    }
}

/// Starts a server of which a port of loopback is known, and waits until it listens.
pub(crate) fn start(server: &mut Command, port: &str) -> Result<Running, Failure> {
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running(server.spawn()?);
    await_listener(port)?;
    Ok(running)
}
