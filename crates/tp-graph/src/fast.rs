//! The short cut of a plan that is one flat native region of few elements: addresses are read, the result is made, and the
//! kernel runs, without slots and stamps. Not here: plans of several steps (`run`), and one instruction (`entry`).

use crate::native::{LONG, NativeKernel};
use crate::plan::{Exec, FusedStep, OutSrc, Plan, Src, Work};
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::Result;
use tp_tensor::{Tensor, TensorSpec};

/// One flat native region with one output, which is all the graph returns. Its inputs are the graph's.
pub(crate) struct Fast {
    /// At most `FAST_INPUTS`.
    pub inputs: Box<[u32]>,
    /// Position of an input of the output's sizes on the CPU: quicker to make the output from.
    pub like: Option<usize>,
    pub output: TensorSpec,
    pub kernel: Arc<NativeKernel>,
    /// Where each run finds the sizes: bit `k` says that input `k` is one element for all; the others have the sizes of
    /// the output.
    pub sized: Option<u64>,
}

pub(crate) const FAST_INPUTS: usize = 8;

/// The inputs of a graph by number.
pub(crate) trait Inputs {
    fn get(&self, i: usize) -> Result<&Tensor>;
}

impl Fast {
    /// Runs the one region of a plan; None where a run of these sizes is none of few elements in one loop.
    ///
    /// # Safety
    /// As `Plan::run`.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, inputs: &impl Inputs) -> Option<Result<Tensor>> {
        match self.sized {
            // SAFETY: the caller's promise.
            None => Some(unsafe { self.run_known(inputs) }),
            // SAFETY: likewise.
            Some(scalars) => unsafe { self.run_sized(inputs, scalars).transpose() },
        }
    }

    /// # Safety
    /// As `Plan::run`.
    #[inline(never)]
    unsafe fn run_sized(&self, inputs: &impl Inputs, scalars: u64) -> Result<Option<Tensor>> {
        let mut reads: SmallVec<[*const u8; FAST_INPUTS]> = SmallVec::new();
        let like = match self.like.and_then(|k| self.inputs.get(k)) {
            Some(&i) => inputs.get(i as usize)?,
            None => return Ok(None),
        };
        let n = like.numel() as usize;
        for (k, &i) in self.inputs.iter().enumerate() {
            let t = inputs.get(i as usize)?;
            // The guards say so much of the sizes; strides of symbolic sizes are looked at here.
            if scalars >> k & 1 == 0 && !(t.is_contiguous() && t.numel() as usize == n) {
                return Ok(None);
            }
            reads.push(t.data_ptr().cast_const());
        }
        if n == 0 || n >= LONG {
            return Ok(None);
        }
        let out = Tensor::empty_like_contiguous(like, self.output.dtype)?;
        // SAFETY: the operands are as the kernel takes them; the output is fresh.
        unsafe { self.kernel.run_loop(n, scalars, &reads, out.data_ptr())? };
        Ok(Some(out))
    }

    /// # Safety
    /// As `Plan::run`.
    #[inline(always)]
    unsafe fn run_known(&self, inputs: &impl Inputs) -> Result<Tensor> {
        let mut reads = [std::ptr::null(); FAST_INPUTS];
        let mut like = None;
        for (k, (read, &i)) in reads.iter_mut().zip(&self.inputs).enumerate() {
            let t = inputs.get(i as usize)?;
            if self.like == Some(k) {
                like = Some(t);
            }
            *read = t.data_ptr().cast_const();
        }
        let spec = &self.output;
        let out = match like {
            Some(t) => Tensor::empty_like_contiguous(t, spec.dtype)?,
            None => Tensor::empty(&spec.sizes, spec.dtype, spec.device)?,
        };
        // SAFETY: the caller's promise; the output is fresh.
        unsafe { self.kernel.run_short(&reads[..self.inputs.len()], out.data_ptr())? };
        Ok(out)
    }
}

/// The short cut of a plan that has one.
pub(crate) fn fast(plan: &Plan) -> Option<Fast> {
    let [step] = plan.steps.as_slice() else { return None };
    let [OutSrc::Tensor(Src::Slot(_))] = plan.outputs.as_slice() else { return None };
    let Work::Fused(FusedStep { inputs, outputs, with, .. }) = &step.work else { return None };
    let [output] = &**outputs else { return None };
    let (types, promise) = match with {
        Exec::Native(kernel) | Exec::Shaped { native: kernel, raw: None } => {
            (kernel.types().0, &output.promise)
        }
        _ => return None,
    };
    let same = |s: &TensorSpec| s.sizes == promise.sizes && s.device.is_cpu() && promise.device.is_cpu();
    let like = types.iter().position(same);
    let (kernel, sized) = match with {
        Exec::Native(kernel) if kernel.flat()? < LONG => (kernel, None),
        Exec::Shaped { native, .. } if !plan.shapes.as_ref()?.has_checks() => {
            let one = |s: &TensorSpec| s.sizes.iter().all(|size| *size == 1);
            if like.is_none() || !types.iter().all(|s| same(s) || one(s)) {
                return None;
            }
            let scalars = types.iter().rev().fold(0, |bits, s| bits << 1 | u64::from(!same(s)));
            (native, Some(scalars))
        }
        _ => return None,
    };
    if inputs.len() > FAST_INPUTS {
        return None;
    }
    let input = |s: &Src| if let Src::Input(i) = s { Some(*i) } else { None };
    let inputs: Box<[u32]> = inputs.iter().map(input).collect::<Option<_>>()?;
    Some(Fast { inputs, like, output: promise.clone(), kernel: kernel.clone(), sized })
}
