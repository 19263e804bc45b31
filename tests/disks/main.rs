//! Disks that fail: full, broken, slow, gone, cut off from power. Real daemons on real file
//! systems, which this test serves itself where it has to say what the device does (FUSE, see
//! `filesystem`).
//!
//! After each fault the data are compared, and the same handles go on.
#![forbid(unsafe_code)]

mod durable;
mod errors;
mod filesystem;
mod full;
mod nodes;
mod stalls;

use filesystem::Faulty;
use nodes::Nodes;
use system_tests::process::Programs;

/// Two nodes over a device that can be told to fail, `sick`, and one that does not, `sound`.
struct World {
    nodes: Nodes,
    sick: Faulty,
    sound: tempfile::TempDir,
}

/// `None`: something that is needed is not there; the reason is printed.
fn world() -> Option<World> {
    let programs = Programs::find()?;
    let sick = Faulty::mount()?;
    let sound = tempfile::tempdir().expect("a directory");
    let nodes = Nodes::start(&programs, sick.path(), sound.path());
    Some(World { nodes, sick, sound })
}
