//! The whole procedure on the daemon's own engine in virtual time: the result is compared with the
//! costs of the stages and with the engine's own measurements.

use piped_core::ids::HandleId;
use piped_core::modes::CalibrationMode;
use piped_core::units::Nanos;
use piped_model::estimate::active::{End, Found, Options, Procedure, Run, Step};
use piped_report::shard::StageReport;

use super::compare::{Compared, Context, Verdict, compare};
use super::target::Target;
use crate::commands::simulate::scenario;
use crate::commands::simulate::world::World;

/// Time of the processor to send, and to take.
const SEND: Nanos = Nanos(1_500);
const RECEIVE: Nanos = Nanos(2_500);

/// A world, and the target to read in it.
struct Rig {
    world: World,
    from: (usize, HandleId),
}

impl Rig {
    fn new(text: &str, node: &str, what: &str) -> Self {
        let transfers =
            format!("[[transfers]]\nnode = \"{node}\"\nread = \"{what}\"\nbytes = \"16MiB\"\n");
        let scenario = scenario::parse(&format!("{text}\n{transfers}")).expect("a scenario");
        let mut world = World::new(&scenario).expect("a world");
        let from = world.open_whole(node, what);
        Self { world, from }
    }

    fn wait(&mut self, numbers: &[u64]) -> usize {
        let place = self.world.await_one(self.from.0, numbers, Nanos::MAX);
        place.expect("it ends")
    }

    /// Keeps the processor busy for `time`, whatever the world does.
    fn compute(&mut self, time: Nanos) {
        let until = self.world.now() + time;
        assert_eq!(self.world.await_one(self.from.0, &[], until), None);
    }

    fn run(&mut self, run: Run) -> Vec<f64> {
        let began = self.world.now();
        let since = |rig: &Self, from: Nanos| rig.world.now().since(from).seconds();
        match run {
            Run::Ring { count } => vec![0.0; count as usize],
            Run::Alone { bytes, count } => (0..count)
                .map(|_| {
                    let began = self.world.now();
                    let number = self.world.begin(self.from, bytes, 0);
                    self.wait(&[number]);
                    since(self, began)
                })
                .collect(),
            Run::Backlogged { bytes, count, depth } => {
                let depth = depth.min(count);
                let mut under_way: Vec<u64> = (0..depth)
                    .map(|slot| self.world.begin(self.from, bytes, slot.into()))
                    .collect();
                let mut ends = Vec::new();
                while ends.len() < count as usize {
                    let place = self.wait(&under_way);
                    ends.push(since(self, began));
                    // A number that is never reached waits for nothing.
                    under_way[place] = match ends.len() + depth as usize <= count as usize {
                        true => self.world.begin(self.from, bytes, place as u64),
                        false => u64::MAX,
                    };
                }
                ends
            }
            Run::Burst { bytes, messages, delay, window } => {
                vec![self.burst(bytes, messages, Nanos::from_seconds(delay), window)]
            }
        }
    }

    fn burst(&mut self, bytes: u64, messages: u32, delay: Nanos, window: u32) -> f64 {
        let began = self.world.now();
        let mut spare: Vec<u64> = (0..u64::from(window)).collect();
        let mut under_way: Vec<(u64, u64)> = Vec::new();
        for message in 0..messages {
            if message > 0 {
                self.compute(delay);
                self.take(&mut under_way, &mut spare, Nanos::ZERO);
            }
            if spare.is_empty() {
                self.take(&mut under_way, &mut spare, Nanos::MAX);
            }
            self.compute(SEND);
            let slot = spare.pop().expect("room in the window");
            under_way.push((self.world.begin(self.from, bytes, slot), slot));
        }
        let issued = self.world.now().since(began).seconds();
        while !under_way.is_empty() {
            self.take(&mut under_way, &mut spare, Nanos::MAX);
        }
        issued
    }

    fn take(&mut self, under_way: &mut Vec<(u64, u64)>, spare: &mut Vec<u64>, until: Nanos) {
        let numbers: Vec<u64> = under_way.iter().map(|it| it.0).collect();
        if let Some(place) = self.world.await_one(self.from.0, &numbers, until) {
            spare.push(under_way.remove(place).1);
            self.compute(RECEIVE);
        }
    }

    fn calibrate(&mut self, options: Options) -> Found {
        let mut procedure = Procedure::new(options, self.world.now());
        loop {
            match procedure.poll(self.world.now()) {
                Step::Over => return procedure.found(self.world.now()),
                Step::Pause(until) => {
                    let left = until.since(self.world.now());
                    self.compute(left);
                }
                Step::Run(run) => {
                    let began = self.world.now();
                    let seconds = self.run(run);
                    procedure.handle(&seconds, began, self.world.now());
                }
            }
        }
    }

    fn stages(&self) -> Vec<StageReport> {
        self.world.stages(self.from.0)
    }

    /// Measures twice, because the first time also teaches the engine.
    fn compared(&mut self, target: &Target) -> (Found, [Compared; 2]) {
        let once = |rig: &mut Self| {
            let before = rig.stages();
            let found = rig.calibrate(OPTIONS);
            let after = rig.stages();
            let context = Context {
                mode: CalibrationMode::Live,
                others: 0.0,
                before: target.path(&before, &after),
                after: target.path(&after, &after),
                broke_off: None,
            };
            let compared = compare(target, &found, &context);
            (found, compared)
        };
        let first = once(self).1;
        let (found, second) = once(self);
        (found, [first, second])
    }
}

const OPTIONS: Options = Options {
    smallest: 4096,
    largest: 256 << 10,
    unit: 4096,
    depth: std::num::NonZeroU32::new(32).expect("is not zero"),
    in_flight: 4 << 20,
    share: 0.5,
    stretch_seconds: 0.02,
    seconds_max: 30.0,
    bytes_max: 1 << 30,
    precision: 0.05,
};

fn near(what: &str, found: f64, truth: f64, part: f64, micros: f64) {
    let off = (found - truth).abs();
    assert!(
        off <= (part * truth.abs()).max(micros * 1e-6),
        "{what}: {:.3} us, not {:.3} us",
        found * 1e6,
        truth * 1e6
    );
}

const DISK: &str = "[nodes.a.disks.d]\nL = \"70us\"\ng = \"17us\"\nG = \"0.5us/KB\"\nwindow = 64\n";

fn device(rig: &Rig) -> Target {
    let name = rig
        .stages()
        .into_iter()
        .find_map(|it| it.name.strip_prefix("disk ")?.strip_suffix(" read").map(str::to_owned));
    let (major, minor) = super::target::device(&name.expect("a disk")).expect("numbers");
    Target::Device { major, minor }
}

#[test]
fn a_disk_is_found_as_it_was_made_and_as_the_engine_has_it() {
    let mut rig = Rig::new(DISK, "a", "a:d");
    rig.run(Run::Alone { bytes: 4096, count: 2 });
    let target = device(&rig);
    let (found, [_, second]) = rig.compared(&target);
    assert_eq!(found.end, End::Complete);
    let line = found.black_box.as_ref().expect("known").bottlenecks[0].line;
    near("g", line.intercept.value, 17e-6, 0.02, 0.2);
    near("G", line.slope.value * 65_536.0, 0.5e-9 * 65_536.0, 0.02, 0.2);
    near("L", found.alone(4096.0).expect("known").value - line.at(4096.0), 70e-6, 0.02, 0.5);
    let network = found.network.expect("bursts");
    near("o_send", network.send.expect("known").value, 1.5e-6, 0.0, 0.01);
    near("o_send + o_recv", network.overhead.expect("known").value, 4e-6, 0.0, 0.1);
    let judged = second.rows.iter().filter(|row| row.verdict != Verdict::Shown);
    for row in judged {
        assert_eq!(row.verdict, Verdict::Agrees, "{row:#?}");
    }
    assert!(second.verdict.starts_with("They agree"), "{}", second.verdict);
}

/// A rig with a wire faster than the dial, and a dial of the receiving node.
fn dialled(dial: &str) -> Rig {
    let text = format!(
        "[nodes.a]\n[nodes.b]\n[[links]]\nnodes = [\"a\", \"b\"]\nL = \"20us\"\ng = \"2us\"\nG = \
         \"0.2us/KB\"\n[[dials]]\nnode = \"a\"\nstage = \"net:b\"\n{dial}\n"
    );
    Rig::new(&text, "a", "b")
}

#[test]
fn a_dial_of_the_wire_is_found_as_it_was_set_and_as_the_engine_has_it() {
    let target = Target::Memory { peer: "b".to_owned(), sums: true };
    for (dial, overhead, per_byte) in [
        ("g = \"20us\"\nG = \"1us/KB\"", 20e-6, 1e-9),
        ("g = \"100us\"", 100e-6, 0.0),
        ("g = \"500us\"\nG = \"4us/KB\"", 500e-6, 4e-9),
        ("G = \"10us/KB\"", 0.0, 10e-9),
    ] {
        let mut rig = dialled(dial);
        let (found, [_, second]) = rig.compared(&target);
        for bytes in [4096.0, 65_536.0, 262_144.0] {
            let truth = overhead + bytes * per_byte;
            // Compare only where the dial is slower than the wire.
            if truth > 2.0 * (2e-6 + bytes * 0.2e-9) {
                near(dial, found.busy(bytes).expect("known").value, truth, 0.02, 2.0);
            }
        }
        let busy = second.rows.iter().find(|row| row.cost == "busy 64 KiB").expect("compared");
        assert_eq!(
            (busy.stage.as_str(), busy.verdict),
            ("dial net:b", Verdict::Agrees),
            "{busy:#?}"
        );
    }
}

#[test]
fn a_latency_that_is_dialled_is_in_what_a_fragment_takes_alone_and_in_nothing_else() {
    let [plain, slow] =
        ["L = \"1ns\"", "L = \"400us\""].map(|dial| dialled(dial).calibrate(OPTIONS));
    for bytes in [65_536.0, 262_144.0] {
        let [plain_alone, slow_alone] =
            [&plain, &slow].map(|it| it.alone(bytes).expect("known").value);
        near("L", slow_alone - plain_alone, 400e-6, 0.02, 2.0);
        if !slow.is_held(bytes) {
            let [plain, slow] = [&plain, &slow].map(|it| it.busy(bytes).expect("known").value);
            near("g", slow, plain, 0.05, 2.0);
        }
    }
    let [plain, slow] =
        [plain, slow].map(|it| it.network.expect("bursts").latency.expect("known").value);
    near("LogGP L", slow - plain, 200e-6, 0.02, 2.0);
}

#[test]
fn what_the_daemon_has_not_followed_is_said_with_what_to_do() {
    let mut rig = Rig::new(DISK, "a", "a:d");
    rig.run(Run::Alone { bytes: 4096, count: 2 });
    let target = device(&rig);
    let found = rig.calibrate(OPTIONS);
    let right = target.path(&rig.stages(), &rig.stages());
    let mut wrong = right.clone();
    for time in &mut wrong[0].times {
        time.busy_seconds *= 2.0;
        time.alone_seconds *= 2.0;
    }
    let mut none = right.clone();
    (none[0].samples_alone, none[0].samples_backlogged) = (0, 0);
    let live = CalibrationMode::Live;
    for (mode, others, before, after, says) in [
        (live, 0.0, &right, &right, "They agree"),
        (live, 0.0, &wrong, &right, "It has now, and agrees"),
        (live, 0.0, &wrong, &wrong, "If they do again"),
        (CalibrationMode::Frozen, 0.0, &wrong, &wrong, "`pipectl calibration live`"),
        (live, 0.3, &wrong, &wrong, "not comparable"),
        (live, 0.0, &none, &right, "had measured nothing"),
    ] {
        let [before, after] = [before, after].map(Clone::clone);
        let context = Context { mode, others, before, after, broke_off: None };
        let verdict = compare(&target, &found, &context).verdict;
        assert!(verdict.contains(says), "{verdict}");
    }
}

#[test]
fn what_is_not_told_apart_is_no_finding_and_nothing_agrees_with_it() {
    let mut rig = Rig::new(DISK, "a", "a:d");
    rig.run(Run::Alone { bytes: 4096, count: 2 });
    let target = device(&rig);
    let (found, [_, second]) = rig.compared(&target);
    assert!(second.verdict.starts_with("They agree"), "{}", second.verdict);
    // The same costs, known to 150 %, and a processor with negative time.
    let mut blurred = rig.stages();
    blurred.iter_mut().for_each(|stage| stage.relative_error = 1.5);
    let mut wrong = found.clone();
    let network = wrong.network.as_mut().expect("bursts");
    network.receive = network.receive.map(|it| it.times(-1.0));
    let path = target.path(&blurred, &blurred);
    let context = Context {
        mode: CalibrationMode::Live,
        others: 0.0,
        before: path.clone(),
        after: path,
        broke_off: None,
    };
    let compared = compare(&target, &wrong, &context);
    let planned = compared.rows.iter().filter(|row| row.is_planned_with);
    assert!(planned.clone().count() > 3);
    for row in planned.chain(compared.rows.iter().filter(|row| row.cost == "o_recv")) {
        assert_eq!(row.verdict, Verdict::NotTold, "{row:#?}");
    }
    assert!(
        compared.verdict.starts_with("The costs of the path were not told apart"),
        "{compared:#?}"
    );
}

#[test]
fn what_broke_off_is_compared_and_says_why() {
    let mut rig = Rig::new(DISK, "a", "a:d");
    rig.run(Run::Alone { bytes: 4096, count: 2 });
    let target = device(&rig);
    let found = rig.calibrate(OPTIONS);
    let path = target.path(&rig.stages(), &rig.stages());
    let cause = "peer b: no answer within 3 s";
    let context = Context {
        mode: CalibrationMode::Live,
        others: 0.0,
        before: path.clone(),
        after: path,
        broke_off: Some(cause.to_owned()),
    };
    let compared = compare(&target, &found, &context);
    assert!(compared.rows.iter().any(|row| row.is_planned_with));
    assert!(compared.verdict.contains("It broke off"), "{}", compared.verdict);
    assert!(compared.verdict.contains(cause), "{}", compared.verdict);
}
