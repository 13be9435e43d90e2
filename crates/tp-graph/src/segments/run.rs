//! Running what was written down: piece by piece, compiled where it can be, step by step otherwise; then the pending
//! tensors are filled.

use super::cut::Cut;
use super::queue::{Out, Run, Segment, Source, Step};
use super::replay::{self, Piece, lost};
use super::store::Core;
use crate::compile::Built;
use crate::last;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tp_autograd::meta;
use tp_dispatch::{Arg, Error, ErrorKind, FallbackReason, Result, Rets, Value, state};
use tp_tensor::Tensor;

pub(super) fn run(run: &Run, segment: Segment) -> Result<()> {
    check_versions(&segment)?;
    let cut = Cut::of(&segment);
    let _casts = Casts(state::set_autocast(0));
    let _modes = state::plainly(segment.grad);
    let mut failed = None;
    for range in &cut.pieces {
        let steps = &segment.steps[range.clone()];
        let piece = Piece::new(&segment, steps, cut.results(steps));
        if !piece.results.is_empty() {
            let (values, error) = results(run, &piece)?;
            failed = failed.or(error);
            for (n, value) in piece.results.iter().zip(values) {
                fill(&segment.made[*n as usize].tensor, &value.into_tensor().ok_or_else(lost)?)?;
            }
        }
        views(&segment, steps, &cut)?;
    }
    failed.map_or(Ok(()), Err)
}

/// The autocast that the user entered meanwhile is not for calls that were made before.
struct Casts(u32);

impl Drop for Casts {
    fn drop(&mut self) {
        state::set_autocast(self.0);
    }
}

/// Ops of any thread that write run after what is pending and reads the memory; other ways of writing may be unknown.
fn check_versions(segment: &Segment) -> Result<()> {
    let written = |input: &&super::queue::Input| input.tensor.storage().version() != input.version;
    let Some(input) = segment.inputs.iter().find(written) else { return Ok(()) };
    let message =
        format!("{:?} was written to, and by no op, before a segment that reads it had run", input.tensor);
    Err(Error::capture("TP4042", message)
        .note("let the writer wait for the call of the compiled function, or clone() the tensor in it"))
}

/// What a piece gives, and an error that came up though it has.
fn results(run: &Run, piece: &Piece<'_>) -> Result<(Vec<Value>, Option<Error>)> {
    let key = piece.key();
    let (reason, error) = match run.store.core(&key) {
        Core::Known(core) => match compiled(run, &core, piece) {
            Ok(Ok(rets)) => return Ok((rets.into_vec(), None)),
            Ok(Err(reason)) => (reason, None),
            // An interrupt and a forbidden fallback hold; whatever else the compiler met is no concern of a program that
            // runs without it.
            Err(e) => {
                let message = e.message().to_string();
                let reason = FallbackReason::LoweringFailed { stage: "segment".into(), message };
                let holds = matches!(e.kind(), ErrorKind::Host | ErrorKind::Fallback);
                if !holds {
                    run.store.give_up(&key, reason.clone());
                }
                (reason, holds.then_some(e))
            }
        },
        Core::None(reason) => (reason, None),
    };
    run.parts.lock().push(run.store.eager_part(&reason, piece.steps));
    Ok((piece.replay(&piece.args)?, error))
}

/// What the piece gives; a reason where it has to run step by step.
fn compiled(
    run: &Run,
    core: &Arc<crate::CompiledFunction>,
    piece: &Piece<'_>,
) -> Result<std::result::Result<Rets, FallbackReason>> {
    let args: Vec<Arg<'_>> = piece.args.iter().map(Value::as_arg).collect();
    let mut rets = Rets::new();
    if core.call(&args, &mut rets)?.is_none() {
        run.has_built.store(true, Ordering::Relaxed);
        let built = core.build(&args, &piece.names(), &[], &mut |fakes: &[Value]| {
            Ok((piece.replay(fakes)?, Box::new(())))
        })?;
        match built {
            Built::Entry(entry) => {
                run.store.built(core, &entry);
                if !entry.run(&args, &mut rets)? {
                    let message = "something was registered for one of its ops meanwhile".into();
                    return Ok(Err(FallbackReason::LoweringFailed { stage: "segment".into(), message }));
                }
            }
            Built::Eager(reason) => return Ok(Err(reason)),
        }
    }
    run.parts.lock().extend(last::of(core.id()));
    Ok(Ok(rets))
}

/// Views that are needed are made by their ops of what they are views of, as they would have been.
fn views(segment: &Segment, steps: &[Step], cut: &Cut) -> Result<()> {
    for step in steps.iter().filter(|step| step.is_view) {
        let mut numbers = step.outs.iter().flat_map(Out::numbers);
        if !numbers.any(|n| cut.needed[n as usize]) {
            continue;
        }
        let value = |source: &Source| match source {
            Source::Made(n) => Ok(Value::Tensor(segment.made[*n as usize].tensor.clone())),
            Source::Input(n) => Ok(Value::Tensor(segment.inputs[*n as usize].tensor.clone())),
            Source::Number(n) => Ok(segment.numbers[*n as usize].clone()),
            Source::Literal(value) => Ok(value.clone()),
            Source::List(_) | Source::Optional(_) => Err(lost()),
        };
        let values = step.args.iter().map(value).collect::<Result<Vec<Value>>>()?;
        let mut rets = Rets::new();
        replay::call(step, &values, &mut rets)?;
        for (n, made) in step.outs.iter().flat_map(Out::numbers).zip(rets) {
            fill(&segment.made[n as usize].tensor, &made.into_tensor().ok_or_else(lost)?)?;
        }
    }
    Ok(())
}

fn fill(pending: &Tensor, real: &Tensor) -> Result<()> {
    // SAFETY: the lock of the host is held, and no call of an op is under way but the one that waits for this.
    if !unsafe { pending.fill(real) } {
        return Err(lost());
    }
    meta::take_over(pending, real);
    Ok(())
}
