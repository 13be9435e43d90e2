//! `base[key] = source`: a write through a view, recorded as a new history of the base. The door has the base at
//! hand; a plain `copy_` into a view has not, and is refused where it could not be right (`inplace`).

use crate::mode::GradMode;
use crate::rule::{BackwardCtx, Gradients, Rule, RuleHandle, VjpRule};
use crate::tape::{Edge, Edges, Recipe, Saved, Saver};
use crate::{inplace, meta, ops};
use tp_dispatch::{Arg, Result, state};
use tp_tensor::{DType, Device, Dims, Tensor};

/// Writes `source`, broadcast, to `view`, which is a view of `base`. Other views of `base` that were made before
/// are refused when they are next used with gradients, as after any write in place.
pub fn assign(base: &Tensor, view: &Tensor, source: &Tensor) -> Result<()> {
    let recorded = state::is_grad_enabled() && (base.requires_grad() || source.requires_grad());
    if !recorded || base.same(view) || !base.dtype().is_float() {
        return copy(view, source);
    }
    inplace::check_assignable(base, view)?;
    let mut edges = Edges::new();
    for (arg, t) in [base, source].into_iter().enumerate() {
        if t.requires_grad() {
            let (node, nr) = meta::gradient_edge(t)?;
            edges.push(Edge::new(node, nr, arg, 0));
        }
    }
    let mut saved = Saved::default();
    let mut saver = Saver::new(&edges, &mut saved);
    saver.input(&positions(base, view)?);
    saver.ints(base.sizes());
    saver.ints(source.sizes());
    saver.int(source.dtype() as i64);
    let mode = GradMode::no_grad();
    copy(view, source)?;
    drop(mode);
    let rule = Rule::of(RuleHandle::Static(&ASSIGN));
    let recipe = Recipe { rule: &rule, op: None, edges: &mut edges, saved: &mut saved, outputs: 1, flags: 0 };
    let node = recipe.build(|_, _| {})?;
    meta::rebase(base, node, 0);
    Ok(())
}

fn copy(view: &Tensor, source: &Tensor) -> Result<()> {
    ops::COPY_.call(&[Arg::Tensor(view), Arg::Tensor(source)]).map(drop)
}

/// Where the elements of `view` lie in the flattened contiguous `base`.
fn positions(base: &Tensor, view: &Tensor) -> Result<Tensor> {
    let (sizes, strides) = (view.sizes(), view.strides());
    let out = Tensor::empty(sizes, DType::I64, Device::CPU)?;
    let mut index: Dims = sizes.iter().map(|_| 0).collect();
    let mut at = view.offset() - base.offset();
    for k in 0..out.numel() as usize {
        // SAFETY: `k` counts the elements of a fresh contiguous tensor.
        unsafe { out.data_ptr().cast::<i64>().add(k).write(at) };
        for axis in (0..sizes.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < sizes[axis] {
                break;
            }
            at -= index[axis] * strides[axis];
            index[axis] = 0;
        }
    }
    Ok(out)
}

struct Assign;

static ASSIGN: Assign = Assign;

impl VjpRule for Assign {
    fn name(&self) -> &str {
        "assign"
    }

    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        let Some(Some(grad)) = grads.first() else { return Ok(()) };
        let at = ctx.saved(0)?;
        let flat = ops::reshape(grad, &[-1])?;
        if ctx.needs(0) {
            let zeros = ops::new_zeros(grad, at.sizes())?;
            let indices = [Some(at.clone())];
            let (indices, overwrite) = (Arg::OptTensors(&indices), Arg::Bool(false));
            let kept = ops::INDEX_PUT.call(&[Arg::Tensor(&flat), indices, Arg::Tensor(&zeros), overwrite])?;
            out.set(0, ops::reshape(&kept, ctx.ints(0))?);
        }
        if ctx.needs(1) {
            let part = ops::TAKE.call(&[Arg::Tensor(&flat), Arg::Tensor(&at), Arg::Int(0)])?;
            let dtype = DType::from_code(ctx.int(2) as u8).unwrap_or(grad.dtype());
            out.set(1, ops::astype(ops::sum_to_size(part, ctx.ints(1))?, dtype)?);
        }
        Ok(())
    }
}
