//! Queues between the shards of a node, which carry what their engines tell each other.
//!
//! ```text
//!   Shard::poll_relay ──► queue (one for each ordered pair) ──► Shard::handle_relay
//!                └─ bell, if the other one sleeps ─►┘
//! ```
//!
//! Each queue has one thread at either end and a bound. What finds it full stays where it is, in
//! order, and is offered again at the next turn: no thread waits for another, and nothing is lost.
//! A shard that is awake looks at its queues in every turn, so nobody rings for it.
//!
//! Memory that goes with a relay is lent: the other shard's driver has it under a name of its own
//! until the answer gives it back. The lender keeps it all that time, so nothing is unmapped here.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use piped_core::ids::SegmentId;
use piped_core::units::Nanos;
use piped_engine::relay::Relay;
use piped_engine::shard::Shard;
use piped_ring::Segment;
use rustix::event::EventfdFlags;

use crate::io::UringIo;
use crate::limits::{RELAYS_PER_QUEUE, RELAYS_PER_TURN};

/// Time after which a full queue is tried again, if nothing else wakes the thread: the other end
/// takes some in each of its turns.
const FULL_PAUSE: Nanos = Nanos::from_millis(1);

/// Name of a segment that no driver has.
const NO_SEGMENT: SegmentId = SegmentId(u32::MAX);

/// A relay with the memory that it lends.
#[derive(Debug)]
struct Passed {
    relay: Relay,
    memory: Option<Arc<Segment>>,
}

/// A bell that is rung only while its shard sleeps.
#[derive(Debug)]
struct Bell {
    asleep: AtomicBool,
    event: OwnedFd,
}

/// Ends of the queues to and from another shard.
#[derive(Debug)]
struct Other {
    number: u16,
    /// A relay that has found the queue full, and goes first.
    left: Option<Passed>,
    out: SyncSender<Passed>,
    back: Receiver<Passed>,
    bell: Arc<Bell>,
}

/// One shard's ends of all queues.
#[derive(Debug)]
pub struct Between {
    own: u16,
    others: Vec<Other>,
    bell: Arc<Bell>,
    /// Number of shards that have sessions, or may get some. They end together, because one that
    /// ends may have something that another one waits for.
    serving: Arc<AtomicU32>,
    is_serving: bool,
}

impl Between {
    /// Makes the queues of so many shards. Alone, a shard has none.
    ///
    /// # Errors
    /// The process may not open more files.
    pub fn mesh(shards: u16) -> io::Result<Vec<Self>> {
        let serving = Arc::new(AtomicU32::new(shards.into()));
        let bell = |_| {
            let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Arc::new(Bell { asleep: AtomicBool::new(false), event }))
        };
        let bells = (0..shards).map(bell).collect::<io::Result<Vec<_>>>()?;
        let made = |(own, bell): (usize, &Arc<Bell>)| Self {
            own: own as u16,
            others: Vec::new(),
            bell: Arc::clone(bell),
            serving: Arc::clone(&serving),
            is_serving: true,
        };
        let mut all: Vec<Self> = bells.iter().enumerate().map(made).collect();
        for one in 0..usize::from(shards) {
            for other in one + 1..usize::from(shards) {
                let (to, from_one) = sync_channel(RELAYS_PER_QUEUE);
                let (back_to_one, back) = sync_channel(RELAYS_PER_QUEUE);
                let ends = |number: usize, out, back| Other {
                    number: number as u16,
                    left: None,
                    out,
                    back,
                    bell: Arc::clone(&bells[number]),
                };
                all[one].others.push(ends(other, to, back));
                all[other].others.push(ends(one, back_to_one, from_one));
            }
        }
        Ok(all)
    }

    /// Number of this shard, and of all.
    pub(super) fn place(&self) -> (u16, u16) {
        (self.own, self.others.len() as u16 + 1)
    }

    /// Descriptor that ends a sleep.
    pub(super) fn bell(&self) -> io::Result<OwnedFd> {
        self.bell.event.try_clone()
    }

    /// Gives the engine what others tell it, a turn's worth from each. Returns whether there was
    /// something.
    pub(super) fn take(&mut self, shard: &mut Shard, io: &mut UringIo) -> bool {
        let mut some = false;
        for other in &self.others {
            for _ in 0..RELAYS_PER_TURN {
                // What is lent takes a place in the driver's table, and gives it back by itself.
                if !io.segments().has_room() {
                    break;
                }
                let mut passed = match other.back.try_recv() {
                    Ok(passed) => passed,
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
                };
                some = true;
                if let Some(name) = passed.relay.lends() {
                    let borrowed = passed.memory.and_then(|it| io.segments().borrow(it));
                    debug_assert!(borrowed.is_some(), "there is room, and the lender has it");
                    // Never the lender's name, which may be that of something else here.
                    *name = borrowed.unwrap_or(NO_SEGMENT);
                }
                shard.handle_relay(other.number, passed.relay, io);
            }
        }
        some
    }

    /// Passes on what the engine has for others, as far as there is room. Returns whether there was
    /// something.
    pub(super) fn pass(&mut self, shard: &mut Shard, io: &mut UringIo) -> bool {
        let mut some = false;
        for other in &mut self.others {
            let mut passed_some = false;
            while let Some(passed) = other.left.take().or_else(|| {
                let mut relay = shard.poll_relay(other.number)?;
                let memory = relay.lends().and_then(|name| io.segments().whole(*name));
                // Before the lender hears of it: its own hold on the memory is the last. And once:
                // a relay that finds the queue full comes again, when the name may be another's.
                if let Some(borrowed) = relay.gives_back() {
                    io.segments().end_borrow(borrowed);
                }
                Some(Passed { relay, memory })
            }) {
                match other.out.try_send(passed) {
                    Ok(()) => passed_some = true,
                    Err(TrySendError::Full(passed)) => {
                        other.left = Some(passed);
                        break;
                    }
                    // Its thread has ended, and with it whoever would want to know.
                    Err(TrySendError::Disconnected(_)) => {}
                }
            }
            some |= passed_some;
            if passed_some {
                other.bell.ring();
            }
        }
        some
    }

    /// The shard is about to sleep: others ring from now on. What they told before is to be looked
    /// for once more.
    pub(super) fn prepare_sleep(&self) {
        if !self.others.is_empty() {
            self.bell.asleep.store(true, Ordering::SeqCst);
            // Pairs with the one in `ring`: either the other thread sees the flag, or this one
            // finds what it sent.
            fence(Ordering::SeqCst);
        }
    }

    /// The shard is awake again: it looks by itself.
    pub(super) fn finish_sleep(&self) {
        if !self.others.is_empty() {
            self.bell.asleep.store(false, Ordering::Relaxed);
        }
    }

    /// Latest end of a sleep, if a queue was full.
    pub(super) fn retry_at(&self, now: Nanos) -> Option<Nanos> {
        self.others.iter().any(|other| other.left.is_some()).then(|| now + FULL_PAUSE)
    }

    /// Notes that this shard has no sessions any more, and gets none. Returns whether none has.
    pub(super) fn is_over(&mut self) -> bool {
        if std::mem::take(&mut self.is_serving) {
            self.serving.fetch_sub(1, Ordering::Relaxed);
            self.others.iter().for_each(|other| other.bell.ring());
        }
        self.serving.load(Ordering::Relaxed) == 0
    }
}

impl Bell {
    fn ring(&self) {
        // After what was sent; pairs with the one in `prepare_sleep`.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // A full counter is a bell that rings already.
            let _ = rustix::io::write(self.event.as_fd(), &1_u64.to_ne_bytes());
        }
    }
}
