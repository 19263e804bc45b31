//! Several nodes, as clients name them where one could stand.

use std::collections::BTreeSet;

use piped_control::fault::OpenFault;
use piped_core::ids::SessionId;
use piped_core::limits::REPLICAS_MAX;
use piped_core::status::Status;

use crate::control::Control;

/// Stands for all nodes that are known to have an export.
const ALL: &str = "*";

/// The nodes that a client names where it names several.
pub(super) enum Named<'a> {
    /// The nodes of a list.
    List(&'a str),
    /// All that are known to have the export.
    All,
}

impl<'a> Named<'a> {
    /// Reads what a client names; none if that is one node. No name has such a character.
    pub(super) fn read(peer: &'a str) -> Option<Self> {
        match peer {
            ALL => Some(Self::All),
            peer => peer.contains(',').then_some(Self::List(peer)),
        }
    }

    /// The names of the nodes, each once; as many as there may be. `session`: of the client that
    /// asks.
    pub(super) fn names(
        self,
        control: &Control,
        session: SessionId,
        export: &str,
    ) -> Result<Vec<String>, OpenFault> {
        let invalid = |text: String| Err(OpenFault::new(Status::Invalid, text));
        match self {
            Self::List(list) => {
                let names: Vec<String> = list.split(',').map(str::to_owned).collect();
                let each: BTreeSet<&String> = names.iter().collect();
                if each.len() < names.len() || names.iter().any(String::is_empty) {
                    return invalid(format!("`{list}`: name each node once, as in `alpha,beta`"));
                }
                if names.len() > REPLICAS_MAX {
                    return invalid(format!("`{list}`: at most {REPLICAS_MAX} nodes"));
                }
                Ok(names)
            }
            Self::All => {
                let core = control.core.borrow();
                let known = core.discovery().nodes_with(export);
                let mut names: BTreeSet<String> = known
                    .filter(|name| core.peers().by_name(name).is_some())
                    .map(str::to_owned)
                    .collect();
                if core.live().config.exports.contains_key(export) {
                    names.insert(control.node.clone());
                }
                if names.is_empty() {
                    let text = format!(
                        "discovery knows no node with the export `{export}`; name the nodes, as in \
                         `alpha,beta`"
                    );
                    return Err(OpenFault::new(Status::NotFound, text));
                }
                // Where there are many, clients do not all go to the first ones.
                let first = session.0 as usize % names.len();
                let all = names.iter().cycle().skip(first).take(names.len().min(REPLICAS_MAX));
                Ok(all.cloned().collect())
            }
        }
    }
}
