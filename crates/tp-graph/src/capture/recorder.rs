//! What one capture has recorded so far: the graph under construction, which tensor is which value, and the real
//! tensors that were lifted.

use super::bound::{Bound, Twins};
use super::branches::Around;
use super::{Captured, between::Between, known::Known, made::MadeTensors, watch::Asked};
use crate::builder::{GraphBuilder, NewNode, NewOutput, NewValue};
use crate::entity::{Entity, ValueId};
use crate::host_guards::HostGuards;
use crate::ir::{Alias, Const, InputKind, Operand, Target, ValueType};
use crate::passes::Rewrite;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tp_dispatch::{Arg, Call, Error, Result, Rets, Value, host, state};
use tp_tensor::symbols::{self, Symbols};
use tp_tensor::{Dim, Tensor, TensorSpec};

/// Captures are numbered, so that a tensor of one is never taken for a value of another.
static SERIAL: AtomicU32 = AtomicU32::new(1);
static FAKE_ID: AtomicU32 = AtomicU32::new(1);

pub struct Recorder {
    pub(super) serial: u32,
    pub(super) builder: GraphBuilder,
    /// The tensor of each value.
    fakes: Vec<Option<Known>>,
    /// Real tensors by header: arguments and lifted ones, with the fake that stands for each.
    pub(super) real: HashMap<usize, Tensor>,
    pub(super) lifted: Vec<Tensor>,
    /// Tensors that the function made of data.
    pub(super) made: MadeTensors,
    /// The capture around this one, which is of a branch.
    pub(super) around: Option<Around>,
    /// Both branches of a choice run, one after the other: what was there before them, this many values, is not written to.
    pub(super) selecting: Option<usize>,
    /// Whether each lifted tensor required a gradient when it was met.
    pub(super) lifted_grad: Vec<bool>,
    arguments: Vec<Tensor>,
    pub(crate) between: Between,
    /// Fakes by storage, filled up to `indexed` when a fake without a name turns up.
    by_storage: HashMap<usize, SmallVec<[ValueId; 2]>>,
    indexed: usize,
    /// What was asked of tensors that existed before.
    asked: Vec<Asked>,
    pub(super) grad_mode_asked: bool,
    pub(crate) host_guards: Option<Box<dyn HostGuards>>,
    /// Where grad mode was last set.
    pub(super) mode_changed_at: Option<String>,
    /// The first refusal: code, message and notes.
    pub(super) refused: Option<(&'static str, String, Vec<String>)>,
}

impl Recorder {
    pub(super) fn new(symbols: Arc<Symbols>) -> Recorder {
        Recorder {
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            builder: GraphBuilder::over(symbols),
            fakes: Vec::new(),
            real: HashMap::new(),
            lifted: Vec::new(),
            made: MadeTensors::default(),
            around: None,
            selecting: None,
            lifted_grad: Vec::new(),
            arguments: Vec::new(),
            between: Between::default(),
            by_storage: HashMap::new(),
            indexed: 0,
            asked: Vec::new(),
            grad_mode_asked: false,
            host_guards: None,
            mode_changed_at: None,
            refused: None,
        }
    }

    pub(super) fn next_fake_id() -> u32 {
        FAKE_ID.fetch_add(1, Ordering::Relaxed)
    }

    /// A fake of the type `spec` that stands for `like`.
    pub fn input(&mut self, like: &Tensor, spec: TensorSpec, name: &str, kind: InputKind) -> Result<Tensor> {
        if let Some(fake) = self.real.get(&like.id()) {
            return Ok(fake.clone());
        }
        let fake = Tensor::fake(&spec.sizes, &spec.strides, spec.dtype, spec.device, Self::next_fake_id())?;
        let sharing =
            self.arguments.iter().chain(&self.lifted).find(|t| t.shares_storage(like)).map(Tensor::id);
        let alias = match sharing.and_then(|id| self.real.get(&id).cloned()) {
            Some(first) => Some(Alias::Shares(self.value_of(&first)?)),
            None => None,
        };
        let value = self.builder.input(name, kind, ValueType::Tensor(spec), alias);
        self.name(value, &fake);
        if like.requires_grad() {
            fake.set_requires_grad(true);
            tp_autograd::meta::stand_for(&fake, like)?;
        }
        match kind {
            InputKind::Lifted => {
                self.lifted.push(like.clone());
                self.lifted_grad.push(like.requires_grad());
            }
            _ => self.arguments.push(like.clone()),
        }
        self.real.insert(like.id(), fake.clone());
        Ok(fake)
    }

    /// An input that stands for no real tensor: the gradient of an output.
    pub fn fresh_input(&mut self, spec: &TensorSpec, name: &str, kind: InputKind) -> Result<Tensor> {
        let fake = Tensor::fake(&spec.sizes, &spec.strides, spec.dtype, spec.device, Self::next_fake_id())?;
        let value = self.builder.input(name, kind, ValueType::Tensor(spec.clone()), None);
        self.name(value, &fake);
        Ok(fake)
    }

    /// Real tensors that were lifted so far.
    pub fn lifted(&self) -> &[Tensor] {
        &self.lifted
    }

    /// The first lifted tensor that has come to require a gradient since it was met.
    pub(crate) fn changed_lifted(&self) -> Option<usize> {
        let mut now = self.lifted.iter().map(Tensor::requires_grad).zip(&self.lifted_grad);
        now.position(|(now, before)| now != *before)
    }

    /// The tensor that existed before and is `t`, or is what the fake `t` stands for; None for what the function made.
    pub(super) fn behind(&self, t: &Tensor) -> Option<Tensor> {
        if !t.is_fake() {
            return Some(t.clone());
        }
        let mut known = self.arguments.iter().chain(&self.lifted);
        known.find(|real| self.real.get(&real.id()).is_some_and(|fake| fake.same(t))).cloned()
    }

    pub(super) fn arguments(&self) -> &[Tensor] {
        &self.arguments
    }

    /// The function came upon `t` on its own.
    pub(super) fn reach(&mut self, t: &Tensor) {
        self.between.reach(t, &self.arguments);
    }

    /// Tensors from outside as the tape of the capture knows them, and themselves.
    pub(super) fn outside(&self) -> Vec<(Tensor, Tensor)> {
        let fakes = self.arguments.iter().filter_map(|t| Some((self.real.get(&t.id())?.clone(), t.clone())));
        let own = self.lifted.iter().chain(&self.between.reached).map(|t| (t.clone(), t.clone()));
        fakes.chain(own).collect()
    }

    pub(super) fn asked(&mut self, asked: Asked) {
        if !self.asked.iter().any(|a| a.of.same(&asked.of) && a.fact == asked.fact) {
            self.asked.push(asked);
        }
    }

    /// The facts that the function asked for, and whether it asked for grad mode.
    pub(crate) fn take_asked(&mut self) -> (Vec<Asked>, bool) {
        (std::mem::take(&mut self.asked), self.grad_mode_asked)
    }

    pub fn builder(&self) -> &GraphBuilder {
        &self.builder
    }

    /// The value that `t` is in this capture; a real tensor is lifted first.
    pub fn operand_of(&mut self, t: &Tensor) -> Result<ValueId> {
        if t.is_fake() {
            return self.value_of(t);
        }
        let fake = self.lift(t)?;
        self.value_of(&fake)
    }

    fn lift(&mut self, t: &Tensor) -> Result<Tensor> {
        if self.around.is_some() {
            return self.lift_around(t);
        }
        self.reach(t);
        let name = format!("lifted{}", self.lifted.len());
        let fake = self.input(t, TensorSpec::of(t), &name, InputKind::Lifted)?;
        // The layers above see the real tensor; its twin takes no part in differentiation.
        if self.lifted.last().is_some_and(|last| last.same(t)) {
            fake.set_requires_grad(false);
        }
        Ok(fake)
    }

    pub(super) fn name(&mut self, value: ValueId, fake: &Tensor) {
        fake.set_trace_id(u64::from(self.serial) << 32 | u64::from(value.0));
        let known = match self.builder.graph().values[value].alias {
            Some(Alias::View(_)) => Known::part(fake),
            _ => Known::Whole(fake.clone()),
        };
        self.keep(value, Some(known));
    }

    pub(super) fn keep(&mut self, value: ValueId, fake: Option<Known>) {
        debug_assert_eq!(self.fakes.len(), value.index());
        self.fakes.push(fake);
    }

    pub(super) fn value_of(&mut self, fake: &Tensor) -> Result<ValueId> {
        self.use_made(fake)?;
        let id = fake.trace_id();
        if id >> 32 == u64::from(self.serial) {
            return Ok(ValueId(id as u32));
        }
        if self.is_from_around((id >> 32) as u32) {
            return self.input_for(fake);
        }
        self.find_unnamed(fake)
    }

    /// A fake that no node returned: a header made over the storage of one that did (a saved tensor).
    #[cold]
    fn find_unnamed(&mut self, fake: &Tensor) -> Result<ValueId> {
        for (i, known) in self.fakes.iter().enumerate().skip(self.indexed) {
            if let Some(known) = known {
                self.by_storage.entry(known.storage()).or_default().push(ValueId::new(i));
            }
        }
        self.indexed = self.fakes.len();
        let candidates = self.by_storage.get(&fake.storage().id());
        let is_like = |v: &ValueId| self.fakes[v.index()].as_ref().is_some_and(|known| known.is_like(fake));
        let found = candidates.into_iter().flatten().copied().find(is_like);
        match found {
            Some(v) => {
                fake.set_trace_id(u64::from(self.serial) << 32 | u64::from(v.0));
                Ok(v)
            }
            None if self.around.is_some() => self.input_for(fake),
            None => Err(Error::capture(
                "TP4004",
                "a tensor without data that this capture does not know was used",
            )
            .note(
                "it was kept from another capture; do not store tensors while a function is being captured",
            )),
        }
    }

    pub(super) fn bind(&mut self, call: &Call<'_>) -> Result<Bound> {
        let mut bound = Bound { operands: SmallVec::new(), twins: SmallVec::new() };
        for (i, arg) in call.args.iter().enumerate() {
            let operand = match *arg {
                Arg::Tensor(t) if t.is_fake() => Operand::Value(self.value_of(t)?),
                Arg::Tensor(t) => {
                    let twin = self.lift(t)?;
                    let value = self.value_of(&twin)?;
                    bound.twins.push((i, Twins::One(twin)));
                    Operand::Value(value)
                }
                Arg::Tensors(ts) => {
                    let fakes = ts.iter().map(|t| self.stand_in(t)).collect::<Result<Box<[Tensor]>>>()?;
                    let operand = self.list(fakes.iter().map(Some))?;
                    bound.twins.push((i, Twins::Many(fakes)));
                    operand
                }
                Arg::OptTensors(ts) => {
                    let stand_in = |t: &Option<Tensor>| t.as_ref().map(|t| self.stand_in(t)).transpose();
                    let fakes = ts.iter().map(stand_in).collect::<Result<Box<[Option<Tensor>]>>>()?;
                    let operand = self.list(fakes.iter().map(Option::as_ref))?;
                    bound.twins.push((i, Twins::Optional(fakes)));
                    operand
                }
                _ => recorded(arg).ok_or_else(|| opaque_argument(call, i))?,
            };
            bound.operands.push(operand);
        }
        // Lists that held no real tensor go to the fake rule as the caller's own objects.
        let unchanged = call.args.iter().all(|a| {
            let mut all = true;
            a.for_each_tensor(|t| all &= t.is_fake());
            all
        });
        if unchanged {
            bound.twins.clear();
        }
        Ok(bound)
    }

    pub(super) fn stand_in(&mut self, t: &Tensor) -> Result<Tensor> {
        if t.is_fake() { Ok(t.clone()) } else { self.lift(t) }
    }

    fn list<'t>(&mut self, items: impl Iterator<Item = Option<&'t Tensor>>) -> Result<Operand> {
        let operand = |t: Option<&Tensor>| match t {
            Some(t) => self.value_of(t).map(Operand::Value),
            None => Ok(Operand::NONE),
        };
        Ok(Operand::List(items.map(operand).collect::<Result<_>>()?))
    }

    /// Appends the node of `call`, names the outputs in `rets`, and counts what the op writes as written.
    pub(super) fn append(&mut self, call: &Call<'_>, bound: Bound, rets: &mut Rets) -> Result<()> {
        let args: SmallVec<[Arg<'_>; 8]> = bound.args(call);
        if call.def.effects.mutates {
            self.check_shared(call, &args)?;
            self.check_writes(call, &args)?;
        }
        let mut outputs: SmallVec<[NewOutput; 1]> = SmallVec::new();
        for value in rets.iter_mut() {
            outputs.push(match value {
                Value::Tensor(t) => NewOutput::Value(self.new_value(&args, t)?),
                Value::Tensors(ts) => {
                    NewOutput::List(ts.iter_mut().map(|t| self.new_value(&args, t)).collect::<Result<_>>()?)
                }
                other => {
                    let known = recorded(&other.as_arg()).ok_or_else(|| unheld(call, other))?;
                    NewOutput::Value(NewValue { ty: ValueType::Known(known), alias: None })
                }
            });
        }
        if call.def.effects.mutates {
            for &i in &call.def.params.written {
                if let Some(arg) = args.get(i as usize) {
                    arg.for_each_tensor(|t| t.storage().bump_version());
                }
            }
        }
        drop(args);
        let new = NewNode {
            target: Target::Op(call.op),
            inputs: bound.operands,
            blocks: Vec::new(),
            effects: call.def.effects,
            location: host::location(),
            phase: state::phase(),
        };
        let node = self.builder.node(new, outputs);
        self.name_outputs(node, call, rets);
        Ok(())
    }

    /// The type of an output and what it aliases. A tensor that a fake rule gave out before gets a new header.
    fn new_value(&mut self, args: &[Arg<'_>], out: &mut Tensor) -> Result<NewValue> {
        let mut alias = None;
        for arg in args {
            arg.for_each_tensor(|t| {
                if alias.is_none() && t.shares_storage(out) {
                    alias = Some((t.clone(), t.same(out)));
                }
            });
        }
        let spec = TensorSpec::of(out);
        let alias = match alias {
            Some((t, true)) => Some(Alias::Same(self.value_of(&t)?)),
            Some((t, false)) => Some(Alias::View(self.value_of(&t)?)),
            None => {
                if out.trace_id() != 0 || !out.is_fake() {
                    *out = Tensor::fake(
                        &spec.sizes,
                        &spec.strides,
                        spec.dtype,
                        spec.device,
                        Self::next_fake_id(),
                    )?;
                }
                None
            }
        };
        Ok(NewValue { ty: ValueType::Tensor(spec), alias })
    }

    fn name_outputs(&mut self, node: crate::NodeId, call: &Call<'_>, rets: &mut Rets) {
        let defined: SmallVec<[ValueId; 4]> = self.builder.graph().nodes[node].defined().collect();
        let mut next = defined.into_iter();
        for value in rets.iter_mut() {
            let tensors: &mut [Tensor] = match value {
                Value::Tensor(t) => std::slice::from_mut(t),
                Value::Tensors(ts) => ts,
                _ => {
                    let id = next.next();
                    if let Some(id) = id {
                        self.keep(id, None);
                    }
                    continue;
                }
            };
            for t in tensors {
                let Some(id) = next.next() else { return };
                match self.builder.graph().values[id].alias {
                    // The caller gets its own tensor back, under the name it had.
                    Some(Alias::Same(_)) => {
                        self.keep(id, Some(Known::part(t)));
                        if let Some(own) = own_tensor(call, t, &self.real) {
                            *t = own;
                        }
                    }
                    _ => self.name(id, t),
                }
            }
        }
    }

    pub(super) fn outputs(&mut self, outputs: &[Value]) -> Result<Vec<Operand>> {
        if let Some((code, message, notes)) = self.refused.take() {
            return Err(notes.into_iter().fold(Error::capture(code, message), Error::note));
        }
        outputs
            .iter()
            .map(|value| match value {
                Value::Tensor(t) => self.operand_of(t).map(Operand::Value),
                other => recorded(&other.as_arg()).ok_or_else(|| {
                    let message = format!(
                        "a captured function returned {}, which a graph cannot hold",
                        other.type_name()
                    );
                    Error::capture("TP4014", message)
                        .note("return tensors, numbers, strings, None, and tuples or dicts of them")
                }),
            })
            .collect()
    }

    pub(super) fn take(&mut self, outputs: Vec<Operand>) -> Result<Captured> {
        let own = self.own_lifted();
        let graph = std::mem::take(&mut self.builder).finish(outputs);
        let (graph, copies) = self.with_copies(graph)?;
        // Tensors that were lifted on the way are inputs numbered among the nodes; rebuilding puts them in front.
        let late = graph.inputs.last().is_some_and(|i| i.value.index() >= graph.inputs.len());
        let graph = if late { Rewrite::new(&graph).finish() } else { graph };
        Ok(Captured { graph, lifted: std::mem::take(&mut self.lifted), own, copies })
    }
}

/// The real tensor of the call that `twin` stood for.
fn own_tensor(call: &Call<'_>, twin: &Tensor, real: &HashMap<usize, Tensor>) -> Option<Tensor> {
    let mut own = None;
    call.for_each_tensor(|_, t| {
        if own.is_none() && real.get(&t.id()).is_some_and(|f| f.same(twin)) {
            own = Some(t.clone());
        }
    });
    own
}

/// An argument that is no tensor, as it stands in the graph of the capture in progress.
fn recorded(arg: &Arg<'_>) -> Option<Operand> {
    let int = |&v: &i64| {
        Operand::Const(symbols::number(v).map_or_else(|| Const::Size(Dim::from_raw(v)), Const::Int))
    };
    match arg {
        Arg::Int(v) => Some(int(v)),
        Arg::Ints(vs) => Some(Operand::List(vs.iter().map(int).collect())),
        other => literal(other),
    }
}

/// An argument that is no tensor, from outside of any capture, as it would stand in a graph.
pub(crate) fn literal(arg: &Arg<'_>) -> Option<Operand> {
    let constant = |c: Const| Some(Operand::Const(c));
    let list = |items: Box<[Operand]>| Some(Operand::List(items));
    match *arg {
        Arg::None => Some(Operand::NONE),
        Arg::Scalar(s) => constant(s.into()),
        Arg::Int(v) => constant(Const::Int(v)),
        Arg::Float(v) => constant(Const::Float(v)),
        Arg::Bool(v) => constant(Const::Bool(v)),
        Arg::Str(s) => constant(Const::Str(s.into())),
        Arg::DType(d) => constant(Const::DType(d)),
        Arg::Device(d) => constant(Const::Device(d)),
        Arg::Ints(v) => list(v.iter().map(|x| Operand::Const(Const::Int(*x))).collect()),
        Arg::Floats(v) => list(v.iter().map(|x| Operand::Const(Const::Float(*x))).collect()),
        Arg::Bools(v) => list(v.iter().map(|x| Operand::Const(Const::Bool(*x))).collect()),
        Arg::Scalars(v) => list(v.iter().map(|x| Operand::Const((*x).into())).collect()),
        Arg::Tensor(_) | Arg::Tensors(_) | Arg::OptTensors(_) | Arg::Host(_) => None,
    }
}

#[cold]
fn unheld(call: &Call<'_>, value: &Value) -> Error {
    let message =
        format!("it returned {}, which a graph can neither hold nor compare with a run", value.type_name());
    Error::capture("TP4016", message)
        .with_op(call.op.name())
        .note("return tensors, lists of tensors, numbers, strings, dtypes or devices")
}

#[cold]
fn opaque_argument(call: &Call<'_>, i: usize) -> Error {
    let name = call.def.params.name(i).unwrap_or("?");
    Error::capture("TP4006", format!("argument '{name}' is an object that a graph cannot hold"))
        .with_op(call.op.name())
        .note("pass tensors, numbers, strings, dtypes, devices, or lists of them")
}
