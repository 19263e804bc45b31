//! Why a tiled loop did not go on.

use std::time::Duration;

use piped_core::status::Status;

use super::Axes;
use crate::error::{
    AllocateError, Cause, ExportError, OpenError, QueueError, RequestError, SubmitError,
};

/// Why a process of a [`crate::TilePipeline`] did not go on. Neighbours are named by their place in
/// the grid.
///
/// ```
/// use piped_client::{Axes, Cause, Status, TileError};
/// let at = Axes { x: 2, y: 0 };
/// let error = TileError::Neighbour { at, cause: Cause::Status(Status::Gone) };
/// assert!(error.to_string().starts_with("the process at (2, 0)"));
/// ```
#[derive(thiserror::Error)]
pub enum TileError {
    /// An option makes no sense; nothing was done.
    #[error("{0}")]
    Options(&'static str),
    /// No memory for borders.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The client has no queue to give.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The own region was not exported: most likely another process has this place of the grid.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A neighbour did not come.
    #[error("the process at ({}, {}) did not come in time: {source}", at.x, at.y)]
    Absent {
        /// The neighbour's place in the grid.
        at: Axes<u32>,
        /// The last error of opening its region.
        source: OpenError,
    },
    /// A neighbour ended, or its node was lost.
    #[error("the process at ({}, {}) is lost: {cause}", at.x, at.y)]
    Neighbour {
        /// The neighbour's place in the grid.
        at: Axes<u32>,
        /// The failure that showed it.
        cause: Cause,
    },
    /// A neighbour is there and did nothing for as long as this process is patient.
    #[error("the process at ({}, {}) did nothing for {patience:?}; give more patience if its tiles \
             take that long", at.x, at.y)]
    Late {
        /// The neighbour's place in the grid.
        at: Axes<u32>,
        /// The limit of the wait, [`crate::TileOptions::patience`].
        patience: Duration,
    },
    /// A neighbour works on something else.
    #[error("the process at ({}, {}) has another {what} ({theirs} instead of {ours}); give all the \
             same options, depth and order of runs", at.x, at.y)]
    Mismatch {
        /// The neighbour's place in the grid.
        at: Axes<u32>,
        /// The quantity in which the two processes differ.
        what: &'static str,
        /// The value in this process.
        ours: u64,
        /// The value in the neighbour.
        theirs: u64,
    },
    /// The daemon of this node ended, or ended this session.
    #[error(transparent)]
    Own(Cause),
    /// An earlier run failed.
    #[error("an earlier run of this pipeline failed, and its neighbours were told; open a new one")]
    Over,
}

crate::told::debug_is_told!(TileError);

impl TileError {
    /// The error of a request to a neighbour.
    pub(super) fn of(at: Axes<u32>, patience_ns: u64, error: &RequestError) -> Self {
        match error.cause {
            Cause::Status(Status::DeadlineExceeded) => Self::late(at, patience_ns),
            cause => Self::of_cause(at, cause),
        }
    }

    fn of_cause(at: Axes<u32>, cause: Cause) -> Self {
        match cause {
            Cause::Status(_) | Cause::Unknown(_) => Self::Neighbour { at, cause },
            // Nobody else has to do with those.
            _ => Self::Own(cause),
        }
    }

    pub(super) fn late(at: Axes<u32>, patience_ns: u64) -> Self {
        Self::Late { at, patience: Duration::from_nanos(patience_ns) }
    }
}

impl<B> From<SubmitError<B>> for TileError {
    fn from(error: SubmitError<B>) -> Self {
        Self::Own(Cause::NotSubmitted(error.fault))
    }
}
