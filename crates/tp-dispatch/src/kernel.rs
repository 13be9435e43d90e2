//! Kernels and fake rules: what a registration attaches to an op, and the call they receive.

use crate::error::Result;
use crate::host::HostVisitor;
use crate::key::KeySet;
use crate::op::{OpDef, OpHandle};
use crate::table::DispatchTable;
use crate::value::{Arg, Rets, Value};
use smallvec::SmallVec;
use std::sync::Arc;
use tp_tensor::{DType, Device, Layout, Tensor, TensorSpec};

/// The caller's own objects, one per schema argument, for kernels of the host language; null when the call came
/// from Rust. The host interprets the pointers; they live as long as the call.
#[derive(Clone, Copy)]
pub struct HostArgs(pub *const *mut ());

impl HostArgs {
    pub const NONE: HostArgs = HostArgs(std::ptr::null());
}

/// One call on its way through the layers.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub op: OpHandle,
    pub def: &'a Arc<OpDef>,
    /// One per schema argument, defaults filled in.
    pub args: &'a [Arg<'a>],
    /// Keys still to be passed, the present one included.
    pub keys: KeySet,
    pub host: HostArgs,
    /// The table that the call was looked up in; None for one that did not come through the dispatcher.
    pub table: Option<&'a DispatchTable>,
}

pub type KernelFn = fn(&Call<'_>, &mut Rets) -> Result<()>;

/// The short form of a kernel that returns one fresh tensor: the same result for the commonest calls, without the
/// call's record. It never fails and has no effects.
#[derive(Clone, Copy)]
pub struct Short {
    /// None where the kernel itself has to run.
    pub fresh: fn(&[Arg<'_>]) -> Option<Tensor>,
    /// The same result written over the first argument, a contiguous tensor in CPU memory that nobody else sees.
    /// False where nothing was written.
    pub over: Option<fn(&[Arg<'_>]) -> bool>,
}

/// A kernel, or a layer, for calls that return one new tensor, which needs no list then. None where the ordinary form
/// has to do it; nothing was run in that case.
pub type OneFn = fn(&Call<'_>) -> Option<Result<Tensor>>;

/// A kernel with state: a host function, a compiled module.
pub trait KernelObject: Send + Sync {
    fn call(&self, call: &Call<'_>, rets: &mut Rets) -> Result<()>;
    /// See `OneFn`.
    fn one(&self, _call: &Call<'_>) -> Option<Result<Tensor>> {
        None
    }
    fn short(&self) -> Option<Short> {
        None
    }
    /// Host objects it owns, for the cycle collector.
    fn trace(&self, visit: &mut HostVisitor<'_>);
    /// The host object people registered, if it is one (opaque pointer, borrowed).
    fn host_function(&self) -> *mut () {
        std::ptr::null_mut()
    }
}

#[derive(Clone)]
pub enum Kernel {
    Fn(KernelFn),
    Object(Arc<dyn KernelObject>),
}

impl Kernel {
    #[inline]
    pub fn call(&self, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        match self {
            Kernel::Fn(f) => f(call, rets),
            Kernel::Object(o) => o.call(call, rets),
        }
    }
}

/// Who put it there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Provenance {
    pub name: Arc<str>,
    pub file: Arc<str>,
    pub line: u32,
    pub executor: Arc<str>,
}

impl Provenance {
    pub fn native(name: impl Into<Arc<str>>, file: &str, line: u32) -> Provenance {
        Provenance { name: name.into(), file: file.into(), line, executor: "native".into() }
    }
}

/// One output as a fake rule predicts it.
#[derive(Clone, Debug)]
pub enum FakeOut {
    Spec(TensorSpec),
    List(Vec<TensorSpec>),
    /// A view of argument `of`: shares its storage.
    View {
        of: usize,
        layout: Layout,
    },
    /// The very tensor given as argument `of` (in-place and out forms).
    Same {
        of: usize,
    },
    /// A value that is no tensor.
    Value(Value),
}

pub type FakeOuts = SmallVec<[FakeOut; 1]>;

/// Shape, dtype, strides and device of the outputs, without data.
#[derive(Clone, Default)]
pub enum FakeRule {
    #[default]
    Missing,
    Fn(fn(&Call<'_>) -> Result<FakeOuts>),
    /// A host function over fake tensors.
    Object(Arc<dyn KernelObject>),
    /// The op returns nothing and only writes to its arguments.
    Nothing,
}

impl FakeRule {
    pub fn is_missing(&self) -> bool {
        matches!(self, FakeRule::Missing)
    }
}

impl<'a> Call<'a> {
    /// The tensor bound to argument `i`; the schema guarantees it for `Tensor` arguments.
    #[inline]
    pub fn tensor(&self, i: usize) -> Result<&'a Tensor> {
        match self.args.get(i) {
            Some(Arg::Tensor(t)) => Ok(t),
            other => Err(self.unexpected(i, "Tensor", other)),
        }
    }

    pub fn opt_tensor(&self, i: usize) -> Option<&'a Tensor> {
        self.args.get(i).and_then(|a| a.tensor())
    }

    pub fn tensors(&self, i: usize) -> Result<&'a [Tensor]> {
        match self.args.get(i) {
            Some(Arg::Tensors(ts)) => Ok(ts),
            other => Err(self.unexpected(i, "list[Tensor]", other)),
        }
    }

    pub fn int(&self, i: usize) -> Result<i64> {
        let arg = self.args.get(i);
        arg.and_then(Arg::int).ok_or_else(|| self.unexpected(i, "int", arg))
    }

    pub fn bool(&self, i: usize) -> Result<bool> {
        let arg = self.args.get(i);
        arg.and_then(Arg::bool).ok_or_else(|| self.unexpected(i, "bool", arg))
    }

    pub fn scalar(&self, i: usize) -> Result<tp_tensor::Scalar> {
        let arg = self.args.get(i);
        arg.and_then(Arg::scalar).ok_or_else(|| self.unexpected(i, "number", arg))
    }

    pub fn ints(&self, i: usize) -> Result<&'a [i64]> {
        let arg = self.args.get(i);
        arg.and_then(Arg::ints).ok_or_else(|| self.unexpected(i, "list[int]", arg))
    }

    pub fn opt_ints(&self, i: usize) -> Option<&'a [i64]> {
        self.args.get(i).and_then(Arg::ints)
    }

    pub fn opt_dtype(&self, i: usize) -> Option<DType> {
        self.args.get(i).and_then(Arg::dtype)
    }

    pub fn opt_device(&self, i: usize) -> Option<Device> {
        self.args.get(i).and_then(Arg::device)
    }

    #[cold]
    fn unexpected(&self, i: usize, wanted: &str, got: Option<&Arg<'_>>) -> crate::Error {
        let name = self.def.params.name(i).unwrap_or("?");
        let got = got.map_or("nothing", |a| a.type_name());
        crate::Error::argument("TP1002", format!("argument '{name}' must be {wanted}, got {got}"))
            .with_op(self.op.name())
    }

    /// Every tensor argument with its argument index, lists included.
    pub fn for_each_tensor(&self, mut f: impl FnMut(usize, &'a Tensor)) {
        for (i, arg) in self.args.iter().enumerate() {
            arg.for_each_tensor(|t| f(i, t));
        }
    }
}
