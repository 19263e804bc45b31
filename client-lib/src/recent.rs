//! The last few samples of a figure. A thread that loses its CPU for some milliseconds says nothing
//! about what comes next, so it is their order that counts and not their sum.

/// Samples of a figure that count.
const KEPT: usize = 5;

/// The last few samples of a figure, in a ring.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Recent {
    samples: [f64; KEPT],
    seen: usize,
}

impl Recent {
    /// Adds a sample. One that is negative or no number was no measurement.
    pub(crate) fn add(&mut self, sample: f64) {
        if sample.is_finite() && sample >= 0.0 {
            self.samples[self.seen % KEPT] = sample;
            self.seen += 1;
        }
    }

    pub(crate) fn median(&self) -> Option<f64> {
        self.at(|count| count / 2)
    }

    /// The lower quartile: of what is only ever measured too long.
    pub(crate) fn low(&self) -> Option<f64> {
        self.at(|count| (count - 1) / 4)
    }

    /// How many there were.
    pub(crate) fn seen(&self) -> usize {
        self.seen
    }

    fn at(&self, place: impl FnOnce(usize) -> usize) -> Option<f64> {
        let count = self.seen.min(KEPT);
        let mut sorted = self.samples;
        let sorted = &mut sorted[..count];
        sorted.sort_unstable_by(f64::total_cmp);
        (count > 0).then(|| sorted[place(count)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_five_count_by_their_order() {
        let mut recent = Recent::default();
        assert_eq!((recent.median(), recent.low()), (None, None));
        [f64::NAN, -1.0, f64::INFINITY].into_iter().for_each(|it| recent.add(it));
        assert_eq!(recent.seen(), 0);
        recent.add(7.0);
        assert_eq!((recent.median(), recent.low()), (Some(7.0), Some(7.0)));
        for sample in [900.0, 3.0, 1.0, 800.0, 2.0] {
            recent.add(sample);
        }
        // The 7 is forgotten.
        assert_eq!((recent.median(), recent.low()), (Some(3.0), Some(2.0)));
    }
}
