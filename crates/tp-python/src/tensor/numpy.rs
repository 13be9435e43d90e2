//! Tensors as NumPy arrays. NumPy is imported on the first use, never at import.

use super::{memory, tensor_of, wrap};
use crate::error::guarded;
use crate::error::{self, IntoPyResult};
use crate::given;
use crate::types;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMemoryView};
use tp_dispatch::{Error, ErrorKind};
use tp_tensor::{DType, Tensor};

/// The array over the tensor's memory, which it keeps alive.
#[pyfunction]
pub fn tensor_numpy<'py>(py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let t = tensor_of(x)?;
        share(py, &t, "x.numpy()")
    })
}

/// `by` is the call that asks, for the message where that is refused.
fn share<'py>(py: Python<'py>, t: &Tensor, by: &str) -> PyResult<Bound<'py, PyAny>> {
    check(py, t, by)?;
    if t.dtype() != DType::BF16 {
        return as_array(py, t.clone(), by);
    }
    let Ok(ml_dtypes) = py.import("ml_dtypes") else {
        let e = Error::argument("TP1207", "NumPy has no bfloat16");
        return Err(e.note("convert with .float() first, or install ml_dtypes")).py(py);
    };
    // The buffer protocol has no code for it: the bits travel as integers.
    let array = as_array(py, memory::alias_as(t, DType::I16).py(py)?, by)?;
    array.call_method1("view", (ml_dtypes.getattr("bfloat16")?,))
}

fn as_array<'py>(py: Python<'py>, t: Tensor, by: &str) -> PyResult<Bound<'py, PyAny>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if ASARRAY.get(py).is_none() {
        py.import("tensorplay.backends.base")?.call_method1("require_package", ("numpy", by))?;
    }
    // NumPy must not see the tensor itself: what a buffer cannot say it would ask `__array__`, which ends here again.
    let view = PyMemoryView::from(&wrap(py, t)?)?;
    ASARRAY.import(py, "numpy", "asarray")?.call1((view,))
}

fn check(py: Python<'_>, t: &Tensor, by: &str) -> PyResult<()> {
    if t.is_batched() {
        return Err(crate::batch::no_value()).py(py);
    }
    types::readable(t, "TP4003", "the values of a tensor were", by, types::OWN_OP).py(py)?;
    if !t.device().is_cpu() {
        // NumPy asks for a TypeError where there is no array.
        return Err(types::elsewhere(t, ErrorKind::Argument)).py(py);
    }
    // Kernels run with grad mode off: what they write is seen through the version counter.
    if t.requires_grad() && tp_dispatch::state::is_grad_enabled() {
        let e = Error::autograd(
            "TP3042",
            "a tensor that requires a gradient cannot be lent to NumPy: a write would go unseen",
        );
        return Err(error::to_py(py, e.note("use x.detach().numpy()")));
    }
    Ok(())
}

/// `__array__(dtype=None, copy=None)`, by NumPy's rules: share where that is possible, copy where it is asked for.
#[pyfunction]
#[pyo3(signature = (x, dtype=None, copy=None))]
pub fn tensor_array<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    dtype: Option<Bound<'py, PyAny>>,
    #[pyo3(from_py_with = given::optional_flag)] copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let array = share(py, &tensor_of(x)?, "numpy.asarray(x)")?;
        let same = match &dtype {
            Some(d) => py.import("numpy")?.call_method1("dtype", (d,))?.eq(array.getattr("dtype")?)?,
            None => true,
        };
        match (same, copy) {
            (true, Some(true)) => array.call_method0("copy"),
            (true, _) => Ok(array),
            (false, Some(false)) => {
                Err(Error::value("TP1048", "another dtype needs a copy, and copy is False")).py(py)
            }
            (false, _) => {
                let kwargs = PyDict::new(py);
                kwargs.set_item("copy", true)?;
                array.call_method("astype", (dtype,), Some(&kwargs))
            }
        }
    })
}
