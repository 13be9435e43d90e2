//! Shapes of look-ups along one axis.

use crate::fake::{self, view};
use tp_dispatch::{Call, Error, FakeOuts, Result};
use tp_tensor::layout::{broadcast, normalize_axis};
use tp_tensor::symbols::{self, Relation};
use tp_tensor::{Dim, Dims, Tensor};

/// Index tensors hold integers.
pub fn check_index(call: &Call<'_>, i: usize) -> Result<()> {
    let index = call.tensor(i)?;
    if index.dtype().is_int() {
        return Ok(());
    }
    let name = call.def.params.name(i).unwrap_or("index");
    Err(Error::dtype("TP1205", format!("'{name}' must hold integers, got {}", index.dtype())))
}

/// `take`: x, indices of any shape, axis or none for the flattened tensor.
pub struct Take {
    /// None: of the flattened tensor.
    pub axis: Option<usize>,
    pub sizes: Dims,
}

pub fn take_shape(call: &Call<'_>) -> Result<Take> {
    check_index(call, 1)?;
    let (x, indices) = (call.tensor(0)?, call.tensor(1)?);
    let Some(axis) = call.args[2].int() else {
        return Ok(Take { axis: None, sizes: indices.sizes().into() });
    };
    let axis = view::existing_axis(axis, x.ndim())?;
    Ok(Take { axis: Some(axis), sizes: replaced(x, axis, indices.sizes()) })
}

/// The sizes of x with one axis replaced by others.
fn replaced(x: &Tensor, axis: usize, by: &[i64]) -> Dims {
    let mut sizes: Dims = x.sizes()[..axis].into();
    sizes.extend_from_slice(by);
    sizes.extend_from_slice(&x.sizes()[axis + 1..]);
    sizes
}

pub fn take(call: &Call<'_>) -> Result<FakeOuts> {
    Ok(fake::like_call(call, &take_shape(call)?.sizes, call.tensor(0)?.dtype()))
}

/// x, axis, index in one dimension.
pub fn index_select_shape(call: &Call<'_>) -> Result<Take> {
    check_index(call, 2)?;
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    if index.ndim() > 1 {
        let message = format!("'index' must have one dimension, got shape {:?}", index.dims());
        return Err(Error::shape("TP1135", message));
    }
    let axis = view::existing_axis(call.int(1)?, x.ndim())?;
    let count = index.sizes().first().copied().unwrap_or(1);
    Ok(Take { axis: Some(axis), sizes: replaced(x, axis, &[count]) })
}

pub fn index_select(call: &Call<'_>) -> Result<FakeOuts> {
    Ok(fake::like_call(call, &index_select_shape(call)?.sizes, call.tensor(0)?.dtype()))
}

/// x, axis, index: one index per element of the result, whose other axes must fit into x.
pub fn gather_axis(call: &Call<'_>) -> Result<usize> {
    check_index(call, 2)?;
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    let axis = normalize_axis(call.int(1)?, x.ndim())?;
    check_within("index", index, "x", x, Some(axis))?;
    Ok(axis)
}

/// Every axis of `inner` but one is at most as long as that of `outer`.
pub fn check_within(a: &str, inner: &Tensor, b: &str, outer: &Tensor, except: Option<usize>) -> Result<()> {
    let mut fits = inner.ndim() == outer.ndim();
    for (d, (&a, &b)) in inner.sizes().iter().zip(outer.sizes()).enumerate() {
        fits = fits && (Some(d) == except || symbols::require(a, Relation::Le, b)?);
    }
    if fits {
        return Ok(());
    }
    let message = format!(
        "'{a}' has shape {:?}, which does not fit into '{b}' of shape {:?}",
        inner.dims(),
        outer.dims()
    );
    Err(Error::shape("TP1136", message))
}

pub fn gather(call: &Call<'_>) -> Result<FakeOuts> {
    gather_axis(call)?;
    Ok(fake::like_call(call, call.tensor(2)?.sizes(), call.tensor(0)?.dtype()))
}

/// x, indices, axis: both broadcast to these sizes, except along the axis.
pub struct Along {
    pub axis: usize,
    pub x: Dims,
    pub indices: Dims,
}

pub fn along(call: &Call<'_>) -> Result<Along> {
    check_index(call, 1)?;
    let (x, indices) = (call.tensor(0)?, call.tensor(1)?);
    if x.ndim() != indices.ndim() {
        let message = format!("'x' has {} dimensions, 'indices' has {}", x.ndim(), indices.ndim());
        return Err(Error::shape("TP1137", message));
    }
    let axis = view::existing_axis(call.int(2)?, x.ndim())?;
    let without = |t: &Tensor| {
        let mut sizes: Dims = t.sizes().into();
        sizes[axis] = 1;
        sizes
    };
    let mut common = broadcast(&without(x), &without(indices))?;
    common[axis] = x.sizes()[axis];
    let x = common.clone();
    common[axis] = indices.sizes()[axis];
    Ok(Along { axis, x, indices: common })
}

pub fn take_along_axis(call: &Call<'_>) -> Result<FakeOuts> {
    Ok(fake::like_call(call, &along(call)?.indices, call.tensor(0)?.dtype()))
}

/// x, axis, index, source: a copy of x with the source added.
pub fn scatter_add(call: &Call<'_>) -> Result<FakeOuts> {
    gather_like_x(call)?;
    let x = call.tensor(0)?;
    Ok(fake::like_call(call, x.sizes(), x.dtype()))
}

pub fn gather_like_x(call: &Call<'_>) -> Result<usize> {
    let axis = gather_axis(call)?;
    check_within("index", call.tensor(2)?, "source", call.tensor(3)?, None)?;
    fake::inplace::check_same_kind(call.tensor(3)?.dtype(), call.tensor(0)?.dtype())?;
    Ok(axis)
}

/// As `scatter_add`, for whole slabs.
pub fn index_add(call: &Call<'_>) -> Result<FakeOuts> {
    index_add_axis(call)?;
    let x = call.tensor(0)?;
    Ok(fake::like_call(call, x.sizes(), x.dtype()))
}

pub fn index_add_axis(call: &Call<'_>) -> Result<usize> {
    let want = index_select_shape(call)?;
    let (x, source) = (call.tensor(0)?, call.tensor(3)?);
    fake::inplace::check_same_kind(source.dtype(), x.dtype())?;
    if !symbols::same_shape(source.sizes(), &want.sizes)? {
        let message = format!("'source' has shape {:?}, wanted {:?}", source.dims(), Dim::slice(&want.sizes));
        return Err(Error::shape("TP1138", message));
    }
    Ok(want.axis.unwrap_or(0))
}
