//! Sizes that depend on data: the context that a running fake rule asks for a fresh one. A context belongs to one call
//! on one thread, and ends with it; what its symbols stand for is kept by the capture in progress on that thread.

use crate::error::{Error, Result};
use crate::kernel::Call;
use crate::op::OpHandle;
use crate::value::{Arg, Rets, Value};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use tp_tensor::symbols::{self, Check, Misfit, Poly, Symbols};
use tp_tensor::{Dim, Tensor};

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Calls whose fake rule runs on this thread, innermost last.
    static RUNNING: RefCell<Vec<(FakeContext, bool)>> = const { RefCell::new(Vec::new()) };
}

/// The context of one run of a fake rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FakeContext {
    number: u64,
    op: OpHandle,
}

/// The context of the fake rule that runs on this thread; an error where none does.
pub fn context() -> Result<FakeContext> {
    let innermost = RUNNING.with(|r| r.borrow().last().map(|(context, _)| *context));
    innermost.ok_or_else(|| {
        Error::capture("TP4017", "no fake rule is running on this thread, so there is no context")
            .note("call get_ctx() inside a function given to register_fake")
    })
}

/// Whether a fake rule runs on this thread.
pub fn is_running() -> bool {
    RUNNING.with(|r| !r.borrow().is_empty())
}

impl FakeContext {
    pub fn op(self) -> OpHandle {
        self.op
    }

    /// A fresh size between `low` and `high`, which only a run of the kernel knows.
    pub fn new_size(self, low: i64, high: Option<i64>) -> Result<Dim> {
        let refuse = |code, message: &str| Error::capture(code, message).with_op(self.op.name());
        let on_meta =
            RUNNING.with(|r| r.borrow().iter().find(|(c, _)| *c == self).map(|(_, on_meta)| *on_meta));
        let Some(on_meta) = on_meta else {
            return Err(refuse("TP4017", "the call that this context belongs to is over")
                .note("call get_ctx() anew in each run of the fake rule, and on the thread that runs it"));
        };
        if low < 0 {
            let message = format!("min must not be negative, got {low}");
            return Err(Error::value("TP1170", message).with_op(self.op.name()));
        }
        if let Some(high) = high.filter(|high| *high < low) {
            let message = format!("max must not be less than min, got min={low} and max={high}");
            return Err(Error::value("TP1170", message).with_op(self.op.name()));
        }
        declare(self.op, on_meta, low, high)
    }
}

/// A fresh size between `low` and `high` for an output of a built-in op, whose rule needs no context.
pub fn size_for(call: &Call<'_>, low: i64, high: Option<i64>) -> Result<Dim> {
    declare(call.op, is_on_meta(call), low, high)
}

fn declare(op: OpHandle, on_meta: bool, low: i64, high: Option<i64>) -> Result<Dim> {
    match symbols::current() {
        Some(table) if !on_meta => Ok(table.declare(low, high)),
        _ => {
            let message = "the size of an output depends on data, and tensors on 'meta' never get any";
            Err(Error::capture("TP4018", message)
                .with_op(op.name())
                .note("call the op on real tensors, or capture it"))
        }
    }
}

fn is_on_meta(call: &Call<'_>) -> bool {
    let mut on_meta = false;
    call.for_each_tensor(|_, t| on_meta |= t.device().is_meta());
    on_meta
}

/// While a fake rule runs.
pub(super) struct Running {
    context: FakeContext,
    /// The table in force and how many symbols it had.
    before: Option<(std::sync::Arc<Symbols>, usize)>,
}

impl Running {
    pub fn new(call: &Call<'_>) -> Running {
        let context = FakeContext { number: NEXT.fetch_add(1, Ordering::Relaxed), op: call.op };
        RUNNING.with(|r| r.borrow_mut().push((context, is_on_meta(call))));
        Running { context, before: symbols::current().map(|s| (s.clone(), s.len())) }
    }

    /// A fresh symbol among the outputs is a size, or a number of times one, of some output: a run finds its value there.
    pub fn finish(self, rets: &Rets) -> Result<()> {
        let Some((table, before)) = &self.before else { return Ok(()) };
        if table.len() == *before {
            return Ok(());
        }
        let mut used: Vec<Poly> = Vec::new();
        for_each_tensor(rets, |t| {
            used.extend(t.sizes().iter().filter_map(|&d| table.poly(Dim::from_raw(d))))
        });
        for poly in &used {
            let mut hidden = None;
            poly.for_each_symbol(&mut |id| {
                let fresh = Dim::symbol(id).as_unbacked().is_some_and(|u| u as usize >= *before);
                if fresh && !used.iter().any(|p| p.linear(id).is_some()) {
                    hidden = hidden.or(Some(Dim::symbol(id)));
                }
            });
            if let Some(symbol) = hidden {
                let message = format!("no size of an output tells what {symbol} is in a run");
                return Err(Error::capture("TP4020", message)
                    .note("make it, or a multiple of it, the size of an axis of some output"));
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.with(|r| r.borrow_mut().retain(|(context, _)| *context != self.context));
    }
}

fn for_each_tensor(rets: &Rets, mut f: impl FnMut(&Tensor)) {
    for value in rets {
        match value {
            Value::Tensor(t) => f(t),
            Value::Tensors(ts) => ts.iter().for_each(&mut f),
            _ => {}
        }
    }
}

/// An output whose sizes contradict what was captured.
#[cold]
pub fn misfit(op: &str, output: usize, (axis, misfit): (usize, Misfit)) -> Error {
    let code = match &misfit {
        Misfit::Range { .. } => "TP3250",
        Misfit::Value { .. } => "TP3251",
        Misfit::Check { check, .. } => return failed_check(check, &misfit),
    };
    Error::contract(code, format!("axis {axis} of output {output} of the kernel has {misfit}"))
        .with_op(op)
        .note("the function was captured with what the fake rule said; mend the fake rule or the kernel")
}

/// A statement of `check` that a run does not confirm.
#[cold]
fn failed_check(check: &Check, misfit: &Misfit) -> Error {
    let error = match &check.message {
        Some(message) => Error::value("TP1171", message.to_string()).note(misfit.to_string()),
        None => Error::value("TP1171", misfit.to_string()),
    };
    match &check.at {
        Some((file, line)) => error.note(format!("checked at {file}:{line}")),
        None => error,
    }
}

/// Whether a number among the arguments is a symbolic size.
pub fn has_symbols(args: &[Arg<'_>]) -> bool {
    args.iter().any(|arg| match arg {
        Arg::Int(v) => symbols::given(&[*v]),
        Arg::Ints(vs) => symbols::given(vs),
        _ => false,
    })
}
