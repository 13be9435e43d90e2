//! Calculation with a size that has no symbolic form: done with the number, where that is known or can be settled.

use super::{PySymInt, text};
use crate::error::IntoPyResult;
use pyo3::prelude::*;

impl PySymInt {
    /// Calculation that has no symbolic form, on the number.
    #[cold]
    pub(super) fn on_number<'py>(
        &self,
        method: &str,
        sign: &str,
        other: &Bound<'py, PyAny>,
        reflected: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = other.py();
        let what = match reflected {
            true => format!("{} {sign} ({})", text(other)?, self.poly),
            false => format!("{} {sign} {}", self.poly, text(other)?),
        };
        let number = self.number(|| what).py(py)?.into_pyobject(py)?.into_any();
        let name = method.trim_matches('_');
        let operator = py.import("operator")?;
        match (reflected, name) {
            (_, "divmod" | "rdivmod") => {
                let args = if reflected { (other, &number) } else { (&number, other) };
                py.import("builtins")?.call_method1("divmod", args)
            }
            (true, name) => operator.call_method1(operator_name(&name[1..]), (other, number)),
            (false, name) => operator.call_method1(operator_name(name), (number, other)),
        }
    }
}

/// The function of Python's module `operator`.
fn operator_name(name: &str) -> &str {
    match name {
        "and" => "and_",
        "or" => "or_",
        other => other,
    }
}
