//! Symbolic sizes as Python objects: `SymInt`, what comparing one gives (`SymBool`), `check`, and the context of a fake
//! rule, which makes fresh ones. An object knows the table of its capture; with those of another it does not mix.

use crate::error::{IntoPyResult, guarded};
use crate::hot::sizes::size_object;
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyZeroDivisionError;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use tp_dispatch::fake::dynamic::{self, FakeContext};
use tp_dispatch::{Error, host};
use tp_tensor::symbols::{self, Binding, Check, Poly, Relation, Statement, Symbols};
use tp_tensor::{Dim, TensorError};

/// A size that only a run knows: a symbol such as `u0`, or an expression over symbols. It stands where sizes stand, in
/// shapes and slices. `+ - * // %` with integers and other sizes give sizes; comparisons are decided by the declared
/// ranges and by `tensorplay.check`, and are a `SymBool` otherwise. Asking for the number itself is a `CaptureError`.
#[pyclass(frozen, name = "SymInt", module = "tensorplay")]
pub struct PySymInt {
    pub poly: Poly,
    pub table: Arc<Symbols>,
}

/// A statement about symbolic sizes that is not decided. Its truth value is a `CaptureError` that names it; give it to
/// `tensorplay.check`.
#[pyclass(frozen, name = "SymBool", module = "tensorplay")]
pub struct PySymBool {
    statement: Statement,
    table: Arc<Symbols>,
}

/// The context of the fake rule that is running: `library.get_ctx()`.
#[pyclass(frozen, name = "FakeContext", module = "tensorplay.library")]
pub struct PyFakeContext(FakeContext);

/// The number that an object stands for in a table; None where it is none.
fn operand(obj: &Bound<'_, PyAny>, table: &Arc<Symbols>) -> PyResult<Option<Poly>> {
    if let Ok(size) = obj.cast::<PySymInt>() {
        let size = size.get();
        if !Arc::ptr_eq(&size.table, table) {
            return Err(of_another_capture(&size.poly)).py(obj.py());
        }
        return Ok(Some(size.poly.clone()));
    }
    if !obj.is_instance_of::<PyInt>() {
        return Ok(None);
    }
    Ok(Some(Poly::constant(obj.extract()?)))
}

#[cold]
pub fn of_another_capture(poly: &Poly) -> Error {
    Error::capture("TP4019", format!("the symbolic size {poly} was used outside of the capture that made it"))
        .note("do not keep sizes in globals or attributes while a function is being captured")
}

/// A number that leaves 64 bits on the way.
#[cold]
fn too_large(left: &Poly, sign: &str, right: &Poly) -> Error {
    Error::capture("TP4002", format!("{left} {sign} {right} has numbers that do not fit in 64 bits"))
}

pub fn object<'py>(py: Python<'py>, poly: Poly, table: &Arc<Symbols>) -> PyResult<Bound<'py, PyAny>> {
    match poly.as_constant() {
        Some(v) => Ok(v.into_pyobject(py)?.into_any()),
        None => Ok(Bound::new(py, PySymInt { poly, table: table.clone() })?.into_any()),
    }
}

type Arithmetic = fn(&Poly, &Poly) -> Option<Poly>;

impl PySymInt {
    fn with<'py>(
        &self,
        other: &Bound<'py, PyAny>,
        sign: &str,
        calculate: Arithmetic,
        reflected: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = other.py();
        let Some(other) = operand(other, &self.table)? else { return Ok(py.NotImplemented().into_bound(py)) };
        let (left, right) = if reflected { (&other, &self.poly) } else { (&self.poly, &other) };
        let poly = calculate(left, right).ok_or_else(|| too_large(left, sign, right)).py(py)?;
        object(py, poly, &self.table)
    }

    /// The quotient rounded down and the divisor; None where `by` is no number.
    fn divided(&self, by: &Bound<'_, PyAny>, sign: &str) -> PyResult<Option<(Poly, Poly)>> {
        let py = by.py();
        let Some(by) = operand(by, &self.table)? else { return Ok(None) };
        let Some(number) = by.as_constant() else {
            return Err(needed(format!("{} {sign} {by}", self.poly))).py(py);
        };
        if number == 0 {
            return Err(PyZeroDivisionError::new_err(format!("{} {sign} 0", self.poly)));
        }
        let quotient = self.poly.floor(number, |p| self.table.declared_range(p));
        let quotient = quotient.ok_or_else(|| too_large(&self.poly, sign, &by)).py(py)?;
        Ok(Some((quotient, by)))
    }

    /// The number, where ranges and checks leave one only.
    fn pinned(&self) -> Option<i64> {
        let range = self.table.range(&self.poly);
        (range.low == range.high).then(|| i64::try_from(range.low).ok()).flatten()
    }
}

/// What only a run knows was asked for.
#[cold]
pub fn needed(what: String) -> Error {
    Error::from(TensorError::Unknown(what))
}

#[pymethods]
impl PySymInt {
    fn __add__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.with(other, "+", Poly::plus, false))
    }

    fn __radd__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.with(other, "+", Poly::plus, true))
    }

    fn __sub__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.with(other, "-", Poly::minus, false))
    }

    fn __rsub__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.with(other, "-", Poly::minus, true))
    }

    fn __mul__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.with(other, "*", Poly::times, false))
    }

    fn __rmul__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.with(other, "*", Poly::times, true))
    }

    fn __floordiv__<'py>(&self, by: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| match self.divided(by, "//")? {
            Some((quotient, _)) => object(by.py(), quotient, &self.table),
            None => Ok(by.py().NotImplemented().into_bound(by.py())),
        })
    }

    fn __mod__<'py>(&self, by: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let py = by.py();
            let Some((quotient, by)) = self.divided(by, "%")? else {
                return Ok(py.NotImplemented().into_bound(py));
            };
            let rest = quotient.times(&by).and_then(|whole| self.poly.minus(&whole));
            object(py, rest.ok_or_else(|| too_large(&self.poly, "%", &by)).py(py)?, &self.table)
        })
    }

    fn __divmod__<'py>(&self, by: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        guarded(|| Ok((self.__floordiv__(by)?, self.__mod__(by)?)))
    }

    fn __truediv__(&self, py: Python<'_>, by: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        guarded(|| Err(needed(format!("{} / {}", self.poly, by.repr()?))).py(py))
    }

    fn __rtruediv__(&self, py: Python<'_>, of: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        guarded(|| Err(needed(format!("{} / ({})", of.repr()?, self.poly))).py(py))
    }

    fn __rfloordiv__(&self, py: Python<'_>, of: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        guarded(|| Err(needed(format!("{} // ({})", of.repr()?, self.poly))).py(py))
    }

    fn __rmod__(&self, py: Python<'_>, of: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        guarded(|| Err(needed(format!("{} % ({})", of.repr()?, self.poly))).py(py))
    }

    fn __neg__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let zero = Poly::constant(0);
            let poly = zero.minus(&self.poly).ok_or_else(|| too_large(&zero, "-", &self.poly)).py(py)?;
            object(py, poly, &self.table)
        })
    }

    fn __pos__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        guarded(|| Ok(slf))
    }

    fn __richcmp__<'py>(&self, other: &Bound<'py, PyAny>, op: CompareOp) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let py = other.py();
            let Some(right) = operand(other, &self.table)? else {
                return Ok(py.NotImplemented().into_bound(py));
            };
            let relation = match op {
                CompareOp::Eq => Relation::Eq,
                CompareOp::Ne => Relation::Ne,
                CompareOp::Lt => Relation::Lt,
                CompareOp::Le => Relation::Le,
                CompareOp::Gt => Relation::Gt,
                CompareOp::Ge => Relation::Ge,
            };
            let statement = Statement { left: self.poly.clone(), relation, right };
            match self.table.decide(&statement) {
                Some(known) => Ok(known.into_pyobject(py)?.to_owned().into_any()),
                None => Ok(Bound::new(py, PySymBool { statement, table: self.table.clone() })?.into_any()),
            }
        })
    }

    fn __hash__(&self) -> PyResult<u64> {
        guarded(|| {
            let mut h = DefaultHasher::new();
            (self.poly.to_string(), Arc::as_ptr(&self.table) as usize).hash(&mut h);
            Ok(h.finish())
        })
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        guarded(|| {
            let zero = Poly::constant(0);
            let statement = Statement { left: self.poly.clone(), relation: Relation::Ne, right: zero };
            self.table.decide(&statement).ok_or_else(|| open(&statement)).py(py)
        })
    }

    fn __index__(&self, py: Python<'_>) -> PyResult<i64> {
        guarded(|| self.pinned().ok_or_else(|| needed(self.poly.to_string())).py(py))
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<i64> {
        guarded(|| self.__index__(py))
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        guarded(|| Ok(self.__index__(py)? as f64))
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| Ok(self.poly.to_string()))
    }

    /// As text: `f"{n:>8}"`.
    fn __format__<'py>(&self, py: Python<'py>, spec: &str) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.poly.to_string().into_pyobject(py)?.call_method1("__format__", (spec,)))
    }
}

#[cold]
fn open(statement: &Statement) -> Error {
    Error::from(TensorError::Undecided(statement.to_string()))
}

#[pymethods]
impl PySymBool {
    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        guarded(|| self.table.decide(&self.statement).ok_or_else(|| open(&self.statement)).py(py))
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| Ok(self.statement.to_string()))
    }
}

#[pymethods]
impl PyFakeContext {
    /// A fresh size from `min` to `max` (no upper bound for None): what the kernel's output has on that axis is known in
    /// a run only. It must be the size of an axis of some output, or a multiple of it.
    #[pyo3(signature = (min = None, max = None))]
    fn new_dynamic_size(
        &self,
        py: Python<'_>,
        min: Option<Bound<'_, PyAny>>,
        max: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        guarded(|| {
            let low = min.map(|v| self.bound("min", &v)).transpose()?.unwrap_or(0);
            let high = max.map(|v| self.bound("max", &v)).transpose()?;
            let size = self.0.new_size(low, high).py(py)?;
            // SAFETY: lock held.
            unsafe { Bound::from_owned_ptr_or_err(py, size_object(size.raw())).map(Bound::unbind) }
        })
    }

    /// Whether both are of the same run of a fake rule.
    fn __eq__(&self, other: &PyFakeContext) -> PyResult<bool> {
        guarded(|| Ok(self.0 == other.0))
    }

    fn __hash__(&self) -> PyResult<u64> {
        guarded(|| {
            let mut hasher = DefaultHasher::new();
            self.0.hash(&mut hasher);
            Ok(hasher.finish())
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| Ok(format!("<context of the fake rule of {}>", self.0.op().name())))
    }
}

impl PyFakeContext {
    fn bound(&self, name: &str, v: &Bound<'_, PyAny>) -> PyResult<i64> {
        let refuse = |e: Error| Err(e.with_op(self.0.op().name())).py(v.py());
        if let Ok(size) = v.cast::<PySymInt>() {
            let message = format!("{name} must be a number, got the symbolic size {}", size.get().poly);
            return refuse(Error::value("TP1170", message));
        }
        if !v.is_instance_of::<PyInt>() {
            let got = v.get_type().name()?.to_string();
            return refuse(Error::argument("TP1002", format!("{name} must be an int, got {got}")));
        }
        let fits = v.extract::<i64>();
        fits.or_else(|_| refuse(Error::value("TP1170", format!("{name} must fit in 64 bits, got {v}"))))
    }
}

/// The context of the fake rule that runs on this thread.
#[pyfunction]
fn get_ctx(py: Python<'_>) -> PyResult<PyFakeContext> {
    guarded(|| Ok(PyFakeContext(dynamic::context().py(py)?)))
}

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

/// Sizes of a graph as objects, whatever table is in force.
pub fn size_objects<'py>(
    py: Python<'py>,
    table: &Arc<Symbols>,
    raw: &[i64],
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    raw.iter()
        .map(|&d| match table.poly(Dim::from_raw(d)) {
            Some(poly) => object(py, poly, table),
            None => Err(Error::from(TensorError::Symbolic(d))).py(py),
        })
        .collect()
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PySymInt>()?;
    m.add_class::<PySymBool>()?;
    m.add_class::<PyFakeContext>()?;
    m.add_function(wrap_pyfunction!(get_ctx, m)?)?;
    m.add_function(wrap_pyfunction!(check, m)?)?;
    m.add_function(wrap_pyfunction!(bind_sizes, m)?)
}
