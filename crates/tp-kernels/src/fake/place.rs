//! Fake rules of the copies that a view's place in its base gives, and what their arguments say. A view whose elements
//! overlap, or that reaches outside of its base, has no place.

use crate::fake;
use smallvec::smallvec;
use tp_dispatch::{Call, Error, FakeOut, FakeOuts, Result};
use tp_tensor::layout::overlaps;
use tp_tensor::{Dims, Layout, Tensor, TensorSpec};

/// Where a view lies in a base.
pub struct Place<'a> {
    pub base_sizes: &'a [i64],
    pub base_strides: &'a [i64],
    sizes: &'a [i64],
    strides: &'a [i64],
    offset: i64,
}

impl Place<'_> {
    /// The view's layout in a base whose first element is at `start`.
    pub fn layout(&self, start: i64) -> Layout {
        Layout {
            sizes: self.sizes.into(),
            strides: self.strides.into(),
            offset: start.wrapping_add(self.offset),
        }
    }

    /// Whether `x` has the base's layout already.
    pub fn is_laid_out(&self, x: &Tensor) -> bool {
        let same = |axis: usize| x.sizes()[axis] == 1 || x.strides()[axis] == self.base_strides[axis];
        (0..x.ndim()).all(same)
    }

    fn check(self) -> Result<Self> {
        let fits = self.base_sizes.len() == self.base_strides.len() && self.sizes.len() == self.strides.len();
        if !fits {
            return Err(refuse("there must be one stride per axis"));
        }
        let base = Layout { sizes: self.base_sizes.into(), strides: self.base_strides.into(), offset: 0 };
        let bounds = base.extent().zip(self.layout(0).extent());
        let inside = |((_, end), (low, high)): ((i64, i64), (i64, i64))| low >= 0 && high <= end;
        let empty = self.sizes.contains(&0);
        let strides_fit = self.base_strides.iter().chain(self.strides).all(|&s| s >= 0);
        if !strides_fit || self.offset < 0 || !(empty || bounds.is_some_and(inside)) {
            return Err(refuse("the view reaches outside of its base"));
        }
        if overlaps(self.base_sizes, self.base_strides) || overlaps(self.sizes, self.strides) {
            return Err(refuse("elements overlap"));
        }
        Ok(self)
    }

    fn spec(&self, like: &Tensor) -> TensorSpec {
        let strides: Dims = self.base_strides.into();
        TensorSpec { sizes: self.base_sizes.into(), strides, dtype: like.dtype(), device: like.device() }
    }
}

#[cold]
fn refuse(why: &str) -> Error {
    Error::value("TP1141", format!("no place for a view: {why}"))
}

/// The arguments of `view_inside_backward` and `view_outside_backward`: x, base_strides, shape, strides, offset.
pub fn place<'a>(call: &Call<'a>) -> Result<Place<'a>> {
    let (base_sizes, base_strides) = (call.tensor(0)?.sizes(), call.ints(1)?);
    let (sizes, strides, offset) = (call.ints(2)?, call.ints(3)?, call.int(4)?);
    Place { base_sizes, base_strides, sizes, strides, offset }.check()
}

/// Those of `view_backward`: part, base_shape, base_strides, strides, offset.
pub fn embed_place<'a>(call: &Call<'a>) -> Result<Place<'a>> {
    let (base_sizes, base_strides) = (call.ints(1)?, call.ints(2)?);
    let (sizes, strides, offset) = (call.tensor(0)?.sizes(), call.ints(3)?, call.int(4)?);
    if base_sizes.iter().any(|&s| s < 0) {
        return Err(refuse("a size is negative"));
    }
    Place { base_sizes, base_strides, sizes, strides, offset }.check()
}

pub fn part(call: &Call<'_>) -> Result<FakeOuts> {
    let place = place(call)?;
    Ok(fake::like_call(call, place.sizes, call.tensor(0)?.dtype()))
}

pub fn embed(call: &Call<'_>) -> Result<FakeOuts> {
    Ok(smallvec![FakeOut::Spec(embed_place(call)?.spec(call.tensor(0)?))])
}

pub fn erase(call: &Call<'_>) -> Result<FakeOuts> {
    Ok(smallvec![FakeOut::Spec(place(call)?.spec(call.tensor(0)?))])
}
