//! See ARCHITECTURE.md.

pub mod io;
