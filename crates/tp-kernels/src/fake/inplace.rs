//! Fake rules of ops that write to their first argument and return it: what may be written, and what fits.

use crate::cpu::pointwise::{arg_types, broadcast_shape, check_numbers};
use smallvec::smallvec;
use std::sync::Arc;
pub use tp_dispatch::check::check_writable;
use tp_dispatch::host::HostVisitor;
use tp_dispatch::kernel::KernelObject;
use tp_dispatch::{Arg, Call, Error, FakeOut, FakeOuts, Result, Rets, Value};
use tp_expr::ScalarExpr;
use tp_tensor::{DType, Dim, Tensor, TensorError, symbols};

/// The rule of an in-place row with an expression.
pub struct Rule(pub Arc<ScalarExpr>);

impl KernelObject for Rule {
    fn call(&self, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        check_numbers(&self.0, call.args).map_err(|e| e.with_op(call.op.name()))?;
        let out = self.0.output_dtype(&arg_types(call.args))?;
        check_arithmetic(call, out).map_err(|e| e.with_op(call.op.name()))?;
        rets.push(Value::Tensor(call.tensor(0)?.clone()));
        Ok(())
    }

    fn trace(&self, _: &mut HostVisitor<'_>) {}
}

/// `out` is the dtype that the functional form would have.
pub fn check_arithmetic(call: &Call<'_>, out: DType) -> Result<()> {
    let x = call.tensor(0)?;
    check_writable(x)?;
    check_same_kind(out, x.dtype())?;
    check_fits(&broadcast_shape(call.args.iter().filter_map(Arg::tensor))?, x)
}

pub fn check_copy(call: &Call<'_>) -> Result<()> {
    let x = call.tensor(0)?;
    check_writable(x)?;
    check_fits(&broadcast_shape(call.args.iter().filter_map(Arg::tensor))?, x)
}

pub fn check_fill(call: &Call<'_>) -> Result<()> {
    let x = call.tensor(0)?;
    check_writable(x)?;
    // As copies do, it converts: a fraction is cut off.
    call.scalar(1)?.checked(x.dtype()).map(drop).map_err(|e| TensorError::from(e).into())
}

pub fn copy_(call: &Call<'_>) -> Result<FakeOuts> {
    check_copy(call)?;
    Ok(smallvec![FakeOut::Same { of: 0 }])
}

pub fn fill_(call: &Call<'_>) -> Result<FakeOuts> {
    check_fill(call)?;
    Ok(smallvec![FakeOut::Same { of: 0 }])
}

pub fn zero_(call: &Call<'_>) -> Result<FakeOuts> {
    check_writable(call.tensor(0)?)?;
    Ok(smallvec![FakeOut::Same { of: 0 }])
}

/// An in-place write must not change the shape.
pub fn check_fits(shape: &[i64], x: &Tensor) -> Result<()> {
    if symbols::same_shape(shape, x.sizes())? {
        return Ok(());
    }
    let (shape, into) = (Dim::slice(shape), x.dims());
    let message = format!("the result has shape {shape:?}, which does not fit in place into {into:?}");
    Err(Error::shape("TP1121", message).note("use the form without the underscore, which makes a new tensor"))
}

/// What is written may lose width but never its kind: floats do not go into ints.
pub fn check_same_kind(from: DType, to: DType) -> Result<()> {
    if from.category() <= to.category() {
        return Ok(());
    }
    Err(Error::dtype("TP1221", format!("values of {from} cannot be written to a tensor of {to}"))
        .note(format!("convert first, for example x = x.astype(tensorplay.{from})")))
}
