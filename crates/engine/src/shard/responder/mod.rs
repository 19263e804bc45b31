//! The requests of peers that are in execution, and the staging of each.

mod call;
mod read;
mod reply;
mod serve;
mod table;
mod write;

use piped_core::ids::DeviceId;
use piped_core::units::Nanos;

use super::buffers::Blocks;
use super::keys::{CalledKey, ServeKey, kind};
use super::pins::Pin;
use super::sched::{Sched, Work};
use super::slab::{Beside, Slab};
use super::timers::Timers;
use crate::command::Target;

pub(super) use self::call::Called;
pub(super) use self::serve::{Ask, Serve, ServeOp};
pub(super) use self::table::Table;
pub(super) use self::write::{Sink, WriteStep};

/// The device that something lies on.
pub(super) fn device_of(target: Target) -> Option<DeviceId> {
    match target {
        Target::File(file) => Some(file.device),
        Target::Directory(directory) => Some(directory.device),
        Target::Region(_) | Target::Channel(_) => None,
    }
}

/// The serves of a shard: requests of all its peers.
#[derive(Debug)]
pub(super) struct Serves {
    all: Slab<kind::Serve, Serve>,
    /// Staging of each, and what has landed of it beyond its watermark.
    blocks: Beside<kind::Serve, Blocks>,
    /// The calls among them.
    calls: Slab<kind::Called, Called>,
    /// When each is looked at again: at its deadline, or when its peer has had its time.
    times: Timers,
    /// Changes of peers' that were given up and that the kernel has not done with.
    old_writes: Vec<ServeKey>,
}

impl Serves {
    /// Room for so many.
    pub(super) fn with_capacity(serves: u32) -> Self {
        Self {
            all: Slab::with_capacity(serves),
            blocks: Beside::with_capacity(serves),
            calls: Slab::with_capacity(serves),
            times: Timers::with_capacity(serves),
            old_writes: Vec::new(),
        }
    }

    /// Begins a serve; its deadline runs. `None`: there are as many as there may be.
    pub(super) fn begin(&mut self, serve: Serve) -> Option<ServeKey> {
        let deadline = serve.deadline;
        let key = self.all.insert(serve).ok()?;
        self.blocks.of_new(key).clear();
        self.times.set(key.index(), deadline);
        Some(key)
    }

    /// Takes out a serve that is over. Changes that waited for it go on.
    pub(super) fn end(&mut self, key: ServeKey, sched: &mut Sched) -> Option<Serve> {
        let serve = self.all.remove(key)?;
        self.times.clear(key.index());
        if let Some(place) = self.old_writes.iter().position(|&old| old == key) {
            self.old_writes.swap_remove(place);
            let changes = self.all.iter().filter(|(_, serve)| serve.changes());
            changes.for_each(|(next, _)| sched.make_ready(Work::Serve(next)));
        }
        Some(serve)
    }

    /// A serve that is not over.
    pub(super) fn get(&self, key: ServeKey) -> Option<&Serve> {
        self.all.get(key)
    }

    /// The mutable form of [`Self::get`].
    pub(super) fn get_mut(&mut self, key: ServeKey) -> Option<&mut Serve> {
        self.all.get_mut(key)
    }

    /// A serve, and its staging.
    pub(super) fn with_blocks(&mut self, key: ServeKey) -> Option<(&mut Serve, &mut Blocks)> {
        Some((self.all.get_mut(key)?, self.blocks.at_mut(key)))
    }

    /// The staging of a serve that is not over, or has just ended.
    pub(super) fn blocks(&mut self, key: ServeKey) -> &mut Blocks {
        self.blocks.at_mut(key)
    }

    /// Keeps a call whose serve is about to begin. `None`: there are as many as there may be.
    pub(super) fn keep_call(&mut self, called: Called) -> Option<CalledKey> {
        self.calls.insert(called).ok()
    }

    /// The call of a serve that is one.
    pub(super) fn call_of(&mut self, key: ServeKey) -> Option<&mut Called> {
        match self.all.get(key)?.op {
            ServeOp::Call { call, .. } => self.calls.get_mut(call),
            _ => None,
        }
    }

    /// Takes out the call of a serve that is over, or did not begin.
    pub(super) fn end_call(&mut self, op: ServeOp) -> Option<Called> {
        match op {
            ServeOp::Call { call, .. } => self.calls.remove(call),
            _ => None,
        }
    }

    /// All that are not over.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ServeKey, &Serve)> {
        self.all.iter()
    }

    /// The first one at or after a place that is wanted.
    pub(super) fn next_from(
        &self,
        from: &mut u32,
        wanted: impl Fn(&Serve) -> bool,
    ) -> Option<ServeKey> {
        self.all.next_from(from, wanted)
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        self.all.len()
    }

    /// Has a serve looked at then.
    pub(super) fn look_at(&mut self, key: ServeKey, at: Nanos) {
        self.times.set(key.index(), at);
    }

    /// A serve that is to be looked at.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<ServeKey> {
        self.times.take_due(now).and_then(|slot| self.all.in_place(slot))
    }

    /// When the first one is to be looked at.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.times.next()
    }

    /// One thing fewer touches what a serve reads or writes.
    pub(super) fn unpin(&mut self, pin: Pin<kind::Serve>, sched: &mut Sched) {
        let key = pin.key();
        if let Some(serve) = self.all.get_mut(key) {
            serve.pins.give_back(pin);
            sched.make_ready(Work::Serve(key));
        }
    }

    /// A change is given up while the kernel still has some of it.
    pub(super) fn note_old_write(&mut self, key: ServeKey) {
        if !self.old_writes.contains(&key) {
            self.old_writes.push(key);
        }
    }

    /// Whether a change of the same peer on the same device was given up (with its lane, at its
    /// deadline) and is still on its way there: what is changed now must not be overtaken by it,
    /// whichever lane it came by.
    pub(super) fn is_behind_old(&self, key: ServeKey, device: DeviceId) -> bool {
        let Some(link) = self.all.get(key).map(|serve| serve.link) else { return false };
        let mut old = self.old_writes.iter().filter_map(|&old| self.all.get(old));
        old.any(|old| old.link == link && device_of(old.target) == Some(device))
    }
}
