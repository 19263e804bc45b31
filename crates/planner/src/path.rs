//! Paths and size classes, for each of which plans are kept.

use super::stage::StageIndex;

/// The most stages of a plan: a disk, the checksum here, a connection, the checksum there, a disk
/// there, and delay injections on them.
pub const STAGES_MAX: usize = piped_model::stage::STAGES_MAX;

/// The stages of a path, in order; unused places are [`StageIndex::NONE`].
pub type Path = [StageIndex; STAGES_MAX];

/// A path of these stages, without those that are [`StageIndex::NONE`].
pub fn path_of(stages: impl IntoIterator<Item = StageIndex>) -> Path {
    let mut path = [StageIndex::NONE; STAGES_MAX];
    let mut there = stages.into_iter().filter(|&stage| stage != StageIndex::NONE);
    for (place, stage) in path.iter_mut().zip(&mut there) {
        *place = stage;
    }
    debug_assert!(there.next().is_none(), "a path of more than {STAGES_MAX} stages");
    path
}

/// The shortest of the lengths that share a plan with this one.
pub(super) fn class_length(length: u64) -> u64 {
    let length = length.max(8);
    // Its three bits below the highest make the class.
    let others = 60 - length.leading_zeros();
    length >> others << others
}

/// The class of lengths that share a plan: within an eighth of a power of two.
pub(super) fn size_class(length: u64) -> u16 {
    let log = 63 - length.max(8).leading_zeros();
    ((log << 3) | ((length.max(8) >> (log - 3)) & 7) as u32) as u16
}
