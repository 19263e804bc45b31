//! The kinds of cases, what each gives, and what the models make of it.
//!
//! Sizes (`B`, `N`, `sizes`) are in units of 1000 bytes, `g` and `o` in us, `G` and `K` in us per
//! 1000 bytes, `T` and `cost` in us. `latency_parts` names its own KB, `buffer` is in bytes and us.

use piped_model::buffer::{self, Consumer, Mode};
use piped_model::fixed;
use piped_model::reference::{KB, stage};
use piped_model::stage::{Path, Stage};
use piped_model::strip::{Network, StripModel};
use piped_model::{evaluate, hierarchical, ramp};
use serde::{Deserialize, Serialize};

use super::{Kind, kind};
use crate::lp;

/// A file: for each kind its cases.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Vectors {
    latency_parts: Vec<LatencyParts>,
    fixed_best: Vec<FixedBest>,
    ramp_up_best: Vec<RampUp>,
    ramp_up_down_best: Vec<RampUpDown>,
    lp_same_fragments: Vec<SameFragments>,
    #[serde(rename = "hier_B")]
    hierarchical_fixed: Vec<HierarchicalFixed>,
    buffer: Vec<Buffer>,
    strip_serial: Vec<Strips<false>>,
    strip_literal: Vec<Strips<true>>,
}

impl Vectors {
    /// Every kind that has cases.
    pub(super) fn kinds(&self) -> Result<Vec<Kind>, String> {
        let kinds = [
            kind("latency_parts", &self.latency_parts)?,
            kind("fixed_best", &self.fixed_best)?,
            kind("ramp_up_best", &self.ramp_up_best)?,
            kind("ramp_up_down_best", &self.ramp_up_down_best)?,
            kind("lp_same_fragments", &self.lp_same_fragments)?,
            kind("hier_B", &self.hierarchical_fixed)?,
            kind("buffer", &self.buffer)?,
            kind("strip_serial", &self.strip_serial)?,
            kind("strip_literal", &self.strip_literal)?,
        ];
        Ok(kinds.into_iter().flatten().collect())
    }
}

/// What the model says and what the file says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Outcome {
    /// The name of the result in the file.
    result: String,
    got: f64,
    wanted: f64,
    /// What an error is a part of.
    #[serde(skip)]
    scale: f64,
}

impl Outcome {
    fn of(result: &str, got: f64, wanted: f64) -> Self {
        Self { result: result.to_owned(), got, wanted, scale: wanted.abs() }
    }

    /// Name, computed value and wanted value as cells of a table.
    pub(super) fn cells(&self) -> [String; 3] {
        [self.result.clone(), format!("{:.6}", self.got), format!("{:.6}", self.wanted)]
    }

    /// Relative to what is wanted; of 0 the value itself; infinite for what is no number.
    pub(super) fn error(&self) -> f64 {
        let off = (self.got - self.wanted).abs();
        let error = if self.scale > 0.0 { off / self.scale } else { off };
        if error.is_nan() { f64::INFINITY } else { error }
    }
}

/// A case of some kind.
pub(super) trait Case {
    /// All results that the file gives for the case, each beside the computed one.
    fn results(&self) -> Result<Vec<Outcome>, String>;
}

/// Overhead `g` in us and inverse bandwidth `G` in us per KB.
type Pair = [f64; 2];

/// The largest size, in KB, that a case may have: a larger one is a slip of units.
const KB_MAX: f64 = 1e9;

fn positive(name: &str, value: f64) -> Result<f64, String> {
    if value.is_finite() && value > 0.0 && value <= KB_MAX {
        return Ok(value);
    }
    Err(format!("{name} is {value}: give a number above 0 and up to {KB_MAX:e}"))
}

/// A transfer in bytes.
fn bytes(name: &str, kb: f64) -> Result<f64, String> {
    let bytes = positive(name, kb)? * KB;
    if bytes < 1.0 { Err(format!("{name} is {kb}: that is less than one byte")) } else { Ok(bytes) }
}

fn path(stages: &[Pair], kb: f64) -> Result<Path, String> {
    let stages: Vec<Stage> = stages.iter().map(|&[g, per_kb]| stage(g, per_kb, kb)).collect();
    Path::new(&stages).map_err(|fault| fault.to_string())
}

fn micros(seconds: f64) -> f64 {
    seconds * 1e6
}

/// Sizes, each against its own; the error is a part of all bytes, because a size near 0 is as good
/// as none.
fn sizes<'a>(got: &'a [f64], wanted: &'a [f64], kb: f64) -> impl Iterator<Item = Outcome> + 'a {
    let pairs = got.iter().zip(wanted).enumerate();
    pairs.map(move |(index, (&got, &wanted))| Outcome {
        result: format!("sizes[{index}]"),
        got: got / KB,
        wanted,
        scale: kb,
    })
}

/// Fragments cut anew at each boundary.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LatencyParts {
    stages: Vec<Pair>,
    parts_bytes: Vec<Vec<u64>>,
    kb: f64,
    #[serde(rename = "T")]
    latency: f64,
}

impl Case for LatencyParts {
    fn results(&self) -> Result<Vec<Outcome>, String> {
        let path = path(&self.stages, positive("kb", self.kb)?)?;
        let lists: Vec<&[u64]> = self.parts_bytes.iter().map(Vec::as_slice).collect();
        let seconds = evaluate::lists(&path, &lists, None).map_err(|fault| fault.to_string())?;
        Ok(vec![Outcome::of("T", micros(seconds), self.latency)])
    }
}

/// The best number of equal fragments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FixedBest {
    stages: Vec<Pair>,
    #[serde(rename = "B")]
    kb: f64,
    k: u64,
    #[serde(rename = "T")]
    latency: f64,
}

impl Case for FixedBest {
    fn results(&self) -> Result<Vec<Outcome>, String> {
        let path = path(&self.stages, KB)?;
        let bytes = bytes("B", self.kb)?;
        let best = fixed::optimum(&path, bytes, (1, bytes as u64), None);
        Ok(vec![
            Outcome::of("T", micros(best.predicted_seconds), self.latency),
            Outcome::of("k", best.count as f64, self.k as f64),
        ])
    }
}

/// The best ramp over two stages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RampUp {
    stages: Vec<Pair>,
    #[serde(rename = "B")]
    kb: f64,
    #[serde(rename = "T")]
    latency: f64,
    k: u64,
    #[serde(rename = "sizes")]
    kb_sizes: Vec<f64>,
}

impl Case for RampUp {
    fn results(&self) -> Result<Vec<Outcome>, String> {
        let best =
            ramp::up_real(&path(&self.stages, KB)?, bytes("B", self.kb)?, ramp::FRAGMENTS_MAX);
        let best = best.ok_or("a ramp has two stages")?;
        let mut results = vec![
            Outcome::of("T", micros(best.predicted_seconds), self.latency),
            Outcome::of("k", best.up as f64, self.k as f64),
        ];
        results.extend(sizes(&best.sizes, &self.kb_sizes, self.kb));
        Ok(results)
    }
}

/// The best ramp up and down over three stages.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RampUpDown {
    stages: Vec<Pair>,
    #[serde(rename = "B")]
    kb: f64,
    #[serde(rename = "T")]
    latency: f64,
    k1k2: [u64; 2],
    #[serde(rename = "sizes")]
    kb_sizes: Vec<f64>,
}

impl Case for RampUpDown {
    fn results(&self) -> Result<Vec<Outcome>, String> {
        let path = path(&self.stages, KB)?;
        let best = ramp::up_down_real(&path, bytes("B", self.kb)?, ramp::FRAGMENTS_MAX);
        let best = best.ok_or("a ramp up and down has three stages, the middle one the slowest")?;
        let mut results = vec![
            Outcome::of("T", micros(best.predicted_seconds), self.latency),
            Outcome::of("k1k2[0]", best.up as f64, self.k1k2[0] as f64),
            Outcome::of("k1k2[1]", best.down as f64, self.k1k2[1] as f64),
        ];
        results.extend(sizes(&best.sizes, &self.kb_sizes, self.kb));
        Ok(results)
    }
}

/// Messages that come faster than they are copied.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Buffer {
    #[serde(rename = "n_L_lam_mu_alpha_delta")]
    given: (u32, f64, f64, f64, f64, f64),
    #[serde(rename = "peak_seed")]
    paper: f64,
    #[serde(rename = "peak_causal")]
    causal: f64,
}

impl Case for Buffer {
    fn results(&self) -> Result<Vec<Outcome>, String> {
        let (messages, bytes, lambda, mu, alpha, delay) = self.given;
        let per_second = |bytes_per_us: f64| bytes_per_us * 1e6;
        let arrivals = buffer::burst(messages as usize, bytes, per_second(lambda), delay * 1e-6);
        let consumer = Consumer { startup_seconds: alpha * 1e-6, bytes_per_second: per_second(mu) };
        let need = |mode| {
            let need = buffer::required(&arrivals, consumer, mode);
            need.map(|need| need.bytes).map_err(|fault| fault.to_string())
        };
        Ok(vec![
            Outcome::of("peak_seed", need(Mode::Paper)?, self.paper),
            Outcome::of("peak_causal", need(Mode::Causal)?, self.causal),
        ])
    }
}

/// The most fragments of a linear program: a case is solved in seconds then, whatever its stages,
/// and the optima of interest have a dozen or two.
const FRAGMENTS_MAX: u64 = 64;

/// The optimum of the same fragments in every stage.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SameFragments {
    stages: Vec<Pair>,
    #[serde(rename = "B")]
    kb: f64,
    #[serde(rename = "T")]
    latency: f64,
    /// Not compared: more fragments may be as good.
    #[serde(rename = "k")]
    _k: u64,
}

impl Case for SameFragments {
    fn results(&self) -> Result<Vec<Outcome>, String> {
        let path = path(&self.stages, KB)?;
        let best = lp::same_fragments(&path, bytes("B", self.kb)?, FRAGMENTS_MAX);
        let best = best.map_err(|fault| fault.to_string())?;
        if best.sizes.len() as u64 == FRAGMENTS_MAX {
            return Err(format!(
                "the optimum has {FRAGMENTS_MAX} fragments or more, which takes too long to solve: \
                 give a smaller B, or larger g"
            ));
        }
        Ok(vec![Outcome::of("T", micros(best.predicted_seconds), self.latency)])
    }
}

/// Algorithm B: fixed sizes at two levels.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HierarchicalFixed {
    net: Vec<Pair>,
    disk: Pair,
    #[serde(rename = "B")]
    kb: f64,
    k: u64,
    #[serde(rename = "model")]
    approximate: f64,
    #[serde(rename = "sim")]
    exact: f64,
}

impl Case for HierarchicalFixed {
    fn results(&self) -> Result<Vec<Outcome>, String> {
        let bytes = bytes("B", self.kb)?;
        let stages: Vec<Pair> = self.net.iter().copied().chain([self.disk]).collect();
        let path = path(&stages, KB)?;
        let best = hierarchical::fixed_real(&path, self.net.len(), bytes, bytes as u64);
        let best = best.ok_or("a hierarchy has two stages of the network at least")?;
        Ok(vec![
            Outcome::of("k", best.sizes.len() as f64, self.k as f64),
            Outcome::of("model", micros(best.model_seconds), self.approximate),
            Outcome::of("sim", micros(best.predicted_seconds), self.exact),
        ])
    }
}

/// The best strips, of the serial network or of the paper's equations.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Strips<const LITERAL: bool> {
    #[serde(rename = "N")]
    kb: f64,
    o: f64,
    #[serde(rename = "G")]
    per_kb: f64,
    #[serde(rename = "K")]
    compute: f64,
    cost: f64,
    m: usize,
    #[serde(rename = "sizes")]
    kb_sizes: Vec<f64>,
}

impl<const LITERAL: bool> Case for Strips<LITERAL> {
    fn results(&self) -> Result<Vec<Outcome>, String> {
        let seconds = |micros_per_kb: f64| micros_per_kb * 1e-6 / KB;
        let model = StripModel::new(self.o * 1e-6, seconds(self.per_kb), seconds(self.compute));
        let network = if LITERAL { Network::Literal } else { Network::Serial };
        let model = StripModel { network, ..model.map_err(|fault| fault.to_string())? };
        let bytes = bytes("N", self.kb)?;
        if self.kb_sizes.len() != self.m {
            return Err(format!("m is {}, but there are {} sizes", self.m, self.kb_sizes.len()));
        }
        let best = model.optimal(bytes).ok_or("there are no best strips")?;
        // Fewer strips may be as good, so the sizes are those of as many as the case has.
        let same = model.optimal_of(bytes, self.m);
        let same = same.ok_or_else(|| format!("{} strips are never best", self.m))?;
        let mut results = vec![
            Outcome::of("cost", micros(best.cost_seconds), self.cost),
            Outcome::of("cost of m", micros(same.cost_seconds), self.cost),
        ];
        results.extend(sizes(&same.sizes, &self.kb_sizes, self.kb));
        Ok(results)
    }
}
