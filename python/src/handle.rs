//! What is open: files, directories, regions, channels.

use std::sync::{Arc, Mutex};

use piped_client::{PathCosts, RegionExport};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::{Buffer, bytes_of};
use crate::fault::outside;
use crate::fork::Birth;
use crate::hearing::hear;
use crate::lock;

/// Something open: a file, a directory, a region or a channel.
#[pyclass(frozen, weakref, module = "piped_io")]
pub(crate) struct Handle {
    born: Birth,
    handle: Mutex<Option<piped_client::Handle>>,
}

impl Handle {
    pub(crate) fn new(handle: piped_client::Handle) -> Self {
        Self { born: Birth::now(), handle: Mutex::new(Some(handle)) }
    }

    /// The handle, if it was not closed.
    pub(crate) fn open(&self) -> PyResult<piped_client::Handle> {
        self.born.check()?;
        lock(&self.handle).clone().ok_or_else(|| PyValueError::new_err("the handle is closed"))
    }
}

fn costs_of(costs: PathCosts) -> (f64, f64, f64, f64) {
    let PathCosts { overhead_seconds, latency_seconds, per_byte_seconds, confidence } = costs;
    (overhead_seconds, latency_seconds, per_byte_seconds, confidence)
}

#[pymethods]
impl Handle {
    /// Length in bytes when it was opened.
    #[getter]
    fn length(&self) -> PyResult<u64> {
        Ok(self.open()?.len())
    }

    /// Offsets and lengths at multiples of so many bytes go past the page cache; 0: none do.
    #[getter]
    fn direct_alignment(&self) -> PyResult<u32> {
        Ok(self.open()?.direct_alignment())
    }

    /// The number that the daemon's reports have for it.
    #[getter]
    fn number(&self) -> PyResult<u32> {
        Ok(self.open()?.number())
    }

    /// What reading costs at present, by the daemon's measurements: seconds of a request, seconds
    /// of latency, seconds of a byte, and how well that is known (0 to 1). None: it is not known.
    fn read_costs(&self, py: Python<'_>) -> PyResult<Option<(f64, f64, f64, f64)>> {
        let handle = self.open()?;
        Ok(hear(py, move || handle.read_costs())?.map(costs_of))
    }

    /// What writing costs at present, as `read_costs` has it.
    fn write_costs(&self, py: Python<'_>) -> PyResult<Option<(f64, f64, f64, f64)>> {
        let handle = self.open()?;
        Ok(hear(py, move || handle.write_costs())?.map(costs_of))
    }

    /// Closes it; requests that use it end as they do.
    fn close(&self, py: Python<'_>) {
        let handle = lock(&self.handle).take();
        py.detach(|| drop(handle));
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.handle).is_none()
    }

    fn __enter__<'py>(slf: Bound<'py, Self>) -> Bound<'py, Self> {
        slf
    }

    #[pyo3(signature = (*_ignored))]
    fn __exit__(&self, py: Python<'_>, _ignored: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Tells the daemon, and waits for room to do so: other threads run meanwhile.
        if let Some(handle) = lock(&self.handle).take() {
            Python::attach(|py| py.detach(|| drop(handle)));
        }
    }
}

/// Memory that others may read or write by name, until it is closed.
#[pyclass(frozen, weakref, module = "piped_io")]
pub(crate) struct Region {
    born: Birth,
    export: Mutex<Option<RegionExport>>,
    /// Keeps an object's memory that was lent where it is. Dropped after `export`.
    owner: Option<Arc<PyBuffer<u8>>>,
}

impl Region {
    /// The export of memory, with the object whose memory it is, if it was lent.
    pub(crate) fn new(export: RegionExport, owner: Option<Arc<PyBuffer<u8>>>) -> Self {
        Self { born: Birth::now(), export: Mutex::new(Some(export)), owner }
    }

    fn with<T>(&self, act: impl FnOnce(&RegionExport) -> T) -> PyResult<T> {
        let export = lock(&self.export);
        export.as_ref().map(act).ok_or_else(|| PyValueError::new_err("the region is closed"))
    }
}

#[pymethods]
impl Region {
    fn __len__(&self) -> PyResult<usize> {
        self.with(RegionExport::len)
    }

    /// The handle for requests of this client on its own region.
    #[getter]
    fn handle(&self) -> PyResult<Handle> {
        self.with(|export| Handle::new(export.handle().clone()))
    }

    /// A copy of bytes; others may be writing them.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, length, |to| {
            let read = self.with(|export| export.read_at(offset, to))?;
            read.map_err(outside)
        })
    }

    /// Copies bytes in; others may be reading them.
    fn write(&self, py: Python<'_>, offset: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = PyBuffer::<u8>::get(&bytes_of(data)?)?.to_vec(py)?;
        let written = self.with(|export| export.write_at(offset, &bytes))?;
        written.map_err(outside)
    }

    /// Ends the export, and returns the memory. At Ctrl-C the memory is given back.
    fn close(&self, py: Python<'_>) -> PyResult<Buffer> {
        self.born.check()?;
        let export = lock(&self.export).take();
        let export = export.ok_or_else(|| PyValueError::new_err("the region is closed"))?;
        // On its thread, the memory would outlive its owner after an interruption.
        let owner = self.owner.clone();
        let closed = hear(py, move || export.close().map(|memory| (memory, owner)));
        closed.map(|(memory, owner)| Buffer::of_lent(memory, owner))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Waits for the daemon: other threads run meanwhile.
        if let Some(export) = lock(&self.export).take() {
            Python::attach(|py| py.detach(|| drop(export)));
        }
    }
}
