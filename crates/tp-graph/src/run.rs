//! Running a plan: steps in order, tensors in slots, memory given back at the last use. Nothing here enters the host
//! unless a kernel does. Every output of a call is held to what its fake rule promised, for the steps behind it rely
//! on that.

use crate::backend::{Lowered, Pending};
use crate::capture::literal;
use crate::foreign::from_host;
use crate::guard::tuple;
use crate::ir::Operand;
use crate::native::{NativeKernel, fits};
use crate::plan::{
    ArgSrc, CallOutput, CallStamp, CallStep, Exec, FusedStep, OutSlot, OutSrc, Plan, Src, Work,
};
use crate::raw::{RawExecutor, RawKernel};
use crate::stamp::{Stamps, watched};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Instant;
use tp_dispatch::fake::dynamic::misfit;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::state::{self, KeyGuard};
use tp_dispatch::{
    Arg, CallEvent, CodegenMarker, DispatchKey, Error, ErrorKind, FallbackReason, KeySet, Result, Rets,
    Value, dispatcher, host, registry,
};
use tp_tensor::symbols::{Binding, Poly, Promise};
use tp_tensor::{DType, Device, Tensor, TensorSpec};

pub(crate) type Slots = SmallVec<[Option<Tensor>; 16]>;

/// The host may deliver an interrupt once in this many steps.
const POLL_EVERY: usize = 256;

impl Plan {
    /// Runs on `inputs`, which fit the graph's inputs; `stamps` are fresh. Symbolic sizes are found on the way, and are
    /// then in `sizes`; those found by a run before are in it already.
    ///
    /// # Safety
    /// Dtype, device, sizes and strides of every input are those the graph was planned for.
    pub(crate) unsafe fn run(
        &self,
        inputs: &[&Tensor],
        stamps: &mut Stamps,
        sizes: &mut Option<Binding>,
    ) -> Result<Rets> {
        let keys = self.calls.then(below_autograd);
        let registered = registry::changes();
        let mut slots: Slots = SmallVec::from_elem(None, self.slots);
        for (i, step) in self.steps.iter().enumerate() {
            if i % POLL_EVERY == POLL_EVERY - 1 {
                host::poll()?;
            }
            let region = step.region;
            let mut frame = Frame { inputs, slots: &mut slots, stamps, sizes, region, registered };
            match &step.work {
                Work::Call(call) => frame.call(call)?,
                // SAFETY: inputs fit, and slots were checked when they were filled.
                Work::Fused(fused) => unsafe { frame.fused(fused, self)? },
                // SAFETY: as above, and operands have the types that the blocks take.
                Work::Control(step) => unsafe { frame.control(step)? },
            }
            for &slot in &step.free {
                slots[slot as usize] = None;
            }
        }
        drop(keys);
        let output = |out: &OutSrc| match out {
            OutSrc::Value(value) => Ok(value.clone()),
            OutSrc::Tensor(src) => tensor(inputs, &slots, *src).map(|t| Value::Tensor(t.clone())),
            OutSrc::Size(poly) => number(sizes, poly).map(Value::Int),
        };
        self.outputs.iter().map(output).collect()
    }
}

/// Calls of a plan pass Autograd and Capture by: the entry as a whole is on the tape.
fn below_autograd() -> KeyGuard {
    KeyGuard::new(KeySet::EMPTY, DispatchKey::Autograd.set() | DispatchKey::Capture.set())
}

#[cold]
pub(crate) fn broken() -> Error {
    Error::internal("TP9103", "a plan names a tensor that is not there")
}

pub(crate) fn tensor<'a>(inputs: &[&'a Tensor], slots: &'a Slots, src: Src) -> Result<&'a Tensor> {
    match src {
        Src::Input(i) => inputs.get(i as usize).copied().ok_or_else(broken),
        Src::Slot(i) => slots.get(i as usize).and_then(Option::as_ref).ok_or_else(broken),
    }
}

/// One step at work.
pub(crate) struct Frame<'a> {
    pub inputs: &'a [&'a Tensor],
    pub slots: &'a mut Slots,
    pub stamps: &'a mut Stamps,
    pub sizes: &'a mut Option<Binding>,
    pub region: u32,
    /// What was registered when the plan began, as a count of changes.
    pub registered: u64,
}

/// What a symbolic number is in this run.
fn number(sizes: &Option<Binding>, poly: &Poly) -> Result<i64> {
    sizes.as_ref().and_then(|s| s.eval(poly)).ok_or_else(|| {
        Error::capture("TP4020", format!("what {poly} is in this run is not known"))
            .note("no size of an output that was computed before tells it, or it leaves 64 bits")
    })
}

impl Frame<'_> {
    fn call(&mut self, step: &CallStep) -> Result<()> {
        let mut rets = Rets::new();
        let called = self.dispatch(step, &mut rets);
        let stored = called.and_then(|()| self.store_all(step, rets));
        stored.map_err(|e| match &step.location {
            // An exception of the caller's own passes as it is.
            Some(at) if e.kind() != ErrorKind::Host => {
                e.note(format!("called at {at}, in a compiled function"))
            }
            _ => e,
        })
    }

    fn dispatch(&mut self, step: &CallStep, rets: &mut Rets) -> Result<()> {
        let lists = self.lists(step)?;
        let mut next = lists.iter();
        let mut args: SmallVec<[Arg<'_>; 8]> = SmallVec::new();
        for arg in &step.args {
            args.push(match arg {
                ArgSrc::Tensor(src) => Arg::Tensor(tensor(self.inputs, self.slots, *src)?),
                ArgSrc::Literal(value) => value.as_arg(),
                ArgSrc::Tensors(_) | ArgSrc::Optional(_) | ArgSrc::Size(_) | ArgSrc::Sizes(_) => {
                    next.next().ok_or_else(broken)?.as_arg()
                }
            });
        }
        match &step.stamp {
            // A kernel of an earlier step may have registered another one for the op.
            CallStamp::Only(marker) if registry::changes() == self.registered => {
                dispatcher::call(step.op, &args, HostArgs::NONE, rets)?;
                self.stamps.set(self.region, marker);
            }
            CallStamp::Only(_) | CallStamp::Watch => {
                let device = args.iter().find_map(Arg::tensor).map_or(Device::CPU, Tensor::device);
                let call = || dispatcher::call(step.op, &args, HostArgs::NONE, rets);
                if let Some(marker) = watched(step.op, device, call)? {
                    self.stamps.put(self.region, marker);
                }
            }
        }
        Ok(())
    }

    /// Lists of tensors, and numbers that this run knows, made for this call.
    fn lists(&self, step: &CallStep) -> Result<SmallVec<[Value; 1]>> {
        let get = |src: &Src| tensor(self.inputs, self.slots, *src).cloned();
        let mut out = SmallVec::new();
        for arg in &step.args {
            match arg {
                ArgSrc::Tensors(srcs) => {
                    out.push(Value::Tensors(srcs.iter().map(get).collect::<Result<_>>()?))
                }
                ArgSrc::Optional(srcs) => {
                    let item = |s: &Option<Src>| s.as_ref().map(get).transpose();
                    out.push(Value::OptTensors(srcs.iter().map(item).collect::<Result<_>>()?));
                }
                ArgSrc::Size(poly) => out.push(Value::Int(number(self.sizes, poly)?)),
                ArgSrc::Sizes(polys) => {
                    let all = polys.iter().map(|p| number(self.sizes, p)).collect::<Result<_>>()?;
                    out.push(Value::Ints(all));
                }
                ArgSrc::Tensor(_) | ArgSrc::Literal(_) => {}
            }
        }
        Ok(out)
    }

    fn store_all(&mut self, step: &CallStep, rets: Rets) -> Result<()> {
        let name = step.op.name();
        if rets.len() != step.outputs.len() {
            return Err(broken().with_op(name));
        }
        for (i, (value, output)) in rets.into_iter().zip(&step.outputs).enumerate() {
            match (value, output) {
                (_, CallOutput::Known(None)) => {}
                (value, CallOutput::Known(Some(want))) => {
                    if literal(&value.as_arg()).as_ref() != Some(want) {
                        return Err(other_value(name, i, &value, want));
                    }
                }
                (Value::Tensor(t), CallOutput::Tensor(out)) => self.store(name, i, t, out)?,
                (Value::Tensors(ts), CallOutput::List(outs)) if ts.len() == outs.len() => {
                    for (t, out) in ts.into_iter().zip(outs) {
                        self.store(name, i, t, out)?;
                    }
                }
                (value, output) => return Err(wrong_form(name, i, &value, output)),
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn store(&mut self, op: &str, i: usize, t: Tensor, out: &OutSlot) -> Result<()> {
        if let Some(shape) = &out.shape {
            self.meet(op, i, &t, out, shape)?;
        } else if !fits(&t, &out.promise) || t.is_fake() {
            return Err(broken_promise(op, i, &t, &out.promise));
        }
        self.slots[out.slot as usize] = Some(t);
        Ok(())
    }

    /// Holds an output with symbolic sizes to its promise; symbols that it is the first to show get their values.
    #[cold]
    fn meet(&mut self, op: &str, i: usize, t: &Tensor, out: &OutSlot, shape: &Promise) -> Result<()> {
        let Some(sizes) = self.sizes else { return Err(broken().with_op(op)) };
        if t.ndim() != out.promise.sizes.len() {
            return Err(broken_promise(op, i, t, &out.promise));
        }
        sizes.meet(shape, t).map_err(|found| misfit(op, i, found))?;
        let promise = sizes.spec(shape, &out.promise).ok_or_else(broken)?;
        if fits(t, &promise) && !t.is_fake() { Ok(()) } else { Err(broken_promise(op, i, t, &promise)) }
    }

    /// The outputs of a region as this run has them.
    #[cold]
    fn shaped(
        &self,
        native: &NativeKernel,
        raw: &Option<Arc<RawKernel>>,
        inputs: &[&Tensor],
        step: &FusedStep,
    ) -> Result<Ran> {
        let mut specs: Vec<TensorSpec> = Vec::with_capacity(step.outputs.len());
        for out in &step.outputs {
            specs.push(concrete(self.sizes, out)?);
        }
        let empty = |s: &TensorSpec| Tensor::empty(&s.sizes, s.dtype, s.device);
        let outputs = specs.iter().map(empty).collect::<std::result::Result<SmallVec<[Tensor; 2]>, _>>()?;
        let kernel = native.over(inputs, specs).ok_or_else(broken)?;
        let mut reason = None;
        if let Some(raw) = raw {
            match RawExecutor::bind(&kernel, raw) {
                Ok(executor) => {
                    let marker = crate::backend::Executor::run(&executor, inputs, &outputs)?;
                    return Ok((outputs, marker, None));
                }
                Err(why) => reason = Some(why),
            }
        }
        let marker = crate::backend::Executor::run(&kernel, inputs, &outputs)?;
        Ok((outputs, marker, reason))
    }

    /// # Safety
    /// All inputs of the step have the types its region was built for.
    unsafe fn fused(&mut self, step: &FusedStep, plan: &Plan) -> Result<()> {
        let start = state::is_tracing().then(Instant::now);
        let inputs: SmallVec<[&Tensor; 8]> =
            step.inputs.iter().map(|s| tensor(self.inputs, self.slots, *s)).collect::<Result<_>>()?;
        let (outputs, marker, reason) = match &step.with {
            // SAFETY: the caller's promise.
            Exec::Native(kernel) => {
                (unsafe { native(kernel, &inputs, step)? }, kernel.marker().clone(), None)
            }
            Exec::Shaped { native, raw } => self.shaped(native, raw, &inputs, step)?,
            Exec::Rows(rows) => {
                let outputs = fresh(step)?;
                let out = outputs.first().ok_or_else(broken)?;
                // SAFETY: the caller's promise; the output is fresh.
                unsafe { rows.run(&inputs, out)? };
                (outputs, rows.marker().clone(), None)
            }
            Exec::Object(executor) => {
                let outputs = fresh(step)?;
                let marker = executor.run(&inputs, &outputs)?;
                (outputs, marker, None)
            }
            Exec::Host(executor) => {
                let (outputs, marker) = from_host(&**executor, &inputs, step)?;
                (outputs, marker, None)
            }
            // SAFETY: the caller's promise.
            Exec::Pending { backend, made, native } => unsafe {
                pending(backend, made, native, &inputs, step)?
            },
        };
        if let Some(start) = start {
            self.record(&inputs, plan, (&marker, &reason), start);
        }
        drop(inputs);
        self.stamps.put(self.region, marker);
        if let Some(reason) = reason {
            self.stamps.set_reason(self.region, reason);
        }
        for (t, out) in outputs.into_iter().zip(&step.outputs) {
            self.slots[out.slot as usize] = Some(t);
        }
        Ok(())
    }

    #[cold]
    fn record(
        &self,
        inputs: &[&Tensor],
        plan: &Plan,
        (marker, reason): (&Arc<CodegenMarker>, &Option<FallbackReason>),
        start: Instant,
    ) {
        let planned = plan.regions.get(self.region as usize);
        let ops = planned.map_or_else(String::new, |r| r.ops.join(" "));
        let reason = reason.as_ref().or(planned.and_then(|r| r.reason.as_ref()));
        let dtypes: Vec<DType> = inputs.iter().map(|t| t.dtype()).collect();
        state::record(&CallEvent {
            op: ops.into(),
            key: if marker.device.is_cuda() { DispatchKey::Cuda } else { DispatchKey::Cpu },
            phase: state::phase(),
            marker: (**marker).clone(),
            rejected: reason.map(|r| ("region".to_string(), r.clone())).into_iter().collect(),
            shapes: inputs.iter().map(|t| t.sizes().to_vec()).collect(),
            dtypes,
            host_seconds: start.elapsed().as_secs_f64(),
            device_seconds: None,
        });
    }
}

/// The type of a region's output with the sizes of this run.
fn concrete(sizes: &Option<Binding>, out: &OutSlot) -> Result<TensorSpec> {
    match &out.shape {
        None => Ok(out.promise.clone()),
        Some(shape) => sizes.as_ref().and_then(|s| s.spec(shape, &out.promise)).ok_or_else(broken),
    }
}

fn fresh(step: &FusedStep) -> Result<SmallVec<[Tensor; 2]>> {
    let empty = |o: &OutSlot| Tensor::empty(&o.promise.sizes, o.promise.dtype, o.promise.device);
    Ok(step.outputs.iter().map(empty).collect::<std::result::Result<_, _>>()?)
}

/// # Safety
/// As `NativeKernel::run_unchecked`.
unsafe fn native(
    kernel: &NativeKernel,
    inputs: &[&Tensor],
    step: &FusedStep,
) -> Result<SmallVec<[Tensor; 2]>> {
    let outputs = if step.over.is_empty() { fresh(step)? } else { over(inputs, step)? };
    // SAFETY: the caller's promise; outputs are fresh, or inputs of their types that nobody else sees.
    unsafe { kernel.run_unchecked(inputs, &outputs)? };
    Ok(outputs)
}

/// Outputs in the memory of inputs that this step reads last, where nobody sees those.
#[cold]
fn over(inputs: &[&Tensor], step: &FusedStep) -> Result<SmallVec<[Tensor; 2]>> {
    let place = |(o, k): (&OutSlot, &Option<u32>)| {
        let operand = k.and_then(|k| inputs.get(k as usize));
        match operand.filter(|t| t.is_unseen() && t.is_contiguous()) {
            Some(t) => Ok((*t).clone()),
            None => Tensor::empty(&o.promise.sizes, o.promise.dtype, o.promise.device),
        }
    };
    Ok(step.outputs.iter().zip(&step.over).map(place).collect::<std::result::Result<_, _>>()?)
}

type Ran = (SmallVec<[Tensor; 2]>, Arc<CodegenMarker>, Option<FallbackReason>);

/// The artifact if it is there, else native code with the reason.
///
/// # Safety
/// As `NativeKernel::run_unchecked`.
unsafe fn pending(
    backend: &str,
    made: &Pending,
    kernel: &NativeKernel,
    inputs: &[&Tensor],
    step: &FusedStep,
) -> Result<Ran> {
    let reason = match made.get() {
        Some(Ok(Lowered::Region(executor))) => {
            let outputs = fresh(step)?;
            let marker = executor.run(inputs, &outputs)?;
            return Ok((outputs, marker, None));
        }
        Some(Ok(Lowered::Raw(raw))) => match RawExecutor::bind(kernel, raw) {
            Ok(executor) => {
                let outputs = fresh(step)?;
                let marker = crate::backend::Executor::run(&executor, inputs, &outputs)?;
                return Ok((outputs, marker, None));
            }
            Err(reason) => reason,
        },
        Some(Ok(Lowered::Host(executor))) => {
            let (outputs, marker) = from_host(&**executor, inputs, step)?;
            return Ok((outputs, marker, None));
        }
        Some(Err(reason)) => reason.clone(),
        Some(Ok(Lowered::Pending(_))) | None => FallbackReason::Compiling { backend: backend.to_string() },
    };
    // SAFETY: the caller's promise.
    let outputs = unsafe { native(kernel, inputs, step)? };
    Ok((outputs, kernel.marker().clone(), Some(reason)))
}

#[cold]
fn broken_promise(op: &str, i: usize, t: &Tensor, promise: &TensorSpec) -> Error {
    let got = TensorSpec::of(t);
    let differing =
        |name: &str, got: String, want: String| format!("{name} {got}, the fake rule promised {want}");
    let what = if got.sizes != promise.sizes {
        differing("shape", tuple(&got.sizes), tuple(&promise.sizes))
    } else if got.dtype != promise.dtype {
        differing("dtype", got.dtype.to_string(), promise.dtype.to_string())
    } else if got.device != promise.device {
        differing("device", got.device.to_string(), promise.device.to_string())
    } else {
        differing("strides", tuple(&got.strides), tuple(&promise.strides))
    };
    Error::contract("TP3205", format!("output {i} of the kernel has {what}"))
        .with_op(op)
        .note(format!("the kernel returned {got}, the fake rule {promise}"))
        .note("the code behind it was compiled for what the fake rule said; mend the fake rule or the kernel")
}

#[cold]
fn other_value(op: &str, i: usize, value: &Value, want: &Operand) -> Error {
    let got = literal(&value.as_arg()).map_or_else(|| value.type_name().to_string(), |v| v.to_string());
    Error::contract("TP3205", format!("output {i} of the kernel is {got}, the fake rule promised {want}"))
        .with_op(op)
        .note("the function was captured with the fake rule's value, which must not depend on the tensors' data")
        .note("return a 0-d tensor instead, or mend the fake rule")
}

#[cold]
fn wrong_form(op: &str, i: usize, value: &Value, output: &CallOutput) -> Error {
    let want = match output {
        CallOutput::Tensor(_) => "a tensor".to_string(),
        CallOutput::List(items) => format!("a list of {} tensors", items.len()),
        CallOutput::Known(_) => "a known value".to_string(),
    };
    let got = match value {
        Value::Tensors(items) => format!("a list of {} tensors", items.len()),
        other => other.type_name().to_string(),
    };
    Error::contract("TP3205", format!("output {i} of the kernel is {got}, the fake rule promised {want}"))
        .with_op(op)
}
