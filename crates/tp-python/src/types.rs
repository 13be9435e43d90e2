//! The small value types people see: `dtype` and `device`, and opaque Python objects carried by the dispatcher.

use crate::error;
use crate::error::guarded;
use crate::hot::ffi::Obj;
use crate::hot::queue;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::{IntoPyObjectExt, ffi};
use std::any::Any;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use tp_dispatch::host::{HostObject, HostRef, HostVisitor};
use tp_dispatch::{Error, Result};
use tp_tensor::{DType, Device, DeviceKind, Scalar, Tensor, dtype};

/// An element type, `tensorplay.float32` and so on. Immortal singletons: identity is equality.
#[pyclass(frozen, name = "dtype", module = "tensorplay")]
pub struct PyDType(pub DType);

#[pymethods]
impl PyDType {
    #[getter]
    fn name(&self) -> PyResult<&'static str> {
        guarded(|| Ok(self.0.name()))
    }

    /// Bytes per element.
    #[getter]
    fn itemsize(&self) -> PyResult<usize> {
        guarded(|| Ok(self.0.itemsize()))
    }

    #[getter]
    fn is_floating_point(&self) -> PyResult<bool> {
        guarded(|| Ok(self.0.is_float()))
    }

    #[getter]
    fn is_signed(&self) -> PyResult<bool> {
        guarded(|| Ok(self.0.is_signed()))
    }

    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        guarded(|| {
            Ok({
                match self.0.category() {
                    dtype::Category::Bool => "bool",
                    dtype::Category::Int => "integral",
                    dtype::Category::Float => "real floating",
                }
            })
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| Ok(format!("tensorplay.{}", self.0.name())))
    }

    fn __hash__(&self) -> PyResult<isize> {
        guarded(|| {
            Ok({
                // Distinct and not small: caches elsewhere key dtypes by hash alone.
                0x5450_0000_0000 + (self.0 as isize) * 0x1_0001
            })
        })
    }

    fn __reduce__(&self) -> PyResult<&'static str> {
        guarded(|| Ok(self.0.name()))
    }
}

static DTYPES: [AtomicPtr<ffi::PyObject>; DType::COUNT] =
    [const { AtomicPtr::new(ptr::null_mut()) }; DType::COUNT];

/// Makes the singletons and puts them into the module.
pub fn install_dtypes(m: &Bound<'_, PyModule>) -> PyResult<()> {
    for d in DType::ALL {
        let slot = &DTYPES[d as usize];
        if slot.load(Ordering::Acquire).is_null() {
            let obj = Py::new(m.py(), PyDType(d))?.into_ptr();
            slot.store(obj, Ordering::Release);
        }
        // SAFETY: an immortal object.
        let obj = unsafe { Bound::from_borrowed_ptr(m.py(), slot.load(Ordering::Acquire)) };
        m.add(d.name(), obj)?;
    }
    Ok(())
}

/// Borrowed singleton of a dtype.
pub fn dtype_object(d: DType) -> Obj {
    DTYPES[d as usize].load(Ordering::Relaxed)
}

/// Whether an object is one of the dtype singletons.
pub fn is_dtype(obj: Obj) -> bool {
    DType::ALL.into_iter().any(|d| dtype_object(d) == obj)
}

/// The dtype that an object is: one of ours, or Python's `bool`, `int`, `float` types.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn dtype_of(obj: Obj) -> Option<DType> {
    if let Some(d) = DType::ALL.into_iter().find(|d| dtype_object(*d) == obj) {
        return Some(d);
    }
    match obj.cast::<ffi::PyTypeObject>() {
        t if t == &raw mut ffi::PyBool_Type => Some(DType::Bool),
        t if t == &raw mut ffi::PyLong_Type => Some(DType::I64),
        t if t == &raw mut ffi::PyFloat_Type => Some(DType::F32),
        _ => None,
    }
}

impl<'py> FromPyObject<'_, 'py> for DTypeArg {
    type Error = PyErr;
    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // SAFETY: a live object.
        let found = unsafe { dtype_of(obj.as_ptr()) };
        let wrong = || PyTypeError::new_err(format!("expected a tensorplay dtype, got {}", obj.get_type()));
        found.map(DTypeArg).ok_or_else(wrong)
    }
}

/// A dtype as a function argument.
pub struct DTypeArg(pub DType);

/// A device such as `cpu` or `cuda:0`.
#[pyclass(frozen, name = "device", module = "tensorplay", eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyDevice(pub Device);

#[pymethods]
impl PyDevice {
    #[new]
    #[pyo3(signature = (spec, index=None))]
    fn new(py: Python<'_>, spec: &Bound<'_, PyAny>, index: Option<u8>) -> PyResult<PyDevice> {
        guarded(|| {
            // SAFETY: a live object.
            let found = unsafe { device_of(spec.as_ptr()) };
            let device = error::IntoPyResult::py(found, py)?
                .ok_or_else(|| PyTypeError::new_err("a device is given by a string such as 'cuda:0'"))?;
            Ok(PyDevice(Device { index: index.unwrap_or(device.index), ..device }))
        })
    }

    #[getter]
    fn r#type(&self) -> PyResult<&'static str> {
        guarded(|| Ok(self.0.kind.name()))
    }

    /// None for devices of which there is one.
    #[getter]
    fn index(&self) -> PyResult<Option<u8>> {
        guarded(|| Ok((self.0.kind == DeviceKind::Cuda).then_some(self.0.index)))
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| Ok(format!("tensorplay.device('{}')", self.0)))
    }

    fn __str__(&self) -> PyResult<String> {
        guarded(|| Ok(self.0.to_string()))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        guarded(|| Ok((py.get_type::<PyDevice>().into_any(), (self.0.to_string(),))))
    }
}

/// A new reference.
pub fn device_object(d: Device) -> Obj {
    error::attached(|py| {
        Py::new(py, PyDevice(d)).map_or_else(
            |e| {
                e.restore(py);
                ptr::null_mut()
            },
            Py::into_ptr,
        )
    })
}

/// A device object or its name; an unknown name is an error.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn device_of(obj: Obj) -> Result<Option<Device>> {
    error::attached(|py| {
        // SAFETY: a live object.
        let obj = unsafe { Bound::from_borrowed_ptr(py, obj) };
        if let Ok(d) = obj.cast::<PyDevice>() {
            return Ok(Some(d.get().0));
        }
        let Ok(text) = obj.extract::<String>() else { return Ok(None) };
        text.parse::<Device>().map(Some).map_err(|_| {
            Error::value(
                "TP2002",
                format!("'{text}' is no device; known are 'cpu', 'cuda', 'cuda:N' and 'meta'"),
            )
        })
    })
}

/// A Python object that Rust structures carry without looking at it.
/// It goes at once where the lock is held, which `Py` inside of a slot made by hand would not.
pub struct Opaque(Obj);

// SAFETY: the object is touched only with the interpreter lock held.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}

impl Drop for Opaque {
    fn drop(&mut self) {
        queue::release(self.0);
    }
}

impl HostObject for Opaque {
    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.0.cast());
    }
    fn clear(&self) {}
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// # Safety
/// Live object, lock held.
pub unsafe fn opaque(obj: Obj) -> HostRef {
    // SAFETY: a live object.
    Arc::new(Opaque(unsafe { ffi::Py_NewRef(obj) }))
}

/// A new reference to the object inside, or to None.
pub fn opaque_object(h: &HostRef) -> Obj {
    let object = h.as_any().downcast_ref::<Opaque>().map(|o| o.0);
    // SAFETY: the object lives while `h` does; the interpreter lock is held.
    unsafe { ffi::Py_NewRef(object.unwrap_or_else(|| ffi::Py_None())) }
}

/// The value of a one-element tensor.
pub fn item(t: &Tensor) -> Result<Scalar> {
    if t.is_batched() {
        return Err(crate::batch::no_value());
    }
    tp_graph::capture::watch::has_value(t)?;
    if t.numel() != 1 {
        return Err(Error::value(
            "TP1112",
            format!("only a tensor of one element has a value, got shape {:?}", t.sizes()),
        ));
    }
    if !t.device().is_cpu() {
        return Err(Error::device(
            "TP2105",
            format!("the tensor is on {}; move it with .cpu() first", t.device()),
        ));
    }
    // SAFETY: one element of the dtype lies at the data pointer.
    Ok(unsafe {
        tp_tensor::dispatch_dtype!(t.dtype(), T => Scalar::from_element(t.data_ptr().cast::<T>().read_unaligned()))
    })
}

pub fn scalar_object(py: Python<'_>, s: Scalar) -> PyResult<Bound<'_, PyAny>> {
    match s {
        Scalar::Bool(v) => v.into_bound_py_any(py),
        Scalar::Int(v) => v.into_bound_py_any(py),
        Scalar::Float(v) => v.into_bound_py_any(py),
    }
}
