//! A compiled formula: op calls and number operations in order, each over earlier results.

use super::scalar::{self, ScalarFn};
use crate::ops;
use smallvec::SmallVec;
use std::sync::OnceLock;
use tp_dispatch::{Arg, Error, OpHandle, Result, call_one};
use tp_tensor::{DType, Scalar, Tensor};

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Source {
    Grad,
    /// A variable of the rule.
    Variable(usize),
    /// Result of an earlier step.
    Step(usize),
    Number(Scalar),
    DType(DType),
}

pub(super) enum Step {
    /// An op, by name; looked up at its first call.
    Op {
        name: Box<str>,
        op: OnceLock<OpHandle>,
        args: SmallVec<[Source; 3]>,
    },
    Number {
        f: ScalarFn,
        args: [Source; 2],
    },
    /// `select` on a condition that is a number: the choice is known without looking at elements.
    Choose {
        args: [Source; 3],
        is_tensor: bool,
    },
}

pub(super) struct Formula {
    pub steps: Box<[Step]>,
    pub result: Source,
    /// The variables it reads, as bits.
    pub uses: u64,
    /// The variable of a formula that is one call on the gradient and a variable.
    pair: Option<u8>,
}

/// A value while a formula runs.
#[derive(Clone)]
pub(super) enum Slot {
    Empty,
    Tensor(Tensor),
    Scalar(Scalar),
}

struct Frame<'a> {
    grad: &'a Tensor,
    variables: &'a [Slot],
    steps: SmallVec<[Slot; 8]>,
}

impl Frame<'_> {
    #[inline]
    fn arg(&self, source: Source) -> Arg<'_> {
        let slot = match source {
            Source::Grad => return Arg::Tensor(self.grad),
            Source::Number(s) => return Arg::Scalar(s),
            Source::DType(d) => return Arg::DType(d),
            Source::Variable(i) => &self.variables[i],
            Source::Step(i) => &self.steps[i],
        };
        match slot {
            Slot::Tensor(t) => Arg::Tensor(t),
            Slot::Scalar(s) => Arg::Scalar(*s),
            Slot::Empty => Arg::None,
        }
    }

    fn number(&self, source: Source) -> Result<Scalar> {
        self.arg(source).scalar().ok_or_else(|| Error::internal("TP9011", "a formula expected a number"))
    }

    fn tensor(&self, source: Source) -> Result<Tensor> {
        match self.arg(source) {
            Arg::Tensor(t) => Ok(t.clone()),
            Arg::Scalar(s) => fill(self.grad, s),
            _ => Err(Error::internal("TP9011", "a formula expected a tensor")),
        }
    }

    #[inline]
    fn step(&self, step: &Step) -> Result<Slot> {
        match step {
            Step::Op { name, op, args } => {
                let op = handle(name, op, args.len())?;
                match *args.as_slice() {
                    [a] => call_one(op, &[self.arg(a)]),
                    [a, b] => call_one(op, &[self.arg(a), self.arg(b)]),
                    ref more => {
                        let values: SmallVec<[Arg<'_>; 3]> = more.iter().map(|&a| self.arg(a)).collect();
                        call_one(op, &values)
                    }
                }
                .map(Slot::Tensor)
            }
            Step::Number { f, args: [a, b] } => {
                Ok(Slot::Scalar(scalar::apply(*f, self.number(*a)?, self.number(*b)?)))
            }
            Step::Choose { args: [condition, a, b], is_tensor } => {
                let chosen = if scalar::truth(self.number(*condition)?) { *a } else { *b };
                if *is_tensor {
                    self.tensor(chosen).map(Slot::Tensor)
                } else {
                    self.number(chosen).map(Slot::Scalar)
                }
            }
        }
    }
}

/// A tensor like `grad` with every element `s`.
fn fill(grad: &Tensor, s: Scalar) -> Result<Tensor> {
    ops::FULL_LIKE.call(&[Arg::Tensor(grad), Arg::Scalar(s), Arg::None, Arg::None])
}

/// The op of a step, looked up at its first call.
#[inline]
fn handle(name: &str, op: &OnceLock<OpHandle>, args: usize) -> Result<OpHandle> {
    match op.get() {
        Some(op) => Ok(*op),
        None => {
            let found = ops::lookup(name, args)?;
            Ok(*op.get_or_init(|| found))
        }
    }
}

impl Formula {
    pub fn new(steps: Vec<Step>, result: Source, uses: u64) -> Formula {
        let pair = match (steps.as_slice(), result) {
            ([Step::Op { args, .. }], Source::Step(0)) => match args.as_slice() {
                [Source::Grad, Source::Variable(i)] => u8::try_from(*i).ok(),
                _ => None,
            },
            _ => None,
        };
        Formula { steps: steps.into(), result, uses, pair }
    }

    /// The op and the variable of a formula that is one call on the gradient and a variable.
    #[inline]
    pub fn with_grad(&self) -> Option<(Result<OpHandle>, usize)> {
        let i = self.pair?;
        match &*self.steps {
            [Step::Op { name, op, args }] => Some((handle(name, op, args.len()), usize::from(i))),
            _ => None,
        }
    }

    /// Zero whatever the gradient is.
    pub fn is_zero(&self) -> bool {
        self.result == Source::Number(Scalar::Int(0))
    }

    /// Op and operands of a formula that is one call of at most two operands.
    #[inline]
    pub fn single(&self) -> Option<(Result<OpHandle>, &[Source])> {
        match (&*self.steps, self.result) {
            ([Step::Op { name, op, args }], Source::Step(0)) if args.len() <= 2 => {
                Some((handle(name, op, args.len()), args))
            }
            _ => None,
        }
    }

    /// The formula's value for `grad`.
    #[inline]
    pub fn run(&self, grad: &Tensor, variables: &[Slot]) -> Result<Tensor> {
        let mut frame = Frame { grad, variables, steps: SmallVec::new() };
        for step in &self.steps {
            let slot = frame.step(step)?;
            frame.steps.push(slot);
        }
        if let Source::Step(last) = self.result
            && let Some(Slot::Tensor(t)) =
                frame.steps.get_mut(last).map(|s| std::mem::replace(s, Slot::Empty))
        {
            return Ok(t);
        }
        frame.tensor(self.result)
    }
}
