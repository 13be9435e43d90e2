//! One loop per primitive and dtype, compiled for each instruction set. What each computes on one element is in
//! `semantics`; which function serves a primitive and its dtypes is in `table`.

mod table;

use std::marker::PhantomData;

pub use table::{chain_kernel, copy_kernel, kernel};
use tp_tensor::scalar::{Bool, Element};

use super::cast::cast;
use super::isa::Isa;
use crate::prim::Prim;
use crate::semantics::{Bits, Integer, Number, Real};

/// Computes `n` elements, at least one. Bit `i` of `uniform` says that operand `i` is one element for all. Returns whether an
/// integer was divided by zero.
pub type KernelFn = unsafe fn(out: *mut u8, args: [*const u8; 3], uniform: u32, n: usize) -> bool;

/// The body of a kernel, inlined into a function of each instruction set.
trait Kernel {
    unsafe fn run(out: *mut u8, args: [*const u8; 3], uniform: u32, n: usize) -> bool;
}

unsafe fn baseline<K: Kernel>(out: *mut u8, args: [*const u8; 3], uniform: u32, n: usize) -> bool {
    unsafe { K::run(out, args, uniform, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<K: Kernel>(out: *mut u8, args: [*const u8; 3], uniform: u32, n: usize) -> bool {
    unsafe { K::run(out, args, uniform, n) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<K: Kernel>(out: *mut u8, args: [*const u8; 3], uniform: u32, n: usize) -> bool {
    unsafe { K::run(out, args, uniform, n) }
}

fn pick<K: Kernel>(isa: Isa) -> KernelFn {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::<K>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::<K>,
        _ => baseline::<K>,
    }
}

#[inline(always)]
unsafe fn load<T: Copy>(base: *const u8, i: usize) -> T {
    unsafe { (base as *const T).add(i).read_unaligned() }
}

#[inline(always)]
unsafe fn store<T: Copy>(base: *mut u8, i: usize, value: T) {
    unsafe { (base as *mut T).add(i).write_unaligned(value) }
}

#[inline(always)]
unsafe fn fill<R: Copy>(out: *mut u8, n: usize, value: R) {
    for i in 0..n {
        unsafe { store(out, i, value) };
    }
}

#[inline(always)]
unsafe fn unary<T: Copy, R: Copy>(
    out: *mut u8,
    [a, ..]: [*const u8; 3],
    uniform: u32,
    n: usize,
    f: impl Fn(T) -> R,
) -> bool {
    unsafe {
        if uniform & 1 != 0 {
            fill(out, n, f(load(a, 0)));
        } else {
            for i in 0..n {
                store(out, i, f(load(a, i)));
            }
        }
    }
    false
}

#[inline(always)]
unsafe fn binary<T: Copy, R: Copy>(
    out: *mut u8,
    [a, b, _]: [*const u8; 3],
    uniform: u32,
    n: usize,
    f: impl Fn(T, T) -> R,
) -> bool {
    unsafe {
        match uniform & 3 {
            0 => {
                for i in 0..n {
                    store(out, i, f(load(a, i), load(b, i)));
                }
            }
            1 => {
                let x = load(a, 0);
                for i in 0..n {
                    store(out, i, f(x, load(b, i)));
                }
            }
            2 => {
                let y = load(b, 0);
                for i in 0..n {
                    store(out, i, f(load(a, i), y));
                }
            }
            _ => fill(out, n, f(load(a, 0), load(b, 0))),
        }
    }
    false
}

#[inline(always)]
unsafe fn ternary<C: Copy, T: Copy, R: Copy>(
    out: *mut u8,
    [a, b, c]: [*const u8; 3],
    uniform: u32,
    n: usize,
    f: impl Fn(C, T, T) -> R,
) -> bool {
    macro_rules! run {
        (|$i:ident| $x:expr, $y:expr, $z:expr) => {
            for $i in 0..n {
                store(out, $i, f($x, $y, $z));
            }
        };
    }
    unsafe {
        let (x, y, z): (C, T, T) = (load(a, 0), load(b, 0), load(c, 0));
        match uniform & 7 {
            0 => run!(|i| load(a, i), load(b, i), load(c, i)),
            1 => run!(|i| x, load(b, i), load(c, i)),
            2 => run!(|i| load(a, i), y, load(c, i)),
            3 => run!(|i| x, y, load(c, i)),
            4 => run!(|i| load(a, i), load(b, i), z),
            5 => run!(|i| x, load(b, i), z),
            6 => run!(|i| load(a, i), y, z),
            _ => fill(out, n, f(x, y, z)),
        }
    }
    false
}

/// Declares kernels generic over element types: `Name<T: Bound> = loop(function of one element)`.
macro_rules! kernels {
    ($($name:ident<$($T:ident: $bound:path),*> = $shape:ident($f:expr);)*) => {$(
        struct $name<$($T),*>(PhantomData<($($T,)*)>);

        impl<$($T: $bound),*> Kernel for $name<$($T),*> {
            #[inline(always)]
            unsafe fn run(out: *mut u8, args: [*const u8; 3], uniform: u32, n: usize) -> bool {
                unsafe { $shape(out, args, uniform, n, $f) }
            }
        }
    )*};
}

kernels! {
    Add<T: Number> = binary(|a: T, b: T| a.add(b));
    Sub<T: Number> = binary(|a: T, b: T| a.sub(b));
    Mul<T: Number> = binary(|a: T, b: T| a.mul(b));
    Max<T: Number> = binary(|a: T, b: T| a.maximum(b));
    Min<T: Number> = binary(|a: T, b: T| a.minimum(b));
    Neg<T: Number> = unary(|a: T| a.neg());
    Abs<T: Number> = unary(|a: T| a.abs());

    Div<T: Real> = binary(|a: T, b: T| a.div(b));
    Fma<T: Real> = ternary(|a: T, b: T, c: T| a.fma(b, c));
    Sqrt<T: Real> = unary(|a: T| a.sqrt());
    Floor<T: Real> = unary(|a: T| a.floor());
    Ceil<T: Real> = unary(|a: T| a.ceil());
    Trunc<T: Real> = unary(|a: T| a.trunc());
    Rint<T: Real> = unary(|a: T| a.rint());
    Fmod<T: Real> = binary(|a: T, b: T| a.fmod(b));

    Eq<T: Element> = binary(|a: T, b: T| Bool::new(a == b));
    Ne<T: Element> = binary(|a: T, b: T| Bool::new(a != b));
    Lt<T: Element> = binary(|a: T, b: T| Bool::new(a < b));
    Le<T: Element> = binary(|a: T, b: T| Bool::new(a <= b));
    Gt<T: Element> = binary(|a: T, b: T| Bool::new(a > b));
    Ge<T: Element> = binary(|a: T, b: T| Bool::new(a >= b));

    And<T: Bits> = binary(|a: T, b: T| a.and(b));
    Or<T: Bits> = binary(|a: T, b: T| a.or(b));
    Xor<T: Bits> = binary(|a: T, b: T| a.xor(b));
    Not<T: Bits> = unary(|a: T| a.not());
    Shl<T: Integer> = binary(|a: T, b: T| a.shl(b));
    Shr<T: Integer> = binary(|a: T, b: T| a.shr(b));
    IntPow<T: Integer> = binary(|a: T, b: T| Integer::pow(a, b));

    Select<T: Element> = ternary(|c: Bool, a: T, b: T| if c.get() { a } else { b });
    Move<T: Element> = unary(|a: T| a);
    Cast<S: Element, D: Element> = unary(|a: S| cast::<S, D>(a));
}

/// Integer division: a zero divisor is noted, its element is 0.
macro_rules! division_kernels {
    ($($name:ident = $method:ident;)*) => {$(
        struct $name<T>(PhantomData<T>);

        impl<T: Integer> Kernel for $name<T> {
            #[inline(always)]
            unsafe fn run(out: *mut u8, [a, b, _]: [*const u8; 3], uniform: u32, n: usize) -> bool {
                let (step_a, step_b) = ((uniform & 1 == 0) as usize, (uniform & 2 == 0) as usize);
                let mut by_zero = false;
                for i in 0..n {
                    unsafe {
                        let (x, y): (T, T) = (load(a, i * step_a), load(b, i * step_b));
                        let r = x.$method(y);
                        by_zero |= r.is_none();
                        store(out, i, r.unwrap_or(T::ZERO));
                    }
                }
                by_zero
            }
        }
    )*};
}

division_kernels! {
    FloorDiv = floordiv;
    Mod = modulo;
}

/// A transcendental of one argument, `P` being its discriminant.
struct Function1<T, const P: usize>(PhantomData<T>);

impl<T: Real, const P: usize> Kernel for Function1<T, P> {
    #[inline(always)]
    unsafe fn run(out: *mut u8, [a, ..]: [*const u8; 3], uniform: u32, n: usize) -> bool {
        // Not a closure for `unary`: one that is large stays a function that the ISAs share, with the instructions of none.
        let repeats = uniform & 1 != 0;
        unsafe {
            for i in 0..if repeats { 1 } else { n } {
                let x: T = load(a, i);
                store(out, i, T::transcendental(const { Prim::ALL[P] }, x, x));
            }
            if repeats {
                fill(out, n, load::<T>(out, 0));
            }
        }
        false
    }
}

/// A transcendental of two arguments.
struct Function2<T, const P: usize>(PhantomData<T>);

impl<T: Real, const P: usize> Kernel for Function2<T, P> {
    #[inline(always)]
    unsafe fn run(out: *mut u8, args: [*const u8; 3], uniform: u32, n: usize) -> bool {
        let f = |x: T, y: T| T::transcendental(const { Prim::ALL[P] }, x, y);
        unsafe { binary(out, args, uniform, n, f) }
    }
}

/// One arithmetic instruction, `P` being its discriminant.
#[inline(always)]
fn arithmetic<T: Number, const P: usize>(a: T, b: T) -> T {
    match const { Prim::ALL[P] } {
        Prim::Add => a.add(b),
        Prim::Sub => a.sub(b),
        _ => a.mul(b),
    }
}

/// Two arithmetic instructions in one pass, each rounded: `(a F b) G c`, or `c G (a F b)` if `SWAPPED`.
struct Chain<T, const F: usize, const G: usize, const SWAPPED: bool>(PhantomData<T>);

impl<T: Number, const F: usize, const G: usize, const SWAPPED: bool> Kernel for Chain<T, F, G, SWAPPED> {
    #[inline(always)]
    unsafe fn run(out: *mut u8, args: [*const u8; 3], uniform: u32, n: usize) -> bool {
        let f = |a: T, b: T, c: T| {
            let inner = arithmetic::<T, F>(a, b);
            if SWAPPED { arithmetic::<T, G>(c, inner) } else { arithmetic::<T, G>(inner, c) }
        };
        unsafe { ternary(out, args, uniform, n, f) }
    }
}
