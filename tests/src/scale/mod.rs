//! Very many nodes in virtual time, each with the engine and the control thread that ship: what
//! they move, how evenly, how soon they are whole again after a disturbance, and what that costs.
//!
//! ```text
//!   scenes ─► World ─► piped_world::Nodes ─► SimKernel (one narrow link of each node)
//!     │         ▲ jobs, ends, bytes compared
//!     └─ Load ──┘                 churn: the same, with disasters from a seed
//! ```
//!
//! All figures are virtual time, counts, and bytes of the heap as they were asked for, so they
//! follow from the seed and the options to the last digit. Bytes that arrive are compared with what
//! their node has; whoever finds others panics.

mod churn;
mod figures;
mod jobs;
mod layout;
mod load;
mod machine;
mod member;
mod scenes;
mod world;

pub use self::churn::{Churned, File, churn};
pub use self::figures::{Costs, Figures};
pub use self::machine::{Machine, Options};
pub use self::scenes::{Peers, Scene, idle, tour};
