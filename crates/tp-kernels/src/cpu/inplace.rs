//! Writing to an argument: keeps source and destination apart where they overlap. What may be written is decided
//! by the fake rule's checks; version counters are the dispatcher's.

use crate::cpu::cast;
use crate::cpu::copy;
use crate::cpu::pointwise::{Elementwise, Operands};
use crate::fake::inplace as rule;
use tp_dispatch::host::HostVisitor;
use tp_dispatch::kernel::KernelObject;
use tp_dispatch::{Arg, Call, Result, Rets, Value};
use tp_tensor::{Scalar, Tensor};

/// The kernel of an in-place row: the functional form, written back to the first argument.
pub struct InPlaceKernel {
    pub function: Elementwise,
}

impl KernelObject for InPlaceKernel {
    fn call(&self, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        self.run(call).map_err(|e| e.with_op(call.op.name()))?;
        rets.push(Value::Tensor(call.tensor(0)?.clone()));
        Ok(())
    }

    fn trace(&self, _: &mut HostVisitor<'_>) {}
}

impl InPlaceKernel {
    fn run(&self, call: &Call<'_>) -> Result<()> {
        let x = call.tensor(0)?;
        let compiled = self.function.compiled(call.args)?;
        rule::check_arithmetic(call, compiled.out)?;
        let operands = Operands::bind(call.args, &compiled.kernel)?;
        if operands.misfit {
            self.function.refuse_misfits(call.args)?;
        }
        let apart =
            call.args[1..].iter().filter_map(Arg::tensor).all(|t| same_positions(t, x) || !may_overlap(t, x));
        // A write that fails must leave the argument as it was.
        if compiled.out == x.dtype() && apart && !compiled.can_fail {
            // SAFETY: operands overlap x at equal positions or not at all.
            return unsafe { operands.run(&compiled.kernel, x) };
        }
        copy::copy_into(x, &self.function.apply(call.args)?)
    }
}

/// Element i of one is element i of the other.
fn same_positions(a: &Tensor, b: &Tensor) -> bool {
    a.data_ptr() == b.data_ptr()
        && a.dtype() == b.dtype()
        && a.sizes() == b.sizes()
        && a.strides() == b.strides()
}

/// The byte ranges touch. Foreign memory may overlap without sharing a storage.
pub fn may_overlap(a: &Tensor, b: &Tensor) -> bool {
    let range = |t: &Tensor| {
        let item = t.dtype().itemsize() as i64;
        let mut low = 0;
        let mut high = item;
        for (&size, &stride) in t.sizes().iter().zip(t.strides()) {
            let reach = (size - 1).max(0) * stride * item;
            if reach < 0 { low += reach } else { high += reach }
        }
        let base = t.data_ptr() as i64;
        (base + low, base + high)
    };
    if a.numel() == 0 || b.numel() == 0 {
        return false;
    }
    let ((a_low, a_high), (b_low, b_high)) = (range(a), range(b));
    a_low < b_high && b_low < a_high
}

// ---- rows without an expression ----

pub fn copy_(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    rule::check_copy(call)?;
    let (x, source) = (call.tensor(0)?, call.tensor(1)?);
    let view = source.view(&source.layout().expand(x.sizes())?)?;
    if may_overlap(x, &view) && !same_positions(x, &view) {
        copy::copy_into(x, &copy::contiguous(&view)?)?;
    } else {
        copy::copy_into(x, &view)?;
    }
    rets.push(Value::Tensor(x.clone()));
    Ok(())
}

pub fn fill_(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    rule::check_fill(call)?;
    let x = call.tensor(0)?;
    cast::fill(x, call.scalar(1)?)?;
    rets.push(Value::Tensor(x.clone()));
    Ok(())
}

pub fn zero_(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    rule::check_writable(x)?;
    cast::fill(x, Scalar::Bool(false))?;
    rets.push(Value::Tensor(x.clone()));
    Ok(())
}
