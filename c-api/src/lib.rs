//! piped for programs in C and C++: `libpiped` and `piped.h`.
//!
//! The header is made from this crate's signatures and comments by cbindgen, and a test holds the
//! committed one to them. What C programs hold are names of objects ([`table`]), checked at every
//! call; each function is a [`border::call`], which no panic leaves. Below that there is client-lib
//! and nothing else:
//!
//! ```text
//!   piped_prep_read(&request, handle, offset, buffer), piped_run(queue, &request, ..)
//!     │ border: strings, sizes, places for results     client.rs  buffer.rs  handle.rs  region.rs
//!     │ table:  names ► Queue, Handle, Buffer          queue.rs   verbs.rs   ending.rs
//!     ▼
//!   Queue::run(Request::read(&handle, offset, buffer)) ► the buffer goes back under its name
//! ```
//!
//! [`asking`] is where the two meet: a buffer leaves its place for a request and comes back with
//! the result; of several, [`buffers`] takes all or none. A new verb is an arm in `verbs.rs`, and
//! its `piped_prep_` function in `verbs.h`, which ends the header.

mod asking;
mod border;
pub mod buffer;
pub mod buffers;
pub mod client;
pub mod ending;
mod fault;
pub mod handle;
pub mod memory;
pub mod names;
pub mod pieces;
pub mod queue;
pub mod ranges;
mod records;
pub mod region;
pub mod status;
pub mod strips;
mod table;
pub mod tiles;
pub mod verbs;
