//! Fake rules: shape, dtype, strides and device of outputs, over sizes that may be symbols. A rule compares and
//! passes symbols along; where it would have to calculate with one, it says so (`TensorError::Symbolic`, `Undecided`). Kernels
//! take their output shapes from the same functions, so that the two cannot disagree.

pub mod create;
pub mod gather;
pub mod index;
pub mod inplace;
pub mod join;
pub mod matmul;
pub mod place;
pub mod pointwise;
pub mod reduce;
pub mod sort;
pub mod view;

use smallvec::smallvec;
use tp_dispatch::{Call, FakeOut, FakeOuts, Result};
use tp_tensor::{DType, Device, TensorError, TensorSpec, symbols};

/// One fresh contiguous output.
pub fn contiguous(sizes: &[i64], dtype: DType, device: Device) -> FakeOuts {
    smallvec![FakeOut::Spec(TensorSpec::contiguous(sizes, dtype, device))]
}

/// One fresh contiguous output where the tensors of the call are.
pub fn like_call(call: &Call<'_>, sizes: &[i64], dtype: DType) -> FakeOuts {
    contiguous(sizes, dtype, device_of(call))
}

/// The device of a call: that of its first tensor that is no CPU number in 0 dimensions, else of any tensor.
pub fn device_of(call: &Call<'_>) -> Device {
    let mut device = None;
    let mut any = None;
    call.for_each_tensor(|_, t| {
        any = any.or(Some(t.device()));
        if !(t.ndim() == 0 && t.device().is_cpu()) {
            device = device.or(Some(t.device()));
        }
    });
    device.or(any).unwrap_or(Device::CPU)
}

/// The sizes, if all are known.
pub fn known(sizes: &[i64]) -> Result<&[i64]> {
    match sizes.iter().find(|&&s| symbols::given(&[s])) {
        Some(&symbol) => Err(TensorError::Symbolic(symbol).into()),
        None => Ok(sizes),
    }
}
