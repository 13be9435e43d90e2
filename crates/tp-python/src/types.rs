//! The small value types people see: `dtype` and `device`, and opaque Python objects carried by the dispatcher.

use crate::error;
use crate::error::guarded;
use crate::given;
use crate::hot::ffi::Obj;
use crate::hot::{nest, queue};
use crate::settle;
use pyo3::prelude::*;
use pyo3::{IntoPyObjectExt, ffi};
use std::any::Any;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use tp_dispatch::host::{HostObject, HostRef, HostVisitor, Replace};
use tp_dispatch::{Error, ErrorKind, Result};
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
        found.map(DTypeArg).ok_or_else(|| {
            // SAFETY: a live object.
            let (got, hint) = unsafe { (crate::hot::ffi::type_name(obj.as_ptr()), dtype_hint(obj.as_ptr())) };
            let e = Error::argument("TP1002", format!("expected a dtype, got {got}"));
            error::to_py(obj.py(), e.note(hint))
        })
    }
}

/// How to write the dtype that somebody gave by its name or by another library's object.
///
/// # Safety
/// Live object, lock held.
#[cold]
pub unsafe fn dtype_hint(obj: Obj) -> String {
    error::attached(|py| {
        // SAFETY: a live object.
        let obj = unsafe { Bound::from_borrowed_ptr(py, obj) };
        let name = |o: &Bound<'_, PyAny>| o.extract::<String>().ok();
        let text = name(&obj)
            .or_else(|| obj.getattr("name").ok().as_ref().and_then(name))
            .or_else(|| obj.getattr("__name__").ok().as_ref().and_then(name))
            .or_else(|| obj.str().ok().map(|s| s.to_string()));
        let text = text.unwrap_or_default();
        let last = text.rsplit('.').next().unwrap_or_default();
        match DType::ALL.into_iter().find(|d| d.name() == last) {
            Some(d) => format!("write it as tensorplay.{d}"),
            None => "a dtype is an object such as tensorplay.float32".into(),
        }
    })
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
    fn new(py: Python<'_>, spec: &Bound<'_, PyAny>, index: Option<&Bound<'_, PyAny>>) -> PyResult<PyDevice> {
        guarded(|| {
            // SAFETY: a live object.
            let found = unsafe { device_of(spec.as_ptr()) };
            let device = error::IntoPyResult::py(found, py)?
                .ok_or_else(|| given::wrong("device", "spec", "a string such as 'cuda:0'", spec))?;
            let index = given::optional::<u8>("device", "index", index)?;
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
            let e = Error::value(
                "TP2002",
                format!("'{text}' is no device; known are 'cpu', 'cuda', 'cuda:N' and 'meta'"),
            );
            match DType::ALL.into_iter().find(|d| d.name() == text) {
                Some(d) => e.note(format!("a dtype is an object: write it as tensorplay.{d}")),
                None => e,
            }
        })
    })
}

/// A Python object that Rust structures carry without looking at it.
/// It goes at once where the lock is held, which `Py` inside of a slot made by hand would not.
pub struct Opaque(Obj, Box<[Tensor]>);

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
    fn tensors(&self) -> &[Tensor] {
        &self.1
    }
    fn with_tensors(&self, other: Replace<'_>) -> Result<Option<HostRef>> {
        error::attached(|py| {
            // SAFETY: the object lives while this does; lock held.
            unsafe {
                let made = Bound::from_owned_ptr(py, nest::replaced(self.0, other)?);
                Ok(Some(opaque(made.as_ptr(), nest::tensors_in(made.as_ptr())?)))
            }
        })
    }
}

/// The object with the tensors that are inside of it.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn opaque(obj: Obj, tensors: Box<[Tensor]>) -> HostRef {
    // SAFETY: a live object.
    Arc::new(Opaque(unsafe { ffi::Py_NewRef(obj) }, tensors))
}

/// A new reference to the object inside, or to None.
pub fn opaque_object(h: &HostRef) -> Obj {
    let object = h.as_any().downcast_ref::<Opaque>().map(|o| o.0);
    // SAFETY: the object lives while `h` does; the interpreter lock is held.
    unsafe { ffi::Py_NewRef(object.unwrap_or_else(|| ffi::Py_None())) }
}

/// What to do instead of a read that a capture refuses: of a value, of all of them as foreign memory, of a result.
pub const KEEP: &str =
    "keep the value a tensor (where() instead of if), or pass the number in as an argument";
pub const OWN_OP: &str =
    "compute with tensorplay's ops, or put this code into an op of its own with tensorplay.library.custom_op";
const FAKE: &str = "a fake rule runs over tensors without values: write one with register_fake that makes the results from shapes and dtypes, as in tensorplay.empty_like(x)";
pub const RESULT: &str = "return the tensor from the captured function, and do this with the result";

/// A read of data that a tensor met during capture does not have: what was read and by which call, the user's line, and
/// what to do instead. A tensor that was kept after its capture says so.
#[cold]
pub fn unread(code: &'static str, what: &str, by: &str, instead: &str) -> Error {
    if let Some(e) = tp_graph::capture::read_outside(by) {
        return e;
    }
    let mut e = Error::capture(code, format!("{what} read during capture, by {by}"));
    if let Some(at) = tp_dispatch::host::location() {
        e = e.note(format!("read at {at}"));
    }
    // Inside of an op there is no way around the read: the rule has to say what it was for.
    let rule = tp_dispatch::fake::dynamic::context().is_ok();
    e.note(if rule { FAKE } else { instead })
}

/// Whether a capture refuses to read `t`: it has no data, or it is one that the function reaches on its own, which is
/// an input of the graph, whose values may be others in the next run.
fn is_unread(t: &Tensor) -> bool {
    t.is_fake() || tp_graph::capture::active()
}

/// Refuses a read during capture; see `unread`. The capture fails of it even where the function goes on.
pub fn readable(t: &Tensor, code: &'static str, what: &str, by: &str, instead: &str) -> Result<()> {
    settle::read(t, code, || format!("{what} read by {by}"))?;
    if !is_unread(t) {
        return Ok(());
    }
    if t.is_batched() {
        return Err(crate::batch::no_value());
    }
    Err(tp_graph::capture::watch::refused(unread(code, what, by, instead)))
}

/// The value of a one-element tensor that stands where a number does.
pub fn item(t: &Tensor) -> Result<Scalar> {
    item_by(t, "its use as a number")
}

/// The value of a one-element tensor; `by` is the call that reads it.
pub fn item_by(t: &Tensor, by: &str) -> Result<Scalar> {
    if t.is_batched() {
        return Err(crate::batch::no_value());
    }
    settle::read(t, "TP4003", || format!("the value of a tensor was read by {by}"))?;
    if is_unread(t) {
        return Err(unread("TP4003", "the value of a tensor was", by, KEEP));
    }
    if t.numel() != 1 {
        return Err(Error::value(
            "TP1112",
            format!("only a tensor of one element has a value, got shape {:?}", t.sizes()),
        ));
    }
    if !t.device().is_cpu() {
        return Err(elsewhere(t, ErrorKind::Device));
    }
    // SAFETY: one element of the dtype lies at the data pointer.
    Ok(unsafe {
        tp_tensor::dispatch_dtype!(t.dtype(), T => Scalar::from_element(t.data_ptr().cast::<T>().read_unaligned()))
    })
}

/// The error of reading values that are not in CPU memory.
#[cold]
pub fn elsewhere(t: &Tensor, kind: ErrorKind) -> Error {
    if t.device().is_meta() {
        let message = "a tensor on 'meta' has a shape and a dtype, but no values to read";
        return Error::new(kind, "TP2105", message)
            .note("make it on another device, for example with device=\"cpu\"");
    }
    Error::new(kind, "TP2105", format!("the tensor is on {}; move it with .cpu() first", t.device()))
}

pub fn scalar_object(py: Python<'_>, s: Scalar) -> PyResult<Bound<'_, PyAny>> {
    match s {
        Scalar::Bool(v) => v.into_bound_py_any(py),
        Scalar::Int(v) => v.into_bound_py_any(py),
        Scalar::Float(v) => v.into_bound_py_any(py),
    }
}
