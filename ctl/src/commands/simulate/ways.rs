//! Two links between two nodes: what a transfer over both takes, against one link and against the
//! best division of all.

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
    fn of(bytes: u64, disk: &str, links: &[(&str, &str)], write: bool) -> Self {
        let mut text = format!("[nodes.home]\n[nodes.far]\n{disk}\n");
        for (place, (latency, per_byte)) in links.iter().enumerate() {
            text += &format!(
                "[[links]]\nnodes = ['far', 'home']\nsecond = {}\nL = '{latency}'\ng = '3us'\n\
                 G = '{per_byte}'\n",
                place > 0
            );
        }
        let end = if disk.is_empty() { "far" } else { "far:data" };
        let way = if write { "write" } else { "read" };
        text += &format!("[[transfers]]\nnode = 'home'\n{way} = '{end}'\nbytes = {bytes}\n");
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

/// What a link of 100 MB/s costs, and one of half of it.
fn link(per_byte: f64) -> Stage {
    Stage { latency: 30e-6, overhead: 3e-6, per_byte, window: None }
}

/// When the last byte of the best division over two links is there, by the linear program.
fn program(bytes: u64, links: [Stage; 2]) -> f64 {
    let [one, other] = links.map(|link| [link]);
    over_ways(&[(&one, 1), (&other, 1)], bytes as f64).expect("two links").1
}

/// Gets, puts, reads and writes: over two equal links in little more than half the time; and where
/// links are all there is and parts go whole, which is best over one link, in what the linear
/// program says.
#[test]
fn two_equal_links_carry_nearly_twice_as_much() {
    for (disk, write) in [("", false), ("", true), (DISK, false), (DISK, true)] {
        for bytes in [1 << 20, 8 << 20] {
            let one = Reads::of(bytes, disk, &[FAST], write).median(30);
            let mut both = Reads::of(bytes, disk, &[FAST, FAST], write);
            both.median(20);
            let (median, mean) = (both.median(40), both.mean(40));
            println!("{} {write} {bytes}: {} {}", disk.len(), one / median, one / mean);
            assert!(one >= 1.8 * median, "{disk} {write} {bytes}: {one} {median}");
            if disk.is_empty() {
                both.world.plan(PlannerMode::Whole, None);
                both.median(20);
                let (median, best) = (both.median(20), program(bytes, [link(10e-9); 2]));
                println!("    {} of the program", median / best);
                assert!(median <= 1.05 * best, "{write} {bytes}: {median} {best}");
            }
        }
    }
}

/// One link slows to half of what it was: twenty transfers later the bytes have moved. Parts of
/// memory go whole, which is best over one link, so that only the division has to be found; parts
/// of a file are cut, and pass a disk that the program does not have.
#[test]
fn bytes_move_to_the_other_link_when_one_slows() {
    for (disk, write) in [("", false), ("", true), (DISK, false), (DISK, true)] {
        for (bytes, second) in [(1 << 20, true), (1 << 20, false), (8 << 20, true)] {
            let mut both = Reads::of(bytes, disk, &[FAST, FAST], write);
            let (mode, most) = match disk {
                "" => (PlannerMode::Whole, 1.05),
                _ => (PlannerMode::Auto, 1.1),
            };
            both.world.plan(mode, None);
            both.median(40);
            both.world.relay(second, &link(20e-9));
            let before: Vec<f64> = (0..20).map(|_| (both.one() * 1e6).round()).collect();
            let after = both.median(20);
            let best = program(bytes, [link(10e-9), link(20e-9)]);
            println!("{} {write} {bytes} {second}: {} {before:?}", disk.len(), after / best);
            assert!(after <= most * best, "{disk} {write} {bytes}: {after} {best} {before:?}");
        }
    }
}
