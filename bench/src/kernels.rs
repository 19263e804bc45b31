//! Loops over bytes as in real programs, with as much computation on a byte as a row wants.

use crate::failure::Failure;

/// Bytes of an element of both kernels.
pub(crate) const ELEMENT: usize = 8;

/// Longest chain on an element: milliseconds.
const STEPS_MAX: u32 = 1 << 20;

/// Kind of the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// All elements are combined into one number.
    Reduction,
    /// Each element goes into its own place of a local vector: three accesses to memory for each.
    VectorToVector,
    /// Planes of a grid, distributed by its last axis on other nodes, come to one that has it by
    /// the first, with a border around it: a step of NAS' multigrid method, in which only moving
    /// memory can overlap.
    Redistribution,
}

/// Points of a plane, along the first and the second axis.
const PLANE: [usize; 2] = [128, 128];
/// Planes along the last axis of a grid with this many points.
const fn planes(elements: usize) -> usize {
    elements.div_ceil(PLANE[0] * PLANE[1])
}
/// Points of the grid with its border, per plane of the first axis, for this many planes of the
/// last.
const fn bordered(planes: usize) -> usize {
    (PLANE[1] + 2) * (planes + 2)
}

/// State of a loop; its result is the same however the bytes were cut.
#[derive(Debug)]
pub(crate) struct Work {
    kernel: Kernel,
    /// Steps on each element, each of which waits for the one before.
    steps: u32,
    sum: u64,
    elements: usize,
    vector: Vec<u64>,
}

impl Work {
    /// Work on vectors of `bytes`.
    pub(crate) fn new(kernel: Kernel, bytes: usize) -> Self {
        let elements = bytes / ELEMENT;
        let places = match kernel {
            Kernel::Reduction | Kernel::VectorToVector => elements,
            Kernel::Redistribution => (PLANE[0] + 2) * bordered(planes(elements)),
        };
        Self { kernel, steps: 0, sum: 0, elements, vector: vec![0; places] }
    }

    pub(crate) fn set_steps(&mut self, steps: u32) {
        self.steps = steps;
    }

    pub(crate) fn clear(&mut self) {
        self.sum = 0;
        self.vector.fill(0);
    }

    /// Computes on the bytes at `offset` of all.
    pub(crate) fn compute(&mut self, offset: u64, bytes: &[u8]) {
        let steps = std::hint::black_box(self.steps);
        let elements = bytes.chunks_exact(ELEMENT).map(|eight| {
            let eight = eight.try_into().expect("chunks of eight");
            mixed(u64::from_le_bytes(eight), steps)
        });
        match self.kernel {
            Kernel::Reduction => self.sum = elements.fold(self.sum, u64::wrapping_add),
            Kernel::VectorToVector => {
                let vector = &mut self.vector[offset as usize / ELEMENT..];
                for (own, element) in vector.iter_mut().zip(elements) {
                    *own = own.wrapping_add(element);
                }
            }
            Kernel::Redistribution => {
                let planes = planes(self.elements);
                for (place, element) in (offset as usize / ELEMENT..).zip(elements) {
                    let (x, rest) = (place % PLANE[0], place / PLANE[0]);
                    let (y, z) = (rest % PLANE[1], rest / PLANE[1]);
                    let own = (x + 1) * bordered(planes) + (y + 1) * (planes + 2) + z + 1;
                    self.vector[own] = element;
                }
            }
        }
    }

    /// Result as one number.
    pub(crate) fn outcome(&self) -> u64 {
        match self.kernel {
            Kernel::Reduction => self.sum,
            Kernel::VectorToVector | Kernel::Redistribution => {
                self.vector.iter().fold(0, |sum, own| sum.rotate_left(1) ^ own)
            }
        }
    }
}

/// Shortest chain with which a loop takes that long, where `timed` measures one. Short chains of
/// neighbours run beside each other, so time is not linear in their length: it is searched.
pub(crate) fn steps_for(
    seconds: f64,
    mut timed: impl FnMut(u32) -> Result<f64, Failure>,
) -> Result<u32, Failure> {
    let (mut short, mut long) = (0, 1);
    while timed(long)? < seconds {
        (short, long) = (long, 2 * long);
        if long > STEPS_MAX {
            return Err(Failure::new("no chain takes as long as that: is the clock right?"));
        }
    }
    while long - short > 1 {
        let middle = short.midpoint(long);
        match timed(middle)? < seconds {
            true => short = middle,
            false => long = middle,
        }
    }
    Ok(long)
}

/// A chain of steps (SplitMix's) that the compiler cannot shorten.
fn mixed(element: u64, steps: u32) -> u64 {
    (0..steps).fold(element, |value, _| (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_chain_that_takes_so_long_is_found() {
        for wanted in 1..200_u32 {
            let steps = steps_for(f64::from(wanted), |steps| Ok(f64::from(steps)));
            assert_eq!(steps.expect("there is one"), wanted);
        }
        assert!(steps_for(1.0, |_| Ok(0.0)).is_err());
    }

    #[test]
    fn what_is_computed_does_not_depend_on_how_it_is_cut() {
        let bytes: Vec<u8> = (0..4096_u32).map(|place| (place % 251) as u8).collect();
        for kernel in [Kernel::Reduction, Kernel::VectorToVector, Kernel::Redistribution] {
            let [mut whole, mut cut] = [(), ()].map(|()| Work::new(kernel, bytes.len()));
            whole.set_steps(3);
            cut.set_steps(3);
            whole.compute(0, &bytes);
            for (offset, piece) in [(0, 0..8), (8, 8..1000), (1000, 1000..4096)] {
                cut.compute(offset, &bytes[piece]);
            }
            assert_eq!(whole.outcome(), cut.outcome());
            let mut other = bytes.clone();
            other[4000] ^= 1;
            cut.clear();
            cut.compute(0, &other);
            assert_ne!(whole.outcome(), cut.outcome(), "{kernel:?} sees every byte");
        }
    }
}
