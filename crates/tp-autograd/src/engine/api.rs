//! What people call: `backward` adds gradients to leaves, `grad` returns them.

use super::accumulate;
use super::check::{self, Whose};
use super::reach::{ByNode, Reach, id};
use super::run::{Run, Wanted};
use crate::mode::GradMode;
use crate::tape::NodeRef;
use crate::{anomaly, meta, ops};
use smallvec::SmallVec;
use tp_dispatch::state::BackwardPhase;
use tp_dispatch::{Arg, Error, Result};
use tp_tensor::{DType, Tensor};

#[derive(Clone, Copy, Default, Debug)]
pub struct GradOptions {
    /// Keep saved tensors for another pass; follows `create_graph` when not given.
    pub retain_graph: Option<bool>,
    /// Record the backward pass, for derivatives of derivatives.
    pub create_graph: bool,
    /// An input that no output depends on gets None instead of an error.
    pub allow_unused: bool,
}

impl GradOptions {
    fn retain(self) -> bool {
        self.retain_graph.unwrap_or(self.create_graph)
    }
}

type Roots = SmallVec<[(NodeRef, u32, Tensor); 1]>;

/// Runs backward from `tensors` and adds the gradients to the `.grad` of the leaves, or of `inputs` alone when some
/// are given. `gradients` holds one entry per tensor, or none at all when every tensor is a scalar.
pub fn backward(
    tensors: &[Tensor],
    gradients: &[Option<Tensor>],
    options: GradOptions,
    inputs: &[Tensor],
) -> Result<()> {
    let _mode = GradMode::set(options.create_graph);
    let _phase = BackwardPhase::enter();
    if let ([t], [gradient], []) = (tensors, gradients, inputs) {
        return backward_one(t, gradient.as_ref(), options.retain());
    }
    let roots = roots(tensors, gradients)?;
    if inputs.is_empty() {
        return start(Run::new(options.retain(), None), roots).map(drop);
    }
    let wanted = wanted(inputs, &roots)?;
    let run = start(Run::new(options.retain(), Some(wanted)), roots)?;
    for (input, grad) in inputs.iter().zip(results(run)) {
        let Some(grad) = grad.map(accumulate::own).transpose()? else { continue };
        let (node, _) = meta::gradient_edge(input)?;
        match node.extra().and_then(|e| e.leaf.as_ref()) {
            Some(leaf) => accumulate::into_leaf(&node, leaf, grad)?,
            // The run has added to a gradient that is kept anyway.
            None if meta::retains_grad(input) => {}
            None => {
                let sum = match meta::grad(input) {
                    Some(before) => ops::add(&before, &grad)?,
                    None => grad,
                };
                meta::set_grad(input, Some(sum))?;
            }
        }
    }
    Ok(())
}

/// Backward from one tensor to all leaves.
fn backward_one(t: &Tensor, gradient: Option<&Tensor>, retain: bool) -> Result<()> {
    // The tensor lives as long as the run, and with it a node that its slot points to.
    if let (Some(node), None) = (meta::lasting_node(t), gradient) {
        return run_one(&node, 0, implicit(t, 0)?, retain);
    }
    let (node, nr, grad) = root(0, t, gradient)?;
    run_one(&node, nr, grad, retain)
}

fn run_one(node: &NodeRef, nr: u32, grad: Tensor, retain: bool) -> Result<()> {
    let mut run = Run::new(retain, None);
    run.give(node, nr, grad)?;
    run.run()
}

/// `t.backward()`: backward from a scalar to all leaves, which gives the graph up.
pub fn backward_from(t: &Tensor) -> Result<()> {
    let _mode = GradMode::no_grad();
    let _phase = BackwardPhase::enter();
    backward_one(t, None, false)
}

/// The gradients of `outputs` with respect to `inputs`; no `.grad` is touched.
pub fn grad(
    outputs: &[Tensor],
    inputs: &[Tensor],
    grad_outputs: &[Option<Tensor>],
    options: GradOptions,
) -> Result<Vec<Option<Tensor>>> {
    let _mode = GradMode::set(options.create_graph);
    let _phase = BackwardPhase::enter();
    let roots = roots(outputs, grad_outputs)?;
    let wanted = wanted(inputs, &roots)?;
    grad_from(roots, wanted, options)
}

/// As `grad`, of a graph that is given up. The pass ends at the inputs that hold data: what made them is no business of
/// the graph, and their hooks see the gradients of its runs.
pub fn grad_up_to_data(
    outputs: &[Tensor],
    inputs: &[Tensor],
    grad_outputs: &[Option<Tensor>],
) -> Result<Vec<Option<Tensor>>> {
    up_to(outputs, inputs, grad_outputs, &|t| !t.is_fake())
}

/// The same, where the pass ends at every input.
pub fn grad_up_to(
    outputs: &[Tensor],
    inputs: &[Tensor],
    grad_outputs: &[Option<Tensor>],
) -> Result<Vec<Option<Tensor>>> {
    up_to(outputs, inputs, grad_outputs, &|_| true)
}

fn up_to(
    outputs: &[Tensor],
    inputs: &[Tensor],
    grad_outputs: &[Option<Tensor>],
    is_end: &dyn Fn(&Tensor) -> bool,
) -> Result<Vec<Option<Tensor>>> {
    let _mode = GradMode::no_grad();
    let _phase = BackwardPhase::enter();
    let roots = roots(outputs, grad_outputs)?;
    let mut wanted = wanted(inputs, &roots)?;
    for t in inputs.iter().filter(|t| is_end(t)) {
        wanted.ends.insert(id(&meta::gradient_edge(t)?.0), ());
    }
    let options = GradOptions { retain_graph: Some(false), create_graph: false, allow_unused: true };
    grad_from(roots, wanted, options)
}

fn grad_from(roots: Roots, wanted: Wanted, options: GradOptions) -> Result<Vec<Option<Tensor>>> {
    let run = start(Run::new(options.retain(), Some(wanted)), roots)?;
    let own = |grad: Option<Tensor>| grad.map(accumulate::own).transpose();
    let grads = results(run).into_iter().map(own).collect::<Result<Vec<_>>>()?;
    if let (false, Some(i)) = (options.allow_unused, grads.iter().position(Option::is_none)) {
        let message = format!("input {i} does not influence the outputs");
        return Err(Error::autograd("TP3020", message)
            .note("pass allow_unused=True to get None for it")
            .note(
                "or a backward rule returned None for it, which stands for zero: tensorplay.verify(op) tells",
            ));
    }
    Ok(grads)
}

/// Whether a leaf other than `inputs` and hidden ones takes part in `outputs`.
pub fn reaches_other_leaf(outputs: &[Tensor], inputs: &[Tensor]) -> Result<bool> {
    let nodes = |tensors: &[Tensor]| -> Result<Vec<NodeRef>> {
        let recorded = tensors.iter().filter(|t| t.requires_grad());
        recorded.map(|t| Ok(meta::gradient_edge(t)?.0)).collect()
    };
    let (roots, own) = (nodes(outputs)?, nodes(inputs)?);
    let is_other =
        |n: &crate::tape::Node| n.is_leaf() && !n.is_hidden() && !own.iter().any(|o| id(o) == id(n));
    let reach = Reach::find(roots.iter(), &is_other, 0);
    Ok(roots.iter().any(|n| reach.leads(n)))
}

/// Whether a backward run would leave a gradient with a tensor that holds data or stands for somebody's: with one
/// of `inputs`, or with any leaf below `outputs` where there are none.
pub fn reaches_outside(outputs: &[Tensor], inputs: &[Tensor]) -> Result<bool> {
    let given = if inputs.is_empty() { outputs } else { inputs };
    let recorded = given.iter().filter(|t| t.requires_grad());
    let roots = recorded.map(|t| Ok(meta::gradient_edge(t)?.0)).collect::<Result<Vec<NodeRef>>>()?;
    let is_outside = |n: &crate::tape::Node| {
        let leaf = n.extra().and_then(|e| e.leaf.as_ref());
        n.stands_for_another() || leaf.is_some_and(|leaf| !leaf.fake)
    };
    if !inputs.is_empty() {
        return Ok(roots.iter().any(|n| is_outside(n)) || given.iter().any(|t| !t.is_fake()));
    }
    let reach = Reach::find(roots.iter(), &is_outside, 0);
    Ok(roots.iter().any(|n| reach.leads(n)))
}

/// Whether `t` was computed from `source`, or is it.
pub fn depends_on(t: &Tensor, source: &Tensor) -> Result<bool> {
    if !t.requires_grad() || !source.requires_grad() {
        return Ok(false);
    }
    let ((root, root_nr), (target, nr)) = (meta::gradient_edge(t)?, meta::gradient_edge(source)?);
    if id(&root) == id(&target) {
        return Ok(root_nr == nr);
    }
    // A leaf was computed from nothing, and what was recorded earlier not from this.
    if root.edges().is_empty() || root.seq() <= target.seq() {
        return Ok(false);
    }
    let is_target = |n: &crate::tape::Node| id(n) == id(&target);
    Ok(Reach::find(std::iter::once(&root), &is_target, target.seq()).leads(&root))
}

/// Whether gradients of two tensors that require one go to one place.
pub fn same_edge(a: &Tensor, b: &Tensor) -> Result<bool> {
    let ((a, a_nr), (b, b_nr)) = (meta::gradient_edge(a)?, meta::gradient_edge(b)?);
    Ok(id(&a) == id(&b) && a_nr == b_nr)
}

/// Tensors that require a gradient, those apart whose gradients go to one place.
pub fn distinct(tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let mut out: Vec<Tensor> = Vec::new();
    for t in tensors {
        let mut is_new = true;
        for other in &out {
            is_new &= !same_edge(other, &t)?;
        }
        out.extend(is_new.then_some(t));
    }
    Ok(out)
}

/// Counts a leaf no longer among those that somebody may differentiate by: nobody can name it any more.
pub fn hide_leaf(t: &Tensor) -> Result<()> {
    let (node, _) = meta::gradient_edge(t)?;
    if node.is_leaf() {
        node.hide();
    }
    Ok(())
}

/// Runs with the given root gradients; the roots stay alive until the run is over.
fn start(mut run: Run, roots: Roots) -> Result<Run> {
    let mut alive: SmallVec<[NodeRef; 1]> = SmallVec::new();
    for (node, nr, grad) in roots {
        run.give(&node, nr, grad)?;
        alive.push(node);
    }
    run.run()?;
    drop(alive);
    Ok(run)
}

fn results(mut run: Run) -> Vec<Option<Tensor>> {
    run.wanted.take().map(|w| w.results).unwrap_or_default()
}

fn roots(tensors: &[Tensor], gradients: &[Option<Tensor>]) -> Result<Roots> {
    if !gradients.is_empty() && gradients.len() != tensors.len() {
        let message = format!(
            "expected {}, one per output, got {}",
            tp_tensor::counted(tensors.len(), "gradient"),
            gradients.len()
        );
        return Err(Error::autograd("TP3009", message));
    }
    let mut roots = Roots::new();
    for (i, t) in tensors.iter().enumerate() {
        roots.push(root(i, t, gradients.get(i).and_then(Option::as_ref))?);
    }
    Ok(roots)
}

/// Where backward starts for output `i`, and with which gradient.
fn root(i: usize, t: &Tensor, gradient: Option<&Tensor>) -> Result<(NodeRef, u32, Tensor)> {
    if !t.requires_grad() {
        return Err(no_history(i, t));
    }
    let (node, nr) = meta::gradient_edge(t)?;
    let grad = match gradient {
        Some(g) => given(&node, i, check::replacing(g.clone(), t, || output_name(i))?)?,
        None => implicit(t, i)?,
    };
    Ok((node, nr, grad))
}

/// The gradient that the caller gave for output `i`.
fn given(node: &NodeRef, i: usize, grad: Tensor) -> Result<Tensor> {
    anomaly::check(node, &grad, || format!("the gradient given for output {i} holds a NaN"))?;
    Ok(grad)
}

#[cold]
fn no_history(i: usize, t: &Tensor) -> Error {
    if t.is_batched() {
        let message = format!("output {i} is batched: the tape holds whole batches, none of the samples");
        return Error::autograd("TP3416", message)
            .note("differentiate with tensorplay.func.grad inside of vmap, or the results outside of it");
    }
    let message = format!("output {i} does not require grad and has no grad_fn");
    Error::autograd("TP3005", message)
        .note("it was computed under no_grad(), from tensors without requires_grad, or by an operation that is not differentiable")
}

fn output_name(i: usize) -> Whose {
    Whose { op: None, what: format!("output {i}") }
}

/// The gradient of a scalar with respect to itself.
#[inline]
fn implicit(t: &Tensor, i: usize) -> Result<Tensor> {
    if t.sizes().iter().any(|&s| s != 1) {
        return Err(no_scalar(t, i));
    }
    if t.device().is_cpu() && !t.is_fake() && matches!(t.dtype(), DType::F32 | DType::F64) {
        let is_bare = t.ndim() == 0;
        let one = if is_bare {
            Tensor::empty_scalar(t.dtype())
        } else {
            Tensor::empty_like_contiguous(t, t.dtype())
        }?;
        // SAFETY: fresh CPU memory of one element of this dtype.
        unsafe {
            match t.dtype() {
                DType::F64 => one.data_ptr().cast::<f64>().write(1.0),
                _ => one.data_ptr().cast::<f32>().write(1.0),
            }
        }
        return Ok(one);
    }
    ones_like(t)
}

#[cold]
fn no_scalar(t: &Tensor, i: usize) -> Error {
    let message = format!("output {i} is no scalar ({t:?}); a gradient of its shape must be given");
    Error::autograd("TP3021", message).note("call sum() or mean() first, or pass gradient=")
}

#[cold]
fn ones_like(t: &Tensor) -> Result<Tensor> {
    let _mode = GradMode::no_grad();
    ops::ONES_LIKE.call(&[Arg::Tensor(t), Arg::None, Arg::None])
}

fn wanted(inputs: &[Tensor], roots: &Roots) -> Result<Wanted> {
    let mut targets: ByNode<SmallVec<[(u32, usize); 1]>> = ByNode::default();
    let mut oldest = u64::MAX;
    let mut alive: SmallVec<[NodeRef; 4]> = SmallVec::new();
    for (i, t) in inputs.iter().enumerate() {
        if !t.requires_grad() {
            return Err(Error::autograd("TP3015", format!("input {i} does not require grad")));
        }
        let (node, nr) = meta::gradient_edge(t)?;
        oldest = oldest.min(node.seq());
        targets.entry(id(&node)).or_default().push((nr, i));
        alive.push(node);
    }
    let is_target = |n: &crate::tape::Node| targets.contains_key(&id(n));
    let reach = Reach::find(roots.iter().map(|(n, ..)| n), &is_target, oldest);
    let ends = ByNode::default();
    Ok(Wanted { results: vec![None; inputs.len()], targets, reach, ends, _alive: alive })
}
