//! Runs fake rules: from a call to outputs without data. Capture and the Meta device both come through here, so
//! a rule means the same for both. Where the outputs go from here is their business.

use crate::check;
use crate::error::{Error, Result};
use crate::kernel::{Call, FakeOut, FakeRule};
use crate::state::KeyGuard;
use crate::value::{Arg, Rets, Value};
use std::sync::atomic::{AtomicU32, Ordering};
use tp_tensor::{Device, Dim, Layout, Tensor, TensorError, TensorSpec, layout};

/// Names for storages of fakes that no capture scope numbers.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// The outputs of `call` as its fake rule predicts them. New storages are numbered by `next_id`; views share the
/// storage of their argument, and in-place forms give the argument itself.
pub fn materialize_fakes(call: &Call<'_>, next_id: &mut dyn FnMut() -> u32) -> Result<Rets> {
    let name = call.op.name();
    match &call.def.fake {
        FakeRule::Missing => Err(missing(call)),
        FakeRule::Nothing => Ok(Rets::new()),
        FakeRule::Fn(rule) => {
            let outs = rule(call).map_err(|e| e.with_op(name))?;
            outs.into_iter().map(|out| materialize(call, out, next_id)).collect()
        }
        FakeRule::Object(rule) => {
            let mut rets = Rets::new();
            {
                // Ops inside the rule work on fakes and must not land in the captured graph.
                let _guard = KeyGuard::foreign_kernel();
                rule.call(call, &mut rets).map_err(|e| e.with_op(name))?;
            }
            check::check_outputs(call, &rets).map_err(|e| e.note("this is what the fake rule returned"))?;
            rets.into_iter().map(|value| without_data(value, next_id)).collect()
        }
    }
}

/// The Meta layer: every op runs its fake rule. A built-in that makes a tensor elsewhere (`zeros_like(x, device="cpu")`)
/// runs there instead: it reads no data of its arguments.
pub fn meta_kernel(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    if !call.def.custom
        && let Some(device) = elsewhere(call)
    {
        return crate::dispatcher::run_on(call, device, rets);
    }
    *rets = materialize_fakes(call, &mut || NEXT_ID.fetch_add(1, Ordering::Relaxed))?;
    Ok(())
}

/// The device that was asked for where it is not 'meta', and no tensor of a capture is among the arguments.
fn elsewhere(call: &Call<'_>) -> Option<Device> {
    let asked = call.args.iter().find_map(|arg| match arg {
        Arg::Device(d) if !d.is_meta() => Some(*d),
        _ => None,
    })?;
    let mut fake = false;
    call.for_each_tensor(|_, t| fake |= t.is_fake());
    (!fake).then_some(asked)
}

fn materialize(call: &Call<'_>, out: FakeOut, next_id: &mut dyn FnMut() -> u32) -> Result<Value> {
    Ok(match out {
        FakeOut::Spec(spec) => Value::Tensor(from_spec(&spec, next_id)?),
        FakeOut::List(specs) => {
            Value::Tensors(specs.iter().map(|s| from_spec(s, next_id)).collect::<Result<_>>()?)
        }
        FakeOut::View { of, layout } => Value::Tensor(call.tensor(of)?.view(&layout)?),
        FakeOut::Same { of } => Value::Tensor(call.tensor(of)?.clone()),
        FakeOut::Value(value) => value,
    })
}

fn from_spec(spec: &TensorSpec, next_id: &mut dyn FnMut() -> u32) -> Result<Tensor> {
    let (sizes, strides) = (&spec.sizes, &spec.strides);
    if spec.device.is_meta() {
        return Ok(Tensor::empty_strided(sizes, strides, spec.dtype, spec.device)?);
    }
    let known = sizes.iter().chain(strides).all(|&d| !Dim::from_raw(d).is_symbol());
    if known && !layout::is_contiguous(sizes, strides) {
        // The storage must hold whatever views of the tensor may reach.
        let layout = Layout { sizes: sizes.clone(), strides: strides.clone(), offset: 0 };
        let (_, span) = layout.extent().ok_or_else(|| TensorError::TooLarge(sizes.clone()))?;
        return Ok(Tensor::fake(&[span], &[1], spec.dtype, spec.device, next_id())?.view(&layout)?);
    }
    Ok(Tensor::fake(sizes, strides, spec.dtype, spec.device, next_id())?)
}

/// A host rule may build its answer from real tensors (`empty(shape)` names no fake): only their spec is kept.
fn without_data(value: Value, next_id: &mut dyn FnMut() -> u32) -> Result<Value> {
    let mut fake = |t: Tensor| {
        let real = !t.is_fake() && !t.device().is_meta();
        if real { from_spec(&TensorSpec::of(&t), next_id) } else { Ok(t) }
    };
    Ok(match value {
        Value::Tensor(t) => Value::Tensor(fake(t)?),
        Value::Tensors(ts) => Value::Tensors(ts.into_iter().map(fake).collect::<Result<_>>()?),
        Value::OptTensors(ts) => {
            Value::OptTensors(ts.into_iter().map(|t| t.map(&mut fake).transpose()).collect::<Result<_>>()?)
        }
        other => other,
    })
}

#[cold]
fn missing(call: &Call<'_>) -> Error {
    let name = call.op.name();
    Error::capture(
        "TP4001",
        "no fake rule: the shape and dtype of its outputs are not known without running it",
    )
    .with_op(name)
    .note("add one with @op.register_fake: a function of the same arguments that returns empty tensors")
    .note("or, for a body made only of tensorplay ops: op.register_fake(library.fake_from_body)")
}
