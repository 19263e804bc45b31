//! The length of the next piece: pieces take about the same time on every path.
//!
//! A piece is asked for anew when something breaks, and shares the path with the other pieces. So
//! it should last about as long on a slow link as on a fast one, and its length follows: it starts
//! short, doubles while pieces end early, and halves when one ends late. Only the times of pieces
//! count. The daemon's costs are those of lone requests; a copy has others beside it, its own among
//! them.

use std::time::Duration;

/// The shortest piece: some two seconds on 1 Mbit/s, with others beside it.
pub(super) const LEAST: u64 = 64 << 10;

/// The longest piece of a copy. It is long against the daemon's fragments, so that the cost of a
/// request does not show.
pub(super) const MOST: u64 = 8 << 20;

/// Longest time of a piece, about; at least a quarter of it, if pieces can be that long.
const LASTS: Duration = Duration::from_secs(2);

/// Most growth of a piece over the one before. A fast path has its longest pieces after two, and
/// one piece that was fast by chance makes no other a thousand times as long.
const GROWTH: u128 = 16;

/// Divides the longest wait for progress that the user allows: a piece may take one such part, so
/// that several pieces end within the wait.
const OF_PATIENCE: u32 = 4;

/// Chooses the length of pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    piece: u64,
    most: u64,
    lasts: Duration,
}

impl Pace {
    /// Pace with pieces of at most `most` bytes, a power of two, for a user with this patience.
    pub(super) fn new(most: u64, patience: Duration) -> Self {
        Self { piece: LEAST, most, lasts: LASTS.min(patience / OF_PATIENCE) }
    }

    /// Length of a piece now, a power of two.
    #[cfg(test)]
    fn piece(&self) -> u64 {
        self.piece
    }

    /// End of a piece that starts at `start`: a multiple of its length, so that nearly all are
    /// aligned.
    pub(super) fn end(&self, start: u64, length: u64) -> u64 {
        ((start / self.piece + 1) * self.piece).min(length)
    }

    /// Handles the end of a piece of this many bytes after so much time.
    pub(super) fn handle_end(&mut self, bytes: u64, took: Duration) {
        if bytes >= self.piece && took < self.lasts / 2 {
            let times = self.lasts.as_nanos() / 2 / took.as_nanos().max(1);
            self.piece = (self.piece << times.clamp(2, GROWTH).ilog2()).min(self.most);
        } else if bytes <= self.piece && took > self.lasts * 2 {
            // A longer piece was asked for before the length fell, and tells nothing new.
            self.piece = (self.piece / 2).max(LEAST);
        }
    }

    /// Handles that nothing has moved for long: pieces become as short as can be. Returns whether
    /// that is shorter.
    pub(super) fn handle_stall(&mut self) -> bool {
        std::mem::replace(&mut self.piece, LEAST) > LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Length that pieces settle at on a path of this many bytes a second with four of them on it.
    fn settled(pace: &mut Pace, rate: f64, delay: f64) -> u64 {
        for _ in 0..64 {
            let piece = pace.piece();
            let took = delay + 4.0 * piece as f64 / rate;
            pace.handle_end(piece, Duration::from_secs_f64(took));
        }
        pace.piece()
    }

    #[test]
    fn pieces_take_as_long_on_every_path() {
        let mut pace = Pace::new(MOST, PATIENCE);
        assert_eq!(pace.piece(), LEAST, "nothing is known, and little is at stake");
        for (rate, piece) in
            [(119e3, LEAST), (735e3, 256 << 10), (2.5e7, MOST), (1e9, MOST), (735e3, 256 << 10)]
        {
            let settled = settled(&mut pace, rate, 0.0);
            assert!(settled == piece || settled == 2 * piece, "{settled} at {rate} bytes/s");
            let seconds = 4.0 * settled as f64 / rate;
            assert!(seconds <= 4.0, "{seconds} s at {rate} bytes/s");
        }
        // A long way is not a narrow one.
        assert_eq!(settled(&mut pace, 1e9, 0.6), MOST);
    }

    #[test]
    fn a_fast_path_has_its_longest_pieces_after_two() {
        let mut pace = Pace::new(MOST, PATIENCE);
        pace.handle_end(LEAST, Duration::from_millis(1));
        assert_eq!(pace.piece(), 16 * LEAST);
        pace.handle_end(16 * LEAST, Duration::from_millis(16));
        assert_eq!(pace.piece(), MOST);
        // A piece that is longer is expected to end early still.
        let mut pace = Pace::new(MOST, PATIENCE);
        pace.handle_end(LEAST, Duration::from_millis(200));
        assert_eq!(pace.piece(), 4 * LEAST, "800 of 1000 ms");
    }

    #[test]
    fn pieces_end_well_within_what_is_waited_for_any_progress() {
        let mut pace = Pace::new(MOST, Duration::from_secs(3));
        let settled = settled(&mut pace, 735e3, 0.0);
        assert!(4.0 * settled as f64 / 735e3 <= 1.5, "{settled}");
    }

    #[test]
    fn what_is_late_counts_once() {
        let mut pace = Pace::new(MOST, PATIENCE);
        settled(&mut pace, 1e9, 0.0);
        for _ in 0..4 {
            pace.handle_end(MOST, Duration::from_secs(9));
        }
        assert_eq!(pace.piece(), MOST / 2, "four of one length are one sign");
        // The file's last piece is short and fast, and tells nothing.
        pace.handle_end(1, Duration::ZERO);
        assert_eq!(pace.piece(), MOST / 2);
        assert!(pace.handle_stall() && !pace.handle_stall());
        assert_eq!(pace.piece(), LEAST);
    }

    #[test]
    fn pieces_end_at_multiples_of_their_length() {
        let pace = Pace::new(MOST, PATIENCE);
        assert_eq!(pace.end(0, 1 << 20), LEAST);
        assert_eq!(pace.end(LEAST + 5, 1 << 20), 2 * LEAST);
        assert_eq!(pace.end(LEAST, LEAST + 7), LEAST + 7);
    }
}
