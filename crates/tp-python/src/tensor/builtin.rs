//! Built-in ops that the door itself calls: handles looked up once by name, called through the dispatcher, so that
//! autograd, capture and tracing see what a method does.

use std::sync::OnceLock;
use tp_dispatch::dispatcher::Session;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::state::{self, KeyGuard};
use tp_dispatch::{Arg, DispatchKey, Error, OpHandle, Registry, Result, Rets, Value};
use tp_tensor::Tensor;

/// One built-in op by name.
pub struct Builtin {
    name: &'static str,
    op: OnceLock<OpHandle>,
}

macro_rules! builtins {
    ($($ident:ident = $name:literal),* $(,)?) => {
        $(pub static $ident: Builtin = Builtin::new($name);)*
    };
}

builtins! {
    ALIAS = "tp::alias",
    ASTYPE = "tp::astype",
    CLONE = "tp::clone",
    CONTIGUOUS = "tp::contiguous",
    COPY_ = "tp::copy_",
    DETACH = "tp::detach",
    EXPAND = "tp::expand",
    FILL_ = "tp::fill_",
    FLIP = "tp::flip",
    FULL = "tp::full",
    INDEX = "tp::index",
    INDEX_PUT_ = "tp::index_put_",
    NONZERO = "tp::nonzero",
    RESHAPE = "tp::reshape",
    SELECT = "tp::select",
    SLICE = "tp::slice",
    TRANSPOSE = "tp::transpose",
    UNSQUEEZE = "tp::unsqueeze",
}

impl Builtin {
    const fn new(name: &'static str) -> Builtin {
        Builtin { name, op: OnceLock::new() }
    }

    fn handle(&self) -> Result<OpHandle> {
        if let Some(op) = self.op.get() {
            return Ok(*op);
        }
        let op = Registry::global().lookup(self.name)?;
        Ok(*self.op.get_or_init(|| op))
    }

    /// As `call`, for work on data that is there now: neither the tape nor a capture records it, and the result is
    /// real. A fake argument is captured as usual.
    pub fn run(&self, args: &[Arg<'_>]) -> Result<Tensor> {
        let mut fake = false;
        args.iter().for_each(|a| a.for_each_tensor(|t| fake |= t.is_fake()));
        if fake {
            return self.call(args);
        }
        let _unrecorded = KeyGuard::foreign_kernel();
        // The guard brings it back: inside of a fake rule nothing else is real.
        state::set_included(DispatchKey::Meta, false);
        self.call(args)
    }

    /// Calls the op with leading arguments; defaults fill the rest.
    pub fn call(&self, args: &[Arg<'_>]) -> Result<Tensor> {
        let op = self.handle()?;
        let session = Session::open(op)?;
        let mut rets = Rets::new();
        let params = &session.def().params;
        let called = if params.len() == args.len() {
            session.call(args, HostArgs::NONE, &mut rets)
        } else {
            session.call(&params.fill(self.name, args)?, HostArgs::NONE, &mut rets)
        };
        called.map_err(|e| e.with_op(self.name))?;
        match rets.pop() {
            Some(Value::Tensor(t)) => Ok(t),
            _ => Err(Error::internal("TP9008", "the op returned no tensor").with_op(self.name)),
        }
    }
}
