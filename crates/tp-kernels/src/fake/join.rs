//! Fake rules of rearrangements and joins.

use crate::fake;
use crate::fake::reduce::distinct_axes;
use tp_dispatch::{Call, Error, FakeOuts, Result};
use tp_tensor::layout::{checked_numel, normalize_axis};
use tp_tensor::promote::promote_types;
use tp_tensor::symbols::{self, Relation};
use tp_tensor::{DType, Dims, Tensor};

fn like_first(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    Ok(fake::like_call(call, x.sizes(), x.dtype()))
}

pub fn flip(call: &Call<'_>) -> Result<FakeOuts> {
    distinct_axes(call.opt_ints(1).unwrap_or(&[]), call.tensor(0)?.ndim())?;
    like_first(call)
}

pub fn roll(call: &Call<'_>) -> Result<FakeOuts> {
    check_roll(call)?;
    like_first(call)
}

/// One shift per axis, or one for all of them.
pub fn check_roll(call: &Call<'_>) -> Result<()> {
    let (shifts, axes) = (call.ints(1)?, call.opt_ints(2));
    check_axes(call, axes)?;
    match axes {
        Some(axes) if shifts.len() != axes.len() && shifts.len() != 1 => {
            let message = format!("{} shifts for {} axes", shifts.len(), axes.len());
            Err(Error::value("TP1125", message))
        }
        _ => Ok(()),
    }
}

fn check_axes(call: &Call<'_>, axes: Option<&[i64]>) -> Result<()> {
    let ndim = call.tensor(0)?.ndim();
    axes.unwrap_or(&[]).iter().try_for_each(|&axis| Ok(normalize_axis(axis, ndim).map(drop)?))
}

pub fn triangle(call: &Call<'_>) -> Result<FakeOuts> {
    fake::view::matrix_sizes(call.tensor(0)?)?;
    like_first(call)
}

/// A tensor of the sizes given as argument 1, of the first argument's dtype.
pub fn embedded(call: &Call<'_>) -> Result<FakeOuts> {
    let (sizes, dtype) = (call.ints(1)?, call.tensor(0)?.dtype());
    if !symbols::given(sizes) {
        checked_numel(sizes, dtype.itemsize())?;
    }
    Ok(fake::like_call(call, sizes, dtype))
}

/// What a join of tensors comes to.
pub struct Joined {
    pub axis: usize,
    pub sizes: Dims,
    pub dtype: DType,
    /// The inputs are taken as one-dimensional.
    pub flat: bool,
}

fn non_empty<'a>(call: &Call<'a>) -> Result<&'a [Tensor]> {
    let tensors = call.tensors(0)?;
    if tensors.is_empty() {
        return Err(Error::value("TP1126", "needs at least one tensor"));
    }
    Ok(tensors)
}

fn common_dtype(tensors: &[Tensor]) -> DType {
    tensors.iter().map(Tensor::dtype).reduce(promote_types).unwrap_or(DType::F32)
}

fn mismatch(k: usize, first: &Tensor, other: &Tensor, axis: &str) -> Error {
    let (a, b) = (first.dims(), other.dims());
    Error::shape("TP1127", format!("arrays[0] has shape {a:?}, arrays[{k}] has shape {b:?}: {axis}"))
}

pub fn concat_shape(call: &Call<'_>) -> Result<Joined> {
    let tensors = non_empty(call)?;
    let dtype = common_dtype(tensors);
    let first = &tensors[0];
    let Some(axis) = call.args[1].int() else {
        let mut total = 0i64;
        for t in tensors {
            total = symbols::add(total, symbols::product(t.sizes())?)?;
        }
        return Ok(Joined { axis: 0, sizes: Dims::from_slice(&[total]), dtype, flat: true });
    };
    let axis = fake::view::existing_axis(axis, first.ndim())?;
    let mut sizes: Dims = first.sizes().into();
    for (k, t) in tensors.iter().enumerate().skip(1) {
        let mut fits = t.ndim() == first.ndim();
        for (d, (&a, &b)) in t.sizes().iter().zip(first.sizes()).enumerate() {
            fits = fits && (d == axis || symbols::require(a, Relation::Eq, b)?);
        }
        if !fits {
            return Err(mismatch(k, first, t, &format!("they may differ along axis {axis} only")));
        }
        sizes[axis] = symbols::add(sizes[axis], t.sizes()[axis])?;
    }
    Ok(Joined { axis, sizes, dtype, flat: false })
}

pub fn stack_shape(call: &Call<'_>) -> Result<Joined> {
    let tensors = non_empty(call)?;
    let first = &tensors[0];
    let axis = normalize_axis(call.int(1)?, first.ndim() + 1)?;
    for (k, t) in tensors.iter().enumerate().skip(1) {
        if !symbols::same_shape(t.sizes(), first.sizes())? {
            return Err(mismatch(k, first, t, "they must be equal"));
        }
    }
    let mut sizes: Dims = first.sizes().into();
    sizes.insert(axis, tensors.len() as i64);
    Ok(Joined { axis, sizes, dtype: common_dtype(tensors), flat: false })
}

pub fn concat(call: &Call<'_>) -> Result<FakeOuts> {
    let j = concat_shape(call)?;
    Ok(fake::like_call(call, &j.sizes, j.dtype))
}

pub fn stack(call: &Call<'_>) -> Result<FakeOuts> {
    let j = stack_shape(call)?;
    Ok(fake::like_call(call, &j.sizes, j.dtype))
}
