//! Two links between two nodes: what a read over both takes, against one link and against the best
//! division of all.

use piped_core::modes::PlannerMode;
use piped_core::request::{Class, Verb};
use piped_model::stage::Stage;
use piped_theory::lp::over_ways;

use super::*;

/// Reads of one size over two links, and what they took.
struct Reads {
    world: World,
    node: usize,
    verb: Verb,
}

impl Reads {
    /// `disk`: of the read file; none: the memory of the other node. Links: `L` and `G`.
    fn of(bytes: u64, disk: &str, links: &[(&str, &str)]) -> Self {
        let mut text = format!("[nodes.home]\n[nodes.far]\n{disk}\n");
        for (place, (latency, per_byte)) in links.iter().enumerate() {
            text += &format!(
                "[[links]]\nnodes = ['far', 'home']\nsecond = {}\nL = '{latency}'\ng = '3us'\n\
                 G = '{per_byte}'\n",
                place > 0
            );
        }
        let end = if disk.is_empty() { "far" } else { "far:data" };
        text += &format!("[[transfers]]\nnode = 'home'\nread = '{end}'\nbytes = {bytes}\n");
        let scenario = scenario::parse(&text).expect("a scenario");
        let mut world = World::new(&scenario).expect("nodes");
        let node = world.find("home").expect("it is there");
        let verb = verb(&mut world, &scenario.transfers[0], node, (0, bytes)).expect("it opens");
        Self { world, node, verb }
    }

    fn one(&mut self) -> f64 {
        self.world.run(self.node, &[self.verb], Class::Bulk).expect("it ends")
    }

    fn median(&mut self, count: usize) -> f64 {
        let mut times: Vec<f64> = (0..count).map(|_| self.one()).collect();
        times.sort_by(f64::total_cmp);
        times[count / 2]
    }

    fn mean(&mut self, count: usize) -> f64 {
        (0..count).map(|_| self.one()).sum::<f64>() / count as f64
    }
}

const DISK: &str = "[nodes.far.disks.data]\nL = '0.1ms'\ng = '5us'\nG = '1.5GB/s'\nwindow = 32";
const FAST: (&str, &str) = ("30us", "100MB/s");

/// What [`DISK`] costs.
fn disk() -> Stage {
    Stage { latency: 100e-6, overhead: 5e-6, per_byte: 1.0 / 1.5e9, window: None }
}

/// What a link of 100 MB/s costs, and one of half of it.
fn link(per_byte: f64) -> Stage {
    Stage { latency: 30e-6, overhead: 3e-6, per_byte, window: None }
}

/// The best division over two links, by the linear program: bytes over each, and when the last byte
/// is there. Each way has `before` for itself.
fn program(bytes: u64, before: Option<Stage>, links: [Stage; 2]) -> ([u64; 2], f64) {
    let [one, other] = links.map(|link| before.into_iter().chain([link]).collect::<Vec<_>>());
    let most = if before.is_some() { 12 } else { 1 };
    let divided =
        |count| over_ways(&[(&one, count), (&other, count)], bytes as f64).expect("links");
    let best = (1..=most).map(divided).min_by(|a, b| a.1.total_cmp(&b.1)).expect("some");
    let first = (best.0[0].iter().sum::<f64>() as u64).next_multiple_of(4096).min(bytes);
    ([first, bytes - first], best.1)
}

/// Gets and reads: over two equal links in little more than half the time; and where links are all
/// there is and parts go whole, which is best over one link, in what the linear program says.
#[test]
fn two_equal_links_carry_nearly_twice_as_much() {
    for disk in ["", DISK] {
        for bytes in [1 << 20, 8 << 20] {
            let one = Reads::of(bytes, disk, &[FAST]).median(30);
            let mut both = Reads::of(bytes, disk, &[FAST, FAST]);
            both.median(20);
            let (median, mean) = (both.median(40), both.mean(40));
            println!("{} {bytes}: {} {}", disk.len(), one / median, one / mean);
            assert!(one >= 1.8 * median, "{disk} {bytes}: {one} {median}");
            if disk.is_empty() {
                both.world.plan(PlannerMode::Whole, None);
                both.median(20);
                let (median, best) = (both.median(20), program(bytes, None, [link(10e-9); 2]).1);
                println!("    {} of the program", median / best);
                assert!(median <= 1.05 * best, "{bytes}: {median} {best}");
            }
        }
    }
}

/// One link slows to half of what it was: twenty reads later the bytes have moved. Parts of memory
/// go whole, which is best over one link, so that the program says what can be reached. Parts of a
/// file are cut at their disk and their link as the daemon cuts them; so what the program's split
/// takes is measured, each part alone in a world with one link.
#[test]
fn bytes_move_to_the_other_link_when_one_slows() {
    const SLOW: (&str, &str) = ("30us", "50MB/s");
    for disk_text in ["", DISK] {
        for (bytes, second) in [(1 << 20, true), (1 << 20, false), (8 << 20, true)] {
            let mut both = Reads::of(bytes, disk_text, &[FAST, FAST]);
            let (mode, before) = match disk_text {
                "" => (PlannerMode::Whole, None),
                _ => (PlannerMode::Auto, Some(disk())),
            };
            both.world.plan(mode, None);
            both.median(40);
            both.world.relay(second, &link(20e-9));
            let moving: Vec<f64> = (0..20).map(|_| (both.one() * 1e6).round()).collect();
            let after = both.median(20);
            let (parts, end) = program(bytes, before, [link(10e-9), link(20e-9)]);
            let best = match disk_text {
                "" => end,
                _ => {
                    let alone = [(parts[0], FAST), (parts[1], SLOW)]
                        .map(|(part, link)| Reads::of(part, disk_text, &[link]).median(40));
                    alone[0].max(alone[1])
                }
            };
            println!("{} {bytes} {second}: {} {moving:?}", disk_text.len(), after / best);
            assert!(after <= 1.05 * best, "{bytes}: {after} {best} {moving:?}");
        }
    }
}

/// A second link that is bad from the start is found out: reads take what they take without it, but
/// for the few by which it is tried.
#[test]
fn a_bad_second_link_costs_little() {
    for disk in ["", DISK] {
        let bytes = 1 << 20;
        let one = Reads::of(bytes, disk, &[FAST]).median(30);
        let mut both = Reads::of(bytes, disk, &[FAST, ("30us", "0.5MB/s")]);
        let times: Vec<f64> = (0..400).map(|_| both.one()).collect();
        let slow = times.iter().filter(|&&time| time > 1.1 * one).count();
        println!("{}: {slow} of 400 are slow", disk.len());
        assert!(slow <= 12, "{disk}: {slow} {one} {times:?}");
    }
}
