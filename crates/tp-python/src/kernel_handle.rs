//! One registered kernel as a Python callable, for whoever wraps it. Choosing among kernels is not here.

use crate::error::{IntoPyResult, guarded};
use crate::hot::bind::{self, Args, CalleeInfo, Given, Objects, Scratch};
use crate::hot::ret;
use crate::ops::{def_of, kernel_of, lookup, slot_of};
use crate::settle;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::select::{KernelEntry, Slot};
use tp_dispatch::{Arg, Call, DispatchKey, OpDef, OpHandle, Rets, state};

/// One registered kernel as a callable: whatever is registered later, a call runs this one, with grad mode off.
#[pyclass(frozen, module = "tensorplay._native", name = "KernelHandle")]
pub struct PyKernelHandle {
    op: OpHandle,
    def: Arc<OpDef>,
    entry: Arc<KernelEntry>,
}

#[pymethods]
impl PyKernelHandle {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let _at_once = settle::leave("a kernel called by its handle").py(py)?;
            for t in args.iter().filter_map(|a| crate::tensor::as_tensor(&a)) {
                settle::quietly(&t).py(py)?;
            }
            let mut objects: Vec<Bound<'py, PyAny>> = args.iter().collect();
            let names: Vec<_> = kwargs.iter().flat_map(|d| d.keys()).collect();
            let names = PyTuple::new(py, names)?;
            objects.extend(kwargs.iter().flat_map(|d| d.values()));
            let objects: Vec<_> = objects.iter().map(Bound::as_ptr).collect();
            let given = Given { args: objects.as_ptr(), nargs: args.len(), kwnames: names.as_ptr() };
            // SAFETY: lock held; the objects outlive the call.
            unsafe { Bound::from_owned_ptr_or_err(py, ret::guard(|| self.run(given))) }
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| {
            Ok({
                let at = &self.entry.provenance;
                format!("<kernel {} of {} at {}:{}>", at.name, self.op, at.file, at.line)
            })
        })
    }
}

impl PyKernelHandle {
    /// # Safety
    /// Lock held, live objects.
    unsafe fn run(&self, given: Given) -> tp_dispatch::Result<crate::hot::ffi::Obj> {
        let (mut slots, mut args, mut scratch) = (Objects::new(), Args::new(), Scratch::default());
        // SAFETY: the caller's promise; scratch and info outlive the call.
        unsafe {
            let info = CalleeInfo::new(&self.def);
            bind::bind(self.op.name(), &info, given, &mut slots, &mut args, &mut scratch)?;
            args.iter().try_for_each(|arg| self.check_device(arg))?;
            let key = if let Slot::Key(key) = self.entry.slot { key } else { DispatchKey::Cpu };
            let call = Call {
                op: self.op,
                def: &self.def,
                args: &args,
                keys: key.set(),
                host: HostArgs::NONE,
                table: None,
            };
            let mut rets = Rets::new();
            let _guard = state::KeyGuard::foreign_kernel();
            self.entry.run(&call, &mut rets).map_err(|e| e.with_op(self.op.name()))?;
            Ok(ret::finish(rets, Some(&self.def.schema)))
        }
    }

    /// The dispatcher chose nothing here, so that nobody else has looked where the tensors are.
    fn check_device(&self, arg: &Arg<'_>) -> tp_dispatch::Result<()> {
        let mut wrong = None;
        arg.for_each_tensor(|t| {
            let here = match self.entry.slot {
                Slot::Key(DispatchKey::Cpu) => t.device().is_cpu(),
                Slot::Key(DispatchKey::Cuda) => t.device().is_cuda(),
                _ => !t.device().is_meta(),
            };
            if !here || t.is_fake() {
                wrong = wrong.or(Some(t));
            }
        });
        let Some(t) = wrong else { return Ok(()) };
        let slot = self.entry.slot.name();
        let message = match t.is_fake() || t.device().is_meta() {
            true => "a tensor without data cannot go into a kernel".to_string(),
            false => format!("the kernel is for '{slot}', a tensor is on {}", t.device()),
        };
        Err(tp_dispatch::Error::device("TP2107", message)
            .with_op(self.op.name())
            .note("call the op itself: it chooses by the tensors"))
    }
}

/// The kernel of the moment under a slot of `name`, as a callable that stays what it is; None without one.
#[pyfunction]
pub fn kernel_handle(
    py: Python<'_>,
    name: &str,
    slot: &str,
    kernel: Option<&str>,
) -> PyResult<Option<PyKernelHandle>> {
    guarded(|| {
        let op = lookup(py, name)?;
        let def = def_of(py, op)?;
        Ok(kernel_of(op, slot_of(slot)?, kernel).map(|entry| PyKernelHandle { op, def, entry }))
    })
}
