//! Requests of tasks: futures on any runtime, from many tasks of one queue.
//!
//! ```text
//!  task ─ poll ─► AsyncQueue (a mutex) ─► Queue ─ rings ─► daemon
//!    ▲                  ▲                                     │
//!    └───── wake ───────┴──── Runtime ◄──────── bell ─────────┘
//! ```
//!
//! What ends is taken in by the callback that the [`Runtime`] calls when the bell rings. So no task
//! does another's work, and none waits for another to be polled. Wakers are woken and dropped
//! outside of every lock: both may run a destructor of a future of the same queue.

mod client;
mod driven;
mod growth;
mod line;
mod queue;
mod running;
mod runtime;
mod session;
mod timer;
#[cfg(feature = "tokio")]
mod tokio;
mod waiting;

pub use self::client::AsyncClient;
pub use self::queue::AsyncQueue;
pub use self::running::Running;
pub use self::runtime::{Ready, Runtime, Watch};
#[cfg(feature = "tokio")]
pub use self::tokio::TokioRuntime;
