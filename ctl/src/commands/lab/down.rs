//! The end of a lab, or of some of its daemons.

use super::description::Lab;
use super::remains::{self, Remains};
use super::site::{self, Site};
use crate::failure::{Exit, Failure};
use crate::output::{self, Output};

/// `pipectl lab down`: removes all that there is.
pub(super) fn run(site: &Site, output: &Output) -> Result<(), Failure> {
    let claim = site.claim_existing()?;
    let remains = Remains::of(site)?;
    if remains.is_empty() {
        let place = output::path(site.directory());
        return output.prose(&format!("There is no lab in {place}: nothing is removed."), 0);
    }
    let words = remains.words();
    remains.remove(site, claim)?;
    output.prose(&format!("Removed: {words}"), 2)
}

/// `pipectl lab stop`: ends the daemons of these nodes.
pub(super) fn stop(site: &Site, nodes: &[String], output: &Output) -> Result<(), Failure> {
    let lab = require(site)?;
    let _claim = site.claim_existing()?;
    for name in nodes {
        lab.member(name)?;
    }
    let mut running = remains::processes(site);
    running.retain(|process| nodes.iter().any(|name| name == process.node()));
    remains::end(&running);
    for name in nodes {
        match running.iter().find(|process| process.node() == name) {
            Some(process) => output.line(format_args!("{name}: ended (pid {})", process.pid()))?,
            None => output.line(format_args!("{name}: did not run"))?,
        }
    }
    Ok(())
}

/// The lab at a place, or why there is none.
pub(super) fn require(site: &Site) -> Result<Lab, Failure> {
    if let Some(lab) = Lab::at(site)? {
        return Ok(lab);
    }
    // It may just be made, or removed.
    drop(site.claim_existing()?);
    let remains = Remains::of(site)?;
    if remains.is_clear() {
        let place = output::path(site.directory());
        let words = format!("there is no lab in {place}: start one with `pipectl lab up`");
        let failure = Failure::new(Exit::NotFound, words);
        return Err(match site::of_root().filter(|roots| roots != site.directory()) {
            Some(roots) => {
                let roots = output::path(&roots).into_owned();
                failure.and(format_args!("root has one in {roots}: use sudo to see it"))
            }
            None => failure,
        });
    }
    Err(broken(&remains))
}

/// Failure for a lab of which there are only parts.
pub(super) fn broken(remains: &Remains) -> Failure {
    let words = remains.words();
    Failure::failed(format!(
        "here is what an earlier lab has left: {words}. Remove it with `pipectl lab down`"
    ))
}
