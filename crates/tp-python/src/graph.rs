//! Captured graphs as Python objects: text, nodes, pictures, verification; and capturing a function without
//! compiling it.

use crate::compile::program_dict;
use crate::error::guarded;
use crate::error::{self, IntoPyResult};
use crate::given;
use crate::hot::convert::value_to_object;
use crate::symint::size_objects;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use std::sync::Arc;
use tp_dispatch::{Error, Value};
use tp_graph::ValueId;
use tp_graph::capture;
use tp_graph::ir::{Const, Graph, Node, Operand, ValueType};
use tp_tensor::{Tensor, symbols};

/// A captured program in SSA form. `str(graph)` is its text, `tensorplay.graph.parse` reads it back.
#[pyclass(frozen, name = "Graph", module = "tensorplay.graph")]
pub struct PyGraph {
    graph: Graph,
    backward: Option<Graph>,
    /// The tensors behind the inputs of kind `Lifted`, in order; none for a graph that was read from text.
    lifted: Vec<Tensor>,
}

impl PyGraph {
    pub fn new(graph: Graph, backward: Option<Graph>, lifted: Vec<Tensor>) -> PyGraph {
        PyGraph { graph, backward, lifted }
    }
}

#[pymethods]
impl PyGraph {
    /// Text that `tensorplay.graph.parse` reads back.
    fn text(&self) -> PyResult<String> {
        guarded(|| Ok(self.graph.text()))
    }

    fn __str__(&self) -> PyResult<String> {
        guarded(|| Ok(self.graph.text()))
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| {
            Ok(format!(
                "<Graph of {}>\n{}",
                tp_tensor::counted(self.graph.nodes.len(), "node"),
                self.graph.text()
            ))
        })
    }

    fn __eq__(&self, other: &PyGraph) -> PyResult<bool> {
        guarded(|| Ok(self.graph.text() == other.graph.text()))
    }

    fn __hash__(&self) -> PyResult<u64> {
        guarded(|| {
            Ok({
                use std::hash::{DefaultHasher, Hash, Hasher};
                let mut h = DefaultHasher::new();
                self.graph.text().hash(&mut h);
                h.finish()
            })
        })
    }

    /// Nodes in topological order.
    #[getter]
    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        guarded(|| {
            let _table = symbols::enter(self.graph.symbols.clone());
            self.graph.nodes.values().map(|n| node_object(py, &self.graph, n)).collect()
        })
    }

    /// Names of the inputs' values, `"%0"` and so on.
    #[getter]
    fn inputs(&self) -> PyResult<Vec<String>> {
        guarded(|| Ok(self.graph.inputs.iter().map(|i| i.value.to_string()).collect()))
    }

    /// What the inputs are called: parameters of the function, and the tensors that it reaches on its own.
    #[getter]
    fn input_names(&self) -> PyResult<Vec<String>> {
        guarded(|| Ok(self.graph.inputs.iter().map(|i| i.name.to_string()).collect()))
    }

    /// What the graph returns, in order: names of values, `"%3"` and so on, or literals.
    #[getter]
    fn outputs(&self) -> PyResult<Vec<String>> {
        guarded(|| {
            let _table = symbols::enter(self.graph.symbols.clone());
            Ok(self.graph.outputs.iter().map(|o| o.to_string()).collect())
        })
    }

    /// The backward graph of a training entry, or None.
    #[getter]
    fn backward(&self) -> PyResult<Option<PyGraph>> {
        guarded(|| Ok(self.backward.clone().map(|g| PyGraph::new(g, None, Vec::new()))))
    }

    /// The tensors that the function reached on its own, and those computed with the graph, by the name of their value
    /// (`"%1"`), in the order of the inputs.
    /// Empty for a graph that was read from text.
    #[getter]
    fn constants<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let found = PyDict::new(py);
            let inputs = self.graph.inputs.iter().filter(|i| i.kind.is_held());
            for (input, tensor) in inputs.zip(&self.lifted) {
                found.set_item(input.value.to_string(), crate::tensor::wrap(py, tensor.clone())?)?;
            }
            Ok(found)
        })
    }

    /// The same graph over these tensors, one per input that is lifted or constant, in order.
    fn _with_constants(&self, tensors: Vec<Bound<'_, PyAny>>) -> PyResult<PyGraph> {
        guarded(|| {
            let lifted = tensors.iter().map(crate::tensor::tensor_of).collect::<PyResult<Vec<_>>>()?;
            Ok(PyGraph::new(self.graph.clone(), self.backward.clone(), lifted))
        })
    }

    /// The graph taken apart, for those who walk it: see `structure`.
    fn _structure<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| crate::structure::structure(py, &self.graph))
    }

    /// The graph in the language of Graphviz.
    fn to_dot(&self) -> PyResult<String> {
        guarded(|| Ok(self.graph.to_dot()))
    }

    /// A picture of the graph, complete in itself.
    fn svg(&self) -> PyResult<String> {
        guarded(|| Ok(self.graph.svg()))
    }

    /// One line for each node in aligned columns, for reading.
    fn table(&self) -> PyResult<String> {
        guarded(|| Ok(self.graph.table()))
    }

    /// Violations of the graph's rules, one text each; an empty list for a sound graph.
    fn verify(&self) -> PyResult<Vec<String>> {
        guarded(|| Ok(self.graph.verify().iter().map(|v| v.to_string()).collect()))
    }

    /// A JSON-safe dict: `"text"`, which `tensorplay.graph.parse` reads back, and the `"targets"` of the nodes in order.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let d = PyDict::new(py);
            d.set_item("text", self.graph.text())?;
            let targets: Vec<String> = self.graph.nodes.values().map(|n| n.target.name()).collect();
            d.set_item("targets", targets)?;
            Ok(d)
        })
    }
}

fn spec_tuple<'py>(py: Python<'py>, g: &Graph, v: ValueId) -> PyResult<Bound<'py, PyAny>> {
    match &g.values[v].ty {
        ValueType::Tensor(spec) => {
            let sizes = PyTuple::new(py, size_objects(py, &g.symbols, &spec.sizes)?)?;
            let strides = PyTuple::new(py, size_objects(py, &g.symbols, &spec.strides)?)?;
            let class = py.import("tensorplay.graph")?.getattr("TensorSpec")?;
            class.call1((sizes, spec.dtype.name(), strides, spec.device.to_string()))
        }
        ValueType::Other(what) => value_spec(py)?.call1((&**what,)),
        ValueType::Known(value) => value_spec(py)?.call1((value.type_name(), literal(py, g, value)?)),
    }
}

fn value_spec(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("tensorplay.graph")?.getattr("ValueSpec")
}

/// What the fake rule gave for an output that is no tensor; a list as a tuple, an open size as a symbol.
pub fn literal<'py>(py: Python<'py>, g: &Graph, operand: &Operand) -> PyResult<Bound<'py, PyAny>> {
    match operand {
        Operand::Const(Const::Int(v)) => Ok(size_objects(py, &g.symbols, &[*v])?.remove(0)),
        Operand::Const(c) => {
            // SAFETY: lock held; a new reference, or null with an exception set.
            unsafe { Bound::from_owned_ptr_or_err(py, value_to_object(&c.value())) }
        }
        Operand::List(items) => {
            let items = items.iter().map(|o| literal(py, g, o)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyTuple::new(py, items)?.into_any())
        }
        Operand::Value(v) => Ok(PyString::new(py, &v.to_string()).into_any()),
    }
}

fn node_object<'py>(py: Python<'py>, g: &Graph, n: &Node) -> PyResult<Bound<'py, PyAny>> {
    let kwargs = PyDict::new(py);
    let values: Vec<ValueId> = n.outputs.iter().flat_map(|o| o.values().to_vec()).collect();
    kwargs.set_item("target", n.target.name())?;
    kwargs.set_item("inputs", PyTuple::new(py, n.inputs.iter().map(|o| o.to_string()))?)?;
    kwargs.set_item("outputs", PyTuple::new(py, values.iter().map(|v| v.to_string()))?)?;
    kwargs.set_item("effects", PyTuple::new(py, n.effects.names().collect::<Vec<_>>())?)?;
    kwargs.set_item("location", n.location.as_ref().map(|l| l.to_string()))?;
    let specs = values.iter().map(|v| spec_tuple(py, g, *v)).collect::<PyResult<Vec<_>>>()?;
    kwargs.set_item("spec", PyTuple::new(py, specs)?)?;
    let blocks = n.blocks.iter().map(|b| Bound::new(py, PyGraph::new(b.clone(), None, Vec::new())));
    kwargs.set_item("blocks", PyTuple::new(py, blocks.collect::<PyResult<Vec<_>>>()?)?)?;
    py.import("tensorplay.graph")?.getattr("Node")?.call((), Some(&kwargs))
}

/// Reads the text form; GraphError with line and column where it is none.
#[pyfunction]
fn parse_graph(py: Python<'_>, text: &Bound<'_, PyAny>) -> PyResult<PyGraph> {
    guarded(|| {
        let text: String = given::read("parse", "text", text)?;
        Ok(PyGraph::new(Graph::parse(&text).py(py)?, None, Vec::new()))
    })
}

/// Captures `func(*args, **kwargs)` and returns the forward graph. No kernel body runs.
#[pyfunction]
#[pyo3(signature = (func, args, kwargs, parameters))]
fn capture_function(
    py: Python<'_>,
    func: &Bound<'_, PyAny>,
    args: Bound<'_, PyTuple>,
    kwargs: Option<Bound<'_, PyDict>>,
    parameters: Vec<String>,
) -> PyResult<PyGraph> {
    guarded(|| {
        let call =
            crate::compile::tree::FlatCall::new(&crate::compile::tree::Call { args, kwargs }, &parameters)
                .py(py)?;
        let names: Vec<Arc<str>> = call.flat.names.iter().map(|n| n.as_str().into()).collect();
        let inputs: Vec<tp_dispatch::Arg<'_>> = call.flat.values.iter().map(Value::as_arg).collect();
        let captured = capture::capture_graph(&inputs, &names, &mut |values: &[Value]| {
            let out = call.call(py, func, &parameters, values, None).map_err(error::from_py)?;
            let mut flat = crate::compile::tree::Flat::default();
            crate::compile::tree::flatten(&out, "result", crate::compile::tree::Numbers::Fixed, &mut flat)?;
            Ok(flat.values)
        });
        let captured = captured.py(py)?;
        Ok(PyGraph::new(captured.graph, None, captured.lifted))
    })
}

/// The scalar program of a pointwise op for given input dtypes, expanded as backends get it.
#[pyfunction]
fn pointwise_program<'py>(
    py: Python<'py>,
    name: &str,
    dtypes: Vec<crate::types::DTypeArg>,
) -> PyResult<Bound<'py, PyDict>> {
    guarded(|| {
        let op = tp_dispatch::Registry::global().lookup(name).py(py)?;
        let def = op.def();
        let expr = def.as_ref().and_then(|d| d.pointwise.clone());
        let expr = expr.ok_or_else(|| Error::graph("TP5010", format!("{name} is not pointwise"))).py(py)?;
        let args: Vec<tp_expr::ArgType> = dtypes.iter().map(|d| tp_expr::ArgType::Tensor(d.0)).collect();
        let program = expr.program(&args).map_err(Error::from).py(py)?;
        program_dict(py, &program.expand())
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyGraph>()?;
    m.add_function(wrap_pyfunction!(parse_graph, m)?)?;
    m.add_function(wrap_pyfunction!(capture_function, m)?)?;
    m.add_function(wrap_pyfunction!(pointwise_program, m)?)
}
