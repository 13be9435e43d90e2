//! Where a view lies in its base, as copies: the part of a tensor at the view's places, that part in zeros, and the
//! tensor without it. Gradients of writes through views are made of these.

use crate::cpu::{cast, copy};
use crate::fake::place::{Place, embed_place, place};
use tp_dispatch::{Call, Result, Rets, Value};
use tp_tensor::{Device, Scalar, Tensor};

/// A fresh tensor with the base's sizes and strides.
fn blank(like: &Tensor, place: &Place<'_>) -> Result<Tensor> {
    Ok(Tensor::empty_strided(place.base_sizes, place.base_strides, like.dtype(), Device::CPU)?)
}

/// The view of `t`, which is laid out as the base.
fn at(t: &Tensor, place: &Place<'_>) -> Result<Tensor> {
    Ok(t.view(&place.layout(t.offset()))?)
}

fn zero(t: &Tensor) -> Result<()> {
    cast::fill(t, Scalar::Bool(false))
}

pub fn part(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let (x, place) = (call.tensor(0)?, place(call)?);
    let laid_out = if place.is_laid_out(x) {
        x.clone()
    } else {
        let fresh = blank(x, &place)?;
        copy::copy_into(&fresh, x)?;
        fresh
    };
    rets.push(Value::Tensor(copy::contiguous(&at(&laid_out, &place)?)?));
    Ok(())
}

pub fn embed(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let (part, place) = (call.tensor(0)?, embed_place(call)?);
    let out = blank(part, &place)?;
    zero(&out)?;
    copy::copy_into(&at(&out, &place)?, part)?;
    rets.push(Value::Tensor(out));
    Ok(())
}

pub fn erase(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let (x, place) = (call.tensor(0)?, place(call)?);
    let out = blank(x, &place)?;
    copy::copy_into(&out, x)?;
    zero(&at(&out, &place)?)?;
    rets.push(Value::Tensor(out));
    Ok(())
}
