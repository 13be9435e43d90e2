//! Writing to an argument: checks that it may be written, and keeps source and destination apart where they
//! overlap. Version counters are the dispatcher's.

use crate::cpu::cast;
use crate::cpu::copy;
use crate::cpu::pointwise::{Elementwise, Operands, broadcast_shape};
use tp_dispatch::host::HostVisitor;
use tp_dispatch::kernel::KernelObject;
use tp_dispatch::{Arg, Call, Error, ErrorKind, Result, Rets, Value};
use tp_tensor::{DType, Tensor};

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
        check_writable(x)?;
        let compiled = self.function.compiled(call.args)?;
        check_same_kind(compiled.out, x.dtype())?;
        check_fits(&broadcast_shape(call.args.iter().filter_map(Arg::tensor))?, x)?;
        let apart = call.args[1..].iter().filter_map(Arg::tensor).all(|t| same_positions(t, x) || !may_overlap(t, x));
        // A write that fails must leave the argument as it was.
        if compiled.out == x.dtype() && apart && !compiled.can_fail {
            let operands = Operands::bind(call.args, &compiled.kernel)?;
            // SAFETY: operands overlap x at equal positions or not at all.
            return unsafe { operands.run(&compiled.kernel, x) };
        }
        copy::copy_into(x, &self.function.apply(call.args)?)
    }
}

/// An in-place write must not change the shape.
pub fn check_fits(shape: &[i64], x: &Tensor) -> Result<()> {
    if shape == x.sizes() {
        return Ok(());
    }
    let message = format!("the result has shape {shape:?}, which does not fit in place into {:?}", x.sizes());
    Err(Error::shape("TP1121", message).note("use the form without the underscore, which makes a new tensor"))
}

/// The result may lose width but never its kind: floats do not go into ints.
pub fn check_same_kind(from: DType, to: DType) -> Result<()> {
    if from.category() <= to.category() {
        return Ok(());
    }
    Err(Error::dtype("TP1221", format!("the result is {from}, which cannot be written in place to {to}"))
        .note(format!("convert first, for example x = x.astype({from})")))
}

/// Neither read-only nor the same memory twice.
pub fn check_writable(x: &Tensor) -> Result<()> {
    if x.storage().is_readonly() {
        return Err(Error::value("TP1601", "the tensor is read-only: its memory belongs to a read-only buffer")
            .note("work on a copy: x.clone()"));
    }
    if has_internal_overlap(x) {
        let message = format!(
            "several elements share one place in memory (shape {:?}, strides {:?}), so writing is ambiguous",
            x.sizes(),
            x.strides()
        );
        return Err(Error::new(ErrorKind::Value, "TP1602", message).note("work on a copy: x.clone()"));
    }
    Ok(())
}

/// True when two indices may reach one element. Exact for everything that view operations make: dimensions in
/// order of stride must each step over all that the smaller ones reach.
fn has_internal_overlap(x: &Tensor) -> bool {
    if x.is_contiguous() || x.numel() <= 1 {
        return false;
    }
    let mut dims: smallvec::SmallVec<[(i64, i64); 8]> = x
        .sizes()
        .iter()
        .zip(x.strides())
        .filter(|(size, _)| **size > 1)
        .map(|(&size, &stride)| (stride.abs(), size))
        .collect();
    dims.sort_unstable();
    let mut reach = 0;
    for (stride, size) in dims {
        if stride <= reach {
            return true;
        }
        reach += stride * (size - 1);
    }
    false
}

/// Element i of one is element i of the other.
fn same_positions(a: &Tensor, b: &Tensor) -> bool {
    a.data_ptr() == b.data_ptr() && a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides()
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
    let (x, source) = (call.tensor(0)?, call.tensor(1)?);
    check_writable(x)?;
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
    let x = call.tensor(0)?;
    check_writable(x)?;
    let value = call.scalar(1)?;
    check_same_kind(tp_tensor::promote::default_dtype(value.category()), x.dtype())?;
    cast::fill(x, value)?;
    rets.push(Value::Tensor(x.clone()));
    Ok(())
}

pub fn zero_(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    check_writable(x)?;
    cast::fill(x, tp_tensor::Scalar::Bool(false))?;
    rets.push(Value::Tensor(x.clone()));
    Ok(())
}
