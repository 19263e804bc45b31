//! A fixed number of places with names that go stale.
//!
//! Memory is taken once, in [`Slab::with_capacity`]. A [`Key`] carries the generation of its place,
//! so the name of something that is gone (a completion that came late, a peer's echo of an old
//! number) finds nothing instead of its successor.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// The name of an occupied place in a slab of kind `K`: the key of a transfer does not open a lane.
/// As a `u64` the key travels through the kernel and over the wire.
pub(super) struct Key<K> {
    index: u32,
    generation: u32,
    of: PhantomData<fn() -> K>,
}

impl<K> Key<K> {
    const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation, of: PhantomData }
    }

    pub(super) const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The key of these bits, whoever says them: a wrong one finds nothing, or another one of its
    /// kind.
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self::new(bits as u32, (bits >> 32) as u32)
    }

    /// The place, for tables that run beside the slab.
    pub(super) const fn index(self) -> u32 {
        self.index
    }

    /// How often the place was taken before this key's, and once more: never 0.
    pub(super) const fn generation(self) -> u32 {
        self.generation
    }

    const fn parts(self) -> (u32, u32) {
        (self.index, self.generation)
    }
}

// By hand: derived, they would ask the same of `K`.
impl<K> Clone for Key<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Key<K> {}

impl<K> PartialEq for Key<K> {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl<K> Eq for Key<K> {}

impl<K> PartialOrd for Key<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Key<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl<K> Hash for Key<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl<K> fmt::Debug for Key<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}:{})", self.index, self.generation)
    }
}

const _: () = assert!(size_of::<Key<String>>() == 8);

#[derive(Debug)]
struct Place<K> {
    generation: u32,
    value: Option<K>,
}

/// A fixed number of places for values of one kind.
#[derive(Debug)]
pub(super) struct Slab<K, T> {
    /// The places that were ever used, in memory for all.
    places: Vec<Place<T>>,
    /// The used places that are free again.
    free: Vec<u32>,
    capacity: u32,
    of: PhantomData<fn() -> K>,
}

impl<K, T> Slab<K, T> {
    pub(super) fn with_capacity(capacity: u32) -> Self {
        let places = capacity as usize;
        Self {
            places: Vec::with_capacity(places),
            free: Vec::with_capacity(places),
            capacity,
            of: PhantomData,
        }
    }

    /// Puts a value in a free place; gives it back if there is none.
    pub(super) fn insert(&mut self, value: T) -> Result<Key<K>, T> {
        let Some(index) = self.free.pop() else {
            let index = self.places.len() as u32;
            if index == self.capacity {
                return Err(value);
            }
            self.places.push(Place { generation: 1, value: Some(value) });
            return Ok(Key::new(index, 1));
        };
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        Ok(Key::new(index, place.generation))
    }

    pub(super) fn remove(&mut self, key: Key<K>) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let value = place.value.take()?;
        // After 2^32 uses of one place names may repeat, which only a
        // name four thousand million requests old could notice.
        place.generation = place.generation.checked_add(1).unwrap_or(1);
        self.free.push(key.index);
        Some(value)
    }

    pub(super) fn get(&self, key: Key<K>) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        if place.generation == key.generation { place.value.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, key: Key<K>) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation == key.generation { place.value.as_mut() } else { None }
    }

    pub(super) fn len(&self) -> u32 {
        (self.places.len() - self.free.len()) as u32
    }

    pub(super) fn room(&self) -> u32 {
        self.capacity - self.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key<K>, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let key = Key::new(index as u32, place.generation);
            place.value.as_ref().map(|value| (key, value))
        })
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_mut())
    }

    /// The key of what has the place now.
    pub(super) fn in_place(&self, index: u32) -> Option<Key<K>> {
        let place = self.places.get(index as usize)?;
        place.value.as_ref().map(|_| Key::new(index, place.generation))
    }

    /// The first occupied place at or after `from` that satisfies `wanted`; `from` is behind it
    /// then. Lets a caller walk the slab while it changes it.
    pub(super) fn next_from(&self, from: &mut u32, wanted: impl Fn(&T) -> bool) -> Option<Key<K>> {
        let mut places = self.places.iter().enumerate().skip(*from as usize);
        let (index, place) = places.find(|(_, place)| place.value.as_ref().is_some_and(&wanted))?;
        *from = index as u32 + 1;
        Some(Key::new(index as u32, place.generation))
    }
}

/// Values beside those of a slab, one for each of its places: what is large and seldom looked at,
/// so that the slab's own values stay small. Their memory is the slab's for ever, so a value begins
/// as its place's last holder left it.
#[derive(Debug)]
pub(super) struct Beside<K, V> {
    values: Vec<V>,
    of: PhantomData<fn() -> K>,
}

impl<K, V: Default> Beside<K, V> {
    /// Room for a slab of this capacity.
    pub(super) fn with_capacity(capacity: u32) -> Self {
        Self { values: Vec::with_capacity(capacity as usize), of: PhantomData }
    }

    /// The value of a place that was taken just now. Its new holder clears it.
    pub(super) fn of_new(&mut self, key: Key<K>) -> &mut V {
        let place = key.index as usize;
        if place >= self.values.len() {
            self.values.resize_with(place + 1, V::default);
        }
        &mut self.values[place]
    }

    /// The value of a key's place, whoever has the place now.
    pub(super) fn get(&self, key: Key<K>) -> Option<&V> {
        self.values.get(key.index as usize)
    }

    /// The mutable form of [`Self::get`].
    pub(super) fn get_mut(&mut self, key: Key<K>) -> Option<&mut V> {
        self.values.get_mut(key.index as usize)
    }

    /// The value beside that of a key which the slab knows.
    pub(super) fn at(&self, key: Key<K>) -> &V {
        &self.values[key.index as usize]
    }

    /// The mutable form of [`Self::at`].
    pub(super) fn at_mut(&mut self, key: Key<K>) -> &mut V {
        &mut self.values[key.index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slab = Slab::<(), _>::with_capacity(1);
        let first = slab.insert('a').expect("one place");
        assert_eq!(slab.insert('b'), Err('b'));
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('c').expect("freed");
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'c'));
        assert_eq!(Key::from_bits(second.to_bits()), second);
    }

    #[test]
    fn walking_survives_removal() {
        let mut slab = Slab::<(), _>::with_capacity(4);
        for n in 0..4 {
            slab.insert(n).expect("room");
        }
        let mut seen = Vec::new();
        let mut from = 0;
        while let Some(key) = slab.next_from(&mut from, |n| n % 2 == 0) {
            seen.push(slab.remove(key).expect("found"));
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 2]);
        assert_eq!(slab.len(), 2);
    }
}
