//! A distributed shared memory on piped, as small as it can be and still complete: gets from a
//! region or file of another node serve the page faults on memory of this process.
//!
//! What uses it takes a plain `&mut [u8]`:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use piped_client::{Access, Client};
//! use remote_pager::{Options, Pager};
//! let client = Client::connect("/run/piped/client.sock")?;
//! let region = client.open_region(Some("beta"), "records", Access::READ_WRITE)?;
//! let mut pager = Pager::map(&client, &region, Options::new().writable())?;
//! pager.bytes_mut().expect("it is writable").sort_unstable();
//! pager.close()?;
//! # Ok(()) }
//! ```
//!
//! ```text
//!  application ──touches──► mapping ──message──► pager's thread ──get──► daemon ──► other node
//!       ▲                      ▲                   │  pages: what is where, what is dirty
//!       └───── goes on ────────┴──── install ──────┘  streams: reads in order
//! ```
//!
//! **What is promised.** The application reads what it wrote, whatever was evicted meanwhile. Its
//! writes are at the other node after [`Pager::sync`]. Writes of others there are seen after
//! [`Pager::refresh`], or when a page happens to be fetched anew; nobody is told. If two write to
//! one page, the later sync wins for all of it. A lock protocol of a DSM builds on that: refresh
//! when a lock is taken, sync before it is given back.
//!
//! **What happens when a page cannot be had.** The pager asks again, also after the daemon was
//! restarted (if the client reconnects), for as long as [`Options::patience`] says, or until there
//! is no hope (the exporter of the region is gone). Then the thread that waits gets SIGBUS (SIGSEGV
//! before Linux 6.6): it neither hangs nor reads what is not true. The page stays lost;
//! [`Pager::failure`] says why. Pages that cannot be written back stay, dirty, until a sync can.
//!
//! Not noticed are writes that the kernel was told of long before they come: memory of the mapping
//! must not be registered with io_uring or be the target of asynchronous direct I/O. A child of
//! `fork` does not have the mapping.

mod clock;
mod counters;
mod error;
mod fetch;
mod limits;
mod mapping;
mod options;
mod pager;
mod pages;
mod pool;
mod save;
mod serve;
mod stream;

pub use counters::Counts;
pub use error::{MapError, Moved, Need, PageError, SyncError};
pub use mapping::{Features, PAGE, probe};
pub use options::Options;
pub use pager::Pager;
