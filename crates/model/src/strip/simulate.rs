//! The program of the paper's figures 4 and 5, run event by event: an independent check of the
//! recurrences.

use core::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use super::{Network, StripModel, Unrolling};

/// What the processor does, in order.
#[derive(Debug, Clone, Copy)]
enum Step {
    Issue(usize),
    Sync(usize),
    Compute(usize),
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// The processor has done its step.
    Done,
    /// A strip has left the network.
    Sent(usize),
    /// A strip is there.
    Arrived(usize),
}

#[derive(Debug, Clone, Copy)]
struct At(f64, Event);

impl PartialEq for At {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Processor, network, and what is on its way.
struct World<'a> {
    model: &'a StripModel,
    sizes: &'a [f64],
    events: BinaryHeap<Reverse<At>>,
    program: VecDeque<Step>,
    doing: Option<Step>,
    waiting: VecDeque<usize>,
    sending: bool,
    arrived: Vec<bool>,
}

impl StripModel {
    /// The total time of the program, computation included, in seconds, by running it: a processor
    /// with a list of steps and a network with a queue. Agrees with
    /// [`StripModel::cost_seconds`]` + K·N`.
    ///
    /// ```
    /// use piped_model::strip::StripModel;
    /// let model = StripModel::new(5e-6, 6e-9, 4e-9)?;
    /// let sizes = [3000.0, 2500.0, 2500.0, 1000.0];
    /// let cost = model.simulated_seconds(&sizes) - 9000.0 * model.compute;
    /// assert!((cost - model.cost_seconds(&sizes)).abs() < 1e-12);
    /// # Ok::<(), piped_model::strip::StripFault>(())
    /// ```
    #[must_use]
    pub fn simulated_seconds(&self, sizes: &[f64]) -> f64 {
        let mut world = World {
            model: self,
            sizes,
            events: BinaryHeap::new(),
            program: match self.unrolling {
                Unrolling::Rolling => rolling(sizes.len(), self.unroll.get() as usize),
                Unrolling::Grouped => grouped(sizes.len(), self.unroll.get() as usize),
            },
            doing: None,
            waiting: VecDeque::new(),
            sending: false,
            arrived: vec![false; sizes.len()],
        };
        let mut now = 0.0;
        world.step(now);
        while let Some(Reverse(At(time, event))) = world.events.pop() {
            now = time;
            world.handle(now, event);
        }
        now
    }
}

/// Figure 4 with gets further ahead: as many as `unroll` of them before the first sync, then one
/// before each.
fn rolling(strips: usize, unroll: usize) -> VecDeque<Step> {
    let ahead = (unroll + 1).min(strips);
    let mut steps: VecDeque<Step> = (0..ahead).map(Step::Issue).collect();
    for strip in 0..strips {
        steps.extend([Step::Sync(strip), Step::Compute(strip)]);
        steps.extend((strip + 1 + unroll < strips).then_some(Step::Issue(strip + 1 + unroll)));
    }
    steps
}

/// Figure 5: the first get, then rounds of `unroll` gets, each followed by as many syncs and
/// computations.
fn grouped(strips: usize, unroll: usize) -> VecDeque<Step> {
    let mut steps = VecDeque::new();
    steps.extend((strips > 0).then_some(Step::Issue(0)));
    let mut first = 0;
    while first < strips {
        steps.extend((first + 1..=first + unroll).filter(|&next| next < strips).map(Step::Issue));
        for strip in first..(first + unroll).min(strips) {
            steps.extend([Step::Sync(strip), Step::Compute(strip)]);
        }
        first += unroll;
    }
    steps
}

impl World<'_> {
    fn handle(&mut self, now: f64, event: Event) {
        match event {
            Event::Done => {
                if let Some(Step::Issue(strip)) = self.doing.take() {
                    self.waiting.push_back(strip);
                    self.send(now);
                }
                self.step(now);
            }
            Event::Sent(strip) => {
                self.sending = false;
                self.at(now + self.model.latency, Event::Arrived(strip));
                self.send(now);
            }
            Event::Arrived(strip) => {
                self.arrived[strip] = true;
                if self.doing.is_none() {
                    self.step(now);
                }
            }
        }
    }

    /// The processor goes on, until a step takes time or has to wait.
    fn step(&mut self, now: f64) {
        while let Some(step) = self.program.front().copied() {
            let takes = match step {
                Step::Issue(_) => self.model.issue,
                Step::Compute(strip) => self.model.compute * self.sizes[strip],
                Step::Sync(strip) if !self.arrived[strip] => return,
                Step::Sync(_) => {
                    self.program.pop_front();
                    continue;
                }
            };
            self.program.pop_front();
            self.doing = Some(step);
            return self.at(now + takes, Event::Done);
        }
    }

    /// The network takes what it has room for.
    fn send(&mut self, now: f64) {
        while !(self.sending && self.model.network == Network::Serial) {
            let Some(strip) = self.waiting.pop_front() else { return };
            self.sending = true;
            self.at(now + self.model.per_byte * self.sizes[strip], Event::Sent(strip));
        }
    }

    fn at(&mut self, time: f64, event: Event) {
        self.events.push(Reverse(At(time, event)));
    }
}
