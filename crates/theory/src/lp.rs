//! The optimum with the same fragments in every stage, by linear programs.
//!
//! For a given number of fragments the recurrence is linear in sizes and start times:
//!
//! ```text
//! minimise T    s(i,j) >= s(i,j-1) + occ(i,j-1) + L_{j-1}     s(i,j) >= s(i-1,j) + occ(i-1,j)
//!               s(i,j) >= s(i-w,j) + occ(i-w,j) + L_j         sum x_i = B,  x_i >= 0
//!               T >= s(k-1,n-1) + occ(k-1,n-1) + L_{n-1}      occ(i,j) = g_j + x_i·G_j
//! ```
//!
//! so the best sizes are a program's solution (acknowledged in Wang et al., who print no figures of
//! it). It is what the ramps are measured against, not a planner. It takes milliseconds to seconds
//! for up to a hundred fragments of a few stages, and beyond that grows with more than the square
//! of their number. A transfer waits for microseconds. Latencies and windows are part of it.

use core::fmt;

use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, Variable};
use piped_model::evaluate;
use piped_model::stage::Stage;

/// The best sizes over the reals.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimum {
    /// The sizes in bytes, not negative; their sum is `B` within rounding.
    pub sizes: Vec<f64>,
    /// Their exact latency (the recurrence, not the program's objective), in seconds.
    pub predicted_seconds: f64,
}

/// A program that was not solved.
#[derive(Debug, Clone, PartialEq)]
pub enum LpFault {
    /// A path without stages, or bytes that are no positive number.
    Input,
    /// The solver gave up.
    Solver {
        /// The number of fragments.
        count: u64,
        /// What the solver says.
        reason: String,
    },
}

impl fmt::Display for LpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input => f.write_str("give at least one stage, and a positive number of bytes"),
            Self::Solver { count, reason } => {
                write!(f, "the linear program of {count} fragments was not solved: {reason}")
            }
        }
    }
}

impl std::error::Error for LpFault {}

/// What the solver's results are good for, as a part of the latency.
const TOLERANCE: f64 = 1e-9;

/// So many more fragments that gain nothing, and no more are tried.
const PATIENCE: u64 = 16;

/// The best sizes for any number of fragments up to `most`, the fewest such.
///
/// Exact within the solver's tolerance (about 1e-9). Counts are solved whose bound `k·g_j + B·G_j +
/// sum of the other g + sum of L` is below the best found. It ends when so many counts in a row
/// gain nothing above that tolerance that more fragments cannot help. That is 16, or the largest
/// window, because a window can make gains come in steps. With `g = 0` the bound alone would never
/// end it. Where fragments go on gaining, all counts up to `most` are solved: say no more than can
/// be waited for.
///
/// # Errors
/// If there is no stage, `bytes` is not positive, or the solver fails.
///
/// ```
/// use piped_theory::lp::same_fragments;
/// use piped_model::ramp::up_real;
/// use piped_model::reference::{KB, stage};
/// let path = [stage(40.0, 100.0, KB), stage(400.0, 200.0, KB)];
/// let best = same_fragments(&path, 65536.0, 1000)?;
/// let ramp = up_real(&path, 65536.0, 1000).unwrap();
/// assert!((best.predicted_seconds / ramp.predicted_seconds - 1.0).abs() < 1e-6);
/// # Ok::<(), piped_theory::lp::LpFault>(())
/// ```
pub fn same_fragments(path: &[Stage], bytes: f64, most: u64) -> Result<Optimum, LpFault> {
    if path.is_empty() || !(bytes.is_finite() && bytes > 0.0) {
        return Err(LpFault::Input);
    }
    let fixed: f64 = path.iter().map(|stage| stage.overhead + stage.latency).sum();
    let bound = |count: u64| {
        let of = |stage: &Stage| (count - 1) as f64 * stage.overhead + bytes * stage.per_byte;
        fixed + path.iter().map(of).fold(0.0, f64::max)
    };
    let windows = path.iter().filter_map(|stage| stage.window);
    let patience = PATIENCE + windows.map(|window| u64::from(window.get())).max().unwrap_or(0);
    let mut best = with_count(path, bytes, 1)?;
    let mut idle = 0;
    for count in 2..=most {
        // Bounds only grow with the count.
        if bound(count) >= best.predicted_seconds * (1.0 - 1e-12) || idle == patience {
            break;
        }
        let next = with_count(path, bytes, count)?;
        idle += 1;
        if next.predicted_seconds < best.predicted_seconds * (1.0 - TOLERANCE) {
            best = next;
            idle = 0;
        }
    }
    Ok(best)
}

/// The best sizes of exactly `count` fragments (of which some may be empty), at least 1.
///
/// # Errors
/// If there is no stage, `bytes` is not positive, or the solver fails.
pub fn with_count(path: &[Stage], bytes: f64, count: u64) -> Result<Optimum, LpFault> {
    if path.is_empty() || !(bytes.is_finite() && bytes > 0.0) {
        return Err(LpFault::Input);
    }
    let count = count.max(1);
    let fragments = count as usize;
    let equal = vec![bytes / count as f64; fragments];
    let steepest = path.iter().map(|stage| stage.per_byte).fold(0.0, f64::max);
    let equal_seconds = evaluate::same_sizes(path, &equal, None);
    if fragments == 1 || steepest == 0.0 || equal_seconds == 0.0 {
        return Ok(Optimum { sizes: equal, predicted_seconds: equal_seconds });
    }
    // The solver's tolerance is absolute: times are near 1000 and sizes in what the steepest stage
    // takes.
    let scale = Scale { time: 1000.0 / equal_seconds, steepest };
    let mut all = solve(&[(path, fragments)], bytes, &scale)?;
    let sizes = all.pop().unwrap_or_default();
    let predicted_seconds = evaluate::same_sizes(path, &sizes, None);
    Ok(Optimum { sizes, predicted_seconds })
}

/// The best sizes over several ways at once, for a path and a number of fragments each; a way with
/// none is not used. The sizes of each way, and when the last of them is done, in seconds.
///
/// # Errors
/// If no way has fragments, a path has no stage, `bytes` is not positive, or the solver fails.
pub fn over_ways(ways: &[(&[Stage], u64)], bytes: f64) -> Result<(Vec<Vec<f64>>, f64), LpFault> {
    let used: Vec<(&[Stage], usize)> = ways
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|&(path, count)| (path, count as usize))
        .collect();
    let is_empty = used.is_empty() || used.iter().any(|(path, _)| path.is_empty());
    if is_empty || !(bytes.is_finite() && bytes > 0.0) {
        return Err(LpFault::Input);
    }
    let stages = used.iter().flat_map(|(path, _)| path.iter());
    let steepest = stages.map(|stage| stage.per_byte).fold(0.0, f64::max);
    let of = |&(path, count): &(&[Stage], usize)| {
        evaluate::same_sizes(path, &vec![bytes / count as f64; count], None)
    };
    let longest = used.iter().map(of).fold(0.0, f64::max);
    if steepest == 0.0 || longest == 0.0 {
        return Err(LpFault::Input);
    }
    let mut solved = solve(&used, bytes, &Scale { time: 1000.0 / longest, steepest })?.into_iter();
    let sizes: Vec<Vec<f64>> = ways
        .iter()
        .map(|(_, count)| if *count > 0 { solved.next().unwrap_or_default() } else { Vec::new() })
        .collect();
    let ends = ways.iter().zip(&sizes).filter(|(_, sizes)| !sizes.is_empty());
    let end = ends.map(|((path, _), sizes)| evaluate::same_sizes(path, sizes, None));
    let end = end.fold(0.0, f64::max);
    Ok((sizes, end))
}

/// The sizes of each way in the optimum of its number of fragments.
fn solve(ways: &[(&[Stage], usize)], bytes: f64, scale: &Scale) -> Result<Vec<Vec<f64>>, LpFault> {
    let count = ways.iter().map(|(_, count)| *count as u64).sum();
    let solver = |error: &dyn fmt::Display| LpFault::Solver { count, reason: error.to_string() };
    let (problem, sizes) = program(ways, bytes, scale);
    let outcome = problem.solve().map_err(|error| solver(&error))?;
    let solution =
        outcome.into_solution().map_err(|_| solver(&"it was interrupted without a solution"))?;
    let value = |&size: &Variable| solution.var_value(size).max(0.0);
    let mut sizes: Vec<Vec<f64>> =
        sizes.iter().map(|way| way.iter().map(value).collect()).collect();
    let sum: f64 = sizes.iter().flatten().sum();
    for size in sizes.iter_mut().flatten() {
        *size *= bytes / sum;
    }
    Ok(sizes)
}

/// Factors from seconds and bytes to the program's units.
struct Scale {
    time: f64,
    steepest: f64,
}

impl Scale {
    /// `G` of a stage relative to the steepest one.
    fn slope(&self, stage: &Stage) -> f64 {
        stage.per_byte / self.steepest
    }
}

/// The program of some ways with a number of fragments each, and its variables for their sizes.
fn program(ways: &[(&[Stage], usize)], bytes: f64, scale: &Scale) -> (Problem, Vec<Vec<Variable>>) {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let infinite = (0.0, f64::INFINITY);
    let end = problem.add_var(1.0, infinite);
    let mut variables =
        |count: usize| (0..count).map(|_| problem.add_var(0.0, infinite)).collect::<Vec<_>>();
    let sizes: Vec<Vec<Variable>> = ways.iter().map(|(_, count)| variables(*count)).collect();
    let mut sum = LinearExpr::empty();
    for &size in sizes.iter().flatten() {
        sum.add(size, 1.0);
    }
    problem.add_constraint(sum, ComparisonOp::Eq, bytes * scale.steepest * scale.time);
    for ((path, _), sizes) in ways.iter().zip(&sizes) {
        lay(&mut problem, path, (sizes, end), scale);
    }
    (problem, sizes)
}

/// The recurrence of a path, for fragments of these sizes that are all through before `end`.
fn lay(problem: &mut Problem, path: &[Stage], fragments: (&[Variable], Variable), scale: &Scale) {
    let (sizes, end) = fragments;
    let count = sizes.len();
    // The starts of each fragment in the stage before and in this one.
    let mut before: Vec<Variable> = Vec::new();
    for (index, stage) in path.iter().enumerate() {
        let starts: Vec<Variable> =
            (0..count).map(|_| problem.add_var(0.0, (0.0, f64::INFINITY))).collect();
        let mut after =
            |later: Variable, earlier: Variable, fragment: usize, of: &Stage, latency| {
                // later >= earlier + g + x·G + latency
                let mut row = LinearExpr::empty();
                row.add(later, 1.0);
                row.add(earlier, -1.0);
                if scale.slope(of) > 0.0 {
                    row.add(sizes[fragment], -scale.slope(of));
                }
                let constant = (of.overhead + latency) * scale.time;
                problem.add_constraint(row, ComparisonOp::Ge, constant);
            };
        for fragment in 0..count {
            if let Some(&earlier) = before.get(fragment) {
                let of = &path[index - 1];
                after(starts[fragment], earlier, fragment, of, of.latency);
            }
            if fragment > 0 {
                after(starts[fragment], starts[fragment - 1], fragment - 1, stage, 0.0);
            }
            let window = stage.window.map(|window| window.get() as usize);
            if let Some(slot) = window.and_then(|window| fragment.checked_sub(window)) {
                after(starts[fragment], starts[slot], slot, stage, stage.latency);
            }
        }
        if index + 1 == path.len() {
            after(end, starts[count - 1], count - 1, stage, stage.latency);
        }
        before = starts;
    }
}
