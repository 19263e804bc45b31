//! The sizes of a plan while it is being made: one list per level, in whole bytes.

use super::Level;
use crate::plan::Sizes;
use crate::rounding;
use crate::search::layout::Layout;

/// All fragments of each level, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) lists: Vec<Vec<u64>>,
}

/// The least common multiple of two alignments (0 is 1); the larger one if that is too large to
/// matter.
pub(super) fn multiple(a: u64, b: u64) -> u64 {
    let (a, b) = (a.max(1), b.max(1));
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).checked_mul(b).unwrap_or(a.max(b))
}

/// How many sizes have to be told of a list whose last told one repeats.
pub(super) fn told_count(list: &[u64]) -> usize {
    let Some((&last, rest)) = list.split_last() else { return 0 };
    let Some(&repeated) = rest.last() else { return 1 };
    if last > repeated {
        return list.len();
    }
    let different = rest.iter().rposition(|&size| size != repeated);
    different.map_or(1, |index| index + 2)
}

/// A list as a plan keeps it.
pub(super) fn sizes(list: &[u64]) -> Option<Sizes> {
    if let ([first, ..], 1) = (list, told_count(list)) {
        return Some(Sizes::Uniform { fragment_bytes: *first, total_bytes: list.iter().sum() });
    }
    Sizes::list(list).ok()
}

/// Equal fragments as near to `size` as the level allows.
pub(super) fn equal(level: &Level, bytes: u64, size: u64) -> Vec<u64> {
    let size = level.constraints().fit(size.max(1)).min(bytes).max(1);
    let mut list = vec![size; (bytes / size) as usize];
    list.extend(Some(bytes % size).filter(|&rest| rest > 0));
    list
}

/// Real sizes as the level allows them: one after the other, or all equal where they are too many
/// to be told.
pub(super) fn rounded(level: &Level, bytes: u64, real: &[f64]) -> Vec<u64> {
    let list = rounding::sizes(real, bytes, &level.constraints());
    if allowed(level, &list) {
        return list;
    }
    equal(level, bytes, bytes.div_ceil(real.len().max(1) as u64))
}

/// Whether the level may cut like this.
pub(super) fn allowed(level: &Level, list: &[u64]) -> bool {
    let limits = level.constraints();
    let (smallest, largest) = (limits.fit(1), limits.fit(u64::MAX));
    let unit = level.alignment.max(1);
    let inner = list.len().saturating_sub(1);
    list.iter().enumerate().all(|(index, &size)| {
        size > 0 && size <= largest && (index == inner || (size >= smallest && size % unit == 0))
    }) && told_count(list) <= level.explicit_max
}

impl Shape {
    /// The cuts of a layout whose stages are levels' stages, each moved to the nearest place that
    /// all levels that cut there allow. Levels that come out with what they may not have are
    /// rounded by themselves.
    pub(super) fn settled(layout: &Layout, levels: &[Level], bytes: u64) -> Self {
        let mut units = vec![1_u64; layout.positions.len()];
        let first = |level: &Level| &layout.cuts[level.stages.start];
        for level in levels {
            for &at in first(level) {
                units[at as usize] = multiple(units[at as usize], level.alignment);
            }
        }
        let place = |at: u32| {
            let unit = units[at as usize];
            let position = layout.positions[at as usize];
            if at == layout.last() { bytes } else { (position / unit as f64).round() as u64 * unit }
        };
        let list = |level: &Level| {
            let mut end = 0;
            let mut list = Vec::new();
            for &at in first(level) {
                let next = place(at).min(bytes);
                if next > end {
                    list.push(next - end);
                    end = next;
                }
            }
            if allowed(level, &list) && end == bytes {
                return list;
            }
            let mut begin = 0.0;
            let real = first(level).iter().map(|&at| {
                let end = layout.positions[at as usize];
                end - core::mem::replace(&mut begin, end)
            });
            rounded(level, bytes, &real.collect::<Vec<_>>())
        };
        Self { lists: levels.iter().map(list).collect() }
    }

    /// The shape as cuts among common positions, a level's for each of its stages.
    pub(super) fn layout(&self, levels: &[Level]) -> Layout {
        let ends = |list: &[u64]| -> Vec<u64> {
            let mut end = 0;
            let next = |&size: &u64| {
                end += size;
                end
            };
            list.iter().map(next).collect()
        };
        let all: Vec<Vec<u64>> = self.lists.iter().map(|list| ends(list)).collect();
        let mut places: Vec<u64> = all.iter().flatten().copied().collect();
        places.sort_unstable();
        places.dedup();
        let mut cuts = Vec::new();
        for (ends, level) in all.iter().zip(levels) {
            let on: Vec<u32> =
                ends.iter().map(|&end| places.partition_point(|&at| at < end) as u32 + 1).collect();
            cuts.extend(level.stages.clone().map(|_| on.clone()));
        }
        let mut positions = vec![0.0];
        positions.extend(places.iter().map(|&end| end as f64));
        Layout { positions, cuts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_not_repeat_has_to_be_told() {
        for (list, told) in [
            (vec![], 0),
            (vec![5], 1),
            (vec![5, 5, 5], 1),
            (vec![5, 5, 2], 1),
            (vec![5, 6], 2),
            (vec![1, 2, 4, 4, 4, 1], 3),
            (vec![1, 2, 4, 4, 4, 5], 6),
            (vec![4, 3, 2, 1], 3),
        ] {
            assert_eq!(told_count(&list), told, "{list:?}");
        }
    }

    #[test]
    fn multiples_are_the_least_common_ones() {
        assert_eq!((multiple(512, 4096), multiple(6, 4), multiple(0, 7)), (4096, 12, 7));
        assert_eq!(multiple(u64::MAX, u64::MAX - 1), u64::MAX);
    }

    #[test]
    fn shared_cuts_stay_shared_on_the_coarser_grid() {
        let free = Level::free(0..1);
        let levels = [
            Level { alignment: 512, ..free.clone() },
            Level { alignment: 4096, stages: 1..2, ..free },
        ];
        let layout = Layout {
            positions: vec![0.0, 700.0, 5000.0, 9000.0, 20000.0],
            cuts: vec![vec![1, 2, 3, 4], vec![2, 4]],
        };
        let shape = Shape::settled(&layout, &levels, 20_000);
        assert_eq!(shape.lists, [vec![512, 3584, 5120, 10784], vec![4096, 15904]]);
        let back = shape.layout(&levels);
        assert_eq!(back.cuts, [vec![1, 2, 3, 4], vec![2, 4]]);
        // Too many to be told: equal ones.
        let few = levels.map(|level| Level { explicit_max: 2, ..level });
        let shape = Shape::settled(&layout, &few, 20_000);
        assert_eq!(shape.lists[0], [5120, 5120, 5120, 4640]);
    }
}
