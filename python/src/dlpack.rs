//! A buffer as a DLPack tensor: one dimension of bytes on the CPU (`dlpack.h`, DLPack 1.0, and the
//! form before that, for consumers that do not ask for a version).

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

/// Device type 1 (`kDLCPU`), number 0.
pub(crate) const CPU: (i32, i32) = (1, 0);

/// Version of the versioned form.
const VERSION: [u32; 2] = [1, 0];

/// The flag of bytes that nobody else has: `DLPACK_FLAG_BITMASK_IS_COPIED`.
const COPIED: u64 = 1 << 1;

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
    rest: Rest,
}

/// `DLManagedTensorVersioned`, and behind it what it points to.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
    rest: Rest,
}

/// What a tensor needs until its end.
struct Rest {
    shape: i64,
    owner: Option<Owner>,
}

/// The owner of a tensor's bytes, which says what is done at its end.
pub(crate) enum Owner {
    /// The tensor's own: a copy.
    Tensor(Vec<u8>),
    /// Somebody's who is told of the end, with the interpreter.
    Other(Box<dyn FnOnce() + Send>),
}

impl Owner {
    /// The tensor has ended, on any thread and perhaps after the interpreter.
    fn end(self) {
        let mut end = match self {
            Self::Tensor(bytes) => return drop(bytes),
            Self::Other(end) => Some(end),
        };
        Python::try_attach(|_| end.take().into_iter().for_each(|end| end()));
        // Without an interpreter nothing of Python's is touched, also not to be given back.
        std::mem::forget(end);
    }
}

/// How a tensor is passed on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// By the structure of [`VERSION`].
    is_versioned: bool,
}

impl Form {
    /// The form for a consumer that knows that version, or none.
    pub(crate) fn of(max_version: Option<(u32, u32)>) -> Self {
        let is_versioned = max_version.is_some_and(|(major, _)| major >= VERSION[0]);
        Self { is_versioned }
    }
}

/// A tensor's structure, in either form.
trait Structure: Sized {
    /// Name of a capsule that nobody has consumed.
    const NAME: &CStr;

    fn new(tensor: Tensor, rest: Rest, is_copied: bool) -> Self;

    fn parts(&mut self) -> (&mut Tensor, &mut Rest);

    /// Ends a tensor: by its consumer, or by the capsule that nobody consumed.
    ///
    /// # Safety
    /// The pointer is of [`capsule`], and this is its only call.
    unsafe extern "C" fn delete(managed: *mut Self) {
        // SAFETY: as the caller promises.
        let mut managed = unsafe { Box::from_raw(managed) };
        managed.parts().1.owner.take().into_iter().for_each(Owner::end);
    }

    /// # Safety
    /// Python calls it with a capsule of [`capsule`]. A consumer gives the capsule another name.
    unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
        let name = Self::NAME.as_ptr();
        // SAFETY: the capsule is Python's; with our name it has our pointer, which nobody has
        // freed.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, name) == 1 {
                Self::delete(ffi::PyCapsule_GetPointer(capsule, name).cast());
            }
        }
    }
}

impl Structure for Managed {
    const NAME: &CStr = c"dltensor";

    fn new(tensor: Tensor, rest: Rest, _is_copied: bool) -> Self {
        Self { tensor, manager: std::ptr::null_mut(), deleter: Some(Self::delete), rest }
    }

    fn parts(&mut self) -> (&mut Tensor, &mut Rest) {
        (&mut self.tensor, &mut self.rest)
    }
}

impl Structure for Versioned {
    const NAME: &CStr = c"dltensor_versioned";

    fn new(tensor: Tensor, rest: Rest, is_copied: bool) -> Self {
        let (manager, deleter) = (std::ptr::null_mut(), Some(Self::delete as _));
        let flags = if is_copied { COPIED } else { 0 };
        Self { version: VERSION, manager, deleter, flags, tensor, rest }
    }

    fn parts(&mut self) -> (&mut Tensor, &mut Rest) {
        (&mut self.tensor, &mut self.rest)
    }
}

/// The capsule that `from_dlpack` takes, of so many bytes from `start` on. They are there as long
/// as their owner, who ends with the tensor.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    at: (*mut u8, usize),
    how: Form,
    owner: Owner,
) -> PyResult<Bound<'py, PyAny>> {
    match how.is_versioned {
        true => make::<Versioned>(py, at, owner),
        false => make::<Managed>(py, at, owner),
    }
}

fn make<'py, S: Structure>(
    py: Python<'py>,
    (start, length): (*mut u8, usize),
    owner: Owner,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = Tensor {
        data: start.cast(),
        device_type: CPU.0,
        device_id: CPU.1,
        dimensions: 1,
        data_type: BYTE,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let is_copied = matches!(owner, Owner::Tensor(_));
    let rest = Rest { shape: i64::try_from(length)?, owner: Some(owner) };
    let mut managed = Box::new(S::new(tensor, rest, is_copied));
    let (tensor, rest) = managed.parts();
    tensor.shape = &raw mut rest.shape;
    let managed = Box::into_raw(managed);
    // SAFETY: the name is static, and the destructor frees what the pointer owns.
    let made =
        unsafe { ffi::PyCapsule_New(managed.cast(), S::NAME.as_ptr(), Some(S::end_capsule)) };
    if made.is_null() {
        // SAFETY: nobody else has the pointer.
        unsafe { S::delete(managed) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: it is a new reference to an object.
    Ok(unsafe { Bound::from_owned_ptr(py, made) })
}
