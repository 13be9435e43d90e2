//! Capture: a layer of the dispatcher that records calls instead of running them. While a `CaptureScope` lives,
//! every call of its thread passes the Capture key; the op's fake rule gives shapes, one node is appended, and the
//! caller gets tensors without data. Kernel bodies do not run, so an op is one opaque node however it is written.
//!
//! Tensors that the function reaches on its own (closures, attributes, constants) are lifted to inputs, one per
//! tensor, and kept alive. What the function asks and does beside ops is refused or guarded where the host reports it
//! (`watch`).

mod between;
mod bound;
mod branches;
pub mod control;
mod control_gradient;
mod known;
mod made;
mod recorder;
pub mod watch;

pub use between::Between;
pub use branches::select;
pub(crate) use made::copy;
pub use made::{made, source};
pub use recorder::Recorder;
pub(crate) use recorder::literal;

use crate::ir::{Graph, InputKind, Operand};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tp_autograd::tape::SavedHooksOff;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::state::{self, KeyGuard};
use tp_dispatch::{Arg, Call, DispatchKey, Error, KeySet, Registry, Result, Rets, Value, fake};
use tp_tensor::symbols::{self, Entered, Symbols};
use tp_tensor::{Tensor, TensorSpec};

thread_local! {
    static SCOPES: RefCell<Vec<Rc<RefCell<Recorder>>>> = const { RefCell::new(Vec::new()) };
}

/// Makes the Capture key record. Called once, at start-up.
pub fn install() {
    Registry::global().install_layer(DispatchKey::Capture, capture_kernel);
    crate::segments::install();
    symbols::located_by(|| tp_dispatch::host::location().map(|at| (at.file, at.line)));
}

/// True while calls of this thread are being captured. Inside a kernel or a fake rule they are not.
#[inline]
pub fn active() -> bool {
    state::includes(DispatchKey::Capture)
}

/// One capture in progress on this thread; the innermost one records.
pub struct CaptureScope {
    recorder: Rc<RefCell<Recorder>>,
    _keys: KeyGuard,
    /// Sizes that depend on data are symbols of this capture while it lasts.
    _symbols: Entered,
    /// The caller's hooks on saved tensors are for the tensors of a run.
    _hooks: SavedHooksOff,
    modes: watch::Modes,
}

/// A finished capture.
pub struct Captured {
    pub graph: Graph,
    /// The tensors behind the inputs of kind `Lifted`, in order.
    pub lifted: Vec<Tensor>,
    /// Which of those the function made, and the graph alone holds.
    pub own: Vec<bool>,
    /// Nodes in front that copy such tensors.
    pub copies: usize,
}

impl CaptureScope {
    pub fn begin() -> CaptureScope {
        CaptureScope::over(Symbols::new())
    }

    /// A capture whose symbolic sizes are in `table`.
    pub fn over(table: Arc<Symbols>) -> CaptureScope {
        let recorder = Rc::new(RefCell::new(Recorder::new(table.clone())));
        SCOPES.with(|s| s.borrow_mut().push(recorder.clone()));
        let keys = KeyGuard::new(DispatchKey::Capture.set(), KeySet::EMPTY);
        CaptureScope {
            recorder,
            _keys: keys,
            _symbols: symbols::enter(table),
            _hooks: SavedHooksOff::enter(),
            modes: watch::Modes::now(),
        }
    }

    /// A fake that stands for `like`, as an input of the graph. It requires a gradient if `like` does.
    pub fn input(&self, like: &Tensor, name: &str, kind: InputKind) -> Result<Tensor> {
        self.recorder.borrow_mut().input(like, TensorSpec::of(like), name, kind)
    }

    pub fn recorder(&self) -> std::cell::RefMut<'_, Recorder> {
        self.recorder.borrow_mut()
    }

    /// Ends the capture with what the function returned.
    pub fn finish(self, outputs: &[Value]) -> Result<Captured> {
        let operands = self.outputs(outputs)?;
        self.close(operands)
    }

    /// What the function returned, as operands; an error where it did what no run would do.
    pub fn outputs(&self, outputs: &[Value]) -> Result<Vec<Operand>> {
        let changed_at = self.recorder.borrow().mode_changed_at.clone();
        self.modes.restore(changed_at.as_deref())?;
        self.recorder.borrow_mut().outputs(outputs)
    }

    /// Ends the capture with operands found before.
    pub fn close(self, outputs: Vec<Operand>) -> Result<Captured> {
        self.recorder.borrow_mut().take(outputs)
    }
}

impl Drop for CaptureScope {
    fn drop(&mut self) {
        SCOPES.with(|s| s.borrow_mut().retain(|r| !Rc::ptr_eq(r, &self.recorder)));
    }
}

/// Captures `f` over fakes of the tensor arguments; other arguments are passed as they are.
pub fn capture_graph(
    args: &[Arg<'_>],
    names: &[Arc<str>],
    f: &mut dyn FnMut(&[Value]) -> Result<Vec<Value>>,
) -> Result<Captured> {
    let scope = CaptureScope::begin();
    let inputs = fake_inputs(&scope, args, names)?;
    let outputs = f(&inputs)?;
    scope.finish(&outputs)
}

/// Fakes for the tensors among the arguments, the rest unchanged.
pub fn fake_inputs(scope: &CaptureScope, args: &[Arg<'_>], names: &[Arc<str>]) -> Result<Vec<Value>> {
    fake_inputs_as(scope, args, names, &|_, t| TensorSpec::of(t))
}

/// The same with the types that `spec` gives them.
pub(crate) fn fake_inputs_as(
    scope: &CaptureScope,
    args: &[Arg<'_>],
    names: &[Arc<str>],
    spec: &dyn Fn(usize, &Tensor) -> TensorSpec,
) -> Result<Vec<Value>> {
    args.iter()
        .enumerate()
        .map(|(i, arg)| match arg {
            Arg::Tensor(t) => {
                let name = names.get(i).map_or_else(|| format!("arg{i}"), |n| n.to_string());
                let mut recorder = scope.recorder.borrow_mut();
                recorder.input(t, spec(i, t), &name, InputKind::Argument).map(Value::Tensor)
            }
            other => Ok(other.to_value()),
        })
        .collect()
}

/// The kernel of the Capture layer, for every op.
fn capture_kernel(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let Some(recorder) = SCOPES.with(|s| s.borrow().last().cloned()) else {
        return Err(escaped(call.op.name()));
    };
    record(&recorder, call, rets).map_err(located)
}

fn located(e: Error) -> Error {
    match tp_dispatch::host::location() {
        Some(at) if e.kind() == tp_dispatch::ErrorKind::Capture => e.note(format!("captured at {at}")),
        _ => e,
    }
}

/// Why a Function of the host language, which is no op, cannot run where an op would be captured.
#[cold]
pub fn refuse_function(name: &str) -> Error {
    if SCOPES.with(|s| s.borrow().is_empty()) {
        return escaped(name);
    }
    let message = "a Function has no schema and no fake rule: a graph cannot hold it";
    located(Error::capture("TP4006", message).with_op(name))
        .note("write it as an operator: library.custom_op with register_fake and register_autograd")
}

fn record(recorder: &RefCell<Recorder>, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    // The keys of fakes do not tell their devices apart.
    tp_dispatch::dispatcher::check_devices(call.op, call.def, call.args)?;
    let bound = recorder.borrow_mut().bind(call)?;
    // The fake rule may be foreign code: nothing is borrowed while it runs.
    let mut next_id = Recorder::next_fake_id;
    *rets = if bound.has_twins() {
        let args = bound.args(call);
        let call = Call { args: &args, host: HostArgs::NONE, ..*call };
        fake::materialize_fakes(&call, &mut next_id)?
    } else {
        fake::materialize_fakes(call, &mut next_id)?
    };
    recorder.borrow_mut().append(call, bound, rets)
}

#[cold]
fn escaped(op: &str) -> Error {
    outside("a tensor without data was used outside of the capture that made it").with_op(op)
}

/// The error of a read by `by` where this thread captures nothing and runs no fake rule: the tensor was kept.
#[cold]
pub fn read_outside(by: &str) -> Option<Error> {
    let inside = SCOPES.with(|s| !s.borrow().is_empty()) || fake::dynamic::is_running();
    let message = || format!("a tensor without data was read outside of the capture that made it, by {by}");
    (!inside).then(|| located(outside(message())))
}

fn outside(message: impl Into<String>) -> Error {
    Error::capture("TP4012", message)
        .note("do not keep tensors in globals or attributes while a function is being captured; return them")
}
