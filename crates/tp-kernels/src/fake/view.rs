//! What view operations make: a layout from a layout. Kernel and fake rule of a view are both this.

use crate::fake::reduce::distinct_axes;
use tp_dispatch::{Call, Error, Result};
use tp_tensor::layout::normalize_axis;
use tp_tensor::symbols::{self, Relation};
use tp_tensor::{Dim, Dims, Layout, Tensor, TensorError};

/// What a call of the reshape family comes to.
pub enum Shaped {
    View(Layout),
    Copy(Dims),
}

/// The wanted sizes with a -1 filled in.
fn target_sizes(x: &Tensor, to: &[i64]) -> Result<Dims> {
    if !symbols::any(x.sizes()) && !symbols::given(to) {
        return Ok(x.layout().infer_sizes(to)?);
    }
    let numel = symbols::product(x.sizes())?;
    let bad = || TensorError::Reshape { from: x.sizes().into(), to: to.into(), numel };
    let mut sizes: Dims = to.into();
    let mut holes = to.iter().enumerate().filter(|(_, s)| **s == -1).map(|(i, _)| i);
    match (holes.next(), holes.next()) {
        (Some(hole), None) => {
            sizes[hole] = 1;
            let given = symbols::product(&sizes)?;
            // A size of 0 among the given ones says nothing of the missing one: the run refuses that.
            sizes[hole] = match numel == given {
                true => 1,
                false => symbols::exact(numel, given)
                    .map_err(|_| TensorError::Undecided(format!("{} % {} == 0", dim(numel), dim(given))))?,
            };
        }
        (None, None) => {
            if !symbols::require(symbols::product(to)?, Relation::Eq, numel)? {
                return Err(bad().into());
            }
        }
        (_, Some(_)) => return Err(bad().into()),
    }
    Ok(sizes)
}

fn dim(raw: i64) -> Dim {
    Dim::from_raw(raw)
}

pub fn reshape(call: &Call<'_>) -> Result<Shaped> {
    let x = call.tensor(0)?;
    let sizes = target_sizes(x, call.ints(1)?)?;
    if sizes.as_slice() == x.sizes() {
        return Ok(Shaped::View(x.layout()));
    }
    if x.is_contiguous() {
        return Ok(Shaped::View(Layout { offset: x.offset(), ..Layout::contiguous(&sizes) }));
    }
    let symbolic = symbols::any(x.sizes()) || symbols::any(x.strides()) || symbols::any(&sizes);
    let view = if symbolic { x.layout().symbolic_view(&sizes)? } else { x.layout().view(&sizes) };
    Ok(view.map_or(Shaped::Copy(sizes), Shaped::View))
}

pub fn view(call: &Call<'_>) -> Result<Layout> {
    match reshape(call)? {
        Shaped::View(layout) => Ok(layout),
        Shaped::Copy(sizes) => {
            let x = call.tensor(0)?;
            let (shape, strides) = (x.sizes(), x.strides());
            let message = format!(
                "shape {shape:?} with strides {strides:?} cannot be seen as {sizes:?} without a copy"
            );
            Err(Error::shape("TP1122", message).note("use reshape, which copies where it must"))
        }
    }
}

pub fn permute_dims(call: &Call<'_>) -> Result<Layout> {
    Ok(call.tensor(0)?.layout().permute(call.ints(1)?)?)
}

pub fn transpose(call: &Call<'_>) -> Result<Layout> {
    Ok(call.tensor(0)?.layout().transpose(call.int(1)?, call.int(2)?)?)
}

pub fn expand(call: &Call<'_>) -> Result<Layout> {
    let layout = call.tensor(0)?.layout();
    let to = call.ints(1)?;
    if !symbols::given(to) && !symbols::any(&layout.sizes) {
        return Ok(layout.expand(to)?);
    }
    // With symbols among the wanted sizes: each axis stays or grows from 1.
    let refuse = |axis: usize, at_from: i64, at_to: i64| TensorError::Expand {
        from: layout.sizes.clone(),
        to: to.into(),
        axis,
        at_from,
        at_to,
    };
    let lead = to.len().checked_sub(layout.ndim()).ok_or_else(|| refuse(0, 0, 0))?;
    let mut out = Layout { sizes: to.into(), strides: Dims::from_elem(0, to.len()), offset: layout.offset };
    for (axis, (&size, &stride)) in (lead..).zip(layout.sizes.iter().zip(&layout.strides)) {
        if to[axis] == -1 || symbols::require(size, Relation::Eq, to[axis])? {
            (out.sizes[axis], out.strides[axis]) = (size, stride);
        } else if !symbols::require(size, Relation::Eq, 1)? {
            return Err(refuse(axis, size, to[axis]).into());
        }
    }
    Ok(out)
}

pub fn squeeze(call: &Call<'_>) -> Result<Layout> {
    let x = call.tensor(0)?;
    distinct_axes(call.opt_ints(1).unwrap_or(&[]), x.ndim())?;
    let mut drop: Vec<bool> = match call.opt_ints(1) {
        None => {
            let one = |&s: &i64| symbols::require(s, Relation::Eq, 1);
            x.sizes().iter().map(one).collect::<std::result::Result<_, _>>()?
        }
        Some(_) => vec![false; x.ndim()],
    };
    for &axis in call.opt_ints(1).unwrap_or(&[]) {
        let at = normalize_axis(axis, x.ndim())?;
        let size = x.sizes().get(at).copied().unwrap_or(1);
        if !symbols::require(size, Relation::Eq, 1)? {
            let message = format!("cannot squeeze axis {axis} of shape {:?}: its size is not 1", x.dims());
            return Err(Error::value("TP1123", message));
        }
        if let Some(slot) = drop.get_mut(at) {
            *slot = true;
        }
    }
    let layout = x.layout();
    let keep = |dims: &Dims| dims.iter().zip(&drop).filter(|(_, gone)| !**gone).map(|(d, _)| *d).collect();
    Ok(Layout { sizes: keep(&layout.sizes), strides: keep(&layout.strides), offset: layout.offset })
}

pub fn unsqueeze(call: &Call<'_>) -> Result<Layout> {
    let x = call.tensor(0)?;
    Ok(x.layout().unsqueeze(normalize_axis(call.int(1)?, x.ndim() + 1)?))
}

/// The axis and its layout for `slice` and its backward: arguments at `at` are axis, start, stop, step.
pub fn sliced(call: &Call<'_>, layout: &Layout, at: usize) -> Result<Layout> {
    let axis = existing_axis(call.int(at)?, layout.ndim())?;
    let bound = |i: usize| call.args[i].int();
    Ok(layout.slice(axis, bound(at + 1), bound(at + 2), call.int(at + 3)?)?)
}

pub fn slice(call: &Call<'_>) -> Result<Layout> {
    let layout = call.tensor(0)?.layout();
    existing_axis(call.int(1)?, layout.ndim())?;
    // The whole of an axis, whatever its size.
    if call.args[2].int().unwrap_or(0) == 0 && call.args[3].is_none() && call.int(4)? == 1 {
        return Ok(layout);
    }
    sliced(call, &layout, 1)
}

pub fn select(call: &Call<'_>) -> Result<Layout> {
    let x = call.tensor(0)?;
    let axis = existing_axis(call.int(1)?, x.ndim())?;
    Ok(x.layout().select(axis, call.int(2)?)?)
}

/// An axis that is there: 0 dimensions have none.
pub fn existing_axis(axis: i64, ndim: usize) -> Result<usize> {
    if ndim == 0 {
        return Err(TensorError::Axis { axis, ndim }.into());
    }
    Ok(normalize_axis(axis, ndim)?)
}

pub fn alias(call: &Call<'_>) -> Result<Layout> {
    Ok(call.tensor(0)?.layout())
}

/// A stack of matrices.
pub fn matrix_sizes(x: &Tensor) -> Result<(i64, i64)> {
    match x.sizes() {
        [.., rows, columns] => Ok((*rows, *columns)),
        _ => Err(Error::shape("TP1124", format!("needs at least 2 dimensions, got shape {:?}", x.dims()))),
    }
}
