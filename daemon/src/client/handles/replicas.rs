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
        let nodes = nodes.names(&self.control, self.id, &export)?;
        let mut asked = JoinSet::new();
        let mut underway = BTreeMap::new();
        let mut opened = Vec::new();
        let mut fault = None;
        for node in nodes {
            let (export, path) = (export.clone(), path.clone());
            if self.is_here(&node) {
                match self.open_export((export, path), access, Some(create)).await {
                    Ok((handle, _, length)) => opened.push((node, handle, length)),
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
        self.join(opened, fault).await
    }

    /// Makes one handle of those that were opened; `fault`: why there is none, if there is none.
    async fn join(
        &mut self,
        opened: Vec<(String, HandleId, u64)>,
        fault: Option<OpenFault>,
    ) -> Opened {
        let Some(&(_, first, length)) = opened.first() else {
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
            // Others that come back are asked when it is opened again.
            None if opened.len() == 1 => return Ok((first, 0, length)),
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
