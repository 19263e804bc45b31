//! A fixed number of places with names that go stale.
//!
//! Memory is taken once, in [`Slab::with_capacity`]. A [`Key`] carries the generation of its place, so
//! the name of something that is gone (a completion that came late, a peer's echo of an old number)
//! finds nothing instead of its successor.

/// The name of an occupied place. As a `u64` it travels through the kernel and over the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    pub(crate) const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }

    /// The place, for tables that run beside the slab.
    pub(crate) const fn index(self) -> u32 {
        self.index
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    /// Those that were ever used, in memory for all.
    places: Vec<Place<T>>,
    /// Those of them that are free again.
    free: Vec<u32>,
    capacity: u32,
}

impl<T> Slab<T> {
    pub(crate) fn with_capacity(capacity: u32) -> Self {
        let places = capacity as usize;
        Self { places: Vec::with_capacity(places), free: Vec::with_capacity(places), capacity }
    }

    /// Puts a value in a free place; gives it back if there is none.
    pub(crate) fn insert(&mut self, value: T) -> Result<Key, T> {
        let Some(index) = self.free.pop() else {
            let index = self.places.len() as u32;
            if index == self.capacity {
                return Err(value);
            }
            self.places.push(Place { generation: 1, value: Some(value) });
            return Ok(Key { index, generation: 1 });
        };
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        Ok(Key { index, generation: place.generation })
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let value = place.value.take()?;
        // After 2^32 uses of one place names may repeat, which only a
        // name four thousand million requests old could notice.
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        if place.generation == key.generation { place.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation == key.generation { place.value.as_mut() } else { None }
    }

    pub(crate) fn len(&self) -> u32 {
        (self.places.len() - self.free.len()) as u32
    }

    pub(crate) fn room(&self) -> u32 {
        self.capacity - self.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let key = Key { index: index as u32, generation: place.generation };
            place.value.as_ref().map(|value| (key, value))
        })
    }

    /// The first occupied place at or after `from` that satisfies `wanted`: lets a caller walk the
    /// slab while it changes it.
    pub(crate) fn next_from(&self, from: u32, wanted: impl Fn(&T) -> bool) -> Option<Key> {
        self.places.iter().enumerate().skip(from as usize).find_map(|(index, place)| {
            let value = place.value.as_ref()?;
            wanted(value).then_some(Key { index: index as u32, generation: place.generation })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slab = Slab::with_capacity(1);
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
        let mut slab = Slab::with_capacity(4);
        for n in 0..4 {
            slab.insert(n).expect("room");
        }
        let mut seen = Vec::new();
        let mut from = 0;
        while let Some(key) = slab.next_from(from, |n| n % 2 == 0) {
            seen.push(slab.remove(key).expect("found"));
            from = key.index() + 1;
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 2]);
        assert_eq!(slab.len(), 2);
    }
}
