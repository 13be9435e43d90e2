//! Nodes as scalar functions: which calls are pointwise, and how one becomes part of a scalar program. The op's
//! definition carries the expression; nothing here knows an op by name.

use crate::entity::ValueId;
use crate::ir::{Const, Graph, Node, Operand, Output};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use tp_dispatch::bind::ParamKind;
use tp_dispatch::{DispatchKey, Effects, OpDef, OpHandle};
use tp_expr::{ExprError, ProgramBuilder, ScalarExpr};
use tp_tensor::{DType, Scalar, TensorSpec, layout};

/// Why a node is not part of a pointwise program.
#[derive(Clone, PartialEq, Debug)]
pub enum NotPointwise {
    /// The op has no scalar expression.
    NoExpression,
    /// The result is a view of an operand: there is nothing to compute.
    View,
    Effects(Effects),
    Unregistered,
    /// It runs one of its blocks.
    Control,
    /// An operand that no scalar program can take.
    Operand(String),
    /// Somebody registered a kernel for the op: that one runs.
    Kernel,
    /// The capture says something else of the result than the expression does.
    Promise(String),
}

impl fmt::Display for NotPointwise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotPointwise::NoExpression => f.write_str("not pointwise"),
            NotPointwise::View => f.write_str("a view, nothing to compute"),
            NotPointwise::Effects(e) => write!(f, "it has effects ({e})"),
            NotPointwise::Unregistered => f.write_str("not registered"),
            NotPointwise::Control => f.write_str("control flow"),
            NotPointwise::Operand(what) => f.write_str(what),
            NotPointwise::Kernel => f.write_str("a kernel was registered for it, which runs instead"),
            NotPointwise::Promise(what) => write!(f, "its fake rule promised {what}"),
        }
    }
}

/// What a pointwise node does to each element.
pub struct PointwiseNode<'g> {
    graph: &'g Graph,
    node: &'g Node,
    body: Body,
    pub result: ValueId,
    pub spec: &'g TensorSpec,
}

enum Body {
    Expr(Arc<ScalarExpr>, SmallVec<[usize; 4]>),
    /// Conversion of the one tensor operand to a dtype given as a literal.
    Cast(DType),
}

/// The scalar function of `node`, or why it has none.
pub fn expression<'g>(graph: &'g Graph, node: &'g Node) -> Result<PointwiseNode<'g>, NotPointwise> {
    if node.target.control().is_some() {
        return Err(NotPointwise::Control);
    }
    if node.effects != Effects::PURE {
        return Err(NotPointwise::Effects(node.effects));
    }
    let def = node.target.op().and_then(OpHandle::def).ok_or(NotPointwise::Unregistered)?;
    let [Output::Value(result)] = *node.outputs.as_slice() else { return Err(NotPointwise::NoExpression) };
    let spec = graph.spec(result).ok_or(NotPointwise::NoExpression)?;
    if graph.values[result].alias.is_some() {
        return Err(NotPointwise::View);
    }
    let body = match &def.pointwise {
        Some(expr) => {
            let numeric = |k: ParamKind| matches!(k, ParamKind::Tensor | ParamKind::Scalar);
            let params = def.params.all.iter().enumerate().filter(|(_, p)| numeric(p.kind)).map(|(i, _)| i);
            Body::Expr(expr.clone(), params.collect())
        }
        None if def.tags.iter().any(|t| &**t == "cast") => {
            let dtype = node
                .inputs
                .iter()
                .find_map(|o| if let Operand::Const(Const::DType(d)) = o { Some(*d) } else { None });
            Body::Cast(dtype.ok_or(NotPointwise::NoExpression)?)
        }
        None => return Err(NotPointwise::NoExpression),
    };
    runs_own_code(graph, node, &def, spec)?;
    Ok(PointwiseNode { graph, node, body, result, spec })
}

/// A region computes what the expression says. That is the op's meaning only while no other kernel would run, and it
/// fits the memory of its results only where the fake rule, which anyone may replace, promised the same.
fn runs_own_code(graph: &Graph, node: &Node, def: &OpDef, spec: &TensorSpec) -> Result<(), NotPointwise> {
    let key = DispatchKey::of(spec.device);
    if node.target.op().is_some_and(|op| !op.runs_own_kernel(def, key)) {
        return Err(NotPointwise::Kernel);
    }
    let mut sizes = tp_tensor::dim::Dims::new();
    for v in node.inputs.iter().filter_map(Operand::value) {
        let operand = graph.spec(v).ok_or_else(|| NotPointwise::Operand(format!("{v} is no tensor")))?;
        if operand.device != spec.device {
            return Err(NotPointwise::Operand(format!("{v} is on {}", operand.device)));
        }
        sizes = layout::broadcast(&sizes, &operand.sizes)
            .map_err(|_| NotPointwise::Operand("operands that do not broadcast".to_string()))?;
    }
    if *sizes != *spec.sizes || !layout::is_contiguous(&spec.sizes, &spec.strides) {
        return Err(NotPointwise::Promise(spec.to_string()));
    }
    Ok(())
}

impl PointwiseNode<'_> {
    /// Appends the function to a program. `value` gives the program's value for a tensor operand.
    pub fn apply(
        &self,
        builder: &mut ProgramBuilder,
        mut value: impl FnMut(&mut ProgramBuilder, ValueId, &TensorSpec) -> u32,
    ) -> Result<u32, ExprError> {
        let mut tensor = |builder: &mut ProgramBuilder, v: ValueId| match self.graph.spec(v) {
            Some(spec) => Ok(value(builder, v, spec)),
            None => Err(ExprError::Invalid(format!("{v} is no tensor"))),
        };
        let result = match &self.body {
            Body::Cast(dtype) => {
                let operand = self.node.inputs.iter().find_map(Operand::value);
                let operand = operand.ok_or_else(|| ExprError::Invalid("a cast of no tensor".to_string()))?;
                let id = tensor(builder, operand)?;
                builder.cast(id, *dtype)?
            }
            Body::Expr(expr, params) => {
                let mut operands: SmallVec<[tp_expr::Operand; 4]> = SmallVec::new();
                for &i in params {
                    operands.push(match self.node.inputs.get(i) {
                        Some(Operand::Value(v)) => tp_expr::Operand::Value(tensor(builder, *v)?),
                        Some(Operand::Const(c)) => tp_expr::Operand::Scalar(number(c)?),
                        Some(other) => return Err(ExprError::Invalid(format!("operand {i} is {other}"))),
                        None => return Err(ExprError::Invalid(format!("operand {i} is missing"))),
                    });
                }
                builder.apply(expr, &operands)?
            }
        };
        match builder.dtype(result) {
            Some(got) if got == self.spec.dtype => Ok(result),
            got => {
                let got = got.map_or("nothing", DType::name);
                Err(ExprError::Invalid(format!("the expression gives {got}, the node {}", self.spec.dtype)))
            }
        }
    }
}

fn number(c: &Const) -> Result<Scalar, ExprError> {
    c.scalar().ok_or_else(|| ExprError::Invalid(format!("{} is no number", c.type_name())))
}
