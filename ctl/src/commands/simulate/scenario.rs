//! A scenario file: nodes with their disks, links, dials, and the transfers to run.

use std::collections::BTreeMap;

use piped_config::planner_form;
use piped_core::limits::DEPTH_MAX;
use piped_core::modes::{CalibrationMode, ForcedPlan, PlannerMode};
use piped_core::request::Class;
use piped_core::sizes::Sizes;
use piped_core::spread::LatencySpread;
use piped_core::units::Nanos;
use piped_engine::command::{Limits, PeerLimits};
use piped_model::stage::Stage;
use piped_report::dial::DialCost;
use piped_sim::Cost;
use serde::Deserialize;

use crate::quantity::{self, Kb};

/// Longest transfer, because its bytes are really moved.
const BYTES_MAX: u64 = 256 << 20;
/// Most repetitions of a transfer.
const COUNT_MAX: u32 = 100_000;
/// Most transfers at once: fewer than an engine here has places for.
const AT_ONCE_MAX: u64 = 64;

/// Content of a scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::commands) struct Scenario {
    /// Title that says what it shows.
    #[serde(default)]
    pub(super) title: String,
    /// Seed of everything random.
    #[serde(default = "one")]
    pub(super) seed: u64,
    /// Whether costs follow measurements.
    #[serde(default)]
    pub(super) calibration: CalibrationMode,
    /// All nodes by name.
    pub(super) nodes: BTreeMap<String, Node>,
    #[serde(default)]
    pub(super) links: Vec<Link>,
    #[serde(default)]
    pub(super) dials: Vec<Dial>,
    pub(super) transfers: Vec<Transfer>,
}

/// A node with its disks.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    /// Staging that each peer may use, as `limits.peer.staging`; no limit without it.
    peer_staging: Option<Text>,
    /// All disks by name.
    #[serde(default)]
    pub(super) disks: BTreeMap<String, Disk>,
}

/// A disk, with equal costs of reads and writes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Disk {
    #[serde(rename = "L", default)]
    latency: Text,
    #[serde(rename = "g", default)]
    overhead: Text,
    #[serde(rename = "G", default)]
    per_byte: Text,
    /// The most operations in it at once.
    pub(super) window: Option<u32>,
    /// How much its latency differs from read to read and from write to write.
    #[serde(default)]
    spread: LatencySpread,
    /// Whether it reports all operations when nothing is left to do, as some virtual disks do.
    #[serde(default)]
    pub(super) tells_at_the_end: bool,
}

/// A link between two nodes; a missing one costs nothing.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    pub(super) nodes: [String; 2],
    /// Whether it leads to the second addresses of both: one more way beside their link.
    #[serde(default)]
    second: bool,
    #[serde(rename = "L", default)]
    latency: Text,
    #[serde(rename = "g", default)]
    overhead: Text,
    #[serde(rename = "G", default)]
    per_byte: Text,
}

/// A dial of a node.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dial {
    pub(super) node: String,
    /// Stage as in `dial set`, except for disks: `disk:NAME:read` or `disk:NAME:write`.
    pub(super) stage: String,
    #[serde(rename = "L", default)]
    latency: Text,
    #[serde(rename = "g", default)]
    overhead: Text,
    #[serde(rename = "G", default)]
    per_byte: Text,
    #[serde(rename = "o", default)]
    host: Text,
    /// How much single latencies differ.
    #[serde(default)]
    spread: LatencySpread,
}

/// Transfers of a kind, one after the other.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transfer {
    pub(super) name: Option<String>,
    /// Node that asks for it.
    pub(super) node: String,
    /// Source: `NODE:DISK` is a file there, `NODE` its memory.
    pub(super) read: Option<String>,
    pub(super) write: Option<String>,
    /// Source and destination of a copy.
    pub(super) copy: Option<[String; 2]>,
    bytes: Text,
    /// How urgent it is: `bulk`, or `latency`.
    #[serde(default = "bulk")]
    pub(super) class: Class,
    /// Planner mode: `auto`, `whole`, `fixed:SIZE`.
    #[serde(default, deserialize_with = "planner_form")]
    pub(super) planner: PlannerMode,
    /// Plan instead of what the planner chooses.
    plan: Option<Given>,
    #[serde(default = "one")]
    count: u64,
    /// How many of them begin together, each with its own part of the file and of memory.
    #[serde(default = "one")]
    at_once: u64,
}

/// Sizes in bytes; the last one repeats.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    source: Option<Vec<u64>>,
    lane: Vec<u64>,
    sink: Option<Vec<u64>>,
    depth: Option<u32>,
}

/// A quantity: text with its unit, or a number.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Text {
    Words(String),
    Whole(u64),
    Number(f64),
}

impl Default for Text {
    fn default() -> Self {
        Self::Whole(0)
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Words(text) => f.write_str(text),
            Self::Whole(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

fn bulk() -> Class {
    Class::Bulk
}

fn one() -> u64 {
    1
}

/// Costs with `L`, `g` in seconds and `G` in seconds per byte.
fn costs(latency: &Text, overhead: &Text, per_byte: &Text) -> Result<Stage, String> {
    let (latency, overhead) = (latency.to_string(), overhead.to_string());
    let (latency, overhead) = (quantity::time(&latency)?, quantity::time(&overhead)?);
    let per_byte = quantity::per_byte(&per_byte.to_string())?.seconds(Kb::Decimal);
    Ok(Stage { latency, overhead, per_byte, window: None })
}

/// Cost in the simulator's form.
pub(super) fn cost(stage: &Stage) -> Cost {
    Cost {
        latency: Nanos::from_seconds(stage.latency),
        overhead: Nanos::from_seconds(stage.overhead),
        nanos_per_byte: stage.per_byte * 1e9,
    }
}

impl Node {
    /// What each peer may use.
    pub(super) fn limits(&self) -> Result<PeerLimits, String> {
        let Some(staging) = &self.peer_staging else { return Ok(Limits::NONE.peer) };
        let staging = quantity::size(&staging.to_string())?.whole_bytes(Kb::Decimal)?;
        Ok(PeerLimits { staging, ..Limits::NONE.peer })
    }
}

impl Disk {
    pub(super) fn stage(&self) -> Result<Stage, String> {
        let stage = costs(&self.latency, &self.overhead, &self.per_byte)?;
        Ok(Stage { window: self.window.and_then(std::num::NonZeroU32::new), ..stage })
    }

    /// # Errors
    /// What no latency does.
    pub(super) fn spread(&self) -> Result<LatencySpread, String> {
        self.spread.check().map_err(|fault| fault.to_string())
    }
}

impl Link {
    pub(super) fn is_second(&self) -> bool {
        self.second
    }

    pub(super) fn stage(&self) -> Result<Stage, String> {
        costs(&self.latency, &self.overhead, &self.per_byte)
    }
}

impl Dial {
    /// The disk that is meant, and whether its writes are; none for other stages.
    pub(super) fn disk(&self) -> Result<Option<(&str, &'static [bool])>, String> {
        let Some(rest) = self.stage.strip_prefix("disk:") else { return Ok(None) };
        let (disk, way) = rest.split_once(':').unwrap_or((rest, ""));
        let ways: &[bool] = match way {
            "read" => &[false],
            "write" => &[true],
            "" => &[false, true],
            _ => return Err(format!("`{}`: write disk:{disk}:read or :write", self.stage)),
        };
        Ok(Some((disk, ways)))
    }

    pub(super) fn stage(&self) -> Result<Stage, String> {
        costs(&self.latency, &self.overhead, &self.per_byte)
    }

    pub(super) fn cost(&self) -> Result<DialCost, String> {
        let stage = self.stage()?;
        let host = quantity::time(&self.host.to_string())?;
        let cost = DialCost {
            latency_ns: Nanos::from_seconds(stage.latency).0,
            overhead_ns: Nanos::from_seconds(stage.overhead).0,
            per_byte_ps: (stage.per_byte * 1e12).round() as u64,
            host_ns: Nanos::from_seconds(host).0,
            spread: self.spread,
        };
        cost.check().map_err(|fault| fault.to_string())
    }
}

impl Scenario {
    /// Whether equal operations differ in time.
    pub(super) fn spreads(&self) -> bool {
        let disks = self.nodes.values().flat_map(|node| node.disks.values());
        let disks = disks.map(|disk| disk.spread);
        disks.chain(self.dials.iter().map(|dial| dial.spread)).any(|it| !it.is_none())
    }

    /// Costs of a node's dial, if it is set: of its time on the node's thread, and its own.
    pub(super) fn dial(&self, node: &str, stage: &str) -> Result<Option<[Stage; 2]>, String> {
        let of = |dial: &&Dial| dial.node == node && dial.stage == stage;
        let costs = |dial: &Dial| {
            let host = Nanos(dial.cost()?.host_ns).seconds();
            Ok([Stage { overhead: host, ..Stage::FREE }, dial.stage()?])
        };
        self.dials.iter().find(of).map(costs).transpose()
    }

    /// Costs of a link between two nodes, if there is one.
    pub(super) fn link(&self, one: &str, other: &str) -> Result<Option<Stage>, String> {
        self.between(one, other, false).map(Link::stage).transpose()
    }

    /// Whether there are two ways between two nodes.
    pub(super) fn has_second(&self, one: &str, other: &str) -> bool {
        self.between(one, other, true).is_some()
    }

    fn between(&self, one: &str, other: &str, second: bool) -> Option<&Link> {
        let is_end = |link: &Link, name: &str| link.nodes.iter().any(|node| node == name);
        let mut links = self.links.iter().filter(|link| link.second == second);
        links.find(|link| is_end(link, one) && is_end(link, other))
    }
}

impl Transfer {
    /// Ends of the transfer: one or two of `NODE:DISK` or `NODE`.
    pub(super) fn ends(&self) -> Result<Vec<&str>, String> {
        match (&self.read, &self.write, &self.copy) {
            (Some(end), None, None) | (None, Some(end), None) => Ok(vec![end]),
            (None, None, Some([from, to])) => Ok(vec![from, to]),
            _ => Err("say one of read, write and copy".to_owned()),
        }
    }

    /// Title in the report; `number` counts from 0.
    pub(super) fn title(&self, number: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("transfer {}", number + 1))
    }

    pub(super) fn bytes(&self) -> Result<u64, String> {
        let bytes = quantity::size(&self.bytes.to_string())?.whole_bytes(Kb::Decimal)?;
        match bytes {
            1..=BYTES_MAX => Ok(bytes),
            _ => {
                Err(format!("{bytes} bytes: simulate at most {BYTES_MAX}, which are really moved"))
            }
        }
    }

    pub(super) fn count(&self) -> Result<u32, String> {
        let count = u32::try_from(self.count).ok().filter(|count| (1..=COUNT_MAX).contains(count));
        count.ok_or_else(|| {
            format!("a transfer is repeated 1 to {COUNT_MAX} times, not {}", self.count)
        })
    }

    pub(super) fn at_once(&self) -> Result<u64, String> {
        let all = self.bytes()?.saturating_mul(self.at_once);
        match (self.at_once, all) {
            (1..=AT_ONCE_MAX, 1..=BYTES_MAX) => Ok(self.at_once),
            _ => Err(format!(
                "{} at once: give 1 to {AT_ONCE_MAX}, of {BYTES_MAX} bytes together at most",
                self.at_once
            )),
        }
    }

    pub(super) fn plan(&self) -> Result<Option<ForcedPlan>, String> {
        let Some(given) = &self.plan else { return Ok(None) };
        let sizes = |sizes: &Option<Vec<u64>>| {
            let list = sizes.as_ref().unwrap_or(&given.lane);
            let bad =
                || format!("{list:?} are no sizes: 1 to 32 multiples of 512, the last one repeats");
            let whole = list.iter().all(|&size| size > 0 && size % 512 == 0);
            whole.then(|| Sizes::list(list.iter().copied())).flatten().ok_or_else(bad)
        };
        Ok(Some(ForcedPlan {
            source: sizes(&given.source)?,
            lane: sizes(&Some(given.lane.clone()))?,
            sink: sizes(&given.sink)?,
            depth: given.depth.unwrap_or(DEPTH_MAX),
        }))
    }
}

/// Reads the text of a scenario.
///
/// # Errors
/// The mistake and its place.
pub(in crate::commands) fn parse(text: &str) -> Result<Scenario, String> {
    let scenario: Scenario =
        toml_edit::de::from_str(text).map_err(|error| error.to_string().trim().to_owned())?;
    if scenario.nodes.is_empty() || scenario.transfers.is_empty() {
        return Err(
            "a scenario has at least one node ([nodes.NAME]) and one [[transfers]]".to_owned()
        );
    }
    Ok(scenario)
}
