//! A buffer as a DLPack tensor: one dimension of bytes on the CPU (DLPack 0.8, `dlpack.h`).

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

/// Device type 1 (`kDLCPU`), number 0.
pub(crate) const CPU: (i32, i32) = (1, 0);

const NAME: &CStr = c"dltensor";

/// `DLDataType`: unsigned integers of 8 bits.
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

const BYTE: DataType = DataType { code: 1, bits: 8, lanes: 1 };

/// The header's `DLTensor`, field by field.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    data_type: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, and behind it what it points to.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    shape: i64,
    end: Option<End>,
}

/// What is done at a tensor's end.
type End = Box<dyn FnOnce() + Send>;

/// The capsule that `from_dlpack` takes, of so many bytes from `start` on. They are there until
/// `end` is called, with the interpreter, at the tensor's end.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    (start, length): (*mut u8, usize),
    end: impl FnOnce() + Send + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    let mut managed = Box::new(Managed {
        tensor: Tensor {
            data: start.cast(),
            device_type: CPU.0,
            device_id: CPU.1,
            dimensions: 1,
            data_type: BYTE,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        },
        manager: std::ptr::null_mut(),
        deleter: Some(delete),
        shape: i64::try_from(length)?,
        end: Some(Box::new(end)),
    });
    managed.tensor.shape = &raw mut managed.shape;
    let managed = Box::into_raw(managed);
    // SAFETY: the name is static, and the destructor frees what the pointer owns.
    let made = unsafe { ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(end_capsule)) };
    if made.is_null() {
        // SAFETY: nobody else has the pointer.
        unsafe { delete(managed) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: it is a new reference to an object.
    Ok(unsafe { Bound::from_owned_ptr(py, made) })
}

/// Ends a tensor: by its consumer, or by the capsule that nobody consumed.
///
/// # Safety
/// The pointer is of [`capsule`], and this is its only call.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: as the caller promises.
    let mut managed = unsafe { Box::from_raw(managed) };
    // Consumers call this on any thread.
    Python::attach(|_| managed.end.take().into_iter().for_each(|end| end()));
}

/// # Safety
/// Python calls it with a capsule of [`capsule`]. A consumer gives the capsule another name.
unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is Python's; with our name it has our pointer, which nobody has freed.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
