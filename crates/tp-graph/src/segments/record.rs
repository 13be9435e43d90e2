//! Writing a call down: whether it may be put off, what it reads, and tensors that wait for its results.

use super::queue::{Input, Made, Origin, Out, Run, Segment, Source, Step};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use tp_autograd::tape::has_saved_hooks;
use tp_dispatch::kernel::{FakeOut, FakeOuts, FakeRule};
use tp_dispatch::{Arg, Call, DispatchKey, GradSpec, KeySet, OpDef, OpId, Result, Rets, Value, host, state};
use tp_expr::ArgType;
use tp_tensor::{DType, Scalar, Tensor, TensorSpec, symbols};

pub(super) enum Recording {
    /// The results are there, pending.
    Done,
    /// The call has to run now; with `all`, after everything that is pending. `text` says what it is.
    Refused { all: bool, text: &'static str },
}

const fn refused(text: &'static str) -> Recording {
    Recording::Refused { all: false, text }
}

/// Layers that change what a call means, or tell somebody of it, where it stands.
const UNUSUAL: KeySet =
    KeySet(DispatchKey::Capture.set().0 | DispatchKey::Meta.set().0 | DispatchKey::Slow.set().0);

impl Run {
    pub fn record(self: &Arc<Self>, call: &Call<'_>, rets: &mut Rets) -> Result<Recording> {
        if let Some(no) = refusal(call) {
            return Ok(no);
        }
        let FakeRule::Fn(rule) = &call.def.fake else { return Ok(refused("has no fake rule")) };
        // The op itself tells what is wrong with its arguments.
        let Ok(outs) = rule(call) else { return Ok(refused("refuses its arguments")) };
        // Found out before the queue is locked: the interpreter may collect garbage meanwhile, whose finalisers call ops.
        let location = if self.is_cold { host::location() } else { None };
        let grad = state::is_grad_enabled();
        let mut segment = loop {
            self.ready()?;
            let state = self.state.lock();
            let is_foreign = state.segment.has_foreign(call);
            if (is_foreign || state.segment.grad != grad) && !state.segment.steps.is_empty() {
                drop(state);
                self.flush()?;
                continue;
            }
            if is_foreign {
                return Ok(refused("reads a tensor of another thread's call"));
            }
            break parking_lot::MutexGuard::map(state, |s| &mut s.segment);
        };
        match shape_of(call, &outs) {
            Shape::Itself => {
                let same = |out: &FakeOut| match out {
                    FakeOut::Same { of } => call.tensor(*of).cloned().map(Value::Tensor),
                    _ => Ok(Value::None),
                };
                *rets = outs.iter().map(same).collect::<Result<_>>()?;
                return Ok(Recording::Done);
            }
            Shape::Other => return Ok(refused("gives views or values")),
            Shape::New | Shape::Views => {}
        }
        segment.grad = grad;
        segment.append(call, &outs, location, &|| Box::new(Origin(Arc::downgrade(self))), rets)?;
        Ok(Recording::Done)
    }
}

/// Why a call may not be put off, by what the op is and what its arguments are.
fn refusal(call: &Call<'_>) -> Option<Recording> {
    let def = call.def;
    if def.custom || matches!(def.grad, GradSpec::Custom(_)) {
        return Some(Recording::Refused { all: true, text: "runs code of its author at its place" });
    }
    if def.effects.mutates {
        return Some(Recording::Refused { all: true, text: "writes to its argument" });
    }
    if !call.op.runs_own_kernel(def, DispatchKey::Cpu) {
        return Some(Recording::Refused { all: true, text: "has a kernel of a user" });
    }
    if def.effects.random || def.effects.ordered || def.effects.nondeterministic {
        return Some(refused("draws random numbers, or has another effect"));
    }
    if state::includes_any(UNUSUAL) || tp_autograd::anomaly::is_on() || has_saved_hooks() {
        return Some(refused("is called where calls are captured, traced or steered"));
    }
    let (mut tensors, mut whole, mut floats) = (0, 0, 0);
    let mut no = None;
    call.for_each_tensor(|_, t| {
        tensors += 1;
        if t.dtype().is_float() {
            floats += 1
        } else {
            whole += 1
        }
        if t.is_pending() {
            return;
        }
        if t.is_fake() || t.is_batched() || !t.device().is_cpu() {
            no = Some("has an argument without data in CPU memory");
        } else if !t.storage().is_private() {
            no = Some("reads memory that others may write to");
        }
    });
    if call.args.iter().any(|arg| matches!(arg, Arg::Host(_))) {
        no = Some("takes an object of Python");
    }
    if tensors == 0 {
        no = Some("makes a tensor of its own");
    } else if def.pointwise.is_none() && tensors > 1 && whole > 0 {
        no = Some("may fail by the values of its arguments");
    } else if floats == 0 && divides(call.op.id(), def) {
        no = Some("may divide by zero");
    }
    no.map(refused)
}

/// Whether a pointwise op divides integers by integers.
fn divides(id: OpId, def: &OpDef) -> bool {
    static KNOWN: LazyLock<Mutex<HashMap<OpId, bool>>> = LazyLock::new(Mutex::default);
    let Some(expr) = &def.pointwise else { return false };
    *KNOWN.lock().entry(id).or_insert_with(|| {
        let whole = vec![ArgType::Tensor(DType::I64); expr.params()];
        expr.program(&whole).map_or(true, |program| !program.hazards().is_empty())
    })
}

/// Up to so many inputs one is found by looking at them all.
const FEW: usize = 16;

enum Shape {
    New,
    Views,
    /// Nothing is made.
    Itself,
    Other,
}

fn shape_of(call: &Call<'_>, outs: &FakeOuts) -> Shape {
    let is_new = |spec: &TensorSpec| {
        spec.device.is_cpu() && !symbols::any(&spec.sizes) && !symbols::any(&spec.strides)
    };
    let of_pending = |of: usize| call.tensor(of).is_ok_and(Tensor::is_pending);
    let all = |test: &dyn Fn(&FakeOut) -> bool| !outs.is_empty() && outs.iter().all(test);
    if all(&|out| match out {
        FakeOut::Spec(spec) => is_new(spec),
        FakeOut::List(specs) => specs.iter().all(is_new),
        _ => false,
    }) {
        Shape::New
    } else if all(&|out| matches!(out, FakeOut::View { of, .. } if of_pending(*of))) {
        Shape::Views
    } else if all(&|out| matches!(out, FakeOut::Same { of } if of_pending(*of))) {
        Shape::Itself
    } else {
        Shape::Other
    }
}

impl Segment {
    /// Which of the segment's tensors a pending one is.
    fn number_of(&self, t: &Tensor) -> Option<u32> {
        let (epoch, number) = ((t.trace_id() >> 32) as u32, t.trace_id() as u32);
        let made = self.made.get(number as usize)?;
        (epoch == self.epoch && made.tensor.same(t)).then_some(number)
    }

    /// Whether a tensor of the call waits for another segment.
    fn has_foreign(&self, call: &Call<'_>) -> bool {
        let mut found = false;
        call.for_each_tensor(|_, t| found |= t.is_pending() && self.number_of(t).is_none());
        found
    }

    fn append(
        &mut self,
        call: &Call<'_>,
        outs: &FakeOuts,
        location: Option<host::Location>,
        origin: &dyn Fn() -> Box<Origin>,
        rets: &mut Rets,
    ) -> Result<()> {
        let mut requires_grad = false;
        let differentiable = !matches!(call.def.grad, GradSpec::NotDifferentiable(_));
        call.for_each_tensor(|_, t| requires_grad |= t.requires_grad());
        requires_grad &= self.grad && differentiable;
        let args: Box<[Source]> = call.args.iter().map(|arg| self.source(arg)).collect();
        let mut made: SmallVec<[Out; 1]> = SmallVec::new();
        let (mut values, mut is_view) = (Rets::new(), false);
        for out in outs {
            let (out, value) = match out {
                FakeOut::Spec(spec) => {
                    let t = self.fresh(spec, requires_grad, origin)?;
                    (Out::New(self.made.len() as u32 - 1), Value::Tensor(t))
                }
                FakeOut::List(specs) => {
                    let first = self.made.len() as u32;
                    let fresh = |spec| self.fresh(spec, requires_grad, origin);
                    let list = specs.iter().map(fresh).collect::<Result<Box<[Tensor]>>>()?;
                    (Out::List(first..self.made.len() as u32), Value::Tensors(list))
                }
                FakeOut::View { of, layout } => {
                    is_view = true;
                    let t = call.tensor(*of)?.view(layout)?;
                    let t = self.made(t, requires_grad);
                    (Out::View(self.made.len() as u32 - 1, *of as u32), Value::Tensor(t))
                }
                FakeOut::Same { .. } | FakeOut::Value(_) => continue,
            };
            made.push(out);
            values.push(value);
        }
        self.steps.push(Step { op: call.op, args, outs: made, location, is_view });
        *rets = values;
        Ok(())
    }

    fn fresh(
        &mut self,
        spec: &TensorSpec,
        requires_grad: bool,
        origin: &dyn Fn() -> Box<Origin>,
    ) -> Result<Tensor> {
        let t = Tensor::pending(&spec.sizes, &spec.strides, spec.dtype, origin())?;
        Ok(self.made(t, requires_grad))
    }

    fn made(&mut self, t: Tensor, requires_grad: bool) -> Tensor {
        let requires_grad = requires_grad && t.dtype().is_float();
        t.set_trace_id(u64::from(self.epoch) << 32 | self.made.len() as u64);
        t.set_requires_grad(requires_grad);
        self.made.push(Made { tensor: t.clone(), requires_grad });
        t
    }

    fn source(&mut self, arg: &Arg<'_>) -> Source {
        match arg {
            Arg::Tensor(t) => self.tensor(t),
            Arg::Tensors(ts) => Source::List(ts.iter().map(|t| self.tensor(t)).collect()),
            Arg::OptTensors(ts) => {
                Source::Optional(ts.iter().map(|t| t.as_ref().map(|t| self.tensor(t))).collect())
            }
            Arg::Scalar(Scalar::Int(_) | Scalar::Float(_)) | Arg::Float(_) => {
                self.numbers.push(arg.to_value());
                Source::Number(self.numbers.len() as u32 - 1)
            }
            other => Source::Literal(other.to_value()),
        }
    }

    fn tensor(&mut self, t: &Tensor) -> Source {
        if let Some(number) = t.is_pending().then(|| self.number_of(t)).flatten() {
            return Source::Made(number);
        }
        let next = self.inputs.len();
        let found = match next {
            0..=FEW => self.inputs.iter().position(|input| input.tensor.same(t)),
            _ => self.known.get(&t.id()).map(|number| *number as usize),
        };
        let Some(number) = found else {
            if next == FEW {
                self.known = (0u32..).zip(&self.inputs).map(|(i, input)| (input.tensor.id(), i)).collect();
            }
            if next >= FEW {
                self.known.insert(t.id(), next as u32);
            }
            t.storage().set_awaited(true);
            self.inputs.push(Input { tensor: t.clone(), version: t.storage().version() });
            return Source::Input(next as u32);
        };
        Source::Input(number as u32)
    }
}
