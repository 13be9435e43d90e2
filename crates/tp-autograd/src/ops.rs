//! Built-in ops as rules call them: by name, through the dispatcher, so that derivatives of derivatives, capture
//! and events come for free. Each name is looked up once.

use std::sync::OnceLock;
use tp_dispatch::{Arg, DispatchKey, Error, OpHandle, Registry, Result, call_one, state};
use tp_tensor::{DType, Device, Scalar, Tensor, keybits};

/// One built-in op.
pub(crate) struct Builtin {
    name: &'static str,
    op: OnceLock<OpHandle>,
}

impl Builtin {
    pub const fn new(name: &'static str) -> Builtin {
        Builtin { name, op: OnceLock::new() }
    }

    /// Calls the op with one value per schema argument; its one result is a tensor.
    #[inline]
    pub fn call(&self, args: &[Arg<'_>]) -> Result<Tensor> {
        let op = match self.op.get() {
            Some(op) => *op,
            None => self.find(args.len())?,
        };
        call_one(op, args)
    }

    #[cold]
    fn find(&self, given: usize) -> Result<OpHandle> {
        let op = lookup(self.name, given)?;
        Ok(*self.op.get_or_init(|| op))
    }
}

/// The op of that name, which must take `given` arguments.
#[cold]
pub(crate) fn lookup(name: &str, given: usize) -> Result<OpHandle> {
    let op = Registry::global().lookup(name)?;
    let takes = op.def().map_or(0, |d| d.params.len());
    if takes == given {
        return Ok(op);
    }
    let message = format!("a gradient rule calls it with {given} arguments, it takes {takes}");
    Err(Error::internal("TP9007", message).with_op(name))
}

macro_rules! builtins {
    ($($cell:ident = $name:literal),* $(,)?) => {
        $(pub(crate) static $cell: Builtin = Builtin::new(concat!("tp::", $name));)*
    };
}

builtins! {
    ADD = "add", ADD_SCALAR = "add.Scalar", ADD_ = "add_", MAXIMUM_SCALAR = "maximum.Scalar", SUB = "sub", MUL = "mul", MUL_SCALAR = "mul.Scalar", DIV = "div",
    DIV_SCALAR = "div.Scalar", NEG = "neg", EQ = "eq", EXP = "exp", LOGICAL_NOT = "logical_not",
    CLONE = "clone", ASTYPE = "astype",
    ONES_LIKE = "ones_like", FULL_LIKE = "full_like", NEW_ZEROS = "new_zeros",
    WHERE = "where", WHERE_SCALAR = "where.Scalar", EQ_SCALAR = "eq.Scalar", MASKED_FILL = "masked_fill",
    SUM = "sum", SUM_TO_SIZE = "sum_to_size", CUMSUM = "cumsum", PROD = "prod", MEAN = "mean", EYE = "eye", COUNT = "count_backward", ANY = "any", ISNAN = "isnan",
    SOFTMAX_BACKWARD = "softmax_backward", LOG_SOFTMAX_BACKWARD = "log_softmax_backward",
    MATMUL = "matmul",
    RESHAPE = "reshape", EXPAND = "expand", PERMUTE = "permute_dims", TRANSPOSE = "transpose",
    SQUEEZE = "squeeze", UNSQUEEZE = "unsqueeze", SLICE = "slice", SELECT = "select", FLIP = "flip", ROLL = "roll",
    SLICE_BACKWARD = "slice_backward", SELECT_BACKWARD = "select_backward",
    VIEW_INSIDE = "view_inside_backward", VIEW_BACKWARD = "view_backward",
    VIEW_OUTSIDE = "view_outside_backward", ZERO_ = "zero_",
    TRIL = "tril", TRIU = "triu",
    COPY_ = "copy_", INDEX_SELECT = "index_select", GATHER = "gather",
    SCATTER_ADD = "scatter_add", INDEX_ADD = "index_add", INDEX = "index", INDEX_PUT = "index_put",
}

// ---- the few that rules use all the time ----

pub(crate) fn mul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    MUL.call(&[Arg::Tensor(a), Arg::Tensor(b)])
}

pub(crate) fn mul_scalar(a: &Tensor, s: f64) -> Result<Tensor> {
    MUL_SCALAR.call(&[Arg::Tensor(a), Arg::Scalar(Scalar::Float(s))])
}

pub(crate) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ADD.call(&[Arg::Tensor(a), Arg::Tensor(b)])
}

pub(crate) fn sub(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    SUB.call(&[Arg::Tensor(a), Arg::Tensor(b)])
}

pub(crate) fn div(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    DIV.call(&[Arg::Tensor(a), Arg::Tensor(b)])
}

pub(crate) fn sum(x: &Tensor, axes: &[i64], keepdims: bool) -> Result<Tensor> {
    SUM.call(&[Arg::Tensor(x), Arg::Ints(axes), Arg::None, Arg::Bool(keepdims)])
}

/// `x` reduced to `sizes`, the inverse of broadcasting; `x` itself where nothing is to be done.
#[inline]
pub(crate) fn sum_to_size(x: Tensor, sizes: &[i64]) -> Result<Tensor> {
    if x.sizes() == sizes { Ok(x) } else { SUM_TO_SIZE.call(&[Arg::Tensor(&x), Arg::Ints(sizes)]) }
}

/// `x` as `dtype`; `x` itself where nothing is to be done.
#[inline]
pub(crate) fn astype(x: Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype { Ok(x) } else { ASTYPE.call(&[Arg::Tensor(&x), Arg::DType(dtype)]) }
}

pub(crate) fn reshape(x: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    RESHAPE.call(&[Arg::Tensor(x), Arg::Ints(sizes)])
}

#[inline]
pub(crate) fn expand(x: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    if is_bare(x)
        && let Some(view) = x.broadcast(sizes)
    {
        return Ok(view);
    }
    EXPAND.call(&[Arg::Tensor(x), Arg::Ints(sizes)])
}

/// No layer looks on at a call of `x`: the CPU kernel is all there is to it.
#[inline(always)]
fn is_bare(x: &Tensor) -> bool {
    x.keys() == keybits::CPU && state::with(|s| s.effective(keybits::CPU)) == DispatchKey::Cpu.set()
}

/// Up to here filling memory costs less than a view of one element, and what reads it afterwards costs less too.
const SMALL: i64 = 1024;

/// `x` repeated to `sizes`: a view, or where a value is repeated a few times a tensor of its own.
#[inline]
pub(crate) fn repeat(x: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    let numel = sizes.iter().fold(1i64, |n, &size| n.wrapping_mul(size));
    if x.ndim() == 0 && (0..=SMALL).contains(&numel) && is_bare(x) {
        match x.dtype() {
            DType::F32 => return filled::<f32>(x, sizes),
            DType::F64 => return filled::<f64>(x, sizes),
            _ => {}
        }
    }
    expand(x, sizes)
}

/// A CPU tensor of `T` of which every element is the one of `x`, a CPU tensor of `T` too.
#[inline(always)]
fn filled<T: Copy>(x: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    let out = Tensor::empty(sizes, x.dtype(), Device::CPU)?;
    let target = out.data_ptr().cast::<T>();
    // SAFETY: `x` has an element, and foreign memory may be unaligned; `out` is fresh.
    unsafe {
        let value = x.data_ptr().cast::<T>().read_unaligned();
        (0..out.numel() as usize).for_each(|i| target.add(i).write(value));
    }
    Ok(out)
}

pub(crate) fn permute(x: &Tensor, axes: &[i64]) -> Result<Tensor> {
    PERMUTE.call(&[Arg::Tensor(x), Arg::Ints(axes)])
}

pub(crate) fn transpose(x: &Tensor, a: i64, b: i64) -> Result<Tensor> {
    TRANSPOSE.call(&[Arg::Tensor(x), Arg::Int(a), Arg::Int(b)])
}

pub(crate) fn new_zeros(like: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    NEW_ZEROS.call(&[Arg::Tensor(like), Arg::Ints(sizes), Arg::None, Arg::None])
}
