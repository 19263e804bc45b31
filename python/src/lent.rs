//! Memory of Python's that is lent to the daemon.

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::fault::Fault;
use crate::fork::Birth;

/// Memory of the program that is lent to the daemon, until this and all buffers of it end.
#[pyclass(frozen, weakref, module = "piped_io")]
pub(crate) struct Lent {
    born: Birth,
    lent: piped_client::Lent,
    /// Keeps the object's memory where it is; buffers of it keep it, too. Dropped after `lent`.
    owner: Option<Arc<PyBuffer<u8>>>,
}

impl Lent {
    pub(crate) fn new(lent: piped_client::Lent, owner: Option<PyBuffer<u8>>) -> Self {
        Self { born: Birth::now(), lent, owner: owner.map(Arc::new) }
    }
}

#[pymethods]
impl Lent {
    fn __len__(&self) -> usize {
        self.lent.len()
    }

    /// Where the memory is mapped in this process.
    #[getter]
    fn address(&self) -> usize {
        self.lent.as_ptr().addr()
    }

    /// A buffer of a part of the memory that is in no other buffer.
    fn buffer(&self, offset: usize, length: usize) -> PyResult<Buffer> {
        self.born.check()?;
        let part = self.lent.buffer(offset, length).map_err(Fault::from)?;
        Ok(Buffer::of_lent(part, self.owner.clone()))
    }
}
