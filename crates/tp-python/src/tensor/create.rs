//! New tensors: `tensor` copies, `asarray` and `from_numpy` share where they can. Sources are Python numbers and
//! nested sequences, tensors, buffers (NumPy arrays among them) and objects with `__dlpack__` or `__array__`.

use super::builtin as ops;
use super::{DeviceArg, as_tensor, buffers, dlpack, nested, transfer, wrap};
use crate::error::guarded;
use crate::error::{self, IntoPyResult};
use crate::given;
use crate::hot::ffi::Obj;
use crate::types::DTypeArg;
use nested::Nested;
use pyo3::ffi;
use pyo3::prelude::*;
use tp_dispatch::{Arg, Error, Result};
use tp_graph::capture::made;
use tp_tensor::promote::DEFAULT_FLOAT;
use tp_tensor::scalar::Element;
use tp_tensor::{DType, Device, Scalar, Tensor, TensorError, dispatch_dtype};

/// A new tensor with a copy of `data`: numbers, nested lists, a NumPy array or another buffer, a tensor.
///
/// Python floats give float32, ints int64 and bools bool unless `dtype` says otherwise; arrays and NumPy scalars keep
/// their dtype, `numpy.float64` and the items of lists among them.
#[pyfunction]
#[pyo3(signature = (data, *, dtype=None, device=None, requires_grad=false))]
pub fn tensor<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    dtype: Option<DTypeArg>,
    device: Option<DeviceArg>,
    #[pyo3(from_py_with = given::flag)] requires_grad: bool,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let dtype = dtype.map(|d| d.0);
        let source = shared(data, dtype)?;
        // A capture records what becomes of a tensor, and holds a copy of other data.
        let is_recorded = as_tensor(data).is_some() && tp_graph::capture::active();
        let apply = |op: &ops::Builtin, args: &[Arg<'_>]| {
            if is_recorded { op.call(args) } else { op.run(args) }.py(py)
        };
        let mut t = apply(&ops::DETACH, &[Arg::Tensor(&source.tensor)])?;
        if let Some(d) = dtype.filter(|d| *d != t.dtype()) {
            t = apply(&ops::ASTYPE, &[Arg::Tensor(&t), Arg::DType(d)])?;
        } else if !source.fresh {
            t = apply(&ops::CLONE, &[Arg::Tensor(&t)])?;
        }
        t = made(t, false).py(py)?;
        if let Some(d) = device {
            t = transfer::to_device(&t, d.0).py(py)?;
        }
        if requires_grad {
            differentiable(&t).py(py)?;
            t.set_requires_grad(true);
        }
        wrap(py, t)
    })
}

fn differentiable(t: &Tensor) -> Result<()> {
    if t.dtype().is_float() {
        return Ok(());
    }
    Err(Error::autograd("TP3012", format!("only floating tensors can require a gradient, got {}", t.dtype()))
        .note("pass dtype=tensorplay.float32"))
}

/// `obj` as a tensor, sharing its memory where it can. `copy=True` always copies, `copy=False` never does.
#[pyfunction]
#[pyo3(signature = (obj, /, *, dtype=None, device=None, copy=None))]
pub fn asarray<'py>(
    py: Python<'py>,
    obj: &Bound<'py, PyAny>,
    dtype: Option<DTypeArg>,
    device: Option<DeviceArg>,
    #[pyo3(from_py_with = given::optional_flag)] copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let dtype = dtype.map(|d| d.0);
        let source = shared(obj, dtype)?;
        // Converting a tensor is an operation like any other; foreign data has no history.
        let own = as_tensor(obj).is_some();
        let apply =
            |op: &ops::Builtin, args: &[Arg<'_>]| if own { op.call(args) } else { op.run(args) }.py(py);
        let mut t = source.tensor;
        let mut fresh = source.fresh;
        if let Some(d) = dtype.filter(|d| *d != t.dtype()) {
            t = apply(&ops::ASTYPE, &[Arg::Tensor(&t), Arg::DType(d)])?;
            fresh = true;
        }
        if !own {
            t = made(t, !fresh).py(py)?;
        }
        if let Some(d) = device.filter(|d| d.0 != t.device()) {
            t = transfer::to_device(&t, d.0).py(py)?;
            fresh = true;
        }
        match copy {
            Some(false) if fresh => {
                let e = Error::value(
                    "TP1153",
                    format!("{} cannot be shared without a copy, and copy is False", obj.get_type()),
                );
                Err(error::to_py(py, e))
            }
            Some(true) if !fresh => wrap(py, apply(&ops::CLONE, &[Arg::Tensor(&t)])?),
            _ => wrap(py, t),
        }
    })
}

/// A tensor over the memory of a NumPy array: both see every write, and read-only stays read-only.
#[pyfunction]
pub fn from_numpy<'py>(py: Python<'py>, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        if let Some(t) = as_tensor(array) {
            let e = Error::argument("TP1002", format!("argument 'array' must be a NumPy array, got {t:?}"));
            return Err(error::to_py(py, e));
        }
        match buffers::borrow(array)? {
            Some(t) => wrap(py, made(t, true).py(py)?),
            None => {
                let message = format!("argument 'array' must be a NumPy array, got {}", array.get_type());
                Err(error::to_py(
                    py,
                    Error::argument("TP1002", message).note("tensorplay.asarray takes other objects"),
                ))
            }
        }
    })
}

/// A tensor, and whether nobody else has its memory.
struct Source {
    tensor: Tensor,
    fresh: bool,
}

/// `wanted` decides how Python numbers are stored; anything with a dtype of its own keeps it.
fn shared(obj: &Bound<'_, PyAny>, wanted: Option<DType>) -> PyResult<Source> {
    let py = obj.py();
    if let Some(tensor) = as_tensor(obj) {
        return Ok(Source { tensor, fresh: false });
    }
    if let Some(tensor) = foreign(obj)? {
        return Ok(Source { tensor, fresh: false });
    }
    // SAFETY: a live object, lock held.
    let numbers = unsafe { nested::read(obj.as_ptr(), wanted.is_none()) }.py(py)?;
    let dtype = wanted.or_else(|| numbers.dtype()).unwrap_or(DEFAULT_FLOAT);
    Ok(Source { tensor: store(&numbers, dtype).py(py)?, fresh: true })
}

/// Objects that have memory of their own.
fn foreign(obj: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    if is_python_data(obj) {
        return Ok(None);
    }
    if let Some(t) = buffers::borrow(obj)? {
        return Ok(Some(t));
    }
    if obj.hasattr("__dlpack__")? {
        return dlpack::import::take(obj, None, None).map(Some);
    }
    if obj.hasattr("__array__")? {
        return buffers::borrow(&obj.call_method0("__array__")?);
    }
    Ok(None)
}

fn is_python_data(obj: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a live object.
    unsafe {
        let op = obj.as_ptr();
        // `numpy.float64` is a Python float that has a dtype.
        let float =
            || ffi::PyFloat_Check(op) != 0 && ffi::PyObject_HasAttrString(op, c"__array__".as_ptr()) == 0;
        ffi::PyList_Check(op) != 0 || ffi::PyTuple_Check(op) != 0 || ffi::PyLong_Check(op) != 0 || float()
    }
}

/// A list, array or buffer met inside of another call (a key, a value to store); None for anything else.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn array_like(obj: Obj) -> Result<Option<Tensor>> {
    error::attached(|py| {
        // SAFETY: a live object.
        let obj = unsafe { Bound::from_borrowed_ptr(py, obj) };
        // SAFETY: as above.
        let sequence = unsafe { ffi::PySequence_Check(obj.as_ptr()) != 0 };
        if !sequence && !obj.hasattr("__dlpack__").map_err(error::from_py)? {
            return Ok(None);
        }
        if let Some(t) = as_tensor(&obj) {
            return Ok(Some(t));
        }
        let source = shared(&obj, None).map_err(error::from_py)?;
        made(source.tensor, !source.fresh).map(Some)
    })
}

fn store(numbers: &Nested, dtype: DType) -> Result<Tensor> {
    if dtype.is_int() {
        numbers.values.iter().try_for_each(|s| fitting(*s, dtype).map(drop))?;
    }
    let t = Tensor::empty(&numbers.sizes, dtype, Device::CPU)?;
    dispatch_dtype!(dtype, T => {
        // SAFETY: fresh, contiguous, one element per number.
        unsafe { write_all::<T>(t.data_ptr().cast(), &numbers.values) }
    });
    Ok(t)
}

/// The number as an element of `dtype`: fractions are cut off, but what is out of range is an error.
pub fn fitting(s: Scalar, dtype: DType) -> Result<Scalar> {
    let s = s.checked(dtype).map_err(TensorError::from)?;
    Ok(Scalar::from_bits(s.to_bits(dtype), dtype))
}

unsafe fn write_all<T: Element>(to: *mut T, values: &[Scalar]) {
    for (i, s) in values.iter().enumerate() {
        // SAFETY: the caller's memory has room for every value.
        unsafe { to.add(i).write(s.to::<T>()) };
    }
}
