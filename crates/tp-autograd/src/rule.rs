//! Differentiation rules: what to save when a call is recorded, and how gradients of the outputs become gradients of
//! the inputs. Which rule an op has is decided in `resolve`.

use crate::discard::Brief;
use crate::tape::{self, Edge, Node, NodeRef, SavedTensor, Saver, Spec};
use smallvec::SmallVec;
use std::ptr::NonNull;
use std::sync::Arc;
use tp_dispatch::host::HostRef;
use tp_dispatch::{Call, Error, GradSpec, HostVisitor, Result, Value};
use tp_tensor::Tensor;

/// A vector-Jacobian product. One object serves every call of its op; what belongs to one call is in the node.
pub trait VjpRule: Send + Sync {
    fn name(&self) -> &str;

    /// Bit i: there is a gradient for argument i. Arguments from 64 on always count as having one.
    fn args(&self) -> u64 {
        u64::MAX
    }

    /// The gradient of argument `arg` is zero whatever the gradient of the output: it is overwritten.
    fn overwrites(&self, _arg: usize) -> bool {
        false
    }

    /// Saves what exists before the kernel runs. For an op that writes in place this is the last chance to see the
    /// old values.
    fn save_inputs(&self, _call: &Call<'_>, _saver: &mut Saver<'_>) -> Result<()> {
        Ok(())
    }

    /// Saves what exists after the kernel ran.
    fn save_outputs(&self, _call: &Call<'_>, _rets: &[Value], _saver: &mut Saver<'_>) -> Result<()> {
        Ok(())
    }

    /// Turns the gradients of the outputs (None: an output that nobody used) into gradients of the inputs.
    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()>;

    /// As `backward`, for a node of one output and one input that saved no tensor, without the lists. What is left in
    /// `grad` is given up, so that the result may lie in its memory. None where `backward` has to do it.
    fn direct(&self, _node: &Node, _grad: &mut Option<Tensor>) -> Option<Result<Tensor>> {
        None
    }

    /// The rule is not ours: its gradients are checked for shape and dtype.
    fn is_foreign(&self) -> bool {
        false
    }

    /// Nodes keep shape, dtype and device of inputs and outputs. Foreign rules need them for the check.
    fn keeps_specs(&self) -> bool {
        self.is_foreign()
    }

    /// Which calls that return one tensor are recorded with bits and specs alone.
    fn short(&self) -> Short {
        Short::No
    }

    /// It serves one node, and holds objects of the host language that nobody else does: they are the node's.
    fn reaches_host(&self) -> bool {
        false
    }

    /// Host objects it owns, for the cycle collector.
    fn trace(&self, _visit: &mut HostVisitor<'_>) {}

    /// Drops what it owns of the host, to break a cycle. No backward follows.
    fn clear(&self) {}

    /// What messages call the input behind `edge`, where the rule knows better than the op's schema.
    fn argument(&self, _edge: &Edge) -> Option<String> {
        None
    }
}

/// The calls of which a node keeps nothing but specs and bits.
#[derive(Clone, Copy)]
pub enum Short {
    No,
    /// Those it says yes to; the bits are 0.
    If(fn(&Call<'_>) -> bool),
    /// All; bit i + 1 says that argument i is a floating tensor.
    Kinds,
}

/// A rule as a node keeps it.
#[derive(Clone)]
pub enum RuleHandle {
    Static(&'static dyn VjpRule),
    Shared(Arc<dyn VjpRule>),
}

impl RuleHandle {
    #[inline]
    pub(crate) fn get(&self) -> &dyn VjpRule {
        match self {
            RuleHandle::Static(r) => *r,
            RuleHandle::Shared(r) => &**r,
        }
    }

    /// The rule's address, and whether it comes with a reference.
    #[inline]
    pub(crate) fn to_raw(&self) -> (NonNull<dyn VjpRule>, bool) {
        match self {
            RuleHandle::Static(r) => (NonNull::from(*r), false),
            // SAFETY: an Arc's pointer is never null.
            RuleHandle::Shared(r) => {
                (unsafe { NonNull::new_unchecked(Arc::into_raw(r.clone()).cast_mut()) }, true)
            }
        }
    }
}

/// A rule with what recording asks of it every time.
#[derive(Clone)]
pub(crate) struct Rule {
    pub handle: RuleHandle,
    pub args: u64,
    pub specs: bool,
    pub short: Short,
    pub reaches_host: bool,
}

impl Rule {
    pub fn of(handle: RuleHandle) -> Rule {
        let r = handle.get();
        Rule {
            args: r.args(),
            specs: r.keeps_specs(),
            short: r.short(),
            reaches_host: r.reaches_host(),
            handle,
        }
    }

    #[inline]
    pub fn get(&self) -> &dyn VjpRule {
        self.handle.get()
    }
}

/// A rule that a user registered, as tp-dispatch carries it.
pub struct CustomRule(pub(crate) Rule);

/// What `register_autograd` puts into an op's description.
pub fn custom_spec(rule: Arc<dyn VjpRule>) -> GradSpec {
    GradSpec::Custom(Arc::new(CustomRule(Rule::of(RuleHandle::Shared(rule)))))
}

/// Reports the host objects of a registered rule to the host's cycle collector.
pub fn trace_spec(spec: &GradSpec, visit: &mut HostVisitor<'_>) {
    if let GradSpec::Custom(rule) = spec
        && let Some(rule) = rule.downcast_ref::<CustomRule>()
    {
        rule.0.get().trace(visit);
    }
}

/// One node's backward call: what it saved, and who needs a gradient.
pub struct BackwardCtx<'a> {
    pub(crate) node: &'a NodeRef,
    pub(crate) saved: Brief<[SavedTensor; 3]>,
    /// The graph is given up: nothing saved is there for another pass.
    pub(crate) last: bool,
}

impl<'a> BackwardCtx<'a> {
    pub fn node(&self) -> &'a NodeRef {
        self.node
    }

    /// The op's name, for messages.
    pub fn name(&self) -> &'a str {
        self.node.name()
    }

    /// Saved tensor `k`; an error when it was written to since.
    #[inline]
    pub fn saved(&self, k: usize) -> Result<Tensor> {
        self.saved_opt(k)?.ok_or_else(|| self.internal("a saved tensor is missing"))
    }

    /// Saved tensor `k`, or None where none was saved.
    #[inline]
    pub fn saved_opt(&self, k: usize) -> Result<Option<Tensor>> {
        match self.saved.get(k) {
            None => Ok(None),
            Some(s) if s.is_packed() => tape::unpack(self.node, k, s).map(Some),
            Some(s) => s.unpack(self.node),
        }
    }

    /// Saved tensor `k` as it lies there; None where it has to be unpacked or tied to the graph first.
    #[inline]
    pub(crate) fn saved_ref(&self, k: usize) -> Result<Option<&Tensor>> {
        self.saved.get(k).map_or(Ok(None), |s| s.borrow(self.node))
    }

    pub fn saved_count(&self) -> usize {
        self.saved.len()
    }

    /// Whether no other pass can follow over this node.
    pub fn is_last(&self) -> bool {
        self.last
    }

    /// Hands `f` a copy, for a reader that may outlive this call.
    pub fn copied<R>(&self, f: impl FnOnce(&BackwardCtx<'_>) -> R) -> R {
        let node = self.node.clone();
        f(&BackwardCtx { node: &node, saved: Brief::new(self.saved.clone()), last: self.last })
    }

    #[inline]
    pub fn value(&self, k: usize) -> &'a Value {
        self.node.values().get(k).unwrap_or(&Value::None)
    }

    #[inline]
    pub fn values(&self) -> &'a [Value] {
        self.node.values()
    }

    /// A saved list of integers; empty where none was saved.
    #[inline]
    pub fn ints(&self, k: usize) -> &'a [i64] {
        if let Value::Ints(v) = self.value(k) { v } else { &[] }
    }

    /// A saved integer; 0 where none was saved.
    #[inline]
    pub fn int(&self, k: usize) -> i64 {
        self.value(k).as_arg().int().unwrap_or(0)
    }

    #[inline]
    pub fn bits(&self) -> u64 {
        self.node.bits()
    }

    #[inline]
    pub fn edges(&self) -> &'a [Edge] {
        self.node.edges()
    }

    /// Sizes of the input behind edge `k`, where the rule keeps specs.
    #[inline]
    pub fn input_sizes(&self, k: usize) -> &'a [i64] {
        self.input_spec(k).map_or(&[], |s| &s.sizes)
    }

    /// Whether argument `arg` (or an item of it) needs a gradient.
    #[inline]
    pub fn needs(&self, arg: usize) -> bool {
        self.edges().iter().any(|e| e.arg() == arg)
    }

    /// Whether item `index` of the list argument `arg` needs a gradient.
    pub fn needs_item(&self, arg: usize, index: usize) -> bool {
        self.edges().iter().any(|e| e.arg() == arg && e.index() == index)
    }

    /// What the host rule kept at recording.
    pub fn payload(&self) -> Option<HostRef> {
        self.node.extra().and_then(|e| e.payload())
    }

    /// Spec of the input behind edge `k`, where the rule keeps specs.
    pub fn input_spec(&self, k: usize) -> Option<&'a Spec> {
        self.node.specs().get(k)
    }

    /// Spec of output `nr`, where the rule keeps specs and the node has several outputs.
    pub fn output_spec(&self, nr: usize) -> Option<&'a Spec> {
        self.node.specs().get(self.edges().len() + nr)
    }

    #[cold]
    pub(crate) fn internal(&self, what: &str) -> Error {
        Error::internal("TP9004", what.to_string()).with_op(self.name())
    }
}

/// Gradients of the inputs as a rule gives them, one place per edge. A place left empty means no gradient.
pub struct Gradients<'a> {
    pub(crate) edges: &'a [Edge],
    pub(crate) slots: Brief<[Option<Tensor>; 2]>,
}

impl<'a> Gradients<'a> {
    #[inline]
    pub(crate) fn new(edges: &'a [Edge]) -> Gradients<'a> {
        let slots = match edges.len() {
            n @ 0..=2 => SmallVec::from_buf_and_len([None, None], n),
            n => std::iter::repeat_with(|| None).take(n).collect(),
        };
        Gradients { edges, slots: Brief::new(slots) }
    }

    /// Empties the list, without a call where every gradient was taken.
    #[inline(always)]
    pub(crate) fn spend(&mut self) {
        if self.slots.iter().all(Option::is_none) {
            // SAFETY: nothing is in the slots.
            unsafe { self.slots.set_len(0) };
        }
    }

    /// The gradient of argument `arg`; ignored where none is needed.
    #[inline]
    pub fn set(&mut self, arg: usize, grad: Tensor) {
        self.set_item(arg, 0, grad);
    }

    /// The gradient of item `index` of argument `arg`; ignored where none is needed.
    #[inline]
    pub fn set_item(&mut self, arg: usize, index: usize, grad: Tensor) {
        if let Some(k) = self.edges.iter().position(|e| e.arg() == arg && e.index() == index) {
            self.slots[k] = Some(grad);
        }
    }

    /// The gradient for edge `k`.
    #[inline(always)]
    pub fn put(&mut self, k: usize, grad: Option<Tensor>) {
        if let Some(slot) = self.slots.get_mut(k) {
            *slot = grad;
        }
    }
}

/// The rule of nodes whose op has no formula.
pub(crate) struct MissingRule;

impl VjpRule for MissingRule {
    fn name(&self) -> &str {
        "missing"
    }

    fn backward(&self, ctx: &BackwardCtx<'_>, _: &[Option<Tensor>], _: &mut Gradients<'_>) -> Result<()> {
        let name = ctx.name();
        let def = ctx.node().op().and_then(|op| op.def());
        let argument = |arg: usize| def.as_ref().and_then(|d| d.params.name(arg)).map(|n| format!("'{n}'"));
        let mut needed: Vec<String> = ctx.edges().iter().filter_map(|e| argument(e.arg())).collect();
        needed.dedup();
        let verb = if needed.len() == 1 { "requires" } else { "require" };
        let message = match needed.is_empty() {
            true => "no gradient formula is registered".to_string(),
            false => {
                format!("no gradient formula is registered, and {} {verb} a gradient", needed.join(", "))
            }
        };
        Err(Error::autograd("TP3001", message)
            .with_op(name)
            .note(format!("give it one with register_autograd(\"{name}\", backward)"))
            .note(format!(
                "or say that it has none: register_autograd(\"{name}\", None), or detach() its input"
            )))
    }
}

/// The rule of accumulators; the engine never calls it.
pub(crate) struct LeafRule;

impl VjpRule for LeafRule {
    fn name(&self) -> &str {
        "accumulate"
    }

    fn backward(&self, ctx: &BackwardCtx<'_>, _: &[Option<Tensor>], _: &mut Gradients<'_>) -> Result<()> {
        Err(ctx.internal("a leaf has no backward"))
    }
}

pub(crate) static MISSING_RULE: Rule = Rule {
    handle: RuleHandle::Static(&MissingRule),
    args: u64::MAX,
    specs: false,
    short: Short::No,
    reaches_host: false,
};
pub(crate) static LEAF: LeafRule = LeafRule;

/// The error for a rule that gave another number of gradients than the op has inputs.
#[cold]
pub fn wrong_count(op: &str, expected: usize, got: usize) -> Error {
    let what = tp_tensor::counted(got, "gradient");
    Error::autograd("TP3002", format!("backward returned {what}: expected {expected}, got {got}"))
        .with_op(op)
        .note("return one value per input of the op, None for inputs without a gradient")
}
