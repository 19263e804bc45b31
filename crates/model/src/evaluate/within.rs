//! The latency of a plan where there is little room between the stages.
//!
//! Without buffers the recurrence goes stage by stage. With them a stage also waits for the one
//! behind it:
//!
//! ```text
//! start(i,j)  = max(arrive(i,j), leave(i-1,j), depart(i-w,j))
//! leave(i,j)  = max(start(i,j) + g + x·G, start(m,j+1))       m: see below
//! depart(i,j) = leave(i,j) + L                           arrive(i,j+1) = depart of all its bytes
//! ```
//!
//! *Room is taken when a fragment leaves the server of stage `j`, and is free again when stage
//! `j+1` starts the fragment that its bytes are part of.* So bytes under way for `L` have their
//! place already, since nobody sends what cannot land. While there is none, the fragment stays in
//! the server and no other gets in. Let `e_i` be the end of fragment `i`. It needs the first
//! fragment `m` of stage `j+1` that ends at `e_i - C` or later to have started; with `e_i <= C` it
//! needs nothing. Without limits `leave = start + occ`, which is the recurrence of
//! docs/theory.md §1.
//!
//! A buffer too small to put the next fragment together waits forever. [`room_needed`] is the least
//! room that does not. For each fragment `i` of stage `j`, some fragment of stage `j+1` must end in
//! `[e_i - C, e_{i-1}]`. Then making room for `i` does not need `i` itself.
//!
//! A fragment may also wait for room over several stages ([`crate::room`]) before it starts.

use core::num::NonZeroU32;

use super::gate::{Gate, ends};
use super::{EvaluateFault, check, plan as plan_open, views};
use crate::plan::Plan;
use crate::stage::{Buffers, Stage, StageCost};

/// The least bytes of buffer between two stages that let these fragments pass; `u64::MAX` if it is
/// more than that.
///
/// ```
/// use piped_model::evaluate::room_needed;
/// assert_eq!(room_needed(&[4, 4, 4], &[4, 4, 4]), 4);
/// assert_eq!(room_needed(&[4, 4, 4], &[12]), 12);
/// assert_eq!(room_needed(&[12], &[4, 4, 4]), 12);
/// assert_eq!(room_needed(&[3, 3, 3, 3], &[4, 4, 4]), 6);
/// ```
#[must_use]
pub fn room_needed(before: &[u64], behind: &[u64]) -> u64 {
    let mut needed = 0_u128;
    // The end of the fragments behind that lie wholly before the current fragment.
    let (mut taken, mut next) = (0_u128, 0);
    let mut end = 0_u128;
    for &size in before {
        while let Some(&size) = behind.get(next)
            && taken + u128::from(size) <= end
        {
            taken += u128::from(size);
            next += 1;
        }
        end += u128::from(size);
        needed = needed.max(end - taken);
    }
    u64::try_from(needed).unwrap_or(u64::MAX)
}

/// [`super::lists`] with finite buffers between the stages.
///
/// # Errors
/// As [`super::lists`], and [`EvaluateFault::Buffer`] or [`EvaluateFault::Room`] if a buffer or a
/// room cannot hold what has to be put together in it.
///
/// ```
/// use piped_model::evaluate::within;
/// use piped_model::stage::{Buffers, Stage};
/// let stage = |overhead| Stage { latency: 0.0, overhead, per_byte: 0.0, window: None };
/// let path = [stage(1.0), stage(5.0), stage(1.0)];
/// let sizes: [&[u64]; 3] = [&[8, 8, 8]; 3];
/// let open = within(&path, &sizes, None, &Buffers::UNLIMITED)?;
/// assert_eq!(open, 17.0);
/// let tight = Buffers::UNLIMITED.with(1, 8);
/// // The first stage is not the slow one: it waits, and nothing is lost.
/// assert_eq!(within(&path, &sizes, None, &tight)?, open);
/// assert!(within(&path, &sizes, None, &tight.with(2, 7)).is_err());
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
pub fn within<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
    buffers: &Buffers,
) -> Result<f64, EvaluateFault> {
    check(path.len(), sizes)?;
    check_room(sizes, buffers)?;
    let gates = Gate::all(sizes, buffers)?;
    let mut lines: Vec<Line<'_>> = sizes.iter().map(|list| Line::new(list)).collect();
    let mut progress = true;
    while progress {
        progress = false;
        for stage in 0..path.len() {
            let outstanding = if stage == 0 { depth } else { None };
            while step(&mut lines, path, stage, outstanding, (buffers, &gates)) {
                progress = true;
            }
        }
    }
    // Room enough was checked above, and the stages wait for earlier bytes only: all have left. But
    // for a buffer and a room that wait for each other.
    if let Some(room) = lines.iter().any(Line::is_left).then(|| buffers.rooms().next()).flatten() {
        let (first, last, bytes) = (room.first, room.last, room.bytes);
        return Err(EvaluateFault::Room { first, last, bytes });
    }
    let last = &lines[lines.len() - 1];
    let stage = path[path.len() - 1].stage_at(last.sizes[last.sizes.len() - 1] as f64);
    Ok(last.leaves.last().map_or(0.0, |left| left + stage.latency))
}

/// Whether what has to be put together in each buffer fits there.
pub(super) fn check_room(sizes: &[&[u64]], buffers: &Buffers) -> Result<(), EvaluateFault> {
    for (stage, pair) in sizes.windows(2).enumerate() {
        let stage = stage + 1;
        let Some(bytes) = buffers.before(stage) else { continue };
        let needed = room_needed(pair[0], pair[1]);
        if bytes < needed {
            return Err(EvaluateFault::Buffer { stage, bytes, needed });
        }
    }
    Ok(())
}

/// [`super::plan`] with finite buffers between the stages.
///
/// # Errors
/// If the plan's levels do not cover exactly the path's stages, or a buffer is too small for them.
pub fn plan_within<C: StageCost>(
    path: &[C],
    plan: &Plan,
    buffers: &Buffers,
) -> Result<f64, EvaluateFault> {
    if !buffers.limited() || plan.total_bytes() == 0 {
        return plan_open(path, plan);
    }
    views(path.len(), plan, |sizes| within(path, sizes, Some(plan.depth), buffers))
}

/// One stage's fragments: when each was started and when it left the server.
struct Line<'a> {
    sizes: &'a [u64],
    /// The end of each fragment in bytes.
    ends: Vec<u128>,
    starts: Vec<f64>,
    leaves: Vec<f64>,
    /// How many fragments of the stage before are in the ones up to the next.
    source: usize,
    /// The fragment of the stage behind that has to have started.
    room: usize,
}

impl<'a> Line<'a> {
    fn new(sizes: &'a [u64]) -> Self {
        let (starts, leaves) = (Vec::with_capacity(sizes.len()), Vec::with_capacity(sizes.len()));
        Self { sizes, ends: ends(sizes), starts, leaves, source: 0, room: 0 }
    }

    /// Whether some fragment has not left.
    fn is_left(&self) -> bool {
        self.leaves.len() < self.sizes.len()
    }

    /// When a fragment departs, if that is known.
    fn departs<C: StageCost>(&self, cost: &C, fragment: usize) -> Option<f64> {
        let left = self.leaves.get(fragment)?;
        Some(left + cost.stage_at(self.sizes[fragment] as f64).latency)
    }
}

/// Start or end a fragment of a stage, if all that it waits for is known.
fn step<C: StageCost>(
    lines: &mut [Line<'_>],
    path: &[C],
    stage: usize,
    depth: Option<NonZeroU32>,
    (buffers, gates): (&Buffers, &[Gate]),
) -> bool {
    let index = lines[stage].leaves.len();
    let Some(&size) = lines[stage].sizes.get(index) else { return false };
    let cost = path[stage].stage_at(size as f64);
    if lines[stage].starts.len() > index {
        let Some(room) = room(lines, stage, buffers) else { return false };
        let served = lines[stage].starts[index] + cost.occupancy(size as f64);
        lines[stage].leaves.push(served.max(room));
        return true;
    }
    let Some(arrival) = arrival(lines, path, stage) else { return false };
    let Some(gate) = opens(lines, path, stage, gates) else { return false };
    let line = &mut lines[stage];
    let free = line.leaves.last().copied().unwrap_or(0.0);
    // What a leaver was delayed by is its own latency, which a bent cost has at its own size.
    let leaver = window(&cost, depth).and_then(|window| index.checked_sub(window));
    let slot = leaver.and_then(|before| line.departs(&path[stage], before)).unwrap_or(0.0);
    line.starts.push(arrival.max(free).max(slot).max(gate));
    true
}

/// When the rooms that begin at a stage let its next fragment in, if that is known.
fn opens<C: StageCost>(
    lines: &[Line<'_>],
    path: &[C],
    stage: usize,
    gates: &[Gate],
) -> Option<f64> {
    let index = lines[stage].starts.len();
    let mut opens = 0.0_f64;
    for Gate { last, back, waits, .. } in gates.iter().filter(|gate| gate.first == stage) {
        if let Some(leaver) = waits[index] {
            opens = opens.max(lines[*last].departs(&path[*last], leaver)? + back);
        }
    }
    Some(opens)
}

fn window(stage: &Stage, depth: Option<NonZeroU32>) -> Option<usize> {
    stage.narrowed(depth).window.map(|window| window.get() as usize)
}

/// When all bytes of a stage's next fragment have arrived, if that is known.
fn arrival<C: StageCost>(lines: &mut [Line<'_>], path: &[C], stage: usize) -> Option<f64> {
    if stage == 0 {
        return Some(0.0);
    }
    let (before, here) = lines.split_at_mut(stage);
    let (before, here) = (&before[stage - 1], &mut here[0]);
    let end = here.ends[here.starts.len()];
    while before.ends[here.source] < end {
        here.source += 1;
    }
    before.departs(&path[stage - 1], here.source)
}

/// When there is room behind a stage for the fragment in its server, if that is known.
fn room(lines: &mut [Line<'_>], stage: usize, buffers: &Buffers) -> Option<f64> {
    let Some(bytes) = buffers.before(stage + 1).filter(|_| stage + 1 < lines.len()) else {
        return Some(0.0);
    };
    let (here, behind) = lines.split_at_mut(stage + 1);
    let (here, behind) = (&mut here[stage], &behind[0]);
    let (end, bytes) = (here.ends[here.leaves.len()], u128::from(bytes));
    if end <= bytes {
        return Some(0.0);
    }
    while behind.ends[here.room] < end - bytes {
        here.room += 1;
    }
    behind.starts.get(here.room).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_beyond_64_bits_are_no_panic() {
        let huge = [u64::MAX, u64::MAX];
        assert_eq!(room_needed(&huge, &huge), u64::MAX);
        assert_eq!(room_needed(&[u64::MAX, 1], &[1, u64::MAX]), u64::MAX);
        assert_eq!(room_needed(&[4, u64::MAX], &[4, u64::MAX]), u64::MAX);
        let path = [Stage { latency: 0.0, overhead: 1.0, per_byte: 0.0, window: None }; 2];
        let buffers = Buffers::UNLIMITED.with(1, u64::MAX - 1);
        let sizes: &[u64] = &[1 << 63; 4];
        let open = super::super::lists(&path, &[sizes; 2], None);
        assert_eq!(within(&path, &[sizes; 2], None, &buffers), open);
    }
}
