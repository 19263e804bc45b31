//! A request that was submitted.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use piped_client::Payload;
use pyo3::prelude::*;

use super::state::State;
use super::way::Way;
use crate::buffer::Buffer;
use crate::clock::{self, SLICE, span};
use crate::fault::Fault;
use crate::lock;
use crate::outcome::Kind;

/// A request that was submitted to a queue.
///
/// It goes on whether somebody waits for it or not, and keeps its buffer until it ends. When nobody
/// has its queue or a request of that any more, it is cancelled, and its buffer is given back.
#[pyclass(frozen, weakref, eq, hash, module = "piped_io")]
pub(crate) struct Request {
    /// None once somebody has seen its end: the queue is not kept for it.
    way: Mutex<Option<Arc<Way>>>,
    state: Arc<State>,
}

impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl Hash for Request {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        Arc::as_ptr(&self.state).hash(hasher);
    }
}

impl Request {
    /// An object for a request that a queue has taken.
    pub(super) fn new(way: &Arc<Way>, state: Arc<State>) -> Self {
        Self { way: Mutex::new(Some(Arc::clone(way))), state }
    }

    /// Submits a request whose end is looked for later.
    pub(super) fn submit<B: Payload + Send>(
        way: &Arc<Way>,
        py: Python<'_>,
        (request, kind): (piped_client::Request<B>, Kind),
        buffer: Option<&Bound<'_, Buffer>>,
    ) -> PyResult<Self> {
        way.submit(py, (request, kind), buffer).map(|state| Self::new(way, state))
    }

    /// An object for a request that has ended.
    pub(super) fn ended(state: Arc<State>) -> Self {
        Self { way: Mutex::new(None), state }
    }

    /// The queue that has it, as long as nobody has seen its end.
    fn way(&self) -> Option<Arc<Way>> {
        let mut way = lock(&self.way);
        if !self.state.is_over() {
            return way.clone();
        }
        let last = way.take();
        drop(way);
        // Not under the lock: it may be the queue's end.
        drop(last);
        None
    }
}

#[pymethods]
impl Request {
    /// Whether it has ended, as far as the queue has looked.
    fn done(&self) -> bool {
        self.state.is_over()
    }

    /// What it came to, or its exception. Does not wait: BlockingIOError if it has not ended.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        drop(self.way());
        let ended = self.state.end_so_far();
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
        while let Some(way) = self.way() {
            let left = until.map(|until| until.saturating_duration_since(clock::now()));
            way.own()?.look_for(py, &self.state, left.unwrap_or(SLICE));
            if self.state.is_over() {
                break;
            }
            py.check_signals()?;
            if until.is_some_and(|until| clock::now() >= until) {
                return Err(Fault::not_yet().into());
            }
        }
        self.result(py)
    }

    /// Asks the daemon to end it. It still ends as it does, and its buffer comes back then. False:
    /// it has ended.
    fn cancel(&self) -> PyResult<bool> {
        let way = self.way().zip(self.state.id());
        way.map_or(Ok(false), |(way, id)| Ok(way.own()?.cancel(id)))
    }

    /// Contiguous bytes done from its start; 0 once it has ended.
    #[getter]
    fn progress(&self, py: Python<'_>) -> PyResult<u64> {
        let way = self.way().zip(self.state.id());
        way.map_or(Ok(0), |(way, id)| Ok(way.own()?.with(py, |inner| inner.queue().progress(id))))
    }

    /// The buffer that it has, or had.
    #[getter]
    fn buffer(&self, py: Python<'_>) -> Option<Py<Buffer>> {
        self.state.buffer_object(py)
    }

    fn __repr__(&self) -> String {
        let state = match &self.state.end_so_far() {
            None => "under way",
            Some(Ok(_)) => "done",
            Some(Err(_)) => "failed",
        };
        format!("<piped_io.Request, {state}>")
    }
}
