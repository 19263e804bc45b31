//! What is known of a request while it is under way, and after.

use std::sync::{Mutex, OnceLock};

use piped_client::RequestId;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::fault::Fault;
use crate::lock;
use crate::outcome::Outcome;

/// What is known of a request, for its object and for its queue. It has no reference to either: a
/// queue that nobody has any more ends, whatever it has under way.
pub(super) struct State {
    id: OnceLock<RequestId>,
    buffer: Option<Py<Buffer>>,
    ended: Mutex<Option<Result<Outcome, Fault>>>,
}

impl State {
    pub(super) fn new(buffer: Option<Py<Buffer>>) -> Self {
        Self { id: OnceLock::new(), buffer, ended: Mutex::new(None) }
    }

    /// The state of a request that the queue has taken already.
    pub(super) fn begun(id: RequestId, buffer: Py<Buffer>) -> Self {
        Self { id: id.into(), buffer: Some(buffer), ended: Mutex::new(None) }
    }

    /// The queue has taken it, and gave it this name.
    pub(super) fn begin(&self, id: RequestId) {
        self.id.get_or_init(|| id);
    }

    /// The name that its queue has for it.
    pub(super) fn id(&self) -> Option<RequestId> {
        self.id.get().copied()
    }

    /// The buffer that it has, or had.
    pub(super) fn buffer(&self) -> Option<&Buffer> {
        self.buffer.as_ref().map(Py::get)
    }

    /// The request has ended.
    pub(super) fn end(&self, result: Result<Outcome, Fault>) {
        *lock(&self.ended) = Some(result);
    }

    /// What the request came to, if it has ended as far as the queue has looked.
    pub(super) fn end_so_far(&self) -> Option<Result<Outcome, Fault>> {
        lock(&self.ended).clone()
    }

    /// The object of the buffer that it has, or had.
    pub(super) fn buffer_object(&self, py: Python<'_>) -> Option<Py<Buffer>> {
        self.buffer.as_ref().map(|buffer| buffer.clone_ref(py))
    }

    /// Whether it has ended, as far as the queue has looked.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.ended).is_some()
    }
}
