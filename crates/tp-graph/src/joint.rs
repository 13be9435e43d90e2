//! Capturing a training region: the function ran over fakes with the tape on; now the tape's own backward runs over
//! them too, under the same capture, so that the backward graph comes from the rules that eager code uses.

use crate::capture::{CaptureScope, watch};
use crate::entity::ValueId;
use crate::guard::Place;
use crate::ir::{Def, InputKind, Operand};
use tp_autograd::meta;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Error, Registry, Result, Rets, Value, dispatcher, state};
use tp_tensor::{Tensor, TensorSpec};

/// What the backward part added to a capture.
pub(crate) struct Joint {
    /// Nodes recorded before the backward began.
    pub boundary: usize,
    /// Positions of the outputs that get a gradient, one per `Gradient` input.
    pub outputs: Vec<usize>,
    /// Inputs that may get a gradient, and that gradient, if there is one.
    pub gradients: Vec<(Place, Option<Operand>)>,
}

/// An input that requires a gradient, and every tensor that stood for it while the function ran: its fake, and the
/// caller's own tensor where the function reached that too.
struct Wanted {
    place: Place,
    tensors: Vec<Tensor>,
}

/// Whether the outputs of a capture have a history to go back through.
pub(crate) fn is_training(outputs: &[Value]) -> bool {
    let requires_grad = |v: &Value| v.tensor().is_some_and(Tensor::requires_grad);
    state::is_grad_enabled() && outputs.iter().any(requires_grad)
}

/// Runs the backward of `outputs` (as values of the capture: `operands`) to every input that requires a gradient.
pub(crate) fn run(
    scope: &CaptureScope,
    args: &[Arg<'_>],
    fakes: &[Value],
    outputs: &[Value],
    operands: &[Operand],
) -> Result<Joint> {
    let wanted = wanted(scope, args, fakes);
    let boundary = scope.recorder().builder().graph().nodes.len();
    let mut joint = Joint { boundary, outputs: Vec::new(), gradients: Vec::new() };
    let (mut roots, mut tangents): (Vec<Tensor>, Vec<Option<Tensor>>) = (Vec::new(), Vec::new());
    let mut seen: Vec<ValueId> = Vec::new();
    for (i, (value, operand)) in outputs.iter().zip(operands).enumerate() {
        let (Value::Tensor(t), Operand::Value(v)) = (value, operand) else { continue };
        let is_input = matches!(scope.recorder().builder().graph().values[*v].def, Def::Input(_));
        // Of the inputs that hold what the function made of data a run returns copies.
        let handed_through = is_input && watch::behind(t).is_some();
        if !t.requires_grad() || handed_through || seen.contains(v) {
            continue;
        }
        seen.push(*v);
        let spec = TensorSpec::contiguous(t.sizes(), t.dtype(), t.device());
        let name = format!("grad_out{i}");
        tangents.push(Some(scope.recorder().fresh_input(&spec, &name, InputKind::Gradient)?));
        roots.push(t.clone());
        joint.outputs.push(i);
    }
    let flat: Vec<Tensor> = wanted.iter().flat_map(|w| w.tensors.iter().cloned()).collect();
    if roots.is_empty() || flat.is_empty() {
        joint.gradients = wanted.iter().map(|w| (w.place, None)).collect();
        return Ok(joint);
    }
    let mut found = tp_autograd::grad_up_to_data(&roots, &flat, &tangents)?.into_iter();
    for w in &wanted {
        let mut gradient: Option<Tensor> = None;
        for part in found.by_ref().take(w.tensors.len()).flatten() {
            gradient = Some(match gradient {
                None => part,
                Some(sum) => add(&sum, &part)?,
            });
        }
        let operand = gradient.map(|g| scope.recorder().operand_of(&g)).transpose()?;
        joint.gradients.push((w.place, operand.map(Operand::Value)));
    }
    Ok(joint)
}

fn wanted(scope: &CaptureScope, args: &[Arg<'_>], fakes: &[Value]) -> Vec<Wanted> {
    let mut out = Vec::new();
    for (i, (arg, fake)) in (0u32..).zip(args.iter().zip(fakes)) {
        if let (Arg::Tensor(real), Value::Tensor(fake)) = (arg, fake)
            && real.requires_grad()
            && !out.iter().any(|w: &Wanted| w.tensors.iter().any(|t| t.same(fake)))
        {
            out.push(Wanted { place: Place::Argument(i), tensors: vec![fake.clone(), (*real).clone()] });
        }
    }
    for (i, real) in (0u32..).zip(scope.recorder().lifted()) {
        if real.requires_grad() {
            out.push(Wanted { place: Place::Lifted(i), tensors: vec![real.clone()] });
        }
    }
    out
}

/// An input that did not require a gradient and was written to by something that does would need its history changed
/// behind the caller's back.
pub(crate) fn check_written(scope: &CaptureScope, args: &[Arg<'_>], fakes: &[Value]) -> Result<()> {
    let refuse = |what: String| {
        Err(Error::capture("TP4007", format!("{what} was written to by a value that requires a gradient"))
            .note("return the new value instead, or write to it outside of the compiled function"))
    };
    for (i, (arg, fake)) in args.iter().zip(fakes).enumerate() {
        if let (Arg::Tensor(real), Value::Tensor(fake)) = (arg, fake)
            && real.requires_grad() != fake.requires_grad()
        {
            return refuse(format!("tensor argument {i}"));
        }
    }
    match scope.recorder().changed_lifted() {
        Some(i) => refuse(format!("a tensor that the function reaches on its own (lifted{i})")),
        None => Ok(()),
    }
}

/// An output whose gradient state the function set: a run's tensor would come without it.
pub(crate) fn check_outputs(outputs: &[Value]) -> Result<()> {
    for (i, t) in outputs.iter().enumerate().filter_map(|(i, v)| Some((i, v.tensor()?))) {
        if watch::behind(t).is_some() {
            continue;
        }
        let what = if t.requires_grad() && meta::is_leaf(t) {
            "requires_grad set by the function"
        } else if meta::grad(t).is_some() || meta::retains_grad(t) {
            "a gradient kept by the function"
        } else {
            continue;
        };
        let e =
            Error::capture("TP4031", format!("output {i} is returned with {what}, which no run would do"));
        return Err(e.note("set it on the tensor that the call returns, or return the gradient itself"));
    }
    Ok(())
}

fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let op = Registry::global().lookup("tp::add")?;
    let mut rets = Rets::new();
    dispatcher::call(op, &[Arg::Tensor(a), Arg::Tensor(b)], HostArgs::NONE, &mut rets)?;
    let sum = rets.pop().and_then(Value::into_tensor);
    sum.ok_or_else(|| Error::internal("TP9105", "a sum of gradients is no tensor"))
}
