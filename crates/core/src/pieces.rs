//! Tables of pieces: what a vectored request moves, as rows of equal pieces at equal distances.
//!
//! A row of one piece is an entry of a vector. A row of many is a strided block, such as the rows
//! of a plane of a matrix. A table of such rows is a block of three dimensions. So a client
//! describes little where its data are regular, and a column of single words costs 24 bytes on the
//! wire and not 24 for each word.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

/// `count` pieces of `length` bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Row {
    /// Where the first piece begins in the file or region, in bytes.
    pub offset: u64,
    /// Distance between the beginnings of two pieces in the file or region, in bytes.
    pub stride: u64,
    /// Where the first piece begins in the request's buffer, in bytes.
    pub at: u32,
    /// Distance between the beginnings of two pieces in the buffer, in bytes.
    pub at_stride: u32,
    /// Length of each piece in bytes; at least 1.
    pub length: u32,
    /// Number of pieces; at least 1.
    pub count: u32,
}

impl Row {
    /// Size of a row in a client's memory: the fields in their order, in the machine's byte order.
    pub const BYTES: usize = 32;

    /// Size of a row on the wire: `offset`, `stride`, `length`, `count`, little-endian.
    pub const WIRE_BYTES: usize = 24;

    /// A row of one piece.
    #[must_use]
    pub const fn single(offset: u64, at: u32, length: u32) -> Self {
        Self { offset, stride: 0, at, at_stride: 0, length, count: 1 }
    }

    /// Reads a row from bytes of a client's memory. The values are not checked.
    #[must_use]
    pub fn from_client(bytes: [u8; Self::BYTES]) -> Self {
        transmute!(bytes)
    }

    /// The bytes of a row in a client's memory.
    #[must_use]
    pub fn to_client(self) -> [u8; Self::BYTES] {
        transmute!(self)
    }

    /// Reads a row from the wire; its pieces follow each other in the buffer. The values are not
    /// checked.
    #[must_use]
    pub fn from_wire(bytes: &[u8; Self::WIRE_BYTES]) -> Self {
        let [offset, stride] = [0, 8].map(|at| u64::from_le_bytes(part(bytes, at)));
        let [length, count] = [16, 20].map(|at| u32::from_le_bytes(part(bytes, at)));
        Self { offset, stride, at: 0, at_stride: length, length, count }
    }

    /// The bytes of a row on the wire.
    #[must_use]
    pub fn to_wire(self) -> [u8; Self::WIRE_BYTES] {
        let mut bytes = [0; Self::WIRE_BYTES];
        for (at, value) in [(0, self.offset), (8, self.stride)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in [(16, self.length), (20, self.count)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Bytes of all pieces together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.length) * u64::from(self.count)
    }

    /// Where the last piece ends in the file or region. `None` if there is no piece, or if the end
    /// is beyond 64 bits.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        let last = u64::from(self.count.checked_sub(1)?).checked_mul(self.stride)?;
        let length = u64::from(self.length);
        self.offset.checked_add(last)?.checked_add(length).filter(|_| length > 0)
    }

    /// The largest offset in the buffer at which a piece ends.
    #[must_use]
    pub fn end_in_buffer(&self) -> u64 {
        let last = u64::from(self.count.saturating_sub(1)) * u64::from(self.at_stride);
        u64::from(self.at) + last + u64::from(self.length)
    }

    /// Splits off the first pieces, at most `bytes` (at least 1) and `pieces`, and gives the rest.
    /// A first piece longer than `bytes` is split itself; its remainder is a row of its own. There
    /// must be [`Self::end`], and [`Self::end_in_buffer`] within 4 GiB.
    #[must_use]
    pub fn cut(self, bytes: u32, pieces: u32) -> (Self, [Option<Self>; 2]) {
        let whole = (bytes / self.length.max(1)).min(pieces).min(self.count);
        if whole == self.count {
            return (self, [None, None]);
        }
        if whole > 0 {
            let (front, rest) = (Self { count: whole, ..self }, self.skip(whole));
            return (front, [Some(rest), None]);
        }
        let front = Self { length: bytes.min(self.length), count: 1, ..self };
        let rest = Self {
            offset: self.offset + u64::from(front.length),
            at: self.at + front.length,
            length: self.length - front.length,
            count: 1,
            ..self
        };
        let others = (self.count > 1).then(|| self.skip(1));
        (front, [Some(rest).filter(|rest| rest.length > 0), others])
    }

    /// The row without its first pieces. There must be more of them; see [`Self::cut`].
    fn skip(self, pieces: u32) -> Self {
        Self {
            offset: self.offset + u64::from(pieces) * self.stride,
            at: self.at + pieces * self.at_stride,
            count: self.count - pieces,
            ..self
        }
    }

    /// Where each piece begins, in the file or region and in the buffer; see [`Self::cut`].
    pub fn pieces(self) -> impl Iterator<Item = (u64, u32)> {
        (0..self.count).map(move |piece| {
            (self.offset + u64::from(piece) * self.stride, self.at + piece * self.at_stride)
        })
    }
}

const _: () = {
    assert!(size_of::<Row>() == Row::BYTES);
    assert!(offset_of!(Row, stride) == 8 && offset_of!(Row, at) == 16);
    assert!(offset_of!(Row, at_stride) == 20 && offset_of!(Row, length) == 24);
};

/// A buffer in a client's list of buffers, which count as one: each begins where the one before it
/// ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct BufferRow {
    /// Bytes from the segment's start.
    pub offset: u64,
    /// Length of the buffer in bytes; at least 1.
    pub length: u64,
    /// The segment's number in the session's arena.
    pub segment: u32,
    /// Always 0, for later.
    pub reserved: u32,
}

impl BufferRow {
    /// Size of a row in a client's memory, in the machine's byte order.
    pub const BYTES: usize = 24;

    /// Reads a row from bytes of a client's memory. The values are not checked.
    #[must_use]
    pub fn from_client(bytes: [u8; Self::BYTES]) -> Self {
        transmute!(bytes)
    }

    /// The bytes of a row in a client's memory.
    #[must_use]
    pub fn to_client(self) -> [u8; Self::BYTES] {
        transmute!(self)
    }
}

const _: () = {
    assert!(size_of::<BufferRow>() == BufferRow::BYTES);
    assert!(offset_of!(BufferRow, length) == 8 && offset_of!(BufferRow, segment) == 16);
};

fn part<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("of that length")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row() -> impl Strategy<Value = Row> {
        ((0..1000u64, 0..50u64, 0..1000u32), (0..50u32, 1..40u32, 1..20u32)).prop_map(
            |((offset, stride, at), (at_stride, length, count))| Row {
                offset,
                stride,
                at,
                at_stride,
                length,
                count,
            },
        )
    }

    proptest! {
        #[test]
        fn a_row_means_the_same_there_and_back(row in row()) {
            prop_assert_eq!(Row::from_client(row.to_client()), row);
            let packed = Row { at: 0, at_stride: row.length, ..row };
            prop_assert_eq!(Row::from_wire(&row.to_wire()), packed);
        }

        /// Cut however it is, the same bytes are moved, in the same order.
        #[test]
        fn a_cut_row_is_the_same_bytes(row in row(), bytes in 1..60u32, pieces in 1..10u32) {
            let all = |row: Row| row.pieces().flat_map(move |(offset, at)| {
                (0..row.length).map(move |byte| (offset + u64::from(byte), at + byte))
            });
            let (mut rows, mut moved) = (vec![row], Vec::new());
            while let Some(next) = rows.pop() {
                let (front, rest) = next.cut(bytes, pieces);
                prop_assert!(front.bytes() <= bytes.into() && front.count <= pieces);
                prop_assert!(front.bytes() > 0);
                moved.extend(all(front));
                rows.extend(rest.into_iter().rev().flatten());
            }
            prop_assert_eq!(moved, all(row).collect::<Vec<_>>());
        }
    }

    #[test]
    fn ends_beyond_all_numbers_are_none() {
        let row = Row { stride: u64::MAX, count: 2, ..Row::single(0, 0, 1) };
        assert_eq!(row.end(), None);
        assert_eq!(Row { count: 0, ..row }.end(), None);
        assert_eq!(Row { length: 0, count: 1, ..row }.end(), None);
        assert_eq!(Row::single(u64::MAX, 0, 1).end(), None);
        assert_eq!(Row::single(u64::MAX - 1, 0, 1).end(), Some(u64::MAX));
        let row =
            Row { at: u32::MAX, at_stride: u32::MAX, length: u32::MAX, count: u32::MAX, ..row };
        assert!(row.end_in_buffer() > u64::from(u32::MAX));
    }
}
