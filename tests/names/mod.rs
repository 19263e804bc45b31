pub mod invent;
pub mod mirror;
pub mod piped;
