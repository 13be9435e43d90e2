//! Indexing by several integer arrays at once: they broadcast together, and their axes go where NumPy puts them.

use crate::fake;
use smallvec::smallvec;
use tp_dispatch::fake::dynamic;
use tp_dispatch::{Arg, Call, Error, FakeOut, FakeOuts, Result};
use tp_tensor::layout::broadcast;
use tp_tensor::{DType, Dim, Dims, Tensor, TensorError, symbols};

/// How a call of `index` reads x.
pub struct Placement<'a> {
    /// The indexed axes with their indices.
    pub indexed: Vec<(usize, &'a Tensor)>,
    /// The other axes.
    pub rest: Vec<usize>,
    /// What the indices broadcast to.
    pub broadcast: Dims,
    /// How many of the other axes stand before the broadcast ones.
    pub before: usize,
    pub sizes: Dims,
}

pub fn placement<'a>(call: &Call<'a>) -> Result<Placement<'a>> {
    let x = call.tensor(0)?;
    let given: Vec<Option<&'a Tensor>> = match call.args[1] {
        Arg::OptTensors(list) => list.iter().map(Option::as_ref).collect(),
        Arg::Tensors(list) => list.iter().map(Some).collect(),
        _ => return Err(Error::argument("TP1002", "argument 'indices' must be a list of tensors or None")),
    };
    if given.len() > x.ndim() {
        return Err(TensorError::TooManyIndices { given: given.len(), ndim: x.ndim() }.into());
    }
    let indexed: Vec<(usize, &Tensor)> =
        given.iter().enumerate().filter_map(|(axis, index)| index.map(|t| (axis, t))).collect();
    let mut common = Dims::new();
    for (_, index) in &indexed {
        if !index.dtype().is_int() {
            let message = format!("indices must hold integers, got {}", index.dtype());
            return Err(Error::dtype("TP1205", message).note("a bool mask goes through nonzero()"));
        }
        common = broadcast(&common, index.sizes())?;
    }
    let rest: Vec<usize> = (0..x.ndim()).filter(|k| indexed.iter().all(|(axis, _)| axis != k)).collect();
    let adjacent = indexed.windows(2).all(|w| w[1].0 == w[0].0 + 1);
    let first = indexed.first().map_or(0, |(axis, _)| *axis);
    let before = if adjacent { first } else { 0 };
    let size = |k: &usize| x.sizes()[*k];
    let mut sizes: Dims = rest[..before].iter().map(size).collect();
    sizes.extend_from_slice(&common);
    sizes.extend(rest[before..].iter().map(size));
    Ok(Placement { indexed, rest, broadcast: common, before, sizes })
}

pub fn index(call: &Call<'_>) -> Result<FakeOuts> {
    Ok(fake::like_call(call, &placement(call)?.sizes, call.tensor(0)?.dtype()))
}

/// As many rows as elements are not zero: at most all of them.
pub fn nonzero(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    let most = (!symbols::any(x.sizes())).then(|| x.numel());
    let found = dynamic::size_for(call, 0, most)?;
    Ok(fake::like_call(call, &[found.raw(), x.ndim() as i64], DType::I64))
}

/// x, indices, values: the values broadcast to what `index` would give.
pub fn check_put(call: &Call<'_>) -> Result<()> {
    let p = placement(call)?;
    let (x, values) = (call.tensor(0)?, call.tensor(2)?);
    fake::inplace::check_same_kind(values.dtype(), x.dtype())?;
    let refuse = || {
        let (values, indexed) = (values.dims(), Dim::slice(&p.sizes));
        let message =
            format!("'values' has shape {values:?}, which does not broadcast to the indexed {indexed:?}");
        Error::shape("TP1139", message)
    };
    match broadcast(&p.sizes, values.sizes()) {
        Ok(common) if symbols::same_shape(&common, &p.sizes)? => Ok(()),
        Err(e @ (TensorError::Symbolic(_) | TensorError::Undecided(_))) => Err(e.into()),
        _ => Err(refuse()),
    }
}

pub fn index_put(call: &Call<'_>) -> Result<FakeOuts> {
    check_put(call)?;
    let x = call.tensor(0)?;
    Ok(fake::like_call(call, x.sizes(), x.dtype()))
}

pub fn index_put_(call: &Call<'_>) -> Result<FakeOuts> {
    fake::inplace::check_writable(call.tensor(0)?)?;
    check_put(call)?;
    Ok(smallvec![FakeOut::Same { of: 0 }])
}
