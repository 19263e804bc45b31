//! Wang et al., "Towards a theory of optimal communication pipelines", section 5.5: figures 10 to
//! 14, a disk beside a network.

use piped_model::evaluate;
use piped_model::fixed::{self, Constraints};
use piped_model::hierarchical::{Real, fixed_real, ramp_real};
use piped_model::plan::Plan;
use piped_model::reference::{
    KB, PACKET_BYTES, network, network_disk, network_disk_network, stage,
};
use piped_model::simulate;
use piped_model::stage::{Buffers, Path, Stage};

use super::chart::{Axis, Bar, Content, Figure, Mark, Series, geometric, linear};
use super::parameters;
use crate::best;

/// The disk's place, behind the four stages of the network. The paper makes it the one with large
/// fragments, also where it is not the slowest.
const DISK: usize = 4;

/// The disk's overheads in ms.
const OVERHEADS: [f64; 7] = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

/// A typical disk of the paper: overhead in ms, bandwidth in MB/s.
const TYPICAL: (f64, f64) = (4.0, 5.0);

/// All figures of this section.
pub(crate) fn figures() -> Vec<Figure> {
    vec![
        by_disk(
            "pipelines-10",
            "Gain of hierarchical fragments, by disk",
            "Wang et al., figure 10; network → disk",
            "What algorithm B (fixed sizes at two levels) gains over A (one fixed size for all \
             stages), T_A/T_B - 1, for disks of overhead g. Where the disk is fast and cheap it is \
             not the bottleneck, and B loses to A: a planner has to take the minimum. B is not \
             near-optimal, whatever the paper concludes: see figure 14.",
            gain_of_hierarchy,
        ),
        by_disk(
            "pipelines-11",
            "Gain of ramps over fixed fragments, by disk",
            "Wang et al., figure 11; network → disk",
            "What algorithm C (a ramp of the disk's fragments) gains over B, T_B/T_C - 1, in exact \
             evaluation: never more than 10 %, as the paper says. C may also lose, where the disk \
             is not the slowest stage.",
            gain_of_ramp,
        ),
        by_packet(
            "pipelines-12",
            "Gain of hierarchical fragments, by packet",
            "Wang et al., figure 12; network → disk of 5 MB/s",
            "Algorithm B over A for packets of 4 KiB to 4 MiB. Small packets are not worth \
             cutting, large ones are streams.",
            gain_of_hierarchy,
        ),
        by_packet(
            "pipelines-13",
            "Gain of ramps over fixed fragments, by packet",
            "Wang et al., figure 13; network → disk of 5 MB/s",
            "Algorithm C over B for packets of 4 KiB to 4 MiB, in exact evaluation: up to 11.46 % \
             (32 ms), where the paper says \"never greater than 11 %\": of several ramps, ours is \
             the best in exact evaluation. The teeth are changes of the number of fragments.",
            gain_of_ramp,
        ),
        parts(),
    ]
}

fn path_to(disk: Stage) -> Option<Path> {
    Path::new(&[&network()[..], &[disk]].concat()).ok()
}

/// The paper's disk of `ms` overhead and `rate` MB/s.
fn disk_of(ms: f64, rate: f64) -> Stage {
    stage(ms * 1e3, KB / rate, KB)
}

/// A, B and C of section 5.5 on a path whose large fragments are the disk's, in seconds.
fn peers(path: &Path, bytes: f64) -> f64 {
    fixed::optimum(path, bytes, (1, bytes as u64), None).predicted_seconds
}

fn gain_of_hierarchy(disk: Stage, bytes: f64) -> Option<f64> {
    let path = path_to(disk)?;
    let b = fixed_real(&path, DISK, bytes, bytes as u64)?;
    Some(percent(peers(&path, bytes), b.predicted_seconds))
}

fn gain_of_ramp(disk: Stage, bytes: f64) -> Option<f64> {
    let path = path_to(disk)?;
    let b = fixed_real(&path, DISK, bytes, bytes as u64)?;
    let c = ramp_real(&path, DISK, bytes, bytes as u64)?;
    Some(percent(b.predicted_seconds, c.predicted_seconds))
}

fn percent(old: f64, new: f64) -> f64 {
    (old / new - 1.0) * 100.0
}

/// A gain in percent of a path to a disk, for so many bytes.
type Gain = fn(Stage, f64) -> Option<f64>;

fn by_disk(
    name: &'static str,
    title: &str,
    source: &'static str,
    caption: &str,
    gain: Gain,
) -> Figure {
    let bytes = PACKET_BYTES as f64;
    // Steps of 0.2 MB/s.
    let rates = || linear(1.0, 20.0, 95);
    let curve = |ms: f64| {
        let name = format!("g = {ms} ms");
        Series::of(name, Mark::Line, rates(), |rate| gain(disk_of(ms, rate), bytes))
    };
    let (ms, rate) = TYPICAL;
    let typical =
        Series::of("typical disk", Mark::Rings, [rate], |rate| gain(disk_of(ms, rate), bytes));
    let series = OVERHEADS.map(curve).into_iter().chain([typical]).collect();
    Figure {
        name,
        title: title.to_owned(),
        source,
        parameters: parameters("network", &network(), KB, "; B = 64 KiB"),
        caption: caption.to_owned(),
        content: Content::Curves {
            x: Axis::from_zero("disk bandwidth (MB/s)"),
            y: Axis::from_zero("improvement (%)"),
            series,
        },
    }
}

fn by_packet(
    name: &'static str,
    title: &str,
    source: &'static str,
    caption: &str,
    gain: Gain,
) -> Figure {
    let sizes = || geometric(4096.0, 4_194_304.0, 80).into_iter().map(f64::round);
    let curve = |ms: f64| {
        let name = format!("g = {ms} ms");
        Series::of(name, Mark::Line, sizes(), |bytes| gain(disk_of(ms, TYPICAL.1), bytes))
    };
    Figure {
        name,
        title: title.to_owned(),
        source,
        parameters: parameters("network", &network(), KB, ""),
        caption: caption.to_owned(),
        content: Content::Curves {
            x: Axis::bytes("packet size (bytes)", 4),
            y: Axis::from_zero("improvement (%)"),
            series: OVERHEADS.map(curve).to_vec(),
        },
    }
}

/// The parts of a latency, from below: equation 4. In the papers' plans the disk never waits. In
/// the best one it may, and `T_b` is the time from when it begins until it is done.
const PARTS: [&str; 3] = ["T_f", "T_b", "T_l"];

/// A bar's name, and the plan it shows.
type Shown = (&'static str, Real);

/// Both paths, with what they are called and the name of algorithm C there.
fn paths() -> [(Path, &'static str, &'static str); 2] {
    [
        (network_disk(), "network → disk", "C"),
        (network_disk_network(), "network → disk → network", "C'"),
    ]
}

/// Algorithms A, B and C, or C', on a path.
fn plans(path: &Path, ramp: &'static str) -> Vec<Shown> {
    let bytes = PACKET_BYTES as f64;
    let plans = [
        ("A", Some(as_peers(path, bytes))),
        ("B", fixed_real(path, DISK, bytes, PACKET_BYTES)),
        (ramp, ramp_real(path, DISK, bytes, PACKET_BYTES)),
    ];
    plans.into_iter().filter_map(|(name, plan)| Some((name, plan?))).collect()
}

/// Algorithm A as a hierarchy in which nothing is cut anew.
fn as_peers(path: &Path, bytes: f64) -> Real {
    let optimum = fixed::optimum(path, bytes, (1, bytes as u64), None);
    let count = optimum.count as usize;
    Real {
        bottleneck: DISK,
        sizes: vec![optimum.fragment_bytes; count],
        before: vec![1; count],
        after: vec![1; count],
        model_seconds: optimum.predicted_seconds,
        predicted_seconds: optimum.predicted_seconds,
    }
}

/// The bars of a path, and of the best plan known with its bound.
fn bars(path: &Path, group: &str, ramp: &'static str) -> Option<Vec<Bar>> {
    let best = best::certified(path, PACKET_BYTES, &Constraints::default())?;
    let least = best.lower_bound_seconds? * 1e3;
    let bar = |name: &str, values: [f64; 3]| Bar {
        name: name.to_owned(),
        group: group.to_owned(),
        values: values.to_vec(),
        least,
    };
    let plans = plans(path, ramp);
    let papers = plans.iter().map(|(name, plan)| bar(name, shares(path, plan)));
    Some(papers.chain([bar("best", whole_shares(path, &best.plan)?)]).collect())
}

fn parts() -> Figure {
    let bars: Vec<Bar> = paths()
        .iter()
        .filter_map(|(path, group, ramp)| bars(path, group, ramp))
        .flatten()
        .collect();
    let sum = |bar: &Bar| bar.values.iter().sum::<f64>();
    let above = |bar: &Bar| (sum(bar) / bar.least - 1.0) * 100.0;
    let of = |name: &str| bars.iter().filter(|bar| bar.name == name).collect::<Vec<_>>();
    let two = |list: Vec<&Bar>, f: &dyn Fn(&Bar) -> f64, digits: usize| {
        let words: Vec<String> = list.iter().map(|bar| format!("{:.digits$}", f(bar))).collect();
        words.join(" and ")
    };
    Figure {
        name: "pipelines-14",
        title: "Where the time goes: algorithms A, B, C and C'".to_owned(),
        source: "Wang et al., figure 14; 64 KiB, disk g = 4 ms and 5 MB/s",
        parameters: parameters("network", &network(), KB, ""),
        caption: format!(
            "T_f until the first fragment reaches the disk, T_b in the disk, T_l from the disk to \
             the end. A {} ms, B {} ms (21.31 % and 25.79 % better). The paper concludes that \
             better algorithms are unlikely to gain much over B. They do: no plan can be faster \
             than {} ms (the broken line), B is {} % above that, and the best plan known {} %. G \
             in µs per 1000 bytes, 64 KB = 65536 bytes.",
            two(of("A"), &sum, 4),
            two(of("B"), &sum, 4),
            two(of("A"), &|bar| bar.least, 4),
            two(of("B"), &above, 1),
            two(of("best"), &above, 1),
        ),
        content: Content::Bars {
            y: Axis::from_zero("latency (ms)"),
            parts: PARTS.map(str::to_owned).to_vec(),
            bars,
        },
    }
}

/// The parts of a plan's latency in ms.
fn shares(path: &Path, plan: &Real) -> [f64; 3] {
    let through = |stages: &[Stage], size: Option<&f64>, count: Option<&u64>| match (size, count) {
        (Some(&size), Some(&count)) => evaluate::equal(stages, size, count, None),
        _ => 0.0,
    };
    let (before, rest) = path.split_at(plan.bottleneck);
    let (slow, after) = rest.split_at(1);
    let first = through(before, plan.sizes.first(), plan.before.first());
    let busy: f64 = plan.sizes.iter().map(|&size| slow[0].occupancy(size)).sum();
    let last = through(after, plan.sizes.last(), plan.after.last());
    [first, busy, last].map(|seconds| seconds * 1e3)
}

/// The parts of a plan in whole bytes, from what happens at the disk.
fn whole_shares(path: &Path, plan: &Plan) -> Option<[f64; 3]> {
    let sizes = |stage| Some(plan.sizes_at(stage)?.iter().map(|it| it.length).collect());
    let lists: Vec<Vec<u64>> = (0..path.len()).filter_map(sizes).collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let trace = simulate::run(path, &lists, None, &Buffers::UNLIMITED).ok()?;
    let disk = || trace.visits.iter().filter(|visit| visit.stage == DISK);
    let begins = disk().map(|visit| visit.started).reduce(f64::min)?;
    let done = disk().map(|visit| visit.left).reduce(f64::max)?;
    Some([begins, done - begins, trace.seconds - done].map(|seconds| seconds * 1e3))
}

#[cfg(test)]
mod tests {
    use piped_model::reference::disk;

    use super::*;

    fn all_bars() -> Vec<Bar> {
        let Content::Bars { bars, .. } = parts().content else { panic!("bars") };
        bars
    }

    /// docs/theory.md §5: the four latencies within 0.1 µs, and what ramps gain.
    #[test]
    fn the_bars_are_the_latencies_of_section_5_5() {
        let bars = all_bars();
        let sums: Vec<f64> = bars.iter().map(|it| it.values.iter().sum::<f64>() * 1e3).collect();
        for (bar, us) in [(0, 31876.9), (1, 26277.4), (4, 39557.8), (5, 31447.7)] {
            assert!((sums[bar] - us).abs() < 0.1, "{bar}: {}", sums[bar]);
        }
        for (index, bar) in bars.iter().enumerate() {
            let best = &bars[index / 4 * 4 + 3];
            assert_eq!((best.name.as_str(), &best.group), ("best", &bar.group));
            assert!(sums[index] >= sums[index / 4 * 4 + 3] && sums[index] * 1e-3 > bar.least);
        }
        let gains = [percent(sums[1], sums[2]), percent(sums[5], sums[6])];
        assert!((9.2..=9.5).contains(&gains[0]), "C gains {}", gains[0]);
        assert!((6.3..=6.8).contains(&gains[1]), "C' gains {}", gains[1]);
    }

    #[test]
    fn the_parts_are_the_exact_latency_since_the_disk_never_waits() {
        for (path, group, ramp) in paths() {
            let plans = plans(&path, ramp);
            assert_eq!(plans.len(), 3);
            for (name, plan) in plans {
                let sum = shares(&path, &plan).iter().sum::<f64>() * 1e-3;
                assert!((sum / plan.predicted_seconds - 1.0).abs() < 1e-9, "{name} {group}: {sum}");
            }
        }
    }

    #[test]
    fn the_typical_disk_gains_what_the_paper_says() {
        let (ms, rate) = TYPICAL;
        let bytes = PACKET_BYTES as f64;
        let gain = |gain: Gain| gain(disk_of(ms, rate), bytes).unwrap();
        assert!((gain(gain_of_hierarchy) - 21.31).abs() < 0.005);
        assert!((9.2..=9.5).contains(&gain(gain_of_ramp)));
        assert_eq!(disk_of(ms, rate), disk());
    }

    #[test]
    fn the_curves_are_as_the_paper_describes_them() {
        let [disks, ramps, packets, long_ramps, _] = &figures()[..] else { panic!("five") };
        // Better towards fast disks where the disk is the bottleneck; losses where it is not.
        assert!(disks.value("g = 8 ms", 20.0) > disks.value("g = 8 ms", 1.0));
        assert!(disks.value("g = 0.5 ms", 20.0) < -5.0);
        // Less for a very dear disk than for a dear one.
        assert!(disks.value("g = 32 ms", 20.0) < disks.value("g = 8 ms", 20.0));
        // "Never greater than 10 %" and "never greater than 11 %"; exact evaluation gives half a
        // percent more.
        let most = |figure: &Figure| {
            let names = OVERHEADS.map(|ms| format!("g = {ms} ms"));
            let gains = names.iter().flat_map(|name| figure.points(name)).map(|point| point.1);
            gains.fold(0.0, f64::max)
        };
        assert!((9.0..10.0).contains(&most(ramps)), "{}", most(ramps));
        assert!((10.5..11.5).contains(&most(long_ramps)), "{}", most(long_ramps));
        // Medium packets gain most.
        let gains = packets.points("g = 4 ms");
        let (size, gain) = gains.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert!((16384.0..65536.0).contains(&size) && gain > 30.0, "{gain} at {size}");
        assert!(gains[0].1 < 10.0 && gains[gains.len() - 1].1 < 10.0);
    }
}
