//! What a node of a lab has on the disk: its key, an export, its configuration, and what tells the
//! others where it is.

use std::fs;
use std::path::{Path, PathBuf};

use super::description::{Lab, Member};
use super::site::{NODES, Site};
use super::trust::{self, Identity, Trust};
use crate::daemon::{Setting, quoted};
use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::output;

/// Export of each node, and the file in it.
const EXPORT: &str = "data";
const FILE: &str = "hello";
/// Directory of what a node keeps over its ends, such as a renewed certificate.
const STATE: &str = "state";

/// Staging memory of all nodes together, and the least and most of one of them.
const STAGING_ALL: u64 = 512 << 20;
const STAGING_MIN: u64 = 8 << 20;
const STAGING_MAX: u64 = 64 << 20;
/// Unit in which the daemon takes staging.
const STAGING_STEP: u64 = 4 << 20;

/// Writes what all nodes of a lab have, and why they trust each other.
pub(super) fn write_all(site: &Site, lab: &Lab, interrupts: &Interrupts) -> Result<(), Failure> {
    make(&site.node(NODES))?;
    let identities = lab.nodes().iter().map(|node| {
        interrupts.check()?;
        key(site, node)
    });
    let identities: Vec<Identity> = identities.collect::<Result<_, Failure>>()?;
    let count = lab.nodes().len();
    for node in lab.nodes() {
        interrupts.check()?;
        let mut setting = setting(site, node, count)?;
        if lab.trust() == Trust::Pinned {
            trust::pin(&mut setting, &identities);
        }
        setting.write()?;
        tell(site, node)?;
    }
    match lab.trust() {
        Trust::Cluster => trust::sign(site, lab.nodes()[0].address(), &identities),
        Trust::Pinned => Ok(()),
    }
}

/// Writes what a node has that comes to a lab of `count` nodes. Nobody has signed its key.
pub(super) fn write_one(site: &Site, node: &Member, count: usize) -> Result<(), Failure> {
    key(site, node)?;
    setting(site, node, count)?.write()?;
    tell(site, node)
}

/// Removes what [`write_one`] wrote, or a part of it.
pub(super) fn remove_one(site: &Site, name: &str) -> Result<(), Failure> {
    let (told, directory) = (place(site, name), site.node(name));
    let removed = [(fs::remove_file(&told), told), (fs::remove_dir_all(&directory), directory)];
    for (removed, path) in removed {
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::io(output::path(&path), &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes a node's directory and key.
fn key(site: &Site, node: &Member) -> Result<Identity, Failure> {
    let directory = site.node(node.name());
    make(&directory.join(EXPORT))?;
    make(&directory.join(STATE))?;
    Identity::make(node.name(), &directory)
}

/// Fills a node's export, and says what its configuration is.
fn setting(site: &Site, node: &Member, count: usize) -> Result<Setting, Failure> {
    let (name, directory) = (node.name(), site.node(node.name()));
    let staging = (STAGING_ALL / count as u64).clamp(STAGING_MIN, STAGING_MAX);
    let staging = staging / STAGING_STEP * STAGING_STEP;
    let data = directory.join(EXPORT);
    let fail = |error| Failure::io(format_args!("cannot set up node {name}"), &error);
    fs::write(data.join(FILE), format!("This is {name}.\n")).map_err(fail)?;
    let setting = Setting::new(name, directory.clone())?.listens(node.address());
    let mut setting = setting.exports(EXPORT, &data)?;
    setting.set(&format!("exports.{EXPORT}.write"), true);
    setting.set(&format!("exports.{EXPORT}.names"), true);
    setting.set("node.state_dir", quoted(&directory.join(STATE))?);
    setting.set("discovery.files", quoted(&site.node(NODES))?);
    // Many daemons on few CPUs: none of them shall stay on one.
    setting.set("shards.pin", false);
    setting.set("planner.allow_dials", true);
    setting.set("limits.global.staging", format_args!("\"{}MiB\"", staging >> 20));
    trust::prove(&mut setting, &directory)?;
    Ok(setting)
}

/// Tells all nodes where one is.
fn tell(site: &Site, node: &Member) -> Result<(), Failure> {
    let said = format!(
        "address = \"{}\"\nexports = [\"{EXPORT}\"]\nversion = \"{}\"\n",
        node.address(),
        env!("CARGO_PKG_VERSION")
    );
    let place = place(site, node.name());
    // Written beside, and whole when it has its name: daemons may look at any time.
    let made = place.with_file_name(format!(".{}", node.name()));
    fs::write(&made, said)
        .and_then(|()| fs::rename(&made, &place))
        .map_err(|error| Failure::io(output::path(&place), &error))
}

/// File that says where a node is.
fn place(site: &Site, name: &str) -> PathBuf {
    site.node(NODES).join(format!("{name}.toml"))
}

fn make(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| Failure::io(output::path(path), &error))
}
