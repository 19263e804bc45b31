//! What clients do: lists that they work off, and a load that goes on for as long as it is wanted.

use std::collections::VecDeque;

use piped_core::request::Class;
use piped_core::units::Nanos;
use piped_sim::{EventQueue, Random};

use super::figures::Figures;
use super::jobs::Job;
use super::world::World;

/// Longer than any request may take: its deadline, and what follows.
const PATIENCE: Nanos = Nanos::from_millis(120_000);

/// How often it is looked whether all connections are up again.
const LOOKED_EVERY: Nanos = Nanos::from_millis(4);

/// Has each node work its list off, with so many requests under way. What it shows goes into the
/// figures.
///
/// # Errors
/// Some requests do not end.
pub(super) fn work_off(
    world: &mut World,
    mut lists: Vec<VecDeque<Job>>,
    depth: usize,
    figures: &mut Figures,
) -> Result<(), String> {
    let begun = world.now();
    let mut done = vec![(0, Nanos::ZERO); lists.len()];
    for (node, list) in lists.iter_mut().enumerate() {
        list.drain(..depth.min(list.len())).for_each(|job| submit(world, node, job));
    }
    while world.under_way() > 0 {
        if !world.step(begun + PATIENCE) {
            return Err(format!("{} requests do not end", world.under_way()));
        }
        while let Some(it) = world.poll_ended() {
            figures.note(it.status, it.bytes, it.took);
            done[it.node] = (done[it.node].0 + it.bytes, world.now().since(begun));
            if let Some(job) = lists[it.node].pop_front() {
                submit(world, it.node, job);
            }
        }
    }
    figures.took = world.now().since(begun);
    let rates = done.into_iter().filter(|(bytes, _)| *bytes > 0);
    figures.rates = rates.map(|(bytes, at)| bytes as f64 / at.seconds()).collect();
    Ok(())
}

fn submit(world: &mut World, node: usize, job: Job) {
    assert!(world.submit(node, job), "node {node} has room and a handle for {job:?}");
}

/// Clients that read a block of any other node, think, and read again.
#[derive(Debug)]
pub(super) struct Load {
    random: Random,
    block: u64,
    pause: Nanos,
    /// When clients are through with thinking.
    thoughts: EventQueue<usize>,
    begun: Nanos,
    is_over: bool,
    bytes: Vec<u64>,
}

impl Load {
    /// `each` clients on each node, of which each thinks for about `pause` between two reads.
    pub(super) fn new(
        world: &World,
        nodes: usize,
        (each, pause, block): (usize, Nanos, u64),
        seed: u64,
    ) -> Self {
        let begun = world.now();
        let (random, thoughts, bytes) = (Random::new(seed), EventQueue::new(), vec![0; nodes]);
        let mut load = Self { random, block, pause, thoughts, begun, is_over: false, bytes };
        for node in 0..nodes {
            load.think(node, each as u64, begun);
        }
        load
    }

    /// Clients of a node begin to think: those of a daemon that died, and has to be found again.
    pub(super) fn think(&mut self, node: usize, clients: u64, now: Nanos) {
        for _ in 0..clients {
            let pause = self.random.between(self.pause.0 / 2, self.pause.0 * 3 / 2);
            self.thoughts.push(now + Nanos(pause), node);
        }
    }

    /// Lets time pass until then.
    pub(super) fn run(&mut self, world: &mut World, until: Nanos, figures: &mut Figures) {
        loop {
            while let Some((_, node)) = self.thoughts.pop(world.now()) {
                if !self.ask(world, node) {
                    self.think(node, 1, world.now());
                }
            }
            let stop = self.thoughts.next_at().map_or(until, |at| at.min(until));
            let goes_on = world.step(stop) || stop < until;
            while let Some(it) = world.poll_ended() {
                figures.note(it.status, it.bytes, it.took);
                self.bytes[it.node] += it.bytes;
                let bin = (world.now().since(self.begun).0 / Figures::BIN.0) as usize;
                figures.series.resize(figures.series.len().max(bin + 1), 0);
                figures.series[bin] += 1;
                self.think(it.node, 1, world.now());
            }
            if !goes_on {
                return;
            }
        }
    }

    /// Lets time pass until all connections are up again; how long that took.
    pub(super) fn run_until_whole(
        &mut self,
        world: &mut World,
        limit: Nanos,
        figures: &mut Figures,
    ) -> Result<Nanos, String> {
        let begun = world.now();
        loop {
            if world.is_whole() {
                return Ok(world.now().since(begun));
            }
            if world.now() >= begun + limit {
                return Err(format!("not all connections are up after {} s", limit.seconds()));
            }
            self.run(world, world.now() + LOOKED_EVERY, figures);
        }
    }

    /// Nobody asks for more; what is under way ends.
    ///
    /// # Errors
    /// Something does not end.
    pub(super) fn end(&mut self, world: &mut World, figures: &mut Figures) -> Result<(), String> {
        self.is_over = true;
        let until = world.now() + PATIENCE;
        while world.under_way() > 0 {
            if world.now() >= until {
                return Err(format!("{} requests do not end", world.under_way()));
            }
            self.run(world, world.now() + Nanos::from_millis(10), figures);
        }
        let time = world.now().since(self.begun).seconds();
        figures.rates = self.bytes.iter().map(|bytes| *bytes as f64 / time).collect();
        Ok(())
    }

    /// A client of a node asks for something, if it can.
    fn ask(&mut self, world: &mut World, node: usize) -> bool {
        if self.is_over {
            return true;
        }
        world.join(node);
        let open = world.opened(node);
        let Some(&other) = open.iter().nth(self.random.below(open.len() as u64) as usize) else {
            return false;
        };
        let class = *self.random.pick(&[Class::Latency, Class::Bulk]);
        let job = Job { other, offset: 0, bytes: self.block, writes: false, class };
        world.submit(node, job)
    }
}
