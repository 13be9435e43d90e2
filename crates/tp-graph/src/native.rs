//! The native executor of pointwise regions: the region's scalar program as a tile kernel, over one flat loop where
//! the operands allow it.

use crate::backend::{Executor, NATIVE, Region};
use crate::region::{self, KernelLayout, Space};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use tp_dispatch::{CodegenMarker, Error, FallbackReason, Result, host};
use tp_expr::{DirectStep, Program, Strided, TileKernel};
use tp_tensor::{Tensor, TensorSpec, layout};

/// From this many elements on, a region runs without the host's lock.
pub(crate) const LONG: usize = 1 << 16;

#[derive(Clone)]
pub struct NativeKernel {
    kernel: Arc<TileKernel>,
    marker: Arc<CodegenMarker>,
    space: Space,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    /// See `Region::dividers`.
    dividers: Arc<[(String, Program)]>,
}

pub(crate) fn supports(region: &Region) -> std::result::Result<(), FallbackReason> {
    if region.device.is_cpu() {
        return Ok(());
    }
    let op = region.ops.first().cloned().unwrap_or_default();
    Err(FallbackReason::UnsupportedDevice { op, device: region.device.to_string() })
}

impl NativeKernel {
    pub fn compile(region: &Region) -> std::result::Result<NativeKernel, FallbackReason> {
        supports(region)?;
        let failed = |e: tp_expr::ExprError| FallbackReason::LoweringFailed {
            stage: "tile".into(),
            message: e.to_string(),
        };
        let kernel = TileKernel::compile(&region.program).map_err(failed)?;
        let marker = CodegenMarker {
            executor: NATIVE.into(),
            kernel: kernel_name(&region.ops).into(),
            proof: Some(format!("tile:{:032x}", region.program.fingerprint()).into()),
            device: region.device,
        };
        Ok(NativeKernel {
            kernel: Arc::new(kernel),
            marker: Arc::new(marker),
            space: region.space.clone(),
            inputs: region.inputs.clone(),
            outputs: region.outputs.clone(),
            dividers: region.dividers.clone(),
        })
    }

    /// The same program over the sizes that one run has. None where the inputs do not broadcast to the outputs.
    pub(crate) fn over(&self, inputs: &[&Tensor], outputs: Vec<TensorSpec>) -> Option<NativeKernel> {
        let inputs: Vec<TensorSpec> = inputs.iter().map(|t| TensorSpec::of(t)).collect();
        let sizes = &outputs.first()?.sizes;
        let fits = |s: &TensorSpec| layout::broadcast(sizes, &s.sizes).is_ok_and(|common| common == *sizes);
        if !inputs.iter().all(fits) || outputs.iter().any(|o| o.sizes != *sizes) {
            return None;
        }
        let space = region::space(sizes, &inputs);
        Some(NativeKernel {
            kernel: self.kernel.clone(),
            marker: self.marker.clone(),
            space,
            inputs,
            outputs,
            dividers: self.dividers.clone(),
        })
    }

    pub(crate) fn marker(&self) -> &Arc<CodegenMarker> {
        &self.marker
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    pub(crate) fn layout(&self) -> KernelLayout {
        self.space.layout()
    }

    /// Types of inputs and outputs.
    pub(crate) fn types(&self) -> (&[TensorSpec], &[TensorSpec]) {
        (&self.inputs, &self.outputs)
    }

    /// The number of elements, when the region is one flat loop.
    pub(crate) fn flat(&self) -> Option<usize> {
        match self.space {
            Space::Flat { n, .. } => Some(n),
            Space::Strided { .. } => None,
        }
    }

    /// Whether outputs may be inputs that they coincide with, element by element. A region that divides integers may need
    /// its inputs a second time, for its error.
    pub(crate) fn writes_over(&self) -> bool {
        self.flat().is_some() && self.dividers.is_empty()
    }

    /// This region as one instruction over few elements; `input` gives the number of the operand that a run will know
    /// input `k` by. None where it is more.
    pub(crate) fn direct(&self, input: impl Fn(usize) -> Option<u32>) -> Option<DirectStep> {
        match self.space {
            Space::Flat { n, scalars } => self.kernel.direct(n, scalars, input),
            Space::Strided { .. } => None,
        }
    }

    /// The outermost loop as pieces of whole rows: how many, and the elements of each. None where a piece would end
    /// within a row, or the region divides integers, whose errors name the op by running it as a whole.
    pub(crate) fn pieces(&self, row: usize) -> Option<(usize, usize)> {
        let (pieces, size) = match &self.space {
            Space::Flat { n, .. } => (n / row, row),
            Space::Strided { sizes, output, .. } => {
                let size = sizes.iter().skip(1).product::<usize>();
                let whole = size % row == 0 && output.first().copied() == isize::try_from(size).ok();
                (*sizes.first().filter(|_| whole)?, size)
            }
        };
        (self.dividers.is_empty() && pieces > 0).then_some((pieces, size))
    }

    /// Some pieces, written one behind the other to `out`, under whatever lock the caller holds.
    ///
    /// # Safety
    /// As `run_unchecked` for the inputs; `out` has room for the pieces, which are those that `pieces` counts.
    pub(crate) unsafe fn run_pieces(
        &self,
        inputs: &[&Tensor],
        pieces: Range<usize>,
        row: usize,
        out: *mut u8,
    ) -> Result<()> {
        let kernel = &self.kernel;
        let at = |t: &Tensor, element: isize| {
            t.data_ptr().cast_const().wrapping_offset(element * t.dtype().itemsize() as isize)
        };
        match &self.space {
            Space::Flat { scalars, .. } => {
                let first = |(k, t): (usize, &&Tensor)| match scalars >> k & 1 {
                    0 => at(t, (pieces.start * row) as isize),
                    _ => at(t, 0),
                };
                let work = Flat {
                    reads: inputs.iter().enumerate().map(first).collect(),
                    writes: [out].into_iter().collect(),
                };
                let count = pieces.len() * row;
                // SAFETY: the caller's promise; the tensors outlive the call.
                unsafe { work.run(kernel, count, *scalars)? };
            }
            Space::Strided { sizes, inputs: strides, output } => {
                let mut sizes: SmallVec<[usize; 6]> = sizes.as_slice().into();
                let first = |(t, s): (&&Tensor, &'_ Vec<isize>)| {
                    at(t, pieces.start as isize * s.first().copied().unwrap_or(0))
                };
                sizes[0] = pieces.len();
                let reads = inputs.iter().zip(strides);
                let reads =
                    reads.map(|(t, s)| Strided { ptr: first((t, s)).cast_mut(), strides: s }).collect();
                let writes = [Strided { ptr: out, strides: output }].into_iter().collect();
                let work = Nested { reads, writes };
                // SAFETY: likewise.
                unsafe { work.run(kernel, &sizes)? };
            }
        }
        Ok(())
    }

    /// One flat loop of few elements, with the addresses in hand.
    ///
    /// # Safety
    /// As `run_unchecked`; the region is one flat loop.
    #[inline]
    pub(crate) unsafe fn run_short(&self, reads: &[*const u8], write: *mut u8) -> Result<()> {
        let Space::Flat { n, scalars } = self.space else {
            return Err(Error::internal("TP9110", "not one loop"));
        };
        // SAFETY: the caller's promise.
        unsafe { self.run_loop(n, scalars, reads, write) }
    }

    /// As `run_short`, over `n` elements; bit `k` of `scalars` says that input `k` is one element for all.
    ///
    /// # Safety
    /// Inputs and output have so many elements of the region's dtypes; the output is no input's memory.
    #[inline]
    pub(crate) unsafe fn run_loop(
        &self,
        n: usize,
        scalars: u64,
        reads: &[*const u8],
        write: *mut u8,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.kernel.run_fresh(n, reads, scalars, write) }.map_err(|e| {
            // SAFETY: likewise, for scratch of the size of the output.
            self.blame(e, n, |part, out| unsafe { part.run_flat(n, reads, scalars, &[out]) })
        })
    }

    /// The error of a run, which names the op: of several that divide, the first that fails when it is run again,
    /// to outputs of its own.
    #[cold]
    fn blame(&self, e: tp_expr::ExprError, n: usize, rerun: impl Fn(&TileKernel, *mut u8) -> Ran) -> Error {
        let fails = |part: &Program| {
            let item = part.output_dtypes().map(|d| d.itemsize()).max().unwrap_or(0);
            let mut out = vec![0u64; (n * item).div_ceil(size_of::<u64>())];
            TileKernel::compile(part).is_ok_and(|k| rerun(&k, out.as_mut_ptr().cast()).is_err())
        };
        let at_fault = match &*self.dividers {
            _ if e != tp_expr::ExprError::DivisionByZero => None,
            [(op, _)] => Some(op),
            several => several.iter().find(|(_, part)| fails(part)).map(|(op, _)| op),
        };
        let error = Error::from(e);
        match at_fault {
            Some(op) => error.with_op(op.strip_suffix(".default").unwrap_or(op)),
            None => error,
        }
    }

    /// # Safety
    /// `inputs` have the region's types, element for element; `outputs` are fresh, contiguous, of the promised types.
    #[inline]
    pub(crate) unsafe fn run_unchecked(&self, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<()> {
        let kernel = &self.kernel;
        match &self.space {
            Space::Flat { n, scalars } => {
                let reads = inputs.iter().map(|t| t.data_ptr().cast_const()).collect();
                let work = Flat { reads, writes: outputs.iter().map(Tensor::data_ptr).collect() };
                // SAFETY: the caller's promise; the tensors outlive the call.
                let run = || unsafe { work.run(kernel, *n, *scalars) };
                let ran = if *n < LONG { run() } else { host::without_lock(run) };
                ran.map_err(|e| {
                    // SAFETY: likewise, for scratch of the size of the output.
                    self.blame(e, *n, |part, out| unsafe { part.run_flat(*n, &work.reads, *scalars, &[out]) })
                })
            }
            Space::Strided { sizes, inputs: strides, output } => {
                let reads = inputs
                    .iter()
                    .zip(strides)
                    .map(|(t, s)| Strided { ptr: t.data_ptr(), strides: s })
                    .collect();
                let writes = outputs.iter().map(|t| Strided { ptr: t.data_ptr(), strides: output }).collect();
                let work = Nested { reads, writes };
                // SAFETY: the caller's promise; strides and tensors outlive the call.
                let run = || unsafe { work.run(kernel, sizes) };
                let n = sizes.iter().product::<usize>();
                let ran = if n < LONG { run() } else { host::without_lock(run) };
                ran.map_err(|e| {
                    self.blame(e, n, |part, out| {
                        let write = Strided { ptr: out, strides: output };
                        // SAFETY: likewise, for scratch of the size of the output.
                        unsafe { part.run(sizes, &work.reads, &[write]) }
                    })
                })
            }
        }
    }
}

type Ran = std::result::Result<(), tp_expr::ExprError>;

/// Operands of one flat loop.
struct Flat {
    reads: SmallVec<[*const u8; 8]>,
    writes: SmallVec<[*mut u8; 2]>,
}

/// Operands of nested loops.
struct Nested<'a> {
    reads: SmallVec<[Strided<'a>; 8]>,
    writes: SmallVec<[Strided<'a>; 2]>,
}

// SAFETY: the host may run the work under another of its locks, but on this stack frame and before it goes on; the
// pointers are used by that one call, while the tensors behind them live.
unsafe impl Send for Flat {}
// SAFETY: as above.
unsafe impl Sync for Flat {}
// SAFETY: as above.
unsafe impl Send for Nested<'_> {}
// SAFETY: as above.
unsafe impl Sync for Nested<'_> {}

impl Flat {
    /// # Safety
    /// As `TileKernel::run_flat`.
    #[inline]
    unsafe fn run(&self, kernel: &TileKernel, n: usize, scalars: u64) -> Ran {
        // SAFETY: the caller's promise.
        unsafe { kernel.run_flat(n, &self.reads, scalars, &self.writes) }
    }
}

impl Nested<'_> {
    /// # Safety
    /// As `TileKernel::run`.
    unsafe fn run(&self, kernel: &TileKernel, sizes: &[usize]) -> Ran {
        // SAFETY: the caller's promise.
        unsafe { kernel.run(sizes, &self.reads, &self.writes) }
    }
}

impl Executor for NativeKernel {
    fn run(&self, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<Arc<CodegenMarker>> {
        check_operands(inputs, &self.inputs, outputs, &self.outputs)?;
        // SAFETY: just checked.
        unsafe { self.run_unchecked(inputs, outputs)? };
        Ok(self.marker.clone())
    }
}

/// An error unless the operands are those of the region.
pub(crate) fn check_operands(
    inputs: &[&Tensor],
    want: &[TensorSpec],
    outputs: &[Tensor],
    promised: &[TensorSpec],
) -> Result<()> {
    let fits = |t: &Tensor, s: &TensorSpec| fits(t, s) && !t.is_fake();
    let ok = inputs.len() == want.len()
        && outputs.len() == promised.len()
        && inputs.iter().zip(want).all(|(t, s)| fits(t, s))
        && outputs.iter().zip(promised).all(|(t, s)| fits(t, s));
    if ok {
        Ok(())
    } else {
        Err(Error::internal("TP9101", "a region was run with operands of other types than its own"))
    }
}

/// Dtype, device, sizes, and the strides that can be told apart.
#[inline]
pub(crate) fn fits(t: &Tensor, spec: &TensorSpec) -> bool {
    t.dtype() == spec.dtype
        && t.device() == spec.device
        && *t.sizes() == *spec.sizes
        && (*t.strides() == *spec.strides || same_places(t.sizes(), t.strides(), &spec.strides))
}

/// Strides that reach the same elements: those of dimensions of size one do not matter, nor any of an empty tensor.
fn same_places(sizes: &[i64], a: &[i64], b: &[i64]) -> bool {
    if layout::is_contiguous(sizes, a) && layout::is_contiguous(sizes, b) {
        return true;
    }
    sizes.contains(&0) || sizes.iter().zip(a).zip(b).all(|((n, x), y)| *n == 1 || x == y)
}

/// `mul+add`: the ops of a region without namespace and overload, shortened.
pub(crate) fn kernel_name(ops: &[String]) -> String {
    const SHOWN: usize = 6;
    let short = |op: &String| {
        let local = op.rsplit("::").next().unwrap_or(op);
        local.split('.').next().unwrap_or(local).to_string()
    };
    let mut name = ops.iter().take(SHOWN).map(short).collect::<Vec<_>>().join("+");
    if ops.len() > SHOWN {
        name.push_str(&format!("+{} more", ops.len() - SHOWN));
    }
    name
}
