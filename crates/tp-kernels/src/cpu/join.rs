//! Joining tensors along an axis: each input is copied, converted where needed, into its part of the output.

use crate::cpu::copy;
use crate::fake::join::{concat_shape, stack_shape};
use tp_dispatch::{Call, Result, Rets, Value};
use tp_tensor::{Device, Tensor};

pub fn concat(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let joined = concat_shape(call)?;
    let out = Tensor::empty(&joined.sizes, joined.dtype, Device::CPU)?;
    let mut at = 0;
    for t in call.tensors(0)? {
        let (size, source) =
            if joined.flat { (t.numel(), copy::flat(t)?) } else { (t.sizes()[joined.axis], t.clone()) };
        let part = out.layout().slice(joined.axis, Some(at), Some(at + size), 1)?;
        copy::copy_into(&out.view(&part)?, &source)?;
        at += size;
    }
    rets.push(Value::Tensor(out));
    Ok(())
}

pub fn stack(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let joined = stack_shape(call)?;
    let out = Tensor::empty(&joined.sizes, joined.dtype, Device::CPU)?;
    for (k, t) in (0..).zip(call.tensors(0)?) {
        copy::copy_into(&out.view(&out.layout().select(joined.axis, k)?)?, t)?;
    }
    rets.push(Value::Tensor(out));
    Ok(())
}
