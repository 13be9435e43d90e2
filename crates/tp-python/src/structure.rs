//! A graph taken apart into plain Python objects, for code that walks it (`tensorplay._program`): no text is read back.
//!
//! An operand is `("value", number)`, `("literal", object)`, `("size", text)` for a number that depends on sizes of the
//! run, or `("list", operands)`. A symbol is told by its name.

use crate::graph::literal;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::collections::HashMap;
use tp_graph::ValueId;
use tp_graph::ir::{Const, Graph, Node, Operand, Output, ValueType};
use tp_tensor::{Dim, symbols};

/// `inputs`: (number, name, kind); `types`: per value, (dtype, sizes, strides, device) or the operand of a known value or
/// None; `nodes`: (target, operands, outputs, location), an output being a number or a list of them; `blocks`: by the
/// number of a node of control flow, the structures of its blocks; `outputs`: operands;
/// `sizes`: (symbol, range); `hints`: by the symbol of an input's size, the size of the capture; `guards`: statements that
/// inputs are held to; `checks`: (statement, message).
pub fn structure<'py>(py: Python<'py>, graph: &Graph) -> PyResult<Bound<'py, PyDict>> {
    let _table = symbols::enter(graph.symbols.clone());
    let inputs = graph.inputs.iter().map(|i| (i.value.0, &*i.name, i.kind.name())).collect::<Vec<_>>();
    let types = PyList::empty(py);
    for value in graph.values.ids() {
        types.append(value_type(py, graph, value)?)?;
    }
    let nodes = PyList::empty(py);
    for node in graph.nodes.values() {
        nodes.append(node_tuple(py, graph, node)?)?;
    }
    let blocks = PyDict::new(py);
    for (id, node) in graph.nodes.iter().filter(|(_, node)| !node.blocks.is_empty()) {
        let inside = node.blocks.iter().map(|block| structure(py, block)).collect::<PyResult<Vec<_>>>()?;
        blocks.set_item(id.0, inside)?;
    }
    let of_arguments = graph.symbols.inputs();
    let named = || (0..).map(|id| Dim::symbol(id).to_string()).zip(&of_arguments);
    let hints = named().map(|(name, size)| (name, size.hint)).collect::<HashMap<_, _>>();
    let of_inputs = named().map(|(name, size)| (name, size.declared().low, size.declared().high));
    let ids = 0..graph.symbols.len() as u32;
    let of_runs = ids.filter_map(|id| {
        let range = graph.symbols.declared(id)?;
        Some((Dim::unbacked(id).to_string(), range.low, range.high))
    });
    let sizes = of_inputs.chain(of_runs);
    let guards = graph.symbols.guards().into_iter().map(|g| g.statement.to_string());
    let checks = graph
        .symbols
        .checks()
        .into_iter()
        .map(|c| (c.statement.to_string(), c.message.as_deref().map(String::from)));
    let out = PyDict::new(py);
    out.set_item("inputs", inputs)?;
    out.set_item("types", types)?;
    out.set_item("nodes", nodes)?;
    out.set_item("blocks", blocks)?;
    out.set_item("outputs", operands(py, graph, &graph.outputs)?)?;
    out.set_item("sizes", sizes.collect::<Vec<_>>())?;
    out.set_item("hints", hints)?;
    out.set_item("guards", guards.collect::<Vec<_>>())?;
    out.set_item("checks", checks.collect::<Vec<_>>())?;
    Ok(out)
}

fn value_type<'py>(py: Python<'py>, graph: &Graph, value: ValueId) -> PyResult<Bound<'py, PyAny>> {
    match &graph.values[value].ty {
        ValueType::Tensor(spec) => {
            let dims = |raw: &[i64]| PyTuple::new(py, raw.iter().map(|d| Dim::from_raw(*d).to_string()));
            let parts =
                (spec.dtype.name(), dims(&spec.sizes)?, dims(&spec.strides)?, spec.device.to_string());
            Ok(parts.into_pyobject(py)?.into_any())
        }
        ValueType::Known(known) => Ok(operand(py, graph, known)?.into_any()),
        ValueType::Other(_) => Ok(py.None().into_bound(py)),
    }
}

fn node_tuple<'py>(py: Python<'py>, graph: &Graph, node: &Node) -> PyResult<Bound<'py, PyAny>> {
    let outputs = PyList::empty(py);
    for output in &node.outputs {
        match output {
            Output::Value(v) => outputs.append(v.0)?,
            Output::List(vs) => outputs.append(vs.iter().map(|v| v.0).collect::<Vec<_>>())?,
        }
    }
    let location = node.location.as_ref().map(|l| l.to_string());
    let parts = (node.target.name(), operands(py, graph, &node.inputs)?, outputs, location);
    Ok(parts.into_pyobject(py)?.into_any())
}

fn operands<'py>(py: Python<'py>, graph: &Graph, all: &[Operand]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, all.iter().map(|o| operand(py, graph, o)).collect::<PyResult<Vec<_>>>()?)
}

fn operand<'py>(py: Python<'py>, graph: &Graph, operand: &Operand) -> PyResult<Bound<'py, PyTuple>> {
    match operand {
        Operand::Value(v) => ("value", v.0).into_pyobject(py),
        Operand::Const(Const::Size(size)) => ("size", size.to_string()).into_pyobject(py),
        Operand::Const(_) => ("literal", literal(py, graph, operand)?).into_pyobject(py),
        Operand::List(items) => ("list", operands(py, graph, items)?).into_pyobject(py),
    }
}
