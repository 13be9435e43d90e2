//! Short forms of the commonest calls: small contiguous operands of one shape and dtype, one tensor and one number,
//! the sum of everything, a broadcast. Everything else, and every large call, goes through the kernel of the row; the
//! tests hold these loops to it.

use crate::cpu::rows::{self, row};
use tp_dispatch::{Arg, Short};
use tp_tensor::dtype::Category;
use tp_tensor::scalar::Element;
use tp_tensor::{DType, Scalar, Tensor};

/// Up to here a plain loop beats the set-up of a tile kernel.
const SMALL: i64 = 1024;

/// Where a result goes.
trait Place {
    type Out;
    /// The place for the result over `x`, and its address. None where there is no memory: the general kernel, which will
    /// meet that again, reports it.
    fn of<T: Element>(x: &Tensor) -> Option<(Self::Out, *mut T)>;
}

/// A fresh tensor.
struct Fresh;

impl Place for Fresh {
    type Out = Tensor;
    #[inline(always)]
    fn of<T: Element>(x: &Tensor) -> Option<(Tensor, *mut T)> {
        let out = Tensor::empty_like_contiguous(x, T::DTYPE).ok()?;
        let data = out.data_ptr().cast();
        Some((out, data))
    }
}

/// The operand's own memory: it is contiguous, and nobody else sees it.
struct Over;

impl Place for Over {
    type Out = ();
    #[inline(always)]
    fn of<T: Element>(x: &Tensor) -> Option<((), *mut T)> {
        Some(((), x.data_ptr().cast()))
    }
}

trait Function {
    /// Whether the result of two integers is an integer of their dtype.
    const INTS: bool;
    fn f32(a: f32, b: f32) -> f32;
    fn f64(a: f64, b: f64) -> f64;
    fn i32(a: i32, b: i32) -> i32;
    fn i64(a: i64, b: i64) -> i64;
}

macro_rules! function {
    ($name:ident, $entry:ident, ints: $ints:literal, $float:expr, $i32:expr, $i64:expr) => {
        struct $name;

        impl Function for $name {
            const INTS: bool = $ints;
            #[inline(always)]
            fn f32(a: f32, b: f32) -> f32 {
                $float(a, b)
            }
            #[inline(always)]
            fn f64(a: f64, b: f64) -> f64 {
                $float(a, b)
            }
            #[inline(always)]
            fn i32(a: i32, b: i32) -> i32 {
                $i32(a, b)
            }
            #[inline(always)]
            fn i64(a: i64, b: i64) -> i64 {
                $i64(a, b)
            }
        }

        pub const $entry: Short = Short { fresh: binary::<$name, Fresh>, over: Some(over::<$name>) };
    };
}

function!(Add, ADD, ints: true, |a, b| a + b, i32::wrapping_add, i64::wrapping_add);
function!(Sub, SUB, ints: true, |a, b| a - b, i32::wrapping_sub, i64::wrapping_sub);
function!(Mul, MUL, ints: true, |a, b| a * b, i32::wrapping_mul, i64::wrapping_mul);
function!(Div, DIV, ints: false, |a, b| a / b, |a, _| a, |a, _| a);

fn binary<F: Function, P: Place>(args: &[Arg<'_>]) -> Option<P::Out> {
    match *args {
        [Arg::Tensor(a), Arg::Tensor(b)] => tensors::<F, P>(a, b),
        [Arg::Tensor(a), Arg::Scalar(s)] => number::<F, P, false>(a, s),
        [Arg::Scalar(s), Arg::Tensor(b)] => number::<F, P, true>(b, s),
        _ => None,
    }
}

fn over<F: Function>(args: &[Arg<'_>]) -> bool {
    binary::<F, Over>(args).is_some()
}

#[inline(always)]
fn tensors<F: Function, P: Place>(a: &Tensor, b: &Tensor) -> Option<P::Out> {
    let dtype = a.dtype();
    let fits = dtype == b.dtype()
        && a.numel() <= SMALL
        && a.is_contiguous()
        && b.is_contiguous()
        && a.sizes() == b.sizes();
    if !fits {
        return None;
    }
    // The second pointer is read once: behind a write to the output the compiler would have to read it again.
    macro_rules! run {
        ($f:ident) => {{
            let q: *const $f = b.data_ptr().cast_const().cast();
            map::<_, P>(a, |p: *const $f, i| F::$f(at(p, i), at(q, i)))
        }};
    }
    match dtype {
        DType::F32 => run!(f32),
        DType::F64 => run!(f64),
        DType::I64 if F::INTS => run!(i64),
        DType::I32 if F::INTS => run!(i32),
        _ => None,
    }
}

/// A tensor with a weak number that does not change its dtype.
#[inline(always)]
fn number<F: Function, P: Place, const LEFT: bool>(t: &Tensor, s: Scalar) -> Option<P::Out> {
    // Gradients of sums come expanded: one element stands for all.
    let expanded = !t.is_contiguous();
    if t.numel() > SMALL || (expanded && t.strides().iter().any(|&stride| stride != 0)) {
        return None;
    }
    macro_rules! run {
        ($f:ident) => {{
            let s: $f = s.to();
            let one = |p: *const $f, i| if LEFT { F::$f(s, at(p, i)) } else { F::$f(at(p, i), s) };
            if expanded { map::<_, P>(t, |p, _| one(p, 0)) } else { map::<_, P>(t, one) }
        }};
    }
    let ints = F::INTS && s.category() != Category::Float && s.fits(t.dtype());
    match t.dtype() {
        DType::F32 => run!(f32),
        DType::F64 => run!(f64),
        DType::I64 if ints => run!(i64),
        DType::I32 if ints => run!(i32),
        _ => None,
    }
}

pub const NEG: Short = Short { fresh: negated, over: None };

fn negated(args: &[Arg<'_>]) -> Option<Tensor> {
    let [Arg::Tensor(x)] = *args else { return None };
    if x.numel() > SMALL || !x.is_contiguous() {
        return None;
    }
    match x.dtype() {
        DType::F32 => map::<_, Fresh>(x, |p: *const f32, i| -at(p, i)),
        DType::F64 => map::<_, Fresh>(x, |p: *const f64, i| -at(p, i)),
        _ => None,
    }
}

pub const SUM: Short = Short { fresh: sum, over: None };

/// The sum over all axes: x, axis, dtype, keepdims.
fn sum(args: &[Arg<'_>]) -> Option<Tensor> {
    let [Arg::Tensor(x), Arg::None, Arg::None, Arg::Bool(false)] = *args else { return None };
    if x.numel() > SMALL || !x.is_contiguous() {
        return None;
    }
    match x.dtype() {
        DType::F32 => total::<f32>(x),
        DType::F64 => total::<f64>(x),
        _ => None,
    }
}

#[inline(always)]
fn total<T: Element>(x: &Tensor) -> Option<Tensor>
where
    rows::Sum<T>: rows::Fold<In = T, Acc = T>,
{
    let out = Tensor::empty_scalar(T::DTYPE).ok()?;
    // SAFETY: all elements of a contiguous tensor are one row; the output has one element.
    unsafe {
        let sum = row::<rows::Sum<T>>(x.data_ptr().cast_const().cast(), x.numel() as usize);
        out.data_ptr().cast::<T>().write(sum);
    }
    Some(out)
}

pub const EXPAND: Short = Short { fresh: expand, over: None };

/// A view of the wanted sizes.
fn expand(args: &[Arg<'_>]) -> Option<Tensor> {
    let [Arg::Tensor(x), Arg::Ints(to)] = *args else { return None };
    x.broadcast(to)
}

#[inline(always)]
fn at<T: Element>(p: *const T, i: usize) -> T {
    // SAFETY: every caller iterates over the elements of a contiguous tensor; foreign memory may be unaligned.
    unsafe { p.add(i).read_unaligned() }
}

/// A tensor like `x` whose element i is `f(data of x, i)`.
#[inline(always)]
fn map<T: Element, P: Place>(x: &Tensor, f: impl Fn(*const T, usize) -> T) -> Option<P::Out> {
    let (out, target) = P::of::<T>(x)?;
    let source = x.data_ptr().cast_const().cast::<T>();
    for i in 0..x.numel() as usize {
        // SAFETY: the output has as many elements as x and is aligned; element i is read before it is written.
        unsafe { target.add(i).write(f(source, i)) };
    }
    Some(out)
}
