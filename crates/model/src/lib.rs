//! The theory of optimal communication pipelines, pure: no IO, no clock, no allocation where a
//! request could wait for it.
//!
//! A transfer passes a *path* of *stages*. A stage serves one fragment at a time; a fragment of `x`
//! bytes occupies it for `g + x·G` and leaves it `L` later, and at most `w` fragments are in it at
//! once:
//!
//! ```text
//! start(i,j)  = max(arrive(i,j), start(i-1,j) + occ(i-1,j), depart(i-w,j))
//! depart(i,j) = start(i,j) + occ(i,j) + L          arrive(i,j+1) = depart of all its bytes
//! ```
//!
//! (the recurrence of Wang et al., equations 1-3, extended by `L` and `w`). From there:
//!
//! | module | what |
//! | --- | --- |
//! | [`stage`] | [`stage::Stage`], [`stage::Path`], [`stage::StageCost`]: a cost that may bend |
//! | [`plan`] | [`plan::Plan`]: fragment sizes per level of the path, and their algorithm |
//! | [`evaluate`] | the latency of a plan: the recurrence, and a closed form for equal fragments |
//! | [`fixed`] | the best fixed fragment size and depth (Theorem 1 with a moving bottleneck) |
//! | [`serial`] | fragments one at a time at the first stage, in sizes that fall (Theorem 3) |
//! | [`ramp`] | sizes that change so that nobody waits (Theorems 3 to 5) |
//! | [`hierarchical`] | sub-fragments for the stages beside the bottleneck (B, C, C') |
//! | [`rounding`] | real sizes as whole bytes, and the plan made of them |
//! | [`mod@reference`] | the papers' pipelines |
//! | [`buffer`] | the buffer that messages need which come faster than they are copied out |
//! | [`strip`] | a remote array fetched in strips that are computed on meanwhile |
//! | [`simulate`] | a path at work, event by event: the second opinion |
//! | [`room`] | windows of credit, staging: what may be under way over several stages |
//! | [`spread`] | how much single fragments differ from the mean at a stage |
//! | [`tile`] | nested loops in tiles, passed on through a grid of processors |
//! | [`grouping`] | one stage cut optimally between neighbours that are given |
//! | [`search`] | a plan while it is made: where each stage cuts, and how good that is |
//! | [`leveled`] | the best plan where only some boundaries may cut anew, as in programs |
//! | [`ways`] | one transfer over several paths at once |
//! | [`estimate`] | `L`, `g`, `G` of a stage from live samples; of pipelines and networks |
//!
//! The crate `piped-theory` has what only people ask for: the best plan there is, a bound, the
//! linear program, figures. It names this crate and is not named here.
//!
//! Units everywhere: seconds, bytes, seconds per byte. Sizes are real numbers in the theory;
//! rounding to bytes and alignment is a last step that reports its own latency.
//!
//! ```
//! use piped_model::fixed::{self, Constraints};
//! use piped_model::stage::{Path, Stage};
//!
//! let disk = Stage::new(70e-6, 17e-6, 0.4e-9, None)?;
//! let net = Stage::new(5e-6, 3e-6, 0.3e-9, None)?;
//! let path = Path::new(&[disk, net])?;
//! let limits = Constraints { alignment: 4096, smallest: 4096, ..Constraints::default() };
//! let best = fixed::best(&path, 1 << 20, &limits);
//! let whole = fixed::whole(&path, 1 << 20, &limits);
//! assert!(best.predicted_seconds < 0.85 * whole.predicted_seconds);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod buffer;
pub mod estimate;
pub mod evaluate;
pub mod fixed;
pub mod grouping;
pub mod hierarchical;
pub mod leveled;
pub mod plan;
pub mod ramp;
pub mod reference;
pub mod room;
pub mod rounding;
pub mod search;
pub mod serial;
pub mod servers;
pub mod simulate;
pub mod spread;
pub mod stage;
pub mod strip;
pub mod tile;
pub mod ways;
