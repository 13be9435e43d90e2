//! Fake rules of elementwise ops: the dtype is the expression's, the shape is the broadcast one.

use crate::cpu::pointwise::{arg_types, broadcast_shape, check_numbers};
use crate::fake;
use tp_dispatch::{Arg, Call, Error, FakeOuts, Result};

/// The rule of every pointwise row.
pub fn rule(call: &Call<'_>) -> Result<FakeOuts> {
    let Some(expr) = &call.def.pointwise else {
        return Err(Error::internal("TP9003", "a pointwise rule without an expression"));
    };
    check_numbers(expr, call.args)?;
    let dtype = expr.output_dtype(&arg_types(call.args))?;
    let shape = broadcast_shape(call.args.iter().filter_map(Arg::tensor))?;
    Ok(fake::like_call(call, &shape, dtype))
}

pub fn astype(call: &Call<'_>) -> Result<FakeOuts> {
    let dtype =
        call.opt_dtype(1).ok_or_else(|| Error::argument("TP1002", "argument 'dtype' must be a dtype"))?;
    Ok(fake::like_call(call, call.tensor(0)?.sizes(), dtype))
}

/// A fresh tensor of the first argument's shape and dtype.
pub fn same_as_first(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    Ok(fake::like_call(call, x.sizes(), x.dtype()))
}
