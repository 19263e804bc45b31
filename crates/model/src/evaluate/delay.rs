//! What equal fragments take longer because of rooms over several stages, in closed form.

use crate::room::Room;
use crate::servers::Servers;
use crate::stage::{Buffers, StageCost};

/// By how much a transfer in equal fragments takes longer for this room.
fn of_room<C: StageCost>(room: &Room, path: &[C], size: u64, bytes: u64, servers: &Servers) -> f64 {
    let size = size.clamp(1, bytes.max(1));
    let Some(last) = bytes.div_ceil(size).checked_sub(1) else { return 0.0 };
    // How many fit, at first and later, and how many make a batch.
    let [(fits_first, first), (fits, batch)] = match room.grain {
        Some((_, most)) => [(u64::from(most.get()).min(room.bytes / room.footprint(size)), 1); 2],
        None => [room.due(), 0].map(|due| {
            let batch = (room.batch.max(1) - due).div_ceil(size);
            (room.bytes.saturating_sub(due) / size, batch)
        }),
    };
    if last < fits_first {
        return 0.0;
    }
    // Fragments from the end of a batch to the one that waits for it.
    let jump = |fits: u64, batch| (fits + 1).checked_sub(batch).filter(|&jump| jump > 0);
    let jump = match (jump(fits_first, first), jump(fits, batch)) {
        (Some(_), Some(jump)) => jump,
        // There is no later batch that anything waits for.
        (Some(_), None) if last < fits_first + first => last + 1,
        _ => return f64::INFINITY,
    };
    let pace = |stages| pace(path, stages, size as f64, servers);
    let [any, before] = [pace(0..path.len()), pace(0..room.last + 1)];
    let [own, behind] = [room.last + 1, path.len()].map(|end| pace(room.first..end));
    let crossing = through(room, path, size as f64);
    let period = batch * jump.div_ceil(batch);
    // From a fragment on, at a time: to the next end of a batch at some pace, and on by jumps.
    let go_on = |at: u64, time: f64, pace: f64, least: u64| {
        let source = first + (at.max(least) + 1 - first).div_ceil(batch) * batch - 1;
        let end = |jumps: u64| {
            let at_last = source + jump + (jumps - 1) * period;
            let between = (jumps - 1) * (period - jump);
            let time = time + (source - at) as f64 * pace + jumps as f64 * crossing;
            (last - at_last, time + between as f64 * own)
        };
        let most = (last + 1).checked_sub(source + jump).filter(|&left| left > 0);
        let most = most.map(|left| (left - 1) / period + 1);
        most.map(|most| [1, most].map(end))
    };
    let mut longest = last as f64 * any;
    // What waits at first waits for the first batch.
    let at_first = (first - 1) as f64 * before + crossing;
    longest = longest.max(at_first + (last - fits_first) as f64 * behind);
    for (left, time) in go_on(fits_first, at_first, own, first).into_iter().flatten() {
        longest = longest.max(time + left as f64 * behind);
    }
    // Or only later ones wait, and what is left advances before them in whole batches.
    for (left, time) in go_on(0, 0.0, before, first).into_iter().flatten() {
        let early = left / batch * batch;
        let late = time + (early as f64 * before + (left - early) as f64 * behind);
        longest = longest.max(time + left as f64 * behind).max(late);
    }
    longest - last as f64 * any
}

/// From the start of a fragment to when its room is known to be free.
fn through<C: StageCost>(room: &Room, path: &[C], size: f64) -> f64 {
    let stages = &path[room.first..=room.last];
    room.back + stages.iter().map(|cost| cost.stage_at(size).alone(size)).sum::<f64>()
}

/// Time from one fragment to the next at the slowest server of some stages.
fn pace<C: StageCost>(
    path: &[C],
    stages: core::ops::Range<usize>,
    size: f64,
    servers: &Servers,
) -> f64 {
    let of = |server: usize| {
        let own = stages.clone().filter(|&stage| servers.first(stage) == server);
        let costs = own.map(|stage| path[stage].stage_at(size));
        let (busy, interval) = costs.fold((0.0, 0.0_f64), |(busy, interval), stage| {
            (busy + stage.occupancy(size), interval.max(stage.interval(size)))
        });
        interval.max(busy)
    };
    (0..stages.end).map(of).fold(0.0, f64::max)
}

/// By how much `bytes` in fragments of `size` take longer because of rooms over several stages, in
/// seconds; infinite if that never ends. Added to a latency without them.
///
/// One fragment after the other goes once through every stage, and in between the path through the
/// recurrence advances by a fragment in the time of the slowest stage. Where a room binds, it
/// advances by as many as fit in the time that one of them takes through all stages of the room.
/// Exact for equal fragments on stages with servers of their own, whose windows do not bind, and
/// one room. Of several rooms the one that costs most counts.
///
/// ```
/// use piped_model::evaluate::{delay, uniform, within};
/// use piped_model::room::Room;
/// use piped_model::servers::Servers;
/// use piped_model::stage::{Buffers, Stage};
/// let path = [Stage { latency: 50.0, overhead: 1.0, per_byte: 0.1, window: None }; 2];
/// let window = Buffers::UNLIMITED.over(Room { batch: 16, ..Room::bytes(0, 1, 40) });
/// let sizes: [&[u64]; 2] = [&[8; 20]; 2];
/// let exact = within(&path, &sizes, None, &window)?;
/// let open = uniform(&path, 8, 160, None);
/// assert!((open + delay(&path, 8, 160, &window, &Servers::APART) - exact).abs() < 1e-9);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
#[must_use]
pub fn delay<C: StageCost>(
    path: &[C],
    size: u64,
    bytes: u64,
    buffers: &Buffers,
    servers: &Servers,
) -> f64 {
    let rooms = buffers.rooms().filter(|room| room.is_on(path.len()));
    let delay = |room: &Room| match of_room(room, path, size, bytes, servers) {
        // A shorter last fragment may find room where one more of the others never would.
        f64::INFINITY if size > 0 => of_room(room, path, size, bytes / size * size, servers),
        delay => delay,
    };
    rooms.map(delay).fold(0.0, f64::max)
}
