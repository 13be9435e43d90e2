//! The Autograd layer's kernel: runs the call below this layer, and records a node when an input needs a gradient.

use crate::resolve::resolve;
use crate::inplace;
use crate::tape::{self, Edge, Outputs, Saver, flag};
use tp_dispatch::{Arg, Call, DispatchKey, Registry, Result, Rets, Value, redispatch};
use tp_tensor::Tensor;

/// Installs the layer. Once at start-up, before or after ops are defined.
pub fn install() {
    Registry::global().install_layer(DispatchKey::Autograd, autograd);
}

fn autograd(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    if call.def.effects.mutates {
        return inplace::autograd(call, rets);
    }
    let Some(rule) = resolve(call)? else { return redispatch(call, DispatchKey::Autograd, rets) };
    let edges = tape::collect_edges(call, rule.get().args())?;
    if edges.is_empty() {
        return redispatch(call, DispatchKey::Autograd, rets);
    }
    let mut saver = Saver::new(&edges);
    rule.get().save_inputs(call, &mut saver)?;
    redispatch(call, DispatchKey::Autograd, rets)?;
    rule.get().save_outputs(call, rets, &mut saver)?;
    let (saved, not_differentiable) = saver.close();
    let find = |e: &Edge| input_of(call, e);
    let outputs = Outputs { rets, given: &[], inputs: &find, count: count(rets), flags: view_flag(call, rets) };
    let node = tape::build(rule, Some(call.op), edges, saved, &outputs)?;
    tape::tie(node, &outputs, &not_differentiable);
    Ok(())
}

fn input_of<'a>(call: &Call<'a>, e: &Edge) -> Option<&'a Tensor> {
    match *call.args.get(e.arg())? {
        Arg::Tensor(t) => Some(t),
        Arg::Tensors(ts) => ts.get(e.index()),
        Arg::OptTensors(ts) => ts.get(e.index())?.as_ref(),
        _ => None,
    }
}

fn count(rets: &Rets) -> u32 {
    let mut n = 0;
    rets.iter().for_each(|v| v.for_each_tensor(|_| n += 1));
    n
}

/// Marks the node of a call that returned a view of its first argument.
fn view_flag(call: &Call<'_>, rets: &Rets) -> u16 {
    let (Some(Arg::Tensor(x)), Some(Value::Tensor(y))) = (call.args.first(), rets.first())
    else {
        return 0;
    };
    if y.is_view() && y.shares_storage(x) { flag::VIEW } else { 0 }
}
