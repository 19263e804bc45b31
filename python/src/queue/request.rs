//! A request that was submitted.

use std::sync::{Mutex, OnceLock};

use piped_client::RequestId;
use pyo3::prelude::*;

use super::Queue;
use crate::buffer::Buffer;
use crate::clock::{self, span};
use crate::fault::Fault;
use crate::lock;
use crate::outcome::Outcome;

/// A request that was submitted to a queue.
///
/// It goes on whether somebody waits for it or not, and keeps its buffer until it ends.
#[pyclass(frozen, weakref, module = "piped_io")]
pub(crate) struct Request {
    queue: Py<Queue>,
    id: OnceLock<RequestId>,
    buffer: Option<Py<Buffer>>,
    ended: Mutex<Option<Result<Outcome, Fault>>>,
}

impl Request {
    pub(crate) fn new(queue: Py<Queue>, buffer: Option<Py<Buffer>>) -> Self {
        Self { queue, id: OnceLock::new(), buffer, ended: Mutex::new(None) }
    }

    /// The queue has taken it, and gave it this name.
    pub(crate) fn begin(&self, id: RequestId) {
        self.id.get_or_init(|| id);
    }

    /// The request has ended.
    pub(crate) fn end(&self, result: Result<Outcome, Fault>) {
        *lock(&self.ended) = Some(result);
    }

    fn is_over(&self) -> bool {
        lock(&self.ended).is_some()
    }
}

#[pymethods]
impl Request {
    /// Whether it has ended, as far as the queue has looked.
    fn done(&self) -> bool {
        self.is_over()
    }

    /// What it came to, or its exception. Does not wait: BlockingIOError if it has not ended.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ended = lock(&self.ended).clone();
        match ended {
            Some(Ok(outcome)) => outcome.to_python(py),
            Some(Err(fault)) => Err(fault.into()),
            None => Err(pyo3::exceptions::PyBlockingIOError::new_err(
                "the request is still under way; wait for it",
            )),
        }
    }

    /// Waits for its end, and returns what it came to. Other threads run meanwhile, and Ctrl-C
    /// works. After `timeout` seconds: TimeoutError, while the request goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        // A time beyond the clock's is no limit.
        let span = timeout.map(span).transpose()?;
        let until = span.and_then(|span| clock::now().checked_add(span));
        loop {
            self.queue.get().look_until(py, until, || self.is_over());
            if self.is_over() {
                return self.result(py);
            }
            py.check_signals()?;
            if until.is_some_and(|until| clock::now() >= until) {
                return Err(Fault::not_yet().into());
            }
        }
    }

    /// Asks the daemon to end it. It still ends as it does, and its buffer comes back then. False:
    /// it has ended.
    fn cancel(&self, py: Python<'_>) -> bool {
        let id = self.id.get().filter(|_| !self.is_over());
        id.is_some_and(|&id| self.queue.get().cancel_request(py, id))
    }

    /// Contiguous bytes done from its start; 0 once it has ended.
    #[getter]
    fn progress(&self, py: Python<'_>) -> u64 {
        self.id.get().map_or(0, |&id| self.queue.get().progress_of(py, id))
    }

    /// The buffer that it has, or had.
    #[getter]
    fn buffer(&self, py: Python<'_>) -> Option<Py<Buffer>> {
        self.buffer.as_ref().map(|buffer| buffer.clone_ref(py))
    }

    fn __repr__(&self) -> String {
        let state = match &*lock(&self.ended) {
            None => "under way",
            Some(Ok(_)) => "done",
            Some(Err(_)) => "failed",
        };
        format!("<piped_io.Request, {state}>")
    }
}
