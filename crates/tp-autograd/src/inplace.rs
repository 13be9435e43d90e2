//! Calls that write to an argument. The written tensor gets a new history over its old one, and so does the base of a
//! view (`view`). Where that cannot be right (leaves, views of leaves, tensors whose memory others see without knowing)
//! the call is refused before anything is written; tensors that see the write without being told are refused when they
//! are next used (`meta`).

use crate::meta;
use crate::resolve::resolve;
use crate::rule::Rule;
use crate::tape::{self, Edges, NodeRef, Recipe, Saved, Saver};
use crate::view::{self, Through};
use smallvec::SmallVec;
use tp_dispatch::{Arg, Call, DispatchKey, Error, Result, Rets, redispatch};
use tp_tensor::Tensor;

pub(crate) fn autograd(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    if call.def.custom {
        return refuse_custom(call);
    }
    let rule = resolve(call)?;
    for t in written(call) {
        check_written(call, t, rule.is_some())?;
    }
    let Some(rule) = rule else { return redispatch(call, DispatchKey::Autograd, rets) };
    let mut edges = Edges::new();
    tape::collect_edges(call, rule.args, &mut edges)?;
    if edges.is_empty() || written(call).all(|t| !t.dtype().is_float()) {
        return redispatch(call, DispatchKey::Autograd, rets);
    }
    let mut through: SmallVec<[Option<Through>; 1]> = SmallVec::new();
    for (i, t) in positions(call) {
        let named = |e: Error| e.with_op(call.op.name());
        let begun = view::base_to_tell(t).map_err(named)?.map(|base| Through::begin(base, t));
        let mut begun = begun.transpose().map_err(named)?;
        if let Some(write) = &mut begun {
            write.redirect(i, rule, &mut edges)?;
        }
        through.push(begun);
    }
    run(call, rets, rule, edges, through)
}

fn run(
    call: &Call<'_>,
    rets: &mut Rets,
    rule: &Rule,
    mut edges: Edges,
    through: SmallVec<[Option<Through>; 1]>,
) -> Result<()> {
    let mut saved = Saved::default();
    if tape::hooks_active() {
        tape::tell_hooks(call)?;
    }
    rule.get().save_inputs(call, &mut Saver::new(&edges, &mut saved))?;
    redispatch(call, DispatchKey::Autograd, rets)?;
    rule.get().save_outputs(call, rets, &mut Saver::new(&edges, &mut saved))?;
    let outputs = written(call).count() as u32;
    let recipe = Recipe { rule, op: Some(call.op), edges: &mut edges, saved: &mut saved, outputs, flags: 0 };
    let node = recipe.build(|_, _| {})?;
    for (nr, (t, through)) in (0..).zip(written(call).zip(through)) {
        if !t.dtype().is_float() {
            continue;
        }
        // A view that was overwritten by what has no history follows its base.
        if through.is_none() || !node.edges().is_empty() {
            meta::rebase(t, node.clone(), nr);
        }
        through.map_or(Ok(()), |write| write.end(t, &node, nr))?;
    }
    Ok(())
}

/// The tensors the call writes to, and which arguments they are.
fn positions<'a>(call: &'a Call<'_>) -> impl Iterator<Item = (usize, &'a Tensor)> {
    let at = |&i: &u8| Some((usize::from(i), call.args.get(usize::from(i)).and_then(Arg::tensor)?));
    call.def.params.written.iter().filter_map(at)
}

/// The tensors the call writes to.
fn written<'a>(call: &'a Call<'_>) -> impl Iterator<Item = &'a Tensor> {
    positions(call).map(|(_, t)| t)
}

/// A user's op that writes has no formula; letting it run would give gradients of the old values.
#[cold]
fn refuse_custom(call: &Call<'_>) -> Result<()> {
    let mut culprit = None;
    call.for_each_tensor(|i, t| {
        if t.requires_grad() && culprit.is_none() {
            culprit = Some((i, meta::is_leaf(t)));
        }
    });
    let Some((i, leaf)) = culprit else {
        return Err(Error::internal("TP9023", "the Autograd layer was entered without a gradient"));
    };
    let name = call.def.params.name(i).unwrap_or("?");
    let message = if leaf && call.def.params.written.contains(&(i as u8)) {
        format!("argument '{name}' is a leaf that requires grad, and it is used in an in-place operation")
    } else {
        format!(
            "argument '{name}' requires grad, but an operator that writes to its arguments has no gradient"
        )
    };
    Err(Error::autograd("TP3018", message)
        .with_op(call.op.name())
        .note("call it under no_grad(), or with detach()ed tensors")
        .note("for a gradient, write an operator that returns new tensors and register_autograd for it"))
}

fn check_written(call: &Call<'_>, t: &Tensor, has_rule: bool) -> Result<()> {
    if !t.requires_grad() {
        return Ok(());
    }
    let (node, _) = meta::gradient_edge(t)?;
    check_leaf(&node).map_err(|e| e.with_op(call.op.name()))?;
    if has_rule {
        return Ok(());
    }
    Err(Error::autograd("TP3017", "writes to a tensor that requires grad, and has no gradient")
        .with_op(call.op.name())
        .note("detach() the tensor first, or use an operation that returns a new one"))
}

/// A leaf's value must not change under its gradient.
fn check_leaf(node: &NodeRef) -> Result<()> {
    if meta::viewed_leaf(node).is_some_and(|leaf| leaf.stands_for_computed()) {
        return Err(outside_written());
    }
    let message = if node.is_leaf() {
        "a leaf that requires grad is used in an in-place operation"
    } else if meta::views_leaf(node) {
        "a view of a leaf that requires grad is used in an in-place operation"
    } else {
        return Ok(());
    };
    Err(leaf_written(message))
}

/// Its history would have to change behind the caller's back.
#[cold]
fn outside_written() -> Error {
    let message = "writes to a tensor that requires grad and was computed outside of the captured function";
    let e = Error::capture("TP4034", message);
    let e = match tp_dispatch::host::location() {
        Some(at) => e.note(format!("captured at {at}")),
        None => e,
    };
    e.note("return the new value, clone() the tensor first, or write to it outside of the function")
}

#[cold]
fn leaf_written(message: &str) -> Error {
    Error::autograd("TP3010", message)
        .note("under no_grad() the write is allowed and not recorded; or clone() the tensor first")
}

/// An input that a user's function wrote to and gives back, between the look at the old histories and the new one.
pub struct Rewritten {
    tensor: Tensor,
    nr: u32,
    through: Option<Through>,
}

impl Rewritten {
    /// `t` was written to, and is output `nr` of its call. An error where no history can say so.
    pub fn new(t: &Tensor, nr: usize) -> Result<Rewritten> {
        if t.requires_grad() {
            match meta::grad_fn(t) {
                Some(before) => check_leaf(&before)?,
                None => {
                    return Err(leaf_written("a leaf that requires grad is used in an in-place operation"));
                }
            }
        }
        let through = view::base_to_tell(t)?.map(|base| Through::late(base, t)).transpose()?;
        Ok(Rewritten { tensor: t.clone(), nr: nr as u32, through })
    }

    pub(crate) fn is_of(&self, t: &Tensor) -> bool {
        self.tensor.same(t)
    }

    pub(crate) fn end(self, node: &NodeRef) -> Result<()> {
        meta::rebase(&self.tensor, node.clone(), self.nr);
        self.through.map_or(Ok(()), |write| write.end(&self.tensor, node, self.nr))
    }
}
