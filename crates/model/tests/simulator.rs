//! The recurrence and the closed form against an independent event-by-event simulator.

use std::num::NonZeroU32;

use piped_model::evaluate::{
    EvaluateFault, delay, equal, lists, parts, room_needed, same_sizes, served, served_within,
    uniform, within,
};
use piped_model::fixed::{Constraints, best, candidates, optimum, whole};
use piped_model::room::Room;
use piped_model::servers::Servers;
use piped_model::simulate;
use piped_model::stage::{Buffers, Stage};
use proptest::collection::vec;
use proptest::prelude::*;

fn parameter(largest: f64) -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(0.0), 4 => 0.0..largest]
}

fn stage() -> impl Strategy<Value = Stage> {
    (parameter(300.0), parameter(40.0), parameter(0.06), 0_u32..9).prop_map(
        |(latency, overhead, per_byte, window)| Stage {
            latency,
            overhead,
            per_byte,
            window: NonZeroU32::new(window),
        },
    )
}

fn path() -> impl Strategy<Value = Vec<Stage>> {
    vec(stage(), 1..7)
}

/// A room over some stages, as parts of the transfer.
#[derive(Debug, Clone)]
struct SomeRoom {
    stages: (usize, usize),
    part: f64,
    batch: f64,
    due: f64,
    grain: Option<(f64, u32)>,
    back: f64,
}

impl SomeRoom {
    fn of(&self, bytes: u64, stages: usize) -> Room {
        let (a, b) = (self.stages.0 % stages, self.stages.1 % stages);
        let room = (self.part * bytes as f64) as u64 + 1;
        Room {
            first: a.min(b),
            last: a.max(b),
            bytes: room,
            grain: self.grain.and_then(|(part, most)| {
                Some(((part * room as f64) as u64 + 1, NonZeroU32::new(most)?))
            }),
            batch: (self.batch * room as f64) as u64,
            due: (self.due * self.batch * room as f64) as u64,
            back: self.back,
        }
    }
}

fn room() -> impl Strategy<Value = SomeRoom> {
    let batch = prop_oneof![1 => Just(0.0), 2 => 0.0..0.6_f64];
    let due = prop_oneof![1 => Just(0.0), 1 => 0.0..0.99_f64];
    let grain = prop_oneof![2 => Just(None), 1 => (0.0..0.4_f64, 1_u32..6).prop_map(Some)];
    (any::<(usize, usize)>(), 0.05..1.2_f64, batch, due, grain, parameter(300.0)).prop_map(
        |(stages, part, batch, due, grain, back)| SomeRoom {
            stages,
            part,
            batch,
            due,
            grain,
            back,
        },
    )
}

/// The servers of stages by their names, some of which work in turns.
fn servers(names: &[u8], turns: [bool; 4]) -> Servers {
    let in_turns = |servers: Servers, stage: usize| match turns[usize::from(names[stage])] {
        true => servers.in_turns(stage),
        false => servers,
    };
    (0..names.len()).fold(Servers::of(names.iter()), in_turns)
}

/// Stages without latency and window: the papers' model.
fn paper_path() -> impl Strategy<Value = Vec<Stage>> {
    path().prop_map(|stages| {
        stages.into_iter().map(|stage| Stage { latency: 0.0, window: None, ..stage }).collect()
    })
}

/// As [`cut`], but on a grid, so that ends of different stages often meet.
fn cut_on_grid(bytes: u64, cuts: &[u64]) -> Vec<u64> {
    let step = (bytes / 8).max(1);
    let cuts: Vec<u64> = cuts.iter().map(|cut| cut % 9 * step).collect();
    cut(bytes, &cuts)
}

/// Cut `bytes` at the given fractions.
fn cut(bytes: u64, cuts: &[u64]) -> Vec<u64> {
    let mut places: Vec<u64> = cuts.iter().map(|cut| cut % bytes).collect();
    places.extend([0, bytes]);
    places.sort_unstable();
    places.dedup();
    places.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-9)
}

/// The path with something to do for each fragment at each stage: without, several things happen
/// at once, and who is first is not said.
fn costly(path: &[Stage]) -> Vec<Stage> {
    path.iter().map(|&s| Stage { overhead: s.overhead + 0.37, ..s }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_recurrence_is_what_happens(
        path in path(), bytes in 1_u64..50_000, cuts in vec(vec(any::<u64>(), 0..12), 6),
        depth in 0_u32..10,
    ) {
        let sizes: Vec<Vec<u64>> = (0..path.len()).map(|j| cut(bytes, &cuts[j])).collect();
        let views: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
        let depth = NonZeroU32::new(depth);
        let exact = lists(&path, &views, depth).unwrap();
        let simulated = simulate::run(&path, &views, depth, &Buffers::UNLIMITED).unwrap();
        prop_assert!(close(exact, simulated.seconds), "{exact} {}", simulated.seconds);
        prop_assert_eq!(simulated.visits.len(), sizes.iter().map(Vec::len).sum::<usize>());
        let open = within(&path, &views, depth, &Buffers::UNLIMITED).unwrap();
        prop_assert!(close(exact, open), "{exact} {open}");
        let real: Vec<Vec<f64>> =
            sizes.iter().map(|list| list.iter().map(|&size| size as f64).collect()).collect();
        let real: Vec<&[f64]> = real.iter().map(Vec::as_slice).collect();
        let over_reals = parts(&path, &real, depth).unwrap();
        prop_assert!(close(exact, over_reals), "{exact} {over_reals}");
    }

    /// With buffers from too small to more than enough: the same latency, or both refuse.
    #[test]
    fn with_buffers_too(
        path in path(), bytes in 1_u64..50_000, cuts in vec(vec(any::<u64>(), 0..12), 6),
        room in vec((0_u32..4, 0.5..3.0_f64), 6), depth in 0_u32..10, grid in any::<bool>(),
    ) {
        let cut = if grid { cut_on_grid } else { cut };
        let sizes: Vec<Vec<u64>> = (0..path.len()).map(|j| cut(bytes, &cuts[j])).collect();
        let views: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
        let depth = NonZeroU32::new(depth);
        let mut buffers = Buffers::UNLIMITED;
        let mut suffices = true;
        for stage in 1..path.len() {
            let needed = room_needed(views[stage - 1], views[stage]);
            let bytes = match room[stage].0 {
                0 => continue,
                1 => needed,
                2 => (needed as f64 * room[stage].1) as u64,
                _ if room[stage].1 > 2.5 => needed - 1,
                _ => needed + 1,
            };
            suffices &= bytes >= needed;
            buffers = buffers.with(stage, bytes);
        }
        let exact = within(&path, &views, depth, &buffers);
        let simulated = simulate::run(&path, &views, depth, &buffers);
        if suffices {
            let (exact, simulated) = (exact.unwrap(), simulated.unwrap().seconds);
            prop_assert!(close(exact, simulated), "{exact} {simulated}");
            prop_assert!(exact >= lists(&path, &views, depth).unwrap() * (1.0 - 1e-12));
        } else {
            let refused = matches!(exact, Err(EvaluateFault::Buffer { .. }));
            prop_assert!(refused && simulated.is_err(), "{exact:?} {simulated:?}");
        }
    }

    /// With one or two rooms over any stages, and buffers: the same latency, or both refuse.
    #[test]
    fn with_rooms_over_stages_too(
        path in path(), bytes in 1_u64..50_000, cuts in vec(vec(any::<u64>(), 0..12), 6),
        rooms in vec(room(), 1..3), buffer in prop_oneof![3 => Just(None), 1 => (1..6_usize, 0.3..1.0_f64).prop_map(Some)],
        depth in 0_u32..10, grid in any::<bool>(),
    ) {
        let cut = if grid { cut_on_grid } else { cut };
        let sizes: Vec<Vec<u64>> = (0..path.len()).map(|j| cut(bytes, &cuts[j])).collect();
        let views: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
        let depth = NonZeroU32::new(depth);
        let buffers = rooms.iter().fold(Buffers::UNLIMITED, |buffers, room| buffers.over(room.of(bytes, path.len())));
        let buffers = buffer.map_or(buffers, |(at, part)| buffers.with(at, (part * bytes as f64) as u64 + 1));
        let exact = within(&path, &views, depth, &buffers);
        let simulated = simulate::run(&path, &views, depth, &buffers);
        match (exact, simulated) {
            (Ok(exact), Ok(run)) => {
                prop_assert!(close(exact, run.seconds), "{exact} {}", run.seconds);
                prop_assert!(exact >= lists(&path, &views, depth).unwrap() * (1.0 - 1e-12));
            }
            (exact, simulated) => prop_assert!(exact.is_err() && simulated.is_err(), "{exact:?} {simulated:?}"),
        }
    }

    /// With servers for several stages as well.
    #[test]
    fn with_rooms_and_shared_servers_too(
        path in path(), bytes in 1_u64..50_000, cuts in vec(vec(any::<u64>(), 0..12), 6),
        rooms in vec(room(), 1..3), names in vec(0_u8..4, 6), turns in any::<[bool; 4]>(), depth in 0_u32..10,
    ) {
        let path = costly(&path);
        let sizes: Vec<Vec<u64>> = (0..path.len()).map(|j| cut(bytes, &cuts[j])).collect();
        let views: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
        let depth = NonZeroU32::new(depth);
        let servers = servers(&names[..path.len()], turns);
        let buffers = rooms.iter().fold(Buffers::UNLIMITED, |buffers, room| buffers.over(room.of(bytes, path.len())));
        let exact = served_within(&path, &views, depth, &servers, &buffers);
        let simulated = simulate::run_on(&path, &views, depth, &buffers, &servers);
        match (exact, simulated) {
            (Ok(exact), Ok(run)) => prop_assert!(close(exact, run.seconds), "{exact} {}", run.seconds),
            (exact, simulated) => prop_assert!(exact.is_err() && simulated.is_err(), "{exact:?} {simulated:?}"),
        }
    }

    /// What equal fragments take longer for a room, in closed form: exact without windows.
    #[test]
    fn the_delay_of_a_room_is_the_recurrence(
        path in path(), size in 1_u64..2000, count in 1_u64..80, rest in 0.0..1.0_f64,
        one in room(), depth in 0_u32..10,
    ) {
        let path: Vec<Stage> = path.iter().map(|s| Stage { window: None, ..*s }).collect();
        let room = one.of(count * size, path.len());
        let buffers = Buffers::UNLIMITED.over(room);
        let equal = vec![size; count as usize];
        let path_less = path.iter().map(|s| s.alone(size as f64)).sum::<f64>();
        let depth = NonZeroU32::new(depth).filter(|depth| path[0].latency <= f64::from(depth.get() - 1) * path[0].occupancy(1.0));
        let closed = |bytes| uniform(&path, size, bytes, depth) + delay(&path, size, bytes, &buffers, &Servers::APART);
        match within(&path, &vec![equal.as_slice(); path.len()], depth, &buffers) {
            Ok(exact) => {
                let closed = closed(count * size);
                prop_assert!(close(exact, closed), "{exact} {closed}");
            }
            Err(_) => prop_assert!(closed(count * size).is_infinite()),
        }
        // A shorter last fragment may find room sooner, and then waits for one time through less.
        let last = ((size as f64 * rest) as u64).max(1);
        let mut shorter = equal.clone();
        shorter[count as usize - 1] = last;
        if let Ok(exact) = within(&path, &vec![shorter.as_slice(); path.len()], depth, &buffers) {
            let closed = closed((count - 1) * size + last);
            prop_assert!((exact - closed).abs() <= path_less + room.back + 1e-9, "{exact} {closed}");
        }
    }

    /// Stages in any order at one to four servers, of which any may work in turns.
    #[test]
    fn with_shared_servers_too(
        path in path(), bytes in 1_u64..50_000, cuts in vec(vec(any::<u64>(), 0..12), 6),
        names in vec(0_u8..4, 6), turns in any::<[bool; 4]>(), depth in 0_u32..10,
    ) {
        let path = costly(&path);
        let sizes: Vec<Vec<u64>> = (0..path.len()).map(|j| cut(bytes, &cuts[j])).collect();
        let views: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
        let depth = NonZeroU32::new(depth);
        let servers = servers(&names[..path.len()], turns);
        let exact = served(&path, &views, depth, &servers).unwrap();
        let open = Buffers::UNLIMITED;
        let simulated = simulate::run_on(&path, &views, depth, &open, &servers).unwrap();
        prop_assert!(close(exact, simulated.seconds), "{exact} {}", simulated.seconds);
        // No server is in two places at once, and works for as long as all its stages together.
        let mut busy = simulated.visits.clone();
        busy.sort_by(|a, b| a.started.total_cmp(&b.started));
        for first in 0..path.len() {
            let at = busy.iter().filter(|visit| servers.first(visit.stage) == first);
            let spans: Vec<(f64, f64)> = at.map(|visit| (visit.started, visit.left)).collect();
            // What a turn serves leaves together.
            let in_turns = servers.works_in_turns(first);
            for pair in spans.windows(2) {
                let together = in_turns && pair[0].1 == pair[1].1;
                prop_assert!(together || pair[0].1 <= pair[1].0 + 1e-9, "{pair:?}");
            }
        }
        let apart = lists(&path, &views, depth).unwrap();
        let alone = served(&path, &views, depth, &Servers::APART).unwrap();
        prop_assert!(close(alone, apart), "{alone} {apart}");
    }

    /// Theorem 2 with buffers: room is taken and given back at the same events in reverse.
    #[test]
    fn without_latencies_buffers_may_be_reversed(
        path in path(), bytes in 1_u64..50_000, cuts in vec(vec(any::<u64>(), 0..12), 6),
        room in vec(1.0..3.0_f64, 6),
    ) {
        let path: Vec<Stage> = path.iter().map(|&s| Stage { latency: 0.0, ..s }).collect();
        let count = path.len();
        let sizes: Vec<Vec<u64>> = (0..count).map(|j| cut(bytes, &cuts[j])).collect();
        let there: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
        let mirrored: Vec<Vec<u64>> =
            sizes.iter().rev().map(|list| list.iter().rev().copied().collect()).collect();
        let back: Vec<&[u64]> = mirrored.iter().map(Vec::as_slice).collect();
        let (mut buffers, mut reversed_buffers) = (Buffers::UNLIMITED, Buffers::UNLIMITED);
        for stage in 1..count {
            let needed = room_needed(there[stage - 1], there[stage]);
            prop_assert_eq!(needed, room_needed(back[count - stage - 1], back[count - stage]));
            let room = (needed as f64 * room[stage]) as u64;
            buffers = buffers.with(stage, room);
            reversed_buffers = reversed_buffers.with(count - stage, room);
        }
        let reversed: Vec<Stage> = path.iter().rev().copied().collect();
        let a = within(&path, &there, None, &buffers).unwrap();
        let b = within(&reversed, &back, None, &reversed_buffers).unwrap();
        prop_assert!(close(a, b), "{a} {b}");
    }

    #[test]
    fn the_closed_form_is_the_recurrence(
        path in path(), bytes in 1_u64..50_000, fragment in 1_u64..60_000, depth in 0_u32..20,
    ) {
        let fragment = fragment.min(bytes).max(bytes / 60 + 1);
        let mut sizes = vec![fragment; (bytes / fragment) as usize];
        sizes.extend(Some(bytes % fragment).filter(|&rest| rest > 0));
        let depth = NonZeroU32::new(depth);
        let views = vec![sizes.as_slice(); path.len()];
        let exact = lists(&path, &views, depth).unwrap();
        let closed = uniform(&path, fragment, bytes, depth);
        prop_assert!(close(exact, closed), "{exact} {closed}");
        let real = equal(&path, bytes as f64, sizes.len() as u64, depth);
        let by_steps = same_sizes(&path, &vec![bytes as f64 / sizes.len() as f64; sizes.len()], depth);
        prop_assert!(close(real, by_steps), "{real} {by_steps}");
    }

    /// Latencies so long that most windows bind, and their jumps have to be combined.
    #[test]
    fn the_closed_form_combines_binding_windows(
        costs in vec((1_u32..8, 20.0..30.0_f64, 0.0..8.0_f64), 1..5), count in 1_usize..60,
    ) {
        let path: Vec<Stage> = costs
            .iter()
            .map(|&(window, rate, overhead)| Stage {
                // Windows of about equal throughput: no single one decides.
                latency: rate * f64::from(window),
                overhead,
                per_byte: 0.0,
                window: NonZeroU32::new(window),
            })
            .collect();
        let closed = equal(&path, 1.0, count as u64, None);
        let exact = same_sizes(&path, &vec![1.0; count], None);
        prop_assert!(close(exact, closed), "{exact} {closed}");
    }

    /// Theorem 2 holds beyond the papers: for re-fragmenting plans, with latencies and windows.
    #[test]
    fn reversed_stages_and_sizes_take_the_same_time(
        path in path(), bytes in 1_u64..50_000, cuts in vec(vec(any::<u64>(), 0..12), 6),
    ) {
        let sizes: Vec<Vec<u64>> = (0..path.len()).map(|j| cut(bytes, &cuts[j])).collect();
        let there: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
        let mirrored: Vec<Vec<u64>> =
            sizes.iter().rev().map(|list| list.iter().rev().copied().collect()).collect();
        let back: Vec<&[u64]> = mirrored.iter().map(Vec::as_slice).collect();
        let reversed: Vec<Stage> = path.iter().rev().copied().collect();
        let (a, b) = (lists(&path, &there, None).unwrap(), lists(&reversed, &back, None).unwrap());
        prop_assert!(close(a, b), "{a} {b}");
    }

    #[test]
    fn the_best_count_is_best_of_all(path in paper_path(), bytes in 1_u64..20_000) {
        let most = bytes.min(3000);
        let found = optimum(&path, bytes as f64, (1, most), None);
        let brute = (1..=most).map(|k| equal(&path, bytes as f64, k, None)).fold(f64::INFINITY, f64::min);
        prop_assert!(found.predicted_seconds <= brute * (1.0 + 1e-9), "{found:?} {brute}");
    }

    #[test]
    fn latencies_without_windows_do_not_change_the_best_count(path in path(), bytes in 1_u64..20_000) {
        let open: Vec<Stage> = path.iter().map(|s| Stage { window: None, ..*s }).collect();
        let papers: Vec<Stage> = open.iter().map(|s| Stage { latency: 0.0, ..*s }).collect();
        let (a, b) = (optimum(&open, bytes as f64, (1, bytes), None), optimum(&papers, bytes as f64, (1, bytes), None));
        let added: f64 = open.iter().map(|s| s.latency).sum();
        prop_assert!(close(a.predicted_seconds, b.predicted_seconds + added));
    }

    #[test]
    fn with_windows_the_best_count_is_nearly_the_best_of_all(path in path(), bytes in 1_u64..20_000) {
        let most = bytes.min(2000);
        let found = optimum(&path, bytes as f64, (1, most), None);
        let brute = (1..=most).map(|k| equal(&path, bytes as f64, k, None)).fold(f64::INFINITY, f64::min);
        prop_assert!(found.predicted_seconds <= brute * 1.01, "{found:?} {brute}");
    }

    #[test]
    fn plans_keep_their_constraints_and_their_promise(
        path in path(), bytes in 0_u64..5_000_000, smallest in 0_u64..70_000,
        largest in 1_u64..3_000_000, alignment in prop_oneof![Just(0_u64), Just(1), Just(512), Just(4096)],
        depth_max in 0_u32..40, fragments_max in 0_u32..300,
    ) {
        let limits = Constraints { smallest, largest, alignment, depth_max, fragments_max, ..Constraints::default() };
        let unit = alignment.max(1);
        let plans = candidates(&path, bytes, &limits, &[4096, 65536]);
        for plan in &plans {
            prop_assert_eq!(plan.fragment_bytes % unit, 0);
            prop_assert!(plan.fragment_bytes <= largest.max(unit));
            prop_assert!(plan.fragment_bytes >= smallest.min(largest / unit * unit));
            prop_assert_eq!(plan.count, bytes.div_ceil(plan.fragment_bytes).max(1));
            prop_assert!(plan.depth.get() <= depth_max.max(1));
            prop_assert!(u64::from(plan.depth.get()) <= plan.count);
            let again = uniform(&path, plan.fragment_bytes, bytes, Some(plan.depth));
            prop_assert_eq!(plan.predicted_seconds, again);
            let deepest = uniform(&path, plan.fragment_bytes, bytes, NonZeroU32::new(depth_max.max(1)));
            prop_assert!(plan.predicted_seconds <= deepest * 1.011);
            let evaluated = piped_model::evaluate::plan(&path, &plan.plan(path.len(), bytes)).unwrap();
            prop_assert_eq!(evaluated, again);
        }
        let best = plans.last().unwrap();
        let fewest = bytes.div_ceil((largest / unit).max(1) * unit).max(1);
        prop_assert!(best.count <= u64::from(fragments_max.max(1)).max(fewest));
    }

    #[test]
    fn the_best_is_not_worse_than_whole(path in path(), bytes in 1_u64..5_000_000) {
        let limits = Constraints { smallest: 512, alignment: 512, largest: 1 << 20, depth_max: 16, ..Constraints::default() };
        let (best, whole) = (best(&path, bytes, &limits), whole(&path, bytes, &limits));
        prop_assert!(best.predicted_seconds <= whole.predicted_seconds * 1.011, "{best:?} {whole:?}");
    }
}

#[test]
fn of_two_fragments_that_are_ready_at_once_the_further_one_is_served() {
    let step = |overhead| Stage { latency: 0.0, overhead, per_byte: 0.0, window: None };
    let path = [step(10.0), step(10.0), step(10.0), step(30.0)];
    let (sizes, one): ([&[u64]; 4], _) = ([&[8; 3]; 4], NonZeroU32::new(1));
    let servers = Servers::of(["thread", "wire", "thread", "disk"]);
    assert_eq!(served(&path, &sizes, one, &servers), Ok(120.0));
    let run = simulate::run_on(&path, &sizes, one, &Buffers::UNLIMITED, &servers);
    assert_eq!(run.map(|run| run.seconds), Ok(120.0));
}

#[test]
fn without_overheads_the_smallest_allowed_fragment_decides() {
    let path = [Stage { latency: 0.0, overhead: 0.0, per_byte: 1e-9, window: None }; 3];
    let limits = Constraints { smallest: 4096, alignment: 4096, ..Constraints::default() };
    assert_eq!(best(&path, 1 << 20, &limits).fragment_bytes, 4096);
}

#[test]
fn a_bottleneck_without_overhead_hands_over_to_another_stage() {
    // g_b = 0: equation 12 would cut without end; the other stage's overhead stops it.
    let path = [
        Stage { latency: 0.0, overhead: 0.0, per_byte: 4e-9, window: None },
        Stage { latency: 0.0, overhead: 20e-6, per_byte: 1e-9, window: None },
    ];
    let found = optimum(&path, 1e6, (1, 1_000_000), None);
    assert!(found.count > 1 && found.count < 1000, "{found:?}");
    let brute = (1..2000)
        .min_by(|&a, &b| equal(&path, 1e6, a, None).total_cmp(&equal(&path, 1e6, b, None)));
    assert_eq!(Some(found.count), brute);
}

#[test]
fn depth_is_as_small_as_the_latency_permits() {
    // 70 us of latency over 17 us of service: about five outstanding keep the disk busy.
    let disk = Stage { latency: 70e-6, overhead: 17e-6, per_byte: 0.0, window: None };
    let limits = Constraints { largest: 4096, depth_max: 64, ..Constraints::default() };
    let plan = best(&[disk], 1 << 20, &limits);
    assert!((5..=6).contains(&plan.depth.get()), "{plan:?}");
    // Where nothing overlaps inside the stage, one is enough.
    let copy = Stage { latency: 0.0, ..disk };
    assert_eq!(best(&[copy], 1 << 20, &limits).depth.get(), 1);
}
