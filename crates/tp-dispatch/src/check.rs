//! The checks around kernels that are not ours: what they returned fits the schema, shares no storage with an
//! input or another output, requires no gradient of its own, and what they were allowed to write could be written
//! and got a new version.

use crate::alias;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::Call;
use crate::key::DispatchKey;
use crate::schema::ArgType;
use crate::value::{Arg, Rets, Value};
use std::sync::OnceLock;
use tp_tensor::{Tensor, keybits, layout};

/// Runs a kernel that writes to arguments, and moves their versions. A kernel that is not ours may have written
/// before it failed, and does not look at what it is about to write to.
#[inline]
pub(crate) fn writing(call: &Call<'_>, run: impl FnOnce() -> Result<()>) -> Result<()> {
    if call.def.custom {
        check_written(call)?;
    }
    if is_awaited(call) {
        settle_readers(call)?;
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

static READERS: OnceLock<fn(&Tensor) -> Result<()>> = OnceLock::new();

/// Says how the calls that were put off and read a tensor get to run. Called once, at start-up.
pub fn set_readers(settle: fn(&Tensor) -> Result<()>) -> bool {
    READERS.set(settle).is_ok()
}

/// Whether a call that was put off may be going to read what this one writes to.
#[inline]
fn is_awaited(call: &Call<'_>) -> bool {
    call.def.params.written.iter().any(|&i| match call.args.get(usize::from(i)) {
        Some(Arg::Tensor(t)) => t.storage().is_awaited(),
        Some(Arg::None) | None => false,
        Some(_) => true,
    })
}

/// Calls that were put off, by whatever thread, read what was there when they were made.
#[cold]
fn settle_readers(call: &Call<'_>) -> Result<()> {
    let mut done = Ok(());
    for arg in call.def.params.written.iter().filter_map(|&i| call.args.get(usize::from(i))) {
        arg.for_each_tensor(|t| {
            if let (true, true, Some(settle)) = (done.is_ok(), t.storage().is_awaited(), READERS.get()) {
                done = settle(t);
            }
        });
    }
    done
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
    if !x.is_contiguous() && layout::overlaps(x.sizes(), x.strides()) {
        let message = format!(
            "several elements share one place in memory (shape {:?}, strides {:?}), so writing is ambiguous",
            x.sizes(),
            x.strides()
        );
        return Err(Error::value("TP1602", message).note("work on a copy: x.clone()"));
    }
    Ok(())
}

/// Bumps the version of every tensor the schema says the op writes to.
fn bump_mutated(call: &Call<'_>) {
    for &i in &call.def.params.written {
        if let Some(arg) = call.args.get(i as usize) {
            arg.for_each_tensor(|t| t.storage().bump_version());
        }
    }
}

/// What messages call a fake rule.
pub(crate) const FAKE_RULE: &str = "the fake rule";

/// Count, types and aliasing of what a foreign kernel returned; `who` is "the kernel" or `FAKE_RULE`.
#[inline]
pub fn check_outputs(call: &Call<'_>, rets: &Rets, who: &'static str) -> Result<()> {
    let declared = call.def.schema.returns();
    if let ([Value::Tensor(out)], [ret]) = (rets.as_slice(), declared)
        && *ret.ty() == ArgType::Tensor
        && ret.alias().is_none()
        && is_new(call, out)
    {
        return Ok(());
    }
    check_all(call, rets, who)
}

/// As `check_outputs`, for what a kernel returned: values, where it ran on values.
#[inline]
pub fn check_results(call: &Call<'_>, rets: &Rets) -> Result<()> {
    check_outputs(call, rets, "the kernel")?;
    let mut full = true;
    rets.iter().for_each(|value| value.for_each_tensor(|t| full &= has_data(t)));
    if full { Ok(()) } else { check_data(call, rets) }
}

/// Whether `out` surely is what a kernel may return that declares one new tensor.
#[inline]
pub fn is_result(call: &Call<'_>, out: &Tensor) -> bool {
    // One comparison: neither recorded nor without data.
    out.keys() & !(keybits::CPU | keybits::CUDA) == 0 && is_new(call, out)
}

#[inline]
fn has_data(t: &Tensor) -> bool {
    t.keys() & (keybits::META | keybits::CAPTURE | keybits::VMAP) == 0
}

/// Only a kernel for the device 'meta' may return what has no data.
#[cold]
fn check_data(call: &Call<'_>, rets: &Rets) -> Result<()> {
    if call.keys.contains(DispatchKey::Meta) {
        return Ok(());
    }
    for (i, value) in rets.iter().enumerate() {
        let mut empty = None;
        value.for_each_tensor(|t| empty = empty.or((!has_data(t)).then_some(t)));
        let Some(t) = empty else { continue };
        let (what, way) = match (t.is_batched(), t.is_fake()) {
            (true, _) => {
                ("one that stands for the samples of a vmap", "a kernel must keep no tensor of a vmap")
            }
            (_, true) => ("one that a capture made", "a kernel must keep no tensor of a capture"),
            _ => ("one on 'meta'", "make the output on the device of the arguments"),
        };
        let message = format!("output {i} is a tensor without data, {what}; the kernel ran on values");
        return Err(Error::contract("TP3216", message).with_op(call.op.name()).note(way));
    }
    Ok(())
}

/// Whether `out` surely is what a call may return that declares one new tensor.
#[inline]
fn is_new(call: &Call<'_>, out: &Tensor) -> bool {
    !out.requires_grad() && call.args.iter().all(|arg| is_apart(arg, out))
}

#[inline(never)]
fn check_all(call: &Call<'_>, rets: &Rets, who: &str) -> Result<()> {
    let declared = call.def.schema.returns();
    if rets.len() != declared.len() {
        return Err(wrong_count(call, rets.len(), declared.len(), who));
    }
    for (i, (value, ret)) in rets.iter().zip(declared).enumerate() {
        if !fits(value, ret.ty()) {
            return Err(wrong_type(call, i, ret.ty(), value, who));
        }
    }
    alias::check(call, rets, who)?;
    for (i, (value, ret)) in rets.iter().zip(declared).enumerate() {
        if ret.alias().is_none() {
            check_unrecorded(call, i, value)?;
        }
    }
    Ok(())
}

/// Whether an argument surely shares no memory with `out`.
#[inline]
fn is_apart(arg: &Arg<'_>, out: &Tensor) -> bool {
    match arg {
        Arg::Tensor(t) => alias::are_apart(t, out),
        Arg::Tensors(ts) => ts.iter().all(|t| alias::are_apart(t, out)),
        Arg::OptTensors(ts) => ts.iter().flatten().all(|t| alias::are_apart(t, out)),
        Arg::Host(h) => h.tensors().iter().all(|t| alias::are_apart(t, out)),
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
        (Value::Tensors(ts), T::Tuple(items)) => {
            ts.len() == items.len() && items.iter().all(|t| *t == T::Tensor)
        }
        (Value::Host(_), T::Dict(_) | T::Tuple(_) | T::List(..) | T::Union(_) | T::Complex) => true,
        (v, T::Union(members)) => members.iter().any(|ty| fits(v, ty)),
        (Value::OptTensors(_), T::List(e, _)) => matches!(&**e, T::Optional(i) if **i == T::Tensor),
        (Value::Ints(_), T::List(e, _)) => matches!(**e, T::Int | T::SymInt),
        (Value::Floats(_), T::List(e, _)) => **e == T::Float,
        (Value::Bools(_), T::List(e, _)) => **e == T::Bool,
        (Value::DType(_), T::ScalarType) | (Value::Device(_), T::Device) | (_, T::Any) => true,
        _ => false,
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
fn wrong_count(call: &Call<'_>, got: usize, want: usize, who: &str) -> Error {
    let values = if got == 1 { "value" } else { "values" };
    Error::contract("TP3201", format!("{who} returned {got} {values}, the schema declares {want}"))
        .with_op(call.op.name())
        .note(format!("schema: {}", call.def.schema))
}

#[cold]
fn wrong_type(call: &Call<'_>, i: usize, want: &ArgType, got: &Value, who: &str) -> Error {
    Error::contract("TP3202", format!("output {i} must be {want}, {who} returned {}", got.type_name()))
        .with_op(call.op.name())
        .note(format!("schema: {}", call.def.schema))
}
