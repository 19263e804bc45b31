//! Plans that are improved: which stages cut where, and how large the pieces are.

pub(crate) mod improve;
pub(crate) mod layout;
pub(crate) mod polish;
pub(crate) mod simplex;
