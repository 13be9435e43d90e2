//! Control flow under capture, for `tensorplay._control`: branches are callables of Python that give their results flat.

use crate::error::{self, IntoPyResult, guarded};
use crate::tensor::{tensor_of, wrap};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::cell::RefCell;
use tp_dispatch::Result;
use tp_graph::capture::control;
use tp_graph::capture::watch;
use tp_tensor::Tensor;

/// What a branch returned: its tensors, the structure that they are the leaves of, and what messages call each.
type Returned<'py> = (Vec<Bound<'py, PyAny>>, Bound<'py, PyAny>, Vec<String>);

fn call<'py>(branch: &Bound<'py, PyAny>, given: &[Tensor]) -> PyResult<Returned<'py>> {
    let given = given.iter().map(|t| wrap(branch.py(), t.clone())).collect::<PyResult<Vec<_>>>()?;
    branch.call1((PyList::new(branch.py(), given)?,))?.extract()
}

fn tensors(returned: &Returned<'_>) -> PyResult<Vec<Tensor>> {
    returned.0.iter().map(tensor_of).collect()
}

fn wrapped<'py>(py: Python<'py>, all: Vec<Tensor>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    all.into_iter().map(|t| wrap(py, t)).collect()
}

/// Records a `cond` in the capture in progress. Each branch is called once with an empty list and gives (tensors,
/// structure, names); the results and their structure come back.
#[pyfunction]
fn capture_cond<'py>(
    py: Python<'py>,
    pred: &Bound<'py, PyAny>,
    true_branch: &Bound<'py, PyAny>,
    false_branch: &Bound<'py, PyAny>,
) -> PyResult<(Vec<Bound<'py, PyAny>>, Bound<'py, PyAny>)> {
    guarded(|| {
        let pred = tensor_of(pred)?;
        let first: RefCell<Option<Returned<'py>>> = RefCell::new(None);
        let mut yes = |_: &[Tensor]| -> Result<Vec<Tensor>> {
            let returned = call(true_branch, &[]).map_err(error::from_py)?;
            let flat = tensors(&returned).map_err(error::from_py)?;
            *first.borrow_mut() = Some(returned);
            Ok(flat)
        };
        let mut no = |_: &[Tensor]| -> Result<Vec<Tensor>> {
            let returned = call(false_branch, &[]).map_err(error::from_py)?;
            if let Some((_, structure, _)) = &*first.borrow()
                && !structure.eq(&returned.1).map_err(error::from_py)?
            {
                let message = format!("true_fn of cond returns {structure:?}, false_fn {:?}", returned.1);
                return Err(watch::refusal("TP4302", message)
                    .note("both branches return tensors in the same nest of tuples, lists and dicts"));
            }
            tensors(&returned).map_err(error::from_py)
        };
        let name = |i: usize| {
            let first = first.borrow();
            first.as_ref().and_then(|f| f.2.get(i).cloned()).unwrap_or_else(|| format!("result {i}"))
        };
        let all = control::cond(&pred, &name, [&mut yes, &mut no]).py(py)?;
        let first = first.borrow();
        let structure = first.as_ref().map_or_else(|| py.None().into_bound(py), |f| f.1.clone());
        Ok((wrapped(py, all)?, structure))
    })
}

/// Records a `while_loop` in the capture in progress. Both functions are called once with the list of tensors that stand
/// for what is carried, and give (tensors, structure, names).
#[pyfunction]
fn capture_while_loop<'py>(
    py: Python<'py>,
    carried: Vec<Bound<'py, PyAny>>,
    condition: &Bound<'py, PyAny>,
    body: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    guarded(|| {
        let carried = carried.iter().map(tensor_of).collect::<PyResult<Vec<_>>>()?;
        let run = |f: &Bound<'py, PyAny>, given: &[Tensor]| -> Result<Vec<Tensor>> {
            let returned = call(f, given).map_err(error::from_py)?;
            tensors(&returned).map_err(error::from_py)
        };
        let mut condition = |given: &[Tensor]| run(condition, given);
        let mut body = |given: &[Tensor]| run(body, given);
        wrapped(py, control::while_loop(&carried, &mut condition, &mut body).py(py)?)
    })
}

/// Both branches of a choice are about to run; gives what `end_selection` takes.
#[pyfunction]
fn begin_selection() -> PyResult<Option<usize>> {
    guarded(|| Ok(tp_graph::capture::select(None)))
}

/// Both branches have run.
#[pyfunction]
fn end_selection(before: Option<usize>) -> PyResult<()> {
    guarded(|| {
        tp_graph::capture::select(Some(before));
        Ok(())
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(capture_cond, m)?)?;
    m.add_function(wrap_pyfunction!(begin_selection, m)?)?;
    m.add_function(wrap_pyfunction!(end_selection, m)?)?;
    m.add_function(wrap_pyfunction!(capture_while_loop, m)?)
}
