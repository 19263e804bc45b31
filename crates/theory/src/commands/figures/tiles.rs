//! Sotiropoulos et al., tiles on an SCI cluster: figures 8 to 10, time against tile height.

use std::num::NonZeroU32;

use piped_model::tile::{Grid, PAPER_START_DMA, PAPER_SYNC, Schedule, Tiling};

use super::chart::{Axis, Content, Figure, Mark, Series, linear};

/// Processors along each of the two short dimensions.
const SIDE: u32 = 3;

/// Seconds of computation for each point, such that 24 x 24 x 2048K takes the 6 s at which figure
/// 10's axis begins.
const POINT: f64 = 45e-9;

/// What the link carries, in bytes per second.
const LINK: f64 = 80e6;

/// Bytes of a value that is passed on.
const VALUE: f64 = 4.0;

/// All figures of this paper.
pub(crate) fn figures() -> Vec<Figure> {
    vec![
        space(
            "tiles-08",
            "Time against tile height: 12 x 12 x 512K",
            "Sotiropoulos et al., figure 8",
            12,
            512,
        ),
        space(
            "tiles-09",
            "Time against tile height: 24 x 24 x 256K",
            "Sotiropoulos et al., figure 9",
            24,
            256,
        ),
        space(
            "tiles-10",
            "Time against tile height: 24 x 24 x 2048K",
            "Sotiropoulos et al., figure 10",
            24,
            2048,
        ),
    ]
}

/// A space of `side` x `side` x `height_k` * 1024 points over the grid.
fn tiling(side: u32, height_k: u32, schedule: Schedule) -> Option<Tiling> {
    let processors = NonZeroU32::new(SIDE)?;
    let own = f64::from(side / SIDE);
    // In a plane that does not overlap, starting and agreeing are part of the communication.
    let comm_startup = match schedule {
        Schedule::NonOverlapping => PAPER_START_DMA + PAPER_SYNC,
        Schedule::Overlapping => 0.0,
    };
    let tiling = Tiling {
        depth: f64::from(height_k) * 1024.0,
        grid: Grid { x: processors, y: processors },
        compute: own * own * POINT,
        comm_startup,
        // One face to each of two neighbours.
        comm: 2.0 * VALUE * own / LINK,
        start_dma: PAPER_START_DMA,
        sync: PAPER_SYNC,
    };
    tiling.checked().ok()
}

fn space(
    name: &'static str,
    title: &str,
    source: &'static str,
    side: u32,
    height_k: u32,
) -> Figure {
    let curve = |schedule: Schedule| {
        Series::of(schedule.name(), Mark::Line, linear(200.0, 16_000.0, 158), move |height| {
            Some(tiling(side, height_k, schedule)?.at_height(schedule, height).seconds)
        })
    };
    let best = |schedule: Schedule| {
        let best = tiling(side, height_k, schedule)?.best_height(schedule);
        Some((best.height, best.seconds))
    };
    let lowest: Vec<(f64, f64)> = Schedule::ALL.into_iter().filter_map(best).collect();
    let heights: Vec<String> = lowest.iter().map(|best| format!("{:.0}", best.0)).collect();
    Figure {
        name,
        title: title.to_owned(),
        source,
        parameters: "3 × 3 processors, t_start = 49.2 µs, t_sync = 75.2 µs; ours: 45 ns a point, \
                     80 MB/s"
            .to_owned(),
        caption: format!(
            "D/z + 4 planes without overlapping, D/z + 8 with it. Best heights: {}. t_start_dma \
             49.2 µs and t_sync 4 * 18.8 µs are the paper's. It prints neither the time of a point \
             nor the link's bandwidth: 45 ns, with which 24 x 24 x 2048K takes the 6 s of its \
             axis, and 80 MB/s are ours, so shapes are comparable and seconds are not.",
            heights.join(" and ")
        ),
        content: Content::Curves {
            x: Axis::from_zero("tile height z (points)"),
            y: Axis::from_zero("time (s)"),
            series: vec![
                curve(Schedule::NonOverlapping),
                curve(Schedule::Overlapping),
                Series::at("best height", Mark::Rings, &lowest),
            ],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_is_faster_and_its_best_height_is_theorem_1() {
        for (figure, (side, height_k)) in figures().iter().zip([(12, 512), (24, 256), (24, 2048)]) {
            let slow = figure.points("non-overlapping");
            for (&(z, overlapping), &(_, other)) in figure.points("overlapping").iter().zip(slow) {
                assert!(overlapping < other, "{} at {z}", figure.name);
            }
            let (own, depth) = (f64::from(side / 3), f64::from(height_k) * 1024.0);
            let per_height = own * own * 45e-9;
            // z* = sqrt(D·s / (2·(2+2)·A·c)), docs/theory.md §16.
            let height = (depth * (49.2e-6 + 75.2e-6) / (8.0 * per_height)).sqrt();
            let (found, seconds) = figure.points("best height")[1];
            assert!((found / height - 1.0).abs() < 1e-9, "{}: {found}", figure.name);
            let expected = (depth / height + 8.0) * (124.4e-6 + per_height * height);
            assert!((seconds / expected - 1.0).abs() < 1e-9, "{}: {seconds}", figure.name);
            let least = figure.points("overlapping").iter().map(|point| point.1);
            assert!(least.fold(f64::INFINITY, f64::min) >= seconds);
        }
    }

    #[test]
    fn the_largest_space_takes_the_time_of_the_papers_axis() {
        let figure = &figures()[2];
        assert!((6.0..8.5).contains(&figure.points("best height")[0].1));
        assert!((6.0..6.5).contains(&figure.points("best height")[1].1));
    }
}
