//! Strips: a range of a file or region piece by piece, while the next pieces are on their way.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use piped_client::{StripPolicy, Strips};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyWeakrefReference};

use crate::client::Client;
use crate::clock::span;
use crate::fault::Fault;
use crate::fork::Birth;
use crate::handle::Handle;
use crate::hearing::hear;
use crate::lock;

struct Inner {
    reader: piped_client::StripReader,
    queue: piped_client::Queue,
    /// The strip that Python has: address, length, and its offset.
    current: (usize, usize, u64),
    views: usize,
}

/// Iterates over strips of a range, in order: offset and memoryview of each.
///
/// How long they are is computed from what the computation between two of them takes, and what the
/// path costs, unless `size` says so. A view is good until the next strip is asked for; a numpy
/// array over it must be gone by then, or there is a BufferError. The next strip is waited for
/// until its request's end, also at Ctrl-C.
#[pyclass(frozen, module = "piped_io")]
pub(crate) struct StripReader {
    born: Birth,
    inner: Mutex<Inner>,
    /// The view of the strip that Python has. A weak reference: the view has one of the reader.
    handed: Mutex<Option<Py<PyWeakrefReference>>>,
}

#[pymethods]
impl StripReader {
    #[new]
    #[pyo3(signature = (
        client, handle, start=0, end=None, *, size=None, grain=64, memory=8 << 20,
        unroll=None, timeout=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn new(
        py: Python<'_>,
        client: &Client,
        handle: &Handle,
        start: u64,
        end: Option<u64>,
        size: Option<usize>,
        grain: usize,
        memory: usize,
        unroll: Option<u32>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        for (name, bytes) in [("size", size), ("grain", Some(grain)), ("memory", Some(memory))] {
            if bytes == Some(0) {
                return Err(PyValueError::new_err(format!("{name} is a number of bytes above 0")));
            }
        }
        let handle = handle.open()?;
        let range = start..end.unwrap_or_else(|| handle.len());
        let mut strips = Strips::new().grain(grain).memory(memory);
        if let Some(size) = size {
            strips = strips.policy(StripPolicy::Fixed(size));
        }
        if let Some(depth) = unroll {
            strips = strips.unroll(depth);
        }
        if let Some(seconds) = timeout {
            strips = strips.deadline(span(seconds)?);
        }
        let client = client.own()?;
        let of = client.clone();
        let queue = hear(py, move || of.queue())?;
        let reader = piped_client::StripReader::open(&client, &handle, range, strips);
        let reader = reader.map_err(Fault::from)?;
        let inner = Inner { reader, queue, current: (0, 0, 0), views: 0 };
        Ok(Self { born: Birth::now(), inner: Mutex::new(inner), handed: Mutex::new(None) })
    }

    fn __iter__<'py>(slf: Bound<'py, Self>) -> Bound<'py, Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<(u64, Bound<'py, PyAny>)>> {
        let this = slf.get();
        // The loop that asks for the next strip still has a name for the view of the last one.
        this.born.check()?;
        let handed = lock(&this.handed).take();
        if let Some(view) = handed.and_then(|handed| handed.bind(slf.py()).upgrade()) {
            view.call_method0("release")?;
        }
        let next = slf.py().detach(|| {
            let inner = &mut *lock(&this.inner);
            if inner.views > 0 {
                return Err(None);
            }
            inner.current = (0, 0, 0);
            let strip = inner.reader.next(&mut inner.queue).map_err(|error| Some(error.into()))?;
            inner.current = match strip {
                Some(mut strip) => (strip.as_mut_ptr().addr(), strip.len(), strip.offset()),
                None => return Ok(None),
            };
            Ok(Some(inner.current.2))
        });
        match next {
            Ok(None) => Ok(None),
            Ok(Some(offset)) => {
                let view = PyMemoryView::from(slf.as_any())?;
                let handed = PyWeakrefReference::new(&view)?.unbind();
                let before = lock(&this.handed).replace(handed);
                drop(before);
                Ok(Some((offset, view.into_any())))
            }
            Err(None) => Err(PyBufferError::new_err(
                "there are views of the strip before; release them first (a numpy array has one)",
            )),
            Err(Some(fault)) => Err(Fault::into(fault)),
        }
    }

    /// # Safety
    /// Python calls it with a view that is its own.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let waits = |_| PyBufferError::new_err("another thread waits for a strip");
        let mut inner = slf.get().inner.try_lock().map_err(waits)?;
        let (start, length, _) = inner.current;
        if length == 0 {
            return Err(PyBufferError::new_err("there is no strip now"));
        }
        let length = ffi::Py_ssize_t::try_from(length)?;
        // SAFETY: `view` is Python's to fill. The reader keeps the strip until the next one is
        // asked for, which it is not while there are views.
        let filled = unsafe {
            let start = std::ptr::with_exposed_provenance_mut::<c_void>(start);
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags)
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        inner.views += 1;
        Ok(())
    }

    /// # Safety
    /// Python calls it once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        let mut inner = lock(&self.inner);
        inner.views = inner.views.saturating_sub(1);
    }

    /// What a byte costs the computation between strips, in seconds, once there was some.
    #[getter]
    fn compute_seconds_per_byte(&self) -> PyResult<Option<f64>> {
        let inner = self.inner.try_lock();
        let inner = inner.map_err(|_| PyValueError::new_err("another thread waits for a strip"))?;
        Ok(inner.reader.compute())
    }
}
