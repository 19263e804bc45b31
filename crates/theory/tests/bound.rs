//! The bound against all plans of tiny transfers, and for costs that bend and servers that are
//! shared.

mod common;

use common::{Random, exhaustive};
use piped_model::estimate::CostCurve;
use piped_model::evaluate;
use piped_model::fixed::{self, Constraints};
use piped_model::leveled::{self, Level, Task};
use piped_model::reference::{KB, stage};
use piped_model::room::Room;
use piped_model::servers::Servers;
use piped_model::stage::{Buffers, Stage, StageCost};
use piped_theory::bound;

fn stage_of(random: &mut Random) -> Stage {
    let latency = if random.below(4) == 0 { 3.0 } else { 0.0 };
    let (overhead, per_byte) = (random.power(-1.0, 1.0), random.power(-1.0, 1.0));
    Stage { latency, overhead, per_byte, window: None }
}

/// A line up to a size, then a jump and another line.
#[derive(Debug, Clone, Copy)]
struct Bent {
    below: Stage,
    bend: f64,
    jump: f64,
    steeper: f64,
}

impl Bent {
    fn draw(random: &mut Random, below: Stage, bytes: u64) -> Self {
        let bend = random.below(bytes) as f64;
        let jump = [0.0, 0.5, 3.0][random.below(3) as usize] * below.overhead;
        Self { below, bend, jump, steeper: [0.5, 1.0, 2.5][random.below(3) as usize] }
    }
}

impl StageCost for Bent {
    fn stage_at(&self, bytes: f64) -> Stage {
        if bytes <= self.bend {
            return self.below;
        }
        let per_byte = self.steeper * self.below.per_byte;
        let overhead = self.below.occupancy(self.bend) + self.jump - per_byte * self.bend;
        // A steep line would begin below zero.
        let per_byte = per_byte + overhead.min(0.0) / bytes;
        Stage { overhead: overhead.max(0.0), per_byte, ..self.below }
    }
}

/// A number of stages, and of bytes with which all plans can be looked at.
fn tiny(random: &mut Random) -> (usize, u64) {
    let stages = 2 + random.below(3) as usize;
    (stages, 2 + random.below([7, 4, 3][stages - 2]))
}

#[test]
fn no_plan_of_a_tiny_transfer_is_below_the_bound_on_any_grid() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let (stages, bytes) = tiny(&mut random);
        let path: Vec<Stage> = (0..stages).map(|_| stage_of(&mut random)).collect();
        let bent: Vec<Bent> =
            path.iter().map(|&below| Bent::draw(&mut random, below, bytes)).collect();
        let optimum = exhaustive(&path, bytes, &Servers::APART);
        let bent_optimum = exhaustive(&bent, bytes, &Servers::APART);
        for cells in 1..=bytes as usize {
            let bound = bound::on_grid(&path, bytes, cells);
            let what = format!("seed {seed}, {cells} cells, {bytes} bytes");
            assert!(bound <= optimum * (1.0 + 1e-9), "{what}: {bound} {optimum} {path:?}");
            let bound = bound::on_grid(&bent, bytes, cells);
            assert!(
                bound <= bent_optimum * (1.0 + 1e-9),
                "{what}: {bound} {bent_optimum} {bent:?}"
            );
        }
    }
}

#[test]
fn no_plan_of_a_tiny_transfer_on_shared_servers_is_below_the_bound() {
    let (mut plain, mut tight, mut cases) = (0.0, 0.0, 0);
    for seed in 0..200 {
        let mut random = Random(seed);
        let (stages, bytes) = tiny(&mut random);
        let path: Vec<Stage> = (0..stages).map(|_| stage_of(&mut random)).collect();
        let servers = Servers::of((0..stages).map(|_| random.below(2)));
        let optimum = exhaustive(&path, bytes, &servers);
        let bound = bound::of_costs(&path, bytes, &servers);
        let what = format!("seed {seed}, {bytes} bytes, {servers:?} on {path:?}");
        assert!(bound <= optimum * (1.0 + 1e-9), "{what}: {bound} {optimum}");
        let bent: Vec<Bent> =
            path.iter().map(|&below| Bent::draw(&mut random, below, bytes)).collect();
        let bent_bound = bound::of_costs(&bent, bytes, &servers);
        let bent_optimum = exhaustive(&bent, bytes, &servers);
        assert!(bent_bound <= bent_optimum * (1.0 + 1e-9), "{what}: {bent_bound} {bent:?}");
        if servers.is_shared(stages) {
            let apart = bound::lower_bound(&path, bytes);
            plain += optimum / apart.max(bound::of_servers(&path, bytes, &servers)) - 1.0;
            tight += optimum / bound - 1.0;
            cases += 1;
        }
    }
    println!(
        "{cases} cases: {:.2} %, was {:.2} %",
        tight * 100.0 / f64::from(cases),
        plain * 100.0 / f64::from(cases)
    );
    assert!(tight < 0.8 * plain, "{tight} {plain}");
}

#[test]
fn plans_for_bent_costs_are_not_below_the_bound() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let bytes = 1000 + random.below(30_000);
        let stages = 2 + random.below(4) as usize;
        let path: Vec<Bent> = (0..stages)
            .map(|_| {
                let (overhead, per_byte) = (random.power(0.3, 2.5), random.power(-2.5, -1.0));
                let below = Stage { overhead, per_byte, ..Stage::FREE };
                Bent::draw(&mut random, below, bytes)
            })
            .collect();
        let levels = [Level::free(0..1), Level::free(1..stages)];
        let planned =
            leveled::candidates(&Task::new(&path, bytes, &levels, 64))[0].predicted_seconds;
        let equal = fixed::best(&path, bytes, &Constraints::default()).predicted_seconds;
        for cells in [50, 400] {
            let bound = bound::on_grid(&path, bytes, cells);
            let what = format!("seed {seed}, {bytes} bytes, {cells} cells on {path:?}");
            assert!(
                bound <= planned.min(equal) * (1.0 + 1e-9),
                "{what}: {bound} {planned} {equal}"
            );
        }
    }
}

/// The latency of a plan whose cuts are moved, put in and left out as long as that helps.
fn climbed<C: StageCost>(path: &[C], mut ends: Vec<Vec<u64>>) -> f64 {
    let mut random = Random(1);
    let bytes = ends[0][ends[0].len() - 1];
    let seconds = |ends: &[Vec<u64>]| {
        let sizes = |ends: &Vec<u64>| -> Vec<u64> {
            let mut begin = 0;
            ends.iter().map(|&end| end - std::mem::replace(&mut begin, end)).collect()
        };
        let sizes: Vec<Vec<u64>> = ends.iter().map(sizes).collect();
        let sizes: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
        evaluate::lists(path, &sizes, None).expect("lists that add up")
    };
    let mut best = seconds(&ends);
    for _ in 0..40_000 {
        let mut changed = ends.clone();
        let from = random.below(path.len() as u64) as usize;
        let to = from + 1 + random.below((path.len() - from) as u64) as usize;
        let old = 1 + random.below(bytes - 1);
        let near = ends[from].iter().copied().min_by_key(|end| end.abs_diff(old)).unwrap_or(old);
        let by = random.power(0.0, 3.0) as u64;
        let new = if random.below(2) == 0 { near + by } else { near.saturating_sub(by) };
        let kind = random.below(4);
        for list in &mut changed[from..to] {
            list.retain(|&end| kind == 0 || end != near);
            if kind != 1 {
                list.push(new.clamp(1, bytes));
            }
            list.push(bytes);
            list.sort_unstable();
            list.dedup();
        }
        let now = seconds(&changed);
        if now <= best {
            (best, ends) = (now, changed);
        }
    }
    best
}

#[test]
fn a_bend_costs_the_certificate_less_than_a_hundredth() {
    let gam = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)];
    let gam = gam.map(|(overhead, per_byte)| stage(overhead, per_byte, KB));
    let levels = [Level::free(0..1), Level::free(1..3), Level::free(3..4)];
    for bytes in [4096, 16_384] {
        let gap = |path: &[CostCurve]| {
            let planned = &leveled::candidates(&Task::new(path, bytes, &levels, 64))[0];
            let ends = |stage: usize| -> Vec<u64> {
                let sizes = planned.sizes_at(stage).expect("each stage has sizes");
                sizes.iter().map(|fragment| fragment.offset + fragment.length).collect()
            };
            let better = climbed(path, (0..4).map(ends).collect());
            better / bound::of_costs(path, bytes, &Servers::APART) - 1.0
        };
        let straight = gap(&gam.map(CostCurve::straight));
        for bent in 0..4 {
            let mut path = gam.map(CostCurve::straight);
            let line = gam[bent];
            let steeper = Stage {
                overhead: line.overhead - 0.4 * line.per_byte * 700.0,
                per_byte: 1.4 * line.per_byte,
                ..line
            };
            path[bent] = CostCurve::of_lines(&[(300.0, line), (3000.0, steeper)], None);
            let gap = gap(&path);
            println!(
                "{bytes} bytes, stage {bent}: {:.2} %, straight {:.2} %",
                gap * 100.0,
                straight * 100.0
            );
            assert!((-1e-9..straight + 0.01).contains(&gap), "{bytes} {bent}: {gap} {straight}");
        }
    }
}

#[test]
fn no_plan_that_waits_for_room_is_below_the_bound() {
    let (mut waited, mut raised) = (0, 0);
    for seed in 0..300 {
        let mut random = Random(seed);
        let stages = 1 + random.below(4) as usize;
        let bytes = 4 + random.below(36);
        let path: Vec<Stage> = (0..stages).map(|_| stage_of(&mut random)).collect();
        let [a, b] = [0, 1].map(|_| random.below(stages as u64) as usize);
        let room = Room::bytes(a.min(b), a.max(b), 1 + random.below(bytes));
        let batch = 1 + random.below(1 + room.bytes / 2);
        let due = random.below(batch);
        let back = [0.0, 2.0][random.below(2) as usize];
        let buffers = Buffers::UNLIMITED.over(Room { batch, due, back, ..room });
        let bound = bound::within(&path, bytes, &Servers::APART, &buffers);
        raised += u32::from(bound > bound::lower_bound(&path, bytes) * 1.001);
        for _ in 0..100 {
            let sizes: Vec<Vec<u64>> = (0..stages)
                .map(|_| {
                    let cuts = (1..bytes).filter(|_| random.below(4) == 0);
                    let ends: Vec<u64> = cuts.chain([bytes]).collect();
                    let begins = core::iter::once(0).chain(ends.iter().copied());
                    ends.iter().zip(begins).map(|(end, begin)| end - begin).collect()
                })
                .collect();
            let views: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
            let Ok(seconds) = evaluate::within(&path, &views, None, &buffers) else { continue };
            waited += 1;
            let what = format!("seed {seed}, {sizes:?} within {buffers:?} on {path:?}");
            assert!(bound <= seconds * (1.0 + 1e-9), "{what}: {bound} {seconds}");
        }
    }
    assert!(waited > 1000 && raised > 50, "{waited} {raised}");
}
