//! What is under way at the driver.

use std::collections::VecDeque;

use piped_core::io::Op;
use piped_core::units::Nanos;

use super::devices::Devices;
use super::disk::Job;
use super::keys::{OpKey, kind};
use super::ops::InFlight;
use super::slab::Slab;

/// The operations of a shard at its driver, and what they are for.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) ops: Slab<kind::Op, InFlight>,
    pub(super) devices: Devices,
    /// Operations the driver had no room for. At most as many as `ops` has places.
    pub(super) stalled: VecDeque<(OpKey, Op)>,
    pub(super) jobs: Slab<kind::Job, Job>,
    /// When the driver is asked again that had no room, should nothing end before.
    pub(super) ask_at: Option<Nanos>,
}

impl Driver {
    /// Room for so many operations.
    pub(super) fn new(ops_max: u32) -> Self {
        Self {
            ops: Slab::with_capacity(ops_max),
            devices: Devices::new(ops_max),
            stalled: VecDeque::with_capacity(ops_max as usize),
            jobs: Slab::with_capacity(ops_max),
            ask_at: None,
        }
    }
}
