//! The checks of debug mode, around every foreign kernel: it wrote to nothing that the schema does not declare, bit by
//! bit, and what it returned is what the fake rule promises. They copy the arguments and run the fake rule, so that
//! they are off unless a thread asks for them.

use crate::alias::span;
use crate::error::{Error, Result};
use crate::fake::{self, Prediction};
use crate::kernel::Call;
use crate::select::KernelEntry;
use crate::value::{Rets, Value};
use smallvec::SmallVec;
use std::sync::Arc;
use tp_tensor::symbols::{self, Binding, Promise, Shapes};
use tp_tensor::{Dim, Tensor, TensorSpec};

/// Runs the kernel between the checks.
pub(crate) fn run(entry: &KernelEntry, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    if entry.came_with(call.def) {
        return entry.kernel.call(call, rets);
    }
    let before = Copies::of(call);
    let promised = fake::predict(call)?;
    entry.kernel.call(call, rets)?;
    before.compare(call)?;
    match promised {
        Some(promised) => compare(call, rets, &promised),
        None => Ok(()),
    }
}

/// A tensor as it was: its bytes, and its version.
pub struct Copy<'a> {
    tensor: &'a Tensor,
    bytes: Vec<u8>,
    version: u32,
}

impl<'a> Copy<'a> {
    pub fn of(tensor: &'a Tensor) -> Copy<'a> {
        Copy { tensor, bytes: bytes(tensor).to_vec(), version: tensor.storage().version() }
    }

    /// Whether somebody wrote to it since.
    pub fn is_changed(&self) -> bool {
        bytes(self.tensor) != self.bytes || self.tensor.storage().version() != self.version
    }
}

/// Every argument that must not be written to.
struct Copies<'a>(Vec<(usize, Copy<'a>)>);

impl<'a> Copies<'a> {
    fn of(call: &Call<'a>) -> Copies<'a> {
        let mut written: SmallVec<[usize; 4]> = SmallVec::new();
        for &k in &call.def.params.written {
            call.args[k as usize].for_each_tensor(|t| written.push(t.storage().id()));
        }
        let mut copies = Vec::new();
        call.for_each_tensor(|k, t| {
            if !written.contains(&t.storage().id()) {
                copies.push((k, Copy::of(t)));
            }
        });
        Copies(copies)
    }

    fn compare(&self, call: &Call<'_>) -> Result<()> {
        match self.0.iter().find(|(_, copy)| copy.is_changed()) {
            Some((k, _)) => Err(undeclared(call, *k)),
            None => Ok(()),
        }
    }
}

/// The memory that a tensor reaches; empty where it has no data on the CPU.
fn bytes(t: &Tensor) -> &[u8] {
    match span(t).filter(|_| t.device().is_cpu()) {
        // SAFETY: from the first to the last element of a live tensor; looked at before and after the kernel, which is
        // the only one that may write while the call lasts.
        Some((low, high)) => unsafe { std::slice::from_raw_parts(low as *const u8, high - low) },
        None => &[],
    }
}

#[cold]
fn undeclared(call: &Call<'_>, k: usize) -> Error {
    let name = call.def.params.name(k).unwrap_or("?");
    Error::contract(
        "TP3241",
        format!("the kernel wrote to argument '{name}', which the schema does not declare"),
    )
    .with_op(call.op.name())
    .note(format!("declare it with mutates_args=('{name}',), or work on a clone()"))
}

fn compare(call: &Call<'_>, rets: &Rets, promised: &Prediction) -> Result<()> {
    let _table = symbols::enter(promised.symbols.clone());
    let mut sizes = Binding::new(Arc::new(Shapes::of(&promised.symbols)));
    for (i, (got, want)) in rets.iter().zip(&promised.rets).enumerate() {
        let (got, want) = match (want, got) {
            (Value::Tensor(want), Value::Tensor(got)) => {
                told_apart(&visible(got), &seen(call, i, &mut sizes, promised, want, got)?)
            }
            _ => (describe(got), describe(want)),
        };
        if got != want {
            let message = format!("output {i} of the kernel is {got}, the fake rule promised {want}");
            return Err(Error::contract("TP3205", message)
                .with_op(call.op.name())
                .note("mend the fake rule or the kernel: compiled code relies on the promise"));
        }
    }
    Ok(())
}

/// The promise with the sizes that the kernel made.
fn seen(
    call: &Call<'_>,
    i: usize,
    sizes: &mut Binding,
    promised: &Prediction,
    want: &Tensor,
    got: &Tensor,
) -> Result<TensorSpec> {
    let spec = TensorSpec::of(want);
    let Some(promise) = Promise::of(&promised.symbols, &spec).filter(|_| want.ndim() == got.ndim()) else {
        return Ok(visible(want));
    };
    sizes.meet(&promise, got).map_err(|found| fake::dynamic::misfit(call.op.name(), i, found))?;
    let spec = sizes.spec(&promise, &spec).unwrap_or(spec);
    let fake = Tensor::fake(&spec.sizes, &spec.strides, spec.dtype, spec.device, 0)?;
    Ok(visible(&fake))
}

/// What two equal results have in common; strides that tell no elements apart are left out.
fn visible(t: &Tensor) -> TensorSpec {
    if t.is_contiguous() {
        return TensorSpec::contiguous(t.sizes(), t.dtype(), t.device());
    }
    TensorSpec::of(t)
}

/// Both as text; with the strides of both where nothing else differs.
fn told_apart(got: &TensorSpec, want: &TensorSpec) -> (String, String) {
    let strides_alone = got.strides != want.strides
        && (&got.sizes, got.dtype, got.device) == (&want.sizes, want.dtype, want.device);
    let text = |spec: &TensorSpec| match spec.to_string() {
        text if strides_alone && !text.contains(" strides ") => {
            format!("{text} strides {:?}", Dim::slice(&spec.strides))
        }
        text => text,
    };
    (text(got), text(want))
}

fn describe(v: &Value) -> String {
    let one = |t: &Tensor| visible(t).to_string();
    match v {
        Value::Tensor(t) => one(t),
        Value::Tensors(ts) => format!("[{}]", ts.iter().map(one).collect::<Vec<_>>().join(", ")),
        Value::OptTensors(ts) => {
            let item = |t: &Option<Tensor>| t.as_ref().map_or_else(|| "None".to_string(), one);
            format!("[{}]", ts.iter().map(item).collect::<Vec<_>>().join(", "))
        }
        other => format!("{other:?}"),
    }
}
