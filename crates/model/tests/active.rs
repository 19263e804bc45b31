//! The active procedures against pipelines whose stages are known, in virtual time.

mod chance;

use std::num::NonZeroU32;

use chance::Chance;
use piped_core::units::Nanos;
use piped_model::estimate::active::{End, Found, Options, Procedure, Run, Step};
use piped_model::estimate::loggp::Gap;
use piped_model::stage::Stage;

/// A pipeline, and a processor in front of it that sends and takes.
struct Path {
    stages: Vec<Stage>,
    send: f64,
    receive: f64,
    ring: f64,
    /// Relative deviation of every time.
    noise: f64,
    /// A part of all times is so many times as long.
    outliers: (f64, f64),
    chance: Chance,
    /// When each stage is free again.
    free: Vec<f64>,
    now: f64,
}

impl Path {
    fn new(stages: Vec<Stage>, seed: u64) -> Self {
        let free = vec![0.0; stages.len()];
        Self {
            stages,
            send: 1e-6,
            receive: 2e-6,
            ring: 4e-6,
            noise: 0.03,
            outliers: (0.01, 5.0),
            chance: Chance::new(seed),
            free,
            now: 0.0,
        }
    }

    fn scatter(&mut self) -> f64 {
        let slow = if self.chance.unit() < self.outliers.0 { self.outliers.1 } else { 1.0 };
        (1.0 + self.noise * self.chance.normal()).max(0.5) * slow
    }

    /// When a packet that enters now has left.
    fn send(&mut self, bytes: u64, enters: f64) -> f64 {
        let mut at = enters + self.ring;
        for index in 0..self.stages.len() {
            let start = at.max(self.free[index]);
            let scatter = self.scatter();
            self.free[index] = start + self.stages[index].occupancy(bytes as f64) * scatter;
            // Ends come in order, so one late latency would hold up all: it is occupancy that is
            // late.
            let scatter = 1.0 + self.noise * self.chance.normal();
            at = self.free[index] + self.stages[index].latency * scatter.max(0.5);
        }
        at
    }

    fn run(&mut self, run: Run) -> Vec<f64> {
        match run {
            Run::Ring { count } => (0..count)
                .map(|_| {
                    let time = self.ring * self.scatter();
                    self.now += time;
                    time
                })
                .collect(),
            Run::Alone { bytes, count } => (0..count)
                .map(|_| {
                    let end = self.send(bytes, self.now);
                    let time = end - self.now;
                    self.now = end;
                    time
                })
                .collect(),
            Run::Backlogged { bytes, count, depth } => {
                let mut ends: Vec<f64> = Vec::new();
                for index in 0..count as usize {
                    let freed = index.checked_sub(depth as usize).map_or(self.now, |at| ends[at]);
                    ends.push(self.send(bytes, freed));
                }
                self.now = ends.last().copied().unwrap_or(self.now);
                ends
            }
            Run::Burst { bytes, messages, delay, window } => {
                self.burst(bytes, messages, delay, window)
            }
        }
    }

    fn burst(&mut self, bytes: u64, messages: u32, delay: f64, window: u32) -> Vec<f64> {
        let began = self.now;
        let mut under_way = std::collections::VecDeque::new();
        for message in 0..messages {
            if message > 0 {
                self.now += delay;
                if under_way.front().is_some_and(|end| *end <= self.now) {
                    under_way.pop_front();
                    self.now += self.receive;
                }
            }
            while under_way.len() >= window as usize {
                let end = under_way.pop_front().unwrap_or(0.0);
                self.now = self.now.max(end) + self.receive;
            }
            self.now += self.send;
            let end = self.send(bytes, self.now);
            under_way.push_back(end);
        }
        let issued = self.now - began;
        for end in under_way {
            self.now = self.now.max(end);
        }
        vec![issued]
    }

    fn nanos(&self) -> Nanos {
        Nanos::from_seconds(self.now)
    }

    /// The whole procedure. Second: the longest run, in seconds.
    fn calibrate(&mut self, options: Options) -> (Found, f64) {
        let mut procedure = Procedure::new(options, self.nanos());
        let mut longest = 0.0_f64;
        loop {
            match procedure.poll(self.nanos()) {
                Step::Over => return (procedure.found(self.nanos()), longest),
                Step::Pause(until) => self.now = self.now.max(until.seconds()) + 1e-9,
                Step::Run(run) => {
                    let began = self.nanos();
                    let seconds = self.run(run);
                    procedure.handle(&seconds, began, self.nanos());
                    longest = longest.max(self.nanos().since(began).seconds());
                }
            }
        }
    }
}

fn stage(latency: f64, overhead: f64, per_kb: f64) -> Stage {
    Stage {
        latency: latency * 1e-6,
        overhead: overhead * 1e-6,
        per_byte: per_kb * 1e-9,
        window: None,
    }
}

/// Within a part of the truth, or so many microseconds.
fn near(what: &str, found: f64, truth: f64, part: f64, micros: f64) {
    let off = (found - truth).abs();
    assert!(
        off <= (part * truth.abs()).max(micros * 1e-6),
        "{what}: {:.3} us, not {:.3} us",
        found * 1e6,
        truth * 1e6
    );
}

/// A disk alone, a wire between two checksums, and the same with a dial that dominates.
fn paths() -> Vec<(&'static str, Vec<Stage>)> {
    let wire = || vec![stage(0.0, 0.5, 0.06), stage(20.0, 8.0, 0.4), stage(0.0, 0.5, 0.06)];
    let with = |dial: Stage| {
        let mut path = wire();
        path.insert(2, dial);
        path
    };
    vec![
        ("disk", vec![stage(70.0, 17.0, 0.5)]),
        ("wire", wire()),
        ("dialled g", with(stage(0.0, 200.0, 0.0))),
        ("dialled G", with(stage(0.0, 1.0, 8.0))),
        ("dialled L", with(stage(150.0, 1.0, 0.0))),
        ("slow", vec![stage(0.0, 4000.0, 200.0), stage(0.0, 60.0, 100.0)]),
    ]
}

#[test]
fn it_finds_what_the_stages_cost() {
    for (name, stages) in paths() {
        for seed in 0..20 {
            let seconds_max = if name == "slow" { 600.0 } else { 20.0 };
            let bytes_max = 4 << 30;
            let options = Options { seconds_max, bytes_max, ..Options::default() };
            let mut path = Path::new(stages.clone(), seed);
            let (found, _) = path.calibrate(options);
            let at = |what: &str, bytes: f64| format!("{name}, seed {seed}: {what} of {bytes}");
            for bytes in [4096.0, 65_536.0, 1_048_576.0] {
                let busy = stages.iter().map(|it| it.occupancy(bytes)).fold(0.0, f64::max);
                let alone: f64 = stages.iter().map(|it| it.alone(bytes)).sum();
                // One time in a hundred is five times as long: a mean gap is longer by that, a
                // typical one is not.
                let tail = 1.0 + path.outliers.0 * (path.outliers.1 - 1.0);
                let middle = busy * (1.0 + tail) / 2.0;
                let value = found.busy(bytes).expect("known").value;
                near(&at("busy", bytes), value, middle, (tail - 1.0) / 2.0 + 0.1, 1.0);
                let value = found.alone(bytes).expect("known").value;
                near(&at("alone", bytes), value, alone, 0.06, 1.5);
            }
            let network = found.network.expect("bursts");
            near(&at("o_s", 0.0), network.send.expect("known").value, path.send, 0.02, 0.1);
            // Beside milliseconds that scatter by a part of themselves microseconds are not seen.
            if name == "slow" {
                continue;
            }
            let overhead = network
                .overhead
                .unwrap_or_else(|| panic!("{name}, seed {seed}: {:?}", network.steady))
                .value;
            near(&at("o_s + o_r", 0.0), overhead, path.send + path.receive, 0.0, 1.5);
            let alone: f64 = stages.iter().map(|it| it.alone(4096.0)).sum();
            let latency = (alone + path.ring) / 2.0 - overhead;
            near(&at("L", 0.0), network.latency.expect("known").value, latency, 0.05, 2.0);
        }
    }
}

#[test]
fn its_parameters_are_those_of_exact_stages() {
    for (name, stages) in paths() {
        let seconds_max = if name == "slow" { 600.0 } else { 30.0 };
        let mut path = Path::new(stages.clone(), 1);
        (path.noise, path.outliers) = (1e-9, (0.0, 1.0));
        let options = Options { seconds_max, bytes_max: 8 << 30, ..Options::default() };
        let (found, _) = path.calibrate(options);
        assert_eq!(found.end, End::Complete, "{name}");
        let slowest = |bytes: f64| {
            let by = |a: &&Stage, b: &&Stage| a.occupancy(bytes).total_cmp(&b.occupancy(bytes));
            *stages.iter().max_by(by).expect("stages")
        };
        for bytes in [8192.0, 262_144.0] {
            let line = found.black_box.as_ref().expect("known").bottleneck_at(bytes).line;
            near(name, line.intercept.value, slowest(bytes).overhead, 0.01, 0.1);
            near(name, line.slope.value * 65_536.0, slowest(bytes).per_byte * 65_536.0, 0.01, 0.1);
        }
        let network = found.network.expect("bursts");
        let gap = slowest(4096.0).occupancy(4096.0);
        match network.gap {
            Gap::Yes { gap: found } => near(name, found.value, gap, 0.01, 0.1),
            // A long latency and a window of 16: what is held is longer than the gap.
            Gap::BehindWindow { at_most } => assert!(at_most.value >= gap * 0.99, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
        if let Some(per_byte) = network.per_byte {
            let truth = slowest(262_144.0).per_byte;
            near(name, per_byte.value * 65_536.0, truth * 65_536.0, 0.02, 0.1);
        }
    }
}

#[test]
fn it_says_where_its_own_depth_may_be_the_limit() {
    let mut path = Path::new(vec![stage(500.0, 8.0, 0.4)], 1);
    (path.noise, path.outliers) = (1e-9, (0.0, 1.0));
    let (found, _) = path.calibrate(Options { seconds_max: 30.0, ..Options::default() });
    // 32 packets on a way of 514 us: one each 16 us, though the stage takes 10.
    near("held", found.busy(4096.0).expect("known").value, 514e-6 / 32.0, 0.02, 0.1);
    assert!(found.is_held(4096.0) && !found.is_held(65_536.0));
    for (name, stages) in paths() {
        let mut path = Path::new(stages, 1);
        let options = Options { seconds_max: 600.0, ..Options::default() };
        assert!(!path.calibrate(options).0.is_held(65_536.0), "{name}");
    }
}

#[test]
fn it_keeps_to_its_bounds() {
    for (name, stages) in paths() {
        for (share, seconds_max, bytes_max) in
            [(0.25, 2.0, 1 << 30), (0.05, 3.0, 1 << 30), (1.0, 60.0, 8 << 20), (0.5, 0.01, 1 << 20)]
        {
            let options = Options { share, seconds_max, bytes_max, ..Options::default() };
            let mut path = Path::new(stages.clone(), 3);
            (path.noise, path.outliers) = (0.0, (0.0, 1.0));
            let (found, longest) = path.calibrate(options);
            assert!(found.bytes <= bytes_max, "{name}: {} bytes", found.bytes);
            // What began in time may end after it: a run, which has its own bound.
            let packets = f64::from(32_u32).max(options.stretch_seconds / 1e-3);
            let alone: f64 = stages.iter().map(|it| it.alone(1_048_576.0)).sum();
            let run = options.stretch_seconds + packets * alone;
            assert!(longest <= run, "{name}: a run of {longest} s");
            assert!(found.seconds <= seconds_max + run, "{name}: {} s", found.seconds);
            if found.runs > 20 {
                let used = (found.used_seconds - longest) / found.seconds;
                assert!(used <= share * 1.02, "{name}: {used} of {share}");
            }
        }
    }
}

#[test]
fn one_that_is_stopped_says_what_it_has() {
    let mut procedure = Procedure::new(Options::default(), Nanos::ZERO);
    let Step::Run(Run::Ring { count }) = procedure.poll(Nanos::ZERO) else { panic!("the ring") };
    procedure.handle(&vec![2e-6; count as usize], Nanos::ZERO, Nanos::from_micros(200));
    procedure.stop(Nanos::from_millis(1));
    assert_eq!(procedure.poll(Nanos::from_millis(1)), Step::Over);
    let found = procedure.found(Nanos::from_millis(9));
    assert_eq!((found.end, found.seconds), (End::Stopped, 1e-3));
    assert!((found.ring.expect("measured").value - 2e-6).abs() < 1e-12);
    assert!(found.black_box.is_err() && found.network.is_none());
}

#[test]
fn times_that_no_clock_gives_end_it_as_well() {
    let depth = NonZeroU32::MIN;
    for bad in [f64::NAN, -1.0, 0.0, f64::INFINITY, 1e300] {
        let options = Options { depth, share: f64::NAN, ..Options::default() };
        let mut procedure = Procedure::new(options, Nanos::ZERO);
        let mut now = Nanos::ZERO;
        for step in 0.. {
            assert!(step < 100_000, "it does not end");
            match procedure.poll(now) {
                Step::Over => break,
                Step::Pause(until) => now = until,
                Step::Run(_) => {
                    let began = now;
                    now = now + Nanos::from_micros(10);
                    procedure.handle(&[bad; 4], began, now);
                }
            }
        }
        let _ = procedure.found(now);
    }
}
