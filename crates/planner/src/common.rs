//! What many stages begin with: one value for all of them, until one of them learns otherwise.
//!
//! A node has four stages for each pair of nodes and each class of connection, and most of them
//! rest. What a stage knows takes 3 KiB, so those that know nothing share what there is to know.
//! Why not `Arc::make_mut`: samples are many, and it takes two atomic operations for each.

use std::ops::Deref;
use std::sync::Arc;

/// A value that is shared as long as nobody changes it.
#[derive(Debug)]
pub(super) enum Common<T> {
    Shared(Arc<T>),
    Own(Box<T>),
}

impl<T: Clone> Common<T> {
    /// The value to be changed. Memory is taken for it the first time.
    pub(super) fn own(&mut self) -> &mut T {
        if let Self::Shared(shared) = self {
            *self = T::clone(shared).into();
        }
        match self {
            Self::Own(own) => own,
            Self::Shared(_) => unreachable!("it was made its own"),
        }
    }
}

impl<T> Deref for Common<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Shared(shared) => shared,
            Self::Own(own) => own,
        }
    }
}

impl<T> From<T> for Common<T> {
    fn from(value: T) -> Self {
        Self::Own(Box::new(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_changes_a_value_changes_it_for_nobody_else() {
        let shared = Arc::new(7);
        let [mut one, two] = [0; 2].map(|_| Common::Shared(Arc::clone(&shared)));
        *one.own() += 1;
        assert_eq!([*one, *two, *shared], [8, 7, 7]);
        assert_eq!(Arc::strong_count(&shared), 2, "the first has let go of it");
        *one.own() += 1;
        assert_eq!([*one, *two], [9, 7]);
    }
}
