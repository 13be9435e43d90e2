//! Gradients written as scalar expressions in the op table: `grad * x2`. `parse` turns the text into a flat list of
//! op calls when the rule is first needed, `run` executes such a list through the dispatcher, and `ExprRule` decides
//! what must be saved for the formulas that a call needs.

mod parse;
mod record;
mod run;
mod scalar;

use crate::ops;
use crate::rule::{BackwardCtx, Gradients, VjpRule};
use crate::tape::{Edge, Node, Saver};
use parse::Parser;
use record::Plan;
use run::{Formula, Slot, Source};
use smallvec::SmallVec;
use tp_dispatch::bind::ParamKind;
use tp_dispatch::{Arg, Call, Error, OpDef, Result, Value, call_one, call_one_giving};
use tp_tensor::{DType, Tensor};

/// A name that formulas may use, besides `grad`.
#[derive(Clone, Debug)]
struct Variable {
    name: Box<str>,
    /// Index of the argument; None for the output.
    arg: Option<usize>,
    is_tensor: bool,
}

/// The rule made from a row's formulas.
pub(crate) struct ExprRule {
    name: Box<str>,
    variables: Box<[Variable]>,
    /// One per argument.
    formulas: Box<[Option<Formula>]>,
    /// The variables that are tensors, as bits. Variable i is argument i; the output comes last.
    tensors: u64,
    args: u64,
    plans: record::Plans,
    /// The argument an in-place op writes to.
    written: Option<usize>,
}

/// Layout of a node's bits: bit k says that the gradient of edge k is reduced to saved sizes; from bit 16 on, four
/// bits per edge hold the operand's dtype.
const DTYPE_SHIFT: usize = 16;

impl ExprRule {
    pub fn compile(name: &str, def: &OpDef, texts: &[Option<&str>]) -> Result<ExprRule> {
        let params = &def.params.all;
        if params.len() > record::MOST {
            return Err(bad_formula(name, record::MOST, "it has too many arguments".into()));
        }
        let mut variables: Vec<Variable> = Vec::new();
        for (i, p) in params.iter().enumerate() {
            let is_tensor = p.kind == ParamKind::Tensor;
            variables.push(Variable { name: p.name.clone(), arg: Some(i), is_tensor });
        }
        variables.push(Variable { name: "out".into(), arg: None, is_tensor: true });
        let mut formulas = Vec::with_capacity(params.len());
        let mut args = 0;
        for (i, p) in params.iter().enumerate() {
            let text = texts.get(i).copied().flatten().filter(|_| p.kind == ParamKind::Tensor);
            let formula = text.map(|t| Parser::formula(t, &variables)).transpose();
            formulas.push(formula.map_err(|e| bad_formula(name, i, e))?);
            if formulas[i].is_some() {
                args |= 1 << i;
            }
        }
        let tensors = variables.iter().enumerate().fold(0, |bits, (i, v)| bits | u64::from(v.is_tensor) << i);
        let uses: Box<[u64]> =
            formulas.iter().map(|f: &Option<Formula>| f.as_ref().map_or(0, |f| f.uses)).collect();
        Ok(ExprRule {
            name: name.into(),
            plans: record::plans(&uses, tensors),
            variables: variables.into(),
            tensors,
            formulas: formulas.into(),
            args,
            written: def.params.written.first().map(|&i| i as usize),
        })
    }

    /// What is kept where the arguments behind `edges` need gradients.
    #[inline]
    fn plan(&self, edges: &[Edge]) -> &Plan {
        let set = edges.iter().fold(0, |set, e| set | 1 << (e.arg() & record::MOST));
        &self.plans[set & (self.plans.len() - 1)]
    }

    /// Whether calls can be recorded the short way: the op writes to nothing.
    pub fn is_pure(&self) -> bool {
        self.written.is_none()
    }

    /// Saved tensors and scalars, by variable.
    fn variables(&self, ctx: &BackwardCtx<'_>, uses: u64) -> Result<SmallVec<[Slot; 4]>> {
        let mut slots: SmallVec<[Slot; 4]> = SmallVec::new();
        let (mut tensors, mut values) = (0, 0);
        for (i, v) in self.variables.iter().enumerate() {
            slots.push(if uses >> i & 1 == 0 {
                Slot::Empty
            } else if v.is_tensor {
                tensors += 1;
                Slot::Tensor(ctx.saved(tensors - 1)?)
            } else {
                values += 1;
                match ctx.value(values - 1) {
                    Value::Scalar(s) => Slot::Scalar(*s),
                    _ => return Err(ctx.internal("a saved number is missing")),
                }
            });
        }
        Ok(slots)
    }

    /// A formula of at most one op, over what was saved as it lies there. None for longer ones, and where a saved
    /// tensor has to be made first.
    #[inline]
    fn single(
        &self,
        ctx: &BackwardCtx<'_>,
        formula: &Formula,
        grad: &Tensor,
        plan: &Plan,
    ) -> Result<Option<Tensor>> {
        if formula.result == Source::Grad {
            return Ok(Some(grad.clone()));
        }
        if let Some((op, i)) = formula.with_grad() {
            let Some(variable) = self.variable(ctx, i, plan)? else { return Ok(None) };
            return call_one(op?, &[Arg::Tensor(grad), variable]).map(Some);
        }
        let Some((op, args)) = formula.single() else { return Ok(None) };
        let mut values = [Arg::None; 2];
        for (value, source) in values.iter_mut().zip(args) {
            *value = match *source {
                Source::Grad => Arg::Tensor(grad),
                Source::Number(s) => Arg::Scalar(s),
                Source::DType(d) => Arg::DType(d),
                Source::Step(_) => return Ok(None),
                Source::Variable(i) => match self.variable(ctx, i, plan)? {
                    Some(variable) => variable,
                    None => return Ok(None),
                },
            };
        }
        call_one(op?, &values[..args.len()]).map(Some)
    }

    /// Variable `i` as it lies in the node; None where it has to be made first.
    #[inline(always)]
    fn variable<'c>(&self, ctx: &'c BackwardCtx<'_>, i: usize, plan: &Plan) -> Result<Option<Arg<'c>>> {
        let place = usize::from(plan.place[i & record::MOST]);
        if self.tensors >> i & 1 == 1 {
            return Ok(ctx.saved_ref(place)?.map(Arg::Tensor));
        }
        Ok(match ctx.value(place) {
            Value::Scalar(s) => Some(Arg::Scalar(*s)),
            _ => None,
        })
    }

    /// A formula of several ops.
    #[inline(never)]
    fn several(
        &self,
        ctx: &BackwardCtx<'_>,
        formula: &Formula,
        grad: &Tensor,
        plan: &Plan,
        variables: &mut Option<SmallVec<[Slot; 4]>>,
    ) -> Result<Tensor> {
        // Read once for all formulas of a node: hooks that unpack are called once per tensor.
        let variables = match variables {
            Some(known) => known,
            None => variables.insert(self.variables(ctx, plan.uses)?),
        };
        formula.run(grad, variables)
    }

    /// What is saved of an argument: itself, or for one about to be overwritten a copy that keeps its history.
    fn save_tensor(&self, call: &Call<'_>, t: &Tensor, saver: &mut Saver<'_>) -> Result<()> {
        if let Some(w) = self.written
            && call.tensor(w)?.shares_storage(t)
        {
            saver.input(&ops::CLONE.call(&[Arg::Tensor(t)])?);
        } else {
            saver.input(t);
        }
        Ok(())
    }
}

fn bad_formula(op: &str, arg: usize, message: String) -> Error {
    Error::internal("TP9010", format!("gradient formula of argument {arg}: {message}")).with_op(op)
}

impl VjpRule for ExprRule {
    fn name(&self) -> &str {
        &self.name
    }

    fn args(&self) -> u64 {
        self.args
    }

    fn overwrites(&self, arg: usize) -> bool {
        self.formulas.get(arg).and_then(Option::as_ref).is_some_and(Formula::is_zero)
    }

    #[inline]
    fn save_inputs(&self, call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
        let mut left = self.plan(saver.edges()).uses;
        while left != 0 {
            let i = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(arg) = self.variables[i].arg else { continue };
            match call.args[arg] {
                Arg::Tensor(t) => self.save_tensor(call, t, saver)?,
                other => saver.value(Value::Scalar(other.scalar().unwrap_or(tp_tensor::Scalar::Int(0)))),
            }
        }
        Ok(())
    }

    #[inline]
    fn save_outputs(&self, call: &Call<'_>, rets: &[Value], saver: &mut Saver<'_>) -> Result<()> {
        let Some(Value::Tensor(out)) = rets.first() else { return Ok(()) };
        let edges = saver.edges();
        if self.plan(edges).uses >> (self.variables.len() - 1) & 1 == 1 {
            saver.output(out, 0);
        }
        for (k, e) in edges.iter().enumerate() {
            let t = call.tensor(e.arg())?;
            let mut bits = (t.dtype() as u64) << (DTYPE_SHIFT + 4 * k);
            if t.sizes() != out.sizes() {
                bits |= 1 << k;
                saver.ints(t.sizes());
            }
            saver.set_bits(bits);
        }
        Ok(())
    }

    fn direct(&self, node: &Node, grad: &mut Option<Tensor>) -> Option<Result<Tensor>> {
        let ([e], bits) = (node.edges(), node.bits()) else { return None };
        if bits & 1 != 0 {
            return None;
        }
        let arg = e.arg() & record::MOST;
        let formula = self.formulas.get(arg)?.as_ref()?;
        let g = if formula.result == Source::Grad {
            Ok(grad.take()?)
        } else {
            let (op, i) = formula.with_grad()?;
            let place = usize::from(self.plans[1 << arg].place[i & record::MOST]);
            let Value::Scalar(s) = node.values().get(place)? else { return None };
            op.and_then(|op| call_one_giving(op, grad, Arg::Scalar(*s)))
        };
        Some(g.and_then(|g| like_operand(g, bits, 0)))
    }

    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        let Some(Some(grad)) = grads.first() else { return Ok(()) };
        let (edges, bits) = (ctx.edges(), ctx.bits());
        if let [e] = edges
            && let plan = &self.plans[(1 << (e.arg() & record::MOST)) & (self.plans.len() - 1)]
            && bits & 1 == 0
            && let Some(Some(formula)) = self.formulas.get(e.arg())
            && let Some(g) = self.single(ctx, formula, grad, plan)?
        {
            out.put(0, Some(like_operand(g, bits, 0)?));
            return Ok(());
        }
        self.backward_each(ctx, grad, self.plan(edges), out)
    }
}

impl ExprRule {
    /// The gradient of every edge.
    #[inline(never)]
    fn backward_each(
        &self,
        ctx: &BackwardCtx<'_>,
        grad: &Tensor,
        plan: &Plan,
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        let (edges, bits) = (ctx.edges(), ctx.bits());
        let mut sizes = plan.numbers as usize;
        let mut variables = None;
        for (k, e) in edges.iter().enumerate() {
            let Some(formula) = &self.formulas[e.arg()] else { continue };
            let mut g = match self.single(ctx, formula, grad, plan)? {
                Some(g) => g,
                None => self.several(ctx, formula, grad, plan, &mut variables)?,
            };
            if bits >> k & 1 == 1 {
                g = ops::sum_to_size(g, ctx.ints(sizes))?;
                sizes += 1;
            }
            out.put(k, Some(like_operand(g, bits, k)?));
        }
        Ok(())
    }
}

/// A gradient in the dtype that a node's bits give for the operand of edge `k`.
#[inline(always)]
fn like_operand(g: Tensor, bits: u64, k: usize) -> Result<Tensor> {
    let code = (bits >> (DTYPE_SHIFT + 4 * k) & 15) as u8;
    match DType::from_code(code) {
        Some(dtype) if dtype != g.dtype() => ops::astype(g, dtype),
        _ => Ok(g),
    }
}
