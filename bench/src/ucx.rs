//! Figures of UCX, by its own `ucx_perftest` over TCP on loopback.

use std::process::{Command, Stdio};

use crate::failure::{Doing as _, Failure};
use crate::outside::{Running, Sides, await_listener, free_port, output};

/// Program that measures, and the package that has it.
pub(crate) const TOOL: &str = "ucx_perftest";

/// Seconds that a measurement may take; longer, and it hangs.
const SECONDS_MAX: &str = "60";

/// Something that `ucx_perftest` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    /// Gets of the other side's memory, one at a time: there and back.
    Get,
    /// Tagged messages there and back; the tool prints half of that.
    Message,
}

impl Test {
    const fn name(self) -> &'static str {
        match self {
            Self::Get => "ucp_get",
            Self::Message => "tag_lat",
        }
    }

    /// What the printed time is multiplied with to be one there and back.
    const fn trips(self) -> f64 {
        match self {
            Self::Get => 1.0,
            Self::Message => 2.0,
        }
    }
}

/// Median time there and back in seconds, of `count` times.
pub(crate) fn round_trip(
    test: Test,
    bytes: usize,
    sides: Sides,
    count: u32,
) -> Result<f64, Failure> {
    let port = free_port()?.to_string();
    let wait = if sides.spin { "poll" } else { "sleep" };
    let at = |cpu: usize| {
        let mut command = Command::new("timeout");
        command.args([SECONDS_MAX, "taskset", "-c", &cpu.to_string(), TOOL]);
        command.args(["-p", &port, "-E", wait]);
        command.envs([("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")]);
        command.env("UCX_LOG_LEVEL", "error");
        command
    };
    let mut server = at(sides.server_cpu);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Running(server.spawn().doing(TOOL)?);
    await_listener(&port)?;
    let mut client = at(sides.client_cpu);
    client.args(["127.0.0.1", "-t", test.name(), "-s", &bytes.to_string(), "-f", "-v"]);
    client.args(["-n", &count.to_string(), "-w", &(count / 10 + 1).to_string()]);
    let text = output(&mut client).doing(TOOL)?;
    let median = median(&text).ok_or_else(|| Failure::new("ucx_perftest: no median"))?;
    Ok(median * test.trips())
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
}
