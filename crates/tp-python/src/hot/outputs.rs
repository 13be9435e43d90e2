//! Outputs for kernels that fill them: allocated as the fake rule says.

use tp_dispatch::kernel::Call;
use tp_dispatch::{Error, Result, Rets, Value, fake};
use tp_tensor::{Tensor, symbols};

/// Fresh tensors for the outputs of a call; an error where the op has no fake rule or returns other things.
pub fn make(call: &Call<'_>) -> Result<Rets> {
    let promised = fake::predict(call)?.ok_or_else(|| unknown(call))?;
    promised.rets.iter().map(|value| real(call, value)).collect()
}

fn real(call: &Call<'_>, value: &Value) -> Result<Value> {
    let mut sized = true;
    value.as_arg().for_each_tensor(|t| sized &= !symbols::any(t.sizes()));
    if !sized {
        let message = "the kernel fills its outputs, but the size of one of them depends on data";
        return Err(Error::contract("TP3242", message)
            .with_op(call.op.name())
            .note("register it without out=True and return the outputs"));
    }
    let empty = |t: &Tensor| Tensor::empty_strided(t.sizes(), t.strides(), t.dtype(), t.device());
    Ok(match value {
        Value::Tensor(t) => Value::Tensor(empty(t)?),
        Value::Tensors(ts) => Value::Tensors(ts.iter().map(empty).collect::<std::result::Result<_, _>>()?),
        other => {
            let message = format!("the kernel fills its outputs, but one of them is {}", other.type_name());
            return Err(Error::contract("TP3242", message).with_op(call.op.name()));
        }
    })
}

#[cold]
fn unknown(call: &Call<'_>) -> Error {
    Error::contract("TP3242", "the kernel fills its outputs, but no fake rule says what they are")
        .with_op(call.op.name())
        .note(
            "add one with @op.register_fake, or register the kernel without out=True and return the outputs",
        )
}

#[cold]
pub fn not_filled(call: &Call<'_>) -> Error {
    Error::contract("TP3242", "a kernel registered with out=True fills `out` and returns nothing")
        .with_op(call.op.name())
}
