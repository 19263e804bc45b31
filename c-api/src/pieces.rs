//! Tables of pieces, for requests that move many.

use std::mem::MaybeUninit;

use client_lib::{Piece, Pieces};

use crate::border::{self, call, put, wanted};
use crate::client::{CLIENTS, piped_client};
use crate::fault::Fault;
use crate::status::piped_status;
use crate::table::{Kind, Table};

/// A table of the pieces of a file or region that one request moves. Any number of requests may use
/// it at once: a program that exchanges the same halo again and again makes it once. For all
/// threads of its client.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug)]
pub struct piped_pieces {
    _name: [u8; 0],
}

pub(crate) static PIECES: Table<Pieces> = Table::new(Kind::Pieces);

/// Equal pieces at equal distances: one, or the rows of a block of a matrix. All in bytes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct piped_piece {
    /// Where the first one is in the file or region.
    pub offset: u64,
    /// From one to the next there.
    pub stride: u64,
    /// Where the first one is in the buffer.
    pub at: usize,
    /// From one to the next there.
    pub at_stride: usize,
    /// Length of each piece in bytes.
    pub length: usize,
    /// How many; 0 is 1.
    pub count: usize,
}

/// A table of `count` rows, 1 to 65536, of 1 GiB together at most (PIPED_RANGE). It lies in the
/// arena, 32 bytes for each row, and ends with its daemon (PIPED_TABLE_LOST). Free it with
/// piped_pieces_free.
#[unsafe(no_mangle)]
pub extern "C" fn piped_pieces_create(
    client: *mut piped_client,
    rows: *const piped_piece,
    count: usize,
    pieces: Option<&mut MaybeUninit<*mut piped_pieces>>,
) -> piped_status {
    call(|| {
        wanted(&pieces)?;
        let row = |row: &piped_piece| {
            let piped_piece { offset, stride, at, at_stride, length, count } = *row;
            Piece::new(offset, at, length).repeat(count.max(1), stride, at_stride)
        };
        let rows: Vec<Piece> = border::array(rows, count)?.iter().map(row).collect();
        let made = CLIENTS.get(client)?.pieces(&rows)?;
        put(pieces, PIECES.insert(made)?)
    })
}

/// Free a table; requests that use it go on. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_pieces_free(pieces: *mut piped_pieces) -> piped_status {
    call(|| {
        if pieces.is_null() {
            return Ok(());
        }
        PIECES.remove(pieces, |_| Ok::<_, Fault>(())).map(drop)
    })
}

/// Bytes of all pieces, and the least length of a buffer that has room for them. Either may be
/// NULL.
#[unsafe(no_mangle)]
pub extern "C" fn piped_pieces_size(
    pieces: *mut piped_pieces,
    bytes: Option<&mut MaybeUninit<u64>>,
    room: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let found = PIECES.with(pieces, |pieces| [pieces.bytes(), pieces.room()])?;
        for (out, value) in [bytes, room].into_iter().zip(found) {
            if out.is_some() {
                put(out, value)?;
            }
        }
        Ok(())
    })
}
