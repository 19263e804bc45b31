//! Figures of other programs, to check that a floor is one. None of them has to be installed.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::clock;
use crate::failure::{Doing as _, Failure};

/// Whether a program is on the path.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A process that is ended and awaited when dropped.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Text of a command on stdout, if it ends well.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().last().unwrap_or_default();
    Err(Failure::new(format!("{}: {last}", output.status)))
}

/// Results of fio's random reads with io_uring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fio {
    /// Median time in seconds, from before the submission.
    pub(crate) p50: f64,
    pub(crate) rate: f64,
}

/// Runs fio for a while on one CPU. Without reserved huge pages it has none, unlike a floor
/// ([`crate::raw`]): its figure for large blocks is then that of small pages.
pub(crate) fn fio(
    file: &Path,
    block: usize,
    depth: usize,
    cpu: usize,
    duration: Duration,
) -> Result<Fio, Failure> {
    let mut command = Command::new("fio");
    command
        .arg(format!("--filename={}", file.display()))
        .args([&format!("--bs={block}"), &format!("--iodepth={depth}")])
        .arg(format!("--cpus_allowed={cpu}"))
        .arg(format!("--runtime={}ms", duration.as_millis()))
        .args(["--name=floor", "--readonly", "--rw=randread", "--ioengine=io_uring", "--direct=1"])
        .args(["--fixedbufs", "--registerfiles", "--norandommap", "--randrepeat=0"])
        .args(["--lat_percentiles=1", "--time_based", "--output-format=json"]);
    let text = output(&mut command).doing("fio")?;
    // Notes may stand before the document.
    let json = text.find('{').map_or("", |start| &text[start..]);
    let value: Value = serde_json::from_str(json).doing("fio")?;
    let read = &value["jobs"][0]["read"];
    let p50 = read["lat_ns"]["percentile"]["50.000000"].as_f64();
    match (p50, read["iops"].as_f64()) {
        (Some(p50), Some(rate)) if rate > 0.0 => Ok(Fio { p50: p50 / 1e9, rate }),
        _ => Err(Failure::new("fio: its output has no median")),
    }
}

/// CPUs for a network tool's two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sides {
    pub(crate) client_cpu: usize,
    pub(crate) server_cpu: usize,
    pub(crate) spin: bool,
}

/// Median round trip of sockperf in seconds, for messages of `bytes` both ways.
pub(crate) fn sockperf(bytes: usize, sides: Sides) -> Result<f64, Failure> {
    let port = free_port()?.to_string();
    let at = |cpu: usize, role: &str| {
        let mut command = Command::new("taskset");
        command.args(["-c", &cpu.to_string(), "sockperf", role]);
        command.args(["--tcp", "-i", "127.0.0.1", "-p", &port]);
        command.args(if sides.spin { &["--nonblocked"][..] } else { &[][..] });
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut server = at(sides.server_cpu, "server");
    let _server = Running(server.spawn().doing("sockperf")?);
    await_listener(&port)?;
    let mut client = at(sides.client_cpu, "ping-pong");
    client.args(["-m", &bytes.to_string(), "-t", "1", "--full-rtt"]);
    client.stdout(Stdio::piped()).stderr(Stdio::piped());
    let text = output(&mut client).doing("sockperf")?;
    percentile_50(&text).ok_or_else(|| Failure::new("sockperf: its output has no median"))
}

/// Reads `sockperf: ---> percentile 50.000 = 17.936`, in microseconds.
fn percentile_50(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("percentile 50.0"))?;
    let (_, value) = line.rsplit_once('=')?;
    Some(value.trim().parse::<f64>().ok()? / 1e6)
}

/// Bytes per second of iperf3 over one stream.
pub(crate) fn iperf3(sides: Sides) -> Result<f64, Failure> {
    let port = free_port()?.to_string();
    let mut server = Command::new("iperf3");
    server.args(["-s", "-p", &port, "-B", "127.0.0.1"]);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Running(server.spawn().doing("iperf3")?);
    await_listener(&port)?;
    let mut client = Command::new("iperf3");
    let cpus = format!("{},{}", sides.client_cpu, sides.server_cpu);
    // Half a second here; by time it would take at least a whole one.
    client.args(["-c", "127.0.0.1", "-p", &port, "-n", "1G", "-J", "-A", &cpus]);
    let text = output(&mut client).doing("iperf3")?;
    let value: Value = serde_json::from_str(&text).doing("iperf3")?;
    let bits = value["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 8.0).ok_or_else(|| Failure::new("iperf3: its output has no rate"))
}

pub(crate) fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

pub(crate) fn await_listener(port: &str) -> Result<(), Failure> {
    let port: u16 = port.parse().expect("made from a number");
    // A listening socket is in the kernel's table; connecting would look like a client.
    let listens = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        let end = format!(":{port:04X}");
        table
            .lines()
            .skip(1)
            .any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields.next().is_some_and(|local| local.ends_with(&end))
                    && fields.nth(1) == Some("0A")
            })
            .then_some(())
    };
    clock::poll(Duration::from_secs(5), listens)
        .ok_or_else(|| Failure::new("the server did not start within 5 s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockperfs_median_is_read_in_seconds() {
        let text = "sockperf: ---> percentile 75.000 =   9.000\n\
                    sockperf: ---> percentile 50.000 =   18.5\n";
        assert_eq!(percentile_50(text), Some(18.5e-6));
        assert_eq!(percentile_50("sockperf: No messages"), None);
    }

    #[test]
    fn a_listener_is_found_without_connecting() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let port = listener.local_addr().expect("bound").port().to_string();
        await_listener(&port).expect("it listens");
        listener.set_nonblocking(true).expect("a socket");
        assert!(listener.accept().is_err(), "nobody connected");
    }

    #[test]
    fn a_program_that_nobody_has_is_not_installed() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-of-piped"));
    }
}
