//! Elements as Python objects: `tolist` and `format`; and the seed of the random ops.

use super::{builtin as ops, tensor_of, transfer};
use crate::error::IntoPyResult;
use crate::error::guarded;
use crate::given;
use crate::hot::convert;
use crate::types;
use pyo3::ffi;
use pyo3::prelude::*;
use tp_dispatch::{Arg, Error, Result};
use tp_graph::capture::watch;
use tp_kernels::draws::{self, Draws};
use tp_tensor::{Device, Scalar, Tensor, dispatch_dtype};

/// All elements in row-major order, wherever they are.
pub fn elements(t: &Tensor) -> Result<Vec<Scalar>> {
    if t.is_batched() {
        return Err(crate::batch::no_value());
    }
    types::readable(t, "TP4003", "the values of a tensor were", "x.tolist()", types::KEEP)?;
    if t.device().is_meta() {
        return Err(Error::device("TP2106", "a tensor without data has no values"));
    }
    let local = transfer::to_device(&t.detach(), Device::CPU)?;
    let flat = ops::CONTIGUOUS.run(&[Arg::Tensor(&local)])?;
    let n = flat.numel() as usize;
    Ok(dispatch_dtype!(flat.dtype(), T => {
        // SAFETY: contiguous; elements of borrowed memory need not be aligned.
        (0..n).map(|i| Scalar::from_element(unsafe { flat.data_ptr().cast::<T>().add(i).read_unaligned() })).collect()
    }))
}

/// The elements as nested lists of Python numbers; a number for a 0-d tensor.
#[pyfunction]
pub fn tensor_tolist<'py>(py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let t = tensor_of(x)?;
        let values = elements(&t).py(py)?;
        nested(py, t.sizes(), &values)
    })
}

/// Depth is bounded by the rank of a tensor.
fn nested<'py>(py: Python<'py>, sizes: &[i64], values: &[Scalar]) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: fresh objects; a list's slots are filled before anyone else sees it.
    unsafe {
        let Some((&n, rest)) = sizes.split_first() else {
            return Bound::from_owned_ptr_or_err(py, convert::scalar_to_object(values[0]));
        };
        let list = Bound::from_owned_ptr_or_err(py, ffi::PyList_New(n as isize))?;
        let each = rest.iter().product::<i64>() as usize;
        for i in 0..n as usize {
            let item = nested(py, rest, values.get(i * each..(i + 1) * each).unwrap_or(&[]))?;
            ffi::PyList_SetItem(list.as_ptr(), i as isize, item.into_ptr());
        }
        Ok(list)
    }
}

/// `format(x, spec)`: the value's own format for a 0-d tensor, the text of the tensor for an empty spec.
#[pyfunction]
pub fn tensor_format(py: Python<'_>, x: &Bound<'_, PyAny>, spec: &str) -> PyResult<String> {
    guarded(|| {
        let t = tensor_of(x)?;
        if spec.is_empty() {
            return Ok(x.str()?.to_string());
        }
        if t.ndim() > 0 {
            let message = format!("format '{spec}' needs one value; the tensor has shape {:?}", t.sizes());
            return Err(Error::argument("TP1112", message)).py(py);
        }
        let value = types::scalar_object(py, types::item_by(&t, "format(x, spec)").py(py)?)?;
        value.call_method1("__format__", (spec,))?.extract()
    })
}

/// The generator is the process's, whatever is captured.
fn once(what: &str) -> Result<()> {
    watch::once(what, "seed before the call: a compiled function draws what the function draws")
}

/// Seeds the random ops of this process.
#[pyfunction]
pub fn manual_seed(seed: &Bound<'_, PyAny>) -> PyResult<()> {
    guarded(|| {
        once("manual_seed()").py(seed.py())?;
        let seed: u64 = given::read("manual_seed", "seed", seed)?;
        tp_kernels::random::manual_seed(seed);
        Ok(())
    })
}

/// Seed and position of the generator: what `set_rng_state` needs to go on from here.
#[pyfunction]
pub fn rng_state(py: Python<'_>) -> PyResult<(u64, u64)> {
    guarded(|| {
        once("reading the state of the generator").py(py)?;
        Ok(tp_kernels::random::get_state())
    })
}

/// Puts the generator where `rng_state` found it.
#[pyfunction]
pub fn set_rng_state(py: Python<'_>, state: (u64, u64)) -> PyResult<()> {
    guarded(|| {
        once("setting the state of the generator").py(py)?;
        tp_kernels::random::set_state(state.0, state.1);
        Ok(())
    })
}

/// What a stretch of a program drew: noted while it is recorded, given again while it is replayed.
#[pyclass(module = "tensorplay._native")]
#[derive(Default)]
pub struct RandomDraws {
    draws: Draws,
    entered: Vec<draws::Entered>,
}

#[pymethods]
impl RandomDraws {
    #[new]
    fn new() -> PyResult<RandomDraws> {
        guarded(|| Ok(RandomDraws::default()))
    }

    /// Notes what this thread draws, until `leave`.
    fn record(&mut self) -> PyResult<()> {
        guarded(|| {
            self.entered.push(self.draws.record());
            Ok(())
        })
    }

    /// Gives this thread the same draws again, until `leave`.
    fn replay(&mut self) -> PyResult<()> {
        guarded(|| {
            self.entered.push(self.draws.replay());
            Ok(())
        })
    }

    /// Ends the newest of both; `_before` is what those returned: nothing.
    fn leave(&mut self, _before: &Bound<'_, PyAny>) -> PyResult<()> {
        guarded(|| {
            self.entered.pop();
            Ok(())
        })
    }
}
