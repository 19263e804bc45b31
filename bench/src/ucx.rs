//! Figures of UCX, by its own `ucx_perftest` over TCP on loopback.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::{Doing as _, Failure};
use crate::outside::{Running, Sides, await_listener, free_port, output};

/// Name of the program that measures.
pub(crate) const TOOL: &str = "ucx_perftest";

/// Where bench/peers.sh puts UCX of PyPI, below the home directory. It comes first: the one of
/// Debian 12 takes loopback for a link of 12 MB/s, and its gets take a millisecond.
const FROM_PYPI: &str = ".local/share/piped-peers/libucx/bin";

/// Seconds that a measurement may take; longer, and it hangs.
const SECONDS_MAX: &str = "20";

/// Bytes of the put by which the other side says that it has one.
const ANSWER_BYTES: usize = 8;

/// Something that `ucx_perftest` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    /// Gets of the other side's memory, one at a time: there and back.
    Get,
    /// Tagged messages there and back; the tool prints half of that.
    Message,
    /// Puts until the other side sees them in its memory, and 8 bytes back by which it says so. The
    /// tool prints one way alone, of each size.
    Put,
}

/// The program that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ucx {
    program: PathBuf,
    /// Directory of the libraries that came with it.
    libraries: Option<PathBuf>,
    /// Variables of UCX, of both sides.
    settings: Vec<(&'static str, String)>,
}

impl Ucx {
    /// Finds the program, and the libraries that came with it.
    pub(crate) fn find() -> Option<Self> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = home.map(|home| home.join(FROM_PYPI)).into_iter();
        let program = folders
            .chain(std::env::split_paths(&path))
            .map(|folder| folder.join(TOOL))
            .find(|program| program.is_file())?;
        let beside = program.parent().and_then(Path::parent).map(|folder| folder.join("lib"));
        let libraries = beside.filter(|folder| folder.join("libucp.so.0").is_file());
        Some(Self { program, libraries, settings: Vec::new() })
    }

    /// Sets a variable of UCX, for both sides.
    pub(crate) fn with(mut self, variable: &'static str, value: String) -> Self {
        self.settings.push((variable, value));
        self
    }

    /// Version of the libraries, for notes.
    pub(crate) fn version(&self) -> String {
        let mut info = self.with_libraries(Command::new(self.program.with_file_name("ucx_info")));
        let text = output(info.arg("-v")).unwrap_or_default();
        version(&text).unwrap_or("of unknown version").to_owned()
    }

    fn with_libraries(&self, mut command: Command) -> Command {
        if let Some(folder) = &self.libraries {
            command.env("LD_LIBRARY_PATH", folder);
        }
        command
    }

    /// Median time in seconds, there and back, of `count` of what a test measures.
    pub(crate) fn time(
        &self,
        test: Test,
        bytes: usize,
        sides: Sides,
        count: u32,
    ) -> Result<f64, Failure> {
        match test {
            Test::Get => self.printed("ucp_get", bytes, sides, count),
            Test::Message => Ok(2.0 * self.printed("tag_lat", bytes, sides, count)?),
            Test::Put => Ok(self.printed("ucp_put_lat", bytes, sides, count)?
                + self.printed("ucp_put_lat", ANSWER_BYTES, sides, count)?),
        }
    }

    /// Median that the program prints, in seconds.
    fn printed(&self, test: &str, bytes: usize, sides: Sides, count: u32) -> Result<f64, Failure> {
        let port = free_port()?.to_string();
        let wait = if sides.spin { "poll" } else { "sleep" };
        let at = |cpu: usize| {
            let mut command = self.with_libraries(Command::new("timeout"));
            command.args([SECONDS_MAX, "taskset", "-c", &cpu.to_string()]).arg(&self.program);
            command.args(["-p", &port, "-E", wait]);
            command.envs([("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")]);
            command.env("UCX_LOG_LEVEL", "error");
            command.envs(self.settings.iter().map(|(name, value)| (name, value)));
            command
        };
        let mut server = at(sides.server_cpu);
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _server = Running(server.spawn().doing(TOOL)?);
        await_listener(&port)?;
        let mut client = at(sides.client_cpu);
        client.args(["127.0.0.1", "-t", test, "-s", &bytes.to_string(), "-f", "-v"]);
        client.args(["-n", &count.to_string(), "-w", &(count / 10 + 1).to_string()]);
        if !sides.spin {
            // Without endpoints that handle errors, a get of 1.22 that sleeps is never woken.
            client.arg("-e");
        }
        let text = output(&mut client).doing(TOOL)?;
        median(&text).ok_or_else(|| Failure::new("ucx_perftest: its output has no median"))
    }
}

/// Reads the version out of `# Library version: 1.22.0`.
fn version(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.to_lowercase().contains("version"))?;
    line.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()))
}

/// Reads the median of the last line in seconds, by the heading of its column.
fn median(text: &str) -> Option<f64> {
    let heading = text.lines().find(|line| line.starts_with("iterations,"))?;
    let column = heading.split(',').position(|name| name == "50.0_percentile_lat")?;
    let last = text.lines().rfind(|line| !line.trim().is_empty())?;
    let micros: f64 = last.split(',').nth(column)?.trim().parse().ok()?;
    (micros > 0.0).then_some(micros / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_found_by_its_heading_and_told_in_seconds() {
        let heading = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr";
        let text = format!("{heading}\n1000,29.5,30.1,30.1,1,1,1\n5000,31.25,40.1,40.1,1,1,1\n");
        assert_eq!(median(&text), Some(31.25e-6));
        assert_eq!(median(heading), None, "no line of figures");
        assert_eq!(median("ucx: no device\n"), None);
        assert_eq!(median(&format!("{heading}\n5000,0.0,1,1\n")), None, "nothing takes no time");
    }

    #[test]
    fn a_version_is_the_first_number_of_its_line() {
        let old = "# Version 1.13.1\n# Git branch '<unknown>', revision 0000000\n";
        let new = "# Library version: 1.22.0\n# Library path: /lib/libucs.so.0\n";
        assert_eq!((version(old), version(new)), (Some("1.13.1"), Some("1.22.0")));
        assert_eq!(version("not found"), None);
    }
}
