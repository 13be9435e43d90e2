//! Tensors that a captured function makes of data of the host: of numbers, of bytes, of an array's memory. The function
//! has a fake for each, and the graph an input for each that an op reads. A run gets the data that the first such op would
//! have read: itself where nothing can come of that, a copy where the run writes to it or gives it away.
//!
//! An input is one value in every run. So memory that the function can write to without an op, an array's, is copied when
//! an op first reads it, and has to be the same at each later use; and no op writes to it, since the function might look
//! into the array afterwards.

use super::branches::outermost;
use super::{Recorder, SCOPES, active};
use crate::entity::ValueId;
use crate::ir::{Graph, InputKind, ValueType};
use crate::passes::{Memory, Rewrite};
use std::collections::HashMap;
use tp_dispatch::host::{self, Location};
use tp_dispatch::{Arg, Call, Error, Registry, Result};
use tp_tensor::iter::LoopNest;
use tp_tensor::{Layout, Tensor, TensorError, TensorSpec, layout};

/// One tensor made of data.
struct Made {
    fake: Tensor,
    source: Tensor,
    /// Whether the memory is reached by others than its tensors.
    is_shared: bool,
    at: Option<Location>,
    used: Option<Used>,
}

/// What the first op that read it found.
struct Used {
    value: ValueId,
    /// Empty where nobody else can write.
    bytes: Vec<u8>,
    at: Option<Location>,
}

/// The tensors of one capture that were made of data, by the storage of their fakes.
#[derive(Default)]
pub(super) struct MadeTensors {
    list: Vec<Made>,
    by_storage: HashMap<usize, usize>,
}

/// What a captured function gets for `t`, which was just made of data: a fake, and `t` itself where nothing is captured.
/// `is_shared` says that others than its tensors can write to its memory.
#[inline]
pub fn made(t: Tensor, is_shared: bool) -> Result<Tensor> {
    if !active() || t.is_fake() { Ok(t) } else { stand_for(t, is_shared) }
}

#[cold]
fn stand_for(t: Tensor, is_shared: bool) -> Result<Tensor> {
    let Some(recorder) = SCOPES.with(|s| s.borrow().last().cloned()).map(outermost) else { return Ok(t) };
    if is_shared && !t.device().is_cpu() {
        let message = format!("a captured function shares memory of another library on '{}'", t.device());
        return Err(super::watch::refusal("TP4037", message).note("make the tensor outside of the function"));
    }
    let id = Recorder::next_fake_id();
    let fake = Tensor::fake(t.sizes(), t.strides(), t.dtype(), t.device(), id)?;
    let mut recorder = recorder.borrow_mut();
    let made = &mut recorder.made;
    made.by_storage.insert(fake.storage().id(), made.list.len());
    made.list.push(Made { fake: fake.clone(), source: t, is_shared, at: host::location(), used: None });
    Ok(fake)
}

/// The tensor with data that a captured function made and has `fake` for.
pub fn source(fake: &Tensor) -> Option<Tensor> {
    let recorder = SCOPES.with(|s| s.borrow().last().cloned()).map(outermost)?;
    let recorder = recorder.borrow();
    let made = recorder.made.list.iter().find(|made| made.fake.same(fake))?;
    if fake.requires_grad() {
        made.source.set_requires_grad(true);
    }
    Some(made.source.clone())
}

impl Recorder {
    /// An op, or the function's result, reads `fake`: an error where it was made over memory that is no longer as the graph
    /// has it.
    pub(super) fn use_made(&mut self, fake: &Tensor) -> Result<()> {
        if let Some(around) = self.around.as_ref().map(|around| around.recorder.clone()) {
            return around.borrow_mut().use_made(fake);
        }
        if self.made.list.is_empty() {
            return Ok(());
        }
        let Some(&i) = self.made.by_storage.get(&fake.storage().id()) else { return Ok(()) };
        let made = &self.made.list[i];
        let Some(used) = &made.used else { return self.use_first(i) };
        if !made.is_shared || bytes(&made.source)? == used.bytes {
            return Ok(());
        }
        let message = "a captured function wrote to the memory of an array between two uses of a tensor over it: a graph has one value for both";
        let e = Error::capture("TP4037", message);
        let e = noted(noted(e, "the tensor was made at", &made.at), "and read before at", &used.at);
        Err(self.refuse(noted(e, "and is read again at", &host::location()).note(COPY)))
    }

    fn use_first(&mut self, i: usize) -> Result<()> {
        let made = &self.made.list[i];
        let fake = made.fake.clone();
        let (held, bytes) = match made.is_shared {
            true => (copy(&made.source)?, bytes(&made.source)?),
            false => (made.source.clone(), Vec::new()),
        };
        let name = format!("lifted{}", self.lifted.len());
        let ty = ValueType::Tensor(TensorSpec::of(&fake));
        let value = self.builder.input(name, InputKind::Lifted, ty, None);
        self.name(value, &fake);
        self.lifted.push(held);
        self.lifted_grad.push(false);
        self.made.list[i].used = Some(Used { value, bytes, at: host::location() });
        Ok(())
    }

    /// An op that writes to an array's memory would do so in the runs alone, and into a copy.
    pub(super) fn check_shared(&mut self, call: &Call<'_>, args: &[Arg<'_>]) -> Result<()> {
        if let Some(around) = self.around.as_ref().map(|around| around.recorder.clone()) {
            return around.borrow_mut().check_shared(call, args);
        }
        let mut found = None;
        for &i in &call.def.params.written {
            let Some(arg) = args.get(i as usize) else { continue };
            arg.for_each_tensor(|t| found = found.or(self.made.by_storage.get(&t.storage().id()).copied()));
        }
        let Some(made) = found.map(|i| &self.made.list[i]).filter(|made| made.is_shared) else {
            return Ok(());
        };
        let message = "a captured function writes by an op to a tensor over the memory of an array: what it reads of the array would not show it";
        let e = noted(
            Error::capture("TP4037", message).with_op(call.op.name()),
            "the tensor was made at",
            &made.at,
        );
        Err(self.refuse(noted(e, "and is written to at", &host::location()).note(COPY)))
    }

    fn refuse(&mut self, e: Error) -> Error {
        self.refused.get_or_insert((e.code(), e.message().to_string(), e.notes().to_vec()));
        e
    }

    /// Which of the lifted tensors are the graph's own.
    pub(super) fn own_lifted(&self) -> Vec<bool> {
        let mut own = vec![false; self.lifted.len()];
        let graph = self.builder.graph();
        let lifted = graph.inputs.iter().filter(|input| input.kind == InputKind::Lifted);
        for (own, input) in own.iter_mut().zip(lifted) {
            *own = self.made.values().any(|v| v == input.value);
        }
        own
    }

    /// The graph with copies in front of everything, of tensors made of data that a run writes to, gives away, or shows to
    /// others; and how many there are.
    pub(super) fn with_copies(&self, graph: Graph) -> Result<(Graph, usize)> {
        if self.made.list.is_empty() {
            return Ok((graph, 0));
        }
        let memory = Memory::of(&graph);
        let op = Registry::global().lookup("tp::clone")?;
        let mut rewrite = Rewrite::new(&graph);
        let mut copies = 0;
        for made in &self.made.list {
            let Some(value) = made.used.as_ref().map(|used| used.value) else { continue };
            if !memory.is_written(value) && !memory.escapes(value) && !memory.is_shown(value) {
                continue;
            }
            if !made.fake.is_contiguous() {
                let message = "a tensor over the memory of an array that is not contiguous leaves a captured function: no run could make it anew";
                let e = noted(Error::capture("TP4037", message), "the tensor was made at", &made.at);
                return Err(e.note(COPY));
            }
            rewrite.copy(value, op, made.at.clone());
            copies += 1;
        }
        let graph = if copies == 0 { graph.clone() } else { rewrite.finish() };
        Ok((graph, copies))
    }
}

impl MadeTensors {
    fn values(&self) -> impl Iterator<Item = ValueId> {
        self.list.iter().filter_map(|made| made.used.as_ref()).map(|used| used.value)
    }
}

const COPY: &str = "tensorplay.tensor(array) copies, and may be written to by ops; or write to the array before the tensor is used";

fn noted(e: Error, what: &str, at: &Option<Location>) -> Error {
    match at {
        Some(at) => e.note(format!("{what} {at}")),
        None => e,
    }
}

/// The elements of a CPU tensor in a row.
fn bytes(t: &Tensor) -> Result<Vec<u8>> {
    let mut bytes = vec![0; t.nbytes()];
    // SAFETY: room for every element, in a row.
    unsafe { copy_elements(t, bytes.as_mut_ptr(), &layout::contiguous_strides(t.sizes())) };
    Ok(bytes)
}

/// A CPU tensor with the elements and the strides of `t`, in memory of its own.
pub(crate) fn copy(t: &Tensor) -> Result<Tensor> {
    let layout = Layout { offset: 0, ..t.layout() };
    let (low, high) = layout.extent().ok_or_else(|| TensorError::TooLarge(t.sizes().into()))?;
    let whole = Tensor::empty(&[high - low], t.dtype(), t.device())?;
    let out = whole.view_as(&Layout { offset: -low, ..layout }, t.dtype())?;
    // SAFETY: by its layout.
    unsafe { copy_elements(t, out.data_ptr(), out.strides()) };
    Ok(out)
}

/// Copies every element of `t`, bit by bit.
///
/// # Safety
/// From `to` on there is memory for a tensor of these strides.
unsafe fn copy_elements(t: &Tensor, to: *mut u8, strides: &[i64]) {
    let item = t.dtype().itemsize();
    let nest = LoopNest::new(t.sizes(), &[(t.sizes(), t.strides()), (t.sizes(), strides)]);
    let steps = [nest.inner_stride(0), nest.inner_stride(1)];
    let at = |base: *mut u8, element: i64| base.wrapping_offset(element as isize * item as isize);
    nest.for_each_row(|offsets, n| {
        let (from, to) = (at(t.data_ptr(), offsets[0]), at(to, offsets[1]));
        // SAFETY: both have a row of elements here.
        unsafe {
            if steps == [1, 1] {
                return std::ptr::copy_nonoverlapping(from, to, n as usize * item);
            }
            for k in 0..n {
                std::ptr::copy_nonoverlapping(at(from, k * steps[0]), at(to, k * steps[1]), item);
            }
        }
    });
}
