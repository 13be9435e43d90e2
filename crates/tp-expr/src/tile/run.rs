//! The loop over tiles: where each operand's tile comes from, the steps, where the results go.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::Strided;
use super::compile::{MAX_INPUTS, Place, Step, TileKernel};
use super::gather::{Blocks, Collapsed, Direction, copy_block, copy_tile};
use crate::error::ExprError;
use crate::pool;
use crate::stream::{STREAM_BYTES, Stream};

/// The simple instructions, over all elements, that are worth waking another thread for: some 20 microseconds.
const PARALLEL_WORK: usize = 1 << 18;
/// So few elements run on the caller's stack, without the set-up of a call.
pub(super) const SMALL: usize = 64;
pub(super) const SMALL_PLACES: usize = 40;
pub(super) const SMALL_SLOTS: usize = 8;
/// Keeps slots from sharing their low address bits.
const SLOT_PADDING: usize = 192;

/// How an operand's tile is reached.
#[derive(Clone, Copy)]
enum Access {
    /// In place, in order.
    Direct,
    /// Contiguous, by way of a slot: the memory is an input's too.
    Staged,
    /// Contiguous and larger than the caches: by way of a slot, past them.
    Streamed,
    /// By way of a slot and strided copies; the operand's number in the collapsed shape.
    Strided(u16),
    /// One element for all.
    Uniform,
}

#[derive(Clone, Copy)]
struct Operand {
    ptr: *mut u8,
    width: usize,
    access: Access,
}

/// One call: operands in the order of the pointer table.
struct Call<'a> {
    kernel: &'a TileKernel,
    operands: SmallVec<[Operand; 6]>,
    /// The uniform inputs' elements, copied: an output may lie over them.
    uniform: SmallVec<[[u8; 8]; 4]>,
    /// Bit `i`: input `i` is uniform.
    uniform_inputs: u64,
    collapsed: Option<Collapsed>,
    /// The iteration space is walked by these instead of in order.
    blocks: Option<Blocks>,
}

// SAFETY: the pointers are only used for disjoint ranges of the iteration space; that they may be used from several
// threads at all is the contract of `run`.
unsafe impl Sync for Call<'_> {}

thread_local! {
    /// The slots of this thread, taken while a call runs.
    static SCRATCH: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

impl TileKernel {
    /// Runs over `n` elements: every output contiguous; input `k` contiguous, or one element for all where bit `k` of
    /// `scalars` is set. An output may be an input's memory if they coincide element by element.
    ///
    /// # Safety
    /// Every pointer must be valid for the elements it stands for, on this and other threads, until the call returns;
    /// nobody else writes them meanwhile.
    pub unsafe fn run_flat(
        &self,
        n: usize,
        inputs: &[*const u8],
        scalars: u64,
        outputs: &[*mut u8],
    ) -> Result<(), ExprError> {
        self.check_operands(inputs.len(), outputs.len())?;
        if n == 0 {
            return Ok(());
        }
        if n <= SMALL && self.is_small && !self.overlap(n, inputs, outputs) {
            return unsafe { self.run_small(n, inputs, scalars, outputs) };
        }
        let mut call = self.call();
        for (k, &ptr) in inputs.iter().enumerate() {
            let access = if scalars >> k & 1 != 0 { Access::Uniform } else { Access::Direct };
            call.operands.push(Operand { ptr: ptr as *mut u8, width: self.inputs[k].itemsize(), access });
        }
        for (k, &ptr) in outputs.iter().enumerate() {
            let width = self.outputs[k].itemsize();
            let access = call.output_access(ptr, width, n);
            call.operands.push(Operand { ptr, width, access });
        }
        unsafe { call.run(n) }
    }

    /// As [`TileKernel::run_flat`], for one output that overlaps no input, and as many operands as the program has.
    ///
    /// # Safety
    /// As for [`TileKernel::run_flat`]; the number of operands is right.
    #[inline]
    pub unsafe fn run_fresh(
        &self,
        n: usize,
        inputs: &[*const u8],
        scalars: u64,
        output: *mut u8,
    ) -> Result<(), ExprError> {
        if let [step] = &*self.steps
            && (1..=SMALL).contains(&n)
            && self.is_small
        {
            return unsafe { self.run_step(step, n, inputs, scalars, output) };
        }
        unsafe { self.run_flat(n, inputs, scalars, &[output]) }
    }

    /// The one step of a program.
    #[inline(always)]
    unsafe fn run_step(
        &self,
        step: &Step,
        n: usize,
        inputs: &[*const u8],
        scalars: u64,
        output: *mut u8,
    ) -> Result<(), ExprError> {
        let place = |place: Place| match inputs.get(usize::from(place)) {
            Some(&input) => input,
            None => self.constants[usize::from(place) - inputs.len() - 1].as_ptr(),
        };
        let by_zero = unsafe { (step.kernel)(output, step.args.map(place), step.uniform(scalars), n) };
        if by_zero { Err(ExprError::DivisionByZero) } else { Ok(()) }
    }

    /// Runs over an iteration shape. Strides are in elements, any sign, 0 to broadcast; outputs reach each element of
    /// theirs once. An output may be an input's memory if they coincide element by element.
    ///
    /// # Safety
    /// As for [`TileKernel::run_flat`], for every element the strides reach.
    pub unsafe fn run(
        &self,
        shape: &[usize],
        inputs: &[Strided<'_>],
        outputs: &[Strided<'_>],
    ) -> Result<(), ExprError> {
        self.check_operands(inputs.len(), outputs.len())?;
        if inputs.iter().chain(outputs).any(|operand| operand.strides.len() != shape.len()) {
            return Err(ExprError::Invalid("an operand's rank is not the iteration rank".to_owned()));
        }
        let n: usize = shape.iter().product();
        if n == 0 {
            return Ok(());
        }
        let all: SmallVec<[Strided<'_>; 6]> = inputs.iter().chain(outputs).copied().collect();
        // A program without outputs has nothing to do.
        if outputs.is_empty() {
            return Ok(());
        }
        let collapsed = Collapsed::new(shape, &all, inputs.len());
        let mut call = self.call();
        call.blocks = Blocks::new(&collapsed);
        for (k, operand) in all.iter().enumerate() {
            let is_input = k < inputs.len();
            let dtype = if is_input { self.inputs[k] } else { self.outputs[k - inputs.len()] };
            let width = dtype.itemsize();
            let access = if is_input && collapsed.is_uniform(k) {
                Access::Uniform
            } else if call.blocks.is_some() || !collapsed.is_contiguous(k) {
                Access::Strided(k as u16)
            } else if is_input {
                Access::Direct
            } else {
                call.output_access(operand.ptr, width, n)
            };
            call.operands.push(Operand { ptr: operand.ptr, width, access });
        }
        call.collapsed = Some(collapsed);
        let positions = call.blocks.as_ref().map_or(n, Blocks::positions);
        unsafe { call.run(positions) }
    }

    /// Whether an output's memory is an input's that a step may still read.
    #[inline]
    fn overlap(&self, n: usize, inputs: &[*const u8], outputs: &[*mut u8]) -> bool {
        // A single step reads each element before it writes it.
        self.steps.len() > 1
            && outputs.iter().zip(&self.outputs).any(|(&out, out_dtype)| {
                inputs.iter().zip(&self.inputs).any(|(&input, dtype)| {
                    let (out, input) = (out as usize, input as usize);
                    out < input + n * dtype.itemsize() && input < out + n * out_dtype.itemsize()
                })
            })
    }

    /// `run_flat` for at most `SMALL` elements and few places, with the slots on the stack.
    unsafe fn run_small(
        &self,
        n: usize,
        inputs: &[*const u8],
        scalars: u64,
        outputs: &[*mut u8],
    ) -> Result<(), ExprError> {
        if let ([step], [out]) = (&*self.steps, outputs) {
            return unsafe { self.run_step(step, n, inputs, scalars, *out) };
        }
        let mut slots = MaybeUninit::<[u64; SMALL * SMALL_SLOTS]>::uninit();
        let mut table = [std::ptr::null_mut::<u8>(); SMALL_PLACES];
        let operands = inputs.iter().map(|&ptr| ptr as *mut u8).chain(outputs.iter().copied());
        let constants = self.constants.iter().map(|c| c.as_ptr() as *mut u8);
        let places = operands.chain(constants);
        let mut count = 0;
        for (place, ptr) in table.iter_mut().zip(places) {
            *place = ptr;
            count += 1;
        }
        for (i, place) in table[count..].iter_mut().take(self.slots).enumerate() {
            *place = unsafe { (slots.as_mut_ptr() as *mut u64).add(i * SMALL) as *mut u8 };
        }
        if unsafe { self.run_steps(&table, scalars, n) } { Err(ExprError::DivisionByZero) } else { Ok(()) }
    }

    /// Runs every step over one tile; returns whether an integer was divided by zero.
    #[inline(always)]
    unsafe fn run_steps(&self, table: &[*mut u8], scalars: u64, n: usize) -> bool {
        for step in &self.steps {
            let args = step.args.map(|place| table[usize::from(place)] as *const u8);
            let out = table[usize::from(step.out)];
            if unsafe { (step.kernel)(out, args, step.uniform(scalars), n) } {
                return true;
            }
        }
        false
    }

    fn check_operands(&self, inputs: usize, outputs: usize) -> Result<(), ExprError> {
        if inputs == self.inputs.len() && outputs == self.outputs.len() {
            return Ok(());
        }
        let (want, got) = (self.inputs.len() + self.outputs.len(), inputs + outputs);
        Err(ExprError::Arity { what: "kernel".to_owned(), want, got })
    }

    fn call(&self) -> Call<'_> {
        Call {
            kernel: self,
            operands: SmallVec::new(),
            uniform: SmallVec::new(),
            uniform_inputs: 0,
            collapsed: None,
            blocks: None,
        }
    }
}

impl Call<'_> {
    /// How a contiguous output is written.
    fn output_access(&self, ptr: *mut u8, width: usize, n: usize) -> Access {
        let (start, bytes) = (ptr as usize, n * width);
        let overlaps = self.operands.iter().take(self.kernel.inputs.len()).any(|input| {
            let first = input.ptr as usize;
            matches!(input.access, Access::Direct) && start < first + n * input.width && first < start + bytes
        });
        match overlaps {
            true => Access::Staged,
            false if bytes >= STREAM_BYTES => Access::Streamed,
            false => Access::Direct,
        }
    }

    unsafe fn run(&mut self, n: usize) -> Result<(), ExprError> {
        for (k, operand) in self.operands.iter().enumerate() {
            if let Access::Uniform = operand.access {
                let mut element = [0; 8];
                unsafe { std::ptr::copy_nonoverlapping(operand.ptr, element.as_mut_ptr(), operand.width) };
                self.uniform.push(element);
                self.uniform_inputs |= 1 << (k % MAX_INPUTS);
            }
        }
        let kernel = self.kernel;
        let failed = AtomicBool::new(false);
        let body = |range: Range<usize>| {
            if unsafe { self.run_range(range) } {
                failed.store(true, Ordering::Relaxed);
            }
        };
        let grain = (PARALLEL_WORK / kernel.weight).max(1);
        pool::parallel_for(n, grain.next_multiple_of(self.tile()), body);
        if failed.into_inner() { Err(ExprError::DivisionByZero) } else { Ok(()) }
    }

    /// Positions of a tile.
    fn tile(&self) -> usize {
        if self.blocks.is_some() { Blocks::TILE } else { self.kernel.tile }
    }

    /// Returns whether an integer was divided by zero.
    unsafe fn run_range(&self, range: Range<usize>) -> bool {
        let kernel = self.kernel;
        let slot_bytes = (self.tile().min(range.len()) * kernel.width).next_multiple_of(64) + SLOT_PADDING;
        // A slot for each value that needs one, and for each operand: which of those do depends on the call.
        let words = slot_bytes * (kernel.slots + self.operands.len()) / 8 + 8;
        let mut scratch = SCRATCH.take();
        if scratch.len() < words {
            scratch.resize(words, 0);
        }
        let base = scratch.as_mut_ptr() as *mut u8;
        let base = unsafe { base.add(base.align_offset(64)) };
        let by_zero = unsafe { self.run_tiles(range, base, slot_bytes) };
        SCRATCH.set(scratch);
        by_zero
    }

    unsafe fn run_tiles(&self, range: Range<usize>, base: *mut u8, slot_bytes: usize) -> bool {
        let kernel = self.kernel;
        let count = self.operands.len();
        let slot = |i: usize| unsafe { base.add(i * slot_bytes) };
        let mut table: SmallVec<[*mut u8; 24]> = SmallVec::new();
        let mut uniform = self.uniform.iter();
        for (k, operand) in self.operands.iter().enumerate() {
            table.push(match operand.access {
                Access::Uniform => uniform.next().map_or(operand.ptr, |element| element.as_ptr() as *mut u8),
                Access::Direct => operand.ptr,
                Access::Staged | Access::Streamed | Access::Strided(_) => slot(k),
            });
        }
        table.extend(kernel.constants.iter().map(|c| c.as_ptr() as *mut u8));
        table.extend((0..kernel.slots).map(|i| slot(count + i)));

        let mut stream = self.streams().then(Stream::default);
        let mut start = range.start;
        while start < range.end {
            let n = match (&self.blocks, &self.collapsed) {
                (Some(blocks), Some(c)) => blocks.shape(c, start / Blocks::TILE).iter().product(),
                _ => (range.end - start).min(kernel.tile),
            };
            unsafe {
                self.enter_tile(&mut table, start, n);
                if kernel.run_steps(&table, self.uniform_inputs, n) {
                    return true;
                }
                self.leave_tile(&table, start, n, stream.as_mut());
            }
            start += self.tile();
        }
        false
    }

    /// Points direct operands at their tile and gathers the strided inputs.
    unsafe fn enter_tile(&self, table: &mut [*mut u8], start: usize, n: usize) {
        for (k, operand) in self.operands.iter().enumerate() {
            match operand.access {
                Access::Direct => table[k] = unsafe { operand.ptr.add(start * operand.width) },
                Access::Strided(_) if k < self.kernel.inputs.len() => unsafe {
                    self.copy_strided(Direction::Gather, k, table[k], start, n)
                },
                _ => {}
            }
        }
    }

    fn streams(&self) -> bool {
        self.operands.iter().any(|operand| matches!(operand.access, Access::Streamed))
    }

    /// Writes the outputs that are not written in place.
    unsafe fn leave_tile(&self, table: &[*mut u8], start: usize, n: usize, mut stream: Option<&mut Stream>) {
        for (k, operand) in self.operands.iter().enumerate().skip(self.kernel.inputs.len()) {
            match operand.access {
                Access::Staged => unsafe {
                    let memory = operand.ptr.add(start * operand.width);
                    std::ptr::copy_nonoverlapping(table[k], memory, n * operand.width);
                },
                Access::Streamed => {
                    if let Some(stream) = stream.as_mut() {
                        let memory = operand.ptr.wrapping_add(start * operand.width);
                        unsafe { stream.copy(table[k], memory, n * operand.width) };
                    }
                }
                Access::Strided(_) => unsafe { self.copy_strided(Direction::Scatter, k, table[k], start, n) },
                _ => {}
            }
        }
    }

    unsafe fn copy_strided(&self, direction: Direction, k: usize, tile: *mut u8, start: usize, n: usize) {
        let Operand { ptr, width, access } = self.operands[k];
        let (Access::Strided(number), Some(c)) = (access, &self.collapsed) else { return };
        let strides = &c.strides[usize::from(number)];
        match &self.blocks {
            None => unsafe { copy_tile(direction, &c.shape, strides, ptr, tile, width, start, n) },
            Some(blocks) => {
                let block = start / Blocks::TILE;
                let (offset, strides) = blocks.locate(c, strides, block);
                let shape = blocks.shape(c, block);
                unsafe {
                    let first = ptr.offset(offset * width as isize);
                    copy_block(direction, shape, strides, first, tile, width);
                }
            }
        }
    }
}
