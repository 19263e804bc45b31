//! LogGP signatures: against a simulation of what happens, and back from noisy measurements.

#[path = "../../model/tests/chance/mod.rs"]
mod chance;

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

use chance::Chance;
use piped_model::estimate::loggp::{Burst, Gap, Missing, Parameters, ReadFault, ReadOptions, read};
use piped_model::estimate::{Figure, Noise, Options};
use piped_theory::signature::{Limit, Network};
use proptest::prelude::*;

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    /// The processor is done with what it did.
    Done,
    /// The network takes the message that was handed to it.
    GoesIn,
    /// An acknowledgement is there.
    Acknowledged,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at: f64,
    what: What,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at)
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What the processor is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Doing {
    Computing,
    /// Taking the one acknowledgement it looks for before a message.
    Looking,
    Taking,
    Waiting,
    Sending,
}

/// Bursts by events: the times at which messages are issued. Nothing is computed in advance.
fn simulate(network: &Network, bytes: u64, delay: f64, count: usize) -> Vec<f64> {
    let mut events = BinaryHeap::new();
    let mut issued = Vec::new();
    let (mut here, mut taken) = (0_usize, 0_usize);
    let mut network_full = false;
    let mut last_in = f64::NEG_INFINITY;
    let gap = network.gap + bytes as f64 * network.per_byte;
    let mut doing = Doing::Sending;
    let mut now = 0.0;
    events.push(Event { at: network.send, what: What::Done });
    while issued.len() < count {
        let event = events.pop().expect("something always happens next");
        now = f64::max(now, event.at);
        let mut next = |at: f64, what| events.push(Event { at, what });
        let mut done = false;
        match event.what {
            What::Acknowledged => here += 1,
            What::GoesIn => {
                network_full = false;
                last_in = now;
                next(now + network.latency, What::Acknowledged);
            }
            What::Done => done = true,
        }
        if done {
            match doing {
                Doing::Sending => {
                    issued.push(now);
                    network_full = true;
                    next(now.max(last_in + gap), What::GoesIn);
                    doing = Doing::Computing;
                    next(now + delay, What::Done);
                    continue;
                }
                Doing::Computing if here > 0 => {
                    here -= 1;
                    doing = Doing::Looking;
                    next(now + network.receive, What::Done);
                    continue;
                }
                Doing::Looking | Doing::Taking => taken += 1,
                Doing::Computing | Doing::Waiting => {}
            }
            doing = Doing::Waiting;
        }
        if doing != Doing::Waiting {
            continue;
        }
        let outstanding = issued.len() - taken;
        let window_full = network.window.is_some_and(|it| outstanding >= it.get() as usize);
        if !window_full && !network_full {
            doing = Doing::Sending;
            next(now + network.send, What::Done);
        } else if here > 0 {
            here -= 1;
            doing = Doing::Taking;
            next(now + network.receive, What::Done);
        }
    }
    issued
}

fn network() -> impl Strategy<Value = Network> {
    (0.1..100.0_f64, 0.2..30.0_f64, 0.1..30.0_f64, 0.1..60.0_f64, 0.001..0.1_f64, 0_u32..12)
        .prop_map(|(latency, send, receive, gap, per_byte, window)| Network {
            latency,
            send,
            receive,
            gap,
            per_byte,
            window: NonZeroU32::new(window),
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_signature_is_what_happens(network in network(), bytes in 0_u64..2000, delay in 0.0..80.0_f64) {
        let happened = simulate(&network, bytes, delay, 300);
        for ((place, happened), computed) in happened.iter().enumerate().zip(network.bursts(bytes, delay)) {
            prop_assert!((happened - computed).abs() <= 1e-9 * computed, "{place}: {happened} {computed}");
        }
    }

    #[test]
    fn long_bursts_reach_the_steady_interval(network in network(), bytes in 0_u64..2000, delay in 0.0..80.0_f64) {
        let happened = simulate(&network, bytes, delay, 24_000);
        let (interval, _) = network.steady(bytes, delay);
        let found = (happened[23_999] - happened[11_999]) / 12_000.0;
        prop_assert!((found / interval - 1.0).abs() < 1e-3, "{found} {interval}");
    }
}

const THESIS: Network =
    Network { latency: 4.7, send: 1.8, receive: 4.0, gap: 12.8, per_byte: 0.03, window: None };

#[test]
fn a_burst_of_one_costs_the_send_overhead_and_figure_2_3_comes_out() {
    for delay in [0.0, 10.0, 40.0] {
        assert_eq!(THESIS.bursts(0, delay).next(), Some(1.8));
    }
    assert_eq!(THESIS.steady(0, 0.0), (12.8, Limit::Gap));
    assert_eq!(THESIS.steady(0, 10.0).1, Limit::Overhead);
    assert!((THESIS.steady(0, 10.0).0 - 15.8).abs() < 1e-12);
    assert!((THESIS.round_trip() - 21.0).abs() < 1e-12);
    // g hides where the processor is slower.
    let slow = Network { send: 10.0, ..THESIS };
    assert_eq!(slow.steady(0, 0.0), (14.0, Limit::Overhead));
}

/// Table 2.2 of the thesis, its last columns: a window of 4, o = 2.9, g = 5.8; L raised, and the
/// gap that was observed.
#[test]
fn the_effective_gap_rises_with_the_latency_as_in_table_2_2() {
    for (latency, observed) in [(5.0, 5.8), (30.4, 9.6), (55.9, 15.5), (80.4, 21.6), (105.5, 27.7)]
    {
        let network = Network {
            latency,
            send: 2.9,
            receive: 2.9,
            gap: 5.8,
            per_byte: 0.0,
            window: NonZeroU32::new(4),
        };
        let (interval, _) = network.steady(0, 0.0);
        assert!((interval / observed - 1.0).abs() < 0.06, "{latency}: {interval} {observed}");
    }
    // And its first: raising o raises the effective gap to 2o.
    for (overhead, observed) in [(5.0, 10.1), (8.1, 16.0), (23.1, 46.0), (103.0, 205.9)] {
        let network = Network {
            latency: 5.0,
            send: overhead,
            receive: overhead,
            gap: 5.8,
            per_byte: 0.0,
            window: NonZeroU32::new(4),
        };
        let (interval, limit) = network.steady(0, 0.0);
        assert_eq!(limit, Limit::Overhead);
        assert!((interval / observed - 1.0).abs() < 0.02, "{overhead}: {interval} {observed}");
    }
}

const LENGTHS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 96, 128];

/// Noisy measurements of a network: times in us.
fn measure(
    network: &Network,
    seed: u64,
    deviation: f64,
    delays: &[f64],
    sizes: &[u64],
) -> (Vec<Burst>, Vec<f64>) {
    let mut chance = Chance::new(seed);
    let mut bursts = Vec::new();
    let mut series = |bytes: u64, delay: f64, chance: &mut Chance| {
        let times = simulate(network, bytes, delay, 128);
        for length in LENGTHS {
            for _ in 0..4 {
                let seconds = (times[length - 1] + deviation * chance.normal()).max(1e-6);
                bursts.push(Burst { messages: length as u64, delay, bytes, seconds });
            }
        }
    };
    for &delay in delays {
        series(0, delay, &mut chance);
    }
    for &bytes in sizes {
        series(bytes, 0.0, &mut chance);
    }
    let trips = (0..20).map(|_| network.round_trip() + deviation * chance.normal()).collect();
    (bursts, trips)
}

fn read_all(network: &Network, seed: u64, deviation: f64) -> Parameters {
    let (bursts, trips) =
        measure(network, seed, deviation, &[0.0, 12.0, 24.0, 48.0], &[1024, 2048, 4096, 8192]);
    let options = ReadOptions { window: network.window, ..ReadOptions::default() };
    read(&bursts, &trips, &options).expect("good measurements")
}

#[test]
fn exact_bursts_give_the_parameters_back() {
    let found = read_all(&THESIS, 1, 0.0);
    let near = |figure: Option<Figure>, truth: f64| {
        assert!((figure.unwrap().value / truth - 1.0).abs() < 1e-6, "{truth}: {found:?}");
    };
    near(found.send, 1.8);
    near(found.receive, 4.0);
    near(found.overhead, 5.8);
    near(found.latency, 4.7);
    near(found.per_byte, 0.03);
    let Gap::Yes { gap } = found.gap else { panic!("{found:?}") };
    near(Some(gap), 12.8);
    assert_eq!(found.missing, []);
}

#[test]
fn intervals_contain_the_truth_as_often_as_they_say() {
    let mut hits = [0_u32; 5];
    for seed in 1..=1000 {
        let found = read_all(&THESIS, seed, 0.3);
        let Gap::Yes { gap } = found.gap else { panic!("seed {seed}: {found:?}") };
        let figures = [found.send, found.receive, found.latency, Some(gap), found.per_byte];
        for ((hit, figure), truth) in hits.iter_mut().zip(figures).zip([1.8, 4.0, 4.7, 12.8, 0.03])
        {
            let [low, high] = figure.expect("all are shown").interval(0.95);
            *hit += u32::from(low <= truth && truth <= high);
        }
    }
    let percent = hits.map(|hit| f64::from(hit) / 10.0);
    println!("o_s, o_r, L, g, G: {percent:?} %");
    assert!(percent.iter().all(|it| (93.0..=97.0).contains(it)), "{percent:?}");
}

#[test]
fn a_gap_that_hides_is_said_to_hide() {
    let mut seen = [0; 3];
    for seed in 1..=200 {
        // o_s + o_r = 20 over g = 12.8.
        let slow = Network { send: 12.0, receive: 8.0, ..THESIS };
        let found = read_all(&slow, seed, 0.3);
        if let Gap::BehindOverhead { at_most } = found.gap {
            assert!((at_most.value / 20.0 - 1.0).abs() < 0.02, "{found:?}");
            seen[0] += 1;
        }
        // (1.8 + 60 + 4) / 4 = 16.45 over g.
        let far = Network { latency: 60.0, window: NonZeroU32::new(4), ..THESIS };
        let found = read_all(&far, seed, 0.3);
        if let Gap::BehindWindow { at_most } = found.gap {
            assert!((at_most.value / 16.45 - 1.0).abs() < 0.02, "{found:?}");
            seen[1] += 1;
        }
        // The window is wide enough: g is seen.
        let wide = Network { window: NonZeroU32::new(8), ..far };
        seen[2] += u32::from(matches!(read_all(&wide, seed, 0.3).gap, Gap::Yes { .. }));
    }
    println!("hidden by overhead, by the window, seen: {seen:?} of 200");
    assert!(seen.iter().all(|&it| it >= 190), "{seen:?}");
}

#[test]
fn dials_read_back_what_was_set() {
    // Table 2.2's dials, one at a time; noise of 0.1 us.
    for (place, values) in
        [(0, [7.9, 22.9, 52.9]), (1, [10.0, 30.0, 80.0]), (2, [10.0, 30.0, 105.0])]
    {
        for (seed, value) in (1..).zip(values) {
            let mut network = Network { send: 2.9, receive: 2.9, gap: 5.9, latency: 5.0, ..THESIS };
            match place {
                0 => (network.send, network.receive) = (value, value),
                1 => network.gap = value,
                _ => network.latency = value,
            }
            let delays = [0.0, 60.0, 120.0, 240.0];
            let (bursts, trips) = measure(&network, seed, 0.1, &delays, &[]);
            let found = read(&bursts, &trips, &ReadOptions::default()).unwrap();
            let read_back = match (place, found.gap) {
                (0, _) => found.overhead.unwrap().value / 2.0,
                (1, Gap::Yes { gap }) => gap.value,
                (1, _) => panic!("{found:?}"),
                _ => found.latency.unwrap().value,
            };
            assert!((read_back / value - 1.0).abs() < 0.01, "{place}: {read_back} for {value}");
        }
    }
}

#[test]
fn what_is_not_shown_is_said() {
    let options = ReadOptions::default();
    let (bursts, trips) = measure(&THESIS, 1, 0.1, &[0.0], &[]);
    let found = read(&bursts, &trips, &options).unwrap();
    assert_eq!(found.missing, [Missing::Overhead, Missing::Latency, Missing::PerByte]);
    assert!(matches!(found.gap, Gap::Unknown { at_most: Some(_) }), "{found:?}");
    // A delay too short to raise the interval says nothing of the overheads either.
    let (bursts, trips) = measure(&THESIS, 1, 0.1, &[0.0, 3.0], &[]);
    assert!(read(&bursts, &trips, &options).unwrap().missing.contains(&Missing::Overhead));
    let only_one: Vec<Burst> = bursts.iter().copied().filter(|it| it.messages == 1).collect();
    let found = read(&only_one, &[], &options).unwrap();
    assert!(found.send.is_some() && found.missing.contains(&Missing::Interval), "{found:?}");
    assert_eq!(read(&[], &[], &options), Err(ReadFault::Empty));
    let bad = Burst { messages: 0, delay: 0.0, bytes: 0, seconds: 1.0 };
    assert_eq!(read(&[bursts[0], bad], &[], &options), Err(ReadFault::Burst(1)));
    assert_eq!(read(&[], &[1.0, f64::NAN], &options), Err(ReadFault::RoundTrip(1)));
    let negative = Network { gap: -1.0, ..THESIS };
    assert!(negative.checked().unwrap_err().to_string().contains("gap"));
}

/// A network of any kind, its figures in us.
fn any_network(chance: &mut Chance) -> Network {
    Network {
        latency: chance.log_between(4.0, 60.0),
        send: chance.log_between(0.5, 10.0),
        receive: chance.log_between(0.5, 10.0),
        gap: chance.log_between(1.0, 40.0),
        per_byte: 0.0,
        window: None,
    }
}

/// Bursts and round trips with 2 % of noise, and a tenth of them 2 to 50 times too long.
fn spoilt(network: &Network, chance: &mut Chance) -> (Vec<Burst>, Vec<f64>) {
    let mut time = |truth: f64| {
        let noisy = truth * (1.0 + 0.02 * chance.normal());
        if chance.unit() < 0.1 { noisy * chance.log_between(2.0, 50.0) } else { noisy }
    };
    let (steady, _) = network.steady(0, 0.0);
    let mut bursts = Vec::new();
    for delay in [0.0, 1.5, 2.5, 4.0].map(|times| times * steady) {
        let times = simulate(network, 0, delay, 128);
        for length in LENGTHS {
            for _ in 0..4 {
                let seconds = time(times[length - 1]);
                bursts.push(Burst { messages: length as u64, delay, bytes: 0, seconds });
            }
        }
    }
    let trips = (0..20).map(|_| time(network.round_trip())).collect();
    (bursts, trips)
}

#[test]
fn a_tenth_of_outliers_hardly_moves_the_parameters() {
    let fit = |robust| Options { robust, noise: Noise::Proportional };
    for (robust, least) in [(true, 90), (false, 0)] {
        let mut good = [0_usize; 3];
        const SETS: u64 = 100;
        for seed in 1..=SETS {
            let mut chance = Chance::new(seed);
            let network = any_network(&mut chance);
            let (bursts, trips) = spoilt(&network, &mut chance);
            let options = ReadOptions { fit: fit(robust), ..ReadOptions::default() };
            let found = read(&bursts, &trips, &options).expect("measurements");
            let within = |figure: Option<Figure>, truth: f64| {
                figure.is_some_and(|it| (it.value / truth - 1.0).abs() < 0.15)
            };
            let sum = network.send + network.receive;
            let hits = [
                within(found.send, network.send),
                within(found.overhead, sum),
                within(found.latency, network.latency),
            ];
            if robust && hits != [true; 3] {
                println!(
                    "seed {seed}: {hits:?} {:?} {:?} {:?} for {network:?}",
                    found.send.map(|it| it.value),
                    found.overhead.map(|it| it.value),
                    found.latency.map(|it| it.value)
                );
            }
            for (good, hit) in good.iter_mut().zip(hits) {
                *good += usize::from(hit);
            }
        }
        println!("robust {robust}: o_s, o_s + o_r, L within 15 % in {good:?} of {SETS}");
        assert!(good.iter().all(|it| *it >= least), "{good:?}");
    }
}
