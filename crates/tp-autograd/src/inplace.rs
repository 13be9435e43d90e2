//! Calls that write to an argument. The written tensor gets a new history over its old one. Where that cannot be
//! right (leaves, views of leaves, tensors whose memory others see without knowing) the call is refused before
//! anything is written; tensors that see the write without being told are refused when they are next used (`meta`).

use crate::meta;
use crate::resolve::resolve;
use crate::rule::Rule;
use crate::tape::{self, Edges, NodeRef, Recipe, Saved, Saver};
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
    for t in written(call) {
        check_shared(call, t)?;
    }
    run(call, rets, rule, edges)
}

fn run(call: &Call<'_>, rets: &mut Rets, rule: &Rule, mut edges: Edges) -> Result<()> {
    let mut saved = Saved::default();
    rule.get().save_inputs(call, &mut Saver::new(&edges, &mut saved))?;
    redispatch(call, DispatchKey::Autograd, rets)?;
    rule.get().save_outputs(call, rets, &mut Saver::new(&edges, &mut saved))?;
    let outputs = written(call).count() as u32;
    let recipe = Recipe { rule, op: Some(call.op), edges: &mut edges, saved: &mut saved, outputs, flags: 0 };
    let node = recipe.build(|_, _| {})?;
    for (nr, t) in written(call).enumerate() {
        if t.dtype().is_float() {
            meta::rebase(t, node.clone(), nr as u32);
        }
    }
    Ok(())
}

/// The tensors the call writes to.
fn written<'a>(call: &'a Call<'_>) -> impl Iterator<Item = &'a Tensor> {
    call.def.params.written.iter().filter_map(|&i| call.args.get(i as usize).and_then(Arg::tensor))
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
    let message = if node.is_leaf() {
        "a leaf that requires grad is used in an in-place operation"
    } else if meta::views_leaf(node) {
        "a view of a leaf that requires grad is used in an in-place operation"
    } else {
        return Ok(());
    };
    Err(leaf_written(message))
}

#[cold]
fn leaf_written(message: &str) -> Error {
    Error::autograd("TP3010", message)
        .note("under no_grad() the write is allowed and not recorded; or clone() the tensor first")
}

/// Gives `t`, which a user's function wrote to, the history of `from`, which that function returned in its place.
pub fn adopt(t: &Tensor, from: &Tensor) -> Result<()> {
    let Some((node, nr)) = meta::grad_fn_edge(from) else { return Ok(()) };
    if t.requires_grad() {
        match meta::grad_fn(t) {
            Some(before) => check_leaf(&before)?,
            None => return Err(leaf_written("a leaf that requires grad is used in an in-place operation")),
        }
    } else if t.storage().live_headers() != 1 {
        return Err(shared_memory());
    }
    meta::rebase(t, node, nr);
    Ok(())
}

/// Whether a write through `view` can become a new history of `base`.
pub(crate) fn check_assignable(base: &Tensor, view: &Tensor) -> Result<()> {
    if base.requires_grad() {
        check_leaf(&meta::gradient_edge(base)?.0)?;
    }
    let others = base.storage().live_headers() > 2 && !base.requires_grad();
    if !others && base.is_contiguous() && base.shares_storage(view) {
        return Ok(());
    }
    Err(shared_memory())
}

/// A tensor without a history is about to get one. Others over the same memory would see the values and not the
/// history: their gradients would silently be wrong.
fn check_shared(call: &Call<'_>, t: &Tensor) -> Result<()> {
    if t.requires_grad() || t.storage().live_headers() == 1 {
        return Ok(());
    }
    Err(shared_memory().with_op(call.op.name()))
}

#[cold]
fn shared_memory() -> Error {
    let message =
        "values that require grad would be written to memory that other tensors share without knowing";
    Error::autograd("TP3019", message)
        .note(
            "build the result with stack(), concat(), where() or index_put() instead of writing into a view",
        )
        .note("or write to the whole tensor itself, after every view of it is gone")
}
