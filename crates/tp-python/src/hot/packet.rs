//! Calling an op from Python: the shortest paths for tensors and numbers, then general binding, then the choice
//! among overloads.

use super::bind::{self, Args, CalleeInfo, Given, Objects, Scratch};
use super::ffi::Obj;
use super::{convert, rank};
use super::{ret, shell};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tp_dispatch::bind::Form;
use tp_dispatch::dispatcher::{ArgKeys, Session};
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Error, ErrorKind, OpHandle, Result, Rets};
use tp_tensor::Scalar;

/// All overloads of one op name, in definition order. Touched with the interpreter lock held.
pub struct Packet {
    pub name: Box<str>,
    overloads: RefCell<Vec<Overload>>,
    first: OpHandle,
    /// The overloads of a built-in op that take (Tensor, number) and (number, Tensor). Users' overloads are chosen
    /// among in general, for another one may fit better.
    scalar: Cell<Option<OpHandle>>,
    scalar_left: Cell<Option<OpHandle>>,
}

struct Overload {
    op: OpHandle,
    info: Option<Rc<CalleeInfo>>,
}

impl Packet {
    /// `overloads` is not empty; the default one comes first.
    pub fn new(name: &str, overloads: &[OpHandle]) -> Packet {
        let packet = Packet {
            name: name.into(),
            first: overloads[0],
            scalar: Cell::new(None),
            scalar_left: Cell::new(None),
            overloads: RefCell::new(Vec::new()),
        };
        overloads.iter().for_each(|op| packet.add_overload(*op));
        packet
    }

    pub fn first(&self) -> OpHandle {
        self.first
    }

    pub fn overloads(&self) -> Vec<OpHandle> {
        self.overloads.borrow().iter().map(|o| o.op).collect()
    }

    pub fn add_overload(&self, op: OpHandle) {
        let mut list = self.overloads.borrow_mut();
        if list.iter().any(|o| o.op == op) {
            return;
        }
        list.push(Overload { op, info: None });
        match op.def().filter(|def| !def.custom).map(|def| def.params.form) {
            Some(Form::TensorScalar) => self.scalar.set(Some(op)),
            Some(Form::ScalarTensor) => self.scalar_left.set(Some(op)),
            _ => {}
        }
    }

    /// Lets go of the definitions that the next call of each overload will look up anew.
    pub fn forget(&self) {
        let old: Vec<_> = self.overloads.borrow_mut().iter_mut().map(|o| o.info.take()).collect();
        drop(old);
    }

    /// The door's side of a definition, rebuilt when the definition changed.
    fn info(&self, i: usize, session: &Session<'_>) -> Rc<CalleeInfo> {
        let mut list = self.overloads.borrow_mut();
        let slot = &mut list[i].info;
        if let Some(info) = slot
            && Arc::ptr_eq(&info.def, session.def())
        {
            return info.clone();
        }
        // SAFETY: the door holds the interpreter lock.
        let fresh = unsafe { CalleeInfo::new(session.def()) };
        let old = slot.replace(fresh.clone());
        drop(list);
        drop(old);
        fresh
    }
}

/// The call from Python.
///
/// # Safety
/// `given` follows the vectorcall convention and the interpreter lock is held.
#[inline(always)]
pub unsafe fn call(p: &Packet, given: Given) -> Result<Obj> {
    // SAFETY: positions below nargs; live objects.
    unsafe {
        if given.kwnames.is_null() {
            if given.nargs == 2 {
                let (a, b) = (given.at(0), given.at(1));
                match (shell::is_tensor(a), shell::is_tensor(b)) {
                    (true, true) => {
                        let args = [Arg::Tensor(shell::tensor_of(a)), Arg::Tensor(shell::tensor_of(b))];
                        if let Some(done) = plain(p.first, &args, given.args) {
                            return done;
                        }
                    }
                    (true, false) => {
                        if let (Some(op), Some(s)) = (p.scalar.get(), number(b)) {
                            let args = [Arg::Tensor(shell::tensor_of(a)), Arg::Scalar(s)];
                            if let Some(done) = pair(op, Form::TensorScalar, &args) {
                                return done;
                            }
                        }
                    }
                    (false, true) => {
                        if let (Some(op), Some(s)) = (p.scalar_left.get(), number(a)) {
                            let args = [Arg::Scalar(s), Arg::Tensor(shell::tensor_of(b))];
                            if let Some(done) = pair(op, Form::ScalarTensor, &args) {
                                return done;
                            }
                        }
                    }
                    _ => {}
                }
            } else if given.nargs == 1 {
                let a = given.at(0);
                if shell::is_tensor(a)
                    && let Some(done) = plain(p.first, &[Arg::Tensor(shell::tensor_of(a))], given.args)
                {
                    return done;
                }
            }
        }
        general(p, given)
    }
}

/// An exact Python number, without looking at anything that could run code.
#[inline(always)]
unsafe fn number(obj: Obj) -> Option<Scalar> {
    use pyo3::ffi;
    // SAFETY: live object.
    unsafe {
        let ty = super::ffi::type_of(obj);
        if ty == &raw mut ffi::PyFloat_Type {
            return Some(Scalar::Float(ffi::PyFloat_AsDouble(obj)));
        }
        if ty == &raw mut ffi::PyLong_Type || ty == &raw mut ffi::PyBool_Type {
            return convert::number(obj).ok().flatten();
        }
        None
    }
}

/// The call of an op whose arguments are all plain tensors and all given; None when this one is not such an op.
#[inline(always)]
unsafe fn plain(op: OpHandle, args: &[Arg<'_>], objects: *const Obj) -> Option<Result<Obj>> {
    let session = Session::open(op).ok()?;
    let params = &session.def().params;
    if !params.all_tensors || params.all.len() != args.len() {
        return None;
    }
    // SAFETY: lock held.
    Some(unsafe { run(&session, op, args, HostArgs(objects.cast())) })
}

/// The call of an op of two arguments of that form; None when the op is defined otherwise by now.
#[inline(always)]
unsafe fn pair(op: OpHandle, form: Form, args: &[Arg<'_>]) -> Option<Result<Obj>> {
    let session = Session::open(op).ok()?;
    if session.def().params.form != form {
        return None;
    }
    // SAFETY: lock held.
    Some(unsafe { run(&session, op, args, HostArgs::NONE) })
}

/// A call with converted arguments, for ops whose kernels are ours.
///
/// # Safety
/// The interpreter lock is held.
#[inline(always)]
pub unsafe fn short(op: OpHandle, args: &[Arg<'_>]) -> Result<Obj> {
    // SAFETY: lock held.
    unsafe { run(&Session::open(op)?, op, args, HostArgs::NONE) }
}

/// Calls with bound arguments; the results as an object.
///
/// # Safety
/// The interpreter lock is held.
#[inline(always)]
pub unsafe fn run(session: &Session<'_>, op: OpHandle, args: &[Arg<'_>], host: HostArgs) -> Result<Obj> {
    // SAFETY: lock held.
    unsafe { run_keyed(session, op, ArgKeys::of(args), args, host) }
}

/// As `run`, for a caller that knows the keys.
///
/// # Safety
/// The interpreter lock is held.
#[inline(always)]
pub unsafe fn run_keyed(
    session: &Session<'_>,
    op: OpHandle,
    keys: ArgKeys,
    args: &[Arg<'_>],
    host: HostArgs,
) -> Result<Obj> {
    // SAFETY: lock held.
    unsafe {
        match session.short(keys, args) {
            Some(out) => Ok(shell::wrap(out)),
            None => long(session, op, keys, args, host),
        }
    }
}

#[inline(never)]
unsafe fn long(
    session: &Session<'_>,
    op: OpHandle,
    keys: ArgKeys,
    args: &[Arg<'_>],
    host: HostArgs,
) -> Result<Obj> {
    match session.one(keys, args, host) {
        // SAFETY: lock held.
        Some(Ok(out)) => Ok(unsafe { shell::wrap(out) }),
        Some(Err(e)) => Err(e.with_op(op.name())),
        // SAFETY: lock held.
        None => unsafe { listed(session, op, keys, args, host) },
    }
}

/// A call whose results are a list.
#[inline(never)]
unsafe fn listed(
    session: &Session<'_>,
    op: OpHandle,
    keys: ArgKeys,
    args: &[Arg<'_>],
    host: HostArgs,
) -> Result<Obj> {
    let mut rets = Rets::new();
    match session.call_keyed(keys, args, host, &mut rets) {
        // SAFETY: lock held.
        Ok(()) => Ok(unsafe { ret::finish(rets, Some(&session.def().schema)) }),
        Err(e) => Err(e.with_op(op.name())),
    }
}

#[inline(never)]
unsafe fn general(p: &Packet, given: Given) -> Result<Obj> {
    super::queue::drain();
    let n = p.overloads.borrow().len();
    if n == 1 {
        // SAFETY: the caller's promise.
        return unsafe { bind_and_call(p, 0, given) }.unwrap_or_else(Err);
    }
    // SAFETY: the caller's promise.
    unsafe { choose(p, n, given) }
}

/// Tries the overloads from the best match to the worst, in order of definition among equals. One that cannot fit by
/// the types of the arguments comes last: the attempt gives the reason.
unsafe fn choose(p: &Packet, n: usize, given: Given) -> Result<Obj> {
    let mut order: SmallVec<[(u32, usize); 8]> = SmallVec::new();
    let mut exact = false;
    for i in 0..n {
        // SAFETY: the caller's promise.
        let cost = if exact { None } else { unsafe { cost(p, i, given) } };
        exact |= cost == Some(0);
        order.push((cost.unwrap_or(u32::MAX), i));
    }
    order.sort_unstable();
    let (mut misses, mut gone) = (Vec::new(), None);
    for (_, i) in order {
        // SAFETY: the caller's promise.
        match unsafe { bind_and_call(p, i, given) } {
            Ok(done) => return done,
            Err(e) if matches!(e.kind(), ErrorKind::Argument | ErrorKind::Value) => misses.push((i, e)),
            Err(e) if e.kind() == ErrorKind::Registration => gone = Some(e),
            Err(e) => return Err(e),
        }
    }
    match gone {
        Some(gone) if misses.is_empty() => Err(gone),
        _ => Err(none_fits(p, misses)),
    }
}

/// How far the arguments are from what overload `i` declares, and among equals how many it lacks; None when they cannot
/// fit it.
unsafe fn cost(p: &Packet, i: usize, given: Given) -> Option<u32> {
    let op = p.overloads.borrow()[i].op;
    let session = Session::open(op).ok()?;
    let info = p.info(i, &session);
    // SAFETY: the caller's promise.
    unsafe {
        let mut slots = Objects::new();
        bind::place(op.name(), &info, given, &mut slots).ok()?;
        let (mut sum, mut lacking) = (0, 0);
        for (k, obj) in slots.iter().enumerate() {
            if obj.is_null() {
                info.def.params.all[k].default.as_ref()?;
                lacking += 1;
            } else {
                sum += rank::cost(info.def.schema.arguments()[k].ty(), *obj)?;
            }
        }
        Some((sum << 8) + lacking)
    }
}

#[cold]
fn none_fits(p: &Packet, mut misses: Vec<(usize, Error)>) -> Error {
    misses.sort_by_key(|(i, _)| *i);
    let mut e = Error::argument("TP1012", format!("no overload of {} takes these arguments", p.name));
    for (i, miss) in &misses {
        e = e.note(format!("{}: {}", p.overloads.borrow()[*i].op.full_name(), miss.message()));
    }
    // What to do about an argument is the same for every overload; where the schema is, each line above says.
    let advice =
        misses.first().map_or(&[][..], |m| m.1.notes()).iter().filter(|n| !n.starts_with("declared as "));
    for note in advice {
        e = e.note(note.as_str());
    }
    e.with_op(&p.name)
}

/// The outer error says that the arguments do not fit; the inner result is the call's own.
unsafe fn bind_and_call(p: &Packet, i: usize, given: Given) -> std::result::Result<Result<Obj>, Error> {
    let op = p.overloads.borrow()[i].op;
    let session = Session::open(op)?;
    let info = p.info(i, &session);
    let (mut slots, mut args, mut scratch) = (Objects::new(), Args::new(), Scratch::default());
    // SAFETY: the caller's promise; scratch and info outlive the call.
    unsafe {
        let telling = bind::bind(op.name(), &info, given, &mut slots, &mut args, &mut scratch)?;
        // Where an object was converted, kernels of the host get objects made from the values: what a compiled run
        // hands them.
        let host = if scratch.converted { HostArgs::NONE } else { HostArgs(slots.as_ptr().cast()) };
        if scratch.symbolic {
            return Ok(long(&session, op, ArgKeys::of(&args).without_data(), &args, host));
        }
        Ok(run_keyed(&session, op, ArgKeys::of(&args[..telling]), &args, host))
    }
}

/// A binary operator of the number protocol; None (not implemented) when an operand is neither tensor nor number.
///
/// # Safety
/// Live objects, lock held.
#[inline(always)]
pub unsafe fn operator(ops: &Binary, a: Obj, b: Obj) -> Option<Result<Obj>> {
    // SAFETY: the caller's promise.
    unsafe {
        if shell::is_tensor(a) {
            let x = Arg::Tensor(shell::tensor_of(a));
            if shell::is_tensor(b) {
                return Some(short(ops.tensor, &[x, Arg::Tensor(shell::tensor_of(b))]));
            }
            if let Some(s) = number(b) {
                return Some(short(ops.scalar, &[x, Arg::Scalar(s)]));
            }
            return match number_like(b) {
                Ok(s) => Some(short(ops.scalar, &[x, Arg::Scalar(s?)])),
                Err(e) => Some(Err(e)),
            };
        }
        let s = match number(a) {
            Some(s) => s,
            None => match number_like(a) {
                Ok(s) => s?,
                Err(e) => return Some(Err(e)),
            },
        };
        Some(short(ops.scalar_left, &[Arg::Scalar(s), Arg::Tensor(shell::tensor_of(b))]))
    }
}

/// NumPy scalars and subclasses of numbers; an exception of the object's own methods is an error.
#[cold]
unsafe fn number_like(obj: Obj) -> Result<Option<Scalar>> {
    // SAFETY: live object.
    match unsafe { convert::number(obj) } {
        Err(e) if e.kind() != ErrorKind::Host => Ok(None),
        other => other,
    }
}

/// The three overloads of one operator.
#[derive(Clone, Copy)]
pub struct Binary {
    pub tensor: OpHandle,
    pub scalar: OpHandle,
    pub scalar_left: OpHandle,
}
