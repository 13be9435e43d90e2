//! The Autograd layer's kernel: runs the call below this layer, and records a node when an input needs a gradient.

use crate::discard::is_spent;
use crate::resolve::{self, resolve};
use crate::rule::Short;
use crate::tape::{self, Edge, Edges, Recipe, Saved, Saver, single};
use crate::{anomaly, inplace, view};
use std::mem::ManuallyDrop;
use tp_dispatch::{Arg, Call, DispatchKey, Registry, Result, Rets, Value, redispatch, state};
use tp_tensor::Tensor;

/// Installs the layer. Once at start-up, before or after ops are defined.
pub fn install() {
    Registry::global().install_layer_with(DispatchKey::Autograd, autograd, autograd_one);
}

fn autograd(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    if call.def.effects.mutates {
        return inplace::autograd(call, rets);
    }
    let Some(rule) = resolve(call)? else { return redispatch(call, DispatchKey::Autograd, rets) };
    let mut draft = Scratch::default();
    let Scratch { edges, saved } = &mut draft;
    tape::collect_edges(call, rule.args, edges)?;
    if edges.is_empty() {
        return redispatch(call, DispatchKey::Autograd, rets);
    }
    if tape::hooks_active() {
        tape::tell_hooks(call)?;
    }
    rule.get().save_inputs(call, &mut Saver::new(edges, saved))?;
    redispatch(call, DispatchKey::Autograd, rets)?;
    let (outputs, flags) = (count(rets), view_flag(call, rets));
    if outputs == 0 {
        // No tensor came out: there is nothing that could be differentiated.
        return Ok(());
    }
    rule.get().save_outputs(call, rets, &mut Saver::new(edges, saved))?;
    let recipe = Recipe { rule, op: Some(call.op), edges, saved, outputs, flags };
    let node = recipe.build(|edges, keep| {
        edges.iter().filter_map(|e| input_of(call, e)).for_each(&mut *keep);
        rets.iter().for_each(|v| v.for_each_tensor(&mut *keep));
    })?;
    tape::tie(node, rets, saved);
    Ok(())
}

/// A call that returns one tensor and is recorded the short way. Not while anything wants to see more of it: anomaly
/// mode, hooks on saved tensors, a foreign kernel around it, for which some tensors have no history.
fn autograd_one(call: &Call<'_>) -> Option<Result<Tensor>> {
    if anomaly::is_on() || tape::hooks_active() || state::is_in_foreign_kernel() {
        return None;
    }
    let known = resolve::known(call);
    if let Some(rule) = known.and_then(|k| k.expression) {
        return rule.record(call);
    }
    let rule = resolve::resolve_with(known, call).ok()??;
    match rule.short {
        Short::Kinds => single::record(call, rule, true),
        Short::If(of) if of(call) => single::record(call, rule, false),
        _ => None,
    }
}

/// What a node is made of, until it is. Emptied by then, as a rule, and then there is nothing to drop.
#[derive(Default)]
struct Scratch {
    edges: ManuallyDrop<Edges>,
    saved: ManuallyDrop<Saved>,
}

impl Drop for Scratch {
    #[inline(always)]
    fn drop(&mut self) {
        if !is_spent(&self.edges) || !self.saved.is_spent() {
            // SAFETY: dropped once, here.
            unsafe {
                ManuallyDrop::drop(&mut self.edges);
                ManuallyDrop::drop(&mut self.saved);
            }
        }
    }
}

fn input_of<'a>(call: &Call<'a>, e: &Edge) -> Option<&'a Tensor> {
    match *call.args.get(e.arg())? {
        Arg::Tensor(t) => Some(t),
        Arg::Tensors(ts) => ts.get(e.index()),
        Arg::OptTensors(ts) => ts.get(e.index())?.as_ref(),
        _ => None,
    }
}

#[inline]
fn count(rets: &Rets) -> u32 {
    if let [Value::Tensor(_)] = rets.as_slice() {
        return 1;
    }
    let mut n = 0;
    rets.iter().for_each(|v| v.for_each_tensor(|_| n += 1));
    n
}

/// Marks the node of a call that returned a view of its first argument.
#[inline]
fn view_flag(call: &Call<'_>, rets: &Rets) -> u16 {
    match rets.first() {
        Some(Value::Tensor(y)) if y.is_view() => view::made(call, y),
        _ => 0,
    }
}
