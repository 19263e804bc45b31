//! Splits over several ways, against all that there are.

mod chance;

use chance::Chance;
use piped_model::fixed::{self, Constraints};
use piped_model::stage::{Path, Stage};
use piped_model::ways::{between, split};

/// A way that takes so long for bytes: a path that cuts at its best, or a line.
type Way = Box<dyn Fn(u64) -> f64>;

fn way(chance: &mut Chance) -> Way {
    let stage = |chance: &mut Chance| {
        let overhead = chance.log_between(1e-6, 300e-6);
        let per_byte = chance.log_between(0.1e-9, 20e-9);
        Stage { latency: chance.log_between(1e-6, 1e-3), overhead, per_byte, window: None }
    };
    let stages: Vec<Stage> = (0..chance.between(1, 4)).map(|_| stage(chance)).collect();
    if chance.unit() < 0.5 {
        let line = stages[0];
        return Box::new(move |bytes| line.alone(bytes as f64));
    }
    let path = Path::new(&stages).expect("one to three stages");
    Box::new(move |bytes| fixed::best(&path, bytes, &Constraints::default()).predicted_seconds)
}

fn seconds(way: &Way, bytes: u64) -> f64 {
    if bytes == 0 { 0.0 } else { way(bytes) }
}

#[test]
fn no_cut_between_two_ways_ends_sooner() {
    for seed in 0..400 {
        let mut chance = Chance::new(seed);
        let (one, other) = (way(&mut chance), way(&mut chance));
        let unit = chance.between(1, 5000);
        let bytes = chance.between(1, 60) * unit + chance.between(0, unit);
        let (cut, end) = between(bytes, unit, &one, &other);
        assert!(cut % unit == 0 || cut == bytes, "seed {seed}: {cut}");
        let ends = |at: u64| seconds(&one, at).max(seconds(&other, bytes - at));
        assert!((ends(cut) - end).abs() < 1e-15, "seed {seed}");
        let cuts = (0..=bytes / unit).map(|units| units * unit).chain([bytes]);
        let best = cuts.map(ends).fold(f64::INFINITY, f64::min);
        // What plans of whole bytes take may fall by a little where one more fragment pays.
        assert!(end <= best * 1.001, "seed {seed}: {end} {best}");
    }
}

#[test]
fn no_split_over_three_ways_ends_sooner() {
    for seed in 0..60 {
        let mut chance = Chance::new(seed);
        let ways = [(); 3].map(|()| way(&mut chance));
        let units = chance.between(1, 40);
        let (sizes, end) = split(units * 4096, 4096, &[&ways[0], &ways[1], &ways[2]]);
        assert_eq!(sizes.iter().sum::<u64>(), units * 4096, "seed {seed}");
        let ends = |sizes: [u64; 3]| {
            sizes.iter().zip(&ways).map(|(&size, way)| seconds(way, size)).fold(0.0, f64::max)
        };
        assert!((ends([sizes[0], sizes[1], sizes[2]]) - end).abs() < 1e-15, "seed {seed}");
        for one in 0..=units {
            for other in 0..=units - one {
                let best = ends([one, other, units - one - other].map(|units| units * 4096));
                assert!(end <= best * 1.002, "seed {seed}: {sizes:?} {end}, {one} {other} {best}");
            }
        }
    }
}

/// A way that is not worth its latency gets nothing, and equal ways get the same.
#[test]
fn what_a_way_gets_follows_from_what_it_takes() {
    let line = |latency: f64| move |bytes: u64| latency + bytes as f64 * 1e-9;
    assert_eq!(between(1 << 20, 4096, line(0.0), line(0.0)).0, 1 << 19);
    assert_eq!(between(1 << 20, 4096, line(0.0), line(1.0)), (1 << 20, line(0.0)(1 << 20)));
    assert_eq!(between(1 << 20, 4096, line(1.0), line(0.0)), (0, line(0.0)(1 << 20)));
    assert_eq!(between(0, 4096, line(1.0), line(0.0)), (0, 0.0));
    assert_eq!(between(10, 4096, line(0.0), line(1.0)).0, 10, "shorter than a unit");
}
