//! Names of objects, which C programs hold: they look like pointers and are none.
//!
//! A name has a kind, a place in that kind's table, and the place's generation, which changes when
//! the object is freed. So a freed, foreign or made-up name is refused, and nothing is ever read at
//! the address it looks like. The kind is in the highest byte, where a pointer of user space has
//! zero: no address is a name.
//!
//! ```text
//!  63    56 55                    24 23               0
//!  ┌───────┬────────────────────────┬─────────────────┐
//!  │ kind  │       generation       │      place      │
//!  └───────┴────────────────────────┴─────────────────┘
//! ```
//!
//! Each place has a lock of its own, and chunks of places are made once and stay: a look-up is an
//! index, a compare-and-swap and a comparison, and takes no lock that another object's user could
//! hold.

use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard, TryLockError};

use crate::fault::Fault;
use crate::status::piped_status;

/// Places of a chunk; made when the first of them is needed.
const CHUNK: usize = 1024;
/// A million objects of a kind: each session has its arena, and each buffer a page of it.
const CHUNKS: usize = 1024;

const PLACE_BITS: u32 = 24;
const KIND_SHIFT: u32 = 56;

const _: () = assert!(CHUNK * CHUNKS <= 1 << PLACE_BITS, "a place fits its bits");
const _: () = assert!(usize::BITS == 64, "a name fits a pointer");

/// The kind of object that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Client = 0xc1,
    Queue,
    Buffer,
    Handle,
    Region,
    Pieces,
    Strips,
    Tiles,
    Memory,
    List,
    Buffers,
}

const KINDS: std::ops::RangeInclusive<u8> = Kind::Client as u8..=Kind::Buffers as u8;

/// Why a name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Null,
    NotOurs,
    WrongKind,
    Stale,
    Busy,
    /// A call on it failed inside, and nobody knows how it was left.
    Spoilt,
    /// The table has as many objects as it can have.
    Limit,
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        use piped_status::*;
        Self::fixed(match refusal {
            Refusal::Null => PIPED_NULL,
            Refusal::NotOurs => PIPED_NOT_OURS,
            Refusal::WrongKind => PIPED_WRONG_KIND,
            Refusal::Stale => PIPED_STALE,
            Refusal::Busy => PIPED_BUSY,
            Refusal::Spoilt => PIPED_INTERNAL,
            Refusal::Limit => PIPED_LIMIT,
        })
    }
}

type Chunk<T> = Box<[RwLock<Place<T>>]>;

/// All objects of a kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: Kind,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    vacancies: Mutex<Vacancies>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
struct Vacancies {
    /// Places that had an object.
    left: Vec<u32>,
    /// Places from here on had none yet.
    fresh: u32,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        let vacancies = Mutex::new(Vacancies { left: Vec::new(), fresh: 0 });
        Self { kind, chunks: [const { OnceLock::new() }; CHUNKS], vacancies }
    }

    /// Keep an object; its name.
    pub(crate) fn insert<N>(&self, value: T) -> Result<*mut N, Refusal> {
        let at = {
            let mut vacancies = self.vacancies.lock().unwrap_or_else(PoisonError::into_inner);
            match vacancies.left.pop() {
                Some(at) => at,
                None if vacancies.fresh as usize == CHUNK * CHUNKS => return Err(Refusal::Limit),
                None => {
                    vacancies.fresh += 1;
                    vacancies.fresh - 1
                }
            }
        };
        let vacant = || (0..CHUNK).map(|_| RwLock::new(Place { generation: 1, value: None }));
        let chunk = self.chunks[at as usize / CHUNK].get_or_init(|| vacant().collect());
        let mut place = chunk[at as usize % CHUNK].write().unwrap_or_else(PoisonError::into_inner);
        place.value = Some(value);
        let name = (self.kind as usize) << KIND_SHIFT
            | (place.generation as usize) << PLACE_BITS
            | at as usize;
        Ok(std::ptr::without_provenance_mut(name))
    }

    /// Look at an object; others may at the same time.
    pub(crate) fn with<N, R>(
        &self,
        name: *const N,
        look: impl FnOnce(&T) -> R,
    ) -> Result<R, Refusal> {
        let (at, generation) = self.parse(name)?;
        let place = self.place(at)?.read().map_err(|_| Refusal::Spoilt)?;
        Ok(look(place.of(generation)?))
    }

    /// A clone of an object.
    pub(crate) fn get<N>(&self, name: *const N) -> Result<T, Refusal>
    where
        T: Clone,
    {
        self.with(name, T::clone)
    }

    /// Change an object, after others have.
    pub(crate) fn with_mut<N, R>(
        &self,
        name: *const N,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Refusal> {
        let (at, generation) = self.parse(name)?;
        let mut place = self.place(at)?.write().map_err(|_| Refusal::Spoilt)?;
        Ok(change(place.of_mut(generation)?))
    }

    /// Change an object, or be refused if somebody else is at it.
    pub(crate) fn try_with_mut<N, R>(
        &self,
        name: *const N,
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Refusal> {
        let (at, generation) = self.parse(name)?;
        let mut place = self.place(at)?.try_write().map_err(|error| match error {
            TryLockError::WouldBlock => Refusal::Busy,
            TryLockError::Poisoned(_) => Refusal::Spoilt,
        })?;
        Ok(change(place.of_mut(generation)?))
    }

    /// Take an object out after others have looked at it, if `may` allows it: its name is stale
    /// from now on.
    pub(crate) fn remove<N, E: From<Refusal>>(
        &self,
        name: *const N,
        may: impl FnOnce(&T) -> Result<(), E>,
    ) -> Result<T, E> {
        let (at, generation) = self.parse(name)?;
        // What a panic left can still be freed.
        let place = self.place(at)?.write().unwrap_or_else(PoisonError::into_inner);
        may(place.of(generation)?)?;
        Ok(self.vacate(at, place)?)
    }

    /// Take an object out, or be refused if somebody is at it.
    pub(crate) fn try_remove<N>(&self, name: *const N) -> Result<T, Refusal> {
        let (at, generation) = self.parse(name)?;
        let place = match self.place(at)?.try_write() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Refusal::Busy),
        };
        place.of(generation)?;
        self.vacate(at, place)
    }

    fn vacate(&self, at: u32, mut place: RwLockWriteGuard<'_, Place<T>>) -> Result<T, Refusal> {
        let value = place.value.take().ok_or(Refusal::Stale)?;
        place.generation = place.generation.wrapping_add(1);
        drop(place);
        self.place(at)?.clear_poison();
        let mut vacancies = self.vacancies.lock().unwrap_or_else(PoisonError::into_inner);
        vacancies.left.push(at);
        Ok(value)
    }

    /// The place and generation in a name.
    fn parse<N>(&self, name: *const N) -> Result<(u32, u32), Refusal> {
        let name = name.addr();
        let kind = (name >> KIND_SHIFT) as u8;
        match kind {
            _ if name == 0 => Err(Refusal::Null),
            _ if kind == self.kind as u8 => {
                let at = name & ((1 << PLACE_BITS) - 1);
                Ok((at as u32, (name >> PLACE_BITS) as u32))
            }
            _ if KINDS.contains(&kind) => Err(Refusal::WrongKind),
            _ => Err(Refusal::NotOurs),
        }
    }

    fn place(&self, at: u32) -> Result<&RwLock<Place<T>>, Refusal> {
        let chunk = self.chunks.get(at as usize / CHUNK).and_then(OnceLock::get);
        chunk.map(|chunk| &chunk[at as usize % CHUNK]).ok_or(Refusal::NotOurs)
    }
}

impl<T> Place<T> {
    fn of(&self, generation: u32) -> Result<&T, Refusal> {
        let value = self.value.as_ref().filter(|_| self.generation == generation);
        value.ok_or(Refusal::Stale)
    }

    fn of_mut(&mut self, generation: u32) -> Result<&mut T, Refusal> {
        let value = self.value.as_mut().filter(|_| self.generation == generation);
        value.ok_or(Refusal::Stale)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Thing;

    fn any<T>(_: &T) -> Result<(), Refusal> {
        Ok(())
    }

    #[test]
    fn a_name_is_good_until_its_object_is_removed_and_never_again() {
        static TABLE: Table<u32> = Table::new(Kind::Buffer);
        let mut stale = Vec::new();
        for number in 0..3000 {
            let name: *mut Thing = TABLE.insert(number).expect("room");
            assert_eq!(TABLE.get(name), Ok(number));
            assert!(!stale.contains(&name), "a name came twice");
            if number % 2 == 0 {
                assert_eq!(TABLE.remove(name, any), Ok(number));
                stale.push(name);
            }
        }
        for name in stale {
            assert_eq!(TABLE.get(name), Err(Refusal::Stale));
            assert_eq!(TABLE.with_mut(name, |number| *number), Err(Refusal::Stale));
            assert_eq!(TABLE.remove(name, any), Err(Refusal::Stale));
        }
    }

    #[test]
    fn what_is_no_name_of_the_table_is_refused_with_the_reason() {
        static BUFFERS: Table<u32> = Table::new(Kind::Buffer);
        static HANDLES: Table<u32> = Table::new(Kind::Handle);
        let buffer: *mut Thing = BUFFERS.insert(7).expect("room");
        assert_eq!(HANDLES.get(buffer), Err(Refusal::WrongKind));
        assert_eq!(BUFFERS.get(std::ptr::null::<Thing>()), Err(Refusal::Null));
        let local = 5;
        assert_eq!(BUFFERS.get(&raw const local), Err(Refusal::NotOurs));
        // Another place, another generation, every single bit.
        for bit in 0..64 {
            let other = std::ptr::without_provenance::<Thing>(buffer.addr() ^ 1 << bit);
            assert!(BUFFERS.get(other).is_err(), "bit {bit}");
        }
        assert_eq!(BUFFERS.get(buffer), Ok(7));
    }

    #[test]
    fn who_comes_while_another_is_at_it_is_refused() {
        static TABLE: Table<u32> = Table::new(Kind::Queue);
        let name: *mut Thing = TABLE.insert(1).expect("room");
        let inside = TABLE.try_with_mut(name, |_| {
            let busy = TABLE.try_with_mut(name, |_| ());
            (busy, TABLE.try_remove(name))
        });
        assert_eq!(inside, Ok((Err(Refusal::Busy), Err(Refusal::Busy))));
        assert_eq!(TABLE.try_with_mut(name, |number| *number), Ok(1));
    }

    #[test]
    fn an_object_whose_call_panicked_can_only_be_freed() {
        static TABLE: Table<u32> = Table::new(Kind::Queue);
        let name: *mut Thing = TABLE.insert(1).expect("room");
        let panicked = std::panic::catch_unwind(|| TABLE.try_with_mut(name, |_| panic!("inside")));
        assert!(panicked.is_err());
        assert_eq!(TABLE.try_with_mut(name, |number| *number), Err(Refusal::Spoilt));
        assert_eq!(TABLE.remove(name, any), Ok(1));
        let next: *mut Thing = TABLE.insert(2).expect("room");
        assert_eq!(TABLE.try_with_mut(next, |number| *number), Ok(2), "the place is good again");
    }

    #[test]
    fn threads_that_make_and_free_never_meet_each_others_objects() {
        static TABLE: Table<AtomicU32> = Table::new(Kind::Buffer);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for round in 0..2000 {
                        let mine = thread << 16 | round;
                        let name: *mut Thing = TABLE.insert(mine.into()).expect("room");
                        let seen = TABLE.with(name, |value| value.load(Ordering::Relaxed));
                        assert_eq!(seen, Ok(mine));
                        let gone = TABLE.remove(name, any).expect("it is there");
                        assert_eq!(gone.into_inner(), mine);
                    }
                });
            }
        });
    }
}
