//! What is stated of symbolic sizes: `check`, and the real sizes of a call held to those that its fake rule promised.

use super::{PySymBool, PySymInt, of_another_capture, operand};
use crate::error::{IntoPyResult, guarded};
use pyo3::prelude::*;
use std::sync::Arc;
use tp_dispatch::{Error, host};
use tp_tensor::symbols::{self, Binding, Check, Poly};

/// States that `condition` holds. A statement about symbolic sizes that is not decided is taken to hold from here on, so
/// that later comparisons can be decided by it, and every run confirms it. What is false is an `InvalidValueError`
/// (a `ValueError`) with `message`, which may be a function that makes it.
#[pyfunction]
#[pyo3(signature = (condition, message = None))]
fn check(py: Python<'_>, condition: &Bound<'_, PyAny>, message: Option<Bound<'_, PyAny>>) -> PyResult<()> {
    guarded(|| {
        let text = || -> PyResult<Option<String>> {
            let Some(message) = &message else { return Ok(None) };
            let made = if message.is_callable() { message.call0()? } else { message.clone() };
            Ok(Some(made.str()?.to_string()))
        };
        let Ok(stated) = condition.cast::<PySymBool>() else {
            if condition.is_truthy()? {
                return Ok(());
            }
            let message = text()?.unwrap_or_else(|| "the checked condition is false".to_string());
            return Err(Error::value("TP1171", message)).py(py);
        };
        let stated = stated.get();
        if !symbols::current().is_some_and(|table| Arc::ptr_eq(&table, &stated.table)) {
            return Err(of_another_capture(&stated.statement.left)).py(py);
        }
        match stated.table.decide(&stated.statement) {
            Some(true) => Ok(()),
            Some(false) => {
                let said = format!("{} is false in every run", stated.statement);
                let e = Error::value("TP1171", text()?.unwrap_or_else(|| said.clone()));
                Err(if message.is_some() { e.note(said) } else { e }).py(py)
            }
            None => {
                let message = text()?.map(Into::into);
                let at = host::location().map(|at| (at.file, at.line));
                stated.table.check(Check { statement: stated.statement.clone(), message, at });
                Ok(())
            }
        }
    })
}

/// Promised shape and strides, and the real shape.
type Promised<'py> = (Vec<Bound<'py, PyAny>>, Vec<Bound<'py, PyAny>>, Vec<i64>);

/// Holds real sizes to promised ones, for each output of one call in order. What comes back is the promised shape and
/// strides with the values that the symbols have, None for one without, or a text that says what does not fit.
#[pyfunction]
fn bind_sizes<'py>(py: Python<'py>, outputs: Vec<Promised<'py>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    guarded(|| {
        let symbolic = |o: &Bound<'py, PyAny>| o.cast::<PySymInt>().ok().map(|s| s.get().table.clone());
        let table = outputs.iter().flat_map(|(promised, ..)| promised).find_map(symbolic);
        let table = table.unwrap_or_default();
        let mut binding = Binding::new(Arc::new(symbols::Shapes::of(&table)));
        let mut out = Vec::with_capacity(outputs.len());
        for (sizes, strides, real) in &outputs {
            let polys = |all: &[Bound<'py, PyAny>]| {
                all.iter()
                    .map(|o| Ok(operand(o, &table)?.unwrap_or_default()))
                    .collect::<PyResult<Vec<Poly>>>()
            };
            let (sizes, strides) = (polys(sizes)?, polys(strides)?);
            match unfit(&mut binding, &sizes, real) {
                Some(text) => out.push(text.into_pyobject(py)?.into_any()),
                None => {
                    let known = |all: &[Poly]| all.iter().map(|p| binding.eval(p)).collect::<Vec<_>>();
                    out.push((known(&sizes), known(&strides)).into_pyobject(py)?.into_any());
                }
            }
        }
        Ok(out)
    })
}

/// The first symbolic size that a real shape contradicts. Other differences are the caller's to see.
fn unfit(binding: &mut Binding, sizes: &[Poly], real: &[i64]) -> Option<String> {
    if sizes.len() != real.len() {
        return None;
    }
    let mut axes = sizes.iter().zip(real).enumerate().filter(|(_, (poly, _))| poly.as_constant().is_none());
    axes.find_map(|(axis, (poly, &size))| {
        binding.size(poly, size).err().map(|misfit| format!("axis {axis} has {misfit}"))
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(check, m)?)?;
    m.add_function(wrap_pyfunction!(bind_sizes, m)?)
}
