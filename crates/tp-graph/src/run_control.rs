//! Control flow of a plan: the bool is read where it lies, and the block that it says runs as a plan of its own, over the
//! tensors of the plan around it. No result shares memory with an operand or with another result: what a block hands
//! through is copied.

use crate::control::Control;
use crate::plan::{Block, ControlStep};
use crate::run::{Frame, broken, tensor};
use crate::training::copy;
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::{CodegenMarker, ErrorKind, Result, Value, host};
use tp_tensor::{DType, Tensor};

type Tensors = SmallVec<[Tensor; 4]>;

/// The host may deliver an interrupt once in this many trips.
const POLL_EVERY: u64 = 64;

impl Frame<'_> {
    /// # Safety
    /// As `Plan::run`: the operands have the types that the blocks take.
    pub(crate) unsafe fn control(&mut self, step: &ControlStep) -> Result<()> {
        let mut operands = Tensors::new();
        for src in &step.operands {
            operands.push(tensor(self.inputs, self.slots, *src)?.clone());
        }
        let [first, second] = &*step.blocks else { return Err(broken()) };
        let results = match step.control {
            Control::Cond => {
                let pred = step.pred.ok_or_else(broken)?;
                let block = if truth(tensor(self.inputs, self.slots, pred)?)? { first } else { second };
                self.stamps.set(self.region, &block.marker);
                // SAFETY: the caller's promise.
                unsafe { self.block(block, &operands) }
            }
            // SAFETY: the caller's promise.
            Control::WhileLoop => unsafe { self.loop_over(first, second, operands.clone(), step.carried) },
        };
        let results = results.map_err(|e| match &step.location {
            Some(at) if e.kind() != ErrorKind::Host => {
                e.note(format!("in {} at {at}, in a compiled function", step.control.name()))
            }
            _ => e,
        })?;
        self.hand_out(step, &operands, results)
    }

    /// # Safety
    /// As `control`.
    unsafe fn block(&mut self, block: &Block, operands: &[Tensor]) -> Result<Tensors> {
        let inputs: SmallVec<[&Tensor; 8]> = operands.iter().collect();
        // Sizes that the block finds are its own: the next trip finds others.
        let mut sizes = self.sizes.clone();
        let around = self.stamps.enter(block.base);
        // SAFETY: the caller's promise.
        let ran = unsafe { block.plan.run(&inputs, self.stamps, &mut sizes) };
        self.stamps.leave(around);
        ran?.into_iter().map(|value| Value::into_tensor(value).ok_or_else(broken)).collect()
    }

    /// # Safety
    /// As `control`.
    unsafe fn loop_over(
        &mut self,
        cond: &Block,
        body: &Block,
        mut state: Tensors,
        carried: usize,
    ) -> Result<Tensors> {
        let mut trips = 0u64;
        loop {
            // SAFETY: what the body gives has the types of what it takes; the verifier holds it to that.
            let asked = unsafe { self.block(cond, &state)? };
            if !truth(asked.first().ok_or_else(broken)?)? {
                break;
            }
            // SAFETY: as above.
            let next = unsafe { self.block(body, &state)? };
            if next.len() != carried {
                return Err(broken());
            }
            state.iter_mut().zip(next).for_each(|(old, new)| *old = new);
            trips += 1;
            if trips.is_multiple_of(POLL_EVERY) {
                host::poll()?;
            }
        }
        let kernel = format!("tp::while_loop/{}", tp_tensor::counted(trips as usize, "trip"));
        let marker = CodegenMarker { kernel: kernel.into(), ..(*body.marker).clone() };
        self.stamps.set(self.region, &Arc::new(marker));
        state.truncate(carried);
        Ok(state)
    }

    /// Puts the results into their slots.
    fn hand_out(&mut self, step: &ControlStep, operands: &[Tensor], results: Tensors) -> Result<()> {
        if results.len() != step.outputs.len() {
            return Err(broken());
        }
        let mut given = Tensors::new();
        for (i, (result, out)) in results.into_iter().zip(&step.outputs).enumerate() {
            let is_shared = operands.iter().chain(&given).any(|t| t.shares_storage(&result));
            let own = if is_shared { copy(&result)? } else { result };
            given.push(own.clone());
            self.store(step.control.name(), i, own, out)?;
        }
        Ok(())
    }
}

/// The one element of a bool.
fn truth(t: &Tensor) -> Result<bool> {
    if t.dtype() != DType::Bool || t.numel() != 1 || !t.device().is_cpu() || t.is_fake() {
        return Err(broken());
    }
    // SAFETY: one readable byte, by the checks above.
    Ok(unsafe { t.data_ptr().cast::<u8>().read() } != 0)
}
