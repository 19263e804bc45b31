//! How latencies of stages vary, on the command line.

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_model::spread::Spread;
use piped_model::stage::{Path, Spreading};

use super::path::{each, items};

/// What latencies vary by, and what to plan for.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct SpreadArgs {
    /// How much the latency of each stage, or of all, varies: standard deviation over mean, part of
    /// stalls, their latency over the mean [default: not at all]
    #[arg(long, value_name = "CV[,PART,TIMES];...", value_parser = spreads)]
    #[arg(conflicts_with_all = ["servers", "certificate"])]
    spread: Option<Spreads>,

    /// The part of transfers that the latency to plan for is not exceeded by [default: the mean]
    #[arg(long, value_name = "0.5-0.999", value_parser = quantile, requires = "spread")]
    pub(super) quantile: Option<f64>,
}

/// Coefficient of variation, part of stalls, and their factor, of each stage or of all.
#[derive(Debug, Clone)]
struct Spreads(Vec<[f64; 3]>);

fn spreads(text: &str) -> Result<Spreads, String> {
    let spread = |item: &str| {
        let numbers: Result<Vec<f64>, _> = item.split(',').map(|it| it.trim().parse()).collect();
        match numbers.as_deref() {
            Ok(&[cv]) if (0.0..=10.0).contains(&cv) => Ok([cv, 0.0, 1.0]),
            Ok(&[cv, part, times])
                if (0.0..=10.0).contains(&cv)
                    && (0.0..1.0).contains(&part)
                    && (1.0..=500.0).contains(&times) =>
            {
                Ok([cv, part, times])
            }
            _ => Err(format!(
                "`{item}` is no spread: write a coefficient of variation up to 10, and maybe the \
                 part of stalls (below 1) and their latency over the mean (1 to 500), as in \
                 1,0.005,50"
            )),
        }
    };
    items(text, ";", spread).map(Spreads)
}

fn quantile(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.5..=0.999).contains(part));
    part.ok_or_else(|| format!("`{text}` is no quantile: write a part from 0.5 to 0.999, as 0.99"))
}

impl SpreadArgs {
    /// The stages of a path with what their latencies vary by, if that was given.
    pub(super) fn spreads(&self, path: &Path) -> Result<Option<Vec<Spreading>>, Failure> {
        let Some(Spreads(spreads)) = &self.spread else { return Ok(None) };
        let spreads = each(Some(spreads.as_slice()), [0.0; 3], path.len());
        let spreads = spreads.map_err(|reason| Failure::usage(format!("--spread: {reason}")))?;
        let stages = path.iter().zip(spreads).map(|(&stage, [cv, part, times])| {
            let spread = Spread::lognormal(stage.latency, cv, (part, times));
            Spreading { stage, spread }
        });
        Ok(Some(stages.collect()))
    }
}
