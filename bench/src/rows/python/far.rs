//! Weights over a link of 1 Gbit/s with a round trip of 10 ms, against fsspec's other protocols.
//!
//! The link is a [`Relay`] for all of them, each alone on it. The others' bytes go into memory or
//! to the local disk first, whichever is faster.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::weights::Weights;
use super::worker::Worker;
use super::{FEW_ROUNDS, PROFILE, seconds_of, unmeasured};
use crate::contest::Arm;
use crate::copiers::start;
use crate::failure::{Doing as _, Failure};
use crate::machine;
use crate::nodes::{Pair, Sites, free_address, profile_name};
use crate::outside::{Running, free_port, output};
use crate::report::{Row, Unit};
use crate::rig::{GIGABIT, Relay};
use crate::rows::Bench;
use crate::stats::{Bar, Better};

/// The file, and the tensors of 16 MiB in it.
const NAME: &str = "weights-256m.safetensors";
const TENSORS: usize = 16;

/// Latency of the link in each direction.
const LATENCY: Duration = Duration::from_millis(5);

const BAR: Bar = Bar::AtMost(0.5);

/// Another program that serves the file.
struct Server {
    _process: Running,
    address: SocketAddr,
}

/// Against fsspec's http (aiohttp) with nginx.
pub(super) fn http(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    if let Some(row) = unmeasured(name, BAR, &[("nginx", "nginx-light")]) {
        return Ok(row);
    }
    compare(bench, name, |weights, scratch| {
        let folder = weights.path().parent().unwrap_or(Path::new("/"));
        let server = nginx(folder, scratch)?;
        let relay = Relay::start(server.address, GIGABIT, LATENCY)?;
        let url = format!("http://{}/{}", relay.address(), weights.name());
        let (tensors, copy) = (weights.tensors(), scratch.join("copy"));
        let commands = vec![
            ("http, into memory", json!(["http", tensors, url, null])),
            ("http, to disk", json!(["http", tensors, url, copy])),
        ];
        Ok((server, relay, commands))
    })
}

/// Against fsspec's sftp (paramiko) with OpenSSH.
pub(super) fn sftp(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let tools = [("sshd", "openssh-server"), ("ssh-keygen", "openssh-client")];
    if let Some(row) = unmeasured(name, BAR, &tools) {
        return Ok(row);
    }
    compare(bench, name, |weights, scratch| {
        let key = scratch.join("key");
        let server = sshd(&key, scratch)?;
        let relay = Relay::start(server.address, GIGABIT, LATENCY)?;
        let (tensors, copy) = (weights.tensors(), scratch.join("copy"));
        let port = relay.address().port();
        // Into memory, paramiko has one request of 32 KiB under way, and takes 80 s.
        let command = json!(["sftp", tensors, port, key, weights.path(), copy]);
        Ok((server, relay, vec![("sftp, to disk", command)]))
    })
}

/// Another server, the link to it, and the ways to load from there.
type Other = (Server, Relay, Vec<(&'static str, Value)>);

fn compare(
    bench: &mut Bench,
    name: &'static str,
    other: impl FnOnce(&Weights, &Path) -> Result<Other, Failure>,
) -> Result<Row, Failure> {
    // What is started from here may run anywhere, as it would for its users.
    machine::unpin()?;
    let mut worker = Worker::start(&bench.python()?, &machine::allowed_cpus())?;
    let data = bench.data()?;
    let weights = Weights::make(&data, NAME, TENSORS, &mut worker)?;
    let scratch = tempfile::tempdir_in(&data)?;
    let (_server, _link, commands) = other(&weights, scratch.path())?;
    // Other daemons end first, because two pairs would spin on the same CPUs.
    bench.pair = None;
    let listen = free_address()?;
    let link = Relay::start(listen, GIGABIT, LATENCY)?;
    let sites = Sites { listen, dialled: Some(link.address()), ..Sites::default() };
    let pair = Pair::start_at(&sites, PROFILE, bench.cpus, &data)?;
    // The estimators see disk and link first, and the interpreter its modules.
    weights.load(&pair, &mut worker)?;
    for (_, command) in &commands {
        worker.ask(command)?;
    }
    let worker = RefCell::new(worker);
    let mut arms: Vec<Arm<'_>> = Vec::new();
    for (told, command) in commands {
        let (weights, worker) = (&weights, &worker);
        arms.push(Arm::variant(told.to_owned(), move || {
            weights.make_cold()?;
            worker.borrow_mut().ask(&command)
        }));
    }
    let subject = arms.len();
    arms.push(Arm::subject("piped_io", || weights.load(&pair, &mut worker.borrow_mut())));
    let rounds = bench.chosen(bench.rounds_at_most(FEW_ROUNDS), &mut arms)?;
    drop(arms);
    let best = rounds.best(0..subject, Better::Smaller)?;
    let (found, note) = (rounds.ratio(subject, best)?, seconds_of(&rounds));
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, BAR, note)
        .with_arms(&rounds, Unit::Seconds))
}

/// Starts a server of which the port is known.
fn serve(command: &mut Command, port: u16) -> Result<Server, Failure> {
    let address = (Ipv4Addr::LOCALHOST, port).into();
    Ok(Server { _process: start(command, &port.to_string())?, address })
}

/// nginx as one process that serves a folder.
fn nginx(folder: &Path, scratch: &Path) -> Result<Server, Failure> {
    let (port, configuration) = (free_port()?, scratch.join("nginx.conf"));
    let text = format!(
        "daemon off; master_process off; pid {pid:?};\nevents {{}}\nhttp {{ access_log off; \
         sendfile on; server {{ listen 127.0.0.1:{port}; root {folder:?}; }} }}\n",
        pid = scratch.join("nginx.pid")
    );
    std::fs::write(&configuration, text)?;
    let mut command = Command::new("nginx");
    command.args(["-e", "stderr", "-c"]).arg(&configuration);
    serve(&mut command, port).doing("nginx")
}

/// OpenSSH's server, which lets the user of this program in by a new key.
fn sshd(key: &Path, scratch: &Path) -> Result<Server, Failure> {
    let mut make = Command::new("ssh-keygen");
    output(make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key)).doing("ssh-keygen")?;
    let (port, configuration) = (free_port()?, scratch.join("sshd.conf"));
    // The same key is the host's: nobody else is to believe it.
    let text = format!(
        "ListenAddress 127.0.0.1\nPort {port}\nHostKey {key}\nAuthorizedKeysFile {key}.pub\n\
         PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n\
         PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n",
        key = key.display()
    );
    std::fs::write(&configuration, text)?;
    // The server asks to be started by a whole path.
    let find = "exec \"$(command -v sshd)\" -D -e -f \"$0\"";
    let mut command = if rustix::process::geteuid().is_root() {
        // As root it wants a directory of its own in /run, which is not the machine's here.
        let mut command = Command::new("unshare");
        let own = "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && ";
        command.args(["--mount", "sh", "-c", &format!("{own}{find}")]);
        command
    } else {
        let mut command = Command::new("sh");
        command.args(["-c", find]);
        command
    };
    serve(command.arg(&configuration), port).doing("sshd")
}
