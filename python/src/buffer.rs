//! A buffer of the client as an object with Python's buffer protocol.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use piped_client::{BufferPin, SubmitFault};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::dlpack::{Form, Owner};
use crate::fault::{Fault, outside};
use crate::{dlpack, lock};

/// Copies of so many bytes let other threads run meanwhile.
const LONG: usize = 64 << 10;

/// Where the memory is.
#[derive(Debug)]
enum Memory {
    /// With Python, to be used.
    Here(piped_client::Buffer),
    /// With a request that is under way.
    Away,
    /// The kernel may still write to it, though its request has ended.
    Held,
    /// Given back, or lost with its daemon.
    Gone,
}

#[derive(Debug)]
struct Place {
    memory: Memory,
    /// Views of Python's that were not released.
    views: usize,
    /// Keeps the memory mapped and in its place as long as there are views, whatever becomes of it.
    pin: Option<BufferPin>,
    length: usize,
}

impl Place {
    /// Takes the memory, which is `then` from now on.
    fn leave(&mut self, then: Memory) -> PyResult<piped_client::Buffer> {
        match std::mem::replace(&mut self.memory, then) {
            Memory::Here(memory) => Ok(memory),
            other => {
                let error = absent(&other);
                self.memory = other;
                Err(error)
            }
        }
    }

    fn check_unseen(&self) -> PyResult<()> {
        match self.views {
            0 => Ok(()),
            _ => Err(PyBufferError::new_err("there are views of the buffer; release them first")),
        }
    }
}

/// Memory that the daemon moves bytes to and from without a copy.
///
/// It has Python's buffer protocol: `memoryview(buffer)`, `numpy.frombuffer(buffer, ...)`,
/// `torch.from_dlpack(buffer)` are views of the same bytes. While a request has the buffer, no view
/// can be made (BufferError). A view that was made before sees the bytes change, in no order, until
/// the request ends. The memory stays as long as the buffer or a view of it, also if the daemon
/// ends.
#[pyclass(frozen, weakref, module = "piped_io")]
#[derive(Debug)]
pub(crate) struct Buffer {
    place: Mutex<Place>,
    /// Keeps an object's memory that was lent where it is. Dropped after `place`.
    owner: Option<Arc<PyBuffer<u8>>>,
}

impl Buffer {
    pub(crate) fn new(memory: piped_client::Buffer) -> Self {
        Self::of_lent(memory, None)
    }

    /// A part of an object's memory, which stays as long as this.
    pub(crate) fn of_lent(memory: piped_client::Buffer, owner: Option<Arc<PyBuffer<u8>>>) -> Self {
        let length = memory.len();
        let place = Place { memory: Memory::Here(memory), views: 0, pin: None, length };
        Self { place: Mutex::new(place), owner }
    }

    /// Keeps the object whose memory it is, if it was lent.
    pub(crate) fn owner(&self) -> Option<Arc<PyBuffer<u8>>> {
        self.owner.clone()
    }

    /// Takes the memory for a request. `may_move`: the request goes on at another daemon, too.
    pub(crate) fn take(&self, may_move: bool) -> PyResult<piped_client::Buffer> {
        let mut place = lock(&self.place);
        if place.views > 0 && may_move && matches!(place.memory, Memory::Here(_)) {
            return Err(moves());
        }
        place.leave(Memory::Away)
    }

    /// Gives the memory back to Python.
    pub(crate) fn put(&self, memory: piped_client::Buffer) {
        let mut place = lock(&self.place);
        place.length = memory.len();
        place.memory = Memory::Here(memory);
    }

    /// Its request was refused: why, for Python.
    pub(crate) fn refuse(&self, fault: SubmitFault, memory: Option<piped_client::Buffer>) -> PyErr {
        memory.into_iter().for_each(|memory| self.put(memory));
        let is_viewed = lock(&self.place).views > 0;
        // Memory with views is pinned.
        if is_viewed && fault == SubmitFault::NoRoom { moves() } else { Fault::from(fault).into() }
    }

    /// The request has ended without it.
    pub(crate) fn hold(&self) {
        lock(&self.place).memory = Memory::Held;
    }

    /// Nobody will say when it is free.
    pub(crate) fn lose(&self) {
        lock(&self.place).memory = Memory::Gone;
    }

    /// Takes the memory out for good.
    pub(crate) fn take_whole(&self) -> PyResult<piped_client::Buffer> {
        let mut place = lock(&self.place);
        place.check_unseen()?;
        place.leave(Memory::Gone)
    }

    /// Address and length, with one more view that keeps the memory where it is.
    pub(crate) fn view(&self) -> PyResult<(*mut u8, usize)> {
        let place = &mut *lock(&self.place);
        let Memory::Here(memory) = &mut place.memory else { return Err(absent(&place.memory)) };
        let at = (memory.as_ptr(), memory.len());
        if place.views == 0 {
            place.pin = Some(memory.pin());
        }
        place.views += 1;
        Ok(at)
    }

    /// There is one view less.
    pub(crate) fn end_view(&self) {
        let mut place = lock(&self.place);
        place.views = place.views.saturating_sub(1);
        let pin = if place.views == 0 { place.pin.take() } else { None };
        drop(place);
        // Not under the lock: it may be the last of a session's memory.
        drop(pin);
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        lock(&self.place).length
    }

    /// Does something with the memory while it is here.
    fn with<T>(&self, act: impl FnOnce(&mut piped_client::Buffer) -> T) -> PyResult<T> {
        let mut place = lock(&self.place);
        match &mut place.memory {
            Memory::Here(memory) => Ok(act(memory)),
            other => Err(absent(other)),
        }
    }

    fn copy<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        act: impl FnOnce(&mut piped_client::Buffer) -> T + Send,
    ) -> PyResult<T> {
        if bytes < LONG { self.with(act) } else { py.detach(|| self.with(act)) }
    }
}

fn moves() -> PyErr {
    PyBufferError::new_err(
        "the buffer may move to another daemon's memory, and there are views of it; release them \
         first (a numpy array has one)",
    )
}

fn absent(memory: &Memory) -> PyErr {
    PyBufferError::new_err(match memory {
        Memory::Away => "the buffer is under way; wait for its request",
        Memory::Held => "the kernel may still write to the buffer; it comes back by itself",
        _ => "the buffer was given back, or was lost with its daemon",
    })
}

/// Contiguous bytes of an object of Python's, borrowed.
#[derive(Debug, Clone, Copy)]
struct Bytes(*mut u8, usize);

// SAFETY: the object is borrowed for as long as this is used, and bytes have no thread. Other
// threads of Python can change them meanwhile, which they may of any buffer.
unsafe impl Send for Bytes {}

fn contiguous(bytes: &PyBuffer<u8>) -> PyResult<Bytes> {
    if !bytes.is_c_contiguous() {
        return Err(PyBufferError::new_err("the object's bytes do not lie side by side"));
    }
    Ok(Bytes(bytes.buf_ptr().cast(), bytes.len_bytes()))
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.len()
    }

    fn __repr__(&self) -> String {
        let place = lock(&self.place);
        let at = match place.memory {
            Memory::Here(_) => "here",
            Memory::Away => "under way",
            Memory::Held => "held by the kernel",
            Memory::Gone => "given back",
        };
        format!("<piped_io.Buffer of {} bytes, {at}>", place.length)
    }

    /// Bytes that the buffer can have at most.
    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        self.with(|memory| memory.capacity())
    }

    /// Whether no request has it.
    #[getter]
    fn is_here(&self) -> bool {
        matches!(lock(&self.place).memory, Memory::Here(_))
    }

    /// Address of the first byte, for other libraries.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        self.with(|memory| memory.as_ptr().addr())
    }

    /// Changes the length: how much the next request moves, at most `capacity`.
    fn resize(&self, length: usize) -> PyResult<()> {
        let mut place = lock(&self.place);
        place.check_unseen()?;
        let Memory::Here(memory) = &mut place.memory else { return Err(absent(&place.memory)) };
        memory.set_len(length).map_err(outside)?;
        place.length = length;
        Ok(())
    }

    /// Gives the memory back now, and not when the object ends.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let memory = self.take_whole()?;
        py.detach(|| drop(memory));
        Ok(())
    }

    /// Copies bytes from `offset` on into an object with writable bytes; other threads run
    /// meanwhile.
    #[pyo3(signature = (target, offset=0))]
    fn read_into(&self, py: Python<'_>, target: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        let target = PyBuffer::<u8>::get(&bytes_of(target)?)?;
        if target.readonly() {
            return Err(PyBufferError::new_err("the object's bytes cannot be written"));
        }
        let at = contiguous(&target)?;
        let copied = self.copy(py, at.1, move |memory| {
            let Bytes(start, length) = { at };
            // SAFETY: `target` keeps the object's bytes there until the end of this function, and
            // they are writable. `start` is not null where there are bytes.
            let to = unsafe { std::slice::from_raw_parts_mut(not_null(start), length) };
            memory.read_at(offset, to)
        })?;
        copied.map_err(outside)
    }

    /// Copies the bytes of an object into the buffer, from `offset` on; other threads run
    /// meanwhile.
    #[pyo3(signature = (source, offset=0))]
    fn write_from(&self, py: Python<'_>, source: &Bound<'_, PyAny>, offset: usize) -> PyResult<()> {
        let source = PyBuffer::<u8>::get(&bytes_of(source)?)?;
        let at = contiguous(&source)?;
        let copied = self.copy(py, at.1, move |memory| {
            let Bytes(start, length) = { at };
            // SAFETY: `source` keeps the object's bytes there until the end of this function.
            // `start` is not null where there are bytes.
            let from = unsafe { std::slice::from_raw_parts(not_null(start), length) };
            memory.write_at(offset, from)
        })?;
        copied.map_err(outside)
    }

    /// A copy of the first bytes, all without a number.
    #[pyo3(signature = (length=None))]
    fn tobytes<'py>(
        &self,
        py: Python<'py>,
        length: Option<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let length = length.unwrap_or_else(|| self.len()).min(self.len());
        PyBytes::new_with(py, length, |to| {
            let copied = self.with(|memory| memory.read_at(0, to))?;
            copied.map_err(outside)
        })
    }

    /// A tensor of bytes over the same memory, or with `copy=True` over a copy:
    /// `torch.from_dlpack(buffer)`. For the CPU alone, so without a stream.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() || dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err("the bytes are on the CPU, without a stream"));
        }
        let (py, this) = (slf.py(), slf.get());
        if copy == Some(true) {
            let mut bytes = vec![0_u8; this.len()];
            let to = bytes.as_mut_slice();
            this.copy(py, to.len(), |memory| memory.read_at(0, to))?.map_err(outside)?;
            let at = (bytes.as_mut_ptr(), bytes.len());
            return dlpack::capsule(py, at, Form::of(max_version), Owner::Tensor(bytes));
        }
        let at = this.view()?;
        let buffer = slf.clone().unbind();
        let owner = Owner::Other(Box::new(move || buffer.get().end_view()));
        dlpack::capsule(py, at, Form::of(max_version), owner)
    }

    /// The device of the tensor: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// # Safety
    /// Python calls it with a view that is its own.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (start, length) = slf.get().view()?;
        let length = ffi::Py_ssize_t::try_from(length)?;
        // SAFETY: `view` is Python's to fill. The memory stays where it is, and mapped: the view
        // keeps this object, and views keep its memory from being moved or given back.
        let filled = unsafe {
            let start = start.cast::<c_void>();
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags)
        };
        if filled == 0 {
            return Ok(());
        }
        slf.get().end_view();
        Err(PyErr::fetch(slf.py()))
    }

    /// # Safety
    /// Python calls it once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end_view();
    }
}

/// A pointer that slices can have, also of no bytes.
fn not_null(start: *mut u8) -> *mut u8 {
    if start.is_null() { std::ptr::NonNull::dangling().as_ptr() } else { start }
}

/// The object's bytes, whatever its elements are.
pub(crate) fn bytes_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let view = pyo3::types::PyMemoryView::from(object)?;
    if view.getattr("format")?.extract::<&str>().is_ok_and(|format| format == "B")
        && view.getattr("ndim")?.extract::<usize>()? == 1
    {
        return Ok(view.into_any());
    }
    view.call_method1("cast", ("B",))
}
