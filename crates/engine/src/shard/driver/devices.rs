//! How many operations a device may have, so that one that stalls leaves some to the others.
//!
//! It may have as many as are left to the others; then it waits for its own to end. A file system
//! that somebody else serves ([`FileTarget::foreign`]) keeps a thread of the driver busy with each,
//! and anybody can make one and never answer: those get little, alone and together.

use std::collections::VecDeque;

use piped_core::ids::DeviceId;
use piped_core::limits::{
    CALLS_PER_DEVICE, CHOKED_TIME, COPY_BYTES_PER_TURN, FOREIGN_OPS_MAX, FOREIGN_OPS_PER_DEVICE,
    FRAGMENT_BYTES_MAX, OPS_PER_JOB, STAGING_SHARE,
};
use piped_core::request::Class;
use piped_core::units::Nanos;

use super::super::fair::Flow;
use super::super::keys::JobKey;
use super::super::lines::At;
use super::super::sched::{Sched, Work};
use super::gate::Gate;
use crate::command::FileTarget;

/// Where an operation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct On {
    device: DeviceId,
    foreign: bool,
    /// Not the device itself, but what the page cache has of it.
    cached: bool,
}

impl On {
    /// A device, and not its page cache.
    pub(in crate::shard) const fn new(device: DeviceId, foreign: bool) -> Self {
        Self { device, foreign, cached: false }
    }

    pub(in crate::shard) const fn device(self) -> DeviceId {
        self.device
    }
}

impl From<&FileTarget> for On {
    fn from(target: &FileTarget) -> Self {
        Self { device: target.device, foreign: target.foreign, cached: target.cached }
    }
}

/// What must end before something more can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Wanted {
    /// Something, whatever it belongs to.
    Anything,
    /// An operation of this device.
    Device(On),
}

/// All devices that have operations under way, or had some lately.
#[derive(Debug)]
pub(in crate::shard) struct Devices {
    loads: Vec<Load>,
    /// Operations of all foreign ones.
    foreign: u32,
    ops_max: u32,
}

#[derive(Debug)]
struct Load {
    on: On,
    ops: u32,
    /// Calls among its operations.
    calls: u32,
    /// Bytes of its jobs.
    bytes: u64,
    /// Staging that its operations read into or write from, in bytes.
    staging: u64,
    /// When it ended something last, or began after it had nothing to do.
    moved: Nanos,
    /// What waits for room here.
    waiting: VecDeque<Work>,
    /// Jobs that have their room, and wait for their turn.
    gate: Gate,
}

impl Load {
    /// Operations that jobs at its gate will want.
    fn reserved(&self) -> u32 {
        self.gate.len() as u32 * OPS_PER_JOB
    }

    /// Whether nothing of it is under way or held.
    fn is_idle(&self) -> bool {
        self.ops == 0 && self.gate.len() == 0 && self.bytes == 0 && self.staging == 0
    }
}

/// Work that waits at a device before it is looked through for what has ended.
const PARKED_MAX: usize = 4096;

/// Devices remembered without a need, so that one request after the other allocates nothing.
const IDLE_MAX: usize = 16;

impl Devices {
    pub(super) fn new(ops_max: u32) -> Self {
        Self { loads: Vec::with_capacity(IDLE_MAX), foreign: 0, ops_max }
    }

    /// Whether a device may begin with a job more, or with anything else. `used`: operations of all
    /// kinds.
    pub(super) fn has_room(&self, on: On, used: u32) -> bool {
        // What is in memory is copied while it is asked for: no more than a turn may copy.
        let inside = self.find(on).map_or(0, |load| load.bytes);
        if on.cached && inside >= u64::from(COPY_BYTES_PER_TURN) {
            return false;
        }
        let used = used + self.reserved();
        let ops = self.find(on).map_or(0, |load| load.ops + load.reserved());
        // One that has nothing under way may begin one, or it would wait for nothing.
        ops == 0 || ops + OPS_PER_JOB <= self.most(on, used)
    }

    /// How many operations a device may have just now: as many as it leaves to the others. So one
    /// takes half of all there are, two a third each, and some are always left.
    fn most(&self, on: On, used: u32) -> u32 {
        if on.foreign {
            let all = FOREIGN_OPS_MAX.min(self.ops_max / 4);
            FOREIGN_OPS_PER_DEVICE.min(all.saturating_sub(self.foreign))
        } else {
            self.ops_max.saturating_sub(used)
        }
    }

    /// Operations that jobs at the gates will want.
    pub(super) fn reserved(&self) -> u32 {
        self.loads.iter().map(Load::reserved).sum()
    }

    /// A job comes to a device. Whether it may begin now; else it will be polled.
    pub(super) fn arrive(
        &mut self,
        on: On,
        flow: Flow,
        bytes: u32,
        job: JobKey,
        now: Nanos,
    ) -> bool {
        // Whose answers are somebody else's affair have few operations, and say nothing of what
        // they can do.
        on.foreign || self.load(on).gate.arrive(flow, bytes, job, now)
    }

    /// What requests for a device stand in line for. Nothing, if others want it as well: shares are
    /// of what waits at its gate, which then has to be much. Nothing for a foreign one, which may
    /// answer one file and never the other.
    pub(in crate::shard) fn line(&self, on: On, now: Nanos) -> Option<At> {
        let is_shared = self.find(on).is_some_and(|load| load.gate.is_shared(now));
        (!on.foreign && !is_shared).then(|| At::new(on.device, on.cached))
    }

    /// A job has left a device. `direct`: it went past the page cache.
    pub(super) fn leave(&mut self, on: On, class: Class, bytes: u32, direct: bool, now: Nanos) {
        if !on.foreign {
            self.load(on).gate.leave(class, bytes, direct, now);
        }
    }

    /// The next job that may begin at a device.
    pub(super) fn poll_job(&mut self, on: On, now: Nanos) -> Option<JobKey> {
        self.load(on).gate.poll(now)
    }

    /// The next job that may begin at any device.
    pub(super) fn poll_any_job(&mut self, now: Nanos) -> Option<JobKey> {
        self.loads.iter_mut().find_map(|load| load.gate.poll(now))
    }

    /// Jobs that are not to begin any more.
    pub(super) fn remove_jobs(&mut self, mut unwanted: impl FnMut(&JobKey) -> bool) -> Vec<JobKey> {
        self.loads.iter_mut().flat_map(|load| load.gate.remove(&mut unwanted)).collect()
    }

    /// Whether so many bytes of staging more may wait for a device, when so many are left for all.
    pub(in crate::shard) fn may_hold(&self, on: On, bytes: u64, left: u64) -> bool {
        // Beside foreign ones there must be room for the frame that a lane has at hand, or it waits
        // with all that comes after.
        let most = match on.foreign {
            true => left.saturating_sub(2 * u64::from(FRAGMENT_BYTES_MAX)),
            false => STAGING_SHARE * left,
        };
        self.find(on).is_none_or(|load| load.staging == 0 || load.staging + bytes <= most)
    }

    /// A job of so many bytes, and its staging, wait for a device.
    pub(super) fn hold(&mut self, on: On, bytes: u32, staging: u64) {
        let load = self.load(on);
        load.bytes += u64::from(bytes);
        load.staging += staging;
    }

    /// Such a job and its staging wait no longer.
    pub(super) fn let_go(&mut self, on: On, bytes: u32, staging: u64) {
        let load = self.load(on);
        load.bytes -= u64::from(bytes);
        load.staging -= staging;
    }

    /// An operation goes there.
    pub(super) fn begin(&mut self, on: On, now: Nanos) {
        self.foreign += u32::from(on.foreign);
        let load = self.load(on);
        if load.ops == 0 {
            load.moved = now;
        }
        load.ops += 1;
    }

    /// Whether a device may have one more call, each of which may keep a thread busy.
    pub(super) fn has_room_for_call(&self, on: On) -> bool {
        self.find(on).is_none_or(|load| load.calls < CALLS_PER_DEVICE)
    }

    /// An operation that goes there is a call.
    pub(super) fn begin_call(&mut self, on: On) {
        self.load(on).calls += 1;
    }

    /// A call of a device ends.
    pub(super) fn end_call(&mut self, on: On) {
        self.load(on).calls -= 1;
    }

    /// Whether a device has much to do and does nothing.
    pub(in crate::shard) fn is_stalled(&self, on: On, now: Nanos) -> bool {
        self.find(on).is_some_and(|load| load.ops > 0 && now.since(load.moved) >= CHOKED_TIME)
    }

    /// An operation of a device ended. What waited for that is to be looked at again.
    pub(super) fn end(&mut self, on: On, now: Nanos) -> impl Iterator<Item = Work> + use<> {
        self.foreign -= u32::from(on.foreign);
        let idle = self.loads.len() > IDLE_MAX;
        let mut waiting = VecDeque::new();
        if let Some(place) = self.loads.iter().position(|load| load.on == on) {
            let load = &mut self.loads[place];
            load.ops -= 1;
            load.moved = now;
            waiting = std::mem::take(&mut load.waiting);
            if idle && load.is_idle() {
                self.loads.swap_remove(place);
            }
        }
        waiting.into_iter()
    }

    /// Has work wait until the device has ended something, or until it is woken by other news.
    pub(super) fn park(&mut self, on: On, work: Work, sched: &mut Sched) {
        if !sched.park(work) {
            return;
        }
        let waiting = &mut self.load(on).waiting;
        // What has ended meanwhile is forgotten when it becomes much.
        if waiting.len() >= PARKED_MAX {
            waiting.retain(|&work| sched.knows(work));
        }
        waiting.push_back(work);
    }

    fn find(&self, on: On) -> Option<&Load> {
        self.loads.iter().find(|load| load.on == on)
    }

    fn load(&mut self, on: On) -> &mut Load {
        let place = self.loads.iter().position(|load| load.on == on).unwrap_or_else(|| {
            self.loads.push(Load {
                on,
                ops: 0,
                calls: 0,
                bytes: 0,
                staging: 0,
                moved: Nanos::ZERO,
                waiting: VecDeque::new(),
                gate: Gate::default(),
            });
            self.loads.len() - 1
        });
        &mut self.loads[place]
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::fair::Party;
    use super::super::super::slab::Key;
    use super::*;

    const OPS_MAX: u32 = 4096;

    fn on(device: u32, foreign: bool) -> On {
        On { device: DeviceId(device), foreign, cached: false }
    }

    /// As many as it gets.
    fn fill(devices: &mut Devices, on: On, others: u32) -> u32 {
        let mut count = 0;
        while others + count < OPS_MAX && devices.has_room(on, others + count) {
            devices.begin(on, Nanos::ZERO);
            count += 1;
        }
        count
    }

    #[test]
    fn a_stalled_device_leaves_most_to_the_others() {
        let mut devices = Devices::new(OPS_MAX);
        let stalled = fill(&mut devices, on(1, false), 0);
        assert!((OPS_MAX / 2 - OPS_PER_JOB..=OPS_MAX / 2).contains(&stalled), "{stalled}");
        let next = fill(&mut devices, on(2, false), stalled);
        assert!(next >= OPS_MAX / 4 - OPS_PER_JOB, "{next}");
        // When some of its own end it goes on.
        for _ in 0..stalled {
            let _ = devices.end(on(1, false), Nanos::ZERO);
        }
        assert!(devices.has_room(on(1, false), next));
    }

    #[test]
    fn foreign_devices_have_few_alone_and_together() {
        let mut devices = Devices::new(OPS_MAX);
        let mut taken = 0;
        let counts: Vec<u32> = (0..100)
            .map(|device| {
                let count = fill(&mut devices, on(device, true), taken);
                taken += count;
                count
            })
            .collect();
        assert!(counts.iter().all(|&count| (1..=FOREIGN_OPS_PER_DEVICE).contains(&count)));
        assert!(taken <= FOREIGN_OPS_MAX + 100, "one each beyond the limit: {taken}");
        assert!(counts[7] >= OPS_PER_JOB, "{counts:?}");
        assert!(fill(&mut devices, on(1000, false), taken) > OPS_MAX / 4);
    }

    #[test]
    fn a_device_has_so_many_calls_at_once_and_others_have_theirs() {
        let mut devices = Devices::new(OPS_MAX);
        for _ in 0..CALLS_PER_DEVICE {
            assert!(devices.has_room_for_call(on(1, false)));
            devices.begin(on(1, false), Nanos::ZERO);
            devices.begin_call(on(1, false));
        }
        assert!(
            !devices.has_room_for_call(on(1, false)) && devices.has_room_for_call(on(2, false))
        );
        assert!(devices.has_room(on(1, false), CALLS_PER_DEVICE), "for anything but calls");
        devices.end_call(on(1, false));
        assert!(devices.has_room_for_call(on(1, false)));
    }

    #[test]
    fn of_what_is_cached_a_turn_gets_what_it_may_copy() {
        let mut devices = Devices::new(OPS_MAX);
        let cached = On { cached: true, ..on(1, false) };
        assert!(devices.has_room(cached, 0));
        devices.hold(cached, COPY_BYTES_PER_TURN - 1, 0);
        assert!(devices.has_room(cached, 1));
        devices.hold(cached, 1, 0);
        assert!(!devices.has_room(cached, 2));
        assert!(devices.has_room(on(1, false), 2), "the device itself is another one");
        devices.let_go(cached, 1, 0);
        assert!(devices.has_room(cached, 1));
    }

    #[test]
    fn who_waits_is_woken_by_its_device_alone() {
        let works = [1, 2].map(|place| Work::Transfer(Key::from_bits(1 << 32 | place)));
        let mut sched = Sched::new(4);
        let mut devices = Devices::new(OPS_MAX);
        let both = [on(1, true), on(2, true)];
        for (on, work) in both.into_iter().zip(works) {
            devices.begin(on, Nanos::ZERO);
            devices.begin(on, Nanos::ZERO);
            sched.begin(work, Party::NOBODY, Class::Bulk);
            devices.park(on, work, &mut sched);
        }
        assert_eq!(devices.end(both[0], Nanos::ZERO).collect::<Vec<_>>(), [works[0]]);
        assert_eq!(devices.end(both[0], Nanos::ZERO).count(), 0);
        sched.unpark(works[0]);
        for _ in 0..2 {
            devices.park(both[1], works[0], &mut sched);
        }
        let woken = [works[1], works[0]];
        assert_eq!(devices.end(both[1], Nanos::ZERO).collect::<Vec<_>>(), woken, "once each");
    }

    #[test]
    fn a_device_stalls_if_it_ends_nothing_for_a_while() {
        let mut devices = Devices::new(OPS_MAX);
        let (device, late) = (on(1, true), Nanos::from_millis(60_000));
        assert!(!devices.is_stalled(device, late), "it has nothing to do");
        devices.begin(device, late);
        devices.begin(device, late);
        assert!(!devices.is_stalled(device, late + CHOKED_TIME - Nanos(1)));
        assert!(devices.is_stalled(device, late + CHOKED_TIME));
        let _ = devices.end(device, late + CHOKED_TIME);
        assert!(!devices.is_stalled(device, late + CHOKED_TIME));
        let _ = devices.end(device, late + CHOKED_TIME);
        assert!(!devices.is_stalled(device, late + late));
    }

    #[test]
    fn devices_that_are_idle_are_forgotten_when_they_are_many() {
        let mut devices = Devices::new(OPS_MAX);
        for device in 0..1000 {
            devices.begin(on(device, true), Nanos::ZERO);
            let _ = devices.end(on(device, true), Nanos::ZERO);
        }
        assert!(devices.loads.len() <= IDLE_MAX + 1);
    }

    #[test]
    fn a_device_that_holds_something_is_not_forgotten() {
        let mut devices = Devices::new(OPS_MAX);
        for device in 0..=IDLE_MAX as u32 {
            devices.begin(on(device, false), Nanos::ZERO);
        }
        let (holds, staging) = (on(0, false), 4096);
        devices.hold(holds, 7, staging);
        let _ = devices.end(holds, Nanos::ZERO);
        assert!(!devices.may_hold(holds, 1, 0), "what it holds counts still");
        devices.let_go(holds, 7, staging);
        assert!(devices.may_hold(holds, 1, 0));
    }
}
