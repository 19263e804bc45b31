//! Pipelines found out from outside: exact, noisy, and by a search that asks.

mod chance;

use chance::Chance;
use piped_model::estimate::black_box::{BlackBox, fit};
use piped_model::estimate::clear_box::Timing;
use piped_model::estimate::{Mode, Noise, Options, Sample, Search, SearchOptions, Wanted};
use piped_model::fixed::{Constraints, best, optimum};
use piped_model::stage::Stage;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const KB: f64 = 1024.0;
const GAM: [(f64, f64); 4] = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)];
const GMS: [(f64, f64); 4] = [(2.1, 25.6), (4.0, 60.1), (2.1, 25.6), (92.8, 26.2)];

/// Stages of us and us/KB.
fn stages(costs: &[(f64, f64)]) -> Vec<Stage> {
    let stage = |&(g, per_kb): &(f64, f64)| Stage {
        overhead: g * 1e-6,
        per_byte: per_kb * 1e-6 / KB,
        ..Stage::FREE
    };
    costs.iter().map(stage).collect()
}

/// When packets sent at once leave the pipeline: packet by packet, stage by stage.
fn departures(path: &[Stage], bytes: u64, count: usize) -> Vec<f64> {
    let mut free = vec![0.0_f64; path.len()];
    let packets = (0..count).map(|_| {
        let mut now = 0.0_f64;
        for (stage, free) in path.iter().zip(&mut free) {
            now = now.max(*free) + stage.overhead + bytes as f64 * stage.per_byte;
            *free = now;
            now += stage.latency;
        }
        now
    });
    packets.collect()
}

/// What a clock shows of a pipeline.
struct Rig {
    path: Vec<Stage>,
    chance: Chance,
    noise: f64,
    outliers: f64,
    asked: Vec<Wanted>,
}

impl Rig {
    fn new(path: Vec<Stage>, seed: u64, noise: f64, outliers: f64) -> Self {
        Self { path, chance: Chance::new(seed), noise, outliers, asked: Vec::new() }
    }

    fn measure(&mut self, wanted: Wanted) -> f64 {
        self.asked.push(wanted);
        let clean = match wanted.mode {
            Mode::Alone => departures(&self.path, wanted.bytes, 1)[0],
            Mode::Backlogged => {
                let times = departures(&self.path, wanted.bytes, 17);
                (times[16] - times[8]) / 8.0
            }
        };
        let late = self.chance.unit() < self.outliers;
        let noisy = clean * (1.0 + self.noise * self.chance.normal()).max(0.1);
        if late { noisy * (2.0 + 8.0 * self.chance.unit()) } else { noisy }
    }

    fn timings(&mut self, mode: Mode, sizes: &[u64], repeats: usize) -> Vec<Timing> {
        let each = sizes.iter().flat_map(|&bytes| vec![bytes; repeats]);
        each.map(|bytes| Timing { bytes, seconds: self.measure(Wanted { bytes, mode }) }).collect()
    }

    fn search(&mut self, options: SearchOptions) -> (Search, BlackBox) {
        let mut search = Search::new(options);
        while let Some(wanted) = search.poll_wanted() {
            let (bytes, seconds) = (wanted.bytes, self.measure(wanted));
            search.handle(match wanted.mode {
                Mode::Alone => Sample::Alone { bytes, seconds },
                Mode::Backlogged => Sample::Backlogged { bytes, seconds },
            });
            assert!(self.asked.len() <= options.samples_max as usize, "it goes on asking");
        }
        let found = search.outcome().expect("enough was measured");
        (search, found)
    }
}

const SIZES: [u64; 8] = [128, 256, 512, 1024, 2048, 4096, 8192, 16_384];
const PROPORTIONAL: Options = Options { robust: false, noise: Noise::Proportional };
const ROBUST: Options = Options { robust: true, noise: Noise::Proportional };

fn read(rig: &mut Rig, sizes: &[u64], repeats: usize, options: Options) -> BlackBox {
    let alone = rig.timings(Mode::Alone, sizes, repeats);
    let backlogged = rig.timings(Mode::Backlogged, sizes, repeats);
    fit(&alone, &backlogged, options).expect("sizes vary")
}

fn near(a: f64, b: f64, part: f64) -> bool {
    (a - b).abs() <= part * b.abs()
}

#[test]
fn exact_measurements_of_gam_give_table_2() {
    for options in [Options::default(), PROPORTIONAL, ROBUST] {
        let found = read(&mut Rig::new(stages(&GAM), 1, 0.0, 0.0), &SIZES, 1, options);
        assert_eq!(found.bottlenecks.len(), 1, "{found:?}");
        let bottleneck = found.bottlenecks[0];
        assert!(near(bottleneck.line.intercept.value * 1e6, 7.5, 1e-9), "{bottleneck:?}");
        assert!(near(bottleneck.others_per_byte.value * 1e6 * KB, 40.0, 1e-9), "{bottleneck:?}");
        assert!(near(found.total.intercept.value * 1e6, 27.3, 1e-9));
        // Section 5.4: the same plan as with all stages known.
        let plan = found.fixed(4096, &Constraints::default()).unwrap();
        let known = best(&stages(&GAM), 4096, &Constraints::default());
        assert_eq!((plan.count, plan.fragment_bytes), (known.count, known.fragment_bytes));
        same_reals(&found, &GAM, 4096);
        // Equation 6.
        let size = found.fragment_bytes(4096.0).unwrap();
        assert!(near(size, (4096.0 * 7.5 * KB / 40.0_f64).sqrt(), 1e-9), "{size}");
    }
}

#[test]
fn the_bottleneck_of_gms_moves_where_it_does() {
    for options in [Options::default(), PROPORTIONAL, ROBUST] {
        let found = read(&mut Rig::new(stages(&GMS), 1, 0.0, 0.0), &SIZES, 1, options);
        assert_eq!(found.bottlenecks.len(), 2, "{found:?}");
        let at = found.bottlenecks[1].from_bytes.unwrap().value;
        assert!(near(at / KB, 88.8 / 33.9, 1e-9), "{at}");
        assert!(near(at / KB, 2.6195, 2e-5), "{at}");
        assert!(near(found.bottlenecks[0].line.intercept.value * 1e6, 92.8, 1e-9));
        assert!(near(found.bottlenecks[1].line.intercept.value * 1e6, 4.0, 1e-6));
        let plan = found.fixed(8192, &Constraints::default()).unwrap();
        let known = best(&stages(&GMS), 8192, &Constraints::default());
        assert_eq!((plan.count, plan.fragment_bytes), (known.count, known.fragment_bytes));
        same_reals(&found, &GMS, 8192);
        assert_eq!(found.bottleneck_at(1000.0), &found.bottlenecks[0]);
        assert_eq!(found.bottleneck_at(3000.0), &found.bottlenecks[1]);
    }
}

#[test]
fn a_bottleneck_seen_at_its_end_only_adds_nothing_to_the_sum() {
    // The first is the slowest below 66 bytes: its line goes through 64 and 67, and has the
    // second's slope in it.
    let path =
        stages(&[(70.2068638206767, 55.28107446520506), (73.07122233331977, 10.370394169287719)]);
    let options = SearchOptions {
        smallest: 64,
        largest: 65_536,
        repeats: 1,
        fit: Options::default(),
        ..SearchOptions::default()
    };
    let (_, found) = Rig::new(path.clone(), 1, 0.0, 0.0).search(options);
    assert_eq!(found.bottlenecks.len(), 2, "{found:?}");
    let sum: f64 = found.path().unwrap().iter().map(|it| it.per_byte).sum();
    assert!(near(sum, found.total.slope.value, 1e-9), "{found:?}");
    assert_eq!(
        found.fixed(4096, &Constraints { smallest: 64, ..Constraints::default() }).unwrap().count,
        1
    );
}

#[test]
fn fragments_beyond_what_was_measured_are_priced_by_the_fit() {
    // Below 2.6 KB only the wire is seen, and all else adds up to 111.3 us/KB.
    let found = read(&mut Rig::new(stages(&GMS), 1, 0.0, 0.0), &[512, 768, 944], 1, PROPORTIONAL);
    assert_eq!(found.bottlenecks.len(), 1, "{found:?}");
    let plan = found.fixed(8192, &Constraints::default()).unwrap();
    let known = best(&stages(&GMS), 8192, &Constraints::default());
    assert_eq!(plan.count, known.count);
    let size = plan.fragment_bytes as f64 / KB;
    let fit = 2.0 * (92.8 + 26.2 * size) + 101.0 + 137.5 * size;
    assert!(near(plan.predicted_seconds * 1e6, fit, 2e-3), "{plan:?} {fit}");
}

/// Over the reals nothing else than what is seen from outside decides. (A shorter last fragment
/// depends on the order.)
fn same_reals(found: &BlackBox, costs: &[(f64, f64)], bytes: u64) {
    let seen = optimum(&found.path().unwrap(), bytes as f64, (1, bytes), None);
    let known = optimum(&stages(costs), bytes as f64, (1, bytes), None);
    assert_eq!(seen.count, known.count);
    assert!(near(seen.predicted_seconds, known.predicted_seconds, 1e-9), "{seen:?} {known:?}");
}

/// In percent of 1000 noisy data sets: one bottleneck found; then `g_b`, `sum G`, `sum_{j!=b} G` in
/// their intervals.
fn coverage(
    costs: &[(f64, f64)],
    bottleneck: (f64, f64),
    outliers: f64,
    options: Options,
) -> [f64; 4] {
    let mut hits = [0_u32; 4];
    let mut counted = 0;
    for seed in 1..=1000 {
        let mut rig = Rig::new(stages(costs), seed, 0.05, outliers);
        let found = read(&mut rig, &SIZES, 6, options);
        hits[0] += u32::from(found.bottlenecks.len() == 1);
        if found.bottlenecks.len() != 1 {
            continue;
        }
        counted += 1;
        let total: f64 = costs.iter().map(|it| it.1).sum();
        let it = found.bottlenecks[0];
        let scale = 1e6 * KB;
        for (hit, (figure, truth)) in hits[1..].iter_mut().zip([
            (it.line.intercept.times(1e6), bottleneck.0),
            (found.total.slope.times(scale), total),
            (it.others_per_byte.times(scale), total - bottleneck.1),
        ]) {
            let [low, high] = figure.interval(0.95);
            *hit += u32::from(low <= truth && truth <= high);
        }
    }
    let part = |hit: u32, of: u32| f64::from(hit) * 100.0 / f64::from(of);
    [part(hits[0], 1000), part(hits[1], counted), part(hits[2], counted), part(hits[3], counted)]
}

#[test]
fn intervals_contain_the_truth_as_often_as_they_say() {
    for (outliers, options) in [(0.0, PROPORTIONAL), (0.05, ROBUST)] {
        let [single, rest @ ..] = coverage(&GAM, (7.5, 24.9), outliers, options);
        println!("{outliers} outliers: one bottleneck in {single} %, intervals {rest:?} %");
        assert!(single >= 99.0, "noise is taken for bottlenecks: {single} %");
        assert!(rest.iter().all(|it| (93.0..=97.0).contains(it)), "{outliers}: {rest:?}");
    }
}

#[test]
fn transitions_are_found_in_noise_with_their_intervals() {
    let sizes: Vec<u64> = (0..16).map(|i| 256 + 512 * i).collect();
    let (mut found_two, mut inside, mut worst) = (0, 0, 0.0_f64);
    for seed in 1..=1000 {
        let mut rig = Rig::new(stages(&GMS), seed, 0.03, 0.0);
        let found = read(&mut rig, &sizes, 6, PROPORTIONAL);
        let [_, second] = found.bottlenecks[..] else { continue };
        found_two += 1;
        let at = second.from_bytes.unwrap();
        let truth = 88.8 / 33.9 * KB;
        let [low, high] = at.interval(0.95);
        inside += u32::from(low <= truth && truth <= high);
        worst = worst.max((at.value / truth - 1.0).abs());
    }
    let inside = f64::from(inside) * 100.0 / f64::from(found_two);
    println!("{found_two} of 1000 with two, {inside} % of the intervals hold, worst {worst}");
    assert!(found_two >= 985, "{found_two}");
    assert!((92.0..=98.0).contains(&inside) && worst < 0.25, "{inside} {worst}");
}

#[test]
fn a_search_finds_gms_with_few_sizes() {
    let options = SearchOptions {
        smallest: 128,
        largest: 65_536,
        repeats: 1,
        fit: Options::default(),
        ..SearchOptions::default()
    };
    let mut rig = Rig::new(stages(&GMS), 1, 0.0, 0.0);
    let (search, found) = rig.search(options);
    let at = found.bottlenecks[1].from_bytes.unwrap().value;
    assert!(near(at / KB, 88.8 / 33.9, 1e-6), "{at}");
    assert!(search.is_precise() && rig.asked.len() <= 30, "{:?}", rig.asked);
    // One bottleneck: nothing beyond the sizes to begin with.
    let mut rig = Rig::new(stages(&GAM), 1, 0.0, 0.0);
    let (search, found) = rig.search(options);
    assert_eq!(found.bottlenecks.len(), 1);
    assert!(search.is_precise() && rig.asked.len() <= 20, "{:?}", rig.asked);
}

#[test]
fn a_search_finds_three_bottlenecks() {
    // The middle one is the slowest from 10 KB to 30 KB only.
    let costs = [(200.0, 1.0), (100.0, 11.0), (1.0, 14.3)];
    let options = SearchOptions { smallest: 512, largest: 1 << 18, ..SearchOptions::default() };
    for (seed, noise) in [(1, 0.0), (2, 0.01), (3, 0.01), (4, 0.01)] {
        let mut rig =
            Rig::new(stages(&costs), seed, noise, 0.02 * f64::from(u8::from(noise > 0.0)));
        let (_, found) = rig.search(options);
        let starts: Vec<f64> = found
            .bottlenecks
            .iter()
            .filter_map(|it| it.from_bytes)
            .map(|it| it.value / KB)
            .collect();
        println!("seed {seed}: {starts:?} after {} measurements", rig.asked.len());
        assert_eq!(starts.len(), 2, "seed {seed}: {starts:?}");
        let part = if noise == 0.0 { 1e-6 } else { 0.2 };
        assert!(
            near(starts[0], 10.0, part) && near(starts[1], 30.0, part),
            "seed {seed}: {starts:?}"
        );
    }
}

#[test]
fn searches_on_noisy_pipelines_end_precise_and_plan_well() {
    let (mut precise, mut asked, mut worst) = (0, 0, 0.0_f64);
    const SEEDS: u64 = 60;
    for seed in 1..=SEEDS {
        let costs = if seed % 2 == 0 { GAM } else { GMS };
        let mut rig = Rig::new(stages(&costs), seed, 0.05, 0.03);
        let options = SearchOptions { smallest: 128, largest: 16_384, ..SearchOptions::default() };
        let (search, found) = rig.search(options);
        precise += u32::from(search.is_precise());
        asked += rig.asked.len();
        let limits = Constraints::default();
        let plan = found.fixed(8192, &limits).expect("a few stages");
        let path = stages(&costs);
        let took = piped_model::evaluate::uniform(&path, plan.fragment_bytes, 8192, None);
        worst = worst.max(took / best(&path, 8192, &limits).predicted_seconds - 1.0);
    }
    println!(
        "{precise} of {SEEDS} precise, {} measurements each, worst plan {worst}",
        asked / SEEDS as usize
    );
    assert!(precise >= 57 && worst < 0.05, "{precise} {worst}");
}

#[test]
fn a_search_ends_whatever_is_answered() {
    let options = SearchOptions { samples_max: 500, ..SearchOptions::default() };
    for seed in 1..=60 {
        let mut chance = Chance::new(seed);
        let mut search = Search::new(options);
        let mut polls = 0;
        while let Some(wanted) = search.poll_wanted() {
            polls += 1;
            assert!(polls <= 500, "seed {seed}");
            let seconds = match chance.between(0, 8) {
                0 => f64::NAN,
                1 => 0.0,
                2 => f64::INFINITY,
                3 => 1e300,
                _ => chance.log_between(1e-9, 1e3),
            };
            let bytes = if chance.unit() < 0.1 { chance.bits() } else { wanted.bytes };
            search.handle(match wanted.mode {
                Mode::Alone => Sample::Alone { bytes, seconds },
                Mode::Backlogged => Sample::Backlogged { bytes, seconds },
            });
        }
        let Ok(found) = search.outcome() else { continue };
        if let Some(path) = found.path() {
            assert!(path.iter().all(|it| it.checked().is_ok()), "seed {seed}: {path:?}");
        }
    }
    // One size only: it says so, and ends.
    let one = SearchOptions { smallest: 4096, largest: 4096, repeats: 3, ..options };
    let mut search = Search::new(one);
    while let Some(wanted) = search.poll_wanted() {
        search.handle(match wanted.mode {
            Mode::Alone => Sample::Alone { bytes: wanted.bytes, seconds: 2e-6 },
            Mode::Backlogged => Sample::Backlogged { bytes: wanted.bytes, seconds: 1e-6 },
        });
    }
    let fault = search.outcome().unwrap_err().to_string();
    assert!(fault.contains("measure another size"), "{fault}");
}

proptest! {
    // The same pipelines in every run: in one of some 50 000 a third stage is the slowest by so
    // little that the search passes it by, and is wrong by up to 1 %.
    #![proptest_config(ProptestConfig {
        cases: 2000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Exact measurements of any pipeline, by search: the same times between departures at every
    /// size, and the same best fixed plan.
    #[test]
    fn exact_searches_show_the_pipeline(costs in vec((0.0..100.0_f64, 0.5..60.0_f64), 1..5), bytes in 4096_u64..60_000) {
        let path = stages(&costs);
        let options = SearchOptions {
            smallest: 64, largest: 65_536, repeats: 1, fit: Options::default(), ..SearchOptions::default()
        };
        let (_, found) = Rig::new(path.clone(), 1, 0.0, 0.0).search(options);
        for size in [64.0, 500.0, 3000.0, 20_000.0, 65_536.0] {
            let truth = path.iter().map(|it| it.occupancy(size)).fold(0.0, f64::max);
            let seen = found.bottleneck_at(size).line.at(size);
            prop_assert!(near(seen, truth, 0.005), "{size}: {seen} {truth} {found:?}");
        }
        let limits = Constraints { smallest: 64, ..Constraints::default() };
        if let Some(plan) = found.fixed(bytes, &limits) {
            let took = piped_model::evaluate::uniform(&path, plan.fragment_bytes, bytes, None);
            // Of equal fragments: a short last one saves more or less depending on the stages'
            // order.
            let known = optimum(&path, bytes as f64, (1, bytes / 64), None).predicted_seconds;
            prop_assert!(took <= known * 1.005, "{took} {known} {found:?}");
        }
    }
}
