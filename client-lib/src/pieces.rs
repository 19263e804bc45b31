//! Tables of pieces, which vectored requests move.

use std::sync::Arc;

use piped_core::pieces::Row;

use crate::buffer::Buffer;
use crate::error::PiecesFault;

/// Equal pieces at equal distances: one, or the rows of a block of a matrix.
///
/// ```
/// use piped_client::Piece;
/// // 100 bytes at 4096 of the region, to the buffer's beginning.
/// let one = Piece::new(4096, 0, 100);
/// // A block of 16 rows of 64 bytes out of rows of 1024, packed in the buffer.
/// let block = Piece::new(8192, 100, 64).repeat(16, 1024, 64);
/// assert_eq!((one.bytes(), block.bytes()), (100, 1024));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    offset: u64,
    stride: u64,
    at: u64,
    at_stride: u64,
    length: u64,
    count: u64,
}

impl Piece {
    /// `length` bytes at `offset` of the file or region, and at byte `at` of the request's buffer.
    #[must_use]
    pub const fn new(offset: u64, at: usize, length: usize) -> Self {
        let (at, length) = (at as u64, length as u64);
        Self { offset, stride: 0, at, at_stride: 0, length, count: 1 }
    }

    /// `count` of them, each `stride` bytes behind the one before in the file or region, and
    /// `at_stride` in the buffer.
    #[must_use]
    pub const fn repeat(self, count: usize, stride: u64, at_stride: usize) -> Self {
        Self { count: count as u64, stride, at_stride: at_stride as u64, ..self }
    }

    /// Bytes of all of them.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.length.saturating_mul(self.count)
    }

    /// How much buffer they need.
    fn room(&self) -> u64 {
        let last = self.count.saturating_sub(1).saturating_mul(self.at_stride);
        self.at.saturating_add(last).saturating_add(self.length)
    }

    fn entry(&self) -> Option<Row> {
        let short = |value: u64| u32::try_from(value).ok();
        let there = self.count.checked_sub(1)?.checked_mul(self.stride)?;
        self.offset.checked_add(there)?.checked_add(self.length).filter(|_| self.length > 0)?;
        Some(Row {
            offset: self.offset,
            stride: self.stride,
            at: short(self.at)?,
            at_stride: short(self.at_stride)?,
            length: short(self.length)?,
            count: short(self.count)?,
        })
    }
}

/// A table of pieces, from [`crate::Client::pieces`]. Cheap to clone, and as many requests may use
/// it at once as like: a program that exchanges the same halo again and again makes it once.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Access, Client, Piece, Request};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let matrix = client.open_region(Some("beta"), "matrix", Access::READ)?;
/// // Column 3 of 1000 rows of 512 words, packed.
/// let column = client.pieces(&[Piece::new(3 * 8, 0, 8).repeat(1000, 512 * 8, 8)])?;
/// let buffer = client.allocate(8000)?;
/// let column = client.queue()?.run(Request::read_pieces(&matrix, &column, buffer))?.payload;
/// println!("{:?}", &column.as_slice()[..8]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Pieces {
    pub(crate) table: Arc<Buffer>,
    rows: u32,
    bytes: u64,
    room: u64,
}

/// Rows of a table.
const ROWS_MAX: usize = 1 << 16;

/// Bytes of one request.
const BYTES_MAX: u64 = 1 << 30;

impl Pieces {
    /// The rows of a table.
    pub(crate) fn entries(pieces: &[Piece]) -> Result<Vec<Row>, PiecesFault> {
        if pieces.is_empty() || pieces.len() > ROWS_MAX {
            return Err(PiecesFault::Rows(pieces.len()));
        }
        let bytes = pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(piece.bytes()));
        if bytes > BYTES_MAX {
            return Err(PiecesFault::Bytes(bytes));
        }
        let entry = |(row, piece): (usize, &Piece)| piece.entry().ok_or(PiecesFault::Row(row));
        pieces.iter().enumerate().map(entry).collect()
    }

    /// `table` has room for these.
    pub(crate) fn new(mut table: Buffer, pieces: &[Piece], entries: &[Row]) -> Self {
        let places = table.as_mut_slice().chunks_exact_mut(size_of::<Row>());
        for (place, entry) in places.zip(entries) {
            place.copy_from_slice(&entry.to_client());
        }
        Self {
            table: Arc::new(table),
            rows: entries.len() as u32,
            bytes: pieces.iter().map(Piece::bytes).sum(),
            room: pieces.iter().map(Piece::room).max().unwrap_or(0),
        }
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The least length of a buffer that has room for all of them.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.room
    }

    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_table_is_refused_with_its_row() {
        let one = Piece::new(0, 0, 1);
        assert_eq!(Pieces::entries(&[]), Err(PiecesFault::Rows(0)));
        assert_eq!(Pieces::entries(&[one; ROWS_MAX + 1]), Err(PiecesFault::Rows(ROWS_MAX + 1)));
        for bad in [
            Piece::new(0, 0, 0),
            one.repeat(0, 1, 1),
            Piece::new(u64::MAX, 0, 1),
            one.repeat(4, u64::MAX / 2, 1),
            Piece::new(0, 1 << 32, 1),
            one.repeat(2, 0, 1 << 32),
        ] {
            assert_eq!(Pieces::entries(&[one, bad]), Err(PiecesFault::Row(1)), "{bad:?}");
        }
        let large = Piece::new(0, 0, 1 << 20).repeat(1025, 1 << 20, 0);
        assert_eq!(Pieces::entries(&[large]), Err(PiecesFault::Bytes(1025 << 20)));
        assert_eq!(Piece::new(0, 5, 10).repeat(3, 0, 100).room(), 215);
    }
}
