//! THE DOOR: the only crate that names PyO3. It makes the `tensorplay._native` module: the tensor type and the op
//! builtins (`hot`, made by hand), and everything else as plain PyO3.

mod autocast;
mod autograd;
mod batch;
mod compile;
mod control;
mod error;
mod given;
mod graph;
mod host;
mod hot;
mod kernel_handle;
mod modes;
mod ops;
mod registration;
mod report;
mod schema;
mod scope;
mod settle;
mod structure;
mod symint;
mod tensor;
mod types;
mod watching;

use pyo3::prelude::*;

/// Extension module of tensorplay.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::kernel_handle::{PyKernelHandle, kernel_handle};
    #[pymodule_export]
    use super::ops::{
        call_kernel, define_op, get_op, kernel_function, list_ops, op_info, op_name, op_overloads, pop_debug,
        pop_preference, push_debug, push_enabled, push_preference, register_fake, register_kernel,
    };
    #[pymodule_export]
    use super::registration::PyRegistration;
    #[pymodule_export]
    use super::report::TraceSink;
    #[pymodule_export]
    use super::schema::PySchema;
    #[pymodule_export]
    use super::types::{PyDType, PyDevice};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        claim(m.py())?;
        start(m.py())?;
        m.add("__version__", env!("CARGO_PKG_VERSION"))?;
        types::install_dtypes(m)?;
        // SAFETY: the types are made once, at import, with the lock held.
        unsafe {
            let ops = hot::opobj::init_type();
            m.add("CustomOpDef", Bound::from_borrowed_ptr_or_err(m.py(), ops.cast())?)?;
            let tensors = hot::tensor_type::init_type();
            let tensors_object = Bound::from_borrowed_ptr_or_err(m.py(), tensors.cast())?;
            hot::shell::set_tensor_type(tensors);
            m.add("Tensor", tensors_object)?;
            let compiled = compile::init_type();
            m.add("CompiledFunction", Bound::from_borrowed_ptr_or_err(m.py(), compiled.cast())?)?;
        }
        // SAFETY: once, at import, with the lock held.
        if !unsafe { hot::node_host::init() } {
            return Err(PyErr::fetch(m.py()));
        }
        tensor::register(m)?;
        autograd::register(m)?;
        graph::register(m)?;
        control::register(m)?;
        symint::register(m)?;
        compile::register(m)?;
        modes::register(m)?;
        scope::register(m)?;
        batch::register(m)?;
        autocast::register(m)?;
        hot::nest::register(m)?;
        ops::install_builtins(m)
    }

    /// The state of the extension is the process's: one interpreter makes it, once. Types made again would be strangers
    /// to the tensors and the errors that are there.
    fn claim(py: Python<'_>) -> PyResult<()> {
        use std::sync::atomic::{AtomicI64, Ordering};
        static OWNER: AtomicI64 = AtomicI64::new(-1);
        // SAFETY: lock held.
        let this = unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
        let text = match OWNER.compare_exchange(-1, this, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(()),
            Err(owner) if owner == this => {
                "tensorplay was loaded before in this process and taken out of sys.modules since: it can be loaded \
                 once; put the modules back, or start a new process"
            }
            Err(_) => {
                "tensorplay is loaded in another interpreter of this process: one interpreter can have it; use \
                 threads, or start a new process"
            }
        };
        let error = pyo3::exceptions::PyImportError::new_err(text);
        error.value(py).setattr("name", "tensorplay._native")?;
        Err(error)
    }

    /// Layers first, then the built-in ops: tables are computed with the layers in place.
    fn start(py: Python<'_>) -> PyResult<()> {
        use super::error::IntoPyResult;
        quiet_panics();
        host::install(py)?;
        batch::install();
        tp_autograd::install();
        tp_graph::install();
        tp_graph::backend::register(std::sync::Arc::new(tp_graph::backend::Native));
        tp_kernels::register_all().py(py)?;
        autocast::install();
        Ok(())
    }

    /// Panics are turned into exceptions at every slot; the hook's own report would only double them.
    fn quiet_panics() {
        std::panic::set_hook(Box::new(|_| {}));
    }
}
