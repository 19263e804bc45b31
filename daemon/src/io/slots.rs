//! A bounded table with ids that do not come back: an id carries the generation of its place.
//!
//! The kernel's tables (registered files and buffers) want small indices that are used again. The
//! rest of the daemon wants an id that, kept too long, reaches nothing rather than a stranger's
//! file. One `u32` serves both: the low bits are the index, the high bits count the uses of the
//! place.

/// Bits of an id that are the index.
const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// Generations wrap at 12 bits: a stale id is caught unless the place was reused an exact multiple
/// of 4096 times meanwhile, and then it still reaches a live entry, not freed memory.
const GENERATION_MASK: u32 = u32::MAX >> INDEX_BITS;

/// The most entries a table may have.
pub(super) const CAPACITY_MAX: u32 = 1 << INDEX_BITS;

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    item: Option<T>,
}

/// The table. Its memory is taken when it is made.
#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Box<[Place<T>]>,
    free: Vec<u32>,
}

/// Index part of an id: the entry's number in the kernel's table.
pub(super) const fn index_of(id: u32) -> u32 {
    id & INDEX_MASK
}

impl<T> Slots<T> {
    /// Table of at most `capacity` entries (and never more than [`CAPACITY_MAX`]).
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = capacity.min(CAPACITY_MAX);
        Self {
            places: (0..capacity).map(|_| Place { generation: 0, item: None }).collect(),
            // Low indices first.
            free: (0..capacity).rev().collect(),
        }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.places.len() as u32
    }

    pub(super) fn count(&self) -> u32 {
        (self.places.len() - self.free.len()) as u32
    }

    /// Inserts an item; returns the id, or the item if the table is full.
    pub(super) fn insert(&mut self, item: T) -> Result<u32, T> {
        let Some(index) = self.free.pop() else { return Err(item) };
        let place = &mut self.places[index as usize];
        place.item = Some(item);
        Ok((place.generation << INDEX_BITS) | index)
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        let place = self.places.get(index_of(id) as usize)?;
        if place.generation == id >> INDEX_BITS { place.item.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let place = self.places.get_mut(index_of(id) as usize)?;
        if place.generation == id >> INDEX_BITS { place.item.as_mut() } else { None }
    }

    /// Removes an item; its id is dead from here on.
    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let place = self.places.get_mut(index_of(id) as usize)?;
        if place.generation != id >> INDEX_BITS {
            return None;
        }
        let item = place.item.take()?;
        place.generation = (place.generation + 1) & GENERATION_MASK;
        self.free.push(index_of(id));
        Some(item)
    }

    /// Ids that are in use.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.places
            .iter()
            .enumerate()
            .filter(|(_, place)| place.item.is_some())
            .map(|(index, place)| (place.generation << INDEX_BITS) | index as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::{Slots, index_of};

    #[test]
    fn a_stale_name_reaches_nothing() {
        let mut slots = Slots::new(2);
        let first = slots.insert('a').unwrap();
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b').unwrap();
        assert_eq!(index_of(first), index_of(second), "the index is used again");
        assert_ne!(first, second);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(second), Some(&'b'));
    }

    #[test]
    fn a_full_table_gives_the_item_back() {
        let mut slots = Slots::new(1);
        assert!(slots.insert(1).is_ok());
        assert_eq!(slots.insert(2), Err(2));
        assert_eq!(slots.count(), 1);
    }

    #[test]
    fn generations_wrap_without_losing_a_place() {
        let mut slots = Slots::new(3);
        for round in 0..20_000 {
            let id = slots.insert(round).unwrap();
            assert_eq!(slots.get(id), Some(&round));
            assert_eq!(slots.remove(id), Some(round));
        }
        assert_eq!(slots.count(), 0);
    }
}
