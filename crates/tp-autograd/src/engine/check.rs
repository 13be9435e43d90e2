//! Gradients that somebody gave us, held against the tensor they belong to. A shape that broadcasting could have
//! made is summed back; another dtype is cast; everything else is an error that names op and argument. And gradients
//! that somebody was given, which may be the gradients of others too: nobody writes to them.

use crate::ops;
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::{Node, NodeRef};
use tp_dispatch::{Error, Result, debug, state};
use tp_tensor::layout::same_dims;
use tp_tensor::symbols::{self, Relation};
use tp_tensor::{DType, Device, Dim, Tensor};

/// A gradient for a tensor of `sizes` and `dtype`.
#[inline]
fn fit(grad: Tensor, sizes: &[i64], dtype: DType, who: impl FnOnce() -> Whose) -> Result<Tensor> {
    if grad.dtype() == dtype && same_dims(grad.sizes(), sizes) {
        return Ok(grad);
    }
    fit_slow(grad, sizes, dtype, who())
}

/// A gradient in place of one that is like `like`: of its shape and on its device, for nobody broadcast anything.
#[inline]
pub(super) fn replacing(grad: Tensor, like: &Tensor, who: impl FnOnce() -> Whose) -> Result<Tensor> {
    if !same_dims(grad.sizes(), like.sizes()) && !equal(grad.sizes(), like.sizes()) {
        return Err(wrong_shape(&grad, like.sizes(), &who()));
    }
    if grad.device() != like.device() {
        return Err(wrong_device(&grad, like.device(), &who()));
    }
    if grad.dtype() == like.dtype() { Ok(grad) } else { ops::astype(grad, like.dtype()) }
}

/// Whose gradient it is, for messages.
pub(super) struct Whose {
    pub op: Option<String>,
    pub what: String,
}

impl Whose {
    fn error(&self, code: &'static str, message: String) -> Error {
        let e = Error::autograd(code, message);
        if let Some(op) = &self.op { e.with_op(op) } else { e }
    }
}

#[cold]
fn fit_slow(grad: Tensor, sizes: &[i64], dtype: DType, whose: Whose) -> Result<Tensor> {
    if !reducible(grad.sizes(), sizes) {
        return Err(wrong_shape(&grad, sizes, &whose));
    }
    // First the dtype: a sum of small integers or halves would lose what the wider one keeps.
    ops::sum_to_size(ops::astype(grad, dtype)?, sizes)
}

#[cold]
fn wrong_shape(grad: &Tensor, sizes: &[i64], whose: &Whose) -> Error {
    let (got, want) = (Dim::slice(grad.sizes()), Dim::slice(sizes));
    whose.error("TP3006", format!("the gradient for {} has shape {got:?}, expected {want:?}", whose.what))
}

#[cold]
fn wrong_device(grad: &Tensor, device: Device, whose: &Whose) -> Error {
    whose.error(
        "TP3008",
        format!("the gradient for {} is on {}, expected {device}", whose.what, grad.device()),
    )
}

/// Whether two sizes, of which some may be symbols, are known to be one.
fn same(s: i64, f: i64) -> bool {
    symbols::decide(s, Relation::Eq, f) == Some(true)
}

#[cold]
fn equal(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&s, &f)| same(s, f))
}

/// Whether broadcasting a tensor of `sizes` could give `from`.
fn reducible(from: &[i64], sizes: &[i64]) -> bool {
    from.len() >= sizes.len()
        && sizes.iter().rev().zip(from.iter().rev()).all(|(&s, &f)| s == 1 || same(s, f))
}

/// The gradient that a foreign rule gave for edge `k` of `node`.
pub(super) fn fit_input(node: &Node, k: usize, grad: Tensor) -> Result<Tensor> {
    let Some(spec) = node.specs().get(k) else { return Ok(grad) };
    let who = || Whose { op: Some(node.name().to_string()), what: argument(node, k) };
    if grad.device() != spec.device {
        return Err(wrong_device(&grad, spec.device, &who()));
    }
    fit(grad, &spec.sizes, spec.dtype, who)
}

/// `argument 'x'`, `argument 'xs'[2]`, `input 3`.
fn argument(node: &Node, k: usize) -> String {
    let Some(edge) = node.edges().get(k) else { return format!("input {k}") };
    if let Some(text) = node.rule().argument(edge) {
        return text;
    }
    let def = node.op().and_then(|op| op.def());
    match def.as_ref().and_then(|d| d.params.all.get(edge.arg())) {
        None => format!("input {}", edge.index()),
        Some(p) if p.type_text.contains('[') => format!("argument '{}'[{}]", p.name, edge.index()),
        Some(p) => format!("argument '{}'", p.name),
    }
}

/// Runs a rule that is not ours.
pub(super) fn run_foreign(
    node: &NodeRef,
    ctx: &BackwardCtx<'_>,
    grads: &[Option<Tensor>],
    out: &mut Gradients<'_>,
) -> Result<()> {
    if state::is_debugging() {
        return run_watched(node, ctx, grads, out);
    }
    let before = Versions::of(grads.iter().flatten());
    node.rule().backward(ctx, grads, out)?;
    before.compare(grads.iter().flatten(), "the backward rule", node)
}

/// Compares bytes, so that writes past the version counter are seen too, and to what was saved as well.
#[cold]
fn run_watched(
    node: &NodeRef,
    ctx: &BackwardCtx<'_>,
    grads: &[Option<Tensor>],
    out: &mut Gradients<'_>,
) -> Result<()> {
    let given: Vec<debug::Copy<'_>> = grads.iter().flatten().map(debug::Copy::of).collect();
    let saved: Vec<debug::Copy<'_>> = ctx.saved.iter().filter_map(|s| s.raw()).map(debug::Copy::of).collect();
    node.rule().backward(ctx, grads, out)?;
    if given.iter().any(debug::Copy::is_changed) {
        return Err(written("the backward rule", node));
    }
    if saved.iter().any(debug::Copy::is_changed) {
        let message = "the backward rule wrote to a tensor that was saved for it";
        return Err(Error::contract("TP3217", message)
            .with_op(node.name())
            .note("a second backward reads it again: write to a clone()"));
    }
    Ok(())
}

/// The versions of gradients, which only grow: their sum stays the same when nobody writes to them.
#[derive(Clone, Copy)]
pub(super) struct Versions(u64);

impl Versions {
    #[inline]
    pub fn of<'a>(grads: impl Iterator<Item = &'a Tensor>) -> Versions {
        Versions(grads.map(|g| u64::from(g.storage().version())).sum())
    }

    #[inline]
    pub fn compare<'a>(self, grads: impl Iterator<Item = &'a Tensor>, who: &str, node: &Node) -> Result<()> {
        if Versions::of(grads).0 == self.0 { Ok(()) } else { Err(written(who, node)) }
    }
}

#[cold]
fn written(who: &str, node: &Node) -> Error {
    Error::contract("TP3217", format!("{who} wrote to a gradient that it was given"))
        .with_op(node.name())
        .note("others may be given the same one, the caller of backward included: return a new tensor, as in g * 2.0")
}
