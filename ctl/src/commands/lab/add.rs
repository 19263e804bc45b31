//! `pipectl lab add`: one node more, which nobody has signed.
//!
//! ```text
//! what a killed `add` has left goes ► network ► key and configuration ► daemon ► lab.json
//! ```
//!
//! The node is of the lab when lab.json has it, which is written last. Joining is for commands that
//! real nodes have, too.

use std::path::Path;

use piped_netns::{Namespace, switch};

use super::description::{Lab, Network};
use super::site::Site;
use super::status::Began;
use super::trust::Trust;
use super::up::{NODES_MAX, Work, addresses, network_is_gone};
use super::{down, files, remains, status};
use crate::daemon::{self, Node};
use crate::failure::{Exit, Failure};
use crate::interrupts::Interrupts;
use crate::output::{Output, Progress};

pub(super) fn run(
    site: &Site,
    (dir, output): (Option<&Path>, &Output),
    json: bool,
) -> Result<(), Failure> {
    let interrupts = Interrupts::listen()?;
    let piped = daemon::find_piped()?;
    down::require(site)?;
    let _claim = site.claim_existing()?;
    // As it is now that nobody else changes it.
    let Some(mut lab) = Lab::at(site)? else {
        let words = "the lab was removed meanwhile: start one with `pipectl lab up`";
        return Err(Failure::new(Exit::NotFound, words));
    };
    check_room(&lab)?;
    let progress = Progress::new(!json);
    let work = Work::new(site, &piped, &interrupts, &progress);
    let name = lab.next_name();
    let added = one_more(&work, site, &mut lab);
    progress.clear();
    added.map_err(|failure| {
        // Its daemon and its network have ended with the work.
        let failure = work.of_interrupt(failure);
        match files::remove_one(site, &name) {
            Ok(()) => failure,
            Err(left) => failure.and(left).and("`pipectl lab down` removes what is left"),
        }
    })?;
    status::told(site, &lab, &Began::Added { name }, (dir, output), json)
}

/// Refuses a node more where none can come.
fn check_room(lab: &Lab) -> Result<(), Failure> {
    let refuse = |words: String| Err(Failure::new(Exit::Refused, words));
    if lab.trust() == Trust::Pinned {
        return refuse(
            "the nodes of this lab pin each other's keys, so none can join: `pipectl lab down`, \
             then `pipectl lab up` without --pinned"
                .to_owned(),
        );
    }
    if lab.nodes().len() >= usize::from(NODES_MAX) {
        return refuse(format!("the lab has {NODES_MAX} nodes, and may have no more"));
    }
    Ok(())
}

/// Makes a node, starts it, and takes it into the lab.
fn one_more(work: &Work<'_>, site: &Site, lab: &mut Lab) -> Result<(), Failure> {
    let number = lab.nodes().len();
    let host = host(site, lab, number)?;
    let address = addresses(lab.network(), number..number + 1)?[0];
    let node = lab.add(address).clone();
    files::write_one(site, &node, number + 1)?;
    let started = work.start(lab, std::slice::from_ref(&node))?;
    // Nodes that were stopped hear of it when they run again.
    let running = work.settled(lab)?;
    let mut hearing = lab.nodes().to_vec();
    hearing.retain(|it| running.iter().any(|name| name == it.name()));
    let started = work.await_ready(lab, &hearing, started)?;
    lab.keep(site)?;
    started.into_iter().for_each(Node::leave);
    if let Some(host) = host {
        host.keep();
    }
    Ok(())
}

/// The network of the next node, where each has one of its own. What a killed `add` has left of
/// such a node goes first.
fn host(site: &Site, lab: &Lab, number: usize) -> Result<Option<Namespace>, Failure> {
    let name = lab.next_name();
    let mut left = remains::processes(site);
    left.retain(|process| process.node() == name);
    remains::end(&left);
    files::remove_one(site, &name)?;
    if lab.network() == Network::Loopback {
        return Ok(None);
    }
    if !site.namespace(switch::SWITCH).exists() {
        return Err(network_is_gone(lab.nodes()[0].name()));
    }
    let failed = |error: piped_netns::Error| Failure::failed(error.to_string());
    switch::leave_kept(site.prefix(), &name, number).map_err(failed)?;
    switch::join_kept(site.prefix(), &name, number).map(Some).map_err(failed)
}
