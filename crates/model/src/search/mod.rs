//! Plans that are improved: which stages cut where, and how large the pieces are.

pub mod layout;
pub mod polish;
mod simplex;
