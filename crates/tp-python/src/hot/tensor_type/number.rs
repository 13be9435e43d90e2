//! Operators: the number protocol and comparisons, straight from the operands to the op. An operand that is neither
//! tensor nor number gives NotImplemented, so that Python asks the other side.

use super::{new_ref, not_implemented, slot, this};
use crate::hot::convert;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::packet::{self, Binary};
use crate::hot::{refusals, ret, shell};
use pyo3::ffi;
use std::os::raw::{c_int, c_void};
use std::sync::OnceLock;
use tp_dispatch::dispatcher::Session;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Error, OpHandle, Registry, Result, Rets};

/// Comparisons first: their positions are CPython's numbers for them.
const BINARY: [&str; 18] = [
    "lt",
    "le",
    "eq",
    "ne",
    "gt",
    "ge",
    "add",
    "sub",
    "mul",
    "div",
    "floor_divide",
    "remainder",
    "pow",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
];
const INPLACE: [&str; 12] = [
    "add_",
    "sub_",
    "mul_",
    "div_",
    "floor_divide_",
    "remainder_",
    "pow_",
    "bitwise_and_",
    "bitwise_or_",
    "bitwise_xor_",
    "left_shift_",
    "right_shift_",
];
const UNARY: [&str; 4] = ["neg", "positive", "abs", "bitwise_invert"];
const POW: usize = 12;
const POW_INPLACE: usize = 6;

/// An operator written back to its left operand.
#[derive(Clone, Copy)]
struct InPlace {
    tensor: OpHandle,
    scalar: OpHandle,
}

struct Ops {
    binary: [Binary; BINARY.len()],
    inplace: [InPlace; INPLACE.len()],
    unary: [OpHandle; UNARY.len()],
    matmul: OpHandle,
}

static OPS: OnceLock<Ops> = OnceLock::new();

/// Looks the ops up, once, at import.
pub fn resolve() -> Result<()> {
    let find = |name: &str, suffix: &str| Registry::global().lookup(&format!("tp::{name}{suffix}"));
    let three = |name: &str| {
        Ok(Binary {
            tensor: find(name, "")?,
            scalar: find(name, ".Scalar")?,
            scalar_left: find(name, ".ScalarLeft")?,
        })
    };
    let two = |name: &str| Ok(InPlace { tensor: find(name, "")?, scalar: find(name, ".Scalar")? });
    let ops = Ops {
        binary: all(&BINARY, three)?,
        inplace: all(&INPLACE, two)?,
        unary: all(&UNARY, |name| find(name, ""))?,
        matmul: find("matmul", "")?,
    };
    OPS.get_or_init(|| ops);
    Ok(())
}

fn all<T: Copy, const N: usize>(names: &[&str; N], find: impl Fn(&str) -> Result<T>) -> Result<[T; N]> {
    let mut out = [find(names[0])?; N];
    for (slot, name) in out.iter_mut().zip(names).skip(1) {
        *slot = find(name)?;
    }
    Ok(out)
}

#[inline(always)]
fn ops() -> &'static Ops {
    OPS.get().unwrap_or_else(|| unreachable!("the type is made after its ops were found"))
}

#[inline(always)]
unsafe fn binary(i: usize, a: Obj, b: Obj) -> Obj {
    // SAFETY: live objects, lock held.
    ret::guard(|| unsafe {
        match packet::operator(&ops().binary[i], a, b) {
            Some(done) => done,
            None => foreign(a, b).map_err(|e| e.with_op(ops().binary[i].tensor.name())),
        }
    })
}

/// Neither tensor nor number: NotImplemented, so that Python asks the other operand. Integers that no dtype holds and
/// arrays of other libraries are errors that say what to do.
#[cold]
unsafe fn foreign(a: Obj, b: Obj) -> Result<Obj> {
    // SAFETY: live objects.
    unsafe {
        for obj in [a, b] {
            if ffi::PyLong_Check(obj) != 0 {
                convert::number(obj).map_err(too_large)?;
            }
            if !shell::is_tensor(obj)
                && let Some(way) = refusals::foreign_array(obj)
            {
                let message = format!("an operand must be a Tensor or a number, got {}", x::type_name(obj));
                return Err(Error::argument("TP1002", message).note(way));
            }
        }
        Ok(not_implemented())
    }
}

/// Names the operand in the refusal of an integer that no dtype holds.
#[cold]
fn too_large(e: Error) -> Error {
    if e.code() != "TP1007" {
        return e;
    }
    Error::argument("TP1007", format!("the operand that is a number: {}", e.message()))
        .note("a float holds it, rounded: write float(n)")
}

#[inline(always)]
unsafe fn inplace(i: usize, a: Obj, b: Obj) -> Obj {
    // SAFETY: `a` is a tensor, for in-place slots are looked up on the left operand's type only.
    ret::guard(|| unsafe {
        let op = &ops().inplace[i];
        let target = Arg::Tensor(this(a));
        let mut rets = Rets::new();
        if shell::is_tensor(b) {
            call(op.tensor, &[target, Arg::Tensor(shell::tensor_of(b))], &mut rets)?;
        } else {
            let read = convert::number(b).map_err(|e| too_large(e).with_op(op.scalar.name()))?;
            let Some(s) = read else { return Ok(not_implemented()) };
            call(op.scalar, &[target, Arg::Scalar(s)], &mut rets)?;
        }
        Ok(new_ref(a))
    })
}

fn call(op: OpHandle, args: &[Arg<'_>], rets: &mut Rets) -> Result<()> {
    Session::open(op)?.call(args, HostArgs::NONE, rets).map_err(|e| e.with_op(op.name()))
}

#[inline(always)]
unsafe fn unary(i: usize, a: Obj) -> Obj {
    // SAFETY: a live tensor, lock held.
    ret::guard(|| unsafe { packet::short(ops().unary[i], &[Arg::Tensor(this(a))]) })
}

macro_rules! two_operands {
    ($body:ident: $($fn:ident $i:literal),* $(,)?) => {
        $(unsafe extern "C" fn $fn(a: Obj, b: Obj) -> Obj {
            // SAFETY: called by CPython on live objects with the lock held.
            unsafe { $body($i, a, b) }
        })*
    };
}

macro_rules! one_operand {
    ($body:ident: $($fn:ident $i:literal),* $(,)?) => {
        $(unsafe extern "C" fn $fn(a: Obj) -> Obj {
            // SAFETY: called by CPython on a live tensor with the lock held.
            unsafe { $body($i, a) }
        })*
    };
}

two_operands!(binary: add 6, sub 7, mul 8, true_divide 9, floor_divide 10, remainder 11, and 13, or 14, xor 15,
    lshift 16, rshift 17);
two_operands!(inplace: add_to 0, sub_to 1, mul_to 2, divide_to 3, floor_divide_to 4, remainder_to 5, and_to 7,
    or_to 8, xor_to 9, lshift_to 10, rshift_to 11);
one_operand!(unary: negative 0, positive 1, absolute 2, invert 3);

unsafe extern "C" fn richcompare(a: Obj, b: Obj, op: c_int) -> Obj {
    // SAFETY: as above; the comparison numbers run from 0 to 5.
    unsafe { binary(op as usize % 6, a, b) }
}

unsafe extern "C" fn power(a: Obj, b: Obj, modulus: Obj) -> Obj {
    // SAFETY: as above.
    unsafe { if is_plain(modulus) { binary(POW, a, b) } else { modulo_refused() } }
}

unsafe extern "C" fn power_to(a: Obj, b: Obj, modulus: Obj) -> Obj {
    // SAFETY: as above.
    unsafe { if is_plain(modulus) { inplace(POW_INPLACE, a, b) } else { modulo_refused() } }
}

unsafe fn is_plain(modulus: Obj) -> bool {
    // SAFETY: lock held.
    modulus == unsafe { ffi::Py_None() }
}

#[cold]
unsafe fn modulo_refused() -> Obj {
    ret::guard(|| Err(Error::argument("TP1013", "pow() of a tensor takes no modulus")))
}

unsafe extern "C" fn matmul(a: Obj, b: Obj) -> Obj {
    // SAFETY: live objects, lock held.
    ret::guard(|| unsafe {
        if shell::is_tensor(a) && shell::is_tensor(b) {
            return packet::short(ops().matmul, &[Arg::Tensor(this(a)), Arg::Tensor(this(b))]);
        }
        let other = if shell::is_tensor(a) { b } else { a };
        match packet_number(other)? {
            false => Ok(not_implemented()),
            true => Err(Error::argument(
                "TP1014",
                format!("@ takes two tensors, got {}; use * for numbers", x::type_name(other)),
            )
            .with_op("tp::matmul")),
        }
    })
}

unsafe fn packet_number(obj: Obj) -> Result<bool> {
    // SAFETY: a live object.
    Ok(unsafe { convert::number(obj)? }.is_some())
}

pub fn slots() -> Vec<ffi::PyType_Slot> {
    let two = |id: c_int, f: unsafe extern "C" fn(Obj, Obj) -> Obj| slot(id, f as *mut c_void);
    let one = |id: c_int, f: unsafe extern "C" fn(Obj) -> Obj| slot(id, f as *mut c_void);
    vec![
        two(ffi::Py_nb_add, add),
        two(ffi::Py_nb_subtract, sub),
        two(ffi::Py_nb_multiply, mul),
        two(ffi::Py_nb_true_divide, true_divide),
        two(ffi::Py_nb_floor_divide, floor_divide),
        two(ffi::Py_nb_remainder, remainder),
        two(ffi::Py_nb_and, and),
        two(ffi::Py_nb_or, or),
        two(ffi::Py_nb_xor, xor),
        two(ffi::Py_nb_lshift, lshift),
        two(ffi::Py_nb_rshift, rshift),
        two(ffi::Py_nb_matrix_multiply, matmul),
        two(ffi::Py_nb_inplace_add, add_to),
        two(ffi::Py_nb_inplace_subtract, sub_to),
        two(ffi::Py_nb_inplace_multiply, mul_to),
        two(ffi::Py_nb_inplace_true_divide, divide_to),
        two(ffi::Py_nb_inplace_floor_divide, floor_divide_to),
        two(ffi::Py_nb_inplace_remainder, remainder_to),
        two(ffi::Py_nb_inplace_and, and_to),
        two(ffi::Py_nb_inplace_or, or_to),
        two(ffi::Py_nb_inplace_xor, xor_to),
        two(ffi::Py_nb_inplace_lshift, lshift_to),
        two(ffi::Py_nb_inplace_rshift, rshift_to),
        one(ffi::Py_nb_negative, negative),
        one(ffi::Py_nb_positive, positive),
        one(ffi::Py_nb_absolute, absolute),
        one(ffi::Py_nb_invert, invert),
        slot(ffi::Py_nb_power, power as *mut c_void),
        slot(ffi::Py_nb_inplace_power, power_to as *mut c_void),
        slot(ffi::Py_tp_richcompare, richcompare as *mut c_void),
    ]
}
