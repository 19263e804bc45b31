//! Stages that share a server (docs/theory.md §2): a thread that reads, checks and sends, with a
//! wire behind it.

use piped_model::fixed::{self, Constraints};
use piped_model::reference::{KB, stage};
use piped_model::servers::Servers;
use piped_model::stage::{Path, Stage};

use super::chart::{Axis, Content, Figure, Mark, Series, geometric};
use super::parameters;
use crate::bound;

const BYTES: u64 = 1 << 20;

/// The thread's three visits, and the wire.
fn stages() -> [Stage; 4] {
    [stage(300.0, 0.3, KB), stage(300.0, 0.1, KB), stage(300.0, 0.3, KB), stage(0.0, 4.0, KB)]
}

/// Which stages the thread serves.
const NAMES: [&str; 4] = ["thread", "thread", "thread", "wire"];

/// All figures of shared servers.
pub(crate) fn figures() -> Vec<Figure> {
    vec![thread()]
}

/// Fragments of so many bytes, in ms.
fn latency(path: &[Stage], servers: Servers, bytes: f64) -> f64 {
    let limits = Constraints { servers, ..Constraints::default() };
    fixed::static_size(path, BYTES, bytes as u64, &limits).predicted_seconds * 1e3
}

fn thread() -> Figure {
    let path = stages();
    let merged = Path::new(&path).map(|path| path.merged(|stage| NAMES[stage]));
    let shared = Servers::of(NAMES);
    let sizes = || geometric(16_384.0, 1_048_576.0, 96).into_iter().map(f64::round);
    let best = |path: &[Stage], servers| {
        let limits = Constraints { servers, ..Constraints::default() };
        let best = fixed::best(path, BYTES, &limits);
        (best.fragment_bytes as f64, best.predicted_seconds * 1e3)
    };
    let [apart_best, shared_best] = [Servers::APART, shared].map(|servers| best(&path, servers));
    let least = bound::of_servers(&path, BYTES, &shared) * 1e3;
    Figure {
        name: "servers-thread",
        title: "One thread that reads, checks and sends".to_owned(),
        source: "docs/theory.md, section 2; 1 MiB in equal fragments, with the best depth",
        parameters: parameters("thread, thread, thread, wire", &path, KB, ""),
        caption: format!(
            "Latency of 1 MiB. Planned as if the three stages overlapped, {:.0} KiB look best; on \
             one thread such fragments take {:.2} ms instead of the {:.2} that are promised. \
             Merged into one stage of their summed cost they have the right throughput, and a \
             fragment cannot be elsewhere between two visits. With one server for all three, {:.0} \
             KiB are best: {:.2} ms.",
            apart_best.0 / 1024.0,
            latency(&path, shared, apart_best.0),
            apart_best.1,
            shared_best.0 / 1024.0,
            shared_best.1,
        ),
        content: Content::Curves {
            x: Axis::bytes("fragment size (bytes)", 4),
            y: Axis::log("latency (ms)", 2),
            series: vec![
                Series::of("one server", Mark::Line, sizes(), |bytes| {
                    Some(latency(&path, shared, bytes))
                }),
                Series::of("merged into one", Mark::Dashed, sizes(), |bytes| {
                    Some(latency(merged.as_ref().ok()?, Servers::APART, bytes))
                }),
                Series::of("as if they overlapped", Mark::Line, sizes(), |bytes| {
                    Some(latency(&path, Servers::APART, bytes))
                }),
                Series::of("work of the thread", Mark::Dashed, [16_384.0, 1_048_576.0], |_| {
                    Some(least)
                }),
                Series::at("best of each", Mark::Rings, &[shared_best, apart_best]),
            ],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_thread_is_never_faster_and_wants_larger_fragments() {
        let figure = thread();
        let (shared, apart) = (figure.points("one server"), figure.points("as if they overlapped"));
        let least = figure.value("work of the thread", 16_384.0);
        for (shared, apart) in shared.iter().zip(apart) {
            assert!(shared.1 >= apart.1 * (1.0 - 1e-9) && shared.1 >= least, "{shared:?}");
        }
        // Sixteen times three visits of 300 us, and more.
        assert!(figure.value("one server", 65_536.0) > 16.0 * 0.9);
        let best = figure.points("best of each");
        assert!(best[0].0 > 2.0 * best[1].0, "{best:?}");
    }
}
