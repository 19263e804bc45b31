//! The report of a measurement.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::args::Load;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::Column::{Number, Text};
use crate::units;

/// Three significant digits from 1 ns to an hour, in 200 KiB; a later value counts as an hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// Counts during a run. Counting allocates nothing.
#[derive(Debug)]
pub(super) struct Counts {
    latencies_ns: Histogram<u64>,
    bytes: u64,
}

impl Counts {
    pub(super) fn new() -> Self {
        let latencies_ns =
            Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("the bounds are constants");
        Self { latencies_ns, bytes: 0 }
    }

    /// Counts a request that ended well.
    pub(super) fn add(&mut self, latency: Duration, bytes: u64) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(LATENCY_MAX_NS);
        self.latencies_ns.saturating_record(nanos.max(1));
        self.bytes += bytes;
    }

    /// Forgets all counts, after the warm-up.
    pub(super) fn reset(&mut self) {
        self.latencies_ns.reset();
        self.bytes = 0;
    }
}

/// CPU time spent during the run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpu {
    pub(super) client: Option<f64>,
    pub(super) daemon: Option<f64>,
}

/// Result, with times in the units of the field names.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    operation: &'static str,
    target: String,
    size_bytes: u64,
    depth: u32,
    pattern: &'static str,
    wait: String,
    seconds: f64,
    ops: u64,
    bytes: u64,
    ops_per_second: f64,
    bytes_per_second: f64,
    latency_seconds: Latency,
    client_cpu_seconds: Option<f64>,
    /// Absent if the daemon's admin API is not reachable.
    daemon_cpu_seconds: Option<f64>,
}

/// Time from submission to completion.
#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p99_9: f64,
    mean: f64,
    max: f64,
}

/// Description of the measured requests.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) operation: &'static str,
    pub(super) target: String,
}

impl Report {
    pub(super) fn new(
        subject: Subject,
        load: &Load,
        counts: &Counts,
        time: Duration,
        cpu: Cpu,
    ) -> Self {
        let seconds = time.as_secs_f64();
        let latencies = &counts.latencies_ns;
        let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 * 1e-9;
        Self {
            operation: subject.operation,
            target: subject.target,
            size_bytes: load.size.0,
            depth: load.depth,
            pattern: load.pattern.name(),
            wait: load
                .wait
                .map_or("profile", |wait| piped_core::modes::Profile::from(wait).name())
                .to_owned(),
            seconds,
            ops: latencies.len(),
            bytes: counts.bytes,
            ops_per_second: latencies.len() as f64 / seconds,
            bytes_per_second: counts.bytes as f64 / seconds,
            latency_seconds: Latency {
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p99_9: at(0.999),
                mean: latencies.mean() * 1e-9,
                max: latencies.max() as f64 * 1e-9,
            },
            client_cpu_seconds: cpu.client,
            daemon_cpu_seconds: cpu.daemon,
        }
    }

    pub(super) fn print(&self, output: &Output) -> Result<(), Failure> {
        let Self { operation, target, depth, pattern, seconds, .. } = self;
        let what = match self.bytes {
            0 => format!("depth {depth}"),
            _ => format!("{depth} x {}, {pattern}", units::bytes(self.size_bytes)),
        };
        output.line(format_args!("{operation} {target}: {what}, {seconds:.1} s"))?;
        let row = |what: &str, value: String, per: String| vec![what.to_owned(), value, per];
        let mut rows = vec![row(
            "ops",
            units::count(self.ops),
            format!("{}/s", units::count(self.ops_per_second.round() as u64)),
        )];
        if self.bytes > 0 {
            rows.push(row("bytes", units::bytes(self.bytes), units::rate(self.bytes_per_second)));
        }
        for (what, time) in
            [("CPU client", self.client_cpu_seconds), ("CPU daemon", self.daemon_cpu_seconds)]
        {
            let Some(time) = time else { continue };
            let share = format!("{:.0} %", time / self.seconds * 100.0);
            rows.push(row(what, format!("{time:.2} s"), share));
        }
        output.table(&[Text(""), Number("TOTAL"), Number("RATE")], rows)?;
        let Latency { p50, p90, p99, p99_9, mean, max } = self.latency_seconds;
        let us = |value: f64| format!("{:.1}", value * 1e6);
        output.heading("Latency in us")?;
        output.table(
            &["p50", "p90", "p99", "p99.9", "mean", "max"].map(Number),
            vec![[p50, p90, p99, p99_9, mean, max].map(us).to_vec()],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_rates_come_from_what_was_added() {
        let mut counts = Counts::new();
        counts.add(Duration::from_secs(9), 1);
        counts.reset();
        for micros in 1..=1000 {
            counts.add(Duration::from_micros(micros), 4096);
        }
        let line = ["pipectl", "bench", "nop", "--depth", "2"];
        let args = <crate::args::Args as clap::Parser>::try_parse_from(line).expect("valid");
        let crate::args::Command::Bench(bench) = args.command else { panic!("bench") };
        let crate::args::Operation::Nop(load) = bench.operation else { panic!("nop") };
        let subject = Subject { operation: "read", target: "x".to_owned() };
        let cpu = Cpu { client: Some(0.5), daemon: None };
        let report = Report::new(subject, &load, &counts, Duration::from_secs(2), cpu);
        let json = serde_json::to_value(&report).expect("plain data");
        assert_eq!(json["ops"], 1000);
        assert_eq!(json["ops_per_second"], 500.0);
        assert_eq!(json["bytes_per_second"], 4096.0 * 500.0);
        let p999 = json["latency_seconds"]["p99.9"].as_f64().expect("a number");
        assert!((998e-6..=1001e-6).contains(&p999), "{p999}");
        let p50 = json["latency_seconds"]["p50"].as_f64().expect("a number");
        assert!((499e-6..=501.5e-6).contains(&p50), "{p50}");
        assert!(json["daemon_cpu_seconds"].is_null());
    }

    #[test]
    fn absurd_latencies_are_counted_not_lost() {
        let mut counts = Counts::new();
        counts.add(Duration::ZERO, 0);
        counts.add(Duration::from_secs(1 << 40), 0);
        assert_eq!(counts.latencies_ns.len(), 2);
    }
}
