//! The checks around kernels that are not ours: what they returned fits the schema, shares no storage with an
//! input or another output, requires no gradient of its own, and what they were allowed to write could be written
//! and got a new version.

use crate::error::{Error, ErrorKind, Result};
use crate::kernel::Call;
use crate::schema::ArgType;
use crate::value::{Arg, Rets, Value};
use smallvec::SmallVec;
use tp_tensor::Tensor;

/// Runs a kernel that writes to arguments, and moves their versions. A kernel that is not ours may have written
/// before it failed, and does not look at what it is about to write to.
#[inline]
pub(crate) fn writing(call: &Call<'_>, run: impl FnOnce() -> Result<()>) -> Result<()> {
    if call.def.custom {
        check_written(call)?;
    }
    let outcome = run();
    let ran = match &outcome {
        Ok(()) => true,
        Err(e) => call.def.custom && e.kind() != ErrorKind::NoKernel,
    };
    if ran {
        bump_mutated(call);
    }
    outcome
}

#[cold]
fn check_written(call: &Call<'_>) -> Result<()> {
    let mut found = Ok(());
    for &i in &call.def.params.written {
        let Some(arg) = call.args.get(i as usize) else { continue };
        arg.for_each_tensor(|t| {
            if found.is_ok() {
                found = check_writable(t).map_err(|e| {
                    let name = call.def.params.name(i as usize).unwrap_or("?");
                    e.with_op(call.op.name()).note(format!("the op writes to its argument '{name}'"))
                });
            }
        });
    }
    found
}

/// Neither read-only nor the same memory twice.
pub fn check_writable(x: &Tensor) -> Result<()> {
    if x.storage().is_readonly() {
        return Err(Error::value(
            "TP1601",
            "the tensor is read-only: its memory belongs to a read-only buffer",
        )
        .note("work on a copy: x.clone()"));
    }
    if has_internal_overlap(x) {
        let message = format!(
            "several elements share one place in memory (shape {:?}, strides {:?}), so writing is ambiguous",
            x.sizes(),
            x.strides()
        );
        return Err(Error::value("TP1602", message).note("work on a copy: x.clone()"));
    }
    Ok(())
}

/// True when two indices may reach one element. Exact for everything that view operations make: dimensions in
/// order of stride must each step over all that the smaller ones reach.
fn has_internal_overlap(x: &Tensor) -> bool {
    if x.is_contiguous() || x.numel() <= 1 {
        return false;
    }
    let mut dims: SmallVec<[(i64, i64); 8]> = x
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

/// Bumps the version of every tensor the schema says the op writes to.
fn bump_mutated(call: &Call<'_>) {
    for &i in &call.def.params.written {
        if let Some(arg) = call.args.get(i as usize) {
            arg.for_each_tensor(|t| t.storage().bump_version());
        }
    }
}

/// Count, types and aliasing of what a foreign kernel returned.
#[inline]
pub fn check_outputs(call: &Call<'_>, rets: &Rets) -> Result<()> {
    let declared = call.def.schema.returns();
    if let ([Value::Tensor(out)], [ret]) = (rets.as_slice(), declared)
        && *ret.ty() == ArgType::Tensor
        && ret.alias().is_none()
        && !out.requires_grad()
        && call.args.iter().all(|arg| is_apart(arg, out))
    {
        return Ok(());
    }
    if rets.len() != declared.len() {
        return Err(wrong_count(call, rets.len(), declared.len()));
    }
    for (i, (value, ret)) in rets.iter().zip(declared).enumerate() {
        let fits = match (value, ret.ty()) {
            (Value::Tensor(_), ArgType::Tensor) => true,
            (value, ty) => fits(value, ty),
        };
        if !fits {
            return Err(wrong_type(call, i, ret.ty(), value));
        }
        if ret.alias().is_none() {
            check_alias(call, i, value, rets)?;
            check_unrecorded(call, i, value)?;
        }
    }
    Ok(())
}

/// Whether an argument surely shares no memory with `out`; lists are looked at by `check_alias`.
#[inline]
fn is_apart(arg: &Arg<'_>, out: &Tensor) -> bool {
    match arg {
        Arg::Tensor(t) => !t.shares_storage(out),
        Arg::Tensors(_) | Arg::OptTensors(_) => false,
        _ => true,
    }
}

fn fits(value: &Value, ty: &ArgType) -> bool {
    use ArgType as T;
    match (value, ty) {
        (Value::None, T::NoneType | T::Any) => true,
        (Value::None, T::Optional(_)) => true,
        (v, T::Optional(inner)) => fits(v, inner),
        (Value::Tensor(_), T::Tensor | T::Any) => true,
        (Value::Int(_), T::Int | T::SymInt | T::Scalar | T::Number | T::Any) => true,
        (Value::Bool(_), T::Bool | T::SymBool | T::Scalar | T::Number | T::Any) => true,
        (Value::Float(_), T::Float | T::Scalar | T::Number | T::Any) => true,
        (Value::Scalar(_), T::Scalar | T::Number | T::Any) => true,
        (Value::Str(_), T::Str | T::Any) => true,
        (Value::Tensors(_), T::List(e, _)) => **e == T::Tensor,
        (Value::OptTensors(_), T::List(e, _)) => matches!(&**e, T::Optional(i) if **i == T::Tensor),
        (Value::Ints(_), T::List(e, _)) => matches!(**e, T::Int | T::SymInt),
        (Value::Floats(_), T::List(e, _)) => **e == T::Float,
        (Value::Bools(_), T::List(e, _)) => **e == T::Bool,
        (Value::DType(_), T::ScalarType) | (Value::Device(_), T::Device) | (_, T::Any) => true,
        _ => false,
    }
}

/// Output `i` must not share storage with an argument or with another output.
#[inline]
fn check_alias(call: &Call<'_>, i: usize, value: &Value, rets: &Rets) -> Result<()> {
    let mut clash: Option<String> = None;
    value.for_each_tensor(|out| {
        if clash.is_some() {
            return;
        }
        call.for_each_tensor(|k, t| {
            if clash.is_none() && out.shares_storage(t) {
                clash = Some(argument_clash(call, k, out, t));
            }
        });
        for (j, other) in rets.iter().enumerate().take(i + 1) {
            other.for_each_tensor(|o| {
                if clash.is_none() && !std::ptr::eq(o, out) && out.shares_storage(o) {
                    clash = Some(format!("shares memory with output {j}"));
                }
            });
        }
    });
    match clash {
        None => Ok(()),
        Some(clash) => Err(alias_error(call, i, &clash)),
    }
}

/// A new tensor has no history but the one that the op's own rule is about to give it.
fn check_unrecorded(call: &Call<'_>, i: usize, value: &Value) -> Result<()> {
    let mut recorded = false;
    value.for_each_tensor(|out| recorded |= out.requires_grad());
    if !recorded {
        return Ok(());
    }
    let message = format!("output {i} requires grad already, but the schema declares a new tensor");
    Err(Error::contract("TP3211", message)
        .with_op(call.op.name())
        .note("a kernel returns plain values: the op's backward rule is what gives them a gradient")
        .note("return t.detach().clone(), and never the same tensor twice; tensors that need a gradient are arguments"))
}

#[cold]
fn argument_clash(call: &Call<'_>, k: usize, out: &Tensor, t: &Tensor) -> String {
    let name = call.def.params.name(k).unwrap_or("?");
    let how = if out.same(t) { "is" } else { "shares memory with" };
    format!("{how} argument '{name}'")
}

#[cold]
fn alias_error(call: &Call<'_>, i: usize, clash: &str) -> Error {
    Error::contract("TP3203", format!("output {i} {clash}, but the schema declares a new tensor"))
        .with_op(call.op.name())
        .note("return a copy (clone()) instead, or write to the argument, declare it in mutates_args and return nothing")
        .note("outputs may be fed to other ops freely: the rule is about what this kernel returns")
}

#[cold]
fn wrong_count(call: &Call<'_>, got: usize, want: usize) -> Error {
    let values = if got == 1 { "value" } else { "values" };
    Error::contract("TP3201", format!("the kernel returned {got} {values}, the schema declares {want}"))
        .with_op(call.op.name())
        .note(format!("schema: {}", call.def.schema))
}

#[cold]
fn wrong_type(call: &Call<'_>, i: usize, want: &ArgType, got: &Value) -> Error {
    Error::contract("TP3202", format!("output {i} must be {want}, the kernel returned {}", got.type_name()))
        .with_op(call.op.name())
        .note(format!("schema: {}", call.def.schema))
}
