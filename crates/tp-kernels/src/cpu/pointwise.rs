//! Elementwise functions over whole tensors: promotes, broadcasts, and runs the tile kernel that a scalar
//! expression compiles to for these dtypes. Compiled kernels are kept in a table per function, indexed by the
//! dtypes of the tensors and the kinds of the numbers, so that nothing is hashed on the way.

use crate::cpu::copy;
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};
use tp_dispatch::host::{HostVisitor, without_lock};
use tp_dispatch::kernel::KernelObject;
use tp_dispatch::{Arg, Call, Error, Result, Rets, Short, Value};
use tp_expr::tile::Strided;
use tp_expr::{ArgType, ExprError, ScalarExpr, Stand, TileKernel};
use tp_tensor::dtype::Category;
use tp_tensor::iter::broadcast_strides;
use tp_tensor::{DType, Device, Dims, Scalar, Tensor, layout};

/// Above this many elements a kernel runs without the interpreter lock.
pub const UNLOCK: i64 = 1 << 16;

/// A scalar expression and the kernels it has compiled to so far.
pub struct Elementwise {
    expr: Arc<ScalarExpr>,
    /// Number of operands, which are all the arguments.
    operands: usize,
    /// A slot per combination of operand types; see `index`.
    compiled: OnceLock<Box<[OnceLock<Compiled>]>>,
}

pub struct Compiled {
    pub kernel: TileKernel,
    pub out: DType,
    /// May give an error half-way (integer division by zero).
    pub can_fail: bool,
}

/// Types an operand can have: the dtypes of tensors, then the kinds of numbers.
const VARIANTS: usize = DType::COUNT + 3;

impl Elementwise {
    pub fn new(expr: Arc<ScalarExpr>) -> Elementwise {
        Elementwise { operands: expr.params(), expr, compiled: OnceLock::new() }
    }

    fn index(args: &[Arg<'_>]) -> usize {
        args.iter().fold(0, |index, arg| {
            let variant = match arg {
                Arg::Tensor(t) => t.dtype() as usize,
                number => DType::COUNT + category(number) as usize,
            };
            index * VARIANTS + variant
        })
    }

    /// The kernel for the types of these operands.
    pub fn compiled(&self, args: &[Arg<'_>]) -> Result<&Compiled> {
        if args.len() != self.operands {
            return Err(Error::internal("TP9003", format!("{} operands for '{}'", args.len(), self.expr)));
        }
        self.compiled_at(Self::index(args), || arg_types(args))
    }

    /// The kernel of slot `index`, which is for these types.
    #[inline]
    fn compiled_at(&self, index: usize, types: impl FnOnce() -> SmallVec<[ArgType; 4]>) -> Result<&Compiled> {
        let slots = || (0..VARIANTS.pow(self.operands as u32)).map(|_| OnceLock::new()).collect();
        let slot = &self.compiled.get_or_init(slots)[index];
        if let Some(compiled) = slot.get() {
            return Ok(compiled);
        }
        let program = self.expr.program(&types())?;
        let kernel = TileKernel::compile(&program)?;
        let (out, can_fail) = (kernel.outputs()[0], !program.hazards().is_empty());
        Ok(slot.get_or_init(|| Compiled { kernel, out, can_fail }))
    }

    /// The function over whole tensors: a fresh contiguous tensor of the broadcast shape.
    pub fn apply(&self, args: &[Arg<'_>]) -> Result<Tensor> {
        if args.iter().filter_map(Arg::tensor).any(is_scattered) {
            return self.apply_gathered(args);
        }
        let compiled = self.compiled(args)?;
        let operands = Operands::bind(args, &compiled.kernel)?;
        if operands.misfit {
            return self.apply_misfits(args);
        }
        Self::run(compiled, &operands)
    }

    fn run(compiled: &Compiled, operands: &Operands<'_>) -> Result<Tensor> {
        let shape = broadcast_shape(operands.tensors.iter().flatten().copied())?;
        let out = Tensor::empty(&shape, compiled.out, Device::CPU)?;
        // SAFETY: the output is fresh and of the broadcast shape.
        unsafe { operands.run(&compiled.kernel, &out)? };
        Ok(out)
    }

    /// As `apply`, where a number does not fit the dtype that it joins: with what it stands for.
    #[cold]
    fn apply_misfits(&self, args: &[Arg<'_>]) -> Result<Tensor> {
        let mut args: SmallVec<[Arg<'_>; 4]> = args.into();
        let mut types = arg_types(&args);
        let mut index = 0;
        for (k, stand) in self.expr.misfits(&number_types(&args))? {
            match stand {
                Stand::Wide(_) => types[k] = ArgType::Tensor(DType::I64),
                Stand::Bound(v) => args[k] = Arg::Scalar(Scalar::Int(v)),
            }
        }
        for kind in &types {
            let variant = match *kind {
                ArgType::Tensor(dtype) => dtype as usize,
                ArgType::Weak(category) => DType::COUNT + category as usize,
                ArgType::Const(number) => DType::COUNT + number.category() as usize,
            };
            index = index * VARIANTS + variant;
        }
        let compiled = self.compiled_at(index, || types)?;
        let operands = Operands::bind(&args, &compiled.kernel)?;
        if operands.misfit {
            return Err(Error::internal("TP9003", format!("numbers without a dtype for '{}'", self.expr)));
        }
        Self::run(compiled, &operands)
    }

    /// Refuses numbers that do not fit: where a result is written back there is nothing to widen.
    #[cold]
    pub fn refuse_misfits(&self, args: &[Arg<'_>]) -> Result<()> {
        self.expr.misfits(&number_types(args)).map(drop).map_err(Into::into)
    }

    /// As `apply`, with contiguous copies of the operands that are large and walk memory in the wrong order: the
    /// copy works in blocks, a tile would fetch a cache line for every element.
    #[cold]
    fn apply_gathered(&self, args: &[Arg<'_>]) -> Result<Tensor> {
        let mut copies: SmallVec<[Tensor; 4]> = SmallVec::new();
        for t in args.iter().filter_map(Arg::tensor).filter(|t| is_scattered(t)) {
            copies.push(copy::contiguous(t)?);
        }
        let mut next = copies.iter();
        let replaced: SmallVec<[Arg<'_>; 4]> = args
            .iter()
            .map(|arg| match arg.tensor().filter(|t| is_scattered(t)).and_then(|_| next.next()) {
                Some(copy) => Arg::Tensor(copy),
                None => *arg,
            })
            .collect();
        self.apply(&replaced)
    }
}

/// The kernel of a pointwise row.
pub struct PointwiseKernel {
    pub function: Elementwise,
    pub short: Option<Short>,
}

impl PointwiseKernel {
    fn apply(&self, call: &Call<'_>) -> Result<Tensor> {
        self.function.apply(call.args).map_err(|e| e.with_op(call.op.name()))
    }
}

impl KernelObject for PointwiseKernel {
    fn call(&self, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        rets.push(Value::Tensor(self.apply(call)?));
        Ok(())
    }

    fn one(&self, call: &Call<'_>) -> Option<Result<Tensor>> {
        Some(self.apply(call))
    }

    fn short(&self) -> Option<Short> {
        self.short
    }

    fn trace(&self, _: &mut HostVisitor<'_>) {}
}

fn category(number: &Arg<'_>) -> Category {
    number.scalar().map_or(Category::Float, |s| s.category())
}

/// The operand types for the expression's dtype rule.
pub fn arg_types(args: &[Arg<'_>]) -> SmallVec<[ArgType; 4]> {
    let one = |arg: &Arg<'_>| match arg {
        Arg::Tensor(t) => ArgType::Tensor(t.dtype()),
        number => ArgType::Weak(category(number)),
    };
    args.iter().map(one).collect()
}

/// Refuses numbers that become values of a dtype which does not hold them, as the kernel will.
pub fn check_numbers(expr: &ScalarExpr, args: &[Arg<'_>]) -> Result<()> {
    // Integers of 64 bits hold every number that gets here, and floats take every one.
    let narrow = |t: &Tensor| t.dtype().is_int() && t.dtype() != DType::I64;
    if args.iter().filter_map(Arg::tensor).any(narrow) {
        expr.misfits(&number_types(args))?;
    }
    Ok(())
}

/// As `arg_types`, with the numbers themselves.
fn number_types(args: &[Arg<'_>]) -> SmallVec<[ArgType; 4]> {
    let one = |arg: &Arg<'_>| match (arg, arg.scalar()) {
        (Arg::Tensor(t), _) => ArgType::Tensor(t.dtype()),
        (_, Some(number)) => ArgType::Const(number),
        _ => ArgType::Weak(Category::Float),
    };
    args.iter().map(one).collect()
}

/// The shape that all of them broadcast to.
pub fn broadcast_shape<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Dims> {
    let mut shape: Option<Dims> = None;
    for t in tensors {
        shape = Some(match shape {
            None => Dims::from_slice(t.sizes()),
            Some(s) if s.as_slice() == t.sizes() => s,
            Some(s) => layout::broadcast(&s, t.sizes())?,
        });
    }
    Ok(shape.unwrap_or_default())
}

/// Strides as the tile kernels take them; both are machine words.
pub fn as_isize(values: &[i64]) -> &[isize] {
    const { assert!(size_of::<isize>() == size_of::<i64>()) };
    // SAFETY: same size, alignment and meaning.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}

pub fn as_usize(values: &[i64]) -> &[usize] {
    // SAFETY: same size and alignment; sizes of real tensors are not negative.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}

/// The operands of one call, ready for a tile kernel. `tensors[k]` is None where operand k is a number, whose
/// bits are in `bits[k]`.
pub struct Operands<'a> {
    pub tensors: SmallVec<[Option<&'a Tensor>; 4]>,
    pub bits: SmallVec<[u64; 4]>,
    /// Some number does not fit the dtype that it joins; its bits are those of another.
    pub misfit: bool,
}

impl<'a> Operands<'a> {
    pub fn bind(args: &[Arg<'a>], kernel: &TileKernel) -> Result<Operands<'a>> {
        let mut out = Operands { tensors: SmallVec::new(), bits: SmallVec::new(), misfit: false };
        for (arg, &dtype) in args.iter().zip(kernel.inputs()) {
            let bits = match (arg, arg.scalar()) {
                (Arg::Tensor(_), _) => 0,
                (_, Some(number)) => {
                    out.misfit |= !number.fits(dtype);
                    number.to_bits(dtype)
                }
                (other, None) => {
                    let got = other.type_name();
                    return Err(Error::argument(
                        "TP1002",
                        format!("an operand must be a tensor or a number, got {got}"),
                    ));
                }
            };
            out.tensors.push(arg.tensor());
            out.bits.push(bits);
        }
        Ok(out)
    }

    /// Runs the kernel over the whole of `out`.
    ///
    /// # Safety
    /// Every operand broadcasts to the shape of `out`, which is writable and shares memory with no operand
    /// except at equal positions.
    pub unsafe fn run(&self, kernel: &TileKernel, out: &Tensor) -> Result<()> {
        let n = out.numel();
        if n == 0 {
            return Ok(());
        }
        let mask = if out.is_contiguous() { self.flat_mask(out) } else { None };
        let job = Job { operands: self, kernel, out };
        // SAFETY: the caller's promise.
        let work = || unsafe {
            match mask {
                Some(mask) => job.run_flat(n as usize, mask),
                None => job.run_strided(),
            }
        };
        let done = if n >= UNLOCK { without_lock(work) } else { work() };
        done.map_err(Into::into)
    }

    /// A bit per operand that is one element for the whole shape, if every other is contiguous in that shape.
    fn flat_mask(&self, out: &Tensor) -> Option<u64> {
        let mut mask = 0;
        for (k, t) in self.tensors.iter().enumerate() {
            match t {
                Some(t) if t.numel() == out.numel() && t.is_contiguous() => {}
                Some(t) if !is_one_element(t) => return None,
                _ => mask |= 1 << k,
            }
        }
        Some(mask)
    }

    fn pointer(&self, k: usize) -> *mut u8 {
        match self.tensors[k] {
            Some(t) => t.data_ptr(),
            None => (&raw const self.bits[k]).cast_mut().cast(),
        }
    }
}

/// Large, and neighbours along the last axis are apart in memory.
fn is_scattered(t: &Tensor) -> bool {
    if t.numel() < UNLOCK || t.is_contiguous() {
        return false;
    }
    let inner = t.sizes().iter().zip(t.strides()).rev().find(|(size, _)| **size > 1);
    inner.is_some_and(|(_, stride)| stride.abs() > 1)
}

/// One element, or one that is expanded.
fn is_one_element(t: &Tensor) -> bool {
    t.sizes().iter().zip(t.strides()).all(|(&size, &stride)| size == 1 || stride == 0)
}

/// What crosses into the part that runs without the interpreter lock.
#[derive(Clone, Copy)]
struct Job<'j, 'a> {
    operands: &'j Operands<'a>,
    kernel: &'j TileKernel,
    out: &'j Tensor,
}

impl Job<'_, '_> {
    /// # Safety
    /// Every operand has n elements in a row, or one where its bit is set.
    unsafe fn run_flat(&self, n: usize, mask: u64) -> std::result::Result<(), ExprError> {
        let pointers: SmallVec<[*const u8; 4]> =
            (0..self.operands.tensors.len()).map(|k| self.operands.pointer(k).cast_const()).collect();
        // SAFETY: the caller's promise.
        unsafe { self.kernel.run_flat(n, &pointers, mask, &[self.out.data_ptr()]) }
    }

    /// # Safety
    /// Every operand broadcasts to the shape of the output.
    unsafe fn run_strided(&self) -> std::result::Result<(), ExprError> {
        let Job { operands, kernel, out } = *self;
        let seen = |t: &Option<&Tensor>| match t {
            Some(t) => broadcast_strides(t.sizes(), t.strides(), out.sizes()),
            None => Dims::from_elem(0, out.ndim()),
        };
        let strides: SmallVec<[Dims; 4]> = operands.tensors.iter().map(seen).collect();
        let inputs: SmallVec<[Strided<'_>; 4]> = strides
            .iter()
            .enumerate()
            .map(|(k, s)| Strided { ptr: operands.pointer(k), strides: as_isize(s) })
            .collect();
        let target = Strided { ptr: out.data_ptr(), strides: as_isize(out.strides()) };
        // SAFETY: strides of each operand seen through the output's shape.
        unsafe { kernel.run(as_usize(out.sizes()), &inputs, &[target]) }
    }
}

/// An elementwise function that kernels use inside; compiled at first use.
pub struct Formula {
    text: &'static str,
    params: &'static [&'static str],
    function: OnceLock<Elementwise>,
}

impl Formula {
    pub const fn new(text: &'static str, params: &'static [&'static str]) -> Formula {
        Formula { text, params, function: OnceLock::new() }
    }

    pub fn apply(&self, args: &[Arg<'_>]) -> Result<Tensor> {
        self.function()?.apply(args)
    }

    pub fn function(&self) -> Result<&Elementwise> {
        if let Some(f) = self.function.get() {
            return Ok(f);
        }
        let expr = ScalarExpr::parse(self.text, self.params)?;
        Ok(self.function.get_or_init(|| Elementwise::new(Arc::new(expr))))
    }
}
