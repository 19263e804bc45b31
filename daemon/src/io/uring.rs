//! The driver: operations in, completions out, one `io_uring_enter` a turn.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use io_uring::{opcode, squeue};
use piped_core::ids::{FileId, SegmentId, SocketId};
use piped_core::modes::IoFeature;
use piped_ring::Segment;

use super::aside::Aside;
use super::bounce::Bounces;
use super::counters::UringCounters;
use super::hold::Hold;
use super::memory::Memory;
use super::ops::{Loan, Ops, Owner, State};
use super::priority::Priorities;
use super::probe::{FeatureMask, Shape, Taskrun};
use super::receives::Receives;
use super::registration::REGISTRATION_BYTES_PER_TURN;
use super::restrict::{Bounds, Registers};
use super::ring::{Patience, Ring};
use super::tables::{Descriptors, Fd};
use super::wake::{WatchId, Watches};
use super::{UringError, page_cache, probe, restrict};
use crate::closing::HeldFile;

/// Size of the driver, and features that it may use. Its memory is taken when it is made.
#[derive(Debug, Clone)]
pub struct UringConfig {
    /// The most operations in flight; beyond it `Io::push` says no.
    pub ops_max: u32,
    /// Entries of the submission queue: the most operations one system call submits.
    pub sq_entries: u32,
    /// The most files and sockets together.
    pub files_max: u32,
    /// The most segments, 16384 at most.
    pub segments_max: u32,
    /// The most doorbells at once.
    pub watches_max: u32,
    /// Features that may be used.
    pub features: FeatureMask,
    /// Idle milliseconds after which a kernel thread that submits goes to sleep; none without one.
    /// The thread costs a CPU.
    pub sqpoll_idle_ms: Option<u32>,
}

impl Default for UringConfig {
    fn default() -> Self {
        Self {
            ops_max: 1024,
            sq_entries: 256,
            files_max: 4096,
            segments_max: 1024,
            watches_max: 1024,
            features: FeatureMask::ALL,
            sqpoll_idle_ms: None,
        }
    }
}

/// The production driver of the engine's [`Io`].
///
/// The driver belongs to the thread that made it (`SINGLE_ISSUER`, and the ring's registered
/// descriptor is the thread's). The compiler checks that: the driver is neither `Send` nor `Sync`.
/// Make it on the shard's thread.
///
/// A turn is: [`Io::push`] what the engine has, then either [`UringIo::submit`] or
/// [`UringIo::wait`], then [`UringIo::poll_dones`], then [`UringIo::take_woken`]. Between turns
/// [`UringIo::poll_registration`] pins new memory in small steps.
///
/// Dropping it cancels and awaits everything in flight for at most [`UringIo::SHUTDOWN_TIMEOUT`];
/// memory that the kernel has not given back by then is leaked rather than freed under it.
///
/// [`Io`]: piped_core::io::Io
/// [`Io::push`]: piped_core::io::Io::push
#[derive(Debug)]
pub struct UringIo {
    // Fields are dropped in this order: the ring goes before what it points to.
    pub(super) ring: Ring,
    pub(super) ops: Ops,
    pub(super) descriptors: Descriptors,
    pub(super) memory: Memory,
    pub(super) watches: Watches,
    /// Operations that never got to the kernel; at most `ops_max`.
    pub(super) refused: VecDeque<u32>,
    pub(super) receives: Receives,
    /// Cancellations that have to wait for the queue; at most one per operation and doorbell.
    pub(super) cancels: VecDeque<Owner>,
    /// File operations in flight: with some, a wait counts as I/O wait.
    pub(super) file_ops: u32,
    /// File operations that are queued and not submitted.
    pub(super) file_ops_queued: u32,
    /// Decides how long these wait for more of their kind.
    pub(super) hold: Hold,
    /// Whether the kernel is told that a receive is whole; if not, the driver continues it alone.
    pub(super) ask_whole: bool,
    pub(super) priorities: Priorities,
    /// A fault that could not be returned where it occurred.
    pub(super) fault: Option<UringError>,
    pub(super) counters: UringCounters,
    /// Memory in place of what can vanish, for sockets.
    pub(super) bounces: Bounces,
    /// Threads for foreign files and calls, once there is such a file or a call that may block.
    pub(super) aside: Option<Aside>,
    /// Operations that the ring may do.
    pub(super) bounds: Bounds,
    pub(super) features: FeatureMask,
    taskrun: Taskrun,
    startup: Vec<String>,
}

impl UringIo {
    /// Makes the ring and its tables, without the features that the kernel or the mask lacks.
    ///
    /// # Errors
    /// [`UringError::Refused`] where io_uring is forbidden, [`UringError::TooOld`] where it lacks
    /// something indispensable, [`UringError::Setup`] for lack of memory or descriptors.
    pub fn new(config: &UringConfig) -> Result<Self, UringError> {
        // Every operation and every cancellation of it ends with one completion, and every doorbell
        // may have rung: with room for all of them the kernel never has to keep any for later.
        let completions = config.ops_max.saturating_mul(2).saturating_add(config.watches_max);
        Self::with_completions(config, completions)
    }

    pub(super) fn with_completions(
        config: &UringConfig,
        completions: u32,
    ) -> Result<Self, UringError> {
        let mut features = config.features;
        let mut startup = Vec::new();
        let ops_max = config.ops_max.max(1);
        let shape = Shape {
            sq_entries: config.sq_entries.max(1),
            cq_entries: completions.max(config.sq_entries).max(2),
            ..probe::choose(&mut features, config.sqpoll_idle_ms, &mut startup)?
        };
        let offered = bounds_of(&mut features, &mut startup);
        let shape = Shape { disabled: offered != Bounds::None, ..shape };
        let built = shape.build().map_err(UringError::from_setup)?;
        probe::require(&built)?;
        let lacks_zero_copy = probe::lacks_zero_copy(&built);
        let mut ring = Ring::new(built);
        let mut wanted = |feature: IoFeature| {
            let wanted = features.has(feature);
            if !wanted {
                startup.push(format!("{feature}: switched off by [io] disable_features"));
            }
            wanted
        };
        // One more for a bell of our own, see `aside`.
        let doorbells = config.watches_max.saturating_add(1);
        let (files, in_table) = (config.files_max, wanted(IoFeature::RegisteredFiles));
        let mut descriptors = Descriptors::new(files, doorbells, in_table, &ring.submitter());
        let memory = Memory::new(
            config.segments_max,
            wanted(IoFeature::RegisteredBuffers),
            &ring.submitter(),
        );
        let multishot = wanted(IoFeature::MultishotPoll);
        let wanted_zero_copy = wanted(IoFeature::SendZeroCopy);
        let wanted_page_cache = wanted(IoFeature::PageCache);
        if wanted(IoFeature::RingFd)
            && let Err(error) = ring.register_fd()
        {
            features.remove(IoFeature::RingFd);
            startup.push(format!("ring_fd: the kernel refuses it ({error})"));
        }
        if wanted_zero_copy && let Some(why) = lacks_zero_copy {
            features.remove(IoFeature::SendZeroCopy);
            startup.push(format!("{}: {why}", IoFeature::SendZeroCopy));
        }
        if wanted_page_cache && let Some(error) = page_cache::lacks() {
            features.remove(IoFeature::PageCache);
            startup.push(format!(
                "{}: the kernel cannot tell what it has cached ({error}); cachestat came with \
                 Linux 6.5, and a filter of system calls may deny it",
                IoFeature::PageCache
            ));
        }
        let places = descriptors.place_of_doorbells(doorbells);
        let bounds = match offered {
            Bounds::Files if places.is_none() => {
                startup.push(String::from(
                    "restrictions: the ring's operations are listed, but not bound to registered \
                     files: its table has no room for all of them (see registered_files, and \
                     LimitNOFILE= of the unit)",
                ));
                Bounds::Operations
            }
            offered => offered,
        };
        if bounds == Bounds::Files {
            descriptors.bound();
        }
        let places = places.filter(|_| bounds == Bounds::Files);
        let watches = Watches::new(doorbells, multishot, places);
        if shape.disabled {
            let registers = Registers {
                files: descriptors.has_table(),
                buffers: memory.has_table(),
                ring_fd: false,
            };
            ring.serve(bounds, registers).map_err(UringError::from_setup)?;
        }
        Ok(Self {
            ring,
            ops: Ops::new(ops_max),
            descriptors,
            memory,
            watches,
            refused: VecDeque::with_capacity(ops_max as usize),
            receives: Receives::new(ops_max),
            cancels: VecDeque::with_capacity(ops_max as usize + config.watches_max as usize),
            file_ops: 0,
            file_ops_queued: 0,
            hold: Hold::default(),
            ask_whole: true,
            priorities: Priorities::of_this_thread(),
            bounds,
            fault: None,
            counters: UringCounters::default(),
            bounces: Bounces::default(),
            aside: None,
            features,
            taskrun: shape.taskrun,
            startup,
        })
    }

    /// Names of the features in use.
    #[must_use]
    pub fn tier(&self) -> Vec<String> {
        let taskrun = match self.taskrun {
            Taskrun::Defer => "defer_taskrun",
            Taskrun::Coop => "coop_taskrun",
            Taskrun::Interrupt => "interrupt_taskrun",
            Taskrun::Polled { .. } => "sqpoll",
        };
        let features = [
            (IoFeature::RegisteredBuffers, self.memory.has_table()),
            (IoFeature::RegisteredFiles, self.descriptors.has_table()),
            (IoFeature::RingFd, self.features.has(IoFeature::RingFd)),
            (IoFeature::SubmitAll, self.features.has(IoFeature::SubmitAll)),
            (IoFeature::NoSqarray, self.features.has(IoFeature::NoSqarray)),
            (IoFeature::MultishotPoll, self.watches.multishot()),
            (IoFeature::SendZeroCopy, self.features.has(IoFeature::SendZeroCopy)),
            (IoFeature::Restrictions, self.bounds != Bounds::None),
            (IoFeature::PageCache, self.features.has(IoFeature::PageCache)),
        ];
        let used = features.iter().filter(|(_, used)| *used).map(|(feature, _)| feature.name());
        std::iter::once(taskrun).chain(used).map(str::to_owned).collect()
    }

    /// Features that are not in use, with the reason, a sentence each.
    #[must_use]
    pub fn degraded(&self) -> Vec<String> {
        let late = [&self.memory.degraded, &self.descriptors.degraded, &self.watches.degraded];
        self.startup.iter().chain(late.into_iter().flatten()).cloned().collect()
    }

    /// Counters of the driver.
    #[must_use]
    pub fn counters(&self) -> UringCounters {
        UringCounters { in_flight: self.ops.in_flight() as u64, ..self.counters }
    }

    /// Number of files and sockets, and of segments, with released ones that are still in use.
    #[must_use]
    pub fn holds(&self) -> (u32, u32) {
        (self.descriptors.count(), self.memory.count())
    }

    /// Takes a segment over, which can be used at once; [`UringIo::poll_registration`] registers
    /// it.
    ///
    /// # Errors
    /// [`UringError::Full`].
    pub fn add_segment(&mut self, segment: Arc<Segment>) -> Result<SegmentId, UringError> {
        self.memory.add(segment).map(SegmentId)
    }

    /// Table of segments, for what shards lend each other.
    pub(crate) fn segments(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Hands segments over after their last use, instead of dropping them here: unmapping takes
    /// some 180 us a MiB, which the shard should leave to the control thread. The driver still
    /// drops those it holds when it is dropped itself.
    pub fn retire_segments_to(&mut self, undertaker: impl FnMut(Arc<Segment>) + 'static) {
        self.memory.undertaker = Some(Box::new(undertaker));
    }

    /// A segment of which some memory has vanished, as an access has found; each is told once.
    pub fn take_torn(&mut self) -> Option<SegmentId> {
        self.memory.take_torn().map(SegmentId)
    }

    /// Registers waiting segments, [`super::REGISTRATION_BYTES_PER_TURN`] at most. `true` if more
    /// are waiting for the next turn.
    pub fn poll_registration(&mut self) -> bool {
        let (submitter, counters) = (self.ring.submitter(), &mut self.counters);
        self.memory.register_some(REGISTRATION_BYTES_PER_TURN, &submitter, counters)
    }

    /// Takes an open file over, which is dropped after its last use.
    ///
    /// # Errors
    /// [`UringError::Full`], [`UringError::Register`]; the file is dropped then.
    pub fn add_file(&mut self, file: impl Into<HeldFile>) -> Result<FileId, UringError> {
        self.add_descriptor(Fd::File(Arc::new(file.into()))).map(FileId)
    }

    /// Takes an open file of a foreign file system over. No operation on it can block the ring or
    /// this thread.
    ///
    /// # Errors
    /// [`UringError::Full`]; the file is dropped then. [`UringError::Setup`] for lack of
    /// descriptors.
    pub fn add_foreign_file(&mut self, file: impl Into<HeldFile>) -> Result<FileId, UringError> {
        self.with_aside()?;
        self.add_descriptor(Fd::Foreign(Arc::new(file.into()))).map(FileId)
    }

    /// Takes an open directory over, for calls; the ring never sees it. `foreign`: of a foreign
    /// file system.
    ///
    /// # Errors
    /// [`UringError::Full`]; the directory is closed then. [`UringError::Setup`] for lack of
    /// descriptors.
    pub fn add_directory(
        &mut self,
        directory: impl Into<HeldFile>,
        foreign: bool,
    ) -> Result<FileId, UringError> {
        if foreign {
            return self.add_foreign_file(directory);
        }
        self.add_descriptor(Fd::Directory(Arc::new(directory.into()))).map(FileId)
    }

    /// Has the pool of threads, without threads at first.
    pub(super) fn with_aside(&mut self) -> Result<(), UringError> {
        if self.aside.is_none() {
            let ops_max = self.ops.capacity();
            let Self { watches, ring, counters, .. } = self;
            let watch = |bell| watches.add(bell, &ring.submitter(), counters);
            self.aside = Some(Aside::new(ops_max, watch)?);
        }
        Ok(())
    }

    /// Takes a connected stream socket over, with its options already set.
    ///
    /// # Errors
    /// [`UringError::Full`], [`UringError::Register`]; the socket is closed then.
    pub fn add_socket(&mut self, fd: OwnedFd) -> Result<SocketId, UringError> {
        self.add_descriptor(Fd::Socket(fd)).map(SocketId)
    }

    fn add_descriptor(&mut self, fd: Fd) -> Result<u32, UringError> {
        self.descriptors.add(fd, &self.ring.submitter(), &mut self.counters)
    }

    /// Watches an eventfd: from the next submission on, its rings end [`UringIo::wait`].
    ///
    /// # Errors
    /// [`UringError::Full`], [`UringError::Register`]; the eventfd is closed then.
    pub fn watch(&mut self, eventfd: OwnedFd) -> Result<WatchId, UringError> {
        self.watches.add(eventfd, &self.ring.submitter(), &mut self.counters)
    }

    /// Stops watching and closes the eventfd.
    pub fn unwatch(&mut self, watch: WatchId) {
        if self.watches.release(watch, &self.ring.submitter(), &mut self.counters) {
            self.ask_cancel(Owner::Watch { id: watch.0 });
        }
    }

    /// Doorbells that have rung by the last [`UringIo::poll_dones`]; each at most once.
    pub fn take_woken(&mut self) -> impl Iterator<Item = WatchId> + '_ {
        self.watches.take_woken()
    }

    /// Makes room for one more entry, at the price of at most one submission.
    pub(super) fn make_room(&mut self) -> bool {
        self.ring.sq_has_room() || {
            self.enter(Patience::None);
            self.ring.sq_has_room()
        }
    }

    /// Enters the kernel; a fault is kept for the next call that can return it.
    pub(super) fn enter(&mut self, patience: Patience) {
        let quiet = self.file_ops == 0;
        self.file_ops_queued = 0;
        self.hold.reset();
        if let Err(fault) = self.ring.enter(patience, quiet, &mut self.counters) {
            self.fault = Some(fault);
        }
    }

    /// Queues an operation's entry. The caller has made room for it.
    pub(super) fn queue(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: entries are built by `prepare`, `stream_entry`, `queue_cancel` and
        // `Watches::next_to_arm`, from loans only: memory and descriptors that the
        // operation's slot counts until its completion has been taken, and address lists in the
        // slab, which never moves. Dropping the driver awaits or leaks what is still lent. Polls
        // and cancellations point to no memory.
        unsafe { self.ring.push(entry) }
    }

    /// Asks the kernel to end an operation early, now or with the next submission.
    fn ask_cancel(&mut self, owner: Owner) {
        // The operation to cancel may itself still wait.
        if !self.receives.is_empty() || !self.queue_cancel(owner) {
            self.cancels.push_back(owner);
        }
    }

    /// Queues a cancellation; `false` if the queue is full.
    pub(super) fn queue_cancel(&mut self, owner: Owner) -> bool {
        let entry = opcode::AsyncCancel::new(owner.user_data())
            .build()
            .flags(self.bounds.flags())
            .user_data(Owner::Cancel.user_data());
        let queued = self.make_room() && self.queue(&entry);
        self.counters.cancels += u64::from(queued);
        queued
    }

    /// Refuses an operation that makes no sense.
    pub(super) fn refuse(&mut self, index: u32, errno: i32) {
        self.counters.misuses += 1;
        self.end_later(index, errno);
    }

    /// Ends an operation that the kernel does not have, with the next look at completions.
    pub(super) fn end_later(&mut self, index: u32, result: i32) {
        self.ops.slot(index).state = State::Refused(result);
        self.refused.push_back(index);
    }

    /// Cancels the operation at a place of the slab, once.
    pub(super) fn cancel_at(&mut self, index: u32) {
        let slot = self.ops.slot(index);
        // A send that has ended and lends cannot be cancelled: the end of its socket ends it.
        let over = matches!(slot.loan, Some(Loan::Notice { .. }));
        if slot.cancelled || over || slot.state != State::InFlight {
            return;
        }
        slot.cancelled = true;
        if self.receives.forget(index) {
            return self.end_later(index, -libc::ECANCELED);
        }
        let slot = self.ops.slot(index);
        if slot.aside {
            if let Some(aside) = &mut self.aside {
                aside.cancel(index);
            }
            return;
        }
        let owner = Owner::of(self.ops.user_data(index));
        self.ask_cancel(owner);
    }
}

/// Narrowest bounds of the ring, with the reason if they are wide.
fn bounds_of(features: &mut FeatureMask, startup: &mut Vec<String>) -> Bounds {
    let feature = IoFeature::Restrictions;
    if !features.has(feature) {
        startup.push(format!("{feature}: switched off by [io] disable_features"));
        return Bounds::None;
    }
    let (bounds, why) = match restrict::offered() {
        Ok(Bounds::Files) => return Bounds::Files,
        Ok(bounds) => (
            bounds,
            String::from(
                "the ring's operations are listed, but this kernel cannot bind them to registered \
                 files",
            ),
        ),
        Err(why) => {
            features.remove(feature);
            (Bounds::None, why.to_string())
        }
    };
    startup.push(format!("{feature}: {why}"));
    bounds
}
