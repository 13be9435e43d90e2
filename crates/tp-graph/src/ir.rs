//! The intermediate representation: a graph is a list of operator calls in the order in which they run, in static
//! single assignment form. What makes a graph well formed is written in `verify`; how it reads as text in `text`.
//!
//! There is no closed set of operators here: a node names its op and carries that op's declared effects. Mutation
//! is explicit: a node that writes keeps its place among the nodes that touch the same storage, and alias facts
//! on values say which those are.

use crate::control::Control;
use crate::entity::{NodeId, PrimaryMap, ValueId};
use smallvec::SmallVec;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tp_dispatch::host::Location;
use tp_dispatch::{Effects, OpHandle, Phase, Registry};
use tp_tensor::symbols::Symbols;
use tp_tensor::{DType, Device, Dim, Scalar, TensorSpec};

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Graph {
    pub inputs: Vec<Input>,
    pub nodes: PrimaryMap<NodeId, Node>,
    pub values: PrimaryMap<ValueId, ValueData>,
    pub outputs: Vec<Operand>,
    /// What the symbolic sizes stand for, and what runs have to confirm of them.
    pub symbols: Arc<Symbols>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    pub value: ValueId,
    pub name: Arc<str>,
    pub kind: InputKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InputKind {
    /// An argument of the function.
    Argument,
    /// A tensor that the function reached by another way (a closure, an attribute).
    Lifted,
    /// The gradient of an output.
    Gradient,
    /// A value that the forward graph saved.
    Saved,
    /// A tensor that was computed with the graph: the same in every run, and nothing writes to it.
    Constant,
}

impl InputKind {
    pub const ALL: [InputKind; 5] =
        [InputKind::Argument, InputKind::Lifted, InputKind::Gradient, InputKind::Saved, InputKind::Constant];

    /// Whether the graph's owner holds the tensor.
    pub fn is_held(self) -> bool {
        matches!(self, InputKind::Lifted | InputKind::Constant)
    }

    pub fn name(self) -> &'static str {
        match self {
            InputKind::Argument => "argument",
            InputKind::Lifted => "lifted",
            InputKind::Gradient => "gradient",
            InputKind::Saved => "saved",
            InputKind::Constant => "constant",
        }
    }
}

/// One call of an operator.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    pub target: Target,
    /// One per schema argument, defaults filled in.
    pub inputs: SmallVec<[Operand; 4]>,
    /// One per declared return.
    pub outputs: SmallVec<[Output; 1]>,
    /// The graphs that a node of control flow chooses among; none for a call. They read nothing but their inputs.
    pub blocks: Vec<Graph>,
    pub effects: Effects,
    pub location: Option<Location>,
    pub phase: Phase,
}

/// What a node does: the op it calls, resolved or known by name only, or which of its blocks run.
#[derive(Clone, Debug)]
pub enum Target {
    Op(OpHandle),
    Control(Control),
    Unknown(Arc<str>),
}

impl Target {
    /// Looks `ns::op.overload` up; a name that nobody defined is kept as it is.
    pub fn resolve(name: &str) -> Target {
        if let Some(control) = Control::by_name(name) {
            return Target::Control(control);
        }
        match Registry::global().get(name) {
            Some(op) => Target::Op(op),
            None => Target::Unknown(name.into()),
        }
    }

    /// `ns::op.overload`, with `default` where no overload is named.
    pub fn name(&self) -> String {
        match self {
            Target::Op(op) => op.full_name(),
            Target::Control(control) => control.name().to_string(),
            Target::Unknown(name) => name.to_string(),
        }
    }

    pub fn op(&self) -> Option<OpHandle> {
        match self {
            Target::Op(op) => Some(*op),
            Target::Control(_) | Target::Unknown(_) => None,
        }
    }

    pub fn control(&self) -> Option<Control> {
        if let Target::Control(control) = self { Some(*control) } else { None }
    }
}

/// Targets are equal by name: an op may come and go between capture and reading.
impl PartialEq for Target {
    fn eq(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Op(a), Target::Op(b)) => a == b,
            _ => self.name() == other.name(),
        }
    }
}

impl Eq for Target {}

/// What fills an argument.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    Value(ValueId),
    Const(Const),
    List(Box<[Operand]>),
}

impl Operand {
    pub const NONE: Operand = Operand::Const(Const::None);

    pub fn value(&self) -> Option<ValueId> {
        if let Operand::Value(v) = self { Some(*v) } else { None }
    }

    /// Every value in this operand; lists hold no lists.
    pub fn for_each_value(&self, mut f: impl FnMut(ValueId)) {
        match self {
            Operand::Value(v) => f(*v),
            Operand::Const(_) => {}
            Operand::List(items) => items.iter().filter_map(Operand::value).for_each(f),
        }
    }

    /// The same operand over other values.
    #[must_use]
    pub fn map_values(&self, mut f: impl FnMut(ValueId) -> ValueId) -> Operand {
        match self {
            Operand::Value(v) => Operand::Value(f(*v)),
            Operand::Const(_) => self.clone(),
            Operand::List(items) => Operand::List(
                items
                    .iter()
                    .map(|item| match item {
                        Operand::Value(v) => Operand::Value(f(*v)),
                        other => other.clone(),
                    })
                    .collect(),
            ),
        }
    }
}

/// A literal. Which of the kinds of argument it fills (a weak number, an int) is the schema's to say.
#[derive(Clone, Debug)]
pub enum Const {
    None,
    Bool(bool),
    Int(i64),
    /// A symbolic size of the graph's table; never a plain number.
    Size(Dim),
    Float(f64),
    Str(Arc<str>),
    DType(DType),
    Device(Device),
}

impl Const {
    pub fn scalar(&self) -> Option<Scalar> {
        match self {
            Const::Bool(v) => Some(Scalar::Bool(*v)),
            Const::Int(v) => Some(Scalar::Int(*v)),
            Const::Float(v) => Some(Scalar::Float(*v)),
            _ => None,
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Const::None => "None",
            Const::Bool(_) => "bool",
            Const::Int(_) | Const::Size(_) => "int",
            Const::Float(_) => "float",
            Const::Str(_) => "str",
            Const::DType(_) => "dtype",
            Const::Device(_) => "device",
        }
    }
}

impl From<Scalar> for Const {
    fn from(s: Scalar) -> Const {
        match s {
            Scalar::Bool(v) => Const::Bool(v),
            Scalar::Int(v) => Const::Int(v),
            Scalar::Float(v) => Const::Float(v),
        }
    }
}

/// Bitwise on floats, so that NaN equals itself and -0.0 differs from 0.0: equal literals may be merged.
impl PartialEq for Const {
    fn eq(&self, other: &Const) -> bool {
        match (self, other) {
            (Const::None, Const::None) => true,
            (Const::Bool(a), Const::Bool(b)) => a == b,
            (Const::Int(a), Const::Int(b)) => a == b,
            (Const::Size(a), Const::Size(b)) => a == b,
            (Const::Float(a), Const::Float(b)) => a.to_bits() == b.to_bits(),
            (Const::Str(a), Const::Str(b)) => a == b,
            (Const::DType(a), Const::DType(b)) => a == b,
            (Const::Device(a), Const::Device(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Const {}

impl Hash for Const {
    fn hash<H: Hasher>(&self, h: &mut H) {
        std::mem::discriminant(self).hash(h);
        match self {
            Const::None => {}
            Const::Bool(v) => v.hash(h),
            Const::Int(v) => v.hash(h),
            Const::Size(v) => v.hash(h),
            Const::Float(v) => v.to_bits().hash(h),
            Const::Str(v) => v.hash(h),
            Const::DType(v) => v.hash(h),
            Const::Device(v) => v.hash(h),
        }
    }
}

/// What one declared return gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    Value(ValueId),
    List(Box<[ValueId]>),
}

impl Output {
    pub fn values(&self) -> &[ValueId] {
        match self {
            Output::Value(v) => std::slice::from_ref(v),
            Output::List(vs) => vs,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValueData {
    pub ty: ValueType,
    pub def: Def,
    pub alias: Option<Alias>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueType {
    Tensor(TensorSpec),
    /// A value that is no tensor, by the name of its type. No node reads one.
    Other(Arc<str>),
    /// A value that is no tensor, as the fake rule gave it. The function was captured with it, so that a run holds
    /// the kernel to it, and its node is not removed.
    Known(Operand),
}

impl Operand {
    /// The name of a literal's type: `int`, `list[float]`.
    pub fn type_name(&self) -> String {
        match self {
            Operand::Value(_) => "Tensor".to_string(),
            Operand::Const(c) => c.type_name().to_string(),
            Operand::List(items) => {
                let mut names: SmallVec<[String; 2]> = items.iter().map(Operand::type_name).collect();
                names.dedup();
                let one = if let [one] = names.as_slice() { one } else { "number" };
                format!("list[{one}]")
            }
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Def {
    /// Input number.
    Input(u32),
    Node(NodeId),
}

impl fmt::Display for Def {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Def::Input(k) => write!(f, "input {k}"),
            Def::Node(node) => write!(f, "n{}", node.0),
        }
    }
}

/// How the memory of a value relates to an earlier value's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alias {
    /// Another layout over the same storage.
    View(ValueId),
    /// The very same tensor.
    Same(ValueId),
    /// Inputs that were found to share a storage.
    Shares(ValueId),
}

impl Alias {
    pub fn of(self) -> ValueId {
        match self {
            Alias::View(v) | Alias::Same(v) | Alias::Shares(v) => v,
        }
    }

    #[must_use]
    pub fn map(self, f: impl FnOnce(ValueId) -> ValueId) -> Alias {
        match self {
            Alias::View(v) => Alias::View(f(v)),
            Alias::Same(v) => Alias::Same(f(v)),
            Alias::Shares(v) => Alias::Shares(f(v)),
        }
    }
}

impl Node {
    /// Every value the node reads, in order, with repetitions.
    pub fn for_each_use(&self, mut f: impl FnMut(ValueId)) {
        self.inputs.iter().for_each(|operand| operand.for_each_value(&mut f));
    }

    /// Every value the node defines.
    pub fn defined(&self) -> impl Iterator<Item = ValueId> {
        self.outputs.iter().flat_map(|o| o.values().iter().copied())
    }

    /// The values whose storage the node writes to, by the op's schema.
    pub fn written(&self) -> SmallVec<[ValueId; 2]> {
        let mut out = SmallVec::new();
        if !self.effects.mutates {
            return out;
        }
        match self.target.op().and_then(OpHandle::def) {
            Some(def) => {
                for &i in &def.params.written {
                    if let Some(operand) = self.inputs.get(i as usize) {
                        operand.for_each_value(|v| out.push(v));
                    }
                }
            }
            // Nothing is known of it: any operand may be written.
            None => self.for_each_use(|v| out.push(v)),
        }
        out
    }
}

impl Graph {
    pub fn spec(&self, value: ValueId) -> Option<&TensorSpec> {
        match &self.values.get(value)?.ty {
            ValueType::Tensor(spec) => Some(spec),
            ValueType::Other(_) | ValueType::Known(_) => None,
        }
    }

    /// Whether the function was captured with a value that the node gave.
    pub fn has_known(&self, node: &Node) -> bool {
        node.defined().any(|v| matches!(self.values.get(v).map(|d| &d.ty), Some(ValueType::Known(_))))
    }

    /// The value that owns the storage `value` lives in: follows alias facts to their end.
    pub fn root(&self, value: ValueId) -> ValueId {
        let mut at = value;
        while let Some(alias) = self.values.get(at).and_then(|v| v.alias) {
            // Facts point backwards; a graph that breaks this is refused by the verifier.
            if alias.of() >= at {
                break;
            }
            at = alias.of();
        }
        at
    }

    pub fn for_each_output_value(&self, mut f: impl FnMut(ValueId)) {
        self.outputs.iter().for_each(|operand| operand.for_each_value(&mut f));
    }

    /// Names of the ops the nodes call, in order.
    pub fn targets(&self) -> Vec<String> {
        self.nodes.values().map(|n| n.target.name()).collect()
    }
}
