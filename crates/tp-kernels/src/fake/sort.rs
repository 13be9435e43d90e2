//! Shapes of rows about order.

use crate::fake;
use tp_dispatch::{Call, Error, FakeOuts, Result};
use tp_tensor::DType;
use tp_tensor::layout::normalize_axis;
use tp_tensor::promote::{DEFAULT_INT, promote_types};

/// x, axis, descending.
pub fn axis(call: &Call<'_>) -> Result<usize> {
    Ok(normalize_axis(call.int(1)?, call.tensor(0)?.ndim())?)
}

pub fn argsort(call: &Call<'_>) -> Result<FakeOuts> {
    axis(call)?;
    Ok(fake::like_call(call, call.tensor(0)?.sizes(), DEFAULT_INT))
}

/// x1 sorted in one dimension, x2 the values to place: what both are compared in.
pub fn common_key(call: &Call<'_>, key: fn(DType) -> DType) -> Result<DType> {
    let (line, values) = (call.tensor(0)?, call.tensor(1)?);
    if line.ndim() != 1 {
        let message = format!("'x1' must have one dimension, got shape {:?}", line.dims());
        return Err(Error::shape("TP1140", message));
    }
    Ok(key(promote_types(line.dtype(), values.dtype())))
}

pub fn searchsorted(call: &Call<'_>) -> Result<FakeOuts> {
    common_key(call, |dtype| dtype)?;
    Ok(fake::like_call(call, call.tensor(1)?.sizes(), DEFAULT_INT))
}
