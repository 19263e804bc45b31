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
        let are_named = matches!(nodes, Named::List(_));
        let (mut asked, mut underway) = (JoinSet::new(), BTreeMap::new());
        let mut files = Files::default();
        for node in nodes.names(&self.control, self.id, &export)? {
            let (export, path) = (export.clone(), path.clone());
            if self.is_here(&node) {
                let opened = self.open_export((export, path), access, Some(create)).await;
                files.note(node, opened);
                continue;
            }
            let open = OpenRequest { kind: OpenKind::File, name: export, path, access, create };
            match self.begin_remote(&node, open).await {
                Ok((asking, mut ticket)) => {
                    let number = ticket.number;
                    asked.spawn_local(async move { (number, ticket.outcome().await) });
                    underway.insert(number, (node, asking));
                }
                Err(fault) => files.note(node, Err(fault)),
            }
        }
        let mut until = Instant::now() + self.open_patience();
        while !asked.is_empty() {
            if !files.opened.is_empty() {
                until = until.min(Instant::now() + REPLICA_OPEN_GRACE);
            }
            let Ok(Some(answer)) = timeout_at(until, asked.join_next()).await else { break };
            let Ok((number, outcome)) = answer else { continue };
            let Some((node, asking)) = underway.remove(&number) else { continue };
            files.note(node, self.end_remote(asking, Some(outcome)).await);
        }
        // Those that have not answered are left out.
        drop(asked);
        for (node, asking) in underway.into_values() {
            files.note(node, self.end_remote(asking, None).await);
        }
        // Whoever fills a node's directory is not to keep all others from being read.
        let unlike = if are_named { Vec::new() } else { files.take_unlike() };
        for (_, (handle, ..)) in unlike {
            self.drop_handle(handle).await;
        }
        match files.opened.as_slice() {
            [] => Err(files.fault()),
            // Others that come back are asked when it is opened again.
            [(_, opened)] => Ok(*opened),
            opened => {
                let joined = self.join(opened).await;
                if joined.is_err() {
                    for (_, (handle, ..)) in opened {
                        self.drop_handle(*handle).await;
                    }
                }
                joined
            }
        }
    }

    /// Makes one handle of those of several files, if these have one length.
    async fn join(&mut self, opened: &[(String, File)]) -> Opened {
        let Some((first, (.., length))) = opened.first() else { return Err(nobody()) };
        if let Some((node, (.., other))) = opened.iter().find(|(_, (.., other))| other != length) {
            let text = format!(
                "the files are not the same: {length} bytes at `{first}` and {other} at `{node}`; \
                 name the nodes that have the right one"
            );
            return Err(OpenFault::new(Status::Invalid, text));
        }
        let handle = self.new_handle()?;
        let members: Vec<HandleId> = opened.iter().map(|(_, (handle, ..))| *handle).collect();
        let (session, length, of) = (self.id, *length, members.clone());
        let join = |answer| Message::Join { session, handle, members: of, length, answer };
        if let Err(fault) = self.shards.ask(join).await {
            self.forget(handle.0);
            return Err(fault);
        }
        if let Err(fault) = self.shards.point(handle).await {
            self.drop_handle(handle).await;
            return Err(fault);
        }
        self.handles.insert(handle.0, Held::Replicas);
        self.replicas.insert(handle.0, members);
        Ok((handle, 0, length))
    }
}

/// A file that is open: its handle, its alignment for direct I/O, its length in bytes.
type File = (HandleId, u32, u64);

/// What became of a file at each of several nodes.
#[derive(Debug, Default)]
struct Files {
    /// The nodes that have opened it.
    opened: Vec<(String, File)>,
    /// The first reason of a node that has not.
    fault: Option<OpenFault>,
}

impl Files {
    fn note(&mut self, node: String, opened: Opened) {
        match opened {
            Ok(file) => self.opened.push((node, file)),
            Err(fault) => self.fault = self.fault.take().or(Some(fault)),
        }
    }

    /// Why nobody has it.
    fn fault(&mut self) -> OpenFault {
        self.fault.take().unwrap_or_else(nobody)
    }

    /// Takes those out that have another length than most; of lengths that as many have, the first
    /// is the right one.
    fn take_unlike(&mut self) -> Vec<(String, File)> {
        let count = |length: u64| self.opened.iter().filter(|(_, file)| file.2 == length).count();
        let lengths = self.opened.iter().rev().map(|(_, file)| file.2);
        let Some(usual) = lengths.max_by_key(|length| count(*length)) else { return Vec::new() };
        self.opened.extract_if(.., |(_, file)| file.2 != usual).collect()
    }
}

fn nobody() -> OpenFault {
    OpenFault::new(Status::NotFound, "no node was asked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_length_is_the_one_that_most_have() {
        let left = |lengths: &[u64]| -> Vec<u64> {
            let mut files = Files::default();
            for (at, length) in lengths.iter().enumerate() {
                files.note(at.to_string(), Ok((HandleId(at as u32), 0, *length)));
            }
            let unlike = files.take_unlike();
            assert_eq!(unlike.len() + files.opened.len(), lengths.len());
            files.opened.iter().map(|(_, file)| file.2).collect()
        };
        assert!(left(&[]).is_empty());
        assert_eq!(left(&[7, 9, 9]), [9, 9]);
        assert_eq!(left(&[7, 9]), [7], "the first of as many");
    }
}
