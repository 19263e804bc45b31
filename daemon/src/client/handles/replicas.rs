//! A file that several nodes have, opened as one: each of them is asked, and a handle stands for
//! the files of those that have it.
//!
//! ```text
//!   "a,b,c" or "*" ─► the nodes ─► all are asked at once ─► one has it: the others get a moment
//!                                                     └─► one length? ─► one handle (shard)
//! ```

use std::collections::BTreeMap;

use piped_control::fault::OpenFault;
use piped_core::access::{Access, Creation, OpenKind};
use piped_core::ids::HandleId;
use piped_core::status::Status;
use piped_engine::command::OpenRequest;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::named::Named;
use super::opens::Opened;
use super::{Client, Held};
use crate::limits::REPLICA_OPEN_GRACE;
use crate::shard::message::Message;

impl Client {
    /// Opens a file of an export of several nodes, for reading.
    pub(super) async fn open_replicas(
        &mut self,
        nodes: Named<'_>,
        (export, path): (String, Vec<u8>),
        access: Access,
        create: Creation,
    ) -> Opened {
        if access != Access::READ || create != Creation::No {
            let text = "a file of several nodes is read only; write to each of them by its name";
            return Err(OpenFault::new(Status::Invalid, text));
        }
        let mut asked = JoinSet::new();
        let mut underway = BTreeMap::new();
        let mut opened = Vec::new();
        let (mut fault, mut here) = (None, 0);
        let are_named = matches!(nodes, Named::List(_));
        for node in nodes.names(&self.control, self.id, &export)? {
            let (export, path) = (export.clone(), path.clone());
            if self.is_here(&node) {
                match self.open_export((export, path), access, Some(create)).await {
                    Ok((handle, alignment, length)) => {
                        here = alignment;
                        opened.push((node, handle, length));
                    }
                    Err(error) => fault = fault.or(Some(error)),
                }
                continue;
            }
            let open = OpenRequest { kind: OpenKind::File, name: export, path, access, create };
            match self.begin_remote(&node, open).await {
                Ok((asking, mut ticket)) => {
                    let number = ticket.number;
                    asked.spawn_local(async move { (number, ticket.outcome().await) });
                    underway.insert(number, (node, asking));
                }
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        let mut until = Instant::now() + self.patience();
        while !asked.is_empty() {
            if !opened.is_empty() {
                until = until.min(Instant::now() + REPLICA_OPEN_GRACE);
            }
            let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await else { break };
            let Ok((number, outcome)) = answer else { continue };
            let Some((node, asking)) = underway.remove(&number) else { continue };
            match self.end_remote(asking, Some(outcome)).await {
                Ok((handle, _, length)) => opened.push((node, handle, length)),
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        // Those that have not answered are left out.
        drop(asked);
        for (_, asking) in underway.into_values() {
            let late = self.end_remote(asking, None).await;
            fault = fault.or(late.err());
        }
        // Whoever fills a node's directory is not to keep all others from being read.
        let length = usual_length(&opened).filter(|_| !are_named);
        for (_, handle, _) in
            opened.extract_if(.., |it| length.is_some_and(|length| it.2 != length))
        {
            self.drop_handle(handle).await;
        }
        match opened.as_slice() {
            // Others that come back are asked when it is opened again.
            [(node, handle, length)] => {
                let alignment = if self.is_here(node) { here } else { 0 };
                Ok((*handle, alignment, *length))
            }
            _ => self.join(opened, fault).await,
        }
    }

    /// Makes one handle of those that were opened; `fault`: why there is none, if there is none.
    async fn join(
        &mut self,
        opened: Vec<(String, HandleId, u64)>,
        fault: Option<OpenFault>,
    ) -> Opened {
        let Some(&(.., length)) = opened.first() else {
            let nobody = || OpenFault::new(Status::NotFound, "no node was asked");
            return Err(fault.unwrap_or_else(nobody));
        };
        let joined = match opened.iter().find(|(.., other)| *other != length) {
            Some((node, _, other)) => {
                let text = format!(
                    "the files are not the same: {length} bytes at `{}` and {other} at `{node}`; \
                     name the nodes that have the right one",
                    opened[0].0
                );
                Err(OpenFault::new(Status::Invalid, text))
            }
            None => self.new_handle(),
        };
        let members: Vec<HandleId> = opened.iter().map(|(_, handle, _)| *handle).collect();
        let joined = match joined {
            Ok(handle) => {
                let (session, members) = (self.id, members.clone());
                let ask = |answer| Message::Join { session, handle, members, length, answer };
                self.ask(ask).await.map(|()| handle)
            }
            Err(fault) => Err(fault),
        };
        match joined {
            Ok(handle) => {
                self.handles.insert(handle.0, Held::Replicas);
                self.replicas.insert(handle.0, members);
                Ok((handle, 0, length))
            }
            Err(fault) => {
                for member in members {
                    self.drop_handle(member).await;
                }
                Err(fault)
            }
        }
    }
}

/// The length that most of the files have; of lengths that as many have the first.
fn usual_length(opened: &[(String, HandleId, u64)]) -> Option<u64> {
    let count = |length: u64| opened.iter().filter(|it| it.2 == length).count();
    let lengths = opened.iter().rev().map(|it| it.2);
    lengths.max_by_key(|length| count(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_length_is_the_one_that_most_have() {
        let opened = |lengths: &[u64]| -> Vec<_> {
            let file = |(at, length): (usize, &u64)| (at.to_string(), HandleId(at as u32), *length);
            lengths.iter().enumerate().map(file).collect()
        };
        assert_eq!(usual_length(&opened(&[])), None);
        assert_eq!(usual_length(&opened(&[7, 9, 9])), Some(9));
        assert_eq!(usual_length(&opened(&[7, 9])), Some(7), "the first of as many");
    }
}
