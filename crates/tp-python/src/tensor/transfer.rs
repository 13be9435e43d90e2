//! Tensors from device to device.

use super::{DeviceArg, builtin as ops, tensor_of, wrap};
use crate::error::IntoPyResult;
use crate::error::guarded;
use crate::types;
use pyo3::prelude::*;
use tp_dispatch::{Arg, Error, Result};
use tp_tensor::{Device, Tensor, runtime};

/// `t` itself when it is there already, else a copy on `device`.
pub fn to_device(t: &Tensor, device: Device) -> Result<Tensor> {
    if t.device() == device {
        return Ok(t.clone());
    }
    if t.requires_grad() {
        return Err(Error::autograd(
            "TP3040",
            format!("moving a tensor that requires a gradient to {device} is not recorded"),
        )
        .note("move x.detach(), and set requires_grad on the copy"));
    }
    if t.is_batched() {
        return Err(crate::batch::no_value());
    }
    if t.is_fake() {
        return Err(types::unread(
            "TP4003",
            "the values of a tensor were",
            &format!("x.to('{device}')"),
            types::RESULT,
        ));
    }
    if t.device().is_meta() {
        return Err(Error::device("TP2106", format!("a tensor without data cannot be moved to {device}")));
    }
    if device.is_meta() {
        return Ok(Tensor::empty(t.sizes(), t.dtype(), device)?);
    }
    let source = ops::CONTIGUOUS.run(&[Arg::Tensor(t)])?;
    let accelerator = if device.is_cpu() { t.device() } else { device };
    let runtime = runtime::runtime(accelerator)?;
    let out = Tensor::empty(t.sizes(), t.dtype(), device)?;
    if t.nbytes() > 0 {
        // SAFETY: both are contiguous and have the same number of bytes.
        unsafe { runtime.copy(out.data_ptr(), device, source.data_ptr(), t.device(), t.nbytes()) };
    }
    Ok(out)
}

/// See `to_device`.
#[pyfunction]
pub fn tensor_to_device<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    device: DeviceArg,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let moved = to_device(&tensor_of(x)?, device.0).py(py)?;
        wrap(py, moved)
    })
}
