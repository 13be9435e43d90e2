//! Calls that each check makes again: of a context variable, and of a function of which `functools.lru_cache` keeps the
//! results. What such a call gives is the state.

use super::code::{Code, Kind};
use super::expect::{is_immutable, owned};
use super::guards::{Check, Guard};
use super::natives;
use super::session::Session;
use crate::hot::ffi::Obj;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tp_dispatch::Result;
use tp_graph::capture::watch;

impl Session {
    /// Of a context variable, or of a function whose results are kept.
    pub(super) unsafe fn call_again(
        &mut self,
        py: Python<'_>,
        code: &Code,
        callee: Obj,
        on: Obj,
        args: Vec<Obj>,
    ) -> Result<()> {
        unsafe {
            let is_bound = ffi::PyCFunction_Check(callee) != 0;
            let of = if on.is_null() { callee } else { on };
            let name = format!("{}(...)", self.name(of));
            let mut all = Vec::new();
            if !is_bound && !on.is_null() {
                all.push(on);
            }
            all.extend(args);
            if !self.is_old(of) && !self.is_old(callee) {
                return Ok(());
            }
            let is_key = |arg: &Obj| is_immutable(*arg, 0) || ffi::PyType_Check(*arg) != 0 || *arg == on;
            if self.keywords.is_some() || !all.iter().all(is_key) {
                if code.kind != Kind::User {
                    return Ok(());
                }
                return Err(natives::unknown(py, callee, on));
            }
            self.again(py, callee, &all, name)
        }
    }

    /// A call that is cheap and safe enough to be made again by each check: of a context variable, of a cached function.
    unsafe fn again(&mut self, py: Python<'_>, callee: Obj, args: &[Obj], name: String) -> Result<()> {
        unsafe {
            let callable: Bound<'_, PyAny> = Bound::from_borrowed_ptr(py, callee);
            let given: Vec<Bound<'_, PyAny>> =
                args.iter().map(|arg| Bound::from_borrowed_ptr(py, *arg)).collect();
            let Ok(given) = PyTuple::new(py, given) else { return Ok(()) };
            // What raises now does so in the function.
            let Ok(out) = callable.call1(&given) else { return Ok(()) };
            let leak = py
                .import("tensorplay._containers")
                .and_then(|m| m.call_method1("leak", (&out,)))
                .is_ok_and(|leak| !leak.is_none());
            if leak {
                drop(callable.call_method0("cache_clear"));
                return Err(watch::refusal(
                    "TP4036",
                    format!("{name} would keep a value of the capture, and give it to later calls"),
                )
                .note("call it outside of the function and pass the result in"));
            }
            let value = self.value(out.as_ptr());
            self.name_it(out.as_ptr(), || name.clone());
            let check = Check::Again { callee: owned(callee), args: given.into_any().unbind(), value };
            self.guards.push(Guard { name, check });
            Ok(())
        }
    }
}
