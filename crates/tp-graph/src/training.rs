//! A compiled training region on the eager tape: one node whose backward runs the backward plan. The node saves what
//! the backward graph reads, with versions checked as for every other node, and gives it up after one backward unless
//! the caller retains it.

use crate::guard::Place;
use crate::ir::Graph;
use crate::plan::Plan;
use crate::split::{Kept, SavedFrom};
use crate::stamp::Stamps;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use tp_autograd::{BackwardCtx, Gradients, VjpRule, record_node};
use tp_dispatch::{Error, Result, Value, state};
use tp_expr::{ProgramBuilder, Strided, TileKernel};
use tp_tensor::symbols::{Binding, Promise, Symbols};
use tp_tensor::{DType, Tensor, TensorSpec};

/// The backward half of an entry.
pub(crate) struct Training {
    pub graph: Graph,
    pub plan: Plan,
    /// Inputs that may get a gradient, and which output of the backward graph it is.
    pub gradients: Vec<(Place, Option<usize>)>,
    /// Positions among the function's outputs, one per gradient input of the backward graph.
    pub outputs: Vec<usize>,
    /// Types of those gradients.
    pub tangents: Vec<Typed>,
    pub saved: Vec<SavedFrom>,
    pub kept: Kept,
    /// Types of the saved values.
    pub saved_types: Vec<Typed>,
}

/// A type whose sizes a run may have to fill in.
pub(crate) struct Typed {
    spec: TensorSpec,
    shape: Option<Promise>,
}

impl Typed {
    pub fn new(symbols: &Symbols, spec: TensorSpec) -> Typed {
        let shape = Promise::of(symbols, &spec);
        Typed { spec, shape }
    }

    /// The type with the sizes that the forward run found.
    fn of(&self, sizes: &Option<Binding>) -> Result<TensorSpec> {
        match &self.shape {
            None => Ok(self.spec.clone()),
            Some(shape) => sizes.as_ref().and_then(|s| s.spec(shape, &self.spec)).ok_or_else(missing),
        }
    }
}

/// The stamps of a backward, shared between the node and the run's report.
pub(crate) type BackwardStamps = Arc<Mutex<Option<Stamps>>>;

/// The rule of one recorded call.
struct CompiledBackward {
    training: Arc<Training>,
    stamps: BackwardStamps,
    /// The symbolic sizes of the forward run.
    sizes: Option<Binding>,
}

/// Puts one call on the tape: `inputs` are the forward graph's, `results` its outputs, the saved ones included.
pub(crate) fn record(
    training: &Arc<Training>,
    (stamps, sizes): (BackwardStamps, Option<Binding>),
    wanted: &[&Tensor],
    inputs: &[&Tensor],
    results: &[Value],
) -> Result<()> {
    let outputs =
        training.outputs.iter().map(|&i| result(results, i)).collect::<Result<SmallVec<[&Tensor; 2]>>>()?;
    let rule: Arc<dyn VjpRule> = Arc::new(CompiledBackward { training: training.clone(), stamps, sizes });
    record_node(rule, wanted, &outputs, |saver| {
        for from in &training.saved {
            match *from {
                SavedFrom::Input(i) => saver.input(inputs.get(i as usize).copied().ok_or_else(missing)?),
                SavedFrom::Output(i) => {
                    let t = result(results, i as usize)?;
                    match training.outputs.iter().position(|&o| o == i as usize) {
                        Some(nr) => saver.output(t, nr),
                        None => saver.input(t),
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn result(results: &[Value], i: usize) -> Result<&Tensor> {
    results.get(i).and_then(Value::tensor).ok_or_else(missing)
}

#[cold]
fn missing() -> Error {
    Error::internal("TP9106", "a compiled training region lost one of its tensors")
}

impl VjpRule for CompiledBackward {
    fn name(&self) -> &str {
        "compiled"
    }

    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        if state::is_grad_enabled() {
            return Err(double_backward());
        }
        let training = &*self.training;
        let mut tensors: Vec<Tensor> = Vec::with_capacity(training.saved.len() + training.tangents.len());
        for (k, spec) in training.saved_types.iter().enumerate() {
            let t = ctx.saved(k)?;
            if !crate::native::fits(&t, &spec.of(&self.sizes)?) {
                return Err(missing());
            }
            tensors.push(t);
        }
        for (nr, spec) in training.tangents.iter().enumerate() {
            let given = grads.get(nr).and_then(Option::as_ref);
            let spec = spec.of(&self.sizes)?;
            tensors.push(given.map_or_else(|| zeros(&spec), |g| contiguous(g, &spec))?);
        }
        let inputs: SmallVec<[&Tensor; 8]> = tensors.iter().collect();
        let mut stamps = Stamps::new(training.plan.regions.len());
        let mut sizes = self.sizes.clone();
        // SAFETY: saved tensors were just checked, gradients were made to fit.
        let rets = unsafe { training.plan.run(&inputs, &mut stamps, &mut sizes)? };
        *self.stamps.lock() = Some(stamps);
        for (k, edge) in ctx.edges().iter().enumerate() {
            let output = training.gradients.get(edge.index()).and_then(|(_, g)| *g);
            out.put(k, output.and_then(|i| rets.get(i)).and_then(Value::tensor).cloned());
        }
        Ok(())
    }
}

#[cold]
fn double_backward() -> Error {
    Error::autograd("TP3022", "double backward through a compiled function is not supported")
        .note("its backward is compiled too and is not recorded; call the function uncompiled where create_graph=True")
}

/// The gradient as the backward graph takes it: contiguous.
fn contiguous(g: &Tensor, spec: &TensorSpec) -> Result<Tensor> {
    if g.dtype() != spec.dtype || g.device() != spec.device || *g.sizes() != *spec.sizes {
        let message =
            format!("gradient of a compiled function's output is {}, expected {spec}", TensorSpec::of(g));
        return Err(Error::autograd("TP3006", message));
    }
    if g.is_contiguous() {
        return Ok(g.clone());
    }
    copy(g)
}

/// The same values in memory of their own, row by row.
pub(crate) fn copy(g: &Tensor) -> Result<Tensor> {
    let out = Tensor::empty(g.sizes(), g.dtype(), g.device())?;
    let kernel = identity(g.dtype())?;
    let sizes: SmallVec<[usize; 6]> = g.sizes().iter().map(|s| *s as usize).collect();
    let strides = |t: &Tensor| t.strides().iter().map(|s| *s as isize).collect::<SmallVec<[isize; 6]>>();
    let (from, to) = (strides(g), strides(&out));
    let read = Strided { ptr: g.data_ptr(), strides: &from };
    let write = Strided { ptr: out.data_ptr(), strides: &to };
    // SAFETY: both tensors have these sizes and strides, and the output is fresh.
    unsafe { kernel.run(&sizes, &[read], &[write])? };
    Ok(out)
}

fn identity(dtype: DType) -> Result<TileKernel> {
    let mut builder = ProgramBuilder::new();
    let value = builder.input(dtype);
    Ok(TileKernel::compile(&builder.finish(&[value])?)?)
}

/// An output that nobody used has a gradient of zeros.
fn zeros(spec: &TensorSpec) -> Result<Tensor> {
    let out = Tensor::empty(&spec.sizes, spec.dtype, spec.device)?;
    // SAFETY: fresh memory of that many bytes; all zero bits are zero in every dtype.
    unsafe { std::ptr::write_bytes(out.data_ptr(), 0, out.nbytes()) };
    Ok(out)
}
