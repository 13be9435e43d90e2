//! Runs fake rules: from a call to outputs without data. Capture and the Meta device both come through here, so
//! a rule means the same for both. Where the outputs go from here is their business.

pub mod dynamic;

use crate::check;
use crate::error::{Error, Result};
use crate::grad::GradSpec;
use crate::kernel::{Call, FakeOut, FakeOuts, FakeRule, HostArgs};
use crate::key::{DispatchKey, KeySet};
use crate::schema::{ArgType, Schema};
use crate::state::{self, KeyGuard};
use crate::value::{Arg, Rets, Value};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tp_tensor::symbols::{self, Symbols};
use tp_tensor::{Device, Layout, Tensor, TensorError, TensorSpec, layout};

/// Names for storages of fakes that no capture scope numbers.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// The rule that follows from the schema alone: an op that only writes returns nothing, one that hands back what it
/// wrote to returns those arguments.
pub fn of_schema(schema: &Schema) -> FakeRule {
    let returns = schema.returns();
    let written = |i: usize| {
        let arg = schema.aliased_arg(i).map(|k| &schema.arguments()[k]);
        *returns[i].ty() == ArgType::Tensor && arg.is_some_and(|a| a.is_write() && *a.ty() == ArgType::Tensor)
    };
    match returns.len() {
        0 if schema.is_mutable() => FakeRule::Nothing,
        0 => FakeRule::Missing,
        n if (0..n).all(written) => FakeRule::Fn(returns_arguments),
        _ => FakeRule::Missing,
    }
}

fn returns_arguments(call: &Call<'_>) -> Result<FakeOuts> {
    let schema = &call.def.schema;
    Ok((0..schema.returns().len())
        .filter_map(|i| schema.aliased_arg(i))
        .map(|of| FakeOut::Same { of })
        .collect())
}

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
            let running = dynamic::Running::new(call);
            {
                // Ops inside the rule must not land in the captured graph, and make tensors without data.
                let _guard = KeyGuard::foreign_kernel();
                let _fakes = KeyGuard::new(DispatchKey::Meta.set(), KeySet::EMPTY);
                rule.call(call, &mut rets).map_err(|e| e.with_op(name))?;
            }
            check::check_outputs(call, &rets, check::FAKE_RULE)?;
            running.finish(&rets).map_err(|e| e.with_op(name))?;
            rets.into_iter().map(|value| without_data(value, next_id)).collect()
        }
    }
}

/// What the fake rule says of a call on real tensors.
pub struct Prediction {
    /// Outputs without data.
    pub rets: Rets,
    /// What their symbolic sizes stand for.
    pub symbols: Arc<Symbols>,
}

/// Asks the fake rule about a call on real tensors. None where there is no fake rule.
pub fn predict(call: &Call<'_>) -> Result<Option<Prediction>> {
    if matches!(call.def.fake, FakeRule::Missing | FakeRule::Nothing) {
        return Ok(None);
    }
    let symbols = Symbols::new();
    let _table = symbols::enter(symbols.clone());
    let mut twins: Vec<Value> = Vec::with_capacity(call.args.len());
    for arg in call.args {
        twins.push(match *arg {
            Arg::Int(v) => Value::Int(symbols::plain(v)),
            Arg::Ints(vs) => Value::Ints(vs.iter().map(|&v| symbols::plain(v)).collect()),
            other => other.with_tensors(&mut twin)?,
        });
    }
    let args: SmallVec<[Arg<'_>; 8]> = twins.iter().map(Value::as_arg).collect();
    let call = Call { args: &args, host: HostArgs::NONE, table: None, ..*call };
    let rets = materialize_fakes(&call, &mut next_id)?;
    Ok(Some(Prediction { rets, symbols }))
}

fn next_id() -> u32 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

fn twin(t: &Tensor) -> Result<Tensor> {
    Ok(Tensor::fake(t.sizes(), t.strides(), t.dtype(), t.device(), next_id())?)
}

/// Whether this thread is inside of a host's fake rule, where every op makes tensors without data.
pub fn in_rule() -> bool {
    state::includes(DispatchKey::Meta)
}

/// The Meta layer: every op runs its fake rule. A built-in that makes a tensor elsewhere (`zeros_like(x, device="cpu")`)
/// runs there instead: it reads no data of its arguments. Inside of a fake rule nothing is run.
pub fn meta_kernel(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    if in_rule() {
        refuse_real_writes(call)?;
    } else if !call.def.custom
        && let Some(device) = elsewhere(call)
    {
        return crate::dispatcher::run_on(call, device, rets);
    }
    *rets = materialize_fakes(call, &mut next_id)?;
    Ok(())
}

/// A prediction leaves what it did not make as it was.
fn refuse_real_writes(call: &Call<'_>) -> Result<()> {
    let mut real = None;
    for &i in &call.def.params.written {
        let i = usize::from(i);
        let Some(arg) = call.args.get(i) else { continue };
        arg.for_each_tensor(|t| {
            if !t.is_fake() && !t.device().is_meta() {
                real = real.take().or(Some((i, TensorSpec::of(t))));
            }
        });
    }
    let Some((i, spec)) = real else { return Ok(()) };
    let name = call.def.params.name(i).unwrap_or("?");
    let (shape, dtype, device) = (&spec.sizes, spec.dtype, spec.device);
    let message = format!(
        "a fake rule wrote to a real tensor: argument '{name}' has data (shape {shape:?}, {dtype}, {device})"
    );
    Err(Error::capture("TP4024", message)
        .with_op(call.op.name())
        .note("a fake rule predicts shapes: it must change nothing that it did not make")
        .note("to fill a buffer, make it inside of the rule with empty, zeros, full or their _like forms"))
}

/// The device that was asked for where it is not 'meta', and no tensor of a capture is among the arguments.
fn elsewhere(call: &Call<'_>) -> Option<Device> {
    let asked = call.args.iter().find_map(|arg| match arg {
        Arg::Device(d) if !d.is_meta() => Some(*d),
        _ => None,
    })?;
    // A size that only a run knows makes a tensor without data.
    let mut fake = dynamic::has_symbols(call.args);
    call.for_each_tensor(|_, t| fake |= t.is_fake());
    (!fake).then_some(asked)
}

fn materialize(call: &Call<'_>, out: FakeOut, next_id: &mut dyn FnMut() -> u32) -> Result<Value> {
    Ok(match out {
        FakeOut::Spec(spec) => Value::Tensor(from_spec(&spec, next_id)?),
        FakeOut::List(specs) => {
            Value::Tensors(specs.iter().map(|s| from_spec(s, next_id)).collect::<Result<_>>()?)
        }
        FakeOut::View { of, layout } => {
            let x = call.tensor(of)?;
            let view = x.view(&layout)?;
            // As the kernel's: it knows what it is a view of, unless the op cuts the history off.
            if state::is_grad_enabled() && !matches!(call.def.grad, GradSpec::NotDifferentiable(_)) {
                view.link(x);
            }
            Value::Tensor(view)
        }
        FakeOut::Same { of } => Value::Tensor(call.tensor(of)?.clone()),
        FakeOut::Value(value) => value,
    })
}

fn from_spec(spec: &TensorSpec, next_id: &mut dyn FnMut() -> u32) -> Result<Tensor> {
    let (sizes, strides) = (&spec.sizes, &spec.strides);
    if spec.device.is_meta() {
        return Ok(Tensor::empty_strided(sizes, strides, spec.dtype, spec.device)?);
    }
    let known = !symbols::any(sizes) && !symbols::any(strides);
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
