//! Fake rules of ops that write to their first argument and return it.

use crate::cpu::inplace::{check_fits, check_same_kind};
use crate::cpu::pointwise::broadcast_shape;
use smallvec::smallvec;
use tp_dispatch::{Arg, Call, FakeOut, FakeOuts, Result};
use tp_tensor::promote;

pub fn same(_: &Call<'_>) -> Result<FakeOuts> {
    Ok(smallvec![FakeOut::Same { of: 0 }])
}

/// As `same`, and what is written must broadcast to the argument.
pub fn broadcast(call: &Call<'_>) -> Result<FakeOuts> {
    check_fits(&broadcast_shape(call.args.iter().filter_map(Arg::tensor))?, call.tensor(0)?)?;
    same(call)
}

/// As `broadcast`, for arithmetic: operands of a higher kind do not go in.
pub fn arithmetic(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    let other = match call.args.get(1) {
        Some(Arg::Tensor(t)) => promote::promote_types(x.dtype(), t.dtype()),
        Some(number) => number.scalar().map_or(x.dtype(), |s| promote::promote_weak(x.dtype(), s.category())),
        None => x.dtype(),
    };
    check_same_kind(other, x.dtype())?;
    broadcast(call)
}

/// As `arithmetic`, for true division, which gives a float.
pub fn division(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    if !x.dtype().is_float() {
        check_same_kind(promote::DEFAULT_FLOAT, x.dtype())?;
    }
    arithmetic(call)
}
