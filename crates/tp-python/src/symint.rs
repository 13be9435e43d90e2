//! Symbolic sizes as Python objects: `SymInt`, what comparing one gives (`SymBool`), `check`, and the context of a fake
//! rule, which makes fresh ones (`context`). An object knows the table of its capture; with those of another it does not mix.

mod context;
mod numbers;
mod statements;

pub use numbers::{is_whole, size_objects, unmask};

use crate::error::{IntoPyResult, guarded};
use pyo3::IntoPyObjectExt;
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyZeroDivisionError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyTuple, PyType};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use tp_dispatch::{Error, Result, host};
use tp_graph::capture::watch;
use tp_tensor::symbols::{Poly, Relation, Statement, Symbols};
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
    match obj.extract() {
        Ok(number) => Ok(Some(Poly::constant(number))),
        Err(_) => Err(beyond(format!("{obj} beside a symbolic size"))).py(obj.py()),
    }
}

#[cold]
pub fn of_another_capture(poly: &Poly) -> Error {
    Error::capture("TP4019", format!("the symbolic size {poly} was used outside of the capture that made it"))
        .note("do not keep sizes in globals or attributes while a function is being captured")
}

/// What is written has numbers that 64 bits do not hold.
#[cold]
fn beyond(what: String) -> Error {
    let e = Error::capture("TP4002", format!("{what} has numbers that do not fit in 64 bits"));
    match host::location() {
        Some(at) => e.note(format!("needed at {at}")),
        None => e,
    }
}

/// A number that leaves 64 bits on the way.
#[cold]
fn too_large(left: &Poly, sign: &str, right: &Poly) -> Error {
    beyond(format!("{left} {sign} {right}"))
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
        let Some(other) = operand(other, &self.table)? else { return self.beside(sign, other, reflected) };
        let (left, right) = if reflected { (&other, &self.poly) } else { (&self.poly, &other) };
        let poly = calculate(left, right).ok_or_else(|| too_large(left, sign, right)).py(py)?;
        object(py, poly, &self.table)
    }

    /// Whether every symbol in it is the size of an input.
    fn is_of_inputs(&self) -> bool {
        let mut all = true;
        self.poly.for_each_symbol(&mut |id| all &= Dim::symbol(id).as_unbacked().is_none());
        all
    }

    /// The quotient rounded down and the divisor; None where `by` is no number.
    fn divided(&self, by: &Bound<'_, PyAny>, sign: &str) -> PyResult<Option<(Poly, Poly)>> {
        let py = by.py();
        let Some(by) = operand(by, &self.table)? else { return Ok(None) };
        let number = by.as_constant().or_else(|| self.table.settle(&by));
        let Some(number) = number else {
            return Err(needed(format!("{} {sign} {by}", self.poly))).py(py);
        };
        let by = Poly::constant(number);
        if number == 0 {
            return Err(PyZeroDivisionError::new_err(format!("{} {sign} 0", self.poly)));
        }
        let quotient = self.poly.floor(number, |p| self.table.declared_range(p));
        let quotient = quotient.ok_or_else(|| too_large(&self.poly, sign, &by)).py(py)?;
        Ok(Some((quotient, by)))
    }

    /// The number: where ranges and checks leave one only, or where the size is one of inputs, which later runs are held
    /// to. An error that names what was asked for where a run alone knows.
    fn number(&self, what: impl FnOnce() -> String) -> Result<i64> {
        self.table.settle(&self.poly).ok_or_else(|| needed(what()))
    }
}

/// Factors that a power is multiplied out to, at most.
const MOST_FACTORS: i64 = 8;

/// An operand in a message.
fn text(obj: &Bound<'_, PyAny>) -> PyResult<String> {
    match obj.cast::<PySymInt>() {
        Ok(size) => Ok(size.get().poly.to_string()),
        Err(_) => Ok(obj.repr()?.to_string()),
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
            None => self.beside("//", by, false),
        })
    }

    fn __mod__<'py>(&self, by: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let py = by.py();
            let Some((quotient, by)) = self.divided(by, "%")? else { return self.beside("%", by, false) };
            let rest = quotient.times(&by).and_then(|whole| self.poly.minus(&whole));
            object(py, rest.ok_or_else(|| too_large(&self.poly, "%", &by)).py(py)?, &self.table)
        })
    }

    fn __divmod__<'py>(&self, by: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| match operand(by, &self.table)? {
            Some(_) => (self.__floordiv__(by)?, self.__mod__(by)?).into_bound_py_any(by.py()),
            None => self.beside("divmod", by, false),
        })
    }

    fn __truediv__<'py>(&self, by: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__truediv__", "/", by, false))
    }

    fn __rtruediv__<'py>(&self, of: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__rtruediv__", "/", of, true))
    }

    fn __rfloordiv__<'py>(&self, of: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__rfloordiv__", "//", of, true))
    }

    fn __rmod__<'py>(&self, of: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__rmod__", "%", of, true))
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
            let relation = match op {
                CompareOp::Eq => Relation::Eq,
                CompareOp::Ne => Relation::Ne,
                CompareOp::Lt => Relation::Lt,
                CompareOp::Le => Relation::Le,
                CompareOp::Gt => Relation::Gt,
                CompareOp::Ge => Relation::Ge,
            };
            match operand(other, &self.table)? {
                Some(right) => self.stated(other.py(), relation, right),
                None => self.compared(relation, other),
            }
        })
    }

    fn __hash__(&self) -> PyResult<u64> {
        guarded(|| {
            // Equal to a number, found where that is.
            if self.is_of_inputs()
                && let Some(number) = self.table.settle(&self.poly)
            {
                return Ok(number as u64);
            }
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
        guarded(|| self.number(|| self.poly.to_string()).py(py))
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<i64> {
        guarded(|| self.__index__(py))
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        guarded(|| Ok(self.__index__(py)? as f64))
    }

    /// A text that a function under capture makes would say the symbol in every run.
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        guarded(|| {
            if self.is_of_inputs()
                && let Some(number) = self.table.settle(&self.poly)
            {
                return Ok(number.to_string());
            }
            if tp_graph::capture::active() {
                return Err(watch::refused(needed(format!("the text of {}", self.poly)))).py(py);
            }
            Ok(self.poly.to_string())
        })
    }

    /// As text: `f"{n:>8}"`.
    fn __format__<'py>(&self, py: Python<'py>, spec: &str) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.__repr__(py)?.into_pyobject(py)?.call_method1("__format__", (spec,)))
    }

    fn __pow__<'py>(
        &self,
        by: &Bound<'py, PyAny>,
        modulus: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let py = by.py();
            let exponent = operand(by, &self.table)?.and_then(|p| p.as_constant());
            let Some(exponent) = exponent.filter(|e| (0..=MOST_FACTORS).contains(e) && modulus.is_none())
            else {
                let what = format!("{} ** {}", self.poly, text(by)?);
                let number = self.number(|| what).py(py)?.into_pyobject(py)?.into_any();
                return py.import("builtins")?.call_method1("pow", (number, by, modulus));
            };
            let one = Some(Poly::constant(1));
            let power = (0..exponent).fold(one, |p, _| p.and_then(|p| p.times(&self.poly)));
            let power = power.ok_or_else(|| too_large(&self.poly, "**", &Poly::constant(exponent))).py(py)?;
            object(py, power, &self.table)
        })
    }

    fn __rpow__<'py>(
        &self,
        of: &Bound<'py, PyAny>,
        modulus: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let py = of.py();
            let what = format!("{} ** ({})", text(of)?, self.poly);
            let number = self.number(|| what).py(py)?;
            py.import("builtins")?.call_method1("pow", (of, number, modulus))
        })
    }

    /// A size is whole: rounding to tens and hundreds alone depends on the number.
    #[pyo3(signature = (ndigits = None))]
    fn __round__<'py>(slf: &Bound<'py, Self>, ndigits: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| match ndigits {
            Some(digits) if digits < 0 => {
                let (py, size) = (slf.py(), slf.get());
                let number = size.number(|| format!("round({}, {digits})", size.poly)).py(py)?;
                number.into_pyobject(py)?.call_method1("__round__", (digits,))
            }
            _ => Ok(slf.clone().into_any()),
        })
    }

    fn __trunc__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        guarded(|| Ok(slf))
    }

    fn __floor__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        guarded(|| Ok(slf))
    }

    fn __ceil__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        guarded(|| Ok(slf))
    }

    fn __abs__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let zero = Poly::constant(0);
            let statement = Statement { left: self.poly.clone(), relation: Relation::Ge, right: zero };
            match self.table.decide(&statement) {
                Some(true) => object(py, self.poly.clone(), &self.table),
                Some(false) => self.__neg__(py),
                None => Err(needed(format!("abs({})", self.poly))).py(py),
            }
        })
    }

    fn __invert__(&self, py: Python<'_>) -> PyResult<i64> {
        guarded(|| self.number(|| format!("~({})", self.poly)).py(py).map(|v| !v))
    }

    fn __lshift__<'py>(&self, by: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__lshift__", "<<", by, false))
    }

    fn __rlshift__<'py>(&self, of: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__rlshift__", "<<", of, true))
    }

    fn __rshift__<'py>(&self, by: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__rshift__", ">>", by, false))
    }

    fn __rrshift__<'py>(&self, of: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__rrshift__", ">>", of, true))
    }

    fn __and__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__and__", "&", other, false))
    }

    fn __rand__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__rand__", "&", other, true))
    }

    fn __or__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__or__", "|", other, false))
    }

    fn __ror__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__ror__", "|", other, true))
    }

    fn __xor__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__xor__", "^", other, false))
    }

    fn __rxor__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__rxor__", "^", other, true))
    }

    fn __rdivmod__<'py>(&self, of: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.on_number("__rdivmod__", "divmod", of, true))
    }

    /// What an int has and this has not: of the number.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| self.attribute_of_number(py, name))
    }

    fn __copy__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        guarded(|| Ok(slf))
    }

    fn __deepcopy__<'py>(slf: PyRef<'py, Self>, _memo: &Bound<'py, PyAny>) -> PyResult<PyRef<'py, Self>> {
        guarded(|| Ok(slf))
    }

    /// In a pickle it is the number, whose bytes are others than these: a capture without symbols writes them.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, (i64,))> {
        guarded(|| {
            self.table.give_up();
            Ok((py.get_type::<PyInt>(), (self.__index__(py)?,)))
        })
    }

    /// NumPy takes it for the number.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            // Made anew for whoever asks.
            drop(copy);
            py.import("numpy")?.call_method1("array", (self.__index__(py)?, dtype))
        })
    }

    #[pyo3(signature = (ufunc, method, *inputs, **kwargs))]
    fn __array_ufunc__<'py>(
        &self,
        ufunc: &Bound<'py, PyAny>,
        method: &str,
        inputs: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| numbers::ufunc(ufunc, method, inputs, kwargs))
    }

    /// What only symbols of data are told by; a size of an input stands for an int.
    #[getter]
    fn __class__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyType>> {
        guarded(|| match self.is_of_inputs() {
            true => Ok(py.get_type::<PyInt>()),
            false => Ok(py.get_type::<PySymInt>()),
        })
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

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PySymInt>()?;
    m.add_class::<PySymBool>()?;
    context::register(m)?;
    statements::register(m)
}
