//! What is under way at the driver: operations, fragments at devices, and open files.
//!
//! ```text
//!  start_job ──► a device's gate ──► its pieces ─┐
//!  allocate_ahead, start_sync ───────────────────┼─► ops ─► the driver ─► end ─► Ended
//!  start_op (a connection's send or receive) ────┘
//! ```
//!
//! Who waits for something is named by a key, and kept from ending by a pin. What has ended is
//! returned, and the shard hands it to what it is for. A fragment uses more than its device:
//! staging, the costs of stages, what is seen of requests. These are [`Lent`] for each call.

mod devices;
mod gate;
mod in_cache;
mod jobs;
mod looks;
mod ops;
mod pieces;
mod recent;

use std::collections::BTreeMap;

use piped_core::ids::FileId;
use piped_core::io::{Done, Io, Op};
use piped_core::limits::OPS_PER_JOB;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::plan::Planner;

use super::buffers::Buffers;
use super::keys::{JobKey, LaneKey, OpKey, TransferKey, kind};
use super::pins::{AnyPin, Pin, Pins};
use super::sched::{Sched, Work};
use super::slab::{Key, Slab};
use super::watch::Watch;
use crate::command::FileTarget;

use self::devices::Devices;
use self::jobs::Job;
use self::ops::Ops;
use self::pieces::PIECES_MAX;

pub(super) use self::devices::{On, Wanted};
pub(super) use self::in_cache::{Found, InCache};
pub(super) use self::jobs::{Fragment, JobEnd, JobOwner, JobResult};
pub(super) use self::ops::{ECANCELED, OpOwner, notice_of, notice_token, status_of};
pub(super) use self::pieces::Direction;
pub(super) use self::recent::Recent;

/// The operations of a shard at its driver, and what they are for.
#[derive(Debug)]
pub(super) struct Driver {
    ops: Ops,
    jobs: Slab<kind::Job, Job>,
    devices: Devices,
    files: BTreeMap<FileId, FileState>,
    /// When the completions since the last turn were handed over.
    batch: Option<Nanos>,
}

/// What is lent to a driver for fragments.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    pub(in crate::shard) sched: &'a mut Sched,
    pub(in crate::shard) buffers: &'a mut Buffers,
    pub(in crate::shard) planner: &'a mut Planner,
    pub(in crate::shard) watch: &'a mut Watch,
    /// What is behind the devices holds as much as it may.
    pub(in crate::shard) is_full: bool,
}

/// What the shard knows of a file beside its handle.
#[derive(Debug, Clone, Copy)]
struct FileState {
    /// Its length as far as this shard extended it.
    length: u64,
    /// False once the file system said that it cannot allocate ahead.
    can_allocate: bool,
    on: On,
    in_cache: InCache,
}

/// What the end of an operation means.
#[derive(Debug)]
pub(super) enum Ended {
    /// A fragment goes on.
    Nothing,
    /// A fragment has left its device.
    Job(JobEnd),
    /// An allocation, a sync or a call is over, with this result.
    Step(AnyPin, i32),
    /// A lane's send is over.
    Sent(LaneKey, i32),
    /// A lane's receive is over.
    Received(LaneKey, i32),
}

/// What became of allocating ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    NotNeeded,
    Started,
    NoRoom(Wanted),
}

impl Driver {
    /// Room for so many operations.
    pub(super) fn new(ops_max: u32) -> Self {
        Self {
            ops: Ops::new(ops_max),
            jobs: Slab::with_capacity(ops_max),
            devices: Devices::new(ops_max),
            files: BTreeMap::new(),
            batch: None,
        }
    }

    /// How many operations are under way.
    pub(super) fn len(&self) -> u32 {
        self.ops.len()
    }

    /// Whether another operation finds a place.
    pub(super) fn has_room(&self) -> bool {
        self.ops.room() > 0
    }

    /// What each device has to do.
    pub(super) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// A turn begins: the driver gets what it had no room for, and devices the jobs whose turn has
    /// come, as far as there is room for their operations.
    pub(super) fn begin_turn<I: Io>(&mut self, lent: &mut Lent<'_>, io: &mut I) {
        self.batch = None;
        self.ops.push_stalled(io);
        while self.devices.reserved() > 0 && self.ops.room() >= OPS_PER_JOB {
            let Some(key) = self.devices.poll_any_job(io.now()) else { return };
            self.launch(key, lent, io);
        }
    }

    /// A turn that began at `now` is over. What ends from now on ends at another time, and the next
    /// turn may be long in coming.
    pub(super) fn end_turn(&mut self, now: Nanos) {
        self.batch = None;
        self.ops.look_later(now);
    }

    /// When a turn must begin at the latest.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        self.ops.ask_at()
    }

    /// One time for all completions handed over together. The time between handling one and the
    /// next is the reactor's own; taken for a device's it would look a hundred times faster than it
    /// is.
    pub(super) fn batch_time<I: Io>(&mut self, io: &mut I) -> Nanos {
        *self.batch.get_or_insert_with(|| io.now())
    }

    /// Hands an operation of a lane's to the driver, now or as soon as the driver has room. `None`
    /// if there is no place for it; try after the next completion.
    pub(super) fn start_op<I: Io>(&mut self, owner: OpOwner, op: Op, io: &mut I) -> Option<OpKey> {
        self.ops.start(owner, None, op, io)
    }

    /// Whether a device may have one more operation; what must end first.
    fn may_step(&self, on: On) -> Result<(), Wanted> {
        if !self.devices.has_room(on, self.ops.len()) {
            return Err(Wanted::Device(on));
        }
        if self.ops.room() == 0 { Err(Wanted::Anything) } else { Ok(()) }
    }

    /// Whether a device may have one more call; what must end first.
    pub(super) fn may_call(&self, on: On) -> Result<(), Wanted> {
        if !self.devices.has_room_for_call(on) {
            return Err(Wanted::Device(on));
        }
        self.may_step(on)
    }

    /// Hands a call to the driver, of what lies on a device that may have it. `staging`: what its
    /// answer takes, in bytes; that waits for the device until the call is carried out.
    pub(super) fn start_call<T, I: Io>(
        &mut self,
        (of, pins): (Key<T>, &mut Pins),
        on: On,
        (op, staging): (Op, u64),
        io: &mut I,
    ) -> Result<(), Wanted>
    where
        AnyPin: From<Pin<T>>,
    {
        self.may_call(on)?;
        let owner = OpOwner::Call(pins.take(of).into(), staging);
        let started = self.ops.start(owner, Some(on), op, io);
        debug_assert!(started.is_some(), "room was checked above");
        let now = io.now();
        self.devices.begin(on, now);
        self.devices.begin_call(on);
        self.devices.hold(on, 0, staging);
        Ok(())
    }

    /// Hands an operation on a file to the driver, if the device may have it.
    fn start_step<T, I: Io>(
        &mut self,
        (of, pins): (Key<T>, &mut Pins),
        on: On,
        op: Op,
        io: &mut I,
    ) -> Result<(), Wanted>
    where
        AnyPin: From<Pin<T>>,
    {
        self.may_step(on)?;
        let owner = OpOwner::Step(pins.take(of).into());
        let started = self.ops.start(owner, Some(on), op, io);
        debug_assert!(started.is_some(), "room was checked above");
        let now = io.now();
        self.devices.begin(on, now);
        Ok(())
    }

    /// Starts a job, or says what it must wait for.
    pub(super) fn start_job<I: Io>(
        &mut self,
        fragment: Fragment,
        pins: &mut Pins,
        lent: &mut Lent<'_>,
        io: &mut I,
    ) -> Result<(), Wanted> {
        let Fragment { target, direction, flow, span, .. } = fragment;
        let on = On::from(&target);
        if !self.devices.has_room(on, self.ops.len()) {
            return Err(Wanted::Device(on));
        }
        let ops = OPS_PER_JOB + self.devices.reserved();
        if self.jobs.room() == 0 || self.ops.room() < ops || lent.is_full {
            return Err(Wanted::Anything);
        }
        let now = io.now();
        let stage = match target.cached {
            true => lent.planner.cache_stage(target.device),
            false => lent.planner.disk_stage(target.device, direction == Direction::Write),
        };
        let counters = &mut lent.watch.counters;
        let job = Job::new(fragment, stage, pins, lent.buffers, counters);
        self.devices.hold(on, span.length, job.staging_bytes());
        let Ok(key) = self.jobs.insert(job) else { unreachable!("room was checked above") };
        if self.devices.arrive(on, flow, span.length, key, now) {
            self.launch(key, lent, io);
        } else {
            lent.watch.counters.turns_waited += 1;
        }
        Ok(())
    }

    /// Gives a job to its device.
    fn launch<I: Io>(&mut self, key: JobKey, lent: &mut Lent<'_>, io: &mut I) {
        let now = io.now();
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.arrive(lent, now);
        for index in 0..PIECES_MAX {
            self.push_piece(key, index, io);
        }
    }

    /// Pushes what is left of a piece.
    fn push_piece<I: Io>(&mut self, key: JobKey, index: usize, io: &mut I) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(op) = job.next_op(index) else { return };
        let (owner, on) = (OpOwner::Piece { job: key, piece: index as u8 }, job.on());
        if self.ops.start(owner, Some(on), op, io).is_none() {
            return job.end_piece(index, Status::WouldBlock);
        }
        let now = io.now();
        self.devices.begin(on, now);
    }

    /// Takes the end of a piece's operation. The end of its job, if it was the last one.
    fn end_piece<I: Io>(
        &mut self,
        (key, index): (JobKey, usize),
        result: i32,
        lent: &mut Lent<'_>,
        io: &mut I,
    ) -> Option<JobEnd> {
        if self.jobs.get_mut(key)?.advance(index, result) {
            self.push_piece(key, index, io);
        }
        if !self.jobs.get(key)?.is_over() {
            return None;
        }
        let job = self.jobs.remove(key)?;
        let (on, Fragment { flow, span, .. }) = (job.on(), *job.fragment());
        self.devices.let_go(on, span.length, job.staging_bytes());
        job.unbounce(lent, io);
        let now = self.batch_time(io);
        self.devices.leave(on, flow.class, span.length, job.is_direct(), now);
        if self.ops.room() >= OPS_PER_JOB
            && let Some(next) = self.devices.poll_job(on, now)
        {
            self.launch(next, lent, io);
        }
        Some(job.depart(lent, now))
    }

    /// What is given up does not go to its device any more.
    pub(super) fn drop_waiting<I: Io>(
        &mut self,
        work: Work,
        lent: &mut Lent<'_>,
        io: &mut I,
    ) -> Vec<JobEnd> {
        let Self { devices, jobs, .. } = self;
        let is_of = |job: &Job| Work::from(job.fragment().owner.subject()) == work;
        let dropped = devices.remove_jobs(|&key| jobs.get(key).is_some_and(is_of));
        let ends = dropped.into_iter().filter_map(|key| {
            let job = jobs.remove(key)?;
            devices.let_go(job.on(), job.fragment().span.length, job.staging_bytes());
            job.unbounce(lent, io);
            Some(job.end(0, Status::Cancelled))
        });
        ends.collect()
    }

    /// Takes the end of an operation: what it means, and the device if it was a file's. The caller
    /// says to [`Self::end_at`] that the device has ended something, after it has handed on the
    /// rest.
    pub(super) fn end<I: Io>(
        &mut self,
        done: Done,
        lent: &mut Lent<'_>,
        io: &mut I,
    ) -> Option<(Ended, Option<On>)> {
        let Some((owner, on)) = self.ops.end(done.token) else {
            debug_assert!(false, "the driver ended an operation twice: {done:?}");
            return None;
        };
        let ended = match owner {
            OpOwner::Piece { job, piece } => {
                let end = self.end_piece((job, piece.into()), done.result, lent, io);
                end.map_or(Ended::Nothing, Ended::Job)
            }
            OpOwner::Step(pin) => Ended::Step(pin, done.result),
            OpOwner::Call(pin, staging) => {
                if let Some(on) = on {
                    self.devices.end_call(on);
                    self.devices.let_go(on, 0, staging);
                }
                Ended::Step(pin, done.result)
            }
            OpOwner::LaneSend(lane) => Ended::Sent(lane, done.result),
            OpOwner::LaneReceive(lane) => Ended::Received(lane, done.result),
        };
        Some((ended, on))
    }

    /// A device has ended something: what waited for that may try again.
    pub(super) fn end_at(&mut self, on: On, now: Nanos, sched: &mut Sched) {
        for work in self.devices.end(on, now) {
            sched.unpark(work);
        }
    }

    /// Has work wait for what it needs to end.
    pub(super) fn want(&mut self, work: Work, wanted: Wanted, sched: &mut Sched) {
        match wanted {
            Wanted::Anything => sched.starve(work),
            Wanted::Device(on) => self.devices.park(on, work, sched),
        }
    }

    /// Asks the driver to give up on whatever a transfer has under way. `lands_in`: whether what a
    /// lane receives lands in its buffer. Returns the ends of what the driver was never given.
    pub(super) fn cancel_ops_of<I: Io>(
        &mut self,
        transfer: TransferKey,
        lands_in: impl Fn(LaneKey) -> bool,
        io: &mut I,
    ) -> Vec<Done> {
        let (Self { ops, jobs, .. }, work) = (self, Work::Transfer(transfer));
        let is_of = |owner: &OpOwner| match owner {
            OpOwner::Piece { job, .. } => {
                jobs.get(*job).is_some_and(|job| Work::from(job.fragment().owner.subject()) == work)
            }
            OpOwner::LaneReceive(lane) => lands_in(*lane),
            OpOwner::Step(pin) | OpOwner::Call(pin, _) => pin.work() == work,
            OpOwner::LaneSend(_) => false,
        };
        ops.cancel(is_of, io)
    }

    /// Takes back a closing lane's operations that the driver has not seen, and returns their ends;
    /// the others end with its socket.
    pub(super) fn cancel_stalled_of(&mut self, lane: LaneKey) -> Vec<Done> {
        self.ops.take_back(|owner| {
            matches!(owner, OpOwner::LaneSend(of) | OpOwner::LaneReceive(of) if *of == lane)
        })
    }

    /// A file is open from now on.
    pub(super) fn open_file(&mut self, file: &FileTarget) {
        let state = FileState {
            length: file.length,
            can_allocate: true,
            on: On::from(file),
            in_cache: InCache::default(),
        };
        self.files.insert(file.buffered, state);
    }

    /// A file is closed.
    pub(super) fn close_file(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    /// The device of an open file.
    pub(super) fn on(&self, file: FileId) -> Option<On> {
        self.files.get(&file).map(|file| file.on)
    }

    /// The length of an open file, as far as this shard extended it; 0 of one that is closed.
    pub(super) fn length_of(&self, file: FileId) -> u64 {
        self.files.get(&file).map_or(0, |file| file.length)
    }

    /// What is known of an open file in the page cache.
    pub(super) fn in_cache(&mut self, file: FileId) -> Option<&mut InCache> {
        self.files.get_mut(&file).map(|file| &mut file.in_cache)
    }

    /// Gives an extending write its blocks before its bytes, so that direct writes beside each
    /// other need not each move the end of the file.
    pub(super) fn allocate_ahead<T, I: Io>(
        &mut self,
        of: (Key<T>, &mut Pins),
        target: &FileTarget,
        (offset, length): (u64, u64),
        io: &mut I,
    ) -> Ahead
    where
        AnyPin: From<Pin<T>>,
    {
        let file = target.buffered;
        let Some(state) = self.files.get(&file) else { return Ahead::NotNeeded };
        if offset + length <= state.length || !state.can_allocate || target.direct.is_none() {
            return Ahead::NotNeeded;
        }
        match self.start_step(of, state.on, Op::Allocate { file, offset, length }, io) {
            Ok(()) => Ahead::Started,
            Err(wanted) => Ahead::NoRoom(wanted),
        }
    }

    /// Books the end of an allocation.
    pub(super) fn allocated(&mut self, file: FileId, end: u64, result: i32) -> Result<(), Status> {
        const EOPNOTSUPP: i32 = -95;
        const ENOSYS: i32 = -38;
        let Some(state) = self.files.get_mut(&file) else { return Ok(()) };
        match result {
            EOPNOTSUPP | ENOSYS => state.can_allocate = false,
            result if result < 0 => return Err(status_of(result)),
            _ => state.length = state.length.max(end),
        }
        Ok(())
    }

    /// Hands the sync of an open file to its device.
    pub(super) fn start_sync<T, I: Io>(
        &mut self,
        of: (Key<T>, &mut Pins),
        file: FileId,
        io: &mut I,
    ) -> Result<(), Wanted>
    where
        AnyPin: From<Pin<T>>,
    {
        let on = self.files.get(&file).expect("a file in use is open").on;
        self.start_step(of, on, Op::Sync { file }, io)
    }
}
