//! A session as queues and files of tasks know it.

use std::sync::Arc;

use super::waiting::Waiting;
use crate::buffer::Buffer;
use crate::client::Client;
use crate::connection::growths;
use crate::error::{AllocateError, SessionError};
use crate::handle::{Handle, Way, read_costs};
use crate::path::PathCosts;

/// A client, and how its tasks wait. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    client: Client,
    waiting: Arc<Waiting>,
}

impl Session {
    pub(super) fn new(client: Client, waiting: Arc<Waiting>) -> Self {
        Self { client, waiting }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn waiting(&self) -> &Arc<Waiting> {
        &self.waiting
    }

    /// A buffer of `length` bytes. The arena grows if it must and may.
    pub(crate) async fn allocate(&self, length: usize) -> Result<Buffer, AllocateError> {
        let shared = self.client.shared();
        let connection = shared.connection();
        if let Some(buffer) = connection.allocate_at_once(length)? {
            return Ok(buffer);
        }
        let step = shared.settings.hello.arena_bytes;
        self.waiting.memory(&connection, length, growths(length as u64, step)).await
    }

    /// Makes room for a buffer of an earlier connection: it moves when it is used, without waiting.
    pub(super) async fn make_room_for(&self, buffer: &Buffer) {
        let shared = self.client.shared();
        if shared.must_bring(buffer, &shared.connection()) {
            // Without room the request says so.
            drop(self.allocate(buffer.capacity()).await);
        }
    }

    /// What the daemon says that the handle's path costs.
    pub(crate) async fn costs(
        &self,
        handle: &Handle,
        way: Way,
    ) -> Result<Option<PathCosts>, SessionError> {
        match handle.core.costs_question(way)? {
            Some((control, request)) => {
                read_costs(self.waiting.ask(&control, &request, &[]).await?)
            }
            None => Ok(None),
        }
    }
}
