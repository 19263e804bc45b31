//! Clients' memory, made and given back by threads that give way to all others.
//!
//! A GiB takes hundreds of milliseconds of a CPU: its pages are zeroed, and later taken apart. At
//! the priority of the shards, all other clients would wait for that. So the whole daemon works on
//! one piece at a time, in turns, and small requests do not wait behind large ones. After its first
//! pieces, enough for a usual client, a thread gives way. The kernel clears a huge page (half a
//! millisecond) without letting another thread run, whatever the priorities. So a thread that was
//! in the way steps aside for a while before it goes on. It then delays a request now and then, and
//! none where CPUs are idle.
//!
//! Idle priority was rejected: shards that spin would leave such a thread no time at all, and
//! clients wait for their memory.

use std::io;
use std::sync::Arc;

use parking_lot::{FairMutex, FairMutexGuard, Mutex};
use piped_core::units::Nanos;
use piped_ring::Segment;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::io::{clock, niceness};

/// Pieces that are made without giving way: 16 MiB.
const HASTY_PIECES: u32 = 8;

const _: () = assert!(HASTY_PIECES as usize * piped_ring::PIECE_BYTES == 16 << 20);

/// Time for which a thread steps aside: long against a piece, so that few requests meet one.
const ASIDE: Nanos = Nanos::from_millis(10);

/// Starts a thread, or does nothing.
type Start = fn(Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// Runs such work on threads.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    turns: Arc<FairMutex<()>>,
    start: Start,
}

impl Default for Patience {
    fn default() -> Self {
        Self { turns: Arc::default(), start: thread }
    }
}

/// The turns of one thread.
#[derive(Debug)]
pub(crate) struct Turns<'a> {
    turns: &'a FairMutex<()>,
    /// Number of pieces begun.
    begun: u32,
    /// Times that the thread had been preempted when the last piece began.
    preempted: u64,
    /// Whether the thread does only this work; another one keeps its priority for other work.
    is_own: bool,
}

impl<'a> Turns<'a> {
    fn new(turns: &'a FairMutex<()>) -> Self {
        Self { turns, begun: 0, preempted: 0, is_own: true }
    }

    /// Turns of a thread that does the work because no other can be had.
    fn of_another(turns: &'a FairMutex<()>) -> Self {
        Self { is_own: false, ..Self::new(turns) }
    }

    /// Gives way from the first piece on.
    pub(crate) fn give_way(&mut self) {
        if !self.is_own {
            return;
        }
        niceness::give_way();
        self.begun = HASTY_PIECES + 1;
        self.preempted = niceness::preemptions();
    }

    /// Waits for the next turn, which ends when the guard is dropped.
    pub(crate) fn next(&mut self) -> FairMutexGuard<'a, ()> {
        if !self.is_own {
            return self.turns.lock();
        }
        if self.begun == HASTY_PIECES {
            niceness::give_way();
        } else if self.begun > HASTY_PIECES && niceness::preemptions() > self.preempted {
            clock::pause(ASIDE);
        }
        if self.begun >= HASTY_PIECES {
            self.preempted = niceness::preemptions();
        }
        self.begun = self.begun.saturating_add(1);
        self.turns.lock()
    }
}

impl Patience {
    /// Does some work on a thread of its own.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Turns<'_>) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (done, outcome) = oneshot::channel();
        let turns = Arc::clone(&self.turns);
        (self.start)(Box::new(move || {
            // The receiver may be gone.
            let _ = done.send(work(&mut Turns::new(&turns)));
        }))?;
        outcome.await.map_err(|_| io::Error::other("the thread that made the memory failed"))
    }

    /// Gives memory back that has no other owners here, even if a client still has it; `place` is
    /// kept until then. The result tells of the end, and need not be waited for.
    pub(crate) fn give_back(
        &self,
        segments: impl IntoIterator<Item = Arc<Segment>>,
        place: Option<Arc<OwnedSemaphorePermit>>,
    ) -> oneshot::Receiver<()> {
        self.end(segments, place, |segment, turns| segment.give_back(|| turns.next()))
    }

    /// Gives memory back without clearing it, because another process still uses its content.
    pub(crate) fn leave(
        &self,
        segments: impl IntoIterator<Item = Arc<Segment>>,
        place: Option<Arc<OwnedSemaphorePermit>>,
    ) -> oneshot::Receiver<()> {
        self.end(segments, place, |segment, turns| {
            let _turn = turns.next();
            drop(segment);
        })
    }

    fn end(
        &self,
        segments: impl IntoIterator<Item = Arc<Segment>>,
        place: Option<Arc<OwnedSemaphorePermit>>,
        work: impl Fn(Segment, &mut Turns<'_>) + Send + 'static,
    ) -> oneshot::Receiver<()> {
        let segments: Vec<Segment> = segments.into_iter().filter_map(Arc::into_inner).collect();
        let (done, end) = oneshot::channel::<()>();
        if segments.is_empty() {
            return end;
        }
        let all = move |turns: &mut Turns<'_>| {
            let _done = done;
            turns.give_way();
            for segment in segments {
                work(segment, turns);
            }
            drop(place);
        };
        // A thread that cannot be started would lose its work, so it only fetches it.
        let all = Arc::new(Mutex::new(Some(all)));
        let (fetched, turns) = (Arc::clone(&all), Arc::clone(&self.turns));
        let started = (self.start)(Box::new(move || {
            let all = fetched.lock().take();
            if let Some(all) = all {
                all(&mut Turns::new(&turns));
            }
        }));
        if started.is_err() {
            // Otherwise the memory would stay with other processes, and no longer count: better
            // here and late.
            let all = all.lock().take();
            if let Some(all) = all {
                all(&mut Turns::of_another(&self.turns));
            }
        }
        end
    }
}

fn thread(work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name("piped-memory".to_owned()).spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_work_gives_way_and_short_work_does_not_wait_for_its_end() {
        let patience = Patience::default();
        let niceness = || rustix::process::getpriority_process(None).expect("ours");
        let own = niceness();
        let (short_ended, long_hears) = std::sync::mpsc::channel();
        let long = patience.work(move |turns| {
            (0..HASTY_PIECES).for_each(|_| drop(turns.next()));
            let before = niceness();
            // The short work can have its turn now, and this one goes on after it.
            long_hears.recv().expect("the short work ends meanwhile");
            drop(turns.next());
            (before, niceness())
        });
        let short = patience.work(move |turns| {
            drop(turns.next());
            short_ended.send(()).expect("it waits");
            niceness()
        });
        let (long, short) = tokio::join!(long, short);
        assert_eq!(short.expect("a thread"), own);
        assert_eq!(long.expect("a thread"), (own, 19));
        assert_eq!(niceness(), own, "nobody else gives way");
    }

    #[test]
    fn only_the_last_owner_gives_memory_back_and_then_the_place_is_free() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let patience = Patience::default();
            let places = Arc::new(tokio::sync::Semaphore::new(1));
            let place = Arc::new(Arc::clone(&places).acquire_owned().await.expect("open"));
            let segment = Arc::new(Segment::create(40 << 20).expect("memory"));
            let other = Arc::clone(&segment);
            drop(patience.give_back([segment], Some(Arc::clone(&place))));
            assert_eq!(Arc::strong_count(&other), 1, "it is the other's now");
            drop(patience.give_back([other], Some(place)));
            let _free = places.acquire().await.expect("the place is free in the end");
        });
    }

    #[test]
    fn who_else_has_memory_has_none_of_what_is_given_back_and_all_of_what_is_left() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let patience = Patience::default();
            let [given, left] = [(); 2].map(|()| {
                let segment = Segment::create(5 << 20).expect("memory");
                segment.store(1 << 20, b"bytes").expect("inside");
                segment
            });
            let others = [&given, &left].map(|segment| {
                let fd = segment.fd().try_clone_to_owned().expect("one more");
                Segment::from_fd(fd).expect("the same memory")
            });
            let _ = patience.give_back([Arc::new(given)], None).await;
            let _ = patience.leave([Arc::new(left)], None).await;
            let bytes = others.map(|segment| {
                let mut bytes = [1; 5];
                segment.load(1 << 20, &mut bytes).expect("inside");
                bytes
            });
            assert_eq!(bytes, [[0; 5], *b"bytes"]);
        });
    }

    #[test]
    fn memory_is_given_back_also_where_no_thread_can_be_started() {
        let niceness = || rustix::process::getpriority_process(None).expect("ours");
        let before = niceness();
        let none = |_| Err(io::ErrorKind::WouldBlock.into());
        let patience = Patience { start: none, ..Patience::default() };
        let mut segment = Segment::create(40 << 20).expect("memory");
        segment.store(1 << 20, b"bytes").expect("inside");
        let counted = Arc::new(());
        segment.keep(Arc::clone(&counted));
        let fd = segment.fd().try_clone_to_owned().expect("one more");
        let clients = Segment::from_fd(fd).expect("the same memory");
        let mut end = patience.give_back([Arc::new(segment)], None);
        let mut bytes = [1; 5];
        clients.load(1 << 20, &mut bytes).expect("inside");
        assert_eq!(bytes, [0; 5], "its pages are free");
        assert_eq!(Arc::strong_count(&counted), 1, "then it counts no more");
        let ended = end.try_recv();
        assert_eq!(
            ended,
            Err(oneshot::error::TryRecvError::Closed),
            "the waiting side learns of it"
        );
        assert_eq!(niceness(), before, "this thread has other things to do");
    }
}
