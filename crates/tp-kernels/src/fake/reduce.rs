//! What reductions come to: which axes go, what is left, in which dtype.

use crate::fake;
use tp_dispatch::{Call, Error, FakeOuts, Result};
use tp_tensor::dtype::Category;
use tp_tensor::layout::normalize_axis;
use tp_tensor::promote::{DEFAULT_FLOAT, DEFAULT_INT};
use tp_tensor::symbols::{self, Relation};
use tp_tensor::{DType, Dims, Tensor, TensorError};

/// The axes that a reduction goes over, as bits, and the sizes of its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduction {
    pub axes: u64,
    /// With size 1 for the reduced axes where those are kept.
    pub sizes: Dims,
}

/// The axes as bits; an error where one of them is given twice.
pub fn distinct_axes(axes: &[i64], ndim: usize) -> Result<u64> {
    let mut bits = 0u64;
    for &axis in axes {
        let bit = 1 << normalize_axis(axis, ndim)?;
        if bits & bit != 0 {
            return Err(Error::value("TP1131", format!("axis {axis} is given twice in {axes:?}")));
        }
        bits |= bit;
    }
    Ok(bits)
}

impl Reduction {
    pub fn over(x: &Tensor, axes: Option<&[i64]>, keepdims: bool) -> Result<Reduction> {
        let ndim = x.ndim();
        let all = if ndim == 0 { 0 } else { u64::MAX >> (64 - ndim) };
        let bits = distinct_axes(axes.unwrap_or(&[]), ndim)?;
        let axes = if axes.is_none() { all } else { bits & all };
        let mut sizes = Dims::new();
        for (k, &size) in x.sizes().iter().enumerate() {
            match (axes >> k & 1 == 1, keepdims) {
                (false, _) => sizes.push(size),
                (true, true) => sizes.push(1),
                (true, false) => {}
            }
        }
        Ok(Reduction { axes, sizes })
    }

    /// Over the axes given as argument 1, `keepdims` being argument `keep`.
    pub fn of_call(call: &Call<'_>, keep: usize) -> Result<Reduction> {
        Reduction::over(call.tensor(0)?, call.opt_ints(1), call.bool(keep)?)
    }

    pub fn has(&self, axis: usize) -> bool {
        self.axes >> axis & 1 == 1
    }

    /// Number of elements that go into each result; 0 while a size is symbolic.
    pub fn count(&self, x: &Tensor) -> i64 {
        let sizes = x.sizes().iter().enumerate().filter(|(k, _)| self.has(*k));
        sizes.map(|(_, &s)| s.max(0)).product()
    }

    /// A result that exists needs an element to come from.
    pub fn check_not_empty(&self, x: &Tensor) -> Result<()> {
        let reduces_nothing = x.sizes().iter().enumerate().any(|(k, &s)| self.has(k) && s == 0);
        if reduces_nothing && !self.sizes.contains(&0) {
            let message =
                format!("the reduced axes of shape {:?} have no element, and there is no identity", x.dims());
            return Err(Error::value("TP1132", message));
        }
        Ok(())
    }
}

/// Sums of bool and integers are int64, else the dtype stays.
pub fn sum_dtype(x: DType, given: Option<DType>) -> DType {
    given.unwrap_or(if x.category() == Category::Float { x } else { DEFAULT_INT })
}

/// Means are floats.
pub fn mean_dtype(x: DType) -> DType {
    if x.is_float() { x } else { DEFAULT_FLOAT }
}

/// `sum` and `prod`: arguments x, axis, dtype, keepdims.
pub fn sum(call: &Call<'_>) -> Result<FakeOuts> {
    let dtype = sum_dtype(call.tensor(0)?.dtype(), call.opt_dtype(2));
    Ok(fake::like_call(call, &Reduction::of_call(call, 3)?.sizes, dtype))
}

/// x, axis, keepdims.
pub fn mean(call: &Call<'_>) -> Result<FakeOuts> {
    let dtype = mean_dtype(call.tensor(0)?.dtype());
    Ok(fake::like_call(call, &Reduction::of_call(call, 2)?.sizes, dtype))
}

/// x, axis, correction, keepdims.
pub fn var(call: &Call<'_>) -> Result<FakeOuts> {
    let dtype = mean_dtype(call.tensor(0)?.dtype());
    Ok(fake::like_call(call, &Reduction::of_call(call, 3)?.sizes, dtype))
}

/// x, axis, keepdims: one of the elements.
pub fn extremum(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    let r = Reduction::of_call(call, 2)?;
    r.check_not_empty(x)?;
    Ok(fake::like_call(call, &r.sizes, x.dtype()))
}

/// x, axis, keepdims: a truth value.
pub fn truth(call: &Call<'_>) -> Result<FakeOuts> {
    Ok(fake::like_call(call, &Reduction::of_call(call, 2)?.sizes, DType::Bool))
}

/// x, one axis or none, keepdims: an index.
pub fn index(call: &Call<'_>) -> Result<FakeOuts> {
    let r = index_reduction(call)?;
    Ok(fake::like_call(call, &r.sizes, DEFAULT_INT))
}

pub fn index_reduction(call: &Call<'_>) -> Result<Reduction> {
    let x = call.tensor(0)?;
    let axis = call.args[1].int().map(|a| [a]);
    let r = Reduction::over(x, axis.as_ref().map(|a| &a[..]), call.bool(2)?)?;
    r.check_not_empty(x)?;
    Ok(r)
}

/// x, axis, dtype.
pub fn cumulative(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    normalize_axis(call.int(1)?, x.ndim())?;
    Ok(fake::like_call(call, x.sizes(), sum_dtype(x.dtype(), call.opt_dtype(2))))
}

/// x, axis: floats of the same shape.
pub fn softmax(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    normalize_axis(call.int(1)?, x.ndim())?;
    Ok(fake::like_call(call, x.sizes(), mean_dtype(x.dtype())))
}

/// grad, out, axis.
pub fn softmax_backward(call: &Call<'_>) -> Result<FakeOuts> {
    let (grad, out) = (call.tensor(0)?, call.tensor(1)?);
    normalize_axis(call.int(2)?, out.ndim())?;
    if !symbols::same_shape(grad.sizes(), out.sizes())? {
        let message = format!("'grad' has shape {:?}, 'out' has shape {:?}", grad.dims(), out.dims());
        return Err(Error::shape("TP1133", message));
    }
    let dtype = tp_tensor::promote::promote_types(grad.dtype(), out.dtype());
    Ok(fake::like_call(call, out.sizes(), mean_dtype(dtype)))
}

/// x, sizes: the axes that broadcasting `sizes` to the shape of x made or widened.
pub fn to_size(x: &Tensor, sizes: &[i64]) -> Result<Reduction> {
    let refuse =
        || TensorError::Expand { from: sizes.into(), to: x.sizes().into(), axis: 0, at_from: 0, at_to: 0 };
    let lead = x.ndim().checked_sub(sizes.len()).ok_or_else(refuse)?;
    let mut axes = 0;
    for (k, &size) in x.sizes().iter().enumerate() {
        if k < lead {
            axes |= 1 << k;
        } else if !symbols::require(size, Relation::Eq, sizes[k - lead])? {
            if !symbols::require(sizes[k - lead], Relation::Eq, 1)? {
                let (at_from, at_to) = (sizes[k - lead], size);
                return Err(TensorError::Expand {
                    from: sizes.into(),
                    to: x.sizes().into(),
                    axis: k,
                    at_from,
                    at_to,
                }
                .into());
            }
            axes |= 1 << k;
        }
    }
    Ok(Reduction { axes, sizes: sizes.into() })
}

pub fn sum_to_size(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    Ok(fake::like_call(call, &to_size(x, call.ints(1)?)?.sizes, x.dtype()))
}
