//! Compiled code at an address, called without the host: the packed calling convention of TVM-FFI, which is one
//! array of 16-byte cells. All unsafe facts about foreign code are stated here.
//!
//! Flat kernels get (inputs.., outputs.., lo, hi) over the elements; strided kernels get (inputs.., outputs.., lo, hi
//! over the outermost loop, the sizes of the other loops, then for each input its stride per loop, in elements).
//! Pointers are to element 0 of each operand. Nothing is called for zero elements. Outputs are fresh memory, so they
//! overlap no input. A guarded kernel gets one pointer more, before lo: to an int32 that it sets to 1 where it was asked
//! to divide an integer by zero (that element is then anything).

use crate::backend::{Executor, Region};
use crate::native::{LONG, NativeKernel, check_operands};
use crate::region::{KernelLayout, Space};
use smallvec::SmallVec;
use std::any::Any;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use tp_dispatch::{CodegenMarker, Error, FallbackReason, Result, host};
use tp_expr::pool;
use tp_tensor::{Tensor, TensorSpec};

/// One packed argument.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cell {
    type_index: i32,
    pad: u32,
    value: u64,
}

const NONE: i32 = 0;
const INT: i32 = 1;
const POINTER: i32 = 4;
/// The code of a call that divided an integer by zero.
const BY_ZERO: i32 = i32::MIN;

impl Cell {
    fn int(v: i64) -> Cell {
        Cell { type_index: INT, pad: 0, value: v as u64 }
    }

    fn pointer(p: *mut u8) -> Cell {
        Cell { type_index: POINTER, pad: 0, value: p as u64 }
    }
}

type PackedFn = unsafe extern "C" fn(*mut c_void, *const Cell, i32, *mut Cell) -> i32;

/// A kernel of one program and one loop pattern, for all sizes.
pub struct RawKernel {
    function: PackedFn,
    handle: usize,
    layout: KernelLayout,
    guarded: bool,
    cached: bool,
    /// See `on_one_thread`.
    whole: bool,
    marker: Arc<CodegenMarker>,
    /// Keeps the code loaded.
    _owner: Arc<dyn Any + Send + Sync>,
}

impl RawKernel {
    /// # Safety
    /// `address` is a function of the convention above for exactly the region's program and `layout`, callable from any
    /// thread with `handle` while `owner` lives.
    pub unsafe fn new(
        address: usize,
        handle: usize,
        layout: KernelLayout,
        marker: Arc<CodegenMarker>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> RawKernel {
        // SAFETY: the caller's promise.
        let function = unsafe { std::mem::transmute::<usize, PackedFn>(address) };
        RawKernel {
            function,
            handle,
            layout,
            guarded: false,
            cached: false,
            whole: false,
            marker,
            _owner: owner,
        }
    }

    /// The kernel as one that says whether it divided by zero: part of what `new` is promised.
    pub fn guarded(self, guarded: bool) -> RawKernel {
        RawKernel { guarded, ..self }
    }

    /// The kernel as one that was there before, in memory or on disk.
    pub fn cached(self, cached: bool) -> RawKernel {
        RawKernel { cached, ..self }
    }

    /// Long loops are not split over the pool.
    #[must_use]
    pub fn on_one_thread(self, whole: bool) -> RawKernel {
        RawKernel { whole, ..self }
    }

    pub fn is_cached(&self) -> bool {
        self.cached
    }

    pub fn marker(&self) -> &Arc<CodegenMarker> {
        &self.marker
    }
}

/// A raw kernel bound to the sizes of one region.
pub(crate) struct RawExecutor {
    kernel: Arc<RawKernel>,
    space: Space,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    /// Of a guarded kernel: runs again what divided by zero, for its error.
    native: Option<Box<NativeKernel>>,
}

impl RawExecutor {
    pub fn new(region: &Region, kernel: Arc<RawKernel>) -> std::result::Result<RawExecutor, FallbackReason> {
        let native = if kernel.guarded { Some(Box::new(NativeKernel::compile(region)?)) } else { None };
        let types = (&*region.inputs, &*region.outputs);
        RawExecutor::checked(kernel, region.layout, &region.space, types, native)
    }

    fn checked(
        kernel: Arc<RawKernel>,
        layout: KernelLayout,
        space: &Space,
        (inputs, outputs): (&[TensorSpec], &[TensorSpec]),
        native: Option<Box<NativeKernel>>,
    ) -> std::result::Result<RawExecutor, FallbackReason> {
        let Some(space) = space.for_kernel(kernel.layout, inputs.len()) else {
            let (got, wanted) = (kernel.layout.to_string(), layout.to_string());
            return Err(FallbackReason::Layout { value: "the region".into(), got, wanted });
        };
        Ok(RawExecutor { kernel, space, inputs: inputs.into(), outputs: outputs.into(), native })
    }

    /// The same for a kernel that came later than the native one of its region.
    pub fn bind(
        native: &NativeKernel,
        kernel: &Arc<RawKernel>,
    ) -> std::result::Result<RawExecutor, FallbackReason> {
        let again = kernel.guarded.then(|| Box::new(native.clone()));
        RawExecutor::checked(kernel.clone(), native.layout(), native.space(), native.types(), again)
    }

    /// The outermost extent, the elements per step of it, and the arguments behind the range.
    fn loops(&self) -> (usize, usize, SmallVec<[Cell; 16]>) {
        match &self.space {
            Space::Flat { n, .. } => (*n, 1, SmallVec::new()),
            Space::Strided { sizes, inputs, .. } => {
                let inner = sizes.iter().skip(1);
                let mut tail: SmallVec<[Cell; 16]> = inner.clone().map(|s| Cell::int(*s as i64)).collect();
                tail.extend(inputs.iter().flatten().map(|s| Cell::int(*s as i64)));
                (sizes.first().copied().unwrap_or(1), inner.product(), tail)
            }
        }
    }
}

/// The arguments of one call; chunks copy them and set their range.
struct Frame<'a> {
    kernel: &'a RawKernel,
    cells: SmallVec<[Cell; 24]>,
    /// Index of `lo`; `hi` follows.
    range: usize,
}

impl Frame<'_> {
    fn run(&self, range: Range<usize>) -> i32 {
        let mut cells = self.cells.clone();
        cells[self.range] = Cell::int(range.start as i64);
        cells[self.range + 1] = Cell::int(range.end as i64);
        let mut ret = Cell { type_index: NONE, pad: 0, value: 0 };
        let mut by_zero = 0_i32;
        if self.kernel.guarded {
            cells[self.range - 1] = Cell::pointer((&raw mut by_zero).cast());
        }
        // SAFETY: see `RawKernel::new`; the cells point to live operands of the region's types.
        let code = unsafe {
            (self.kernel.function)(
                self.kernel.handle as *mut c_void,
                cells.as_ptr(),
                cells.len() as i32,
                &mut ret,
            )
        };
        if code == 0 && by_zero != 0 { BY_ZERO } else { code }
    }
}

impl Executor for RawExecutor {
    fn run(&self, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<Arc<CodegenMarker>> {
        check_operands(inputs, &self.inputs, outputs, &self.outputs)?;
        let (outer, inner, tail) = self.loops();
        let total = outer * inner;
        if total > 0 {
            let mut cells: SmallVec<[Cell; 24]> =
                inputs.iter().map(|t| Cell::pointer(t.data_ptr())).collect();
            cells.extend(outputs.iter().map(|t| Cell::pointer(t.data_ptr())));
            if self.kernel.guarded {
                cells.push(Cell::pointer(std::ptr::null_mut()));
            }
            let range = cells.len();
            cells.extend([Cell::int(0), Cell::int(0)]);
            cells.extend(tail);
            let frame = Frame { kernel: &self.kernel, cells, range };
            let code = if total < LONG {
                frame.run(0..outer)
            } else {
                let grain = if self.kernel.whole { outer } else { (LONG / inner).max(1) };
                run_long(&frame, outer, grain)
            };
            if let (BY_ZERO, Some(native)) = (code, &self.native) {
                native.run(inputs, outputs)?;
            }
            if code != 0 {
                return Err(failed(&self.kernel, code));
            }
        }
        Ok(self.kernel.marker.clone())
    }
}

/// Splits the range over the pool, with the host's lock released. The first failure is kept.
fn run_long(frame: &Frame<'_>, outer: usize, grain: usize) -> i32 {
    let code = AtomicI32::new(0);
    host::without_lock(|| {
        pool::parallel_for(outer, grain, |range| {
            let got = frame.run(range);
            if got != 0 {
                let _ = code.compare_exchange(0, got, Ordering::Relaxed, Ordering::Relaxed);
            }
        });
    });
    code.into_inner()
}

#[cold]
fn failed(kernel: &RawKernel, code: i32) -> Error {
    Error::internal("TP9102", format!("the compiled kernel {} failed with code {code}", kernel.marker))
        .note("please report this program; backend=\"native\" runs it meanwhile")
}
